"""Collectives matched across ranks: who comes last, how long others wait, how fast it then goes.

Calls of several ranks are one collective where they are of one step, have one name and one size,
and the same turn among the calls of that name and size. What a rank waits before the last one has
come is *skew*, the rest *transfer*. Ranks of one machine read one clock. Clocks of several are put
together by the ends of collectives that all ranks leave at about the same moment.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from profstack.ranks.straggler import MANY, chance
from profstack.storage.folder import read_tables
from profstack.storage.schema import rank_rows
from profstack.units import format_bytes

# A rank comes last by chance in one launch of so many.
_BY_CHANCE = 0.001


# What clocks tell apart.
_CLOCK_S = 1e-6


class Call(NamedTuple):
    """One call of one rank; times in seconds of Unix time."""

    step: int
    name: str
    bytes: int | None
    started_s: float
    ended_s: float


Calls = Mapping[int, Sequence[Call]]
# Name and size.
Key = tuple[str, int | None]


def read_calls(folder: Path) -> list[Call]:
    """Return the collectives of a rank's recording; those of the first round only if alone.

    Raise RecordingError where there is no recording that can be read.
    """
    tables = read_tables(folder, ("slices", "collectives"))
    names, rows = tables["slices"]
    slices = {row[names.index("slice")]: dict(zip(names, row, strict=True)) for row in rows}
    names, rows = tables["collectives"]
    calls = [dict(zip(names, row, strict=True)) for row in rows]
    calls = [call for call in calls if call["slice"] in slices and call["name"] is not None]
    late = [call for call in calls if (slices[call["slice"]]["round"] or 0) > 1]
    return [
        Call(
            (slices[call["slice"]]["first_step"] or 0) + (call["step"] or 0),
            *(call[name] for name in Call._fields[1:]),
        )
        for call in late or calls
        if call["started_s"] is not None and call["ended_s"] is not None
    ]


@dataclass(frozen=True)
class Meeting:
    """A collective that all ranks made: begin and end of each, by rank."""

    step: int
    key: Key
    spans: Mapping[int, tuple[float, float]]

    @cached_property
    def last(self) -> int:
        """The rank that came last."""
        return max(self.spans, key=lambda rank: self.spans[rank][0])

    @cached_property
    def skew_s(self) -> float:
        """How long the ranks waited for the last one to come, on average."""
        latest = self.spans[self.last][0]
        return fmean(latest - start for start, _ in self.spans.values())

    @cached_property
    def transfer_s(self) -> float:
        """From the moment at which all had come to the end on most ranks."""
        latest = self.spans[self.last][0]
        return max(median(end for _, end in self.spans.values()) - latest, 0.0)


@dataclass(frozen=True)
class Meetings:
    """All collectives of the steps that every rank recorded.

    `clock_error_s` is how far the machines' clocks may be apart after they were put together.
    """

    steps: int
    met: Sequence[Meeting]
    clock_error_s: float

    @cached_property
    def by_key(self) -> dict[Key, list[Meeting]]:
        """Those of each name and size."""
        found: dict[Key, list[Meeting]] = defaultdict(list)
        for each in self.met:
            found[each.key].append(each)
        return dict(found)

    @cached_property
    def late_rank(self) -> int | None:
        """The rank that comes last more often than by chance, by the first collective of steps."""
        return self._late({rank: rank for rank in self.met[0].spans})

    def late_node(self, nodes: Mapping[int, int | None]) -> int | None:
        """Return the machine whose ranks come last more often than by chance, of several."""
        known = {rank: node for rank, node in nodes.items() if node is not None}
        is_whole = {*known} >= {*self.met[0].spans} and len({*known.values()}) > 1
        return self._late(known) if is_whole else None

    def _late(self, group_of: Mapping[int, int]) -> int | None:
        first: dict[int, Meeting] = {}
        begun: dict[int, float] = {}
        for each in self.met:
            start = min(start for start, _ in each.spans.values())
            if start < begun.get(each.step, math.inf):
                first[each.step], begun[each.step] = each, start
        groups = len({*group_of.values()})
        last = Counter(group_of[each.last] for each in first.values())
        [(group, times)] = last.most_common(1)
        return group if chance(times, len(first) - times, groups) < _BY_CHANCE else None

    def waits_for_s(self, rank: int) -> float:
        """Return how long the others wait for a rank in a step, where it is the last.

        A moment at which several collectives wait for it counts once.
        """
        return sum(self.waits_by_step(rank).values()) / self.steps

    def waits_by_step(self, rank: int) -> dict[int, float]:
        """Return how long the others wait for a rank, where it is the last, by step."""
        others = [each for each in self.met[0].spans if each != rank]
        own: dict[int, list[Meeting]] = {each.step: [] for each in self.met}
        for each in self.met:
            if each.last == rank:
                own[each.step].append(each)
        return {
            step: fmean(
                _together((each.spans[other][0], each.spans[rank][0]) for each in met)
                for other in others
            )
            for step, met in sorted(own.items())
        }

    @cached_property
    def late_by_step(self) -> dict[int, dict[int, float]]:
        """By rank and step, how much later than the others it came to one of its collectives.

        The others' median counts, and the most of the step; 0 where it came to none later.
        """
        ranks = [*self.met[0].spans]
        starts = np.array([[each.spans[rank][0] for rank in ranks] for each in self.met])
        steps, at = np.unique([each.step for each in self.met], return_inverse=True)
        all_of_them = np.median(starts, axis=1)
        found = {}
        for column, rank in enumerate(ranks):
            usual = all_of_them
            if len(ranks) <= MANY:
                usual = np.median(np.delete(starts, column, axis=1), axis=1)
            late = np.zeros(len(steps))
            np.maximum.at(late, at, starts[:, column] - usual)
            found[rank] = dict(zip(steps.tolist(), late.tolist(), strict=True))
        return found

    def facts(self, met: Sequence[Meeting]) -> rank_rows.Meetings:
        """Return the figures of some of them per step."""
        sizes = [each.key[1] for each in met]
        known = [size for size in sizes if size is not None]
        transfer_s = sum(each.transfer_s for each in met)
        moved = sum(known) if len(known) == len(sizes) else None
        last, times = Counter(each.last for each in met).most_common(1)[0]
        return {
            "skew_s": sum(each.skew_s for each in met) / self.steps,
            "transfer_s": transfer_s / self.steps,
            # A moment shorter than what a clock tells has no rate.
            "bytes_per_s": moved / transfer_s if moved and transfer_s > _CLOCK_S else None,
            "last_rank": last,
            "last_share": times / len(met),
            "clock_error_s": self.clock_error_s,
        }


def _together(spans: Iterable[tuple[float, float]]) -> float:
    """Return the time in which at least one of the spans (begin, end) is open."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        until = max(until, begin)
        total, until = total + max(end - until, 0.0), max(until, end)
    return total


def meetings(calls: Calls, nodes: Mapping[int, int | None]) -> Meetings | None:
    """Return the collectives of all ranks; None where no step of all ranks has the same ones.

    `nodes` are the numbers of the ranks' machines; ranks without one share a machine. None too
    where nothing tells how far the machines' clocks are apart.
    """
    calls = _with_sizes(calls)
    steps = _common(calls)
    by_rank = {rank: _in_turn(calls[rank]) for rank in calls}
    found: dict[tuple[int, Key, int], dict[int, tuple[float, float]]] = defaultdict(dict)
    for rank, turns in by_rank.items():
        for turn, call in turns.items():
            found[turn][rank] = call.started_s, call.ended_s
    whole = {
        turn: spans
        for turn, spans in found.items()
        if turn[0] in steps and len(spans) == len(calls) > 1
    }
    if not whole:
        return None
    clocks = _clocks([(turn[1][0], spans) for turn, spans in whole.items()], nodes)
    if clocks is None:
        return None
    offset, error_s = clocks
    met = [
        Meeting(
            turn[0],
            turn[1],
            {
                rank: (start - offset[nodes.get(rank)], end - offset[nodes.get(rank)])
                for rank, (start, end) in spans.items()
            },
        )
        for turn, spans in whole.items()
    ]
    return Meetings(len({turn[0] for turn in whole}), met, error_s)


def _with_sizes(calls: Calls) -> Calls:
    """Return the calls without the sizes of those names of which a rank has none."""
    unknown = {call.name for each in calls.values() for call in each if call.bytes is None}
    if not unknown:
        return calls
    return {
        rank: [call._replace(bytes=None) if call.name in unknown else call for call in each]
        for rank, each in calls.items()
    }


def _common(calls: Calls) -> set[int]:
    """Return the steps of which every rank has a collective."""
    steps = [{call.step for call in each} for each in calls.values()]
    return set.intersection(*steps) if steps else set()


def _in_turn(calls: Sequence[Call]) -> dict[tuple[int, Key, int], Call]:
    """Return the calls by step, key, and turn among those of that step and key."""
    turns: Counter[tuple[int, Key]] = Counter()
    found = {}
    for call in sorted(calls, key=lambda each: each.started_s):
        place = call.step, (call.name, call.bytes)
        found[place[0], place[1], turns[place]] = call
        turns[place] += 1
    return found


# A rank leaves these when all others have come; a broadcast's source need not wait.
_ALL_WAIT = re.compile(r":_?(all|reduce_scatter|barrier)")


def _clocks(
    spans: Sequence[tuple[str, Mapping[int, tuple[float, float]]]],
    nodes: Mapping[int, int | None],
) -> tuple[dict[int | None, float], float] | None:
    """Return how far each machine's clock is ahead of the first one's, and the error in seconds.

    The error is half of the middle half of what single collectives say; None where none says it.
    """
    ranks = sorted(spans[0][1])
    machines = dict.fromkeys(nodes.get(rank) for rank in ranks)
    first, *others = machines
    offset, error_s = dict.fromkeys(machines, 0.0), 0.0
    for machine in others:
        ahead = [
            median(end for rank, (_, end) in each.items() if nodes.get(rank) == machine)
            - median(end for rank, (_, end) in each.items() if nodes.get(rank) == first)
            for name, each in spans
            if _ALL_WAIT.search(name)
        ]
        if not ahead:
            return None
        low, middle, high = np.quantile(ahead, (0.25, 0.5, 0.75)).tolist()
        offset[machine], error_s = middle, max(error_s, (high - low) / 2)
    return offset, error_s


# All ranks of a group give these tensors of one size.
_ONE_SIZE = re.compile(r":_?(all_?reduce|reduce_scatter|broadcast|reduce)")


def mismatch(calls: Calls) -> str:
    """Return which collectives one rank called and another did not, in steps of both; or "".

    How often is not asked, and steps beside one that a rank lacks are left out: what runs across
    the edge of a step may count for either. Steps that ended are meant: ranks that wait for each
    other for ever end in none.
    """
    calls = _with_sizes(calls)
    common = _common(calls)
    steps = {step for step in common if {step - 1, step + 1} <= common}
    first_of: dict[int, dict[Key, int]] = {}
    for rank, each in calls.items():
        known = first_of.setdefault(rank, {})
        for call in sorted(each, key=lambda call: call.step):
            if call.step in steps:
                size = call.bytes if _ONE_SIZE.search(call.name) else None
                known.setdefault((call.name, size), call.step)
    first, *others = sorted(first_of) or [0]
    for other in others:
        one, two = (
            {key: step for key, step in first_of[rank].items() if key not in first_of[against]}
            for rank, against in ((first, other), (other, first))
        )
        if one or two:
            step = min([*one.values(), *two.values()])
            return (
                f"from step {step} on the ranks called different collectives: rank {first} alone "
                f"{_in_words(one)}, rank {other} alone {_in_words(two)}"
            )
    return ""


def _in_words(called: Iterable[Key]) -> str:
    """Return calls as "gloo:broadcast of 16 bytes, gloo:barrier"; "none" for no call."""
    told = [
        name + (f" of {format_bytes(size)}" if size is not None else "")
        for name, size in sorted(called, key=str)
    ]
    return ", ".join(told[:3]) or "none"
