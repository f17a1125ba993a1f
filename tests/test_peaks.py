"""Peaks of the machine: measured once in a process of their own, kept whole, never an exception."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import torch
from data_recording import Run

from profstack.analysis.roofline import read_peaks
from profstack.launch import peaks
from profstack.launch import peaks as launch_peaks
from profstack.launch.peaks import Machine, cache_path, cached, keep_peaks, measured, sheet
from profstack.stats.clock import Clock

HERE = Machine("cpu", "A CPU", "A CPU", 1, "2.13.0")


# What a process says that found another CPU than the recording's.
OTHER = """print('{"machine": {"device": "cpu", "name": "B", "cpu": "B", "threads": 1, \\
"torch": "2.13.0"}, "peaks": []}')"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PROFSTACK_PEAKS", raising=False)
    return tmp_path / "cache" / "profstack" / "peaks.json"


def entry(dtype: str, value: float | None, **more: Any) -> dict[str, Any]:
    now = datetime.now(timezone.utc).isoformat()
    known = {"dtype": dtype, "value": value, "how": "by hand", "measured_at": now}
    return {**known, "disturbed": False, **more}


def keep(*entries: dict[str, Any], machine: Machine = HERE) -> None:
    launch_peaks.keep(machine, entries)


def damaged(value: Any) -> str:
    rows = [entry("float32", value), entry("memory", 1e10)]
    kept = {HERE.key(row["dtype"]): row for row in rows}
    return json.dumps({"version": 1, "peaks": kept})


# -- measured --------------------------------------------------------------------------------------


def test_this_machine_is_measured_once(cache, monkeypatch):
    machine = Machine("cpu", peaks.processor_name(), peaks.processor_name(), 1, torch.__version__)
    first = measured(machine, ["float32", "tf32"])
    (rate,), (memory,) = first["flop_per_s"], first["bytes_per_s"]
    assert rate["dtype"] == "float32"
    assert rate["source"] == memory["source"] == "measured"
    # Wide bounds on what any computer of today does: a wrong unit is a factor of a thousand.
    assert 1e7 < rate["value"] < 1e14
    assert 1e7 < memory["value"] < 1e13
    assert "product of two" in rate["how"]
    assert "copy of" in memory["how"]
    # What a CPU cannot do is kept too, as what it is.
    assert "tf32" in first["reason"]
    assert first["threads"] == 1
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    assert cached(machine, ["float32", "tf32"]) == first
    assert cached(machine, ["float32"])["reason"] is None
    assert cached(machine, ["float64"]) is None


def test_a_rate_is_that_of_the_fastest_block():
    class Ticks:
        """A clock on which every second call takes twice as long."""

        def __init__(self) -> None:
            self.calls, self.time = 0, 0.0

        def now(self) -> float:
            return self.time

        cpu = now

        def synchronize(self) -> None:
            pass

        def call(self) -> None:
            self.calls += 1
            self.time += 0.02 * (1 + self.calls % 2)

    ticks = Ticks()
    timed = peaks._fastest(ticks.call, 0.1, "cpu", ticks)  # type: ignore[arg-type]
    assert timed.seconds == pytest.approx(0.02)
    assert timed.busy == pytest.approx(1.0)


def test_a_rate_beside_other_work_says_so():
    said = peaks._entry("float32", lambda: (1e9, 0.5, "by hand"))
    assert said["disturbed"] is True
    assert "50 %" in said["how"]
    assert peaks._entry("float32", lambda: (1e9, 0.9, "by hand"))["disturbed"] is False


@pytest.mark.parametrize(("load", "crowded"), [(9.0, True), (5.9, False), (0.1, False)])
def test_a_machine_that_was_busy_of_late_says_so(monkeypatch, load, crowded):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    crowd = peaks._crowd(2)
    assert (crowd == "the load average was 9.0 on 8 cores") is crowded
    said = peaks._entry("float32", lambda: (1e9, 1.0, "by hand"), crowd)
    assert said["disturbed"] is crowded
    assert ("it may be more" in said["how"]) is crowded


def test_what_cannot_be_measured_has_the_reason():
    def fails() -> tuple[float, float, str]:
        raise RuntimeError("out of memory\nand more of it")

    said = peaks._entry("float16", fails)
    assert said["value"] is None
    assert said["how"] == "RuntimeError: out of memory"


class Gpu:
    """What stands for torch with a GPU, which this machine lacks: it multiplies on the CPU."""

    def __init__(self) -> None:
        self.waits = 0
        self.backends = torch.backends
        self.float32 = torch.float32

    def get_num_threads(self) -> int:
        return 64

    def rand(self, *shape: int, device: str) -> Any:
        assert device == "cuda:0"
        return torch.rand(8, 8)

    def empty(self, *shape: int, dtype: Any, device: str) -> Any:
        return torch.empty(8, 8, dtype=dtype)

    mm = staticmethod(torch.mm)


@pytest.mark.parametrize(("dtype", "allowed"), [("tf32", True), ("float32", False)])
def test_on_a_gpu_the_precision_is_chosen_and_no_share_of_the_cpu_is_asked_for(
    monkeypatch, dtype, allowed
):
    monkeypatch.setattr(peaks, "_SECONDS_PER_DTYPE", 0.02)
    products = torch.backends.cuda.matmul
    before = products.allow_tf32
    try:
        products.allow_tf32 = not allowed
        rate, busy, how = peaks._product_rate(Gpu(), dtype, "cuda:0", Clock())
        assert products.allow_tf32 is allowed
    finally:
        products.allow_tf32 = before
    assert rate > 0
    assert busy == 1.0
    assert "matrices" in how


# -- kept ------------------------------------------------------------------------------------------


def test_every_part_of_a_machine_has_its_own_peaks():
    keep(entry("float32", 1e9), entry("memory", 1e10))
    assert cached(HERE, ["float32"])["flop_per_s"][0]["value"] == 1e9
    others = [
        Machine("cuda", "A CPU", "A CPU", 1, "2.13.0"),
        Machine("cpu", "B CPU", "A CPU", 1, "2.13.0"),
        Machine("cpu", "A CPU", "B CPU", 1, "2.13.0"),
        Machine("cpu", "A CPU", "A CPU", 2, "2.13.0"),
        Machine("cpu", "A CPU", "A CPU", 1, "2.14.0"),
    ]
    assert [cached(other, ["float32"]) for other in others] == [None] * 5


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", '{"version": 1}', '{"version": 1, "peaks": {"a": 3}}', "\x00"),
        *(damaged(value) for value in ("fast", -1.0, 0.0, float("inf"), float("nan"), True)),
    ],
)
def test_a_damaged_file_is_replaced(cache, text):
    cache.parent.mkdir(parents=True)
    cache.write_text(text)
    assert cached(HERE, ["float32"]) is None
    keep(entry("float32", 1e9), entry("memory", 1e10))
    assert cached(HERE, ["float32"]) is not None
    assert [path.name for path in cache.parent.iterdir()] == ["peaks.json"]


def test_a_folder_that_cannot_be_written_costs_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    keep(entry("float32", 1e9), entry("memory", 1e10))
    assert cached(HERE, ["float32"]) is None


def test_without_a_home_there_is_no_file(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert cache_path() is None
    keep(entry("float32", 1e9))
    assert cached(HERE, ["float32"]) is None


def test_a_disturbed_rate_is_measured_again_later_and_the_higher_one_stands():
    old = (datetime.now(timezone.utc) - timedelta(hours=2)).isoformat()
    keep(entry("float32", 3e9, disturbed=True), entry("memory", 1e10))
    assert cached(HERE, ["float32"]) is not None
    keep(entry("float32", 3e9, disturbed=True, measured_at=old))
    assert cached(HERE, ["float32"]) is None
    assert launch_peaks.better(HERE, entry("float32", 2e9, disturbed=True))["value"] == 3e9
    assert launch_peaks.better(HERE, entry("float32", 4e9, disturbed=True))["value"] == 4e9
    # The machine did reach it, whatever slows it down now; the next try is an hour away.
    found = launch_peaks.better(HERE, entry("float32", 2e9))
    assert found["value"] == 3e9
    assert found["measured_at"] == old
    keep(found)
    assert cached(HERE, ["float32"]) is not None


def test_what_could_not_be_measured_is_tried_again_later():
    old = (datetime.now(timezone.utc) - timedelta(hours=2)).isoformat()
    keep(entry("float32", None, how="out of memory"), entry("memory", 1e10))
    assert "out of memory" in cached(HERE, ["float32"])["reason"]
    keep(entry("float32", None, how="out of memory", measured_at=old))
    assert cached(HERE, ["float32"]) is None


def test_only_what_is_lacking_is_measured(monkeypatch):
    keep(entry("float32", 9e9), entry("memory", 1e10))
    rows = [entry("bfloat16", 2e10), entry("memory", 1.0)]
    answer = json.dumps({"machine": peaks.asdict(HERE), "peaks": rows})
    asked = []

    def instead(command: list[str], **keywords: Any) -> Any:
        asked.append(command[command.index("--dtypes") + 1])
        return subprocess.CompletedProcess(command, 0, stdout=answer, stderr="")

    monkeypatch.setattr(peaks.subprocess, "run", instead)
    found = measured(HERE, ["float32", "bfloat16"])
    assert asked == ["bfloat16"]
    assert [rate["value"] for rate in found["flop_per_s"]] == [9e9, 2e10]
    assert found["bytes_per_s"][0]["value"] == 1e10


def test_nothing_in_the_user_s_folder_is_imported(tmp_path, monkeypatch):
    # torch imports cProfile, and that `profile`.
    for name in ("profile.py", "torch.py", "queue.py"):
        (tmp_path / name).write_text("open('ran', 'w').close(); raise SystemExit('run again')")
    monkeypatch.chdir(tmp_path)
    machine = Machine("cpu", peaks.processor_name(), peaks.processor_name(), 1, torch.__version__)
    found = measured(machine, [])
    assert found["bytes_per_s"], found["reason"]
    assert not (tmp_path / "ran").exists()


def test_a_relative_folder_for_caches_is_ignored(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    assert cache_path().is_absolute()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit('no torch here')", "no torch here"),
        ("print('what is this')", "exit code 0"),
        ("import time; time.sleep(60)", "TimeoutExpired"),
        (
            OTHER,
            "not A CPU",
        ),
    ],
)
def test_a_failure_is_a_reason(monkeypatch, cache, code, why):
    real = subprocess.run

    def instead(command: list[str], **keywords: Any) -> Any:
        return real([command[0], "-c", code], **keywords)

    monkeypatch.setattr(peaks.subprocess, "run", instead)
    found = measured(HERE, ["float32"], timeout_s=2.0)
    assert why in found["reason"]
    assert found["flop_per_s"] == found["bytes_per_s"] == []
    assert not cache.exists()


# -- stated ----------------------------------------------------------------------------------------


def test_only_a_name_that_is_known_exactly_has_a_sheet():
    h100 = sheet("NVIDIA H100 80GB HBM3")
    assert h100 is not None
    # Dense: with sparsity the maker states twice as much.
    assert h100.flop_per_s["bfloat16"] == 989.4e12
    assert h100.bytes_per_s == 3.35e12
    for name in ("NVIDIA H100", "H100 80GB HBM3", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "", None):
        assert sheet(name) is None


def test_halves_are_faster_and_a_t4_knows_no_bfloat16():
    for name in ("Tesla T4", "NVIDIA A100-SXM4-40GB", "NVIDIA L4", "NVIDIA H200"):
        rates = sheet(name).flop_per_s
        assert rates["float16"] > rates["float32"] > rates.get("float64", 0) * 0.49
        assert ("bfloat16" in rates) == (name != "Tesla T4")


# -- frozen in a recording -------------------------------------------------------------------------


def recording(folder: Path, **environment: Any) -> Path:
    """A recording of float32 and a little float16."""
    run = Run(folder)
    facts = {"device": "cpu", "torch": "2.13.0", "torch_threads": 1, "gpu": None, **environment}
    run.writer.facts({"environment": facts})
    moved = {"module_id": None, "operator": "aten::mm", "backward": 0, "calls": 1}
    rows = [
        {**moved, "dtype": "float32", "total_s": 1.0, "moved_bytes": 10},
        {**moved, "dtype": "float16", "total_s": 0.1, "moved_bytes": 10},
        {**moved, "dtype": "float64", "total_s": 0.001, "moved_bytes": 10},
        {**moved, "dtype": None, "total_s": 0.1, "moved_bytes": None},
    ]
    run.torch([0.1] * 3, frames={"moved_bytes": rows})
    run.finish()
    return folder


def test_a_recording_keeps_the_peaks_that_it_was_given_first(tmp_path, monkeypatch):
    folder = recording(tmp_path / "run")
    monkeypatch.setattr(peaks, "processor_name", lambda: "A CPU")
    asked: list[Any] = []

    def instead(machine: Machine, dtypes: list[str]) -> dict[str, Any]:
        asked.append((machine, dtypes))
        keep(*(entry(dtype, 1e9) for dtype in dtypes), entry("memory", 1e10))
        found = cached(machine, dtypes)
        assert found is not None
        return found

    monkeypatch.setattr(peaks, "measured", instead)
    told: list[str] = []
    keep_peaks(folder, tell=told.append)
    assert asked == [(HERE, ["float32", "float16"])]
    assert told == ["profstack: measuring this machine's peaks, once (about 2 s)"]
    kept = read_peaks(folder)
    assert [peak["dtype"] for peak in kept["flop_per_s"]] == ["float32", "float16"]
    assert kept["reason"] is None
    # Not again: neither here, nor in the next recording of this machine.
    keep_peaks(folder, tell=told.append)
    keep_peaks(recording(tmp_path / "next"), tell=told.append)
    assert len(told) == len(asked) == 1
    keep(entry("float32", 5e9))
    assert read_peaks(folder)["flop_per_s"][0]["value"] == 1e9


def test_without_leave_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(peaks, "measured", lambda *_: pytest.fail("measured"))
    one, two = recording(tmp_path / "one"), recording(tmp_path / "two")
    keep_peaks(one, measure=False)
    assert "--no-peaks" in read_peaks(one)["reason"]
    monkeypatch.setenv("PROFSTACK_PEAKS", "0")
    keep_peaks(two)
    assert read_peaks(two)["flop_per_s"] == []


def test_a_gpu_has_both_peaks_and_tf32_beside_float32(tmp_path, monkeypatch):
    name = "NVIDIA A100-SXM4-40GB"
    folder = recording(tmp_path / "run", device="cuda", gpu=name)
    asked: list[Any] = []

    def instead(machine: Machine, dtypes: list[str]) -> dict[str, Any]:
        asked.append((machine.device, machine.name, machine.threads, dtypes))
        return peaks.not_measured(machine, "there is none here")

    monkeypatch.setattr(peaks, "measured", instead)
    keep_peaks(folder)
    assert asked == [("cuda", name, None, ["float32", "tf32", "float16"])]
    kept = read_peaks(folder)
    stated = {peak["dtype"]: peak["value"] for peak in kept["flop_per_s"]}
    assert stated["tf32"] == 156e12
    assert {peak["source"] for peak in kept["flop_per_s"]} == {"datasheet"}
    assert "there is none here" in kept["reason"]


@pytest.mark.parametrize(
    ("facts", "why"),
    [({"device": None}, launch_peaks.NO_TORCH), ({"device": "mps"}, "CPUs and on CUDA")],
)
def test_where_there_is_nothing_to_measure_it_is_said(tmp_path, facts, why):
    folder = recording(tmp_path / "run", **facts)
    keep_peaks(folder)
    assert why in read_peaks(folder)["reason"]


def test_a_recording_without_peaks_or_with_damaged_ones_has_a_reason(tmp_path):
    assert "no peaks were measured" in read_peaks(tmp_path)["reason"]
    keep_peaks(tmp_path)
    assert "could not be found" in read_peaks(tmp_path)["reason"]
    (tmp_path / "logs" / "peaks.json").write_text("{")
    assert "damaged" in read_peaks(tmp_path)["reason"]
    rate = {"dtype": "float32", "value": 1e9, "source": "measured", "how": "by hand"}
    for wrong in (None, 3, [None], [{}], [{**rate, "value": "fast"}], [{**rate, "source": "x"}]):
        (tmp_path / "logs" / "peaks.json").write_text(json.dumps({"flop_per_s": wrong}))
        found = read_peaks(tmp_path)
        assert "damaged" in found["reason"]
        assert found["flop_per_s"] == []
    (tmp_path / "logs" / "peaks.json").write_text(json.dumps({"flop_per_s": [rate]}))
    assert read_peaks(tmp_path)["flop_per_s"] == [rate]
    (tmp_path / "logs" / "peaks.json").write_text(json.dumps({"device": "x", "more": os.name}))
    assert set(read_peaks(tmp_path)) == {
        *("device", "threads", "torch", "measured_at", "reason", "flop_per_s", "bytes_per_s")
    }
