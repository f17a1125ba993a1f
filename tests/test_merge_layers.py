"""What became of each layer: technique, steps, memory and probe effect, or why there are none."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest
from data_recording import CLEAN_S, TORCH_S, Run, by, function, operator

from profstack import layer as profstack_layer
from profstack.analysis.layers import modes_of

LAYERS = profstack_layer.layer_names()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """An empty recording."""
    return Run(tmp_path / "rec")


def nvtx(run: Run, walls: list[float], calls: int = 1, **keywords: Any) -> int:
    """A slice of the nvtx layer that emitted `calls` ranges per step."""
    rows = [
        {"kind": "module", "name": "Net", "calls": calls * len(walls), "emit_s": 1e-6 * len(walls)},
        {"kind": "step", "name": "step", "calls": len(walls), "emit_s": None},
    ]
    frames = {"ranges": rows}
    return run.slice("nvtx", walls, layer="nvtx", mode="timed", frames=frames, **keywords)


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_says_how_it_observes(run: Run, name: str) -> None:
    run.clean()
    run.layers(**{name: "empty"})
    (layer,) = run.finish()["layers"]
    assert layer["technique"] in ("counting", "sampling", "tracing")
    for words in ("tool", "measures", "does_not_measure", "usual_slowdown", "conflicts"):
        assert layer[words]


def test_ranges_are_per_step_and_their_layer_is_emitted(run: Run) -> None:
    nvtx(run, [0.011], calls=900, number=1)
    run.clean()
    nvtx(run, [0.011] * 5, calls=2)
    run.clean()
    run.layers(nvtx="emitted")
    report = run.finish()
    step, module = report["tables"]["ranges"]
    assert (step["kind"], step["calls"], step["emit_s"]) == ("step", 1.0, None)
    assert (module["name"], module["calls"]) == ("Net", 2.0)
    assert module["emit_s"] == pytest.approx(1e-6)
    assert "clock" in report["cells_reason"]["ranges.emit_s"]
    (layer,) = report["layers"]
    assert (layer["status"], layer["reason"], layer["steps"]) == ("emitted", None, 6)
    (effect,) = report["probe_effect"]
    assert effect["factor"] == pytest.approx(0.011 / CLEAN_S)


def test_the_watch_has_no_steps_and_says_why_it_has_no_probe_effect(run: Run) -> None:
    run.clean(20)
    run.layers(watch="recorded")
    report = run.finish()
    (layer,) = report["layers"]
    assert (layer["technique"], layer["steps"], layer["stop_s"]) == ("sampling", None, None)
    (effect,) = report["probe_effect"]
    assert (effect["layer"], effect["factor"], effect["n_layer"]) == ("watch", None, 0)
    assert "no slice" in effect["note"]


def test_the_first_steps_of_a_run_give_no_probe_effect(run: Run) -> None:
    run.slice("memory", [0.9], layer="memory", mode="discovery", number=0)
    run.clean(20)
    run.layers(memory="recorded")
    report = run.finish()
    (effect,) = report["probe_effect"]
    assert (effect["factor"], effect["n_layer"]) == (None, 1)
    assert effect["step_median_s"] == pytest.approx(0.9)
    assert "first steps" in effect["note"]
    assert report["benchmark"]["first_step_layer"] == "memory"
    assert report["layers"][0]["audit"] == ["1 step in 1 slice (discovery)"]


def test_settled_slices_of_the_memory_layer_give_one(run: Run) -> None:
    run.slice("memory", [0.9], layer="memory", mode="discovery", number=0)
    run.clean(20)
    run.slice("memory", [0.02] * 10, layer="memory", mode="lines")
    run.clean(20)
    run.layers(memory="recorded")
    report = run.finish()
    (effect,) = report["probe_effect"]
    assert (effect["factor"], effect["note"]) == (pytest.approx(2.0), None)
    assert effect["ci95_low"] is not None
    assert report["layers"][0]["audit"][1] == "1 more in slices of mode discovery"


def test_a_factor_from_the_warm_up_is_called_what_it_is(run: Run) -> None:
    nvtx(run, [0.06], number=1)
    run.clean(4, wall=0.03, number=1)
    run.clean(30)
    run.layers(nvtx="emitted")
    (effect,) = run.finish()["probe_effect"]
    assert effect["factor"] == pytest.approx(6.0)
    assert "warm-up" in effect["note"]


def test_without_observation_the_first_step_has_no_layer(run: Run) -> None:
    run.clean(3)
    assert run.finish()["benchmark"]["first_step_layer"] is None


def test_lesser_modes_tell_what_they_cost(run: Run) -> None:
    run.clean(12)
    run.torch([TORCH_S] * 3, frames={"operators": [operator("aten::mm", 3, 0.003)]})
    run.clean(12)
    run.torch([0.03] * 3, mode="lines")
    run.clean(12)
    run.layers(torch="recorded")
    (layer,) = run.finish()["layers"]
    assert layer["audit"] == [
        "3 steps in 1 slice (timed)",
        "3 more in slices of mode lines, at 3.00 times a clean step, by medians",
    ]


@pytest.mark.parametrize("name", ["nvtx", "memory"])
def test_a_layer_that_needs_steps_is_filled_where_it_is_alone(run: Run, name: str) -> None:
    run.clean(3)
    run.layers(flops="recorded", **{name: "empty"})
    layer = by(run.finish()["layers"], "name")[name]
    assert "the script ended after 3 steps" in layer["reason"]
    assert shlex.split(layer["command"]) == [
        *("profstack", "run", "--layers", name, "train.py", "--size", "a b")
    ]


@pytest.mark.parametrize(("name", "fills"), [("nvtx", False), ("flops", False), ("torch", True)])
def test_no_command_stands_where_no_step_is_left_once_it_is_known_where_steps_end(
    run: Run, name: str, fills: bool
) -> None:
    run.slice("startup", [0.02] * 2, number=0)
    run.layers(memory="recorded", **{name: "empty"})
    layer = by(run.finish()["layers"], "name")[name]
    assert "the script ended after 2 steps" in layer["reason"]
    assert (layer["command"] is not None) is fills
    assert ("needs one more at least" in layer["reason"]) is not fills


@pytest.mark.parametrize("name", ["nvtx", "watch"])
def test_no_command_stands_that_would_do_the_same_again(run: Run, name: str) -> None:
    run.clean(3)
    run.layers(**{"watch": "recorded", name: "empty"})
    layer = by(run.finish()["layers"], "name")[name]
    assert layer["command"] is None
    assert layer["reason"]


@pytest.mark.parametrize(("name", "fills"), [("nvtx", False), ("cprofile", True)])
def test_without_steps_only_what_measures_the_whole_can_be_filled(
    run: Run, name: str, fills: bool
) -> None:
    run.layers(**{name: "empty"})
    (layer,) = run.finish()["layers"]
    assert layer["reason"] == "no step was found in the script"
    assert (layer["command"] is not None) is fills


def test_a_script_measured_whole_leaves_layers_that_need_steps_empty(tmp_path: Path) -> None:
    run = Run(tmp_path / "rec", "whole", "other")
    run.cprofile([3.0], mode="whole", frames={"functions": [function("train", 3, 0.003)]})
    run.layers(cprofile="recorded", nvtx="empty")
    report = run.finish()
    layers = by(report["layers"], "name")
    assert "this layer needs steps" in layers["nvtx"]["reason"]
    assert layers["nvtx"]["command"] is None
    (effect,) = report["probe_effect"]
    assert (effect["factor"], "measured whole" in effect["note"]) == (None, True)


def test_a_report_outlives_the_package_of_a_layer(run: Run) -> None:
    run.clean(5)
    run.slice("elsewhere", [0.02] * 3, layer="elsewhere", mode="own")
    run.layers(elsewhere="recorded")
    (layer,) = run.finish()["layers"]
    assert (layer["name"], layer["status"], layer["steps"]) == ("elsewhere", "recorded", 3)
    assert layer["measures"] is None


@pytest.mark.parametrize("name", LAYERS)
def test_the_modes_repeated_all_through_a_run_come_first(name: str) -> None:
    groups = modes_of(name)
    wrapper = profstack_layer.load(name)
    for (first, *_), (second, *_) in itertools.pairwise(groups):
        if name not in ("torch", "cprofile") and second != "discovery":
            assert wrapper.mode(first).last_round >= wrapper.mode(second).last_round


def test_no_column_waits_for_a_later_version(run: Run) -> None:
    run.clean()
    frames = {"functions": [function("train", 3, 0.003)]}
    run.cprofile([0.013] * 3, frames=frames)
    run.layers(**dict.fromkeys(LAYERS, "empty"))
    report = run.finish()
    reasons = {**report["columns_reason"], **report["cells_reason"]}
    assert reasons["functions.watch_share"] == (
        "the layer watch is empty: the script ended after 8 steps, before this layer's turn came"
    )
    assert not [text for text in reasons.values() if "no layer" in text or "version" in text]


# -- the watch's shares ------------------------------------------------------------------------


def sampled(run: Run, steps: int = 60) -> None:
    """Start-up on line 1, then steps of which three quarters lie in `train`."""
    frames = [
        {"frame": 1, "parent": None, "file": "train.py", "line": 1, "name": "<module>",
         "function_line": 1, "source": "import torch"},
        {"frame": 2, "parent": 1, "file": "train.py", "line": 5, "name": "train",
         "function_line": 3},
    ]  # fmt: skip
    places = [(0.5, 1), (0.51, 1), *((1.0 + 0.01 * n, 2 if n % 4 else 1) for n in range(steps))]
    samples = [
        {"t_s": t_s, "frame": frame, "rss_bytes": 1000, "weight": 1.0} for t_s, frame in places
    ]
    run.slice("watch", [0.01] * steps)
    run.writer.write({"watch_frames": frames, "watch_samples": samples})


def test_shares_of_the_watch_stand_at_lines_and_functions(run: Run) -> None:
    sampled(run)
    run.clean()
    run.cprofile([0.013] * 3, frames={"functions": [function("train", 3, 0.003)]})
    run.layers(watch="recorded", cprofile="recorded")
    report = run.finish()
    tables = report["tables"]
    lines = by(tables["lines"], "line")
    assert (lines[1]["startup_share"], lines[5]["startup_share"]) == (1.0, None)
    assert (lines[1]["source"], lines[5]["source"]) == ("import torch", None)
    assert lines[5]["watch_share"] == pytest.approx(0.75)
    (row,) = tables["functions"]
    assert row["watch_share"] == pytest.approx(0.75)
    assert {row["phase"] for row in tables["watch"]} == {"startup", "step"}
    assert report["watch"]["samples"] == 62
    assert report["watch"]["rank_correlation"] is None
    assert report["watch"]["reason"]


def test_a_few_looks_into_steps_give_no_shares_of_them(run: Run) -> None:
    sampled(run, 20)
    run.clean()
    run.cprofile([0.013] * 3, frames={"functions": [function("train", 3, 0.003)]})
    run.layers(watch="recorded", cprofile="recorded")
    report = run.finish()
    lines = by(report["tables"]["lines"], "line")
    assert (lines[1]["startup_share"], lines[5]["watch_share"]) == (1.0, None)
    assert [row["watch_share"] for row in report["tables"]["functions"]] == [None]
    why = "the watch has 20 samples in steps, 50 are needed"
    for column in ("functions.watch_share", "lines.watch_share"):
        assert report["columns_reason"][column] == why
    assert report["watch"]["reason"] == why


def test_without_a_watch_the_report_has_none(run: Run) -> None:
    run.clean()
    report = run.finish()
    assert report["watch"] is None
    assert report["tables"]["watch"] == report["tables"]["outliers"] == []
