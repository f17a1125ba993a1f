"""The wrappers on backward passes and on `generate`, and the hooks round optimizer steps.

As for those on calls: nothing is done under dynamo, and no frame stays in a traceback.
"""

from __future__ import annotations

import functools
from _thread import get_ident
from collections.abc import Callable
from typing import Any

from profstack.hooks.state import IN_BACKWARD, HookState
from profstack.passthrough import (
    compiling,
    dynamo_callback,
    strip_frame,
    traced_as,
    unseen_by_dynamo,
)
from profstack.regions import BACKWARD_RANGE


class HookedPasses:
    """Makes the wrappers."""

    def __init__(self, state: HookState) -> None:
        self.state = state

    def backward(self, original: Any) -> Any:
        """A wrapper for a backward pass, in every mode."""
        under_dynamo, compiler = compiling(self.state.torch)
        traced = dynamo_callback(self.state.torch)
        range_ = self.state.torch._C._profiler._RecordFunctionFast
        state, told = self.state, self.state.told
        local, sink = state.local, state.sink

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if under_dynamo() or compiler._is_compiling_flag or traced() is not None:
                return original(*args, **kwargs)
            around = local.current
            if around is IN_BACKWARD:
                return original(*args, **kwargs)
            local.current = IN_BACKWARD
            try:
                if sink.waiting:
                    sink.first_activity(None, (), {})
                if sink.follows_backward:
                    sink.backward_started()
                listener = told() if state.listener is not None else None
                if listener is not None:
                    listener.enter("backward", "backward")
                    try:
                        result = original(*args, **kwargs)
                    finally:
                        listener.leave("backward", "backward")
                elif state.ranging == get_ident():
                    with range_(BACKWARD_RANGE):
                        result = original(*args, **kwargs)
                else:
                    result = original(*args, **kwargs)
            except BaseException as error:
                local.current = around
                strip_frame(error)
                raise
            local.current = around
            if sink.follows_backward:
                sink.backward_ended()
            return result

        return traced_as(
            unseen_by_dynamo(self.state.torch, _named_like(backward, original)), original
        )

    def ranging_backward(self, original: Any) -> Any:
        """A wrapper that gives a backward pass its range, where its end is no step's end."""
        under_dynamo, compiler = compiling(self.state.torch)
        traced = dynamo_callback(self.state.torch)
        range_, state = self.state.torch._C._profiler._RecordFunctionFast, self.state

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if under_dynamo() or compiler._is_compiling_flag or traced() is not None:
                return original(*args, **kwargs)
            if state.ranging != get_ident():
                return original(*args, **kwargs)
            try:
                with range_(BACKWARD_RANGE):
                    return original(*args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise

        return traced_as(
            unseen_by_dynamo(self.state.torch, _named_like(backward, original)), original
        )

    def generate(self, original: Any) -> Any:
        """A wrapper for `generate` of a language model."""
        sink, local = self.state.sink, self.state.local

        @functools.wraps(original)
        def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
            if local.generating:
                return original(self, *args, **kwargs)
            local.generating = True
            try:
                if sink.waiting:
                    sink.first_activity(None, args, kwargs)
                sink.generate_started()
                result = original(self, *args, **kwargs)
            except BaseException as error:
                local.generating = False
                sink.generate_ended(completed=False)
                strip_frame(error)
                raise
            local.generating = False
            sink.generate_ended(completed=True)
            return result

        return generate

    def optimizer_started(self) -> Any:
        """A hook before `Optimizer.step`."""
        state, report = self.state, self.state.sink.optimizer_started

        def started(optimizer: Any) -> None:
            report(optimizer)
            listener = state.told()
            if listener is not None:
                listener.enter("optimizer", type(optimizer).__name__, optimizer)

        return self._hook(started)

    def optimizer_ended(self) -> Any:
        """A hook after `Optimizer.step`."""
        state, report = self.state, self.state.sink.optimizer_ended

        def ended(optimizer: Any) -> None:
            if state.listener is not None:
                listener = state.told()
                if listener is not None:
                    listener.leave("optimizer", type(optimizer).__name__)
            report(optimizer)

        return self._hook(ended)

    def _hook(self, report: Callable[[Any], None]) -> Any:
        under_dynamo, compiler = compiling(self.state.torch)

        def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not (under_dynamo() or compiler._is_compiling_flag):
                report(optimizer)

        return unseen_by_dynamo(self.state.torch, hook, with_callees=True)


def _named_like(wrapper: Any, original: Any) -> Any:
    """The wrapper with the original's name in its code: a profile tells functions apart by it."""
    wrapper.__code__ = wrapper.__code__.replace(co_name=original.__name__)
    return wrapper
