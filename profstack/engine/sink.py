"""What the wrappers on torch's functions report, and to whom: the seam between hooks and steps."""

from __future__ import annotations

from typing import Any, Protocol

from profstack.regions import Named


class Sink(Protocol):
    """What the wrappers report to; every method returns quickly and raises nothing."""

    waiting: bool
    follows_calls: bool
    follows_backward: bool

    def first_activity(self, module: Any, args: Any, kwargs: Any) -> None:
        """The first module call or backward pass since the last boundary."""

    def call_started(self, module: Any, named: Named) -> None:
        """An outermost module call begins."""

    def evaluated(self, named: Named | None) -> None:
        """A root module in eval mode is called while ranges are emitted."""

    def call_ended(self, module: Any, named: Named) -> None:
        """An outermost module call has returned."""

    def backward_started(self) -> None:
        """A backward pass begins."""

    def backward_ended(self) -> None:
        """A backward pass has returned."""

    def optimizer_started(self, optimizer: Any) -> None:
        """An `Optimizer.step` begins."""

    def optimizer_ended(self, optimizer: Any) -> None:
        """An `Optimizer.step` has returned."""

    def generate_started(self) -> None:
        """An outermost `generate` begins."""

    def generate_ended(self, *, completed: bool) -> None:
        """An outermost `generate` has returned, or raised."""
