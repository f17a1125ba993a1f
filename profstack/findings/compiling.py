"""Findings on torch.compile: here code that is compiled again and again, beside it `graphbreaks`.

`recompilations`: in the steps after the one in which a function was first compiled it is compiled
again because one and the same guard fails at least twice (for ever new values), or at least four
times whatever the guard, or until dynamo gives it up. Once each is how a loop settles: dynamo
compiles a second time with a size or a number made dynamic, once more for evaluation, and once
for the shorter batch at the end of an epoch. What it costs is the compiler's own time in those
steps; that time over the steps is the gain, as a mean over this run: steps that compile are
far slower than the median step, which does not show them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from profstack.findings.compiled import Version, function_of, graph_breaks, kind_of, versions
from profstack.findings.graphbreaks import ended_early
from profstack.findings.made import WORTH_TELLING, Finding, finding, severity_of
from profstack.merge.recorded import Recorded
from profstack.privacy import home_relative
from profstack.units import format_seconds

AGAIN = "recompilations"
# One failure of a guard is how dynamo learns that a value changes; the second shows it did not.
_SAME_GUARD = 2
# A loop may settle with three: a dynamic size, evaluation, the last batch of an epoch.
_IN_ALL = 4
# Guards that are listed.
_MOST = 8


def compiling(recorded: Recorded, report: Mapping[str, Any]) -> list[Finding]:
    """A finding for each function that is compiled too often, and one for all graph breaks."""
    found = versions(recorded)
    if not found:
        return []
    told = [
        _recompiled(recorded, report, of_function, again)
        for of_function in _by_function(found)
        for again in (_again(of_function),)
        if _is_too_often(again)
    ]
    broken = ended_early(report, found, graph_breaks(recorded))
    return [each for each in (*told, broken) if each is not None]


def _by_function(found: Sequence[Version]) -> list[list[Version]]:
    """The compilations of each function, those of its rests after graph breaks among them."""
    names = {each.frame: (each.file, function_of(each.name)) for each in found if each.name}
    groups: dict[Any, list[Version]] = defaultdict(list)
    for each in found:
        # One that was given up bears the number of its code alone.
        groups[names.get(each.frame, each.frame)].append(each)
    return list(groups.values())


def _again(of_function: Sequence[Version]) -> list[Version]:
    """The later versions that were compiled in steps, after the step of their first one."""
    first: dict[str, int | None] = {}
    for each in of_function:
        first.setdefault(each.frame, each.step)
    return [
        each
        for each in of_function
        if each.step is not None and each.number > 0 and each.step != first[each.frame]
    ]


def _is_too_often(again: Sequence[Version]) -> bool:
    guards = Counter(kind_of(each.guard) for each in again if each.guard is not None)
    same = max(guards.values(), default=0)
    return same >= _SAME_GUARD or len(again) >= _IN_ALL or any(each.limit for each in again)


def _recompiled(
    recorded: Recorded,
    report: Mapping[str, Any],
    of_function: Sequence[Version],
    again: Sequence[Version],
) -> Finding | None:
    """The finding of one function; None where compiling took too little to be told."""
    named = next((each for each in of_function if each.name is not None), None)
    step_s = (report.get("benchmark") or {}).get("median_s")
    steps = _steps_since(recorded, of_function)
    if named is None or not steps:
        return None
    times, measured = _times(of_function, again)
    per_step = sum(times) / len(times) * len({each.step for each in again}) / steps
    if step_s and per_step < WORTH_TELLING * step_s:
        return None
    guard = _commonest_guard(again)
    made = sum(not each.limit for each in again)
    # The line on which the changing value is used says more than that of the function.
    line = _whole((guard.guard_line if guard is not None else None) or named.line)
    file = (guard.guard_file if guard is not None else None) or named.file
    limit = made < len(again)
    # The median step holds it where most steps compile; else that step is as short without it.
    in_median = 2 * len({each.step for each in again}) > steps
    return finding(
        AGAIN,
        f"{function_of(named.name)} is compiled again {_times_in_words(made)} during the steps",
        severity=severity_of(per_step, step_s or 0.0),
        gain_s=min(median(times), step_s) if in_median and step_s else None,
        gain_is="measured" if measured else "estimated",
        gain_reason=f"most steps compile nothing, so that the median step does not hold it: as a "
        f"mean over {steps} steps it is {format_seconds(per_step)}",
        file=home_relative(file) if file else None,
        line=line,
        layers=(),
        evidence=[
            {
                "function": function_of(named.name),
                "file": home_relative(named.file or ""),
                "line": _whole(named.line),
                "recompilations": made,
                "steps": steps,
                **_cost(times, per_step, measured=measured, in_median=in_median),
                "given_up": limit,
                "link": "benchmark/steps",
            },
            *_guard_rows(again),
        ],
        advice=_advice(guard, limit=limit, per_step=per_step, steps=steps),
    )


def _commonest_guard(again: Sequence[Version]) -> Version | None:
    """The first version compiled for the guard that failed most often."""
    guards = Counter(kind_of(each.guard) for each in again if each.guard is not None)
    commonest = next(iter(guards.most_common(1)), (None, 0))[0]
    return next((each for each in again if kind_of(each.guard) == commonest), None)


def _cost(
    times: Sequence[float], per_step: float, *, measured: bool, in_median: bool
) -> dict[str, Any]:
    """What compiling it again takes, of a step that does and of all steps, and what these are."""
    observed = ", all of them under an observer, which slows the compiler"
    return {
        "compile_s": sum(times) / len(times),
        "compile_is": "mean of a step that compiles it again" + ("" if measured else observed),
        "per_step_s": per_step,
        "per_step_is": "mean over these steps"
        + ("" if in_median else ", most of which compile nothing"),
    }


def _whole(line: float | None) -> int | None:
    """A line's number, which a column with gaps holds with a fraction; NaN is none."""
    return int(line) if line is not None and line == line else None


def _times_in_words(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _steps_since(recorded: Recorded, of_function: Sequence[Version]) -> int:
    """Steps of the plan after the one in which the function was compiled first."""
    first, since = of_function[0].step, recorded.steps
    if first is not None:
        since = since[since["step"] > first]
    return len(since) + int(recorded.facts.get("steps_only_counted") or 0)


def _times(of_function: Sequence[Version], again: Sequence[Version]) -> tuple[list[float], bool]:
    """Compile time of each step that compiled again, and whether nothing slowed it meanwhile.

    Where some of the steps were undisturbed, those alone count.
    """
    steps = {each.step: each.undisturbed for each in again}
    undisturbed = any(steps.values())
    sums = {step: 0.0 for step, free in steps.items() if free or not undisturbed}
    for each in of_function:
        if each.step in sums:
            sums[each.step] += each.wall_s
    return list(sums.values()), undisturbed


def _guard_rows(again: Sequence[Version]) -> list[dict[str, Any]]:
    """The guards that failed, each kind once with the latest value that it asked for."""
    rows: dict[str | None, dict[str, Any]] = {}
    for each in again:
        kind = kind_of(each.guard)
        row = rows.setdefault(kind, {"failed_guard": each.guard, "times": 0})
        row["times"] += 1
        if each.guard_file and each.guard_line:
            file = home_relative(each.guard_file)
            row |= {"file": file, "line": each.guard_line}
            row["link"] = f"source/{file}:{each.guard_line}"
    return sorted(rows.values(), key=lambda row: -row["times"])[:_MOST]


def _advice(guard: Version | None, *, limit: bool, per_step: float, steps: int) -> str:
    told = [
        f"Over these {steps} steps compiling it again took {format_seconds(per_step)} per step."
    ]
    if limit:
        told.append(
            "It was compiled so often that dynamo gave it up: from there on it runs uncompiled."
        )
    text = guard.guard if guard is not None else None
    if text is not None and re.search(r"size|stride|shape|\bdim\b", text):
        told.append(
            f"The guard that fails is on a shape ({text}): pad or bucket inputs to a few sizes, "
            "drop the last short batch, or mark the size with torch._dynamo.mark_dynamic (and do "
            "not compile with dynamic=False)."
        )
    elif text is not None:
        told.append(
            f"The guard that fails is on a Python value ({text}): a value that changes with the "
            "steps belongs in a tensor, or outside the compiled function."
        )
    else:
        told.append("TORCH_LOGS=recompiles tells which guards fail.")
    return " ".join(told)
