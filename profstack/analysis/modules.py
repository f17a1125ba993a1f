"""The table of modules, and how much of a step they own."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from profstack.analysis.flops import BACKWARD, FORWARD, Counted, macs
from profstack.analysis.memory import Bytes
from profstack.storage.reader import NO_SLICES, Recorded, Selection, records, sums, whole
from profstack.storage.schema.report import Attribution, UnownedRow
from profstack.storage.schema.rows import ModuleRow, OperatorRow
from profstack.storage.vocabulary import OUTSIDE, STEP_PARTS, UNATTRIBUTED, UNOWNED, WAIT

TIMED = (("timed",), ("detail",), ("shared",), ("whole",))
_SUMS = (
    *("calls", "forward_s", "forward_self_s", "backward_s", "backward_self_s"),
    *("recomputed_s", "forward_device_s", "backward_device_s"),
)
# Sums of the same times in another order differ by less than this share.
_ROUNDING = 1e-6


class _ModuleInfo(NamedTuple):
    """Facts of a module, or of a part of the step, that need no layer."""

    path: str
    type: str
    parent: int | None = None
    label: str | None = None
    instance: int | None = None
    aliases: Sequence[str] = ()
    parameters: int | None = None

    @property
    def is_part(self) -> bool:
        """Whether it is a part of the step outside modules."""
        return self.path.startswith("(")


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
    frame = recorded.rows("module_times", timed)
    times = {int(number): totals for (number,), totals in sums(frame, ["module_id"], _SUMS)}
    counted = {number for number, _ in record.modules} if record is not None else set()
    known = _module_infos(recorded)
    order = [(number, known[number]) for number in _tree_order(known, {*times, *memory, *counted})]
    for number, name in STEP_PARTS.items():
        if number in times or number in counted:
            # Of a script measured whole, the time before its first model is the start-up.
            is_startup = timed.mode == "whole" and number == WAIT
            path = "(start-up)" if is_startup else name
            order.append((number, _ModuleInfo(path, "part of the step")))
    inside: dict[str, float] = defaultdict(float)
    for each in operators:
        if each["module"] is not None and each["self_s"] is not None:
            inside[each["module"]] += each["self_s"]
    depths: dict[int | None, int] = {None: -1}
    rows = []
    for number, info in order:
        depths[number] = depths[info.parent] + 1
        bytes_of = {} if info.is_part else memory.get(number, {})
        row = _module_row(info, depths[number], times.get(number, {}), timed, bytes_of)
        row["calibrated_s"] = timed.calibrated(_both(times.get(number, {}), ""), clean_s)
        if not info.is_part:
            row["python_s"] = _outside(row["self_s"], inside[info.path])
        if record is not None:
            _add_operations(row, number, record)
        rows.append(row)
    return rows


def _module_infos(recorded: Recorded) -> dict[int, _ModuleInfo]:
    """Return the modules of the recording by number."""
    return {
        int(row["module_id"]): _ModuleInfo(
            str(row["path"]),
            str(row["type"]),
            whole(row["parent_id"]),
            row["label"],
            whole(row["instance"]),
            json.loads(row["aliases"] or "[]"),
            whole(row["parameters"]),
        )
        for row in records(recorded.frames["modules"])
    }


def _module_row(
    info: _ModuleInfo,
    depth: int,
    totals: Mapping[str, float],
    timed: Selection,
    bytes_of: Bytes,
) -> ModuleRow:
    """Return a row without operations, Python time and calibrated time."""
    return {
        "path": info.path,
        "label": info.label,
        "type": info.type,
        "instance": info.instance,
        "depth": depth,
        "aliases": list(info.aliases),
        "calls": timed.per_step(totals.get("calls")),
        "parameters": info.parameters,
        "forward_s": timed.per_step(totals.get("forward_s")),
        "backward_s": timed.per_step(totals.get("backward_s")),
        "recomputed_s": timed.per_step(totals.get("recomputed_s")),
        "self_s": timed.per_step(_both(totals, "self_")),
        "python_s": None,
        "forward_device_s": timed.per_step(totals.get("forward_device_s")),
        "backward_device_s": timed.per_step(totals.get("backward_device_s")),
        "calibrated_s": None,
        "forward_flop": None,
        "backward_flop": None,
        "forward_mac": None,
        "flop_per_s": None,
        "host_net_bytes": bytes_of.get("host_net_bytes"),
        "host_peak_bytes": bytes_of.get("host_peak_bytes"),
        "device_net_bytes": bytes_of.get("device_net_bytes"),
        "device_peak_bytes": bytes_of.get("device_peak_bytes"),
    }


def _both(totals: Mapping[str, float], kind: str) -> float | None:
    """Return forward and backward time together."""
    return totals[f"forward_{kind}s"] + totals[f"backward_{kind}s"] if totals else None


def _outside(own_s: float | None, operators_s: float) -> float | None:
    """Return the own time outside operators; None if those of other threads took longer."""
    if own_s is None or own_s - operators_s < -_ROUNDING * own_s:
        return None
    return max(own_s - operators_s, 0.0)


def _add_operations(row: ModuleRow, number: int, record: Counted) -> None:
    """Add the operations of a row, and their rate where its time is of the same work."""
    forward = record.modules.get((number, FORWARD))
    backward = record.modules.get((number, BACKWARD))
    row["forward_flop"], row["backward_flop"] = whole(forward), whole(backward)
    row["forward_mac"] = whole(macs(forward)) if record.multiply_adds else None
    # Without a count of the backward pass the time is of more work than was counted.
    is_half = record.total(BACKWARD) is None and bool(row["backward_s"])
    seconds = row["calibrated_s"] or 0.0
    # Work outside modules may have been done by the loss or the optimizer too.
    if forward is not None and seconds > 0 and not is_half and number != OUTSIDE:
        row["flop_per_s"] = (forward + (backward or 0.0)) / seconds


def _tree_order(known: Mapping[int, _ModuleInfo], seen: set[int]) -> list[int]:
    """List modules in pre-order: those that were seen, and those around them."""
    wanted: set[int] = set()
    for number in seen & set(known):
        above: int | None = number
        while above is not None and above not in wanted:
            wanted.add(above)
            above = known[above].parent
    children: dict[int | None, list[int]] = {}
    for number in sorted(wanted):
        children.setdefault(known[number].parent, []).append(number)
    order: list[int] = []
    stack = list(reversed(children.get(None, [])))
    while stack:
        number = stack.pop()
        order.append(number)
        stack.extend(reversed(children.get(number, [])))
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
    facts: Attribution = {
        "step_s": None,
        "rows_s": None,
        "owned_s": None,
        "owned_share": None,
        "calibrated_owned_s": None,
        "clean_median_s": clean_s,
        "backward_s": None,
        "backward_attributed_share": None,
        "memory_peak_bytes": memory[0],
        "memory_attributed_share": memory[1],
        "negative_rows": None,
        "unowned": [],
        "reason": "the torch layer has no slice from which times of modules can be told",
    }
    rows = recorded.rows("module_times", timed)
    if timed is None or not len(rows) or not timed.steps or not timed.wall_s:
        return facts
    own = rows.groupby("module_id")[["forward_self_s", "backward_self_s"]].sum()
    both = own["forward_self_s"] + own["backward_self_s"]
    backward = own["backward_self_s"]
    owned = float(both.drop(list(UNOWNED), errors="ignore").sum())
    if timed.mode == "whole":
        # The time before the first model of a script measured whole is its start-up.
        owned -= float(both.get(WAIT, 0.0))
    unowned: list[UnownedRow] = [
        {"path": STEP_PARTS[number], "self_s": timed.per_step(time), "share": time / timed.wall_s}
        for number in UNOWNED
        if (time := float(both.get(number, 0.0))) > 0
    ]
    unowned.sort(key=lambda row: -(row["share"] or 0.0))
    facts.update(
        {
            "step_s": timed.per_step(timed.wall_s),
            "rows_s": timed.per_step(float(both.sum())),
            "owned_s": timed.per_step(owned),
            "owned_share": owned / timed.wall_s,
            "calibrated_owned_s": timed.calibrated(owned, clean_s),
            "backward_s": timed.per_step(float(backward.sum())),
            "negative_rows": int((own < -_ROUNDING_S).any(axis=1).sum()),
            "unowned": unowned,
            "reason": None,
        }
    )
    if backward.sum() > 0:
        attributed = backward.drop(list(UNOWNED), errors="ignore").sum()
        facts["backward_attributed_share"] = float(attributed / backward.sum())
    if owned / timed.wall_s < 1 - _LITTLE:
        facts["reason"] = _why_unowned(unowned, own, timed)
    return facts


def _why_unowned(unowned: Sequence[UnownedRow], own: pd.DataFrame, timed: Selection) -> str | None:
    """Say why much of the step has no owner, where that can be told."""
    if timed.mode == "whole":
        return "the script was measured whole: its start-up and its end belong to no model"
    if not any(number > 0 for number in own.index):
        return (
            "no torch.nn.Module was called in these steps: the work of functions stands at "
            f"{STEP_PARTS[OUTSIDE]}, and by name in the operators, lines and Python functions"
        )
    first = unowned[0]["path"] if unowned else None
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
