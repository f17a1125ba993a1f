"""Bounds of slices: calls and time of a traced step, events of a slice, profilers of the script."""

import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from profstack.readers.torchtrace import bounds
from profstack.readers.torchtrace.bounds import MOST_CALLS, MOST_EVENTS, EventBound, StackBound
from profstack.readers.torchtrace.events import read_host
from tests.support.events import events
from tests.support.tables import cases


def ignore(*_):
    pass


def learned(*slices):
    bound = StackBound()
    for stamps, made in slices:
        bound.learn(stamps, read_host(events(made)))
    return bound


# Steps of 10, 13 and 90 ms, with 29 ms of operators in a range of 60.
UNEVEN = ([5.0, 5.010, 5.023, 5.113], "region:x 0-60000000; aten::mm 5000000-34000000")
QUICK, SHORT = ([0.0, 0.004], ""), ([0.0, 0.02], "")


def test_the_calls_of_a_step_are_counted_or_bounded_by_its_time_outside_operators():
    said = StackBound().refusal(MOST_CALLS + 1)
    assert (f"{MOST_CALLS + 1:,}" in said, f"{MOST_CALLS:,}" in said) == (True, True)
    # What fits is some ten thousand calls.
    assert [StackBound().refusal(calls) for calls in (MOST_CALLS, 25_000, None)] == [None] * 3
    assert "40,000" in StackBound().refusal(60_000)
    # A call each 0.25 us of (113 - 29) / 3 ms a step; a quicker slice changes nothing.
    assert "112,000" in learned(UNEVEN, QUICK).refusal(None)
    assert "112,000" in learned(QUICK, UNEVEN).refusal(None)
    assert learned(QUICK).refusal(None) is learned(([0.0], "")).refusal(None) is None
    assert learned(UNEVEN).refusal(7.0) is None


@pytest.mark.parametrize("slices", [(UNEVEN, SHORT), (SHORT, UNEVEN)])
def test_a_step_that_takes_longer_than_earlier_ones_is_cut(slices):
    bound = learned(*slices)
    sys.setprofile(ignore)
    bound.begin(4_000.0)
    limit = time.monotonic() + 60
    # Until the tracing of calls has ended.
    while sys.getprofile() is not None:
        assert time.monotonic() < limit
        ignore()
    bound.end()
    # A tenth longer than twice the median, half a microsecond a call, and 30 ms.
    assert f"{1.1 * 26 + 2 + 30:.0f} ms" in bound.cut
    assert "no call paths" in bound.cut
    bound.end()
    sys.setprofile(ignore)
    bound.begin(1e9)
    bound.end()
    assert (bound.cut, sys.getprofile()) == (None, ignore)
    sys.setprofile(None)


def test_reasons_not_to_trace(monkeypatch):
    for put in (sys.setprofile, sys.settrace, threading.setprofile, threading.settrace):
        put(ignore)
        try:
            assert "profiler or debugger" in StackBound().refusal(10.0)
        finally:
            put(None)
    for name, value, reason in (("has_compiled", 1, "dynamo"), ("has_python_calls", 0, "2.13")):
        with monkeypatch.context() as patch:
            patch.setattr(bounds, name, lambda value=value: value)
            assert reason in StackBound().refusal(10.0)


@cases(
    "events mode said",
    *((MOST_EVENTS, "timed", None), (MOST_EVENTS + 1, "timed", "1.1 GB")),
    *((MOST_EVENTS // 2, "detail", None), (MOST_EVENTS // 2 + 1, "detail", "1.1 GB")),
    *((120_000, "timed", None), (120_000, "detail", "240,000"), (400_000, "timed", "2.0 GB")),
)
def test_a_slice_of_too_many_events_is_refused(events, mode, said):
    bound, other = EventBound(), EventBound()
    assert (bound.step_limit(), bound.refusal(mode)) == (None, None)
    bound.learn(3 * events, 3)
    bound.learn(events // 2, 2)
    assert bound.step_limit() == max(1, MOST_EVENTS // events)
    refusal = bound.refusal(mode)
    assert refusal is None if said is None else (said in refusal and "214,748" in refusal)
    other.learn(90_000, 3)
    assert other.step_limit() == 7


def test_profilers_of_the_script_come_first(monkeypatch):
    told, asked = [], SimpleNamespace()
    for name in ("_prepare_profiler", "_disable_profiler"):
        setattr(asked, name, lambda *args, name=name, **named: told.append((name, args, named)))
    originals, active = vars(asked).copy(), []
    watch = bounds.OtherProfilers(lambda: told.append("way"))
    watch.watch(asked)
    active.append(watch.active)
    asked._prepare_profiler(3, x=5)
    active.append(watch.active)
    asked._disable_profiler()
    assert (active, watch.active) == ([False, True], False)
    assert told == ["way", ("_prepare_profiler", (3,), {"x": 5}), ("_disable_profiler", (), {})]
    for before in (None, "3"):
        monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
        if before is not None:
            monkeypatch.setenv("KINETO_LOG_LEVEL", before)
        with watch.own_call():
            assert os.environ["KINETO_LOG_LEVEL"] == "6"
            asked._prepare_profiler()
            assert not watch.active
        assert os.environ.get("KINETO_LOG_LEVEL") == before
    assert told.count("way") == 1
    asked._prepare_profiler()
    assert told.count("way") == 2
    watch.close()
    assert vars(asked) == originals


def test_ranges_of_the_script_that_are_open_at_the_end_of_a_slice_end_there():
    ranges, x = torch.autograd.profiler.record_function, torch.ones(3)
    before, watch = vars(ranges).copy(), bounds.ScriptRanges(torch)
    with torch.autograd.profiler.profile() as profile:
        watch.watch()
        with ranges("open"), ranges("left"):
            x + x
            watch.end()
            x * x
    ends = {each.name(): each.end_ns() for each in profile.kineto_results.events()}
    made = "aten::add", "left", "open", "aten::mul"
    assert tuple(sorted(made, key=ends.get)) == made
    assert vars(ranges) == before
