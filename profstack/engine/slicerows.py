"""The rows of a slice and of its steps, from the times that were stamped at boundaries."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from profstack.engine.keeper import EVAL, PARTIAL, SWITCH
from profstack.slices import Planned

# End of a step, process CPU time there, its first activity, its flags, shape of its input.
Stamp = tuple[float, float | None, float | None, int, Any]

_WORDS = ((EVAL, "eval"), (PARTIAL, "partial"), (SWITCH, "switch"))


@dataclass(frozen=True)
class SliceRows:
    """Makes the rows of one slice; `index` is its number, `first_step` that of its first step.

    Times are told from `origin` on.
    """

    origin: float
    plan: int
    phase: str
    index: int
    first_step: int

    def slice(
        self, kind: str, steps: int, start: float, end: float, *, round_: int = 0, settled: int = 0
    ) -> dict[str, Any]:
        """The row of `slices`, but for what its observers are and have counted."""
        return {
            "slice": self.index,
            "kind": kind,
            "plan": self.plan,
            "phase": self.phase,
            "round": round_,
            "first_step": self.first_step,
            "steps": steps,
            "started_s": start - self.origin,
            "wall_s": end - start,
            "settle_steps": settled,
        }

    def step(
        self, number: int, begin: float, end: float | None, shape: Any, flags: str
    ) -> dict[str, Any]:
        """The row of the slice's step `number`, from 0, as far as its times tell."""
        dimensions = list(shape) if shape is not None else []
        return {
            "step": self.first_step + number,
            "plan": self.plan,
            "phase": self.phase,
            "slice": self.index,
            "started_s": begin - self.origin,
            # No time between: the step's beginning left no trace (`profstack.step()` alone).
            "wall_s": end - begin if end is not None and end > begin else None,
            "batch_size": int(dimensions[0]) if dimensions else None,
            "shape": "x".join(str(int(size)) for size in dimensions) or None,
            "flags": flags,
        }

    def steps(
        self,
        stamps: Sequence[Stamp],
        begin: float,
        cpu_begin: float | None,
        device_s: Sequence[float | None] | None,
        *,
        after_switch: bool,
    ) -> list[dict[str, Any]]:
        """The rows of all steps; `after_switch` where none was spent to settle before the first."""
        rows = []
        for number, (end, cpu, activity, flags, shape) in enumerate(stamps):
            if after_switch and number == 0:
                flags |= SWITCH
            if self.phase != "train":
                # Where evaluation is what is measured it disturbs nothing.
                flags &= ~EVAL
            words = " ".join(word for bit, word in _WORDS if flags & bit)
            row = self.step(number, begin, end, shape, words)
            row["cpu_s"] = cpu - cpu_begin if cpu is not None and cpu_begin is not None else None
            row["wait_s"] = activity - begin if activity is not None else None
            row["device_s"] = device_s[number] if device_s else None
            rows.append(row)
            begin, cpu_begin = end, cpu
        return rows


def progress(planned: Planned, boundaries: Sequence[float], total: int) -> dict[str, Any]:
    """The event that tells of a slice, from its start and the ends of its steps."""
    walls = sorted(after - before for before, after in itertools.pairwise(boundaries))
    return {
        "event": "slice",
        "kind": planned.kind,
        "round": planned.round,
        "layers": [f"{layer}/{mode}" for layer, mode in planned.observers],
        "steps": len(walls),
        "total": total,
        "median_s": walls[len(walls) // 2] if walls else None,
        "mean_s": sum(walls) / len(walls) if walls else None,
    }
