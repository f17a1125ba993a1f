"""Whether the rows of the modules add up to a step, and how much of it has an owner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profstack.merge.recorded import Recorded, Selection
from profstack.regions import OUTSIDE, STEP_PARTS, UNATTRIBUTED, UNOWNED, WAIT

_FACTS = (
    *("step_s", "rows_s", "owned_s", "owned_share", "calibrated_owned_s", "clean_median_s"),
    *("backward_s", "backward_attributed_share", "memory_peak_bytes", "memory_attributed_share"),
    "negative_rows",
)
# Own times are whole nanoseconds, added up; less below 0 than this is the sum's rounding.
_ROUNDING_S = 1e-12
# Below this share of a step, what has no owner needs no explanation.
_LITTLE = 0.02


def attribution(
    recorded: Recorded,
    timed: Selection | None,
    clean_s: float | None,
    memory: Mapping[str, float | None] | None = None,
) -> dict[str, Any]:
    """The sums of the slices that `modules` rests on, per step; null where nothing was measured.

    `memory` are `memory_peak_bytes` and `memory_attributed_share`. `reason` says why the times are
    null, or where most of the time without an owner lies.
    """
    facts: dict[str, Any] = {**dict.fromkeys(_FACTS), "unowned": [], "reason": None}
    facts.update(memory or {})
    facts["clean_median_s"] = clean_s
    rows = recorded.rows("module_times", timed)
    if timed is None or not len(rows) or not timed.steps or not timed.wall_s:
        facts["reason"] = "the torch layer has no slice from which times of modules can be told"
        return facts
    own = rows.groupby("module_id")[["forward_self_s", "backward_self_s"]].sum()
    both = own["forward_self_s"] + own["backward_self_s"]
    backward = own["backward_self_s"]
    owned = float(both.drop(list(UNOWNED), errors="ignore").sum())
    if timed.mode == "whole":
        # What comes before the first model of a script measured whole is its start-up.
        owned -= float(both.get(WAIT, 0.0))
    facts.update(
        step_s=timed.per_step(timed.wall_s),
        rows_s=timed.per_step(float(both.sum())),
        owned_s=timed.per_step(owned),
        owned_share=owned / timed.wall_s,
        calibrated_owned_s=timed.calibrated(owned, clean_s),
        backward_s=timed.per_step(float(backward.sum())),
        negative_rows=int((own < -_ROUNDING_S).any(axis=1).sum()),
    )
    if backward.sum() > 0:
        attributed = backward.drop(list(UNOWNED), errors="ignore").sum()
        facts["backward_attributed_share"] = float(attributed / backward.sum())
    unowned = [(number, float(both.get(number, 0.0))) for number in UNOWNED]
    facts["unowned"] = [
        {
            "path": STEP_PARTS[number],
            "self_s": timed.per_step(time),
            "share": time / timed.wall_s,
        }
        for number, time in sorted(unowned, key=lambda each: -each[1])
        if time > 0
    ]
    facts["reason"] = _reason(facts, own, timed)
    return facts


def _reason(facts: Mapping[str, Any], own: Any, timed: Selection) -> str | None:
    """Why much of the step has no owner, where that can be told."""
    if facts["owned_share"] >= 1 - _LITTLE:
        return None
    if timed.mode == "whole":
        return "the script was measured whole: its start-up and its end belong to no model"
    if not any(number > 0 for number in own.index):
        return (
            "no torch.nn.Module was called in these steps: the work of functions stands at "
            f"{STEP_PARTS[OUTSIDE]}, and by name in the operators, lines and Python functions"
        )
    first = facts["unowned"][0]["path"] if facts["unowned"] else None
    if first == STEP_PARTS[OUTSIDE]:
        return (
            "operators between the calls of modules, or after the last backward pass of a step, "
            "belong to none of them; the table of lines says where the script calls them"
        )
    if first == STEP_PARTS[UNATTRIBUTED]:
        return (
            "for this time nothing was seen that says whose it is: the script's own Python "
            "between calls, and what other threads do; the Python functions and lines show it"
        )
    return None
