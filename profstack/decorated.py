"""Functions that run inside a region at every call: plain ones, coroutines and generators.

What is wrapped stays of its kind: a coroutine function remains one, and so does a generator
function, whose body is in the region only while it runs, not while its consumer does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any


def inside(region: Callable[[str], Any], name: str, function: Any) -> Any:
    """`function` in the region `name` at every call.

    Raises TypeError for what is no function: a class would no longer be one.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(inside(region, name, function.__func__))
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"a region decorates functions and methods, not {function!r}")
    for is_kind, wrap in _KINDS:
        if is_kind(function):
            return functools.wraps(function)(wrap(region, name, function))
    return functools.wraps(function)(_plain(region, name, function))


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
