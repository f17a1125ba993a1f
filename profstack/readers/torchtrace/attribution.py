"""Give every part of a step to its owner: a module, an operator or a step part.

A module owns the time inside its forward calls and the backward work its forward made; what is
left of a step (waiting, loss, optimizer, accumulation of gradients) has rows of its own, so that
the own times of all rows add up to the steps.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profstack.readers.torchtrace.columns import Bools, Floats, Ints, group, sums, sums_by
from profstack.readers.torchtrace.events import HostEvents, levels
from profstack.readers.torchtrace.scopes import (
    BACKWARD,
    EVALUATED,
    FORWARD,
    OPTIMIZED,
    RECOMPUTED,
    REGION,
    Scopes,
    find_scopes,
)
from profstack.readers.torchtrace.step_parts import divide
from profstack.storage.schema.column import Records, SqlValue
from profstack.storage.vocabulary import LOSS, OPTIMIZER, OUTSIDE, ZERO_GRAD

_S = 1e-9

# Own times of marks: a partition of the steps ---------------------------------------------------
#
# Backward functions of a device run on a thread of its own while the pass that waits for them is
# idle. They are laid into that pass, so that no moment of the steps counts twice.


def own_times(scopes: Scopes, thread: int) -> Floats:
    """Return the time of every mark without the marks directly inside it, in nanoseconds.

    Other events have 0. Between two backward functions, and after the last one, the engine
    releases the one and queues the other: that time goes to the one before. `thread` is the one
    the steps are made on; work of others beside it, outside its passes, is no part of the steps.
    """
    marks, spans = _spans(scopes)
    own = np.zeros(len(scopes.events), np.float64)
    above = scopes.above[marks]
    inside = np.bincount(above, weights=spans[marks], minlength=len(own) + 1)[1:]
    own[marks] = spans[marks] - inside[marks]
    closures = scopes.events.end[scopes.closures] - scopes.events.start[scopes.closures]
    np.subtract.at(own, scopes.holders - 1, closures)
    elsewhere = marks[(scopes.events.thread[marks] != thread) & (above == 0)]
    if len(elsewhere):
        _lay_into_passes(scopes, thread, elsewhere, spans, own)
    return own


def _spans(scopes: Scopes) -> tuple[Ints, Floats]:
    """Return all marks, and how long each lasts, with the pause after it where that counts."""
    events, kind = scopes.events, scopes.kind
    marks = np.flatnonzero(kind > 0)
    above = scopes.above[marks]
    order = np.argsort(above, kind="stable")
    marks, above = marks[order], above[order]
    until = events.end[marks].copy()
    parent = events.parent[marks]
    evaluated = (kind[marks] == EVALUATED) & (above > 0)
    # Marks inside one mark are adjacent now, in order of time.
    together = (above[:-1] == above[1:]) & (parent[:-1] == parent[1:])
    together &= evaluated[:-1] & evaluated[1:]
    until[:-1] = np.where(together, events.start[marks][1:], until[:-1])
    last = np.ones(len(marks), np.bool_)
    last[:-1] = above[:-1] != above[1:]
    holder = np.maximum(above - 1, 0)
    ends = last & evaluated & (parent == holder) & (kind[holder] == BACKWARD)
    until = np.where(ends, np.maximum(until, events.end[holder]), until)
    spans = np.zeros(len(events), np.float64)
    spans[marks] = until - events.start[marks]
    return marks, spans


def _lay_into_passes(
    scopes: Scopes, thread: int, elsewhere: Ints, spans: Floats, own: Floats
) -> None:
    """Give functions of other threads the time of the pass on `thread` that waits for them.

    Every moment of such a pass goes to the function begun last, on whichever thread. Where two
    threads worked at once, the parts of a function share what is left of it.
    """
    functions, passes, lengths = _pass_layout(scopes, thread, elsewhere)
    tops = np.zeros(len(own), np.int64)
    tops[elsewhere] = elsewhere + 1
    tops[functions] = functions + 1
    tops = scopes.events.inherit(tops)
    given = np.zeros(len(own), np.float64)
    given[functions] = lengths
    before = np.where(scopes.events.thread[functions] == thread, spans[functions], 0.0)
    np.add.at(own, passes, before - lengths)
    changed = np.union1d(elsewhere, functions)
    # Marks inside a function keep their time, as far as there is that much.
    inner = np.flatnonzero((scopes.kind > 0) & (tops > 0))
    inner = inner[tops[inner] != inner + 1]
    held = sums(tops[inner] - 1, own[inner], len(own))
    kept = np.minimum(held, given)
    own[changed] = given[changed] - kept[changed]
    shrink = np.divide(kept, held, out=np.ones_like(held), where=held > 0)
    own[inner] *= shrink[tops[inner] - 1]


def _pass_layout(scopes: Scopes, thread: int, elsewhere: Ints) -> tuple[Ints, Ints, Floats]:
    """Return functions in order of time, their passes, and the time from each to the next."""
    events = scopes.events
    passes = scopes.marks(BACKWARD)
    passes = passes[events.thread[passes] == thread]
    if not len(passes):
        return passes, passes, np.zeros(0)
    elsewhere = elsewhere[scopes.kind[elsewhere] == EVALUATED]
    number = np.searchsorted(events.start[passes], events.start[elsewhere], side="right") - 1
    inside = (number >= 0) & (events.start[elsewhere] < events.end[passes][np.maximum(number, 0)])
    direct = np.flatnonzero((scopes.kind > 0) & np.isin(scopes.above - 1, passes))
    holds = np.isin(scopes.above[direct] - 1, passes[number[inside]])
    functions = np.concatenate((elsewhere[inside], direct[holds]))
    around = np.concatenate((passes[number[inside]], scopes.above[direct[holds]] - 1))
    order = np.lexsort((events.start[functions], around))
    functions, around = functions[order], around[order]
    until = events.end[around].copy()
    starts = events.start[functions]
    until[:-1] = np.where(around[:-1] == around[1:], starts[1:], until[:-1])
    return functions, around, (until - starts).astype(np.float64)


@dataclass
class ModuleSums:
    """Sums for one row of `module_times`; times in nanoseconds."""

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

    `boundaries_ns` are the edges of the steps; events `inside` the steps that are not `left_out`
    count. `owner` is the number of a module or step part, 0 for none; `tree` has the nesting of
    module calls.
    """

    events: HostEvents
    boundaries_ns: Sequence[int]
    left_out: Collection[int]
    inside: Bools
    owner: Ints
    is_range: Bools
    in_backward: Bools
    scopes: Scopes
    tree: CallTree
    rows: dict[int, ModuleSums] = field(default_factory=lambda: defaultdict(ModuleSums))

    @property
    def is_work(self) -> Bools:
        """Return which events are neither ranges nor memory, in the steps that count."""
        return self.inside & ~self.is_range & ~self.events.memory


class CallTree:
    """Module calls inside module calls, for sums over a module with everything inside it.

    Work of a backward pass goes up from the call whose forward made it.
    """

    def __init__(self, scopes: Scopes) -> None:
        self.calls = scopes.marks(FORWARD, RECOMPUTED)
        self.module = scopes.module[self.calls]
        number = np.zeros(len(scopes.events) + 1, np.int64)
        number[self.calls + 1] = np.arange(1, len(self.calls) + 1)
        self._number = number
        self._up = self._links(scopes)
        # Calls level by level, innermost first; and which are outside their own module.
        depth = np.zeros(len(self.calls), np.int64)
        self._outermost = np.ones(len(self.calls), np.bool_)
        above = self._up.copy()
        while above.any():
            has = above > 0
            depth[has] += 1
            holder = np.maximum(above - 1, 0)
            self._outermost &= ~(has & (self.module[holder] == self.module))
            above = np.where(has, self._up[holder], 0)
        self._levels = levels(depth)[::-1]

    def sums(self, scope: Ints, weights: NDArray[np.generic]) -> dict[int, float]:
        """Return sums of `weights` per module, with the calls inside its calls, and per step part.

        `scope` holds calls (position plus 1) and numbers of step parts, below 0. A module inside
        itself is inside its own sum already.
        """
        total = sums(self._number[np.maximum(scope, 0)], weights, len(self.calls) + 1)
        total[0] = 0.0
        for level in self._levels:
            np.add.at(total, self._up[level], total[level + 1])
        outer = np.flatnonzero(self._outermost)
        modules = sums_by(self.module[outer], total[outer + 1])
        return modules | sums_by(scope[scope < 0], weights[scope < 0])

    def _links(self, scopes: Scopes) -> Ints:
        """Return the call around each call (its number here plus 1), 0 for none."""
        around = scopes.climb(scopes.above[self.calls], (BACKWARD, OPTIMIZED))
        scope = np.concatenate(([0], np.maximum(scopes.scope, 0)))[around]
        links = self._number[scope]
        for call in np.flatnonzero(scopes.kind_of(around) == EVALUATED).tolist():
            # Done again for a backward function that some call inside made: the work belongs
            # beside the first time, not inside the call that needed it.
            link = int(links[call])
            while link and self.module[link - 1] != self.module[call]:
                link = int(links[link - 1])
            if link:
                links[call] = links[link - 1]
        return links


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
    main thread of the marks.
    """
    inside = in_steps(events, boundaries_ns, left_out)
    scopes = find_scopes(events, inside)
    if thread is None:
        thread = main_thread(scopes)
    parts = divide(scopes, boundaries_ns, is_loss, left_out, thread)
    outside = np.flatnonzero((scopes.scope == OUTSIDE) & (scopes.made_by >= 0))
    scopes.scope[outside[parts.in_loss(events.start[scopes.made_by[outside]])]] = LOSS
    passes = np.flatnonzero((scopes.scope == OUTSIDE) & (scopes.kind == BACKWARD))
    scopes.scope[passes[parts.in_loss(events.start[passes])]] = LOSS
    owner, is_range, in_backward = scopes.owner(), scopes.is_range, scopes.in_backward
    tree = CallTree(scopes)
    result = Attribution(
        events, boundaries_ns, left_out, inside, owner, is_range, in_backward, scopes, tree
    )
    _add_times(result, thread)
    for part, time in parts.times.items():
        result.rows[part].forward_self += time
    for number, row in result.rows.items():
        if number < 0:
            row.forward, row.backward = row.forward_self, row.backward_self
    _add_memory(result)
    return result


def in_steps(
    events: HostEvents, boundaries_ns: Sequence[int], left_out: Collection[int] = ()
) -> Bools:
    """Return which events are inside the steps that count; see `attribute`."""
    inside = (events.start >= boundaries_ns[0]) & (events.end <= boundaries_ns[-1])
    if left_out:
        step = np.searchsorted(boundaries_ns, events.start, side="right") - 1
        inside &= ~np.isin(step, list(left_out))
    return inside


def main_thread(scopes: Scopes) -> int:
    """Return the thread with most module calls, backward passes and optimizers."""
    makes = np.isin(scopes.kind, (FORWARD, BACKWARD, OPTIMIZED))
    threads = scopes.events.thread[makes if makes.any() else slice(None)]
    numbers, counts = np.unique(threads, return_counts=True)
    return int(numbers[counts.argmax()]) if len(numbers) else 0


def _add_times(result: Attribution, thread: int) -> None:
    """Add own times of all marks to their owners, and the times with everything inside."""
    scopes, rows, tree = result.scopes, result.rows, result.tree
    own = own_times(scopes, thread)
    called, ahead = scopes.marks(FORWARD, REGION), scopes.marks(FORWARD, REGION, OPTIMIZED)
    again = scopes.marks(RECOMPUTED, EVALUATED, BACKWARD)
    forward, recomputed = scopes.marks(FORWARD), scopes.marks(RECOMPUTED)
    owner_of = scopes.owner_of(scopes.scope)
    for owner, count in sums_by(owner_of[called], np.ones(len(called))).items():
        rows[owner].calls = int(count)
    for owner, time in sums_by(owner_of[ahead], own[ahead]).items():
        rows[owner].forward_self += time
    for owner, time in sums_by(owner_of[again], own[again]).items():
        rows[owner].backward_self += time
    for module, time in tree.sums(scopes.scope[forward], own[forward]).items():
        rows[module].forward = time
    for module, time in tree.sums(scopes.scope[again], own[again]).items():
        rows[module].backward = time
    counts = tree.sums(scopes.scope[recomputed], np.ones(len(recomputed)))
    for module, time in tree.sums(scopes.scope[recomputed], own[recomputed]).items():
        if counts[module]:
            rows[module].recomputed = time
    # One call of an optimizer inside another is a part of it.
    for part in (OPTIMIZER, ZERO_GRAD):
        marks = np.flatnonzero((scopes.kind == OPTIMIZED) & (scopes.scope == part))
        outer = scopes.climb(scopes.above[marks], (FORWARD, RECOMPUTED, EVALUATED, BACKWARD))
        same = (outer > 0) & (scopes.scope[np.maximum(outer - 1, 0)] == part)
        if len(marks):
            rows[part].calls = int((~same).sum())


def _add_memory(result: Attribution) -> None:
    """Add bytes taken less bytes given back inside forward calls, host and device apart."""
    events, scopes, tree = result.events, result.scopes, result.tree
    memory = np.flatnonzero(events.memory & result.inside)
    if not len(memory):
        return
    scope = scopes.climb(scopes.nearest[memory], (EVALUATED, BACKWARD, OPTIMIZED, RECOMPUTED))
    memory, scope = memory[scope > 0], scope[scope > 0]
    taken = events.integers("nbytes", memory)
    on_device = events.integers("device_index", memory) >= 0
    for module, count in tree.sums(scope, np.where(on_device, 0, taken)).items():
        result.rows[module].host_net_bytes = round(count)
    if on_device.any():
        for module, count in tree.sums(scope, np.where(on_device, taken, 0)).items():
            result.rows[module].device_net_bytes = round(count)


def module_records(result: Attribution, index: int, *, memory: bool) -> Records:
    """Return rows of `module_times`; `memory` means that the profile saw allocations."""
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


# Outermost operators ----------------------------------------------------------------------------

_OPERATOR = re.compile(r"[\w.]+(::[\w.]+)+$")


def operators_around(owned: Attribution) -> Ints:
    """Return for every event the position plus 1 of the operator around it, or 0.

    It is the outermost operator inside the innermost mark; in a backward pass the function itself.
    """
    events, scopes = owned.events, owned.scopes
    parent = np.maximum(events.parent, 0)
    evaluated = (events.parent >= 0) & (scopes.kind[parent] == EVALUATED)
    named_so = events.names.where(lambda name: _OPERATOR.match(name) is not None)
    operator = (named_so | evaluated) & (scopes.kind == 0) & ~events.memory & ~owned.is_range
    outermost = operator & ~((events.parent >= 0) & operator[parent])
    # A mark inside an operator starts over.
    own = np.where(outermost, np.arange(1, len(events) + 1), 0)
    own = np.where(scopes.kind > 0, -1, own)
    return np.maximum(events.inherit(own), 0)


# Beginning of the name of the range in which torch's DataLoader takes what its workers have made.
_RECEIVING = "enumerate(DataLoader)#_MultiProcessing"


def received(owned: Attribution) -> Bools:
    """Return which events took batches from a DataLoader's workers.

    Workers are done in any order, and a batch is taken in whichever step it comes.
    """
    events = owned.events
    ranges = events.names.where(lambda name: name.startswith(_RECEIVING))
    return events.inherit(ranges.astype(np.int64)) > 0


# Rows of events ---------------------------------------------------------------------------------


class Groups:
    """Events of one name, owner and direction together, each group one row of a table.

    `first` is the place of the first of each group among the given positions; `keys` are further
    numbers of the events by which they are kept apart.
    """

    def __init__(self, owned: Attribution, positions: Ints, *keys: NDArray[Any]) -> None:
        names = owned.events.names
        ids, owner = names.ids[positions], owned.owner[positions]
        backward = owned.in_backward[positions].astype(np.int64)
        self.first, self._of = group([ids, owner, backward, *keys])
        self._names = [names.values[number] for number in ids[self.first].tolist()]
        self._columns: dict[str, Sequence[SqlValue]] = {
            "module_id": [number or None for number in owner[self.first].tolist()],
            "backward": backward[self.first].tolist(),
            "calls": np.bincount(self._of, minlength=len(self.first)).tolist(),
        }

    def seconds(self, nanoseconds: NDArray[np.generic]) -> list[float]:
        """Return the sum of the events' times for each group, in seconds."""
        added: list[float] = (sums(self._of, nanoseconds, len(self.first)) * _S).tolist()
        return added

    def whole_sums(self, values: Ints) -> list[int | None]:
        """Return sums of whole numbers, exactly; None where a value is not known: below 0."""
        # Sums of a float64 are exact to 9e15 only.
        added = np.zeros(len(self.first), np.int64)
        np.add.at(added, self._of, values)
        lacking = np.bincount(self._of, weights=values < 0, minlength=len(added)) > 0
        pairs = zip(added.tolist(), lacking.tolist(), strict=True)
        return [None if lacks else total for total, lacks in pairs]

    def rows(self, index: int, name: str, **columns: Sequence[SqlValue] | None) -> Records:
        """Return one row per group: its name in the column `name`, and further `columns`."""
        count = len(self.first)
        whole = {"slice": [index] * count, name: self._names, **self._columns}
        whole.update({each: values or [None] * count for each, values in columns.items()})
        return [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]
