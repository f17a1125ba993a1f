"""Blocks of memory and their levels against naive counts; the history of a device."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from profstack.readers.memory import blocks
from profstack.readers.memory.blocks import FOR_EVER, SINCE_EVER, AllocatorEvents, Curves
from profstack.readers.torchtrace.attribution import attribute, operators_around
from profstack.readers.torchtrace.events import read_host
from profstack.storage.vocabulary import MODULE_PREFIX
from tests.support.events import Event
from tests.support.tables import cases


def allocator(events):
    """Events of time, device, address and bytes; each has a position of its own."""
    columns = np.array(events, np.int64).reshape(-1, 4).T
    time, device, address, nbytes = columns
    position = np.arange(len(events)) + 100
    return AllocatorEvents(time, address, nbytes, device, position, ["cpu", "cuda:0"], {})


def test_blocks_at_one_address_follow_each_other():
    events = [(10, 0, 7, 5), (13, 0, 7, -5), (16, 0, 8, -3), (19, 1, 7, 4), (22, 0, 8, 6)]
    events += [(25, 0, 8, 2), (28, 0, 7, -9), (31, 0, 9, -1), (34, 0, 9, 1)]
    # Begin, end, address, bytes, device, and the positions of both events.
    taken = [(10, 13, 7, 5, 0, 100, 101), (19, FOR_EVER, 7, 4, 1, 103, -1)]
    # Allocated again without having been freed: another thread freed it, unseen.
    taken += [(22, 25, 8, 6, 0, 104, -1), (25, FOR_EVER, 8, 2, 0, 105, -1)]
    taken += [(34, FOR_EVER, 9, 1, 0, 108, -1)]
    before = [(SINCE_EVER, 16, 8, 3, 0, -1, 102), (SINCE_EVER, 31, 9, 1, 0, -1, 107)]
    for found, expected in zip(blocks.blocks_of(allocator(events)), (taken, before), strict=True):
        columns = (column.tolist() for column in vars(found).values())
        assert sorted(zip(*columns, strict=True)) == sorted(expected)


def curves_of(found, edges, left_out=(), device=()):
    begin, end, nbytes = (np.array(column, np.int64) for column in zip(*found, strict=True))
    none = np.full(len(found), -1)
    on = np.array(device, np.int64) if device else none
    return Curves(blocks.Blocks(begin, end, none, nbytes, on, none, none), edges, left_out)


# Begin, end and bytes.
LIVES = [(SINCE_EVER, 4, 50), (1, 6, 10), (2, 3, 30), (5, FOR_EVER, 20), (7, 8, 45)]


@cases(
    "left_out highest alive",
    ((), 90, [0, 1, 2]),
    ((0,), 65, [3, 4]),
    ((0, 2), 60, [0, 1]),
    # If all steps are left out, the whole slice counts.
    ((0, 1, 2), 90, [0, 1, 2]),
)
def test_peaks_and_rises_are_those_of_the_steps_and_spans(left_out, highest, alive):
    curves = curves_of(LIVES, [1, 3, 6, 9], left_out)
    levels = curves.levels(np.ones(5, np.bool_))
    assert curves.highest(levels) == highest
    assert np.flatnonzero(curves.alive_at(curves.peak(levels))).tolist() == alive
    assert [levels[at + 1] for at in (curves.first, curves.last)] == [60, 20]
    # A rise, here of every second block, is above the level at its start.
    starts, ends = np.array([1, 3, 4, 2]), np.array([2, 6, 9, 2])
    levels = curves.levels(np.arange(5) % 2 == 0)
    assert curves.risen(levels, starts, ends).tolist() == [30, 0, 45, 0]


def test_peaks_of_modules_are_those_of_their_highest_call():
    # Of two events at one moment the release comes first; no block has no level.
    curves = curves_of([(1, 5, 100), (5, 9, 100)], [0, 10])
    assert curves.highest(curves.levels(np.array([True, True]))) == 100
    born, freed = blocks.blocks_of(allocator([]))
    curves = Curves(born.with_(freed), [0, 1], ())
    assert (len(born), len(freed), curves.highest(curves.levels(born.nbytes > 0))) == (0, 0, 0)
    # Calls of module 5 at 10 to 20 and 40 to 60, of module 3 at 12 to 18.
    calls = {"start": [10, 12, 40], "end": [20, 18, 60], "module": [5, 3, 5]}
    columns = SimpleNamespace(**{name: np.array(values) for name, values in calls.items()})
    columns.marks = lambda kind: np.arange(3)
    owned = SimpleNamespace(scopes=columns, events=columns)
    found = [(11, 14, 7), (13, 50, 30), (45, 90, 90), (15, 19, 2)]
    curves = curves_of(found, [0, 100], device=[0, 0, 1, 2])
    peaks = lambda *on: [[*row.values()] for row in blocks.module_peaks(curves, owned, on, 4)]  # noqa: E731
    assert peaks("cpu") == [[4, 3, 30, None], [4, 5, 37, None]]
    assert peaks("cpu", "cuda:0", "cuda:1") == [[4, 3, 30, 2], [4, 5, 37, 90]]
    assert peaks("cuda:0") == [[4, 3, 0, 30], [4, 5, 0, 37]]
    columns.marks = lambda kind: np.zeros(0, np.int64)
    assert peaks("cpu") == []


def test_the_operator_around_an_event_is_the_outermost_inside_its_mark():
    spans = (("aten::linear", 10, 90), ("aten::addmm", 20, 40), ("[memory]", 30, 30))
    spans += ((f"{MODULE_PREFIX}1", 50, 80), ("[memory]", 55, 55), ("aten::mm", 60, 70))
    spans += (("[memory]", 65, 65), ("a range of the script's own", 100, 120))
    events = read_host([Event(*span) for span in (*spans, ("[memory]", 110, 110))])
    owned = attribute(events, [0, 200], lambda number: False)
    around = operators_around(owned)[events.memory]
    names = [events.names.values[events.names.ids[at - 1]] if at else None for at in around]
    assert names == ["aten::linear", None, "aten::mm", None]
    # An address keeps its bits.
    signed = {7: 7, 2**63 - 1: 2**63 - 1, 2**63: -(2**63), 2**64 - 5: -5}
    assert {address: blocks.signed(address) for address in signed} == signed


@pytest.fixture
def device(monkeypatch):
    """Stands where torch keeps its functions on a CUDA device, which no machine of tests has."""
    state = SimpleNamespace(said=[], recording=False, initialized=True)

    def dump(path):
        state.said.append("dump")
        Path(path).write_bytes(b"snapshot")

    state.switch = lambda enabled, *_: state.said.append(enabled)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: state.initialized)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: state.recording, raising=False)
    # As on a machine with a device: torch's own function over a switch that this build lacks.
    monkeypatch.setattr(torch._C, "_cuda_record_memory_history", state.switch, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", dump)
    return state


@cases(
    "state scripts said",
    ({}, (), ["all", "dump", None]),
    # A history of the script's own, or no device.
    ({"recording": True}, (), []),
    ({"initialized": False}, (), []),
    ({}, (None,), ["all", None]),
)
def test_a_history_is_written_where_it_is_ours(device, tmp_path, state, scripts, said):
    vars(device).update(state)
    path, history = tmp_path / "snapshot.pickle", blocks.DeviceHistory()
    history.begin()
    for enabled in scripts:
        torch.cuda.memory._record_memory_history(enabled)
    written = "dump" in said
    assert (history.end(path), path.exists(), device.said) == (written, written, said)
    # The script switched its own meanwhile.
    assert [slug for slug, _ in history.problems] == ["no-snapshot"] * bool(scripts)
    assert (torch._C._cuda_record_memory_history, history.end(path)) == (device.switch, False)
    # A forked child leaves the device alone.
    del device.said[:]
    vars(device).update(recording=False, initialized=True)
    history = blocks.DeviceHistory()
    history.begin()
    history.abandon()
    assert (history.end(path), device.said) == (False, ["all"])
    assert torch._C._cuda_record_memory_history is device.switch
