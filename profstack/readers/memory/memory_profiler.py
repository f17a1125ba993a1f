"""memory_profiler's own figures by line, of the same runs of lines as profstack's.

memory_profiler reads the memory and does the arithmetic; `MemoryTracer` gives it the events. So
both see the same lines, frames that are running already are known to it, and its work has a limit.
Each function has a `LineProfiler` of its own, as with `@profile` on each: one for several takes the
growth of a line from the line that ran before in whichever function.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from profstack.readers.memory import lines
from profstack.storage.schema.column import Record, SqlValue

_MIB = 1 << 20
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
LineKey = tuple[str, int]

# Known reasons for which its growth of a line is not profstack's.
WHOLE = (
    "it is the first line of the function that memory_profiler saw in a slice: its growth is the "
    "whole resident set"
)
CALLS = (
    "memory_profiler counts what functions of the script's that the line calls grew by; profstack "
    "counts that on their own lines"
)
REPEATED = (
    "memory_profiler subtracts the most that the line before has ever ended with, not what it "
    "ended with this time"
)
APART = "memory_profiler reads memory some microseconds later than profstack"
NO_OWN = "profstack has no growth for the line of a def: nothing of it runs in a call"
# Reasons for which it has no figure.
GENERATOR = "memory_profiler has no figures for generators and coroutines"
NOT_LEFT = "memory_profiler counts a line where it ends, and saw no end of it"
EVALUATION = "memory_profiler cannot leave out the slice's evaluation"


@dataclass
class ToolFigures:
    """memory_profiler's figures of one line, and the reasons that are known for a difference."""

    usage_bytes: int
    increment_bytes: int
    occurrences: int
    reasons: frozenset[str]

    def why(self, own_bytes: int | None) -> str | None:
        """Return why its growth differs from profstack's, None where it does not."""
        if self.increment_bytes == own_bytes:
            return None
        if own_bytes is None and WHOLE not in self.reasons:
            return NO_OWN
        if WHOLE in self.reasons:
            return WHOLE
        known = [reason for reason in (CALLS, REPEATED) if reason in self.reasons]
        return "; ".join(known or [APART])


@dataclass
class _Profiled:
    """The profiler of a function, and lines whose growth is known to be of another kind."""

    code: CodeType
    tool: Any
    whole: set[int] = field(default_factory=set)
    calling: set[int] = field(default_factory=set)


class MemoryProfiler:
    """Passes the events of traced frames on to memory_profiler's `LineProfiler`.

    `generators` are lines for which it has no figures.
    """

    def __init__(self) -> None:
        self._line_profiler = lines.load_memory_profiler().LineProfiler
        # By address; the tracer holds the code, so that this is not reused.
        self._profiled: dict[int, _Profiled] = {}
        self._every: list[_Profiled] = []
        self.generators: set[LineKey] = set()

    def event(self, frame: FrameType, event: str, running: list[int], suspends: bool) -> None:
        """Pass on an event; `running` has the line that the frame is in, empty before its call."""
        code = frame.f_code
        if suspends:
            self.generators.add((code.co_filename, frame.f_lineno))
            return
        if frame.f_lineno is None and event != "return":
            # Code that the compiler has inserted.
            return
        found = self._profiled.get(id(code)) or self._add(code, frame.f_back)
        tool = found.tool
        if event == "call":
            self._note_call(frame.f_back)
        elif tool.prev_lineno not in tool.code_map[code]:
            found.whole.add(running[-1])
        # A frame that was let go for a while, or left by an error, leaves nothing to others.
        tool.prevlines = running
        tool.trace_memory_usage(frame, event, None)

    def figures(self) -> dict[LineKey, ToolFigures]:
        """Return its figures by file and line."""
        found: dict[LineKey, ToolFigures] = {}
        for profiled in self._every:
            for line, (grown, usage, runs) in profiled.tool.code_map[profiled.code].items():
                marks = {WHOLE: line in profiled.whole, CALLS: line in profiled.calling}
                marks[REPEATED] = runs > 1
                reasons = frozenset(reason for reason, known in marks.items() if known)
                place = (profiled.code.co_filename, line)
                new = ToolFigures(round(usage * _MIB), round(grown * _MIB), runs, reasons)
                found[place] = _together(found[place], new) if place in found else new
        return found

    def _add(self, code: CodeType, caller: FrameType | None) -> _Profiled:
        """Return the profiler for a code object: that of the function around it, or a new one.

        `CodeMap.add` is not called: it prints where a file is missing, and takes no code of a
        module.
        """
        around = self._profiled.get(id(caller.f_code)) if caller is not None else None
        if caller is not None and around is not None and _is_part(code, caller.f_code):
            code_map = around.tool.code_map
            code_map[code] = code_map[caller.f_code]
            self._profiled[id(code)] = around
            return around
        tool = self._line_profiler(backend="psutil")
        tool.code_map[code] = {}
        # Set by `enable`, which would set a trace function too.
        tool._original_trace_function = None
        added = self._profiled[id(code)] = _Profiled(code, tool)
        self._every.append(added)
        return added

    def _note_call(self, frame: FrameType | None) -> None:
        """Note the line of the nearest profiled frame, which has called a function."""
        while frame is not None:
            if (known := self._profiled.get(id(frame.f_code))) is not None:
                known.calling.add(frame.f_lineno)
                return
            frame = frame.f_back


def tool_records(
    records: Iterable[Record], tool: MemoryProfiler, index: int, *, evaluates: bool
) -> list[Record]:
    """Return rows of `memory_lines` with memory_profiler's figures beside profstack's.

    The line of a function's `def` is known to memory_profiler alone: it has a row of its own.
    """
    found = {} if evaluates else tool.figures()
    rows: dict[LineKey, dict[str, SqlValue]] = {
        (str(row["file"]), int(str(row["line"]))): dict(row) for row in records
    }
    for file, line in found.keys() - rows.keys():
        source = linecache.getline(file, line).rstrip("\n") or None
        rows[file, line] = {"slice": index, "file": file, "line": line, "source": source}
    for place, row in rows.items():
        figures = found.get(place)
        if figures is None:
            missing = GENERATOR if place in tool.generators else NOT_LEFT
            row["memory_profiler_reason"] = EVALUATION if evaluates else missing
            continue
        own = row.get("increment_bytes")
        row["memory_profiler_usage_bytes"] = figures.usage_bytes
        row["memory_profiler_increment_bytes"] = figures.increment_bytes
        row["memory_profiler_occurrences"] = figures.occurrences
        row["memory_profiler_reason"] = figures.why(own if isinstance(own, int) else None)
    return list(rows.values())


def _is_part(code: CodeType, around: CodeType) -> bool:
    """Return whether a comprehension or a function is defined in a function, or is run by it."""
    if code.co_name not in _COMPREHENSIONS and not around.co_flags & inspect.CO_OPTIMIZED:
        # A module's and a class's own functions are no part of its code.
        return False
    return code in around.co_consts


def _together(one: ToolFigures, other: ToolFigures) -> ToolFigures:
    """Return the figures of a line that two code objects share."""
    return ToolFigures(
        max(one.usage_bytes, other.usage_bytes),
        one.increment_bytes + other.increment_bytes,
        one.occurrences + other.occurrences,
        one.reasons | other.reasons,
    )
