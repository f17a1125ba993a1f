"""Bytes alive over a slice: levels at every moment, their highest, and who is alive then."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from profstack.torchtrace.allocations import FOR_EVER, Blocks
from profstack.torchtrace.attribution import Attribution
from profstack.torchtrace.events import Bools, Ints
from profstack.torchtrace.scopes import EVALUATED, FORWARD

HOST = "cpu"
_OPERATOR = re.compile(r"[\w.]+(::[\w.]+)+$")


class Curves:
    """What is alive after each moment at which a block was taken or given back.

    Moments are in order of time; a moment's number is a rank. What happens outside the steps that
    count changes levels, but none of its moments is the peak.
    """

    def __init__(
        self, blocks: Blocks, boundaries_ns: Sequence[int], left_out: Collection[int]
    ) -> None:
        self.blocks = blocks
        ends = np.flatnonzero(blocks.end < FOR_EVER)
        times = np.concatenate((blocks.begin, blocks.end[ends]))
        block = np.concatenate((np.arange(len(blocks)), ends))
        is_begin = np.arange(len(times)) < len(blocks)
        # What is given out at the very moment at which another is given back comes after it.
        order = np.lexsort((is_begin, times))
        self._block, self._is_begin = block[order], is_begin[order]
        self._times = times[order]
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        self._begins = rank[: len(blocks)]
        self._ends = np.full(len(blocks), len(order))
        self._ends[ends] = rank[len(blocks) :]
        self.first = self.rank_at(np.array([boundaries_ns[0]]))[0]
        self.last = self.rank_at(np.array([boundaries_ns[-1]]))[0]
        self._counted = self._candidates(boundaries_ns, left_out)

    def rank_at(self, times: Ints) -> Ints:
        """The last moment up to each time; -1 before the first."""
        ranks: Ints = np.searchsorted(self._times, times, side="right") - 1
        return ranks

    def _candidates(self, boundaries_ns: Sequence[int], left_out: Collection[int]) -> Ints:
        """Moments of the steps that count, and those their levels begin with."""
        edges = np.array(boundaries_ns, np.int64)
        ranks = []
        for step in range(len(edges) - 1):
            if step not in left_out:
                first, last = self.rank_at(edges[step : step + 2]).tolist()
                ranks.append(np.arange(first, last + 1))
        chosen = np.concatenate(ranks) if ranks else np.zeros(0, np.int64)
        # A slice all of whose steps hold evaluation is told whole, as its times are.
        return chosen if len(chosen) else np.arange(self.first, self.last + 1)

    def levels(self, chosen: Bools) -> Ints:
        """Bytes of the chosen blocks alive after each moment, with one entry before the first."""
        sizes = np.where(chosen, self.blocks.nbytes, 0)[self._block]
        steps = np.where(self._is_begin, sizes, -sizes)
        levels: Ints = np.concatenate(([0], np.cumsum(steps)))
        return levels

    def peak(self, levels: Ints) -> int:
        """The moment of the highest level in the steps that count; the first one of several."""
        return int(self._counted[levels[self._counted + 1].argmax()])

    def highest(self, levels: Ints) -> int:
        """That level."""
        return int(levels[self.peak(levels) + 1])

    def alive_at(self, rank: int) -> Bools:
        """Blocks that are alive after a moment."""
        alive: Bools = (self._begins <= rank) & (self._ends > rank)
        return alive

    def risen(self, levels: Ints, starts: Ints, ends: Ints) -> Ints:
        """By how much the level was above that at each start, at its highest until each end."""
        first = self.rank_at(starts) + 1
        last = np.maximum(self.rank_at(ends) + 1, first)
        # Between two positions, the second left out: one more entry for those that end last.
        padded = np.append(levels, levels[-1])
        pairs = np.stack((first, last + 1), axis=1).ravel()
        highest = np.maximum.reduceat(padded, pairs)[::2] if len(starts) else first
        result: Ints = highest - levels[first]
        return result


def module_peaks(
    curves: Curves, owned: Attribution, devices: Sequence[str], index: int
) -> list[Mapping[str, Any]]:
    """Rows of `module_peaks`: the most that was alive in a call beyond what was when it began."""
    scopes, events = owned.scopes, owned.events
    calls = scopes.marks(FORWARD)
    if not len(calls):
        return []
    starts, ends = events.start[calls], events.end[calls]
    modules, of_call = np.unique(scopes.module[calls], return_inverse=True)
    found: dict[bool, Ints] = {}
    for number, device in enumerate(devices):
        on_host = device == HOST
        risen = curves.risen(curves.levels(curves.blocks.device == number), starts, ends)
        highest = np.zeros(len(modules), np.int64)
        np.maximum.at(highest, of_call, risen)
        found[on_host] = np.maximum(found[on_host], highest) if on_host in found else highest
    host, device_ = found.get(True), found.get(False)
    return [
        {
            "slice": index,
            "module_id": module,
            "host_peak_bytes": int(host[at]) if host is not None else 0,
            "device_peak_bytes": int(device_[at]) if device_ is not None else None,
        }
        for at, module in enumerate(modules.tolist())
    ]


def operators_around(owned: Attribution) -> Ints:
    """For every event the position plus 1 of the operator around it that Python called, or 0.

    That is the outermost one inside the innermost mark: of a backward pass the function itself.
    """
    events, scopes = owned.events, owned.scopes
    parent = np.maximum(events.parent, 0)
    evaluated = (events.parent >= 0) & (scopes.kind[parent] == EVALUATED)
    named_so = events.names.where(lambda name: _OPERATOR.match(name) is not None)
    operator = (named_so | evaluated) & (scopes.kind == 0) & ~events.memory & ~owned.is_range
    outermost = operator & ~((events.parent >= 0) & operator[parent])
    # A mark inside an operator begins anew.
    own = np.where(outermost, np.arange(1, len(events) + 1), 0)
    own = np.where(scopes.kind > 0, -1, own)
    return np.maximum(events.inherit(own), 0)
