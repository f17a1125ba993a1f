"""Functions and modules that take a good part of the step by themselves.

A function's own time is cProfile's, less what profiling adds to its calls and to those that it
makes, less the operators that it calls by signs (`a @ b` is no call to cProfile), and with the
built-in functions that it calls where each takes next to nothing: their price is that of a call. So
it is with a library's Python that it calls for each item, as `random`'s, and with whatever takes a
few microseconds an item, as the iterators of pandas: these go with the loop. C
code that cProfile does not see (NumPy's ufuncs, methods of Cython) would be in it too, so that it
is no more than the lines that the function ran can take.

Profiling slows plain Python by up to a factor that was measured in that process. So the truth lies
between that time over the factor and that time, and below all of the step that the torch layer,
which slows no Python, saw outside operators. In a wait that the clean steps measure it is no less
than what the other functions of the wait leave of it, since cProfile makes these longer and never
shorter. Where the limits are near to each other the gain is the function's calibrated own time, or
their geometric mean where that is not between them; else it is the lower one, and the finding says
so.

Functions never take more than what holds them: those that a DataLoader calls have their part of the
loading, and the others share the Python of the step's bar, with the wait if they run in it.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from profstack.analysis.functions import COST
from profstack.code_owner import BUILTIN_FILE
from profstack.findings import known_calls, reading, rules
from profstack.findings.data_loading import loaders, loading_of, outermost, wait_share
from profstack.findings.step_bar import DATA_WAIT, WAITS
from profstack.storage.reader import Recorded, known_sum
from profstack.storage.schema.report import Evidence, Finding, Report, StepPart
from profstack.storage.schema.rows import CallRow, FunctionRow, ModuleRow
from profstack.units import format_count, format_seconds, format_share

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


class _OwnTime(NamedTuple):
    """A function's own Python time per step: no less than `low_s`, no more than `high_s`."""

    key: reading.FunctionKey
    row: FunctionRow
    low_s: float
    high_s: float
    # Whether both limits are about the same, and the time that would be saved.
    agreed: bool
    gain_s: float
    # Whether a good part of it is in what a library does for each item.
    with_library: bool

    def times(self, factor: float) -> _OwnTime:
        """Return it with all its times multiplied."""
        low_s, high_s, gain_s = (factor * each for each in (self.low_s, self.high_s, self.gain_s))
        return self._replace(low_s=low_s, high_s=high_s, gain_s=gain_s)


@reading.family
def hot_spots(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield a finding for each of the functions, the one with most time first."""
    graph = reading.CallGraph(report)
    least_s = rules.PYTHON_HOT_SPOT.threshold * step_s
    held = _Holders(report, graph, step_s)
    found = [
        _own_time(recorded.facts.get(COST), report, graph, key, held)
        for key, row in graph.rows.items()
        # The others cannot reach the limit, whatever the rest of it is.
        if row["own"] and (row["self_s"] or 0.0) + _builtins_s(graph, key) >= least_s
    ]
    kept = held.scaled([each for each in found if each is not None])
    hot = [each for each in kept if each.gain_s >= least_s]
    for each in sorted(hot, key=lambda each: -each.gain_s)[:_MOST]:
        yield _finding(report, graph, each, step_s, held.part(each))


def _builtins_s(graph: reading.CallGraph, key: reading.FunctionKey) -> float:
    """Return the time of the built-in functions that a function calls."""
    called = graph.callees.get(key, ())
    return reading.total((row for callee, row in called if callee.file == BUILTIN_FILE), "self_s")


def _beside_s(report: Report, graph: reading.CallGraph) -> float:
    """Return what was seen in a step beside the model's work; infinite where lines are not known.

    By cProfile these are the user's own functions there, and built-in functions that the loop calls
    itself. The loop's own lines, with a library's Python that they call, the torch layer followed.
    """
    lines = [row for row in report["tables"]["module_lines"] if row["module"] in (None, "(wait)")]
    if not lines:
        return math.inf
    loop_s = sum(
        row["python_s"] or 0.0
        for row in lines
        if (around := graph.function_around(row)) is None or around not in graph.rows
    )
    called: dict[reading.FunctionKey, float] = defaultdict(float)
    for edges in graph.callees.values():
        for callee, edge in edges:
            called[callee] += edge["self_s"] or 0.0
    built_in = (
        max((row["self_s"] or 0.0) - called[key], 0.0)
        for key, row in graph.rows.items()
        if key.file == BUILTIN_FILE
    )
    own_s = reading.total((graph.rows[key] for key in outermost(graph)), "total_s")
    return loop_s + own_s + sum(built_in)


# From so many calls a step on a library's function is a part of the loop that calls it, and so it
# is, whatever it calls, where it takes no longer than this.
_IN_LOOP, _AN_ITEM_S = 8.0, 3e-6
# From this share of a function's time on what libraries do for each item is named.
_NAMED = 0.1
_WITH = ", with what libraries do for each of its items,"
_OPERATORS = re.compile(r"[/\\](?:torch|numpy)[/\\]")


def _library_s(graph: reading.CallGraph, key: reading.FunctionKey, cost: Any) -> float:
    """Return the time of a library's functions that a function calls again and again.

    They go with the loop that calls them for each item: they take next to nothing, or are Python,
    as those of `random`, and call no built-in function that takes its time.
    """
    found_s = 0.0
    for callee, edge in graph.callees.get(key, ()):
        calls, total_s = edge["calls"] or 0.0, edge["total_s"] or 0.0
        row = graph.rows.get(callee)
        if row is None or row["own"] is not False or callee.file == BUILTIN_FILE:
            continue
        if calls < _IN_LOOP or _OPERATORS.search(callee.file):
            continue
        left_s = total_s - calls * cost["python"]["inner_s"]
        if left_s < calls * _AN_ITEM_S or _is_plain(graph, callee, cost["builtin"]["inner_s"]):
            found_s += max(left_s, 0.0)
    return found_s


def _is_plain(graph: reading.CallGraph, key: reading.FunctionKey, inner_s: float) -> bool:
    """Whether a library's function is Python throughout."""
    for each in {key, *graph.below([key])}:
        row = graph.rows.get(each)
        if row is None or each.file == BUILTIN_FILE:
            continue
        built_in = [c for c, edge in graph.callees.get(each, ()) if c.file == BUILTIN_FILE]
        is_short = len(_short_calls(graph, each, inner_s)) == len(built_in)
        if row["own"] is not False or _OPERATORS.search(each.file) or not is_short:
            return False
    return True


class _Holders:
    """What of the clean step functions are held by, in seconds."""

    def __init__(self, report: Report, graph: reading.CallGraph, step_s: float) -> None:
        self._graph = graph
        self._loaded = graph.below(loaders(graph))
        whole_s = reading.total((graph.rows[key] for key in loaders(graph)), "total_s")
        share = wait_share(report)
        loading = None if share is None else loading_of(report, step_s, share)
        # Clean seconds of a second that cProfile saw in loading.
        self._pace = loading.load_s / whole_s if loading is not None and whole_s else None
        self._waited_s = None if share is None else share * step_s
        if loading is not None:
            self._waited_s = loading.load_s
        # What cProfile saw in the wait: the loading, or all that is done beside the model's work.
        self._whole_s = whole_s if loading is not None else _beside_s(report, graph)
        self._python_s = self._outside_s = None
        parts = reading.host_parts(report)
        # The part of the bar that the step begins with; functions outside the model's work can be
        # in it where it is not a loader's.
        wait = self._wait = next((name for name in WAITS if name in parts), None)
        if "Python" in parts:
            self._python_s = parts["Python"]
            wait_s = 0.0 if wait is None or wait == DATA_WAIT else parts[wait]
            self._outside_s = self._python_s + wait_s + parts.get("other", 0.0)
        self._working = {
            (row["file"], row["line"])
            for row in report["tables"]["module_lines"]
            if row["module"] not in (None, "(wait)")
        }

    def limit_s(self, key: reading.FunctionKey, library_s: float = 0.0) -> float | None:
        """Return the most that a function can take; None where it is not known.

        `library_s` is the time of what it calls for each item.
        """
        if key not in self._loaded:
            return self._of_bar(key)
        if self._pace is None or self._waited_s is None:
            return self._waited_s
        row = self._graph.rows[key]
        own_s = (row["self_s"] or 0.0) + _builtins_s(self._graph, key) + library_s
        return min(own_s * self._pace, self._waited_s)

    def least_s(self, key: reading.FunctionKey, own_s: float) -> float:
        """Return what other functions leave of the wait; 0 for what is not in it.

        `own_s` is the function's own time as cProfile saw it, its built-in functions included.
        """
        is_loaded = key in self._loaded
        if self._waited_s is None or is_loaded is (self._pace is None) or self._in_work(key):
            return 0.0
        return max(self._waited_s - max(self._whole_s - own_s, 0.0), 0.0)

    def part(self, own: _OwnTime) -> StepPart | None:
        """Return the part of the step's bar that holds a function, where it is not its Python."""
        if own.key in self._loaded:
            return self._wait
        is_more = self._python_s is not None and own.gain_s > self._python_s
        return self._wait if is_more and not self._in_work(own.key) else None

    def _in_work(self, key: reading.FunctionKey) -> bool:
        lines = self._graph.lines_of(key)
        return any((row["file"], row["line"]) in self._working for row in lines)

    def _of_bar(self, key: reading.FunctionKey) -> float | None:
        return self._python_s if self._in_work(key) else self._outside_s

    def scaled(self, found: Sequence[_OwnTime]) -> list[_OwnTime]:
        """Return the own times, smaller where together they are more than the bar has."""
        others = [each for each in found if each.key not in self._loaded]
        limits = [limit for each in others if (limit := self._of_bar(each.key)) is not None]
        whole_s = sum(each.gain_s for each in others)
        factor = min(1.0, max(limits, default=whole_s) / whole_s) if whole_s else 1.0
        return [each if each.key in self._loaded else each.times(factor) for each in found]


def _short_calls(
    graph: reading.CallGraph, key: reading.FunctionKey, inner_s: float
) -> list[CallRow]:
    """Return the calls of built-in functions that take next to nothing beyond `inner_s`."""
    return [
        each
        for callee, each in graph.callees.get(key, ())
        if callee.file == BUILTIN_FILE
        and each["calls"]
        and (each["self_s"] or 0.0) / each["calls"] - inner_s < _SHORT_S
    ]


def _own_time(
    cost: Any, report: Report, graph: reading.CallGraph, key: reading.FunctionKey, held: _Holders
) -> _OwnTime | None:
    """Return the limits of a function's own Python time; None where cProfile does not give it."""
    row = graph.rows[key]
    corrected = row["corrected_self_s"]
    if corrected is None or cost is None:
        return None
    inner_s = cost["builtin"]["inner_s"]
    short = _short_calls(graph, key, inner_s)
    cheap = sum(max(0.0, (each["self_s"] or 0.0) - each["calls"] * inner_s) for each in short)
    library_s = _library_s(graph, key, cost)
    lines = graph.lines_of(key)
    # Of the operators on its lines those that no built-in call made were made by signs.
    by_sign = reading.total(lines, "operator_s") - _builtins_s(graph, key)
    counts = [each["calls"] for each in lines if each["python_s"] is not None]
    lines_run = sum(count or 0.0 for count in counts)
    # Where lines ran fewer times than the function was called, not all calls were followed.
    if not counts or None in counts or lines_run < (row["calls"] or 0.0):
        lines_run = math.inf
    own_s = min(corrected - max(0.0, by_sign), _LINE_S * lines_run)
    if own_s <= 0:
        return None
    slowed = max(1.0, float(cost["bytecode_factor"]))
    # No more than the step has outside operators, where the torch layer gives that.
    traced_s = reading.traced_step_s(report) or 0.0
    inside = reading.total(report["tables"]["operators"], "self_s")
    outside = reading.calibrated(report, traced_s - inside) if 0 < inside < traced_s else None
    limit_s = held.limit_s(key, library_s)
    most_s = own_s + cheap + library_s
    high_s = min(each for each in (most_s, outside, limit_s) if each is not None)
    seen_s = (row["self_s"] or 0.0) - max(0.0, by_sign) + reading.total(short, "self_s")
    seen_s += library_s
    low_s = (own_s + library_s) / slowed + cheap
    low_s = min(max(low_s, held.least_s(key, seen_s)), high_s)
    agreed, with_library = high_s <= _NEAR * low_s, library_s > _NAMED * most_s
    gain_s = low_s
    if agreed:
        # One time for one function: that of its row, where it may be true.
        calibrated_s = row["calibrated_s"] or 0.0
        known = low_s <= calibrated_s <= high_s and not with_library
        gain_s = calibrated_s if known else math.sqrt(low_s * high_s)
    return _OwnTime(key, row, low_s, high_s, agreed, gain_s, with_library)


def _finding(
    report: Report,
    graph: reading.CallGraph,
    own: _OwnTime,
    step_s: float,
    part: StepPart | None,
) -> Finding:
    """Return the finding; `part` of the step's bar holds its time, None where Python does."""
    key, row = own.key, own.row
    share = own.gain_s / step_s
    inside = f", inside '{part}'" if part is not None else ""
    least = "" if own.agreed else "at least "
    line, name = graph.heaviest_line(key), reading.qualified_name(report, row, key.name)
    evidence: list[Evidence] = [
        {
            "function": key.name,
            **reading.pick(row, "file", "line", "calls"),
            "own_low_s": own.low_s,
            "own_high_s": own.high_s,
            "corrected_self_s": row["corrected_self_s"],
            "step_share": share,
            **({"inside": part} if part is not None else {}),
            "limits_agree": own.agreed,
            "link": reading.to_function(key),
        }
    ]
    if line is not None:
        heaviest: Evidence = {"heaviest_line": line["line"], "text": line["source"]}
        evidence.append({**heaviest, "link": reading.to_source(line)})
    # Those with most calls first; what ran all along is no row of cProfile's.
    edges = ((caller, edge) for caller, called in graph.callees.items() for edge in called)
    callers = [(caller, call) for caller, (callee, call) in edges if callee == key]
    callers.sort(key=lambda each: -reading.figure(each[1], "calls"))
    evidence += [
        {
            "called_by": caller.name,
            "file": caller.file,
            "line": caller.line,
            "calls": call["calls"],
            "link": reading.to_function(caller),
        }
        for caller, call in callers[:_MOST_CALLERS]
    ]
    return reading.finding(
        rules.PYTHON_HOT_SPOT,
        f"{name}{_WITH if own.with_library else ''} spends {least}"
        f"{format_seconds(own.gain_s)} of each step in Python ({format_share(share)}{inside})",
        severity=reading.severity_of(own.gain_s, step_s),
        gain_s=own.gain_s,
        place=row,
        layers=("cprofile", "torch"),
        evidence=evidence,
        advice=known_calls.hint(report, line or row) + _advice(own, name),
    )


def _advice(own: _OwnTime, name: str) -> str:
    calls = own.row["calls"] or 0.0
    low, high = format_seconds(own.low_s), format_seconds(own.high_s)
    limits = low if low == high else f"{low} to {high}"
    time = f"time{_WITH}" if own.with_library else "own time"
    often = "once" if 0.5 < calls < _OFTEN else f"{format_count(calls)} times"
    loop = f"the loop in {name}" + ("" if calls < _OFTEN else ", or the one that calls it,")
    end = ": cProfile slows plain Python on this interpreter, and the smaller figure counts."
    if own.agreed:
        end = "; all of it goes away at best."
    return (
        f"Replace {loop} by operations on whole tensors, or compute once, before the loop over the "
        f"steps, what does not change with them. {name}{reading.in_brackets(own.row)} is called "
        f"{often} a step. Its {time} is {limits}{end}"
    )


# One module that takes most of the step, out of proportion to the others. Own time counts, without
# children: a container whose child has it all is no finding, the child is. A module is held against
# those of its own class: what they take for as much work (floating-point operations, or where those
# are not counted bytes moved) is what it should take. A model that is one big layer is no finding:
# its work is as big as its time. A module that is the only one of its class has no gain.

# Modules that are alike differ by the sizes of what they work on, by caches and by noise: by less
# than this. A fair share is what its equals take.
_TIMES_FAIR = 3.0
_FEWEST_EQUALS = 2
# Operations of different kinds run at rates that differ by up to this on one machine.
_OUT_OF_PROPORTION = 5.0
_MOST_MODULES = 5


class _ModuleTime(NamedTuple):
    """A module with its own time per step as the torch layer saw it, and its work."""

    path: str
    kind: str
    own_s: float
    flop: float | None
    moved_bytes: float | None


def dominating(recorded: Recorded, report: Report) -> list[Finding]:
    """Return the finding where one module has most of the step."""
    step_s = reading.traced_step_s(report)
    modules = _module_times(report)
    if not step_s or len(modules) < 2:
        return []
    first = max(modules, key=lambda each: each.own_s)
    share = first.own_s / step_s
    if share < rules.MODULE_DOMINATES.threshold:
        return []
    equals = [each for each in modules if each.kind == first.kind and each is not first]
    if len(equals) < _FEWEST_EQUALS:
        return _alone(report, first, share)
    fair = None
    # What it would take at the pace of its equals, where their work is known.
    for own, works in (
        (first.flop, [each.flop for each in equals]),
        (first.moved_bytes, [each.moved_bytes for each in equals]),
    ):
        paces = [each.own_s / work for each, work in zip(equals, works, strict=True) if work]
        if fair is None and own and len(paces) >= _FEWEST_EQUALS:
            fair = median(paces) * own
    if fair is None or first.own_s < _TIMES_FAIR * fair:
        return []
    return [_among_equals(report, first, equals, fair, share)]


def _module_times(report: Report) -> list[_ModuleTime]:
    """Return the modules that ran, with their own time: on the device where there is one."""
    moved = {
        point["name"]: point["moved_bytes"]
        for point in reading.roofline_points(report)
        if point["kind"] == "module"
    }
    rows = [row for row in report["tables"]["modules"] if not row["path"].startswith("(")]
    inside = reading.sums_of((row["path"].rpartition(".")[0], _device_s(row)) for row in rows)
    found = []
    for row in rows:
        own = row["self_s"]
        if reading.on_accelerator(report):
            own = max(0.0, _device_s(row) - inside.get(row["path"], 0.0))
        if own:
            count = known_sum((row["forward_flop"], row["backward_flop"]))
            flop = None if count is None else float(count)
            found.append(_ModuleTime(row["path"], row["type"], own, flop, moved.get(row["path"])))
    return found


def _device_s(row: ModuleRow) -> float:
    return (row["forward_device_s"] or 0.0) + (row["backward_device_s"] or 0.0)


def _among_equals(
    report: Report, first: _ModuleTime, equals: Sequence[_ModuleTime], fair: float, share: float
) -> Finding:
    alike = sorted(equals, key=lambda each: -each.own_s)[:_MOST_MODULES]
    return reading.finding(
        rules.MODULE_DOMINATES,
        f"{first.path} takes {format_share(share)} of the step: "
        f"{first.own_s / fair:.1f} times its due",
        severity=reading.severity_of((1.0 - fair / first.own_s) * share, 1.0),
        gain_s=reading.calibrated(report, first.own_s - fair),
        gain_reason=reading.why_uncalibrated(report),
        rest=f"its work still takes {format_share(share * fair / first.own_s)} of the step",
        module=first.path,
        layers=("torch",),
        evidence=[
            _row(first) | {"step_share": share, "fair_s": fair, "equals": len(equals)},
            *(_row(each) for each in alike),
        ],
        advice=f"The other {len(equals)} modules of class {first.kind} take {format_seconds(fair)} "
        f"for as much work as {first.path} does in {format_seconds(first.own_s)}. Look at its "
        "operators and lines for what it does and they do not: a check or a log left on, another "
        "dtype or memory layout, values so small that they are computed slowly (denormal numbers).",
    )


def _row(each: _ModuleTime) -> Evidence:
    return {
        "module": each.path,
        "type": each.kind,
        "own_s": each.own_s,
        "flop": each.flop,
        "link": f"modules/{each.path}",
    }


def _alone(report: Report, first: _ModuleTime, share: float) -> list[Finding]:
    """Return the finding on a module without equals, where its work is small for its time."""
    points = reading.roofline_points(report)
    step = next((point for point in points if point["kind"] == "step"), None)
    if step is None or not step["flop"] or not step["moved_bytes"] or not first.moved_bytes:
        return []
    uncounted = [each for row in report["tables"]["flops"][:1] for each in row["uncounted"] or ()]
    if first.flop is None and any(each["time_share"] for each in uncounted):
        # It may well be its work that was not counted.
        return []
    flop_share = (first.flop or 0.0) / step["flop"]
    bytes_share = first.moved_bytes / step["moved_bytes"]
    if max(flop_share, bytes_share) * _OUT_OF_PROPORTION > share:
        return []
    return [
        reading.finding(
            rules.MODULE_DOMINATES,
            f"{first.path} takes {format_share(share)} of the step for "
            f"{format_share(max(flop_share, bytes_share))} of its work",
            severity="medium",
            gain_reason=f"no other module of class {first.kind} says what it should take",
            module=first.path,
            layers=("torch",),
            evidence=[
                _row(first)
                | {"step_share": share, "flop_share": flop_share, "bytes_share": bytes_share}
            ],
            advice=f"{first.path} has {format_share(share)} of the step's time, "
            f"{format_share(flop_share)} of its operations and {format_share(bytes_share)} of the "
            "bytes it moves: look at its operators for "
            "many small ones, copies between layouts, or work that could be done once.",
        )
    ]
