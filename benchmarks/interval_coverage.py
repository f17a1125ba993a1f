"""How often the stated 95 % interval of a median holds the truth, on a real loop.

A test asks the same of made-up series whose median is known. Of a real one it is not: so one long
series is split into many short ones, and each short one's interval must hold the median of its
neighbourhood, the short series before and after it without itself. The whole series' median
would not do: the machine's speed drifts over seconds, and an interval speaks of the time in
which its samples were taken. The figure against the whole series is beside it and shows that.

The neighbourhood's median has an error of its own, so that an interval which covers in exactly 95
of 100 cases is seen to cover in a little fewer; that number is printed too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from statistics import NormalDist, median
from typing import Any

import numpy as np

from profstack.stats.blocks import timed_block, undisturbed
from profstack.stats.clock import Clock
from profstack.stats.summary import FloatArray, median_interval, rank_autocorrelation

# Short series looked at before and after each.
_EACH_SIDE = 10
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Coverage:
    """Return the share of `series` short series of `samples` samples whose interval holds.

    `local` is against the neighbourhood's median, `whole` against that of the long series;
    `expected` is what `local` would be if the intervals were exact and nothing drifted. `error` is
    the standard error of `local` by its count alone.
    """

    samples: int
    series: int
    local: float
    whole: float
    expected: float
    error: float
    autocorrelation: float | None


def long_series(step: Callable[[], Any], steps: int) -> list[float]:
    """Times of that many steps in seconds, one after the other, of a loop that is warm."""
    clock = Clock()
    with undisturbed():
        timed_block(step, max(100, steps // 50), 1, clock)
        return timed_block(step, steps, 1, clock, with_cpu=False).host_s


def coverage(times_s: list[float], samples: int) -> Coverage:
    """Split the series into short ones of `samples` steps, and see how often they hold."""
    starts = range(0, len(times_s) - samples + 1, samples)
    pieces = [times_s[start : start + samples] for start in starts]
    if len(pieces) <= 2 * _EACH_SIDE:
        raise ValueError(f"{len(times_s)} steps are too few for series of {samples}")
    overall = median(times_s)
    local = whole = count = 0
    for place in range(_EACH_SIDE, len(pieces) - _EACH_SIDE):
        around = (
            *pieces[place - _EACH_SIDE : place],
            *pieces[place + 1 : place + 1 + _EACH_SIDE],
        )
        interval = median_interval(pieces[place], repeats=1000, seed=place)
        assert interval is not None, "a short series has at least six samples"
        local += interval[0] <= median(chain.from_iterable(around)) <= interval[1]
        whole += interval[0] <= overall <= interval[1]
        count += 1
    share = local / count
    reach = _NORMAL.inv_cdf(0.975) / math.sqrt(1.0 + 1.0 / (2 * _EACH_SIDE))
    return Coverage(
        samples,
        count,
        share,
        whole / count,
        2.0 * _NORMAL.cdf(reach) - 1.0,
        math.sqrt(share * (1.0 - share) / count),
        rank_autocorrelation([_array(piece) for piece in pieces]),
    )


def _array(values: list[float]) -> FloatArray:
    return np.asarray(values, dtype=np.float64)
