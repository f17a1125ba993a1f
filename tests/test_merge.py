"""From recorded totals to figures per step: recordings of known numbers, and what comes of them."""

from __future__ import annotations

import json
import shlex
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from data_recording import (
    CLEAN_S,
    CPROFILE_S,
    TORCH_S,
    Run,
    by,
    function,
    module,
    module_times,
    operator,
    report_of,
)

from profstack.analysis.build import build_report
from profstack.errors import RecordingError
from profstack.launch.second_run import copy_layers
from profstack.report.files import write_report
from profstack.storage.folder import Writer
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import REPORT


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """An empty recording."""
    return Run(tmp_path / "rec")


# -- figures per step --------------------------------------------------------------------------


def usual(run: Run) -> None:
    """Two timed slices of torch, of three and five steps, among clean ones of 10 ms."""
    for count in (3, 5):
        run.clean()
        frames = {
            "module_times": [
                module_times(1, count, 0.006 * count),
                module_times(2, 2 * count, 0.003 * count),
            ],
            "operators": [operator("aten::mm", 4 * count, 0.002 * count, module_id=2)],
        }
        run.torch([TORCH_S] * count, frames=frames)
    run.clean()
    run.writer.replace("modules", [module(1, "Net"), module(2, "Net.layer", 1)])
    run.layers(cprofile="empty", torch="recorded")


def test_totals_over_slices_become_figures_per_step(run: Run) -> None:
    usual(run)
    tables = run.finish()["tables"]
    modules = by(tables["modules"], "path")
    assert modules["Net"]["calls"] == pytest.approx(1.0)
    assert modules["Net"]["forward_s"] == pytest.approx(0.006)
    assert modules["Net.layer"]["calls"] == pytest.approx(2.0)
    assert modules["Net.layer"]["self_s"] == pytest.approx(0.003)
    (row,) = tables["operators"]
    assert (row["name"], row["module"]) == ("aten::mm", "Net.layer")
    assert row["calls"] == pytest.approx(4.0)
    assert row["self_s"] == pytest.approx(0.002)


def test_calibrated_is_the_share_of_the_slice_at_the_clean_median(run: Run) -> None:
    usual(run)
    report = run.finish()
    assert report["benchmark"]["median_s"] == pytest.approx(CLEAN_S)
    modules = by(report["tables"]["modules"], "path")
    share = 0.006 / TORCH_S
    assert modules["Net"]["calibrated_s"] == pytest.approx(share * CLEAN_S)
    assert report["tables"]["operators"][0]["calibrated_s"] == pytest.approx(0.002 / 1.2)


def test_modules_stand_in_the_order_of_their_tree(run: Run) -> None:
    run.clean()
    numbers = (4, 2, 3, 1)
    times = [module_times(number, 3, 0.003) for number in numbers]
    run.torch([TORCH_S] * 3, frames={"module_times": times})
    run.clean()
    tree = [module(1, "Net"), module(2, "Net.a", 1), module(3, "Net.a.b", 2), module(4, "Net.c", 1)]
    run.writer.replace("modules", [*tree, module(5, "Unused")])
    rows = run.finish()["tables"]["modules"]
    assert [(row["path"], row["depth"]) for row in rows] == [
        ("Net", 0),
        ("Net.a", 1),
        ("Net.a.b", 2),
        ("Net.c", 1),
    ]


def test_a_module_around_one_that_ran_is_shown_without_figures(run: Run) -> None:
    run.clean()
    run.torch([TORCH_S] * 3, frames={"module_times": [module_times(2, 3, 0.003)]})
    run.writer.replace("modules", [module(1, "Net"), module(2, "Net.a", 1)])
    rows = by(run.finish()["tables"]["modules"], "path")
    assert rows["Net"]["forward_s"] is None
    assert rows["Net.a"]["forward_s"] == pytest.approx(0.001)


def test_memory_of_modules_comes_from_the_slice_that_watched_it(run: Run) -> None:
    usual(run)
    frames = {"module_times": [module_times(1, 1, 0.5, host_net_bytes=4096)]}
    run.torch([0.5], mode="detail", number=1, frames=frames)
    rows = by(run.finish()["tables"]["modules"], "path")
    assert rows["Net"]["host_net_bytes"] == 4096
    assert rows["Net.layer"]["host_net_bytes"] is None
    assert rows["Net"]["forward_s"] == pytest.approx(0.006)


def test_functions_are_per_step_and_those_of_the_startup_are_not(run: Run) -> None:
    run.clean()
    frames = {
        "functions": [function("train", 6, 0.012, total_s=0.03)],
        "calls": [
            {
                "caller_file": "train.py",
                "caller_line": 1,
                "caller_name": "main",
                "callee_file": "train.py",
                "callee_line": 3,
                "callee_name": "train",
                "calls": 6,
                "self_s": 0.012,
                "total_s": 0.03,
            }
        ],
    }
    run.cprofile([CPROFILE_S] * 3, frames=frames)
    run.clean()
    run.writer.write({"functions": [function("load", 7, 1.5, total_s=2.0)]})
    tables = run.finish()["tables"]
    rows = by(tables["functions"], "name")
    assert rows["train"]["phase"] == "step"
    assert rows["train"]["calls"] == pytest.approx(2.0)
    assert rows["train"]["total_s"] == pytest.approx(0.01)
    assert rows["train"]["calibrated_s"] == pytest.approx(0.004 / CPROFILE_S * CLEAN_S)
    assert rows["load"]["phase"] == "startup"
    assert (rows["load"]["calls"], rows["load"]["total_s"]) == (7, 2.0)
    assert rows["load"]["calibrated_s"] is None
    (call,) = tables["calls"]
    assert (call["caller"], call["callee"]) == ("train.py:1(main)", "train.py:3(train)")
    assert call["total_s"] == pytest.approx(0.01)


COST = {
    "python": {
        "inner_s": 1e-6,
        "outer_s": 2e-6,
        "inner_spread_s": 1e-7,
        "outer_spread_s": 1e-7,
    },
    "builtin": {
        "inner_s": 3e-6,
        "outer_s": 5e-6,
        "inner_spread_s": 0.0,
        "outer_spread_s": 0.0,
    },
    "bytecode_factor": 2.96,
    "calls": 500,
    "rounds": 15,
}


def called(caller: str, callee: str, calls: int, **more: object) -> dict[str, object]:
    """A record of `calls`, from one of the script's functions."""
    names = {"caller_file": "train.py", "caller_line": 3, "caller_name": caller}
    place = {"callee_file": "train.py", "callee_line": 3, "callee_name": callee, "calls": calls}
    return {**names, **place, "self_s": 0.0, "total_s": 0.0, **more}


def test_what_cprofile_adds_to_calls_is_taken_off(run: Run) -> None:
    run.clean()
    length = {"callee_file": "~", "callee_line": 0}
    frames = {
        "functions": [
            function("loop", 3, 0.300),
            function("tiny", 3000, 0.030),
            function("empty", 3000, 0.0031),
            {**function("<built-in method len>", 300, 0.006), "file": "~", "line": 0},
        ],
        "calls": [
            called("loop", "tiny", 3000),
            called("loop", "empty", 2000),
            called("tiny", "empty", 1000),
            called("loop", "<built-in method len>", 300, **length),
        ],
    }
    run.cprofile([CPROFILE_S] * 3, frames=frames)
    run.writer.write({"functions": [function("load", 4, 1.0)]})
    run.writer.write({"calls": [called("load", "start", 10_000)]})
    run.layers(cprofile="recorded")
    run.writer.facts({"cprofile_cost": COST})
    report = run.finish()
    rows = by(report["tables"]["functions"], "name")
    # 3 calls in, 5000 of Python functions out and 300 of a built-in one; over three steps.
    loop = 0.300 - 3 * 1e-6 - 5000 * 2e-6 - 300 * 5e-6
    assert rows["loop"]["corrected_self_s"] == pytest.approx(loop / 3)
    tiny = 0.030 - 3000 * 1e-6 - 1000 * 2e-6
    assert rows["tiny"]["corrected_self_s"] == pytest.approx(tiny / 3)
    assert rows["tiny"]["self_s"] == pytest.approx(0.01)
    builtin = rows["<built-in method len>"]
    assert builtin["corrected_self_s"] == pytest.approx((0.006 - 300 * 3e-6) / 3)
    # 0.1 ms is left of it, and 3000 calls are known to 0.3 ms: that tells nothing.
    assert rows["empty"]["corrected_self_s"] is None
    assert report["cells_reason"]["functions.corrected_self_s"]
    assert rows["load"]["corrected_self_s"] == pytest.approx(1.0 - 4e-6 - 0.02)
    said = report["layers"][0]["audit"][1]
    assert "1.000 us to the own time of a Python function and 2.000 us to that of its" in said
    assert "3.0 times" in said


def test_without_its_cost_no_self_time_is_corrected(run: Run) -> None:
    run.clean()
    run.cprofile([CPROFILE_S] * 3, frames={"functions": [function("train", 3, 0.003)]})
    run.layers(cprofile="recorded")
    report = run.finish()
    assert report["tables"]["functions"][0]["corrected_self_s"] is None
    assert "not measured" in report["columns_reason"]["functions.corrected_self_s"]
    assert len(report["layers"][0]["audit"]) == 1


def test_a_function_that_calls_nothing_pays_for_its_own_calls_alone(run: Run) -> None:
    run.clean()
    run.cprofile([CPROFILE_S] * 3, frames={"functions": [function("train", 3000, 0.030)]})
    run.writer.facts({"cprofile_cost": {**COST, "bytecode_factor": 0.99}})
    run.layers(cprofile="recorded")
    report = run.finish()
    row = report["tables"]["functions"][0]
    assert row["corrected_self_s"] == pytest.approx((0.030 - 0.003) / 3)
    assert "times as long" not in report["layers"][0]["audit"][1]


def test_a_layer_of_a_second_run_brings_its_cost_along(run: Run, tmp_path: Path) -> None:
    again = Run(tmp_path / "again")
    again.cprofile([CPROFILE_S] * 3, frames={"functions": [function("train", 3000, 0.030)]})
    again.writer.facts({"cprofile_cost": COST})
    again.layers(cprofile="recorded")
    again.finish()
    run.clean()
    run.layers(cprofile="empty")
    run.finish()
    assert copy_layers(run.folder, again.folder, ["cprofile"]) == ["cprofile"]
    (row,) = report_of(run.folder)["tables"]["functions"]
    assert row["corrected_self_s"] == pytest.approx((0.030 - 0.003) / 3)


def test_lines_are_per_step_and_a_count_given_up_is_null(run: Run) -> None:
    run.clean()
    line = {"file": "train.py", "source": "x", "python_s": 0.003, "operator_s": None}
    frames = {
        "lines": [{**line, "line": 5, "calls": 3}, {**line, "line": 6, "calls": None}],
    }
    run.torch([TORCH_S] * 3, mode="lines", frames=frames)
    rows = by(run.finish()["tables"]["lines"], "line")
    assert (rows[5]["calls"], rows[5]["python_s"]) == (1.0, pytest.approx(0.001))
    assert rows[6]["calls"] is None
    assert rows[5]["operator_s"] is None


def test_settled_slices_go_before_those_of_the_first_round(run: Run) -> None:
    run.clean(1, number=1)
    run.torch([0.5], number=1, frames={"operators": [operator("aten::mm", 1, 0.4)]})
    run.clean()
    run.torch([TORCH_S] * 3, frames={"operators": [operator("aten::mm", 3, 0.006)]})
    report = run.finish()
    assert report["tables"]["operators"][0]["self_s"] == pytest.approx(0.002)


# -- when a time cannot be calibrated ----------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "wall", "calibrated"),
    [(3, TORCH_S, True), (2, TORCH_S, False), (3, 2.9 * CLEAN_S, True), (3, 3.1 * CLEAN_S, False)],
)
def test_too_short_or_too_disturbed_a_slice_is_not_calibrated(
    run: Run, count: int, wall: float, calibrated: bool
) -> None:
    run.clean()
    run.torch([wall] * count, frames={"operators": [operator("aten::mm", count, 0.003)]})
    run.clean()
    report = run.finish()
    (row,) = report["tables"]["operators"]
    assert (row["calibrated_s"] is not None) is calibrated
    assert row["self_s"] is not None
    reason = report["columns_reason"].get("operators.calibrated_s", "")
    assert ("fewer than 3 steps" in reason) is not calibrated


def test_without_clean_steps_nothing_is_calibrated_and_the_report_says_why(run: Run) -> None:
    run.torch([TORCH_S] * 3, frames={"operators": [operator("aten::mm", 3, 0.003)]})
    report = run.finish()
    assert report["tables"]["operators"][0]["calibrated_s"] is None
    benchmark = report["benchmark"]
    assert (benchmark["n"], benchmark["median_s"]) == (0, None)
    assert any("no clean step" in warning for warning in benchmark["warnings"])


# -- probe effect ------------------------------------------------------------------------------


def test_probe_effect_is_the_slices_step_over_the_clean_steps_beside_it(run: Run) -> None:
    usual(run)
    (effect,) = run.finish()["probe_effect"]
    assert effect["layer"] == "torch"
    assert effect["factor"] == pytest.approx(TORCH_S / CLEAN_S)
    assert (effect["n_layer"], effect["step_median_s"]) == (8, pytest.approx(TORCH_S))
    assert effect["ci95_low"] <= effect["factor"] <= effect["ci95_high"]


def test_only_the_clean_steps_next_to_the_layers_own_slices_count(run: Run) -> None:
    # The machine slows down by half before the lines are traced.
    run.clean(12)
    run.torch([TORCH_S] * 3)
    run.clean(12)
    run.torch([0.03] * 3, mode="lines")
    run.clean(12, wall=1.02 * CLEAN_S)
    (effect,) = run.finish()["probe_effect"]
    assert effect["n_clean"] == 24
    assert effect["factor"] == pytest.approx(TORCH_S / CLEAN_S)


def test_a_slice_shared_by_two_layers_gives_neither_a_factor(run: Run) -> None:
    run.clean(3)
    run.torch([0.05], mode="shared", number=1)
    # The second layer's slice has no steps of its own: it shares those of the first.
    run.steps -= 1
    run.writer.write({"slices": []})
    index = run.slices
    run.slices += 1
    row = {"slice": index, "kind": "cprofile", "layer": "cprofile", "mode": "shared", "plan": 1}
    times = {"first_step": 3, "steps": 1, "wall_s": 0.05, "round": 1, "phase": "train"}
    counted = {"counted_steps": 1, "counted_wall_s": 0.05}
    functions = [{**function("train", 1, 0.02), "slice": index}]
    run.writer.write({"slices": [{**row, **times, **counted}], "functions": functions})
    run.steps += 1
    run.clean(3)
    report = run.finish()
    effects = by(report["probe_effect"], "layer")
    assert effects["torch"]["factor"] is effects["cprofile"]["factor"] is None
    assert effects["torch"]["n_layer"] == effects["cprofile"]["n_layer"] == 1
    assert report["tables"]["functions"][0]["self_s"] == pytest.approx(0.02)
    assert report["slices"][index]["step_median_s"] == pytest.approx(0.05)


# -- which steps are clean ---------------------------------------------------------------------


def test_warm_up_is_found_and_not_counted(run: Run) -> None:
    run.slice("startup", [0.5], number=0, flags={0: "discovery"})
    run.clean(4, wall=0.03)
    run.torch([TORCH_S] * 3)
    run.clean(30)
    benchmark = run.finish()["benchmark"]
    # Five slow ones were seen; the three that were observed in between belong to them by number.
    assert benchmark["warmup_steps"] == 5
    assert benchmark["counted_steps"] == list(range(8, 38))
    assert benchmark["median_s"] == pytest.approx(CLEAN_S)
    assert benchmark["first_step_s"] == pytest.approx(0.5)


def test_warm_up_is_numbered_as_the_run_numbers_its_steps(run: Run) -> None:
    run.clean(2, wall=0.03)
    run.torch([TORCH_S] * 3)
    run.clean(2, wall=0.03)
    run.clean(30)
    benchmark = run.finish()["benchmark"]
    assert benchmark["warmup_steps"] == 7
    assert min(benchmark["counted_steps"]) == 7


@pytest.mark.parametrize("flag", ["eval", "partial", "eval switch"])
def test_flagged_steps_are_not_clean(run: Run, flag: str) -> None:
    run.clean(10)
    run.slice("clean", [CLEAN_S, 5.0, CLEAN_S], flags={1: flag})
    run.clean(10)
    report = run.finish()
    assert report["benchmark"]["n"] == 22
    assert max(report["benchmark"]["samples_s"]) < 1
    assert report["tables"]["steps"][11]["flags"] == flag


def test_steps_right_after_an_observer_serve_only_where_there_are_no_others(run: Run) -> None:
    for _ in range(3):
        run.torch([TORCH_S], number=1)
        run.clean(1, wall=0.011, number=1, flags={0: "switch"})
    few = run.finish()
    assert few["benchmark"]["n"] == 3
    assert "unsettled-clean-steps" in {row["slug"] for row in few["warnings"]}
    again = Run(run.folder.parent / "more")
    for _ in range(3):
        again.torch([TORCH_S], number=1)
        again.clean(1, wall=0.011, number=1, flags={0: "switch"})
    again.clean(8)
    report = again.finish()
    assert report["benchmark"]["n"] == 8
    assert "unsettled-clean-steps" not in {row["slug"] for row in report["warnings"]}


def test_evaluation_is_what_an_inference_run_measures(tmp_path: Path) -> None:
    run = Run(tmp_path / "rec", "module", "eval")
    run.clean(10)
    run.torch([TORCH_S] * 3, frames={"operators": [operator("aten::mm", 3, 0.003)]})
    run.clean(10)
    report = run.finish()
    assert report["benchmark"]["n"] == 20
    assert report["step"]["counts_by_phase"] == {"eval": 23}
    assert "evaluation-in-slice" not in {row["slug"] for row in report["warnings"]}


def test_a_lasting_change_after_an_observer_is_told(run: Run) -> None:
    run.clean(30)
    run.torch([TORCH_S] * 3)
    run.clean(30, wall=0.0104)
    report = run.finish()
    assert "clean-changed" in {row["slug"] for row in report["warnings"]}
    assert report["benchmark"]["median_s"] == pytest.approx(CLEAN_S)
    assert report["benchmark"]["n"] == 30


def test_a_step_without_a_time_stops_nothing(run: Run) -> None:
    run.clean(8)
    run.writer.write(
        {"steps": [{"step": 8, "plan": 1, "phase": "train", "slice": 0, "flags": "partial"}]}
    )
    report = run.finish()
    assert report["benchmark"]["n"] == 8
    assert report["tables"]["steps"][-1]["wall_s"] is None


# -- evaluation in a slice ---------------------------------------------------------------------


def test_a_slice_with_evaluation_in_it_is_passed_over(run: Run) -> None:
    run.clean()
    frames = {"functions": [function("train", 3, 0.003)]}
    run.cprofile([CPROFILE_S] * 3, frames=frames)
    run.clean()
    frames = {"functions": [function("train", 3, 0.003), function("evaluate", 90, 2.0)]}
    run.cprofile([CPROFILE_S, 2.5, CPROFILE_S], flags={1: "eval"}, frames=frames)
    run.clean()
    report = run.finish()
    assert [row["name"] for row in report["tables"]["functions"]] == ["train"]
    assert "evaluation-in-slice" not in {row["slug"] for row in report["warnings"]}


def test_where_every_slice_holds_evaluation_the_report_says_so(run: Run) -> None:
    run.clean()
    frames = {"functions": [function("train", 3, 0.003), function("evaluate", 90, 2.0)]}
    run.cprofile([CPROFILE_S, 2.5, CPROFILE_S], flags={1: "eval"}, frames=frames)
    run.clean()
    report = run.finish()
    assert len(report["tables"]["functions"]) == 2
    (warning,) = (row for row in report["warnings"] if row["slug"] == "evaluation-in-slice")
    assert "cprofile" in warning["text"]
    # The steps themselves can be told apart: the factor is of training alone.
    assert report["probe_effect"][0]["factor"] == pytest.approx(CPROFILE_S / CLEAN_S)


def test_steps_left_out_of_the_rows_are_left_out_of_the_division(run: Run) -> None:
    run.clean()
    frames = {"operators": [operator("aten::mm", 3, 0.003)]}
    walls = [TORCH_S, 2.5, TORCH_S, TORCH_S]
    run.torch(walls, flags={1: "eval"}, left_out=(1,), frames=frames)
    run.clean()
    report = run.finish()
    (row,) = report["tables"]["operators"]
    assert row["calls"] == pytest.approx(1.0)
    assert row["calibrated_s"] == pytest.approx(0.001 / TORCH_S * CLEAN_S)


# -- layers ------------------------------------------------------------------------------------


def test_an_empty_layer_says_why_and_what_fills_it(run: Run) -> None:
    usual(run)
    layers = by(run.finish()["layers"], "name")
    empty = layers["cprofile"]
    assert "the script ended after 23 steps" in empty["reason"]
    assert shlex.split(empty["command"]) == [
        *("profstack", "run", "--step-by", "none", "--layers", "cprofile"),
        *("train.py", "--size", "a b"),
    ]
    assert layers["torch"]["command"] is None
    assert layers["torch"]["steps"] == 8
    assert layers["torch"]["stop_s"] == pytest.approx(1.0)
    assert layers["torch"]["audit"] == ["8 steps in 2 slices (timed)"]


def test_a_script_without_steps_is_told_by_what_was_recorded_of_it(run: Run) -> None:
    run.layers(cprofile="empty", watch="recorded")
    assert run.finish()["status"] == "partial"


def test_a_script_that_was_measured_as_a_whole_is_complete(run: Run) -> None:
    run.slice("whole", [], layer="cprofile", mode="whole")
    run.layers(cprofile="recorded")
    assert run.finish()["status"] == "complete"


def test_where_no_step_was_found_the_command_measures_the_whole(run: Run) -> None:
    run.layers(cprofile="empty", torch="empty")
    report = run.finish()
    assert report["status"] == "failed"
    for layer in report["layers"]:
        assert layer["reason"] == "no step was found in the script"
        assert "--step-by none" in layer["command"]
        assert f"--layers {layer['name']}" in layer["command"]


def test_a_failed_layer_keeps_its_reason(run: Run) -> None:
    usual(run)
    home = Path.home()
    records = [
        {"name": "cprofile", "status": "failed", "reason": f"OSError: {home}/x"},
        {"name": "torch", "status": "recorded"},
    ]
    run.writer.replace("layers", records)
    layers = by(run.finish()["layers"], "name")
    assert layers["cprofile"]["reason"] == "OSError: ~/x"
    assert layers["cprofile"]["command"] is None


def test_what_was_not_measured_has_a_reason(run: Run) -> None:
    usual(run)
    report = run.finish()
    reasons = report["columns_reason"]
    for name, rows in report["tables"].items():
        for column in REPORT[name].names if rows else ():
            if all(row[column] is None for row in rows):
                assert reasons[f"{name}.{column}"]
            else:
                assert f"{name}.{column}" not in reasons


# -- the run -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "exit_code", "number", "status"),
    [(True, 0, None, "complete"), (True, None, 15, "partial"), (False, None, 9, "partial")],
)
def test_status(
    run: Run, ended: bool, exit_code: int | None, number: int | None, status: str
) -> None:
    run.clean(10)
    facts = {"id": "x", "exit_code": exit_code, "signal": number}
    report = run.finish(ended=ended, run={"script": "t.py", "argv": ["t.py"], "run": facts})
    assert report["status"] == status
    assert report["run"]["signal"] == number
    assert report["run"]["stopped_by"] is None


def test_a_killed_run_still_has_its_report(run: Run) -> None:
    usual(run)
    # Nothing that is written at the end is there, and the parent died with the child.
    run.writer._database.close()
    report = report_of(run.folder)
    assert report["status"] == "partial"
    assert report["run"]["id"] == "rec"
    assert report["step"]["counts_by_phase"] == {"train": 23}
    assert report["benchmark"]["n"] == 15
    assert report["tables"]["modules"]


def test_the_report_is_of_the_plan_with_most_steps(run: Run) -> None:
    run.clean(10, wall=1.0)
    run.begin_plan("module", "eval")
    run.slice("startup", [0.02], number=0, flags={0: "discovery"})
    run.clean(30)
    report = run.finish()
    assert report["step"]["rule"] == "module"
    assert report["step"]["phase"] == "eval"
    assert report["benchmark"]["median_s"] == pytest.approx(CLEAN_S)
    # Warm-up is counted from the plan's own first step.
    assert report["benchmark"]["warmup_steps"] == 1
    assert report["benchmark"]["first_step_s"] == pytest.approx(0.02)
    assert len(report["tables"]["steps"]) == 41


def test_paths_are_shown_from_home_and_notes_once(run: Run) -> None:
    home = str(Path.home())
    run.clean()
    row = {**function("train", 3, 0.003), "file": f"{home}/project/train.py"}
    run.cprofile([CPROFILE_S] * 3, frames={"functions": [row]})
    run.torch(
        [TORCH_S] * 3,
        mode="lines",
        frames={"lines": [{"file": f"{home}/project/train.py", "line": 1, "calls": 3}]},
    )
    note = {"slug": "truncated", "layer": "torch", "text": f"gave up {home}/project/train.py"}
    run.writer.write({"notes": [note, note]})
    report = run.finish()
    assert home not in json.dumps(report)
    assert report["tables"]["functions"][0]["file"] == "~/project/train.py"
    assert report["tables"]["lines"][0]["file"] == "~/project/train.py"
    assert [row["text"] for row in report["warnings"] if row["slug"] == "truncated"] == [
        "gave up ~/project/train.py"
    ]


def test_a_folder_without_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no recording"):
        build_report(Recorded(tmp_path))


def test_an_empty_recording_makes_a_report_all_the_same(run: Run) -> None:
    report = run.finish(ended=False)
    assert report["status"] == "failed"
    assert report["step"]["count"] == 0
    assert not any(report["tables"].values())


def test_items_per_second_follow_from_the_batch(run: Run) -> None:
    run.clean(10)
    report = run.finish()
    assert report["step"]["batch_size"] == 32
    assert report["step"]["shapes"] == ["32x8"]
    assert report["benchmark"]["items_per_s"] == pytest.approx(32 / CLEAN_S)


# -- CPU time --------------------------------------------------------------------------------------

# Two threads all the time, read per step: the other core's is added at ticks 8 ms apart.
TICKS = [0.010, 0.018, 0.026, 0.018, 0.026]


def on_two_cores(run: Run) -> dict[str, Any]:
    """The part `benchmark` of the report, made on a machine of two cores."""
    told = {"script": "train.py", "run": {"id": "x"}, "environment": {"usable_cores": 2}}
    mark: dict[str, Any] = run.finish(run=told)["benchmark"]
    return mark


def test_cpu_time_is_all_of_it_over_the_steps_and_no_median_of_readings(run: Run) -> None:
    run.clean(cpus=TICKS)
    run.slice("clean", [CLEAN_S, CLEAN_S, CLEAN_S, CLEAN_S, 0.012], cpus=TICKS)
    mark = on_two_cores(run)
    assert mark["cpu_median_s"] is None
    assert mark["cpu_mean_s"] == pytest.approx(sum(TICKS) / 5)
    assert mark["cpu_wall_s"] == mark["mean_s"] == pytest.approx(0.0102)
    assert mark["cores_busy"] == pytest.approx(2 * sum(TICKS) / 0.102)
    assert mark["cores_busy"] < 2
    assert mark["cpu_reason"] is None


def test_no_more_cores_are_busy_than_there_are(run: Run) -> None:
    run.clean(cpus=[*TICKS[:4], 0.030])
    mark = on_two_cores(run)
    assert mark["cores_busy"] == 2
    assert mark["cpu_mean_s"] == pytest.approx(2 * CLEAN_S)


def test_a_clock_that_tells_what_cannot_be_tells_nothing(run: Run) -> None:
    run.clean(3, cpus=[0.026] * 3)
    mark = on_two_cores(run)
    assert (mark["cpu_mean_s"], mark["cpu_wall_s"], mark["cores_busy"]) == (None, None, None)
    assert "more time than 2 cores have" in mark["cpu_reason"]


def test_cpu_time_that_was_read_per_slice_is_that_of_all_their_steps(run: Run) -> None:
    for count, cpu_s in ((3, 0.030), (5, 0.090)):
        run.clean(count, cpus=[cpu_s / count] * count)
    run.writer.close()
    with sqlite3.connect(run.folder / "recording.sqlite") as database:
        database.execute("UPDATE steps SET cpu_s = NULL")
    run.writer = Writer(run.folder)
    mark = on_two_cores(run)
    assert mark["cpu_mean_s"] == pytest.approx(0.120 / 8)
    assert mark["cores_busy"] == pytest.approx(1.5)


def test_rates_are_what_was_done_over_the_time_it_took(run: Run) -> None:
    walls = [0.006, 0.006, 0.006, 0.018] * 5
    run.slice("clean", walls, batches={19: 8})
    mark = run.finish()["benchmark"]
    assert (mark["n"], mark["median_s"]) == (20, 0.006)
    assert mark["mean_s"] == pytest.approx(0.009)
    assert mark["steps_per_s"] == pytest.approx(20 / sum(walls))
    assert mark["items_per_s"] == pytest.approx((19 * 32 + 8) / sum(walls))
    assert mark["batch_size"] == 32


def test_a_trace_is_named_as_it_lies_after_the_report_packed_it(run: Run) -> None:
    plain = run.folder / "torch" / "trace.json"
    plain.parent.mkdir()
    plain.write_text('{"traceEvents": []}')
    trace = {"layer": "torch", "path": "torch/trace.json", "opens_in": "Perfetto", "bytes": 19}
    run.writer.write({"artifacts": [trace]})
    usual(run)
    run.writer.close()
    packed = plain.with_name("trace.json.gz")
    for _ in range(2):
        write_report(run.folder)
        written = json.loads((run.folder / "report.json").read_text())
        (artifact,) = written["tables"]["artifacts"]
        assert artifact["path"] == "torch/trace.json.gz"
        assert artifact["bytes"] == packed.stat().st_size
        assert not plain.exists()
