"""The tables of what steps launch, and of the times in which a device had nothing to do."""

from __future__ import annotations

from typing import Any

from profstack.merge.modules import module_paths
from profstack.merge.recorded import Recorded, Selection, nullable, records

# Steps that have a row of their own.
MOST_STEPS = 100
_MEANS = ("operators", "outermost_operators", "kernels", "launches", "launches_total_s")


def launches(recorded: Recorded, timed: Selection | None) -> list[dict[str, Any]]:
    """Rows of `launches`: the first steps of the torch layer's slices, per device."""
    frame = recorded.rows("launches", timed)
    first = recorded.slices.set_index("slice")["first_step"]
    rows = []
    for row in records(frame.sort_values(["slice", "step", "device"], kind="stable")):
        number = int(first[row["slice"]]) + int(row["step"])
        rows.append(
            {
                "step": number,
                "device": row["device"],
                "operators": row["operators"],
                "outermost_operators": row["outermost"],
                "operator_s": _over(row["operators_s"], row["operators"]),
                "kernels": _whole(row["kernels"]),
                "launches": _whole(row["launches"]),
                "launch_s": _over(row["launches_s"], row["launches"]),
                "launches_total_s": row["launches_s"],
                "launched_by": row["launched_by"],
                "device_busy_s": row["busy_s"],
                "device_idle_s": row["idle_s"],
            }
        )
    return rows[:MOST_STEPS]


def launch_means(recorded: Recorded, timed: Selection | None) -> dict[str, Any]:
    """`launching` of the report: means per step over all steps; of kernels over all devices."""
    frame = recorded.rows("launches", timed)
    steps = frame[["slice", "step"]].drop_duplicates() if len(frame) else frame
    count = len(steps)
    result: dict[str, Any] = dict.fromkeys((*_MEANS, "operator_s", "launch_s"))
    if not count:
        return {**result, "steps": 0, "reason": "the torch layer has no slice with whole steps"}
    # The host's figures are the same in the rows of all devices.
    host = frame.drop_duplicates(["slice", "step"])
    device = frame[["kernels", "launches", "launches_s"]].sum(min_count=1)
    operators = float(host["operators"].sum())
    result.update(
        operators=operators / count,
        outermost_operators=float(host["outermost"].sum()) / count,
        operator_s=_over(float(host["operators_s"].sum()), operators),
        kernels=_over(nullable(device["kernels"]), count),
        launches=_over(nullable(device["launches"]), count),
        launches_total_s=_over(nullable(device["launches_s"]), count),
        launch_s=_over(nullable(device["launches_s"]), nullable(device["launches"])),
    )
    lacks = "no kernel was recorded: operators computed on the host itself"
    return {**result, "steps": count, "reason": lacks if result["kernels"] is None else None}


def gaps(recorded: Recorded, timed: Selection | None) -> list[dict[str, Any]]:
    """Rows of `gaps`, the longest time first; counts and totals per step."""
    if timed is None:
        return []
    paths = module_paths(recorded)
    frame = recorded.rows("gaps", timed)
    rows = []
    for (device, cause), some in frame.groupby(["device", "cause"]):
        longest = some.iloc[int(some["longest_s"].argmax())]
        rows.append(
            {
                "device": device,
                "cause": cause,
                "count": timed.per_step(some["count"].sum()),
                "total_s": timed.per_step(some["total_s"].sum()),
                "longest_s": float(longest["longest_s"]),
                "after": _place(longest["after_operator"], longest["after_module_id"], paths),
                "before": _place(longest["before_operator"], longest["before_module_id"], paths),
            }
        )
    return sorted(rows, key=lambda row: -row["total_s"])


def _place(operator: Any, module: Any, paths: dict[int, str]) -> str | None:
    """An operator and where it was called, for the reader."""
    if nullable(operator) is None:
        return None
    path = paths.get(int(module)) if nullable(module) is not None else None
    return f"{operator} in {path}" if path is not None else str(operator)


def _over(total: float | None, count: float | None) -> float | None:
    return total / count if total is not None and count else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
