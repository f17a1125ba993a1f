"""Whether a quantity grows with every step, by how much, and how sure that is.

Readings come in groups, between which something else may have moved the level: only readings of
one group are compared. The slope is the median over all pairs within groups (Theil and Sen), its
interval Kendall's, as for seasonal data. A slope alone would take one large jump for growth: what
grows must do so in part after part, and still in the last ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Group = tuple[Floats, Floats]

# The normal quantile of a 95 % interval.
_Z95 = 1.96
# What a long group is divided into, and how many parts there must be over all groups.
PARTS = 6
FEWEST_PARTS = 4
# A part grows if it does so at this share of the slope; so much of the steps must be in such ones.
_GROWS = 0.25
_GROWING_SHARE = 0.8
# The later half grows at this share of the earlier one's pace: what a cache or an allocator fills
# up with comes ever slower.
_GOES_ON = 0.5
# A part that holds more than this of all growth, and grows twice as fast as the slope, is a jump.
_LARGEST_SHARE = 0.5


@dataclass(frozen=True)
class Trend:
    """Growth per step with its 95 % interval, over `steps` steps, and by how much in all."""

    slope: float
    low: float
    high: float
    steps: float
    total: float
    persistent: bool


def trend(groups: Sequence[Group]) -> Trend | None:
    """The common slope of groups of (steps, values), each sorted by steps.

    None where there are too few readings to say.
    """
    groups = [group for group in groups if len(group[0]) > 1 and group[0][-1] > group[0][0]]
    slopes = np.sort(np.concatenate([_pair_slopes(group) for group in groups] or [np.zeros(0)]))
    parts = [part for group in groups for part in _parts(group)]
    if not len(slopes) or len(parts) < FEWEST_PARTS:
        return None
    spread = _Z95 * math.sqrt(sum(_variance(len(group[0])) for group in groups))
    count = len(slopes)
    first = math.floor((count - spread) / 2)
    last = math.ceil((count + spread) / 2)
    slope = float(np.median(slopes))
    return Trend(
        slope,
        # An interval that reaches beyond all pairs has no end.
        float(slopes[first]) if first >= 0 else -math.inf,
        float(slopes[last]) if last < count else math.inf,
        sum(steps for steps, _ in parts),
        sum(grown for _, grown in parts),
        _is_persistent(parts, slope),
    )


def _pair_slopes(group: Group) -> Floats:
    steps, values = group
    first, second = np.triu_indices(len(steps), 1)
    apart = steps[second] - steps[first]
    slopes: Floats = (values[second] - values[first])[apart > 0] / apart[apart > 0]
    return slopes


def _variance(count: int) -> float:
    """The variance of Kendall's statistic over `count` readings without a trend."""
    return count * (count - 1) * (2 * count + 5) / 18


def _parts(group: Group) -> list[tuple[float, float]]:
    """Steps and growth of consecutive parts of a group, from the middle of a stretch to the next.

    A single reading may lie anywhere in the noise; the median of a stretch does not.
    """
    steps, values = group
    count = min(PARTS, max(1, len(steps) // 2))
    stretches = np.array_split(np.arange(len(steps)), count + 1)
    middles = [
        (float(np.median(steps[inside])), float(np.median(values[inside]))) for inside in stretches
    ]
    return [
        (end - begin, after - before)
        for (begin, before), (end, after) in pairwise(middles)
        if end > begin
    ]


def _is_persistent(parts: Sequence[tuple[float, float]], slope: float) -> bool:
    """Whether nearly all parts grow, the later ones not much slower, and no jump is most of it."""
    if slope <= 0:
        return False
    every = sum(steps for steps, _ in parts)
    total = sum(grown for _, grown in parts)
    growing = sum(steps for steps, grown in parts if grown >= _GROWS * slope * steps)
    rates = [grown / steps for steps, grown in parts]
    half = len(rates) // 2
    early, late = float(np.median(rates[:half])), float(np.median(rates[half:]))
    jumps = any(
        grown > _LARGEST_SHARE * total and grown > 2 * slope * steps for steps, grown in parts
    )
    goes_on = late >= _GOES_ON * max(early, slope) and all(
        sum(grown for _, grown in last) >= _GOES_ON * slope * sum(steps for steps, _ in last)
        for last in (parts[-1:], parts[-max(1, len(parts) // 3) :])
        if sum(steps for steps, _ in last) >= every / (2 * PARTS)
    )
    return growing >= _GROWING_SHARE * every and goes_on and not jumps
