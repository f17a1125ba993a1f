"""Whose work an operator is: the module whose forward runs it, or whose forward made its backward.

Forward work belongs to the module being called. Work of a backward function belongs to the module
whose forward made the function: functions bear the numbers in which their thread made them, so
that it is enough to note at which number each module's call began and ended. Forward work done
again inside a backward pass (checkpointing) is backward work of the module that does it.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from profstack.regions import OPTIMIZER

# A module's path, the number of a step part, or None outside of both; and 1 for backward work.
Owner = tuple[str | int | None, int]
OUTSIDE: Owner = (None, 0)
# Functions that add up gradients were made by no operator; they bear this number or above.
_NUMBERLESS = 1 << 63


class _Made:
    """Who made the backward functions of one thread, by the functions' numbers."""

    def __init__(self, next_number: int) -> None:
        self.since = [next_number]
        self.makers: list[str | int | None] = [None]
        self.seen = next_number

    def mark(self, number: int, maker: str | int | None) -> None:
        """Functions from `number` on are made by `maker`."""
        if self.since[-1] == number:
            self.makers[-1] = maker
        elif number > self.since[-1]:
            self.since.append(number)
            self.makers.append(maker)

    def maker(self, number: int) -> str | int | None:
        """Who made the function of that number; None for one from before, or of nobody's."""
        if number >= _NUMBERLESS:
            return None
        position = bisect_right(self.since, number) - 1
        return self.makers[position] if position >= 0 else None


class Owners:
    """A listener of calls and passes that says of the operator being run whose work it is.

    `on_step` is called when a step has ended.
    """

    def __init__(self, torch: Any, on_step: Callable[[], None] = lambda: None) -> None:
        self._next_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
        self._current_function: Callable[[], Any] = torch._C._current_autograd_node
        self._makes_functions: Callable[[], bool] = torch.is_grad_enabled
        self._call_code = torch.nn.Module._wrapped_call_impl.__code__
        self._pass_code = torch.autograd.graph._engine_run_backward.__code__
        self._step_code = _code_of_steps(torch.optim.Optimizer)
        self._on_step = on_step
        self._thread = threading.get_ident()
        self._made = {self._thread: _Made(self._next_number())}
        # kind, name; what was entered last stands last.
        self._stack: list[tuple[str, str]] = []
        self._passes = 0
        self._paths: dict[int, str] = {}

    # -- what is told ----------------------------------------------------------------------------

    def enter(self, kind: str, name: str, module: Any = None) -> None:
        """A module's call, a backward pass, an optimizer's step or a region begins."""
        if kind == "region":
            return
        self._forget_failed_steps()
        if kind == "module":
            self._paths[id(module)] = name
        self._stack.append((kind, name))
        self._changed()

    def leave(self, kind: str, name: str) -> None:
        """It has ended, and with it what an error ended inside it."""
        for position in range(len(self._stack) - 1, -1, -1):
            if self._stack[position] == (kind, name):
                del self._stack[position:]
                self._changed()
                return

    def step_ended(self, number: int) -> None:
        """A step has ended."""
        self._on_step()

    def step_begun(self, number: int) -> None:
        """A step begins: it is its calls that matter."""

    def _changed(self) -> None:
        self._passes = sum(kind == "backward" for kind, _ in self._stack)
        made, number = self._made[self._thread], self._next_number()
        made.mark(number, self._innermost())
        made.seen = number

    def _forget_failed_steps(self) -> bool:
        """An error ends an optimizer's step without a word: whether there was one that had ended.

        Its frame tells: while a step is taken, that is on the stack.
        """
        if not any(kind == "optimizer" for kind, _ in self._stack) or self._is_stepping():
            return False
        self._stack = [each for each in self._stack if each[0] != "optimizer"]
        return True

    def _is_stepping(self) -> bool:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code is self._step_code:
                return True
            frame = frame.f_back
        # Where steps cannot be told by their frames, the word counts.
        return self._step_code is None

    def _innermost(self) -> str | int | None:
        """The module or step part being run, None inside a backward pass and outside of all."""
        if not self._stack:
            return None
        kind, name = self._stack[-1]
        if kind == "optimizer":
            return OPTIMIZER
        return name if kind == "module" else None

    # -- what is asked ---------------------------------------------------------------------------

    def owner(self) -> Owner:
        """Whose work the operator is that this thread runs now."""
        function = self._current_function()
        if threading.get_ident() != self._thread:
            return self._elsewhere(function)
        innermost = self._innermost()
        if innermost == OPTIMIZER and self._forget_failed_steps():
            # Nothing was told since the error, and this operator's own function has its number.
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

    def _note(self, made: _Made, maker: str | int | None) -> None:
        """A function made inside another one (for second derivatives) goes where that one goes."""
        if not self._makes_functions():
            return
        number = self._next_number()
        if number > made.seen:
            made.mark(number - 1, maker)
            made.seen = number

    def _elsewhere(self, function: Any) -> Owner:
        """On a thread of the autograd engine, which does the backward of a device.

        Nothing is told of calls there, but the frames tell: there are few, and none without
        forward work done again.
        """
        if function is None:
            return OUTSIDE
        thread = threading.get_ident()
        own = self._made.get(thread)
        if own is None:
            # What is being run now may have made its function already.
            own = self._made[thread] = _Made(self._next_number() - 1)
        path, nested = self._from_frames(sys._getframe(2))
        if path is None:
            # A pass that was begun on this thread, for work done again here, is of its functions.
            made = own if nested else self._made[self._thread]
            path = made.maker(function._sequence_nr())
        self._note(own, path)
        return (path, 1)

    def _from_frames(self, frame: FrameType | None) -> tuple[str | int | None, bool]:
        """The innermost module being called, and whether a backward pass is inside of it."""
        while frame is not None:
            if frame.f_code is self._pass_code:
                return None, True
            if frame.f_code is self._call_code:
                # A frame's locals are copied up to Python 3.12; this one holds the call's own
                # arguments alone, for as long as the call lasts.
                return self._paths.get(id(frame.f_locals.get("self"))), False
            frame = frame.f_back
        return None, False


def _code_of_steps(optimizer: Any) -> CodeType | None:
    """The code of the wrapper through which torch calls every `Optimizer.step` that has hooks."""
    for constant in optimizer.profile_hook_step.__code__.co_consts:
        if isinstance(constant, CodeType):
            return constant
    return None
