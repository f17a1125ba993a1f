"""memory_profiler's own files, from figures that are right: its listing, and what `mprof` plots.

Its tracer knows no frame that is already running, takes the growth of a line from whatever line
ran before in any function, reads the resident set in 37 us and never ends; so lines are traced
here, and its line map is given the result.
"""

from __future__ import annotations

import io
import linecache
import os
import sys
import time
from _thread import get_ident
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from itertools import groupby
from typing import Any

from profstack.memory.rows import LineFigures
from profstack.privacy import home_relative, presentable_argv
from profstack.software import package_version
from profstack.torchtrace import linetrace

_MIB = float(1 << 20)
# Lines of `mprofile.dat` that one slice may add.
MOST_LINES = 16_384


def missing() -> str | None:
    """Why memory_profiler cannot be used, with what to install; None if it can."""
    if find_spec("memory_profiler") is None:
        return "memory_profiler is not installed: pip install memory-profiler"
    return None


def version() -> str | None:
    """The version of memory_profiler."""
    return package_version("memory-profiler")


def listing(figures: Mapping[tuple[str, int], LineFigures]) -> str:
    """What memory_profiler shows of the lines: usage, increment and occurrences in the source."""
    tool = _memory_profiler()
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
    """Increment and usage in MiB, and occurrences: what its line map holds of a line."""
    if figures.increment_bytes is None or figures.usage_bytes is None:
        return None
    return figures.increment_bytes / _MIB, figures.usage_bytes / _MIB, figures.occurrences


def command_line() -> str:
    """The line that `mprofile.dat` begins with; `mprof plot` makes it the title."""
    shown = presentable_argv(["python", *map(str, sys.argv)])
    return " ".join(["CMDLINE", *shown]).replace("\n", " ") + "\n"


def plot_lines(times_ns: Sequence[int], values: Sequence[int]) -> Iterable[str]:
    """Lines of `mprofile.dat` for readings of the resident set in bytes.

    `times_ns` are `time.perf_counter_ns`; of too many readings in a row the highest stays.
    """
    offset_ns = time.time_ns() - time.perf_counter_ns()
    every = -(-len(times_ns) // MOST_LINES) or 1
    for first in range(0, len(times_ns), every):
        value, when = max(
            zip(values[first : first + every], times_ns[first : first + every], strict=True)
        )
        yield f"MEM {value / _MIB:.6f} {(when + offset_ns) * 1e-9:.4f}\n"


class _Apart:
    """Finds what memory_profiler imports, without the script's folder, and remembers its names.

    It imports `pdb`, and with that names as common as `code` and `cmd`, which may be files of the
    script's own; and IPython where that is installed, though a script does not use it.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._thread = get_ident()
        script = os.path.realpath(linetrace.script_folder())
        self._path = [entry for entry in sys.path if os.path.realpath(entry or ".") != script]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if path is not None or get_ident() != self._thread:
            return None
        if name == "IPython":
            raise ModuleNotFoundError(name)
        self.names.append(name)
        return PathFinder.find_spec(name, self._path)


def _memory_profiler() -> Any:
    loaded = sys.modules.get("memory_profiler")
    if loaded is not None:
        return loaded
    apart: Any = _Apart()
    sys.meta_path.insert(0, apart)
    try:
        return import_module("memory_profiler")
    finally:
        sys.meta_path.remove(apart)
        for name in apart.names:
            # The script finds its own module of that name when it asks for it.
            if name in sys.stdlib_module_names:
                sys.modules.pop(name, None)
