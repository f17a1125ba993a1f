"""Many small operators: a step is spent on beginning work, and little on the work.

On an accelerator it shows in the gaps: the device has nothing to do because the host launches the
next kernel late. On the CPU every operator is called, dispatched and recorded for the backward
pass at a fixed cost, whatever it computes; a finding needs a group that is repeated (operators, or
a child module, many times in one call of a module), since only a repetition can be one operator.

What that would save: all runs of the group but one, less what computing as much at once takes at
rates that any core reaches. It takes for granted that the runs do not need each other's results,
which no tool can see.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from profstack.findings.figures import (
    Report,
    Row,
    calibrated,
    clean_step_s,
    line_s,
    on_accelerator,
    short,
    to_source,
)
from profstack.findings.loops import carries, loop_lines
from profstack.findings.made import WORTH_TELLING, Finding, finding, severity_of
from profstack.findings.repeated import Group, repeated_groups
from profstack.merge.recorded import Recorded
from profstack.units import format_count, format_seconds

SLUG = "small-operators"
# Share of the clean step from which it is told.
_WORTH_SHARE = 0.2
# Rates at which one batched operator of moderate size computes on one core: a tenth of what large
# ones reach there, so that what is saved is rather told too small.
_FLOP_PER_S, _BYTES_PER_S = 5e9, 5e9
# What cuts a tensor into pieces and joins them, and its backward: in one operator there is none.
_PIECES = re.compile(
    r"select|slice|narrow|split|unbind|index|stack|cat\b|zero|fill|copy|clone"
    r"|add_?\b|detach|Accumulate"
)
_MOST_ROWS = 4
_CARRIED = "each run takes what the one before has made: they cannot be one"
_BATCH = (
    "Where one run does not need the result of another, do all of them in one operator (a batch "
    "dimension, torch.bmm or einsum, torch.func.vmap, foreach functions for lists of tensors): the "
    "fixed cost of an operator is then paid once. Where they depend on each other, torch.compile, "
    "or a fused module such as nn.LSTM, takes most of that cost away."
)
_DEPENDENT = (
    "Each run takes what the one before has made, so that they cannot become one operator. Take "
    "out of the loop what needs none of it (embeddings, projections of the inputs, the layer on "
    "the outputs) and do that for all runs at once; let a fused module such as nn.LSTM or nn.GRU, "
    "or torch.compile, do the rest."
)


def small_operators(recorded: Recorded, report: dict[str, Any]) -> list[Finding]:
    """At most one finding: the device waits for launches, or a group of operators is repeated."""
    step_s = clean_step_s(report)
    if step_s is None:
        return []
    found = _on_device(report, step_s) if on_accelerator(report) else _on_cpu(report, step_s)
    return [found] if found is not None else []


def _on_device(report: Report, step_s: float) -> Finding | None:
    gaps = [row for row in report["tables"]["gaps"] if row["cause"] == "host late"]
    idle = calibrated(report, sum(row["total_s"] for row in gaps))
    if idle is None or idle < _WORTH_SHARE * step_s:
        return None
    told = report["launching"]
    kernels = [row for row in report["tables"]["kernels"] if not row["name"].startswith("Mem")]
    busy = sum(row["device_s"] or 0.0 for row in kernels)
    count = sum(row["calls"] or 0.0 for row in kernels)
    row: dict[str, Any] = {"kernels": told["kernels"], "launches": told["launches"]}
    row |= {"launch_s": told["launch_s"], "operators": told["operators"]}
    if count:
        row["kernel_s"] = busy / count
    first = max(gaps, key=lambda each: each["total_s"])
    return finding(
        SLUG,
        "The device is idle while the host launches small operators",
        severity=severity_of(idle, step_s),
        gain_s=min(idle, step_s),
        module=_module_of(first["before"]),
        layers=["torch"],
        evidence=[
            {key: value for key, value in row.items() if value is not None}
            | {"idle_s": idle, "idle_share": idle / step_s, "link": "ranges/launches"},
            *(
                {
                    "device": gap["device"],
                    "gaps": gap["count"],
                    "longest_s": gap["longest_s"],
                    "before": gap["before"],
                    "link": "ranges/gaps",
                }
                for gap in gaps[:_MOST_ROWS]
            ),
        ],
        advice="Give the device more with each launch: torch.compile (mode='reduce-overhead' uses "
        "CUDA graphs), larger batches, batched operators in place of Python loops, foreach or "
        "fused optimizers.",
    )


def _module_of(place: str | None) -> str | None:
    """The module in what a gap says was launched after it: "operator in module"."""
    return place.split(" in ", 1)[1] if place and " in " in place else None


def _on_cpu(report: Report, step_s: float) -> Finding | None:
    groups = [group for group in repeated_groups(report) if group.is_small]
    group = max(groups, key=lambda each: each.seconds, default=None)
    # Where the torch layer slowed its steps too much for a time to be told, it still tells shares.
    profiled = (report.get("attribution") or {}).get("step_s")
    if group is None or not profiled or group.seconds / profiled < _WORTH_SHARE:
        return None
    cost = calibrated(report, group.seconds)
    line = _line_of(report, group)
    gain, reason = _gain(report, group, cost, line, step_s)
    what = group.child["path"] if group.child is not None else _names(group.rows)
    who = "A step" if group.child is group.module else group.module["path"]
    each = f", {format_seconds(cost / group.operators)} for each operator" if cost else ""
    times = {"per_operator_s": cost / group.operators, "cost_s": cost} if cost else {}
    return finding(
        SLUG,
        f"{who} calls {what} {format_count(group.runs)} times{each}",
        # What cannot be one operator may still be faster, by less.
        severity="medium" if reason == _CARRIED else severity_of(group.seconds, profiled),
        gain_s=gain,
        gain_reason=reason,
        file=line["file"] if line else None,
        line=line["line"] if line else None,
        module=group.module["path"],
        layers=["torch"],
        evidence=[
            {
                "repeated": group.runs,
                "operators": group.operators,
                "step_share": group.seconds / profiled,
                **times,
                "computing_s": _computing_s(group.rows),
                "link": f"modules/{(group.child or group.module)['path']}",
            },
            *_operator_rows(group.rows),
            *([_line_row(line)] if line else []),
        ],
        advice=_DEPENDENT if reason == _CARRIED else _BATCH,
    )


def _gain(
    report: Report, group: Group, cost: float | None, line: Row | None, step_s: float
) -> tuple[float | None, str | None]:
    """What one run in place of many would save, or why that is not known."""
    if line is not None and carries(loop_lines(report, line)):
        return None, _CARRIED
    if cost is None:
        return None, "the torch layer slowed its steps too much for times to be told"
    if line is None and group.child is group.module:
        return None, "no line of the script's own shows whether a call needs the one before"
    gain = cost * (1 - 1 / group.runs) - _computing_s(group.rows)
    if gain < WORTH_TELLING * step_s:
        return None, "computing as much at once would take as long"
    return min(gain, step_s), None


def _computing_s(rows: Iterable[Row]) -> float:
    """What computing all of it in one operator takes at rates that any core of today reaches."""
    chosen = [row for row in rows if not _PIECES.search(row["name"])]
    flop = sum(row["flop"] or 0.0 for row in chosen)
    moved = sum(row["moved_bytes"] or 0.0 for row in chosen)
    return max(flop / _FLOP_PER_S, moved / _BYTES_PER_S)


def _names(rows: Iterable[Row]) -> str:
    known = [row for row in rows if not row["name"].startswith("autograd::")]
    longest = sorted(known, key=lambda row: -(row["self_s"] or 0.0))
    return ", ".join(dict.fromkeys(str(row["name"]) for row in longest[:2]))


def _operator_rows(rows: Iterable[Row]) -> list[dict[str, Any]]:
    longest = sorted(rows, key=lambda row: -(row["self_s"] or 0.0))[:_MOST_ROWS]
    return [
        {
            "operator": row["name"],
            "calls": row["calls"],
            "self_s": row["self_s"],
            "module": row["module"],
            "link": f"operators/{row['name']}",
        }
        for row in longest
    ]


def _line_of(report: Report, group: Group) -> Row | None:
    """The line of the user's that runs about as often, the longest such.

    Of a module that is called again and again the lines within it are not those of the loop.
    """
    calls = group.runs * (group.module["calls"] if group.child is not group.module else 1.0)
    inside = set()
    if group.child is not None:
        path = group.child["path"]
        inside = {
            (row["file"], row["line"])
            for row in report["tables"].get("module_lines") or ()
            if row["calls"] and (row["module"] == path or str(row["module"]).startswith(f"{path}."))
        }
    lines = [
        row
        for row in report["tables"]["lines"]
        if row["own"] and row["calls"] and row["operator_s"] and 0.5 <= row["calls"] / calls <= 2
    ]
    outside = [row for row in lines if (row["file"], row["line"]) not in inside]
    return max(outside, key=line_s, default=None)


def _line_row(row: Row) -> dict[str, Any]:
    return {
        "file": row["file"],
        "line": row["line"],
        "text": str(row["source"] or "").strip(),
        "calls": row["calls"],
        "place": f"{short(row['file'])}:{row['line']}",
        "link": to_source(row["file"], row["line"]),
    }
