"""NVTX ranges as a tree by place, and which range was the innermost one open at a moment.

Ranges that are pushed and popped nest, on each thread and in each domain apart; ranges with a
start and an end of their own nest in nothing. A node of the tree is a place: all ranges of one
name under the same names. Ranges that lie in no step are left out where a capture has steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from profstack.nsys.capturesteps import PUSH_POP, Steps
from profstack.nsys.exported import Export
from profstack.nvtxranges import DOMAIN, KINDS, STEP
from profstack.torchtrace.columns import Bools, Ints

RANGE = "range"
# Libraries that mark their own calls on whatever thread makes them: that tells nothing of whose
# work it is.
_LIBRARIES = (
    *("nccl", "cub", "cccl", "thrust", "nvshmem", "ucx", "mpi"),
    *("cudnn", "cublas", "cufft", "cusparse"),
)
# Threads of autograd's engine: they run what the steps' thread asked for, whatever marks that
# there (emit_nvtx, nsys with --pytorch).
_AUTOGRAD = "pt_autograd"
# Who holds the interpreter's lock, or waits for it, which is no work at all.
_GIL = "gil trace"
# What stands between a name and its number.
_BETWEEN = " \t:;,#=_-/([{"


class Label(NamedTuple):
    """What the ranges of a node have in common."""

    domain: str
    kind: str
    name: str
    style: str


@dataclass(frozen=True)
class Node:
    """A place in the tree; `parent` is the position of the node around it, or -1."""

    parent: int
    label: Label
    on_steps_thread: bool


@dataclass(frozen=True)
class Timeline:
    """Which range was the innermost one, from each moment on until the next."""

    moments: Ints
    innermost: Ints
    nests: bool
    ours: bool

    def at(self, moments: Ints) -> Ints:
        """The innermost range at each moment, -1 where none was open."""
        found = np.searchsorted(self.moments, moments, side="right") - 1
        return np.where(found >= 0, self.innermost[found], -1)


@dataclass(frozen=True)
class RangeTree:
    """The ranges that count, by position, and the nodes they belong to."""

    start: Ints
    end: Ints
    thread: Ints
    node: Ints
    nodes: list[Node]
    is_step: Bools
    # Whether it tells nothing of whose work it is, on other threads than the steps' own.
    is_mark: Bools
    nests: Bools
    timelines: dict[int, list[Timeline]]

    def innermost(self, thread: Ints, moments: Ints) -> Ints:
        """The innermost range open on a thread at each moment, -1 where none was.

        One of profstack's own wins over other domains', so that module paths are the same here
        and in the torch layer, whatever a library marks inside a module. Only the step's range
        does not: it is around everything. Otherwise the one that began last is the innermost.
        """
        found = np.full(len(moments), -1, np.int64)
        for one, where in _by_value(thread):
            if one in self.timelines:
                found[where] = self._innermost(self.timelines[one], moments[where])
        return found

    def _innermost(self, timelines: list[Timeline], moments: Ints) -> Ints:
        chosen = np.full(len(moments), -1, np.int64)
        begun = np.full(len(moments), np.iinfo(np.int64).min, np.int64)
        own = chosen.copy()
        for timeline in timelines:
            found = timeline.at(moments)
            is_open = found >= 0
            start = np.where(is_open, self.start[found], begun)
            later = is_open & (start >= begun)
            chosen, begun = np.where(later, found, chosen), np.where(later, start, begun)
            if timeline.ours and timeline.nests:
                own = np.where(is_open & ~self.is_step[found], found, -1)
        return np.where(own >= 0, own, chosen)


def range_tree(export: Export, steps: Steps) -> RangeTree:
    """The tree of the ranges of which something lies in the steps, or of all without steps."""
    frame = export.ranges
    start, end = frame["start"].to_numpy(np.int64), frame["end"].to_numpy(np.int64)
    kept = steps.count(start) | (steps.counted(start, end) > 0)
    frame, start, end = frame[kept], start[kept], end[kept]
    frame = frame.assign(text=_without_numbers(frame))
    thread = frame["thread"].to_numpy(np.int64)
    codes, labels = _labels(frame)
    on_steps = thread == steps.thread if steps.thread is not None else np.zeros(len(frame), bool)
    nests = (frame["style"] == PUSH_POP).to_numpy(bool)
    domains = pd.factorize(frame["domain"])[0].astype(np.int64)
    # Our own before all others: rows are numbered in this order.
    domains[(frame["domain"] == DOMAIN).to_numpy(bool)] = -1
    domain_of = frame["domain"].fillna("").str.casefold().to_numpy(str)
    grower = _Grower(start, end, codes.tolist(), labels, on_steps.tolist())
    timelines: dict[int, list[Timeline]] = {}
    for number, some in _by_value(thread):
        for _, inner in _by_value(domains[some]):
            where = some[inner]
            ours = str(frame["domain"].iloc[where[0]]) == DOMAIN
            of_thread = timelines.setdefault(number, [])
            if domain_of[where[0]] == _GIL:
                of_thread = []
            if nests[where].any():
                of_thread.append(grower.nested(where[nests[where]], ours=ours))
            if not nests[where].all():
                of_thread.append(grower.apart(where[~nests[where]], ours=ours))
    is_step = np.array([each.domain == DOMAIN and each.kind == STEP for each in labels], bool)
    node = np.array(grower.node, np.int64)
    theirs = (frame["domain"] != DOMAIN).to_numpy(bool)
    is_mark = np.isin(domain_of, _LIBRARIES) | (np.isin(thread, _autograd(export)) & theirs)
    return RangeTree(
        start, end, thread, node, grower.nodes, is_step[codes], is_mark, nests, timelines
    )


def _autograd(export: Export) -> Ints:
    """The threads of autograd's engine."""
    threads = export.threads
    some = threads["name"].str.startswith(_AUTOGRAD, na=False)
    return threads["thread"][some].to_numpy(np.int64)


def _without_numbers(frame: pd.DataFrame) -> list[str | None]:
    """Texts of ranges; of one that ends in the number it carries (`step 12`) the rest of it.

    Else a program that numbers its steps so would have a place of its own for each of them.
    """
    named = frame["domain"] != DOMAIN
    return [
        _without(text, str(payload)) if is_named and payload is not None else text
        for is_named, payload, text in zip(named, frame["payload"], frame["text"], strict=True)
    ]


def _without(text: str | None, number: str) -> str | None:
    """A text without the number that it ends in, unless that is a part of a longer one."""
    if not text or not text.endswith(number):
        return text
    rest = text[: -len(number)]
    if not rest or rest[-1].isdigit() or rest[-1] == ".":
        return text
    return rest.rstrip(_BETWEEN) or text


def _labels(frame: pd.DataFrame) -> tuple[Ints, list[Label]]:
    """The label of each range by number, and the labels."""
    columns = ["domain", "category", "text", "style"]
    numbered = {name: pd.factorize(frame[name]) for name in columns}
    codes = pd.DataFrame({name: found[0] for name, found in numbered.items()})
    number = codes.groupby(columns, sort=False).ngroup().to_numpy(np.int64)
    first = codes[~codes.duplicated()]
    said = (
        [None if code < 0 else numbered[name][1][code] for code in first[name]] for name in columns
    )
    return number, [_label(*each) for each in zip(*said, strict=True)]


def _label(domain: str | None, category: str | None, text: str | None, style: str) -> Label:
    kind = category or RANGE
    if domain == DOMAIN and kind == STEP:
        # Its number is the payload: all steps are one place.
        return Label(DOMAIN, STEP, STEP, style)
    if domain == DOMAIN and kind not in KINDS:
        kind = RANGE
    return Label(domain or "", kind, text or "", style)


class _Grower:
    """Numbers the nodes as it walks over the ranges of one thread and domain after another."""

    def __init__(
        self, start: Ints, end: Ints, codes: list[int], labels: list[Label], on_steps: list[bool]
    ) -> None:
        self._start, self._end = start, end
        # Labels that read alike are one: each number of a label stands for the first of these.
        first = {label: number for number, label in reversed(list(enumerate(labels)))}
        self._codes = [first[labels[code]] for code in codes]
        self._labels, self._on_steps = labels, on_steps
        self._known: dict[tuple[int, int, bool], int] = {}
        self.nodes: list[Node] = []
        self.node = [-1] * len(codes)

    def _place(self, position: int, parent: int) -> int:
        code, on_steps = self._codes[position], self._on_steps[position]
        found = self._known.setdefault((parent, code, on_steps), len(self.nodes))
        if found == len(self.nodes):
            self.nodes.append(Node(parent, self._labels[code], on_steps))
        self.node[position] = found
        return found

    def nested(self, where: Ints, *, ours: bool) -> Timeline:
        """Ranges that were pushed and popped on one thread in one domain."""
        start, end = self._start, self._end
        order = where[np.lexsort((-end[where], start[where]))]
        moments: list[int] = []
        innermost: list[int] = []
        opened: list[tuple[int, int]] = []
        for position, begin, until in _rows(order, start[order], end[order]):
            _close(opened, begin, moments, innermost)
            self._place(position, self.node[opened[-1][1]] if opened else -1)
            opened.append((until, position))
            moments.append(begin)
            innermost.append(position)
        _close(opened, None, moments, innermost)
        return _timeline(moments, innermost, nests=True, ours=ours)

    def apart(self, where: Ints, *, ours: bool) -> Timeline:
        """Ranges with a start and an end of their own: the innermost one began last."""
        start, end = self._start, self._end
        begun = where[np.argsort(start[where], kind="stable")]
        for position in begun.tolist():
            self._place(position, -1)
        # Of two events at one moment the end comes first: a range does not hold its own end.
        events = np.concatenate([begun, begun])
        times = np.concatenate([start[begun], end[begun]])
        begins = np.arange(len(events)) < len(begun)
        order = np.lexsort((begins, times))
        moments: list[int] = []
        innermost: list[int] = []
        opened: list[int] = []
        closed: set[int] = set()
        for position, moment, begins_ in _rows(events[order], times[order], begins[order]):
            if end[position] == start[position]:
                continue
            if begins_:
                opened.append(position)
            else:
                closed.add(position)
                while opened and opened[-1] in closed:
                    closed.remove(opened.pop())
            moments.append(moment)
            innermost.append(opened[-1] if opened else -1)
        return _timeline(moments, innermost, nests=False, ours=ours)


def _close(
    opened: list[tuple[int, int]], moment: int | None, moments: list[int], innermost: list[int]
) -> None:
    """Take off the stack what has ended by `moment`, all of it without one."""
    while opened and (moment is None or opened[-1][0] <= moment):
        until, _ = opened.pop()
        # Where ranges do not nest as they should, time still goes on only.
        moments.append(max(until, moments[-1]))
        innermost.append(opened[-1][1] if opened else -1)


def _timeline(moments: list[int], innermost: list[int], *, nests: bool, ours: bool) -> Timeline:
    return Timeline(np.array(moments, np.int64), np.array(innermost, np.int64), nests, ours)


def _rows(*columns: Ints | Bools) -> Iterator[tuple[int, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def _by_value(values: Ints) -> Iterator[tuple[int, Ints]]:
    """Each different value and where it stands, in order."""
    order = np.argsort(values, kind="stable")
    found, first = np.unique(values[order], return_index=True)
    parts = np.split(order, first[1:])
    yield from zip(found.tolist(), parts if len(found) else [], strict=True)
