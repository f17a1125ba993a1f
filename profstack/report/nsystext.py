"""What was imported of Nsight Systems, in a line of the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from profstack.report.tables import weight
from profstack.report.textparts import plain_table, short_name
from profstack.units import format_count, format_seconds

Record = Mapping[str, Any]
# What the parts of a capture are called, by the names under which they may be missing.
_PARTS = {
    "ranges": "NVTX ranges",
    "calls": "CUDA calls",
    "work": "work of a device",
    "libraries": "cuDNN and cuBLAS calls",
    "os_calls": "system calls",
    "memory": "memory usage",
    "samples": "CPU samples",
    "callchains": "call stacks",
}
# So many of them are named.
_NAMED = 3
ALONE = "the recording holds an import of Nsight Systems alone"


def is_import_alone(report: Record) -> bool:
    """Whether the recording holds an import of Nsight Systems and no run of its own."""
    return bool(report.get("nsys")) and not (report["tables"]["steps"] or report.get("layers"))


def nsys_line(report: Record) -> str | None:
    """What the import holds, and where it and the torch layer differ; None where there is none."""
    fact = report.get("nsys")
    if fact is None:
        return None
    words = [f"nsys: {_much(fact)} of {fact['file']}{_version(fact)}"]
    words += _of_device(report["tables"].get("nsys_steps") or [])
    words += _of_modules(report["tables"].get("nsys_modules") or [])
    if fact["missing"]:
        words.append(f"not in the file: {_lacking(sorted(fact['missing']))}")
    if fact["other_processes"]:
        words.append(f"{_counted(fact['other_processes'], 'other process', 'es')} left out")
    return "; ".join(words)


def nsys_tables(report: Record, width: int, most: int) -> list[Table]:
    """The heaviest module ranges and kernels, for a recording that holds an import alone."""
    ranges = report["tables"].get("nsys_modules") or []
    if not ranges:
        # Of a capture without profstack's steps: its ranges, whatever they are.
        ranges = report["tables"].get("nsys_ranges") or []
    kernels = report["tables"].get("nsys_kernels") or []
    host = "host_s" if ranges and "host_s" in ranges[0] else "wall_s"
    named = "path" if host == "host_s" else "name"
    tables = (
        _heaviest("range", named, ranges, (host, "device_s"), width, most),
        _heaviest("kernel", "name", kernels, ("device_s",), width, most),
    )
    return [table for table in tables if table is not None]


def _heaviest(
    title: str,
    name: str,
    rows: Sequence[Record],
    times: Sequence[str],
    width: int,
    most: int,
) -> Table | None:
    if not rows:
        return None
    headings = {"host_s": "host", "wall_s": "host", "device_s": "device"}
    table = plain_table((title, "l"), ("calls", "r"), *((headings[key], "r") for key in times))
    for row in sorted(rows, key=weight(times[0]), reverse=True)[:most]:
        table.add_row(
            short_name(row[name], width - 36),
            Text(format_count(row["calls"])),
            *(Text(format_seconds(row[key])) for key in times),
        )
    return table


def _much(fact: Record) -> str:
    if fact["steps"]:
        return _counted(fact["steps"], "step")
    return f"the whole capture ({format_seconds(fact['captured_s'])}, no step range)"


def _lacking(names: Sequence[str]) -> str:
    """Those that matter most first."""
    known = [words for name, words in _PARTS.items() if name in names]
    words = [*known, *(name for name in names if name not in _PARTS)]
    rest = len(words) - _NAMED
    return ", ".join(words[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _version(fact: Record) -> str:
    return f" (nsys {fact['version']})" if fact["version"] else ""


def _of_device(steps: Sequence[Record]) -> list[str]:
    """The median step's kernels, and for how long the device had none."""
    known = [row for row in steps if row["kernels"] is not None and row["idle_s"] is not None]
    if not known:
        return []
    # A step has a row for each device: its kernels are those of all of them.
    counts: dict[Any, float] = {}
    for row in known:
        counts[row["step"]] = counts.get(row["step"], 0) + row["kernels"]
    kernels = statistics.median(counts.values())
    idle, wall = (statistics.median(row[key] for row in known) for key in ("idle_s", "wall_s"))
    devices = len({row["device"] for row in known})
    where = f", on each of {devices} devices" if devices > 1 else ""
    without = f"no kernel for {format_seconds(idle)} of {format_seconds(wall)}{where}"
    return [f"{format_count(kernels)} kernels a step", without]


def _of_modules(rows: Sequence[Record]) -> list[str]:
    """How many modules the two see alike."""
    if not any(row["torch_calls"] for row in rows):
        return []
    apart = sum(row["disagreement"] is not None for row in rows)
    if not apart:
        return [f"agrees with the torch layer in {_counted(len(rows), 'module')}"]
    return [f"differs from the torch layer in {apart:,} of {_counted(len(rows), 'module')}"]


def _counted(number: int, word: str, ending: str = "s") -> str:
    return f"{number:,} {word}{'' if number == 1 else ending}"
