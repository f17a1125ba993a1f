"""Regions that the script names itself: `with profstack.region("augment"):`.

While nothing observes, a region looks at one flag and does no more. While a run is recorded it is
timed from when it is entered to when it is left, on every thread, and its path is the names of the
regions around it and its own. Regions of one path are added up slice by slice; what is open at the
edge of a slice is cut there. In a profiler's slice a region is also a range, and the watch names
it. cProfile adds up calls of functions, and cannot say which of them a region was around.

Import nothing here that costs anything: a script may use regions without any run around it.
"""

import sys
from _thread import allocate_lock, get_ident
from contextvars import ContextVar
from time import perf_counter

from profstack.storage.vocabulary import MOST_REGIONS, OTHER_REGIONS, OWN_REGION

# As in typing, which must not be imported here; type checkers know the name.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType
    from typing import Any, TypeVar

    from profstack.capture.hooks import HookState
    from profstack.capture.region_outlet import RegionOutlet
    from profstack.storage.schema.column import SqlValue

    Function = TypeVar("Function", bound=Callable[..., Any])
    # What named it, and its path.
    Key = tuple[str, str]
    # Key, thread, when it was entered and left, and whether its time counts (not inside itself).
    EndedSpan = tuple[Key, int, float, float, bool]

# -- totals of a slice: how often regions were entered and how long they lasted ------------------
#
# Any thread may add a span that has ended; the thread that makes the steps begins and ends slices.

# Ended spans that are not yet added up; until then a slice may still be cut before their end.
MOST_PENDING = 4096
ENDLESS = float("inf")


class _Total:
    """The spans of one path within a slice, added up."""

    __slots__ = ("calls", "threads", "wall_s")

    def __init__(self) -> None:
        self.calls = 0
        self.wall_s = 0.0
        self.threads: set[int] = set()


class RegionTotals:
    """The spans of the slice in progress; `start` is its first moment, None between slices."""

    def __init__(self) -> None:
        self.start: float | None = None
        self.over: list[EndedSpan] = []
        self._totals: dict[Key, _Total] = {}
        self._adding = allocate_lock()
        self._steps_thread = 0

    def begin(self, start: float) -> None:
        """Begin a slice, whose steps are made by this thread."""
        self.clear()
        self._steps_thread = get_ident()
        self.start = start

    def clear(self) -> None:
        """Forget everything; nothing is added up until a slice begins."""
        self.start = None
        self.over.clear()
        self._totals.clear()

    def add(self, span: "EndedSpan") -> None:
        """Add a span that has ended, on any thread."""
        if self.start is not None:
            self.over.append(span)
            if len(self.over) > MOST_PENDING and self._adding.acquire(False):
                # Unless another thread is doing so.
                try:
                    self._add_over(ENDLESS)
                finally:
                    self._adding.release()

    def take(self, end: float, still: "Iterable[EndedSpan]") -> "list[dict[str, SqlValue]]":
        """Return rows of `region_times`, without their slice, up to `end`; `still` are open.

        `calls` are those entered in the slice, 0 for a region that was open all the time.
        """
        if self.start is None:
            return []
        with self._adding:
            self._add_over(end)
            for span in still:
                self._add(span, end)
            self.start = None
            rows: list[dict[str, SqlValue]] = [
                {
                    "path": path,
                    "source": source,
                    "calls": total.calls,
                    "wall_s": total.wall_s,
                    "threads": len(total.threads),
                    "on_steps_thread": int(self._steps_thread in total.threads),
                }
                for (source, path), total in self._totals.items()
            ]
            self._totals.clear()
        return rows

    def _add_over(self, end: float) -> None:
        while self.over:
            self._add(self.over.pop(), end)

    def _add(self, span: "EndedSpan", end: float) -> None:
        """Add the part of a span that lies in the slice, which ends at `end`."""
        key, thread, entered, left, counts = span
        start, left = self.start, min(left, end)
        if start is None or entered >= end or left < start or (left == start and entered < start):
            return
        total = self._totals.get(key)
        if total is None:
            key = key if len(self._totals) < MOST_REGIONS else (key[0], OTHER_REGIONS)
            total = self._totals.setdefault(key, _Total())
        total.calls += entered >= start
        total.threads.add(thread)
        if counts:
            total.wall_s += left - max(entered, start)


# -- one span, and whether the code that has entered it is suspended ------------------------------

# Flags of code objects: of generators and asynchronous ones, and of all that can be suspended.
_GENERATES = 0x20 | 0x200
SUSPENDS = _GENERATES | 0x80
_ENTERS = frozenset(("__enter__", "__aenter__"))


class RegionSpan:
    """The span of time from when a region is entered until it is left.

    `previous` is what was entered before it in its context, `around` the span that it lies in;
    `frame` is the generator or coroutine that has entered it, which may be suspended meanwhile.
    Where code that `takes_turns` has entered it, others may be entered and left in between, in any
    order. `source` is what named it.
    """

    __slots__ = (
        "around",
        "counts",
        "entered",
        "frame",
        "is_left",
        "name",
        "path",
        "previous",
        "source",
        "takes_turns",
        "thread",
    )

    around: "RegionSpan | None"

    def __init__(self, name: str, previous: "RegionSpan | None", frame: "FrameType | None") -> None:
        self.name = self.path = name
        self.previous = previous
        self.frame = frame
        self.takes_turns = frame is not None
        self.source = OWN_REGION
        self.thread = get_ident()
        self.counts = True
        self.is_left = False
        # Until it is known it lies in no slice.
        self.entered = ENDLESS


def frame_to_keep(frame: "FrameType") -> "FrameType | None":
    """Return the frame if it may be suspended while the region is open, and is around nothing.

    A generator made into a context manager is different: what it has entered is around the body.
    """
    resumed_by = frame.f_back
    return None if resumed_by is not None and resumed_by.f_code.co_name in _ENTERS else frame


def is_elsewhere(span: RegionSpan) -> bool:
    """Return whether the span belongs to a suspended generator: what runs now is not in it.

    A suspended coroutine may be waiting for what runs now, as for a task it has started.
    """
    frame = span.frame
    return frame is not None and frame.f_code.co_flags & _GENERATES != 0 and frame.f_back is None


def is_suspended(span: RegionSpan) -> bool:
    """Return whether the generator or coroutine that has entered the region is suspended."""
    frame = span.frame
    return frame is not None and frame.f_back is None


_current: "ContextVar[RegionSpan | None]" = ContextVar("profstack_region", default=None)
_on = False
_open: "dict[int, RegionSpan]" = {}
_totals = RegionTotals()
_outlet: "RegionOutlet | None" = None
# The region in which slices begin, and when it was entered last.
_remembered: "str | None" = None
_entered_at = 0.0


def _never() -> bool:
    return False


# `torch.compiler.is_compiling` as soon as torch is there: dynamo takes it for true, and then sees
# nothing of what a region does. It comes before every flag, or dynamo would guard that.
is_compiling = _never


def _find_compiler() -> None:
    global is_compiling
    compiler = sys.modules.get("torch.compiler")
    if compiler is not None:
        is_compiling = compiler.is_compiling


_find_compiler()


class region:  # noqa: N801  # read as a word of the language, like `range`
    """A named part of the program, as a context manager or a decorator.

    `with profstack.region("augment"):` or `@profstack.region("augment")`, also for coroutines and
    generators: a decorated generator is inside only while it runs, and a call of it is counted at
    each item it gives. Between `with` and its end everything counts, also while a generator is
    suspended there. One object may be entered several times, also by several threads.

    Raises TypeError where `name` is no text.
    """

    __slots__ = ("_spans", "name")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f'a region has a name: profstack.region("load"), not {name!r}')
        self.name = name
        self._spans: list[RegionSpan] = []

    def __enter__(self) -> "region":
        if is_compiling() or not _on:
            return self
        _enter(self.name, self._spans, sys._getframe(1))
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if is_compiling() or not self._spans:
            return
        _leave(self._spans, perf_counter())

    def __call__(self, function: "Function") -> "Function":
        """Return the function, which runs inside this region at every call."""
        from profstack.capture.region_outlet import inside

        decorated: Function = inside(region, self.name, function)
        return decorated

    def __repr__(self) -> str:
        return f"region({self.name!r})"


def _enter(name: str, spans: "list[RegionSpan]", frame: "FrameType") -> None:
    previous = _current.get()
    while previous is not None and previous.is_left:
        previous = previous.previous
    suspends = frame.f_code.co_flags & SUSPENDS
    span = RegionSpan(name, previous, frame_to_keep(frame) if suspends else None)
    span.takes_turns = suspends != 0
    around = previous
    while around is not None and (around.is_left or is_elsewhere(around)):
        around = around.previous
    span.around = around
    while around is not None and around.name != name:
        around = around.around
    if around is not None:
        # Inside itself: the span around it has the time, or a recursion would count it repeatedly.
        span.path, span.counts = around.path, False
    elif span.around is not None:
        span.path = f"{span.around.path}/{name}"
    spans.append(span)
    _open[id(span)] = span
    _current.set(span)
    if _outlet is not None:
        _outlet.entered(span)
    _enter_now(span)


def _enter_now(span: RegionSpan) -> None:
    global _entered_at
    span.entered = now = perf_counter()
    if span.name == _remembered:
        _entered_at = now


def _leave(spans: "list[RegionSpan]", now: float) -> None:
    span = spans.pop() if len(spans) == 1 else _own(spans)
    span.is_left = True
    span.frame = None
    if _outlet is not None:
        _outlet.left(span)
    _end(span, now)
    if _current.get() is span:
        previous = span.previous
        while previous is not None and previous.is_left:
            previous = previous.previous
        _current.set(previous)


def _end(span: RegionSpan, now: float) -> None:
    _totals.add(((span.source, span.path), span.thread, span.entered, now, span.counts))
    _open.pop(id(span), None)


def _own(spans: "list[RegionSpan]") -> RegionSpan:
    """Return the span of an object that ends here: of this context, else of this thread."""
    span = _current.get()
    while span is not None and span not in spans:
        span = span.previous
    if span is None:
        thread = get_ident()
        span = next((each for each in reversed(spans) if each.thread == thread), spans[-1])
    spans.remove(span)
    return span


# -- for ranges that the script marks with other tools ---------------------------------------------


def begin(source: str, name: str, around: "list[RegionSpan]") -> "RegionSpan | None":
    """Begin the span of another tool's range on this thread; None where no run is recorded.

    `around` are those of the same tool that are open, on this thread or on all of them. A range is
    known by its name alone.
    """
    if not _on:
        return None
    span = RegionSpan(name, None, None)
    span.source = source
    span.counts = all(each.path != name for each in around)
    _open[id(span)] = span
    _enter_now(span)
    return span


def end(span: RegionSpan) -> None:
    """End the span of another tool's range."""
    now = perf_counter()
    span.is_left = True
    _end(span, now)


def drop(span: "RegionSpan | None") -> None:
    """Forget the span of another tool's range, whose end will not be known."""
    if span is not None:
        span.is_left = True
        _open.pop(id(span), None)


# -- for the engine, on the thread that trains -----------------------------------------------------


def switch_on() -> None:
    """Time regions from here on: a run is recorded, or waits for torch."""
    global _on
    _find_compiler()
    _on = True


def remember(name: str) -> None:
    """Remember when the region of this name is entered, for `was_inside`."""
    global _remembered
    _remembered = name


def was_inside(since: float) -> bool:
    """Return whether this thread is in the remembered region, or has entered it since then."""
    if _entered_at >= since:
        return True
    here = get_ident()
    spans = _open.copy().values()
    return any(span.name == _remembered and span.thread == here for span in spans)


def switch_off() -> None:
    """Time no more regions: the run is over, or this process is a forked one."""
    global _on, _outlet, _remembered, _entered_at
    _on = False
    _remembered, _entered_at = None, 0.0
    _outlet = None
    _open.clear()
    _totals.clear()


def begin_slice(start: float) -> None:
    """Begin a slice; `start` is its first moment, as `perf_counter` gives it."""
    _totals.begin(start)


def take(end: float) -> "list[dict[str, SqlValue]]":
    """Return rows of `region_times`, without their slice, from the slice's start up to `end`.

    Afterwards nothing is added up until the next slice begins. `calls` are those entered in the
    slice, 0 for a region that was open all the time.
    """
    return _totals.take(
        end,
        [
            ((span.source, span.path), span.thread, span.entered, end, span.counts)
            for span in _open.copy().values()
            # One that another thread is leaving is missing, or is there already.
            if not span.is_left
        ],
    )


def forward_to(state: "HookState | None") -> None:
    """Pass this thread's regions on to a profiler or a listener; with None no longer.

    What is open already is passed on at once, and closed again at the end: pairs are complete.
    """
    global _outlet
    if _outlet is not None:
        _outlet.close()
        _outlet = None
    if state is not None and (state.ranging is not None or state.active_listener() is not None):
        from profstack.capture.region_outlet import RegionOutlet

        _outlet = RegionOutlet(state)
        for span in _open.copy().values():
            if span.source is OWN_REGION:
                _outlet.entered(span)


def current(thread: int) -> "str | None":
    """Return the path of the region that a thread is in right now, for another thread."""
    for span in reversed(_open.copy().values()):
        own = span.source is OWN_REGION and span.thread == thread
        if own and not span.is_left and not is_suspended(span):
            return span.path
    return None
