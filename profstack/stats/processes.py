"""Intervals from a few recordings: how much fresh processes of one program differ.

A handful of processes says little of their own spread, and one says nothing. So what is known of
the spread beforehand counts like a few further processes (a scaled inverse chi-square prior, as in
the moderated t-test of Smyth 2004). Of six and more the fastest and the slowest fifth do not
count (Yuen 1974): a process that another one disturbed is no news about the program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

import numpy as np

from profstack.stats.summary import FloatArray

# From this number on the extremes are trimmed, a fifth at each end.
FEWEST_TO_TRIM = 6
_TRIMMED = 0.2


@dataclass(frozen=True)
class Prior:
    """The spread assumed beforehand: a standard deviation worth `freedom` processes."""

    deviation: float | FloatArray
    freedom: float | FloatArray


@dataclass(frozen=True)
class Means:
    """Means over the processes of one side, one per row, with their variance."""

    values: FloatArray
    variances: FloatArray
    freedom: float | FloatArray


def weights(totals: Sequence[float]) -> FloatArray:
    """Return the weight of each process in the side's mean, by the order of their totals."""
    cut = _cut(len(totals))
    kept = np.zeros(len(totals))
    order = np.argsort(np.asarray(totals, dtype=np.float64), kind="stable")
    kept[order[cut : len(totals) - cut]] = 1.0 / (len(totals) - 2 * cut)
    return kept


def _cut(count: int) -> int:
    return int(_TRIMMED * count) if count >= FEWEST_TO_TRIM else 0


def means(values: FloatArray, prior: Prior) -> Means:
    """Return the mean of each row, one column per process, trimmed by the row's own order.

    NaN is a process without that figure: it counts in no mean. A row of nothing else has mean 0.
    The variance of a trimmed mean is that of the winsorized values.
    """
    counts = (~np.isnan(values)).sum(axis=1)
    supposed = np.broadcast_to(np.asarray(prior.deviation, dtype=np.float64), counts.shape)
    worth = np.broadcast_to(np.asarray(prior.freedom, dtype=np.float64), counts.shape)
    middles, variances = np.zeros(counts.size), np.zeros(counts.size)
    freedoms = np.ones(counts.size)
    drawn = np.sort(values, axis=1)
    for count in (int(each) for each in np.unique(counts) if each):
        rows = counts == count
        cut = _cut(count)
        some = drawn[rows, :count]
        middles[rows] = some[:, cut : count - cut].mean(axis=1)
        known = Prior(supposed[rows], worth[rows])
        variances[rows], freedoms[rows] = _variance(_winsorized(some), count - 2 * cut, known)
    return Means(middles, variances, freedoms)


# The largest of twenty variances of the same spread, as a deviate of a normal distribution.
_ONE_IN_TWENTY = 1.645


def common(spreads: Sequence[tuple[float, int]]) -> Prior:
    """Return the spread that several sides have in common: of each its variance and freedom.

    It is the median of the variances, each over what is in the middle of chance: a few sides that
    spread far more, as programs with busy workers do, do not count (Phipson et al. 2016).
    """
    known = [(variance, freedom) for variance, freedom in spreads if freedom > 0]
    if not known:
        return Prior(0.0, 0.0)
    usual = median(variance / _chance(freedom, 0.0) for variance, freedom in known)
    return Prior(math.sqrt(usual), float(sum(freedom for _, freedom in known)))


def has_own_spread(variance: float, freedom: int, prior: Prior) -> bool:
    """Return whether a side spreads more than a common spread gives by chance, once in twenty."""
    usual = float(prior.deviation) ** 2
    return freedom > 0 and variance > usual * _chance(freedom, _ONE_IN_TWENTY)


def _chance(freedom: int, deviate: float) -> float:
    """Return a quantile of chi-square over its degrees of freedom (Wilson and Hilferty 1931)."""
    part = 2.0 / (9.0 * freedom)
    return (1.0 - part + deviate * math.sqrt(part)) ** 3


def means_together(values: FloatArray, weight: FloatArray, prior: Prior) -> Means:
    """Return the mean of each row by common weights: those of a whole whose parts the rows are.

    The whole's order is not that of a row. A row that has nothing to do with it has the plain
    variance of the processes that count; one that is most of it has that of its winsorized values,
    since those that count lie closer together. The larger of both is taken.
    """
    counted = weight > 0
    kept = int(counted.sum())
    seen = np.zeros(values.shape[0])
    if kept > 1:
        seen = np.maximum(values[:, counted].var(axis=1, ddof=1), _winsorized(np.sort(values)))
    return Means(values @ weight, *_variance(seen, kept, prior))


def _winsorized(drawn: FloatArray) -> FloatArray:
    """Return the variance of one process by sorted rows, the trimmed values drawn to the rest."""
    count = drawn.shape[1]
    cut = _cut(count)
    if count < 2:
        return np.zeros(drawn.shape[0])
    inner = drawn[:, np.clip(np.arange(count), cut, count - cut - 1)]
    # Variance of the mean times the number of processes in it: that of one process.
    return np.asarray(inner.var(axis=1, ddof=1) * (count - 1) / (count - 2 * cut - 1))


def _variance(seen: FloatArray, kept: int, prior: Prior) -> tuple[FloatArray, FloatArray]:
    """Return the variance of means of `kept` processes, and its degrees of freedom."""
    supposed = np.square(np.asarray(prior.deviation, dtype=np.float64))
    worth = np.asarray(prior.freedom, dtype=np.float64)
    freedom = np.broadcast_to(worth + kept - 1, seen.shape)
    one = (worth * supposed + (kept - 1) * seen) / freedom
    return one / kept, freedom


def difference_reach(before: Means, after: Means, confidence: float) -> FloatArray:
    """Return how far the interval of after less before reaches to both sides, per row (Welch)."""
    variance = before.variances + after.variances
    parts = before.variances**2 / before.freedom + after.variances**2 / after.freedom
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.where(parts > 0, variance**2 / parts, before.freedom + after.freedom)
    # Whole steps of the degrees of freedom, downwards: few quantiles, and no interval too narrow.
    steps = np.maximum(np.floor(freedom * 4.0) / 4.0, 0.5)
    known = {float(each): student_quantile(confidence, float(each)) for each in np.unique(steps)}
    factors = np.array([known[float(each)] for each in steps])
    return np.asarray(factors * np.sqrt(variance), dtype=np.float64)


@lru_cache(maxsize=1024)
def student_quantile(confidence: float, freedom: float) -> float:
    """Return how many standard errors an interval of Student's distribution reaches to each side.

    Exact also for one or two degrees of freedom, where the expansion of `student` fails.
    """
    tail = 1.0 - confidence
    low, high = 0.0, 1.0
    while _outside(high, freedom) > tail:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _outside(middle, freedom) > tail else (low, middle)
    return (low + high) / 2.0


def _outside(t: float, freedom: float) -> float:
    """Return the probability beyond -t and t: an incomplete beta function."""
    return _beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))


def _beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function, by Lentz's continued fraction."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _beta(b, a, 1.0 - x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(front + a * math.log(x) + b * math.log1p(-x)) / a
    tiny, fraction, c, d = 1e-300, 1.0, 1.0, 0.0
    for step in range(300):
        half = step // 2
        if step == 0:
            term = 1.0
        elif step % 2 == 0:
            term = half * (b - half) * x / ((a + 2 * half - 1.0) * (a + 2 * half))
        else:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1.0))
        d = 1.0 / (1.0 + term * d or tiny)
        c = 1.0 + term / c or tiny
        fraction *= c * d
        if abs(1.0 - c * d) < 1e-13:
            break
    return front * (fraction - 1.0)
