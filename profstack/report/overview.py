"""The page's first view beside the verdict: memory, rates, and the rows with most time.

The view is drawn before any table is inflated, so it has its few rows by itself, each with a link
to the row in its own view. A figure that is not known is null, with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from profstack.report.page_tables import AnyRow, OperatorSum, number, operators_by_name, weight
from profstack.report.screen import line_place
from profstack.storage.schema.report import Report, StepBar
from profstack.storage.schema.rows import (
    FunctionRow,
    LineRow,
    MemoryOwnerRow,
    MemoryRow,
    ModuleRow,
    OperatorRow,
    StepRow,
)

# Steps in the clean median, and why the others are not in it ------------------------------------

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
    """Steps of one kind of slice; `counted` says whether they are in the clean median.

    Each step is in exactly one account, so the accounts add up to all steps of the run.
    """

    kind: str
    steps: int
    why: str
    counted: bool = False


def step_accounts(report: Report) -> list[Account]:
    """Return all steps of a report by the reason why they count or not; those that count first."""
    steps = report["tables"]["steps"]
    kinds: dict[int | None, str] = {entry["index"]: entry["kind"] for entry in report["slices"]}
    benchmark, phase = report["benchmark"], report["step"]["phase"]
    counted = set(benchmark["counted_steps"] or ())
    own = [step["index"] or 0 for step in steps if phase is None or step["phase"] == phase]
    warm = min(own, default=0) + (benchmark["warmup_steps"] or 0)
    sums: dict[tuple[str, str, bool], int] = {}
    for step in steps:
        kind = kinds.get(step["slice"], "watch")
        is_counted = step["index"] in counted
        why = "in the clean median" if is_counted else _why_not(step, kind, phase, warm)
        key = ("clean" if is_counted else kind, why, is_counted)
        sums[key] = sums.get(key, 0) + 1
    accounts = [Account(kind, count, why, own) for (kind, why, own), count in sums.items()]
    return sorted(accounts, key=lambda one: (not one.counted, one.kind != "clean", -one.steps))


def _why_not(step: StepRow, kind: str, phase: str | None, warm: int) -> str:
    """Return why a step is not in the clean median; `warm` is the first after the warm-up."""
    if kind != "clean":
        return _KINDS.get(kind, f"watched by the {kind} layer")
    flags = (step.get("flags") or "").split()
    if flags:
        return _FLAGS.get(flags[0], f"flagged {flags[0]}")
    if phase is not None and step["phase"] not in (phase, None):
        return f"of the phase {step['phase']}; the median is of {phase}"
    if (step["index"] or 0) < warm:
        return "before the end of the warm-up"
    return "left out: see the warnings for what changed, or of another optimizer's plan"


# The view ---------------------------------------------------------------------------------------

# Rows of each of the short tables.
MOST = 5


@dataclass(frozen=True)
class TopRow:
    """One row of a short table; `share` is of the step, None where that is not known."""

    name: str
    link: str
    seconds: float
    share: float | None
    detail: str | None = None


@dataclass(frozen=True)
class Top:
    """A short table: the rows of one kind with most time, as `layer` saw them.

    `kind` is the sense of its times, `share_of` the whole of its shares, and `share_reason` says
    why they are not known.
    """

    title: str
    view: str
    layer: str
    kind: str
    rows: list[TopRow]
    reason: str | None
    share_of: str | None = None
    share_reason: str | None = None


@dataclass(frozen=True)
class Held:
    """The bytes of one device at the peak of the observed step, by kind."""

    device: str | None
    total_bytes: int
    kinds: list[tuple[str, int]]


@dataclass(frozen=True)
class Peaks:
    """Most memory of the run, and its kinds in one step; reasons where it is not known."""

    rss_bytes: int | None
    rss_reason: str | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    held: list[Held]
    held_reason: str | None


@dataclass(frozen=True)
class Work:
    """Operations of a step and their rate; `mfu` is the share of the device's peak."""

    flop: float | None = None
    flop_per_s: float | None = None
    counter: str | None = None
    mfu: float | None = None
    peak_flop_per_s: float | None = None
    peak_is: str | None = None
    warning: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Overview:
    """The first view's own data; the verdict and the findings are among the page's facts."""

    step_bar: StepBar | None
    peaks: Peaks
    work: Work
    tops: list[Top]
    accounts: list[Account]
    rules: list[dict[str, str]]
    verdicts: list[dict[str, str]]


def overview_page(report: Report) -> Overview:
    """Return the overview of a report."""
    return Overview(
        step_bar=report.get("step_bar"),
        peaks=_peaks(report),
        work=_work(report),
        tops=_tops(report),
        accounts=step_accounts(report),
        rules=_rules(),
        verdicts=_verdicts(),
    )


def _rules() -> list[dict[str, str]]:
    """Return the rules of the findings."""
    from profstack.findings.rules import RULES

    return [{"slug": rule.slug, "title": rule.title, "rule": rule.rule} for rule in RULES]


def _verdicts() -> list[dict[str, str]]:
    """Return the meaning of each verdict, and the share of the step from which it is chosen."""
    from profstack.findings.rules import OTHERS, TITLES, VERDICT_RULES

    rules = {
        rule.slug: f"{rule.measure} The verdict from {100 * rule.threshold:.0f} % of the step on."
        for rule in VERDICT_RULES
    }
    return [
        {"slug": slug, "title": TITLES[slug], "rule": rule}
        for slug, rule in (*rules.items(), *OTHERS.items())
    ]


def _peaks(report: Report) -> Peaks:
    memory = report["tables"]["memory"]
    rss = _most(memory, "rss_bytes")
    of: dict[str | None, list[MemoryOwnerRow]] = {}
    for row in report["tables"].get("memory_owners") or []:
        of.setdefault(row["device"], []).append(row)
    why = report["columns_reason"].get("memory.rss_bytes")
    why = why or "no layer read the memory of the process"
    return Peaks(
        rss_bytes=rss,
        rss_reason=None if rss is not None else why,
        allocated_bytes=_most(memory, "device_allocated_bytes"),
        reserved_bytes=_most(memory, "device_reserved_bytes"),
        held=[_held(device, owned) for device, owned in of.items()],
        held_reason=None if of else "no slice watched the memory of a step",
    )


def _held(device: str | None, rows: Sequence[MemoryOwnerRow]) -> Held:
    kinds = [
        (row["kind"], row["peak_bytes"])
        for row in sorted(rows, key=weight("peak_bytes"), reverse=True)
        if row["peak_bytes"]
    ]
    return Held(device, sum(size for _, size in kinds), kinds)


_MemoryColumn = Literal["rss_bytes", "device_allocated_bytes", "device_reserved_bytes"]


def _most(rows: Iterable[MemoryRow], column: _MemoryColumn) -> int | None:
    values = (row[column] for row in rows)
    return max((value for value in values if value is not None), default=None)


def _work(report: Report) -> Work:
    """Return operations per step by the counter of record, and their share of the peak."""
    median = report["benchmark"]["median_s"]
    counter, flop, reason = _counted(report)
    if flop is None:
        return Work(counter=counter, reason=reason)
    if not median:
        return Work(flop, None, counter, reason="there is no clean step time")
    roofline = report.get("roofline")
    points = (roofline.get("points") or []) if roofline else []
    shares = (roofline.get("mfu") or []) if roofline else []
    step = next((row for row in points if row["kind"] == "step"), None)
    if step is not None and step["flop"] and step["flop_per_s"] is None:
        return Work(flop, None, counter, reason=str(step["reason"]))
    known = [(row["value"], row) for row in shares if row["value"] is not None]
    # A datasheet's peak before the measured one.
    known.sort(key=lambda pair: pair[1]["source"] == "measured")
    if not known:
        words = [*(row.get("warning") for row in shares), roofline and roofline.get("reason")]
        unknown = "the peak of the device is not known: profstack doctor --peaks measures it"
        return Work(flop, flop / median, counter, reason=next(filter(None, words), unknown))
    value, of_peak = known[0]
    return Work(
        flop=flop,
        flop_per_s=flop / median,
        counter=counter,
        mfu=value,
        peak_flop_per_s=flop / median / value if value else None,
        peak_is=" ".join(filter(None, (of_peak["source"], of_peak["dtype"]))) or None,
        warning=of_peak.get("warning"),
    )


def _counted(report: Report) -> tuple[str | None, float | None, str | None]:
    """Return the counter of record, its operations of a step, and why there are none."""
    source = report["columns_source"].get("modules.forward_flop", "")
    rows = report["tables"].get("flops") or []
    record = next((row for row in rows if source and source.startswith(row["counter"])), None)
    if record is None or record["forward_flop"] is None:
        return None, None, _reasons(report).get("flops") or "no layer counted operations"
    return record["counter"], float(record["forward_flop"] + (record["backward_flop"] or 0)), None


def _reasons(report: Report) -> dict[str, str | None]:
    return {layer["name"]: layer["reason"] for layer in report["layers"]}


Row = TypeVar("Row")
OF_THE_STEP = "of the clean step"
AS_SEEN = "of the step as the layer saw it"


def _tops(report: Report) -> list[Top]:
    """Return the short tables; an empty one has the reason of its layer."""
    tables, median = report["tables"], report["benchmark"]["median_s"]
    attribution = report.get("attribution")
    step = attribution["step_s"] if attribution else None
    tops = [
        _top_modules(tables["modules"], step, median),
        _top_operators(tables["operators"], step, median),
        _top_functions(tables["functions"], median),
        _top_lines(tables["lines"]),
    ]
    layers = _reasons(report)
    why = report["columns_reason"].get("functions.calibrated_s", "the report does not tell why")
    unshared = {
        "cprofile": f"these times are not calibrated, and so no parts of a clean step: {why}",
        "torch": "it is not known how long a step took while this layer watched",
    }
    tops = [replace(top, share_reason=unshared[top.layer]) for top in tops]
    return [
        top
        if top.rows
        else replace(
            top, reason=layers.get(top.layer) or f"the {top.layer} layer has none in this run"
        )
        for top in tops
    ]


def _top(
    head: tuple[str, str, str, str],
    share_of: str | None,
    found: Iterable[tuple[Row, float]],
    make: Callable[[Row, float], TopRow],
) -> Top:
    """Return the heaviest rows; those without a time are left out."""
    ranked = sorted(found, key=lambda pair: pair[1], reverse=True)[:MOST]
    rows = [make(record, seconds) for record, seconds in ranked if seconds > 0]
    return Top(*head, rows, None, share_of)


def _top_modules(modules: Sequence[ModuleRow], step: float | None, median: float | None) -> Top:
    """Return the modules with most own time; parts outside modules are in the bar of the step.

    Own times have no calibrated column: they are calibrated as the whole times of the rows are.
    """
    own = [row for row in modules if not row["path"].startswith("(")]
    calibrated = any(row["calibrated_s"] is not None for row in own)
    factor, kind, of = 1.0, "raw", AS_SEEN
    if calibrated and median and step:
        factor, kind, of = median / step, "calibrated", OF_THE_STEP

    def make(row: ModuleRow, seconds: float) -> TopRow:
        share = seconds / (factor * step) if step else None
        return TopRow(row["path"], f"modules/{row['path']}", seconds, share, row["type"])

    found = [(row, factor * number(row["self_s"])) for row in own]
    return _top(("Modules", "modules", "torch", f"self time, {kind}"), of, found, make)


def _top_operators(
    operators: Sequence[OperatorRow], step: float | None, median: float | None
) -> Top:
    summed = operators_by_name(operators)
    column, kind, whole, of = _sense(summed, median)
    held = whole or step

    def make(row: OperatorSum, seconds: float) -> TopRow:
        share = seconds / held if held else None
        return TopRow(row["name"], f"operators/{row['name']}", seconds, share)

    found = [(row, number(row[column])) for row in summed]
    return _top(("Operators", "operators", "torch", f"self time, {kind}"), of, found, make)


def _top_functions(functions: Sequence[FunctionRow], median: float | None) -> Top:
    # Operators are called through built-in functions, and have a table of their own.
    steps = [row for row in functions if row["phase"] == "step" and row["file"] != "~"]
    column, kind, whole, of = _sense(steps, median)

    def make(row: FunctionRow, seconds: float) -> TopRow:
        link = f"python/{row['file']}:{row['line']}:{row['name']}"
        share = seconds / whole if whole else None
        return TopRow(row["name"], link, seconds, share, place(row["file"], row["line"]))

    found = [(row, number(row[column])) for row in steps]
    head = ("Python functions", "python", "cprofile", f"self time, {kind}")
    return _top(head, of, found, make)


def _sense(
    rows: Sequence[AnyRow], median: float | None
) -> tuple[Literal["calibrated_s", "self_s"], str, float | None, str]:
    """Return the column of times to show, its sense, and the whole that the times are parts of.

    These are calibrated times where there are any, since shares of a clean step need them; one
    table never has both.
    """
    if median and any(row.get("calibrated_s") is not None for row in rows):
        return "calibrated_s", "calibrated", median, OF_THE_STEP
    return "self_s", "raw", None, AS_SEEN


def _top_lines(lines: Sequence[LineRow]) -> Top:
    """Return the user's own lines; the share is of the time on all of them."""
    own = [row for row in lines if row.get("own") is not False and row.get("python_s") is not None]
    found = [(row, number(row["python_s"]) + number(row["operator_s"])) for row in own]
    whole = sum(seconds for _, seconds in found)

    def make(row: LineRow, seconds: float) -> TopRow:
        where = place(row["file"], row["line"])
        text = (row["source"] or "").strip() or where
        link = f"source/{row['file']}:{row['line']}"
        return TopRow(text, link, seconds, seconds / whole, where)

    head = ("Lines of your own", "source", "torch", "time on the line, raw")
    return _top(head, "of the time on lines of your own", found, make)


def place(file: str | None, line: int | None) -> str:
    """Return file and line in short; a built-in function has none."""
    return line_place(file, line) if file and file != "~" else "built-in"
