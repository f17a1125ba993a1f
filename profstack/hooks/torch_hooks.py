"""The few functions of torch that are wrapped while steps are observed, and taken back after.

Every wrapper returns the original at once under `torch.compiler.is_compiling()`, so that dynamo
traces straight through it, and removes itself from the traceback of an error that passes. No
hook is ever put on a module object: hooks on objects switch torch's fused paths off.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from typing import Any

from profstack import userregions
from profstack.engine.sink import Sink
from profstack.evaluation import EvaluationWatch
from profstack.hooks.calls import HookedCalls
from profstack.hooks.passes import HookedPasses
from profstack.hooks.state import DISCOVER, LIGHT, OFF, QUIET, RANGES, ROOT, HookState
from profstack.regions import ModuleNames
from profstack.wrapper import Listener


class TorchHooks:
    """Puts the wrappers on and takes them off. `mode` is one of OFF, QUIET, LIGHT, ROOT, ..."""

    def __init__(self, torch: Any, sink: Sink, names: ModuleNames) -> None:
        self.torch = torch
        self.sink = sink
        self.names = names
        self.state = HookState(torch, sink, names)
        self.root_class: type | None = None
        self._module = torch.nn.Module
        self._calls: HookedCalls | None = None
        passes = HookedPasses(self.state)
        self._handles: list[Any] = []
        self._step_hook, self._start_hook = passes.optimizer_ended(), passes.optimizer_started()
        self._passes = passes
        self._start_handle: Any = None
        autograd = torch.autograd
        # Of each function: as found, with the wrapper for all modes, with the one for ranges alone.
        self._backwards = {
            name: (original, passes.backward(original), passes.ranging_backward(original))
            for name, original in ((name, getattr(autograd, name)) for name in ("backward", "grad"))
        }
        self._restore: list[Callable[[], None]] = []
        # The wrapper that stands on the calls now.
        self._standing: Any = None
        self._evaluation = EvaluationWatch(
            torch, lambda module: sink.evaluated(names.by_identity.get(id(module)))
        )
        self._originals: list[tuple[Any, Any]] = []
        self._wrap_calls()

    @property
    def mode(self) -> str:
        """The mode that stands."""
        return self.state.mode

    def listen(self, listener: Listener | None) -> None:
        """Tell `listener` of the calls, passes and optimizer steps of this thread, in DISCOVER."""
        self.state.listener = listener
        self.state.listening = get_ident()

    def install(self) -> None:
        """Put on the wrapper that stays for the whole observation: after optimizer steps."""
        from torch.optim import optimizer

        self._handles.append(optimizer.register_optimizer_step_post_hook(self._step_hook))

    def install_generate(self, module: Any) -> None:
        """Put a wrapper on `GenerationMixin.generate` of the module `transformers` loaded."""
        mixin = module.GenerationMixin
        self._replace(mixin, "generate", self._passes.generate(mixin.generate))

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
            self.state.mode = mode
            return
        self._remove_call()
        self._wrap_calls()
        if mode in (DISCOVER, RANGES):
            self._module.__call__ = self._standing = self._hooked[mode]
            self.state.live = self._hooked[DISCOVER]
        elif mode == QUIET and root is not None:
            self._evaluation.put(root)
        elif mode in (LIGHT, ROOT) and root is not None:
            kind = type(root)
            if kind.__call__ is self._module.__call__ and kind is not self._module:
                kind.__call__ = self._standing = self.state.live = self._hooked[mode]
                self.root_class = kind
            # A class with a way of its own to be called, as that of what `torch.compile` returns:
            # it ends in torch's, where a wrapper would have a price in each module.
            elif mode == LIGHT:
                self._evaluation.put(root)
            elif kind is not self._module:
                self._module.__call__ = self._standing = self.state.live = self._hooked[mode]
        wrapped = 1 if mode not in (OFF, QUIET, LIGHT) or backward else 0
        if mode == RANGES and not (self.sink.follows_backward or self.sink.follows_calls):
            wrapped = 2
        self._wrap_backward(wrapped)
        self._hook_optimizer_starts(mode == DISCOVER)
        self.state.mode = mode

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

            self._start_handle = optimizer.register_optimizer_step_pre_hook(self._start_hook)
        elif not hooked and self._start_handle is not None:
            self._start_handle.remove()
            self._start_handle = None

    def _wrap_calls(self) -> None:
        """Make the wrappers, anew if somebody has put their own on `Module.__call__`."""
        current = self._module.__call__
        if self._calls is None or current is not self._calls.original:
            self._calls = HookedCalls(self.state, current)
            self._originals += [(wrapper, current) for wrapper in self._hooked.values()]

    @property
    def _hooked(self) -> dict[str, Any]:
        """The wrappers by mode."""
        return self._calls.wrappers if self._calls is not None else {}

    def emit_ranges(self, on: bool) -> None:
        """In mode RANGES: a profiler is on from here, or will be off; for this thread's calls."""
        if on and self.mode == RANGES:
            self.state.ranging = get_ident()
            self.names.begin_ranges()
        else:
            self.state.ranging = None
            self.names.end_ranges()

    def stop_ranges(self) -> None:
        """Emit no more ranges, though the slice goes on: another profiler would see them."""
        if self.mode == RANGES:
            # A range left under another profiler than the one it was entered under writes into
            # freed memory.
            userregions.tell(None)
            self.emit_ranges(False)
            self.state.mode = DISCOVER
            self._wrap_backward(1)

    def remove(self) -> None:
        """Take everything off; afterwards torch is as it was found."""
        self._remove_call()
        self._wrap_backward(0)
        self._hook_optimizer_starts(False)
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
            if self.root_class.__dict__.get("__call__") in (
                self._hooked[ROOT],
                self._hooked[LIGHT],
            ):
                del self.root_class.__call__
            self.root_class = None
        self._standing = self.state.live = None
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
