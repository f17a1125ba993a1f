"""The GPU check, tried where there is no GPU: its table, its verdicts, its wheels."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from conftest import CHECKOUT, clean_environment

SCRIPT = CHECKOUT / "scripts" / "gpu_check.py"

sys.path.insert(0, str(SCRIPT.parent))
import gpu_check  # noqa: E402 - it stands beside the tests, in no package
import gpu_parts  # noqa: E402
import gpu_rows  # noqa: E402
import gpu_wheels  # noqa: E402
from gpu_rows import FAILED, NEEDS_CUDA, NOT_MEASURED, OK, Row  # noqa: E402

MIB = 1 << 20


def started(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        cwd=tmp_path,
        env=clean_environment(OMP_NUM_THREADS="1"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# -- as a whole ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_needs_no_cuda_is_measured_and_the_rest_says_so(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--scale", "tiny", "--parts", "mlp,throughput")
    done = started(tmp_path, *options, "--json", "table.json", "--keep", "kept")
    assert done.returncode == 0, done.stdout + done.stderr
    table = json.loads((tmp_path / "table.json").read_text("utf-8"))
    assert table["torch"]
    assert table["profstack"]
    assert table["gpu"] is None
    rows = {(row["part"], row["what"]): row for row in table["rows"]}
    for what in (
        "layers recorded",
        "clean median over hand-timed",
        "clock of the clean steps",
        "achieved FLOP/s",
        "FLOP of a step over a count by hand",
        "last loss with profstack / without",
    ):
        assert rows["mlp", what]["verdict"] == OK, rows["mlp", what]
    joined = rows["mlp", "kernels joined, share of device time"]
    assert (joined["verdict"], joined["reason"]) == (NOT_MEASURED, NEEDS_CUDA)
    assert rows["throughput", "largest batch"]["value"] == "4"
    assert all(row["what"] in done.stdout for row in table["rows"])
    assert "0 FAILED" in done.stdout
    assert (tmp_path / "kept" / "mlp" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "mistake"),
    [("resnet18", None), ("gpt2", "pageable"), ("small", "item")],
)
def test_every_workload_runs_and_so_does_every_mistake(
    tmp_path: Path, model: str, mistake: str | None
) -> None:
    options = ["--mistake", mistake] if mistake else []
    command = [sys.executable, str(gpu_parts.WORKLOADS), model, "--device", "cpu"]
    done = subprocess.run(
        [*command, "--scale", "tiny", "--steps", "4", "--hand", *options],
        cwd=tmp_path,
        env=clean_environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["median_s"] > 0
    assert said["loss"] > 0


def test_without_a_gpu_it_says_what_to_do(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = started(tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "gpu_check: torch finds no CUDA device; --device cpu checks what needs none\n"
    )


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    done = started(tmp_path, "--parts", "mlp,everything")
    assert done.returncode == 2
    assert "everything" in done.stderr


# -- a part that fails -----------------------------------------------------------------------------


def bench(tmp_path: Path) -> gpu_parts.Bench:
    return gpu_parts.Bench(tmp_path, "cpu", "tiny", dict(os.environ))


def test_a_part_that_fails_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "missing.py"
    monkeypatch.setattr(gpu_parts, "WORKLOADS", missing)
    (row,) = gpu_parts.rows_of("gpt2", bench(tmp_path))
    assert row.verdict == FAILED
    assert "exit code 2" in row.reason
    assert "missing.py" in row.reason


def test_a_report_without_what_is_asked_of_it_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def profiled(*_: Any, **__: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"layers": []}, {}

    monkeypatch.setattr(gpu_parts.Bench, "profiled", profiled)
    rows = list(gpu_parts.rows_of("mlp", bench(tmp_path)))
    assert [row.verdict for row in rows] == [OK, FAILED]
    assert rows[-1].reason == "KeyError: 'tables'"


def test_a_failure_is_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"gpu": None}
    monkeypatch.setattr(gpu_check, "head_facts", lambda _: facts)
    monkeypatch.setattr(gpu_wheels, "missing", list)
    made = {"mlp": OK, "gpt2": FAILED, "nsys": NOT_MEASURED}
    monkeypatch.setattr(
        gpu_check, "rows_of", lambda part, _: [Row(part, "it", "1", "1", made[part], "why")]
    )
    ended = {}
    for parts in (["mlp", "nsys"], ["mlp", "gpt2", "nsys"]):
        asked = {"device": "cpu", "scale": "tiny", "parts": parts, "json": tmp_path / "table.json"}
        options = argparse.Namespace(wheelhouse=None, nsys_path=None, **asked)
        ended[len(parts)] = gpu_check.check(options, tmp_path)
    assert ended == {2: 0, 3: 1}
    rows = json.loads((tmp_path / "table.json").read_text("utf-8"))["rows"]
    assert [row["verdict"] for row in rows] == [OK, FAILED, NOT_MEASURED]


# -- verdicts --------------------------------------------------------------------------------------


def test_limits_are_judged() -> None:
    verdicts = [
        gpu_rows.judged("a", "b", value, (0.95, 1.05)).verdict for value in (0.94, 0.95, 1.06, None)
    ]
    assert verdicts == [FAILED, OK, FAILED, NOT_MEASURED]


def kernels(joined_s: float, lost_s: float, backward_s: float) -> dict[str, Any]:
    return {
        "tables": {
            "kernels": [
                {"module": "Net", "device_s": joined_s},
                {"module": None, "device_s": lost_s},
            ],
            "modules": [
                {"path": "Net", "depth": 0, "forward_device_s": 1.0}
                | {"backward_device_s": backward_s},
                {"path": "(optimizer)", "depth": 0, "forward_device_s": 9.0}
                | {"backward_device_s": None},
            ],
            "launches": [{"device_busy_s": 3.0, "device_idle_s": 1.0}],
        }
    }


def test_kernels_that_found_no_module_fail() -> None:
    good = gpu_rows.kernel_rows("mlp", kernels(97.0, 3.0, 2.0), on_cuda=True)
    assert [(row.value, row.verdict) for row in good] == [
        ("0.97", OK),
        ("0.6667", OK),
        ("0.75", OK),
    ]
    bad = gpu_rows.kernel_rows("mlp", kernels(90.0, 10.0, 0.1), on_cuda=True)
    assert [row.verdict for row in bad] == [FAILED, FAILED, OK]
    nothing = {"tables": {"kernels": [], "modules": [], "launches": []}}
    assert [row.verdict for row in gpu_rows.kernel_rows("mlp", nothing, on_cuda=True)] == [
        FAILED
    ] * 3


def test_a_device_median_is_held_against_the_loop_timed_by_hand() -> None:
    report = {
        "benchmark": {"clock": "device", "device_median_s": 0.0104, "host_median_s": 0.002, "n": 9}
    }
    clock, median = gpu_rows.median_rows("mlp", report, {"median_s": 0.010}, on_cuda=True)
    assert (clock.verdict, median.verdict) == (OK, OK)
    assert median.value == "1.04 (10.400 ms / 10.000 ms, 9 clean steps)"
    report["benchmark"].update(clock="host", device_median_s=None)
    clock, median = gpu_rows.median_rows("mlp", report, {"median_s": 0.010}, on_cuda=True)
    assert (clock.verdict, median.verdict) == (FAILED, FAILED)


def test_a_peak_is_held_against_torchs_own() -> None:
    rows = [
        {"device": "cuda:0", "peak_bytes": 90 * MIB},
        {"device": "cuda:0", "peak_bytes": 10 * MIB},
        {"device": "cpu", "peak_bytes": 500 * MIB},
    ]
    report = {"tables": {"memory_owners": rows}}
    said = {"max_memory_allocated": 100 * MIB}
    for alone, verdicts in ((100 * MIB, [OK, OK]), (50 * MIB, [OK, FAILED])):
        found = gpu_rows.memory_rows(
            "mlp", report, said, {"max_memory_allocated": alone}, on_cuda=True
        )
        assert [row.verdict for row in found] == verdicts


def finding(slug: str) -> dict[str, Any]:
    return {"slug": slug, "line": 7, "gain_s": 0.001, "gain_reason": None}


@pytest.mark.parametrize("mistake", sorted(gpu_rows.SLUGS))
def test_a_planted_mistake_is_found_alone(mistake: str) -> None:
    slug = gpu_rows.SLUGS[mistake]
    other = next(one for one in gpu_rows.SLUGS.values() if one != slug)

    def verdict(*slugs: str, planted: str | None = mistake) -> str:
        report = {"findings": [finding(one) for one in slugs]}
        return gpu_rows.mistake_rows("small", planted, report)[0].verdict

    assert verdict(slug, "unfused-optimizer") == OK
    assert verdict("unfused-optimizer") == FAILED
    assert verdict(slug, other) == FAILED
    assert verdict("unfused-optimizer", planted=None) == OK
    assert verdict(slug, planted=None) == FAILED


def test_a_search_that_meets_no_end_of_memory_fails_on_a_gpu() -> None:
    limit = {"largest_batch": 8, "knee_items_per_s": 3.0, "limited_by": "the largest size to try"}
    sizes: list[dict[str, Any]] = [{"status": "measured", "batch_size": 8, "reason": None}]
    report = {"benchmark": {"throughput_limits": [limit], "throughput": sizes}}
    assert gpu_rows.throughput_rows(report, on_cuda=True)[-1].verdict == FAILED
    assert gpu_rows.throughput_rows(report, on_cuda=False)[-1].verdict == NOT_MEASURED
    sizes.append({"status": "refused", "batch_size": 9, "reason": "OutOfMemoryError"})
    last = gpu_rows.throughput_rows(report, on_cuda=True)[-1]
    assert (last.value, last.verdict) == ("batch 9", OK)


def test_an_nsys_that_is_there_and_sees_nothing_fails() -> None:
    report: dict[str, Any] = {
        "layers": [{"name": "nvtx", "reason": "nsys is not installed"}],
        "tables": {"nsys_ranges": [], "nsys_kernels": []},
        "warnings": [],
    }
    for usable, verdict in ((True, FAILED), (False, NOT_MEASURED)):
        seen, joined = gpu_rows.nsys_rows(report, on_cuda=True, usable=usable)
        assert (seen.verdict, seen.reason) == (verdict, "nsys is not installed")
        assert joined.verdict == verdict
    report["tables"] = {
        "nsys_ranges": [{"kind": "module"}, {"kind": "step"}],
        "nsys_kernels": [{"range_kind": "module", "device_s": 1.0}],
    }
    rows = gpu_rows.nsys_rows(report, on_cuda=True, usable=True)
    assert [row.verdict for row in rows] == [OK, OK]
    report["tables"]["nsys_kernels"].append({"range_kind": "step", "device_s": 1.0})
    rows = gpu_rows.nsys_rows(report, on_cuda=True, usable=True)
    assert [row.verdict for row in rows] == [OK, FAILED]


def test_a_reason_stands_below_its_row() -> None:
    text = gpu_check.as_text([Row("mlp", "it", "1", "2", FAILED, "too small")])
    head, row, reason = text.splitlines()
    assert head.split() == ["part", "what", "value", "expected", "verdict"]
    assert row.split() == ["mlp", "it", "1", "2", "FAILED"]
    assert reason.strip() == "too small"


# -- wheels ----------------------------------------------------------------------------------------


def test_the_wheels_are_profstacks_dependencies_that_torch_does_not_bring() -> None:
    from configparser import ConfigParser

    declared = ConfigParser()
    declared.read(CHECKOUT / "setup.cfg", encoding="utf-8")
    names = {line.split(">")[0] for line in declared["options"]["install_requires"].split()}
    assert set(gpu_wheels.BASE) == names - {
        "torch",
        "networkx",
        "numpy",
        "pandas",
        "rich",
        "jinja2",
    }
    command = gpu_wheels.listing().splitlines()[0]
    assert command.startswith("pip download --dest wheels --only-binary=:all: --no-deps ")
    assert all(gpu_wheels.distribution(name) in command for name in gpu_wheels.requirements())
    assert "'importlib-metadata<7'" in command


def wheel(folder: Path, name: str) -> None:
    """A wheel with one module in it, made by hand."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", "HERE = True\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n")


def test_what_is_lacking_goes_into_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_wheels, "BASE", {"profstack_tried_a": ("profstack_tried_b",)})
    monkeypatch.setattr(gpu_wheels, "EXTRA", {})
    house, target = tmp_path / "wheels", tmp_path / "packages"
    house.mkdir()
    wheel(house, "profstack_tried_a")
    said: list[str] = []
    problem = gpu_wheels.install(house, target, said.append)
    assert problem is not None
    assert "profstack_tried_b" in problem
    wheel(house, "profstack_tried_b")
    assert gpu_wheels.install(house, target, said.append) is None
    assert (target / "profstack_tried_a.py").exists()
    assert (target / "profstack_tried_b.py").exists()
    assert gpu_wheels.missing() == ["profstack_tried_a"], "this interpreter's own has none of it"
    assert "no folder" in (gpu_wheels.install(tmp_path / "none", target, said.append) or "")
