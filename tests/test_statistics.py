"""Statistics of step times: known answers, and how often the stated intervals hold the truth."""

from __future__ import annotations

import statistics as standard
import subprocess
import sys
import time
from dataclasses import asdict

import numpy as np
import pytest
from numpy.typing import NDArray

from profstack.stats.summary import (
    median_interval,
    pooled_ratio,
    rank_autocorrelation,
    ratio_interval,
    summarize,
)

FloatArray = NDArray[np.float64]


def autocorrelated(
    rng: np.random.Generator, n: int, phi: float, series: int
) -> NDArray[np.float64]:
    """Series of an AR(1) process with variance 1 / (1 - phi^2) and median 0, one per row."""
    noise = rng.standard_normal((series, n))
    noise[:, 0] /= np.sqrt(1 - phi**2)
    for i in range(1, n):
        noise[:, i] += phi * noise[:, i - 1]
    return noise


def step_times(noise: FloatArray, median: float = 0.01) -> list[float]:
    """Step times that lean to the right, as real ones do, with a known median."""
    return list(median * np.exp(0.05 * noise))


class TestSummary:
    def test_agrees_with_the_standard_library(self) -> None:
        samples = step_times(np.random.default_rng(3).standard_normal(200))
        summary = summarize(samples)
        low, _, high = standard.quantiles(samples, n=4, method="inclusive")
        assert summary.n == 200
        assert summary.median == pytest.approx(standard.median(samples))
        assert summary.mean == pytest.approx(standard.fmean(samples))
        assert summary.std == pytest.approx(standard.stdev(samples))
        assert summary.iqr == pytest.approx(high - low)
        assert summary.minimum == min(samples)
        hundredths = standard.quantiles(samples, n=100, method="inclusive")
        assert summary.p90 == pytest.approx(hundredths[89])
        assert summary.p99 == pytest.approx(hundredths[98])

    def test_rates_are_counts_over_the_time_they_took(self) -> None:
        samples = [0.004] * 7 + [0.024] * 3
        told = summarize(samples).columns(16)
        assert told["median_s"] == 0.004
        assert told["steps_per_s"] == pytest.approx(10 / sum(samples)) == pytest.approx(100)
        assert told["items_per_s"] == pytest.approx(1600)
        assert summarize(samples).columns(None)["items_per_s"] is None

    @pytest.mark.parametrize(
        ("n", "missing"),
        [
            (1, {"iqr", "std", "p90", "p99", "ci95_low", "ci95_high"}),
            (5, {"p90", "p99", "ci95_low", "ci95_high"}),
            (9, {"p90", "p99"}),
            (99, {"p99"}),
            (100, set()),
        ],
    )
    def test_says_only_what_so_many_samples_can_tell(self, n: int, missing: set[str]) -> None:
        values = asdict(summarize(step_times(np.random.default_rng(n).standard_normal(n))))
        expected = missing | ({"drift"} if n < 9 else set())
        expected |= ({"autocorrelation"} if n < 10 else set()) | ({"outliers"} if n < 5 else set())
        assert {name for name, value in values.items() if value is None} == expected

    def test_counts_slow_steps_that_would_hide_in_a_standard_deviation(self) -> None:
        samples = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99, 9.0, 9.5]
        assert summarize(samples).outliers == 2
        mean, std = standard.fmean(samples), standard.stdev(samples)
        assert not [x for x in samples if abs(x - mean) > 3 * std]

    def test_drift_is_the_last_third_against_the_first(self) -> None:
        assert summarize([1.0] * 4 + [5.0] * 4 + [1.1] * 4).drift == pytest.approx(0.1)
        assert summarize([2.0] * 30).drift == 0.0

    def test_constant_series_have_no_correlation_and_no_spread(self) -> None:
        summary = summarize([0.5] * 20)
        assert summary.autocorrelation is None
        assert (summary.ci95_low, summary.ci95_high, summary.outliers) == (0.5, 0.5, 0)

    @pytest.mark.parametrize("samples", [[], [1.0, float("nan")], [1.0, float("inf")]])
    def test_refuses_what_is_no_series(self, samples: list[float]) -> None:
        with pytest.raises(ValueError, match="sample"):
            summarize(samples)

    def test_same_seed_same_answer(self) -> None:
        samples = step_times(np.random.default_rng(1).standard_normal(60))
        assert summarize(samples) == summarize(samples)


def test_correlation_is_found_in_spite_of_an_outlier() -> None:
    x = autocorrelated(np.random.default_rng(4), 2000, 0.5, 1)[0]
    plain = rank_autocorrelation([x])
    x[1000] = 1e6
    assert plain == pytest.approx(0.48, abs=0.05)
    assert rank_autocorrelation([x]) == pytest.approx(plain, abs=0.005)


class TestMedianInterval:
    @pytest.mark.parametrize("n", [50, 100, 200])
    @pytest.mark.parametrize("phi", [0.0, 0.25, 0.5])
    def test_holds_the_truth_as_often_as_it_says(self, n: int, phi: float) -> None:
        trials = 400
        series = autocorrelated(np.random.default_rng(1000 + n), n, phi, trials)
        hits = 0
        for number, noise in enumerate(series):
            interval = median_interval(step_times(noise), repeats=400, seed=number)
            assert interval is not None
            hits += interval[0] <= 0.01 <= interval[1]
        assert 0.93 <= hits / trials <= 0.97

    @pytest.mark.parametrize("phi", [0.0, 0.25, 0.5])
    def test_holds_it_in_long_series_too(self, phi: float) -> None:
        series = autocorrelated(np.random.default_rng(7), 5000, phi, 300)
        intervals = [median_interval(list(noise), seed=i) for i, noise in enumerate(series)]
        hits = sum(low <= 0.0 <= high for low, high in filter(None, intervals))
        assert 0.93 <= hits / 300 <= 0.97

    def test_is_wider_where_neighbours_agree(self) -> None:
        rng = np.random.default_rng(5)
        widths = []
        for phi in (0.0, 0.6):
            scale = np.sqrt(1 - phi**2)
            found = [median_interval(list(x)) for x in scale * autocorrelated(rng, 150, phi, 20)]
            widths.append(np.mean([high - low for low, high in filter(None, found)]))
        assert widths[1] > 1.4 * widths[0]

    def test_needs_enough_samples_for_its_confidence(self) -> None:
        assert median_interval([1, 2, 3, 4, 5]) is None
        assert median_interval([1, 2, 3, 4, 5, 6]) is not None
        assert median_interval([1, 2, 3, 4, 5, 6], confidence=0.99) is None
        assert median_interval([1, 2, 3, 4, 5], confidence=0.9) is not None

    def test_more_confidence_is_wider(self) -> None:
        samples = step_times(np.random.default_rng(2).standard_normal(80))
        narrow, wide = median_interval(samples, confidence=0.8), median_interval(samples)
        assert narrow is not None
        assert wide is not None
        assert wide[0] < narrow[0] < narrow[1] < wide[1]

    def test_is_fast(self) -> None:
        samples = step_times(np.random.default_rng(2).standard_normal(200))
        begun = time.process_time()
        for _ in range(5):
            median_interval(samples)
        assert (time.process_time() - begun) / 5 < 0.25


class TestRatio:
    @pytest.mark.parametrize(
        ("observed", "clean", "phi", "between"),
        [
            ((1, 10), (2, 40), 0.4, 0.0),
            ((2, 20), (3, 40), 0.0, 0.01),
            ((2, 20), (3, 40), 0.4, 0.02),
            ((1, 3), (2, 50), 0.0, 0.0),
        ],
    )
    def test_holds_the_truth(
        self, observed: tuple[int, int], clean: tuple[int, int], phi: float, between: float
    ) -> None:
        rng = np.random.default_rng(11)
        trials, hits = 300, 0

        def slices(count: int, steps: int, median: float) -> list[list[float]]:
            levels = median * np.exp(between * rng.standard_normal(count))
            series = autocorrelated(rng, steps, phi, count)
            return [step_times(*one) for one in zip(series, levels, strict=True)]

        for number in range(trials):
            ratio = ratio_interval(
                slices(*observed, 1.29), slices(*clean, 1.0), repeats=400, seed=number
            )
            assert ratio.low is not None
            assert ratio.high is not None
            hits += ratio.low <= 1.29 <= ratio.high
        assert 0.91 <= hits / trials <= 0.995

    def test_tells_a_large_effect_apart_and_not_a_missing_one(self) -> None:
        rng = np.random.default_rng(12)
        clean = [step_times(x) for x in autocorrelated(rng, 40, 0.3, 3)]
        slow = [[1.29 * s for s in step_times(x)] for x in autocorrelated(rng, 30, 0.3, 2)]
        same = [step_times(x) for x in autocorrelated(rng, 30, 0.3, 2)]
        effect = ratio_interval(slow, clean)
        assert effect.distinguishable
        assert effect.factor == pytest.approx(1.29, rel=0.03)
        assert not ratio_interval(same, clean).distinguishable

    def test_one_or_two_steps_leave_the_factor_alone(self) -> None:
        clean = [[1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0]]
        for slow in ([[3.0]], [[3.0, 3.0]], [[3.0], [3.0]]):
            ratio = ratio_interval(slow, clean)
            assert ratio.factor == pytest.approx(3.0)
            assert (ratio.low, ratio.high) == (None, None)
            assert not ratio.distinguishable
        assert ratio_interval([[3.0, 3.0, 3.0]], clean).low is not None

    def test_a_side_without_steps_is_no_ratio(self) -> None:
        assert ratio_interval([], [[1.0] * 9]).factor is None
        assert ratio_interval([[], []], [[1.0] * 9]).factor is None
        assert ratio_interval([[1.0] * 9], []).factor is None

    def test_slices_that_differ_widen_the_interval(self) -> None:
        rng = np.random.default_rng(13)
        noise = autocorrelated(rng, 40, 0.0, 6)
        alike = [step_times(x) for x in noise]
        apart = [step_times(x, level) for x, level in zip(noise, [0.01, 0.012] * 3, strict=True)]
        narrow, wide = (ratio_interval(s[:3], s[3:]) for s in (alike, apart))
        assert None not in (narrow.low, narrow.high, wide.low, wide.high)
        assert wide.high - wide.low > 2 * (narrow.high - narrow.low)  # type: ignore[operator] # no None, by the line above

    def test_before_and_after_is_after_over_before(self) -> None:
        rng = np.random.default_rng(14)
        before = [step_times(x) for x in autocorrelated(rng, 40, 0.2, 2)]
        after = [[1.2 * s for s in step_times(x)] for x in autocorrelated(rng, 40, 0.2, 2)]
        changed = ratio_interval(after, before)
        assert changed.factor == pytest.approx(1.2, rel=0.03)
        assert changed.distinguishable
        assert not ratio_interval(before, before).distinguishable

    def test_times_that_are_none_are_refused(self) -> None:
        with pytest.raises(ValueError, match="above 0"):
            ratio_interval([[1.0, 0.0, 1.0]], [[1.0] * 9])


class TestPairs:
    @pytest.mark.parametrize(("pairs", "steps", "phi"), [(20, 20, 0.0), (20, 30, 0.5), (8, 20, 0)])
    def test_holds_the_truth_though_the_machine_drifts(
        self, pairs: int, steps: int, phi: float
    ) -> None:
        rng = np.random.default_rng(15)
        trials, hits, widths = 300, 0, []
        for number in range(trials):
            levels = 0.01 * np.exp(np.cumsum(0.1 * rng.standard_normal(pairs)))
            noise = autocorrelated(rng, steps, phi, 2 * pairs).reshape(pairs, 2, steps)
            blocks = [
                (step_times(a, 1.005 * level), step_times(b, level))
                for (a, b), level in zip(noise, levels, strict=True)
            ]
            ratio = pooled_ratio(blocks, repeats=400, seed=number)
            assert ratio.low is not None
            assert ratio.high is not None
            hits += ratio.low <= 1.005 <= ratio.high
            widths.append(ratio.high - ratio.low)
        assert 0.91 <= hits / trials <= 0.985
        # The drift of 10 % from pair to pair must not show in the width.
        assert np.mean(widths) < 0.06

    def test_agrees_with_a_plain_median_of_one_block(self) -> None:
        assert pooled_ratio([([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])]).factor == pytest.approx(2.0)

    def test_five_pairs_have_no_interval(self) -> None:
        blocks = [([1.0, 1.1], [1.0, 0.9])] * 6
        assert pooled_ratio(blocks[:5]).low is None
        assert pooled_ratio(blocks).low is not None
        assert pooled_ratio([]).factor is None


def test_needs_no_torch() -> None:
    code = "import sys, profstack.stats.summary; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
