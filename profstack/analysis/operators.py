"""The tables of operators, kernels, launches, gaps, collectives and named ranges."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from profstack.analysis.flops import Counted
from profstack.storage.reader import (
    NO_SLICES,
    Recorded,
    Row,
    Selection,
    added,
    grouped,
    in_order,
    known,
    ratio,
)
from profstack.storage.schema import rows as schema
from profstack.storage.schema.report import LaunchMeans, table_rows
from profstack.storage.untrusted import parsed
from profstack.storage.vocabulary import OWN_REGION


def operators(
    recorded: Recorded, timed: Selection | None, clean_s: float | None, shaped: Counted | None
) -> list[schema.OperatorRow]:
    """Rows of `operators`, the longest self time first.

    `shaped` is a counter that knows operators, but not their shapes: if an operator ran with
    several in one module, the count follows from the shapes of a matrix product, else it is null.
    """
    found = recorded.rows("operators", timed)
    keys = ["name", "shapes", "module_id"]
    columns = ("calls", "self_s", "total_s", "device_s", "moved_bytes")
    # A sum over calls of which some have no figure is unknown.
    lacking = (row for row in found if row["moved_bytes"] is None)
    unknown = {(row["name"], row["shapes"], row["module_id"]) for row in lacking}
    rows = list(recorded.step_rows(found, timed, keys, columns, largest="self_s", clean_s=clean_s))
    variants = Counter((row["name"], row["module_id"]) for row in rows)
    for row in rows:
        name, shapes, number = (row[key] for key in keys)
        row["flop"] = shaped.by_place.get((name, number)) if shaped is not None else None
        if row["flop"] is not None and variants[name, number] > 1:
            row["flop"] = _product_flop(name, shapes, row["calls"])
        if (name, shapes, number) in unknown:
            row["moved_bytes"] = None
    return table_rows("operators", rows)


# The two inputs whose shapes are multiplied, the last two dimensions of each.
_PRODUCTS = {
    **dict.fromkeys(("aten::mm", "aten::bmm"), (0, 1)),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm"), (1, 2)),
}


def _product_flop(name: str, shapes: str | None, calls: float | None) -> float | None:
    """Return operations per step of a matrix product from its shapes; None for any other."""
    if name not in _PRODUCTS or calls is None or shapes is None:
        return None
    try:
        inputs = parsed(shapes)
        left, right = (inputs[place] for place in _PRODUCTS[name])
        return float(2 * prod(left) * right[-1]) * calls
    except (ValueError, LookupError, TypeError, OverflowError):
        return None


def kernels(recorded: Recorded, timed: Selection | None) -> list[schema.KernelRow]:
    """Rows of `kernels`, the longest device time first."""
    keys = ["name", "device", "stream", "module_id", "operator"]
    found = recorded.rows("kernels", timed)
    rows = recorded.step_rows(found, timed, keys, ("calls", "device_s"), largest="device_s")
    return table_rows("kernels", rows)


# --- Launches, and times in which a device had nothing to do --------------------------------------

# Steps that have a row of their own.
MOST_STEPS = 100
# Columns that the report calls by other names.
_LAUNCHES = {
    "outermost": "outermost_operators",
    "launches_s": "launches_total_s",
    "busy_s": "device_busy_s",
    "idle_s": "device_idle_s",
}


def launches(recorded: Recorded, timed: Selection | None) -> list[schema.LaunchRow]:
    """Rows of `launches`: the first steps of the torch layer's slices, per device."""
    found = in_order(recorded.rows("launches", timed), "slice", "step", "device")
    first = {row["slice"]: row["first_step"] for row in recorded.slices}
    rows = (
        {
            **row,
            **{new: row[name] for name, new in _LAUNCHES.items()},
            "step": first[row["slice"]] + row["step"],
            "operator_s": ratio(row["operators_s"], row["operators"]),
            "launch_s": ratio(row["launches_s"], row["launches"]),
        }
        for row in found[:MOST_STEPS]
    )
    return table_rows("launches", rows)


def launch_means(recorded: Recorded, timed: Selection | None) -> LaunchMeans:
    """Return means per step over all steps of the torch layer; of kernels over all devices."""
    rows = recorded.rows("launches", timed)
    # The host's figures are the same in the rows of all devices.
    host = [own[0] for own in grouped(rows, "slice", "step").values()]
    kernels, began, launches_s = (
        added(row[name] for row in rows) for name in ("kernels", "launches", "launches_s")
    )
    count, operators = len(host), added(known(host, "operators")) or 0.0
    reason = None
    if not count:
        reason = "the torch layer has no slice with whole steps"
    elif kernels is None:
        reason = "no kernel was recorded: operators computed on the host itself"
    return {
        "steps": count,
        "operators": ratio(operators, count),
        "outermost_operators": ratio(sum(known(host, "outermost")), count),
        "operator_s": ratio(added(known(host, "operators_s")), operators),
        "kernels": ratio(kernels, count),
        "launches": ratio(began, count),
        "launches_total_s": ratio(launches_s, count),
        "launch_s": ratio(launches_s, began),
        "reason": reason,
    }


def gaps(recorded: Recorded, timed: Selection | None) -> list[schema.GapRow]:
    """Rows of `gaps`, the longest time first; counts and totals per step."""
    found = recorded.rows("gaps", timed)
    alike = grouped(found, "device", "cause")
    rows = list(recorded.step_rows(found, timed, ["device", "cause"], ("count", "total_s")))
    for row in rows:
        longest = max(alike[row["device"], row["cause"]], key=lambda gap: gap["longest_s"] or 0.0)
        row["longest_s"] = longest["longest_s"]
        row["after"], row["before"] = (_place(recorded, longest, at) for at in ("after", "before"))
    return table_rows("gaps", sorted(rows, key=lambda row: -(row["total_s"] or 0.0)))


def collectives(recorded: Recorded, timed: Selection | None) -> list[schema.CollectiveRow]:
    """Rows of `collectives`, the longest time first; what other ranks tell is null."""
    found = [{**row, "calls": 1} for row in recorded.rows("collectives", timed)]
    for row in found:
        # Older recordings have only begin and end, in which a microsecond has few digits.
        if row["wall_s"] is None:
            row["wall_s"] = row["ended_s"] - row["started_s"]
    columns = ("calls", "wall_s", "hidden_s")
    rows = list(recorded.step_rows(found, timed, ["name", "bytes"], columns, largest="wall_s"))
    for row in rows:
        row.update(dict.fromkeys(_OF_SEVERAL))
    return table_rows("collectives", rows)


# Columns that a rank alone cannot tell.
_OF_SEVERAL = ("skew_s", "transfer_s", "bytes_per_s", "last_rank", "last_share")


def _place(recorded: Recorded, gap: Row, side: str) -> str | None:
    """Return the operator on one side of a gap, and the module that called it, in words."""
    operator: str | None = gap[f"{side}_operator"]
    path = recorded.module_path(gap[f"{side}_module_id"])
    return f"{operator} in {path}" if operator is not None and path is not None else operator


# -----------------------------------------------------------------------------
# Named ranges: what the script's own regions took and did, and the NVTX ranges emitted.
# -----------------------------------------------------------------------------

# Source and path.
Key = tuple[str, str]
# More names that differ in their numbers alone become one.
MOST_ALIKE = 32
_NUMBER = re.compile(r"\d+")
_WORK = ("calls", "wall_s", "operator_s", "device_s", "flop", "host_net_bytes")
_STEPS_OWN = "the steps' own"


def regions(recorded: Recorded, torch: Selection | None) -> list[schema.RegionRow]:
    """Rows of `regions`, one per source and path, the longest first.

    Times are those of the clean slices; a region that none of them entered has those of the
    other slices it was seen in, which a layer may have slowed. Work, and the times of ranges that
    only a profile sees, are of the slices of `torch`; bytes are of those that watched memory.
    Names with many different numbers are one, with `#` for the number.
    """
    folded = _folded(recorded)
    timed = _timed(recorded, folded)
    torch = torch or NO_SLICES
    profiled = f"the torch layer's slices, {torch.in_words()}"
    # Regions of profstack's have times of steps that no layer slowed.
    own = f"what was done on the steps' own thread: {profiled}"
    detail = recorded.select("torch", (("detail",),)) or NO_SLICES
    work, watched = (
        {
            (row["source"], row["path"]): row
            for row in recorded.step_rows(
                _by_path(recorded, "region_work", chosen, folded), chosen, _KEYS, _WORK
            )
        }
        for chosen in (torch, detail)
    )
    rows = []
    for key in dict.fromkeys((*timed, *work)):
        row = {"threads": _STEPS_OWN, **work.get(key, {}), **timed.get(key, {})}
        row["host_net_bytes"] = watched[key]["host_net_bytes"] if key in watched else None
        seen = [row["measured_in"]] if key in timed else []
        if key in work:
            seen.append(own if row["source"] == OWN_REGION else profiled)
        rows.append({**row, "measured_in": "; ".join(seen)})
    return table_rows("regions", sorted(rows, key=lambda row: -(row["wall_s"] or 0.0)))


_KEYS = ["source", "path"]


def _timed(recorded: Recorded, folded: Mapping[str, str]) -> dict[Key, dict[str, Any]]:
    """Return entries, time and threads of regions by the script's own clock.

    They are of the clean slices, or of the others for a region that no clean one entered.
    """
    # Regions are not recorded before the step rule is known.
    slices = [
        row for row in recorded.slices if row["kind"] != "startup" and row["mode"] != "discovery"
    ]
    found = {}
    for words in (schema.OTHER_SLICES, schema.CLEAN_SLICES):
        is_clean = words == schema.CLEAN_SLICES
        chosen = [row for row in slices if (row["kind"] == "clean") == is_clean]
        # Two layers that shared a slice have its steps once.
        each = [own[0] for own in grouped(chosen, "first_step").values()]
        numbers = [row["slice"] for row in chosen]
        selection = Selection(numbers, None, sum(known(each, "steps")), 0.0)
        rows = _by_path(recorded, "region_times", selection, folded)
        threads = {key: _threads(some) for key, some in grouped(rows, *_KEYS).items()}
        for row in recorded.step_rows(rows, selection, _KEYS, ("calls", "wall_s")):
            key = row["source"], row["path"]
            found[key] = {**row, "threads": threads[key], "measured_in": words}
    return found


def _threads(rows: Sequence[Row]) -> str | None:
    """Name the thread that makes the steps, and how many others at most in one slice."""
    if any(row["threads"] is None for row in rows):
        return None
    others = max(row["threads"] - (row["on_steps_thread"] or 0) for row in rows)
    words = [_STEPS_OWN] if any(row["on_steps_thread"] for row in rows) else []
    if others:
        words.append("1 other" if others == 1 else f"{others} others")
    return " and ".join(words)


def _by_path(
    recorded: Recorded, table: str, chosen: Selection, folded: Mapping[str, str]
) -> list[Row]:
    """Return the rows of a table in the chosen slices, under the folded paths."""
    return [
        {**row, "path": folded[row["path"]], "source": row["source"] or OWN_REGION}
        for row in recorded.rows(table, chosen)
    ]


def _folded(recorded: Recorded) -> dict[str, str]:
    """Map every path to its name in the report: very many numbers in one name become `#`.

    `step 17` is one of many; `layer 3` is one of twelve, and keeps its name.
    """
    paths = {
        row["path"] for name in ("region_times", "region_work") for row in recorded.table(name)
    }
    alike: dict[str, set[str]] = {}
    for path in paths:
        for part in path.split("/"):
            alike.setdefault(_NUMBER.sub("#", part), set()).add(part)
    many = {pattern for pattern, parts in alike.items() if len(parts) > MOST_ALIKE}
    folded = {}
    for path in paths:
        parts = [(part, _NUMBER.sub("#", part)) for part in path.split("/")]
        folded[path] = "/".join(pattern if pattern in many else part for part, pattern in parts)
    return folded


_KINDS = ("step", "forward", "backward", "optimizer", "module", "region")


def ranges(recorded: Recorded, selection: Selection | None) -> list[schema.RangeRow]:
    """Rows of `ranges`: those emitted most first, kind by kind."""
    emitted = recorded.rows("ranges", selection)
    found = recorded.step_rows(emitted, selection, ["kind", "name"], ("calls", "emit_s"))
    rows: list[schema.RangeRow] = table_rows("ranges", found)
    places = {kind: place for place, kind in enumerate(_KINDS)}
    return sorted(rows, key=lambda row: (places.get(row["kind"], 9), -(row["calls"] or 0.0)))
