"""Memory that grows with every step: a leak, or a cache without a bound.

The resident set, and the bytes in live tensors where there is a device, are followed over the
steps that nothing observed. What is told has grown in part after part of them, and by more than
what profstack itself writes down meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profstack.findings import readings
from profstack.findings.holders import Holder, allocators, keepers, seen_growing
from profstack.findings.made import finding
from profstack.findings.trend import Group, Trend, trend
from profstack.merge.recorded import Recorded
from profstack.units import format_bytes, format_count, format_seconds

SLUG = "memory-growth"
_MIB = 1 << 20
# Growth in all that is worth a word, beyond what profstack itself may have taken.
_FEWEST_RESIDENT = 2 * _MIB
_FEWEST_ON_DEVICE = _MIB // 4
# The log of steps holds so many of them before it writes them, and each takes as much.
_STEPS_HELD, _BYTES_PER_STEP = 4096, 400
# Memory that would be gone within a day is urgent.
_URGENT_S = 86_400.0
_GIB = 1 << 30


def memory_growth(recorded: Recorded, report: dict[str, Any]) -> list[dict[str, Any]]:
    """A finding for the host's memory and one for the device's, if they grow."""
    found = []
    for source, groups, least in (
        ("resident set", readings.resident(recorded), _FEWEST_RESIDENT + _own_bytes(recorded)),
        ("live tensors on the device", readings.on_device(recorded), _FEWEST_ON_DEVICE),
    ):
        grown = _growing(groups, least)
        if grown is not None:
            found.append(_finding(recorded, report, source, grown))
    return found


def _own_bytes(recorded: Recorded) -> float:
    """What the watch and the log of steps may have come to hold meanwhile."""
    layers = recorded.frames["layers"]
    held = layers.loc[layers["name"] == "watch", "memory_bytes"].sum()
    steps = readings.covered(readings.resident(recorded))
    return float(held) + min(steps, _STEPS_HELD) * _BYTES_PER_STEP


def _growing(groups: Sequence[Group], least: float) -> Trend | None:
    """The trend of what grows step by step, by more than `least` in all; None where it does not."""
    found = trend(groups)
    if found is None or not found.persistent or found.low <= 0:
        return None
    return found if found.low * found.steps > least and found.total > least else None


def _finding(
    recorded: Recorded, report: dict[str, Any], source: str, grown: Trend
) -> dict[str, Any]:
    on_device = source != "resident set"
    held = allocators(recorded, grown.slope, on_device=on_device)
    watched = [] if on_device else seen_growing(recorded, grown.slope)
    kept = keepers(report)
    # Where its memory was asked for is measured; what keeps it is read from the text of the lines.
    place = next(iter([*held[:1], *watched[:1], *kept[:1]]), None)
    step_s = (report.get("benchmark") or {}).get("median_s")
    return finding(
        SLUG,
        f"Memory grows by {format_bytes(grown.slope)} with every step ({source})",
        severity="high" if _is_urgent(report, grown, step_s, on_device=on_device) else "medium",
        gain_reason="it costs memory, not time",
        file=place.file if place else None,
        line=place.line if place else None,
        layers=[*("memory" for _ in held), *("watch" for _ in watched)],
        evidence=[
            {
                "growth_per_step_bytes": grown.slope,
                "ci95_low_bytes": grown.low,
                "ci95_high_bytes": _finite(grown.high),
                "steps": grown.steps,
                "source": source,
                "link": "memory/memory",
            },
            *(_row("taken_less_given_back_per_step_bytes", holder) for holder in held),
            *(_row("grown_under_the_watch_per_step_bytes", each) for each in watched),
            *(_row("keeps_what_it_is_given", holder) for holder in kept),
        ],
        advice=_advice(grown, step_s, held, watched, kept),
    )


def _finite(value: float) -> float | None:
    return value if value - value == 0 else None


def _row(what: str, holder: Holder) -> dict[str, Any]:
    place = {
        "file": holder.file,
        "line": holder.line,
        "text": holder.source,
        "link": f"source/{holder.file}:{holder.line}",
    }
    if holder.bytes_per_step is None:
        return {what: True, **place}
    return {what: holder.bytes_per_step, "steps": holder.steps, **place}


def _is_urgent(
    report: dict[str, Any], grown: Trend, step_s: float | None, *, on_device: bool
) -> bool:
    """Whether the machine's memory would be taken up within a day."""
    environment = report.get("environment") or {}
    sizes = [environment.get(name) for name in ("memory_bytes", "memory_limit_bytes")]
    known = [float(size) for size in sizes if size]
    if on_device or step_s is None or not known:
        return False
    return min(known) / grown.slope * step_s < _URGENT_S


def _advice(
    grown: Trend,
    step_s: float | None,
    held: Sequence[Holder],
    watched: Sequence[Holder],
    kept: Sequence[Holder],
) -> str:
    """What it comes to, where to look, and what such growth commonly is."""
    steps = _GIB / grown.slope
    until = f" ({format_seconds(steps * step_s)})" if step_s else ""
    told = [f"At this rate there is 1 GiB more after {format_count(steps)} steps{until}."]
    if held:
        told.append(f"About as much is taken, and not given back there, at {held[0].place}.")
    elif watched:
        told.append(f"The watch saw about as much growth at {watched[0].place}.")
    if kept:
        places = " and ".join(holder.place for holder in kept)
        told.append(f"What is run with every step and, by its text, keeps what it gets: {places}.")
    told.append(
        "Commonly it is a list or a running sum of losses or outputs, each of which keeps its "
        "whole graph and the tensors saved for backward: keep loss.item() or x.detach() instead. "
        "Else bound the cache or the list, or empty it where an epoch ends."
    )
    return " ".join(told)
