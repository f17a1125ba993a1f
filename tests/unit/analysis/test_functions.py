"""Python functions, calls and call paths: per step, with owners, without the tool's cost."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profstack.analysis import functions as module
from profstack.code_owner import FACT
from tests.support.cells import among, cells
from tests.support.recordings import Model, function, realistic
from tests.support.tables import rows_of

CLEAN_S = 0.0137
TRAIN = "/home/u/app/train.py"
TORCH = "/opt/python/lib/python3.11/site-packages/torch/nn/modules/linear.py"
PLACES = {"roots": ["/home/u/app/"], "libraries": ["/opt/python/lib/python3.11/"], "sep": "/"}
PLACES |= {"profstack": ["/opt/python/lib/python3.11/site-packages/profstack/"]}
PLACES |= {"working": "/home/u/", "text": False}
near = pytest.approx


def cprofile_of(recorded):
    selection = recorded.select("cprofile", module.PROFILED)
    selection.factor = 1.3
    return selection


def functions_of(run, watched=None):
    recorded = run.recorded()
    return module.functions(recorded, cprofile_of(recorded), CLEAN_S, watched or {})


def called(caller, callee, count, **more):
    row = {"caller_file": "train.py", "caller_line": 3, "caller_name": caller}
    row |= {"callee_file": "train.py", "callee_line": 3, "callee_name": callee, "calls": count}
    return {**row, "self_s": 0.0, "total_s": 0.0, **more}


def test_functions_are_totals_over_the_steps_the_longest_own_time_first(tmp_path):
    run = realistic(tmp_path / "rec", Model(seed=2))
    later = [row["slice"] for row in run.rows["slices"] if row["kind"] == "cprofile"][1:]
    steps, none = run.of(*later), dict.fromkeys(("own", "package", "corrected_self_s"))
    startup = [function("load", 7, 0.5, total_s=2.0), function("parse", 5, 1.5)]
    run.writer.write({"functions": startup})
    found = functions_of(run, {("model.py", 5, "forward"): 0.31, ("train.py", 3, "load"): 0.9})
    wall = math.fsum(step.wall_s for step in steps)
    columns = ("calls", "primitive_calls", "self_s", "total_s")
    for row in found[:4]:
        totals = {each: run.total("functions", each, *later, name=row["name"]) for each in columns}
        expected = {column: total / len(steps) for column, total in totals.items()}
        expected |= {"calibrated_s": totals["self_s"] / wall * CLEAN_S, "phase": "step", **none}
        expected["watch_share"] = 0.31 if row["name"] == "forward" else None
        assert among(expected, row) == near(expected)
    own = [row["self_s"] for row in found[:4]]
    assert (own, len(found)) == (sorted(own, reverse=True), 6)
    # What happened once, the start-up, is not divided.
    assert cells(found[4:], "phase name self_s calls calibrated_s watch_share") == [
        ("startup", "parse", 1.5, 5, None, None), ("startup", "load", 0.5, 7, None, None)
    ]  # fmt: skip


def test_calls_that_were_preempted_in_one_slice_are_as_in_the_other():
    few = module.FEW_CALLS
    lost = module.PREEMPTED_S
    rows = [
        # In the second slice of few calls 230 us were something else's; of many, or of a little
        # more than the limits, none is known to be.
        ("cast", (few, 4e-6), (few, 234e-6)), ("often", (few + 1, 1e-6), (few + 1, 1e-3)),
        ("slower", (1, 10e-6), (1, 10e-6 * module.PREEMPTED)),
        ("short", (1, 1e-6), (1, 0.99 * lost)), ("once", (3, 1e-3))]  # fmt: skip
    profiled = [
        {"slice": at, **function(name, calls, self_s, total_s=2 * self_s)}
        for name, *seen in rows
        for at, (calls, self_s) in enumerate(seen)
    ]

    def off(*delays):
        slices = rows_of("slice delay_s", *enumerate(delays))
        kept, taken_off = module.without_preempted(profiled, slices)
        for column in ("self_s", "total_s"):
            less = (row[column] - left[column] for row, left in zip(profiled, kept, strict=True))
            assert sum(less) == near(sum(taken_off.values()))
        return {key[2]: seconds for key, seconds in taken_off.items()}

    assert off(None, 1e-3) == {"cast": near(230e-6)}
    # No more than the slice's thread waited for a core; a call longer than that did other work.
    assert off(1e-3, 200e-6) == {"cast": near(200e-6)}
    assert [off(1e-3, 190e-6), off(1e-3, None)] == [{}] * 2


def test_calls_name_both_sides_the_longest_first(run):
    rows = [called("main", "train", 6, self_s=0.012, total_s=0.030)]
    rows.append(called("train", "len", 9, callee_file="~", callee_line=None, total_s=0.06))
    run.cprofile([0.013] * 3, frames={"calls": rows})
    run.writer.write({"calls": [called("load", "start", 7, total_s=0.5)]})
    recorded = run.recorded()
    found = module.calls(recorded, cprofile_of(recorded))
    assert cells(found, "phase caller callee calls self_s total_s") == [
        ("step", "train.py:3(train)", "~:0(len)", near(3.0), 0, near(0.02)),
        ("step", "train.py:3(main)", "train.py:3(train)", near(2.0), near(0.004), near(0.01)),
        ("startup", "train.py:3(load)", "train.py:3(start)", 7, 0, 0.5),
    ]


def cost(inner, outer, spread):
    spreads = {"inner_spread_s": spread, "outer_spread_s": 2 * spread}
    return {"inner_s": inner, "outer_s": outer, **spreads}


FACTS = {"python": cost(1e-6, 2e-6, 1e-7), "builtin": cost(3e-6, 5e-6, 4e-7)}
FACTS |= {"bytecode_factor": 2.96, "calls": 500, "rounds": 15}


def test_what_calls_cost_is_taken_off(run):
    rows = [function("loop", 3, 0.300), function("tiny", 3000, 0.030)]
    rows.append(function("<built-in len>", 300, 0.006, file="~", line=0))
    made = [called("loop", "tiny", 3000), called("loop", "empty", 2000)]
    made.append(called("tiny", "empty", 1000))
    made.append(called("loop", "<built-in len>", 300, callee_file="~", callee_line=0))
    # 1000 calls in, known to 0.1 ms; 500 calls out, known to 0.2 us each: 0.1 ms.
    for name, left_s in (("known", 0.000_21), ("lost", 0.000_19)):
        rows.append(function(name, 1000, 1000 * 1e-6 + 500 * 2e-6 + left_s))
        made.append(called(name, "g", 500))
    run.cprofile([0.013] * 3, frames={"functions": rows, "calls": made})
    run.writer.write({"functions": [function("load", 4, 1.0)]})
    run.writer.write({"calls": [called("load", "start", 10_000)]})
    run.writer.facts({module.COST: FACTS})
    # 3 calls in, 5000 of Python functions out and 300 of a built-in one; over three steps.
    loop, tiny = 0.3 - 3e-6 - 5000 * 2e-6 - 300 * 5e-6, 0.03 - 3000 * 1e-6 - 1000 * 2e-6
    expected = {"loop": loop / 3, "tiny": tiny / 3, "<built-in len>": (0.006 - 300 * 3e-6) / 3}
    expected |= {"load": 1.0 - 4e-6 - 0.02, "known": 0.000_21 / 3, "lost": None}
    found = {row["name"]: row["corrected_self_s"] for row in functions_of(run)}
    assert found == near(expected)


def node(number, parent, total, **more):
    row = {"node": number, "parent": parent, "kind": "function", "name": f"f{number}"}
    row |= {"file": "train.py", "line": number, "calls": 4, "total_s": total, "self_s": total / 4}
    return {**row, "device_s": None, **more}


def test_the_latest_slice_has_the_tree_per_step(run):
    run.writer.facts({FACT: PLACES})
    late = {"call_paths": [node(1, None, 5.0)]}
    run.torch([0.02] * 3, frames=late)
    assert module.call_paths(run.recorded()) == []
    run.torch([0.02], mode="stacks", frames={"call_paths": [node(1, None, 9.0)]})
    rows = [node(1, None, 0.06, file=TRAIN), node(2, 1, 0.01), node(3, 1, 0.04, file=TORCH)]
    rows.append(node(4, 3, 0.03, kind="kernel", file=None, device_s=0.02, line=None))
    run.torch([0.02] * 5, mode="stacks", left_out=(2,), frames={"call_paths": rows})
    run.torch([0.02] * 3, frames=late)
    names = "node parent name line own calls total_s self_s device_s"
    assert cells(module.call_paths(run.recorded()), names) == [
        (1, None, "f1", 1, True, 1, near(0.015), near(0.00375), None),
        (2, 1, "f3", 3, False, 1, near(0.01), near(0.0025), None),
        (3, 2, "f4", None, None, 1, near(0.0075), near(0.001875), 0.005),
        (4, 1, "f2", 2, False, 1, near(0.0025), near(0.000625), None),
    ]


@given(st.lists(st.integers(1, 40), min_size=2, max_size=60), st.integers(3, 12))
def test_a_folded_tree_loses_no_time(weights, most):
    totals, parents = dict(enumerate(weights, 2)), {n: n // 3 or 1 for n in range(2, 70)}
    totals[1] = 0
    own = dict(totals)
    for n in sorted(totals, reverse=True)[:-1]:
        totals[parents[n]] += totals[n]
    rows = [node(n, parents.get(n), float(totals[n]), self_s=own[n]) for n in sorted(totals)]
    found = module.folded(rows, most)
    assert math.fsum(row["self_s"] for row in found) == near(totals[1])
    assert [row["node"] for row in found] == list(range(1, len(found) + 1))
    assert len(found) <= max(most, 2) or len(rows) <= most
    for row in found:
        below = [other for other in found if other["parent"] == row["node"]]
        inside = math.fsum(other["total_s"] for other in below)
        assert row["total_s"] == near(row["self_s"] + inside)
        sizes = [other["total_s"] for other in below if other["name"] != module.OTHER]
        assert (sizes, (row["parent"] or 0) < row["node"]) == (sorted(sizes, reverse=True), True)
