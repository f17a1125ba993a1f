"""The parts of a step that no module's call, backward pass or optimizer covers.

A step begins with waiting (for data, mostly); what lies between a forward and the backward pass
after it is the loss; other operators are outside modules; the rest is nobody's.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from profstack.regions import LOSS, OPTIMIZER, OUTSIDE, UNATTRIBUTED, WAIT
from profstack.torchtrace.events import Bools, HostEvents, Ints
from profstack.torchtrace.scopes import BACKWARD, EVALUATED, FORWARD, OPTIMIZED, Scopes

_OTHER, _MODULE, _LOSS, _BACKWARD, _OPTIMIZER = range(5)


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


class _Gap:
    """What has gone by since the last module call or backward pass."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.idle = 0
        self.operators = 0
        self.optimizer = 0


def divide(
    scopes: Scopes,
    boundaries_ns: Sequence[int],
    is_loss: Callable[[int], bool],
    left_out: Collection[int],
    thread: int,
) -> StepParts:
    """Divide what is not inside a mark of the steps' `thread` among the parts, step by step."""
    start, end, kind, inside_optimizer = _timeline(scopes, is_loss, thread)
    parts = StepParts(dict.fromkeys((WAIT, LOSS, OPTIMIZER, OUTSIDE, UNATTRIBUTED), 0))
    edges = np.searchsorted(start, boundaries_ns).tolist()
    starts, ends, kinds = start.tolist(), end.tolist(), kind.tolist()
    at = boundaries_ns[0]
    for step, begin in enumerate(boundaries_ns[:-1]):
        if step in left_out:
            continue
        active = False
        at = max(at, begin)
        gap = _Gap(at)
        for item in range(edges[step], edges[step + 1]):
            closure = inside_optimizer(at, starts[item])
            gap.idle += max(starts[item] - at, 0) - closure
            gap.optimizer += closure
            at = max(at, ends[item])
            what = kinds[item]
            if what == _OTHER:
                gap.operators += ends[item] - starts[item]
            elif what == _OPTIMIZER or (what == _LOSS and active):
                continue
            else:
                _close(parts, gap, what, starts[item], active)
                active = True
                gap = _Gap(at)
        rest = boundaries_ns[step + 1] - at
        gap.idle += max(rest, 0) - inside_optimizer(at, boundaries_ns[step + 1])
        parts.times[OUTSIDE] += gap.operators
        parts.times[UNATTRIBUTED] += gap.idle
    return parts


def _close(parts: StepParts, gap: _Gap, what: int, now: int, active: bool) -> None:
    """A module call or backward pass begins: what the gap before it was is known now."""
    times = parts.times
    if not active:
        times[WAIT] += gap.idle + gap.operators
    elif what == _BACKWARD:
        times[LOSS] += gap.idle + gap.operators + gap.optimizer
        # The loss inside a closure is no work of the optimizer around it.
        times[OPTIMIZER] -= gap.optimizer
        parts.loss_from.append(gap.begin)
        parts.loss_until.append(now)
    else:
        times[OUTSIDE] += gap.operators
        times[UNATTRIBUTED] += gap.idle


def _timeline(
    scopes: Scopes, is_loss: Callable[[int], bool], thread: int
) -> tuple[Ints, Ints, Ints, Callable[[int, int], int]]:
    """What happens on the steps' own thread, one after the other; and time inside optimizers.

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
    for _ in range(2):  # our range stands inside torch's own
        within = marks[closures[marks] & (scopes.above[marks] > 0)]
        closures[scopes.above[within] - 1] = True
    leaf = is_optimizer & ~closures[marks] & ((inner < 0) | closures[inner])
    items = np.concatenate((marks[~is_optimizer | leaf], _other_operators(scopes, thread)))
    items = items[np.argsort(events.start[items], kind="stable")]
    kind = np.select(
        [
            scopes.kind[items] == FORWARD,
            np.isin(scopes.kind[items], (BACKWARD, EVALUATED)),
            scopes.kind[items] == OPTIMIZED,
        ],
        [_MODULE, _BACKWARD, _OPTIMIZER],
        _OTHER,
    )
    losses = [number for number in np.unique(scopes.module[items]).tolist() if number > 0]
    losses = [number for number in losses if is_loss(number)]
    kind[(kind == _MODULE) & np.isin(scopes.module[items], losses)] = _LOSS
    containers = marks[(inner < 0) & closures[marks]]
    return events.start[items], events.end[items], kind, _inside(events, containers)


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


def _other_operators(scopes: Scopes, thread: int) -> Ints:
    """Outermost events outside all marks.

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
    top = (parent < 0) | holds[np.maximum(parent, 0)]
    return np.flatnonzero(outside & top)
