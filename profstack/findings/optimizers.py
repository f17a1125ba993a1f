"""An optimizer that goes through its tensors operator by operator, where one could do it at once.

The rule: torch has a fused implementation of every optimizer that steps, for the devices and types
of its parameters; no fused operator ran; and the optimizer takes at least 3 % of the clean step.

What a fused step saves is known from two ratios. Where time goes to calls, it is the ratio of what
both implementations take for tensors too small to matter; where it goes to memory, the ratio of the
bytes that both move: the recorded operators' and each parameter, gradient and state once. The
machine's memory bandwidth parts the one from the other. What a step takes in Python whatever its
tensors are stays, and of few tensors it is most of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profstack.findings.figures import (
    Report,
    calibrated,
    clean_step_s,
    module_rows,
    on_accelerator,
    to_source,
)
from profstack.findings.made import WORTH_TELLING, Finding, finding, severity_of
from profstack.findings.pace import NOT_ITS_PACE, device_sets_pace
from profstack.merge.functions import PROFILED
from profstack.merge.recorded import Recorded

SLUG = "unfused-optimizer"
PART = "(optimizer)"
# An optimizer of less has little to give, and is commonly left as it is.
LEAST_SHARE = 0.03
_GPUS = frozenset({"cuda", "mps", "xpu"})
# Where torch 2.6 and later have a fused implementation, by the class the optimizer is made from.
_DEVICES = {
    "Adam": _GPUS | {"cpu"},
    "AdamW": _GPUS | {"cpu"},
    "SGD": _GPUS | {"cpu"},
    "Adagrad": frozenset({"cpu"}),
}
_TYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
# Tensors of a parameter's size that a fused step reads or writes for each parameter.
_PASSES = {"Adam": 7, "AdamW": 7, "SGD": 3, "Adagrad": 5}
_MORE_WITH = {"amsgrad": 2, "momentum": 2}
# What a step over parameters of 8 elements takes fused, over what it takes unfused, per tensor:
# of 20 and of 200 tensors, torch 2.13, Python 3.11. Both are calls and Python alone, so that the
# ratio hangs little on the machine.
_CALLS_LEFT = {"Adam": 0.19, "AdamW": 0.17, "SGD": 0.20, "Adagrad": 0.31}
_CALLS_LEFT_PLAIN_SGD = 0.38
# A call of an operator with the Python round it, over the operator alone: of 80 tensors, at which
# the rest of a step does not count, 1.5 with SGD and 1.7 with AdamW.
_WITH_PYTHON = 1.6
# What a fused step takes more than another before it comes to its tensors, in such calls: about
# 5 µs where each takes 0.7 to 1.7 µs.
_FUSED_CALLS = 6
_NO_BANDWIDTH = "the memory bandwidth of this machine is not known, which a fused step is bound by"
_NO_BYTES = "how many bytes the optimizer's operators move is not known"
_FOREACH = (
    "the optimizer works over lists of tensors already: what is left of its calls is not known"
)
_SEVERAL = "several optimizers share the time, and not each of them has a fused implementation"
_DISTURBED = "the torch layer slowed its steps too much for times to be told"
# Profiling slows Python and not operators, by less than this.
_TOO_FAR = 3.0
# What is round them makes the ends of steps too, where profstack has work of its own.
_STEPS = ("step", "_use_grad")
_MOST_OPERATORS = 3


def unfused_optimizer(recorded: Recorded, report: dict[str, Any]) -> list[Finding]:
    """The finding, where the optimizer's part of the step is large enough."""
    step_s = clean_step_s(report)
    seen = (report.get("setup") or {}).get("optimizers") or []
    able = [each for each in seen if can_be_fused(each)]
    rows = [row for row in report["tables"]["operators"] if row["module"] == PART]
    if step_s is None or not able or any("_fused_" in row["name"] for row in rows):
        return []
    share = _share(recorded, report, rows)
    if share is None or share < LEAST_SHARE:
        return []
    gain: float | None = None
    reason: str | None = _SEVERAL
    if calibrated(report, 1.0) is None:
        reason = _DISTURBED
    elif len(able) == len(seen):
        gain, reason = _gain(report, rows, seen, share * step_s)
    if gain is not None and gain < WORTH_TELLING * step_s:
        return []
    first = max(able, key=lambda each: float(each["parameter_bytes"]))
    place = first["place"] or {"file": None, "line": None}
    return [
        finding(
            SLUG,
            f"{first['name']} updates {first['tensors']} tensors one operator at a time",
            severity=severity_of(share * step_s if gain is None else gain, step_s),
            gain_s=gain,
            gain_reason=reason,
            file=place["file"],
            line=place["line"],
            module=PART,
            layers=("torch",),
            evidence=[
                {"optimizer_s": None if reason == _DISTURBED else share * step_s}
                | {"step_share": share, "link": f"modules/{PART}"},
                *(_told(each) for each in able),
                *_operators(rows),
            ],
            advice=f"Make it with fused=True ({first['name']}(..., fused=True)): the same update, "
            "with all its tensors read and written once by one operator. Its results differ in "
            f"the last digits.{_beside_the_bar(report)}",
        )
    ]


def _beside_the_bar(report: Report) -> str:
    """Why the update's time is larger than the optimizer's part of the step bar."""
    if on_accelerator(report):
        return ""
    return " The time holds the update's Python, which the step bar shows as Python."


def can_be_fused(optimizer: Mapping[str, Any]) -> bool:
    """Whether torch has a fused implementation of an optimizer of the report's `setup`."""
    return (
        optimizer["has_fused"]
        and not optimizer["fused"]
        and not optimizer["differentiable"]
        and not optimizer["sparse_tensors"]
        and bool(optimizer["tensors"])
        and set(optimizer["devices"]) <= _DEVICES.get(optimizer["base"], frozenset())
        and set(optimizer["dtypes"]) <= _TYPES
    )


def _share(recorded: Recorded, report: Report, rows: list[dict[str, Any]]) -> float | None:
    """The optimizer's share of a step: of the device's time where there is one.

    On the CPU it is the torch layer's, which has a few steps: where other work took the core
    meanwhile, so that it is several times what cProfile saw, cProfile's stands.
    """
    step_s = (report.get("attribution") or {}).get("step_s")
    part = module_rows(report).get(PART)
    if on_accelerator(report):
        raw = sum(row["device_s"] or 0.0 for row in rows)
    else:
        raw = (part or {}).get("self_s")
    if not step_s or raw is None:
        return None
    share = float(raw) / float(step_s)
    profiled = None if on_accelerator(report) else _profiled_share(recorded, report)
    return profiled if profiled and share > _TOO_FAR * profiled else share


def _profiled_share(recorded: Recorded, report: Report) -> float | None:
    """The share of the profiled steps in torch's optimizers, with what they call."""
    taken = [
        float(row["total_s"] or 0.0)
        for row in report["tables"].get("functions") or ()
        if row["phase"] == "step"
        and row["name"] in _STEPS
        and "torch/optim/" in str(row["file"]).replace("\\", "/")
    ]
    profiled = recorded.select("cprofile", PROFILED) if taken else None
    if profiled is None or not profiled.steps or not profiled.wall_s:
        return None
    return max(taken) * profiled.steps / profiled.wall_s


def _gain(
    report: Report, rows: list[dict[str, Any]], seen: list[dict[str, Any]], spent: float
) -> tuple[float | None, str | None]:
    """What fused steps would save of `spent`, or why nobody knows."""
    rates = (report.get("roofline") or {}).get("peaks", {}).get("bytes_per_s") or []
    if not rates:
        return None, _NO_BANDWIDTH
    rate = float(rates[0]["value"])
    steps = (report["setup"] or {}).get("steps") or 1
    # One of several may step more often than the others, or more rarely.
    once = sum(
        each["parameter_bytes"] * _passes(each) * (each["calls"] or steps) / steps for each in seen
    )
    if on_accelerator(report):
        if not device_sets_pace(report):
            return None, NOT_ITS_PACE
        return max(spent - once / rate, 0.0), None
    if any("_foreach_" in row["name"] for row in rows):
        return None, _FOREACH
    moved = sum(row["moved_bytes"] or 0.0 for row in rows)
    if not moved:
        return None, _NO_BYTES
    inside = calibrated(report, sum(row["self_s"] or 0.0 for row in rows)) or 0.0
    streaming = min(moved / rate, inside)
    called = min(_WITH_PYTHON * (inside - streaming), spent - streaming)
    saved = _calls_saved(rows, seen) * max(called, 0.0)
    return saved + streaming * max(1 - once / moved, 0.0), None


def _calls_saved(rows: list[dict[str, Any]], seen: list[dict[str, Any]]) -> float:
    """The share of the time of its operators' calls that a fused step saves."""
    calls = sum(row["calls"] or 0.0 for row in rows)
    left = max(_calls_left(each) for each in seen)
    more = _FUSED_CALLS * len(seen) / calls if calls else 1.0
    return max(1.0 - left - more, 0.0)


def _passes(optimizer: Mapping[str, Any]) -> int:
    more = sum(passes for flag, passes in _MORE_WITH.items() if optimizer[flag])
    return _PASSES[optimizer["base"]] + more


def _calls_left(optimizer: Mapping[str, Any]) -> float:
    """The share of the time of calls that is left, of one class of optimizers."""
    plain = not (optimizer["momentum"] or optimizer["weight_decay"])
    if optimizer["base"] == "SGD" and plain:
        return _CALLS_LEFT_PLAIN_SGD
    return _CALLS_LEFT[optimizer["base"]]


def _told(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    place = optimizer["place"]
    row = {
        "optimizer": optimizer["name"],
        "fused": optimizer["fused"],
        "foreach": optimizer["foreach"],
        "tensors": optimizer["tensors"],
        "parameter_bytes": optimizer["parameter_bytes"],
    }
    return row | ({"link": to_source(place["file"], place["line"])} if place else {})


def _operators(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The operators that take most of it, over all shapes."""
    sums: dict[str, list[float]] = {}
    for row in rows:
        total = sums.setdefault(row["name"], [0.0, 0.0])
        total[0] += row["calls"] or 0.0
        total[1] += row["calibrated_s"] or 0.0
    heaviest = sorted(sums.items(), key=lambda each: -each[1][1])[:_MOST_OPERATORS]
    return [
        {"operator": name, "calls": calls, "calibrated_s": time, "link": f"operators/{name}"}
        for name, (calls, time) in heaviest
    ]
