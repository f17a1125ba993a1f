"""The course of a run: which slice of the plan comes next, and which are to come once more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from profstack.slices import Planned, Targets, again, settle

# Slices of one run that are repeated because evaluation fell into them.
MOST_REPEATED = 4


class Course:
    """Gives out the slices of a plan one by one; each new plan begins with its first one."""

    def __init__(self, make_plan: Callable[[], Iterator[Planned]], targets: Targets) -> None:
        self.targets = targets
        # The layers that may not begin again at the step number at which they ended.
        self.ended: tuple[frozenset[str], int | None] = (frozenset(), None)
        # The round of the slice that ended last.
        self.finished_round = 0
        self._make_plan = make_plan
        self._plan: Iterator[Planned] = iter(())
        self._repeated = 0

    def begin(self) -> None:
        """A new plan begins."""
        self._plan = self._make_plan()

    def put_first(self, planned: Planned) -> None:
        """This slice comes before all others of the plan."""
        self._plan = chain((planned,), self._plan)

    def may_repeat(self, planned: Planned) -> bool:
        """Whether a slice that was spoilt is worth another one."""
        return planned.round >= 2 and self._repeated < MOST_REPEATED

    def repeat(self, planned: Planned) -> None:
        """The slice that is just over comes once more, and first."""
        self._repeated += 1
        self._plan = chain(again(planned, self.targets), self._plan)

    def next(self, total: int) -> Planned:
        """The slice that begins after `total` steps.

        A step to settle comes first where a tool that may not would start at the very boundary at
        which it has ended.
        """
        planned = next(self._plan, None)
        assert planned is not None, "a plan never ends: its last slice is the watch"
        layers, ended_at = self.ended
        if ended_at == total and any(name in layers for name, _ in planned.observers):
            self.put_first(planned)
            return settle(self.targets, planned.round)
        return planned
