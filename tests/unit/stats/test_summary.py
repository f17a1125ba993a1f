"""Statistics of step times: known answers, and how often the stated intervals hold the truth."""

import math
import statistics
from dataclasses import asdict
from itertools import pairwise, product
from statistics import fmean, median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profstack.stats import summary
from tests.support.series import autocorrelated, step_times
from tests.support.tables import cases

TIMES = st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=40)
# Times that differ by more than rounding: ties and lone outliers among them.
TENTHS = st.lists(st.integers(1, 60).map(lambda n: n / 16), min_size=10, max_size=40)
NORMAL = statistics.NormalDist()
NONE = summary.Ratio(None, None, None)


def quantile(samples, share):
    ordered, place = sorted(samples), share * (len(samples) - 1)
    low = math.floor(place)
    high = min(low + 1, len(samples) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def log_median(samples):
    return median(map(math.log, samples))


def rank_correlation(slices):
    products = squares = 0.0
    for one in slices:
        ranks = [(sum(y < x for y in one) + (sum(y == x for y in one) + 1) / 2) for x in one]
        apart = [(rank - fmean(ranks)) / len(one) for rank in ranks] if len(set(one)) > 1 else [0.0]
        products += sum(a * b for a, b in pairwise(apart))
        squares += sum(a * a for a in apart)
    return products / squares if squares else None


# The fewest samples of each figure.
LEAST = {"std": 2, "iqr": 4, "outliers": 5, "ci95_low": 6, "ci95_high": 6}
LEAST |= {"drift": 9, "p90": 10, "autocorrelation": 10, "p99": 100}


def by_the_textbook(samples):
    n, middle, third = len(samples), median(samples), -(-len(samples) // 3)
    distances = [abs(x - middle) for x in samples]
    limit = 3 * median(distances) / NORMAL.inv_cdf(0.75)
    low, high = summary.median_interval(samples) or (None, None)
    figures = {"n": n, "minimum": min(samples), "median": middle, "mean": fmean(samples)}
    figures |= {"std": statistics.stdev(samples) if n > 1 else None, "p99": quantile(samples, 0.99)}
    figures |= {"iqr": quantile(samples, 0.75) - quantile(samples, 0.25)}
    figures |= {"outliers": sum(x > limit for x in distances), "p90": quantile(samples, 0.9)}
    figures |= {"drift": median(samples[-third:]) / median(samples[:third]) - 1}
    figures |= {"autocorrelation": rank_correlation([samples]), "ci95_low": low, "ci95_high": high}
    return {name: None if n < LEAST.get(name, 0) else value for name, value in figures.items()}


def approximately(figures):
    return {name: x if x is None else pytest.approx(x, abs=1e-9) for name, x in figures.items()}


@given(TIMES)
def test_figures_are_those_of_the_textbook(samples):
    assert asdict(summary.summarize(samples)) == approximately(by_the_textbook(samples))


@pytest.mark.parametrize("n", sorted({n - k for n in LEAST.values() for k in (0, 1)} | {230}))
def test_each_figure_has_its_least_number_of_samples(n):
    samples = step_times(3, n)
    assert asdict(summary.summarize(samples)) == approximately(by_the_textbook(samples))


def test_rates_are_counts_over_the_time_they_took():
    samples = [0.004] * 7 + [0.024] * 3
    columns = summary.summarize(samples).columns(16)
    assert (columns["median_s"], columns["min_s"], columns["n"]) == (0.004, 0.004, 10)
    found = [columns[name] for name in ("drift", "steps_per_s", "items_per_s")]
    assert found == pytest.approx([5.0, 10 / sum(samples), 16 * 10 / sum(samples)])
    assert summary.summarize(samples).columns(None)["items_per_s"] is None
    assert {name[-2:] for name in columns if name not in summary._UNITLESS} == {"_s"}
    # Without a time there is no rate and no drift.
    assert summary.summarize([0.0] * 9 + [3.0]).drift is None
    nothing = summary.summarize([0.0] * 3).columns(5)
    assert (nothing["steps_per_s"], nothing["items_per_s"]) == (None, None)
    # A constant series has no correlation and no spread.
    found = summary.summarize([0.7] * 20)
    assert (found.ci95_low, found.ci95_high, found.outliers, found.drift) == (0.7, 0.7, 0, 0.0)
    assert found.autocorrelation is None


def test_what_is_no_series_is_refused_and_a_side_without_steps_no_ratio():
    for samples in ([], [1.0, float("nan")], [1.0, float("inf")]):
        with pytest.raises(ValueError, match="sample"):
            summary.summarize(samples)
    with pytest.raises(ValueError, match="above 0"):
        summary.ratio_interval([[1.0, 0.0, 1.0]], [[1.0] * 9])
    for above, below in (([], [[1.0] * 9]), ([[], []], [[1.0] * 9]), ([[2.0]], [])):
        assert summary.ratio_interval(above, below) == NONE
    found = [summary.pooled_ratio([([1.0, 1.1], [1.0, 0.9])] * n) for n in (0, 5, 6)]
    assert (found[0], [each.low is None for each in found]) == (NONE, [True, True, False])
    # One that leaves out 1 is a difference.
    ends = [(1.01, 1.1), (0.8, 0.99), (0.9, 1.1), (None, 2.0), (1.0, 1.2), (0.9, 1.0), (1.1, None)]
    found = [summary.Ratio(1.0, *each).distinguishable for each in ends]
    assert found == [True] * 2 + [False] * 5


def test_students_quantile_and_the_variance_of_signs():
    # By the tables, at 95 % and 99 % to both sides.
    known = {(0.95, 10): 2.2281, (0.95, 30): 2.0423, (0.95, 100): 1.9840, (0.99, 30): 2.7500}
    for (confidence, freedom), wide in known.items():
        expected = pytest.approx(wide / NORMAL.inv_cdf((1 + confidence) / 2), rel=1.5e-3)
        assert summary.student(confidence, freedom) == expected
    for n, phi in product((2, 7, 399, 900), (0.0, 0.35, 0.8)):
        added = sum((1 - k / n) * 2 / math.pi * math.asin(phi**k) for k in range(1, min(n, 400)))
        assert summary.sign_variance(n, phi) == pytest.approx(1 + 2 * added)


@pytest.mark.parametrize(("n", "phi"), [(50, 0.5), (200, 0.0), (summary._LARGE + 1000, 0.5)])
def test_an_interval_holds_the_truth_as_often_as_it_says(n, phi):
    trials, hits = 60, 0
    for number, noise in enumerate(autocorrelated(1000 + n, n, phi, trials)):
        low, high = summary.median_interval(list(np.exp(0.05 * noise)), repeats=300, seed=number)
        hits += low <= 1.0 <= high
    assert 0.9 <= hits / trials <= 0.985


def test_an_interval_has_the_unit_of_its_samples_and_the_same_seed_the_same_one():
    samples, interval = step_times(2, 80), summary.median_interval
    low, high = interval(samples)
    assert min(samples) < low < median(samples) < high < max(samples)
    assert interval([1024 * x for x in samples]) == pytest.approx((1024 * low, 1024 * high))
    assert interval(samples) == (low, high) != interval(samples, seed=1)
    narrow = interval(samples, confidence=0.8)
    assert low < narrow[0] < narrow[1] < high
    # Two of 2 ** n orders put all samples on one side of the median.
    for confidence, fewest in ((0.9, 5), (0.95, 6), (0.99, 8)):
        for n in (fewest - 1, fewest):
            assert summary.too_few_for_interval(n, confidence) is (n < fewest)
            assert (interval(step_times(1, n), confidence=confidence) is None) is (n < fewest)


def test_step_times_by_shape_the_commonest_first():
    many, names = step_times(5, 20, median=2.0), ("shape", "n", "median_s")
    rows = summary.by_shape({"1x3": [0.5, 1.5, 0.7], "8x3": many, "2x3": [3.0, 4.0], "0": []})
    medians = [("8x3", 20, median(many)), ("1x3", 3, 0.7), ("2x3", 2, 3.5), ("0", 0, None)]
    assert [tuple(row[name] for name in names) for row in rows] == medians
    intervals = [(row["ci95_low_s"], row["ci95_high_s"]) for row in rows]
    assert intervals == [summary.median_interval(many), *[(None, None)] * 3]


@given(TENTHS, TENTHS)
def test_a_ratio_is_that_of_the_medians(above, below):
    found = summary.ratio_interval([above[:3], [], above[3:]], [below], repeats=50)
    assert found.factor == pytest.approx(math.exp(log_median(above) - log_median(below)))
    assert found.low is None or found.low <= found.high <= summary.WIDEST * found.low


@cases("observed clean phi between", ((1, 10), (2, 40), 0.4, 0.0), ((2, 20), (3, 40), 0.0, 0.01),
       ((1, 3), (2, 50), 0.0, 0.0))  # fmt: skip
def test_an_interval_of_a_ratio_holds_the_truth(observed, clean, phi, between):
    rng, trials, hits = np.random.default_rng(11), 80, 0

    def slices(count, n, middle):
        seeds = [(rng.integers(1 << 30), math.exp(between * rng.normal())) for _ in range(count)]
        return [step_times(seed, n, phi, median=middle * level) for seed, level in seeds]

    for number in range(trials):
        sides = slices(*observed, 1.29), slices(*clean, 1.0)
        found = summary.ratio_interval(*sides, repeats=300, seed=number)
        hits += found.low <= 1.29 <= found.high
    assert 0.9 <= hits / trials <= 0.995
    assert summary.ratio_interval(*sides) == summary.ratio_interval(*sides)


def test_few_steps_have_no_interval_or_take_the_spread_of_the_other_side_too():
    cases = (((2, 7), (9,), True), ((1, 1), (9,), False), ((3,), (6,), True), ((3,), (5,), False))
    for above, below, has_interval in cases:
        sides = [[step_times(n, n) for n in side] for side in (above, below)]
        logs = [log_median([x for one in side for x in one]) for side in sides]
        for sign in (1, -1):
            found = summary.ratio_interval(*sides[::sign])
            assert found.factor == pytest.approx(math.exp(sign * (logs[0] - logs[1])))
            assert (found.low is not None) is has_interval
    # Two of three draws are the largest of nine values in 3.4 % of cases: both percentiles are
    # the outermost deviations, and those of three samples vary by 2 / 3 of what fresh ones would.
    steps, wide = [math.exp(x) for x in (-0.1, 0.0, 0.1)], math.exp(0.1 * math.sqrt(3 / 2))
    found = summary.ratio_interval([steps], [[1.0] * 6])
    assert (found.low, found.high) == pytest.approx((1 / wide, wide))


@given(st.lists(st.tuples(TENTHS, TENTHS), min_size=1, max_size=5))
def test_a_pair_is_compared_with_its_own_level(pairs):
    sides = ([], [])
    for pair in pairs:
        level = sum(map(log_median, pair)) / 2
        for side, block in zip(sides, pair, strict=True):
            side += [math.log(x) - level for x in block]
    found = summary.pooled_ratio([*pairs, ([], [1.0]), ([1.0], [])], repeats=50)
    factor = math.exp(median(sides[0]) - median(sides[1]))
    assert (found.factor, found.low) == (pytest.approx(factor), None)


@pytest.mark.parametrize(("pairs", "steps", "phi"), [(20, 25, 0.5), (8, 20, 0.0)])
def test_pairs_hold_the_truth_though_the_machine_drifts(pairs, steps, phi):
    trials, hits, widths = 40, 0, []
    for number in range(trials):
        levels = np.exp(np.cumsum(0.1 * np.random.default_rng(number).standard_normal(pairs)))
        noise = np.exp(0.05 * autocorrelated(15 + number, steps, phi, 2 * pairs))
        sides = 1.005 * levels[:, None] * noise[:pairs], levels[:, None] * noise[pairs:]
        blocks = list(zip(*(side.tolist() for side in sides), strict=True))
        found = summary.pooled_ratio(blocks, repeats=300, seed=number)
        hits += found.low <= 1.005 <= found.high
        widths.append(found.high - found.low)
    assert 0.9 <= hits / trials <= 0.99
    # The drift of 10 % from pair to pair must not show in the width.
    assert fmean(widths) < 0.07


def test_an_interval_of_slices_that_have_nothing_in_common_is_not_given():
    below = [[1.0, 1.01, 0.99] * 4] * 2
    for factor, known in ((1.5, True), (1e5, False)):
        above = [[1.2, 1.21, 1.19] * 2, [1.2 * factor, 1.21 * factor, 1.19 * factor] * 2]
        found = summary.ratio_interval(above, below)
        assert (found.factor is not None, found.low is not None) == (True, known)


@pytest.mark.parametrize(("factor", "low", "high", "floor", "side"), [
    (0.80, 0.70, 0.99, 0.19, -1), (0.80, 0.70, 0.99, 0.21, 0), (0.80, 0.70, 1.01, 0.0, 0),
    (1.25, 1.01, 1.50, 0.24, 1), (1.25, 1.01, 1.50, 0.26, 0), (1.25, 0.99, 1.50, 0.0, 0),
    (0.5, None, None, 0.0, 0), (None, None, None, 0.0, 0),
])  # fmt: skip
def test_beyond_a_floor_a_ratio_needs_its_interval_on_one_side(factor, low, high, floor, side):
    assert summary.Ratio(factor, low, high).beyond(floor) == side
