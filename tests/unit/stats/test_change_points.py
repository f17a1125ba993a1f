"""Change points: how often none is one, where one is found, and what a series must have."""

import numpy as np
import pytest

from profstack.stats.change_points import change_points, fewest_values

NOISE, RUNS = 0.03, 20


def _series(seed, *changes):
    """Logarithms of 20 noisy runs; `changes` are (place, factor) from there on."""
    series = np.random.default_rng(seed).normal(0.0, NOISE, RUNS)
    for place, factor in changes:
        series[place:] += np.log(factor)
    return series


def test_noise_has_a_change_in_at_most_5_of_100_series():
    found = sum(bool(change_points(_series(seed), seed=seed)) for seed in range(200))
    # 5 % of 200, and what chance adds to that in one of a hundred tries.
    assert found <= 17


@pytest.mark.parametrize("factor", [1.1, 1 / 1.1])
def test_a_tenth_is_found_at_its_place(factor):
    places = np.random.default_rng(7).integers(4, 17, 100)
    found = [change_points(_series(seed, (at, factor))) for seed, at in enumerate(places)]
    pairs = list(zip(found, places, strict=True))
    assert sum([each.place for each in one] == [at] for one, at in pairs) >= 80
    assert sum(any(abs(each.place - at) <= 1 for each in one) for one, at in pairs) >= 94


def test_two_changes_are_in_order_and_outliers_are_none():
    assert [each.place for each in change_points(_series(3, (7, 1.3), (13, 0.7)))] == [7, 13]
    for at in (4, RUNS - 1):
        series = _series(3)
        series[at] += 1.0
        assert change_points(series) == []


def test_a_preferred_place_is_taken_where_it_is_about_as_good():
    series = np.array([0.0, 0.01] * 5 + [0.06] + [0.1, 0.11] * 5)
    place = change_points(series)[0].place
    assert place in (10, 11)
    assert [change_points(series, preferred=[each])[0].place for each in (10, 11)] == [10, 11]
    assert change_points(series, preferred=[5, 15])[0].place == place


def test_the_shortest_series_that_can_show_a_change():
    # 2 of the 70 ways to halve 8 values are as clear as a change, 2 of the 126 for 9.
    assert (fewest_values(2 / 70), fewest_values(0.025)) == (8, 9)
    n = fewest_values()
    for length, places in ((n, [n // 2]), (n - 1, [])):
        series = [float(at >= length // 2) for at in range(length)]
        # A gradient inside both sides: equal values would make several permutations one.
        series = [value + 0.001 * at for at, value in enumerate(series)]
        found = change_points(series)
        assert [each.place for each in found] == places


def test_what_never_varies_has_no_change_and_nan_is_refused():
    assert change_points([2.0] * 30) == change_points([]) == []
    with pytest.raises(ValueError, match="finite"):
        change_points([1.0, float("nan")])
