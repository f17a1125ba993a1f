"""What a block of memory was for, by where it was taken and what it outlived.

A block has one kind for all its life, and its owner is the innermost mark around the operator that
took it: a module's call, a backward function (which belongs to the module whose forward made it)
or an optimizer. What outlives the pass that took it tells the rest: an activation is alive when the
backward pass begins, a gradient when it ends, optimizer state when the optimizer has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from profstack.regions import (
    ACCUMULATION,
    BEFORE_OPTIMIZER,
    LOSS,
    OPTIMIZER,
    OUTSIDE,
    UNATTRIBUTED,
    WAIT,
    ZERO_GRAD,
)
from profstack.torchtrace.allocations import Blocks
from profstack.torchtrace.attribution import Attribution
from profstack.torchtrace.events import Bools, Ints
from profstack.torchtrace.scopes import (
    BACKWARD,
    EVALUATED,
    FORWARD,
    OPTIMIZED,
    RECOMPUTED,
    REGION,
)

PARAMETERS = "parameters"
GRADIENTS = "gradients"
OPTIMIZER_STATE = "optimizer state"
ACTIVATIONS = "activations"
TEMPORARIES = "temporaries"
INPUTS = "inputs"
BUFFERS = "buffers"
HELD = "held by the script"
NOBODY = "not attributed"
KINDS = (
    *(PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, TEMPORARIES),
    *(INPUTS, BUFFERS, HELD, NOBODY),
)
NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
# Parts of a step in which an optimizer works.
_OPTIMIZERS = (OPTIMIZER, ZERO_GRAD)
_NOTHING, _CALL, _LOSS_CALL, _PASS, _UPDATE, _EMPTYING = range(6)


@dataclass
class Timeline:
    """What follows what in a slice: outermost calls, backward passes and optimizers.

    All times in nanoseconds. `starts`, `ends` and `what` are in order of time; `calls` and
    `passes` are those of the outermost calls and of the backward passes alone, as (starts, ends).
    """

    starts: Ints
    ends: Ints
    what: Ints
    calls: tuple[Ints, Ints]
    passes: tuple[Ints, Ints]
    steps: Ints

    def begins_next(self, times: Ints) -> Ints:
        """The beginning of the next backward pass in the same step; the last number for none."""
        starts = self.passes[0]
        at = np.searchsorted(starts, times, side="right")
        found = np.append(starts, _NEVER)[at]
        step = np.searchsorted(self.steps, times, side="right")
        until = np.append(self.steps, _NEVER)[step]
        return np.where(found < until, found, _NEVER)

    def around(self, times: Ints) -> tuple[Ints, Ints]:
        """What was last before each time and what comes next, in the same step."""
        step = np.searchsorted(self.steps, times, side="right")
        edges = np.concatenate(([-_NEVER], self.steps, [_NEVER]))
        at = np.searchsorted(self.starts, times, side="right")
        starts = np.concatenate(([-_NEVER], self.starts, [_NEVER]))
        what = np.concatenate(([_NOTHING], self.what, [_NOTHING]))
        before = np.where(starts[at] >= edges[step], what[at], _NOTHING)
        after = np.where(starts[at + 1] < edges[step + 1], what[at + 1], _NOTHING)
        return before, after

    def loses_next(self, times: Ints) -> Bools:
        """Whether what comes next after each time, but for optimizers, is a loss or a pass."""
        after = self.without_updates().around(times)[1]
        return np.isin(after, (_PASS, _LOSS_CALL))

    def without_updates(self) -> Timeline:
        """The same as if there were no optimizers."""
        return self._without(_UPDATE, _EMPTYING)

    def without_emptying(self) -> Timeline:
        """The same as if no gradients were set to zero, which may be done anywhere."""
        return self._without(_EMPTYING)

    def _without(self, *kinds: int) -> Timeline:
        kept = ~np.isin(self.what, kinds)
        return replace(self, starts=self.starts[kept], ends=self.ends[kept], what=self.what[kept])

    def is_active(self, times: Ints) -> Bools:
        """Whether a call or a backward pass has begun in the step before each time."""
        begun = self.without_updates().starts
        step = np.searchsorted(self.steps, times, side="right")
        from_ = np.concatenate(([-_NEVER], self.steps))[step]
        at = np.searchsorted(begun, times, side="right")
        active: Bools = at > np.searchsorted(begun, from_)
        return active


_NEVER = np.iinfo(np.int64).max


def timeline(
    owned: Attribution, boundaries_ns: Sequence[int], is_loss: Callable[[int], bool]
) -> Timeline:
    """The outermost marks of a slice."""
    scopes, events = owned.scopes, owned.events
    inner = (BACKWARD, EVALUATED, OPTIMIZED, RECOMPUTED)
    forward = np.flatnonzero(np.isin(scopes.kind, (FORWARD, REGION)))
    forward = forward[scopes.climb(scopes.above[forward], inner) == 0]
    losses = [number for number in np.unique(scopes.module[forward]).tolist() if is_loss(number)]
    is_loss_call = np.isin(scopes.module[forward], losses)
    backward = np.flatnonzero(owned.in_backward & (scopes.kind > 0))
    above = scopes.above[backward]
    backward = backward[(above == 0) | ~owned.in_backward[np.maximum(above - 1, 0)]]
    backward = backward[np.argsort(events.start[backward], kind="stable")]
    passes = _merged(events.start[backward], events.end[backward], events.start[forward])
    updates = scopes.marks(OPTIMIZED)
    updates = updates[scopes.above[updates] == 0]
    starts = np.concatenate((events.start[forward], passes[0], events.start[updates]))
    ends = np.concatenate((events.end[forward], passes[1], events.end[updates]))
    what = np.concatenate(
        (
            np.where(is_loss_call, _LOSS_CALL, _CALL),
            np.full(len(passes[0]), _PASS),
            np.where(scopes.scope[updates] == ZERO_GRAD, _EMPTYING, _UPDATE),
        )
    )
    order = np.argsort(starts, kind="stable")
    calls = forward[np.argsort(events.start[forward], kind="stable")]
    return Timeline(
        starts[order],
        ends[order],
        what[order],
        (events.start[calls], events.end[calls]),
        passes,
        np.array(boundaries_ns, np.int64),
    )


def _merged(starts: Ints, ends: Ints, calls: Ints) -> tuple[Ints, Ints]:
    """Backward passes: functions without a range around them are one until a module is called."""
    if not len(starts):
        return starts, ends
    reached = np.maximum.accumulate(ends)
    called = np.searchsorted(np.sort(calls), starts)
    apart = (starts[1:] > reached[:-1]) & (called[1:] > called[:-1])
    first = np.concatenate(([True], apart))
    last = np.concatenate((apart, [True]))
    return starts[first], reached[last]


@dataclass
class Owned:
    """For every block its kind (a number of `KINDS`), who took it, and whether in a backward pass.

    `owner` is a module's number or a step part's, 0 for nobody's.
    """

    kind: Ints
    owner: Ints
    backward: Bools

    def with_(self, other: Owned) -> Owned:
        """These and the others after them."""
        return Owned(
            np.concatenate((self.kind, other.kind)),
            np.concatenate((self.owner, other.owner)),
            np.concatenate((self.backward, other.backward)),
        )


def classify(owned: Attribution, blocks: Blocks, when: Timeline) -> Owned:
    """Kinds and owners of the blocks that were taken in the slice."""
    seen = blocks.position >= 0
    at = np.maximum(blocks.position, 0)
    scopes, events = owned.scopes, owned.events
    if not len(events):
        return Owned(
            np.full(len(blocks), NUMBERS[NOBODY]), np.zeros(len(blocks), np.int64), ~seen & False
        )
    begin, end = blocks.begin, blocks.end
    backward = owned.in_backward[at] & seen
    before = when.around(begin)[0]
    work_after = when.without_updates().around(begin)[1]
    owner = np.where(seen, owned.owner[at], 0)
    outside = seen & (scopes.nearest[at] == 0)
    owner = np.where(outside, _part(when, begin), owner)
    owner = np.where(backward & (owner == 0), UNATTRIBUTED, owner)
    mark = np.maximum(scopes.nearest[at] - 1, 0)
    update = np.isin(owner, _OPTIMIZERS)
    fresh = outside & (work_after == _CALL) & ~np.isin(before, (_CALL, _LOSS_CALL))
    outlives_pass = end > _end_of(begin, *when.passes)
    again = _outermost_again(owned, mark)
    outlives_again = (again > 0) & (end > events.end[np.maximum(again - 1, 0)])
    next_pass = when.begins_next(begin)
    has_pass = next_pass < _NEVER
    called = _end_of(begin, *when.calls)
    step_end = np.append(when.steps, _NEVER)[np.searchsorted(when.steps, begin, side="right")]
    kept = np.where(has_pass, end > next_pass, (end > called) & (called < _NEVER))
    held = outside & ~has_pass & (end > np.minimum(step_end, when.steps[-1]))
    first_call = _start_after(begin, when.calls[0])
    rules = (
        (~seen, NOBODY),
        (update & (end > events.end[mark]), OPTIMIZER_STATE),
        (update, TEMPORARIES),
        (backward & outlives_again, ACTIVATIONS),
        (backward & (again > 0), TEMPORARIES),
        (backward & outlives_pass & ~_saved_again(owned, blocks, when), GRADIENTS),
        (backward & outlives_pass, ACTIVATIONS),
        (backward, TEMPORARIES),
        (fresh & (end > first_call), INPUTS),
        (fresh, TEMPORARIES),
        (kept & (~outside | has_pass), ACTIVATIONS),
        (held, HELD),
    )
    kind = np.select(
        [rule for rule, _ in rules], [NUMBERS[name] for _, name in rules], NUMBERS[TEMPORARIES]
    )
    return Owned(kind, owner, backward)


def _part(when: Timeline, times: Ints) -> Ints:
    """The part of the step that each time lies in, which is between two outermost marks.

    Gradients are set to zero before the model is called, or between the loss and its backward pass.
    """
    before, after = when.without_emptying().around(times)
    work_after = when.without_updates().around(times)[1]
    called = np.isin(before, (_CALL, _LOSS_CALL))
    losing = called & np.isin(after, (_PASS, _LOSS_CALL))
    waiting = ~when.is_active(times) & (work_after == _CALL)
    updating = (before == _PASS) & (after == _UPDATE)
    return np.select([losing, waiting, updating], [LOSS, WAIT, BEFORE_OPTIMIZER], OUTSIDE)


def _end_of(times: Ints, starts: Ints, ends: Ints) -> Ints:
    """The end of the stretch that each time lies in; the last number where it is in none."""
    if not len(starts):
        return np.full(len(times), _NEVER)
    at = np.searchsorted(starts, times, side="right") - 1
    end = ends[np.maximum(at, 0)]
    inside: Ints = np.where((at >= 0) & (times <= end), end, _NEVER)
    return inside


def _start_after(times: Ints, starts: Ints) -> Ints:
    found: Ints = np.append(starts, _NEVER)[np.searchsorted(starts, times, side="right")]
    return found


def _outermost_again(owned: Attribution, mark: Ints) -> Ints:
    """The outermost call done again in a backward pass around each mark (plus 1), 0 for none."""
    scopes = owned.scopes
    current = np.where(scopes.kind[mark] > 0, mark + 1, 0)
    found = np.zeros(len(mark), np.int64)
    while True:
        # What is around it ends at the backward function that asked for it.
        climbing = (current > 0) & (scopes.kind[np.maximum(current - 1, 0)] == RECOMPUTED)
        if not climbing.any():
            return found
        found[climbing] = current[climbing]
        current = np.where(climbing, scopes.above[np.maximum(current - 1, 0)], 0)


def _saved_again(owned: Attribution, blocks: Blocks, when: Timeline) -> Bools:
    """Blocks of one backward pass that a later one gives back, for derivatives of derivatives.

    A gradient that is replaced while gradients are gathered is none of these.
    """
    freed = np.maximum(blocks.freed, 0)
    known = (blocks.freed >= 0) & owned.in_backward[freed]
    gathering = owned.owner[freed] == ACCUMULATION
    saved: Bools = known & ~gathering & (blocks.end > _end_of(blocks.begin, *when.passes))
    return saved
