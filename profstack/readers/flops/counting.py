"""Count operators and operations by module with a dispatch mode.

The backward of a few operators takes another path under any dispatch mode: counting ends before it.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from profstack.guard import Guard, is_scripts
from profstack.layer import Listener
from profstack.models import can_be_read
from profstack.readers.flops.formulas import flop_counter, is_missed, left_out, operator_name
from profstack.storage.schema.column import Record, SqlValue
from profstack.storage.vocabulary import OPTIMIZER

# --- The owner of an operator: the module whose forward runs it, or made its backward -------------

# Forward work belongs to the module being called. Work of a backward function belongs to the module
# whose forward made the function: functions have the numbers in which their thread made them, so
# that the numbers at the begin and end of each module's call are enough. Forward work repeated in a
# backward pass (checkpointing) is backward work of the module that repeats it.

# A module's path, the number of a step part, or None outside of both; and 1 for backward work.
Owner = tuple[str | int | None, int]
OUTSIDE: Owner = (None, 0)
# Functions that add up gradients were made by no operator; they have this number or above.
_NUMBERLESS = 1 << 63


class _Makers:
    """Makers of the backward functions of one thread, by the functions' numbers."""

    def __init__(self, next_number: int) -> None:
        self.since = [next_number]
        self.makers: list[str | int | None] = [None]
        self.seen = next_number

    def mark(self, number: int, maker: str | int | None) -> None:
        """Note that functions from `number` on are made by `maker`."""
        if self.since[-1] == number:
            self.makers[-1] = maker
        elif number > self.since[-1]:
            self.since.append(number)
            self.makers.append(maker)

    def maker(self, number: int) -> str | int | None:
        """Return the maker of the function of that number; None for older ones and outside."""
        if number >= _NUMBERLESS:
            return None
        position = bisect_right(self.since, number) - 1
        return self.makers[position] if position >= 0 else None


class Calls(Listener):
    """A listener that keeps the kind and name of what was entered and not yet left."""

    def __init__(self) -> None:
        # The last one was entered last.
        self._stack: list[tuple[str, str]] = []

    def leave(self, kind: str, name: str) -> None:
        """Note its end, and the end of everything inside that an error ended."""
        for position in range(len(self._stack) - 1, -1, -1):
            if self._stack[position] == (kind, name):
                del self._stack[position:]
                self._changed()
                return

    def _changed(self) -> None:
        """Act on a change of the stack."""


class Owners(Calls):
    """A listener of calls and passes that knows the owner of the operator being run.

    `on_step` is called when a step has ended.
    """

    def __init__(self, torch: Any, on_step: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._next_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
        self._current_function: Callable[[], Any] = torch._C._current_autograd_node
        self._makes_functions: Callable[[], bool] = torch.is_grad_enabled
        self._call_code = torch.nn.Module._wrapped_call_impl.__code__
        self._pass_code = torch.autograd.graph._engine_run_backward.__code__
        # The wrapper through which torch calls every `Optimizer.step`.
        hook = torch.optim.Optimizer.profile_hook_step
        self._step_code = next(
            (each for each in hook.__code__.co_consts if isinstance(each, CodeType)), None
        )
        self._on_step = on_step
        self._thread = threading.get_ident()
        self._made = {self._thread: _Makers(self._next_number())}
        self._passes = 0
        self._paths: dict[int, str] = {}

    def enter(self, kind: str, name: str, module: Any = None) -> None:
        """Note the begin of a module's call, a backward pass, an optimizer's step or a region."""
        if kind == "region":
            return
        self._forget_failed_steps()
        if kind == "module":
            self._paths[id(module)] = name
        self._stack.append((kind, name))
        self._changed()

    def step_ended(self, number: int) -> None:
        """Call `on_step`."""
        self._on_step()

    def _changed(self) -> None:
        self._passes = sum(kind == "backward" for kind, _ in self._stack)
        made, number = self._made[self._thread], self._next_number()
        made.mark(number, self._innermost())
        made.seen = number

    def _forget_failed_steps(self) -> bool:
        """Drop optimizers' steps that an error has ended; return whether there was one.

        During a step its frame is on the stack.
        """
        if not any(kind == "optimizer" for kind, _ in self._stack) or self._is_stepping():
            return False
        self._stack = [each for each in self._stack if each[0] not in ("optimizer", "closure")]
        return True

    def _is_stepping(self) -> bool:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code is self._step_code:
                return True
            frame = frame.f_back
        # Without a known frame, the step counts as running.
        return self._step_code is None

    def _innermost(self) -> str | int | None:
        """Return the module or step part being run, None in a backward pass and outside of all."""
        kind, name = self._stack[-1] if self._stack else ("", "")
        if kind == "optimizer":
            return OPTIMIZER
        return name if kind == "module" else None

    def owner(self) -> Owner:
        """Return the owner of the operator that this thread runs now."""
        function = self._current_function()
        if threading.get_ident() != self._thread:
            return self._elsewhere(function)
        innermost = self._innermost()
        if innermost == OPTIMIZER and self._forget_failed_steps():
            # Nothing was noted since the error, and this operator's own function has its number.
            self._made[self._thread].mark(self._next_number() - 1, self._innermost())
            self._changed()
            innermost = self._innermost()
        if innermost == OPTIMIZER:
            return (OPTIMIZER, 0)
        if innermost is not None:
            return (innermost, int(function is not None or self._passes > 0))
        if function is None:
            return (None, int(self._passes > 0))
        made = self._made[self._thread]
        maker = made.maker(function._sequence_nr())
        self._note(made, maker)
        return (maker, 1)

    def _note(self, made: _Makers, maker: str | int | None) -> None:
        """Give a function made inside another one (for second derivatives) to its maker."""
        if not self._makes_functions():
            return
        number = self._next_number()
        if number > made.seen:
            made.mark(number - 1, maker)
            made.seen = number

    def _elsewhere(self, function: Any) -> Owner:
        """Return the owner on a thread of the autograd engine, which does a device's backward.

        The listener sees no calls there, but the frames show them: there are few, and none
        without repeated forward work.
        """
        if function is None:
            return OUTSIDE
        thread = threading.get_ident()
        own = self._made.get(thread)
        if own is None:
            # The operator being run may have made its function already.
            own = self._made[thread] = _Makers(self._next_number() - 1)
        path, nested = self._from_frames(sys._getframe(2))
        if path is None:
            # A pass begun on this thread, for work repeated here, is of its functions.
            made = own if nested else self._made[self._thread]
            path = made.maker(function._sequence_nr())
        self._note(own, path)
        return (path, 1)

    def _from_frames(self, frame: FrameType | None) -> tuple[str | int | None, bool]:
        """Return the innermost module being called, and whether a backward pass is inside it."""
        while frame is not None:
            if frame.f_code is self._pass_code:
                return None, True
            if frame.f_code is self._call_code:
                # A frame's locals are copied up to Python 3.12; this one holds the call's own
                # arguments alone, for as long as the call lasts.
                return self._paths.get(id(frame.f_locals.get("self"))), False
            frame = frame.f_back
        return None, False


# --- Compilation: a counter that dynamo could see must be gone when it begins ---------------------


def in_one_line(error: BaseException) -> str:
    """Return an error's type and the first line of its text."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}".rstrip(": ")


class CompileNotice:
    """Calls `on_start` before dynamo compiles anything, once a `look` has found dynamo.

    A script may import dynamo at any time, so a counter looks again whenever it is entered.
    """

    def __init__(self, on_start: Callable[..., None]) -> None:
        self._on_start = on_start
        self._handler: Any = None

    def look(self) -> None:
        """Register the callback, if dynamo has been imported."""
        callback = sys.modules.get("torch._dynamo.callback")
        if self._handler is None and callback is not None:
            self._handler = callback.callback_handler
            self._handler.register_start_callback(self._on_start)

    def end(self) -> None:
        """Remove the callback; safe to call twice."""
        handler, self._handler = self._handler, None
        if handler is not None and self._on_start in handler.start_callbacks:
            handler.start_callbacks.remove(self._on_start)


COMPILED = "dynamo has compiled: FLOPs are counted from the shapes in the torch slice alone"
# Operators whose backward differs under a dispatch mode (all of torch's were tried, with second
# derivatives): the digits differ, or an error that torch would raise is not raised.
_FILLS = ("aten::masked_fill", "aten::masked_fill_")
_OTHER_BACKWARD = frozenset(
    ("aten::prod", "aten::cumprod", "aten::ormqr", "aten::_linalg_det", "aten::linalg_eig", *_FILLS)
)
# What cross entropy ends in: its targets tell which of its inputs count.
_OF_TARGETS = frozenset(("aten::nll_loss_forward", "aten::nll_loss2d_forward"))


@dataclass
class CountedStep:
    """Counts of one step; `missed` are calls without a figure.

    `masked` are operations that causal masks leave out of `flop`, None where that is not known;
    calls that are not causal have none. `targets` are calls of losses, and targets that these
    ignore, by number of classes, targets of a call, and the ignored index.
    """

    flop: dict[tuple[Owner, str], int] = field(default_factory=dict)
    masked: dict[tuple[Owner, str], int | None] = field(default_factory=dict)
    calls: dict[tuple[Owner, str], int] = field(default_factory=dict)
    missed: dict[tuple[Owner, str], int] = field(default_factory=dict)
    targets: dict[tuple[int, int, int], tuple[int, int]] = field(default_factory=dict)


class _Parents(threading.local):
    """Replaces FlopCounterMode's module tracker: holds the owner of the next count."""

    parents: tuple[Owner, ...] = (OUTSIDE,)


class Count(Owners):
    """Counts calls of operators, and their operations by FlopCounterMode's formulas.

    `gave_way` says why counting ended early: the counts are incomplete then. On the device `meta`
    nothing is computed, so that nothing is counted there, unless `on_meta` asks for the work that
    it would be.
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
        from profstack.readers.flops.counting_mode import CountingMode

        self._mode = CountingMode(self)

    def begin(self) -> None:
        """Count the operators of this thread from now on."""
        self._compiling.look()
        self.on = True
        self._mode.put_on()

    def end(self) -> None:
        """End counting; call it again later where this may be inside an operator."""
        self.on = False
        self._mode.take_off()
        self._compiling.end()

    def enter(self, kind: str, name: str, module: Any = None) -> None:
        """Note the begin of a module's call, a backward pass, an optimizer's step or a region."""
        super().enter(kind, name, module)
        self._compiling.look()
        if self.on and self._mode.is_blind():
            self._mode.revive()
        if kind == "backward" and self._differs is not None and self.on:
            text = f"the backward of {self._differs} takes another path under a dispatch mode"
            self.gave_way = f"{text}: FLOPs are counted from the shapes in the torch slice alone"
            self.end()

    def step_ended(self, number: int) -> None:
        """Note the end of a step, and keep its counts."""
        if self.on and self._mode.is_blind():
            self._mode.revive()
        if self.on and not self._mode.is_on():
            # It began inside a hook of a backward pass, after which autograd restored old modes.
            self.gave_way = (
                "the steps end inside a backward pass, where no dispatch mode stays on: FLOPs are "
                "counted from the shapes in the torch slice alone"
            )
            self.end()
            self._mode.forget()
        with self._lock:
            self.steps.append(self.rest())
            self._step = CountedStep()

    def rest(self) -> CountedStep:
        """Return the counts since the last step ended."""
        for owner, by_operator in self.counter.flop_counts.items():
            for operator, flop in by_operator.items():
                self._step.flop[owner, operator_name(operator)] = int(flop)
        self.counter.flop_counts.clear()
        return self._step

    def count(self, operator: Any, out: Any, args: Any, kwargs: Any) -> None:
        """Count one call; an error here never reaches the script."""
        if not self.on:
            # Ended while the operator was being run.
            return
        try:
            name = operator_name(operator)
            known = operator in self.counter.flop_registry
            if name in _OTHER_BACKWARD and self.torch.is_grad_enabled():
                # Of a masked fill, it is the derivative by the value put in.
                tensors = args[2:] if name in _FILLS else args
                if any(getattr(tensor, "requires_grad", False) for tensor in tensors):
                    self._differs = name
            if name in _OF_TARGETS:
                with Guard():
                    self._look_at_targets(args)
            if not known and not is_missed(name):
                return
            owner = self.owner()
            known = known and self._ask(name, owner, operator, out, args, kwargs)
            with self._lock:
                calls = self._step.calls if known else self._step.missed
                calls[owner, name] = calls.get((owner, name), 0) + 1
        except BaseException as error:
            # No `Guard`: this runs at every operator.
            self.on = False
            if is_scripts(error):
                self.gave_way = "a signal's handler raised while an operator was counted"
                raise
            self.error = error

    def _ask(
        self, name: str, owner: Owner, operator: Any, out: Any, args: Any, kwargs: Any
    ) -> bool:
        """Count with FlopCounterMode; return False where it has no figure."""
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
                masked = left_out(name, args, kwargs, int(counted[operator] - before))
                if masked != 0:
                    known = self._step.masked.get((owner, name), 0)
                    both = None if masked is None or known is None else known + masked
                    self._step.masked[owner, name] = both
        except Exception as error:
            if is_scripts(error):
                raise
            self.failures[name] = f"its formula raises {in_one_line(error)}"
            return False
        return True

    def _look_at_targets(self, args: Any) -> None:
        """Count the targets of a loss, and those that it ignores."""
        inputs, targets = args[:2]
        index = args[4] if len(args) > 4 else -100
        plain = type(inputs) is type(targets) is self.torch.Tensor and inputs.dim() > 1
        if not plain or not can_be_read(self.torch, targets) or self._without_figure((targets,)):
            return
        key = int(inputs.shape[1]), targets.numel(), int(index)
        ignored = int((targets == index).sum())
        with self._lock:
            calls, before = self._step.targets.get(key, (0, 0))
            self._step.targets[key] = calls + 1, before + ignored

    def _without_figure(self, args: Any) -> str | None:
        """Return why shapes do not give the work on these tensors; None where they do."""
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

    def _dynamo_compiles(self, *_: Any) -> None:
        self.on, self.gave_way = False, COMPILED


# --- Rows -----------------------------------------------------------------------------------------


_COLUMNS = ("slice", "counter", "module_id", "operator", "backward", "calls", "flop", "masked_flop")


def count_row(*values: SqlValue) -> Record:
    """Return a row of `flop_counts` from the values of its columns, in their order."""
    return dict(zip(_COLUMNS, values, strict=True))
