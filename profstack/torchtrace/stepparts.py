"""The parts of a step that no module's call, backward pass or optimizer covers.

They are told apart by what comes before and after them on the thread that makes the steps:

- before a module's call, at the start of a step or after a backward pass or an optimizer's step,
  it waits (for data, mostly); so it does in the ranges of a DataLoader;
- between a module's call and the backward pass after it lies the loss: from the first to the last
  operator that the pass goes through, or module of a loss;
- between a backward pass and the optimizer's step after it, gradients are clipped or unscaled: from
  the first to the last operator, but for those that read a value for the script;
- operators whose results a backward pass goes through, but which lie before every module's call
  of their step, are the forward of a function: outside modules, as other operators are;
- the rest is nobody's.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from profstack.regions import (
    BEFORE_OPTIMIZER,
    LOSS,
    OPTIMIZER,
    OUTSIDE,
    UNATTRIBUTED,
    WAIT,
    ZERO_GRAD,
)
from profstack.torchtrace.events import Bools, HostEvents, Ints
from profstack.torchtrace.scopes import (
    BACKWARD,
    EVALUATED,
    FORWARD,
    OPTIMIZED,
    REGION,
    Scopes,
)

_OTHER, _READ, _DATA, _GRAPH, _GRAPH_END = range(5)
_ZERO_GRAD, _LOSS, _MODULE, _BACKWARD, _OPTIMIZER = range(5, 10)
_MOMENTS = (_GRAPH, _GRAPH_END)
# torch's own range around the wait for a batch.
_DATALOADER = "enumerate(DataLoader)"
# Operators that hand a number to Python, as logging does.
_READS = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"})


@dataclass
class StepParts:
    """Times of the step parts in nanoseconds, and when the losses were worked out."""

    times: dict[int, int]
    loss_from: list[int] = field(default_factory=list)
    loss_until: list[int] = field(default_factory=list)

    def in_loss(self, times: Ints) -> Bools:
        """Which times lie between a forward and the backward after it."""
        if not self.loss_from:
            return np.zeros(len(times), np.bool_)
        begins, ends = np.array(self.loss_from), np.array(self.loss_until)
        position = np.maximum(np.searchsorted(begins, times, side="right") - 1, 0)
        inside: Bools = (times >= begins[position]) & (times <= ends[position])
        return inside


@dataclass
class _Sums:
    """Time in which nothing was seen, in operators, and inside an optimizer around."""

    idle: int = 0
    operators: int = 0
    optimizer: int = 0

    def __sub__(self, other: _Sums) -> _Sums:
        return _Sums(
            self.idle - other.idle,
            self.operators - other.operators,
            self.optimizer - other.optimizer,
        )


@dataclass
class _Span:
    """What had gone by of a gap when a kind of work first began, and when it last ended."""

    first: _Sums | None = None
    last: _Sums | None = None

    def begin(self, now: _Sums) -> None:
        if self.first is None:
            self.first = replace(now)

    def end(self, now: _Sums) -> None:
        self.last = replace(now)

    def inside(self) -> _Sums:
        """What went by from the one moment to the other."""
        if self.first is None or self.last is None:
            return _Sums()
        return self.last - self.first


@dataclass
class _Gap:
    """What has gone by since the last module call, backward pass or optimizer's step.

    `graph` is from the first operator to the last that a backward pass goes through, `work` of
    all operators but those that read a value.
    """

    begin: int
    sums: _Sums = field(default_factory=_Sums)
    graph: _Span = field(default_factory=_Span)
    work: _Span = field(default_factory=_Span)

    def parted(self) -> tuple[_Sums, _Sums]:
        """What came before the first operator of a graph, and what from it on."""
        before = self.graph.first or self.sums
        return before, self.sums - before


def divide(
    scopes: Scopes,
    boundaries_ns: Sequence[int],
    is_loss: Callable[[int], bool],
    left_out: Collection[int],
    thread: int,
) -> StepParts:
    """Divide what is not inside a mark of the steps' `thread` among the parts, step by step."""
    line = _timeline(scopes, is_loss, thread)
    own = (WAIT, LOSS, BEFORE_OPTIMIZER, OPTIMIZER, OUTSIDE, UNATTRIBUTED)
    parts = StepParts(dict.fromkeys(own, 0))
    edges = np.searchsorted(line.start, boundaries_ns).tolist()
    at = boundaries_ns[0]
    for step, begin in enumerate(boundaries_ns[:-1]):
        if step in left_out:
            continue
        at = max(at, begin)
        items = slice(edges[step], edges[step + 1])
        at = _Step(parts, line, at).divide(items, boundaries_ns[step + 1])
    return parts


@dataclass
class _Timeline:
    """What happens on the steps' own thread, one after the other; and time inside optimizers."""

    start: Ints
    end: Ints
    kind: Ints
    inside_optimizer: Callable[[int, int], int]


class _Step:
    """One step on its way from `at` to its end; `last` is the kind of what it did last."""

    def __init__(self, parts: StepParts, line: _Timeline, at: int) -> None:
        self.parts = parts
        self.line = line
        self.at = at
        self.last: int | None = None
        self.modules = False
        self.gap = _Gap(at)

    def divide(self, items: slice, end: int) -> int:
        """Go through the items of the step, which ends at `end`; gives the time then reached."""
        line = self.line
        columns = (line.start[items], line.end[items], line.kind[items])
        for start, until, kind in zip(*(column.tolist() for column in columns), strict=True):
            self._pass_to(start)
            # A compiler's ranges end inside one another.
            taken = max(until - max(self.at, start), 0)
            self.at = max(self.at, until)
            self._go_through(kind, start, taken)
        self._pass_to(end)
        self._nobodys(self.gap.sums)
        return self.at

    def _go_through(self, kind: int, start: int, taken: int) -> None:
        """One item that begins at `start`, and took that much of the time."""
        gap = self.gap
        if kind == _OTHER:
            gap.work.begin(gap.sums)
            gap.sums.operators += taken
            gap.work.end(gap.sums)
        elif kind == _READ:
            gap.sums.operators += taken
        elif kind == _DATA:
            self.parts.times[WAIT] += taken
        elif kind == _GRAPH or (kind == _LOSS and self.last == _MODULE):
            gap.graph.begin(gap.sums)
            if kind == _LOSS:
                gap.graph.end(gap.sums)
        elif kind == _GRAPH_END:
            gap.graph.end(gap.sums)
        elif kind != _ZERO_GRAD:
            self._close(_MODULE if kind == _LOSS else kind, start)

    def _pass_to(self, moment: int) -> None:
        """Nothing was seen until then."""
        closure = self.line.inside_optimizer(self.at, moment)
        self.gap.sums.idle += max(moment - self.at, 0) - closure
        self.gap.sums.optimizer += closure

    def _close(self, kind: int, now: int) -> None:
        """Something of this kind begins: what the gap before it was is known now."""
        times, gap = self.parts.times, self.gap
        if kind == _OPTIMIZER and self.last in (_BACKWARD, _OPTIMIZER):
            work = gap.work.inside()
            times[BEFORE_OPTIMIZER] += work.idle + work.operators
            self._nobodys(gap.sums - work)
        elif kind == _BACKWARD and self.modules:
            loss = gap.graph.inside()
            times[LOSS] += loss.idle + loss.operators + loss.optimizer
            # The loss inside a closure is no work of the optimizer around it.
            times[OPTIMIZER] -= loss.optimizer
            self._nobodys(gap.sums - loss)
            self.parts.loss_from.append(gap.begin)
            self.parts.loss_until.append(now)
        elif kind != _OPTIMIZER and self.last != _MODULE:
            waited, function = gap.parted()
            times[WAIT] += waited.idle + waited.operators
            times[OUTSIDE] += function.idle + function.operators + function.optimizer
            times[OPTIMIZER] -= function.optimizer
        else:
            self._nobodys(gap.sums)
        self.modules = self.modules or kind == _MODULE
        self.last = kind
        self.gap = _Gap(self.at)

    def _nobodys(self, rest: _Sums) -> None:
        self.parts.times[OUTSIDE] += rest.operators
        self.parts.times[UNATTRIBUTED] += rest.idle


def _timeline(scopes: Scopes, is_loss: Callable[[int], bool], thread: int) -> _Timeline:
    """The items of the steps, in order.

    Optimizers with module calls or backward passes inside (closures) are no items themselves:
    what is inside them is, and the function tells how much between two times is theirs.
    """
    events = scopes.events
    marks = np.flatnonzero((scopes.kind > 0) & (events.thread == thread))
    around = scopes.climb(scopes.above[marks], (OPTIMIZED,))
    marks, inner = marks[around == 0], scopes.above[marks][around == 0] - 1
    is_optimizer = scopes.kind[marks] == OPTIMIZED
    closures = np.zeros(len(events), np.bool_)
    closures[inner[~is_optimizer & (inner >= 0)]] = True
    known = -1
    while known != (known := int(closures.sum())):
        # One optimizer's step may stand inside another's.
        within = marks[closures[marks] & (scopes.above[marks] > 0)]
        closures[scopes.above[within] - 1] = True
    leaf = is_optimizer & ~closures[marks] & ((inner < 0) | closures[inner])
    others, tops = _other_operators(scopes, thread)
    marked = marks[~is_optimizer | leaf]
    graph = _graph(scopes, tops, thread)
    kind = np.concatenate(
        (
            np.repeat((_GRAPH, _GRAPH_END), len(graph)),
            _kinds(scopes, marked, is_loss),
            _kinds_of_others(events, others),
        )
    )
    items = np.concatenate((graph, graph, marked, others))
    start = np.where(kind == _GRAPH_END, events.end[items], events.start[items])
    end = np.where(kind == _GRAPH, events.start[items], events.end[items])
    order = np.lexsort((~np.isin(kind, _MOMENTS), start))
    start, end, kind = start[order], end[order], kind[order]
    containers = marks[(inner < 0) & closures[marks]]
    return _Timeline(start, end, kind, _inside(events, containers))


def _kinds(scopes: Scopes, marks: Ints, is_loss: Callable[[int], bool]) -> Ints:
    """What each of the marks is to the step."""
    kind = np.select(
        [
            np.isin(scopes.kind[marks], (FORWARD, REGION)),
            np.isin(scopes.kind[marks], (BACKWARD, EVALUATED)),
            scopes.scope[marks] == ZERO_GRAD,
        ],
        [_MODULE, _BACKWARD, _ZERO_GRAD],
        _OPTIMIZER,
    )
    losses = [number for number in np.unique(scopes.module[marks]).tolist() if number > 0]
    losses = [number for number in losses if is_loss(number)]
    kind[(kind == _MODULE) & np.isin(scopes.module[marks], losses)] = _LOSS
    return kind


def _kinds_of_others(events: HostEvents, positions: Ints) -> Ints:
    """What events outside all marks are to the step."""
    loads = events.names.where(lambda name: name.startswith(_DATALOADER))[positions]
    reads = events.names.where(lambda name: name in _READS)[positions]
    return np.select([loads, reads], [_DATA, _READ], _OTHER)


def _graph(scopes: Scopes, tops: Ints, thread: int) -> Ints:
    """Outermost events outside modules that hold an operator a backward pass goes through."""
    made = np.unique(scopes.made_by[scopes.made_by >= 0])
    made = made[scopes.events.thread[made] == thread]
    within = scopes.climb(scopes.nearest[made], (OPTIMIZED,)) == 0
    made = made[within]
    return np.unique(np.where(tops[made] > 0, tops[made] - 1, made))


def _inside(events: HostEvents, containers: Ints) -> Callable[[int, int], int]:
    """How much of the time between two moments lies inside the given events."""
    if not len(containers):
        return lambda begin, end: 0
    starts, ends = events.start[containers].tolist(), events.end[containers].tolist()
    before = [0, *np.cumsum(events.duration[containers]).tolist()]

    def until(moment: int) -> int:
        number = bisect.bisect_right(starts, moment)
        over = max(ends[number - 1] - moment, 0) if number else 0
        return int(before[number]) - over

    return lambda begin, end: until(end) - until(begin) if end > begin else 0


def _other_operators(scopes: Scopes, thread: int) -> tuple[Ints, Ints]:
    """Outermost events outside all marks; and for every event the one around it, plus 1.

    A range that holds marks (the script's own around a whole step) is looked through.
    """
    events = scopes.events
    holds = np.zeros(len(events), np.bool_)
    for level in reversed(events.levels[1:]):
        marked = level[holds[level] | (scopes.kind[level] > 0)]
        holds[events.parent[marked]] = True
    outside = (scopes.nearest == 0) & ~holds & ~events.memory & ~scopes.is_range
    outside &= events.thread == thread
    parent = events.parent
    top = np.flatnonzero(outside & ((parent < 0) | holds[np.maximum(parent, 0)]))
    numbers = np.zeros(len(events), np.int64)
    numbers[top] = top + 1
    return top, events.inherit(numbers)
