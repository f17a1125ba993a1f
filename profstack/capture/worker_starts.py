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

# Frames searched for the script's own line.
_MOST_FRAMES = 60
_MOST_LOADERS = 10_000


class WorkerStarts:
    """Counts and times of one process, while its wrappers are on."""

    def __init__(self) -> None:
        self._places: code_owner.Places | None = None
        # Seconds of what each epoch begins with, workers or not: the order of the samples.
        self._reset_s = 0.0
        # Where DataLoaders were made, by their identity: one that is gone leaves it to another.
        self._made: dict[int, tuple[str, int] | None] = {}
        self._starts: Counter[tuple[str, int] | None] = Counter()
        self._started_s = self._ended_s = 0.0

    def install(
        self, loader: Any, iterator: Any, hidden: Callable[[Any, Any], Any]
    ) -> list[Callable[[], None]]:
        """Put wrappers on the loader and its iterator with workers; return what takes each off.

        `hidden` makes a wrapper that dynamo does not see.
        """
        self._places = code_owner.Places.of(code_owner.script_folder())
        begin, end, reset = iterator.__init__, iterator._shutdown_workers, iterator._reset
        make = loader.__init__
        return [
            replace(loader, "__init__", hidden(self._making(make), make)),
            replace(iterator, "__init__", hidden(self._starting(begin), begin)),
            replace(iterator, "_reset", hidden(self._resetting(reset), reset)),
            replace(iterator, "_shutdown_workers", hidden(self._ending(end), end)),
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

    def _making(self, original: Any) -> Any:
        @functools.wraps(original)
        def __init__(self_: Any, *args: Any, **kwargs: Any) -> None:
            try:
                original(self_, *args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise
            if len(self._made) < _MOST_LOADERS:
                self._made[id(self_)] = self._own_line(sys._getframe(1))

        return __init__

    def _starting(self, original: Any) -> Any:
        @functools.wraps(original)
        def __init__(*args: Any, **kwargs: Any) -> None:
            begun, before_s = time.perf_counter(), self._reset_s
            try:
                original(*args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise
            self._started_s += time.perf_counter() - begun - (self._reset_s - before_s)
            loaders = (*args[1:2], *kwargs.values())
            made = next((at for each in loaders if (at := self._made.get(id(each)))), None)
            self._starts[made or self._own_line(sys._getframe(1))] += 1

        return __init__

    def _resetting(self, original: Any) -> Any:
        @functools.wraps(original)
        def _reset(*args: Any, **kwargs: Any) -> None:
            begun = time.perf_counter()
            try:
                original(*args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise
            self._reset_s += time.perf_counter() - begun

        return _reset

    def _ending(self, original: Any) -> Any:
        @functools.wraps(original)
        def _shutdown_workers(*args: Any, **kwargs: Any) -> None:
            begun = time.perf_counter()
            try:
                original(*args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise
            self._ended_s += time.perf_counter() - begun

        return _shutdown_workers

    def _own_line(self, frame: Any) -> tuple[str, int] | None:
        """Return the script's own line that makes the loader, or asks for its batches."""
        for _ in range(_MOST_FRAMES):
            if frame is None or self._places is None:
                break
            if self._places.is_own(frame.f_code.co_filename):
                return frame.f_code.co_filename, frame.f_lineno
            frame = frame.f_back
        return None
