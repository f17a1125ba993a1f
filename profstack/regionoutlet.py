"""Hands the regions of the script on while a slice lasts: as ranges, or to a listener."""

from __future__ import annotations

from _thread import get_ident
from typing import Any, Protocol

from profstack.interrupts import is_scripts
from profstack.regions import RANGE_PREFIX

REGION_PREFIX = RANGE_PREFIX + "region "
# Marks the range of a region that is entered inside itself: the one around it has the work.
AGAIN = " (inside itself)"


class Hooked(Protocol):
    """What of `HookState` tells whether ranges are emitted, and who listens."""

    torch: Any
    ranging: int | None
    listener: Any

    def told(self) -> Any:
        """Whom to tell of regions on this thread, or None."""


class Stay(Protocol):
    """One stay in a region, as `userregions` keeps it."""

    @property
    def path(self) -> str:
        """The names of the regions around it and its own."""

    @property
    def thread(self) -> int:
        """The thread that is in it."""

    @property
    def counts(self) -> bool:
        """Whether it is not inside itself."""

    @property
    def takes_turns(self) -> bool:
        """Whether others may be entered and left in between, in any order."""


class Outlet:
    """Gives regions to a profiler as ranges and to a listener.

    A profiler gets those of one thread, well nested: tasks may leave regions in another order than
    they entered them, and what lies over such a one is closed with it and opened again. A listener
    is told of them in the same way, but for stays that it can take `apart`, one by one: those in
    generators and coroutines, and those of other threads.
    """

    def __init__(self, state: Hooked) -> None:
        self._state = state
        self._thread = get_ident()
        self._stack: list[tuple[Stay, Any, Any]] = []
        takes_apart = getattr(state.listener, "enter_apart", None) is not None
        self._apart: Any = state.listener if takes_apart else None
        # Stays that were told of apart, by identity.
        self._told: dict[int, Stay] = {}

    def entered(self, stay: Stay) -> None:
        """A region has been entered on some thread."""
        here = stay.thread == self._thread
        if self._apart is not None and (stay.takes_turns or not here):
            self._told[id(stay)] = stay
            self._apart.enter_apart(id(stay), stay.path)
        if here:
            self._open(stay)

    def left(self, stay: Stay) -> None:
        """A region has been left; also one that was never passed on."""
        if self._told.pop(id(stay), None) is not None:
            self._apart.leave_apart(id(stay))
        if all(each[0] is not stay for each in self._stack):
            return
        above = []
        while True:
            top = self._stack.pop()
            self._close(*top)
            if top[0] is stay:
                break
            above.append(top[0])
        for other in reversed(above):
            self._open(other)

    def close(self) -> None:
        """Nothing more is passed on: what is open ends here."""
        while self._stack:
            self._close(*self._stack.pop())
        for key in list(self._told):
            # Unless its thread leaves it just now.
            if self._told.pop(key, None) is not None:
                self._apart.leave_apart(key)

    def _open(self, stay: Stay) -> None:
        state, range_ = self._state, None
        if state.ranging == self._thread:
            try:
                name = REGION_PREFIX + stay.path + ("" if stay.counts else AGAIN)
                range_ = state.torch._C._profiler._RecordFunctionFast(name)
                range_.__enter__()
            except Exception as error:
                if is_scripts(error):
                    raise
                # A range is missing then; the script's own work goes on.
                range_ = None
        listener = None if id(stay) in self._told else state.told()
        if listener is not None:
            listener.enter("region", stay.path)
        self._stack.append((stay, range_, listener))

    def _close(self, stay: Stay, range_: Any, listener: Any) -> None:
        if listener is not None and listener is self._state.told():
            listener.leave("region", stay.path)
        if range_ is not None:
            try:
                range_.__exit__(None, None, None)
            except Exception as error:
                # The profiler it belonged to has gone.
                if is_scripts(error):
                    raise
