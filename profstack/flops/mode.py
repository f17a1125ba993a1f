"""A dispatch mode that counts operators with FlopCounterMode's formulas, and nothing else.

`FlopCounterMode` brings a mode of its own, which is left aside: it runs both branches of a
condition, and replaces operators that have a kernel of their own by what they could be made of,
as that of SiLU's backward, which gives other digits. Here every operator runs as it would. The
backward of a few takes another path where any dispatch mode is on: before it, this one is left.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from profstack.flops.compilenotice import CompileNotice
from profstack.flops.formulas import flop_counter, operator_name
from profstack.flops.masks import left_out
from profstack.flops.missed import is_missed
from profstack.flops.owners import OUTSIDE, Owner, Owners
from profstack.interrupts import is_scripts

COMPILED = "dynamo has compiled: FLOPs are counted from the shapes in the torch slice alone"
# What has such a backward (all of torch's operators were tried, with second derivatives): the
# digits differ, or an error that torch would raise is not raised.
_FILLS = ("aten::masked_fill", "aten::masked_fill_")
_OTHER_BACKWARD = frozenset(
    ("aten::prod", "aten::cumprod", "aten::ormqr", "aten::_linalg_det", "aten::linalg_eig", *_FILLS)
)


@dataclass
class CountedStep:
    """What was counted in one step; `missed` are calls without a figure.

    `masked` are operations that causal masks leave out of `flop`, None where that is not known;
    what was not called as causal has none.
    """

    flop: dict[tuple[Owner, str], int] = field(default_factory=dict)
    masked: dict[tuple[Owner, str], int | None] = field(default_factory=dict)
    calls: dict[tuple[Owner, str], int] = field(default_factory=dict)
    missed: dict[tuple[Owner, str], int] = field(default_factory=dict)


class _Parents(threading.local):
    """Stands in for FlopCounterMode's module tracker: the one name the next count goes to."""

    parents: tuple[Owner, ...] = (OUTSIDE,)


class Count(Owners):
    """Counts operators: how often, and what FlopCounterMode's formulas say of them.

    `gave_way` says why counting ended before its time: what was counted is not the whole then.
    On tensors of the device `meta` nothing is computed, so that nothing is counted there, unless
    `on_meta`: what the work would be is wanted then.
    """

    def __init__(self, torch: Any, *, on_meta: bool = False) -> None:
        super().__init__(torch)
        self.torch = torch
        self._on_meta = on_meta
        self.counter = flop_counter(torch)
        self._parents = self.counter.mod_tracker = _Parents()
        self.on = False
        self.gave_way: str | None = None
        self.error: BaseException | None = None
        self.steps: list[CountedStep] = []
        self.failures: dict[str, str] = {}
        self._step = CountedStep()
        # Devices do their backward on threads of their own; a signal may come at any time.
        self._lock = threading.RLock()
        self._compiling = CompileNotice(self._dynamo_compiles)
        self._differs: str | None = None
        self._mode = _mode_class()(self)

    def begin(self) -> None:
        """Count what this thread does from now on."""
        self._compiling.look()
        self.on = True
        # Not by `with`: that would tell dynamo that no code may be compiled now.
        self.torch._C._push_on_torch_dispatch_stack(self._mode)

    def end(self) -> None:
        """Count no more; to be called again later, where this may be inside an operator."""
        self.on = False
        _take_off(self._mode)
        self._compiling.end()

    def enter(self, kind: str, name: str, module: Any = None) -> None:
        """A module's call, a backward pass, an optimizer's step or a region begins."""
        super().enter(kind, name, module)
        self._compiling.look()
        if kind == "backward" and self._differs is not None and self.on:
            text = f"the backward of {self._differs} takes another path under a dispatch mode"
            self.gave_way = f"{text}: FLOPs are counted from the shapes in the torch slice alone"
            self.end()

    def step_ended(self, number: int) -> None:
        """A step has ended: what was counted is its."""
        if self.on and not self._stands():
            # It began inside a hook of a backward pass, and autograd put the old modes back after.
            self.gave_way = (
                "the steps end inside a backward pass, where no dispatch mode stays on: FLOPs are "
                "counted from the shapes in the torch slice alone"
            )
            self.end()
        with self._lock:
            self.steps.append(self.rest())
            self._step = CountedStep()

    def _stands(self) -> bool:
        """Whether the mode is on the stack, where `begin` has put it."""
        inner = self.torch._C
        depth = inner._len_torch_dispatch_stack()
        return any(inner._get_dispatch_stack_at(place) is self._mode for place in range(depth))

    def rest(self) -> CountedStep:
        """What was counted since the last step ended."""
        for owner, by_operator in self.counter.flop_counts.items():
            for operator, flop in by_operator.items():
                self._step.flop[owner, operator_name(operator)] = int(flop)
        self.counter.flop_counts.clear()
        return self._step

    def count(self, operator: Any, out: Any, args: Any, kwargs: Any) -> None:
        """Count one call; nothing that goes wrong here is the script's affair."""
        if not self.on:
            # Ended while the operator was being run.
            return
        try:
            name = operator_name(operator)
            known = operator in self.counter.flop_registry
            if name in _OTHER_BACKWARD and self._is_differentiated(name, args):
                self._differs = name
            if not known and not is_missed(name):
                return
            owner = self.owner()
            known = known and self._ask(name, owner, operator, out, args, kwargs)
            with self._lock:
                calls = self._step.calls if known else self._step.missed
                calls[owner, name] = calls.get((owner, name), 0) + 1
        except BaseException as error:
            self.on = False
            if is_scripts(error):
                self.gave_way = "a signal's handler raised while an operator was counted"
                raise
            self.error = error

    def _ask(
        self, name: str, owner: Owner, operator: Any, out: Any, args: Any, kwargs: Any
    ) -> bool:
        """Let FlopCounterMode count; false where it has no figure."""
        odd = self._without_figure(args)
        if odd is not None:
            self.failures[name] = odd
            return False
        self._parents.parents = (owner,)
        try:
            with self._lock:
                counted = self.counter.flop_counts[owner]
                before = counted[operator]
                self.counter._count_flops(operator, out, args, kwargs)
                self._mask((owner, name), args, kwargs, int(counted[operator] - before))
        except Exception as error:
            if is_scripts(error):
                raise
            text = str(error).partition("\n")[0]
            self.failures[name] = f"its formula raises {type(error).__name__}: {text}".rstrip(": ")
            return False
        return True

    def _mask(self, key: tuple[Owner, str], args: Any, kwargs: Any, flop: int) -> None:
        """Note what a causal mask leaves out of a call."""
        masked = left_out(key[1], args, kwargs, flop)
        if masked != 0:
            before = self._step.masked.get(key, 0)
            both = None if masked is None or before is None else before + masked
            self._step.masked[key] = both

    def _without_figure(self, args: Any) -> str | None:
        """Why shapes do not tell the work on these tensors; None where they do."""
        torch = self.torch
        for tensor in args:
            if not isinstance(tensor, torch.Tensor):
                continue
            if tensor.is_nested or tensor.layout not in (torch.strided, torch._mkldnn):
                return "the shapes of sparse and nested tensors do not tell the work"
            plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
            if (tensor.is_meta and not self._on_meta) or (
                not plain and hasattr(tensor, "fake_mode")
            ):
                return "nothing is computed: its tensors have no data"
        return None

    def _is_differentiated(self, name: str, args: Any) -> bool:
        """Whether a backward will go through the operator, and by the path in question."""
        if not self.torch.is_grad_enabled():
            return False
        # Of a masked fill, it is the derivative by the value put in.
        tensors = args[2:] if name in _FILLS else args
        return any(getattr(tensor, "requires_grad", False) for tensor in tensors)

    def _dynamo_compiles(self, *_: Any) -> None:
        self.on, self.gave_way = False, COMPILED


def _take_off(mode: Any) -> None:
    """Take the mode off this thread's stack, from under a mode the script has put on since.

    Nothing is done where it is not there: an operator is being run at this moment, or it was
    another thread's. It counts no more either way.
    """
    from torch import _C

    depth = _C._len_torch_dispatch_stack()
    if all(_C._get_dispatch_stack_at(place) is not mode for place in range(depth)):
        return
    above = []
    while (top := _C._pop_torch_dispatch_stack(None)) is not mode:
        above.append(top)
    for other in reversed(above):
        _C._push_on_torch_dispatch_stack(other)


# Questions that tensors of unusual kinds answer themselves.
_ASKED = (
    "sym_is_contiguous.default is_contiguous.default is_contiguous.memory_format "
    "is_strides_like_format.default is_non_overlapping_and_dense.default size.default "
    "sym_size.default stride.default sym_stride.default storage_offset.default "
    "sym_storage_offset.default numel.default sym_numel.default dim.default"
)


@cache
def _mode_class() -> Any:
    """The class of the mode; made when it is needed, since it is derived from one of torch's."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    base: Any = TorchDispatchMode
    higher, stack = torch._ops.HigherOrderOperator, torch._C
    asked = {_operator(torch.ops.aten, name) for name in _ASKED.split()}
    asked.add(torch.ops.prim.layout.default)

    class Counting(base):  # type: ignore[misc]  # torch's class has no types
        """Lets every operator run as it would, and counts it."""

        supports_higher_order_operators = True

        def __init__(self, count: Count) -> None:
            super().__init__()
            self._count = count

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # The wrapper that torch would put round what is below imports dynamo, and stands in
            # tracebacks.
            return False

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            # What is first compiled now is compiled as if this were not here.
            return True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func in asked:
                return NotImplemented
            count, kwargs = self._count, kwargs or {}
            try:
                if not count.on:
                    return func(*args, **kwargs)
                if isinstance(func, higher):
                    out = func(*args, **kwargs)
                    count.count(func, out, args, kwargs)
                elif _can_call_others(func) and not _has_kernel(func, _device(args)):
                    out = self._inside(func, args, kwargs)
                else:
                    out = func(*args, **kwargs)
                    count.count(func._overloadpacket, out, args, kwargs)
            except BaseException as error:
                _strip(error)
                raise
            return out

        def _inside(self, func: Any, args: Any, kwargs: Any) -> Any:
            """Run what the operator calls, counted."""
            stack._push_on_torch_dispatch_stack(self)
            try:
                return func._op_dk(stack.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
            finally:
                _take_off(self)

    _hide_from_dynamo(torch, Counting.__torch_dispatch__.__code__)
    return Counting


def _operator(namespace: Any, name: str) -> Any:
    """An overload by its name; None where this torch does not have it."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(namespace, packet, None), overload, None)


@cache
def _can_call_others(func: Any) -> bool:
    """Whether an operator can run by calling others alone, on whatever device.

    Such a one reaches a mode where autograd is not there to take it apart (`inference_mode`), or
    where its device has a kernel for it: then what else it could be made of gives other digits.
    """
    import torch

    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has(func.name(), "CompositeImplicitAutograd"))


@cache
def _has_kernel(func: Any, device: str | None) -> bool:
    """Whether a device has a kernel of its own for an operator; true where that is not known."""
    import torch

    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    try:
        return device is None or bool(has(func.name(), device.upper()))
    except RuntimeError:
        # A device whose kernels go by another name than its own.
        return True


def _device(args: Any) -> str | None:
    """The kind of device that an operator with these arguments runs on; None if they do not tell.

    Only plain tensors tell: others have kernels of other kinds.
    """
    import torch

    for argument in args:
        first: Any = argument[0] if type(argument) is list and argument else argument
        if isinstance(first, torch.Tensor):
            plain = first.layout is torch.strided and not first.is_nested and not first.is_quantized
            return str(first.device.type) if plain else None
    return None


def _hide_from_dynamo(torch: Any, code: Any) -> None:
    """Let dynamo pass over a function and what it calls, as it passes over torch's own modes."""
    dynamo = torch._C._dynamo.eval_frame
    if hasattr(dynamo, "set_code_exec_strategy"):
        skip = dynamo._FrameAction.SKIP
        dynamo.set_code_exec_strategy(code, dynamo._FrameExecStrategy(skip, skip))
    else:
        dynamo.skip_code(code)


def _strip(error: BaseException) -> None:
    """Take the mode and the calls it makes out of a traceback: without it they were not there."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _own_files():
        trace = trace.tb_next
    error.__traceback__ = trace


@cache
def _own_files() -> frozenset[str]:
    import torch

    operators: Any = torch._ops.OpOverload.__call__
    return frozenset((_strip.__code__.co_filename, operators.__code__.co_filename))
