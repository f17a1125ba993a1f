"""What step events tell whoever keeps the steps: the seam between them and the engine."""

from __future__ import annotations

from typing import Protocol

from profstack.steps import Found

# Flags of a step; kept out of medians.
EVAL, PARTIAL, SWITCH = 1, 2, 4


class StopRun(SystemExit):
    """Raised at a step boundary when the asked-for number of steps or seconds is reached."""


class Keeper(Protocol):
    """Who keeps the steps: the engine."""

    def boundary(self) -> None:
        """A step has ended."""

    def quick_ended(self, flags: int) -> None:
        """A step has ended that was only stamped, and holds what `flags` say."""

    def begun(self) -> None:
        """The script does the first thing that can belong to a step."""

    def attention(self) -> None:
        """The step in progress has raised a flag."""

    def adopt(self, found: Found, now: float) -> None:
        """A rule was found, by an event at the time `now`."""

    def last_boundary(self) -> float | None:
        """End of the latest step; None before the first."""

    def total_steps(self) -> int:
        """Steps so far, under all rules."""

    def disarm(self, error: BaseException) -> None:
        """An error came up in our own work: end everything, quietly."""
