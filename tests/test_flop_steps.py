"""Operations, and their rate, where the steps of a run do not all do the same work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from data_recording import CLEAN_S, Run, by, module, module_times, operator

from profstack.findings.rules import COMPUTE
from profstack.findings.verdict import step_rates
from profstack.report.files import complete_report
from profstack.report.terminal import ending

Report = dict[str, Any]
PEAK = 2e12


def counts(counter: str, flop: int, steps: int = 1) -> list[dict[str, Any]]:
    """Records of `flop_counts`: what one operator of a module did in so many steps."""
    row = {"counter": counter, "module_id": 1, "operator": "aten::mm", "calls": steps}
    return [{**row, "backward": back, "flop": flop * steps * (1 + back)} for back in (0, 1)]


def moved(steps: int) -> list[dict[str, Any]]:
    """A record of `moved_bytes`, which tells the steps' type."""
    row = {"operator": "aten::mm", "module_id": 1, "backward": 0, "dtype": "float32"}
    return [{**row, "calls": steps, "total_s": 0.008 * steps, "moved_bytes": 1_000_000 * steps}]


def report_of(
    folder: Path,
    *,
    late: int,
    uncounted: str | None = None,
    clean_shape: str | None = "32x8",
    peak: float = PEAK,
) -> Report:
    """The first steps do 3 G FLOP, those that the torch layer timed three times `late`."""
    run = Run(folder)
    first = counts("FlopCounterMode", 1_000_000_000)
    run.slice("flops", [0.05], layer="flops", mode="count", number=1, frames={"flop_counts": first})
    shapes = counts("recorded_shapes", 1_000_000_000)
    run.torch([0.05], mode="detail", number=1, frames={"flop_counts": shapes})
    run.clean(1, number=1)
    for number in (2, 3):
        run.clean(8, number=number)
        rows = counts("recorded_shapes", late, 5)
        if uncounted is not None:
            rows.append({**rows[0], "operator": uncounted, "flop": None})
        frames = {
            "flop_counts": rows,
            "module_times": [module_times(1, 5, 0.05)],
            "operators": [operator("aten::mm", 5, 0.04, module_id=1)],
            "moved_bytes": moved(5),
        }
        run.torch([CLEAN_S] * 5, number=number, frames=frames)
        run.clean(8, number=number)
    _set_shape(run, run.clean(200, number=4), clean_shape)
    run.writer.replace("modules", [module(1, "Net")])
    run.layers(torch="recorded", flops="recorded")
    rate = {"dtype": "float32", "value": peak, "source": "measured", "how": "product"}
    memory = {"value": 1e10, "source": "measured", "how": "copy"}
    peaks = {"flop_per_s": [rate], "bytes_per_s": [memory], "device": "cpu"}
    (folder / "logs" / "peaks.json").write_text(json.dumps(peaks))
    run.finish()
    return complete_report(folder)


def _set_shape(run: Run, index: int, shape: str | None) -> None:
    """The first input of the steps of a slice."""
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(run.folder / "recording.sqlite")) as database:
        database.execute("UPDATE steps SET shape = ? WHERE slice = ?", (shape, index))
        database.commit()


def step_of(report: Report) -> Report:
    """The step's point of the roofline."""
    return by(report["roofline"]["points"], "kind")["step"]


def slugs(report: Report) -> set[str]:
    """What the report warns of."""
    return {row["slug"] for row in report["warnings"]}


def test_operations_are_those_of_the_timed_steps_where_the_first_ones_did_other_work(
    tmp_path: Path,
) -> None:
    report = report_of(tmp_path / "rec", late=200_000_000)
    step = step_of(report)
    assert step["flop"] == pytest.approx(0.6e9)
    assert step["flop_per_s"] == pytest.approx(0.6e9 / CLEAN_S)
    assert report["roofline"]["mfu"][0]["value"] == pytest.approx(0.03)
    (row,) = (row for row in report["tables"]["modules"] if row["path"] == "Net")
    assert row["forward_flop"] == 200_000_000
    assert report["columns_source"]["modules.forward_flop"] == "recorded_shapes, 10 steps"
    told = by(report["warnings"], "slug")["flops-differ-by-step"]["text"]
    assert "3.00 G FLOP in the first ones, 600 M in the mean of the 10" in told
    # What is of other steps is no disagreement of the counters.
    assert "flop-counters-disagree" not in slugs(report)
    other = by(report["tables"]["flops"], "counter")["FlopCounterMode"]
    assert other["difference"] == "not compared: it saw steps that did other work"
    assert "600 M FLOP a step; 60.0 G FLOP/s" in ending(report, width=100, colour=False)


def test_steps_of_the_same_work_keep_the_counter_of_record(tmp_path: Path) -> None:
    report = report_of(tmp_path / "rec", late=1_000_000_000)
    assert report["columns_source"]["modules.forward_flop"] == "FlopCounterMode, 1 step"
    assert "flops-differ-by-step" not in slugs(report)
    assert step_of(report)["flop_per_s"] == pytest.approx(3e9 / CLEAN_S)


def test_what_a_compiler_hides_is_no_difference_of_the_steps(tmp_path: Path) -> None:
    name = "## Call CompiledFxGraph fabc ##"
    report = report_of(tmp_path / "rec", late=200_000_000, uncounted=name)
    assert report["columns_source"]["modules.forward_flop"] == "FlopCounterMode, 1 step"
    assert "flops-differ-by-step" not in slugs(report)


def test_clean_steps_with_other_inputs_give_no_rate(tmp_path: Path) -> None:
    report = report_of(tmp_path / "rec", late=1_000_000_000, clean_shape="8x8")
    step = step_of(report)
    assert step["flop"] == pytest.approx(3e9)
    assert (step["flop_per_s"], step["share_of_peak"], step["bound"]) == (None, None, None)
    assert "the clean steps had other inputs" in step["reason"]
    (share,) = report["roofline"]["mfu"]
    assert share["value"] is None
    assert share["warning"] == step["reason"]
    told = by(report["warnings"], "slug")["clean-steps-differ"]["text"]
    assert told.startswith(step["reason"])
    said = " ".join(ending(report, width=100, colour=False).split())
    assert "3.00 G FLOP a step; no FLOP/s: the clean steps had other inputs" in said
    assert "of the measured peak" not in said


def test_steps_that_do_not_tell_their_inputs_are_taken_for_the_same(tmp_path: Path) -> None:
    report = report_of(tmp_path / "rec", late=1_000_000_000, clean_shape=None)
    assert step_of(report)["flop_per_s"] is not None


def test_more_than_the_peak_is_said_and_no_share(tmp_path: Path) -> None:
    report = report_of(tmp_path / "rec", late=1_000_000_000, peak=1e11)
    said = " ".join(ending(report, width=100, colour=False).split())
    assert "300 G FLOP/s, more than the measured peak: one of the two is wrong" in said
    assert "300 %" not in said
    assert "peak_share" not in step_rates(report["roofline"], COMPUTE)
    assert "of the peak" not in report["verdict"]["sentence"]
