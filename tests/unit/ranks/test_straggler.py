"""Which rank makes the others wait: steadily, from a step on, in some steps, and not by chance."""

import numpy as np
import pytest

from profstack.ranks import straggler as rules
from tests.support.launches import CLEAN, launch


def straggler(launched):
    return rules.straggler([each.rank for each in launched])


def lateness(launched):
    return rules.lateness([each.rank for each in launched])


def steps_of(launched):
    return rules.StepTimes([each.rank for each in launched])


@pytest.mark.parametrize("kind", ["wait", "cpu", "sleep"])
@pytest.mark.parametrize("count", [2, 5])
def test_the_rank_that_is_late_in_every_step_is_named_with_its_time(count, kind):
    ranks = launch(count, late={1: lambda step: 0.011}, kind=kind)
    found = straggler(ranks)
    assert (found["rank"], found["since_step"], found["rare"]) == (1, None, None)
    assert found["late_s"] == pytest.approx(0.011, rel=0.1)
    others = [each.rank for each in (ranks[0], *ranks[2:])]
    part, more = rules.largest_difference(ranks[1].rank, others)
    assert part == {"wait": "data wait", "cpu": "forward", "sleep": "Python"}[kind]
    assert more == pytest.approx(0.011)


def test_a_rank_is_late_by_its_own_time_less_the_median_of_the_others():
    ranks = launch(3, late={0: lambda step: 0.002, 2: lambda step: 0.006}, noise=0.0)
    assert lateness(ranks) == pytest.approx({0: -0.001, 1: -0.004, 2: 0.005})
    assert lateness(ranks[:1]) == {}


def test_in_a_step_a_rank_is_late_by_its_wait_less_the_median_of_the_others():
    late = {0: lambda step: 0.002, 3: lambda step: 0.010}
    ranks = launch(4, late=late, noise=0.0)
    assert set(steps_of(ranks).late_s(0, "wait_s").round(9)) == {0.002}
    # Among many ranks it is the median of all.
    many = launch(rules.MANY + 1, late=late, noise=0.0)
    assert set(steps_of(many).late_s(3, "wait_s").round(9)) == {0.010}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("count", [2, 4])
def test_equal_ranks_on_a_busy_machine_have_no_straggler(count, seed):
    random = np.random.default_rng(seed)
    # Every rank loses its core now and then, and few traced steps show one of them late.
    late = {}
    for rank in range(count):
        steps, times = random.choice(120, 30, replace=False), random.exponential(0.004, 30)
        own = dict(zip(steps, times, strict=True))
        late[rank] = lambda step, own=own: own.get(step, 0.0)
    for kind in ("wait", "cpu"):
        ranks = launch(count, late=late, kind=kind, noise=0.2, seed=seed, traced={1: 0.004})
        assert straggler(ranks) is None


def test_a_rank_has_to_be_late_by_a_share_of_the_step_and_to_be_waited_for():
    # Of a step of 9 ms and the lateness itself.
    share = rules.LEAST_LATE
    limit_s = share * 0.009 / (1.0 - share)
    for factor, named in ((0.9, False), (1.1, True)):
        late = factor * limit_s
        found = straggler(launch(late={1: lambda step, late=late: late}, noise=0.0))
        assert (found is not None) is named
    late = {1: lambda step: 0.008}
    assert straggler(launch(late=late, noise=0.0))["rank"] == 1
    # The others wait for something else: it is no straggler.
    for waited, named in ((0.6, True), (0.4, False)):
        ranks = launch(late=late, kind="sleep", noise=0.0)
        for rank in ranks:
            row = rank.report["verdict"]["evidence"][0]
            own_s = 0.016 if rank.number == 1 else 0.008
            waits_s = 0.001 + (rank.number == 0) * waited * 0.008
            row["share"] = waits_s / (own_s + waits_s)
            rank.report["benchmark"]["median_s"] = own_s + waits_s
        assert (straggler(ranks) is not None) is named


def test_lateness_that_the_clean_steps_do_not_show_has_to_be_large_and_of_one_part():
    # Of a step that is as much longer; half of it is in one part.
    limit = rules._VERY_LATE * 0.009 / (1.0 - rules._VERY_LATE)
    for factor, named in ((0.9, False), (1.1, True)):
        late = factor * limit
        found = straggler(launch(late={1: lambda step, late=late: late}, kind="sleep", noise=0.0))
        assert (found is not None) is named
    for share, named in ((1.1, True), (0.9, False)):
        ranks = launch(late={1: lambda step: 0.011}, kind="sleep", noise=0.0)
        part = next(row for row in ranks[1].report["step_bar"]["parts"] if row["name"] == "Python")
        part["seconds"] = 0.001 + share * rules._AGREES * 0.011
        assert (straggler(ranks) is not None) is named


def test_the_step_from_which_on_a_rank_is_late_is_said():
    for first in (60, 61):
        ranks = launch(late={1: lambda step, first=first: 0.03 * (step >= first)})
        expected = next(step for step in CLEAN if step >= first)
        found = straggler(ranks)
        # It is late by that much then, not by the mean over all steps.
        assert (found["since_step"], found["late_s"]) == (expected, pytest.approx(0.03, rel=0.1))
    # Of too few steps before it nothing is known.
    few = CLEAN[rules._FEWEST - 3]
    ranks = launch(late={1: lambda step: 0.03 * (step >= few)})
    assert straggler(ranks)["since_step"] is None


def test_a_rank_that_is_late_in_some_steps_alone_is_named_with_their_share():
    ranks = launch(3, late={2: lambda step: 0.05 * (step % 10 == 4)})
    found, slow = straggler(ranks), [step for step in CLEAN if step % 10 == 4]
    assert found["rank"] == 2
    rare = found["rare"]
    assert (rare["kind"], rare["every"], rare["first_step"]) == ("wait", 10, slow[0])
    assert rare["share"] == pytest.approx(len(slow) / len(CLEAN))
    assert rare["late_s"] == pytest.approx(0.05, rel=0.01)
    assert found["late_s"] == pytest.approx(0.05 * rare["share"], rel=0.01)
    uneven = {*slow, slow[1] + 1} & {*CLEAN}
    found = straggler(launch(late={1: lambda step: 0.05 * (step in uneven)}, kind="cpu"))
    assert (found["rare"]["kind"], found["rare"]["every"]) == ("cpu", None)


def test_rare_lateness_has_to_cost_much_and_be_of_one_rank_more_than_by_chance():
    def named(slow, seconds, other=(), less=0.0, count=2):
        late = {1: lambda step: seconds * (step in slow), 0: lambda step: less * (step in other)}
        return straggler(launch(count, late=late, noise=0.0, traced={})) is not None

    # No two of them are a multiple of the same number apart.
    at = [CLEAN[number] for number in (5, 11, 18, 30, 31, 44, 50)]
    between = [step + 1 for step in at if step + 1 in CLEAN]
    few = at[:6]
    enough = rules._LEAST_RARE * 0.009 * len(CLEAN) / len(few)
    assert enough > rules._LATE_STEP * 0.009
    assert named(few, 1.1 * enough)
    assert not named(few, 0.9 * enough)
    # Of two equal ranks one has all of six late steps in one of 32 launches, of five in one of 16.
    assert named(at[:6], 0.05)
    assert not named(at[:5], 0.05)
    # Every tenth of them is none by chance.
    tenth = [step for step in CLEAN if step % 10 == 4][:5]
    assert named(tenth[:4], 0.05)
    assert not named(tenth[:2], 0.1)
    # Of four ranks it is four steps: one of 64.
    assert named(at[:4], 0.05, count=4)
    assert not named(at[:3], 0.05, count=4)
    assert named(at, 0.05, between[:1], 0.05, count=4)
    assert not named(at, 0.05, between[:1], 0.05)
    assert not named(at, 0.05, between[:3], 0.05, count=4)
    # Late as often as the other, but by so many times as much.
    more = rules._BY_FAR
    assert not named(at, 0.01 * 0.9 * more, between[:1], 0.01 * len(at), count=4)


def test_a_machine_all_of_whose_ranks_are_late_is_told_from_a_rank():
    nodes = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}
    both = {2: lambda step: 0.012, 3: lambda step: 0.011}
    found = straggler(launch(6, late=both, nodes=nodes))
    assert (found["rank"], found["whole_node"]) == (2, True)
    assert not straggler(launch(6, late={2: both[2]}, nodes=nodes))["whole_node"]
    assert not straggler(launch(6, late=both))["whole_node"]
    assert not straggler(launch(6, late=both, nodes=dict.fromkeys(range(6), 0)))["whole_node"]


def test_ranks_without_a_known_wait_or_common_steps_have_no_straggler():
    ranks = launch(late={1: lambda step: 0.011})
    ranks[0].report["verdict"]["evidence"][0]["share"] = None
    assert ranks[0].rank.own_s is None
    # The clean steps alone say it.
    found = straggler(ranks)
    assert (found["rank"], found["rare"], found["late_s"]) == (1, None, pytest.approx(0.011, 0.1))
    for row in ranks[0].report["tables"]["steps"]:
        row["wait_s"] = None
    assert straggler(ranks) is None
    ranks = launch(late={1: lambda step: 0.05 * (step % 10 == 4)}, traced={})
    for row in ranks[0].report["tables"]["steps"][::2]:
        row["flags"] = "evaluation"
    assert steps_of(ranks).numbers.tolist() == [step for step in CLEAN if step % 2]
