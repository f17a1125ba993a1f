"""How the profiler's clock stands to the one by which steps are timed."""

from __future__ import annotations

import time

_READINGS = 5


def clock_offset_ns() -> int:
    """What the profiler's clock is ahead of `time.perf_counter`: the closest of some readings.

    Another thread or program may run between the readings of the two clocks.
    """
    readings = []
    for _ in range(_READINGS):
        before, there, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        readings.append((after - before, there - (before + after) // 2))
    return min(readings)[1]
