"""Blocks of timed calls: what is read when, and which of the times count."""

import contextlib
import gc
import sys

import pytest

from profstack.stats.blocks import PIPELINED, SYNCHRONISED, Samples, timed_block, undisturbed
from profstack.stats.clock import Clock
from tests.support.tables import cases


class HandClock(Clock):
    """A clock moved by hand: calls take 1, 2, 3 ... ms, and a device is late by `behind` ms."""

    has_device = False

    def __init__(self, behind=None):
        super().__init__(device=False)
        self.time_s, self.late, self.calls, self.waits = 100.0, 0.0, 0, 0
        self.has_device, self.behind = behind is not None, (behind or 0) / 1e3
        self.now, self.cpu = (lambda: self.time_s), (lambda: 7.0 + 0.5 * self.time_s)
        self.record_event = lambda: self.time_s + 0.25 * self.calls
        self.elapsed_s = lambda first, second: second - first
        self.synchronize = self.wait

    def wait(self):
        self.waits += 1
        self.time_s, self.late = self.time_s + self.late, 0.0

    def call(self):
        self.calls += 1
        self.time_s += 0.001 * self.calls
        self.late += self.behind


# Samples, calls in each, how late the device is; times by the host, the CPU and the device, the
# block's mean (all in ms), and waits: before, after each sample, and at the end.
@cases("block how host cpu device mean waits",
       ((3, 2), {}, [1.5, 3.5, 5.5], [0.75, 1.75, 2.75], [], 3.5, 5),
       ((3, 1, 10), {}, [11, 12, 13], [5.5, 6, 6.5], [251, 262, 263], 12, 5),
       ((3, 1, 10), {"synchronised": False}, [1, 2, 3], [0.5, 1, 1.5], [251, 252, 253], 12, 2),
       # The first sample beyond the limit is the last: they end 1, 3, 6, 10 ms after the begin.
       ((9, 1), {"longest_s": 0.0005}, [1], [0.5], [], 1, 3),
       ((9, 1), {"longest_s": 0.0059}, [1, 2, 3], [0.5, 1, 1.5], [], 2, 5),
       ((9, 1), {"longest_s": 0.0061}, [1, 2, 3, 4], [0.5, 1, 1.5, 2], [], 2.5, 6))  # fmt: skip
def test_times_of_a_block(block, how, host, cpu, device, mean, waits):
    samples, calls, *late = block
    clock = HandClock(*late)
    found = timed_block(clock.call, samples, calls, clock, **how)
    each = {"host_s": host, "cpu_s": cpu, "device_s": device, "block_s": [mean]}
    for name, times in each.items():
        assert [1e3 * one for one in getattr(found, name)] == pytest.approx(times), name
    assert (found.calls, found.blocks, clock.waits) == (calls, [len(host)], waits)
    assert clock.calls == calls * len(host)
    assert found.total_s == pytest.approx(mean * calls * len(host) / 1e3)


def test_device_times_count_where_they_cover_the_work():
    # Two calls in a sample, two blocks: 2 * (2 * 0.3 + 1 * 0.5) seconds in all.
    cases = ((0.95, PIPELINED, "device"), (0.8, PIPELINED, "block"), (0.99, SYNCHRONISED, "host"))
    for share, mode, clock in (*cases, (None, PIPELINED, "block")):
        samples = Samples(2, [0.01, 0.02, 0.03], [], [], [2, 1], [0.3, 0.5])
        parts = [1.1 * (share or 1) * part for part in (0.2, 0.3, 0.5)]
        samples.device_s = parts if share else [*parts[:2], None]
        series = {"device": parts, "block": [0.3, 0.5], "host": [0.01, 0.02, 0.03]}
        assert samples.series(mode) == (series[clock], "device" if clock == "device" else "host")
    assert Samples(1, [0.5]).series(PIPELINED) == ([0.5], "host")
    # CPU time of blocks counts by their samples.
    samples.host_s, samples.cpu_s, samples.blocks = [0.1] * 5, [0.2, 0.7], [4, 1]
    means = ((4 * 0.2 + 0.7) / 5, (4 * 0.3 + 0.5) / 5)
    assert samples.cpu_and_wall_s() == pytest.approx(means)
    samples.extend(Samples(2, [0.3] * 2, [0.5], [None] * 2, [2], [0.9]))
    means = ((4 * 0.2 + 0.7 + 2 * 0.5) / 7, (4 * 0.3 + 0.5 + 2 * 0.9) / 7)
    assert samples.cpu_and_wall_s() == pytest.approx(means)
    assert samples.total_s == pytest.approx(2 * (4 * 0.3 + 0.5 + 2 * 0.9))
    assert Samples(1, [0.1], [], [], [1], [0.1]).cpu_and_wall_s() == (None, None)


@pytest.mark.parametrize("collect", [False, True])
@pytest.mark.parametrize("enabled", [False, True])
def test_nothing_disturbs_and_all_is_put_back(collect, enabled):
    def state():
        return sys.gettrace(), sys.getprofile(), gc.isenabled()

    def put(trace, profile, collects):
        sys.settrace(trace)
        sys.setprofile(profile)
        (gc.enable if collects else gc.disable)()

    before, made = state(), (lambda *_: None, lambda *_: None, enabled)
    put(*made)
    try:
        with contextlib.suppress(ZeroDivisionError), undisturbed(collect=collect):
            inside = state()
            _ = 1 / 0
        after = state()
    finally:
        put(*before)
    assert (inside, after) == ((None, None, enabled and collect), made)
