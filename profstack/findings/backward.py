"""Backward passes that do more than their step needs: checked for NaN, or gone through again."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from profstack.analysis.watch import FEWEST_SAMPLES, watched
from profstack.findings import reading, rules
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import Finding, Report
from profstack.units import format_count, format_share

# Where a traceback is made for anomaly detection: torch calls this from C++.
_TRACEBACKS = re.compile(r"[/\\]python\d\.\d+[/\\](traceback|linecache|tokenize)\.py$")
_SWITCHES = re.compile(r"\b(set_detect_anomaly|detect_anomaly)\((?!\s*False)|\bdetect_anomaly=True")
_RECORDS = "format_stack"


@reading.family
def anomaly_detection(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding where backward passes ran under anomaly detection."""
    setup = report["setup"]
    passes, checked = setup.get("backward_passes"), setup.get("anomaly_passes")
    if not passes or not checked:
        return
    seen = watched(recorded)
    samples, share = seen.in_usual_steps, None
    if len(samples) >= FEWEST_SAMPLES:
        weights = [
            each.weight
            for each in samples
            if any(_TRACEBACKS.search(frame.file) for frame in seen.stacks.get(each.stack, ()))
        ]
        share = sum(weights) / sum(each.weight for each in samples)
    functions = (row for row in report["tables"]["functions"] if row["phase"] == "step")
    rows = (row for row in functions if row["name"] == _RECORDS)
    recorded_calls = max((row["calls"] or 0.0 for row in rows), default=None)
    often = "" if not recorded_calls else f" ({format_count(recorded_calls)} tracebacks a step)"
    known = f"recording them takes {format_share(share)} of the step, and " if share else ""
    place = reading.own_text(report, _SWITCHES)
    yield reading.finding(
        rules.ANOMALY_DETECTION,
        f"Autograd's anomaly detection is on in {format_share(checked / passes)} of the backward "
        "passes",
        severity=reading.severity_of((share or 0.0) * step_s, step_s) if share else "medium",
        gain_reason=f"{known}what looking for NaN takes is not told apart from the work",
        place=place,
        layers=["watch"] * bool(share) + ["cprofile"] * bool(recorded_calls),
        evidence=[
            {
                "anomaly_passes": checked,
                "backward_passes": passes,
                "tracebacks": recorded_calls,
                "step_share": share,
                **({"link": reading.to_source(place)} if place else {}),
            }
        ],
        advice="Take torch.autograd.set_detect_anomaly out once the fault is found, or turn it on "
        f"for single steps: every operator records a traceback for it{often}, and gradients are "
        "looked at for NaN.",
    )


# A function of the backward pass, as autograd's engine names its runs, and of which operator it is.
_RUN = "autograd::engine::evaluate_function: "
_NODE = re.compile(rf"{_RUN}(\w+?)Backward\d+$")
_WORD = re.compile(r"(?<!^)(?=[A-Z])")
_BACKWARD = re.compile(r"\bbackward\(|\bgrad\(")
# Passes that keep their graph, of all; and runs of a function for each of its operator.
_MOST_KEEP, _AGAIN = 0.5, 1.5
_MOSTLY = 0.5


@reading.family
def graph_again(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding where backward passes go through what earlier ones have done."""
    setup = report["setup"]
    passes, kept = setup.get("backward_passes"), setup.get("kept_graphs")
    if not passes or not kept or kept < _MOST_KEEP * passes:
        return
    share, heaviest = _again(report)
    backward_s = reading.host_parts(report).get("backward", 0.0)
    gain_s = share * backward_s
    if heaviest is None or gain_s < rules.GRAPH_AGAIN.threshold * step_s:
        return
    lines = reading.own_lines(report, _BACKWARD)
    place = max(lines, key=reading.line_s, default=None)
    name, runs, calls = heaviest
    yield reading.finding(
        rules.GRAPH_AGAIN,
        f"{format_share(share)} of the backward pass goes again through the same graph",
        severity=reading.severity_of(gain_s, step_s),
        gain_s=gain_s,
        place=place,
        layers=["torch"],
        evidence=[
            {
                "passes": reading.backward_passes(report),
                "function": name,
                "runs": runs,
                "operator_calls": calls,
                "backward_share": share,
                "link": f"operators/{name}",
            }
        ],
        advice="Where their sum alone is used, add the losses up and go back once "
        "(sum(losses).backward()), or cut the graph where a part begins (state.detach()): each "
        "pass with retain_graph=True goes through all parts before it. "
        f"{name} runs {format_count(runs)} times for {format_count(calls)} calls.",
    )


def _again(report: Report) -> tuple[float, tuple[str, float, float] | None]:
    """Return the share of the backward's functions that ran again, and the heaviest of them.

    It comes with its runs and the calls of its operator. Backward functions call operators, too:
    where there are more calls than runs it is not known how often a function ran again. These count
    as the others, where the others have most of the time, and else as run once.
    """
    whole_s, calls = 0.0, defaultdict[str, float](float)
    runs: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in report["tables"]["operators"]:
        # In place, or with a leading underscore, it has the same function.
        calls["aten::" + row["name"].removeprefix("aten::").strip("_")] += row["calls"] or 0.0
        whole_s += (row["total_s"] or 0.0) * row["name"].startswith(_RUN)
        if found := _NODE.match(row["name"]):
            operator = "aten::" + _WORD.sub("_", found[1]).lower()
            runs[operator][0] += row["calls"] or 0.0
            runs[operator][1] += row["total_s"] or 0.0
    again = {
        operator: seconds * (1.0 - calls[operator] / count)
        for operator, (count, seconds) in runs.items()
        if 0.0 < _AGAIN * calls[operator] <= count
    }
    if not again or not whole_s:
        return 0.0, None
    known_s = sum(
        seconds for operator, (count, seconds) in runs.items() if 0.0 < calls[operator] <= count
    )
    first = max(again, key=lambda operator: again[operator])
    of_s = known_s if known_s > _MOSTLY * whole_s else whole_s
    return sum(again.values()) / of_s, (first, runs[first][0], calls[first])
