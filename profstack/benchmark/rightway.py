"""The right way to time a subject, beside which a wrong one is set.

It is the median of a block of warm calls, each waited for, with nothing attached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from typing import Any

from profstack.benchmark.clock import Clock
from profstack.benchmark.measure import Policy
from profstack.benchmark.pairs import Plan, block_s, figures, interleave
from profstack.benchmark.subject import Subject

Row = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """What is measured, how much of it, and with what.

    `call_s` is about what a warm call takes; `warmup_s` are the first calls of this process, as
    the benchmark recorded them.
    """

    subject: Subject
    policy: Policy
    clock: Clock
    plan: Plan
    call_s: float
    warmup_s: Sequence[float]

    def median_of(
        self,
        step: Callable[[], Any],
        conditions: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> Callable[[], float]:
        """The median of a block of other calls, or of calls under other conditions."""

        def report() -> float:
            with (conditions or self.subject.conditions)():
                return median(block_s(step, self.plan, self.clock))

        return report

    def beside(self, wrong: Callable[[], float]) -> Row:
        """The figures of a way of timing, in turn with the right one."""
        right = self.median_of(self.subject.step)
        return figures(interleave(wrong, right, self.plan, self.clock))

    @property
    def block(self) -> str:
        """The size of a block in words."""
        calls = self.plan.samples * self.plan.calls
        return "one call" if calls == 1 else f"{calls} calls"
