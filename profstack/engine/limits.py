"""The end of a run by `--max-steps` or `--max-seconds`."""

from __future__ import annotations

import time


class Limits:
    """Knows which limit is reached, and how often the script was asked to end.

    `max_steps` and `max_seconds` are None for no limit; seconds count from the making of this
    object, when torch was imported.
    """

    def __init__(self, max_steps: int | None, max_seconds: float | None) -> None:
        self.max_steps = max_steps
        self.max_seconds = max_seconds
        self.asked = 0
        self._began = time.perf_counter()

    def reached(self, steps: int) -> str | None:
        """`max_steps`, `max_seconds`, or None while the run may go on."""
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
