"""Marks of a slice: module calls, backward functions and optimizers that own its events.

Five kinds of events mark out a step: ranges of module calls, backward passes, evaluations of
single backward functions, optimizers, and functions that torch.compile made. Every moment
belongs to the innermost mark around it, so that the marks' own times are a partition: they add
up, whatever is nested in what (a backward pass inside a module's forward, forward work done again
inside a backward pass). What is in an optimizer's closure is as if the loop did it itself: it is
inside no mark.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from profstack.readers.torchtrace.columns import Bools, Ints
from profstack.readers.torchtrace.events import (
    ACCUMULATE,
    EVALUATE,
    HostEvents,
    around,
    forward_of,
    latest_operators,
)
from profstack.storage.vocabulary import (
    ACCUMULATION,
    BACKWARD_RANGE,
    CLOSURE_RANGE,
    COMPILED,
    MODULE_PREFIX,
    OPTIMIZER,
    OUTSIDE,
    RANGE_PREFIX,
    UNATTRIBUTED,
    ZERO_GRAD,
)

# Kinds of marks. A module called inside a backward pass does its forward again (checkpointing).
NO_MARK, FORWARD, RECOMPUTED, EVALUATED, BACKWARD, OPTIMIZED, REGION = range(7)

# torch's ranges around compiled code: around one piece of the script's code, and inside it around
# the function that autograd sees.
_COMPILED_REGION = "Torch-Compiled Region"
_COMPILED_FUNCTION = "CompiledFunction"
# Backward functions of backward functions: no derivative is of a higher order than this.
_HIGHEST_ORDER = 64


@dataclass
class Scopes:
    """Marks of a slice; arrays have one entry per event, positions are kept plus 1, 0 is none.

    `nearest` is the innermost mark around an event (itself, if it is one), `above` the innermost
    one around a mark. `scope` is the module call a mark's time goes to, or below 0 the number of
    a step part; `owner` the number of its module or step part. `closures` are the positions of
    optimizers' closures and `holders` the optimizers around them, one entry for each closure.
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
    closures: Ints = field(init=False)
    holders: Ints = field(init=False)

    def __post_init__(self) -> None:
        positions = np.arange(1, len(self.events) + 1)
        self.nearest = self.events.inherit(np.where(self.kind > 0, positions, 0))
        parent = self.events.parent
        self.above = np.where(parent >= 0, self.nearest[np.maximum(parent, 0)], 0)
        # Events are taken out of ranges that were cut off before them, at a step that is left out.
        for holders in (self.above, self.nearest):
            while True:
                outer = np.maximum(holders - 1, 0)
                past = np.flatnonzero((holders > 0) & (self.events.start > self.events.end[outer]))
                if not len(past):
                    break
                holders[past] = self.above[outer[past]]
        self._leave_closures()
        self.scope = np.where(np.isin(self.kind, (FORWARD, RECOMPUTED)), positions, 0)
        self.made_by = np.full(len(self.events), -1, np.int64)
        self._resolve()

    def _leave_closures(self) -> None:
        """Find the closures, and take what is inside them out of the optimizers' marks."""
        events, positions = self.events, np.arange(1, len(self.events) + 1)
        made = np.flatnonzero(events.names.where(lambda name: name == CLOSURE_RANGE))
        self.closures = self.holders = made
        if not len(made):
            return
        holders = self.nearest[made]
        # Not those of an optimizer's step inside a pass or a module, which has the time.
        inside = (self.kind_of(holders) == OPTIMIZED) & (self.climb(holders, (OPTIMIZED,)) == 0)
        made, holders = made[inside], holders[inside]
        # One optimizer hands its closure to another: the ranges lie in one another.
        is_closure = np.zeros(len(events), np.bool_)
        is_closure[made] = True
        above = events.inherit(np.where(is_closure, positions, 0))[np.maximum(events.parent, 0)]
        above = np.where(events.parent[made] >= 0, above[made], 0)
        inner = (above > 0) & (self.nearest[np.maximum(above - 1, 0)] == holders)
        self.closures, self.holders = made[~inner], holders[~inner]
        is_closure[made[inner]] = False
        marks = np.where(self.kind > 0, positions, 0)
        around = events.inherit(np.where(is_closure, -positions, marks))
        closure_above = np.where(events.parent >= 0, around[np.maximum(events.parent, 0)], 0)
        for nearest, innermost in ((self.nearest, around), (self.above, closure_above)):
            left = innermost < 0
            left &= events.start <= events.end[np.maximum(-innermost - 1, 0)]
            nearest[left] = 0

    def marks(self, *kinds: int) -> Ints:
        """Return the positions of the marks of these kinds."""
        return np.flatnonzero(np.isin(self.kind, kinds))

    def kind_of(self, marks: Ints) -> Ints:
        """Return the kinds of marks (positions plus 1); `NO_MARK` for 0."""
        return np.concatenate(([NO_MARK], self.kind))[marks]

    def owner_of(self, scope: Ints) -> Ints:
        """Return module numbers of module calls; step parts keep their number."""
        return np.where(scope > 0, self.module[np.maximum(scope - 1, 0)], scope)

    def owner(self) -> Ints:
        """Return the module or step part that every event belongs to, 0 for none."""
        of_mark = self.owner_of(self.scope)
        return np.where(self.nearest > 0, of_mark[np.maximum(self.nearest - 1, 0)], 0)

    def climb(self, marks: Ints, kinds: tuple[int, ...]) -> Ints:
        """Go outwards from each mark (position plus 1), past marks of the given kinds."""
        marks = marks.copy()
        while True:
            passed = np.flatnonzero((marks > 0) & np.isin(self.kind[marks - 1], kinds))
            if not len(passed):
                return marks
            marks[passed] = self.above[marks[passed] - 1]

    def _resolve(self) -> None:
        """Find the scope of every backward function: where the operator that made it ran."""
        self.scope[self.kind == OPTIMIZED] = OPTIMIZER
        zeroes = self.events.names.where(lambda name: name.startswith("Optimizer.zero_grad"))
        self.scope[(self.kind == OPTIMIZED) & zeroes] = ZERO_GRAD
        self.scope[self.kind == REGION] = COMPILED
        self._resolve_passes()
        evaluated = self.marks(EVALUATED)
        if not len(evaluated):
            return
        made_by = forward_of(self.events, evaluated, self._may_make())
        # Numbers start anew on each thread; nothing is made by what begins after it.
        starts = self.events.start
        made_by[starts[np.maximum(made_by, 0)] >= starts[evaluated]] = -1
        self._look_before(evaluated, made_by)
        self.made_by[evaluated] = made_by
        # A function whose maker is not found belongs to the backward work around it.
        around = np.where(made_by >= 0, self.nearest[np.maximum(made_by, 0)], self.above[evaluated])
        around = self.climb(around, (BACKWARD,))
        by_mark = self.kind_of(around)
        scope = np.where(made_by >= 0, OUTSIDE, UNATTRIBUTED)
        scope = np.where(np.isin(by_mark, (FORWARD, RECOMPUTED)), around, scope)
        scope = np.where(by_mark == REGION, COMPILED, scope)
        # Made by an operator inside another backward function: it goes where that one goes.
        names = self.events.names
        accumulates = names.where(lambda name: name == EVALUATE + ACCUMULATE)[evaluated]
        scope = np.where(accumulates, ACCUMULATION, scope)
        waiting = (by_mark == EVALUATED) & ~accumulates
        self.scope[evaluated] = np.where(waiting, 0, scope)
        for _ in range(_HIGHEST_ORDER):
            if not waiting.any():
                return
            reached = self.scope[around[waiting] - 1]
            self.scope[evaluated[waiting]] = reached
            waiting[np.flatnonzero(waiting)[reached != 0]] = False
        self.scope[evaluated[waiting]] = UNATTRIBUTED

    def _resolve_passes(self) -> None:
        """Give a pass's own time, before its first function, to the module that started it.

        Outside every module it is the loss's, unless no function was seen inside the pass.
        """
        passes = self.marks(BACKWARD)
        if not len(passes):
            return
        outer = self.climb(self.above[passes], (BACKWARD, OPTIMIZED, EVALUATED))
        called = np.isin(self.kind_of(outer), (FORWARD, RECOMPUTED))
        starts = np.sort(self.events.start[self.kind == EVALUATED])
        begun = np.searchsorted(starts, self.events.start[passes])
        ended = np.searchsorted(starts, self.events.end[passes], side="right")
        unseen = np.where(ended > begun, OUTSIDE, UNATTRIBUTED)
        self.scope[passes] = np.where(called, outer, unseen)

    def _look_before(self, evaluated: Ints, made_by: Ints) -> None:
        """Find the makers of functions whose number no operator has; fills in `made_by`.

        One operator may make several functions (a write to a part of a tensor makes two), each
        with a number of its own, and has the number of the first.
        """
        events = self.events
        missing = np.flatnonzero((made_by < 0) & (events.sequence[evaluated] >= 0))
        functions = evaluated[missing]
        threads, numbers = events.integers("fwd_thread_id", functions), events.sequence[functions]
        # Not among operators of a backward pass: functions inside functions have their own number.
        may = self._may_make() & ~self.in_backward
        found = latest_operators(events, may, threads, numbers)
        known = (found >= 0) & (events.thread[found] == threads)
        known &= events.end[found] <= events.start[functions]
        made_by[missing[known]] = found[known]

    def _may_make(self) -> Bools:
        """Return the events that can have made a backward function: operators, also of a backward.

        Not the backward functions themselves, which have their own number, not that of the next
        function to be made.
        """
        events = self.events
        parent = np.maximum(events.parent, 0)
        is_function = (self.kind[parent] == EVALUATED) & (events.parent >= 0)
        is_function &= events.sequence == events.sequence[parent]
        may: Bools = ~is_function & (self.kind != EVALUATED) & ~self.is_range & ~events.memory
        return may


def find_scopes(events: HostEvents, inside: Bools) -> Scopes:
    """Find the marks among the events that are `inside` the slice."""
    names = events.names
    module = names.map(
        lambda name: int(name[len(MODULE_PREFIX) :]) if name.startswith(MODULE_PREFIX) else 0
    )
    is_backward = names.where(lambda name: name == BACKWARD_RANGE)
    evaluates = names.where(lambda name: name.startswith(EVALUATE))
    in_backward = events.inherit((is_backward | evaluates).astype(np.int64)) > 0
    again = np.where(events.parent >= 0, in_backward[np.maximum(events.parent, 0)], False)
    kind = np.zeros(len(events), np.int64)
    # Calls of modules inside a compiled function belong to its graph, not to the script.
    functions = names.where(lambda name: name.startswith(_COMPILED_FUNCTION))
    called = (module > 0) & (events.inherit(functions.astype(np.int64)) == 0)
    kind[called] = np.where(in_backward[called], RECOMPUTED, FORWARD)
    kind[evaluates] = EVALUATED
    # A pass inside another one (re-entrant) is a part of what that one was evaluating.
    kind[is_backward & ~again] = BACKWARD
    # torch's own ranges around `Optimizer.step` and `Optimizer.zero_grad`.
    kind[names.where(lambda name: name.startswith("Optimizer."))] = OPTIMIZED
    regions = np.flatnonzero(
        names.where(lambda name: name == _COMPILED_FUNCTION or name.startswith(_COMPILED_REGION))
    )
    if len(regions):
        outermost = around(events, np.concatenate((np.flatnonzero(kind), regions)))[regions] == 0
        kind[regions[outermost]] = REGION
    kind[~inside] = NO_MARK
    is_range = names.where(lambda name: name.startswith(RANGE_PREFIX))
    return Scopes(events, module, kind, in_backward, is_range)
