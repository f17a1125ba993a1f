"""`profstack bench` from end to end, as its users start it: figures, pages, exit codes."""

import json
from pathlib import Path

import pytest

from tests.support.processes import CHECKOUT
from tests.support.recorded_runs import report_of
from tests.support.reports import validate

TARGETS = """
import time
def nap():
    time.sleep(0.02)
def factory():
    import torch
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()), torch.ones(4, 16)
def raises():
    print("said by the target")
    raise ValueError("the target's own")
"""


@pytest.fixture
def bench(tmp_path, run_profstack):
    """How `profstack bench targets.py:NAME WORDS` ended, and its report, kept to its schema."""

    def bench(name, *words, code=0):
        (tmp_path / "targets.py").write_text(TARGETS)
        done = run_profstack(["bench", f"targets.py:{name}", *words], code=code)
        report = report_of(tmp_path / "profstack-runs" / f"bench-targets-{name}-0001")
        validate(report)
        return done, report, report["benchmark"]

    return bench


def test_seconds_stay_seconds_from_the_sleep_to_the_page(bench):
    words = ("--json", "--layers", "none", "--processes", "2", "--warmup", "2", "--repeat", "12")
    done, report, figures = bench("nap", *words)
    assert (json.loads(done.stdout), figures["n"], figures["stopped_by"]) == (figures, 12, "repeat")
    # Nothing sleeps for less; how much longer is the machine's business.
    assert min(figures["samples_s"]) == figures["min_s"] >= 0.02
    assert figures["warmup_s"][0] == figures["first_step_s"] >= 0.02
    assert figures["steps_per_s"] == pytest.approx(12 / sum(figures["samples_s"]))
    assert "ms a call (95 % interval" in done.stderr
    between = figures["between_process"]
    assert (between["processes"], between["medians_s"][0]) == (2, figures["median_s"])
    last = f"Wrote {Path('profstack-runs')}/bench-targets-nap-0001/report.html"
    assert (done.stderr.rstrip().splitlines()[-1], report["status"]) == (last, "complete")
    assert report["processes"]["reason"] == "left out by --layers none"
    assert any("CPU time" in text and "waits" in text for text in figures["warnings"])


def test_a_model_is_measured_and_then_seen_by_its_layers(bench, tmp_path):
    words = ("--layers", "torch,flops", "--no-peaks", "--max-seconds", "1")
    _, report, figures = bench("factory", *words)
    assert (figures["batch_size"], figures["batch_size_is"]) == (4, "read from the inputs")
    assert figures["items_per_s"] == pytest.approx(4 * figures["steps_per_s"])
    assert (figures["gradients"], figures["training"]) == (False, True)
    assert (figures["by_shape"][0]["shape"], figures["target"]) == ("4x16", "targets.py:factory")
    assert (figures["pipelined_median_s"], figures["modes_note"] is None) == (None, False)
    assert [layer["status"] for layer in report["layers"]] == ["recorded", "recorded"]
    root, *_ = rows = report["tables"]["modules"]
    # 4 x 16 x 16 multiply-adds, two operations each.
    assert (root["path"], root["calls"], root["forward_flop"]) == ("Sequential", 1, 2048)
    # Null where other work slowed the layer's steps too much.
    shares = [row["calibrated_s"] or 0.0 for row in rows if row["depth"] == 0]
    assert sum(shares) <= figures["median_s"] * 1.0001, "calibrated to the benchmark's own median"
    points = report["roofline"]["points"]
    assert next(one for one in points if one["kind"] == "step")["seconds"] == figures["median_s"]
    [folder] = (tmp_path / "profstack-runs").iterdir()
    assert not (folder / "logs" / "layers").exists()


def test_an_error_of_the_target_is_shown_as_its_own(bench):
    done, report, figures = bench("raises", "--layers", "none", code=1)
    assert "ValueError: the target's own" in done.stderr
    ours = str(CHECKOUT / "profstack")
    assert ("targets.py" in done.stderr, ours in done.stderr) == (True, False)
    assert "said by the target" in done.stdout
    assert (report["status"], figures["median_s"]) == ("failed", None)
    assert "ValueError: the target's own" in figures["warnings"][0]
    assert "the target raised ValueError: the target's own" in report["verdict"]["sentence"]
