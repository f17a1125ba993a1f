"""For tests: random structures of profiler events, properly nested on each thread, from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from profstack.readers.torchtrace.events import ACCUMULATE, EVALUATE
from profstack.storage.vocabulary import BACKWARD_RANGE, MODULE_PREFIX

MAIN, DEVICE, SECOND_DEVICE = 1, 2, 3
# What may stand on the thread of the steps; the more often, the likelier.
NAMES = (
    *(f"{MODULE_PREFIX}{number}" for number in range(1, 6)),
    *(f"{MODULE_PREFIX}{number}" for number in range(1, 3)),
    *("aten::mm", "aten::add", "aten::relu", "a range of the script's own", "[memory]"),
    *(BACKWARD_RANGE, BACKWARD_RANGE, "function", "function", "function", "accumulate"),
    *("Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"),
    *("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",),
    *("Torch-Compiled Region: 0/0", "CompiledFunction"),
)


@dataclass
class Event:
    """One event with the accessors that are read of the profiler's own."""

    text: str
    begin: int
    length: int
    thread: int
    number: int = -1

    def name(self) -> str:
        return self.text

    def start_ns(self) -> int:
        return self.begin

    def duration_ns(self) -> int:
        return self.length

    def start_thread_id(self) -> int:
        return self.thread

    def fwd_thread_id(self) -> int:
        return MAIN if self.text.startswith(EVALUATE) else 0

    def sequence_nr(self) -> int:
        return self.number

    def nbytes(self) -> int:
        return 64

    def device_index(self) -> int:
        return -1


@dataclass
class Structure:
    """Events of a slice of steps, in no order; what `attribute` is asked."""

    events: list[Any]
    boundaries: list[int]
    left_out: tuple[int, ...]


def structure(seed: int) -> Structure:
    """A slice of one to four steps, some left out; with functions of a device for odd seeds."""
    chance = random.Random(seed)
    events: list[Any] = []
    length = chance.choice((60, 1000, 20_000))
    _fill(chance, events, 1000, 1000 + length, 0, MAIN)
    if seed % 2:
        for thread in (DEVICE, SECOND_DEVICE):
            _fill(chance, events, 1000, 1000 + length, 0, thread)
    chance.shuffle(events)
    steps = chance.randint(1, 4)
    inner = sorted(chance.sample(range(1001, 1000 + length), steps - 1))
    edges = [1000 - chance.choice((0, 7, -9)), *inner, 1000 + length + chance.choice((0, 11, -9))]
    edges = sorted(edges)
    left_out = tuple(number for number in range(steps) if steps > 1 and chance.random() < 0.2)
    return Structure(events, edges, left_out)


def _fill(
    chance: random.Random, events: list[Any], begin: int, end: int, depth: int, thread: int
) -> None:
    """Events one after the other between two moments, and events inside those."""
    at = begin
    for _ in range(chance.randint(1, 5)):
        at += chance.choice((0, 0, 1, chance.randint(0, max((end - begin) // 6, 0))))
        if at >= end:
            return
        until = chance.randint(at, min(end, at + max(1, (end - begin) // 2)))
        name = chance.choice(NAMES) if thread == MAIN or depth else "function"
        number = chance.randint(0, 12) if chance.random() < 0.7 else -1
        if name == "[memory]":
            events.append(Event(name, at, 0, thread))
            continue
        if name in ("function", "accumulate"):
            name = EVALUATE + (ACCUMULATE if name == "accumulate" else "MmBackward0")
        events.append(Event(name, at, until - at, thread, number))
        if depth < 6 and until - at > 2 and "zero_grad" not in name:
            _fill(chance, events, at, until, depth + 1, thread)
        at = until
