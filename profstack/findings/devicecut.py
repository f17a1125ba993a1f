"""A clean step cut into shares of what its device did: kernels by part of the step, and idleness.

On an accelerator the host runs ahead, and its own times say little of where a step goes: a step
is as long as its device takes. Shares are of the time in which the torch layer's slice saw the
device: busy and idle together are the step, as the tables `launches` and `gaps` tell it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DATA_WAIT, HOST_LATE, START = "data wait", "host late", "start of step"
# The step parts that are an optimizer's.
_OPTIMIZER = ("(optimizer)", "(zero_grad)", "(before the optimizer)")
_COMMUNICATION = re.compile("nccl|rccl", re.IGNORECASE)


@dataclass
class DeviceCut:
    """Shares of a step by the device that is busy longest; `parts` are those of its kernels.

    `communication` is the part of the busy time in which nothing but collectives can have run.
    """

    device: str
    busy: float
    idle: float
    gaps: Mapping[str, float]
    parts: Mapping[str, float]
    communication: float
    communication_name: str | None

    @property
    def data_wait(self) -> float:
        """Idle since the host waits for data."""
        return min(self.gaps.get(DATA_WAIT, 0.0), self.idle)

    @property
    def host_late(self) -> float:
        """Idle since the host has not launched the next kernel yet."""
        return self.gaps.get(HOST_LATE, 0.0) + self.gaps.get(START, 0.0)


def device_cut(report: Mapping[str, Any]) -> DeviceCut | None:
    """The cut; None where no kernel was recorded, or too few steps."""
    tables = report["tables"]
    by_device: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in tables["launches"]:
        if row.get("device_busy_s") is not None and row.get("device") is not None:
            by_device[str(row["device"])].append(row)
    if not by_device:
        return None
    busy_s = {name: _mean(rows, "device_busy_s") for name, rows in by_device.items()}
    device = max(busy_s, key=lambda name: busy_s[name])
    step_s = busy_s[device] + _mean(by_device[device], "device_idle_s")
    if step_s <= 0:
        return None
    busy = busy_s[device] / step_s
    idle = 1 - busy
    gaps = {
        str(row["cause"]): float(row["total_s"]) / step_s
        for row in tables["gaps"]
        if str(row["device"]) == device
    }
    kernels = [row for row in tables["kernels"] if row.get("device_s")]
    collectives = [row for row in kernels if _COMMUNICATION.search(str(row["name"]))]
    communicated = sum(row["device_s"] for row in collectives) / step_s
    others = sum(row["device_s"] for row in kernels) / step_s - communicated
    name = str(max(collectives, key=lambda row: row["device_s"])["name"]) if collectives else None
    return DeviceCut(
        device,
        busy,
        idle,
        gaps,
        _parts(tables["modules"], busy, step_s),
        min(max(busy - others, 0.0), communicated),
        name,
    )


def _mean(rows: list[Mapping[str, Any]], column: str) -> float:
    return sum(float(row.get(column) or 0.0) for row in rows) / len(rows)


def _parts(modules: list[Mapping[str, Any]], busy: float, step_s: float) -> dict[str, float]:
    """Kernels by part of the step; where streams overlap, scaled to the busy time."""
    parts: dict[str, float] = defaultdict(float)
    for row in modules:
        if row["depth"] != 0:
            continue
        forward = row.get("forward_device_s") or 0.0
        parts["backward"] += (row.get("backward_device_s") or 0.0) / step_s
        parts[_part_of(row)] += forward / step_s
    known = sum(parts.values())
    if known > busy > 0:
        return {name: share * busy / known for name, share in parts.items()}
    parts["other"] += busy - known
    return dict(parts)


def _part_of(row: Mapping[str, Any]) -> str:
    """What of a step the forward work of a row belongs to."""
    path, kind = str(row["path"]), str(row.get("type") or "").lower()
    if path in _OPTIMIZER:
        return "optimizer"
    if path == "(loss)" or (kind.endswith(("loss", "criterion")) and not row.get("parameters")):
        return "loss"
    if path == "(gradient accumulation)":
        return "backward"
    return "other" if path.startswith("(") else "forward"
