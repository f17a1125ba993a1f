"""Owners of a step's time: every moment counted once, backward work where its forward was."""

import random
from itertools import pairwise
from types import SimpleNamespace

import pytest

from profstack.readers.torchtrace import attribution as module
from profstack.readers.torchtrace.events import ACCUMULATE, EVALUATE, clip_to_steps, read_host
from profstack.storage import vocabulary as words
from tests.support.events import Event, events, instant
from tests.support.torch_slices import self_s

# The number of the module that is a loss.
LOSS_MODULE = 5
BYTES = ["host_net_bytes", "device_net_bytes"]
FIGURES = ["calls", "forward", "forward_self", "backward", "backward_self", "recomputed"]
PARTS = {"loss": words.LOSS, "optimizer": words.OPTIMIZER, "zero": words.ZERO_GRAD}
PARTS |= {"compiled": words.COMPILED, "accumulation": words.ACCUMULATION}
PARTS |= {"wait": words.WAIT, "outside": words.OUTSIDE}
PARTS |= {"rest": words.UNATTRIBUTED}
# A module in a module, an operator of each, and the marks of what these make; a pass.
FORWARD = "module:1 100-200; module:2 120-180; aten::mm 130-140 sequence=3;"
FORWARD += "aten::add 190-195 sequence=4;"
OF_1, OF_2 = "sequence=4 forward=1", "sequence=3 forward=1"
BOTH = f"{FORWARD} pass 300-400"
# Rows by module or part, with as many figures as are not 0.
CASES = f"""
# Own time is without the modules inside; a module in itself counts once.
module:1 100-400; module:2 150-250; module:2 300-320 = 1: 1 300 180, 2: 2 120 120
module:1 100-400; module:2 150-350; module:1 200-300 = 1: 2 300 200, 2: 1 200 100
# Functions last until the next one or the end of the pass; before the first it is the loss's.
{BOTH}; function:A 310-330 {OF_1}; function:B 340-370 {OF_2} \
= 1: 1 100 40 90 30, 2: 1 60 60 60 60, loss: 0 0 0 10 10
# Forward work done again belongs beside the first time.
{BOTH}; function:B 310-390 {OF_2}; module:2 320-350 \
= 1: 1 100 40 90 0 30, 2: 1 60 60 90 90 30, loss: 0 0 0 10 10
# On devices' threads: until the next one begins on any thread.
{BOTH}; function:B 320-380 thread=2 {OF_2}; function:A 350-390 thread=3 {OF_1} \
= 1: 1 100 40 80 50, 2: 1 60 60 30 30, loss: 0 0 0 20 20
{BOTH}; function:B 300-380 thread=2 {OF_2}; function:A 340-360 {OF_1} \
= 1: 1 100 40 100 60, 2: 1 60 60 40 40, loss: 0
# What is inside has no more time than that.
{BOTH}; function:B 320-380 thread=2 {OF_2}; module:2 325-345 thread=2; \
function:A 330-390 thread=3 {OF_1} = 1: 1 100 40 80 70 10, 2: 1 60 60 10 10 10
# Second derivatives, of an operator inside a function; a function in a function.
{BOTH}; function:B 310-350 {OF_2}; aten::mul 320-330 sequence=5; pass 500-600; \
function:C 510-590 sequence=5 forward=1 = 1: 1 100 40 180, 2: 1 60 60 180 180
{BOTH}; function:A 310-390 {OF_1}; pass 320-380; function:B 330-370 {OF_2} \
= 1: 1 100 40 90 50, 2: 1 60 60 40 40, loss: 0 0 0 10 10
# One operator made several functions; of another the maker is not known.
{BOTH}; function:C 310-390 sequence=9 forward=1 = 1: 1 100 40 90 90, 2: 1 60 60
{BOTH}; function:X 310-390 = rest: 0 700 700 90 90, loss: 0 0 0 10 10
{BOTH}; function:torch::autograd::AccumulateGrad 350-380 \
= accumulation: 0 0 0 50 50, loss: 0 0 0 50 50
# A pass inside a module is its own.
module:1 100-400; aten::mm 110-120 sequence=3; pass 200-300; function:A 220-290 {OF_2} \
= 1: 1 200 200 100 100
# An optimizer in an optimizer, with a model in a closure; and one in a pass.
step 500-700; step 520-600; module:1 620-650; zero 720-740 \
= 1: 1 30 30, optimizer: 1 170 170, zero: 1 20 20
{BOTH}; function:B 310-330 {OF_2}; step 340-360 \
= 2: 1 60 60 20 20, optimizer: 1 20 20, loss: 0 0 0 60 60
# Closures of an optimizer, and of one that hands its own to another.
step 50-600; closure 80-500; module:1 100-200; aten::add 210-240; pass 300-400 \
= 1: 1 100 100, optimizer: 1 130 130, outside: 0 30 30, wait: 0 70 70, rest: 0 570 570 100 100
step 100-900; closure 110-300; module:1 120-200; closure 500-700; zero 510-600 \
= 1: 1 80 80, optimizer: 1 410 410, zero: 1 90 90
step 100-900; step 120-800; closure 150-700; closure 160-690; module:1 200-300 \
= 1: 1 100 100, optimizer: 1 250 250, wait: 0 150 150
# In a pass the time is the pass's.
{BOTH}; function:B 310-390 {OF_2}; step 320-380; closure 330-370; aten::add 340-350 \
= 2: 1 60 60 30 30, optimizer: 1 60 60, loss: 0 0 0 10 10
# Calls inside a compiled function are its graph's.
Torch-Compiled Region: 0/0 100-200; CompiledFunction 120-180; module:1 130-150 \
= 1: 0, compiled: 1 100 100
"""


@pytest.mark.parametrize("case", [line for line in CASES[1:].splitlines() if line[0] != "#"])
def test_rows_by_hand_and_their_own_times_are_the_step(case):
    text, wanted = case.split(" = ")
    rows = module.attribute(read_host(events(text)), [0, 1000], LOSS_MODULE.__eq__).rows
    for name, figures in (row.split(": ") for row in wanted.split(", ")):
        row = rows[PARTS.get(name) or int(name)]
        expected = [int(figure) for figure in figures.split()]
        expected += [0] * (len(FIGURES) - len(expected))
        assert [getattr(row, figure) or 0 for figure in FIGURES] == expected, name
    assert sum(row.forward_self + row.backward_self for row in rows.values()) == 1000


def test_memory_is_that_of_the_calls_around_it():
    made = [*events(f"{BOTH}; function:B 310-330 {OF_2}"), instant(110, 64), instant(150, 32)]
    made += [instant(160, -8), instant(170, 5, device=0), instant(250, 900), instant(320, 900)]
    rows = module.attribute(read_host(made), [0, 1000], bool).rows
    found = {n: (rows[n].host_net_bytes, rows[n].device_net_bytes) for n in (1, 2)}
    assert found == {1: (88, 5), 2: (24, 5)}


MAIN, DEVICE, SECOND_DEVICE = 1, 2, 3
STEP, ZERO = "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"
FUNCTION = EVALUATE + "MmBackward0"
# What may happen on the thread of the steps; the more often, the likelier.
NAMES = (
    *(f"{words.MODULE_PREFIX}{number}" for number in (1, 1, 2, 2, 3, 4, LOSS_MODULE)),
    *("aten::mm", "aten::add", "aten::item", "a range of the script's own", "[memory]"),
    *(words.BACKWARD_RANGE, words.BACKWARD_RANGE, FUNCTION, FUNCTION, FUNCTION),
    *(words.CLOSURE_RANGE, words.CLOSURE_RANGE),
    *(EVALUATE + ACCUMULATE, STEP, STEP, ZERO, f"{words.REGION_PREFIX}of the script"),
    *("Torch-Compiled Region: 0/0", "CompiledFunction"),
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
)


def filled(chance, begin, end, thread, names=(), depth=0):
    """Events one after the other between two moments, and events inside those."""
    made, at, room = [], begin, (end - begin) // max(6, len(names))
    for name in names or chance.choices(NAMES, k=chance.randint(1, 4)):
        at += chance.choice((0, 0, 1, chance.randint(0, room)))
        if at >= end:
            break
        if name == "[memory]":
            device = chance.choice((-1, -1, 0))
            made.append(instant(at, chance.randint(-90, 99), thread=thread, device=device))
            continue
        until = chance.randint(at, min(end, at + max(1, room * chance.choice((1, 3)))))
        number, made_on = chance.randint(-1, 8), MAIN if name.startswith(EVALUATE) else 0
        made.append(Event(name, at, until, thread=thread, sequence=number, forward=made_on))
        if depth < 4 and until - at > 2 and name != ZERO:
            made += filled(chance, at, until, thread, depth=depth + 1)
        at = until
    return made


@pytest.mark.parametrize("seed", range(80))
def test_rows_of_any_nesting_add_up_to_the_steps(seed):
    """Also with backward functions of two devices: the odd ones have those."""
    chance = random.Random(seed)
    end = 1000 + chance.choice((60, 1000, 20_000))
    made = filled(chance, 1000, end, MAIN, chance.choices(NAMES, k=12))
    for thread in (DEVICE, SECOND_DEVICE) if seed % 2 else ():
        made += filled(chance, 1000, end, thread, [FUNCTION] * 3)
    chance.shuffle(made)
    steps = chance.randint(1, 4)
    inner = chance.sample(range(1001, end), steps - 1)
    edges = sorted([1000 - chance.choice((0, 7, -9)), *inner, end + chance.choice((0, 11, -9))])
    left_out = [number for number in range(steps) if steps > 1 and chance.random() < 0.2]
    host = read_host(made)
    clip_to_steps(host, edges, left_out)
    owned = module.attribute(host, edges, LOSS_MODULE.__eq__, left_out, MAIN)
    records = module.module_records(owned, 3, memory=False)
    kept = [end - at for step, (at, end) in enumerate(pairwise(edges)) if step not in left_out]
    assert sum(map(self_s, records)) * 1e9 == pytest.approx(sum(kept), abs=1e-3)
    for row, way in ((row, way) for row in records for way in ("forward", "backward")):
        assert row[f"{way}_s"] + 1e-12 >= row[f"{way}_self_s"] >= -1e-12


def test_records_have_units_and_what_was_not_seen_is_null():
    rows = {
        3: module.ModuleSums(2, 7e9, 5e9, 4e9, 3e9, 2e9, 6e9, 9e9, 640, -320),
        4: module.ModuleSums(0, 1e9, 1e9),
        -2: module.ModuleSums(0, 1e9, 1e9, host_net_bytes=3),
    }
    first, second, part = module.module_records(SimpleNamespace(rows=rows), 8, memory=True)
    times = "forward forward_self backward backward_self recomputed forward_device backward_device"
    wanted = dict(zip((f"{name}_s" for name in times.split()), (7, 5, 4, 3, 2, 6, 9), strict=True))
    wanted |= {"slice": 8, "module_id": 3, "calls": 2}
    assert first == {**wanted, "host_net_bytes": 640, "device_net_bytes": -320}
    columns = ("calls", "recomputed_s", "forward_device_s", *BYTES)
    assert [second[column] for column in columns] == [0, None, None, 0, None]
    assert [part[column] for column in columns] == [None] * 5
    unseen = module.module_records(SimpleNamespace(rows=rows), 8, memory=False)
    assert {row[column] for row in unseen for column in BYTES} == {None}
