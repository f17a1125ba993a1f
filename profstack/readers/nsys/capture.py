"""Join an export with its steps and ranges; ranges as a tree by place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from profstack.readers.device_gaps import at
from profstack.readers.nsys.export import PUSH_POP, Export
from profstack.readers.nsys.export_file import numbered
from profstack.readers.nsys.steps import GIL, LIBRARIES, Names, Steps
from profstack.readers.nvtx import DOMAIN, KINDS, STEP
from profstack.readers.torchtrace.columns import Bools, Ints

# --- NVTX ranges as a tree by place, and the innermost range at a moment --------------------------

# Ranges that are pushed and popped nest, on each thread and in each domain separately; ranges with
# their own start and end do not nest. A node of the tree is a place: all ranges of one name under
# the same names. Ranges outside the steps are left out where a capture has steps.

RANGE = "range"
# Threads of autograd's engine: they work for the steps' thread, whatever ranges are there
# (emit_nvtx, nsys with --pytorch).
_AUTOGRAD = "pt_autograd"


class Label(NamedTuple):
    """The common fields of the ranges of a node."""

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
    """The innermost range from each moment on until the next."""

    moments: Ints
    innermost: Ints
    # Whether its ranges are our own, and nest.
    ours: bool = False

    def at(self, moments: Ints) -> Ints:
        """Return the innermost range at each moment, -1 where none was open."""
        return at(self.innermost, np.searchsorted(self.moments, moments, side="right") - 1)


@dataclass(frozen=True)
class RangeTree:
    """The ranges that count, by position, and the nodes they belong to."""

    start: Ints
    end: Ints
    thread: Ints
    node: Ints
    nodes: list[Node]
    # The running number that its name had, or `NO_NUMBER`.
    number: Ints
    is_step: Bools
    # Whether it does not show the owner of the work, on other threads than the steps' own.
    is_mark: Bools
    nests: Bools
    timelines: dict[int, list[Timeline]]

    def innermost(self, thread: Ints, moments: Ints) -> Ints:
        """Return the innermost range open on a thread at each moment, -1 where none was.

        profstack's own ranges win over other domains', so that module paths are the same here
        and in the torch layer, whatever a library marks inside a module. Only the step's range
        does not: it is around everything. Otherwise the one that began last is the innermost.
        """
        found = np.full(len(moments), -1, np.int64)
        for one, where in _by_value(thread):
            own = chosen = found[where]
            begun = np.full(len(where), np.iinfo(np.int64).min, np.int64)
            for timeline in self.timelines.get(one, ()):
                inner = timeline.at(moments[where])
                is_open = inner >= 0
                start = np.where(is_open, self.start[inner], begun)
                later = is_open & (start >= begun)
                chosen, begun = np.where(later, inner, chosen), np.where(later, start, begun)
                if timeline.ours:
                    own = np.where(is_open & ~self.is_step[inner], inner, -1)
            found[where] = np.where(own >= 0, own, chosen)
        return found


def range_tree(export: Export, steps: Steps, names: Names) -> RangeTree:
    """Build the tree of the ranges that overlap the steps, or of all without steps."""
    frame = export.ranges
    start, end = frame["start"].to_numpy(np.int64), frame["end"].to_numpy(np.int64)
    kept = steps.count(start) | (steps.counted(start, end) > 0)
    frame = frame.assign(text=names.name)[kept]
    start, end, number = start[kept], end[kept], names.number[kept]
    thread = frame["thread"].to_numpy(np.int64)
    nests = (frame["style"] == PUSH_POP).to_numpy(bool)
    ours = (frame["domain"] == DOMAIN).to_numpy(bool)
    # Our own before all others: rows are numbered in this order.
    domains = np.where(ours, -1, pd.factorize(frame["domain"])[0])
    domain_of = frame["domain"].fillna("").str.casefold().to_numpy(str)
    builder = _TreeBuilder(start, end, *_labels(frame), thread == steps.thread)
    timelines: dict[int, list[Timeline]] = {}
    for one, some in _by_value(thread):
        for _, inner in _by_value(domains[some]):
            where = some[inner]
            found = []
            if nests[where].any():
                found.append(builder.nested(where[nests[where]], ours=bool(ours[where[0]])))
            if not nests[where].all():
                found.append(builder.apart(where[~nests[where]]))
            if domain_of[where[0]] != GIL:
                timelines.setdefault(one, []).extend(found)
    is_step = ours & (frame["category"] == STEP).to_numpy(bool)
    node = np.array(builder.node, np.int64)
    autograd = export.threads["name"].str.startswith(_AUTOGRAD, na=False)
    on_autograd = np.isin(thread, export.threads["thread"][autograd])
    is_mark = np.isin(domain_of, LIBRARIES) | (on_autograd & ~ours)
    nodes = builder.nodes
    return RangeTree(start, end, thread, node, nodes, number, is_step, is_mark, nests, timelines)


def _labels(frame: pd.DataFrame) -> tuple[Ints, list[Label]]:
    """Number the labels of ranges; return the number of each range, and the labels."""
    number, different = numbered(frame[["domain", "category", "text", "style"]])
    numbers: dict[Label, int] = {}
    known = []
    for domain, category, text, style in different.itertuples(index=False, name=None):
        foreign = domain != DOMAIN
        kind = category if category and (foreign or category in KINDS) else RANGE
        # All steps are one place.
        name = text if foreign or kind != STEP else STEP
        # Different rows may have equal labels.
        label = Label(domain or "", kind, name or "", style)
        known.append(numbers.setdefault(label, len(numbers)))
    return np.array(known, np.int64)[number], list(numbers)


class _TreeBuilder:
    """Builds the nodes from the ranges of one thread and domain after another."""

    def __init__(
        self, start: Ints, end: Ints, codes: Ints, labels: list[Label], on_steps: Bools
    ) -> None:
        self._start, self._end = start, end
        self._codes, self._labels, self._on_steps = codes.tolist(), labels, on_steps.tolist()
        self._known: dict[tuple[int, int, bool], int] = {}
        self.nodes: list[Node] = []
        self.node = [-1] * len(codes)

    def _place(self, position: int, parent: int) -> None:
        code, on_steps = self._codes[position], self._on_steps[position]
        found = self._known.setdefault((parent, code, on_steps), len(self.nodes))
        if found == len(self.nodes):
            self.nodes.append(Node(parent, self._labels[code], on_steps))
        self.node[position] = found

    def nested(self, where: Ints, *, ours: bool) -> Timeline:
        """Add ranges that were pushed and popped on one thread in one domain."""
        order = where[np.lexsort((-self._end[where], self._start[where]))]
        moments: list[int] = []
        innermost: list[int] = []
        opened: list[tuple[int, int]] = []
        for position, begin, until in _rows(order, self._start[order], self._end[order]):
            _close(opened, begin, moments, innermost)
            self._place(position, self.node[opened[-1][1]] if opened else -1)
            opened.append((until, position))
            moments.append(begin)
            innermost.append(position)
        _close(opened, None, moments, innermost)
        return Timeline(np.array(moments, np.int64), np.array(innermost, np.int64), ours)

    def apart(self, where: Ints) -> Timeline:
        """Add ranges with their own start and end: the innermost one began last."""
        start, end = self._start, self._end
        begun = where[np.argsort(start[where], kind="stable")]
        for position in begun.tolist():
            self._place(position, -1)
        # Of two events at one moment the end comes first: a range does not contain its own end.
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
        return Timeline(np.array(moments, np.int64), np.array(innermost, np.int64))


def _close(
    opened: list[tuple[int, int]], moment: int | None, moments: list[int], innermost: list[int]
) -> None:
    """Remove ranges from the stack that have ended by `moment`; all of them without one."""
    while opened and (moment is None or opened[-1][0] <= moment):
        until, _ = opened.pop()
        # Where ranges do not nest as they should, moments still do not go back.
        moments.append(max(until, moments[-1]))
        innermost.append(opened[-1][1] if opened else -1)


def _rows(*columns: Ints | Bools) -> Iterator[tuple[int, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def _by_value(values: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each different value in order, and its positions."""
    order = np.argsort(values, kind="stable")
    found, first = np.unique(values[order], return_index=True)
    parts = np.split(order, first[1:])
    yield from zip(found.tolist(), parts if len(found) else [], strict=True)


# --- Owners: ranges of calls, and calls of device work --------------------------------------------

# A kernel belongs to the call with the same correlation number, and with that call to the ranges
# that were open when the call began, whichever stream it ran on and however long after. A call on a
# thread without a range of its own at that moment (autograd's thread, replicas) belongs to the
# ranges of the steps' thread; so does one that is only in a mark, a range that does not show the
# owner of the work. Work without a call in the file belongs to no range.

KERNEL, COPY, SET, GRAPH = "kernel", "copy", "set", "graph"


def device_name(number: int) -> str:
    """Return a device's name in the torch layer."""
    return f"cuda:{number}"


@dataclass(frozen=True)
class Calls:
    """Calls that count, in the order of their begin."""

    # Positions in its frame.
    row: Ints
    start: Ints
    length: Ints
    # The thread of the ranges it belongs to, and whether that is another one than its own.
    thread: Ints
    elsewhere: Bools
    # Position of the innermost range, or -1.
    innermost: Ints
    # The thread that made it, and whether a mark is open there.
    made_on: Ints
    marked: Bools


@dataclass(frozen=True)
class Work:
    """Work of devices that counts, in the order of its begin."""

    row: Ints
    start: Ints
    length: Ints
    # Position of the call that launched it among `Calls`, or -1.
    call: Ints
    # Copies and fills; the rest is kernels and whole graphs.
    moves: Bools
    # Position of the innermost range around the call, or -1.
    innermost: Ints


def calls_in(frame: pd.DataFrame, tree: RangeTree, steps: Steps, *, lent: bool = True) -> Calls:
    """Return the calls that begin in a step, or all without steps, with their ranges.

    With `lent`, calls of a thread without a range belong to the steps' thread. Not so the system's
    calls: a worker does not sleep for a module.
    """
    start = frame["start"].to_numpy(np.int64)
    row = np.flatnonzero(steps.count(start))
    row = row[np.argsort(start[row], kind="stable")]
    start = start[row]
    # A wait may end minutes after the steps: only its time in them counts.
    length = steps.counted(start, frame["end"].to_numpy(np.int64)[row])
    made_on = frame["thread"].to_numpy(np.int64)[row]
    innermost = tree.innermost(made_on, start)
    thread, elsewhere, marked = made_on, np.zeros(len(row), np.bool_), np.zeros(len(row), np.bool_)
    if lent and steps.thread is not None:
        marked = (innermost >= 0) & (made_on != steps.thread)
        marked[marked] = tree.is_mark[innermost[marked]]
        elsewhere = ((innermost < 0) | marked) & (made_on != steps.thread)
        thread = np.where(elsewhere, steps.thread, made_on)
        lent_to = tree.innermost(thread[elsewhere], start[elsewhere])
        # Where the steps' thread is in no range, the mark is better than none.
        innermost[elsewhere] = np.where(lent_to >= 0, lent_to, innermost[elsewhere])
    return Calls(row, start, length, thread, elsewhere, innermost, made_on, marked)


def outermost(calls: Calls) -> Calls:
    """Leave out calls made by another call on the same thread: its time contains theirs."""
    order = np.lexsort((-calls.length, calls.start, calls.made_on))
    end = (calls.start + calls.length)[order]
    inner = np.zeros(len(order), np.bool_)
    for _, some in _by_value(calls.made_on[order]):
        inner[some[1:]] = end[some[1:]] <= np.maximum.accumulate(end[some])[:-1]
    kept = np.sort(order[~inner])
    return Calls(*(column[kept] for column in vars(calls).values()))


def work_in(frame: pd.DataFrame, all_calls: pd.DataFrame, calls: Calls, steps: Steps) -> Work:
    """Return the work that a counted call began, and the work in the steps without any call."""
    start = frame["start"].to_numpy(np.int64)
    launcher = _launchers(frame, all_calls)
    among = np.full(len(all_calls), -1, np.int64)
    among[calls.row] = np.arange(len(calls.row))
    call = at(among, launcher)
    row = np.flatnonzero((call >= 0) | ((launcher < 0) & steps.count(start)))
    row = row[np.argsort(start[row], kind="stable")]
    call = call[row]
    return Work(
        row,
        start[row],
        frame["end"].to_numpy(np.int64)[row] - start[row],
        call,
        frame["kind"].isin((COPY, SET)).to_numpy(np.bool_)[row],
        at(calls.innermost, call),
    )


def launched(frame: pd.DataFrame, all_calls: pd.DataFrame, unknown: int) -> Ints:
    """Return when the host began to launch each row of work; `unknown` without a call."""
    return at(all_calls["start"].to_numpy(np.int64), _launchers(frame, all_calls), unknown)


def _launchers(frame: pd.DataFrame, calls: pd.DataFrame) -> Ints:
    """Return the row of the call with the same correlation number, -1 where there is none.

    Of several it is the one that began first: a call of the runtime that makes one of the driver.
    """
    numbers = calls["correlation"].to_numpy(np.int64)
    order = np.lexsort((calls["start"].to_numpy(np.int64), numbers))
    order = order[numbers[order] > 0]
    wanted = frame["correlation"].to_numpy(np.int64)
    found = np.searchsorted(numbers[order], wanted)
    return np.where(at(numbers[order], found, 0) == wanted, at(order, found), -1)


def sums_of_calls(
    tree: RangeTree, calls: Calls, call: Ints, values: Mapping[str, Ints]
) -> dict[str, Ints]:
    """Sum by node the `values` of things that calls, by position, began: each where it belongs.

    Those of a call in a mark count in the mark's row as well, on the thread that made the call.
    """
    sums = _sums_by_node(tree, calls.thread[call], calls.start[call], values)
    marked = calls.marked[call]
    if not marked.any():
        return sums
    some = call[marked]
    own = {name: value[marked] for name, value in values.items()}
    more = _sums_by_node(tree, calls.made_on[some], calls.start[some], own)
    return {name: total + more[name] for name, total in sums.items()}


def projected(tree: RangeTree, calls: Calls, work: Work) -> Ints:
    """Sum by node, over its ranges, the time from the first to the last work begun in them."""
    total = np.zeros(len(tree.nodes), np.int64)
    some = np.flatnonzero(work.call >= 0)
    thread, moments = calls.thread[work.call[some]], calls.start[work.call[some]]
    order = np.lexsort((moments, thread))
    begin, end = work.start[some][order], (work.start + work.length)[some][order]
    for number, where in _by_value(thread[order]):
        times = moments[order[where]]
        own = np.flatnonzero(tree.thread == number)
        own = own[np.argsort(tree.start[own], kind="stable")]
        first = np.searchsorted(times, tree.start[own], side="left")
        last = np.searchsorted(times, tree.end[own], side="left")
        filled = last > first
        own, first, last = own[filled], first[filled], last[filled]
        if not len(own):
            continue
        # Each pair of positions is a range; what `reduceat` gives between two is left out.
        pairs = np.stack([first, last], axis=1).reshape(-1)
        low = np.minimum.reduceat(np.append(begin[where], begin[where[-1]]), pairs)[::2]
        high = np.maximum.reduceat(np.append(end[where], end[where[-1]]), pairs)[::2]
        np.add.at(total, tree.node[own], high - low)
    return total


def _sums_by_node(
    tree: RangeTree, thread: Ints, moments: Ints, values: Mapping[str, Ints]
) -> dict[str, Ints]:
    """Sum the `values` of things that began at `moments` on threads, each once per node.

    A node counts what began while one of its ranges was open, ranges within included.
    """
    begin = _first_uncovered(tree)
    order = np.lexsort((moments, thread))
    total = {name: np.zeros(len(tree.nodes), np.int64) for name in values}
    running = {
        name: np.concatenate([np.zeros(1, np.int64), np.cumsum(value[order])])
        for name, value in values.items()
    }
    for number, where in _by_value(thread[order]):
        low, high = int(where[0]), int(where[-1]) + 1
        some = np.flatnonzero((tree.thread == number) & (begin < tree.end))
        times = moments[order[low:high]]
        first = low + np.searchsorted(times, begin[some], side="left")
        last = low + np.searchsorted(times, tree.end[some], side="left")
        for name, sums in running.items():
            np.add.at(total[name], tree.node[some], sums[last] - sums[first])
    return total


def _first_uncovered(tree: RangeTree) -> Ints:
    """Return when each range begins to add to its node: after earlier open ranges of the node."""
    begin: Ints = tree.start.copy()
    reach: dict[tuple[int, int], int] = {}
    for position in np.flatnonzero(~tree.nests)[np.argsort(tree.start[~tree.nests])].tolist():
        key = int(tree.node[position]), int(tree.thread[position])
        before = reach.get(key, int(begin[position]))
        begin[position] = max(begin[position], before)
        reach[key] = max(before, int(tree.end[position]))
    return begin


# --- A capture ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Capture:
    """An export, its steps and ranges, and the calls and the work that count."""

    export: Export
    steps: Steps
    tree: RangeTree
    calls: Calls
    work: Work
    # The moment from which times are counted.
    begin_ns: int

    @classmethod
    def of(cls, export: Export, steps: Steps, names: Names, begin_ns: int) -> Capture:
        """Find the ranges in the steps, and the calls and work that belong to them."""
        tree = range_tree(export, steps, names)
        calls = calls_in(export.calls, tree, steps)
        work = work_in(export.work, export.calls, calls, steps)
        return cls(export, steps, tree, calls, work, begin_ns)

    def places(self, innermost: Ints) -> dict[str, NDArray[np.object_]]:
        """Return kind and name of ranges by position, None where it is below 0."""
        labels = [node.label for node in self.tree.nodes]
        kinds = np.array([*(each.kind for each in labels), None], dtype=object)
        names = np.array([*(each.name for each in labels), None], dtype=object)
        node = at(self.tree.node, innermost)
        return {"range_kind": kinds[node], "range_name": names[node]}
