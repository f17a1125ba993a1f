"""Gates: limits that a change must keep, as `--fail-if` and a project's settings have them.

    step > 5%                      broken if a step takes over 5 % longer than before
    throughput < -5%               broken if throughput falls by more than 5 %; `< 5%` is the same
    peak memory > 900 MiB          broken if the second side's figure is above 900 MiB
    findings > +0                  broken if there are more of them than before
    module:encoder.layer.0 > 10%   of a module with all that is inside it, by its path
    operator:aten::mm > 5%         of an operator, all its shapes together

A rule is broken where the whole interval is beyond its limit, kept where none of it is, and unclear
otherwise: noise breaks no rule, and keeps none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

import numpy as np

from profstack.code_owner import place_words
from profstack.compare.inequalities import step_flop
from profstack.compare.noise import Noise
from profstack.compare.sides import Side, run_rows
from profstack.compare.tables import unmeasured
from profstack.errors import UsageError
from profstack.findings.reading import figure, sums_of
from profstack.storage.schema.comparison import (
    Change,
    ComparedFinding,
    GateResult,
    PartChange,
)
from profstack.storage.schema.report import Report
from profstack.units import format_bytes, format_count, format_seconds

Read = Callable[[Report], float | None]
Kind = Literal["time", "bytes", "flop", "count", "rate"]
Measure = Literal["ratio", "difference", "value"]

_STARTING = ("start-up and imports", "model and data set-up", "first step and compilation")


@dataclass(frozen=True)
class GatedFigure:
    """A figure that a rule can be about; `exact` where processes of one program have the same.

    `read` gives it of one recording; None where it is chosen or counted over whole sides.
    """

    kind: Kind
    read: Read | None = None
    exact: bool = False


def _peak(report: Report) -> float | None:
    """Return the bytes of all tensors at the peak of a step, on the device that holds most."""
    found: dict[str, float] = {}
    for row in report["tables"]["memory_owners"]:
        found[str(row["device"])] = found.get(str(row["device"]), 0.0) + (row["peak_bytes"] or 0.0)
    return max(found.values(), default=None)


def _start_up(report: Report) -> float | None:
    found = [part["wall_s"] for part in run_rows(report) if part["part"] in _STARTING]
    return sum(found) if found else None


FIGURES: Mapping[str, GatedFigure] = {
    "step": GatedFigure("time"),
    "run": GatedFigure("time"),
    "throughput": GatedFigure("rate"),
    "p99": GatedFigure("time", lambda report: report["benchmark"]["p99_s"]),
    "peak memory": GatedFigure("bytes", _peak, exact=True),
    "FLOP": GatedFigure("flop", step_flop, exact=True),
    "start-up": GatedFigure("time", _start_up),
    "findings": GatedFigure("count", exact=True),
}
_ALIASES = {"memory": "peak memory", "startup": "start-up", "start up": "start-up", "flops": "FLOP"}
# What is named by a path or a name of its own.
_NAMED = ("module", "operator")
_OF_NAMED: Kind = "time"

_UNITS: Mapping[Kind, Mapping[str, float]] = {
    "time": {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0},
    "bytes": {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 1e3, "MB": 1e6, "GB": 1e9},
    "flop": {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "FLOP": 1, "kFLOP": 1e3,
             "MFLOP": 1e6, "GFLOP": 1e9, "TFLOP": 1e12},
    "count": {"": 1},
    "rate": {"/s": 1, "k/s": 1e3, "M/s": 1e6},
}  # fmt: skip
_SHOWN: Mapping[Kind, Callable[[float | None], str]] = {
    "time": format_seconds,
    "bytes": format_bytes,
    "flop": lambda value: f"{format_count(value)} FLOP",
    "count": format_count,
    "rate": lambda value: f"{format_count(value)}/s",
}
_RULE = re.compile(r"(.+?)\s*([<>])\s*([+-]?)\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*(\S*)")
_HOW = "write such as 'step > 5%', 'peak memory > 900 MiB' or 'module:encoder.layer.0 > 10%'"


# Rules --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A limit of one figure.

    `measure` is what the limit is compared with: the relative or the absolute change, or the
    second side's value.
    """

    text: str
    figure: str
    name: str
    above: bool
    limit: float
    measure: Measure
    kind: Kind

    def meaning(self) -> str:
        """Return the rule's limit in words, such as `more than 5 % above before`."""
        way = "above" if self.above else "below"
        if self.measure == "ratio":
            return f"{way} {100 * self.limit:+g} %"
        shown = _SHOWN[self.kind](abs(self.limit))
        if self.measure == "value":
            return f"{way} {shown}"
        return f"{way} {'-' if self.limit < 0 else '+'}{shown}"


def parse(text: str) -> Rule:
    """Return the rule of a text; raise UsageError, with what can be written, for a wrong one."""
    found = _RULE.fullmatch(text.strip())
    if found is None:
        raise _wrong(text, "it is no limit", _HOW)
    what, sign, plus, number, unit = found.groups()
    name, kind = "", _OF_NAMED
    if what.partition(":")[0].strip().lower() in _NAMED and ":" in what:
        what, _, name = (part.strip() for part in what.partition(":"))
        what = what.lower()
        if not name:
            raise _wrong(text, f"it names no {what}", f"write such as '{what}:NAME > 5%'")
    else:
        what = _figure_name(text, what)
        kind = FIGURES[what].kind
    value, above = float(number), sign == ">"
    if unit == "%":
        # A fall is what `< 5%` means: for a rise nobody writes it.
        falls = plus == "-" or (not above and not plus)
        return Rule(text, what, name, above, (-value if falls else value) / 100.0, "ratio", kind)
    units = _UNITS[kind]
    if unit not in units:
        known = ", ".join(each for each in ("%", *units) if each)
        if not unit:
            raise _wrong(text, f"{what} needs a unit: {known}", _HOW)
        raise _wrong(text, f"{unit} is no unit of {what}", f"its units are {known}")
    value *= units[unit]
    measure: Measure = "difference" if plus else "value"
    return Rule(text, what, name, above, -value if plus == "-" else value, measure, kind)


def parse_all(texts: Iterable[str]) -> list[Rule]:
    """Return the rules of all texts."""
    return [parse(text) for text in texts]


def _figure_name(text: str, what: str) -> str:
    plain = " ".join(what.replace("_", " ").split()).lower()
    known = {name.lower(): name for name in FIGURES}
    name = known.get(plain) or known.get(plain.replace(" ", "-")) or _ALIASES.get(plain)
    if name is None:
        listed = ", ".join((*FIGURES, "module:PATH", "operator:NAME"))
        raise _wrong(text, f"there is no figure {what!r}", f"the figures are {listed}")
    return name


def _wrong(text: str, what: str, next_step: str) -> UsageError:
    return UsageError(what, where=f"--fail-if {text!r}", next_step=next_step)


def step_limits(rules: Iterable[Rule]) -> list[float]:
    """Return the ratios of steps that rules are about, to measure until each is decided."""
    found = (rule for rule in rules if rule.figure == "step" and rule.measure == "ratio")
    return sorted({1.0 + rule.limit for rule in found})


# Judge --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """What rules are judged by: both sides, their noise, matched modules, parts and findings.

    `modules` gives the path on the first side for one of the second, where it has another, and
    `module_place` the place of one by its path.
    `counts` are the findings that most recordings of each side have.
    """

    before: Side
    after: Side
    noise: Noise
    modules: Mapping[str, str]
    module_place: Callable[[str], tuple[str, int] | None] = lambda path: None
    parts: Sequence[PartChange] = ()
    findings: Sequence[ComparedFinding] = ()
    counts: tuple[int, int] = (0, 0)


def judge(rules: Iterable[Rule], evidence: Evidence) -> list[GateResult]:
    """Return what became of each rule.

    Raise UsageError for a module or operator that neither side has: such a rule guards nothing.
    """
    return [_judged(rule, evidence) for rule in rules]


def _judged(rule: Rule, evidence: Evidence) -> GateResult:
    change = _change(rule, evidence)
    interval = _interval(rule, change)
    if interval is None:
        result: Literal["kept", "broken", "unclear"] = "unclear"
    else:
        _, low, high = interval
        beyond = [value > rule.limit if rule.above else value < rule.limit for value in (low, high)]
        result = "broken" if all(beyond) else "unclear" if any(beyond) else "kept"
    file, line = _place(rule, change, evidence) if result == "broken" else (None, None)
    text = _words(rule, change, interval, result)
    if file is not None:
        text += f"; {place_words(file, line)}"
    return GateResult(rule=rule.text, result=result, change=change, text=text, file=file, line=line)


def _interval(rule: Rule, change: Change) -> tuple[float, float, float] | None:
    """Return what the rule limits, with the ends of its interval; None where it is not known."""
    before, after, difference = change["before"], change["after"], change["difference"]
    low, high = change["low"], change["high"]
    if after is None or difference is None or low is None or high is None:
        return None
    if rule.measure == "difference":
        return difference, low, high
    if rule.measure == "value":
        # The second side alone varies by less than the difference of both.
        return after, after + (low - difference), after + (high - difference)
    if not before:
        # Nothing to be a part of: none before and none after is no change.
        return None if after else (0.0, 0.0, 0.0)
    return difference / before, low / before, high / before


def _words(
    rule: Rule, change: Change, interval: tuple[float, float, float] | None, result: str
) -> str:
    if interval is None:
        return f"cannot tell: {change['reason'] or 'the first side has none'}"
    value, low, high = interval
    show = _SHOWN[rule.kind]
    before, after = show(change["before"]), show(change["after"])
    said = f"{before} -> {after}"
    if rule.measure == "ratio":
        said += f", {100 * value:+.1f} %"
        ends = f"{100 * low:+.1f} to {100 * high:+.1f}"
    else:
        said += f", {_signed(rule, show, value)}" if rule.measure == "difference" else ""
        ends = f"{_signed(rule, show, low)} to {_signed(rule, show, high)}"
    said += f" ({ends})" if low != high else ""
    state = {"kept": "not", "broken": "it is", "unclear": "too near to tell whether it is"}[result]
    return f"{said}: {state} {rule.meaning()}"


def _signed(rule: Rule, show: Callable[[float | None], str], value: float) -> str:
    plus = "+" if rule.measure == "difference" and value >= 0 else ""
    return f"{plus}{show(value)}"


def _place(
    rule: Rule, change: Change, evidence: Evidence
) -> tuple[str, int | None] | tuple[None, None]:
    """Return the place that explains most of a figure's change; none where it is not known."""
    grown = (change["difference"] or 0.0) > 0
    if rule.figure == "findings":
        for each in evidence.findings:
            if each["kind"] == "finding" and each["status"] == "new" and each["file"] is not None:
                return each["file"], each["line"]
    if rule.figure == "module":
        now = _module_path(rule, evidence)
        return evidence.module_place(now) or (None, None)
    if rule.figure == "operator":
        module = _operator_module(rule.name, evidence, sign=1.0 if grown else -1.0)
        return (module and evidence.module_place(module)) or (None, None)
    if rule.kind not in ("time", "rate"):
        return None, None
    of = "run" if rule.figure in ("run", "start-up") else "step"
    slower = grown if rule.kind == "time" else not grown
    found = [
        part
        for part in evidence.parts
        if part["of"] == of
        and part["file"] is not None
        and part["beyond_noise"]
        and (part["difference_s"] > 0) == slower
    ]
    if not found:
        return None, None
    most = max(found, key=lambda part: abs(part["difference_s"]))
    return (most["file"], most["line"]) if most["file"] is not None else (None, None)


# Figures ------------------------------------------------------------------------------------------


def _change(rule: Rule, evidence: Evidence) -> Change:
    before, after = evidence.before, evidence.after
    if rule.figure in ("step", "run"):
        return _whole("step" if rule.figure == "step" else "run", evidence)
    exact = rule.figure in FIGURES and FIGURES[rule.figure].exact
    values = _values(rule, evidence)
    return _difference(values, evidence.noise, _scale(rule, before, after), exact=exact)


def _values(rule: Rule, evidence: Evidence) -> list[list[float]]:
    """Return the figure of each recording that has it, for each side."""
    before, after = evidence.before, evidence.after
    if rule.figure == "findings":
        return [[float(count)] for count in evidence.counts]
    if rule.figure in _NAMED:
        first, second = _named(rule, evidence)
    else:
        first = second = FIGURES[rule.figure].read or _throughput(before, after)
    return [before.figures(first), after.figures(second)]


def _throughput(before: Side, after: Side) -> Read:
    """Return how to read throughput: items where all recordings have them, else steps."""
    marks = [report["benchmark"] for side in (before, after) for report in side.reports]
    if all(mark["items_per_s"] for mark in marks):
        return lambda report: report["benchmark"]["items_per_s"]
    return lambda report: report["benchmark"]["steps_per_s"]


def _scale(rule: Rule, before: Side, after: Side) -> float:
    """Return the whole that a time is a part of, in seconds; 0 for other figures."""
    if rule.kind != "time":
        return 0.0
    of: Literal["step", "run"] = "run" if rule.figure == "start-up" else "step"
    return max(before.mean_s(of) or 0.0, after.mean_s(of) or 0.0)


def _whole(of: Literal["step", "run"], evidence: Evidence) -> Change:
    """Return the step or the run, whose interval is that of the ratio."""
    before, after = evidence.before.mean_s(of), evidence.after.mean_s(of)
    reach = evidence.noise.ratio_reach(of)
    if before is None or after is None or reach is None:
        return unmeasured(before, after)
    low, high = (float(after / before * np.exp(sign * reach)) for sign in (-1, 1))
    return _known(before, after, before * (low - 1.0), before * (high - 1.0))


def _difference(
    values: Sequence[Sequence[float]], noise: Noise, whole: float, *, exact: bool
) -> Change:
    if not all(values):
        ends = [float(np.mean(side)) if side else None for side in values]
        return unmeasured(*ends)
    rows = [np.array([side], dtype=np.float64) for side in values]
    first, second, reach = noise.reaches(rows[0], rows[1], whole, exact=exact)
    before, after = float(first.values[0]), float(second.values[0])
    return _known(before, after, after - before - float(reach[0]), after - before + float(reach[0]))


def _known(before: float, after: float, low: float, high: float) -> Change:
    return {
        "before": before,
        "after": after,
        "difference": after - before,
        "low": low,
        "high": high,
        "ratio": after / before if before else None,
        "beyond_noise": low > 0.0 or high < 0.0,
        "reason": None if before else "the first side has none",
    }


def _named(rule: Rule, evidence: Evidence) -> tuple[Read, Read]:
    """Return how to read a module or an operator on each side."""
    if rule.figure == "operator":
        names = [_operator_names(side) for side in (evidence.before, evidence.after)]
        _must_exist(rule, {*names[0], *names[1]})
        read = _operator_read(rule.name)
        return read, read
    now = _module_path(rule, evidence)
    return _module_read(evidence.modules.get(now, now)), _module_read(now)


def _module_path(rule: Rule, evidence: Evidence) -> str:
    """Return the path of a rule's module on the second side; of one that is gone on the first."""
    paths = [_module_paths(side) for side in (evidence.before, evidence.after)]
    known = {*paths[0], *paths[1]}
    path = rule.name if rule.name in known else _by_suffix(rule.name, known)
    _must_exist(rule, known, path)
    earlier = {old: new for new, old in evidence.modules.items()}
    return path if path in paths[1] else earlier.get(path, path)


def _by_suffix(name: str, known: Iterable[str]) -> str:
    """Return the one path that ends in the name, `Net.encoder.0` for `encoder.0`; else itself."""
    found = [path for path in known if path.endswith(f".{name}")]
    return found[0] if len(found) == 1 else name


def _must_exist(rule: Rule, known: set[str], name: str | None = None) -> None:
    if (name or rule.name) in known:
        return
    close = get_close_matches(rule.name, sorted(known), n=3, cutoff=0.4)
    step = f"did you mean {' or '.join(close)}?" if close else "compare.json lists those there are"
    raise _wrong(rule.text, f"neither side has the {rule.figure} {rule.name}", step)


def _module_paths(side: Side) -> set[str]:
    return {row["path"] for report in side.reports for row in report["tables"]["modules"]}


def _operator_names(side: Side) -> set[str]:
    return {row["name"] for report in side.reports for row in report["tables"]["operators"]}


def _module_read(path: str) -> Read:
    """Return a reader of a module's time in a step, all inside it included."""

    def read(report: Report) -> float | None:
        for row in report["tables"]["modules"]:
            if row["path"] == path:
                whole = figure(row, "forward_s") + figure(row, "backward_s")
                return row["calibrated_s"] if row["calibrated_s"] is not None else whole or None
        return None

    return read


def _operator_times(report: Report, name: str) -> dict[str | None, float]:
    """Return an operator's own seconds in a step by module, all its shapes together."""
    return sums_of(
        (row["module"], row["self_s"] if row["calibrated_s"] is None else row["calibrated_s"])
        for row in report["tables"]["operators"]
        if row["name"] == name
    )


def _operator_read(name: str) -> Read:
    """Return a reader of an operator's own time in a step."""

    def read(report: Report) -> float | None:
        known = bool(report["tables"]["operators"])
        return sum(_operator_times(report, name).values()) if known else None

    return read


def _operator_module(name: str, evidence: Evidence, sign: float) -> str | None:
    """Return the module in which an operator's time changed most in a direction; None outside."""
    was, now = (_operator_times(side.first, name) for side in (evidence.before, evidence.after))
    partners = {old: new for new, old in evidence.modules.items()}
    changes = {module: sign * seconds for module, seconds in now.items()}
    for module, seconds in was.items():
        partner = partners.get(module or "", module)
        changes[partner] = changes.get(partner, 0.0) - sign * seconds
    return max(changes, key=lambda module: changes[module], default=None)
