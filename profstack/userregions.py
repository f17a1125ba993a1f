"""Regions that the script names itself: `with profstack.region("augment"):`.

While nothing observes, a region looks at one flag and does no more. While a run is recorded it is
timed from when it is entered to when it is left, on every thread, and its path is the names of the
regions around it and its own. Regions of one path are added up slice by slice; what is open at the
edge of a slice is cut there. In a profiler's slice a region is a range, too, and the watch names
it. cProfile adds up calls of functions, and cannot say which of them a region was around.

Nothing is imported here that costs anything: a script may use regions without any run around it.
"""

import sys
from _thread import get_ident
from contextvars import ContextVar
from time import perf_counter

from profstack.regionstay import OWN, SUSPENDS, Stay, frame_to_keep, is_elsewhere, stands_still
from profstack.regionsums import Sums

# As typing's own, which is not to be imported here; type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType
    from typing import Any, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])

    from profstack.regionoutlet import Hooked, Outlet

_current: "ContextVar[Stay | None]" = ContextVar("profstack_region", default=None)
_on = False
_open: "dict[int, Stay]" = {}
_sums = Sums()
_outlet: "Outlet | None" = None


def _never() -> bool:
    return False


# `torch.compiler.is_compiling` as soon as torch is there: dynamo takes it for true, and then sees
# nothing of what a region does. It comes before every flag, or dynamo would guard that.
_compiling = _never


def _find_compiler() -> None:
    global _compiling
    compiler = sys.modules.get("torch.compiler")
    if compiler is not None:
        _compiling = compiler.is_compiling


_find_compiler()


class region:  # noqa: N801  # read as a word of the language, like `range`
    """A named part of the program, as a context manager or a decorator.

    `with profstack.region("augment"):` or `@profstack.region("augment")`, also for coroutines and
    generators: a decorated generator is inside only while it runs, and a call of it is counted at
    each item it gives. Between `with` and its end everything counts, also while a generator stands
    still there. One object may be entered several times, also by several threads.

    Raises TypeError where `name` is no text.
    """

    __slots__ = ("_stays", "name")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f'a region has a name: profstack.region("load"), not {name!r}')
        self.name = name
        self._stays: list[Stay] = []

    def __enter__(self) -> "region":
        if _compiling() or not _on:
            return self
        _enter(self.name, self._stays, sys._getframe(1))
        return self

    def __exit__(
        self,
        kind: "type[BaseException] | None",
        error: "BaseException | None",
        trace: "TracebackType | None",
    ) -> None:
        if _compiling() or not self._stays:
            return
        _leave(self._stays, perf_counter())

    def __call__(self, function: "Function") -> "Function":
        """The function inside this region at every call."""
        from profstack.decorated import inside

        decorated: Function = inside(region, self.name, function)
        return decorated

    def __repr__(self) -> str:
        return f"region({self.name!r})"


def _enter(name: str, stays: "list[Stay]", frame: "FrameType") -> None:
    previous = _current.get()
    while previous is not None and previous.is_left:
        previous = previous.previous
    suspends = frame.f_code.co_flags & SUSPENDS
    stay = Stay(name, previous, frame_to_keep(frame) if suspends else None)
    stay.takes_turns = suspends != 0
    around = previous
    while around is not None and (around.is_left or is_elsewhere(around)):
        around = around.previous
    stay.around = around
    while around is not None and around.name != name:
        around = around.around
    if around is not None:
        # Inside itself: the stay around it has the time, or a recursion would have it often.
        stay.path, stay.counts = around.path, False
    elif stay.around is not None:
        stay.path = f"{stay.around.path}/{name}"
    stays.append(stay)
    _open[id(stay)] = stay
    _current.set(stay)
    if _outlet is not None:
        _outlet.entered(stay)
    stay.entered = perf_counter()


def _leave(stays: "list[Stay]", now: float) -> None:
    stay = stays.pop() if len(stays) == 1 else _own(stays)
    stay.is_left = True
    stay.frame = None
    if _outlet is not None:
        _outlet.left(stay)
    _end(stay, now)
    if _current.get() is stay:
        previous = stay.previous
        while previous is not None and previous.is_left:
            previous = previous.previous
        _current.set(previous)


def _end(stay: Stay, now: float) -> None:
    key = (stay.source, stay.path)
    _sums.add((key, stay.thread, stay.entered, now, stay.counts))
    _open.pop(id(stay), None)


def _own(stays: "list[Stay]") -> Stay:
    """Of the stays in one object the one that ends here: of this context, else of this thread."""
    stay = _current.get()
    while stay is not None and stay not in stays:
        stay = stay.previous
    if stay is None:
        thread = get_ident()
        stay = next((each for each in reversed(stays) if each.thread == thread), stays[-1])
    stays.remove(stay)
    return stay


# -- for ranges that the script marks with other tools ---------------------------------------------


def begin(source: str, name: str, around: "list[Stay]") -> "Stay | None":
    """A range of another tool's has begun on this thread; None where nobody observes.

    `around` are those of the same tool that are open, on this thread or for all of them. A range
    goes by its name alone.
    """
    if not _on:
        return None
    stay = Stay(name, None, None)
    stay.source = source
    stay.counts = all(each.path != name for each in around)
    _open[id(stay)] = stay
    stay.entered = perf_counter()
    return stay


def end(stay: Stay) -> None:
    """It has ended."""
    now = perf_counter()
    stay.is_left = True
    _end(stay, now)


# -- for the engine, on the thread that trains -----------------------------------------------------


def switch_on() -> None:
    """From here on regions are kept in mind: a run is recorded, or waits for torch."""
    global _on
    _find_compiler()
    _on = True


def switch_off() -> None:
    """The run is over, or this process is a forked one: regions cost nothing any more."""
    global _on, _outlet
    _on = False
    _outlet = None
    _open.clear()
    _sums.clear()
    script_ranges = sys.modules.get("profstack.scriptranges")
    if script_ranges is not None:
        script_ranges.remove()


def begin_slice(start: float) -> None:
    """A slice begins; `start` is its first moment, as `perf_counter` gives it."""
    _sums.begin(start)


def take(end: float) -> "list[dict[str, Any]]":
    """Rows of `region_times`, without their slice, from the slice's start up to `end`.

    Afterwards nothing is added up until the next slice begins. `calls` are those entered in the
    slice, 0 for a region that was open all the time.
    """
    return _sums.take(
        end,
        [
            ((stay.source, stay.path), stay.thread, stay.entered, end, stay.counts)
            for stay in _open.copy().values()
            # One that another thread leaves just now is missing, or is there already.
            if not stay.is_left
        ],
    )


def tell(state: "Hooked | None") -> None:
    """Pass this thread's regions on, to a profiler or a listener; with None no more.

    What is open already is passed on at once, and closed again at the end: pairs are complete.
    """
    global _outlet
    if _outlet is not None:
        _outlet.close()
        _outlet = None
    if state is not None:
        from profstack import scriptranges

        # Also on what the script has loaded since the slice before.
        scriptranges.install()
    if state is not None and (state.ranging is not None or state.told() is not None):
        from profstack.regionoutlet import Outlet

        _outlet = Outlet(state)
        for stay in _open.copy().values():
            if stay.source is OWN:
                _outlet.entered(stay)


def current(thread: int) -> "str | None":
    """The path of the region that a thread is in right now, asked by another one."""
    for stay in reversed(_open.copy().values()):
        own = stay.source is OWN and stay.thread == thread
        if own and not stay.is_left and not stands_still(stay):
            return stay.path
    return None
