"""Trees of the page: areas of modules that add up exactly, and the graph of calls."""

import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profstack.report.trees import call_tree, module_picture
from tests.support.reports import row, rows

NAN = float("nan")


def picture(modules, holders=(), most=2_000):
    return module_picture(modules, holders, most)


def metric(made, key):
    return next(one for one in made.metrics if one.key == key)


def areas(made, key):
    """What a browser draws: each node's own and those inside it, by path."""
    sums, paths = defaultdict(float), []
    for name, parent, own in zip(made.names, made.parents, metric(made, key).own, strict=True):
        paths.append(f"{paths[parent]}.{name}" if parent >= 0 else name)
        at = len(paths) - 1
        while at >= 0:
            sums[paths[at]] += own or 0.0
            at = made.parents[at]
    return dict(sums)


def test_a_modules_area_is_the_figure_of_its_row():
    columns = "forward_s backward_s calibrated_s forward_flop backward_flop forward_device_s"
    columns = f"{columns} backward_device_s device_net_bytes"
    paths = ("Net", "Net.a", "Net.a.b", "(loss)", "(wait)")
    figures = ((path, *(900.0 // (n + 1) + at for at in range(8))) for n, path in enumerate(paths))
    modules = rows("modules", f"path {columns}", *figures)
    made = picture(modules)
    for one in modules:
        wanted = {key: one[key] for key in (*columns.split()[:3], "device_net_bytes")}
        for key in ("flop", "device_s"):
            wanted[key] = one[f"forward_{key}"] + one[f"backward_{key}"]
        # Waiting is no forward pass, and the loss is one.
        if one["path"] == "(wait)":
            wanted["forward_s"] = 0
        assert {each.key: areas(made, each.key)[one["path"]] for each in made.metrics} == wanted


def test_what_lies_below_0_is_told_and_not_drawn():
    figures = ("Net", 100, 0.3, 1_000), ("Net.a", 400, -0.2, 700), ("Net.b", -50, NAN, 700)
    names = "path host_net_bytes self_s parameters"
    made = picture(rows("modules", names, *figures, ("Net.c", 30, 1.5)))
    assert {one.key: (one.own, one.below, one.below_count) for one in made.metrics} == {
        # What is drawn less what lies below 0 is the root's own row.
        "host_net_bytes": ([0, 400, 0, 30], 330, 2),
        # A weight that two modules share is drawn at each.
        "parameters": ([0, 700, 700, None], 400, 1),
        "self_s": ([0.3, 0, None, 1.5], 0.2, 1),
    }
    assert metric(made, "parameters").columns == ("parameters",)
    assert (made.names, made.parents) == (["Net", "a", "b", "c"], [-1, 0, 0, 0])
    tenths = rows("modules", "path calibrated_s", *((f"Net.{at}", 0.1) for at in range(3)))
    for whole, below in ((0.3, 0), (0.3 * (1 - 1e-6), 1)):
        root = row("modules", path="Net", calibrated_s=whole)
        own = metric(picture([root, *tenths]), "calibrated_s")
        assert (own.own[0], own.below_count) == (0, below)


def test_the_peak_is_divided_among_those_who_made_its_bytes():
    modules = rows("modules", "path self_s", ("Net", 1.0), ("Net.a", 2.0))
    figures = ("cpu", "Net.a", 300), ("cpu", "Net.a", 70), ("cpu", None, 11), ("gpu", "Net", 9)
    lost = ("cpu", "Net.a.lost", 5), ("gpu", "Net", None), ("cpu", "(optimizer)", 2)
    holders = rows("peak_holders", "device module bytes", *figures, *lost)
    made = picture(modules, holders)
    cpu, gpu = (areas(made, f"peak_bytes {device}") for device in ("cpu", "gpu"))
    assert [one.device for one in made.metrics] == [None, "cpu", "gpu"]
    known = {"Net": 375, "Net.a": 375, "Net.a.lost": 5, "(held by the script)": 11}
    assert cpu == {**known, "(optimizer)": 2}
    assert (gpu["Net"], gpu["Net.a"]) == (9, 0)
    kinds = dict(zip(made.names, made.kinds, strict=True))
    assert (kinds["Net"], kinds["(optimizer)"]) == ("module", "part")


def test_what_is_left_out_is_one_area_with_the_sum():
    figures = [("Net", 55.0), *((f"Net.{at}", float(at)) for at in range(1, 11))]
    random.Random(3).shuffle(figures)
    modules = rows("modules", "path calibrated_s", *figures)
    made = picture(modules, most=4)
    assert made.kinds == ["module"] * 4 + ["rest"]
    assert (made.counts, made.total) == ([1, 1, 1, 1, 7], 11)
    assert (set(made.names[1:4]), made.names[4]) == ({"8", "9", "10"}, "")
    assert (metric(made, "calibrated_s").own[-1], areas(made, "calibrated_s")["Net"]) == (28, 55)
    # One node takes no more room than a sum.
    assert picture(modules, most=10).kinds == ["module"] * 11
    assert module_picture([], []) is None


def function(name, self_s, total_s):
    own = {"phase": "step", "file": "f.py", "line": 1, "own": True, "calls": 3.0}
    return row("functions", **own, name=name, self_s=self_s, total_s=total_s)


def call(caller, callee, total_s, calls=1.0):
    ends = {"caller": f"f.py:1({caller})", "callee": f"f.py:1({callee})"}
    return row("calls", **ends, calls=calls, total_s=total_s)


MAIN, WORK = function("main", 1.0, 3.0), function("work", 2.0, 2.0)
IN_CYCLE = [
    function("main", 0.5, 6.5), function("call", 1.0, 6.0), function("forward", 2.0, 5.5),
    function("linear", 3.0, 3.0)]  # fmt: skip
CALLS = [
    call("main", "call", 6.0), call("call", "forward", 5.5), call("forward", "call", 5.0),
    call("call", "linear", 3.0)]  # fmt: skip


@pytest.mark.parametrize(("functions", "calls", "entered", "cycles"), [
    # The graph starts at what nobody called.
    ([MAIN, WORK], [call("main", "work", 2.0)], {"main": 3.0}, []),
    # A frame that was on the stack when the profile began is in no row.
    ([MAIN, function("work", 5, 5)], [call("main", "work", 2)], {"main": 3, "work": 3}, []),
    # Recursion is no cycle and counts once.
    ([WORK], [call("work", "work", 1.5)], {"work": 2.0}, []),
    # The cycle's 6 s are what main called.
    (IN_CYCLE, CALLS, {"main": 6.5}, [{"call", "forward"}]),
    # Of a cycle that nobody calls into the own times add up: 1 and 2, and 3 on `linear`.
    (IN_CYCLE[1:], CALLS[1:], {"call": 6.0}, [{"call", "forward"}]),
    # Rounding is no entry, from a thousandth on it is.
    ([MAIN, WORK], [call("main", "work", 1.9985)], {"main": 3.0}, []),
    ([MAIN, WORK], [call("main", "work", 1.997)], {"main": 3.0, "work": 0.003}, [])])  # fmt: skip
def test_time_that_no_caller_accounts_for_is_entered(functions, calls, entered, cycles):
    tree = call_tree(functions, calls)
    names = [each[2] for each in tree.functions]
    roots = {names[number]: seconds for number, seconds in tree.roots}
    assert roots == pytest.approx(entered)
    assert list(roots.values()) == sorted(roots.values(), reverse=True)
    assert [{names[at] for at in cycle} for cycle in tree.cycles] == cycles
    assert (tree.left_out, len(tree.edges)) == (None, len(calls))


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=14))
def test_functions_that_reach_each_other_are_a_cycle(pairs):
    functions = [function(f"f{at}", 1.0, 9.0 - at) for at in range(8)]
    tree = call_tree(functions, [call(f"f{one}", f"f{two}", 1.0) for one, two in pairs])
    reached = {(at, at) for at in range(8)} | set(pairs)
    for middle in range(8):
        into = [one for one, two in reached if two == middle]
        reached |= {(one, two) for one in into for at, two in set(reached) if at == middle}
    mutual = [[two for two in range(8) if {(one, two), (two, one)} <= reached] for one in range(8)]
    cycles = sorted({tuple(members) for members in mutual if len(members) > 1})
    assert tree.cycles == list(map(list, cycles))


def test_what_the_graph_leaves_out_is_summed_at_both_ends():
    functions = [function(f"f{at}", 0.0, 3_000.0 - at) for at in range(2_500)]
    calls = [call("f0", f"f{at}", at, 2.0) for at in range(1_990, 2_100)]
    calls += [call(f"f{at}", "f1", 0.5) for at in (5, 2_200, 2_300)]
    tree = call_tree(functions, calls)
    assert (len(tree.functions), len(tree.edges)) == (2_000, 11)
    assert "2,000 of 2,500" in tree.left_out
    assert tree.callees_left == [[0, 100, 200, sum(range(2_000, 2_100))]]
    assert tree.callers_left == [[1, 2, 2, 1]]
    tree = call_tree([WORK, MAIN], [call("main", "work", 1.23456789012, 7.0)])
    assert tree.functions == [
        ["f.py", 1, name, 3, own, total, "(own files)"]
        for name, own, total in (("main", 1, 3), ("work", 2, 2))
    ]
    assert tree.edges == [(0, 1, 7, 1.23456789)]
