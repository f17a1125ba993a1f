"""Change points of a series: the places from which on its values are others than before.

The method is E-divisive (Matteson and James 2014, "A nonparametric approach for multiple change
point analysis of multivariate data"), which MongoDB uses on its performance tests (Daly et al.
2020). It supposes no distribution, and a permutation test says whether a change is more than noise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from profstack.stats.summary import FloatArray

# Fewer values on a side are outliers, not a change.
FEWEST = 3
# Probability that a series without any change is said to have one.
SIGNIFICANCE = 0.05
# So many permutations, fewer of a long series, which would take minutes.
_MOST_PERMUTATIONS, _FEWEST_PERMUTATIONS, _WORK = 999, 199, 30_000_000
# Permutations that are held at once: 32 MB of distances.
_CHUNK = 4_000_000
# A preferred place whose statistic is at least this share of the largest one is as good: the data
# hardly tell neighbours apart.
_AS_GOOD = 0.9


@dataclass(frozen=True)
class ChangePoint:
    """A change: `place` is the first value after it, `p` the chance to see one without any."""

    place: int
    p: float


def fewest_values(significance: float = SIGNIFICANCE) -> int:
    """Return the length from which on a series can show a change at all.

    In a shorter one too many of the permutations look as clear as the clearest series.
    """
    n = 2 * FEWEST
    while 2.0 * _splits(n, n // 2) ** -1 > significance:
        n += 1
    return n


def _splits(n: int, k: int) -> float:
    return float(np.prod([(n - i) / (k - i) for i in range(k)]))


def change_points(
    values: Sequence[float],
    *,
    preferred: Collection[int] = (),
    significance: float = SIGNIFICANCE,
    seed: int = 0,
) -> list[ChangePoint]:
    """Return the changes of a series in order; values are compared by their differences.

    `preferred` are places at which a change is likelier than elsewhere, such as those where the
    commit changes: one of them is taken where it fits about as well as the best place. Each side of
    a change has at least `FEWEST` values. The parts found are divided further until the test
    finds nothing more.
    """
    x = np.asarray(values, dtype=np.float64)
    if not np.isfinite(x).all():
        raise ValueError("a series with a value that is no finite number has no change points")
    rng = np.random.default_rng(seed)
    borders, found = [0, x.size], list[ChangePoint]()
    while True:
        parts = [(low, high) for low, high in pairwise(borders) if high - low >= 2 * FEWEST]
        tried = [(float(_statistics(x[None, low:high]).max()), low, high) for low, high in parts]
        if not tried:
            break
        score, low, high = max(tried)
        # Values move within their part alone, so that changes found before do not count again.
        p = min(1.0, sum(_chance(x[a:b], score, significance, rng) for _, a, b in tried))
        if score <= 0.0 or p > significance:
            break
        place = low + _place(x[low:high], [each - low for each in preferred])
        found.append(ChangePoint(place, p))
        borders = sorted([*borders, place])
    return sorted(found, key=lambda each: each.place)


def _statistics(x: FloatArray) -> FloatArray:
    """Return the statistic at each place from `FEWEST` on, one row per row of `x`.

    It is the energy distance between what is before and after the place, times
    before * after / (before + after), as in section 2.2 of the paper with an exponent of 1.
    """
    n = x.shape[1]
    distances = np.abs(x[:, :, None] - x[:, None, :])
    earlier = np.einsum("bij,ij->bi", distances, np.tri(n, k=-1))
    # Sums over the pairs before each place, over those of one before and one after, and the rest.
    first = 2.0 * earlier.cumsum(axis=1)
    rows = distances.sum(axis=2)
    across = rows.cumsum(axis=1) - first
    last = rows.sum(axis=1, keepdims=True) - first - 2.0 * across
    places = slice(FEWEST - 1, n - FEWEST)
    before = np.arange(1, n + 1, dtype=np.float64)[places]
    after = n - before
    energy = 2.0 * across[:, places] / (before * after)
    energy -= first[:, places] / (before * (before - 1.0))
    energy -= last[:, places] / (after * (after - 1.0))
    scores: FloatArray = energy * before * after / n
    return scores


def _chance(x: FloatArray, score: float, significance: float, rng: np.random.Generator) -> float:
    """Return the share of a part's permutations that reach the score; at once where it is high."""
    wanted = min(_MOST_PERMUTATIONS, max(_FEWEST_PERMUTATIONS, _WORK // x.size**2))
    reached, done, rows = 1, 1, max(1, _CHUNK // x.size**2)
    while done <= wanted and reached <= significance * (wanted + 1):
        count = min(rows, wanted + 1 - done, done * 4)
        drawn = rng.permuted(np.broadcast_to(x, (count, x.size)), axis=1)
        # Sums in another order differ in the last digits.
        reached += int((_statistics(drawn).max(axis=1) >= score * (1.0 - 1e-9)).sum())
        done += count
    return reached / done if done <= wanted else reached / (wanted + 1)


def _place(x: FloatArray, preferred: Collection[int]) -> int:
    scores = _statistics(x[None, :])[0]
    best = int(scores.argmax())
    near = [each - FEWEST for each in preferred if 0 <= each - FEWEST < scores.size]
    near = [each for each in near if scores[each] >= _AS_GOOD * scores[best]]
    return FEWEST + max(near, key=lambda each: scores[each], default=best)
