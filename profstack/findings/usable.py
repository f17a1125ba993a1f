"""Whether a recording's slices tell what a clean step goes to, and what its clean steps tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profstack.findings.notorch import (
    LONGER_STEPS,
    MORE_STEPS,
    had_all_slices,
    without_torch,
)
from profstack.merge.recorded import FEWEST_STEPS, LARGEST_FACTOR, Selection

_NO_SLICE = "the torch layer has no slice of these steps"


def unusable(timed: Selection | None, report: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Why the torch layer's slices tell nothing of a clean step, and what helps; None where not."""
    if timed is None:
        return without_torch(report) or (_NO_SLICE, MORE_STEPS)
    if not timed.wall_s:
        return _NO_SLICE, MORE_STEPS
    effects = {row["layer"]: row for row in report.get("probe_effect") or []}
    effect = effects.get("torch") or {}
    factor, note = effect.get("factor"), effect.get("note")
    done = had_all_slices(report)
    more = None if done else MORE_STEPS
    if timed.steps < FEWEST_STEPS:
        return f"the torch layer saw {timed.in_words()} and {FEWEST_STEPS} are needed", more
    if factor is None:
        return f"how much the torch layer slowed its steps is not known: {note}", more
    if factor <= LARGEST_FACTOR:
        return None, None
    if note is not None:
        # What the steps took more than clean ones is not the layer's doing alone.
        return f"the torch layer's slices tell nothing of a clean step: {note}", more
    low, high = effect.get("ci95_low"), effect.get("ci95_high")
    if low is not None and low <= 1:
        # Steps that differ so much among themselves, or other work, explain it all.
        took = (
            f"{factor:.1f} times as long as the clean ones beside them "
            f"(95 %: {low:.1f} to {high:.1f} times)"
        )
        return f"how much the torch layer slowed its steps is not known: they took {took}", more
    slowed = f"the torch layer slowed its steps {factor:.1f} times, which is too much"
    return slowed, LONGER_STEPS if done else more


def clean_wait_share(report: Mapping[str, Any]) -> float | None:
    """The share of the clean steps' time that went by before their first work."""
    mark = report["benchmark"]
    counted = set(mark.get("counted_steps") or [])
    rows = [
        row
        for row in report["tables"]["steps"]
        if row["index"] in counted and row.get("wait_s") is not None and row["wall_s"]
    ]
    if len(rows) < FEWEST_STEPS:
        return None
    return float(sum(row["wait_s"] for row in rows) / sum(row["wall_s"] for row in rows))
