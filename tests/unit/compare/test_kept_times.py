"""Times of a test that were kept: what processes differ by, and what waiting for a core takes."""

import json
import math
from itertools import pairwise
from statistics import median

import pytest

from profstack.compare import kept_times
from profstack.compare.noise import ASSUMED
from profstack.errors import RecordingError
from tests.support.tables import cases


def _time(step_s, commit="a", waited=0.0, **more):
    return {
        "machine": "m", "saved_at": "", "commit": commit, "median_s": step_s,
        "ci95_low_s": None, "ci95_high_s": None, "waited_share": waited, **more,
    }  # fmt: skip


@cases("commit count processes", "a 2 2; a 18 18; a+ 9 1; None 9 1")
def test_the_last_state_counts_or_the_newest_time_alone(commit, count, processes):
    kept = [_time(0.010 + 0.0001 * (at % 3), commit) for at in range(count)]
    now = _time(0.011, "b", ci95_low_s=0.01099, ci95_high_s=0.01101)
    change = kept_times.change_of([_time(0.020, "old"), *kept], now)
    assert (change.processes, change.low > 1.0) == (processes, processes == 18)
    newest = kept[-1]["median_s"]
    assert change.before_s == pytest.approx(newest if processes == 1 else 0.01, rel=2e-2)
    assert kept_times.change_of(kept, now | {"machine": "other"}) is None


def test_files_are_small_and_damaged_ones_are_said(tmp_path):
    rows, path = [_time(0.01 + at) for at in range(30)], tmp_path / "few.json"
    text = kept_times.text("test_it.py::test_step", [*rows, *[_time(1.0, machine="n")] * 2])
    kept = [row["median_s"] for row in json.loads(text)["times"]]
    assert kept == [*(0.01 + at for at in range(10, 30)), 1.0, 1.0]
    # Of a few calls the interval is not known.
    path.write_text(kept_times.text("few", rows[:1]))
    assert kept_times.read(path) == rows[:1]
    damages = ("10.01", "-1.0"), ('"version": ', '"version": 9'), ('_share": 0.0', '_share": 1.1')
    for damaged in ("{", "[]", *(text.replace(*each, 1) for each in damages)):
        path.write_text(damaged)
        with pytest.raises(RecordingError, match="keep times anew with --profstack-save"):
            kept_times.read(path)


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
