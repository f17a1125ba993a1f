"""Owners of a step's memory to the byte, and the blocks that a slice did not allocate."""

import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from profstack.readers.memory.blocks import FOR_EVER, SINCE_EVER, AllocatorEvents, blocks_of
from profstack.readers.memory.kinds import KINDS, Alive, Block
from profstack.readers.memory.owners import TensorBlocks
from profstack.storage.vocabulary import OPTIMIZER
from tests.support import memory_slices as by_hand
from tests.support.engine import elsewhere
from tests.support.memory_slices import FLOAT, INPUT, LEARNED_B, WIDE, holders, owners
from tests.support.torch_slices import observe

pytestmark = pytest.mark.usefixtures("nothing_left")
EVER = (SINCE_EVER, FOR_EVER)
HELD = "held by the script"


def observed():
    return observe(by_hand.training(by_hand.Net()), 1, "detail")


def test_a_training_step_to_the_byte():
    taken = observed()
    assert taken.captured.notes == []
    # The peak is in the backward of `act`: its kept output, its gradient's two ends, and what
    # `b` has got already. The sum's result and the gradient it begins with are a number each.
    assert owners(taken) == {
        "activations": (0, WIDE + FLOAT, WIDE + FLOAT, 0),
        "temporaries": (0, 2 * WIDE + FLOAT, 2 * WIDE + FLOAT, 0),
        "gradients": (by_hand.LEARNED, LEARNED_B, by_hand.LEARNED, by_hand.LEARNED),
        "parameters": (by_hand.LEARNED,) * 4,
        "optimizer state": (by_hand.ADAM,) * 4,
        "inputs": (0, INPUT, INPUT, 0),
    }
    held = holders(taken)
    expected = {("activations", "Net.act"): WIDE, ("temporaries", "Net.act"): WIDE}
    expected |= {("temporaries", "Net.b"): WIDE, ("parameters", "Net.a"): by_hand.LEARNED_A}
    expected |= {("optimizer state", "Net.b"): 2 * LEARNED_B + 2 * FLOAT}
    expected |= {("inputs", "(wait)"): INPUT}
    assert {row[:2]: row[-1] for row in held}.items() >= expected.items()
    assert {row[2:] for row in held if row[:2] == ("gradients", "Net.b")} == {
        ("AddmmBackward0", 1, 1, by_hand.HIDDEN * by_hand.OUT * FLOAT),
        ("aten::sum", 1, 1, by_hand.OUT * FLOAT),
    }
    sizes = [row[-1] for row in held]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == sum(figures[1] for figures in owners(taken).values())
    rows = taken.captured.frames["allocations"]
    given = {taken.path(row["module_id"]): row["bytes"] for row in rows}
    # Its output, and the gradient of its input.
    assert (given["Net.act"], given["(wait)"]) == (2 * WIDE, INPUT)
    assert {row["device"] for row in rows} == {"cpu"}
    assert next(row["blocks"] for row in rows if taken.path(row["module_id"]) == "Net.act") == 2
    rows = taken.captured.frames["module_peaks"]
    # There is no device.
    assert {row["device_peak_bytes"] for row in rows} == {None}
    peaks = {"Net": 2 * WIDE, "Net.a": WIDE, "Net.act": WIDE, "Net.b": by_hand.NARROW}
    assert {taken.path(row["module_id"]): row["host_peak_bytes"] for row in rows} == peaks
    # The parts of a step, by the names that torch gives to its own work.
    assert [taken.rows[name]["calls"] for name in ("(optimizer)", "(zero_grad)")] == [1, 1]
    assert taken.rows["(gradient accumulation)"]["backward_s"] > 0


def test_a_script_that_trains_on_a_thread_of_its_own_is_told_why_there_is_nothing():
    taken = []
    elsewhere(lambda: taken.append(observed()))
    # Nothing was seen of the modules' memory either, which is not the same as none.
    assert {row["host_net_bytes"] for row in taken[0].rows.values()} == {None}
    ((slug, text),) = taken[0].captured.notes
    assert (slug, "thread of its own" in text) == ("no-memory-owners", True)
    assert "memory_owners" not in taken[0].captured.frames


# Blocks from before, by hand.
MODULES = [nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)]
NUMBERED = {
    number: SimpleNamespace(alive=lambda module=module: module)
    for number, module in ((7, MODULES[0]), (3, MODULES[1]), (5, None))
}


def told(*events, device="cpu", used=()):
    """Events of time, address and bytes; each has a position of its own."""
    time, address, nbytes = np.array(events, np.int64).T
    position = np.arange(len(events))
    return AllocatorEvents(time, address, nbytes, position * 0, position, [device], dict(used))


def block(nbytes, kind, *modules, shared=False, died=()):
    refs = [weakref.ref(MODULES[number]) for number in modules]
    return Block(nbytes, kind, shared, refs, died_ns=[*died])


def on(device, blocks):
    return {(device, address): each for address, each in blocks.items()}


def older(events, before, after=None):
    """Kind, bytes, begin, end and owner of the blocks that the slice did not allocate."""
    known = TensorBlocks(events, 50, NUMBERED, 1000)
    blocks, owned = known.older(before, after or Alive(), *blocks_of(events))
    assert set(blocks.position.tolist()) | set(blocks.freed.tolist()) <= {-1}
    columns = (blocks.nbytes, blocks.begin, blocks.end, owned.owner)
    kinds = [KINDS[number] for number in owned.kind.tolist()]
    return list(zip(kinds, *(column.tolist() for column in columns), strict=True))


def test_blocks_from_before_by_what_the_allocators_tell():
    # A device's tells of every block that is given back, and counts what it has given out.
    # It may have allocated more than a block's tensors need.
    sizes = (60, 512, -1024), (70, 4096, 2048), (80, 512, 512), (85, 640, -1100)
    totals = {"cuda:0": 4096 + 1024 + 256 + 1100, "cuda:1": 300}
    blocks = {1: block(4096, "parameters", 0), 640: block(1000, "gradients", 0)}
    before = Alive(on("cuda:0", blocks), totals=totals)
    assert older(told(*sizes, device="cuda:0"), before) == [
        ("parameters", 4096, *EVER, 7),
        ("gradients", 1100, SINCE_EVER, 85, 7),
        ("not attributed", 1024, SINCE_EVER, 60, 0),
        ("not attributed", 256, *EVER, 0),
        ("not attributed", 300, *EVER, 0),
    ]
    # Blocks end when they were freed or their address was taken.
    events = told((60, 1, 64), (65, 1, -64), (75, 2, 32), (70, 3, -48))
    blocks = {1: block(100, HELD), 3: block(40, "gradients", 2)}
    # It died at 40 on the clock of the releases, which is 1000 behind.
    blocks |= {2: block(200, "buffers", 1, 0, died=[-960, -940])}
    blocks |= {4: block(400, "optimizer state", 2, died=[-900])}
    assert sorted(older(events, Alive(on("cpu", blocks)))) == [
        ("buffers", 200, SINCE_EVER, 40, 3),
        # The CPU's may tell the size of another block, taken there in an earlier profile.
        ("gradients", 40, SINCE_EVER, 70, 0),
        (HELD, 100, SINCE_EVER, 60, 0),
        ("optimizer state", 400, SINCE_EVER, 100, OPTIMIZER),
    ]
