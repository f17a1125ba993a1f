"""Where every event of a slice belongs: to a module's call, a backward function, an optimizer.

Four kinds of events mark out a step: ranges of module calls, backward passes, evaluations of
single backward functions, and optimizers. Every moment belongs to the innermost mark around it,
so that the marks' own times are a partition: they add up, whatever stands inside what (a
backward pass inside a module's forward, a closure inside an optimizer, forward work done again
inside a backward pass).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from profstack.regions import (
    ACCUMULATION,
    BACKWARD_RANGE,
    MODULE_PREFIX,
    OPTIMIZER,
    OUTSIDE,
    RANGE_PREFIX,
    UNATTRIBUTED,
)
from profstack.torchtrace.events import ACCUMULATE, EVALUATE, Bools, HostEvents, Ints, forward_of

# Kinds of marks. A module called inside a backward pass does its forward again (checkpointing).
NO_MARK, FORWARD, RECOMPUTED, EVALUATED, BACKWARD, OPTIMIZED = range(6)

# torch's own ranges around `Optimizer.step` and `Optimizer.zero_grad`.
TORCH_OPTIMIZER = "Optimizer."
# Backward functions of backward functions: no derivative is of a higher order than this.
HIGHEST_ORDER = 64


@dataclass
class Scopes:
    """Marks of a slice; arrays have one entry per event, positions are kept plus 1, 0 is none.

    `nearest` is the innermost mark around an event (itself, if it is one), `above` the innermost
    one around a mark. `scope` is the module call a mark's time goes to, or below 0 the number of
    a step part; `owner` the number of its module or step part.
    """

    events: HostEvents
    module: Ints
    kind: Ints
    in_backward: Bools
    is_range: Bools
    nearest: Ints = field(init=False)
    above: Ints = field(init=False)
    made_by: Ints = field(init=False)
    scope: Ints = field(init=False)

    def __post_init__(self) -> None:
        positions = np.arange(1, len(self.events) + 1)
        self.nearest = self.events.inherit(np.where(self.kind > 0, positions, 0))
        parent = self.events.parent
        self.above = np.where(parent >= 0, self.nearest[np.maximum(parent, 0)], 0)
        called = (self.kind == FORWARD) | (self.kind == RECOMPUTED)
        self.scope = np.where(called, positions, 0)
        self.made_by = np.full(len(self.events), -1, np.int64)
        self._resolve()

    def marks(self, kind: int) -> Ints:
        """Positions of the marks of one kind."""
        return np.flatnonzero(self.kind == kind)

    def owner_of(self, scope: Ints) -> Ints:
        """Module numbers of module calls; step parts keep their number."""
        return np.where(scope > 0, self.module[np.maximum(scope - 1, 0)], scope)

    def owner(self) -> Ints:
        """The module or step part that every event belongs to, 0 for none."""
        of_mark = self.owner_of(self.scope)
        return np.where(self.nearest > 0, of_mark[np.maximum(self.nearest - 1, 0)], 0)

    def climb(self, marks: Ints, kinds: tuple[int, ...]) -> Ints:
        """From each mark (position plus 1) outwards, past marks of the given kinds."""
        marks = marks.copy()
        while True:
            passed = np.flatnonzero((marks > 0) & np.isin(self.kind[marks - 1], kinds))
            if not len(passed):
                return marks
            marks[passed] = self.above[marks[passed] - 1]

    def _resolve(self) -> None:
        """Find the scope of every backward function: where the operator that made it ran."""
        self.scope[self.kind == OPTIMIZED] = OPTIMIZER
        evaluated = self.marks(EVALUATED)
        if not len(evaluated):
            return
        made_by = forward_of(self.events, evaluated, self._may_make())
        self.made_by[evaluated] = made_by
        # What is not found but stands inside another mark's backward work goes with that.
        around = np.where(made_by >= 0, self.nearest[np.maximum(made_by, 0)], self.above[evaluated])
        around = self.climb(around, (BACKWARD,))
        by_mark = np.concatenate(([NO_MARK], self.kind))[around]
        scope = np.where(made_by >= 0, OUTSIDE, UNATTRIBUTED)
        scope = np.where((by_mark == FORWARD) | (by_mark == RECOMPUTED), around, scope)
        # Made by an operator inside another backward function: it goes where that one goes.
        waiting = by_mark == EVALUATED
        accumulates = self.events.names.where(lambda name: name == EVALUATE + ACCUMULATE)
        scope = np.where(accumulates[evaluated], ACCUMULATION, scope)
        waiting &= ~accumulates[evaluated]
        self.scope[evaluated] = np.where(waiting, 0, scope)
        for _ in range(HIGHEST_ORDER):
            if not waiting.any():
                return
            reached = self.scope[around[waiting] - 1]
            self.scope[evaluated[waiting]] = reached
            waiting[np.flatnonzero(waiting)[reached != 0]] = False
        self.scope[evaluated[waiting]] = UNATTRIBUTED

    def _may_make(self) -> Bools:
        """Events that can have made a backward function: operators, also those of a backward.

        Not the backward functions themselves, which bear their own number, not that of the next
        function to be made.
        """
        events = self.events
        parent = np.maximum(events.parent, 0)
        is_function = (self.kind[parent] == EVALUATED) & (events.parent >= 0)
        is_function &= events.sequence == events.sequence[parent]
        may: Bools = ~is_function & (self.kind != EVALUATED) & ~self.is_range & ~events.memory
        return may


def find_scopes(events: HostEvents, inside: Bools) -> Scopes:
    """The marks among the events that lie `inside` the slice."""
    names = events.names
    module = names.map(_module_number)
    is_backward = names.where(lambda name: name == BACKWARD_RANGE)
    evaluates = names.where(lambda name: name.startswith(EVALUATE))
    in_backward = events.inherit((is_backward | evaluates).astype(np.int64)) > 0
    again = np.where(events.parent >= 0, in_backward[np.maximum(events.parent, 0)], False)
    kind = np.zeros(len(events), np.int64)
    kind[module > 0] = np.where(in_backward[module > 0], RECOMPUTED, FORWARD)
    kind[evaluates] = EVALUATED
    # A pass inside another one (re-entrant) is a part of what that one was evaluating.
    kind[is_backward & ~again] = BACKWARD
    kind[names.where(is_optimizer)] = OPTIMIZED
    kind[~inside] = NO_MARK
    is_range = names.where(lambda name: name.startswith(RANGE_PREFIX))
    return Scopes(events, module, kind, in_backward, is_range)


def is_optimizer(name: str) -> bool:
    """Whether a range stands for work of an optimizer."""
    return name.startswith(TORCH_OPTIMIZER)


def own_times(scopes: Scopes) -> Ints:
    """Time of every mark less the marks directly inside it, in nanoseconds.

    Between two backward functions the engine releases the one and queues the other: that time
    goes to the one before.
    """
    events = scopes.events
    marks = np.flatnonzero(scopes.kind > 0)
    marks = marks[np.argsort(events.parent[marks], kind="stable")]
    until = events.end[marks].copy()
    parent = events.parent[marks]
    evaluated = scopes.kind[marks] == EVALUATED
    # Siblings stand next to each other now, in order of time.
    together = (parent[:-1] == parent[1:]) & (parent[:-1] >= 0) & evaluated[:-1] & evaluated[1:]
    until[:-1] = np.where(together, events.start[marks][1:], until[:-1])
    spans = np.zeros(len(events), np.int64)
    spans[marks] = until - events.start[marks]
    above = scopes.above[marks]
    inside = np.bincount(above, weights=spans[marks], minlength=len(events) + 1)[1:]
    result: Ints = spans - inside.astype(np.int64)
    return np.where(scopes.kind > 0, result, 0)


def _module_number(name: str) -> int:
    return int(name[len(MODULE_PREFIX) :]) if name.startswith(MODULE_PREFIX) else 0
