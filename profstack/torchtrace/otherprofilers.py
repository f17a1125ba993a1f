"""Tells profilers that the script starts from profstack's own, which gives way to them.

There can be only one: a second one raises in the script. A profiler with a schedule is prepared
some steps before it is enabled, and must be left alone from then on.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any


class OtherProfilers:
    """Watches torch's profiler; `active` is whether the script has prepared one of its own.

    `give_way` is called before the script's profiler is, and raises nothing of ours.
    """

    def __init__(self, give_way: Callable[[], None]) -> None:
        self.active = False
        self._give_way = give_way
        self._own_call = False
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def watch(self, module: Any) -> None:
        """Stand on the functions of `torch.autograd.profiler` that prepare and end a profile."""
        prepare, disable = module._prepare_profiler, module._disable_profiler

        @functools.wraps(prepare)
        def prepare_profiler(*args: Any, **kwargs: Any) -> Any:
            if not self._own_call:
                self.active = True
                self._give_way()
            return prepare(*args, **kwargs)

        @functools.wraps(disable)
        def disable_profiler(*args: Any, **kwargs: Any) -> Any:
            if not self._own_call:
                self.active = False
            return disable(*args, **kwargs)

        wrappers = {"_prepare_profiler": prepare_profiler, "_disable_profiler": disable_profiler}
        for name, wrapper in wrappers.items():
            self._replaced.append((module, name, getattr(module, name), wrapper))
            setattr(module, name, wrapper)

    def close(self) -> None:
        """Watch no more."""
        for module, name, original, wrapper in self._replaced:
            if getattr(module, name) is wrapper:
                setattr(module, name, original)
        self._replaced.clear()

    @contextlib.contextmanager
    def own_call(self) -> Iterator[None]:
        """Round calls of our own into torch.profiler.

        Kineto prints to standard error, which is the script's; it reads its level at the start.
        """
        before = os.environ.get("KINETO_LOG_LEVEL")
        os.environ["KINETO_LOG_LEVEL"] = "6"
        self._own_call = True
        try:
            yield
        finally:
            self._own_call = False
            if before is None:
                os.environ.pop("KINETO_LOG_LEVEL", None)
            else:
                os.environ["KINETO_LOG_LEVEL"] = before
