"""Trees of the page: areas of modules that add up exactly, and the graph of calls."""

import pytest

from profstack.report.trees import call_tree, module_picture
from tests.support.reports import row, rows


def metric(made, key):
    return next(one for one in made.metrics if one.key == key)


def test_what_lies_below_0_is_told_and_not_drawn():
    figures = ("Net", 100, 0.3, 1_000), ("Net.a", 400, -0.2, 700)
    figures += (("Net.b", -50, float("nan"), 700),)
    names = "path host_net_bytes self_s parameters"
    made = module_picture(rows("modules", names, *figures, ("Net.c", 30, 1.5)), ())
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
        own = metric(module_picture([root, *tenths], ()), "calibrated_s")
        assert (own.own[0], own.below_count) == (0, below)


def test_the_peak_is_divided_among_those_who_made_its_bytes():
    modules = rows("modules", "path self_s", ("Net", 1.0), ("Net.a", 2.0))
    figures = ("cpu", "Net.a", 300), ("cpu", "Net.a", 70), ("cpu", None, 11), ("gpu", "Net", 9)
    lost = ("cpu", "Net.a.lost", 5), ("gpu", "Net", None), ("cpu", "(optimizer)", 2)
    holders = rows("peak_holders", "device module bytes", *figures, *lost)
    made = module_picture(modules, holders)
    assert [one.device for one in made.metrics] == [None, "cpu", "gpu"]
    known = {"a": 370, "lost": 5, "(held by the script)": 11, "(optimizer)": 2}
    for device, expected in (("cpu", known), ("gpu", {"Net": 9})):
        own = zip(made.names, metric(made, f"peak_bytes {device}").own, strict=True)
        assert {name: size for name, size in own if size} == expected


def function(name, self_s, total_s):
    own = {"phase": "step", "file": "f.py", "line": 1, "own": True, "calls": 3.0}
    return row("functions", **own, name=name, self_s=self_s, total_s=total_s)


def call(caller, callee, total_s):
    ends = {"caller": f"f.py:1({caller})", "callee": f"f.py:1({callee})"}
    return row("calls", **ends, calls=1.0, total_s=total_s)


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
