"""Data loading starves the step: the model waits for its batch.

Of the wait counts what is known to be loading (`loading_time`); where there is no DataLoader, the
user's own functions outside modules must take most of it. The gain is what overlapping would save.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profstack.analysis.functions import COST
from profstack.findings import loading_time, reading, rules
from profstack.findings.loading_time import MOSTLY
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import Evidence, Finding, Report
from profstack.storage.schema.rows import FunctionRow, LineRow
from profstack.units import format_seconds

# The functions that a step's loading goes to: first the one to look at, then the longest others.
# What the loader calls has all of the loading, and says nothing by that. The one to look at is the
# deepest of the user's own that still has most of it: all that it calls has less.

# A function with less of the loading is left out.
_LEAST_SHARE = 0.1
_MOST_ROWS = 3
# A line that asks for a batch.
_ASKS = re.compile(r"^\s*(async )?for |\bnext\(")
# Functions that such a line calls without their name.
_OF_LOOPS = ("__iter__", "__next__", "__aiter__", "__anext__")
_YIELDS = re.compile(r"\byield\b")


@dataclass(frozen=True)
class LoadingFunction:
    """A function that loading calls, and its part of the clean step's loading."""

    row: FunctionRow
    share: float
    clean_s: float
    # The user's own function that calls it for longest.
    called_from: str | None
    heaviest_line: LineRow | None

    @property
    def place(self) -> str:
        """The function in words."""
        return f"{self.row['name']}{reading.in_brackets(self.row)}"

    @property
    def evidence(self) -> Evidence:
        """A row of evidence; keys that do not apply are left out."""
        row, line = self.row, self.heaviest_line
        return {
            "function": row["name"],
            **reading.pick(row, "file", "line"),
            **({"called_from": self.called_from} if self.called_from else {}),
            "calls": row["calls"],
            "clean_s": self.clean_s,
            "loading_share": self.share,
            **({"heaviest_line": line["line"], "text": reading.text_of(line)} if line else {}),
            "link": reading.to_function(reading.key_of(row)),
        }


def loading_functions(report: Report, load_s: float) -> list[LoadingFunction]:
    """Return the functions that loading goes to, the one to look at first.

    The user's own by their time with what they call; a library's by its own time where none is the
    user's.
    """
    graph = reading.CallGraph(report)
    roots = loading_time.loaders(graph)
    whole = reading.total((graph.rows[key] for key in roots), "total_s")
    if not whole:
        return []

    def described(row: FunctionRow, part_s: float) -> LoadingFunction:
        share = min(part_s / whole, 1.0)
        caller = _caller(graph, reading.key_of(row)) if row["own"] else None
        line = _heaviest_line(graph, row)
        return LoadingFunction(row, share, share * load_s, caller, line)

    below = [graph.rows[key] for key in graph.below(roots) & graph.rows.keys()]
    own = reading.by_size((row for row in below if row["own"]), "total_s")
    own_s = [reading.figure(row, "total_s") for row in own]
    own = own[: sum(seconds >= _LEAST_SHARE * whole for seconds in own_s)]
    if not own:
        library = reading.by_size(below, "self_s")[:1]
        return [described(row, reading.figure(row, "self_s")) for row in library]
    most = own[: sum(seconds >= MOSTLY * whole for seconds in own_s)]
    first = _deepest(graph, most) or own[0]
    rows = [first, *(row for row in own if row is not first)][:_MOST_ROWS]
    return [described(row, reading.figure(row, "total_s")) for row in rows]


def most_of_it(functions: Sequence[LoadingFunction]) -> str:
    """Say which function the loading goes to."""
    first, *others = functions
    much = "Most of it is" if first.share >= MOSTLY else "The longest of it is"
    words = f"{much} {first.place}"
    if first.called_from is not None:
        words += f", called from {first.called_from}"
    called = next((each for each in others if each.called_from == first.row["name"]), None)
    if called is not None and first.heaviest_line is None:
        words += f"; the longest of what that calls is {called.place}"
    return f"{words}."


def _deepest(graph: reading.CallGraph, rows: Sequence[FunctionRow]) -> FunctionRow | None:
    """Return the function that calls none of the others; the longest where that is not one."""
    known = {reading.key_of(row): row for row in rows}
    last = [row for key, row in known.items() if not (graph.below([key]) - {key}) & known.keys()]
    return reading.largest(last or rows, "total_s")


def _caller(graph: reading.CallGraph, key: reading.FunctionKey) -> str | None:
    """Return the user's own function that calls this one for longest."""
    own = [
        (seconds, caller)
        for caller, seconds in graph.callers_s.get(key, {}).items()
        if caller in graph.rows and graph.rows[caller]["own"]
    ]
    return max(own)[1].name if own else None


def _heaviest_line(graph: reading.CallGraph, row: FunctionRow) -> LineRow | None:
    """Return the heaviest line of a function of the user's, where all its lines were followed.

    Lines have no time of the user's functions that they call: where these have most of the
    function's, a line would be blamed for theirs.
    """
    key, most_s = reading.key_of(row), (1 - MOSTLY) * reading.figure(row, "total_s")
    if not row["own"] or _in_others_s(graph, key) > most_s:
        return None
    line = graph.heaviest_line(key)
    return line if line is not None and reading.line_s(line) else None


def _in_others_s(graph: reading.CallGraph, key: reading.FunctionKey) -> float:
    """Return the time in others of the user's, called by a function or through a library."""
    waiting, seen, total = [key], {key}, 0.0
    while waiting:
        for callee, edge in graph.callees.get(waiting.pop(), ()):
            row = graph.rows.get(callee)
            if row is None or callee == key:
                continue
            if row["own"]:
                total += edge["total_s"] or 0.0
            elif callee not in seen:
                seen.add(callee)
                waiting.append(callee)
    return total


@reading.family
def data_starved(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield a finding where the wait for data is a quarter of the clean step or more."""
    share, least = loading_time.wait_share(report), rules.DATA_STARVED.threshold
    if share is None:
        return
    loading = loading_time.loading_of(report, step_s, share)
    if loading is not None:
        if loading.load_s >= least * step_s:
            yield _with_loader(report, loading)
    elif share >= least:
        slowed = (recorded.facts.get(COST) or {}).get("bytecode_factor", 1.0)
        yield from _without_loader(report, step_s, share * step_s, slowed)


def _with_loader(report: Report, loading: loading_time.Loading) -> Finding:
    """Return the finding on a DataLoader: without workers, or with too few or too slow ones."""
    gain, reason = loading_time.gain_of(loading, loading.wanted())
    wait: Evidence = {
        "loading_s": loading.load_s,
        "step_share": loading.load_s / loading.step_s,
        "wait_before_work_s": loading.wait_s,
        "cores": loading.cores,
        "link": "modules/(wait)",
    }
    if loading.no_core_s:
        wait["waited_for_core_s"] = loading.no_core_s
    if (cpu_s := report["processes"]["cpu_s"]) is not None:
        wait["mean_cpu_s"] = cpu_s
    wait["workers"] = loading.workers
    place: FunctionRow | LineRow | None
    if loading.workers:
        if (busy := loading_time.busy_share(report)) is not None:
            worker_cpu_s = report["processes"]["worker_cpu_s"]
            wait |= {"mean_worker_cpu_s": worker_cpu_s, "worker_busy_share": busy}
        # The longest line on which a loader is asked for its next batch.
        place = max(reading.own_lines(report, _ASKS), key=reading.line_s, default=None)
        rows = [reading.line_evidence(place)] if place else []
        advice = _advice_on_workers(loading, gain)
    else:
        functions = loading_functions(report, loading.load_s)
        place = next((each.row for each in functions if each.row["own"]), None)
        rows = [each.evidence for each in functions]
        advice = _advice(loading, functions, gain)
    seen = {layer["name"] for layer in report["layers"] if layer["status"] == "recorded"}
    return reading.finding(
        rules.DATA_STARVED,
        f"Data loading takes {100 * loading.load_s / loading.step_s:.0f} % of a step, and the "
        "model waits for it",
        severity=reading.severity_of(loading.load_s, loading.step_s),
        gain_s=gain,
        gain_reason=reason,
        place=place,
        layers=seen & {"torch", "cprofile"},
        evidence=[wait, *_range_evidence(report), *rows],
        advice=advice,
    )


def _advice_on_workers(loading: loading_time.Loading, gain: float | None) -> str:
    who = "The one DataLoader worker makes"
    if loading.workers > 1:
        who = f"The {loading.workers} DataLoader workers make"
    words = f"{who} batches more slowly than the step takes them"
    is_crowded = loading.no_core_s > MOSTLY * loading.load_s
    if is_crowded:
        words = (
            f"For up to {format_seconds(loading.no_core_s)} of the "
            f"{format_seconds(loading.load_s)} that a step waits for its batch, its thread could "
            "run and had no core: the workers and other programs had them all"
        )
    elif loading.is_waiting:
        words += ", and its CPU time says that it mostly waits (for files, a network, or a core)"
    if gain is not None:
        words += f". Try num_workers={loading.wanted()} with persistent_workers=True"
        if loading.is_waiting:
            words += ", or hold the data in memory"
    elif is_crowded:
        words += ". If no other program ran, only cheaper samples help"
    else:
        words += f". All {loading.cores:g} cores have work: only cheaper samples help"
    return (
        f"{words}. No layer looks into workers: one run with num_workers=0 names the functions and "
        "lines that make the samples."
    )


def _advice(
    loading: loading_time.Loading, functions: Sequence[LoadingFunction], gain: float | None
) -> str:
    parts = [most_of_it(functions)] if functions else []
    if gain:
        parts.append(
            f"With num_workers={loading.wanted()}, persistent_workers=True the DataLoader makes "
            "the next batches while the model works on this one (each worker holds "
            "prefetch_factor=2 batches ready; pin_memory=True helps only where a GPU trains)."
        )
    elif loading.cores < 2:
        parts.append("There is one core: workers would take it from the step.")
    if functions and "collate" in f"{functions[0].row['name']} {functions[0].called_from}":
        parts.append("Collate whole tensors at once (torch.stack, torch.cat) without Python loops.")
    parts.append(
        "Else make samples cheaper: decode and transform once and keep the result (in memory or "
        "in a file of tensors), or work on whole batches instead of sample after sample."
    )
    return " ".join(parts)


def _range_evidence(report: Report) -> list[Evidence]:
    """Return the first of the ranges that torch puts round the loader's work."""
    found: list[Evidence] = []
    for row in loading_time.loader_ranges(report)[:1]:
        found = [{"range": row["path"], "calls": row["calls"], "link": f"ranges/{row['path']}"}]
        if (time := reading.calibrated(report, row["wall_s"])) is not None:
            found[0]["calibrated_s"] = time
    return found


def _without_loader(
    report: Report, step_s: float, wait_s: float, slowed: float
) -> Iterator[Finding]:
    """Yield the finding on a script that makes its batches itself, where its functions show it."""
    graph = reading.CallGraph(report)
    functions = [
        each
        for each in loading_time.before_first_work(report, wait_s, slowed)
        if _is_taken(report, graph, reading.key_of(each.row))
    ]
    taken = sum(each.clean_s for each in functions)
    if taken < MOSTLY * wait_s or taken < rules.DATA_STARVED.threshold * step_s:
        return
    first, share = functions[0], wait_s / step_s
    name = first.row["name"]
    yield reading.finding(
        rules.DATA_STARVED,
        f"A step waits {100 * share:.0f} % of its time before its first work, most of it in {name}",
        severity=reading.severity_of(wait_s, step_s),
        gain_reason="nothing tells whether this can be done beside the step: it runs on the step's "
        "own thread",
        place=first.row,
        layers=["cprofile"],
        evidence=[
            {"wait_before_work_s": wait_s, "step_share": share, "link": "modules/(wait)"},
            *(each.evidence for each in functions[:_MOST_ROWS]),
        ],
        advice=f"{name}{reading.in_brackets(first.row)} takes {format_seconds(first.clean_s)} of a "
        f"step of {format_seconds(step_s)}. If it makes the batch, put it into a "
        "torch.utils.data.Dataset and let a DataLoader with num_workers make batches while the "
        "model works; else make it cheaper or rarer.",
    )


def _is_taken(report: Report, graph: reading.CallGraph, key: reading.FunctionKey) -> bool:
    """Whether a line of the user's takes what a function gives.

    One that gives nothing, or what is added to a sum, loads nothing. A loop calls its iterator
    without its name.
    """
    texts = [line["source"] or "" for line in report["tables"]["lines"]]
    yields = any(_YIELDS.search(line["source"] or "") for line in graph.lines_of(key))
    if key.name in _OF_LOOPS or yields:
        return any(_ASKS.search(text) for text in texts)
    taken = re.compile(rf"(?:[\w\s\]),]=(?!=)|\bin\b).*?\b{re.escape(key.name)}\(")
    return any(taken.search(text) for text in texts)
