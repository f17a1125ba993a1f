"""The end of a run by `--max-steps` or `--max-seconds`, or with its plan under `--nsys`."""

from __future__ import annotations

import time

# What `Limits` is made of: `max_steps`, `max_seconds`, and `by_plan` where it is given.
Bounds = tuple[int | None, float | None] | tuple[int | None, float | None, bool]


class Limits:
    """Knows which limit is reached, and how often the script was asked to end.

    `max_steps` and `max_seconds` are None for no limit; seconds count from the making of this
    object, when torch was imported. With `by_plan` the run is over when its plan is.
    """

    def __init__(
        self, max_steps: int | None, max_seconds: float | None, by_plan: bool = False
    ) -> None:
        self.max_steps = max_steps
        self.max_seconds = max_seconds
        self.asked = 0
        self._by_plan = by_plan
        self._plan_is_over = False
        self._began = time.perf_counter()

    def plan_is_over(self) -> None:
        """Every slice of the plan has been."""
        self._plan_is_over = True

    def reached(self, steps: int) -> str | None:
        """`max_steps`, `max_seconds`, `nsys`, or None while the run may go on."""
        if self._by_plan and self._plan_is_over:
            return "nsys"
        if self.max_steps is not None and steps >= self.max_steps:
            return "max_steps"
        if self.max_seconds is not None and time.perf_counter() - self._began >= self.max_seconds:
            return "max_seconds"
        return None

    def next_look(self, steps: int) -> list[int]:
        """In how many steps from now a limit can be reached; empty without limits."""
        looks = []
        if self.max_steps is not None:
            looks.append(max(1, self.max_steps - steps))
        if self.max_seconds is not None:
            looks.append(1)
        return looks
