"""Where warm-up ends: series of each kind whose answer is known."""

from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profstack.stats.warmup import Warmup, detect
from tests.support.series import autocorrelated


def settled_steps(seed, n, scatter=0.02, phi=0.3, slow=0.0, first=()):
    """Logarithms of steps, a part `slow` of them late, the `first` ones by these factors."""
    rng = np.random.default_rng(seed)
    lone = (rng.random(n) < slow) * rng.exponential(1.0, n)
    logs = np.log(0.01) + scatter * autocorrelated(seed, n, phi)[0] + lone
    logs[: len(first)] += np.log(first)
    return logs


def detected(logs):
    return detect(list(np.exp(logs)))


@pytest.mark.parametrize("n", [5, 8, 200])
@pytest.mark.parametrize(("phi", "slow"), [(0, 0), (0.5, 0), (0, 0.05)])
def test_settled_steps_have_no_warmup(n, phi, slow):
    found = [detected(settled_steps(i, n, phi=phi, slow=slow)) for i in range(50)]
    assert fmean(warmup.steps == 0 for warmup in found) >= 0.9
    assert fmean(warmup.settled for warmup in found) >= 0.94


def test_a_checkpoint_is_no_warmup_and_does_not_end_it():
    for places in ([1], [2], [5], [20], [39], [12, 13]):
        logs = settled_steps(1, 40)
        logs[places] += np.log(30 if len(places) == 1 else 8)
        assert detected(logs).steps == 0
    logs = settled_steps(5, 120) + 1.5 * np.exp(-np.arange(120) / 8)
    plain = detected(logs).steps
    logs[6] += np.log(5)
    assert (plain > 15, abs(detected(logs).steps - plain) <= 3) == (True, True)


@pytest.mark.parametrize("first", [1.3, 2.0, 15.0])
@pytest.mark.parametrize("n", [8, 200])
def test_one_heavy_first_step(first, n):
    found = [detected(settled_steps(seed, n, first=[first])).steps for seed in range(40)]
    assert fmean(steps >= 1 for steps in found) >= 0.93
    assert fmean(steps == 1 for steps in found) >= 0.86


@pytest.mark.parametrize(
    ("seed", "scatter", "first"),
    [(4, 0.02, [10.0, 1.6]), (4, 0.02, [9.0, 5.0, 3.0, 2.0, 1.5]), (3, 0.01, [1.1])],
)
def test_a_falling_start_ends_with_its_last_slow_step(seed, scatter, first):
    logs = settled_steps(seed, 60, scatter, first=first)
    times, steps = np.exp(logs), len(first)
    which = f"{steps} steps" if steps > 1 else "step"
    slowest = times[:steps].max() / np.median(times[30:])
    reason = f"the first {which} took up to {slowest:.3g} times the later median"
    assert detected(logs) == Warmup(steps, steps, True, reason)


@pytest.mark.parametrize(("height", "decay"), [(1.0, 3), (0.3, 10), (3.0, 20)])
def test_slow_settling_leaves_little_behind(height, decay):
    start = height * np.exp(-np.arange(300) / decay)
    found = [detected(settled_steps(seed, 300, slow=0.02) + start) for seed in range(20)]
    assert all(warmup.settled for warmup in found)
    # What is left of the warm-up is lost in three sigma of the scatter; little more is dropped.
    assert np.quantile([start[warmup.steps] for warmup in found], 0.9) < 0.08
    longest = np.quantile([warmup.steps for warmup in found], 0.9)
    assert longest < decay * (np.log(height / 0.001) + 2)


@pytest.mark.parametrize("n", [30, 300])
@pytest.mark.parametrize("change", [-1.0, 1.0])
def test_a_drift_throughout_never_settles(n, change):
    drift = change * np.linspace(0, 1, n)
    found = [detected(settled_steps(seed, n, slow=0.02) + drift) for seed in range(24)]
    reasons = [warmup.reason for warmup in found if not warmup.settled]
    assert 1 - len(reasons) / 24 <= (0.04 if n < 100 else 0.0)
    assert all(warmup.steps <= n // 2 for warmup in found)
    words = {" ".join(reason.split()[:2]) for reason in reasons}
    if change < 0:
        assert "still falling" in words
        return
    # A rising series has no warm-up: the later half of it rises by half, and the reason says so.
    assert words == {"the last"}
    changes = [float(reason.partition("change by +")[2].split()[0]) for reason in reasons]
    assert np.median(changes) == pytest.approx(100 * np.expm1(0.5), rel=0.03 + 2 / n)


def test_at_most_half_is_warmup_and_too_few_steps_say_so():
    for n in (100, 101):
        warmup = detected(settled_steps(6, n) + 2 * np.exp(-np.arange(n) / 60))
        assert (warmup.settled, warmup.steps, str(n) in warmup.reason) == (False, 50, True)
    warmup = detected(settled_steps(7, 40, first=[4] * 20))
    assert (warmup.steps, warmup.settled) == (20, True)
    for n in (*range(6), 8, 40):
        warmup = detect([0.5] * n)
        assert (warmup.steps, warmup.settled) == (0, n >= 5)
        assert (f"too few unobserved steps ({n})" in warmup.reason) is (n < 5)


def test_numbers_of_the_run_count_where_steps_are_missing_and_bad_ones_are_refused():
    times = list(np.exp(settled_steps(8, 40, first=[9.0, 3.0, 2.0])))
    warmup = detect(times, indices=[0, 1, 6, *range(20, 57)])
    assert (warmup.dropped, warmup.steps) == (3, 7)
    times = list(np.exp(settled_steps(9, 40)))
    assert detect(times, indices=list(range(100, 140))).steps == 0
    with pytest.raises(ValueError, match="indices"):
        detect([1.0] * 9, indices=[0, 1])
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="above 0"):
            detect([1.0] * 9 + [bad])


@given(st.lists(st.floats(0.01, 100.0), min_size=5, max_size=150))
def test_any_series_keeps_the_bounds_and_the_unit_changes_nothing(times):
    warmup = detect(times)
    assert 0 <= warmup.steps == warmup.dropped <= len(times) // 2
    assert warmup.reason
    assert detect([1024 * x for x in times]) == warmup
