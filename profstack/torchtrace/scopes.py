"""Where every event of a slice belongs: to a module's call, a backward function, an optimizer.

Five kinds of events mark out a step: ranges of module calls, backward passes, evaluations of
single backward functions, optimizers, and what torch.compile made of a function. Every moment
belongs to the innermost mark around it, so that the marks' own times are a partition: they add
up, whatever stands inside what (a backward pass inside a module's forward, a closure inside an
optimizer, forward work done again inside a backward pass).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from profstack.regions import (
    ACCUMULATION,
    BACKWARD_RANGE,
    COMPILED,
    MODULE_PREFIX,
    OPTIMIZER,
    OUTSIDE,
    RANGE_PREFIX,
    UNATTRIBUTED,
    ZERO_GRAD,
)
from profstack.torchtrace.events import (
    ACCUMULATE,
    EVALUATE,
    Bools,
    HostEvents,
    Ints,
    around,
    forward_of,
    integers,
)

# Kinds of marks. A module called inside a backward pass does its forward again (checkpointing).
NO_MARK, FORWARD, RECOMPUTED, EVALUATED, BACKWARD, OPTIMIZED, REGION = range(7)

# torch's own ranges around `Optimizer.step` and `Optimizer.zero_grad`.
TORCH_OPTIMIZER = "Optimizer."
TORCH_ZERO_GRAD = "Optimizer.zero_grad"
# torch's ranges around what a compiler made: of one piece of the script's code, and inside it of
# what autograd sees as one function.
COMPILED_REGION = "Torch-Compiled Region"
COMPILED_FUNCTION = "CompiledFunction"
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
        self._leave_what_was_cut_off()
        called = (self.kind == FORWARD) | (self.kind == RECOMPUTED)
        self.scope = np.where(called, positions, 0)
        self.made_by = np.full(len(self.events), -1, np.int64)
        self._resolve()

    def _leave_what_was_cut_off(self) -> None:
        """A range over a step that does not count ends before it, and holds nothing after it."""
        events = self.events
        for holders in (self.above, self.nearest):
            while True:
                outer = np.maximum(holders - 1, 0)
                past = np.flatnonzero((holders > 0) & (events.start > events.end[outer]))
                if not len(past):
                    break
                holders[past] = self.above[outer[past]]

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
        zeroes = self.events.names.where(lambda name: name.startswith(TORCH_ZERO_GRAD))
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
        # What is not found but stands inside another mark's backward work goes with that.
        around = np.where(made_by >= 0, self.nearest[np.maximum(made_by, 0)], self.above[evaluated])
        around = self.climb(around, (BACKWARD,))
        by_mark = np.concatenate(([NO_MARK], self.kind))[around]
        scope = np.where(made_by >= 0, OUTSIDE, UNATTRIBUTED)
        scope = np.where((by_mark == FORWARD) | (by_mark == RECOMPUTED), around, scope)
        scope = np.where(by_mark == REGION, COMPILED, scope)
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

    def _resolve_passes(self) -> None:
        """A pass's own time, before its first function, goes to the module that asked for it.

        Outside every module it is the loss's, unless no function was seen inside the pass.
        """
        passes = self.marks(BACKWARD)
        if not len(passes):
            return
        outer = self.climb(self.above[passes], (BACKWARD, OPTIMIZED, EVALUATED))
        called = np.isin(self.kind[np.maximum(outer - 1, 0)], (FORWARD, RECOMPUTED)) & (outer > 0)
        starts = np.sort(self.events.start[self.kind == EVALUATED])
        begun = np.searchsorted(starts, self.events.start[passes])
        ended = np.searchsorted(starts, self.events.end[passes], side="right")
        unseen = np.where(ended > begun, OUTSIDE, UNATTRIBUTED)
        self.scope[passes] = np.where(called, outer, unseen)

    def _look_before(self, evaluated: Ints, made_by: Ints) -> None:
        """Find what made functions whose number no operator bears; fills in `made_by`.

        One operator may make several functions (a write to a part of a tensor makes two), each
        with a number of its own, and bears that of the first.
        """
        missing = np.flatnonzero((made_by < 0) & (self.events.sequence[evaluated] >= 0))
        # Not among what a backward pass runs: functions inside functions bear their own number.
        may = self._may_make() & ~self.in_backward & (self.events.sequence >= 0)
        candidates = np.flatnonzero(may)
        if not len(missing) or not len(candidates):
            return
        keys = (self.events.thread[candidates] << 44) + self.events.sequence[candidates]
        order = np.lexsort((self.events.start[candidates], keys))
        keys, candidates = keys[order], candidates[order]
        functions = evaluated[missing]
        threads = integers(self.events.raw(functions), "fwd_thread_id")
        wanted = (threads << 44) + self.events.sequence[functions]
        position = np.searchsorted(keys, wanted, side="right") - 1
        found = np.maximum(position, 0)
        known = (position >= 0) & (self.events.thread[candidates[found]] == threads)
        known &= self.events.end[candidates[found]] <= self.events.start[functions]
        made_by[missing[known]] = candidates[found[known]]

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
    called = (module > 0) & ~_made_by_compiler(events)
    kind[called] = np.where(in_backward[called], RECOMPUTED, FORWARD)
    kind[evaluates] = EVALUATED
    # A pass inside another one (re-entrant) is a part of what that one was evaluating.
    kind[is_backward & ~again] = BACKWARD
    kind[names.where(is_optimizer)] = OPTIMIZED
    regions = np.flatnonzero(names.where(_is_compiled))
    if len(regions):
        outermost = around(events, np.concatenate((np.flatnonzero(kind), regions)))[regions] == 0
        kind[regions[outermost]] = REGION
    kind[~inside] = NO_MARK
    is_range = names.where(lambda name: name.startswith(RANGE_PREFIX))
    return Scopes(events, module, kind, in_backward, is_range)


def _is_compiled(name: str) -> bool:
    return name == COMPILED_FUNCTION or name.startswith(COMPILED_REGION)


def _made_by_compiler(events: HostEvents) -> Bools:
    """Calls of modules inside a compiled function: its graph, which the script does not know."""
    functions = events.names.where(lambda name: name.startswith(COMPILED_FUNCTION))
    return events.inherit(functions.astype(np.int64)) > 0


def is_optimizer(name: str) -> bool:
    """Whether a range stands for work of an optimizer."""
    return name.startswith(TORCH_OPTIMIZER)


def _module_number(name: str) -> int:
    return int(name[len(MODULE_PREFIX) :]) if name.startswith(MODULE_PREFIX) else 0
