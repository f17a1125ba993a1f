"""Gradients that are set to zero and added to, where they could be let go and handed over anew.

The rule: outside modules and backward passes a step fills tensors with zeros that are as many and
of the same shapes as those that AccumulateGrad then adds to, for at least half of the parameters
that get gradients; and filling and adding cost at least 1 % of the clean step. On the CPU blocks
above 64 KiB do not count: the C library gives larger ones back to the system when gradients are
let go, and the pages of the next ones have to be faulted in, which was measured to cost more than
zeroing does. Devices have an allocator that keeps them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

from profstack.findings.figures import (
    Report,
    Row,
    calibrated,
    clean_step_s,
    line_s,
    on_accelerator,
    to_source,
)
from profstack.findings.made import WORTH_TELLING, Finding, finding, severity_of
from profstack.findings.pace import NOT_ITS_PACE, device_sets_pace
from profstack.merge.recorded import Recorded

SLUG = "zero-grad-to-zeros"
ACCUMULATION = "(gradient accumulation)"
# Blocks up to here were measured to be kept by the C library: it trims from 128 KiB on.
LARGEST_ON_HOST = 64 << 10
# Fewer are a part that the script zeroes on purpose, as accumulators of its own.
LEAST_PARAMETERS = 0.5
_ZERO, _ADD, _NODE = "aten::zero_", "aten::add_", "torch::autograd::AccumulateGrad"
# A script may zero what it likes in a module or in a loss; gradients are zeroed between.
_ELSEWHERE = (ACCUMULATION, "(loss)")
_DISTURBED = "the torch layer slowed its steps too much for times to be told"
_ZEROES = re.compile(r"\bzero_grad\(|\.zero_\(|_foreach_zero_\(")


@dataclass
class _Work:
    """Calls and time of one operator on one shape, in one step."""

    calls: float = 0.0
    host_s: float = 0.0
    device_s: float = 0.0

    def add(self, row: Row) -> None:
        """Take in a row of the operators."""
        self.calls += row["calls"] or 0.0
        self.host_s += row["total_s"] or 0.0
        self.device_s += row["device_s"] or 0.0

    def part(self, calls: float) -> _Work:
        """What that many of the calls take."""
        share = calls / self.calls if self.calls else 0.0
        return _Work(calls, self.host_s * share, self.device_s * share)


def zero_grad_to_zeros(recorded: Recorded, report: dict[str, Any]) -> list[Finding]:
    """The finding, where zeroing and what it brings about costs enough."""
    step_s = clean_step_s(report)
    rows = report["tables"]["operators"]
    zeroed, added = _together(filter(_between, rows), _ZERO), _together(_accumulating(rows), _ADD)
    on_device = on_accelerator(report)
    counted = {
        shape: min(work.calls, added[shape].calls)
        for shape, work in zeroed.items()
        if shape in added and (on_device or 4 * prod(shape) <= LARGEST_ON_HOST)
    }
    if step_s is None or sum(counted.values()) < LEAST_PARAMETERS * _parameters(report, rows):
        return []
    zeros = [zeroed[shape].part(calls) for shape, calls in counted.items()]
    adds = [added[shape].part(calls) for shape, calls in counted.items()]
    zero_share, add_share = (_share(report, works, on_device=on_device) for works in (zeros, adds))
    if zero_share + add_share < WORTH_TELLING:
        return []
    reason = None
    if calibrated(report, 1.0) is None:
        reason = _DISTURBED
    elif on_device and not device_sets_pace(report):
        reason = NOT_ITS_PACE
    zero_s, add_s = zero_share * step_s, add_share * step_s
    times = [None, None] if reason == _DISTURBED else [zero_s, add_s]
    count = sum(counted.values())
    line = _line(report)
    return [
        finding(
            SLUG,
            f"{count:.0f} gradients are set to zero in each step, and then added to",
            severity=severity_of(zero_s + add_s, step_s),
            gain_s=zero_s + add_s if reason is None else None,
            gain_reason=reason,
            file=line["file"] if line else None,
            line=line["line"] if line else None,
            layers=("torch",),
            evidence=[
                {"operator": _ZERO, "calls": count, "calibrated_s": times[0]}
                | {"step_share": zero_share}
                | {"link": f"operators/{_ZERO}"},
                {"operator": f"{_ADD} in {ACCUMULATION}", "calls": count, "calibrated_s": times[1]}
                | {"step_share": add_share}
                | {"link": f"modules/{ACCUMULATION}"},
                *([{"text": line["source"].strip()} | _linked(line)] if line else []),
            ],
            advice="Let gradients go instead: optimizer.zero_grad() without set_to_none=False, or "
            "parameter.grad = None. The backward pass then hands over new ones, and adds nothing. "
            "What reads .grad between must expect None.",
        )
    ]


def _between(row: Row) -> bool:
    """Whether a row is of the work between modules and passes."""
    module = row["module"]
    return module is None or (module.startswith("(") and module not in _ELSEWHERE)


def _accumulating(rows: Iterable[Row]) -> Iterable[Row]:
    return (row for row in rows if row["module"] == ACCUMULATION)


def _together(rows: Iterable[Row], name: str) -> dict[tuple[int, ...], _Work]:
    """The work of one operator by the shape of what it changes."""
    found: dict[tuple[int, ...], _Work] = {}
    for row in rows:
        if row["name"] == name and row["shapes"] is not None:
            shapes = json.loads(row["shapes"])
            if shapes and all(isinstance(size, int) for size in shapes[0]):
                found.setdefault(tuple(shapes[0]), _Work()).add(row)
    return found


def _parameters(report: Report, rows: list[dict[str, Any]]) -> float:
    """How many parameters get gradients in a step, however many passes it has; 1 at least."""
    nodes = sum(row["calls"] or 0.0 for row in _accumulating(rows) if row["name"] == _NODE)
    noted = report.get("setup") or {}
    passes = (noted.get("backward_passes") or 0) / (noted.get("steps") or 1)
    return max(nodes / max(passes, 1.0), 1.0)


def _share(report: Report, works: Iterable[_Work], *, on_device: bool) -> float:
    """The share of the traced step that is this work; 0 where the torch layer has no step."""
    raw = sum(work.device_s if on_device else work.host_s for work in works)
    step_s = (report.get("attribution") or {}).get("step_s")
    return raw / float(step_s) if step_s else 0.0


def _line(report: Report) -> Row | None:
    """The script's line that by its text sets gradients to zero, the longest first.

    How often it ran is not known where its function was not traced to the end.
    """
    lines = [
        row
        for row in report["tables"]["lines"]
        if row["own"] and row["calls"] != 0 and _ZEROES.search((row["source"] or "").split("#")[0])
    ]
    return max(lines, key=line_s, default=None)


def _linked(line: Row) -> dict[str, str]:
    return {"link": to_source(line["file"], line["line"])}
