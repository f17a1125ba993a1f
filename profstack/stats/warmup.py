"""Find the end of warm-up: where a series of step times stops falling.

The later half of the series gives the time of a settled step and the scatter. A falling line is
fitted to the whole series (isotonic regression on medians, so that a lone slow step, a checkpoint
for one, does not bend it). Warm-up is the part of the line that lies above the later level by more
than the scatter explains. Then the later half must itself be without a trend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profstack.stats.summary import NORMAL, FloatArray, sign_variance, student, supposed_dependence

# The fewest steps of which the later half (three) has a scatter at all.
_FEWEST = 5
# The fewest steps in the later half to tell a trend from chance.
_FEWEST_FOR_TREND = 8
# Three sigma: of a hundred series without warm-up fewer than one then loses its first step.
_CONFIDENCE = 0.9973
_SIGMAS = NORMAL.inv_cdf((1.0 + _CONFIDENCE) / 2.0)
_MAD_TO_SIGMA = 1.0 / NORMAL.inv_cdf(0.75)
# Steps, or groups of them, whose pairs are looked at for a trend: 20 thousand pairs.
_MOST_PAIRED = 200
# A change of a logarithm below this is rounding.
_ROUNDING = 1e-9
# Steps up to here are looked at one by one, later ones in groups of a sixteenth of their position.
_SINGLES = 64


@dataclass(frozen=True)
class Warmup:
    """Number of steps from the run's start on that are warm-up.

    `steps` counts from the run's first step to the last one seen warming up; `dropped` counts the
    same in the series given, which may have gaps. `settled` is False where the series is too short,
    still falls at its half, or changes throughout; `reason` says which.
    """

    steps: int
    dropped: int
    settled: bool
    reason: str


def detect(step_times_s: Sequence[float], *, indices: Sequence[int] | None = None) -> Warmup:
    """Find the warm-up of the unobserved steps of a run, given in order of time.

    `indices` are the steps' numbers in the run, from 0, where some were observed and are missing
    here. At most half of the series is called warm-up.
    """
    numbers = range(len(step_times_s)) if indices is None else indices
    if len(numbers) != len(step_times_s):
        raise ValueError("as many indices as step times are needed")
    n = len(numbers)
    if n < _FEWEST:
        return Warmup(0, 0, False, f"too few unobserved steps ({n}) to see a warm-up in")
    times = np.asarray(step_times_s, dtype=np.float64)
    if not np.isfinite(times).all() or (times <= 0).any():
        raise ValueError("step times must be finite and above 0")
    logs = np.log(times)
    half = n // 2
    later = _look_at(logs[half:])
    falling = _warm_prefix(logs, later)
    dropped = min(falling, half)
    steps = numbers[dropped - 1] + 1 if dropped else 0
    if falling > half:
        return Warmup(steps, dropped, False, f"still falling at the half of {n} steps")
    if _is_trend(later):
        change = f"{100 * math.expm1(later.change or 0.0):+.1f} % from first to last"
        return Warmup(steps, dropped, False, f"the last {later.n} of {n} steps change by {change}")
    return Warmup(steps, dropped, True, _reason(times, half, dropped))


def _reason(times: FloatArray, half: int, dropped: int) -> str:
    caveat = ""
    if len(times) - half < _FEWEST_FOR_TREND:
        caveat = f"; {len(times)} steps are too few to exclude a slow drift"
    if not dropped:
        return "no step at the start is slower than the later ones beyond their scatter" + caveat
    slowest = times[:dropped].max() / np.median(times[half:])
    which = "step" if dropped == 1 else f"{dropped} steps"
    return f"the first {which} took up to {slowest:.3g} times the later median{caveat}"


def _warm_prefix(logs: FloatArray, later: _Later) -> int:
    """Count samples at the start whose falling line is above the later level beyond its scatter."""
    variance = math.pi / 2.0 * sign_variance(later.n, later.dependence)
    sigmas = _SIGMAS * student(_CONFIDENCE, later.n - 1)
    end = 0
    for value, size in _falling_line(logs):
        # A median of few samples scatters as one of them, of many by pi / 2 over their number.
        error = later.scatter * math.sqrt(min(1.0, variance / size) + min(1.0, variance / later.n))
        if value - later.level <= sigmas * error + _ROUNDING:
            break
        end += size
    return end


@dataclass(frozen=True)
class _Later:
    """The later half of the series: settled steps, if any are.

    `scatter` is the standard deviation of its logarithms about their line, lone slow steps left
    out; `change` what the line rises from first to last, None where there are too few for a line.
    """

    n: int
    level: float
    scatter: float
    dependence: float
    change: float | None


def _look_at(later: FloatArray) -> _Later:
    m, level = later.size, float(np.median(later))
    if m < _FEWEST_FOR_TREND:
        kept = np.sort(later)[:-1] if m > 3 else later
        return _Later(m, level, float(kept.std(ddof=1)), supposed_dependence([later]), None)
    slope = _slope(later)
    rest = later - slope * np.arange(m)
    # The line was fitted to these steps, which costs two degrees of freedom.
    scatter = _MAD_TO_SIGMA * float(np.median(np.abs(rest - np.median(rest)))) * m / (m - 2)
    return _Later(m, level, scatter, supposed_dependence([rest]), slope * (m - 1))


def _slope(values: FloatArray) -> float:
    """Return the median slope of all pairs (Theil 1950, Sen 1968), robust against outliers."""
    groups = np.array_split(values, min(values.size, _MOST_PAIRED))
    places = np.cumsum([group.size for group in groups]) - [group.size / 2.0 for group in groups]
    medians = np.array([np.median(group) for group in groups])
    first, second = np.triu_indices(len(groups), 1)
    return float(np.median((medians[second] - medians[first]) / (places[second] - places[first])))


def _is_trend(later: _Later) -> bool:
    """Return whether neither chance nor one step's scatter explains the later half's change.

    Chance allows for the dependence of neighbours. A change within the scatter is
    ignored: it moves no median that matters.
    """
    if later.change is None:
        return False
    m, dependence = later.n, later.dependence
    # The error of a straight line's slope, over a range of m - 1 steps.
    weight = m * (m**2 - 1.0) / 12.0
    inflation = (1.0 + dependence) / (1.0 - dependence)
    error = later.scatter * math.sqrt(inflation / weight) * (m - 1)
    chance = _SIGMAS * student(_CONFIDENCE, max(3.0, m / inflation - 2.0)) * error
    return abs(later.change) > max(chance, later.scatter, _ROUNDING)


def _falling_line(logs: FloatArray) -> list[tuple[float, int]]:
    """Fit the never rising line nearest to the series in absolute distance, as (height, samples).

    Pool adjacent violators: where a group is higher than the one before, both become one. The
    lower median is used, so that of two samples a slow second one is no warm-up.
    """
    # Single steps first, and longer and longer stretches after.
    edges = list(range(min(_SINGLES, logs.size)))
    while edges[-1] < logs.size:
        edges.append(edges[-1] + max(1, edges[-1] // 16))
    groups: list[tuple[float, FloatArray]] = []
    for samples in np.split(logs, [edge for edge in edges if 0 < edge < logs.size]):
        height, pooled = _lower_median(samples), samples
        while groups and groups[-1][0] <= height:
            pooled = np.concatenate([groups.pop()[1], pooled])
            height = _lower_median(pooled)
        groups.append((height, pooled))
    return [(height, samples.size) for height, samples in groups]


def _lower_median(samples: FloatArray) -> float:
    middle = (samples.size - 1) // 2
    return float(np.partition(samples, middle)[middle])
