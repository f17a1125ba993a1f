"""Time how long a DataLoader starts its workers, and ends them.

Each iterator makes them anew, unless they are persistent, and ends them when it is gone. All starts
of a process are counted, at any time, by the line that made the DataLoader; nothing else of the
loading is touched. No object of the script's is kept.
"""

from __future__ import annotations

import functools
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from profstack import code_owner
from profstack.guard import replace, strip_frame

_MOST_LOADERS = 10_000

Arguments = tuple[Any, ...]


class WorkerStarts:
    """Counts and times of one process, while its wrappers are on."""

    def __init__(self) -> None:
        self._places: code_owner.Places | None = None
        self._starts: Counter[tuple[str, int] | None] = Counter()
        self._started_s = self._ended_s = 0.0
        # Where DataLoaders were made, by their identity: one that is gone leaves it to another.
        self._made: dict[int, tuple[str, int] | None] = {}

    def install(
        self, loader: Any, iterator: Any, hidden: Callable[[Any, Any], Any]
    ) -> list[Callable[[], None]]:
        """Put wrappers on the loader and its iterator with workers; return what takes each off.

        `hidden` makes a wrapper that dynamo does not see.
        """
        self._places = code_owner.Places.of(code_owner.script_folder())
        wrapped: list[tuple[Any, str, Callable[[float, Arguments], None]]] = [
            (loader, "__init__", self._loader_made),
            (iterator, "__init__", self._started),
            (iterator, "_reset", self._reset),
            (iterator, "_shutdown_workers", self._ended),
        ]
        return [
            replace(owner, name, hidden(_timed(original, note), original))
            for owner, name, note in wrapped
            for original in (getattr(owner, name),)
        ]

    def facts(self) -> dict[str, object] | None:
        """Return what was counted: starts, seconds of both, starts by line; None without any."""
        if not self._starts:
            return None
        places = [
            {"file": place[0], "line": place[1], "starts": count}
            for place, count in self._starts.most_common()
            if place is not None
        ]
        seconds = {"started_s": self._started_s, "ended_s": self._ended_s}
        return {"starts": self._starts.total(), **seconds, "places": places}

    def _loader_made(self, took_s: float, arguments: Arguments) -> None:
        if len(self._made) < _MOST_LOADERS:
            self._made[id(arguments[0])] = self._own_line()

    def _started(self, took_s: float, arguments: Arguments) -> None:
        """Note a start, for the line that made the loader, or asks for its batches."""
        made = next((at for each in arguments[1:] if (at := self._made.get(id(each)))), None)
        self._started_s += took_s
        self._starts[made or self._own_line()] += 1

    def _reset(self, took_s: float, arguments: Arguments) -> None:
        # Each epoch begins so, workers or not: with the order of the samples.
        if True in arguments[2:]:
            self._started_s -= took_s

    def _ended(self, took_s: float, arguments: Arguments) -> None:
        self._ended_s += took_s

    def _own_line(self) -> tuple[str, int] | None:
        """Return the script's own line that called what is wrapped."""
        return self._places.own_line(sys._getframe(3)) if self._places is not None else None


def _timed(original: Any, note: Callable[[float, Arguments], None]) -> Any:
    """Return a wrapper that gives `note` the time of a call, and all its arguments."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        begun = time.perf_counter()
        try:
            original(*args, **kwargs)
        except BaseException as error:
            strip_frame(error)
            raise
        note(time.perf_counter() - begun, (*args, *kwargs.values()))

    return wrapper
