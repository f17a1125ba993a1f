"""Files of a benchmark while it runs, and the one recording that they become.

The command writes the options, each process its figures, and the first process the layers.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, stdev
from typing import TypedDict, cast

from profstack.storage.folder import DATABASE, Writer
from profstack.storage.schema.report import BetweenProcesses, VariantRow
from profstack.storage.vocabulary import BENCH_FACT

OPTIONS = "logs/bench.json"
# The recording of the layers while it is made.
LAYERS = "logs/layers"
# Given in place of a process's number: it records the layers and measures nothing.
LAYERS_ALONE = "layers"
INTERRUPTED = 130
_PAGES = ("report.html", "report.json")
_FEW = 3

# Fields of the report's `benchmark`, as many as were measured: JSON between processes.
Figures = dict[str, object]


class ProcessResult(TypedDict, total=False):
    """The file that one process of a benchmark leaves."""

    figures: Figures | None
    environment: dict[str, object]
    error: str | None
    layers_problem: str


class BenchFact(TypedDict, total=False):
    """The fact of a recording that holds a benchmark's figures."""

    figures: Figures | None
    problems: list[str]
    layers_apart: bool


def between_processes(medians_s: Sequence[float | None]) -> BetweenProcesses:
    """Return the report's `between_process` from the median of each process, in seconds.

    A process without a median (None) is listed and not counted.
    """
    known = [value for value in medians_s if value is not None]
    count, lost = len(known), len(medians_s) - len(known)
    note = "the error bar of a comparison: what fresh processes of one work differ by"
    if count < 2:
        note = "one process has no spread"
    elif count < _FEW:
        note += "; so few show little of the spread"
    if lost:
        note += f"; {lost} of {len(medians_s)} gave no median"
    return {
        "processes": count,
        "medians_s": list(medians_s),
        "median_s": float(median(known)) if known else None,
        "low_s": min(known, default=None),
        "high_s": max(known, default=None),
        "spread": max(known) / min(known) - 1.0 if count > 1 and min(known) > 0 else None,
        "std_s": float(stdev(known)) if count > 1 else None,
        "note": note,
    }


def _join_variants(results: Sequence[Sequence[VariantRow]]) -> list[VariantRow]:
    """Return the first process's rows, each with the medians of all processes."""
    rows = [row.copy() for row in results[0]]
    if len(results) > 1:
        medians = [{row["variant"]: row["median_s"] for row in each} for each in results]
        for row in rows:
            row["between_process"] = [each.get(row["variant"]) for each in medians]
    return rows


def result_path(folder: Path, process: int | str) -> Path:
    """Return the file of one process's result."""
    return folder / "logs" / f"bench-{process}.json"


def read_results(folder: Path, processes: int) -> list[ProcessResult | None]:
    """Read the result of each process; None for a process that left none."""
    return [_read(result_path(folder, number)) for number in range(processes)]


def layers_problems(folder: Path, code: int | None) -> list[str]:
    """Return problems of the process that records the layers; `code` is None without one."""
    if code is None:
        return []
    found = _problems([_read(result_path(folder, LAYERS_ALONE))], [code])
    return [f"the process of the layers: {problem}" for problem in found]


def _read(path: Path) -> ProcessResult | None:
    try:
        return cast(ProcessResult, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def join_results(results: Sequence[ProcessResult | None], codes: Sequence[int]) -> BenchFact:
    """Return the figures of all processes as one fact of the recording.

    The headline is of the first process that has one; `codes` are the exit codes.
    """
    figures = [(result["figures"] if result else None) or {} for result in results]
    first = next((each for each in figures if each.get("median_s") is not None), None)
    fact: BenchFact = {"figures": None, "problems": _problems(results, codes)}
    if first is None:
        return fact
    joined = fact["figures"] = dict(first)
    if len(results) > 1:
        medians = [cast("float | None", each.get("median_s")) for each in figures]
        joined["between_process"] = between_processes(medians)
        compared = [each["compare"] for each in figures if each.get("compare")]
        if compared:
            joined["compare"] = _join_variants(cast("list[list[VariantRow]]", compared))
    return fact


def _problems(results: Sequence[ProcessResult | None], codes: Sequence[int]) -> list[str]:
    """Return the problems of each process in words."""
    problems = []
    for number, (result, code) in enumerate(zip(results, codes, strict=False)):
        which = f"process {number + 1}: " if len(results) > 1 else ""
        error = result.get("error") if result else None
        if code == -signal.SIGINT or (code == INTERRUPTED and not error):
            error = "interrupted (Ctrl-C)"
        elif code < 0:
            error = f"ended by signal {-code}"
        elif error == "KeyboardInterrupt":
            error = "interrupted (Ctrl-C)"
        elif code and not error:
            error = f"ended with exit code {code}"
        if error:
            problems.append(f"{which}{error}")
        if result and result.get("layers_problem"):
            problems.append(f"{which}the layers failed: {result['layers_problem']}")
    return problems


def take_layers(folder: Path) -> bool:
    """Move the layers' recording into the benchmark's own; return whether there is one.

    A process that was killed has left what it had written by then.
    """
    made = folder / LAYERS
    if not made.is_dir():
        return False
    for entry in made.iterdir():
        if entry.name in _PAGES:
            entry.unlink()
        elif entry.name == "logs":
            for log in entry.iterdir():
                # Peaks are found for the recording as a whole.
                if log.name != "peaks.json":
                    log.replace(folder / "logs" / log.name)
        else:
            entry.replace(folder / entry.name)
    shutil.rmtree(made)
    return (folder / DATABASE).is_file()


def write_figures(folder: Path, fact: BenchFact, without_layers: Mapping[str, str]) -> None:
    """Write the figures into the recording; `without_layers` says why each layer is missing."""
    writer = Writer(folder)
    writer.facts({BENCH_FACT: fact})
    left_out = without_layers.items()
    rows = [{"name": name, "status": "skipped", "reason": reason} for name, reason in left_out]
    if rows:
        writer.write({"layers": rows})
    writer.close()
