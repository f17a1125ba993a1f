"""Who owns which part of a step: modules, operators and the parts of a step outside any module.

A module owns the time inside its forward calls and the backward work its forward made; what is
left of a step (waiting, loss, optimizer, accumulation of gradients) has rows of its own, so that
the own times of all rows add up to the steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from profstack.regions import LOSS, OPTIMIZER, OUTSIDE, ZERO_GRAD
from profstack.torchtrace.events import Bools, HostEvents, Ints, sums
from profstack.torchtrace.nesting import levels
from profstack.torchtrace.owntimes import Floats, own_times
from profstack.torchtrace.scopes import (
    BACKWARD,
    EVALUATED,
    FORWARD,
    NO_MARK,
    OPTIMIZED,
    RECOMPUTED,
    REGION,
    Scopes,
    find_scopes,
)
from profstack.torchtrace.stepparts import divide

_S = 1e-9


@dataclass
class ModuleSums:
    """One row of `module_times` in the making; times in nanoseconds."""

    calls: int = 0
    forward: float = 0.0
    forward_self: float = 0.0
    backward: float = 0.0
    backward_self: float = 0.0
    recomputed: float | None = None
    forward_device: float | None = None
    backward_device: float | None = None
    host_net_bytes: int | None = None
    device_net_bytes: int | None = None


@dataclass
class Attribution:
    """Owners of all events of one slice, and the sums that follow from them.

    `owner` is the number of a module or step part, 0 for none; `tree` says which module calls
    lie inside which.
    """

    events: HostEvents
    owner: Ints
    is_range: Bools
    in_backward: Bools
    scopes: Scopes
    tree: CallTree
    rows: dict[int, ModuleSums] = field(default_factory=lambda: defaultdict(ModuleSums))


class CallTree:
    """Module calls inside module calls, to add up what a module's calls hold with all inside.

    Work of a backward pass goes up from the call whose forward made it.
    """

    def __init__(self, scopes: Scopes) -> None:
        self.calls = np.flatnonzero((scopes.kind == FORWARD) | (scopes.kind == RECOMPUTED))
        self.module = scopes.module[self.calls]
        number = np.zeros(len(scopes.events) + 1, np.int64)
        number[self.calls + 1] = np.arange(1, len(self.calls) + 1)
        self._number = number
        self._up = self._links(scopes)
        self._levels, self._outermost = self._climb()

    def at(self, scope: Ints, weights: Any) -> Floats:
        """Sums of `weights` per call; `scope` holds calls (position plus 1), the rest is left."""
        numbers = self._number[np.maximum(scope, 0)]
        return sums(numbers, weights, len(self.calls) + 1)[1:]

    def with_inner(self, per_call: Floats) -> dict[int, float]:
        """What is given per call, added up per module with the calls inside.

        A module inside itself is inside its own sum already.
        """
        total = np.concatenate(([0.0], per_call))
        for level in self._levels:
            np.add.at(total, self._up[level], total[level + 1])
        outer = np.flatnonzero(self._outermost)
        numbers, inverse = np.unique(self.module[outer], return_inverse=True)
        added = sums(inverse, total[outer + 1], len(numbers))
        return dict(zip(numbers.tolist(), added.tolist(), strict=True))

    def _links(self, scopes: Scopes) -> Ints:
        """The call around each call (its number here plus 1), 0 for none."""
        around = scopes.climb(scopes.above[self.calls], (BACKWARD, OPTIMIZED))
        scope = np.concatenate(([0], np.maximum(scopes.scope, 0)))[around]
        links = self._number[scope]
        kinds = np.concatenate(([NO_MARK], scopes.kind))
        for call in np.flatnonzero(kinds[around] == EVALUATED).tolist():
            # Done again for a backward function that some call inside made: the work belongs
            # beside the first time, not inside the call that asked for it.
            link = int(links[call])
            while link and self.module[link - 1] != self.module[call]:
                link = int(links[link - 1])
            if link:
                links[call] = links[link - 1]
        return links

    def _climb(self) -> tuple[list[Ints], Bools]:
        """Calls level by level, the innermost first; and those not inside their own module."""
        depth = np.zeros(len(self.calls), np.int64)
        outermost = np.ones(len(self.calls), np.bool_)
        above = self._up.copy()
        while above.any():
            has = above > 0
            depth[has] += 1
            holder = np.maximum(above - 1, 0)
            outermost &= ~(has & (self.module[holder] == self.module))
            above = np.where(has, self._up[holder], 0)
        return levels(depth)[::-1], outermost


def attribute(
    events: HostEvents,
    boundaries_ns: Sequence[int],
    is_loss: Callable[[int], bool],
    left_out: Collection[int] = (),
    thread: int | None = None,
) -> Attribution:
    """Find the owner of every event and add up modules and step parts.

    `boundaries_ns` are the start of the slice and the end of each step; the steps numbered in
    `left_out`, from 0, do not count; `thread` is the one the steps are made on, by default the
    one with most module calls and backward passes.
    """
    inside = in_steps(events, boundaries_ns, left_out)
    scopes = find_scopes(events, inside)
    if thread is None:
        thread = main_thread(scopes)
    parts = divide(scopes, boundaries_ns, is_loss, left_out, thread)
    outside = np.flatnonzero((scopes.scope == OUTSIDE) & (scopes.made_by >= 0))
    in_loss = parts.in_loss(events.start[scopes.made_by[outside]])
    scopes.scope[outside[in_loss]] = LOSS
    passes = np.flatnonzero((scopes.scope == OUTSIDE) & (scopes.kind == BACKWARD))
    scopes.scope[passes[parts.in_loss(events.start[passes])]] = LOSS
    result = Attribution(
        events, scopes.owner(), scopes.is_range, scopes.in_backward, scopes, CallTree(scopes)
    )
    _add_times(result, thread)
    for part, time in parts.times.items():
        result.rows[part].forward_self += time
    for number, row in result.rows.items():
        if number < 0:
            row.forward, row.backward = row.forward_self, row.backward_self
    _add_memory(result, inside)
    return result


def in_steps(
    events: HostEvents, boundaries_ns: Sequence[int], left_out: Collection[int] = ()
) -> Bools:
    """Events inside the steps that count; see `attribute`."""
    inside = (events.start >= boundaries_ns[0]) & (events.end <= boundaries_ns[-1])
    if left_out:
        step = np.searchsorted(boundaries_ns, events.start, side="right") - 1
        inside &= ~np.isin(step, list(left_out))
    return inside


def main_thread(scopes: Scopes) -> int:
    """The thread most module calls, backward passes and optimizers are on."""
    makes = np.isin(scopes.kind, (FORWARD, BACKWARD, OPTIMIZED))
    threads = scopes.events.thread[makes if makes.any() else slice(None)]
    numbers, counts = np.unique(threads, return_counts=True)
    return int(numbers[counts.argmax()]) if len(numbers) else 0


def _add_times(result: Attribution, thread: int) -> None:
    """Own times of all marks to their owners, and the times with what is inside."""
    scopes, rows, tree = result.scopes, result.rows, result.tree
    own = own_times(scopes, thread)
    forward, recomputed = scopes.marks(FORWARD), scopes.marks(RECOMPUTED)
    again = np.flatnonzero(np.isin(scopes.kind, (RECOMPUTED, EVALUATED, BACKWARD)))
    called = np.flatnonzero(np.isin(scopes.kind, (FORWARD, REGION)))
    for owner, count in _per_owner(scopes, called, np.ones(len(called))):
        rows[owner].calls = int(count)
    ahead = np.flatnonzero(np.isin(scopes.kind, (FORWARD, REGION, OPTIMIZED)))
    for owner, time in _per_owner(scopes, ahead, own[ahead]):
        rows[owner].forward_self += time
    for owner, time in _per_owner(scopes, again, own[again]):
        rows[owner].backward_self += time
    for module, time in tree.with_inner(tree.at(scopes.scope[forward], own[forward])).items():
        rows[module].forward = time
    for module, time in tree.with_inner(tree.at(scopes.scope[again], own[again])).items():
        rows[module].backward = time
    counts = tree.with_inner(tree.at(scopes.scope[recomputed], np.ones(len(recomputed))))
    work = tree.with_inner(tree.at(scopes.scope[recomputed], own[recomputed]))
    for module, time in work.items():
        if counts[module]:
            rows[module].recomputed = time
    for part, count in _optimizer_calls(scopes):
        rows[part].calls = count


def _per_owner(scopes: Scopes, marks: Ints, weights: Any) -> list[tuple[int, float]]:
    owners = scopes.owner_of(scopes.scope[marks])
    numbers, inverse = np.unique(owners, return_inverse=True)
    added = sums(inverse, weights, len(numbers))
    return list(zip(numbers.tolist(), added.tolist(), strict=True))


def _optimizer_calls(scopes: Scopes) -> list[tuple[int, int]]:
    """Steps of optimizers, and calls of `zero_grad`; one inside another is a part of it."""
    counts = []
    around = (FORWARD, RECOMPUTED, EVALUATED, BACKWARD)
    for part in (OPTIMIZER, ZERO_GRAD):
        marks = np.flatnonzero((scopes.kind == OPTIMIZED) & (scopes.scope == part))
        outer = scopes.climb(scopes.above[marks], around)
        same = (outer > 0) & (scopes.scope[np.maximum(outer - 1, 0)] == part)
        if len(marks):
            counts.append((part, int((~same).sum())))
    return counts


def _add_memory(result: Attribution, inside: Bools) -> None:
    """Bytes taken less bytes given back inside forward calls, host and device apart."""
    events, scopes, tree = result.events, result.scopes, result.tree
    memory = np.flatnonzero(events.memory & inside)
    if not len(memory):
        return
    kinds = (EVALUATED, BACKWARD, OPTIMIZED, RECOMPUTED)
    scope = scopes.climb(scopes.nearest[memory], kinds)
    memory, scope = memory[scope > 0], scope[scope > 0]
    taken = events.integers("nbytes", memory)
    on_device = events.integers("device_index", memory) >= 0
    for module, count in tree.with_inner(tree.at(scope, np.where(on_device, 0, taken))).items():
        result.rows[module].host_net_bytes = round(count)
    if on_device.any():
        device = tree.with_inner(tree.at(scope, np.where(on_device, taken, 0)))
        for module, count in device.items():
            result.rows[module].device_net_bytes = round(count)


def module_records(result: Attribution, index: int, *, memory: bool) -> list[dict[str, Any]]:
    """Rows of `module_times`; `memory` says that the profile saw allocations."""
    return [
        {
            "slice": index,
            "module_id": module,
            "calls": row.calls if module > 0 or row.calls else None,
            "forward_s": row.forward * _S,
            "forward_self_s": row.forward_self * _S,
            "backward_s": row.backward * _S,
            "backward_self_s": row.backward_self * _S,
            "recomputed_s": _seconds(row.recomputed),
            "forward_device_s": _seconds(row.forward_device),
            "backward_device_s": _seconds(row.backward_device),
            "host_net_bytes": (row.host_net_bytes or 0) if memory and module > 0 else None,
            "device_net_bytes": row.device_net_bytes if memory and module > 0 else None,
        }
        for module, row in result.rows.items()
    ]


def _seconds(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds * _S
