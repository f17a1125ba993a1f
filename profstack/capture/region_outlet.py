"""Pass the script's regions on while a slice lasts, and wrap functions in regions."""

from __future__ import annotations

import functools
import inspect
from _thread import get_ident
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any

from profstack.guard import Guard
from profstack.storage.vocabulary import AGAIN, REGION_PREFIX

if TYPE_CHECKING:
    from profstack.capture.hooks import HookState
    from profstack.capture.user_regions import RegionSpan
    from profstack.layer import Listener

# A range is missing where torch fails to open or close it (its profiler may have gone); the
# script's own work goes on.
_GUARD = Guard()


class RegionOutlet:
    """Gives regions to a profiler as ranges, and to a listener.

    A profiler gets those of one thread, well nested: tasks may leave regions in another order than
    they entered them, and what lies over such a one is closed with it and opened again. A listener
    gets them in the same way, or one by one if it can take them `apart`: those in generators and
    coroutines, and those of other threads.
    """

    def __init__(self, state: HookState) -> None:
        self._state = state
        self._thread = get_ident()
        self._stack: list[tuple[RegionSpan, Any, Listener | None]] = []
        listener = state.listener
        self._apart = listener if listener is not None and listener.takes_apart else None
        # Spans that the listener got apart, by identity.
        self._spans_apart: dict[int, RegionSpan] = {}

    def entered(self, span: RegionSpan) -> None:
        """Pass on that a region was entered on some thread."""
        here = span.thread == self._thread
        if self._apart is not None and (span.takes_turns or not here):
            self._spans_apart[id(span)] = span
            self._apart.enter_apart(id(span), span.path)
        if here:
            self._open(span)

    def left(self, span: RegionSpan) -> None:
        """Pass on that a region was left; also one that was never passed on."""
        self._leave_apart(id(span))
        if all(each[0] is not span for each in self._stack):
            return
        above = []
        while (top := self._close()) is not span:
            above.append(top)
        for other in reversed(above):
            self._open(other)

    def close(self) -> None:
        """End here what is open, and pass nothing more on."""
        while self._stack:
            self._close()
        for key in list(self._spans_apart):
            self._leave_apart(key)

    def _leave_apart(self, key: int) -> None:
        # Its own thread may be leaving it at the same time.
        if self._spans_apart.pop(key, None) is not None and self._apart is not None:
            self._apart.leave_apart(key)

    def _open(self, span: RegionSpan) -> None:
        state = self._state
        range_: Any = None
        if state.ranging == self._thread:
            name = REGION_PREFIX + span.path + ("" if span.counts else AGAIN)
            with _GUARD:
                opened = state.torch._C._profiler._RecordFunctionFast(name)
                opened.__enter__()
                range_ = opened
        listener = None if id(span) in self._spans_apart else state.active_listener()
        if listener is not None:
            listener.enter("region", span.path)
        self._stack.append((span, range_, listener))

    def _close(self) -> RegionSpan:
        span, range_, listener = self._stack.pop()
        if listener is not None and listener is self._state.active_listener():
            listener.leave("region", span.path)
        if range_ is not None:
            with _GUARD:
                range_.__exit__(None, None, None)
        return span


# -- functions that run inside a region at every call: plain ones, coroutines and generators -----
#
# A wrapped function stays of its kind: a coroutine function remains one, and so does a generator
# function, whose body is in the region only while it runs, not while its consumer does.


def inside(region: Callable[[str], Any], name: str, function: Any) -> Any:
    """Return `function`, which runs in the region `name` at every call.

    Raises TypeError for what is no function: a wrapped class would no longer be a class.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(inside(region, name, function.__func__))
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"a region decorates functions and methods, not {function!r}")
    wrap = next((wrap for is_kind, wrap in _KINDS if is_kind(function)), _plain)
    return functools.wraps(function)(wrap(region, name, function))


def _plain(region: Callable[[str], Any], name: str, function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        with region(name):
            return function(*args, **kwargs)

    return call


def _coroutine(region: Callable[[str], Any], name: str, function: Any) -> Any:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with region(name):
            return await function(*args, **kwargs)

    return call


def _generator(region: Callable[[str], Any], name: str, function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)
        go_on, given = inner.send, None
        while True:
            try:
                with region(name):
                    item = go_on(given)
            except StopIteration as end:
                return end.value
            try:
                given = yield item
                go_on = inner.send
            except GeneratorExit:
                with region(name):
                    inner.close()
                raise
            except BaseException as error:
                go_on, given = inner.throw, error

    return call


def _async_generator(region: Callable[[str], Any], name: str, function: Any) -> Any:
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)
        go_on, given = inner.asend, None
        while True:
            try:
                with region(name):
                    item = await go_on(given)
            except StopAsyncIteration:
                return
            try:
                given = yield item
                go_on = inner.asend
            except GeneratorExit:
                with region(name):
                    await inner.aclose()
                raise
            except BaseException as error:
                go_on, given = inner.athrow, error

    return call


_KINDS = (
    (inspect.iscoroutinefunction, _coroutine),
    (inspect.isasyncgenfunction, _async_generator),
    (inspect.isgeneratorfunction, _generator),
)
