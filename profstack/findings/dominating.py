"""One module that takes most of the step, out of proportion to the others.

Own time counts, without children: a container whose child has it all is no finding, the child is.
A module is held against those of its own class: what they take for as much work (floating-point
operations, or where those are not counted bytes moved) is what it should take. It is told where it
has half of the step and three times that. A model that is one big layer is none: its work is as
big as its time. A module that is the only one of its class is told where it has half of the step
and both its share of the operations and of the bytes are below a fifth of that; there is nothing
that says what it should take, so it has no gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from profstack.findings.figures import calibrated, on_accelerator
from profstack.findings.made import Finding, finding, severity_of
from profstack.merge.recorded import Recorded
from profstack.units import format_seconds, format_share

SLUG = "module-dominates"
# Below half of the step there is something else that is as much worth a look.
_SHARE = 0.5
# Modules that are alike differ by the sizes of what they work on, by caches and by noise: by less
# than this. A fair share is what its equals take.
_TIMES_FAIR = 3.0
_FEWEST_EQUALS = 2
# Operations of different kinds run at rates that differ by up to this on one machine.
_OUT_OF_PROPORTION = 5.0
_MOST = 5


@dataclass(frozen=True)
class _Timed:
    """A module with its own time per step as the torch layer saw it, and its work."""

    path: str
    kind: str
    own_s: float
    flop: float | None
    moved_bytes: float | None


def dominating(recorded: Recorded, report: Mapping[str, Any]) -> list[Finding]:
    """The finding, if one module has most of the step."""
    step_s = (report.get("attribution") or {}).get("step_s")
    modules = _modules(report)
    if not step_s or len(modules) < 2:
        return []
    first = max(modules, key=lambda each: each.own_s)
    share = first.own_s / step_s
    if share < _SHARE:
        return []
    equals = [each for each in modules if each.kind == first.kind and each is not first]
    if len(equals) < _FEWEST_EQUALS:
        return _alone(report, first, share)
    fair = _fair(first, equals)
    if fair is None or first.own_s < _TIMES_FAIR * fair:
        return []
    gain_s = calibrated(report, first.own_s - fair)
    return [_among_equals(first, equals, fair, share, gain_s)]


def _modules(report: Mapping[str, Any]) -> list[_Timed]:
    """The modules that ran, with their own time: on the device where there is one."""
    points = (report.get("roofline") or {}).get("points") or ()
    moved = {row["name"]: row["moved_bytes"] for row in points if row["kind"] == "module"}
    rows = [row for row in report["tables"]["modules"] if not row["path"].startswith("(")]
    inside: dict[str, float] = {}
    for row in rows:
        parent = row["path"].rpartition(".")[0]
        inside[parent] = inside.get(parent, 0.0) + _device_s(row)
    device = on_accelerator(report)
    found = []
    for row in rows:
        own = max(0.0, _device_s(row) - inside.get(row["path"], 0.0)) if device else row["self_s"]
        if own:
            flop = _sum(row["forward_flop"], row["backward_flop"])
            path = row["path"]
            found.append(_Timed(path, row["type"], float(own), flop, moved.get(path)))
    return found


def _device_s(row: Mapping[str, Any]) -> float:
    return float(row["forward_device_s"] or 0.0) + float(row["backward_device_s"] or 0.0)


def _sum(*values: float | None) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) if known else None


def _fair(first: _Timed, equals: Sequence[_Timed]) -> float | None:
    """What it would take at the pace of its equals; None where their work is not known."""
    for work in ("flop", "moved_bytes"):
        own = getattr(first, work)
        paces = [each.own_s / each_work for each in equals if (each_work := getattr(each, work))]
        if own and len(paces) >= _FEWEST_EQUALS:
            return float(median(paces) * own)
    return None


def _among_equals(
    first: _Timed,
    equals: Sequence[_Timed],
    fair: float,
    share: float,
    gain_s: float | None,
) -> Finding:
    alike = sorted(equals, key=lambda each: -each.own_s)[:_MOST]
    return finding(
        SLUG,
        f"{first.path} takes {format_share(share)} of the step: "
        f"{first.own_s / fair:.1f} times its due",
        severity=severity_of((1.0 - fair / first.own_s) * share, 1.0),
        gain_s=gain_s,
        gain_reason="the torch layer's slices were too few or too much disturbed to say what it "
        "takes in a clean step",
        module=first.path,
        layers=("torch",),
        evidence=[
            _row(first) | {"step_share": share, "fair_s": fair, "equals": len(equals)},
            *(_row(each) for each in alike),
        ],
        advice=f"The other {len(equals)} modules of class {first.kind} take "
        f"{format_seconds(fair)} for as much work as {first.path} does in "
        f"{format_seconds(first.own_s)}. Look at its operators and lines for what it does and they "
        "do not: a check or a log left on, another dtype or memory layout, values so small that "
        "they are computed slowly (denormal numbers).",
    )


def _row(each: _Timed) -> dict[str, Any]:
    return {
        "module": each.path,
        "type": each.kind,
        "own_s": each.own_s,
        "flop": each.flop,
        "link": f"modules/{each.path}",
    }


def _alone(report: Mapping[str, Any], first: _Timed, share: float) -> list[Finding]:
    """The finding on a module that is like no other, where its work is small beside its time."""
    step = next(
        (
            row
            for row in (report.get("roofline") or {}).get("points") or ()
            if row["kind"] == "step"
        ),
        None,
    )
    if step is None or not step["flop"] or not step["moved_bytes"] or not first.moved_bytes:
        return []
    if first.flop is None and _uncounted_share(report) > 0.0:
        # It may well be its work that nobody has counted.
        return []
    flop_share = (first.flop or 0.0) / step["flop"]
    bytes_share = first.moved_bytes / step["moved_bytes"]
    if max(flop_share, bytes_share) * _OUT_OF_PROPORTION > share:
        return []
    return [
        finding(
            SLUG,
            f"{first.path} takes {format_share(share)} of the step for "
            f"{format_share(max(flop_share, bytes_share))} of "
            "its work",
            severity="medium",
            gain_reason=f"no other module of class {first.kind} says what it should take",
            module=first.path,
            layers=("torch",),
            evidence=[
                _row(first)
                | {"step_share": share, "flop_share": flop_share, "bytes_share": bytes_share}
            ],
            advice=f"{first.path} has {format_share(share)} of the step's time, "
            f"{format_share(flop_share)} of its operations and {format_share(bytes_share)} of the "
            "bytes it moves: look at its operators for "
            "many small ones, copies between layouts, or work that could be done once.",
        )
    ]


def _uncounted_share(report: Mapping[str, Any]) -> float:
    """Share of the step in operators that the first counter has no formula for."""
    rows = report["tables"]["flops"][:1]
    return sum(float(each["time_share"] or 0.0) for row in rows for each in row["uncounted"] or ())
