"""The wrappers that stand on the calls of modules, one for each mode.

Every one returns the original at once under `torch.compiler.is_compiling()`, so that dynamo
traces straight through it, and removes itself from the traceback of an error that passes.
"""

from __future__ import annotations

import functools
import sys
from _thread import get_ident
from types import FrameType
from typing import Any

from profstack.evaluation import in_training
from profstack.hooks.state import DISCOVER, LIGHT, NAMELESS, RANGES, ROOT, HookState
from profstack.interrupts import is_scripts
from profstack.passthrough import (
    compiling,
    dynamo_callback,
    strip_frame,
    traced_as,
    unseen_by_dynamo,
)
from profstack.regions import Named
from profstack.scriptlabel import script_label


class HookedCalls:
    """The wrappers of one `Module.__call__`, by mode; made anew when somebody has put their own."""

    def __init__(self, state: HookState, original: Any) -> None:
        self.state = state
        self.original = original
        # What each wrapper asks first: whether the call is a part of something compiled.
        self._compiled = (*compiling(state.torch), dynamo_callback(state.torch))
        every = self._call(inner_too=True)
        self.wrappers = {
            DISCOVER: every,
            RANGES: self._ranging_call(every),
            ROOT: self._call(inner_too=False),
            LIGHT: self._light_call(),
        }

    def _name(self, module: Any, around: Named | None) -> Named:
        named = self.state.names.known(module)
        if named is not None:
            return named
        if self.state.torch._C._get_tracing_state() is not None:
            # To count its parameters would become a part of what torch.jit traces.
            return NAMELESS
        try:
            if self.state.mode == RANGES:
                around = self._enclosing() or around
            if around is not None and around.module_id:
                return self.state.names.inner(module, around)
            # 0 is here, 1 the wrapper, 2 whoever calls the module.
            return self.state.names.root(module, script_label(module, sys._getframe(2)))
        except Exception as error:
            if is_scripts(error):
                raise
            # A module may answer to questions as it likes; the script's call must go through.
            return NAMELESS

    def _enclosing(self) -> Named | None:
        """The module whose call is around, from the frames: while ranges are emitted the calls
        of known modules leave no other trace."""
        # 0 is here, 1 `_name`, 2 the wrapper of the module in question, 3 who called that.
        frame: FrameType | None = sys._getframe(3)
        code = self.wrappers[RANGES].__code__
        skipped = False
        while frame is not None:
            if frame.f_code is code:
                if skipped:
                    return self.state.names.known(frame.f_locals["self"])
                # The first is the one through which this very call came.
                skipped = True
            frame = frame.f_back
        return None

    def _call(self, *, inner_too: bool) -> Any:
        """A wrapper for `Module.__call__`: of the outermost calls, or of the inner ones too."""
        original, state, name = self.original, self.state, self._name
        binding = state.torch._C
        under_dynamo, compiler, traced = self._compiled
        local, sink, told, known = state.local, state.sink, state.told, state.names.by_identity
        range_, jit_traces = binding._profiler._RecordFunctionFast, binding._get_tracing_state

        @functools.wraps(original)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if under_dynamo() or compiler._is_compiling_flag or traced() is not None:
                return original(self, *args, **kwargs)
            around = local.current
            # Whatever is asked of a tensor while torch.jit traces becomes a part of what it traces.
            if state.live is not __call__ or (around is None and jit_traces() is not None):
                return original(self, *args, **kwargs)
            try:
                if around is not None and not inner_too:
                    return original(self, *args, **kwargs)
                # Looked up here, since a call would cost as much again.
                named = known.get(id(self))
                if named is None or named.alive() is not self:
                    named = name(self, around)
                local.current = named
                if around is None:
                    if sink.waiting:
                        sink.first_activity(self, args, kwargs)
                    sink.call_started(self, named)
                # Asked only now: the step may have ended here, and a slice begun or ended.
                listener = told() if state.listener is not None else None
                if listener is not None and named.path:
                    listener.enter("module", named.path, self)
                    try:
                        result = original(self, *args, **kwargs)
                    finally:
                        listener.leave("module", named.path)
                elif state.ranging is not None and named.range_name and state.ranges_here():
                    with range_(named.range_name):
                        result = original(self, *args, **kwargs)
                else:
                    result = original(self, *args, **kwargs)
            except BaseException as error:
                local.current = around
                strip_frame(error)
                raise
            local.current = around
            if around is None and sink.follows_calls:
                sink.call_ended(self, named)
            return result

        return traced_as(unseen_by_dynamo(state.torch, __call__), original)

    def _light_call(self) -> Any:
        """A wrapper on the root's class that tells of evaluation and of nothing else.

        It stands in cProfile's slices, where every call it made would cost the profiler's price.
        """
        original, state = self.original, self.state
        under_dynamo, compiler, traced = self._compiled
        sink, known = state.sink, state.names.by_identity

        @functools.wraps(original)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if under_dynamo() or compiler._is_compiling_flag or traced() is not None:
                return original(self, *args, **kwargs)
            if state.live is not __call__:
                return original(self, *args, **kwargs)
            try:
                training = self.training
            except AttributeError:
                training = False  # frozen TorchScript, which has no mode left
            if not training:
                sink.evaluated(known.get(id(self)))
            try:
                return original(self, *args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise

        return traced_as(unseen_by_dynamo(state.torch, __call__), original)

    def _ranging_call(self, slow: Any) -> Any:
        """A wrapper that gives an inner module's call its range and does nothing else.

        Every instruction here is run for every module of a step, mostly out of cold caches: what
        is no known inner module goes to `slow`.
        """
        original, state = self.original, self.state
        under_dynamo, compiler, traced = self._compiled
        range_name, root_range = state.names.inner_ranges.get, state.names.root_ranges.get
        sink, known = state.sink, state.names.by_identity
        range_ = state.torch._C._profiler._RecordFunctionFast

        @functools.wraps(original)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if under_dynamo() or compiler._is_compiling_flag or traced() is not None:
                return original(self, *args, **kwargs)
            name = range_name(id(self))
            try:
                if state.ranging != get_ident():
                    return slow(self, *args, **kwargs)
                if name is None:
                    name = root_range(id(self))
                    if name is None or sink.follows_calls:
                        return slow(self, *args, **kwargs)
                    if not in_training(self):
                        sink.evaluated(known.get(id(self)))
                with range_(name):
                    return original(self, *args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise

        return traced_as(unseen_by_dynamo(state.torch, __call__), original)
