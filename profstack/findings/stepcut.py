"""A clean step cut into shares of what its own thread did; they add up to 1.

The times come from the torch layer's slice, in which every nanosecond of a step belongs to one
module or part of the step. Four things are known better than from there, and take precedence:

- how long a step waits before its first work is measured in the clean steps themselves. The other
  shares are scaled to what that leaves, since a profiler slows operators and not a sleep;
- what reads and writes files (by cProfile) is no wait for data and no Python;
- what the loop does after the optimizer's step, and is no step's input, is Python and no wait;
- for how long the thread did not run is read from its clock in the clean slices. What the wait
  does not explain of it is taken from the times that no operator covers: there and nowhere else
  can a thread of the CPU stand still unseen. It is a lower bound: what of the wait was idle too
  is not told apart.

Python is time outside operators: of modules in their forward, of the optimizer, and between the
parts of a step. What autograd's engine does between operators of a backward pass is none.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from profstack.findings.afterstep import AfterStep, after_step
from profstack.findings.iotime import IoTime, io_time
from profstack.findings.notorch import MORE_STEPS
from profstack.findings.usable import clean_wait_share, unusable
from profstack.merge.modules import TIMED
from profstack.merge.recorded import Recorded, Selection
from profstack.regions import (
    BEFORE_OPTIMIZER,
    LOSS,
    OPTIMIZER,
    OUTSIDE,
    UNATTRIBUTED,
    WAIT,
    ZERO_GRAD,
)

_DATALOADER = "enumerate(DataLoader)"
_COMMUNICATION = re.compile(r"^(?:gloo|nccl|mpi|ucc|c10d):", re.IGNORECASE)
_OPTIMIZERS = (OPTIMIZER, ZERO_GRAD, BEFORE_OPTIMIZER)
# Operators in which a host waits for its device: no work of its own.
_WAITS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero")
# An operator whose call takes less of its own than this is mostly the cost of being called.
SMALL_S = 10e-6
# Work outside modules before their first call stands in the clean wait too: from this share on
# the wait is the torch layer's.
_FUNCTIONAL = 0.05


@dataclass
class Cut:
    """Shares of a clean step. `wait` is null where nothing tells it, `torch` whether the torch
    layer's slice could be used: without it only the wait is known.

    `small`, `communication` lie inside the other shares; `notes` say why shares are missing.
    """

    median_s: float
    torch: bool = False
    torch_reason: str | None = None
    # What to do about that, where anything helps.
    torch_step: str | None = MORE_STEPS
    wait: float | None = None
    wait_is: str = "calibrated"
    has_loader: bool = False
    io: float | None = None
    io_time: IoTime = field(default_factory=lambda: IoTime(None))
    python: float = 0.0
    forward: float = 0.0
    loss: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    idle: float | None = None
    other: float = 0.0
    small: float = 0.0
    small_calls: float = 0.0
    # Time of the operators in which a host waits for its device.
    in_waits: float = 0.0
    communication: float = 0.0
    communication_name: str | None = None
    # What a share of the torch layer's slice is worth in clean time.
    scale: float = 1.0
    # What the loop does after the optimizer's step, of Python's share.
    after: AfterStep | None = None
    after_python: float = 0.0


def host_cut(recorded: Recorded, report: Mapping[str, Any]) -> Cut | None:
    """The cut of the report's clean step; None where there is no clean step."""
    median = (report.get("benchmark") or {}).get("median_s")
    if not median:
        return None
    cut = Cut(float(median), io_time=io_time(report["tables"]))
    clean_wait = clean_wait_share(report)
    timed = recorded.select("torch", TIMED)
    cut.torch_reason, cut.torch_step = unusable(timed, report)
    if cut.torch_reason is not None or timed is None:
        cut.wait, cut.wait_is = clean_wait, "clean"
        return cut
    cut.torch = True
    own = _Own(recorded, timed)
    _add_wait(cut, own, clean_wait, report)
    _add_parts(cut, own)
    _add_communication(cut, own, report)
    if report["benchmark"].get("target") is not None:
        # Between the calls of a benchmark nobody waits for data.
        cut.other, cut.wait = cut.other + (cut.wait or 0.0), 0.0
    _take_io(cut)
    if not cut.has_loader:
        _take_after_step(cut, report)
    _take_idle(cut, own, report)
    return cut


class _Own:
    """Own times of the torch layer's slices by module or part, as shares of their steps."""

    def __init__(self, recorded: Recorded, timed: Selection) -> None:
        self.timed = timed
        times = recorded.rows("module_times", timed).groupby("module_id")
        self.forward = _shares(times["forward_self_s"].sum(), timed.wall_s)
        self.backward = _shares(times["backward_self_s"].sum(), timed.wall_s)
        self.operators = recorded.rows("operators", timed)
        owned = self.operators[self.operators["module_id"].notna()]
        back = owned["backward"].fillna(0).astype(bool)
        self.forward_ops = _by_owner(owned[~back], timed.wall_s)
        self.backward_ops = _by_owner(owned[back], timed.wall_s)
        loose = self.operators[self.operators["module_id"].isna()]
        self.loose_ops = float(loose["self_s"].sum()) / timed.wall_s
        self.losses = _losses(recorded)

    def gap(self, number: int) -> float:
        """What of a forward part no operator covers."""
        return max(self.forward.get(number, 0.0) - self.forward_ops.get(number, 0.0), 0.0)


def _shares(totals: pd.Series, wall_s: float) -> dict[int, float]:
    return {
        int(number): float(total) / wall_s
        for number, total in zip(totals.index.tolist(), totals.tolist(), strict=True)
    }


def _by_owner(frame: pd.DataFrame, wall_s: float) -> dict[int, float]:
    return _shares(frame.groupby("module_id")["self_s"].sum(), wall_s) if len(frame) else {}


def _losses(recorded: Recorded) -> set[int]:
    """Numbers of the modules that are losses: named so, and without parameters."""
    frame = recorded.frames["modules"]
    named = frame["type"].astype(str).str.lower().str.endswith(("loss", "criterion"))
    chosen = frame[named & (frame["parameters"].fillna(0) == 0)]
    return {int(number) for number in chosen["module_id"].tolist()}


def _add_wait(cut: Cut, own: _Own, clean_wait: float | None, report: Mapping[str, Any]) -> None:
    """How long the step waits for data, and what else lies before its first work."""
    traced = min(max(own.forward.get(WAIT, 0.0), 0.0), 1.0)
    outside = own.forward.get(OUTSIDE, 0.0)
    before = wait_alone(clean_wait, traced, own.forward.get(ZERO_GRAD, 0.0), outside)
    cut.wait_is = "calibrated" if before is None else "clean"
    before = traced if before is None else before
    cut.scale = (1 - before) / (1 - traced) if traced < 1 else 0.0
    cut.wait = before
    loaders = [
        row for row in report["tables"]["regions"] if str(row["path"]).startswith(_DATALOADER)
    ]
    loaded = [row for row in loaders if row.get("wall_s") is not None]
    step_s = own.timed.wall_s / own.timed.steps
    if not loaded or not traced:
        cut.has_loader = bool(loaded)
        return
    cut.has_loader = True
    in_loader = min(sum(row["wall_s"] for row in loaded) / step_s, traced)
    operators = sum(row.get("operator_s") or 0.0 for row in loaded) / step_s
    rest = before * (1 - in_loader / traced)
    # Operators outside modules are the loader's, the other work's outside modules, or lie in the
    # wait beside the loader.
    loose = max(own.loose_ops - operators - outside, 0.0)
    loose = min(loose * before / traced, rest)
    cut.wait = before - rest
    cut.other += loose
    cut.python += rest - loose


def wait_alone(
    clean_wait: float | None, traced: float, zeroed: float, outside: float
) -> float | None:
    """The wait of the clean steps less what the torch layer gives to others; None if it differs.

    In clean steps all that lies before the first module's call or backward pass is the wait. The
    torch layer tells gradients set to zero from it (`zeroed`), and the work of functions; of its
    wait (`traced`) a second one within a step is a part, and clean steps have none.
    """
    if clean_wait is None or outside > _FUNCTIONAL:
        return None
    with_zero = abs(clean_wait - traced - zeroed) < abs(clean_wait - traced)
    found = clean_wait - zeroed if with_zero else clean_wait
    return min(max(found, 0.0), 1.0) if found >= 0.5 * traced else None


def _add_parts(cut: Cut, own: _Own) -> None:
    """Forward, loss, backward and optimizer without their Python, which is one share."""
    parts: dict[str, float] = defaultdict(float)
    for number, share in own.forward.items():
        gap = min(own.gap(number), share)
        if number == WAIT:
            continue
        if number == UNATTRIBUTED:
            parts["python"] += share
        elif number == OUTSIDE:
            parts["other"] += share
        else:
            name = "forward"
            if number in _OPTIMIZERS:
                name = "optimizer"
            elif number == LOSS or number in own.losses:
                name = "loss"
            parts[name] += share - gap
            parts["python"] += gap
    parts["backward"] = sum(own.backward.values())
    for name, share in parts.items():
        setattr(cut, name, getattr(cut, name) + share * cut.scale)
    waits = own.operators["name"].isin(_WAITS)
    cut.in_waits = float(own.operators.loc[waits, "self_s"].sum()) / own.timed.wall_s * cut.scale
    frame = own.operators[own.operators["module_id"].notna()]
    sums = frame.groupby(["name", "shapes", "module_id", "backward"], dropna=False)[
        ["calls", "self_s"]
    ].sum()
    clean = sums["self_s"] / own.timed.wall_s * cut.scale
    small = clean * cut.median_s * own.timed.steps / sums["calls"] < SMALL_S
    cut.small = float(clean[small].sum())
    cut.small_calls = float(sums["calls"][small].sum()) / own.timed.steps


def _backward_gap(own: _Own) -> float:
    """What of the backward pass no operator covers: autograd's engine, or waiting."""
    return sum(
        max(share - own.backward_ops.get(number, 0.0), 0.0)
        for number, share in own.backward.items()
    )


def _add_communication(cut: Cut, own: _Own, report: Mapping[str, Any]) -> None:
    """Collectives between ranks, as far as the steps' thread has nothing else to do meanwhile."""
    rows = [
        row
        for row in report["tables"]["regions"]
        if _COMMUNICATION.match(str(row["path"])) and row.get("wall_s")
    ]
    named = own.operators["name"].astype(str).str.match(_COMMUNICATION)
    operators = float(own.operators.loc[named, "self_s"].sum()) / own.timed.wall_s
    if not rows and not operators:
        return
    step_s = own.timed.wall_s / own.timed.steps
    whole = sum(row["wall_s"] for row in rows) / step_s if rows else operators
    room = (_backward_gap(own) + operators) * cut.scale + cut.python
    cut.communication = min(max(whole, operators) * cut.scale, room)
    cut.communication_name = str(
        max(rows, key=lambda row: float(row["wall_s"]))["path"]
        if rows
        else own.operators.loc[named, "name"].iloc[0]
    )


def _take_io(cut: Cut) -> None:
    """Reading and writing is taken from the wait that no loader explains, then from Python."""
    seconds = cut.io_time.seconds
    if seconds is None:
        return
    whole = seconds / cut.median_s
    cut.io = 0.0
    if not cut.has_loader and cut.wait is not None:
        cut.io = min(whole, cut.wait)
        cut.wait -= cut.io
    from_python = min(whole - cut.io, cut.python)
    cut.python -= from_python
    cut.io += from_python


def _take_after_step(cut: Cut, report: Mapping[str, Any]) -> None:
    """What follows the optimizer's step and makes no input; files it writes are taken already."""
    cut.after = after_step(report) if cut.wait else None
    if cut.after is None or cut.wait is None:
        return
    taken = max(cut.after.share * (cut.wait + (cut.io or 0.0)) - (cut.io or 0.0), 0.0)
    cut.after_python = taken * cut.after.outside_operators
    cut.wait -= taken
    cut.python += cut.after_python
    cut.other += taken - cut.after_python


def _take_idle(cut: Cut, own: _Own, report: Mapping[str, Any]) -> None:
    """Time in which the thread stood still, from what no operator covers."""
    told = report.get("processes") or {}
    off_s, step_s = told.get("off_cpu_s"), told.get("step_s")
    if off_s is None or not step_s:
        return
    still = (off_s - (told.get("no_core_s") or 0.0)) / step_s
    still -= (cut.wait or 0.0) + (cut.io or 0.0)
    engine = min(_backward_gap(own) * cut.scale, cut.backward)
    room = cut.python + engine
    idle = min(max(still, 0.0), room)
    if idle <= 0:
        return
    cut.idle = idle
    cut.python -= idle * cut.python / room
    cut.backward -= idle * engine / room
