"""A finding, and what every family of rules reads from a report."""

from __future__ import annotations

import ast
import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache, cached_property, lru_cache, wraps
from typing import Literal, NamedTuple, TypeVar, cast

from profstack.code_owner import place_words
from profstack.findings.rules import FindingRule
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import (
    Evidence,
    EvidenceValue,
    Finding,
    Place,
    Report,
    RooflinePoint,
    Severity,
    StepPart,
    Tables,
)
from profstack.storage.schema.rows import CallRow, FunctionRow, GapRow, LineRow, ModuleRow
from profstack.units import format_share

# A cost below this share of the clean step is left out: two runs differ by as much.
WORTH_TELLING = 0.01
# Shares of the clean step from which a finding is severe: a fifth is what a run on other hardware
# costs, a twentieth is more than two runs of one program differ by.
_HIGH, _MEDIUM = 0.2, 0.05
_NO_NUMBER = "the figures that it would be made from are not all known"


def finding(
    rule: FindingRule,
    title: str,
    *,
    severity: Severity,
    evidence: Sequence[Mapping[str, EvidenceValue]],
    advice: str,
    layers: Iterable[str] = (),
    gain_s: float | None = None,
    gain_is: Literal["estimated", "measured"] = "estimated",
    gain_reason: str | None = None,
    rest: str | None = None,
    run_s: float | None = None,
    run_gain_s: float | None = None,
    run_gain_is: Literal["estimated", "at most"] = "estimated",
    place: Place | None = None,
    module: str | None = None,
) -> Finding:
    """Return a finding of a rule; `gain_s` is in seconds per clean step, `run_...` over the run.

    `rest` says what keeps the rest of the time that it is about, where the gain is less.
    Raises ValueError where there is neither a gain nor a `gain_reason`.
    """
    if gain_s is None and not gain_reason:
        raise ValueError(f"{rule.slug} has no gain and no reason why")
    return {
        "slug": rule.slug,
        "title": title,
        "severity": severity,
        "gain_s": gain_s,
        "gain_is": None if gain_s is None else gain_is,
        "gain_reason": gain_reason if gain_s is None else rest,
        "run_s": run_s,
        "run_gain_s": run_gain_s,
        "run_gain_is": None if run_gain_s is None else run_gain_is,
        "file": place["file"] if place else None,
        "line": place["line"] if place else None,
        "module": module,
        "layers": sorted(set(layers)),
        "evidence": [dict(row) for row in evidence],
        "advice": advice,
    }


Family = Callable[[Recorded, Report], list[Finding]]


def family(make: Callable[[Recorded, Report, float], Iterable[Finding]]) -> Family:
    """Give a family of rules the clean median in seconds; without one it makes no finding."""

    @wraps(make)
    def findings(recorded: Recorded, report: Report) -> list[Finding]:
        step_s = clean_step_s(report)
        return [] if step_s is None else list(make(recorded, report, step_s))

    return findings


def severity_of(cost_s: float, step_s: float) -> Severity:
    """Return the severity of a cost in seconds per clean step."""
    share = cost_s / step_s if step_s else 0.0
    return "high" if share >= _HIGH else "medium" if share >= _MEDIUM else "low"


def bounded(found: Finding, step_s: float | None) -> Finding:
    """Return the finding with a gain that is finite and at most the clean step."""
    gain = found["gain_s"]
    if gain is None:
        return found
    if not math.isfinite(gain):
        return {**found, "gain_s": None, "gain_is": None, "gain_reason": _NO_NUMBER}
    return {**found, "gain_s": max(min(gain, step_s or gain), 0.0)}


# Times, rows and links of a report. A link names a row of the page as `<view>/<key>`; the page
# itself escapes the key.


def clean_step_s(report: Report) -> float | None:
    """Return the clean median in seconds; None where there is none."""
    return report["benchmark"]["median_s"] or None


def host_parts(report: Report) -> dict[StepPart, float]:
    """Return the seconds of the step bar's parts; empty where the torch layer's host times lack."""
    bar = report.get("step_bar")
    if bar is None or bar["time_line"] != "host":
        return {}
    return {part["name"]: part["seconds"] for part in bar["parts"] if part["is"] != "sampled"}


def is_profiled(report: Report) -> bool:
    """Whether the steps are those of an imported trace: no time of theirs is a clean one."""
    return report["benchmark"]["mode"] == "profiled"


def calibrated(report: Report, raw_s: float | None) -> float | None:
    """Return a time per step of the torch layer's slices at the speed of the clean steps.

    None where the layer has no slice, or was disturbed too much.
    """
    found = report["attribution"]
    if found is None or raw_s is None or found["calibrated_owned_s"] is None:
        return None
    if not found["step_s"] or found["clean_median_s"] is None:
        return None
    return raw_s / found["step_s"] * found["clean_median_s"]


def why_uncalibrated(report: Report) -> str:
    """Return why `calibrated` has no times of the torch layer, in the words of the step's bar."""
    bar = report.get("step_bar")
    reason = (bar["reason"] if bar is not None else None) or ""
    return (
        reason.partition(": ")[2] or "the torch layer's slices were too few or too much disturbed"
    )


def traced_step_s(report: Report) -> float | None:
    """Return the mean step of the torch layer's slices in seconds; None where it has none."""
    return report["attribution"]["step_s"] if report["attribution"] else None


def is_import(report: Report) -> bool:
    """Return whether the recording was made from files of other tools, and not by a run."""
    return bool(report.get("imports")) and report["script"] is None


def on_accelerator(report: Report) -> bool:
    """Whether the run computed on something other than the CPU."""
    return report["environment"].get("device") not in (None, "cpu")


def backward_passes(report: Report) -> float:
    """Return the backward passes of a step, as far as they were noted."""
    setup = report["setup"]
    return (setup.get("backward_passes") or 0) / (setup["steps"] or 1)


def roofline_points(report: Report) -> list[RooflinePoint]:
    """Return the points of the roofline; empty where there is none."""
    return report["roofline"]["points"] if report["roofline"] else []


def known_peaks(report: Report) -> tuple[dict[str, float], float | None]:
    """Return operations per second by data type, and bytes per second, measured before stated."""
    peaks = report["roofline"]["peaks"] if report["roofline"] else None
    if peaks is None:
        return {}, None
    flop = {
        rate["dtype"]: rate["value"]
        for rate in reversed(peaks["flop_per_s"] or ())
        if rate["dtype"] is not None and rate["value"] is not None
    }
    memory = peaks["bytes_per_s"]
    return flop, memory[0]["value"] if memory else None


def module_rows(report: Report) -> dict[str, ModuleRow]:
    """Return the rows of `modules`, parts of a step included, by path."""
    return {row["path"]: row for row in report["tables"]["modules"]}


def gaps_by(report: Report, cause: str) -> tuple[list[GapRow], float | None]:
    """Return the device's gaps of one cause, and their calibrated time in a step."""
    gaps = [row for row in report["tables"]["gaps"] if row["cause"] == cause]
    return gaps, calibrated(report, total(gaps, "total_s"))


class FunctionKey(NamedTuple):
    """File, line and name of a function."""

    file: str
    line: int
    name: str


def key_of(row: FunctionRow) -> FunctionKey:
    """Return the key of a row of `functions`."""
    return FunctionKey(row["file"], row["line"], row["name"])


def to_source(place: Place) -> str:
    """Return the link to a line."""
    return f"source/{place['file']}:{place['line']}"


def to_function(key: FunctionKey) -> str:
    """Return the link to a function."""
    return f"python/{key.file}:{key.line}:{key.name}"


def in_words(place: Place) -> str:
    """Return a place as `train.py:12`, in a notebook as `cell 2, line 12`."""
    return place_words(place["file"], place["line"])


def in_brackets(place: Place | None) -> str:
    """Return ` (train.py:12)` for the end of a title; empty without a place."""
    return f" ({in_words(place)})" if place else ""


def line_s(row: Mapping[str, object]) -> float:
    """Return seconds per step on a line, inside operators and outside."""
    return figure(row, "python_s") + figure(row, "operator_s")


def text_of(row: LineRow) -> str:
    """Return the text of a line without its indentation; empty where it is not known."""
    return (row["source"] or "").strip()


def source_line(report: Report, file: str, line: int) -> str:
    """Return a line of a recorded file without its indentation; empty where it is not known."""
    text = text_of_file(report, file)
    lines = (text or "").splitlines()
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""


def own_lines(report: Report, pattern: re.Pattern[str]) -> list[LineRow]:
    """Return the lines of the user's own files whose text has the pattern."""
    return [
        row
        for row in report["tables"]["lines"]
        if row["own"] and pattern.search(row["source"] or "")
    ]


def own_text(report: Report, pattern: re.Pattern[str]) -> Place | None:
    """Return the first line of the user's recorded files whose text has the pattern."""
    own = {row["file"] for row in report["tables"]["lines"] if row["own"]}
    for source in report["sources"]:
        if source["file"] not in own:
            continue
        for number, text in enumerate((source["text"] or "").splitlines(), 1):
            if pattern.search(text.partition("#")[0]):
                return {"file": source["file"], "line": number}
    return None


Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row", bound=Mapping[str, object])


def figure(row: Mapping[str, object], column: str) -> float:
    """Return a figure of a report's row; 0 where it is not known."""
    return cast(float, row[column] or 0.0)


def total(rows: Iterable[Mapping[str, object]], column: str) -> float:
    """Add up a column, as far as it is known."""
    return sum((figure(row, column) for row in rows), 0.0)


def by_size(rows: Iterable[Row], column: str) -> list[Row]:
    """Sort rows by a column, the largest figure first and those that are not known last."""
    return sorted(rows, key=lambda row: -figure(row, column))


def largest(rows: Iterable[Row], column: str) -> Row | None:
    """Return the row with the largest figure in a column; None where there is no row."""
    return max(rows, key=lambda row: figure(row, column), default=None)


def sums_of(pairs: Iterable[tuple[Key, float | None]]) -> dict[Key, float]:
    """Add up the second of each pair by the first."""
    sums: dict[Key, float] = defaultdict(float)
    for key, value in pairs:
        sums[key] += value or 0.0
    return sums


def pick(row: Mapping[str, object], *columns: str) -> Evidence:
    """Return columns of a report's row, for a row of evidence."""
    return {name: cast(EvidenceValue, row[name]) for name in columns}


def line_evidence(row: LineRow, *columns: str, **figures: EvidenceValue) -> Evidence:
    """Return a row of evidence: a line with its text, further columns and figures, and its link."""
    place: Evidence = {"file": row["file"], "line": row["line"], "text": text_of(row)}
    return {**place, **pick(row, *columns), **figures, "link": to_source(row)}


def line_outside_work(report: Report, wanted: float | None) -> LineRow | None:
    """Return the line of the script that takes about this share of the step outside its work.

    What a line does in modules, in the loss or in the optimizer does not count: a line that calls
    the model may take as long.
    """
    working = sums_of(
        ((row["file"], row["line"]), line_s(row))
        for row in report["tables"]["module_lines"]
        if row["module"] not in (None, "(wait)")
    )
    lines = [row for row in report["tables"]["lines"] if row["own"] and row["python_s"] is not None]
    whole = sum(map(line_s, lines))
    if not whole or not wanted or not working:
        return None

    def outside_s(row: LineRow) -> float:
        return line_s(row) - working.get((row["file"], row["line"]), 0.0)

    first = max(lines, key=outside_s)
    return first if 0.6 * wanted <= outside_s(first) / whole <= 1.2 * wanted else None


# Functions: who calls whom, and the lines that are theirs.

_PLACE = re.compile(r"(?P<file>.*):(?P<line>\d+)\((?P<name>.*)\)$", re.DOTALL)


# Several rules read the same calls.
@lru_cache(maxsize=100_000)
def parse_function(place: str) -> FunctionKey | None:
    """Return the function that the table `calls` writes as `file:line(name)`."""
    match = _PLACE.match(place)
    return FunctionKey(match["file"], int(match["line"]), match["name"]) if match else None


class Span(NamedTuple):
    """First and last line of a function; the first is that of its first decorator.

    `qualified` is its name with that of its class.
    """

    name: str
    first: int
    last: int
    qualified: str


def text_of_file(report: Report, file: str) -> str | None:
    """Return the recorded text of a file; None where it is not known."""
    return next((row["text"] for row in report["sources"] if row["file"] == file), None)


def qualified_name(report: Report, place: Place, name: str) -> str:
    """Return the name of the function at a place with its class, as `Stats.on_train_batch_end`.

    The name alone where the text of its file is not known. Comprehensions and the like have the
    name of the function that they are in.
    """
    text = text_of_file(report, place["file"])
    span = (spans_by_line(text) or {}).get(place["line"]) if text else None
    is_inside = name.startswith("<") and name != "<module>"
    return span.qualified if span is not None and (is_inside or span.name == name) else name


# A function is below others with so much of its time; callers of callers are followed so far, or
# until no share changes by as much.
_GOOD_PART, _ROUNDS, _SETTLED = 0.2, 50, 1e-3


class CallGraph:
    """Calls between the functions of a step, by cProfile, and the functions' own lines.

    `callers_s` has the seconds of each function by caller, recursion left out.

    A function that was running when the profiler began has no row, as the one with the loop over
    the steps. Tools name a function by its first line alone: where it ends is read from the
    recorded texts, since the next function with a row need not be the next one of the file.
    """

    def __init__(self, report: Report) -> None:
        tables = report["tables"]
        self.rows = {key_of(row): row for row in tables["functions"] if row["phase"] == "step"}
        self.callees: dict[FunctionKey, list[tuple[FunctionKey, CallRow]]] = defaultdict(list)
        self.callers_s: dict[FunctionKey, dict[FunctionKey, float]] = defaultdict(dict)
        for row in tables["calls"]:
            caller, callee = parse_function(row["caller"]), parse_function(row["callee"])
            if row["phase"] == "step" and caller and callee:
                self.callees[caller].append((callee, row))
                if caller != callee:
                    self.callers_s[callee][caller] = row["total_s"] or 0.0
        self._report = report

    @cached_property
    def _spans(self) -> dict[str, dict[int, Span] | None]:
        """The functions of each file by line; only those that name lines read the texts."""
        sources = self._report["sources"]
        return {row["file"]: spans_by_line(row["text"]) for row in sources if row["text"]}

    def below(self, roots: Iterable[FunctionKey], not_by: Sequence[str] = ()) -> set[FunctionKey]:
        """Return the functions that these call, directly or not, but not by functions so named."""
        waiting, seen = list(roots), set[FunctionKey]()
        while waiting:
            caller = waiting.pop()
            if caller.name in not_by:
                continue
            called = {callee for callee, _ in self.callees.get(caller, ())}
            waiting += called - seen
            seen |= called
        return seen

    def below_in_part(
        self, roots: Iterable[FunctionKey], not_by: Sequence[str] = ()
    ) -> set[FunctionKey]:
        """Return the functions below that have a good part of their time from there.

        What calls anything, as a framework does its callbacks, is called from everywhere.
        """
        begun = frozenset(roots)
        below = self.below(begun, not_by) - begun
        # The share of each function's time that is spent below: none has less than it ends with.
        share = dict.fromkeys(begun | below, 1.0)
        for _ in range(_ROUNDS):
            before = dict(share)
            # In an order that is the same in each run.
            for key in sorted(below):
                times = self.callers_s.get(key, {})
                if not any(times.values()):
                    continue
                row_s = self.rows[key]["total_s"] if key in self.rows else None
                whole_s = max(sum(times.values()), row_s or 0.0)
                inside_s = sum(
                    seconds * share.get(caller, 0.0)
                    for caller, seconds in times.items()
                    if caller.name not in not_by
                )
                share[key] = inside_s / whole_s
            if max((before[key] - share[key] for key in below), default=0.0) < _SETTLED:
                break
        return {key for key in below if share[key] >= _GOOD_PART}

    def above(self, roots: Iterable[FunctionKey]) -> set[FunctionKey]:
        """Return the functions that call these, directly or not."""
        waiting, seen = list(roots), set[FunctionKey]()
        while waiting:
            callers = self.callers_s.get(waiting.pop(), {}).keys() - seen
            waiting += callers
            seen |= callers
        return seen

    def own_caller(self, times: Mapping[FunctionKey, float]) -> FunctionRow | None:
        """Return the user's own function that most of these times was called from, the nearest."""
        sums: dict[FunctionKey, float] = defaultdict(float)
        for key, seconds in times.items():
            at, seen = key, {key}
            while at not in self.rows or not self.rows[at]["own"]:
                times_s = self.callers_s.get(at, {})
                if not times_s.keys() - seen:
                    break
                at = max((each for each in times_s if each not in seen), key=times_s.__getitem__)
                seen.add(at)
            else:
                sums[at] += seconds
        return self.rows[max(sums, key=sums.__getitem__)] if sums else None

    def span_around(self, place: tuple[str, int]) -> Span | None:
        """Return the innermost function that a line of a file is in."""
        file, line = place
        return (self._spans.get(file) or {}).get(line)

    def is_own_line(self, key: FunctionKey, place: tuple[str, int]) -> bool:
        """Whether a line is a function's own, and not of a function defined within it."""
        span = self.span_around(place)
        return span is not None and (place[0], span.first, span.name) == key

    def function_around(self, place: Place) -> FunctionKey | None:
        """Return the profiled function that a line is in.

        None where the text of the file is not known, and for a function without a row.
        """
        span = self.span_around((place["file"], place["line"]))
        key = None if span is None else FunctionKey(place["file"], span.first, span.name)
        return key if key in self.rows else None

    def lines_of(self, key: FunctionKey) -> list[LineRow]:
        """Return the rows of `lines` that are a function's own.

        Where the text of its file is not known, all up to the next function that has a row.
        """
        rows = [row for row in self._report["tables"]["lines"] if row["file"] == key.file]
        if self._spans.get(key.file) is not None:
            return [row for row in rows if self.is_own_line(key, (row["file"], row["line"]))]
        later = [line for file, line, _ in self.rows if file == key.file and line > key.line]
        return [row for row in rows if key.line <= row["line"] < min(later, default=math.inf)]

    def heaviest_line(self, key: FunctionKey) -> LineRow | None:
        """Return a function's line with most time; None where not all its runs were followed."""
        inside = self.lines_of(key)
        followed = not any(row["reason"] for row in inside)
        return max(inside, key=line_s, default=None) if followed else None


def parse_source(text: str) -> ast.Module | None:
    """Return the syntax tree of a text; None where it is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        return None


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def spans_by_line(text: str) -> dict[int, Span] | None:
    """Return the innermost function of each line that has one; None of what is no Python."""
    tree = parse_source(text)
    if tree is None:
        return None
    spans = []
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    for node, prefix in waiting:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _FUNCTIONS):
                first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                last = child.end_lineno or child.lineno
                spans.append(Span(child.name, first, last, prefix + child.name))
            inside = f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix
            waiting.append((child, "" if isinstance(child, _FUNCTIONS) else inside))
    found: dict[int, Span] = {}
    for span in sorted(spans, key=lambda span: span.first):
        # What is defined within a function begins after it.
        found.update(dict.fromkeys(range(span.first, span.last + 1), span))
    return found


# An idle device waits for the host: a step is shorter for work saved on the device only where the
# device is busy for most of it.
BUSY_SHARE = 0.8
HOST_BOUND = (
    f"the device is idle for more than {format_share(1 - BUSY_SHARE)} of the step: the host sets "
    "the pace, and what it saves is not measured"
)


def is_device_bound(report: Report) -> bool:
    """Whether kernels run for most of the step, by the torch layer's slices."""
    rows = [row for row in report["tables"]["launches"] if row["device_busy_s"] is not None]
    busy = total(rows, "device_busy_s")
    return busy > 0 and busy >= BUSY_SHARE * (busy + total(rows, "device_idle_s"))


# Columns without which no rule can name or link a row.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "modules": ("path", "depth"),
    "operators": ("name",),
    "kernels": ("name",),
    "functions": ("file", "line", "name"),
    "calls": ("caller", "callee", "calls"),
    "lines": ("file", "line"),
    "module_lines": ("file", "line"),
    "regions": ("path",),
}


def drop_unkeyed(report: Report) -> Report:
    """Drop rows whose key columns are null; all else are the report's own objects.

    Recordings that were cut short, or made by another version, may hold such rows.
    """
    tables = cast(dict[str, list[dict[str, object]]], report["tables"])
    kept = {
        name: [row for row in tables.get(name, ()) if None not in map(row.get, keys)]
        for name, keys in _KEYS.items()
    }
    return {**report, "tables": cast(Tables, tables | kept)}
