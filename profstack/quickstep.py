"""The end of a very short step, stamped at the price of one Python frame.

A frame costs 2 to 3 us in a real step, whose caches are cold, and a 0.3 ms step under test may
lose 1 % at most. So where steps are short, `Optimizer.step` ends the step, and the host alone
keeps time, the hook itself writes the time down. What it leaves out (waiting time, batch size,
the CPU time of every single step) is known from the steps of the other slices, or per slice.
"""

from __future__ import annotations

import time
from _thread import get_ident
from collections.abc import Callable
from typing import Any

from profstack.passthrough import compiling, unseen_by_dynamo

# Steps up to here are short: the full boundary would take more than half a percent of them.
SHORT_S = 0.002


class Aim:
    """How many steps the slice in progress has before somebody must look at it."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0


def optimizer_hook(
    torch: Any,
    followed: Callable[[], Any],
    ends: list[float],
    aim: Aim,
    look: Callable[[], None],
    other: Callable[[Any], None],
) -> Callable[[Any, Any, Any], None]:
    """A hook after `Optimizer.step` that adds to `ends` when the optimizer followed has stepped.

    `look` is called when `aim` is reached, `other` with any other optimizer and on any other
    thread than this one. `ends` holds bare numbers, since a row for each step would take memory
    that the step's own caches lose.
    """
    under_dynamo, compiler = compiling(torch)
    append, count, now, thread = ends.append, len, time.perf_counter, get_ident()

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if under_dynamo() or compiler._is_compiling_flag:
            return
        if followed() is not optimizer or get_ident() != thread:
            other(optimizer)
            return
        append(now())
        if count(ends) >= aim.steps:
            look()

    unseen_by_dynamo(torch, hook, with_callees=True)
    return hook
