"""How long every mark of a slice lasts without the marks inside it: a partition of the steps.

Backward functions of a device run on a thread of its own while the pass that waits for them
stands still. They are laid into that pass, so that no moment of the steps counts twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profstack.torchtrace.events import Bools, Ints
from profstack.torchtrace.scopes import BACKWARD, EVALUATED, Scopes

Floats = NDArray[np.float64]


def own_times(scopes: Scopes, thread: int) -> Floats:
    """Time of every mark less the marks directly inside it, in nanoseconds; 0 for other events.

    Between two backward functions, and after the last one, the engine releases the one and queues
    the other: that time goes to the one before. `thread` is the one the steps are made on; what
    others do beside it, and not inside a pass of its own, is no part of the steps.
    """
    marks, spans = _spans(scopes)
    own = np.zeros(len(scopes.events), np.float64)
    above = scopes.above[marks]
    inside = np.bincount(above, weights=spans[marks], minlength=len(own) + 1)[1:]
    own[marks] = spans[marks] - inside[marks]
    elsewhere = marks[(scopes.events.thread[marks] != thread) & (above == 0)]
    if len(elsewhere):
        _lay_into_passes(scopes, thread, elsewhere, spans, own)
    return own


def _spans(scopes: Scopes) -> tuple[Ints, Floats]:
    """All marks, and how long each lasts with the pause after it where that is its own."""
    events, kind = scopes.events, scopes.kind
    marks = np.flatnonzero(kind > 0)
    above = scopes.above[marks]
    order = np.argsort(above, kind="stable")
    marks, above = marks[order], above[order]
    until = events.end[marks].copy()
    parent = events.parent[marks]
    evaluated = (kind[marks] == EVALUATED) & (above > 0)
    # What stands in one mark stands together now, in order of time.
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


@dataclass
class _Laid:
    """Backward functions of all threads in the passes they belong to, in order of time."""

    functions: Ints
    passes: Ints
    spans: Floats


def _lay_into_passes(
    scopes: Scopes, thread: int, elsewhere: Ints, spans: Floats, own: Floats
) -> None:
    """Give functions of other threads the time of the pass on `thread` that waits for them.

    Every moment of such a pass goes to the function begun last, on whichever thread. Where two
    threads worked at once, the parts of a function share what is left of it.
    """
    laid = _in_order(scopes, thread, elsewhere)
    tops = np.zeros(len(own), np.int64)
    tops[elsewhere] = elsewhere + 1
    tops[laid.functions] = laid.functions + 1
    tops = scopes.events.inherit(tops)
    given = np.zeros(len(own), np.float64)
    given[laid.functions] = laid.spans
    of_thread = scopes.events.thread[laid.functions] == thread
    before = np.where(of_thread, spans[laid.functions], 0.0)
    np.add.at(own, laid.passes, before - laid.spans)
    changed = np.union1d(elsewhere, laid.functions)
    # What stands inside of a function keeps its time, if that much is given.
    inner = np.flatnonzero((scopes.kind > 0) & (tops > 0))
    inner = inner[tops[inner] != inner + 1]
    # Of nothing numpy makes whole numbers, whatever the weights are.
    held = np.bincount(tops[inner] - 1, weights=own[inner], minlength=len(own)).astype(np.float64)
    kept = np.minimum(held, given)
    own[changed] = given[changed] - kept[changed]
    shrink = np.divide(kept, held, out=np.ones_like(held), where=held > 0)
    own[inner] *= shrink[tops[inner] - 1]


def _in_order(scopes: Scopes, thread: int, elsewhere: Ints) -> _Laid:
    """Which functions are laid into which passes, and the time from each to the next."""
    events = scopes.events
    passes = scopes.marks(BACKWARD)
    passes = passes[events.thread[passes] == thread]
    if not len(passes):
        return _Laid(passes, passes, np.zeros(0))
    elsewhere = elsewhere[scopes.kind[elsewhere] == EVALUATED]
    number = np.searchsorted(events.start[passes], events.start[elsewhere], side="right") - 1
    inside = _begun_inside(events.start[elsewhere], events.end[passes], number)
    direct = np.flatnonzero((scopes.kind > 0) & np.isin(scopes.above - 1, passes))
    holds = np.isin(scopes.above[direct] - 1, passes[number[inside]])
    functions = np.concatenate((elsewhere[inside], direct[holds]))
    around = np.concatenate((passes[number[inside]], scopes.above[direct[holds]] - 1))
    order = np.lexsort((events.start[functions], around))
    functions, around = functions[order], around[order]
    until = events.end[around].copy()
    same = around[:-1] == around[1:]
    until[:-1] = np.where(same, events.start[functions][1:], until[:-1])
    return _Laid(functions, around, (until - events.start[functions]).astype(np.float64))


def _begun_inside(starts: Ints, ends: Ints, number: Ints) -> Bools:
    """Which times lie before the end of the pass that began last before them."""
    begun: Any = (number >= 0) & (starts < ends[np.maximum(number, 0)])
    return np.asarray(begun, np.bool_)
