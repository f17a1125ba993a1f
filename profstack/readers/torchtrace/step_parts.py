"""The parts of a step that no module's call, backward pass or optimizer covers.

The part follows from what comes before and after it on the thread that makes the steps:

- wait: before a module's call, at the start of a step or after a backward pass or an optimizer's
  step (for data, mostly); and in the ranges of a DataLoader;
- loss: between a module's call and the backward pass after it, from the first to the last
  operator that the pass goes through, or module of a loss;
- before the optimizer: between a backward pass and the optimizer's step after it, where gradients
  are clipped or unscaled, from the first to the last operator, but for those that read a value for
  the script;
- outside modules: operators, also those that a backward pass goes through but that come before
  every module's call of their step (the forward of a function);
- unattributed: the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import NamedTuple

import numpy as np

from profstack.readers.device_gaps import Intervals
from profstack.readers.torchtrace.columns import Bools, Ints
from profstack.readers.torchtrace.events import holding
from profstack.readers.torchtrace.scopes import (
    BACKWARD,
    EVALUATED,
    FORWARD,
    OPTIMIZED,
    REGION,
    Scopes,
)
from profstack.storage.vocabulary import (
    BEFORE_OPTIMIZER,
    LOSS,
    OPTIMIZER,
    OUTSIDE,
    UNATTRIBUTED,
    WAIT,
    ZERO_GRAD,
)

# Items of the steps' thread, in order -----------------------------------------------------------
#
# Items are the outermost marks (calls of modules, backward passes, steps of optimizers) and the
# outermost operators outside all of them.

# Kinds of items. A graph is one that a backward pass goes through: its beginning and its end are
# moments of their own.
OTHER_ITEM, READ_ITEM, DATA_ITEM, GRAPH_ITEM, GRAPH_END_ITEM = range(5)
ZERO_GRAD_ITEM, LOSS_ITEM, MODULE_ITEM, BACKWARD_ITEM, OPTIMIZER_ITEM = range(5, 10)
# A closure that its optimizer calls once more: no data is waited for before it.
AGAIN_ITEM = 10
# Operators that hand a number to Python, as logging does.
_READS = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"})


@dataclass
class StepItems:
    """Items on the steps' own thread, in order; and when optimizers worked around their closures,
    which have items inside.
    """

    start: Ints
    end: Ints
    kind: Ints
    around_closures: Intervals


def step_items(scopes: Scopes, is_loss: Callable[[int], bool], thread: int) -> StepItems:
    """Find the items of the steps, in order.

    Optimizers with module calls or backward passes inside (closures) are no items themselves, but
    the calls inside them are.
    """
    events = scopes.events
    marks = np.flatnonzero((scopes.kind > 0) & (events.thread == thread))
    around = scopes.climb(scopes.above[marks], (OPTIMIZED,))
    marks, inner = marks[around == 0], scopes.above[marks][around == 0] - 1
    is_optimizer = scopes.kind[marks] == OPTIMIZED
    closures = np.zeros(len(events), np.bool_)
    closures[inner[~is_optimizer & (inner >= 0)]] = True
    closures[scopes.holders - 1] = True
    known = -1
    while known != (known := int(closures.sum())):
        # One optimizer's step may be inside another's.
        within = marks[closures[marks] & (scopes.above[marks] > 0)]
        closures[scopes.above[within] - 1] = True
    leaf = is_optimizer & ~closures[marks] & ((inner < 0) | closures[inner])
    others, tops = _other_operators(scopes, thread)
    marked = marks[~is_optimizer | leaf]
    graph = _graph(scopes, tops, thread)
    # torch's own range around the wait for a batch.
    loads = events.names.where(lambda name: name.startswith("enumerate(DataLoader)"))[others]
    reads = events.names.where(lambda name: name in _READS)[others]
    other_kinds = np.select([loads, reads], [DATA_ITEM, READ_ITEM], OTHER_ITEM)
    # What an optimizer does after its closure is its mark's.
    ended, again = (
        times[closures[events.thread[closures] == thread]]
        for times, closures in (
            (events.end, scopes.closures),
            (events.start, _called_again(scopes)),
        )
    )
    pieces = (
        (events.start[graph], events.start[graph], np.full(len(graph), GRAPH_ITEM)),
        (events.end[graph], events.end[graph], np.full(len(graph), GRAPH_END_ITEM)),
        (events.start[marked], events.end[marked], _kinds(scopes, marked, is_loss)),
        (events.start[others], events.end[others], other_kinds),
        (ended, ended, np.full(len(ended), OPTIMIZER_ITEM)),
        (again, again, np.full(len(again), AGAIN_ITEM)),
    )
    start, end, kind = (np.concatenate(column) for column in zip(*pieces, strict=True))
    order = np.lexsort((~np.isin(kind, (GRAPH_ITEM, GRAPH_END_ITEM)), start))
    start, end, kind = start[order], end[order], kind[order]
    containers = marks[(inner < 0) & closures[marks]]
    return StepItems(start, end, kind, _around_closures(scopes, containers))


def _called_again(scopes: Scopes) -> Ints:
    """Return the closures that are not the first one of their optimizer's step."""
    order = np.lexsort((scopes.events.start[scopes.closures], scopes.holders))
    holders = scopes.holders[order]
    again: Ints = scopes.closures[order][1:][holders[1:] == holders[:-1]]
    return again


def _around_closures(scopes: Scopes, containers: Ints) -> Intervals:
    """Return the times in optimizers with items inside, without their closures where known."""
    events, tops = scopes.events, scopes.holders - 1
    while (inner := scopes.above[tops] > 0).any():
        tops[inner] = scopes.above[tops[inner]] - 1
    here = np.isin(tops, containers)
    closures, tops = scopes.closures[here], tops[here]
    # From the begin of an optimizer, or the end of a closure, to the next such edge.
    of = np.concatenate((containers, tops))
    begins = np.concatenate((events.start[containers], events.end[closures]))
    ends = np.concatenate((events.end[containers], events.start[closures]))
    begins, ends = begins[np.lexsort((begins, of))], ends[np.lexsort((ends, of))]
    return Intervals.united(begins, ends)


def _kinds(scopes: Scopes, marks: Ints, is_loss: Callable[[int], bool]) -> Ints:
    """Return the kind of item that each mark is."""
    kind = np.select(
        [
            np.isin(scopes.kind[marks], (FORWARD, REGION)),
            np.isin(scopes.kind[marks], (BACKWARD, EVALUATED)),
            scopes.scope[marks] == ZERO_GRAD,
        ],
        [MODULE_ITEM, BACKWARD_ITEM, ZERO_GRAD_ITEM],
        OPTIMIZER_ITEM,
    )
    modules = np.unique(scopes.module[marks]).tolist()
    losses = [number for number in modules if number > 0 and is_loss(number)]
    kind[(kind == MODULE_ITEM) & np.isin(scopes.module[marks], losses)] = LOSS_ITEM
    return kind


def _graph(scopes: Scopes, tops: Ints, thread: int) -> Ints:
    """Find the outermost events outside modules with an operator a backward pass goes through."""
    made = np.unique(scopes.made_by[scopes.made_by >= 0])
    made = made[scopes.events.thread[made] == thread]
    made = made[scopes.climb(scopes.nearest[made], (OPTIMIZED,)) == 0]
    return np.unique(np.where(tops[made] > 0, tops[made] - 1, made))


def _other_operators(scopes: Scopes, thread: int) -> tuple[Ints, Ints]:
    """Find the outermost events outside all marks; and for every event the one around it, plus 1.

    Ranges that hold marks (the script's own around a whole step) and regions are left out.
    """
    events = scopes.events
    holds = holding(events, np.flatnonzero(scopes.kind > 0)) | scopes.is_range
    outside = (scopes.nearest == 0) & ~holds & ~events.memory
    outside &= events.thread == thread
    top = np.flatnonzero(outside & ((events.parent < 0) | holds[np.maximum(events.parent, 0)]))
    numbers = np.zeros(len(events), np.int64)
    numbers[top] = top + 1
    return top, events.inherit(numbers)


@dataclass
class StepParts:
    """Times of the step parts in nanoseconds, and when the losses were computed."""

    times: dict[int, int]
    losses: list[tuple[int, int]] = field(default_factory=list)

    def in_loss(self, times: Ints) -> Bools:
        """Return which times are between a forward and the backward after it."""
        if not self.losses:
            return np.zeros(len(times), np.bool_)
        begins, ends = np.array(self.losses, np.int64).T
        position = np.maximum(np.searchsorted(begins, times, side="right") - 1, 0)
        inside: Bools = (times >= begins[position]) & (times <= ends[position])
        return inside


class _Sums(NamedTuple):
    """Time without any event, in operators, and inside an optimizer around."""

    idle: int = 0
    operators: int = 0
    optimizer: int = 0

    def plus(self, idle: int = 0, operators: int = 0, optimizer: int = 0) -> _Sums:
        """Return the sums after more time."""
        return _Sums(self.idle + idle, self.operators + operators, self.optimizer + optimizer)

    def since(self, earlier: _Sums) -> _Sums:
        """Return the sums without those of an earlier moment."""
        return _Sums(*map(sub, self, earlier))


@dataclass
class _WorkSpan:
    """Sums of a gap when a kind of work first began, and when it last ended."""

    first: _Sums | None = None
    last: _Sums | None = None

    def inside(self) -> _Sums:
        """Return the sums between the two moments."""
        return self.last.since(self.first) if self.first and self.last else _Sums()


@dataclass
class _Gap:
    """Sums since the last module call, backward pass or optimizer's step.

    `graph` is from the first operator to the last that a backward pass goes through, `work` of
    all operators but those that read a value.
    """

    begin: int
    sums: _Sums = field(default_factory=_Sums)
    graph: _WorkSpan = field(default_factory=_WorkSpan)
    work: _WorkSpan = field(default_factory=_WorkSpan)


def divide(
    scopes: Scopes,
    boundaries_ns: Sequence[int],
    is_loss: Callable[[int], bool],
    left_out: Collection[int],
    thread: int,
) -> StepParts:
    """Divide the time outside the marks of the steps' `thread` among the parts, step by step."""
    line = step_items(scopes, is_loss, thread)
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


class _Step:
    """Divides one step, from `at` to its end; `last` is the kind of the last item."""

    def __init__(self, parts: StepParts, line: StepItems, at: int) -> None:
        self.parts = parts
        self.line = line
        self.at = at
        self.last: int | None = None
        self.modules = False
        self.gap = _Gap(at)

    def divide(self, items: slice, end: int) -> int:
        """Go through the items of the step, which ends at `end`; return the time then reached."""
        line = self.line
        columns = (line.start[items], line.end[items], line.kind[items])
        for start, until, kind in zip(*(column.tolist() for column in columns), strict=True):
            self._pass_to(start)
            # A compiler's ranges end inside one another.
            taken = max(until - max(self.at, start), 0)
            self.at = max(self.at, until)
            self._add_item(kind, start, taken)
        self._pass_to(end)
        self._add_rest(self.gap.sums)
        return self.at

    def _add_item(self, kind: int, start: int, taken: int) -> None:
        """Add an item that begins at `start` and took that much of the time."""
        gap = self.gap
        if kind == OTHER_ITEM:
            gap.work.first = gap.work.first or gap.sums
            gap.work.last = gap.sums = gap.sums.plus(operators=taken)
        elif kind == READ_ITEM:
            gap.sums = gap.sums.plus(operators=taken)
        elif kind == DATA_ITEM:
            self.parts.times[WAIT] += taken
        elif kind == GRAPH_ITEM or (kind == LOSS_ITEM and self.last == MODULE_ITEM):
            gap.graph.first = gap.graph.first or gap.sums
            if kind == LOSS_ITEM:
                gap.graph.last = gap.sums
        elif kind == GRAPH_END_ITEM:
            # It may have begun before the gap.
            gap.graph.last = gap.graph.first and gap.sums
        elif kind == AGAIN_ITEM:
            self._add_rest(gap.sums)
            self.gap, self.last = _Gap(self.at), MODULE_ITEM
        elif kind != ZERO_GRAD_ITEM:
            self._close(MODULE_ITEM if kind == LOSS_ITEM else kind, start)

    def _pass_to(self, moment: int) -> None:
        """Add the time without any event up to `moment`."""
        if moment <= self.at:
            return
        idle, closure = moment - self.at, 0
        if len((around := self.line.around_closures).start):
            closure = int(around.inside(np.array([self.at]), np.array([moment]))[0])
        self.gap.sums = self.gap.sums.plus(idle=idle - closure, optimizer=closure)

    def _close(self, kind: int, now: int) -> None:
        """Divide the gap that ends where an item of this kind begins."""
        times, gap = self.parts.times, self.gap
        if kind == OPTIMIZER_ITEM and self.last in (BACKWARD_ITEM, OPTIMIZER_ITEM):
            work = gap.work.inside()
            times[BEFORE_OPTIMIZER] += work.idle + work.operators
            self._add_rest(gap.sums.since(work))
        elif kind == BACKWARD_ITEM and self.modules:
            loss = gap.graph.inside()
            times[LOSS] += loss.idle + loss.operators + loss.optimizer
            # The loss inside a closure is no work of the optimizer around it.
            times[OPTIMIZER] -= loss.optimizer
            self._add_rest(gap.sums.since(loss))
            self.parts.losses.append((gap.begin, now))
        elif kind != OPTIMIZER_ITEM and self.last != MODULE_ITEM:
            # Before the first operator of a graph, and from it on.
            waited = gap.graph.first or gap.sums
            function = gap.sums.since(waited)
            times[WAIT] += waited.idle + waited.operators
            times[OUTSIDE] += function.idle + function.operators + function.optimizer
            times[OPTIMIZER] -= function.optimizer
        else:
            self._add_rest(gap.sums)
        self.modules = self.modules or kind == MODULE_ITEM
        self.last = kind
        self.gap = _Gap(self.at)

    def _add_rest(self, rest: _Sums) -> None:
        self.parts.times[OUTSIDE] += rest.operators
        self.parts.times[UNATTRIBUTED] += rest.idle
