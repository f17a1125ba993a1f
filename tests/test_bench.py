"""`profstack bench` from end to end, as its users start it: figures, pages, exit codes, Ctrl-C."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import CHECKOUT, RunProfstack, clean_environment

from profstack import commands
from profstack.analysis.build import build_report
from profstack.bench.results import join_results, take_layers, write_figures
from profstack.report import files
from profstack.storage.reader import Recorded

pytestmark = pytest.mark.timed

TARGETS = """
import os
import signal
import time

calls = 0


def nap():
    time.sleep(0.02)


def factory():
    import torch
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()), torch.ones(4, 16)


def raises():
    print("said by the target")
    raise ValueError("the target's own")


def interrupts():
    # As Ctrl-C does it, but to the command alone, which has to pass it on.
    global calls
    calls += 1
    if calls == 60:
        os.kill(os.getppid(), signal.SIGINT)
    time.sleep(0.01)


def interrupted_at_once():
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(10)


def dies():
    global calls
    calls += 1
    if calls > 130:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.002)
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
RUNS = "profstack-runs"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the targets in it."""
    (tmp_path / "targets.py").write_text(TARGETS)
    return tmp_path


def report_in(folder: Path, name: str) -> dict[str, Any]:
    """The report of a recording; it keeps to the schema."""
    report: dict[str, Any] = json.loads((folder / RUNS / name / "report.json").read_text())
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(report, files.schema())
    return report


def test_seconds_stay_seconds_from_the_sleep_to_the_page(
    folder: Path, run_profstack: RunProfstack
) -> None:
    done = run_profstack(
        [
            *("bench", "targets.py:nap", "--json", "--layers", "none", "--processes", "2"),
            *("--warmup", "2", "--repeat", "12"),
        ],
        env=ONE_THREAD,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["n"] == 12
    assert figures["stopped_by"] == "repeat"
    # Nothing sleeps for less; how much longer is the machine's business.
    assert min(figures["samples_s"]) == figures["min_s"] >= 0.02
    assert figures["median_s"] >= 0.02
    assert figures["first_step_s"] >= 0.02
    assert figures["warmup_s"][0] == figures["first_step_s"]
    assert figures["steps_per_s"] == pytest.approx(12 / sum(figures["samples_s"]))
    assert figures["steps_per_s"] <= 50
    assert "ms a call (95 % interval" in done.stderr
    between = figures["between_process"]
    assert between["processes"] == 2
    assert between["medians_s"][0] == figures["median_s"]
    assert between["spread"] == pytest.approx(between["high_s"] / between["low_s"] - 1)
    assert done.stderr.rstrip().splitlines()[-1] == (
        f"Wrote {Path(RUNS)}/bench-targets-nap-0001/report.html"
    )
    report = report_in(folder, "bench-targets-nap-0001")
    assert report["benchmark"] == figures
    assert report["status"] == "complete"
    assert {layer["status"] for layer in report["layers"]} == {"skipped"}
    assert report["processes"]["reason"] == "left out by --layers none"
    assert any("CPU time" in text and "waits" in text for text in figures["warnings"])


def test_a_model_is_measured_and_then_seen_by_its_layers(
    folder: Path, run_profstack: RunProfstack
) -> None:
    done = run_profstack(
        [
            *("bench", "targets.py:factory", "--layers", "torch,flops", "--no-peaks"),
            *("--max-seconds", "2"),
        ],
        env=ONE_THREAD,
    )
    assert done.returncode == 0, done.stderr
    report = report_in(folder, "bench-targets-factory-0001")
    figures = report["benchmark"]
    assert (figures["batch_size"], figures["batch_size_is"]) == (4, "read from the inputs")
    assert figures["items_per_s"] == pytest.approx(4 * figures["steps_per_s"])
    assert (figures["gradients"], figures["training"]) == (False, True)
    assert figures["by_shape"][0]["shape"] == "4x16"
    assert figures["target"] == "targets.py:factory"
    assert (figures["pipelined_median_s"], figures["modes_note"] is None) == (None, False)
    assert [layer["status"] for layer in report["layers"]] == ["recorded", "recorded"]
    root = report["tables"]["modules"][0]
    assert (root["path"], root["calls"]) == ("Sequential", 1)
    # 4 x 16 x 16 multiply-adds, two operations each.
    assert root["forward_flop"] == 2048
    shares = [row["calibrated_s"] for row in report["tables"]["modules"] if row["depth"] == 0]
    assert sum(shares) <= figures["median_s"] * 1.0001, "calibrated to the benchmark's own median"
    points = report["roofline"]["points"]
    assert next(one for one in points if one["kind"] == "step")["seconds"] == figures["median_s"]
    assert done.stdout.rstrip().endswith("report.html")
    assert not (folder / RUNS / "bench-targets-factory-0001" / "logs" / "layers").exists()


def test_an_error_of_the_target_is_shown_as_its_own(
    folder: Path, run_profstack: RunProfstack
) -> None:
    done = run_profstack(["bench", "targets.py:raises", "--layers", "none"], env=ONE_THREAD)
    assert done.returncode == 1
    assert "ValueError: the target's own" in done.stderr
    assert "targets.py" in done.stderr
    assert str(CHECKOUT / "profstack") not in done.stderr
    assert "said by the target" in done.stdout
    report = report_in(folder, "bench-targets-raises-0001")
    assert report["status"] == "failed"
    assert report["benchmark"]["median_s"] is None
    assert "ValueError: the target's own" in report["benchmark"]["warnings"][0]
    assert report["status_reason"] == "the target raised ValueError: the target's own"
    assert report["status_reason"] in report["verdict"]["sentence"]


def test_ctrl_c_keeps_what_was_measured(folder: Path, run_profstack: RunProfstack) -> None:
    done = run_profstack(
        ["bench", "targets.py:interrupts", "-q", "--warmup", "5", "--repeat", "5000"],
        env=ONE_THREAD,
        timeout=120,
    )
    assert done.returncode == 130, done.stderr
    report = report_in(folder, "bench-targets-interrupts-0001")
    figures = report["benchmark"]
    assert report["status"] == "partial"
    assert figures["stopped_by"] == "interrupt"
    assert 0 < figures["n"] <= 150
    assert figures["median_s"] >= 0.01
    assert "Traceback" not in done.stderr
    assert any(text.startswith("interrupted after") for text in figures["warnings"])


def test_ctrl_c_before_any_sample_leaves_nothing(folder: Path, run_profstack: RunProfstack) -> None:
    done = run_profstack(["bench", "targets.py:interrupted_at_once"], env=ONE_THREAD)
    assert done.returncode == 130, done.stderr
    assert "interrupted before there was a sample" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not list((folder / RUNS).glob("*"))


def test_a_process_that_ctrl_c_ended_is_called_that() -> None:
    found = join_results([{"figures": None, "error": "KeyboardInterrupt"}], [-2])
    assert found["problems"] == ["interrupted (Ctrl-C)"]
    assert join_results([None], [130])["problems"] == ["interrupted (Ctrl-C)"]
    assert join_results([None], [-9])["problems"] == ["ended by signal 9"]


def test_a_killed_process_of_the_layers_costs_no_clean_figure(
    folder: Path, run_profstack: RunProfstack
) -> None:
    done = run_profstack(
        [
            *("bench", "targets.py:dies", "-q", "--layers", "cprofile", "--no-peaks"),
            *("--warmup", "5", "--repeat", "100"),
        ],
        env=ONE_THREAD,
    )
    assert done.returncode == 128 + 9
    report = report_in(folder, "bench-targets-dies-0001")
    assert report["status"] == "partial"
    assert report["run"]["signal"] == 9
    assert (report["benchmark"]["n"], report["benchmark"]["stopped_by"]) == (100, "repeat")
    assert report["benchmark"]["warnings"][0] == "ended by signal 9"
    assert report["tables"]["steps"], "what the layers had written by then is there"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.py:f"], "nowhere.py: no such file"),
        (["targets.py"], "names no function"),
        (["targets.py:nap", "--input", "2y3"], "--input 2y3 is no shape"),
        (["targets.py:nap", "--compare", "eager,fast"], "--compare knows no 'fast'"),
        (["targets.py:nap", "--dtype", "float32"], "add --throughput"),
        (["targets.py:nap", "--search", "linear"], "--search is of the search"),
        (["targets.py:nap", "--max-batch", "8"], "--max-batch is of the search"),
        (["targets.py:nap", "--compare", ","], "--compare names nothing"),
        (["targets.py:nap", "--target", "5"], "0.01 for 1 %"),
        (["targets.py:nap", "--layers", "none", "--skip", "foo"], "leave out --skip"),
        (["targets.py:nap", "--repeat", "5", "--target", "0.1"], "give one of the two"),
        (["targets.py:nap", "--layers", "nothing"], "no layer 'nothing'"),
        (["targets.py:nap", "--memory-limit", "much"], "much is no size"),
        (["targets.py:nap", "--factory", "--step"], "not allowed with"),
        (["targets.py:nap", "--repeat", "0"], "0 is not above 0"),
    ],
)
def test_what_cannot_be_measured_costs_no_process(
    folder: Path,
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    assert commands.main(["bench", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
    assert not (folder / RUNS).exists()


def test_the_help_needs_no_torch() -> None:
    code = (
        "import sys; from profstack.commands import main; main(['bench', '--help']);"
        "print({'torch', 'numpy', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(),
    )
    assert "--processes" in done.stdout
    assert done.stdout.endswith("set()\n")


class TestJoining:
    """What several processes left becomes one recording."""

    def test_a_process_that_gave_nothing_counts_nowhere(self) -> None:
        last = {"figures": {"median_s": 0.6}, "error": None}
        fact = join_results([{"figures": {"median_s": 0.5}}, None, last], [0, -9, 0])
        between = fact["figures"]["between_process"]
        assert between["medians_s"] == [0.5, None, 0.6]
        assert (between["processes"], between["median_s"]) == (2, 0.55)
        assert between["spread"] == pytest.approx(0.2)
        assert "1 of 3 gave no median" in between["note"]
        assert fact["problems"] == ["process 2: ended by signal 9"]

    def test_variants_have_the_medians_of_all_processes(self) -> None:
        def result(eager: float, compiled: float) -> dict[str, Any]:
            rows = [
                {"variant": "eager", "median_s": eager},
                {"variant": "compile", "median_s": compiled},
            ]
            return {"figures": {"median_s": eager, "compare": rows}}

        second = result(0.4, 0.2)
        second["figures"]["compare"].reverse()
        fact = join_results([result(0.5, 0.3), second], [0, 0])
        assert [row["between_process"] for row in fact["figures"]["compare"]] == [
            [0.5, 0.4],
            [0.3, 0.2],
        ]

    def test_of_one_process_there_is_no_spread(self) -> None:
        fact = join_results([{"figures": {"median_s": 0.5}}], [0])
        assert "between_process" not in fact["figures"]

    def test_without_any_figure_the_report_says_why(self, tmp_path: Path) -> None:
        (tmp_path / "logs").mkdir()
        fact = join_results([{"figures": None, "error": "ValueError: no"}], [1])
        write_figures(tmp_path, fact, {"torch": "the benchmark ended before its layers began"})
        report = build_report(Recorded(tmp_path))
        assert report["status"] == "failed"
        assert report["benchmark"]["warnings"] == ["ValueError: no"]
        assert (report["benchmark"]["n"], report["benchmark"]["samples_s"]) == (0, [])

    def test_the_layers_become_part_of_the_recording(self, tmp_path: Path) -> None:
        made = tmp_path / "logs" / "layers"
        (made / "logs").mkdir(parents=True)
        (made / "torch").mkdir()
        (made / "torch" / "trace.json.gz").write_bytes(b"trace")
        (made / "logs" / "progress.jsonl").write_text("")
        (made / "report.html").write_text("of the layers alone")
        sqlite3.connect(made / "recording.sqlite").execute("CREATE TABLE facts (key, value)")
        assert take_layers(tmp_path)
        assert (tmp_path / "torch" / "trace.json.gz").read_bytes() == b"trace"
        assert (tmp_path / "recording.sqlite").is_file()
        assert (tmp_path / "logs" / "progress.jsonl").is_file()
        assert not (tmp_path / "report.html").exists()
        assert not made.exists()
        assert not take_layers(tmp_path), "there is none a second time"


class TestInProcess:
    """`profstack.benchmark(...)`, the same of what a program holds."""

    def test_a_model_and_its_inputs(self, tmp_path: Path) -> None:
        torch = pytest.importorskip("torch")
        import profstack

        model = torch.nn.Linear(8, 2)
        before = torch.is_grad_enabled(), model.training
        recording = profstack.benchmark(
            model, torch.ones(3, 8), warmup=2, repeat=20, layers=["flops"], compare=["eager"]
        )
        figures = recording.to_dict()["benchmark"]
        assert (figures["n"], figures["batch_size"]) == (20, 3)
        assert recording.to_dict()["status"] == "complete"
        assert recording.frames["modules"]["path"].tolist()[0] == "Linear"
        assert figures["compare"][0]["variant"] == "eager"
        assert (torch.is_grad_enabled(), model.training) == before
        kept = recording.save(tmp_path / "kept")
        assert (kept / "report.json").is_file()
        jsonschema = pytest.importorskip("jsonschema")
        jsonschema.validate(json.loads((kept / "report.json").read_text()), files.schema())

    def test_an_error_leaves_what_there_is_where_it_was_wanted(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        import profstack

        state = SimpleNamespace(calls=0)

        def breaks() -> None:
            state.calls += 1
            if state.calls > 25:
                raise ValueError("after the samples")

        output = tmp_path / "kept"
        with pytest.raises(ValueError, match="after the samples"):
            profstack.benchmark(
                breaks, warmup=2, repeat=1, layers=["flops"], output=output, name="breaks"
            )
        report = json.loads((output / "report.json").read_text())
        assert report["status"] in ("partial", "failed")
        assert "ValueError: after the samples" in report["benchmark"]["warnings"][0]

    def test_refuses_what_is_no_work(self) -> None:
        pytest.importorskip("torch")
        import profstack
        from profstack.errors import UsageError

        for words in (
            {"target": 3},
            {"target": int},
            {"target": print, "mode": "fast"},
            {"target": print, "repeat": 0},
            {"target": print, "layers": ["nothing"]},
        ):
            target = words.pop("target")
            with pytest.raises(UsageError):
                profstack.benchmark(target, **words)
