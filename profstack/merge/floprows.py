"""Rows of the table `flops`: one per counter, with what it leaves out and how it differs.

A counter without figures says why, where the run was to count at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profstack.flops.copies import COUNTERS as COPIED
from profstack.flops.flopsprofiler_table import KNOWN_MISSES
from profstack.merge.disagreements import differences
from profstack.merge.flops import (
    BACKWARD,
    COUNTERS,
    FORWARD,
    FUNCTIONS,
    OTHER_TOOLS,
    SHAPES,
    Counted,
    macs,
    whole,
)
from profstack.merge.modules import module_paths
from profstack.merge.recorded import Recorded, Selection, nullable


def flop_rows(
    recorded: Recorded, counters: Mapping[str, Counted], timed: Selection | None
) -> list[dict[str, Any]]:
    """Rows of `flops`: one per counter, with the operators it has no formula for.

    A counter without figures says why, where the run was to count at all.
    """
    if not counters and "flops" not in recorded.frames["layers"]["name"].tolist():
        return []
    seen = _operators_seen(recorded, timed)
    apart = differences(counters, module_paths(recorded))
    return [
        _flop_row(counters[counter], seen) | {"difference": apart.get(counter)}
        if counter in counters
        else {"counter": counter, "note": _why_none(recorded, counter)}
        for counter in COUNTERS
        # Of the tools that nobody needs, those that were there.
        if counter in counters or counter not in COPIED or _told_of(recorded, counter)
    ]


def _flop_row(one: Counted, seen: Mapping[str, _Seen]) -> dict[str, Any]:
    forward = one.total(FORWARD)
    return {
        "counter": one.counter,
        "forward_flop": whole(forward),
        "backward_flop": whole(one.total(BACKWARD)),
        "causal_forward_flop": whole(one.causal_total(FORWARD)),
        "causal_backward_flop": whole(one.causal_total(BACKWARD)),
        "forward_mac": whole(macs(forward)) if one.multiply_adds else None,
        "uncounted": _uncounted(one, seen),
    }


def _why_none(recorded: Recorded, counter: str) -> str:
    """Why a counter has no rows: what its layer noted of it, or what became of the layer."""
    layer = "torch" if counter == SHAPES else "flops"
    layers = recorded.frames["layers"]
    row = layers[layers["name"] == layer]
    if not len(row):
        return f"the layer {layer} was not asked for"
    told = _told_of(recorded, counter)
    reason = nullable(row["reason"].iloc[0])
    if layer == "flops" and (told or reason is not None):
        return str(told[0] if told else reason).removeprefix("flops: ")
    if counter == SHAPES:
        return "no slice of the torch layer held a counted operator with its shapes"
    return "its slice held nothing that it counts, or the run ended before its turn"


def _told_of(recorded: Recorded, counter: str) -> list[str]:
    """What the layer flops noted of a counter: by name of another tool, of its own without any."""
    notes = recorded.frames["notes"]
    texts = notes[notes["layer"] == "flops"]["text"].astype(str).tolist()
    wanted = counter if counter in OTHER_TOOLS else None
    return [text for text in texts if _tool_named(text) == wanted]


def _tool_named(text: str) -> str | None:
    return next((tool for tool in OTHER_TOOLS if tool in text), None)


@dataclass(frozen=True)
class _Seen:
    """What the torch slices saw of one operator: calls per step, and its share of the step."""

    calls: float
    time_share: float


def _operators_seen(recorded: Recorded, timed: Selection | None) -> dict[str, _Seen]:
    """Every operator of the torch slices; its time is with what it calls, as it has no count."""
    if timed is None or not timed.wall_s:
        return {}
    summed = recorded.rows("operators", timed).groupby("name")[["calls", "total_s"]].sum()
    rows = zip(summed.index, summed.to_numpy(float).tolist(), strict=True)
    return {
        str(name): _Seen(timed.per_step(calls) or 0.0, total_s / timed.wall_s)
        for name, (calls, total_s) in rows
    }


def _uncounted(one: Counted, seen: Mapping[str, _Seen]) -> list[dict[str, Any]]:
    """The operators without a formula, those with the most time first."""
    rows = []
    for name, calls in one.uncounted.items():
        known = seen.get(name) or seen.get(f"aten::{name}")
        share = known.time_share if known is not None else None
        rows.append({"operator": name, "calls": calls, "time_share": share})
    if one.counter == FUNCTIONS:
        rows += [
            {"operator": name, "calls": seen[name].calls, "time_share": seen[name].time_share}
            | {"why": why}
            for name, why in KNOWN_MISSES.items()
            if name in seen
        ]
    return sorted(rows, key=lambda row: (-(row["time_share"] or 0.0), str(row["operator"])))
