"""What happens on the thread that makes the steps, one item after the other.

Items are the outermost marks (calls of modules, backward passes, steps of optimizers) and the
outermost operators outside all of them.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from profstack.regions import ZERO_GRAD
from profstack.torchtrace.events import HostEvents, Ints, holding
from profstack.torchtrace.scopes import BACKWARD, EVALUATED, FORWARD, OPTIMIZED, REGION, Scopes

# What an item is to the step. A graph is one that a backward pass goes through: its beginning and
# its end are moments of their own.
OTHER_ITEM, READ_ITEM, DATA_ITEM, GRAPH_ITEM, GRAPH_END_ITEM = range(5)
ZERO_GRAD_ITEM, LOSS_ITEM, MODULE_ITEM, BACKWARD_ITEM, OPTIMIZER_ITEM = range(5, 10)
_MOMENTS = (GRAPH_ITEM, GRAPH_END_ITEM)
# torch's own range around the wait for a batch.
_DATALOADER = "enumerate(DataLoader)"
# Operators that hand a number to Python, as logging does.
_READS = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"})


@dataclass
class StepItems:
    """What happens on the steps' own thread, one after the other; and time inside optimizers."""

    start: Ints
    end: Ints
    kind: Ints
    inside_optimizer: Callable[[int, int], int]


def step_items(scopes: Scopes, is_loss: Callable[[int], bool], thread: int) -> StepItems:
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
            np.repeat((GRAPH_ITEM, GRAPH_END_ITEM), len(graph)),
            _kinds(scopes, marked, is_loss),
            _kinds_of_others(events, others),
        )
    )
    items = np.concatenate((graph, graph, marked, others))
    start = np.where(kind == GRAPH_END_ITEM, events.end[items], events.start[items])
    end = np.where(kind == GRAPH_ITEM, events.start[items], events.end[items])
    order = np.lexsort((~np.isin(kind, _MOMENTS), start))
    start, end, kind = start[order], end[order], kind[order]
    containers = marks[(inner < 0) & closures[marks]]
    return StepItems(start, end, kind, _inside(events, containers))


def _kinds(scopes: Scopes, marks: Ints, is_loss: Callable[[int], bool]) -> Ints:
    """What each of the marks is to the step."""
    kind = np.select(
        [
            np.isin(scopes.kind[marks], (FORWARD, REGION)),
            np.isin(scopes.kind[marks], (BACKWARD, EVALUATED)),
            scopes.scope[marks] == ZERO_GRAD,
        ],
        [MODULE_ITEM, BACKWARD_ITEM, ZERO_GRAD_ITEM],
        OPTIMIZER_ITEM,
    )
    losses = [number for number in np.unique(scopes.module[marks]).tolist() if number > 0]
    losses = [number for number in losses if is_loss(number)]
    kind[(kind == MODULE_ITEM) & np.isin(scopes.module[marks], losses)] = LOSS_ITEM
    return kind


def _kinds_of_others(events: HostEvents, positions: Ints) -> Ints:
    """What events outside all marks are to the step."""
    loads = events.names.where(lambda name: name.startswith(_DATALOADER))[positions]
    reads = events.names.where(lambda name: name in _READS)[positions]
    return np.select([loads, reads], [DATA_ITEM, READ_ITEM], OTHER_ITEM)


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
    holds = holding(events, np.flatnonzero(scopes.kind > 0))
    outside = (scopes.nearest == 0) & ~holds & ~events.memory & ~scopes.is_range
    outside &= events.thread == thread
    parent = events.parent
    top = np.flatnonzero(outside & ((parent < 0) | holds[np.maximum(parent, 0)]))
    numbers = np.zeros(len(events), np.int64)
    numbers[top] = top + 1
    return top, events.inherit(numbers)
