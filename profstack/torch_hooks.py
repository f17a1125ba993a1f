"""The few functions of torch that are wrapped while steps are observed, and taken back after.

Every wrapper returns the original at once under `torch.compiler.is_compiling()`, so that dynamo
traces straight through it, and removes itself from the traceback of an error that passes. No
hook is ever put on a module object: hooks on objects switch torch's fused paths off.
"""

from __future__ import annotations

import _thread
import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from profstack.evaluation import EvaluationWatch
from profstack.passthrough import compiling, strip_frame
from profstack.regions import BACKWARD_RANGE, ModuleNames, Named, script_label
from profstack.sink import Sink

# Which wrapper stands on the modules' calls: none, one on the root's class (LIGHT for evaluation
# alone, ROOT for waiting times too), one on all calls (to find roots), or one that emits ranges.
# QUIET tells of evaluation too, but only where the root is switched to it, not at each call.
OFF, QUIET, LIGHT, ROOT, DISCOVER, RANGES = "off", "quiet", "light", "root", "discover", "ranges"

# What a thread is inside of during a backward pass. Modules called there (checkpointing does
# forward work again) are inner calls, and passes inside it (re-entrant ones) are parts of it.
IN_BACKWARD = Named(0, "(backward)", None, "", 1, None, None)
# Stands for a module that could not be named.
NAMELESS = Named(0, "(module without a name)", None, "", 1, None, None)


class _ThreadState(_thread._local):
    """What one thread is inside of: the module being called, and a `generate`."""

    current: Named | None = None
    generating: bool = False


class TorchHooks:
    """Puts the wrappers on and takes them off. `mode` is one of OFF, QUIET, LIGHT, ROOT, ..."""

    def __init__(self, torch: Any, sink: Sink, names: ModuleNames) -> None:
        self.torch = torch
        self.sink = sink
        self.names = names
        self.mode = OFF
        self.root_class: type | None = None
        self._local = _ThreadState()
        self._module = torch.nn.Module
        self._original_call: Any = None
        self._handles: list[Any] = []
        self._step_hook = self._optimizer_hook(sink.optimizer_ended)
        self._start_handle: Any = None
        autograd = torch.autograd
        # Of each function: as found, with the wrapper for all modes, with the one for ranges alone.
        self._backwards = {
            name: (original, self._backward(original), self._ranging_backward(original))
            for name, original in ((name, getattr(autograd, name)) for name in ("backward", "grad"))
        }
        self._restore: list[Callable[[], None]] = []
        # The wrapper that stands on the calls now, and the one that does the work: any other, left
        # under somebody else's, passes through.
        self._standing: Any = None
        self._live: Any = None
        self._calls: dict[str, Any] = {}
        self._evaluation = EvaluationWatch(
            torch, lambda module: sink.evaluated(names.by_identity.get(id(module)))
        )
        self._originals: list[tuple[Any, Any]] = []
        self._wrap_calls()

    def install(self) -> None:
        """Put on the wrapper that stays for the whole observation: after optimizer steps."""
        from torch.optim import optimizer

        self._handles.append(optimizer.register_optimizer_step_post_hook(self._step_hook))

    def install_generate(self, module: Any) -> None:
        """Put a wrapper on `GenerationMixin.generate` of the module `transformers` loaded."""
        mixin = module.GenerationMixin
        self._replace(mixin, "generate", self._generate(mixin.generate))

    def exchange_step_hook(self, hook: Any = None) -> bool:
        """Let `hook` stand after optimizer steps, the usual one with None; false if it cannot.

        It takes the other's place in the dictionary, since torch may be going through that now.
        """
        from torch.optim import optimizer

        hooks = getattr(optimizer, "_global_optimizer_post_hooks", {})
        if not self._handles or self._handles[0].id not in hooks:
            return False
        hooks[self._handles[0].id] = hook or self._step_hook
        return True

    def set_mode(self, mode: str, root: Any = None, *, backward: bool = False) -> None:
        """Exchange the wrappers; ROOT needs the root module.

        With OFF nothing of a step is wrapped but its end, and backward passes where `backward`
        says that they end steps.
        """
        if self._stands(mode, root):
            # Every change of the class makes the interpreter forget what it has learnt of it.
            self.mode = mode
            return
        self._remove_call()
        self._wrap_calls()
        if mode == RANGES:
            self.names.begin_ranges()
        if mode in (DISCOVER, RANGES):
            self._module.__call__ = self._standing = self._calls[mode]
            self._live = self._calls[DISCOVER]
        elif mode == QUIET and root is not None:
            self._evaluation.put(root)
        elif mode in (LIGHT, ROOT) and root is not None:
            kind = type(root)
            if kind.__call__ is self._original_call and kind is not self._module:
                kind.__call__ = self._standing = self._live = self._calls[mode]
                self.root_class = kind
        wrapped = 1 if mode not in (OFF, QUIET, LIGHT) or backward else 0
        if mode == RANGES and not (self.sink.follows_backward or self.sink.follows_calls):
            wrapped = 2
        self._wrap_backward(wrapped)
        self._hook_optimizer_starts(mode == DISCOVER)
        self.mode = mode

    def _stands(self, mode: str, root: Any) -> bool:
        """Whether the wrappers of `mode` are on already, and nobody else's on top of them."""
        if mode == QUIET:
            return mode == self.mode and self._evaluation.stands_on(root)
        if self._standing is None:
            return False
        if mode in (LIGHT, ROOT):
            return (
                mode == self.mode
                and self.root_class is type(root)
                and type(root).__call__ is self._standing
            )
        return mode == self.mode == RANGES and self._module.__call__ is self._standing

    def _wrap_backward(self, wrapped: int) -> None:
        """Put on one of the wrappers, or none (0); what somebody else put there stays theirs."""
        autograd = self.torch.autograd
        for name, ours in self._backwards.items():
            if getattr(autograd, name) in ours:
                setattr(autograd, name, ours[wrapped])

    def _hook_optimizer_starts(self, hooked: bool) -> None:
        if hooked and self._start_handle is None:
            from torch.optim import optimizer

            self._start_handle = optimizer.register_optimizer_step_pre_hook(
                self._optimizer_hook(self.sink.optimizer_started)
            )
        elif not hooked and self._start_handle is not None:
            self._start_handle.remove()
            self._start_handle = None

    def _wrap_calls(self) -> None:
        """Make the wrappers, anew if somebody has put their own on `Module.__call__`."""
        current = self._module.__call__
        if current is not self._original_call:
            self._original_call = current
            every, outermost = self._call(inner_too=True), self._call(inner_too=False)
            ranging = self._ranging_call(every)
            light = self._light_call()
            self._calls = {DISCOVER: every, RANGES: ranging, ROOT: outermost, LIGHT: light}
            self._originals += [(wrapper, current) for wrapper in self._calls.values()]

    def stop_ranges(self) -> None:
        """Emit no more ranges, though the slice goes on: another profiler would see them."""
        if self.mode == RANGES:
            self.mode = DISCOVER
            self.names.end_ranges()
            self._wrap_backward(1)

    def remove(self) -> None:
        """Take everything off; afterwards torch is as it was found."""
        self._remove_call()
        self._wrap_backward(0)
        self._hook_optimizer_starts(False)
        self.mode = OFF
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for restore in reversed(self._restore):
            restore()
        self._restore.clear()

    def _remove_call(self) -> None:
        self.names.end_ranges()
        self._evaluation.take_off()
        if self.root_class is not None:
            if self.root_class.__dict__.get("__call__") in (self._calls[ROOT], self._calls[LIGHT]):
                del self.root_class.__call__
            self.root_class = None
        self._standing = self._live = None
        for wrapper, original in self._originals:
            if self._module.__call__ is wrapper:
                self._module.__call__ = original

    def _replace(self, owner: Any, name: str, wrapper: Any) -> None:
        original = owner.__dict__[name]
        setattr(owner, name, wrapper)

        def restore() -> None:
            # Whoever wrapped it after us keeps their wrapper, and ours passes through.
            if owner.__dict__.get(name) is wrapper:
                setattr(owner, name, original)

        self._restore.append(restore)

    def _name(self, module: Any, around: Named | None) -> Named:
        named = self.names.known(module)
        if named is not None:
            return named
        try:
            if self.mode == RANGES:
                around = self._enclosing() or around
            if around is not None and around.module_id:
                return self.names.inner(module, around)
            # 0 is here, 1 the wrapper, 2 whoever calls the module.
            return self.names.root(module, script_label(module, sys._getframe(2)))
        except Exception:
            # A module may answer to questions as it likes; the script's call must go through.
            return NAMELESS

    def _enclosing(self) -> Named | None:
        """The module whose call is around, from the frames: while ranges are emitted the calls
        of known modules leave no other trace."""
        # 0 is here, 1 `_name`, 2 the wrapper of the module in question, 3 who called that.
        frame: FrameType | None = sys._getframe(3)
        code = self._calls[RANGES].__code__
        skipped = False
        while frame is not None:
            if frame.f_code is code:
                if skipped:
                    return self.names.known(frame.f_locals["self"])
                # The first is the one through which this very call came.
                skipped = True
            frame = frame.f_back
        return None

    def _call(self, *, inner_too: bool) -> Any:
        """A wrapper for `Module.__call__`: of the outermost calls, or of the inner ones too."""
        original = self._original_call
        under_dynamo, compiler = compiling(self.torch)
        local, sink, name = self._local, self.sink, self._name
        known = self.names.by_identity
        range_ = self.torch._C._profiler._RecordFunctionFast
        hooks = self

        @functools.wraps(original)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if under_dynamo() or compiler._is_compiling_flag or hooks._live is not __call__:
                return original(self, *args, **kwargs)
            around = local.current
            try:
                if around is None:
                    named = known.get(id(self))
                    if named is None or named.alive() is not self:
                        named = name(self, None)
                    local.current = named
                    if sink.waiting:
                        sink.first_activity(self, args, kwargs)
                    sink.call_started(self, named)
                elif inner_too:
                    # Looked up here, since a call would cost as much again.
                    named = known.get(id(self))
                    if named is None or named.alive() is not self:
                        named = name(self, around)
                    local.current = named
                else:
                    return original(self, *args, **kwargs)
                # Asked only now: the step may have ended here, and a slice begun or ended.
                if hooks.mode == RANGES and named.range_name:
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

        return __call__

    def _light_call(self) -> Any:
        """A wrapper on the root's class that tells of evaluation and of nothing else.

        It stands in cProfile's slices, where every call it made would cost the profiler's price.
        """
        original = self._original_call
        under_dynamo, compiler = compiling(self.torch)
        sink, known, hooks = self.sink, self.names.by_identity, self

        @functools.wraps(original)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if under_dynamo() or compiler._is_compiling_flag or hooks._live is not __call__:
                return original(self, *args, **kwargs)
            if not self.training:
                sink.evaluated(known.get(id(self)))
            try:
                return original(self, *args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise

        return __call__

    def _ranging_call(self, slow: Any) -> Any:
        """A wrapper that gives an inner module's call its range and does nothing else.

        Every instruction here is run for every module of a step, mostly out of cold caches: what
        is no known inner module goes to `slow`.
        """
        original = self._original_call
        under_dynamo, compiler = compiling(self.torch)
        range_name = self.names.inner_ranges.get
        root_range = self.names.root_ranges.get
        known = self.names.by_identity
        sink = self.sink
        range_ = self.torch._C._profiler._RecordFunctionFast

        @functools.wraps(original)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if under_dynamo() or compiler._is_compiling_flag:
                return original(self, *args, **kwargs)
            name = range_name(id(self))
            try:
                if name is None:
                    name = root_range(id(self))
                    if name is None or sink.follows_calls:
                        return slow(self, *args, **kwargs)
                    if not self.training:
                        sink.evaluated(known.get(id(self)))
                with range_(name):
                    return original(self, *args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise

        return __call__

    def _backward(self, original: Any) -> Any:
        under_dynamo, compiler = compiling(self.torch)
        range_ = self.torch._C._profiler._RecordFunctionFast
        local, sink, hooks = self._local, self.sink, self

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if under_dynamo() or compiler._is_compiling_flag:
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
                if hooks.mode == RANGES:
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

        return _named_like(backward, original)

    def _ranging_backward(self, original: Any) -> Any:
        """A wrapper that gives a backward pass its range, where its end is no step's end."""
        under_dynamo, compiler = compiling(self.torch)
        range_ = self.torch._C._profiler._RecordFunctionFast

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if under_dynamo() or compiler._is_compiling_flag:
                return original(*args, **kwargs)
            try:
                with range_(BACKWARD_RANGE):
                    return original(*args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise

        return _named_like(backward, original)

    def _generate(self, original: Any) -> Any:
        sink, local = self.sink, self._local

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

    def _optimizer_hook(self, report: Callable[[Any], None]) -> Any:
        under_dynamo, compiler = compiling(self.torch)

        def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not (under_dynamo() or compiler._is_compiling_flag):
                report(optimizer)

        return hook


def _named_like(wrapper: Any, original: Any) -> Any:
    """The wrapper with the original's name in its code: a profile tells functions apart by it."""
    wrapper.__code__ = wrapper.__code__.replace(co_name=original.__name__)
    return wrapper
