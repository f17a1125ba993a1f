"""Assign memory readings to source lines, and write memory_profiler's own files.

A stretch is the time between two readings and belongs to one run of one line, and so does the
growth of memory over it. Stretches count with the step in which they began.
"""

from __future__ import annotations

import io
import linecache
import os
import sys
import time
from _thread import get_ident
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import numpy as np

from profstack.code_owner import script_folder
from profstack.privacy import home_relative, presentable_argv
from profstack.readers.memory.readings import (
    CUDA,
    MALLOC,
    NO_LINE,
    UNKNOWN,
    MemorySampler,
    Readings,
)
from profstack.readers.memory.tracer import MemoryTracer
from profstack.readers.torchtrace.columns import Bools, Ints
from profstack.storage.schema.column import Record

_NEVER = np.iinfo(np.int64).min


@dataclass
class LineFigures:
    """Figures of one line in bytes; None where they could not be read."""

    usage_bytes: int | None
    increment_bytes: int | None
    largest_bytes: int | None
    malloc_bytes: int | None
    cuda_bytes: int | None
    occurrences: int


@dataclass(frozen=True)
class Source:
    """Bytes by one source at both ends of each stretch; `grown` is 0 where one is not known."""

    before: Ints
    after: Ints
    grown: Ints
    known: Bools


class Stretches:
    """The stretches of a slice that count; all columns have one entry for each of them."""

    def __init__(
        self, tracer: MemoryTracer, edges: Sequence[float], left_out: Collection[int]
    ) -> None:
        readings = tracer.readings
        count = readings.count
        times = _whole(readings.times, count)
        # Those that began in a step that counts, and the one around the first begin.
        begins = np.array([round(edge * 1e9) for edge in edges], np.int64)
        step = np.searchsorted(begins, times[:-1], side="right") - 1
        step[(step < 0) & (times[1:] > begins[0])] = 0
        counts = np.ones(len(begins) + 1, np.bool_)
        # The last two: after the last step, and (as -1) before the first.
        counts[[len(begins) - 1, -1, *left_out]] = False
        places = _whole(readings.places, count)[:-1]
        self._times, self._chosen = times, counts[step] & (places != NO_LINE)
        self.place = places[self._chosen]
        run = _whole(readings.runs, count)[:-1][self._chosen]
        # A run keeps its number; its first event shows whether it began in the slice.
        self.run = np.where(run < 0, ~run, run)
        self.begins = run == np.flatnonzero(self._chosen)
        self.resident = self._source(readings.resident, count)
        self.heap = self._source(readings.heap, count)
        self.device = self._source(readings.device, count)

    def _source(self, column: Any, count: int) -> Source:
        values = _whole(column, count)
        before, after = values[:-1][self._chosen], values[1:][self._chosen]
        known = (before != UNKNOWN) & (after != UNKNOWN)
        return Source(before, after, np.where(known, after - before, 0), known)

    def at(self, times: Ints) -> Ints:
        """Return the stretch around each time; -1 where there is none that counts."""
        number = np.full(len(self._times) + 1, -1, np.int64)
        number[1:-1][self._chosen] = np.arange(len(self.place))
        return number[np.searchsorted(self._times, times, side="right")]


def _whole(column: Any, count: int) -> Ints:
    return np.frombuffer(column, np.int64, count)


def line_figures(
    tracer: MemoryTracer, stamps: Sequence[float], left_out: Collection[int] = ()
) -> dict[tuple[str, int], LineFigures]:
    """Return figures by file and line of all lines that ran in the steps between `stamps`."""
    if tracer.readings.count < 2:
        return {}
    stretches = Stretches(tracer, stamps, left_out)
    # A line of several code objects (a comprehension) has as many places, and one number.
    numbers: dict[tuple[str, int], int] = {}
    number = np.zeros(len(tracer.lines), np.int64)
    for place in np.unique(stretches.place).tolist():
        code, line = tracer.lines[place]
        number[place] = numbers.setdefault((code.co_filename, line), len(numbers))
    places = stretches.place = number[stretches.place]
    count, sampler = len(numbers), tracer.readings.sampler
    largest = np.maximum(
        _largest(stretches, stretches.resident, sampler, sampler.resident, count),
        _largest(stretches, stretches.heap, sampler, sampler.heap, count),
    )
    # The largest resident set at the end of a run: at the last stretch of each.
    usage = np.full(count, _NEVER)
    last = np.zeros(len(stretches.run), np.bool_)
    # Of equal values the first is given: the last one seen from behind.
    _, from_behind = np.unique(stretches.run[::-1], return_index=True)
    last[len(last) - 1 - from_behind] = True
    last &= stretches.resident.known
    np.maximum.at(usage, places[last], stretches.resident.after[last])
    columns = (
        _known(usage),
        _sums(places, stretches.resident, count),
        _known(largest),
        _sums(places, stretches.heap, count),
        _sums(places, stretches.device, count),
        np.bincount(places[stretches.begins], minlength=count).tolist(),
    )
    figures = (LineFigures(*each) for each in zip(*columns, strict=True))
    return dict(zip(numbers, figures, strict=True))


def _known(values: Ints) -> list[int | None]:
    """Return values as they are in rows: None in place of `_NEVER`."""
    return [None if value == _NEVER else value for value in values.tolist()]


def _sums(places: Ints, source: Source, count: int) -> list[int | None]:
    """Return the growth by place, None unless that of every stretch of the place is known."""
    total = np.zeros(count, np.int64)
    np.add.at(total, places, source.grown)
    total[places[~source.known]] = _NEVER
    return _known(total)


def _largest(
    stretches: Stretches, source: Source, sampler: MemorySampler, column: Any, count: int
) -> Ints:
    """Return the largest growth since the begin of a run at any time within it, by place.

    It is 0 where a run only freed memory.
    """
    highest = np.full(count, _NEVER)
    # The growth since the begin of the run at the end of each stretch.
    run, grown = stretches.run, source.grown
    order = np.argsort(run, kind="stable")
    after = np.cumsum(grown[order])
    first = np.flatnonzero(np.diff(run[order], prepend=-1))
    before_run = after[first] - grown[order][first]
    since_run = np.empty(len(run), np.int64)
    since_run[order] = after - np.repeat(before_run, np.diff(np.append(first, len(run))))
    known = source.known
    highest[stretches.place[known]] = 0
    np.maximum.at(highest, stretches.place[known], since_run[known])
    samples = _whole(column, sampler.count)
    at = stretches.at(_whole(sampler.times, sampler.count))
    within = (at >= 0) & (samples != UNKNOWN)
    at, samples = at[within], samples[within]
    at, samples = at[known[at]], samples[known[at]]
    sampled = samples - source.before[at] + (since_run - grown)[at]
    np.maximum.at(highest, stretches.place[at], sampled)
    return highest


def line_records(
    figures: dict[tuple[str, int], LineFigures], index: int, unread: str | None
) -> list[Record]:
    """Return rows of `memory_lines`; `unread` is why malloc's bytes are unknown, if they are."""
    records: list[Record] = []
    for (file, line), found in figures.items():
        allocated, source = found.malloc_bytes, MALLOC
        if found.cuda_bytes:
            allocated, source = found.cuda_bytes, CUDA
        elif allocated is None:
            source = unread or "malloc's bytes could not be read at all of its runs"
        records.append(
            {
                "slice": index,
                "file": file,
                "line": line,
                "source": linecache.getline(file, line).rstrip("\n") or None,
                "usage_bytes": found.usage_bytes,
                "increment_bytes": found.increment_bytes,
                "largest_bytes": found.largest_bytes,
                "allocated_bytes": allocated,
                "second_source": source,
                "occurrences": found.occurrences,
            }
        )
    return records


def timeline(readings: Readings) -> tuple[Ints, Ints]:
    """Return all readings of the resident set: times (`time.perf_counter_ns`) and bytes."""
    both = (readings, readings.sampler)
    times = np.concatenate([_whole(each.times, each.count) for each in both])
    values = np.concatenate([_whole(each.resident, each.count) for each in both])
    order = np.argsort(times, kind="stable")
    order = order[values[order] != UNKNOWN]
    return times[order], values[order]


def truncations(tracer: MemoryTracer) -> list[str]:
    """Return a warning for each function that was not traced to its end."""
    texts = []
    for traced in tracer.let_go.values():
        code = traced.code
        rest = "on no line" if code.co_name == "<module>" else "on the line that calls it"
        file = code.co_filename.replace("\\", "/").rpartition("/")[2]
        texts.append(
            f"{file}:{code.co_firstlineno} ({code.co_name}) runs so many lines that it was traced "
            f"for {traced.spent} events alone: what it grew by otherwise is {rest}"
        )
    return texts


# --- memory_profiler's own files: its listing, and the file that `mprof` plots --------------------

# Its tracer ignores frames that are already running, takes the growth of a line from the line that
# ran before in any function, reads the resident set in 37 us and never ends; so lines are traced
# here, and its line map is given the result.

_MIB = float(1 << 20)
# Lines of `mprofile.dat` that one slice may add.
MOST_LINES = 16_384


def missing() -> str | None:
    """Return why memory_profiler cannot be used, with what to install; None if it can."""
    text = "memory_profiler is not installed: pip install memory-profiler"
    return text if find_spec("memory_profiler") is None else None


def listing(figures: Mapping[tuple[str, int], LineFigures]) -> str:
    """Return memory_profiler's listing: usage, increment and occurrences beside the source."""
    tool = load_memory_profiler()
    profiler = tool.LineProfiler()
    by_file = sorted((file, line) for file, line in figures)
    for file, places in groupby(by_file, key=lambda place: place[0]):
        lines = [line for _, line in places]
        # It shows every line from the first to the last, and must find them all.
        if len(linecache.getlines(file)) < lines[-1]:
            continue
        profiler.code_map[file] = {line: _measure(figures[file, line]) for line in lines}
        # `add` would print where a file is missing, and finds no line of a module's own code.
        profiler.code_map._toplevel.append((file, file, range(lines[0], lines[-1] + 1)))
    text = io.StringIO()
    tool.show_results(profiler, text)
    return home_relative(text.getvalue())


def _measure(figures: LineFigures) -> tuple[float, float, int] | None:
    """Return a line's entry in its line map: increment and usage in MiB, and occurrences."""
    if figures.increment_bytes is None or figures.usage_bytes is None:
        return None
    return figures.increment_bytes / _MIB, figures.usage_bytes / _MIB, figures.occurrences


def command_line() -> str:
    """Return the first line of `mprofile.dat`, the title of `mprof plot`."""
    shown = presentable_argv(["python", *map(str, sys.argv)])
    return " ".join(["CMDLINE", *shown]).replace("\n", " ") + "\n"


def plot_lines(times_ns: Sequence[int], values: Sequence[int]) -> Iterable[str]:
    """Yield lines of `mprofile.dat` for readings of the resident set in bytes.

    `times_ns` are `time.perf_counter_ns`; of too many readings in a row the highest is kept.
    """
    offset_ns = time.time_ns() - time.perf_counter_ns()
    every = -(-len(times_ns) // MOST_LINES) or 1
    for first in range(0, len(times_ns), every):
        value, when = max(
            zip(values[first : first + every], times_ns[first : first + every], strict=True)
        )
        yield f"MEM {value / _MIB:.6f} {(when + offset_ns) * 1e-9:.4f}\n"


class _Finder:
    """Finds memory_profiler's imports outside the script's folder, and keeps their names.

    It imports `pdb`, and with that names as common as `code` and `cmd`, which may be files of the
    script's own; and IPython where that is installed, though a script does not use it.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._thread = get_ident()
        script = os.path.realpath(script_folder())
        self._path = [entry for entry in sys.path if os.path.realpath(entry or ".") != script]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if path is not None or get_ident() != self._thread:
            return None
        if name == "IPython":
            raise ModuleNotFoundError(name)
        self.names.append(name)
        return PathFinder.find_spec(name, self._path)


def load_memory_profiler() -> Any:
    """Return the module, imported without a trace in the script's own modules."""
    loaded = sys.modules.get("memory_profiler")
    if loaded is not None:
        return loaded
    finder: Any = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        return import_module("memory_profiler")
    finally:
        sys.meta_path.remove(finder)
        for name in finder.names:
            # The script will import its own module of that name.
            if name in sys.stdlib_module_names:
                sys.modules.pop(name, None)
