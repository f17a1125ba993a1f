"""Operators counted by module: how often each was called, and what FlopCounterMode's formulas say.

The backward of a few takes another path where any dispatch mode is on: before it, this one is left.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
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
        # It imports torch, which only the script may do first.
        from profstack.flops.mode import CountingMode

        self._mode = CountingMode(self)

    def begin(self) -> None:
        """Count what this thread does from now on."""
        self._compiling.look()
        self.on = True
        self._mode.put_on()

    def end(self) -> None:
        """Count no more; to be called again later, where this may be inside an operator."""
        self.on = False
        self._mode.take_off()
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
        if self.on and not self._mode.stands():
            # It began inside a hook of a backward pass, and autograd put the old modes back after.
            self.gave_way = (
                "the steps end inside a backward pass, where no dispatch mode stays on: FLOPs are "
                "counted from the shapes in the torch slice alone"
            )
            self.end()
        with self._lock:
            self.steps.append(self.rest())
            self._step = CountedStep()

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
