"""Data loading starves the step: the model waits for its batch.

Of the wait counts what is known to be loading (`loading`); where there is no DataLoader, the user's
own functions outside modules must take most of it. The gain is what overlapping would save
(`overlap`).
"""

from __future__ import annotations

import re
from typing import Any

from profstack.findings.extents import lines_of
from profstack.findings.figures import (
    CallGraph,
    Report,
    Row,
    calibrated,
    clean_step_s,
    line_s,
    short,
    to_source,
)
from profstack.findings.loading import (
    MOSTLY,
    busy_share,
    loader_ranges,
    loading_of,
    wait_share,
)
from profstack.findings.loadingfunctions import loading_functions, most_of_it
from profstack.findings.made import Finding, finding, severity_of
from profstack.findings.outside import before_first_work
from profstack.findings.overlap import Loading, gain_of
from profstack.merge.functions import COST
from profstack.merge.recorded import Recorded
from profstack.units import format_seconds

SLUG = "data-starved"
# A share of the step: with less, a worker's own cost of handing batches over is a good part of
# what it could save.
STARVED_SHARE = 0.25
_MOST_ROWS = 3
# A line that asks for a batch.
_ASKS = re.compile(r"^\s*(async )?for |\bnext\(")
# Functions that such a line calls without their name.
_OF_LOOPS = ("__iter__", "__next__", "__aiter__", "__anext__")
_YIELDS = re.compile(r"\byield\b")


def data_starved(recorded: Recorded, report: dict[str, Any]) -> list[Finding]:
    """A finding where the wait for data is a quarter of the clean step or more."""
    step_s = clean_step_s(report)
    share = wait_share(report)
    if step_s is None or share is None:
        return []
    loading = loading_of(report, step_s, share)
    if loading is None:
        starved = share >= STARVED_SHARE
        slowed = (recorded.facts.get(COST) or {}).get("bytecode_factor", 1.0)
        return _without_loader(report, step_s, share * step_s, slowed) if starved else []
    if loading.load_s < STARVED_SHARE * step_s:
        return []
    return [_of_workers(report, loading) if loading.workers else _of_the_step(report, loading)]


# -- what is told ----------------------------------------------------------------------------------


def _wait_row(report: Report, loading: Loading) -> dict[str, Any]:
    row = {
        "loading_s": loading.load_s,
        "step_share": loading.load_s / loading.step_s,
        "wait_before_work_s": loading.wait_s,
        "cores": loading.cores,
        "link": "modules/(wait)",
    }
    if loading.no_core_s:
        row["waited_for_core_s"] = loading.no_core_s
    cpu_s = (report.get("processes") or {}).get("cpu_s")
    return row if cpu_s is None else {**row, "mean_cpu_s": cpu_s}


def _of_the_step(report: Report, loading: Loading) -> Finding:
    """Samples are made in the process that trains, before the step can begin."""
    rows = loading_functions(report, loading.load_s)
    own = next((row for row in rows if row["own"]), None)
    gain, reason = gain_of(loading, loading.wanted())
    return finding(
        SLUG,
        _title(loading),
        severity=severity_of(loading.load_s, loading.step_s),
        gain_s=gain,
        gain_reason=reason,
        file=own["file"] if own else None,
        line=own["line"] if own else None,
        layers=_layers(report),
        evidence=[
            {**_wait_row(report, loading), "workers": 0},
            *_range_row(report),
            *({key: value for key, value in row.items() if key != "own"} for row in rows),
        ],
        advice=_advice(loading, rows, gain),
    )


def _of_workers(report: Report, loading: Loading) -> Finding:
    """Workers make the samples, and are too few or too slow."""
    line = _loop_line(report)
    busy = busy_share(report)
    gain, reason = gain_of(loading, loading.wanted())
    row = {**_wait_row(report, loading), "workers": loading.workers}
    if busy is not None:
        row |= {
            "mean_worker_cpu_s": report["processes"]["worker_cpu_s"],
            "worker_busy_share": busy,
        }
    return finding(
        SLUG,
        _title(loading),
        severity=severity_of(loading.load_s, loading.step_s),
        gain_s=gain,
        gain_reason=reason,
        file=line["file"] if line else None,
        line=line["line"] if line else None,
        layers=_layers(report),
        evidence=[row, *_range_row(report), *_line_rows(line)],
        advice=_advice_on_workers(loading, gain),
    )


def _advice_on_workers(loading: Loading, gain: float | None) -> str:
    who = "The one DataLoader worker makes"
    if loading.workers > 1:
        who = f"The {loading.workers} DataLoader workers make"
    told = f"{who} batches more slowly than the step takes them"
    if loading.no_core_s > MOSTLY * loading.load_s:
        told = (
            f"For up to {format_seconds(loading.no_core_s)} of the "
            f"{format_seconds(loading.load_s)} that a step waits for its batch, its thread could "
            "run and had no core: the workers and other programs had them all"
        )
    elif loading.is_waiting:
        told += ", and its CPU time says that it mostly waits (for files, a network, or a core)"
    if gain is not None:
        told += f". Try num_workers={loading.wanted()} with persistent_workers=True"
        if loading.is_waiting:
            told += ", or hold the data in memory"
    elif loading.no_core_s > MOSTLY * loading.load_s:
        told += ". If no other program ran, only cheaper samples help"
    else:
        told += f". All {loading.cores:g} cores have work: only cheaper samples help"
    return (
        f"{told}. No layer looks into workers: one run with num_workers=0 names the functions and "
        "lines that make the samples."
    )


def _title(loading: Loading) -> str:
    share = loading.load_s / loading.step_s
    return f"Data loading takes {100 * share:.0f} % of a step, and the model waits for it"


def _advice(loading: Loading, rows: list[dict[str, Any]], gain: float | None) -> str:
    told = [most_of_it(rows)] if rows else []
    if gain:
        count = loading.wanted()
        told.append(
            f"With num_workers={count}, persistent_workers=True the DataLoader makes the next "
            "batches while the model works on this one (each worker holds prefetch_factor=2 "
            "batches ready; pin_memory=True helps only where a GPU trains)."
        )
    elif loading.cores < 2:
        told.append("There is one core: workers would take it from the step.")
    if rows and "collate" in f"{rows[0]['function']} {rows[0].get('called_from')}":
        told.append("Collate whole tensors at once (torch.stack, torch.cat) without Python loops.")
    told.append(
        "Else make samples cheaper: decode and transform once and keep the result (in memory or "
        "in a file of tensors), or work on whole batches instead of sample after sample."
    )
    return " ".join(told)


def _layers(report: Report) -> list[str]:
    seen = {layer["name"] for layer in report["layers"] if layer["status"] == "recorded"}
    return sorted(seen & {"torch", "cprofile"})


def _range_row(report: Report) -> list[dict[str, Any]]:
    """The first of the ranges that torch puts round the loader's work."""
    for row in loader_ranges(report)[:1]:
        found = {"range": row["path"], "calls": row["calls"], "link": f"ranges/{row['path']}"}
        time = calibrated(report, row["wall_s"])
        return [found if time is None else {**found, "calibrated_s": time}]
    return []


def _loop_line(report: Report) -> Row | None:
    """The line of the user's on which a loader is asked for its next batch: the longest such."""
    lines = [
        row for row in report["tables"]["lines"] if row["own"] and _ASKS.search(row["source"] or "")
    ]
    return max(lines, key=line_s, default=None)


def _line_rows(line: Row | None) -> list[dict[str, Any]]:
    if line is None:
        return []
    text = (line["source"] or "").strip()
    place = {"file": line["file"], "line": line["line"], "text": text}
    return [{**place, "link": to_source(line["file"], line["line"])}]


# -- without a DataLoader --------------------------------------------------------------------------


def _without_loader(report: Report, step_s: float, wait_s: float, slowed: float) -> list[Finding]:
    """The same of a script that makes its batches itself, where its functions show it."""
    rows = [row for row in before_first_work(report, wait_s, slowed) if _gives(report, row)]
    taken = sum(row["clean_s"] for row in rows)
    if taken < MOSTLY * wait_s or taken < STARVED_SHARE * step_s:
        return []
    first, share = rows[0], wait_s / step_s
    return [
        finding(
            SLUG,
            f"A step waits {100 * share:.0f} % of its time before its first work, "
            f"most of it in {first['function']}",
            severity=severity_of(wait_s, step_s),
            gain_reason="nothing tells whether this can be done beside the step: it runs on the "
            "step's own thread",
            file=first["file"],
            line=first["line"],
            layers=["cprofile"],
            evidence=[
                {"wait_before_work_s": wait_s, "step_share": share, "link": "modules/(wait)"},
                *rows[:_MOST_ROWS],
            ],
            advice=f"{first['function']} ({short(first['file'])}:{first['line']}) takes "
            f"{format_seconds(first['clean_s'])} of a step of {format_seconds(step_s)}. If it "
            "makes the batch, put it into a torch.utils.data.Dataset and let a DataLoader with "
            "num_workers make batches while the model works; else make it cheaper or rarer.",
        )
    ]


def _gives(report: Report, row: Row) -> bool:
    """Whether a line of the user's takes what a function gives: one that gives nothing, or what is
    added to a sum, loads nothing.

    What a loop goes over is asked by its line, whatever the function is called.
    """
    texts = [line["source"] or "" for line in report["tables"]["lines"]]
    key = (str(row["file"]), int(row["line"]), str(row["function"]))
    own = lines_of(report, CallGraph(report), key)
    if key[2] in _OF_LOOPS or any(_YIELDS.search(line["source"] or "") for line in own):
        return any(_ASKS.search(text) for text in texts)
    taken = re.compile(rf"(?:[\w\s\]),]=(?!=)|\bin\b).*?\b{re.escape(key[2])}\(")
    return any(taken.search(text) for text in texts)
