"""The plan of slices: who observes when, for how long, and what comes between two observers."""

from dataclasses import astuple, replace

from profstack.capture.run import make_plan
from profstack.capture.slices import SlicePlan, Targets, plan, settle, watch
from profstack.layer import COUNTING, Mode
from tests.support.tables import cases

TARGETS = Targets(4, 0.25, 7, 3, 30, 2.0, 90, settle_s=0.5, max_settle_steps=6)
COUNT, TIMED, LATE = (
    ("a", Mode("count", 1, 2, turn=COUNTING, steps=9)),
    ("b", Mode("timed", turn=COUNTING + 1)),
    ("c", Mode("late", 2, 2, turn=50, later_turn=2, steps=3)),
)


def test_a_whole_plan_slice_by_slice():
    def observed(name, mode, number, steps, min_s):
        layer = ((name, mode),)
        return [
            SlicePlan("settle", (), number, 1, 0.5, 6, layer),
            SlicePlan(name, layer, number, steps, min_s),
            SlicePlan("settle", (), number, 1, 0.5, 6),
            SlicePlan("clean", (), number, 7, 0.25),
        ]

    shared = (("b", "shared"), ("c", "shared"))
    clean = SlicePlan("clean", (), 1, 1)
    assert list(plan([COUNT, TIMED, LATE], TARGETS, shared)) == [
        # Each has a step in round 1: what counts needs no warmth, and no clean step after it.
        SlicePlan("a", (("a", "count"),), 1, 1),
        *(SlicePlan("shared", shared, 1, 1), clean),
        *(SlicePlan("b", (("b", "timed"),), 1, 1), clean),
        # By their later turns; the targets, or the mode's own steps where these are more.
        *observed("c", "late", 2, 4, 0.25),
        *observed("a", "count", 2, 9, 0.0),
        *observed("b", "timed", 2, 4, 0.25),
        *observed("b", "timed", 3, 4, 0.25),
        SlicePlan("settle", (), 4, 1, 0.5, 6),
        SlicePlan("clean", (), 4, 30, 2.0, 90),
        SlicePlan("watch", (), 4, 1, float("inf")),
    ]


def test_without_layers_there_are_several_clean_slices():
    pair = [SlicePlan("settle", (), 4, 1, 0.5, 6), SlicePlan("clean", (), 4, 7, 0.7, 90)]
    first = [pair[0], SlicePlan("clean", (), 4, 30, 2.0, 90)]
    assert list(plan([], replace(TARGETS, alone_s=0.7))) == [*first, *pair * 3, watch(4)]
    # Ranks in lockstep end none by their clocks.
    assert all(each.min_s == 0 for each in [*plan([], TARGETS.in_lockstep())][:-1])
    # None has more steps than the run before it: after 4 to the first one they double.
    assert pair[1].longest((), 24) == 24


def test_the_layers_of_a_usual_run_take_turns_in_an_order():
    slices = list(make_plan(["cprofile", "torch", "nvtx", "memory", "flops"], Targets()))
    by_round = {
        number: [":".join(each) for one in slices if one.round == number for each in one.observers]
        for number in (1, 2, 3, 4)
    }
    assert set(by_round[1]) >= {"torch:shared", "cprofile:shared", "torch:detail"}
    # Stacks come after what counts their calls, and behind all others.
    order = "torch:timed cprofile:timed memory:lines torch:lines nvtx:timed torch:stacks"
    assert by_round[2] == order.split()
    assert (by_round[3], by_round[4]) == (["torch:timed", "cprofile:timed", "nvtx:timed"], [])
    assert [one.round for one in slices] == sorted(one.round for one in slices)
    # Eight steps, with the one that shows the rule, give both of the layers by default rows.
    few = list(make_plan(["cprofile", "torch"], Targets()))[:7]
    assert all((one.steps, one.min_s) == (1, 0.0) for one in few)
    assert {name for one in few for name, _ in one.observers} == {"cprofile", "torch"}


@cases(
    "planned limits so_far most",
    # In later slices as many steps as the script has had, but 20 may always be.
    (SlicePlan("a", (), 2, 3), [None], 19, 20),
    (SlicePlan("a", (), 2, 3), [None, 0], 21, 21),
    (SlicePlan("a", (), 2, 300), [], 21, 300),
    (SlicePlan("a", (), 2, 3), [17, None, 12], 500, 12),
    (SlicePlan("clean", (), 2, 5, 1.0, 33), [], 34, 33),
    (SlicePlan("clean", (), 2, 5, 1.0, 33), [], 32, 32),
    # A single step, the step to settle, the watch and the first round have no such bound.
    *((SlicePlan("a", (), 2, 1), [], 500, None), (SlicePlan("a", (), 0, 3), [], 500, None)),
    (SlicePlan("watch", (), 2, 3), [], 500, None),
    *((settle(TARGETS, 2), [], 500, 6), (settle(TARGETS, 2), [4], 500, 4)),
)
def test_the_most_steps_of_a_slice(planned, limits, so_far, most):
    assert planned.longest(limits, so_far) == most


def test_the_usual_targets_and_those_in_lockstep():
    assert astuple(Targets()) == (3, 0.05, 5, 3, 20, 1.0, 2000, 0.003, 10, 0.4)
    # All ranks must switch at the same steps: no length is in seconds.
    assert astuple(Targets().in_lockstep()) == (5, 0.0, 5, 3, 20, 0.0, 2000, 0.0, 10, 0.0)
    assert (Targets(slice_steps=8).in_lockstep().slice_steps, watch(3).observers) == (8, ())
