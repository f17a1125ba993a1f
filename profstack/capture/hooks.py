"""The hooks on torch: wrappers of module calls, backward passes and optimizer steps.

Every wrapper returns the original at once under `torch.compiler.is_compiling()`, so that dynamo
traces straight through it, and removes itself from the traceback of an error that passes. No
hook is ever put on a module object: hooks on objects switch torch's fused paths off.
"""

from __future__ import annotations

import _thread
import functools
import inspect
import sys
import threading
import time
from _thread import get_ident
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType, FunctionType, MethodType
from typing import Any

from profstack.capture import user_regions
from profstack.capture.module_names import ModuleInfo, ModuleNames, script_label
from profstack.capture.step_events import StepEvents
from profstack.capture.step_rules import EvaluationWatch
from profstack.capture.worker_starts import WorkerStarts
from profstack.guard import (
    Guard,
    compiling,
    dynamo_callback,
    has_compiled,
    replace,
    strip_frame,
    traced_as,
    unseen_by_dynamo,
)
from profstack.layer import Listener
from profstack.models import generated_tokens, in_training
from profstack.storage.vocabulary import BACKWARD_RANGE, CLOSURE_RANGE

# -- what the wrappers share: their mode, and who gets their events -----------------------------

# The wrapper on the modules' calls: none, one on the root's class (LIGHT for evaluation alone, ROOT
# for waiting times too), one on all calls (to find roots), or one that emits ranges. QUIET reports
# evaluation too, but only where the root is switched to it, not at each call.
OFF, QUIET, LIGHT, ROOT, DISCOVER, RANGES = "off", "quiet", "light", "root", "discover", "ranges"

_perf_counter = time.perf_counter

# The "module" that a thread is in during a backward pass. Modules called there (checkpointing
# repeats forward work) are inner calls, and passes inside it (re-entrant ones) are parts of it.
IN_BACKWARD = ModuleInfo(0, "(backward)", None, "", 1, None, None)
# A module that could not be named.
NAMELESS = ModuleInfo(0, "(module without a name)", None, "", 1, None, None)


class ThreadState(_thread._local):
    """The state of one thread: the module being called, whether it is in a `generate`, and whether
    it waits for a batch.
    """

    current: ModuleInfo | None = None
    generating: bool = False
    loading: bool = False


@dataclass
class HookState:
    """The state of one set of hooks; `live` is the wrapper of calls that does the work.

    Any other one, left under a wrapper of the script's, passes through. `listener` gets calls and
    passes on the thread `listening`, in mode DISCOVER.
    """

    torch: Any
    events: StepEvents
    names: ModuleNames
    mode: str = OFF
    live: Any = None
    # The thread whose calls get ranges, while a profiler is on. torch raises where a range is left
    # under a profiler that was not there yet when it was entered.
    ranging: int | None = None
    listener: Listener | None = None
    listening: int | None = None
    local: ThreadState = field(default_factory=ThreadState)

    def __post_init__(self) -> None:
        # What each wrapper asks first: whether the call is a part of compiled code.
        self.compiled = (*compiling(self.torch), dynamo_callback(self.torch))
        self.range = self.torch._C._profiler._RecordFunctionFast

    def hidden(self, wrapper: Any, original: Any) -> Any:
        """Return a wrapper that dynamo does not see: it reads the original instead."""
        return traced_as(unseen_by_dynamo(self.torch, wrapper), original)

    def ranges_here(self) -> bool:
        """Return whether calls on this thread get ranges: the steps' own, or autograd's.

        Autograd runs what a device's backward functions call (repeated forward work) on a thread
        that Python has not made, and profiles it with the thread that asked for the pass.
        """
        if self.ranging is None:
            return False
        here = get_ident()
        if self.ranging == here:
            return True
        thread = threading._active.get(here)  # type: ignore[attr-defined]  # no other way
        made_by_python = thread is not None and not isinstance(thread, threading._DummyThread)
        return not made_by_python and bool(self.torch._C._current_graph_task_id() >= 0)

    def active_listener(self) -> Listener | None:
        """Return the listener, on the thread that it listens to; else None."""
        listener = self.listener
        return listener if listener is not None and self.listening == get_ident() else None


# -- wrappers on the calls of modules, one for each mode -----------------------------------------


class HookedCalls:
    """The wrappers of one `Module.__call__`, by mode; made again when the script replaces it."""

    def __init__(self, state: HookState, original: Any) -> None:
        self.state = state
        self.original = original
        every = self._call(inner_too=True)
        self.wrappers = {
            DISCOVER: every,
            RANGES: self._ranging_call(every),
            ROOT: self._call(inner_too=False),
            LIGHT: self._light_call(),
        }

    def _name(self, module: Any, around: ModuleInfo | None) -> ModuleInfo:
        """Return the name of a module; called by a wrapper, for modules that it does not know."""
        named = self.state.names.known(module)
        if named is not None:
            return named
        if self.state.torch._C._get_tracing_state() is not None:
            # Counting its parameters would become a part of what torch.jit traces.
            return NAMELESS
        # A module's attributes may do anything; the script's call must go through.
        with Guard():
            if self.state.mode == RANGES:
                around = self._enclosing() or around
            if around is not None and around.module_id:
                return self.state.names.inner(module, around)
            # 0 is here, 1 the wrapper, 2 the caller of the module.
            return self.state.names.root(module, script_label(module, sys._getframe(2)))
        return NAMELESS

    def _enclosing(self) -> ModuleInfo | None:
        """Return the module whose call is around, from the frames.

        While ranges are emitted the calls of known modules leave no other trace.
        """
        # 0 is here, 1 `_name`, 2 the wrapper of the module in question, 3 its caller.
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
        """Return a wrapper for `Module.__call__`: of outermost calls, or of inner ones too."""
        original, state, name = self.original, self.state, self._name
        under_dynamo, compiler, traced = state.compiled
        local, events, known = state.local, state.events, state.names.by_identity
        active_listener = state.active_listener
        range_, jit_traces = state.range, state.torch._C._get_tracing_state

        @functools.wraps(original)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if under_dynamo() or compiler._is_compiling_flag or traced() is not None:
                return original(self, *args, **kwargs)
            around = local.current
            # What is read of a tensor while torch.jit traces becomes a part of what it traces.
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
                    if events.waiting:
                        events.first_activity(self, args, kwargs)
                    events.call_started(self, named)
                # Only now: the step may have ended here, and a slice begun or ended.
                listener = active_listener() if state.listener is not None else None
                if listener is not None and named.path:
                    listener.given(around, args, kwargs)
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
            if around is None and events.follows_calls:
                events.call_ended(self, named)
            return result

        return state.hidden(__call__, original)

    def _light_call(self) -> Any:
        """Return a wrapper on the root's class that reports evaluation and nothing else.

        For cProfile's slices, where every call that it made would cost the profiler's price.
        """
        original, state = self.original, self.state
        under_dynamo, compiler, traced = state.compiled
        events, known = state.events, state.names.by_identity

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
                events.evaluated(known.get(id(self)))
            try:
                return original(self, *args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise

        return state.hidden(__call__, original)

    def _ranging_call(self, slow: Any) -> Any:
        """Return a wrapper that gives an inner module's call its range and does nothing else.

        Every instruction here is run for every module of a step, mostly out of cold caches: all
        but known inner modules go to `slow`.
        """
        original, state = self.original, self.state
        under_dynamo, compiler, traced = state.compiled
        range_name, root_range = state.names.inner_ranges.get, state.names.root_ranges.get
        events, known, range_ = state.events, state.names.by_identity, state.range

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
                    if name is None or events.follows_calls:
                        return slow(self, *args, **kwargs)
                    if not in_training(self):
                        events.evaluated(known.get(id(self)))
                with range_(name):
                    return original(self, *args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise

        return state.hidden(__call__, original)


# -- wrappers on backward passes and on `generate`, and hooks around optimizer steps --------------


def _keeps_graph(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether torch.autograd.backward is to keep its graph, and to make none of its own."""
    names = ("retain_graph", "create_graph")
    keeps, makes = (
        kwargs.get(name, args[at] if len(args) > at else None) for at, name in enumerate(names, 2)
    )
    return bool(keeps) and not makes


@dataclass
class HookedPasses:
    """Makes the wrappers; nothing is done under dynamo, and no frame stays in a traceback."""

    state: HookState

    def backward(self, original: Any) -> Any:
        """Return a wrapper for a backward pass, in every mode."""
        state, active_listener = self.state, self.state.active_listener
        under_dynamo, compiler, traced = state.compiled
        local, events, range_ = state.local, state.events, state.range
        # What is asked for gradients, one after the other, may need each of them, and adds none up.
        adds_up = original.__name__ == "backward"

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if under_dynamo() or compiler._is_compiling_flag or traced() is not None:
                return original(*args, **kwargs)
            around = local.current
            if around is IN_BACKWARD:
                return original(*args, **kwargs)
            local.current = IN_BACKWARD
            try:
                if events.waiting:
                    events.first_activity(None, (), {})
                if events.follows_backward:
                    events.backward_started()
                listener = active_listener() if state.listener is not None else None
                if listener is not None:
                    # Of what is asked for single gradients there is nothing to say.
                    keeps = _keeps_graph(args, kwargs) if adds_up else None
                    listener.enter("backward", "backward", keeps)
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
            if events.follows_backward:
                events.backward_ended()
            return result

        return state.hidden(_named_like(backward, original), original)

    def ranging_backward(self, original: Any) -> Any:
        """Return a wrapper that gives a backward pass its range, where its end is no step's end."""
        state, range_ = self.state, self.state.range
        under_dynamo, compiler, traced = state.compiled

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

        return state.hidden(_named_like(backward, original), original)

    def generate(self, original: Any) -> Any:
        """Return a wrapper for `generate` of a language model."""
        events, local = self.state.events, self.state.local

        @functools.wraps(original)
        def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
            if local.generating:
                return original(self, *args, **kwargs)
            local.generating, completed, found = True, False, None
            try:
                if events.waiting:
                    events.first_activity(self, args, kwargs)
                events.generate_started(self)
                result = original(self, *args, **kwargs)
                completed = True
                with Guard():
                    found = generated_tokens(self, args, kwargs, result)
            except BaseException as error:
                strip_frame(error)
                raise
            finally:
                local.generating = False
                events.generate_ended(found, completed=completed)
            return result

        return generate

    def next_batch(self, original: Any) -> Any:
        """Return a wrapper for a DataLoader's `__next__`: how long its batch is waited for."""
        state, local, events = self.state, self.state.local, self.state.events
        under_dynamo, compiler, traced = state.compiled

        @functools.wraps(original)
        def __next__(self: Any) -> Any:
            if under_dynamo() or compiler._is_compiling_flag or traced() is not None:
                return original(self)
            # A data set may have a loader of its own, and be loaded while others wait.
            if local.loading or not events.waiting:
                return original(self)
            local.loading, asked = True, _perf_counter()
            try:
                return original(self)
            except BaseException as error:
                strip_frame(error)
                raise
            finally:
                local.loading = False
                events.batch_asked(asked)

        return state.hidden(__next__, original)

    def optimizer_hooks(self) -> tuple[Any, Any]:
        """Return the hooks before and after `Optimizer.step`."""
        events = self.state.events
        state, begin, end = self.state, events.optimizer_started, events.optimizer_ended

        def started(optimizer: Any, args: Any, kwargs: Any) -> Any:
            begin(optimizer)
            if (listener := state.active_listener()) is None:
                return None
            listener.enter("optimizer", type(optimizer).__name__, optimizer)
            return _with_closure(self._listened, optimizer, args, kwargs)

        def ended(optimizer: Any, args: Any, kwargs: Any) -> None:
            if state.listener is not None and (listener := state.active_listener()) is not None:
                listener.leave("optimizer", type(optimizer).__name__)
            end(optimizer)

        return self._hook(started), self._hook(ended)

    def closure_hook(self) -> Any:
        """Return the hook before `Optimizer.step` that gives the calls of a closure a range."""
        state = self.state

        def hook(optimizer: Any, args: Any, kwargs: Any) -> Any:
            if state.ranging != get_ident():
                return None
            return _with_closure(self._ranged, optimizer, args, kwargs)

        return self._hook(hook)

    def _ranged(self, closure: Any) -> Any:
        """Return a closure whose calls have a range while ranges are emitted."""
        state, range_ = self.state, self.state.range

        @functools.wraps(closure, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                if state.ranging != get_ident():
                    return closure(*args, **kwargs)
                with range_(CLOSURE_RANGE):
                    return closure(*args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise

        return call

    def _listened(self, closure: Any) -> Any:
        """Return a closure whose calls are told to the listener."""
        state = self.state

        @functools.wraps(closure, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            listener = state.active_listener()
            try:
                if listener is None:
                    return closure(*args, **kwargs)
                listener.enter("closure", "closure")
                try:
                    return closure(*args, **kwargs)
                finally:
                    listener.leave("closure", "closure")
            except BaseException as error:
                strip_frame(error)
                raise

        return call

    def _hook(self, report: Callable[[Any, Any, Any], Any]) -> Any:
        under_dynamo, compiler, _ = self.state.compiled

        def hook(optimizer: Any, args: Any, kwargs: Any) -> Any:
            if under_dynamo() or compiler._is_compiling_flag:
                return None
            return report(optimizer, args, kwargs)

        return unseen_by_dynamo(self.state.torch, hook, with_callees=True)


# Closures without attributes of their own, which a wrapper would not have.
_PLAIN = (FunctionType, MethodType, functools.partial)


def _with_closure(
    wrap: Callable[[Any], Any], optimizer: Any, args: Any, kwargs: Any
) -> tuple[Any, Any] | None:
    """Return the arguments of `Optimizer.step` with their closure wrapped; None without one."""
    if isinstance(kwargs.get("closure"), _PLAIN):
        return args, {**kwargs, "closure": wrap(kwargs["closure"])}
    # The first of `args` is the optimizer itself.
    if len(args) > 1 and isinstance(args[1], _PLAIN) and _takes_closure(optimizer):
        return (args[0], wrap(args[1]), *args[2:]), kwargs
    return None


def _takes_closure(optimizer: Any) -> bool:
    """Return whether the first argument of an optimizer's `step` is its closure."""
    code = getattr(inspect.unwrap(type(optimizer).step), "__code__", None)
    return code is not None and code.co_varnames[1 : code.co_argcount][:1] == ("closure",)


def _named_like(wrapper: Any, original: Any) -> Any:
    """Give the wrapper's code the original's name, by which profiles distinguish functions."""
    wrapper.__code__ = wrapper.__code__.replace(co_name=original.__name__)
    return wrapper


class TorchHooks:
    """Puts the wrappers on and takes them off, in one of the modes OFF, QUIET, LIGHT, ROOT, ..."""

    def __init__(self, torch: Any, events: StepEvents, names: ModuleNames) -> None:
        # Not an attribute of `torch.optim` in every version of torch.
        from torch.optim import optimizer

        self.torch = torch
        self.events = events
        self.names = names
        self._optimizer = optimizer
        self.state = HookState(torch, events, names)
        self.root_class: type | None = None
        self._module = torch.nn.Module
        # The wrappers of each `Module.__call__` found so far; the last ones are in use.
        self._calls: list[HookedCalls] = []
        passes = self._passes = HookedPasses(self.state)
        self._handles: list[Any] = []
        self._start_hook, self._step_hook = passes.optimizer_hooks()
        self._closure_hook = passes.closure_hook()
        # The hook before optimizer steps that is on, and its handle.
        self._before_step: tuple[Any, Any] | None = None
        # Of each function: the original, the wrapper for all modes, the one for ranges alone.
        self._backwards = {
            name: (each, passes.backward(each), passes.ranging_backward(each))
            for name in ("backward", "grad")
            if (each := getattr(torch.autograd, name))
        }
        # The iterator of a DataLoader, whose asks are timed where waiting times are.
        self._batches = torch.utils.data.dataloader._BaseDataLoaderIter
        self._next_item = self._batches.__next__
        self._next_batch = passes.next_batch(self._next_item)
        self._restore_batches: Callable[[], None] | None = None
        self.worker_starts = WorkerStarts()
        self._restore: list[Callable[[], None]] = []
        # The wrapper on the calls now.
        self._current: Any = None
        self._evaluation = EvaluationWatch(
            torch, lambda module: events.switched(module, names.by_identity.get(id(module)))
        )
        self._wrap_calls()

    def listen(self, listener: Listener | None) -> None:
        """Give `listener` the calls, passes and optimizer steps of this thread, in DISCOVER."""
        self.state.listener = listener
        self.state.listening = get_ident()

    def install(self) -> None:
        """Put on what stays for the whole observation: after optimizer steps, on workers."""
        self._handles.append(self._optimizer.register_optimizer_step_post_hook(self._step_hook))
        data = self.torch.utils.data.dataloader
        self._restore += self.worker_starts.install(
            data.DataLoader, data._MultiProcessingDataLoaderIter, self.state.hidden
        )

    def install_generate(self, module: Any) -> None:
        """Put a wrapper on `GenerationMixin.generate` of the module `transformers` loaded."""
        mixin = module.GenerationMixin
        self._restore.append(replace(mixin, "generate", self._passes.generate(mixin.generate)))

    def exchange_step_hook(self, hook: Any = None) -> bool:
        """Put `hook` after optimizer steps, or the usual one with None; return whether it is on.

        It takes the other's place in the dictionary, since torch may be iterating over that now.
        """
        hooks = getattr(self._optimizer, "_global_optimizer_post_hooks", {})
        if not self._handles or self._handles[0].id not in hooks:
            return False
        hooks[self._handles[0].id] = hook or self._step_hook
        return True

    def set_mode(self, mode: str, root: Any = None, *, backward: bool = False) -> None:
        """Exchange the wrappers; ROOT needs the root module.

        With OFF nothing of a step is wrapped but its end, and backward passes where `backward`
        says that they end steps.
        """
        if self._is_set(mode, root):
            # Every change of a class clears the interpreter's caches for it.
            self.state.mode = mode
            return
        self._remove_call()
        self._wrap_calls()
        if mode in (DISCOVER, RANGES):
            self._module.__call__ = self._current = self._hooked[mode]
            self.state.live = self._hooked[DISCOVER]
        elif mode == QUIET and root is not None:
            self._evaluation.put(root)
        elif mode in (LIGHT, ROOT) and root is not None:
            kind = type(root)
            if kind.__call__ is self._module.__call__ and kind is not self._module:
                kind.__call__ = self._current = self.state.live = self._hooked[mode]
                self.root_class = kind
            # A class with a way of its own to be called, as that of what `torch.compile` returns:
            # it ends in torch's, where a wrapper would have a price in each module.
            elif mode == LIGHT:
                self._evaluation.put(root)
            elif kind is not self._module:
                self._module.__call__ = self._current = self.state.live = self._hooked[mode]
        wrapped = 1 if mode not in (OFF, QUIET, LIGHT) or backward else 0
        if mode == RANGES and not (self.events.follows_backward or self.events.follows_calls):
            wrapped = 2
        self._wrap_backward(wrapped)
        before = {
            DISCOVER: self._start_hook,
            RANGES: None if has_compiled() else self._closure_hook,
        }
        self._hook_before_steps(before.get(mode))
        self._time_batches(mode in (ROOT, DISCOVER))
        self.state.mode = mode

    def _is_set(self, mode: str, root: Any) -> bool:
        """Return whether the wrappers of `mode` are on already, with no others on top of them."""
        if mode == QUIET:
            return mode == self.state.mode and self._evaluation.is_on(root)
        if self._current is None:
            return False
        if mode in (LIGHT, ROOT):
            is_same = mode == self.state.mode and self.root_class is type(root)
            return is_same and type(root).__call__ is self._current
        return mode == self.state.mode == RANGES and self._module.__call__ is self._current

    def _wrap_backward(self, wrapped: int) -> None:
        """Put on one of the wrappers, or none (0); a wrapper of the script's stays."""
        autograd = self.torch.autograd
        for name, ours in self._backwards.items():
            if getattr(autograd, name) in ours:
                setattr(autograd, name, ours[wrapped])

    def _time_batches(self, timed: bool) -> None:
        restore, self._restore_batches = self._restore_batches, None
        if restore is not None:
            restore()
        # What the script has put there stays.
        if timed and self._batches.__dict__.get("__next__") is self._next_item:
            self._restore_batches = replace(self._batches, "__next__", self._next_batch)

    def _hook_before_steps(self, hook: Any) -> None:
        """Have this hook, or none, before optimizer steps."""
        if self._before_step is not None:
            if self._before_step[0] is hook:
                return
            self._before_step[1].remove()
            self._before_step = None
        if hook is not None:
            handle = self._optimizer.register_optimizer_step_pre_hook(hook)
            self._before_step = hook, handle

    def _wrap_calls(self) -> None:
        """Make the wrappers, again if the script has put its own on `Module.__call__`."""
        current = self._module.__call__
        if not self._calls or current is not self._calls[-1].original:
            self._calls.append(HookedCalls(self.state, current))

    @property
    def _hooked(self) -> dict[str, Any]:
        """The wrappers by mode."""
        return self._calls[-1].wrappers

    def emit_ranges(self, on: bool) -> None:
        """Begin or end the ranges of this thread's calls in mode RANGES, with the profiler."""
        if on and self.state.mode == RANGES:
            self.state.ranging = get_ident()
            self.names.begin_ranges()
        else:
            self.state.ranging = None
            self.names.end_ranges()

    def stop_ranges(self) -> None:
        """Emit no more ranges, though the slice goes on: another profiler would see them."""
        if self.state.mode == RANGES:
            # A range left under another profiler than the one it was entered under writes into
            # freed memory.
            user_regions.forward_to(None)
            self.emit_ranges(False)
            self.state.mode = DISCOVER
            self._wrap_backward(1)

    def remove(self) -> None:
        """Take everything off; afterwards torch is as it was found."""
        self._remove_call()
        self._wrap_backward(0)
        self._hook_before_steps(None)
        self._time_batches(False)
        self.state.mode = OFF
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for restore in reversed(self._restore):
            restore()
        self._restore.clear()

    def _remove_call(self) -> None:
        self.emit_ranges(False)
        self._evaluation.take_off()
        if self.root_class is not None:
            ours = (self._hooked[ROOT], self._hooked[LIGHT])
            if self.root_class.__dict__.get("__call__") in ours:
                del self.root_class.__call__
            self.root_class = None
        self._current = self.state.live = None
        for calls in self._calls:
            if any(self._module.__call__ is wrapper for wrapper in calls.wrappers.values()):
                self._module.__call__ = calls.original
