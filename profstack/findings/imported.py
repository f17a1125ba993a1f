"""The answer of a recording that was made from files of other tools.

A trace says how long steps took under its profiler, and which part was the largest. Other files
say what a program did as a whole: a profile which function most of the time is in, a history of
memory how much was held at most and what took it. Nothing is judged by the clean step, which there
is none of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from profstack.code_owner import BUILTIN_FILE, OWN, package_of, place_words
from profstack.findings import reading
from profstack.storage.reader import whole
from profstack.storage.schema.report import Report
from profstack.storage.schema.rows import FunctionRow, WatchRow
from profstack.storage.vocabulary import THREAD
from profstack.units import format_bytes, format_count, format_seconds, format_share

# A function with more of the time holds all of the program: it explains nothing.
_ALL = 0.9
_PART = 0.05
# Free memory beside blocks in use, as a share of what is reserved, that is worth a word.
_GAPS = 0.1
_Row = Mapping[str, Any]


def answer(report: Report) -> str | None:
    """Return what the files say in one or a few sentences; None where they hold nothing of it."""
    said = [
        words
        for part in (_traced, _device_memory, _process_memory, _functions, _samples)
        for words in part(report)
    ]
    return " ".join(f"{words}." for words in said) or None


def _table(report: Report, name: str) -> list[_Row]:
    """Return the rows of a layer's own table; none where the recording does not have it."""
    tables = (each for each in report.get("layer_tables", []) if each["name"] == name)
    return next((list(each["rows"]) for each in tables), [])


# --- Traces ---------------------------------------------------------------------------------------


def _traced(report: Report) -> Iterator[str]:
    """Say what a trace of operators is of, how long its steps took, and its largest part."""
    tables = report["tables"]
    if not reading.is_import(report) or not tables["operators"]:
        return
    names = ", ".join(each["file"] for each in report.get("imports", ()))
    walls = [row["wall_s"] for row in tables["steps"] if row["wall_s"]]
    words = f"In {names} no steps were found; all times"
    if walls:
        count = "1 step" if len(walls) == 1 else f"{len(walls):,} steps"
        words = f"{names}: {count} of {format_seconds(median(walls))} (median); all times"
    yield f"{words} are as torch.profiler slowed them"
    kinds: tuple[tuple[str, Sequence[_Row], str, str], ...] = (
        ("kernel", tables["kernels"], "name", "device_s"),
        ("part", tables["modules"], "path", "self_s"),
        ("operator", tables["operators"], "name", "self_s"),
    )
    for what, rows, key, column in kinds:
        # Rows of one operator differ by the shapes of its inputs.
        sums = reading.sums_of((row[key], row[column]) for row in rows)
        whole_s, first = sum(sums.values()), max(sums, key=lambda name: sums[name], default=None)
        if first is not None and whole_s:
            of = "the steps' time" if what == "part" else f"the {what}s' time"
            share = format_share(sums[first] / whole_s)
            yield f"The largest {what} is {first}, with {share} of {of}"


# --- Profiles of functions ------------------------------------------------------------------------


def _functions(report: Report) -> Iterator[str]:
    rows = [row for row in report["tables"]["functions"] if row["phase"] == "step"]
    whole_s = reading.total(rows, "self_s")
    first = reading.largest(rows, "self_s")
    if first is None or not whole_s:
        return
    calls = format_count(first["calls"])
    times = "its one call" if first["calls"] == 1 else f"its {calls} calls"
    words = (
        f"{format_share((first['self_s'] or 0.0) / whole_s)} of the profiled "
        f"{format_seconds(whole_s)} is {_named(first)} itself, in {times}"
    )
    yield words + _mostly_from(report, first)
    beneath = [
        row
        for row in rows
        if _is_own(row) and _PART <= (row["total_s"] or 0.0) / whole_s < _ALL and row != first
    ]
    if (second := reading.largest(beneath, "total_s")) is not None:
        share = format_share((second["total_s"] or 0.0) / whole_s)
        yield f"With all that it calls, {_named(second)} takes {share}"


def _mostly_from(report: Report, row: FunctionRow) -> str:
    """Name the caller of a function that is not the user's own, where it has most of its time."""
    if _is_own(row):
        return ""
    place = f"{row['file']}:{row['line']}({row['name']})"
    callers = [each for each in report["tables"]["calls"] if each["callee"] == place]
    most = reading.largest(callers, "self_s")
    caller = reading.parse_function(most["caller"]) if most is not None else None
    if most is None or caller is None or (most["self_s"] or 0.0) < 0.5 * (row["self_s"] or 0.0):
        return ""
    return f", mostly called by {caller.name} ({place_words(caller.file, caller.line)})"


def _is_own(row: FunctionRow) -> bool:
    return row["name"] != "<module>" and package_of(row["file"], own=row["own"]) == OWN


def _named(row: FunctionRow) -> str:
    if row["file"] == BUILTIN_FILE:
        return str(row["name"])
    return f"{row['name']} ({place_words(row['file'], row['line'])})"


# --- Samples --------------------------------------------------------------------------------------


def _samples(report: Report) -> Iterator[str]:
    facts, rows = report["watch"], report["tables"]["watch"]
    first = reading.largest([row for row in rows if row["file"] != THREAD], "self_share")
    if facts is None or first is None:
        return
    words = (
        f"{format_share(first['self_share'])} of the sampled {format_seconds(facts['watched_s'])} "
        f"is {_sampled_name(first)} itself"
    )
    lines = report["tables"]["lines"]
    line = reading.largest(lines, "watch_share")
    if line is not None:
        where = reading.in_words({"file": line["file"], "line": line["line"]})
        words += f"; the script's heaviest line is {where} with {format_share(line['watch_share'])}"
    yield words
    threads = reading.by_size([row for row in rows if row["file"] == THREAD], "total_share")
    if threads:
        most = f"{threads[0]['name']} with {format_share(threads[0]['total_share'])}"
        yield f"They are of {len(threads)} threads, most of {most}"


def _sampled_name(row: WatchRow) -> str:
    return f"{row['name']} ({place_words(row['file'], row['line'])})"


# --- Memory ---------------------------------------------------------------------------------------


def _process_memory(report: Report) -> Iterator[str]:
    readings = [row for row in report["tables"]["memory"] if row["rss_bytes"] is not None]
    peak = reading.largest(readings, "rss_bytes")
    if peak is None or peak["t_s"] is None:
        return
    marked = _table(report, "mprof_functions")
    inside = next((row["function"] for row in marked if row["at_peak"]), None)
    where = f", inside {inside}" if inside else ", outside all marked functions" if marked else ""
    yield (
        f"The process held at most {format_bytes(peak['rss_bytes'])}, "
        f"{format_seconds(peak['t_s'])} after the first reading{where}; at the end it held "
        f"{format_bytes(readings[-1]['rss_bytes'])}"
    )
    children = _table(report, "mprof_children")
    if children:
        most = format_bytes(max(row["peak_bytes"] or 0 for row in children))
        count = "A child process" if len(children) == 1 else f"Of {len(children)} child processes"
        yield f"{count}{' one' * (len(children) > 1)} held up to {most} beside it"


def _device_memory(report: Report) -> Iterator[str]:
    lines = _table(report, "snapshot_lines")
    failures = (each["text"] for each in report["warnings"] if each["slug"] == "out-of-memory")
    failure = next(failures, None)
    if failure is not None:
        yield failure
    devices = reading.sums_of((row["device"], row["peak_bytes"]) for row in lines)
    device = max(devices, key=lambda name: devices[name], default=None)
    if device is None or not devices[device]:
        return
    own = [row for row in lines if row["device"] == device]
    held = devices[device]
    first = max(own, key=lambda row: row["peak_bytes"] or 0)
    place = "code without a Python stack"
    if first["file"] is not None:
        where = place_words(first["file"], whole(first["line"]))
        place = f"{first['function']} ({where}), {first['part']}"
    share = format_share(first["peak_bytes"] / held)
    yield f"{device} held at most {format_bytes(held)} in tensors, {share} of it from {place}"
    segments = [row for row in _table(report, "snapshot_segments") if row["device"] == device]
    reserved, gaps = (
        sum(row[name] or 0 for row in segments) for name in ("reserved_bytes", "gap_bytes")
    )
    if reserved and gaps > _GAPS * reserved:
        yield (
            f"{format_share(gaps / reserved)} of the {format_bytes(reserved)} that the allocator "
            "has reserved is gaps between blocks"
        )
