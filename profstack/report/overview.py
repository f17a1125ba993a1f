"""The page's first view beside the verdict: memory, rates, and the rows with most time.

The view is drawn before any table is inflated, so it has its few rows by itself, each with a link
to the row in its own view. A figure that is not known is null, with a reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from profstack.code_owner import place_words
from profstack.report.page_tables import AnyRow, number, operators_by_name, weight
from profstack.storage.schema.report import Report, RooflinePoint, RunPart, StepBar
from profstack.storage.schema.rows import CounterRow, FunctionRow, StepRow
from profstack.units import format_bytes

# Steps in the clean median, and why the others are not in it ------------------------------------

_FLAGS = {
    "eval": "the script evaluated its model in them",
    "checkpoint": "the script wrote a checkpoint in them",
    "switch": "a layer was switched in them",
    "loop": "they belong to another loop of the script",
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
    sums: Counter[tuple[str, str, bool]] = Counter()
    for step in steps:
        kind = kinds.get(step["slice"], "watch")
        if step["index"] in counted:
            sums["clean", "in the clean median", True] += 1
        else:
            sums[kind, _why_not(step, kind, phase, warm), False] += 1
    accounts = [Account(kind, count, why, own) for (kind, why, own), count in sums.items()]
    counts = report["step"]["counts_by_phase"] or {}
    if (left := sum(counts.values()) - len(steps)) > 0:
        accounts.append(Account("watch", left, "counted alone: a long watch keeps some of them"))
    return sorted(accounts, key=lambda one: (not one.counted, one.kind != "clean", -one.steps))


def _why_not(step: StepRow, kind: str, phase: str | None, warm: int) -> str:
    """Return why a step is not in the clean median; `warm` is the first after the warm-up."""
    if kind != "clean":
        return _KINDS.get(kind, f"watched by the {kind} layer")
    if flags := (step.get("flags") or "").split():
        return _FLAGS.get(flags[0], f"flagged {flags[0]}")
    if phase is not None and step["phase"] not in (phase, None):
        return f"of the phase {step['phase']}; the median is of {phase}"
    if (step["index"] or 0) < warm:
        return "before the end of the warm-up"
    return "left out: see the warnings for what changed, or of another optimizer's plan"


# Figures of evidence in words, where the name of the field does not say it; "" is not shown.
LABELS = {
    # The advice has the limits, and the Python view what cProfile counted: a function has one time.
    **dict.fromkeys(("own_low_s", "own_high_s", "corrected_self_s", "limits_agree"), ""),
    "name": "in",
    "self_s": "own time",
    "own_s": "own time",
    "inner_s": "time in what it calls",
    "clean_s": "time in a clean step, with what it calls",
    "calibrated_s": "time in a clean step",
    "python_s": "Python's time",
    "step_share": "share of the step",
    "run_share": "share of the run",
    "time_share": "share of the time",
    "flop_share": "share of the FLOP",
    "bytes_share": "share of the bytes",
    "padded_share": "share that is padding",
    "logits_s": "time of the logits and their loss",
    "again_s": "time of the repeated calls",
    "on_same_input": "on the input of the call before",
    "same": "on the inputs of an earlier step",
    "forward_s": "its forward pass",
    "backward_s": "its backward pass",
    "passes": "backward passes",
    "exchanged": "passes that exchange gradients",
    "updates": "steps of the optimizer",
    "on_all_the_same": "on all the same inputs",
    "unused_share": "share behind the longest row",
    "below_limits_share": "in operators slower than the machine allows",
    "limit_unknown_share": "in operators whose limit is not known",
    "peak_share": "of the machine's peak",
    "after_step_share": "after the optimizer's step",
    "flop_per_s": "FLOP/s",
    "bytes_per_s": "bytes/s",
    "call_s": "each",
    "calls": "calls",
    "per_operator_s": "for each operator",
    "cost_s": "cost of calling them",
    "computing_s": "of that computing",
    "fair_s": "what its work should take",
    "wait_before_work_s": "wait before the model's first call",
    "loading_share": "share of the loading",
    "mean_cpu_s": "CPU time of a mean step",
    "inside": "part of the step",
    "pool_cpu_s": "CPU time of the operators' other threads",
    "optimizer_s": "the optimizer's time",
    "operator_s": "in operators",
    "repeated": "repeated in a step",
    "operators": "operators in a step",
    "came_of_it": "verdict",
    "of_the_step_share": "a step takes",
    "at_least_share": "at least",
    "at_most_share": "at most",
    "flop": "FLOP",
}


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

    run_bar: list[RunPart]
    run_bar_reason: str | None
    step_bar: StepBar | None
    peaks: Peaks
    work: Work
    tops: list[Top]
    accounts: list[Account]
    page_faults: str | None
    sureness: str | None
    labels: dict[str, str]
    rules: list[dict[str, str]]
    verdicts: list[dict[str, str]]


def overview_page(report: Report) -> Overview:
    """Return the overview of a report, with the rules of the findings and of the verdicts."""
    from profstack.findings.next_step import sureness_words
    from profstack.findings.rules import OTHERS, RULES, TITLES, VERDICT_RULES

    verdicts = {
        rule.slug: f"{rule.measure} The verdict from {100 * rule.threshold:.0f} % of the step on."
        for rule in VERDICT_RULES
    }
    texts = (verdicts | OTHERS).items()
    return Overview(
        run_bar=report.get("run_bar") or [],
        run_bar_reason=report.get("run_bar_reason"),
        step_bar=report.get("step_bar"),
        peaks=_peaks(report),
        work=_work(report),
        tops=_tops(report),
        accounts=step_accounts(report),
        page_faults=page_faults(report),
        sureness=sureness_words(report),
        labels=LABELS,
        rules=[{"slug": rule.slug, "title": rule.title, "rule": rule.rule} for rule in RULES],
        verdicts=[{"slug": slug, "title": TITLES[slug], "rule": rule} for slug, rule in texts],
    )


_MemoryColumn = Literal["rss_bytes", "device_allocated_bytes", "device_reserved_bytes"]


def _peaks(report: Report) -> Peaks:
    def most(column: _MemoryColumn) -> int | None:
        values = (row[column] for row in report["tables"]["memory"])
        return max((value for value in values if value is not None), default=None)

    rss, held = most("rss_bytes"), held_at_peak(report)
    why = report["columns_reason"].get("memory.rss_bytes")
    return Peaks(
        rss_bytes=rss,
        rss_reason=None if rss is not None else why or "no layer read the memory of the process",
        allocated_bytes=most("device_allocated_bytes"),
        reserved_bytes=most("device_reserved_bytes"),
        held=held,
        held_reason=None if held else "no slice watched the memory of a step",
    )


def held_at_peak(report: Report) -> list[Held]:
    """Return what each device held at the peak of the observed step, the largest kind first."""
    devices: defaultdict[str | None, list[tuple[str, int]]] = defaultdict(list)
    rows = report["tables"].get("memory_owners") or []
    for row in sorted(rows, key=weight("peak_bytes"), reverse=True):
        if row["peak_bytes"]:
            devices[row["device"]].append((row["kind"], row["peak_bytes"]))
    return [
        Held(device, sum(size for _, size in devices[device]), devices[device])
        for device in dict.fromkeys(row["device"] for row in rows)
    ]


def _work(report: Report) -> Work:
    """Return operations per step by the counter of record, and their share of the peak."""
    median = report["benchmark"]["median_s"]
    record = counter_of_record(report)
    if record is None or record["forward_flop"] is None:
        return Work(reason=_reason(report, "flops") or "no layer counted operations")
    counter = record["counter"]
    flop = float(record["forward_flop"] + (record["backward_flop"] or 0))
    if not median:
        return Work(flop, None, counter, reason="there is no clean step time")
    if not flop:
        return Work(flop, None, counter, reason="none of the step's operators has any")
    roofline, step = report.get("roofline"), step_point(report)
    shares = (roofline.get("mfu") or []) if roofline else []
    if step is not None and step["flop"] and step["flop_per_s"] is None:
        return Work(flop, None, counter, reason=str(step["reason"]))
    known = [(row["value"], row) for row in shares if row["value"] is not None]
    # A datasheet's peak before the measured one.
    known.sort(key=lambda pair: pair[1]["source"] == "measured")
    if not known:
        peaks = roofline.get("peaks") if roofline else None
        words = [*(row.get("warning") for row in shares), roofline and roofline.get("reason")]
        words.append(peaks and peaks["reason"])
        unknown = "the peak of the device is not known: a run without --no-peaks measures it"
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


def counter_of_record(report: Report) -> CounterRow | None:
    """Return the counter whose operations the report's figures rest on; None where none counted."""
    source = report["columns_source"].get("modules.forward_flop", "")
    rows = report["tables"].get("flops") or []
    return next((row for row in rows if source and source.startswith(row["counter"])), None)


def step_point(report: Report) -> RooflinePoint | None:
    """Return the whole step's point of the roofline; None where there is none."""
    roofline = report.get("roofline")
    points = (roofline.get("points") or []) if roofline else []
    return next((point for point in points if point["kind"] == "step"), None)


# Blocks that glibc maps by themselves at first, and those that profstack frees at most.
_LEAST_MAPPED, _MOST_FREED = 128 << 10, 4 << 20
# What a step takes and gives back.
_OF_A_STEP = ("activations", "temporaries", "gradients", "inputs")
# Other thresholds, or another allocator.
_OTHER_MALLOC = {"LD_PRELOAD", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}


def page_faults(report: Report) -> str | None:
    """Return when steps have fewer page faults than alone; None where their blocks tell nothing.

    Page faults are not recorded, and those of a run alone cannot be: it is said as a condition.
    """
    environment = report["environment"]
    variables = environment.get("variables_set")
    has_glibc = "glibc" in str(environment.get("platform"))
    if not has_glibc or (isinstance(variables, list) and _OTHER_MALLOC & {*variables}):
        return None
    holders = report["tables"].get("peak_holders") or ()
    # A row is of all tensors of a kind that an operator made in a module.
    blocks = (
        (row["bytes"] or 0) // (row["tensors"] or 1)
        for row in holders
        if row["device"] == "cpu" and row["kind"] in _OF_A_STEP
    )
    largest = max(blocks, default=0)
    if not _LEAST_MAPPED <= largest < _MOST_FREED:
        return None
    return (
        f"Steps take and give back tensors of some {format_bytes(largest)}. glibc returns such "
        "blocks to the system until a larger one was freed, and profstack frees blocks of a few "
        "MiB. If the script frees none as large itself, its steps have fewer page faults here than "
        "alone, and may be faster: how many is not recorded. With MALLOC_MMAP_THRESHOLD_=33554432 "
        "MALLOC_TRIM_THRESHOLD_=134217728 in the environment they have as many alone."
    )


def _reason(report: Report, name: str) -> str | None:
    """Return the reason of a layer; None for a layer without one."""
    return next((each["reason"] for each in report["layers"] if each["name"] == name), None)


OF_THE_STEP = "of the clean step"
AS_SEEN = "of the step as the layer saw it"
# The name of a row, its link, its seconds, and its detail.
_Candidate = tuple[str, str, float, str | None]
# The sense of the times, words for the whole of the shares, that whole in seconds, and the rows.
_Candidates = tuple[str, str, float | None, list[_Candidate]]


def _tops(report: Report) -> list[Top]:
    """Return the short tables; an empty one has the reason of its layer."""
    why = report["columns_reason"].get("functions.calibrated_s", "the report does not say why")
    unshared = {
        "cprofile": f"these times are not calibrated, and so no parts of a clean step: {why}",
        "torch": "it is not known how long a step took while this layer watched",
    }
    tables = (
        ("Modules", "modules", "torch", _modules(report)),
        ("Operators", "operators", "torch", _operators(report)),
        ("Python functions", "python", "cprofile", _functions(report)),
        ("Lines of your own", "source", "torch", _lines(report)),
    )
    tops = []
    for title, view, layer, (kind, of, whole, candidates) in tables:
        rows = [
            TopRow(name, link, seconds, seconds / whole if whole else None, detail)
            for name, link, seconds, detail in sorted(candidates, key=lambda row: -row[2])[:MOST]
            if seconds > 0
        ]
        reason = _reason(report, layer) or f"the {layer} layer has none in this run"
        reason_if_empty = None if rows else reason
        tops.append(Top(title, view, layer, kind, rows, reason_if_empty, of, unshared[layer]))
    return tops


def _observed_step(report: Report) -> float | None:
    """Return how long a step took while the torch layer watched."""
    return attribution["step_s"] if (attribution := report.get("attribution")) else None


def _modules(report: Report) -> _Candidates:
    """Return own times of modules; parts outside modules are in the bar of the step.

    Own times have no calibrated column: they are calibrated as the whole times of the rows are.
    """
    own = [row for row in report["tables"]["modules"] if not row["path"].startswith("(")]
    median, step = report["benchmark"]["median_s"], _observed_step(report)
    factor, kind, of = 1.0, "self time, raw", AS_SEEN
    if median and step and any(row["calibrated_s"] is not None for row in own):
        factor, kind, of = median / step, "self time, calibrated", OF_THE_STEP
    found: list[_Candidate] = [
        (row["path"], f"modules/{row['path']}", factor * number(row["self_s"]), row["type"])
        for row in own
    ]
    return kind, of, factor * step if step else None, found


def _operators(report: Report) -> _Candidates:
    summed = operators_by_name(report["tables"]["operators"])
    column, kind, of, whole = _sense(summed, report)
    found: list[_Candidate] = [
        (row["name"], f"operators/{row['name']}", number(row[column]), None) for row in summed
    ]
    return kind, of, whole or _observed_step(report), found


def _functions(report: Report) -> _Candidates:
    # Operators are called through built-in functions, and have a table of their own.
    timed, kind, of, whole = function_times(report)
    found: list[_Candidate] = [
        (row["name"], link_of(row), seconds, place(row["file"], row["line"]))
        for row, seconds in timed
        if row["file"] != "~"
    ]
    return kind, of, whole, found


def link_of(row: FunctionRow) -> str:
    """Return the place of a function's row on the page."""
    return f"python/{row['file']}:{row['line']}:{row['name']}"


def function_times(
    report: Report,
) -> tuple[list[tuple[FunctionRow, float]], str, str, float | None]:
    """Return the functions of a step with their own times, the sense of these, and their whole.

    A function has one time: that of the finding on it, where there is one. Where the others cannot
    be calibrated, and so are no times of a clean step, it is left out.
    """
    functions = [row for row in report["tables"]["functions"] if row["phase"] == "step"]
    column, kind, of, whole = _sense(functions, report)
    known = {
        first.get("link"): each["gain_s"]
        for each in report.get("findings") or ()
        for first in each["evidence"][:1]
        if each["slug"] == "python-hot-spot"
    }
    timed = [(row, number(known.get(link_of(row), row[column]))) for row in functions]
    if column == "self_s":
        timed = [(row, seconds) for row, seconds in timed if link_of(row) not in known]
    return timed, kind, of, whole


def _sense(
    rows: Sequence[AnyRow], report: Report
) -> tuple[Literal["calibrated_s", "self_s"], str, str, float | None]:
    """Return the column of times to show, its sense, and the whole that the times are parts of.

    These are calibrated times where there are any, since shares of a clean step need them; one
    table never has both.
    """
    median = report["benchmark"]["median_s"]
    if median and any(row.get("calibrated_s") is not None for row in rows):
        return "calibrated_s", "self time, calibrated", OF_THE_STEP, median
    return "self_s", "self time, raw", AS_SEEN, None


def _lines(report: Report) -> _Candidates:
    """Return times of the user's own lines; the share is of the time on all of them.

    Following lines slows Python, so that no line is told longer than its part of a clean step.
    """
    found: list[_Candidate] = []
    for row in report["tables"]["lines"]:
        if row.get("own") is not False and row.get("python_s") is not None:
            where, link = place(row["file"], row["line"]), f"source/{row['file']}:{row['line']}"
            seconds = number(row["python_s"]) + number(row["operator_s"])
            found.append(((row["source"] or "").strip() or where, link, seconds, where))
    whole = sum(seconds for _, _, seconds, _ in found)
    of, median = "of the time on lines of your own", report["benchmark"]["median_s"]
    known = report.get("attribution")
    if not whole or not median or known is None or known["calibrated_owned_s"] is None:
        return "time on the line, raw", of, whole, found
    # Where lines of the script's own have not all of the step, no more than the layer's slowing.
    step_s = known["step_s"] or median
    factor = min(median / whole, median / step_s)
    clean = [(name, link, seconds * factor, at) for name, link, seconds, at in found]
    return "time on the line with what it calls, calibrated", of, median, clean


def place(file: str | None, line: int | None) -> str:
    """Return file and line in short; a built-in function has none."""
    return place_words(file, line) if file and file != "~" else "built-in"
