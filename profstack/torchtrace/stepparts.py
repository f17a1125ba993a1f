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

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from profstack.regions import BEFORE_OPTIMIZER, LOSS, OPTIMIZER, OUTSIDE, UNATTRIBUTED, WAIT
from profstack.torchtrace.events import Bools, Ints
from profstack.torchtrace.scopes import Scopes
from profstack.torchtrace.stepitems import (
    BACKWARD_ITEM,
    DATA_ITEM,
    GRAPH_END_ITEM,
    GRAPH_ITEM,
    LOSS_ITEM,
    MODULE_ITEM,
    OPTIMIZER_ITEM,
    OTHER_ITEM,
    READ_ITEM,
    ZERO_GRAD_ITEM,
    StepItems,
    step_items,
)


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
    """One step on its way from `at` to its end; `last` is the kind of what it did last."""

    def __init__(self, parts: StepParts, line: StepItems, at: int) -> None:
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
        if kind == OTHER_ITEM:
            gap.work.begin(gap.sums)
            gap.sums.operators += taken
            gap.work.end(gap.sums)
        elif kind == READ_ITEM:
            gap.sums.operators += taken
        elif kind == DATA_ITEM:
            self.parts.times[WAIT] += taken
        elif kind == GRAPH_ITEM or (kind == LOSS_ITEM and self.last == MODULE_ITEM):
            gap.graph.begin(gap.sums)
            if kind == LOSS_ITEM:
                gap.graph.end(gap.sums)
        elif kind == GRAPH_END_ITEM:
            gap.graph.end(gap.sums)
        elif kind != ZERO_GRAD_ITEM:
            self._close(MODULE_ITEM if kind == LOSS_ITEM else kind, start)

    def _pass_to(self, moment: int) -> None:
        """Nothing was seen until then."""
        closure = self.line.inside_optimizer(self.at, moment)
        self.gap.sums.idle += max(moment - self.at, 0) - closure
        self.gap.sums.optimizer += closure

    def _close(self, kind: int, now: int) -> None:
        """Something of this kind begins: what the gap before it was is known now."""
        times, gap = self.parts.times, self.gap
        if kind == OPTIMIZER_ITEM and self.last in (BACKWARD_ITEM, OPTIMIZER_ITEM):
            work = gap.work.inside()
            times[BEFORE_OPTIMIZER] += work.idle + work.operators
            self._nobodys(gap.sums - work)
        elif kind == BACKWARD_ITEM and self.modules:
            loss = gap.graph.inside()
            times[LOSS] += loss.idle + loss.operators + loss.optimizer
            # The loss inside a closure is no work of the optimizer around it.
            times[OPTIMIZER] -= loss.optimizer
            self._nobodys(gap.sums - loss)
            self.parts.loss_from.append(gap.begin)
            self.parts.loss_until.append(now)
        elif kind != OPTIMIZER_ITEM and self.last != MODULE_ITEM:
            waited, function = gap.parted()
            times[WAIT] += waited.idle + waited.operators
            times[OUTSIDE] += function.idle + function.operators + function.optimizer
            times[OPTIMIZER] -= function.optimizer
        else:
            self._nobodys(gap.sums)
        self.modules = self.modules or kind == MODULE_ITEM
        self.last = kind
        self.gap = _Gap(self.at)

    def _nobodys(self, rest: _Sums) -> None:
        self.parts.times[OUTSIDE] += rest.operators
        self.parts.times[UNATTRIBUTED] += rest.idle
