"""What became of every step: which ones the clean median is of, and why the others are not.

Each step stands in exactly one account, so that the accounts add up to all steps of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
_FLAGS = {
    "eval": "the script evaluated its model in them",
    "checkpoint": "the script wrote a checkpoint in them",
    "switch": "a layer was switched in them",
    "partial": "they were cut off, or begun before profstack could see them",
}
_KINDS = {
    "startup": "before the first slice",
    "warmup": "let go by while the program warmed up",
    "settle": "let go by after a switch, since a pause leaves the caches cold",
    "watch": "with the watch alone, which looks on between the slices",
}


@dataclass(frozen=True)
class Account:
    """Some of the steps: `kind` is that of their slice, `counted` whether the median is of them."""

    kind: str
    steps: int
    why: str
    counted: bool = False


def step_accounts(report: Mapping[str, Any]) -> list[Account]:
    """All steps of a report by what became of them; those that count first."""
    steps: Sequence[Record] = report["tables"]["steps"]
    kinds = {entry["index"]: str(entry["kind"]) for entry in report["slices"]}
    benchmark = report.get("benchmark") or {}
    counted = set(benchmark.get("counted_steps") or ())
    phase = (report.get("step") or {}).get("phase")
    own = [step["index"] for step in steps if phase is None or step.get("phase") == phase]
    warm = min(own, default=0) + (benchmark.get("warmup_steps") or 0)
    sums: dict[tuple[str, str, bool], int] = {}
    for step in steps:
        kind = kinds.get(step["slice"], "watch")
        is_counted = step["index"] in counted
        why = "in the clean median" if is_counted else _why_not(step, kind, phase, warm)
        key = ("clean" if is_counted else kind, why, is_counted)
        sums[key] = sums.get(key, 0) + 1
    accounts = [Account(kind, count, why, own) for (kind, why, own), count in sums.items()]
    return sorted(accounts, key=lambda one: (not one.counted, one.kind != "clean", -one.steps))


def _why_not(step: Record, kind: str, phase: Any, warm: int) -> str:
    """Why a step is not in the clean median; `warm` is the first one after the warm-up."""
    if kind != "clean":
        return _KINDS.get(kind, f"watched by the {kind} layer")
    flags = str(step.get("flags") or "").split()
    if flags:
        return _FLAGS.get(flags[0], f"flagged {flags[0]}")
    if phase is not None and step.get("phase") not in (phase, None):
        return f"of the phase {step['phase']}; the median is of {phase}"
    if step["index"] < warm:
        return "before the end of the warm-up"
    return "left out: see the warnings for what changed, or of another optimizer's plan"
