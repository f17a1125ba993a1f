"""Operators, kernels, launches, gaps and named ranges: per step, from the slices they are of."""

import pytest

from profstack.analysis import operators as module
from profstack.analysis.flops import counted, of_operators
from profstack.analysis.modules import TIMED
from profstack.storage.schema.rows import CLEAN_SLICES, OTHER_SLICES
from profstack.storage.vocabulary import OWN_REGION
from tests.support.cells import among, cell, cells
from tests.support.recordings import module as module_of
from tests.support.recordings import operator

CLEAN_S = 0.0137
TREE = [module_of(2, "Net"), module_of(3, "Net.fc", 2)]
near = pytest.approx


def seen(run, made, *rest):
    recorded = run.recorded()
    selection = recorded.select("torch", TIMED)
    selection.factor = 1.2
    return made(recorded, selection, *rest)


def test_operations_of_several_shapes_follow_from_the_shapes_of_a_product(run):
    # Multiply-adds of one call; two calls a step, each of two operations per multiply-add.
    known = {
        ("mm", "[[2, 3], [3, 4]]"): 2 * 3 * 4, ("mm", "[[5, 3], [3, 4]]"): 5 * 3 * 4,
        ("mm", "not json"): None, ("mm", None): None, ("addmm", "[[4]]"): None,
        ("bmm", "[[7, 2, 3], [7, 3, 4]]"): 7 * 2 * 3 * 4,
        ("bmm", "[[1, 2, 3], [1, 3, 5]]"): 2 * 3 * 5, ("addmm", "[[4], [2, 3], [3, 4]]"): 2 * 3 * 4,
        ("addmm", "[[4], [5, 3], [3, 6]]"): 5 * 3 * 6,
        ("convolution", "[[1], [2]]"): None, ("convolution", "[[3], [4]]"): None}  # fmt: skip
    rows = [operator(f"aten::{name}", 6, 1.0, module_id=3, shapes=text) for name, text in known]
    same = {"counter": "recorded_shapes", "backward": 0, "calls": 1, "module_id": 3, "flop": 300}
    counts = [{**same, "operator": name} for name in {row["name"] for row in rows}]
    rows += [operator("aten::mm", 6, 0.001, shapes="[[9, 9], [9, 9]]")]
    rows += [operator("aten::cos", 6, 0.001, shapes="[]")]
    counts.append({**same, "operator": "aten::mm", "module_id": None, "flop": 90})
    run.torch([0.012] * 3, frames={"operators": rows, "flop_counts": counts})
    found = seen(run, module.operators, CLEAN_S, of_operators(counted(run.recorded())))
    found = {(row["name"][6:], row["shapes"]): row["flop"] for row in found}
    single = {("mm", "[[9, 9], [9, 9]]"): 30, ("cos", "[]"): None}
    assert found == {key: adds and 2 * 2 * adds for key, adds in known.items()} | single


def launch(step, device="cuda:0", **values):
    host = {"operators": 10 + step, "outermost": 4 + step, "operators_s": 0.002 * (1 + step)}
    own = {"kernels": 5, "launches": 4, "launches_s": 0.0006, "busy_s": 0.003, "idle_s": 0.007}
    return {"step": step, "device": device, **host, **own, **values}


def test_launches_are_numbered_as_steps_of_the_run(run):
    run.clean(7)
    run.torch([0.012] * 3, frames={"launches": [launch(2), launch(0, "cuda:1"), launch(0)]})
    run.clean(2)
    run.torch([0.012] * 2, frames={"launches": [launch(1, operators=0, launches=None)]})
    rows = seen(run, module.launches)
    steps = [(7, "cuda:0"), (7, "cuda:1"), (9, "cuda:0"), (13, "cuda:0")]
    assert cells(rows, "step device") == steps
    third = {"operator_s": 0.006 / 12, "launch_s": 0.0006 / 4, "outermost_operators": 6}
    third |= {"launches_total_s": 0.0006, "device_busy_s": 0.003, "device_idle_s": 0.007}
    assert among(third, rows[2]) == near(third)
    assert cell(rows[3], "operator_s launch_s launches") == (None,) * 3
    # The host's figures stand in the row of each device; kernels are of all devices.
    expected = {"steps": 3, "operators": (10 + 12 + 0) / 3, "outermost_operators": (4 + 6 + 5) / 3}
    expected |= {"operator_s": (0.002 + 0.006 + 0.004) / 22, "kernels": 20 / 3, "launches": 12 / 3}
    expected |= {"launches_total_s": 0.0024 / 3, "launch_s": 0.0024 / 12, "reason": None}
    assert among(expected, seen(run, module.launch_means)) == near(expected)


def test_a_gap_is_named_by_its_longest_one(run):
    def gap(count, total, longest, **values):
        row = {"device": "cuda:0", "cause": "host late", "count": count, "after_module_id": 3}
        row |= {"after_operator": "aten::mm", "before_operator": "aten::add"}
        return {**row, "total_s": total, "longest_s": longest, **values}

    rows = [gap(3, 0.006, 0.004, after_operator="aten::relu"), gap(6, 0.012, 0.005)]
    rows.append(gap(1, 0.03, 0.03, cause="copy", after_operator=None))
    rows.append(gap(2, 0.003, 0.003, device="cuda:1"))
    run.torch([0.012] * 3, frames={"gaps": rows})
    found, third = seen(run, module.gaps), near(1 / 3)
    assert cells(found, "device cause count total_s longest_s after before") == [
        ("cuda:0", "copy", third, near(0.01), 0.03, None, "aten::add"),
        ("cuda:0", "host late", near(3), near(0.006), 0.005, "aten::mm in Net.fc", "aten::add"),
        ("cuda:1", "host late", near(2 / 3), near(0.001), 0.003, "aten::mm in Net.fc", "aten::add"),
    ]


def timed(path, calls, wall_s, **values):
    row = {"path": path, "source": OWN_REGION, "calls": calls, "wall_s": wall_s}
    return {**row, "threads": 1, "on_steps_thread": 1, **values}


def done(path, source=OWN_REGION, **values):
    row = {"path": path, "source": source, "calls": 3, "wall_s": 0.03, "operator_s": 0.003}
    return {**row, "threads": 1, **values}


def test_times_are_clean_and_work_is_that_of_the_profile(run):
    watched = [done("load", host_net_bytes=400, operator_s=9.0, flop=9)]
    run.slice("startup", [0.1], frames={"region_times": [timed("early", 1, 0.1)]})
    run.torch([0.02], mode="detail", number=1, frames={"region_work": watched})
    run.clean(5, frames={"region_times": [timed("load", 10, 0.02)]})
    frames = {"region_times": [timed("load", 6, 9.0), timed("crop", 3, 0.009)]}
    frames["region_work"] = [done("load", wall_s=9.0, flop=600)]
    run.torch([0.012] * 3, frames=frames)
    run.clean(3, frames={"region_times": [timed("load", 6, 0.03)]})
    load, crop = seen(run, module.regions)
    assert [load["path"], crop["path"]] == ["load", "crop"]
    # The memory is that of the step whose memory was watched.
    names = "calls wall_s operator_s flop host_net_bytes"
    assert cell(load, names) == near((16 / 8, 0.05 / 8, 0.001, 200, 400))
    assert CLEAN_SLICES in load["measured_in"]
    assert "torch layer's slices, 3 steps" in load["measured_in"]
    # One that no clean slice entered has the times of all others.
    known = (near(3 / 4), OTHER_SLICES, None, None)
    assert cell(crop, "calls measured_in operator_s host_net_bytes") == known


def test_the_time_of_collectives_is_the_recorded_one_else_from_begin_to_end(run):
    def row(name, **values):
        return {"step": 0, "name": name, "started_s": 1.5, "ended_s": 1.75, **values}

    # Two of three steps have one each with its exact time; an older recording has none.
    rows = [row("nccl:all_reduce", bytes=8, wall_s=wall_s, hidden_s=0.1) for wall_s in (0.3, 0.6)]
    rows.append(row("gloo:barrier"))
    run.torch([0.5] * 3, frames={"collectives": rows})
    found = seen(run, module.collectives)
    assert cells(found, "name calls wall_s hidden_s") == [
        ("nccl:all_reduce", near(2 / 3), near(0.9 / 3), near(0.2 / 3)),
        ("gloo:barrier", near(1 / 3), near(0.25 / 3), None),
    ]
