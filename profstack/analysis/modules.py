"""The table of modules, and how much of a step they own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Any, cast

from profstack.analysis.flops import BACKWARD, FORWARD, Counted, macs
from profstack.analysis.memory import Bytes
from profstack.storage.reader import NO_SLICES, Recorded, Selection, known_total, ratio, sums, whole
from profstack.storage.schema.report import Attribution, UnownedRow, table_rows
from profstack.storage.schema.rows import ModuleRow, OperatorRow
from profstack.storage.untrusted import json_cell
from profstack.storage.vocabulary import OUTSIDE, STEP_PARTS, UNATTRIBUTED, UNOWNED, WAIT

TIMED = (("timed",), ("detail",), ("shared",), ("whole",))
_SUMS = (
    *("calls", "forward_s", "forward_self_s", "backward_s", "backward_self_s"),
    *("recomputed_s", "forward_device_s", "backward_device_s"),
)
# Sums of the same times in another order differ by less than this share.
_ROUNDING = 1e-6


def modules(
    recorded: Recorded,
    timed: Selection | None,
    clean_s: float | None,
    memory: Mapping[int, Bytes],
    record: Counted | None,
    operators: Sequence[OperatorRow],
) -> list[ModuleRow]:
    """Rows of `modules`: the tree in order, then the parts of a step outside any module.

    `memory` holds the bytes of modules; `record` is the counter whose operations are in the rows.
    A module that only one of the layers saw has a row all the same. `python_s` is the part of a
    module's own time in which none of its operators ran: both times come from the same slice.
    """
    timed = timed or NO_SLICES
    rows_of_slices = recorded.rows("module_times", timed)
    times = {number: totals for (number,), totals in sums(rows_of_slices, ["module_id"], _SUMS)}
    counted = {number for number, _ in record.modules} if record is not None else set()
    known = {row["module_id"]: row for row in recorded.table("modules")}
    parents = recorded.module_parents
    seen = {*times, *memory, *counted}
    order = [(number, known[number]) for number in _tree_order(parents, seen)]
    for number, name in STEP_PARTS.items():
        if number in times or number in counted:
            # Of a script measured whole, the time before its first model is the start-up.
            path = "(start-up)" if timed.mode == "whole" and number == WAIT else name
            order.append((number, {"path": path, "type": "part of the step"}))
    inside: dict[str, float] = defaultdict(float)
    for each in operators:
        if each["module"] is not None and each["self_s"] is not None:
            inside[each["module"]] += each["self_s"]
    depths: dict[int | None, int] = {None: -1}
    rows = []
    for number, info in order:
        depths[number] = depths[parents.get(number)] + 1
        totals = times.get(number, {})
        row: dict[str, Any] = {
            **info,
            "depth": depths[number],
            "aliases": json_cell(info.get("aliases"), list[str]),
            **timed.figures(totals),
            "self_s": timed.per_step(_both(totals, "self_")),
            "calibrated_s": timed.calibrated(_both(totals, ""), clean_s),
        }
        if number in known:
            row.update(memory.get(number, {}))
            row["python_s"] = _outside(row["self_s"], inside[row["path"]])
        if record is not None:
            _add_operations(row, number, record)
        rows.append(row)
    return table_rows("modules", rows)


def _both(totals: Mapping[str, float | None], kind: str) -> float | None:
    """Return forward and backward time together."""
    return known_total(totals.get(f"{side}_{kind}s") for side in ("forward", "backward"))


def _outside(own_s: float | None, operators_s: float) -> float | None:
    """Return the own time outside operators; None if those of other threads took longer."""
    if own_s is None or own_s - operators_s < -_ROUNDING * own_s:
        return None
    return max(own_s - operators_s, 0.0)


def _add_operations(row: dict[str, Any], number: int, record: Counted) -> None:
    """Add the operations of a row, and their rate where its time is of the same work."""
    forward = record.modules.get((number, FORWARD))
    backward = record.modules.get((number, BACKWARD))
    row["forward_flop"], row["backward_flop"] = whole(forward), whole(backward)
    row["forward_mac"] = whole(macs(forward)) if record.multiply_adds else None
    # Without a count of the backward pass the time is of more work than was counted.
    is_half = record.total(BACKWARD) is None and bool(row.get("backward_s"))
    seconds = row["calibrated_s"] or 0.0
    # Work outside modules may have been done by the loss or the optimizer too.
    if forward is not None and seconds > 0 and not is_half and number != OUTSIDE:
        row["flop_per_s"] = (forward + (backward or 0.0)) / seconds


def _tree_order(parents: Mapping[int, int | None], seen: set[int]) -> list[int]:
    """List modules in pre-order: those that were seen, and those around them."""
    wanted: set[int] = set()
    for number in seen & set(parents):
        above: int | None = number
        while above is not None and above not in wanted:
            wanted.add(above)
            above = parents[above]
    children: dict[int | None, list[int]] = defaultdict(list)
    for number in sorted(wanted, reverse=True):
        children[parents[number]].append(number)
    order: list[int] = []
    stack = children[None]
    while stack:
        order.append(stack.pop())
        stack += children[order[-1]]
    return order


# --- How much of a step has an owner --------------------------------------------------------------

# Own times are whole nanoseconds, added up; less below 0 than this is the sum's rounding.
_ROUNDING_S = 1e-12
# Below this share of a step, time without an owner needs no explanation.
_LITTLE = 0.02


def attribution(
    recorded: Recorded,
    timed: Selection | None,
    clean_s: float | None,
    memory: tuple[float | None, float | None],
) -> Attribution:
    """Add up the rows of `modules` per step; null where nothing was measured.

    `memory` are the bytes at the peak and the share of them with an owner. `reason` says why the
    times are null, or where most of the time without an owner is.
    """
    nothing: dict[str, object] = {
        **dict.fromkeys(Attribution.__annotations__),
        "clean_median_s": clean_s,
        "memory_peak_bytes": memory[0],
        "memory_attributed_share": memory[1],
        "unowned": [],
        "reason": "the torch layer has no slice that gives times of modules",
    }
    facts = cast("Attribution", nothing)
    rows = recorded.rows("module_times", timed)
    if timed is None or not rows or not timed.steps or not timed.wall_s:
        return facts
    sides = ("forward_self_s", "backward_self_s")
    own = {
        number: [totals[side] or 0.0 for side in sides]
        for (number,), totals in sums(rows, ["module_id"], sides)
    }
    both = {number: sum(times) for number, times in own.items()}
    backward = {number: times[1] for number, times in own.items()}
    owned, attributed = (
        fsum(time for number, time in times.items() if number not in UNOWNED)
        for times in (both, backward)
    )
    if timed.mode == "whole":
        # The time before the first model of a script measured whole is its start-up.
        owned -= both.get(WAIT, 0.0)
    unowned: list[UnownedRow] = [
        {"path": STEP_PARTS[number], "self_s": timed.per_step(time), "share": time / timed.wall_s}
        for number in UNOWNED
        if (time := both.get(number, 0.0)) > 0
    ]
    unowned.sort(key=lambda row: -(row["share"] or 0.0))
    is_little = owned / timed.wall_s >= 1 - _LITTLE
    facts.update(
        {
            "step_s": timed.per_step(timed.wall_s),
            "rows_s": timed.per_step(fsum(both.values())),
            "owned_s": timed.per_step(owned),
            "owned_share": owned / timed.wall_s,
            "calibrated_owned_s": timed.calibrated(owned, clean_s),
            "backward_s": timed.per_step(fsum(backward.values())),
            "backward_attributed_share": ratio(attributed, max(0.0, fsum(backward.values()))),
            "negative_rows": sum(min(times) < -_ROUNDING_S for times in own.values()),
            "unowned": unowned,
            "reason": None if is_little else _why_unowned(unowned, own, timed),
        }
    )
    return facts


_WHY_UNOWNED = {
    STEP_PARTS[OUTSIDE]: "operators between the calls of modules, or after the last backward pass "
    "of a step, belong to none of them; the table of lines says where the script calls them",
    STEP_PARTS[UNATTRIBUTED]: "for this time nothing was seen that says whose it is: the script's "
    "own Python between calls, and what other threads do; the Python functions and lines show it",
}


def _why_unowned(unowned: Sequence[UnownedRow], own: Iterable[int], timed: Selection) -> str | None:
    """Say why much of the step has no owner, where that can be told."""
    if timed.mode == "whole":
        return "the script was measured whole: its start-up and its end belong to no model"
    if not any(number > 0 for number in own):
        return (
            "no torch.nn.Module was called in these steps: the work of functions stands at "
            f"{STEP_PARTS[OUTSIDE]}, and by name in the operators, lines and Python functions"
        )
    return _WHY_UNOWNED[unowned[0]["path"]] if unowned else None
