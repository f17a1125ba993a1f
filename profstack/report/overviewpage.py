"""What the page's first view shows beside the verdict: memory, rate, and what takes most time.

The view is drawn before any table is inflated, so that the few rows it needs stand here by
themselves, each with the way to its row in its own view. What is not known is null, with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from profstack.report.stepaccounts import Account, step_accounts
from profstack.report.tables import number, operators_by_name, weight

Record = Mapping[str, Any]
# Rows of each of the short tables.
MOST = 5


@dataclass(frozen=True)
class TopRow:
    """One row of a short table; `share` is of the step, None where it cannot be held against it."""

    name: str
    link: str
    seconds: float
    share: float | None
    detail: str | None = None


@dataclass(frozen=True)
class Top:
    """A short table: what takes most time of one kind, by which layer, and how it is meant.

    `kind` says in which sense its times are to be read, `share_of` what its shares are of, and
    `share_reason` why they are not known where they are not.
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
    """Most memory of the run, and what it was of in one step; reasons where it is not known."""

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

    step_bar: dict[str, Any] | None
    peaks: Peaks
    work: Work
    tops: list[Top]
    accounts: list[Account] = field(default_factory=list)
    rules: list[dict[str, str]] = field(default_factory=list)
    verdicts: list[dict[str, str]] = field(default_factory=list)


def overview_page(report: Mapping[str, Any]) -> Overview:
    """The overview of a report."""
    tables = report["tables"]
    median = (report.get("benchmark") or {}).get("median_s")
    reasons = report.get("columns_reason") or {}
    return Overview(
        step_bar=report.get("step_bar"),
        peaks=_peaks(tables, reasons),
        work=_work(report, median),
        tops=_tops(report, median),
        accounts=step_accounts(report),
        rules=_rules(),
        verdicts=_verdicts(),
    )


def _rules() -> list[dict[str, str]]:
    """What findings were looked for."""
    from profstack.findings.rules import RULES

    return [{"slug": rule.slug, "title": rule.title, "rule": rule.rule} for rule in RULES]


def _verdicts() -> list[dict[str, str]]:
    """What each verdict means, and from which share of the step on it is the verdict."""
    from profstack.findings import verdictrules

    told = [
        (rule.slug, f"{rule.measure} The verdict from {100 * rule.threshold:.0f} % of the step on.")
        for rule in verdictrules.RULES
    ]
    titles = verdictrules.TITLES
    return [
        {"slug": slug, "title": titles[slug], "rule": rule}
        for slug, rule in (*told, *verdictrules.OTHERS.items())
    ]


def _peaks(tables: Mapping[str, Any], reasons: Mapping[str, str]) -> Peaks:
    memory = tables.get("memory") or []
    rss = _most(memory, "rss_bytes")
    rows = tables.get("memory_owners") or []
    devices = dict.fromkeys(row.get("device") for row in rows)
    of = {name: [row for row in rows if row.get("device") == name] for name in devices}
    why = reasons.get("memory.rss_bytes") or "no layer read the memory of the process"
    return Peaks(
        rss_bytes=rss,
        rss_reason=None if rss is not None else why,
        allocated_bytes=_most(memory, "device_allocated_bytes"),
        reserved_bytes=_most(memory, "device_reserved_bytes"),
        held=[_held(device, owned) for device, owned in of.items()],
        held_reason=None if of else "no slice watched the memory of a step",
    )


def _held(device: Any, rows: Sequence[Record]) -> Held:
    known = [row for row in rows if row.get("peak_bytes")]
    known.sort(key=weight("peak_bytes"), reverse=True)
    kinds = [(str(row["kind"]), int(row["peak_bytes"])) for row in known]
    return Held(device, sum(size for _, size in kinds), kinds)


def _most(rows: Iterable[Record], column: str) -> int | None:
    return max((row[column] for row in rows if row.get(column) is not None), default=None)


def _work(report: Mapping[str, Any], median: float | None) -> Work:
    """Operations per step by the counter of record, and what of the peak they come to."""
    counter, flop, reason = _counted(report)
    if flop is None:
        return Work(counter=counter, reason=reason)
    if not median:
        return Work(flop, None, counter, reason="there is no clean step time")
    roofline = report.get("roofline") or {}
    step = next((row for row in roofline.get("points") or [] if row["kind"] == "step"), None)
    if step is not None and step.get("flop") and step["flop_per_s"] is None:
        return Work(flop, None, counter, reason=str(step["reason"]))
    known = [row for row in roofline.get("mfu") or [] if row.get("value") is not None]
    stated = next((row for row in known if row.get("source") != "measured"), None)
    of_peak = stated or (known[0] if known else None)
    if of_peak is None:
        words = [row.get("warning") for row in roofline.get("mfu") or []]
        why = next(filter(None, words), None) or roofline.get("reason")
        text = why or "the peak of the device is not known: profstack doctor --peaks measures it"
        return Work(flop, flop / median, counter, reason=str(text))
    value = float(of_peak["value"])
    return Work(
        flop=flop,
        flop_per_s=flop / median,
        counter=counter,
        mfu=value,
        peak_flop_per_s=flop / median / value if value else None,
        peak_is=" ".join(filter(None, (of_peak.get("source"), of_peak.get("dtype")))) or None,
        warning=of_peak.get("warning"),
    )


def _counted(report: Mapping[str, Any]) -> tuple[str | None, float | None, str | None]:
    """The counter of record, its operations of a step, and why there are none."""
    source = str((report.get("columns_source") or {}).get("modules.forward_flop") or "")
    rows = report["tables"].get("flops") or []
    record = next((row for row in rows if source and source.startswith(str(row["counter"]))), None)
    if record is None or record.get("forward_flop") is None:
        layers = {layer["name"]: layer for layer in report.get("layers") or []}
        why = (layers.get("flops") or {}).get("reason")
        return None, None, str(why or "no layer counted operations")
    flop = float(record["forward_flop"]) + float(record.get("backward_flop") or 0.0)
    return str(record["counter"]), flop, None


OF_THE_STEP = "of the clean step"
AS_SEEN = "of the step as the layer saw it"


def _tops(report: Mapping[str, Any], median: float | None) -> list[Top]:
    """The short tables; one that is empty says what became of its layer."""
    tables = report["tables"]
    step = (report.get("attribution") or {}).get("step_s")
    tops = [
        _top_modules(tables["modules"], step, median),
        _top_operators(tables["operators"], step, median),
        _top_functions(tables["functions"], median),
        _top_lines(tables["lines"]),
    ]
    layers = {layer["name"]: layer.get("reason") for layer in report.get("layers") or []}
    told = (report.get("columns_reason") or {}).get("functions.calibrated_s")
    why = told or "the report does not tell why"
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
    found: Iterable[tuple[Record, float]],
    make: Callable[[Record, float], TopRow],
) -> Top:
    """The heaviest of some rows; those without a time are not among them."""
    ranked = sorted(found, key=lambda pair: pair[1], reverse=True)[:MOST]
    rows = [make(record, seconds) for record, seconds in ranked if seconds > 0]
    return Top(*head, rows, None, share_of)


def _top_modules(modules: Sequence[Record], step: float | None, median: float | None) -> Top:
    """By their own time; what is no module is in the bar of the step.

    Own times have no calibrated column: they are calibrated as the whole times of the rows are.
    """
    own = [row for row in modules if not str(row["path"]).startswith("(")]
    calibrated = any(row.get("calibrated_s") is not None for row in own)
    factor, kind, of = 1.0, "raw", AS_SEEN
    if calibrated and median and step:
        factor, kind, of = median / step, "calibrated", OF_THE_STEP

    def make(record: Record, seconds: float) -> TopRow:
        path = str(record["path"])
        share = seconds / (factor * step) if step else None
        return TopRow(path, f"modules/{path}", seconds, share, record.get("type"))

    found = [(row, factor * number(row.get("self_s"))) for row in own]
    return _top(("Modules", "modules", "torch", f"self time, {kind}"), of, found, make)


def _top_operators(operators: Sequence[Record], step: float | None, median: float | None) -> Top:
    summed = operators_by_name(operators)
    column, kind, whole, of = _sense(summed, median)

    def make(record: Record, seconds: float) -> TopRow:
        name = str(record["name"])
        held = whole or step
        return TopRow(name, f"operators/{name}", seconds, seconds / held if held else None)

    found = [(row, number(row.get(column))) for row in summed]
    return _top(("Operators", "operators", "torch", f"self time, {kind}"), of, found, make)


def _top_functions(functions: Sequence[Record], median: float | None) -> Top:
    # Built-in functions are what operators are called through: those have a table of their own.
    steps = [row for row in functions if row.get("phase") == "step" and row.get("file") != "~"]
    column, kind, whole, of = _sense(steps, median)

    def make(record: Record, seconds: float) -> TopRow:
        file, line, name = record.get("file"), record.get("line"), str(record["name"])
        share = seconds / whole if whole else None
        return TopRow(name, f"python/{file}:{line}:{name}", seconds, share, place(record))

    found = [(row, number(row.get(column))) for row in steps]
    head = ("Python functions", "python", "cprofile", f"self time, {kind}")
    return _top(head, of, found, make)


def _sense(rows: Sequence[Record], median: float | None) -> tuple[str, str, float | None, str]:
    """Which times of some rows are shown, how they are meant, and what they are parts of.

    Calibrated ones, where there are any: those and the clean step are of one kind. Never both in
    one table.
    """
    if median and any(row.get("calibrated_s") is not None for row in rows):
        return "calibrated_s", "calibrated", median, OF_THE_STEP
    return "self_s", "raw", None, AS_SEEN


def _top_lines(lines: Sequence[Record]) -> Top:
    """The user's own lines; the share is of the time on all of them."""
    own = [row for row in lines if row.get("own") is not False]
    found = [(row, number(row.get("python_s")) + number(row.get("operator_s"))) for row in own]
    found = [(row, seconds) for row, seconds in found if row.get("python_s") is not None]
    whole = sum(seconds for _, seconds in found)

    def make(record: Record, seconds: float) -> TopRow:
        text = str(record.get("source") or "").strip()
        link = f"source/{record['file']}:{record['line']}"
        return TopRow(text or place(record), link, seconds, seconds / whole, place(record))

    head = ("Lines of your own", "source", "torch", "time on the line, raw")
    return _top(head, "of the time on lines of your own", found, make)


def place(record: Record) -> str:
    """File and line in short; a built-in function has none."""
    file = str(record.get("file") or "")
    if not file or file == "~":
        return "built-in"
    name = file.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{name}:{record['line']}" if record.get("line") is not None else name
