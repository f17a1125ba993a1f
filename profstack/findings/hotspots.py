"""A Python function of the user's own that takes a good part of the step by itself.

Its own time is cProfile's, less what profiling adds to its calls and to those that it makes, less
the operators that it calls by signs (`a @ b` is no call to cProfile), and with the built-in
functions that it calls where each takes next to nothing: their price is that of a call. C code of
which cProfile is not told (NumPy's ufuncs, methods of Cython) would stand in it too, so that it is
no more than the lines that the function ran can take. Pythons
that are profiled run plain code slower, by up to a factor that was measured in that process. So
the truth lies between that time over the factor and that time, and below all of the step that the
torch layer, which slows no Python, saw outside operators. Where these limits are near to each
other the gain is their geometric mean; else it is the lower one, and the finding says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profstack.findings.extents import heaviest_line, lines_of
from profstack.findings.figures import (
    CallGraph,
    Key,
    calibrated,
    clean_step_s,
    short,
    to_function,
    to_source,
)
from profstack.findings.loading import loaders, loading_of, wait_share
from profstack.findings.made import Finding, finding, severity_of
from profstack.merge.functions import COST
from profstack.merge.recorded import Recorded
from profstack.ownfiles import BUILTIN_FILE
from profstack.units import format_count, format_seconds, format_share

SLUG = "python-hot-spot"
# A tenth of the step in one function is worth rewriting it; what is spread over many is another
# problem than a hot spot.
_SHARE = 0.1
# A built-in call this short is the price of the call, whatever it does.
_SHORT_S = 1e-6
# What a line of Python takes at most, without the calls on it: the longest formulas and formatted
# strings that were timed on Python 3.10 to 3.13 took 0.4 to 0.9 µs, common lines a tenth of that.
_LINE_S = 1e-6
# Limits so near that their mean is within 30 % of both.
_NEAR = 1.3**2
# Calls a step from which a function is called more than once: some steps may have one more.
_OFTEN = 1.5
_MOST, _MOST_CALLERS = 3, 3


@dataclass(frozen=True)
class _Own:
    """A function's own Python time per step: no less than `low_s`, no more than `high_s`."""

    row: Mapping[str, Any]
    low_s: float
    high_s: float

    @property
    def agreed(self) -> bool:
        """Whether both limits say about the same."""
        return self.high_s <= _NEAR * self.low_s

    @property
    def gain_s(self) -> float:
        """What goes away where it does."""
        return math.sqrt(self.low_s * self.high_s) if self.agreed else self.low_s


def hot_spots(recorded: Recorded, report: Mapping[str, Any]) -> list[Finding]:
    """A finding for each of the functions, the one with most time first."""
    step_s = clean_step_s(report)
    if step_s is None:
        return []
    graph = CallGraph(report)
    found = [
        _own(recorded, report, graph, key, row)
        for key, row in graph.rows.items()
        # The others cannot reach the limit, whatever the rest of it says.
        if row["own"] and _at_most_s(graph, key, row) >= _SHARE * step_s
    ]
    hot = [each for each in found if each is not None and each.gain_s >= _SHARE * step_s]
    hot.sort(key=lambda each: -each.gain_s)
    return [_finding(report, graph, each, step_s) for each in hot[:_MOST]]


def _at_most_s(graph: CallGraph, key: Key, row: Mapping[str, Any]) -> float:
    """Its own time under cProfile, and that of the built-in functions that it calls."""
    builtins = (each for callee, each in graph.callees.get(key, ()) if callee[0] == BUILTIN_FILE)
    return sum((float(each["self_s"] or 0.0) for each in builtins), float(row["self_s"] or 0.0))


def _own(
    recorded: Recorded, report: Mapping[str, Any], graph: CallGraph, key: Key, row: Any
) -> _Own | None:
    """The limits of a function's own Python time; None where cProfile can not tell it."""
    cost = recorded.facts.get(COST)
    corrected = row["corrected_self_s"]
    if corrected is None or cost is None:
        return None
    builtins = [
        (float(each["calls"]), float(each["self_s"] or 0.0))
        for callee, each in graph.callees.get(key, ())
        if callee[0] == BUILTIN_FILE
    ]
    inner_s = cost["builtin"]["inner_s"]
    cheap = sum(
        max(0.0, self_s - calls * inner_s)
        for calls, self_s in builtins
        if calls and self_s / calls - inner_s < _SHORT_S
    )
    # Of the operators on its lines those that no built-in call made were made by signs.
    by_sign = max(0.0, _operators_s(report, graph, key) - sum(each for _, each in builtins))
    own_s = min(corrected - by_sign, _LINE_S * _lines_run(report, graph, key, row))
    if own_s <= 0:
        return None
    slowed = max(1.0, float(cost["bytecode_factor"]))
    most = [_outside_operators(report), _loading_s(report, graph, key)]
    high_s = min([own_s + cheap, *(each for each in most if each is not None)])
    return _Own(row, min(own_s / slowed + cheap, high_s), high_s)


def _operators_s(report: Mapping[str, Any], graph: CallGraph, key: Key) -> float:
    """Time inside operators on the lines of a function, from the slices that followed lines."""
    return sum(float(row["operator_s"] or 0.0) for row in lines_of(report, graph, key))


def _lines_run(report: Mapping[str, Any], graph: CallGraph, key: Key, row: Any) -> float:
    """Lines that a function runs in a step; infinite where they were not followed to the end."""
    followed = (each for each in lines_of(report, graph, key) if each["python_s"] is not None)
    counts = [each["calls"] for each in followed]
    if not counts or any(count is None for count in counts):
        return math.inf
    # Of fewer lines than calls not all calls were followed.
    return math.inf if sum(counts) < row["calls"] else float(sum(counts))


def _outside_operators(report: Mapping[str, Any]) -> float | None:
    """Calibrated time of a step in which no operator ran; None where the torch layer can't say."""
    step_s = (report.get("attribution") or {}).get("step_s")
    inside = sum(float(row["self_s"] or 0.0) for row in report["tables"]["operators"])
    if not step_s or not inside or inside >= step_s:
        return None
    return calibrated(report, step_s - inside)


def _loading_s(report: Mapping[str, Any], graph: CallGraph, key: Key) -> float | None:
    """What clean steps wait for all their batches, of a function that a DataLoader calls."""
    share, step_s = wait_share(report), clean_step_s(report)
    if share is None or step_s is None or key not in graph.below(loaders(graph)):
        return None
    loading = loading_of(report, step_s, share)
    return share * step_s if loading is None else loading.wait_s


def _finding(report: Mapping[str, Any], graph: CallGraph, own: _Own, step_s: float) -> Finding:
    row = own.row
    key = (str(row["file"]), int(row["line"]), str(row["name"]))
    share = own.gain_s / step_s
    least = "" if own.agreed else "at least "
    line = heaviest_line(report, graph, key)
    evidence: list[dict[str, Any]] = [
        {
            "function": key[2],
            "file": key[0],
            "line": key[1],
            "calls": row["calls"],
            "own_low_s": own.low_s,
            "own_high_s": own.high_s,
            "corrected_self_s": row["corrected_self_s"],
            "step_share": share,
            "limits_agree": own.agreed,
            "link": to_function(*key),
        }
    ]
    if line is not None:
        place = to_source(key[0], line["line"])
        text = {"heaviest_line": line["line"], "text": line["source"]}
        evidence.append({**text, "python_s": line["python_s"], "link": place})
    evidence += _callers(graph, key)
    return finding(
        SLUG,
        f"{key[2]} spends {least}{format_seconds(own.gain_s)} of each step in Python "
        f"({format_share(share)})",
        severity=severity_of(own.gain_s, step_s),
        gain_s=own.gain_s,
        file=key[0],
        line=key[1],
        layers=("cprofile", "torch"),
        evidence=evidence,
        advice=_advice(own, key),
    )


def _callers(graph: CallGraph, key: Key) -> list[dict[str, Any]]:
    """Who calls it, the ones with most calls first; what ran all along is no row of cProfile's."""
    edges: Sequence[Any] = sorted(
        graph.callers(lambda callee: callee == key), key=lambda edge: -edge[2]["calls"]
    )
    return [
        {
            "called_by": caller[2],
            "file": caller[0],
            "line": caller[1],
            "calls": row["calls"],
            "link": to_function(*caller),
        }
        for caller, _, row in edges[:_MOST_CALLERS]
    ]


def _advice(own: _Own, key: Key) -> str:
    low, high = format_seconds(own.low_s), format_seconds(own.high_s)
    limits = low if low == high else f"{low} to {high}"
    calls = own.row["calls"]
    often = "once" if 0.5 < calls < _OFTEN else f"{format_count(calls)} times"
    loop = "its loop" if calls < _OFTEN else "the loop in it, or the one that calls it,"
    what = (
        f"{key[2]} ({short(key[0])}:{key[1]}) is called {often} a step. Replace {loop} by "
        "operations on whole tensors, or compute once, before the loop over the steps, what does "
        "not change with them."
    )
    if own.agreed:
        return f"{what} Its own time is {limits}; all of it goes away at best."
    return (
        f"{what} Its own time is {limits}: cProfile slows plain Python on this interpreter, and "
        "the smaller figure is told."
    )
