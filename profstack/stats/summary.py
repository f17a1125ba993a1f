"""Statistics of a series of step times, with intervals.

Steps of one process depend on each other: slow steps come in groups (measured: neighbours correlate
by 0.1 to 0.5). An interval for independent steps is up to half too narrow. So blocks of
neighbouring steps are resampled, not single steps. Intervals hold for this process on this machine;
other processes differ by more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist, median

import numpy as np
from numpy.typing import NDArray

# -----------------------------------------------------------------------------
# Resampled medians of series whose neighbours depend on each other.
#
# A circular block bootstrap (Politis and Romano 1992), and the figures of a series that it needs:
# how much neighbours depend on each other, how long the blocks must be, and how much of the
# dependence the blocks still lose.
# -----------------------------------------------------------------------------

FloatArray = NDArray[np.float64]

NORMAL = NormalDist()
# Beyond this many samples the resampled medians follow the formula for large samples so closely
# that drawing them would only cost time.
_LARGE = 4_000


def rank_autocorrelation(slices: Sequence[FloatArray]) -> float | None:
    """Return the correlation of neighbours' ranks, over slices; None for constant series."""
    products = squares = 0.0
    for one in slices:
        _, inverse, counts = np.unique(one, return_inverse=True, return_counts=True)
        if counts.size < 2:
            continue  # its ranks' zero variance would be rounding error
        middle = np.cumsum(counts) - (counts - 1) / 2.0
        ranks = middle[inverse] / one.size
        ranks -= ranks.mean()
        products += float(ranks[1:] @ ranks[:-1])
        squares += float(ranks @ ranks)
    return products / squares if squares else None


def student(confidence: float, freedom: float) -> float:
    """Return Student's quantile divided by the normal one.

    By the Cornish-Fisher expansion, which is off by 0.5 % at 3 degrees of freedom.
    """
    z = NORMAL.inv_cdf((1.0 + confidence) / 2.0)
    first = (z**2 + 1.0) / 4.0
    second = (5.0 * z**4 + 16.0 * z**2 + 3.0) / 96.0
    return 1.0 + first / freedom + second / freedom**2


def supposed_dependence(slices: Sequence[FloatArray]) -> float:
    """Return a cautious estimate of the correlation of neighbours, from 0 to 0.9.

    The correlation of the ranks is converted to that of a normal series. Its known bias (Kendall
    1954) and half its standard error are added, since too narrow an interval is the worse mistake.
    With both, simulations had a coverage of 94-97 % for correlations from 0 to 0.5; tests repeat a
    smaller one.
    """
    n = sum(one.size for one in slices)
    ranks = rank_autocorrelation(slices) or 0.0
    plain = 2.0 * math.sin(math.pi * ranks / 6.0)
    error = math.sqrt(max(1.0 - plain**2, 0.1) / n)
    return min(max(plain + (1.0 + 4.0 * plain) / n + error / 2.0, 0.0), 0.9)


def sign_variance(n: int, dependence: float) -> float:
    """Return n times the variance of the mean sign about the median; 1 for independent samples.

    In a first-order normal series, signs at a distance of k steps correlate by
    (2 / pi) asin(dependence ** k). Skewed series are stretched normal ones: ranks and signs are the
    same there.
    """
    k = np.arange(1, min(n, 400))
    return float(1.0 + 2.0 * ((1.0 - k / n) * (2.0 / math.pi) * np.arcsin(dependence**k)).sum())


def _block_sign_variance(slices: Sequence[FloatArray], length: int) -> float:
    """Return the same variance when the series is cut into circular blocks."""
    total = 0.0
    for one in slices:
        signs = np.sign(one - np.median(one))
        signs -= signs.mean()
        size = min(length, one.size)
        sums = np.concatenate([[0.0], np.cumsum(np.concatenate([signs, signs[:size]]))])
        total += float(((sums[size : size + one.size] - sums[: one.size]) ** 2).sum()) / size
    return total / sum(one.size for one in slices)


def median_draws(
    slices: Sequence[FloatArray], confidence: float, repeats: int, rng: np.random.Generator
) -> tuple[FloatArray, float]:
    """Return resampled medians of all steps, and the factor by which to widen their spread."""
    n = sum(one.size for one in slices)
    dependence = supposed_dependence(slices)
    # The length of blocks (Künsch 1989) for a first-order series (Carlstein 1986).
    best = (2.0 * dependence / (1.0 - dependence**2)) ** (2 / 3) * (1.5 * n) ** (1 / 3)
    length = max(1, min(math.ceil(best), n // 5))
    blocks = _block_sign_variance(slices, length)
    truth = max(sign_variance(n, dependence), blocks)
    few = student(confidence, max(n / truth - 1.0, 3.0)) if truth else 1.0
    if n > _LARGE:
        ranks = n / 2.0 + rng.standard_normal(repeats) * math.sqrt(n * truth) / 2.0
        places = np.clip(np.rint(ranks), 0, n - 1).astype(np.intp)
        return np.sort(np.concatenate(slices))[places], few
    rows = max(1, _CHUNK // n)
    draws = np.empty(repeats)
    for start in range(0, repeats, rows):
        count = min(rows, repeats - start)
        picked = [_resampled(one, length, count, rng) for one in slices]
        draws[start : start + count] = np.median(np.concatenate(picked, axis=1), axis=1)
    return draws, min(math.sqrt(truth / blocks), 3.0) * few if blocks else few


def _resampled(x: FloatArray, length: int, rows: int, rng: np.random.Generator) -> FloatArray:
    """Draw rows of x.size samples from blocks that wrap around the end."""
    size = min(length, x.size)
    starts = rng.integers(0, x.size, (rows, -(-x.size // size)))
    places = (starts[:, :, None] + np.arange(size)).reshape(rows, -1)[:, : x.size]
    picked: FloatArray = x[places % x.size]
    return picked


Slices = Sequence[Sequence[float]]
# Of all intervals, where no other one is asked for.
_CONFIDENCE = 0.95

# A normal distribution's standard deviation over its median absolute deviation.
_MAD_TO_SIGMA = 1.0 / NORMAL.inv_cdf(0.75)
# Weights held at once while pairs are resampled: 32 MB.
_CHUNK = 4_000_000
# Figures of a series that are not in seconds.
_UNITLESS = ("n", "outliers", "autocorrelation", "drift")


@dataclass(frozen=True)
class Summary:
    """Statistics of a series of step times; None where there are too few samples.

    The least number of samples for each figure:
    - `std`: 2. `iqr`: 4, one in each quarter.
    - `outliers`: 5. They are further than 3 sigma from the median. Sigma comes from the median
      absolute deviation, which outliers do not enlarge. A few in a thousand are usual.
    - `ci95_low` and `ci95_high`: 6. With fewer, even the range of all samples includes the median
      in less than 95 % of cases. If neighbours correlate by 0.5, the interval covers 94-97 % from
      50 samples on, 91 % with 30 and 83 % with 10: so few samples do not show their correlation.
    - `drift`: 9. It is the change of the median from the first to the last third, over the first.
    - `p90`: 10 and `p99`: 100, so that one sample is expected beyond it.
    - `autocorrelation`: 10. It is that of the ranks, so that one slow step does not decide it.
    """

    n: int
    median: float
    iqr: float | None
    mean: float
    std: float | None
    minimum: float
    p90: float | None
    p99: float | None
    ci95_low: float | None
    ci95_high: float | None
    autocorrelation: float | None
    drift: float | None
    outliers: int | None

    def columns(self, items: float | None) -> dict[str, float | None]:
        """Return columns of the report's `benchmark`; `items` are those of one step, if known.

        Rates are steps over total time: with uneven steps, one over the median is no true rate.
        """
        figures = asdict(self)
        unitless = {name: figures.pop(name) for name in _UNITLESS}
        return {
            **unitless,
            "min_s": figures.pop("minimum"),
            **{f"{name}_s": value for name, value in figures.items()},
            "steps_per_s": 1.0 / self.mean if self.mean else None,
            "items_per_s": items / self.mean if items and self.mean else None,
        }


@dataclass(frozen=True)
class Ratio:
    """A ratio of two typical step times with its 95 % interval, None where not measurable."""

    factor: float | None
    low: float | None
    high: float | None

    @property
    def distinguishable(self) -> bool:
        """Return whether the interval leaves out 1; False without an interval."""
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high

    def beyond(self, floor: float) -> int:
        """Return -1 for less, 1 for more, and 0 where neither is shown.

        The interval, which has the noise in it, has to leave out 1, and the ratio has to be further
        from it than `floor`: what the same seems to differ from itself.
        """
        if self.factor is None or not self.distinguishable or abs(self.factor - 1.0) <= floor:
            return 0
        return -1 if self.factor < 1.0 else 1


def summarize(samples_s: Sequence[float]) -> Summary:
    """Return the statistics of at least one sample, in the order in which they were taken."""
    x = _array(samples_s)
    n = x.size
    if n == 0:
        raise ValueError("no samples to summarize")
    interval = median_interval(samples_s)
    third = -(-n // 3)
    first, last = float(np.median(x[:third])), float(np.median(x[n - third :]))
    return Summary(
        n=n,
        median=float(np.median(x)),
        iqr=float(np.subtract(*np.quantile(x, [0.75, 0.25]))) if n >= 4 else None,
        mean=float(x.mean()),
        std=float(x.std(ddof=1)) if n >= 2 else None,
        minimum=float(x.min()),
        p90=float(np.quantile(x, 0.9)) if n >= 10 else None,
        p99=float(np.quantile(x, 0.99)) if n >= 100 else None,
        ci95_low=interval[0] if interval else None,
        ci95_high=interval[1] if interval else None,
        autocorrelation=rank_autocorrelation([x]) if n >= 10 else None,
        drift=last / first - 1.0 if n >= 9 and first > 0 else None,
        outliers=_outliers(x) if n >= 5 else None,
    )


def median_interval(
    samples: Sequence[float], *, confidence: float = _CONFIDENCE, repeats: int = 2000, seed: int = 0
) -> tuple[float, float] | None:
    """Return the interval of the median of an autocorrelated series; None with too few samples.

    A circular block bootstrap. At a correlation of 0.5 its percentiles cover only 89-93 %, since
    blocks lose the dependence at their ends. So wider percentiles are taken: by the dependence that
    is lost, and by Student's factor for the number of independent samples.
    """
    x = _array(samples)
    if too_few_for_interval(x.size, confidence):
        return None
    draws, widening = median_draws([x], confidence, repeats, np.random.default_rng(seed))
    tail = NORMAL.cdf(NORMAL.inv_cdf((1.0 - confidence) / 2.0) * widening)
    low, high = np.quantile(draws, [tail, 1.0 - tail])
    return float(low), float(high)


def ratio_interval(
    numerator: Slices, denominator: Slices, *, repeats: int = 2000, seed: int = 0
) -> Ratio:
    """Return the ratio of median steps of two kinds of slices: the probe effect, for one.

    Steps are resampled in blocks within their slice. Differences between slices of one kind, beyond
    the noise of their steps, widen the interval; with one slice of each kind they are unknown and
    left out. One or two steps on a side give no interval; three to five steps use the spread of the
    other side as well.
    """
    sides = [
        [np.log(_positive(one)) for one in side if len(one)] for side in (numerator, denominator)
    ]
    counts = [sum(one.size for one in side) for side in sides]
    if not all(counts):
        return Ratio(None, None, None)
    above, below = (np.median(np.concatenate(side)) for side in sides)
    factor = float(np.exp(above - below))
    if min(counts) < 3 or max(counts) < 6:
        return Ratio(factor, None, None)
    rng = np.random.default_rng(seed)
    draws = [
        _deviations(side, other, repeats, rng)
        for side, other in ((sides[0], sides[1]), (sides[1], sides[0]))
    ]
    spread = draws[0] - draws[1] + _between_slices(sides, draws, rng)
    return _ratio(above - below, spread)


def pooled_ratio(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], *, repeats: int = 2000, seed: int = 0
) -> Ratio:
    """Return the ratio a/b of median steps from pairs of blocks (a, b) measured next to each other.

    Each pair's common level is divided out first, so that the machine's drift from pair to pair
    cancels; then whole pairs are resampled, so that steps inside a block may depend on
    each other in any way. Fewer than 6 pairs give no 95 % interval.
    """
    kept = [(np.log(_positive(a)), np.log(_positive(b))) for a, b in pairs if len(a) and len(b)]
    if not kept:
        return Ratio(None, None, None)
    levels = [(np.median(a) + np.median(b)) / 2.0 for a, b in kept]
    sides = [[pair[k] - level for pair, level in zip(kept, levels, strict=True)] for k in (0, 1)]
    centre = float(np.subtract(*(np.median(np.concatenate(side)) for side in sides)))
    if too_few_for_interval(len(kept)):
        return Ratio(float(np.exp(centre)), None, None)
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(len(kept), np.full(len(kept), 1.0 / len(kept)), size=repeats)
    above, below = (_weighted_medians(side, drawn) for side in sides)
    # Resampled pairs vary by (n - 1) / n of what fresh ones would.
    few = math.sqrt(len(kept) / (len(kept) - 1)) * student(_CONFIDENCE, len(kept) - 1)
    return _ratio(centre, (above - below - centre) * few)


def too_few_for_interval(n: int, confidence: float = _CONFIDENCE) -> bool:
    """Return whether even the lowest and highest of n samples miss the median too often."""
    return 2.0 * 0.5**n > 1.0 - confidence


def _array(samples: Sequence[float]) -> FloatArray:
    x = np.asarray(samples, dtype=np.float64)
    if not np.isfinite(x).all():
        raise ValueError("samples hold a value that is no finite number")
    return x


def _positive(samples: Sequence[float]) -> FloatArray:
    x = _array(samples)
    if (x <= 0).any():
        raise ValueError("a ratio of step times needs times above 0")
    return x


def _outliers(x: FloatArray) -> int:
    distance = np.abs(x - np.median(x))
    return int((distance > 3.0 * _MAD_TO_SIGMA * np.median(distance)).sum())


# An interval whose ends differ by more says nothing, and is not given.
WIDEST = 100.0


def _ratio(centre: float, deviations: FloatArray) -> Ratio:
    tail = (1.0 - _CONFIDENCE) / 2.0
    low, high = np.exp(centre + np.quantile(deviations, [tail, 1.0 - tail]))
    if high > WIDEST * low:
        # Slices of one kind had nothing in common, as where one of them compiled.
        return Ratio(float(np.exp(centre)), None, None)
    return Ratio(float(np.exp(centre)), float(low), float(high))


def _deviations(
    side: list[FloatArray], other: list[FloatArray], repeats: int, rng: np.random.Generator
) -> FloatArray:
    """Draw deviations of the side's median from the truth, `repeats` times."""
    n = sum(one.size for one in side)
    if n >= 6:
        draws, widening = median_draws(side, _CONFIDENCE, repeats, rng)
        return (draws - np.median(np.concatenate(side))) * widening
    own = np.concatenate([one - np.median(one) for one in side]) * math.sqrt(n / (n - 1))
    pool = np.concatenate([own, *(one - np.median(one) for one in other)])
    medians: FloatArray = np.median(rng.choice(pool, (repeats, n)), axis=1)
    return medians


def _between_slices(
    sides: Sequence[list[FloatArray]], draws: Sequence[FloatArray], rng: np.random.Generator
) -> FloatArray:
    """Draw deviations by which slices differ beyond the noise of their steps; zeros for none.

    Their variance is that of the slice medians less what the noise of the steps explains (method of
    moments). Student's distribution allows for the small number of slices.
    """
    repeats = draws[0].size
    squares, freedom, noise = 0.0, 0, 0.0
    for side, drawn in zip(sides, draws, strict=True):
        if len(side) > 1:
            medians = np.array([np.median(one) for one in side])
            squares += float(((medians - medians.mean()) ** 2).sum())
            freedom += len(side) - 1
            noise += (len(side) - 1) * len(side) * float(drawn.var())
    excess = max(0.0, (squares - noise) / freedom) if freedom else 0.0
    scale = math.sqrt(excess * sum(1.0 / len(side) for side in sides))
    return scale * rng.standard_t(max(freedom, 2), repeats)


def _weighted_medians(blocks: list[FloatArray], drawn: NDArray[np.int64]) -> FloatArray:
    """Return the median of all samples for each row of `drawn`: how often each block counts."""
    values = np.concatenate(blocks)
    owner = np.repeat(np.arange(len(blocks)), [block.size for block in blocks])
    order = np.argsort(values, kind="stable")
    result = np.empty(len(drawn))
    rows = max(1, _CHUNK // values.size)
    for start in range(0, len(drawn), rows):
        weights = np.cumsum(drawn[start : start + rows][:, owner[order]], axis=1)
        half = weights[:, -1:] / 2.0
        places = [(weights < half).sum(axis=1), (weights <= half).sum(axis=1)]
        result[start : start + rows] = sum(values[order][place] for place in places) / 2.0
    return result


def by_shape(times_s: Mapping[str, list[float]]) -> list[dict[str, str | float | None]]:
    """Return step times by the shapes of the inputs, the commonest shape first."""
    rows: list[dict[str, str | float | None]] = []
    for shape, series in sorted(times_s.items(), key=lambda each: -len(each[1])):
        low, high = median_interval(series) or (None, None)
        rows.append(
            {
                "shape": shape,
                "n": len(series),
                "median_s": float(median(series)) if series else None,
                "ci95_low_s": low,
                "ci95_high_s": high,
            }
        )
    return rows
