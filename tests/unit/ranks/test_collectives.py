"""Collectives of several ranks: who comes last, skew and transfer, clocks, and what differs."""

import pytest

from profstack.ranks.collectives import Call, meetings, mismatch, read_calls
from tests.support.recordings import Run
from tests.support.tables import of

REDUCE, BARRIER = "gloo:all_reduce", "gloo:barrier"
ALONE = dict.fromkeys(range(4))


def called(*spans, step=5, name=REDUCE, size=4000, ahead=0.0):
    """Calls of one rank, whose clock is ahead of others by some seconds."""
    return [Call(step, name, size, begin + ahead, end + ahead) for begin, end in spans]


def figures(met, columns="skew_s transfer_s bytes_per_s last_rank last_share clock_error_s"):
    return of(met.facts(met.met), columns)


def test_a_rank_waits_for_the_last_one_and_then_for_the_transfer():
    # In the first collective rank 2 comes last, in the second rank 0; the ends differ a little.
    met = meetings({
        0: called((1.0, 6.0), (20.0, 24.0)),
        1: called((2.0, 6.5), (11.0, 24.5)),
        2: called((4.0, 6.2), (17.0, 24.4)),
    }, ALONE)  # fmt: skip
    skew, transfer = (3 + 2 + 0) / 3 + (0 + 9 + 3) / 3, 2.2 + 4.4
    expected = [skew, transfer, 8000 / transfer, 2, 0.5, 0.0]
    assert figures(met) == pytest.approx(expected)
    # Per step: the same in a second one.
    once = {0: called((1.0, 6.0)), 1: called((2.0, 6.5)), 2: called((4.0, 6.2))}
    twice = {at: [*each, *[call._replace(step=6) for call in each]] for at, each in once.items()}
    met = meetings(twice, ALONE)
    assert figures(met, "skew_s transfer_s") == pytest.approx([5 / 3, 2.2])
    assert (met.steps, met.by_key) == (2, {(REDUCE, 4000): met.met})


def test_a_moment_at_which_several_wait_counts_once():
    # Rank 1 comes at 5 to two that are open since 1 and 2, and at 9 to one that is since 7.
    calls = {0: called((1, 6), (2, 6), (7, 10)), 1: called((5, 6), (5.5, 6), (9, 10))}
    met = meetings(calls, ALONE)
    assert met.waits_for_s(1) == pytest.approx(4.5 + 2)
    apart = {rank: [*each, *called((20, 26), step=8)] for rank, each in calls.items()}
    apart[1][-1] = apart[1][-1]._replace(started_s=23)
    both = meetings(apart, ALONE)
    assert both.waits_by_step(1) == pytest.approx({5: 6.5, 8: 3.0})
    assert both.waits_by_step(0) == {5: 0.0, 8: 0.0}
    assert both.waits_for_s(1) == pytest.approx((6.5 + 3.0) / 2)
    assert met.facts(met.met)["skew_s"] == pytest.approx((4 + 3.5 + 2) / 2)
    # So many steps have more orders than a number can hold.
    steps = range(2_000)
    many = {rank: [Call(at, REDUCE, 8, at + rank / 9, at + 1) for at in steps] for rank in (0, 1)}
    assert meetings(many, ALONE).late_rank == 1


def test_only_what_all_ranks_called_in_a_step_of_all_is_matched():
    calls = {
        0: [*called((1, 2), (5, 6)), *called((1, 3), name=BARRIER, size=None)],
        1: [*called((1, 2)), *called((2, 3), name=BARRIER, size=None), *called((1, 2), step=9)],
    }
    met = meetings(calls, ALONE)
    assert [each.key for each in met.met] == [(REDUCE, 4000), (BARRIER, None)]
    # Of an unknown size there is no rate.
    assert figures(met, "transfer_s bytes_per_s") == [2.0, None]
    assert meetings({0: calls[0], 1: called((1, 2), step=9)}, ALONE) is None
    assert meetings({0: calls[0]}, ALONE) is None
    assert meetings({}, ALONE) is None
    # One that ended before the last had come, as a broadcast's source may, took no time below 0.
    early = {0: called((1, 2)), 1: called((5, 5))}
    assert figures(meetings(early, ALONE), "transfer_s bytes_per_s") == [0.0, None]
    assert meetings(early, ALONE).waits_for_s(1) == 4.0


def test_clocks_of_machines_are_put_together_by_the_ends():
    nodes = {0: 0, 1: 0, 2: 1, 3: 1}
    spans = [(at, at + 3.0) for at in (0.0, 10.0, 20.0, 30.0, 40.0)]
    late = [(at + 1.0, end + number / 100) for number, (at, end) in enumerate(spans)]
    calls = {
        0: called(*spans), 1: called(*spans), 2: called(*late, ahead=700.0),
        3: called(*late, ahead=700.0),
    }  # fmt: skip
    met = meetings(calls, nodes)
    # The middle wobble is taken for the clocks, a quarter of them is beyond each side of it.
    assert figures(met, "last_rank last_share clock_error_s") == [2, 1.0, pytest.approx(0.01)]
    assert met.facts(met.met)["skew_s"] == pytest.approx(5 * (1.0 - 0.02) / 2)
    # Without it the clocks would be the wait.
    assert figures(meetings(calls, ALONE), "skew_s")[0] > 1000
    # A broadcast tells nothing of clocks, and so there is nothing to be told.
    named = [[call._replace(name="gloo:broadcast") for call in calls[rank]] for rank in nodes]
    assert meetings(dict(enumerate(named)), nodes) is None


def test_different_calls_of_ranks_are_told_for_both():
    same = [call for step in range(5, 10) for call in called((1, 2), (3, 4), step=step)]
    other = called((5, 6), step=7, name="gloo:broadcast", size=16)
    calls = {0: same, 1: [*same, *other], 2: same}
    assert mismatch(calls) == (
        "from step 7 on the ranks called different collectives: rank 0 alone none, rank 1 alone "
        "gloo:broadcast of 16 B"
    )
    # How often is the edge's business, as are the outer steps; so is the size of what has one of
    # its own on each rank, or none on one of them.
    met = {rank: called((8, 9), step=7, name=BARRIER, size=rank) for rank in range(3)}
    calls = {rank: [*same, *met[rank], *called((5, 6), step=7)] for rank in range(3)}
    calls[1] += [call._replace(step=9) for call in other]
    calls[2] = [call._replace(bytes=None) if call.name == REDUCE else call for call in calls[2]]
    assert mismatch(calls) == mismatch({}) == ""
    # What is matched then has no size, and so no rate.
    met = meetings({0: called((1, 2)), 1: called((1, 2), size=None)}, ALONE)
    assert (met.met[0].key, figures(met, "bytes_per_s")) == ((REDUCE, None), [None])


def test_calls_are_read_with_the_steps_of_the_run_and_without_the_first_round(tmp_path):
    def rows(*at):
        common = {"name": REDUCE, "bytes": 8, "ended_s": 9.0, "hidden_s": 0.0}
        return {"collectives": [{"step": step, "started_s": 1.5 * step} | common for step in at]}

    run = Run(tmp_path)
    run.torch([0.1, 0.1], frames=rows(0, 1), number=1)
    run.clean(3, 0.1)
    run.torch([0.1, 0.1], frames=rows(1))
    run.close()
    assert read_calls(tmp_path) == [Call(6, REDUCE, 8, 1.5, 9.0)]
