"""Adds up, slice by slice, how often regions were entered and how long they lasted.

Any thread may tell of a stay that is over; the thread that makes the steps begins and ends slices.
Loaded with the script's first region: nothing is imported here that costs anything.
"""

from _thread import allocate_lock, get_ident

# As typing's own, which is not to be imported here; type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    # What named it, and its path.
    Key = tuple[str, str]
    # Key, thread, when it was entered and left, and whether its time counts (not inside itself).
    Over = tuple[Key, int, float, float, bool]

# Paths of one slice that have rows of their own; a name with a number in it never ends.
MOST_PATHS = 1000
OTHERS = "(more regions)"
# Stays that are over and not yet added up; until then a slice may still be cut before their end.
MOST_PENDING = 4096
ENDLESS = float("inf")


class _Total:
    """What the stays of one path add up to within a slice."""

    __slots__ = ("calls", "threads", "wall_s")

    def __init__(self) -> None:
        self.calls = 0
        self.wall_s = 0.0
        self.threads: set[int] = set()


class Sums:
    """The stays of the slice in progress; `start` is its first moment, None between slices."""

    def __init__(self) -> None:
        self.start: float | None = None
        self.over: list[Over] = []
        self._totals: dict[Key, _Total] = {}
        self._adding = allocate_lock()
        self._steps_thread = 0

    def begin(self, start: float) -> None:
        """A slice begins; its steps are made by this thread."""
        self.clear()
        self._steps_thread = get_ident()
        self.start = start

    def clear(self) -> None:
        """Forget everything; nothing is added up until a slice begins."""
        self.start = None
        self.over.clear()
        self._totals.clear()

    def add(self, stay: "Over") -> None:
        """A stay is over, on some thread."""
        if self.start is not None:
            self.over.append(stay)
            if len(self.over) > MOST_PENDING and self._adding.acquire(False):
                # Unless another thread does so just now.
                try:
                    self._add_over(ENDLESS)
                finally:
                    self._adding.release()

    def take(self, end: float, still: "Iterable[Over]") -> "list[dict[str, Any]]":
        """Rows of `region_times`, without their slice, up to `end`; `still` are the open ones.

        `calls` are those entered in the slice, 0 for a region that was open all the time.
        """
        if self.start is None:
            return []
        with self._adding:
            self._add_over(end)
            for stay in still:
                self._add(stay, end)
            self.start = None
            rows = [
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

    def _add(self, stay: "Over", end: float) -> None:
        """Add the part of a stay that lies in the slice, which ends at `end`."""
        key, thread, entered, left, counts = stay
        start, left = self.start, min(left, end)
        if start is None or entered >= end or left < start or (left == start and entered < start):
            return
        total = self._totals.get(key)
        if total is None:
            key = key if len(self._totals) < MOST_PATHS else (key[0], OTHERS)
            total = self._totals.setdefault(key, _Total())
        total.calls += entered >= start
        total.threads.add(thread)
        if counts:
            total.wall_s += left - max(entered, start)
