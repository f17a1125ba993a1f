"""The tables of operators, kernels, launches, gaps and named ranges."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import pandas as pd

from profstack.analysis.flops import Counted
from profstack.storage.reader import (
    NO_SLICES,
    Recorded,
    Selection,
    nullable,
    ratio,
    records,
    sums,
    whole,
)
from profstack.storage.schema.report import LaunchMeans
from profstack.storage.schema.rows import (
    CLEAN_SLICES,
    OTHER_SLICES,
    GapRow,
    KernelRow,
    LaunchRow,
    OperatorRow,
    RangeRow,
    RegionRow,
)
from profstack.storage.vocabulary import OWN_REGION


def operators(
    recorded: Recorded,
    timed: Selection | None,
    clean_s: float | None,
    shaped: Counted | None,
) -> list[OperatorRow]:
    """Rows of `operators`, the longest self time first.

    `shaped` is a counter that knows operators, but not their shapes: if an operator ran with
    several in one module, the count follows from the shapes of a matrix product, else it is null.
    """
    timed = timed or NO_SLICES
    frame = recorded.rows("operators", timed)
    keys = ["name", "shapes", "module_id"]
    columns = ("calls", "self_s", "total_s", "device_s", "moved_bytes")
    # A sum over calls of which some have no figure is unknown.
    lacking = frame[frame["moved_bytes"].isna()]
    unknown = {key for key, _ in sums(lacking, keys, ["calls"])}
    found = list(sums(frame, keys, columns, largest="self_s"))
    variants = Counter((name, module) for (name, _, module), _ in found)
    rows: list[OperatorRow] = []
    for key, totals in found:
        name, shapes, module = key
        place = str(name), whole(module)
        flop = shaped.by_place.get(place) if shaped is not None else None
        calls = timed.per_step(totals["calls"])
        if flop is not None and variants[name, module] > 1:
            flop = _product_flop(place[0], shapes, calls)
        rows.append(
            {
                "name": name,
                "shapes": shapes,
                "calls": calls,
                "self_s": timed.per_step(totals["self_s"]),
                "total_s": timed.per_step(totals["total_s"]),
                "device_s": timed.per_step(totals["device_s"]),
                "calibrated_s": timed.calibrated(totals["self_s"], clean_s),
                "flop": flop,
                "moved_bytes": timed.per_step(None if key in unknown else totals["moved_bytes"]),
                "module": recorded.module_path(module),
            }
        )
    return rows


# The two inputs whose shapes are multiplied, the last two dimensions of each.
_PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
}


def _product_flop(name: str, shapes: str | None, calls: float | None) -> float | None:
    """Return operations per step of a matrix product from its shapes; None for any other."""
    if name not in _PRODUCTS or calls is None or shapes is None:
        return None
    try:
        inputs = json.loads(shapes)
        left, right = (inputs[place] for place in _PRODUCTS[name])
        return float(2 * prod(left) * right[-1]) * calls
    except (ValueError, LookupError, TypeError):
        return None


def kernels(recorded: Recorded, timed: Selection | None) -> list[KernelRow]:
    """Rows of `kernels`, the longest device time first."""
    timed = timed or NO_SLICES
    keys = ["name", "device", "stream", "module_id", "operator"]
    frame = recorded.rows("kernels", timed)
    return [
        {
            "name": name,
            "calls": timed.per_step(totals["calls"]),
            "device_s": timed.per_step(totals["device_s"]),
            "device": device,
            "stream": stream,
            "module": recorded.module_path(module),
            "operator": operator,
        }
        for (name, device, stream, module, operator), totals in sums(
            frame, keys, ("calls", "device_s"), largest="device_s"
        )
    ]


# --- Launches, and times in which a device had nothing to do --------------------------------------

# Steps that have a row of their own.
MOST_STEPS = 100


def launches(recorded: Recorded, timed: Selection | None) -> list[LaunchRow]:
    """Rows of `launches`: the first steps of the torch layer's slices, per device."""
    frame = recorded.rows("launches", timed).sort_values(["slice", "step", "device"], kind="stable")
    first = recorded.slices.set_index("slice")["first_step"]
    return [
        {
            "step": int(first[row["slice"]]) + int(row["step"]),
            "device": row["device"],
            "operators": row["operators"],
            "outermost_operators": row["outermost"],
            "operator_s": ratio(row["operators_s"], row["operators"]),
            "kernels": whole(row["kernels"]),
            "launches": whole(row["launches"]),
            "launch_s": ratio(row["launches_s"], row["launches"]),
            "launches_total_s": row["launches_s"],
            "launched_by": row["launched_by"],
            "device_busy_s": row["busy_s"],
            "device_idle_s": row["idle_s"],
        }
        for row in records(frame.head(MOST_STEPS))
    ]


def launch_means(recorded: Recorded, timed: Selection | None) -> LaunchMeans:
    """Return means per step over all steps of the torch layer; of kernels over all devices."""
    frame = recorded.rows("launches", timed)
    # The host's figures are the same in the rows of all devices.
    host = frame.drop_duplicates(["slice", "step"])
    device = frame[["kernels", "launches", "launches_s"]].sum(min_count=1)
    kernels, began, launches_s = (nullable(device[name]) for name in device.index)
    count = len(host)
    operators = float(host["operators"].sum())
    reason = None
    if not count:
        reason = "the torch layer has no slice with whole steps"
    elif kernels is None:
        reason = "no kernel was recorded: operators computed on the host itself"
    return {
        "steps": count,
        "operators": ratio(operators, count),
        "outermost_operators": ratio(float(host["outermost"].sum()), count),
        "operator_s": ratio(float(host["operators_s"].sum()), operators),
        "kernels": ratio(kernels, count),
        "launches": ratio(began, count),
        "launches_total_s": ratio(launches_s, count),
        "launch_s": ratio(launches_s, began),
        "reason": reason,
    }


def gaps(recorded: Recorded, timed: Selection | None) -> list[GapRow]:
    """Rows of `gaps`, the longest time first; counts and totals per step."""
    timed = timed or NO_SLICES
    rows: list[GapRow] = []
    for (device, cause), some in recorded.rows("gaps", timed).groupby(["device", "cause"]):
        longest = some.iloc[int(some["longest_s"].argmax())]
        rows.append(
            {
                "device": str(device),
                "cause": str(cause),
                "count": timed.per_step(some["count"].sum()),
                "total_s": timed.per_step(some["total_s"].sum()),
                "longest_s": float(longest["longest_s"]),
                "after": _place(recorded, longest, "after"),
                "before": _place(recorded, longest, "before"),
            }
        )
    return sorted(rows, key=lambda row: -(row["total_s"] or 0.0))


def _place(recorded: Recorded, gap: pd.Series[Any], side: str) -> str | None:
    """Return the operator on one side of a gap, and the module that called it, in words."""
    operator = nullable(gap[f"{side}_operator"])
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


@dataclass(frozen=True)
class _Stay:
    """Entries into a region and its time, with its threads and slices."""

    calls: float | None
    wall_s: float | None
    threads: str | None
    measured_in: str = ""


def regions(recorded: Recorded, torch: Selection | None) -> list[RegionRow]:
    """Rows of `regions`, one per source and path, the longest first.

    Times are those of the clean slices; a region that none of them entered has those of the
    other slices it was seen in, which a layer may have slowed. Work, and the times of ranges that
    only a profile sees, are of the slices of `torch`; bytes are of those that watched memory.
    Names with many different numbers are one, with `#` for the number.
    """
    folded = _folded(recorded)
    stays = _stays(recorded, folded)
    torch = torch or NO_SLICES
    profiled = f"the torch layer's slices, {torch.in_words()}"
    detail = recorded.select("torch", (("detail",),)) or NO_SLICES
    kept = {
        key: detail.per_step(totals["host_net_bytes"])
        for key, totals in sums(_by_path(recorded, "region_work", detail, folded), _KEYS, _WORK)
    }
    work = dict(sums(_by_path(recorded, "region_work", torch, folded), _KEYS, _WORK))
    rows: list[RegionRow] = []
    for key in dict.fromkeys((*stays, *work)):
        source, path = key
        totals = work.get(key, {})
        stay = stays.get(key) or _Stay(
            torch.per_step(totals.get("calls")), torch.per_step(totals.get("wall_s")), _STEPS_OWN
        )
        seen = [stay.measured_in] if key in stays else []
        if key in work:
            # Regions of profstack's have times of steps that no layer slowed.
            own = source == OWN_REGION
            seen.append(f"what was done on the steps' own thread: {profiled}" if own else profiled)
        rows.append(
            {
                "path": path,
                "source": source,
                "calls": stay.calls,
                "wall_s": stay.wall_s,
                "operator_s": torch.per_step(totals.get("operator_s")),
                "device_s": torch.per_step(totals.get("device_s")),
                "flop": torch.per_step(totals.get("flop")),
                "host_net_bytes": kept.get(key),
                "threads": stay.threads,
                "measured_in": "; ".join(seen),
            }
        )
    return sorted(rows, key=lambda row: -(row["wall_s"] or 0.0))


_KEYS = ["source", "path"]


def _stays(recorded: Recorded, folded: Mapping[str, str]) -> dict[Key, _Stay]:
    """Time regions by the script's own clock, in the best slices that entered them."""
    slices = recorded.slices
    # Regions are not recorded before the step rule is known.
    slices = slices[(slices["kind"] != "startup") & (slices["mode"] != "discovery")]
    clean = slices["kind"] == "clean"
    found = {}
    for chosen, words in ((slices[~clean], OTHER_SLICES), (slices[clean], CLEAN_SLICES)):
        # Two layers that shared a slice have its steps once.
        once = chosen.drop_duplicates("first_step")
        steps = int(once["steps"].sum())
        selection = Selection(chosen["slice"].tolist(), None, steps, float(once["wall_s"].sum()))
        frame = _by_path(recorded, "region_times", selection, folded)
        for (source, path), some in frame.groupby(_KEYS):
            found[str(source), str(path)] = _Stay(
                selection.per_step(some["calls"].sum()),
                selection.per_step(some["wall_s"].sum()),
                _threads(some),
                words,
            )
    return found


def _threads(rows: pd.DataFrame) -> str | None:
    """Name the thread that makes the steps, and how many others at most in one slice."""
    if rows["threads"].isna().any():
        return None
    others = int((rows["threads"] - rows["on_steps_thread"]).max())
    words = [_STEPS_OWN] if rows["on_steps_thread"].any() else []
    if others:
        words.append("1 other" if others == 1 else f"{others} others")
    return " and ".join(words)


def _by_path(
    recorded: Recorded, table: str, chosen: Selection, folded: Mapping[str, str]
) -> pd.DataFrame:
    """Return the rows of a table in the chosen slices, under the folded paths."""
    rows = recorded.rows(table, chosen)
    named: pd.DataFrame = rows.assign(
        path=rows["path"].map(folded), source=rows["source"].fillna(OWN_REGION)
    )
    return named


def _folded(recorded: Recorded) -> dict[str, str]:
    """Map every path to its name in the report: very many numbers in one name become `#`.

    `step 17` is one of many; `layer 3` is one of twelve, and keeps its name.
    """
    paths = {
        str(path)
        for name in ("region_times", "region_work")
        for path in recorded.frames[name]["path"]
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


def ranges(recorded: Recorded, selection: Selection | None) -> list[RangeRow]:
    """Rows of `ranges`: those emitted most first, kind by kind."""
    selection = selection or NO_SLICES
    frame = recorded.rows("ranges", selection)
    rows: list[RangeRow] = [
        {
            "kind": kind,
            "name": name,
            "calls": selection.per_step(totals["calls"]),
            "emit_s": selection.per_step(totals["emit_s"]),
        }
        for (kind, name), totals in sums(frame, ["kind", "name"], ("calls", "emit_s"))
    ]
    places = {kind: place for place, kind in enumerate(_KINDS)}
    return sorted(rows, key=lambda row: (places.get(row["kind"], 9), -(row["calls"] or 0.0)))
