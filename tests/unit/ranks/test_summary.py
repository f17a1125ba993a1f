"""Ranks summed up: in every order and grouping the same, with exact ends and sums."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from profstack.ranks.rank import Rank
from profstack.ranks.summary import ACCURACY, Spread, Summary, decoded, together
from tests.support.launches import launch

TIMES = some.floats(0.0, 500.0) | some.floats(0.0, 1e-6) | some.just(0.0)


def summary(rank, times, names=("a", "b")):
    """The summary of a made-up rank that has some times in each of its modules."""
    made = launch(1)[0]
    record = Rank.of(rank, f"rank-{rank:05d}", made.report)
    found = Summary({rank: record}, steps=Spread.of(times, rank), left_out={f"{rank}.json": "torn"})
    found.work["module"] = {name: Spread.of(times[:1], rank) for name in names}
    return found


def tree(parts, random):
    """One summary of several, by a tree of any shape, in any order."""
    parts = [*parts]
    random.shuffle(parts)
    while len(parts) > 1:
        count = random.randint(2, min(4, len(parts)))
        parts = [*parts[count:], together(parts[:count])]
    return parts[0]


@settings(max_examples=40, deadline=None)
@given(
    some.lists(some.lists(TIMES, max_size=6), min_size=1, max_size=9),
    some.randoms(use_true_random=False),
)
def test_a_tree_of_any_shape_and_order_gives_the_same(times, random):
    parts = [summary(rank, own, "abc"[: 1 + rank % 3]) for rank, own in enumerate(times)]
    kept = [each.encoded() for each in parts]
    whole = tree(parts, random)
    again = tree(parts, random)
    assert (whole.steps, whole.work) == (again.steps, again.work)
    assert (whole.ranks, whole.left_out) == (again.ranks, again.left_out)
    assert [*whole.rows()] == [*again.rows()]
    # What was put together stays as it was.
    assert [each.encoded() for each in parts] == kept
    every = [round(time * 1e9) for own in times for time in own]
    assert (whole.steps.count, whole.steps.total) == (len(every), sum(every))
    assert {*whole.ranks} == set(range(len(times)))


def test_quantiles_are_right_to_within_a_hundredth_and_the_ends_are_exact():
    times = np.random.default_rng(1).lognormal(-4.0, 1.5, 5000)
    parts = [summary(rank, times[rank::7].tolist()) for rank in range(7)]
    steps = together(parts).steps
    for share in (0.0, 0.1, 0.5, 0.9, 0.99, 1.0):
        true = float(np.quantile(times, share, method="lower"))
        assert steps.quantile_s(share) == pytest.approx(true, rel=1.01 * ACCURACY)
    assert steps.quantile_s(1.0) == pytest.approx(times.max(), abs=1e-9)
    assert steps.most == (round(times.max() * 1e9), int(times.argmax() % 7))
    assert steps.least[1] == int(times.argmin() % 7)
    assert Spread().quantile_s(0.5) is None


def test_of_equal_times_the_lowest_rank_is_named():
    parts = [summary(rank, [0.25]) for rank in (5, 2, 9)]
    for order in (parts, parts[::-1]):
        steps = together(order).steps
        assert (steps.most[1], steps.least[1]) == (2, 2)


def test_what_differs_most_among_ranks_comes_first():
    parts = [summary(rank, [0.010], "a") for rank in range(4)] + [summary(4, [0.030], "a")]
    for each, seconds in zip(parts, (0.5, 0.5, 0.5, 0.504, 0.5), strict=True):
        (rank,) = each.ranks
        each.work["operator"] = {"aten::mm": Spread.of([seconds], rank)}
    first, second = together(parts).rows()
    assert (first["kind"], first["name"], first["ranks"], first["most_rank"]) == (
        "module",
        "a",
        5,
        4,
    )
    assert first["mean_s"] == pytest.approx(0.014)
    assert first["more_s"] == pytest.approx(0.020, rel=0.02)
    assert (second["name"], second["most_rank"]) == ("aten::mm", 3)


def test_a_summary_of_a_report_has_its_modules_operators_and_warm_steps():
    made = launch(1, noise=0.0)[0]
    tables = made.report["tables"]
    rows = [("aten::mm", 0.002), ("aten::add", None), ("aten::mm", 0.001)]
    tables["operators"] = [{"name": name, "calibrated_s": time} for name, time in rows]
    found = Summary.of(made.rank, made.report, [])
    assert {name: each.total for name, each in found.work["operator"].items()} == {
        "aten::mm": 3_000_000
    }
    paths = {row["path"] for row in tables["modules"] if row["calibrated_s"] is not None}
    assert {*found.work["module"]} == paths
    assert (found.steps.count, found.calls) == (len(made.rank.warm), {})


def test_a_file_of_a_summary_is_read_as_it_was_and_others_are_none():
    whole = together(summary(rank, [0.1 * rank]) for rank in range(3))
    data = whole.encoded()
    assert decoded(data) == whole
    assert decoded(data[:-3]) is None
    assert decoded(b"") is None
    assert decoded(data.replace(b"summary 2", b"summary 1")) is None
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 0xFF
    assert decoded(bytes(damaged)) is None
