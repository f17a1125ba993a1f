"""Many small operators: a step is spent on beginning work, and little on the work.

On an accelerator it shows in the gaps: the device has nothing to do because the host launches the
next kernel late. On the CPU every operator is called, dispatched and recorded for the backward
pass at a fixed cost, whatever it computes; a finding needs a group that is repeated (operators, or
a child module, many times in one call of a module), since only a repetition can be one operator.

What that would save: all runs of the group but one, less what computing as much at once takes at
rates that are surely reached. It assumes that the runs do not need each other's results, which no
tool can see.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from profstack.findings import reading, rules
from profstack.findings.synchronization import is_carried
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import Evidence, Finding, Report
from profstack.storage.schema.rows import LineRow, ModuleRow, OperatorRow
from profstack.units import format_count, format_seconds

# Work that one call of a module repeats: operators of its own, or a child, many times over. Only a
# repetition can be one operator: a loop over samples, heads or time steps.

# Runs in one call from which a group is such a loop.
_REPEATED = 8
# An operator that takes less is mostly what calling one costs (1 to 5 us on CPUs of the 2020s, as
# much again for its backward); beyond, computing begins to count.
_SMALL_S = 20e-6
# Of a module's own operators so much of the time must be in those that are repeated.
_MOSTLY = 0.5
# Of the repeated operators, those with less of the time do not tell how often the group runs.
_GOOD_PART = 0.1
# torch's own loop over time steps on the CPU is inside one operator: it cannot be unrolled better.
_RECURRENT = ("RNN", "LSTM", "GRU")
# Rates at which one batched operator of moderate size computes: this part of the machine's measured
# peaks, else what any core reaches, so that the gain is rather too small.
_OF_PEAK = 0.25
_FLOP_PER_S, _BYTES_PER_S = 5e9, 5e9
# What cuts a tensor into pieces and joins them, and its backward: in one operator there is none.
_PIECES = re.compile(
    r"select|slice|narrow|split|unbind|stack|cat\b|zero|fill|copy|clone"
    r"|add_?\b|detach|Accumulate"
)
# Products of two matrices, and the shape of an input.
_PRODUCT, _SHAPE = re.compile(r"(?<!b)mm\b"), re.compile(r"\[([\d, ]+)\]")
_MOST_ROWS = 4
_CARRIED = "each run takes what the one before has made: they cannot be one"
_BATCH = (
    "Where one repetition does not need the result of another, do all of them in one operator (a "
    "batch dimension, torch.bmm or einsum, torch.func.vmap, foreach functions for lists of "
    "tensors): the fixed cost of an operator is then paid once. Where they depend on each other, "
    "torch.compile, or a fused module such as nn.LSTM, takes most of that cost away."
)
_DEPENDENT = (
    "Each run takes what the one before has made, so that they cannot become one operator. Take "
    "out of the loop what needs none of it (embeddings, projections of the inputs, the layer on "
    "the outputs) and do that for all runs at once; let a fused module such as nn.LSTM or nn.GRU, "
    "or torch.compile, do the rest."
)


class Group(NamedTuple):
    """Work of one module that its call repeats: seconds of the torch layer's steps, and counts.

    `alike` modules of one class may repeat it; then `module` is the one that does so longest.
    """

    module: ModuleRow
    seconds: float
    runs: float
    rows: list[OperatorRow]
    child: ModuleRow | None
    alike: int = 1

    @property
    def operators(self) -> float:
        """Calls of its operators in a step."""
        return reading.total(self.rows, "calls")


def repeated_groups(report: Report) -> Iterator[Group]:
    """Yield modules whose own operators, or whose children, are mostly repeated in each call."""
    modules = [row for row in report["tables"]["modules"] if not row["path"].startswith("(")]
    by_module: defaultdict[str, list[OperatorRow]] = defaultdict(list)
    for row in report["tables"]["operators"]:
        if row["module"] is not None and row["calls"]:
            by_module[row["module"]].append(row)
    for module in modules:
        calls = module["calls"]
        if not calls or module["type"] in _RECURRENT:
            continue
        own = by_module.get(module["path"], [])
        below = (row for row in modules if row["path"].startswith(f"{module['path']}."))
        children = (row for row in below if row["depth"] == (module["depth"] or 0) + 1)
        again = [row for row in children if reading.figure(row, "calls") >= _REPEATED * calls]
        child = max(again, key=_whole_s, default=None)
        repeated = [row for row in own if reading.figure(row, "calls") >= _REPEATED * calls]
        repeated_s = reading.total(repeated, "self_s")
        if child is None and repeated_s <= _MOSTLY * reading.total(own, "self_s"):
            continue
        chosen = [*repeated, *(row for one in again for row in _below(by_module, one["path"]))]
        seconds = (module["self_s"] or 0.0) + sum(map(_whole_s, again))
        if not chosen or not seconds:
            continue
        runs = _fewest(repeated, calls) if child is None else (child["calls"] or 0.0) / calls
        yield Group(module, seconds, runs, chosen, child)
    # Where each call of a model has a backward pass of its own, gradients are gathered over small
    # batches, for want of memory. Of generated text each token needs the one before it.
    if reading.backward_passes(report) < _REPEATED / 2 and report["tokens"] is None:
        yield from _repeated_models(modules, by_module)


def joined(groups: Iterable[Group]) -> list[Group]:
    """Return groups with those of modules of one class, which repeat as often, as one.

    The layers of a model run the same lines: what mends one mends all.
    """
    by_class: defaultdict[tuple[object, ...], list[Group]] = defaultdict(list)
    for each in sorted(groups, key=lambda each: -each.seconds):
        child = each.child
        kind = None if child is None else (child is each.module, child["type"])
        by_class[each.module["type"], round(each.runs, 1), kind].append(each)
    found = []
    for alike in by_class.values():
        # One inside another is not as much again.
        apart = [one for one in alike if not any(_is_inside(one, other) for other in alike)]
        rows = [row for each in apart for row in each.rows]
        seconds = sum(each.seconds for each in apart)
        found.append(apart[0]._replace(rows=rows, seconds=seconds, alike=len(apart)))
    return found


def _is_inside(one: Group, other: Group) -> bool:
    return one.module["path"].startswith(f"{other.module['path']}.")


def _repeated_models(
    modules: Sequence[ModuleRow], by_module: defaultdict[str, list[OperatorRow]]
) -> Iterator[Group]:
    """Yield models that the script itself calls for one sample after the other."""
    for module in modules:
        calls = module["calls"] or 0.0
        if module["depth"] == 0 and calls >= _REPEATED and module["parameters"]:
            # The backward work of what picks the samples, and of what joins the results.
            beside = (*by_module["(loss)"], *by_module["(gradient accumulation)"])
            joined = [row for row in beside if reading.figure(row, "calls") >= _REPEATED]
            chosen = [*_below(by_module, module["path"]), *joined]
            seconds = _whole_s(module) + reading.total(joined, "self_s")
            yield Group(module, seconds, calls, chosen, module)


def _below(by_module: dict[str, list[OperatorRow]], path: str) -> list[OperatorRow]:
    return [
        row for name, rows in by_module.items() if f"{name}.".startswith(f"{path}.") for row in rows
    ]


def _whole_s(module: ModuleRow) -> float:
    return (module["forward_s"] or 0.0) + (module["backward_s"] or 0.0)


def _fewest(rows: Iterable[OperatorRow], calls: float) -> float:
    """Return the fewest runs in one of so many calls that come with a good part of the time.

    One run may call an operator several times.
    """
    runs_of = ((round((row["calls"] or 0.0) / calls, 2), row["self_s"]) for row in rows)
    seconds = reading.sums_of(runs_of)
    least = _GOOD_PART * sum(seconds.values())
    return min((runs for runs, taken in seconds.items() if taken >= least), default=1.0)


@reading.family
def small_operators(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield at most one finding: a device that waits for launches, or a repeated group."""
    return (_on_device if reading.on_accelerator(report) else _on_cpu)(report, step_s)


def _on_device(report: Report, step_s: float) -> Iterator[Finding]:
    gaps, idle = reading.gaps_by(report, "host late")
    if idle is None or idle < rules.SMALL_OPERATORS.threshold * step_s:
        return
    kernels = [row for row in report["tables"]["kernels"] if not row["name"].startswith("Mem")]
    count = reading.total(kernels, "calls")
    means = reading.pick(report["launching"], "kernels", "launches", "launch_s", "operators")
    if count:
        means["kernel_s"] = reading.total(kernels, "device_s") / count
    # The gap says what was launched after it: "operator in module".
    _, _, module = (reading.by_size(gaps, "total_s")[0]["before"] or "").partition(" in ")
    yield reading.finding(
        rules.SMALL_OPERATORS,
        "The device is idle while the host launches small operators",
        severity=reading.severity_of(idle, step_s),
        gain_s=min(idle, step_s),
        module=module or None,
        layers=["torch"],
        evidence=[
            {key: value for key, value in means.items() if value is not None}
            | {"idle_s": idle, "idle_share": idle / step_s, "link": "ranges/launches"},
            *(
                {
                    "device": gap["device"],
                    "gaps": gap["count"],
                    **reading.pick(gap, "longest_s", "before"),
                    "link": "ranges/gaps",
                }
                for gap in gaps[:_MOST_ROWS]
            ),
        ],
        advice="Give the device more with each launch: torch.compile (mode='reduce-overhead' uses "
        "CUDA graphs), larger batches, batched operators in place of Python loops, foreach or "
        "fused optimizers.",
    )


def _on_cpu(report: Report, step_s: float) -> Iterator[Finding]:
    groups = (each for each in joined(repeated_groups(report)) if each.operators)
    small = (each for each in groups if each.seconds / each.operators < _SMALL_S)
    group = max(small, key=lambda each: each.seconds, default=None)
    # Where the torch layer slowed its steps too much for times, it still gives shares.
    traced_s = reading.traced_step_s(report)
    share = group.seconds / traced_s if group is not None and traced_s else 0.0
    if group is None or share < rules.SMALL_OPERATORS.threshold:
        return
    cost = reading.calibrated(report, group.seconds)
    line = _line_of(report, group)
    gain, reason = _gain(report, group, cost, line, step_s)
    what = f"calls {group.child['path']}" if group.child is not None else None
    what = what or f"repeats small operators ({_names(group.rows)})"
    who = "A step" if group.child is group.module else group.module["path"]
    if group.alike > 1:
        who = f"Each of {group.alike} modules of {group.module['type']} ({group.module['path']})"
    each = f", {format_seconds(cost / group.operators)} for each operator" if cost else ""
    times: Evidence = {"per_operator_s": cost / group.operators, "cost_s": cost} if cost else {}
    yield reading.finding(
        rules.SMALL_OPERATORS,
        f"{who} {what} {format_count(group.runs)} times{each}",
        # What cannot be one operator may still be faster, by less.
        severity="medium" if reason == _CARRIED else reading.severity_of(share, 1.0),
        gain_s=gain,
        gain_reason=reason,
        rest=f"of {format_seconds(cost or 0.0)} one run for all would still take "
        f"{format_seconds((cost or 0.0) - (gain or 0.0))}",
        place=line,
        module=group.module["path"],
        layers=["torch"],
        evidence=[
            {
                "repeated": group.runs,
                "operators": group.operators,
                "step_share": share,
                **times,
                "computing_s": _computing_s(report, group.rows),
                "link": f"modules/{(group.child or group.module)['path']}",
            },
            *(
                {
                    "operator": row["name"],
                    **reading.pick(row, "calls", "self_s", "module"),
                    "link": f"operators/{row['name']}",
                }
                for row in reading.by_size(group.rows, "self_s")[:_MOST_ROWS]
            ),
            *([reading.line_evidence(line, "calls", place=reading.in_words(line))] if line else []),
        ],
        advice=_DEPENDENT if reason == _CARRIED else _BATCH,
    )


# Where less of it is the price of the calls, the rates of one large operator are too rough.
_LITTLE = 0.3


def _gain(
    report: Report, group: Group, cost: float | None, line: LineRow | None, step_s: float
) -> tuple[float | None, str | None]:
    """Return what one run in place of many would save, or why that is not known."""
    if line is not None and is_carried(report, line):
        return None, _CARRIED
    if cost is None:
        return None, reading.why_uncalibrated(report)
    if line is None and group.child is group.module:
        return None, "no line of the script's own shows whether a call needs the one before"
    gain = cost * (1 - 1 / group.runs) - _computing_s(report, group.rows)
    if gain < max(reading.WORTH_TELLING * step_s, _LITTLE * cost):
        return None, "computing as much at once would take about as long"
    return min(gain, step_s), None


def _computing_s(report: Report, rows: Iterable[OperatorRow]) -> float:
    """Return what computing all of it in one operator takes at rates that are surely reached."""
    chosen = [row for row in rows if not _PIECES.search(row["name"])]
    roofline = report["roofline"]
    peaks = roofline["peaks"] if roofline is not None else None
    flop_per_s, bytes_per_s = (
        max([least, *(_OF_PEAK * (peak["value"] or 0.0) for peak in measured[:1])])
        for least, measured in (
            (_FLOP_PER_S, peaks["flop_per_s"] if peaks else []),
            (_BYTES_PER_S, peaks["bytes_per_s"] if peaks else []),
        )
    )
    moved = sum(map(_moved_at_once, chosen))
    return max(reading.total(chosen, "flop") / flop_per_s, moved / bytes_per_s)


def _moved_at_once(row: OperatorRow) -> float:
    """Return the bytes that one operator in place of all of a row's calls moves.

    The largest matrix of a product is taken to be weights or their gradient, which one operator
    reads or writes once; of a convolution's inputs too, which writes about as much as it reads.
    """
    moved, calls = row["moved_bytes"] or 0.0, row["calls"] or 0.0
    shapes = [[*map(int, each.split(","))] for each in _SHAPE.findall(row["shapes"] or "")]
    if _PRODUCT.search(row["name"]) and [len(shape) for shape in shapes[-2:]] == [2, 2]:
        (rows, inner), (_, columns) = shapes[-2:]
        sizes = [rows * inner, inner * columns, rows * columns]
    elif "conv" in row["name"] and shapes:
        sizes = [math.prod(shape) for shape in shapes]
        sizes.append(sum(sizes) - max(sizes))
    else:
        return moved
    shared = max(sizes) / max(sum(sizes), 1)
    return moved * (1 - shared * (1 - 1 / max(calls, 1.0)))


def _names(rows: Iterable[OperatorRow]) -> str:
    names = [row["name"] for row in reading.by_size(rows, "self_s")]
    known = [name for name in names if not name.startswith("autograd::")]
    return ", ".join(dict.fromkeys(known[:2]))


def _line_of(report: Report, group: Group) -> LineRow | None:
    """Return the line of the user's that runs about as often, the longest such.

    Of a module that is called again and again the lines within it are not those of the loop.
    """
    of_module = (group.module["calls"] or 0.0) if group.child is not group.module else 1
    calls = group.runs * of_module * group.alike
    inside = {
        (row["file"], row["line"])
        for row in report["tables"]["module_lines"]
        if row["calls"] and group.child is not None
        if f"{row['module']}.".startswith(f"{group.child['path']}.")
    }
    lines = (
        row
        for row in report["tables"]["lines"]
        if row["own"] and row["calls"] and row["operator_s"] and 0.5 <= row["calls"] / calls <= 2
        if (row["file"], row["line"]) not in inside
    )
    return max(lines, key=reading.line_s, default=None)
