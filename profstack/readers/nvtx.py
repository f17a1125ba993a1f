"""NVTX ranges: push, pop and count them, and know which versions of nsys record them.

A range's cost is read from the clock right before and after each push and pop, less what one
reading of the clock takes.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from _thread import get_ident
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

from profstack.layer import Listener
from profstack.models import is_loss

DOMAIN = "profstack"
KINDS = ("step", "module", "forward", "backward", "optimizer", "region")
STEP, MODULE, FORWARD, BACKWARD, OPTIMIZER, REGION = KINDS
# A range in a step that was not seen to its end: it ends where the slice or the script does.
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
# The library that nvtx loads; nsys sets it where NVTX ranges are traced.
INJECTION = "NVTX_INJECTION64_PATH"

_clock = time.perf_counter


@dataclass(eq=False, slots=True)
class Range:
    """One named range, with its count and cost since the step began."""

    kind: str
    name: str
    attributes: Any
    inside: bool = False
    opens_forward: bool = False
    calls: int = 0
    emit_s: float = 0.0


class Domain:
    """The domain `profstack`, by the fastest functions that the installed nvtx has."""

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
            # Without a listener a domain does nothing and has no attributes.
            self.is_taken = self.attributes(STEP, STEP) is not None
        else:
            # Up to 0.2.11 a domain has no such methods; these are what its context manager does.
            self._make = partial(nvtx.annotate, domain=DOMAIN)
            self.push = nvtx.annotate.__enter__
            self.pop = partial(self.attributes(STEP, STEP).__exit__, None, None, None)
            self.is_taken = bool(os.environ.get(INJECTION))

    def start(self, kind: str, text: str) -> Any:
        """Begin a range that nests in nothing; return the handle for `end`, on any thread."""
        if hasattr(self._domain, "start_range"):
            return self._domain.start_range(self.attributes(kind, text))
        return self._nvtx.start_range(text, _COLOURS[kind], DOMAIN, kind)

    def end(self, handle: Any) -> None:
        """End a range begun by `start`."""
        end = getattr(self._domain, "end_range", None) or self._nvtx.end_range
        end(handle)

    def attributes(self, kind: str, text: str, payload: int | None = None) -> Any:
        """Return the argument of `push`: the text shown, its colour, its category, and a number."""
        return self._make(message=text, color=_COLOURS[kind], category=kind, payload=payload)


class Emitter(Listener):
    """The listener of the nvtx layer: on one thread, ranges that began last end first.

    Ranges that lie across a step's end, and those that end in another order than they began, are
    closed and opened again, so that the domain stays nested. Regions that need not nest (in
    generators and coroutines, on other threads) have ranges of their own from begin to end.
    """

    takes_apart = True

    def __init__(self, domain: Domain) -> None:
        self._make = domain.attributes
        self._push, self._pop = domain.push, domain.pop
        self._start, self._finish = domain.start, domain.end
        # Open regions that need not nest, by key: handle and name.
        self._apart: dict[int, tuple[Any, str]] = {}
        # Their names, starts and cost since the step began, by any thread.
        self._apart_costs: list[tuple[str, int, float]] = []
        self._known: dict[tuple[str, str], Range] = {}
        self._step = Range(STEP, STEP, None)
        self._forward = self._range(FORWARD, FORWARD)
        self._open: list[Range] = []
        self._touched: list[Range] = []
        self._reopen: list[Range] = []
        self._number: int | None = None
        self._thread: int | None = None
        # The ranges of each ended step, with calls and cost.
        self.steps: list[list[tuple[Range, int, float]]] = []

    def enter(self, kind: str, name: str, module: Any = None) -> None:
        """Begin a range; the outermost module's begins a `forward` too."""
        if kind == "closure":
            return
        found = self._known.get((kind, name)) or self._range(kind, name, module)
        if found.opens_forward:
            opened = self._open
            # No call of a module and no backward pass is open.
            if not opened or not (opened[-1].inside or any(each.inside for each in opened)):
                self._begin(self._forward)
        self._begin(found)

    def leave(self, kind: str, name: str) -> None:
        """End a range, and the ranges in it that an error has left open."""
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
        """Begin a region's range that nests in nothing, on any thread."""
        if self._thread is not None:
            begun = _clock()
            self._apart[key] = (self._start(REGION, name), name)
            self._apart_costs.append((name, 1, _clock() - begun))

    def leave_apart(self, key: int) -> None:
        """End such a range on any thread; do nothing if it is not open."""
        handle, name = self._apart.pop(key, (None, None))
        if name is not None:
            begun = _clock()
            self._finish(handle)
            self._apart_costs.append((name, 0, _clock() - begun))

    def step_ended(self, number: int) -> None:
        """End the step's range; ranges open in it continue in the next step."""
        self._reopen = self._close(0)[1:]
        costs, self._apart_costs = self._apart_costs, []
        apart = [
            (self._known.get((REGION, name)) or self._range(REGION, name), calls, emit_s)
            for name, calls, emit_s in costs
        ]
        self.steps.append([*((each, each.calls, each.emit_s) for each in self._touched), *apart])
        self._forget()

    def step_begun(self, number: int) -> None:
        """Begin the range of step `number`."""
        if number == self._number and self._open:
            return
        self._number = number
        again, self._reopen = self._reopen, []
        begun = _clock()
        # Each step has its own number, so making the attributes is a part of emitting.
        self._step.attributes = self._make(STEP, f"{STEP} {number}", number)
        self._step.emit_s += _clock() - begun
        for each in (self._step, *again):
            self._begin(each)

    def start(self, number: int) -> None:
        """Begin the slice with step `number`, on this thread."""
        self._thread = get_ident()
        self.steps = []
        self._apart_costs = []
        self._forget()
        self.step_begun(number)

    def stop(self) -> None:
        """End all open ranges; a push can be popped on its own thread only."""
        for key in list(self._apart):
            self.leave_apart(key)
        if self._thread == get_ident():
            if self._open and self._open[0] is self._step:
                self._push(self._make(CUT, f"{CUT} {STEP} {self._number}"))
                self._pop()
            self._close(0)
        self.abandon()

    def abandon(self) -> None:
        """Stop emitting, and leave open ranges open."""
        self._open, self._reopen = [], []
        self._thread = self._number = None
        self._apart.clear()
        self._apart_costs.clear()
        self._forget()

    def _range(self, kind: str, name: str, module: Any = None) -> Range:
        text = f"{kind} {name}" if kind == OPTIMIZER else name
        opens_forward = kind == MODULE and not (module is not None and is_loss(module))
        inside = kind in (MODULE, FORWARD, BACKWARD)
        made = Range(kind, name, self._make(kind, text), inside, opens_forward)
        self._known[kind, name] = made
        return made

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
        """End all ranges from position `first` on; return those that go on.

        Optimizers do not: an error ends an optimizer's step without a call of `leave`.
        """
        closed = self._open[first:]
        for _ in closed:
            self._end()
        return closed[:1] + [each for each in closed[1:] if each.kind != OPTIMIZER]

    def _forget(self) -> None:
        """Reset the counts."""
        for each in self._touched:
            each.calls, each.emit_s = 0, 0.0
        self._touched.clear()


def less_the_clock(kind: str, calls: float, emit_s: float) -> float | None:
    """Return the cost without the clock's own; None where it is no more than that."""
    # A push and a pop are two intervals; a step's range is made in a third.
    intervals = calls * (3 if kind == STEP else 2)
    spent = emit_s - intervals * clock_s()
    return spent if spent > 0 else None


@cache
def clock_s() -> float:
    """Return the seconds between two readings of the clock with nothing in between."""
    stamps = [_clock() for _ in range(257)]
    return sorted(after - before for before, after in pairwise(stamps))[128]


# --- Pairs of Nsight Systems and the package nvtx that do not work together -----------------------

# An nsys of this year or older takes no range of a newer nvtx than this.
OLD_NSYS_YEAR = 2022
NEWEST_FOR_OLD_NSYS = "0.2.11"
REMEDY = f"pip install nvtx=={NEWEST_FOR_OLD_NSYS}"


def takes_ranges(nsys: str | None, nvtx: str | None) -> bool | None:
    """Return whether that nsys takes the ranges of that nvtx, by their versions.

    None where one of the two is missing or its version is not understood.
    """
    year, release = re.match(r"(\d{4})\.", nsys or ""), re.match(r"\d[\d.]*", nvtx or "")
    if year is None or release is None:
        return None
    numbers, newest = (
        tuple(int(number) for number in version.split(".") if number)
        for version in (release[0], NEWEST_FOR_OLD_NSYS)
    )
    return int(year[1]) > OLD_NSYS_YEAR or numbers <= newest


def limit_of_old_nsys() -> str:
    """Return the rule in words, for a message."""
    return f"an nsys of {OLD_NSYS_YEAR} takes the ranges of nvtx up to {NEWEST_FOR_OLD_NSYS} alone"
