"""Memory readings: what malloc has in use, columns that belong to no line, and samples."""

import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import psutil
import pytest
import torch

from profstack.readers.memory import readings as memory_readings
from profstack.readers.memory.readings import UNKNOWN, HeapCounter, MemorySampler, Reading, Readings

GRACE = memory_readings._GRACE_NS
COLUMNS = ("times", "places", "runs", "resident", "heap", "device")


def set_(monkeypatch, **values):
    for name, value in values.items():
        monkeypatch.setattr(memory_readings, name, value)


@pytest.fixture
def memory(monkeypatch):
    """Bytes in use and a clock that a test sets; a look at malloc's takes `cost`."""
    state = SimpleNamespace(now=0, cost=0, heap=300, mapped=5000, reason=None)
    state.resident, state.device = 1000, None

    def mallinfo():
        state.now += state.cost
        return SimpleNamespace(uordblks=state.heap, hblkhd=state.mapped)

    set_(monkeypatch, _clock=lambda: state.now, resident_reader=lambda: lambda: state.resident)
    set_(monkeypatch, _mallinfo=lambda: (mallinfo, state.reason))
    set_(monkeypatch, cuda_counter=lambda: state.device and (lambda: state.device))
    return state


@pytest.mark.parametrize("between", [0, 400_000, 2_000_000])
def test_reading_may_take_as_long_as_everything_else_and_a_grace(memory, between):
    assert 2_500_000 < GRACE < 10_000_000
    counter, spent = HeapCounter(), 0
    # Milliseconds, of which there are 1000 us.
    memory.cost = 1_000_000
    while counter.reason is None and spent < 40 * memory.cost:
        # Blocks that were mapped count too.
        assert counter.read() == 5300
        spent += memory.cost
        assert (counter.reason is None) == (spent <= GRACE + memory.now - spent)
        memory.now += between
    assert (counter.reason is None) == (between >= memory.cost)
    if counter.reason is not None:
        assert ("1000 us" in counter.reason, counter.read()) == (True, UNKNOWN)


def test_what_torch_takes_is_counted_to_the_byte(monkeypatch):
    # As long as the machine's load does not matter.
    set_(monkeypatch, _GRACE_NS=10**12)
    counter = HeapCounter()
    for size in (300_000, 10 << 20) if counter.reason is None else ():
        before = counter.read()
        held = torch.empty(size, dtype=torch.uint8)
        assert 0 <= counter.read() - before - size < 20_000
        del held


def test_the_resident_set_is_the_systems_and_a_device_read_where_it_is_used(monkeypatch):
    actual = pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert memory_readings.resident_reader()() == actual
    stats = {"allocated_bytes": {"all": {"current": 70, "peak": 90}, "large_pool": {}}}
    asked = MagicMock(side_effect=[stats, RuntimeError("lost")])
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", asked)
    for is_used in (False, True):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda is_used=is_used: is_used)
        read = memory_readings.cuda_counter()
        assert (read is not None) is is_used
    assert read() == (70, 90)
    with pytest.raises(RuntimeError, match="memory could not be read: lost"):
        read()


def test_a_reading_has_all_sources_or_they_are_unknown(memory):
    memory.device = (70, 90)
    readings = Readings()
    memory.now = 17
    readings.add(3, 8)
    assert [getattr(readings, name)[0] for name in COLUMNS] == [17, 3, 8, 1000, 5300, 70]
    assert readings.now() == Reading(1000, 5300, 70, 90)
    assert (readings.count, readings.place, readings.run) == (1, 3, 8)
    memory.resident, memory.reason, memory.device = None, "no malloc", None
    readings = Readings()
    readings.add(0, 0)
    assert [getattr(readings, name)[0] for name in COLUMNS[3:]] == [UNKNOWN] * 3
    assert (readings.now(), memory_readings.NO_LINE) == (Reading(None, None, None, None), -1)


def test_every_millisecond_is_sampled_and_half_as_often_when_full(monkeypatch):
    # Of a slice of some seconds every sample stays.
    assert 8_192 < memory_readings.MOST_SAMPLES < 32_768
    # Of too many samples the higher of each two stays: by both sources, of equal ones the first.
    set_(monkeypatch, MOST_SAMPLES=4)
    values, waits = iter([(5, 3), (7, 2), (6, 4), (8, 2), (1, 1), (9, 9), (2, 2)]), []
    sampler = MemorySampler(lambda: next(values))
    # A lock that is acquired at the eighth try.
    acquire = lambda timeout: (waits.append(timeout), len(waits) == 8)[1]  # noqa: E731
    sampler.work(SimpleNamespace(acquire=acquire))
    assert waits == [0.001] * 5 + [0.002] * 2 + [0.004]
    assert (list(sampler.resident)[:3], list(sampler.heap)[:3]) == ([6, 9, 2], [4, 9, 2])
    assert list(sampler.times)[:3] == sorted(sampler.times[:3])
    assert abs(sampler.times[1] - time.perf_counter_ns()) < 60 * 10**9
    sampler.release()
    assert (sampler.count, len(sampler.times)) == (0, 0)
