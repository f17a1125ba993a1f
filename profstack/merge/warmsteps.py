"""Where a run's warm-up ends, told apart from a change of its work later on.

A dataset that caches in its first epoch, or a batch that becomes smaller, makes steps faster long
after they were warm: by their times alone all before that is one long warm-up. What tells them
apart is where the layers watched: a change after their last slice is none that they waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from profstack.benchmark.doubts import FEW_STEPS
from profstack.benchmark.warmup import Warmup, detect
from profstack.merge.recorded import Recorded
from profstack.units import format_seconds

# Steps that differ by less than this from those before them are the same ones, for a reader.
_OTHER_STEPS = 0.05


@dataclass(frozen=True)
class WarmSteps:
    """The warm-up of a run; steps count as warm from `first` on, and before `until` if it is set.

    Step numbers are the run's own.
    """

    warmup: Warmup
    first: int
    until: int | None = None
    warnings: list[dict[str, str]] = field(default_factory=list)


def warm_steps(recorded: Recorded, unobserved: pd.DataFrame, clean: pd.DataFrame) -> WarmSteps:
    """The warm steps among those that nothing observed; `clean` are those of the clean slices."""
    steps = recorded.steps
    # Another plan's steps may have gone before: this one's warm-up begins with its own first step.
    begun = int(steps["step"].min()) if len(steps) else 0
    found = _detect(unobserved, begun)
    usual = WarmSteps(found, begun + found.steps, None, _unsettled(found))
    if not found.steps or not len(clean):
        return usual
    left = bool((clean["step"] >= usual.first).any())
    if left and _last_observed(recorded) >= usual.first:
        return usual
    until = min(usual.first, int(clean["step"].max()) + 1)
    again = _detect(unobserved[unobserved["step"] < until], begun)
    kept = clean[(clean["step"] >= begun + again.steps) & (clean["step"] < until)]
    if left and (not again.settled or len(kept) < FEW_STEPS):
        # What is left after it are warm steps for sure, and those before it may be none.
        return usual
    later = unobserved[unobserved["step"] >= usual.first]
    warnings = [*_changed(kept, later, usual), *_unsettled(again), *usual.warnings]
    return WarmSteps(again, begun + again.steps, until, warnings)


def _detect(unobserved: pd.DataFrame, begun: int) -> Warmup:
    numbers = (unobserved["step"] - begun).tolist()
    return detect(unobserved["wall_s"].tolist(), indices=numbers)


def _last_observed(recorded: Recorded) -> int:
    """The last step that a layer had a slice of; -1 without any."""
    slices = recorded.slices
    slices = slices[slices["layer"].notna() & (slices["steps"] > 0)]
    return int((slices["first_step"] + slices["steps"]).max()) - 1 if len(slices) else -1


def _unsettled(warmup: Warmup) -> list[dict[str, str]]:
    return [] if warmup.settled else [{"slug": "warmup-unsettled", "text": warmup.reason}]


def _changed(kept: pd.DataFrame, later: pd.DataFrame, usual: WarmSteps) -> list[dict[str, str]]:
    """A warning that later steps take another time than those that count."""
    before_s, after_s = float(kept["wall_s"].median()), float(later["wall_s"].median())
    if not len(later) or abs(after_s / before_s - 1.0) < _OTHER_STEPS:
        return []
    # Of many steps the place is known to a sixteenth of their number; no more than half of them
    # is ever called warm-up, and where they still fell there it is not known.
    where = f"from about step {usual.first} on" if usual.warmup.settled else "later in the run"
    text = (
        f"{where}, steps take {format_seconds(after_s)} instead of "
        f"{format_seconds(before_s)}: the figures are of the steps before, in which the layers "
        "had their slices; the script's work changed there, or the machine's other work"
    )
    return [{"slug": "work-changed", "text": text}]
