"""The table of modules: sums per step along the tree, and how much of a step has an owner."""

import pytest

from profstack.analysis import modules as module_rows
from profstack.analysis.flops import counted, of_record
from profstack.analysis.modules import TIMED, attribution, modules
from profstack.storage.vocabulary import COMPILED, LOSS, OPTIMIZER, OUTSIDE, UNATTRIBUTED, WAIT
from tests.support.cells import among, cell, cells
from tests.support.recordings import by, module, module_times
from tests.support.tables import cases

CLEAN_S = 0.0137
TREE = [module(1, "Net"), module(2, "Net.a", 1), module(3, "Net.a.b", 2), module(4, "Net.c", 1)]
TREE += [module(5, "Unused"), module(6, "Other")]
LITTLE = module_rows._LITTLE
near = pytest.approx


def selected(recorded, factor=1.2):
    selection = recorded.select("torch", TIMED)
    selection.factor = factor
    return selection


def rows_of(run, memory=None, factor=1.2, operators=()):
    recorded = run.recorded()
    record, timed = of_record(counted(recorded)), selected(recorded, factor)
    return by(modules(recorded, timed, CLEAN_S, memory or {}, record, operators), "path")


def timed(run, walls, *times, mode="timed", **frames):
    run.torch(walls, mode=mode, frames={"module_times": list(times), **frames})


def test_modules_have_the_order_of_their_tree_with_those_around_them(run):
    timed(run, [0.012] * 3, *(module_times(number, 3, 0.003) for number in (4, 6)))
    found = rows_of(run, {3: {"host_net_bytes": 4096.0}, 9: {"host_net_bytes": 1.0}})
    assert cells(found.values(), "path depth forward_s host_net_bytes") == [
        ("Net", 0, None, None), ("Net.a", 1, None, None), ("Net.a.b", 2, None, 4096),
        ("Net.c", 1, near(0.001), None), ("Other", 0, near(0.001), None)]  # fmt: skip


def test_step_parts_follow_the_modules_as_a_step_does_them(run):
    parts = (UNATTRIBUTED, OPTIMIZER, WAIT, LOSS, COMPILED, OUTSIDE, 1)
    timed(run, [0.012] * 3, *(module_times(number, 3, 0.003) for number in parts))
    found = rows_of(run)
    names = ["wait", "compiled functions", "loss", "optimizer", "outside modules", "not attributed"]
    assert list(found) == ["Net", *(f"({name})" for name in names)]
    assert cell(found["(loss)"], "type depth python_s") == ("part of the step", 0, None)


def test_python_time_is_what_no_operator_has(run):
    net = module_times(1, 3, 0.004, backward_self_s=0.002)
    timed(run, [0.012] * 3, net, module_times(2, 3, 0.0))
    others = [{"module": "Net.a", "self_s": 0.1}, {"module": None, "self_s": 0.1}]
    for operators_s, python_s in (
            ((0.0007, None, 0.0005), near(0.0008)), ((0.002,), 0.0), ((0.002 * (1 + 5e-7),), 0.0),
            ((0.0021,), None)):  # fmt: skip
        operators = [{"module": "Net", "self_s": seconds} for seconds in operators_s]
        found = rows_of(run, operators=[*operators, *others])
        assert (found["Net"]["python_s"], found["Net.a"]["python_s"]) == (python_s, None)


@cases("count factor calibrated", "3 3. True; 2 1.2 False; 3 3.001 False; 3 None False; 7 .9 True")
def test_a_short_or_much_disturbed_slice_is_not_calibrated(run, count, factor, calibrated):
    walls = [0.012, 0.019, 0.013, 0.012, 0.014, 0.012, 0.021][:count]
    backward = {"backward_s": 0.002, "backward_self_s": 0.001}
    timed(run, walls, module_times(1, count, 0.004, **backward))
    counted = {"operator": "x", "calls": 1, "flop": 700, "module_id": 1, "backward": 0}
    frames = {"flop_counts": [{"counter": "FlopCounterMode", **counted}]}
    run.slice("flops", [0.1], layer="flops", frames=frames)
    # A rate needs the backward pass counted where its time is in the row.
    expected = near(0.006 / sum(walls) * CLEAN_S) if calibrated else None
    net = rows_of(run, factor=factor)["Net"]
    assert cell(net, "calibrated_s flop_per_s calls") == (expected, None, 1)
    totals = tuple(total / count for total in (0.004, 0.002, 0.005))
    assert cell(net, "forward_s backward_s self_s") == near(totals)


def owned_by(run, times, walls, mode="timed"):
    timed(run, walls, *times, mode=mode)
    recorded = run.recorded()
    return attribution(recorded, selected(recorded), CLEAN_S, (77.0, 0.4))


def test_attribution_adds_up_rows_with_and_without_owner(run):
    walls = [0.010, 0.014, 0.012, 0.021]
    own = {1: (0.020, 0.008), OPTIMIZER: (0.006, 0), OUTSIDE: (0.003, 0.002)}
    own |= {UNATTRIBUTED: (0.009, 0), LOSS: (0.004, -1e-9), WAIT: (0.001, -1e-13)}
    times = [module_times(n, 4, one, backward_self_s=other) for n, (one, other) in own.items()]
    facts = owned_by(run, times, walls)
    wall, owned = sum(walls), 0.028 + 0.006 + 0.004 + 0.001
    parts = (("(not attributed)", 0.009), ("(outside modules)", 0.005))
    expected = [(path, near(time / 4), near(time / wall)) for path, time in parts]
    assert cells(facts["unowned"], "path self_s share") == expected
    expected = {"step_s": wall / 4, "rows_s": (owned + 0.014) / 4, "owned_s": owned / 4}
    expected |= {"owned_share": owned / wall, "calibrated_owned_s": owned / wall * CLEAN_S}
    expected |= {"backward_s": 0.010 / 4, "backward_attributed_share": 0.8, "negative_rows": 1}
    expected |= {"memory_peak_bytes": 77, "memory_attributed_share": 0.4}
    expected |= {"clean_median_s": CLEAN_S}
    assert among(expected, facts) == near(expected)


@pytest.mark.parametrize(("unowned", "mode", "words"), [
    ({OUTSIDE: LITTLE * 0.99}, "timed", None),
    ({OUTSIDE: LITTLE * 1.01}, "timed", "belong to none of them"),
    ({OUTSIDE: 0.05, UNATTRIBUTED: 0.04}, "timed", "belong to none of them"),
    ({OUTSIDE: 0.04, UNATTRIBUTED: 0.05}, "timed", "other threads"), ({WAIT: 0.5}, "timed", None),
    ({WAIT: 0.5}, "whole", "start-up")])  # fmt: skip
def test_why_much_of_a_step_has_no_owner(run, unowned, mode, words):
    rest = 1.0 - sum(unowned.values())
    times = [module_times(1, 4, rest), *(module_times(n, 4, s) for n, s in unowned.items())]
    facts = owned_by(run, times, [0.4, 0.1, 0.3, 0.2], mode)
    assert words in facts["reason"] if words else facts["reason"] is None
    owned = rest + (unowned.get(WAIT, 0.0) if mode == "timed" else 0.0)
    assert facts["owned_share"] == near(owned)
