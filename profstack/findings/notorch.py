"""Why the torch layer has no slice however many steps a script makes, and what helps then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What helps where the layer's slices were too few, too short or too slow.
MORE_STEPS = "let the script make more steps, or longer ones"
LONGER_STEPS = "longer steps are slowed less"
_UNDER_NSYS = "run the script once without nsys, and import the report into that recording"
_NOT_ASKED_FOR = "leave it in --layers, and out of --skip"
_FOR_GOOD = ("skipped", "unavailable", "failed")


def without_torch(report: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """Why it was not armed, and what to do, where anything helps; None where it was armed."""
    row = next((row for row in report.get("layers") or [] if row["name"] == "torch"), None)
    if row is None:
        return "the torch layer was not asked for", _NOT_ASKED_FOR
    if row["status"] not in _FOR_GOOD:
        return None
    because = f" ({row['reason']})" if row["reason"] else ""
    under_nsys = any(each["slug"] == "under-nsys" for each in report.get("warnings") or [])
    step = _UNDER_NSYS if row["status"] == "skipped" and under_nsys else None
    return f"the torch layer is {row['status']}{because}", step


def had_all_slices(report: Mapping[str, Any]) -> bool:
    """Whether the run's steps were enough for every slice, so that more would change nothing."""
    return any(row["kind"] == "watch" for row in report.get("slices") or [])
