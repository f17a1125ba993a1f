"""Times of a test that were kept: what processes differ by, and what waiting for a core takes."""

import math
from itertools import pairwise
from statistics import median

import pytest

from profstack.compare import kept_times
from profstack.compare.noise import ASSUMED


def _time(step_s, commit="a", waited=0.0):
    return {
        "machine": "m", "saved_at": "", "commit": commit, "median_s": step_s,
        "ci95_low_s": None, "ci95_high_s": None, "waited_share": waited,
    }  # fmt: skip


def test_what_processes_differ_by_is_learned_from_the_steps_between_states():
    # One of the commits changed the time.
    times = (0.01, 0.0101, 0.0103, 0.0102, 0.02, 0.0201, 0.0199)
    kept = [_time(step_s, commit) for commit, step_s in zip("abcdefg", times, strict=True)]
    steps = [abs(math.log(after / before)) for before, after in pairwise(times)]
    worth = kept_times._EFFICIENCY * len(steps)
    squares = ASSUMED.freedom * ASSUMED.deviation**2
    squares += worth * (median(steps) / kept_times._MOVING) ** 2
    found = kept_times.change_of(kept, _time(0.02, "h"))
    assert found.deviation == pytest.approx(math.sqrt(squares / (ASSUMED.freedom + worth)))
    # Of few steps the median may be that of a change.
    few = kept_times.change_of(kept[: kept_times._FEWEST_STEPS], _time(0.02, "h"))
    assert few.deviation == pytest.approx(ASSUMED.deviation)


def test_time_without_a_core_makes_the_interval_longer_on_its_side():
    now = _time(0.011, "b")
    calm, waited, late = (
        kept_times.change_of([_time(0.01, waited=was)] * 3, now | {"waited_share": share})
        for was, share in ((0.0, 0.0), (0.25, 0.0), (0.0, 0.5))
    )
    assert (waited.low, waited.high) == pytest.approx((calm.low, calm.high / 0.75))
    assert (late.low, late.high) == pytest.approx((calm.low / 2, calm.high))
