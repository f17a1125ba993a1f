"""Whether a recording's slices tell what a clean step goes to, and what its clean steps tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profstack.merge.recorded import FEWEST_STEPS, LARGEST_FACTOR, Selection

NO_SLICE = "the torch layer has no slice of these steps"


def unusable(timed: Selection | None, report: Mapping[str, Any]) -> str | None:
    """Why the torch layer's slices tell nothing of a clean step; None where they do."""
    if timed is None or not timed.wall_s:
        return NO_SLICE
    effects = {row["layer"]: row for row in report.get("probe_effect") or []}
    effect = effects.get("torch") or {}
    factor = effect.get("factor")
    if timed.steps < FEWEST_STEPS:
        return f"the torch layer saw {timed.in_words()} and {FEWEST_STEPS} are needed"
    if factor is None:
        return f"how much the torch layer slowed its steps is not known: {effect.get('note')}"
    if factor > LARGEST_FACTOR:
        return f"the torch layer slowed its steps {factor:.1f} times, which is too much"
    return None


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
