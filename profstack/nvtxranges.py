"""Ranges of NVTX as the script's thread makes them: begun, ended, counted, and their cost timed.

A range's cost is read from the clock right before and after each push and pop, less what one
reading of the clock takes.
"""

from __future__ import annotations

import importlib
import os
import time
from _thread import get_ident
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import Any

from profstack.modulefacts import is_loss

DOMAIN = "profstack"
STEP, MODULE, FORWARD, BACKWARD, OPTIMIZER, REGION = KINDS = (
    "step",
    "module",
    "forward",
    "backward",
    "optimizer",
    "region",
)
# Stands in a step that was not seen to its end: its range ends where the slice or the script does.
CUT = "cut"
# As numbers: a name that nvtx does not know makes it import matplotlib.
_COLOURS = {
    STEP: 0x76B900,
    MODULE: 0x5B8FF9,
    FORWARD: 0x2E5CB8,
    BACKWARD: 0xE8684A,
    OPTIMIZER: 0xF6BD16,
    REGION: 0x9270CA,
    CUT: 0x999999,
}
# What tells nvtx whom to load; nsys sets it where it was asked for NVTX ranges.
INJECTION = "NVTX_INJECTION64_PATH"

_clock = time.perf_counter


class Range:
    """One named range, and how often it was emitted since the step began, at what cost."""

    __slots__ = ("attributes", "calls", "emit_s", "inside", "kind", "name", "opens_forward")

    def __init__(self, kind: str, name: str, attributes: Any, *, opens_forward: bool) -> None:
        self.kind = kind
        self.name = name
        self.attributes = attributes
        self.inside = kind in (MODULE, FORWARD, BACKWARD)
        self.opens_forward = opens_forward
        self.calls = 0
        self.emit_s = 0.0


class Domain:
    """The domain `profstack`, by the quickest way that the installed nvtx has."""

    def __init__(self) -> None:
        nvtx: Any = importlib.import_module("nvtx")
        get = getattr(nvtx, "get_domain", None)
        domain: Any = get(DOMAIN) if get is not None else None
        self._nvtx, self._domain = nvtx, domain
        self.push: Callable[[Any], Any]
        self.pop: Callable[[], Any]
        self.is_taken: bool
        if hasattr(domain, "push_range"):
            self.push, self.pop = domain.push_range, domain.pop_range
            self._make = domain.get_event_attributes
            # A domain that no listener takes does nothing and has no attributes to give.
            self.is_taken = self.attributes(STEP, STEP) is not None
        else:
            # Up to 0.2.11 a domain has no such methods; these are what its context manager does.
            self._make = partial(nvtx.annotate, domain=DOMAIN)
            self.push = nvtx.annotate.__enter__
            self.pop = partial(self.attributes(STEP, STEP).__exit__, None, None, None)
            self.is_taken = bool(os.environ.get(INJECTION))

    def start(self, kind: str, text: str) -> Any:
        """Begin a range that nests in nothing; gives what `end` takes, on any thread."""
        if hasattr(self._domain, "start_range"):
            return self._domain.start_range(self.attributes(kind, text))
        return self._nvtx.start_range(text, _COLOURS[kind], DOMAIN, kind)

    def end(self, handle: Any) -> None:
        """End such a range."""
        end = getattr(self._domain, "end_range", None) or self._nvtx.end_range
        end(handle)

    def attributes(self, kind: str, text: str, payload: int | None = None) -> Any:
        """What `push` takes: the text shown, its colour, its category, and a number."""
        return self._make(message=text, color=_COLOURS[kind], category=kind, payload=payload)


class Emitter:
    """The listener of the nvtx layer: on one thread, what began last ends first.

    Ranges that lie across a step's end, and those that end in another order than they began, are
    closed and opened again, so that the domain stays nested. Regions that need not nest (in
    generators and coroutines, on other threads) have ranges of their own from begin to end.
    """

    def __init__(self, domain: Domain) -> None:
        self._make = domain.attributes
        self._push, self._pop = domain.push, domain.pop
        self._start, self._finish = domain.start, domain.end
        # Ranges of their own that are open, by key: what ends them, and their name.
        self._apart: dict[int, tuple[Any, str]] = {}
        # Since the step began, by any thread: names, how many began, and the cost.
        self._apart_told: list[tuple[str, int, float]] = []
        self._known: dict[tuple[str, str], Range] = {}
        self._step = Range(STEP, STEP, None, opens_forward=False)
        self._forward = self._range(FORWARD, FORWARD)
        self._open: list[Range] = []
        self._touched: list[Range] = []
        self._reopen: list[Range] = []
        self._number: int | None = None
        self._thread: int | None = None
        # Of each step that has ended: its ranges with calls and cost.
        self.steps: list[list[tuple[Range, int, float]]] = []

    # -- what the hooks report -------------------------------------------------------------

    def enter(self, kind: str, name: str, module: Any = None) -> None:
        """Begin a range; the outermost module's begins a `forward` too."""
        found = self._known.get((kind, name)) or self._range(kind, name, module)
        if found.opens_forward and not self._is_inside():
            self._begin(self._forward)
        self._begin(found)

    def leave(self, kind: str, name: str) -> None:
        """End it, and whatever an error has left open in it."""
        found = self._known.get((kind, name))
        if found is None:
            return
        opened = self._open
        if opened and opened[-1] is found:
            self._end()
            again: list[Range] = []
        elif found in opened:
            again = self._close(len(opened) - 1 - opened[::-1].index(found))[1:]
        else:
            # It began before the slice did.
            return
        if kind == MODULE and opened and opened[-1] is self._forward:
            self._end()
        for inner in again:
            self._begin(inner)

    def enter_apart(self, key: int, name: str) -> None:
        """Begin a region's range that nests in nothing, on whatever thread calls this."""
        if self._thread is not None:
            begun = _clock()
            self._apart[key] = (self._start(REGION, name), name)
            self._apart_told.append((name, 1, _clock() - begun))

    def leave_apart(self, key: int) -> None:
        """End it, on this thread or another one; nothing if it is not open."""
        opened = self._apart.pop(key, None)
        if opened is not None:
            handle, name = opened
            begun = _clock()
            self._finish(handle)
            self._apart_told.append((name, 0, _clock() - begun))

    def step_ended(self, number: int) -> None:
        """End the step's range; what is open in it goes on in the next step."""
        self._reopen = self._close(0)[1:]
        told, self._apart_told = self._apart_told, []
        apart = [(self._region(name), calls, emit_s) for name, calls, emit_s in told]
        self.steps.append([*((each, each.calls, each.emit_s) for each in self._touched), *apart])
        self._forget()

    def step_begun(self, number: int) -> None:
        """Begin the range of step `number`."""
        if number == self._number and self._open:
            return
        self._number = number
        again, self._reopen = self._reopen, []
        begun = _clock()
        # Each has a number of its own, so that making it is a part of emitting it.
        self._step.attributes = self._make(STEP, f"{STEP} {number}", number)
        self._step.emit_s += _clock() - begun
        for each in (self._step, *again):
            self._begin(each)

    # -- the slice -------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """The slice begins, with step `number`, on this thread."""
        self._thread = get_ident()
        self.steps = []
        self._apart_told = []
        self._forget()
        self.step_begun(number)

    def stop(self) -> None:
        """End whatever is open; a push can be taken back on its own thread alone."""
        for key in list(self._apart):
            self.leave_apart(key)
        if self._thread == get_ident():
            if self._open and self._open[0] is self._step:
                self._push(self._make(CUT, f"{CUT} {STEP} {self._number}"))
                self._pop()
            self._close(0)
        self.abandon()

    def abandon(self) -> None:
        """Emit no more, and leave open what is."""
        self._open, self._reopen = [], []
        self._thread = self._number = None
        self._apart.clear()
        self._apart_told.clear()
        self._forget()

    # -- how -------------------------------------------------------------------------------

    def _range(self, kind: str, name: str, module: Any = None) -> Range:
        text = f"{kind} {name}" if kind == OPTIMIZER else name
        opens_forward = kind == MODULE and not (module is not None and is_loss(module))
        made = Range(kind, name, self._make(kind, text), opens_forward=opens_forward)
        self._known[kind, name] = made
        return made

    def _region(self, name: str) -> Range:
        return self._known.get((REGION, name)) or self._range(REGION, name)

    def _is_inside(self) -> bool:
        """Whether a module's call or a backward pass is around."""
        opened = self._open
        if not opened or opened[-1] is self._step:
            return False
        return opened[-1].inside or any(each.inside for each in opened)

    def _begin(self, range_: Range) -> None:
        push, attributes = self._push, range_.attributes
        begun = _clock()
        push(attributes)
        range_.emit_s += _clock() - begun
        if not range_.calls:
            self._touched.append(range_)
        range_.calls += 1
        self._open.append(range_)

    def _end(self) -> None:
        pop = self._pop
        begun = _clock()
        pop()
        spent = _clock() - begun
        self._open.pop().emit_s += spent

    def _close(self, first: int) -> list[Range]:
        """End all ranges from position `first` on; those of them that are still going on.

        All but optimizers: an error ends an optimizer's step without a word, nothing else.
        """
        closed = self._open[first:]
        for _ in closed:
            self._end()
        return closed[:1] + [each for each in closed[1:] if each.kind != OPTIMIZER]

    def _forget(self) -> None:
        """Begin to count anew."""
        for each in self._touched:
            each.calls, each.emit_s = 0, 0.0
        self._touched.clear()


def less_the_clock(kind: str, calls: float, emit_s: float) -> float | None:
    """The cost without the clock's own; None where it cannot be told from that."""
    # A push and a pop are two intervals; a step's range is made in a third.
    intervals = calls * (3 if kind == STEP else 2)
    spent = emit_s - intervals * clock_s()
    return spent if spent > 0 else None


@cache
def clock_s() -> float:
    """What lies between two readings of the clock with nothing in between, in seconds."""
    stamps = [_clock() for _ in range(257)]
    return sorted(after - before for before, after in pairwise(stamps))[128]
