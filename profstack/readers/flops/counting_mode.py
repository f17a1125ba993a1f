"""A dispatch mode that runs every operator as it would run by itself, and has it counted.

`FlopCounterMode` brings a mode of its own, which is not used: it runs both branches of a
condition, and replaces operators that have a kernel of their own by what they could be made of,
as SiLU's backward, which gives other digits.

This module imports torch: import it only where a mode is made, never before the script does.
"""

from __future__ import annotations

from _thread import get_ident
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profstack.guard import replace, traced_as, unseen_by_dynamo

if TYPE_CHECKING:
    from collections.abc import Callable

    from profstack.readers.flops.counting import Count

_BASE: Any = TorchDispatchMode
_C: Any = torch._C
_has_kernel_for: Any = torch._C._dispatch_has_kernel_for_dispatch_key
_HIGHER = torch._ops.HigherOrderOperator


def _operator(namespace: Any, name: str) -> Any:
    """Return an overload by its name; None where this torch does not have it."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(namespace, packet, None), overload, None)


# Questions that tensors of unusual kinds answer themselves.
_QUERIES = (
    "sym_is_contiguous.default is_contiguous.default is_contiguous.memory_format "
    "is_strides_like_format.default is_non_overlapping_and_dense.default size.default "
    "sym_size.default stride.default sym_stride.default storage_offset.default "
    "sym_storage_offset.default numel.default sym_numel.default dim.default"
)
_QUESTIONS = {_operator(torch.ops.aten, name) for name in _QUERIES.split()}
_QUESTIONS.add(torch.ops.prim.layout.default)


class CountingMode(_BASE):  # type: ignore[misc]  # torch's class has no types
    """Runs every operator as it would run without the mode, and counts it."""

    supports_higher_order_operators = True

    def __init__(self, count: Count) -> None:
        super().__init__()
        self._count = count
        # Lets the mending end, which begins when this is put on.
        self._mending: Callable[[], None] | None = None
        # Files whose frames are in tracebacks only because of the counting.
        places: tuple[Any, ...] = (_strip, count.count, torch._ops.OpOverload.__call__)
        self._own_files = frozenset(place.__code__.co_filename for place in places)

    def put_on(self) -> None:
        """Put it on this thread's stack."""
        if self._mending is None:
            self._mending = _mend_at_ends(self)
        # Not by `with`: dynamo would compile no code meanwhile.
        _C._push_on_torch_dispatch_stack(self)

    def is_on(self) -> bool:
        """Return whether it is on this thread's stack, where `put_on` has put it."""
        depth = _C._len_torch_dispatch_stack()
        return any(_C._get_dispatch_stack_at(place) is self for place in range(depth))

    def is_blind(self) -> bool:
        """Return whether it is on the stack and sees nothing.

        The end of an `inference_mode` gives the thread back the dispatch keys that it had at its
        begin: one that was put on inside is asked no longer.
        """
        return self.is_on() and not _asks_for_modes()

    def revive(self) -> None:
        """Let torch ask the modes of this thread's stack again, in the order that they have."""
        modes = [_C._pop_torch_dispatch_stack(None) for _ in range(_C._len_torch_dispatch_stack())]
        # The first one on an empty stack lets torch ask.
        for mode in reversed(modes):
            _C._push_on_torch_dispatch_stack(mode)

    def forget(self) -> None:
        """End what is done for it beside the stack: it is no longer there."""
        if self._mending is not None:
            self._mending()
            self._mending = None

    def take_off(self) -> None:
        """Take it off this thread's stack, from under a mode the script has put on since.

        Nothing is done where it is not there: an operator is being run at this moment, or it was
        put on another thread's stack. Counting has ended either way.
        """
        if not self.is_on():
            return
        self._pop()
        self.forget()

    def _pop(self) -> None:
        if not self.is_on():
            return
        above = []
        while (top := _C._pop_torch_dispatch_stack(None)) is not self:
            above.append(top)
        for other in reversed(above):
            _C._push_on_torch_dispatch_stack(other)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch's wrapper round the method below would import dynamo, and be in tracebacks.
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Have code compiled as if the mode were not on."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _QUESTIONS:
            return NotImplemented
        count, kwargs = self._count, kwargs or {}
        try:
            if not count.on:
                return func(*args, **kwargs)
            if isinstance(func, _HIGHER):
                out = func(*args, **kwargs)
                count.count(func, out, args, kwargs)
            elif _can_call_others(func) and not _has_kernel(func, _device(args)):
                # Run the operators that the operator calls, counted.
                _C._push_on_torch_dispatch_stack(self)
                try:
                    out = func._op_dk(_C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
                finally:
                    self._pop()
            else:
                out = func(*args, **kwargs)
                count.count(func._overloadpacket, out, args, kwargs)
        except BaseException as error:
            _strip(error, self._own_files)
            raise
        return out


unseen_by_dynamo(torch, CountingMode.__torch_dispatch__, with_callees=True)


def _mend_at_ends(mode: CountingMode) -> Callable[[], None]:
    """Mend this thread's dispatch keys at the end of each `inference_mode` that begins from now on.

    Its end gives back the keys that there were at its begin. Where the mode was put on since, it
    would see nothing any more. Where it was on then and is gone by now, torch would ask for one at
    the next operator, which is an internal error. What is returned says that the mode is gone: the
    mending ends with the outermost `inference_mode`.
    """
    kind, thread, gone = torch.inference_mode, get_ident(), False
    original = kind.__exit__

    @wraps(original)
    def __exit__(guard: Any, *error: Any) -> Any:
        done = original(guard, *error)
        if get_ident() != thread:
            return done
        if mode.is_blind():
            mode.revive()
        if _asks_for_modes() and not _C._len_torch_dispatch_stack():
            _C._push_on_torch_dispatch_stack(_BASE())
            _C._pop_torch_dispatch_stack(None)
        if gone and not torch.is_inference_mode_enabled():
            restore()
        return done

    def end() -> None:
        nonlocal gone
        gone = True
        if not torch.is_inference_mode_enabled():
            restore()

    restore = replace(kind, "__exit__", traced_as(unseen_by_dynamo(torch, __exit__), original))
    return end


def _asks_for_modes() -> bool:
    return bool(_C._dispatch_tls_is_dispatch_key_included("Python"))


@cache
def _can_call_others(func: Any) -> bool:
    """Return whether an operator can run by calling others alone, on any device.

    Such an operator reaches a mode where autograd does not decompose it (`inference_mode`), or
    where its device has a kernel for it: then its decomposition gives other digits.
    """
    return bool(_has_kernel_for(func.name(), "CompositeImplicitAutograd"))


@cache
def _has_kernel(func: Any, device: str | None) -> bool:
    """Return whether a device has its own kernel for an operator; True if not known."""
    try:
        return device is None or bool(_has_kernel_for(func.name(), device.upper()))
    except RuntimeError:
        # A device whose kernels go by another name than its own.
        return True


def _device(args: Any) -> str | None:
    """Return the kind of device that an operator with these arguments runs on, if known.

    It is known from plain tensors only: others have kernels of other kinds.
    """
    for argument in args:
        first: Any = argument[0] if type(argument) is list and argument else argument
        if isinstance(first, torch.Tensor):
            plain = first.layout is torch.strided and not first.is_nested and not first.is_quantized
            return str(first.device.type) if plain else None
    return None


def _strip(error: BaseException, own_files: frozenset[str]) -> None:
    """Remove the frames of the mode and of its calls from a traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in own_files:
        trace = trace.tb_next
    error.__traceback__ = trace
