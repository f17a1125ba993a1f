"""Copies from the host to the device inside the step, from pageable memory or pinned.

The device's own records of a copy say which kind of memory it came from. A copy from pageable
memory holds up the host as well, which then launches nothing; one from pinned memory can go on
beside the kernels if `non_blocking=True` asks for it. What a copy costs is the time in which the
device had nothing else to do, which the gaps tell; copies beside kernels cost nothing.
"""

from __future__ import annotations

import re
from typing import Any

from profstack.findings.figures import (
    Report,
    Row,
    calibrated,
    clean_step_s,
    line_s,
    short,
    to_source,
)
from profstack.findings.made import WORTH_TELLING, Finding, finding, severity_of
from profstack.merge.recorded import Recorded

SLUG = "host-to-device-copy"
# As CUDA's and ROCm's tools name them.
_TO_DEVICE = re.compile(r"memcpy.*(?:HtoD|HostToDevice)", re.IGNORECASE)
_PAGEABLE = re.compile("pageable", re.IGNORECASE)
_PINNED = re.compile("pinned", re.IGNORECASE)
_COPIES = re.compile(r"\.(?:to|cuda|copy_|type)\(|\btorch\.(?:tensor|as_tensor|from_numpy)\(")
_OPERATORS = ("aten::_to_copy", "aten::copy_")
_MOST_ROWS = 4


def host_to_device_copies(recorded: Recorded, report: dict[str, Any]) -> list[Finding]:
    """A finding where copies to the device take a share of the clean step that is worth a word."""
    step_s = clean_step_s(report)
    copies = [row for row in report["tables"]["kernels"] if _TO_DEVICE.search(row["name"])]
    taken = calibrated(report, sum(row["device_s"] or 0.0 for row in copies))
    if step_s is None or not copies or taken is None:
        return []
    gaps = [row for row in report["tables"]["gaps"] if row["cause"] == "copy"]
    idle = calibrated(report, sum(row["total_s"] for row in gaps)) if gaps else None
    cost = min(idle, step_s) if idle is not None else taken
    if cost < WORTH_TELLING * step_s:
        return []
    pageable = [row for row in copies if _PAGEABLE.search(row["name"])]
    pinned = [row for row in copies if _PINNED.search(row["name"])]
    lines = _lines(report)
    site = lines[0] if lines else None
    kind = "pageable" if pageable else "pinned" if pinned else "host"
    where = f" ({short(site['file'])}:{site['line']})" if site else ""
    longest = max(copies, key=lambda row: row["device_s"] or 0.0)
    return [
        finding(
            SLUG,
            f"Steps copy from {kind} memory to the device{where}",
            severity=severity_of(cost, step_s),
            gain_s=min(idle, step_s) if idle is not None else None,
            gain_reason=None
            if idle is not None
            else "the device was not seen idle for it: the copies may run beside kernels",
            file=site["file"] if site else None,
            line=site["line"] if site else None,
            module=longest["module"],
            layers=["torch"],
            evidence=[
                *(_copy_row(row) for row in copies[:_MOST_ROWS]),
                *_operator_rows(report, copies),
                *(
                    {
                        "device": row["device"],
                        "idle_s": calibrated(report, row["total_s"]),
                        "gaps": row["count"],
                        "link": "ranges/gaps",
                    }
                    for row in gaps
                ),
                *(_line_row(row) for row in lines),
            ],
            advice=_advice(pageable=bool(pageable), pinned=bool(pinned)),
        )
    ]


def _advice(*, pageable: bool, pinned: bool) -> str:
    told = []
    if pageable:
        told.append(
            "From pageable memory a copy holds up the host until it is done: give the DataLoader "
            "pin_memory=True (or call pin_memory() once) and copy with .to(device, "
            "non_blocking=True)."
        )
    if pinned:
        told.append(
            "What is pinned already is copied beside the kernels only with non_blocking=True, and "
            "best a step ahead of its use."
        )
    told.append(
        "What is the same in every step (masks, positions, weights) belongs on the device once, "
        "before the loop; what is computed from nothing is best created there "
        "(torch.zeros(..., device=device))."
    )
    return " ".join(told)


def _copy_row(row: Row) -> dict[str, Any]:
    pageable, pinned = _PAGEABLE.search(row["name"]), _PINNED.search(row["name"])
    return {
        "copy": row["name"],
        "copies": row["calls"],
        "device_s": row["device_s"],
        "memory": "pageable" if pageable else "pinned" if pinned else "unknown",
        "holds_up_the_host": True if pageable else None,
        "module": row["module"],
        "operator": row["operator"],
        "link": f"kernels/{row['name']}",
    }


def _operator_rows(report: Report, copies: list[Row]) -> list[dict[str, Any]]:
    """What the operators that made these copies read and wrote, where that is known."""
    made_by = {(row["operator"], row["module"]) for row in copies}
    rows = []
    for name in _OPERATORS:
        some = [
            row
            for row in report["tables"]["operators"]
            if row["name"] == name and (name, row["module"]) in made_by
        ]
        moved = [row["moved_bytes"] for row in some if row["moved_bytes"] is not None]
        if some:
            found = {"operator": name, "calls": sum(row["calls"] or 0.0 for row in some)}
            # An operator reads a byte here and writes it there: half of what it moves is copied.
            copied = {"copied_bytes": sum(moved) / 2} if moved else {}
            rows.append({**found, **copied, "link": f"operators/{name}"})
    return rows


def _lines(report: Report) -> list[Row]:
    """The lines of the user's that by their text may copy, the longest first."""
    found = [
        row
        for row in report["tables"]["lines"]
        if row["own"] and row["operator_s"] and _COPIES.search(str(row["source"] or ""))
    ]
    return sorted(found, key=line_s, reverse=True)[:_MOST_ROWS]


def _line_row(row: Row) -> dict[str, Any]:
    return {
        "file": row["file"],
        "line": row["line"],
        "text": str(row["source"] or "").strip(),
        "operator_s": row["operator_s"],
        "device_s": row["device_s"],
        "link": to_source(row["file"], row["line"]),
    }
