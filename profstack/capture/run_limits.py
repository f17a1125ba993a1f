"""What a run may take: the budget of measuring, the early page, and the early end.

`Budget` says how long a run has to go on until there is room for a slice; `EarlyPage` asks the
parent for the page while the script runs; `Limits` knows when `--max-steps` or `--max-seconds`
ends the run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from profstack.capture.slices import Event, Observing
from profstack.storage.folder import PAGE_MARKER, append_event

# -- what measuring may cost --------------------------------------------------------------------

# What may be added to a run however short it is: twice what all rounds take on an idle machine, so
# that short runs on a busy one have them too.
FIXED_S = 5.0


class Budget:
    """Keeps what profstack adds below a share of the run; `percent` None is no limit.

    What is added is the time in which the script stands still for a switch, and how much longer the
    steps of observed slices take than clean ones.
    """

    def __init__(self, percent: float | None, began: float) -> None:
        self.percent = percent
        self.spent_s = 0.0
        # Those for which the run waits, None while it waits for nothing.
        self.waiting: Observing | None = None
        # Observed slices without a price yet, each with the time of its stop: what their steps cost
        # is known once a clean slice is over.
        self.unpriced: list[tuple[Observing, float, Event]] = []
        self._began = began
        self._costs: dict[Observing, float] = {}

    def learn(self, clean_s: float) -> None:
        """Price the slices so far: the stop after each, and its steps beyond clean ones."""
        for observers, stopped_s, event in self.unpriced:
            slower_s = max((event["mean_s"] or 0.0) - clean_s, 0.0) * event["steps"]
            self.spent_s += slower_s
            self._costs[observers] = stopped_s + slower_s
        self.unpriced.clear()

    def wait_s(self, observers: Observing, now: float, more_s: float = 0.0) -> float:
        """Return how long the run has to go on until there is room for such a slice.

        `more_s` is what was added besides, and is not counted yet.
        """
        if not self.percent:
            return 0.0
        usual = sum(self._costs.values()) / len(self._costs) if self._costs else 0.0
        wanted_s = self.spent_s + more_s + self._costs.get(observers, usual) - FIXED_S
        return max(100.0 * wanted_s / self.percent - (now - self._began), 0.0)


# -- the page that is written while the script runs ----------------------------------------------
#
# The parent process writes the page and takes a core for it, so nothing is measured meanwhile.

# Show the page after so many seconds of measuring.
DUE_S = 60.0
# The parent may be gone or busy: measuring goes on without the page after so long.
PATIENCE_S = 30.0
LOOK_S = 0.05


class EarlyPage:
    """Asks for the page once per run, and looks for it now and then."""

    def __init__(self, folder: Path, *, wait: bool) -> None:
        self._folder = folder
        self._wait = wait
        self._asked = False
        self._began = float("inf")
        self._since = 0.0
        self._looked = 0.0

    def measuring(self) -> None:
        """Note that a slice begins."""
        self._began = min(self._began, time.perf_counter())

    def is_due(self, finished_round: int) -> bool:
        """Return whether every layer has had a slice and a minute of measuring has passed."""
        may_ask = self._wait and not self._asked and finished_round >= 2
        return may_ask and time.perf_counter() - self._began > DUE_S

    def ask(self) -> None:
        """Ask the parent for the page, unless it was asked before."""
        if not self._asked:
            self._asked = True
            self._since = self._looked = time.perf_counter()
            append_event(self._folder, {"event": "page"})

    def is_over(self, now: float) -> bool:
        """Return whether the page has come or is no longer waited for."""
        if now - self._looked < LOOK_S:
            return False
        self._looked = now
        return now - self._since > PATIENCE_S or (self._folder / PAGE_MARKER).exists()


# -- the end of a run by `--max-steps` or `--max-seconds`, or with its plan under `--nsys` -------


@dataclass
class Limits:
    """Knows which limit is reached, and how often the script was asked to end.

    `max_steps` and `max_seconds` are None for no limit; seconds count from the making of this
    object, when torch was imported. With `by_plan`, a word for why, the run is over when its plan
    is (`plan_is_over`).
    """

    max_steps: int | None = None
    max_seconds: float | None = None
    by_plan: str | None = None
    plan_is_over: bool = False
    asked: int = 0
    began: float = field(default_factory=time.perf_counter)

    def reached(self, steps: int) -> str | None:
        """Return `max_steps`, `max_seconds`, `by_plan`, or None while the run may go on."""
        if self.by_plan is not None and self.plan_is_over:
            return self.by_plan
        if self.max_steps is not None and steps >= self.max_steps:
            return "max_steps"
        if self.max_seconds is not None and time.perf_counter() - self.began >= self.max_seconds:
            return "max_seconds"
        return None

    def next_look(self, steps: int) -> list[int]:
        """Return in how many steps from now a limit can be reached; empty without limits."""
        if self.max_seconds is not None:
            return [1]
        return [] if self.max_steps is None else [max(1, self.max_steps - steps)]
