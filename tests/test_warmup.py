"""Where warm-up ends: series of each kind whose answer is known."""

from __future__ import annotations

import time

import numpy as np
import pytest
from numpy.typing import NDArray

from profstack.stats.warmup import Warmup, detect

FloatArray = NDArray[np.float64]


def settled_steps(
    seed: int, n: int, *, scatter: float = 0.02, phi: float = 0.3, slow: float = 0.0
) -> FloatArray:
    """Logarithms of step times without warm-up; a share `slow` of lone slow steps among them."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(n)
    for i in range(1, n):
        noise[i] = phi * noise[i - 1] + np.sqrt(1 - phi**2) * noise[i]
    lone = (rng.random(n) < slow) * rng.exponential(1.0, n)
    logs: FloatArray = np.log(0.01) + scatter * noise + lone
    return logs


def detected(logs: FloatArray) -> Warmup:
    return detect(list(np.exp(logs)))


def share(found: list[bool]) -> float:
    return sum(found) / len(found)


class TestNoWarmup:
    @pytest.mark.parametrize("n", [5, 8, 12, 16, 24, 50, 200, 1000])
    @pytest.mark.parametrize(
        ("phi", "slow", "least"), [(0, 0, 0.95), (0.5, 0, 0.9), (0, 0.05, 0.9)]
    )
    def test_finds_none(self, n: int, phi: float, slow: float, least: float) -> None:
        found = [detected(settled_steps(i, n, phi=phi, slow=slow)) for i in range(200)]
        assert share([warmup.steps == 0 for warmup in found]) >= least
        assert share([warmup.settled for warmup in found]) >= 0.94

    def test_a_constant_series_has_none(self) -> None:
        warmup = detect([0.1] * 40)
        assert (warmup.steps, warmup.settled) == (0, True)

    @pytest.mark.parametrize("place", [1, 2, 5, 20, 39])
    def test_a_checkpoint_is_none(self, place: int) -> None:
        logs = settled_steps(1, 40)
        logs[place] += np.log(30)
        assert detected(logs).steps == 0

    def test_two_slow_steps_in_a_row_later_are_none(self) -> None:
        logs = settled_steps(2, 60)
        logs[12:14] += np.log(8)
        assert detected(logs).steps == 0


class TestSlowStart:
    @pytest.mark.parametrize("first", [1.3, 2.0, 15.0])
    @pytest.mark.parametrize("n", [8, 16, 50, 200])
    def test_one_heavy_first_step(self, first: float, n: int) -> None:
        found = []
        for seed in range(200):
            logs = settled_steps(seed, n)
            logs[0] += np.log(first)
            found.append(detected(logs))
        assert share([warmup.steps >= 1 for warmup in found]) >= 0.93
        assert share([warmup.steps == 1 for warmup in found]) >= 0.88

    def test_a_first_step_a_tenth_slower_shows_among_steady_steps(self) -> None:
        logs = settled_steps(3, 60, scatter=0.01)
        logs[0] += np.log(1.1)
        warmup = detected(logs)
        assert (warmup.steps, warmup.settled) == (1, True)
        assert "the first step took up to 1.1" in warmup.reason

    def test_a_heavy_first_and_a_slow_second_step(self) -> None:
        logs = settled_steps(4, 60)
        logs[:2] += np.log([10.0, 1.6])
        warmup = detected(logs)
        assert warmup.steps == 2
        assert "first 2 steps" in warmup.reason

    @pytest.mark.parametrize(("height", "decay"), [(1.0, 3), (1.0, 10), (0.3, 10), (3.0, 20)])
    def test_slow_settling_leaves_little_behind(self, height: float, decay: int) -> None:
        left = []
        for seed in range(60):
            start = height * np.exp(-np.arange(300) / decay)
            warmup = detected(settled_steps(seed, 300, slow=0.02) + start)
            assert warmup.settled
            left.append(start[warmup.steps])
        # What stays of the warm-up is lost in the scatter of three sigma of single steps.
        assert np.quantile(left, 0.9) < 0.08

    def test_a_checkpoint_inside_the_warmup_does_not_end_it(self) -> None:
        logs = settled_steps(5, 120) + 1.5 * np.exp(-np.arange(120) / 8)
        plain = detected(logs).steps
        logs[6] += np.log(5)
        assert plain > 15
        assert abs(detected(logs).steps - plain) <= 3


class TestNeverSettles:
    @pytest.mark.parametrize("n", [30, 100, 500])
    @pytest.mark.parametrize("change", [-1.0, 1.0])
    def test_drift_throughout(self, n: int, change: float) -> None:
        found = [
            detected(settled_steps(seed, n, slow=0.02) + change * np.linspace(0, 1, n))
            for seed in range(50)
        ]
        assert share([warmup.settled for warmup in found]) <= (0.04 if n < 100 else 0.0)
        assert all(warmup.steps <= n // 2 for warmup in found)
        # A rising series has no warm-up, and its reason says which way it went.
        words = {" ".join(w.reason.split()[:2]) for w in found if not w.settled}
        if change > 0:
            assert words == {"the last"}
            assert all("change by +" in w.reason for w in found if not w.settled)
        else:
            assert "still falling" in words

    def test_still_falling_at_the_half(self) -> None:
        warmup = detected(settled_steps(6, 100) + 2 * np.exp(-np.arange(100) / 60))
        assert not warmup.settled
        assert warmup.steps == 50

    def test_a_change_within_the_scatter_is_let_pass(self) -> None:
        settled = [
            detected(settled_steps(seed, 200, scatter=0.1) + np.linspace(0, 0.02, 200)).settled
            for seed in range(50)
        ]
        assert share(settled) >= 0.95


class TestFewSteps:
    @pytest.mark.parametrize("n", range(5))
    def test_says_that_they_are_too_few(self, n: int) -> None:
        warmup = detect([0.5] * n)
        assert (warmup.steps, warmup.settled) == (0, False)
        assert "too few" in warmup.reason

    def test_does_not_claim_more_than_it_saw(self) -> None:
        assert "too few to exclude a slow drift" in detected(settled_steps(7, 12)).reason
        assert "too few" not in detected(settled_steps(7, 40)).reason


class TestGaps:
    def test_counts_the_steps_of_the_run(self) -> None:
        logs = settled_steps(8, 40)
        logs[:3] += np.log([9.0, 3.0, 2.0])
        indices = [0, 1, 6, *range(20, 57)]
        warmup = detect(list(np.exp(logs)), indices=indices)
        assert (warmup.dropped, warmup.steps) == (3, 7)
        assert [i for i in indices if i >= warmup.steps] == indices[warmup.dropped :]

    def test_no_warmup_is_zero_wherever_the_series_starts(self) -> None:
        times = list(np.exp(settled_steps(9, 40)))
        assert detect(times, indices=list(range(100, 140))).steps == 0

    def test_refuses_indices_of_another_series(self) -> None:
        with pytest.raises(ValueError, match="indices"):
            detect([1.0] * 9, indices=[0, 1])


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_what_is_no_time(bad: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        detect([1.0] * 9 + [bad])


def test_holds_its_bounds_for_any_series() -> None:
    rng = np.random.default_rng(10)
    for _ in range(400):
        n = int(rng.integers(5, 150))
        kinds = [
            rng.lognormal(0, rng.uniform(0, 2), n),
            np.cumsum(rng.random(n)) + 0.1,
            np.sort(rng.random(n))[::-1] + 0.01,
            rng.choice([1.0, 2.0], n),
            np.abs(rng.standard_cauchy(n)) + 1e-6,
        ]
        times = kinds[int(rng.integers(len(kinds)))]
        warmup = detect(list(times))
        assert 0 <= warmup.steps == warmup.dropped <= n // 2
        assert warmup.reason
        # The unit of time and the order of calls change nothing.
        assert detect(list(times * 1024.0)) == warmup


def test_is_fast_for_long_runs() -> None:
    times = list(np.exp(settled_steps(11, 50_000)))
    begun = time.process_time()
    detect(times)
    assert time.process_time() - begun < 0.5
