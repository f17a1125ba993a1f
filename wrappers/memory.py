"""Growth of the process's memory by source line, by module and over time.

profstack's own tracer measures; memory_profiler writes its listing. With `--memory-by
memory_profiler` it measures the same runs of lines, and its figures stand beside.

Measures: the resident set before and after every line of the script's own files that the
workload's thread runs, what it grew or shrank by over all runs of the line, the largest growth
within one run, and how often it ran; beside it, as a second source, what malloc has in use (what
torch's CPU allocator took and gave back), or live device bytes; in slices of mode `lines` also the
net growth over each module's calls.
Does not measure: lines of installed packages, other threads, memory a line took and gave back
within a millisecond, and functions after their first 2,000 events in a slice.
Usual slowdown: 1.05 on a 100 ms step, 1.2 on a 5 ms step, 2 to 3 on a 0.3 ms step; 4 where a step
is one hot Python loop.
Conflicts: anything else that uses `sys.settrace` (debuggers, coverage), and torch.compile: dynamo
would compile the tracer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from profstack.guard import Guard, foreign_tracer, has_compiled
from profstack.layer import (
    LISTENED,
    MEMORY_PROFILER,
    Artifact,
    Description,
    Listener,
    Mode,
    SliceContext,
    SliceData,
    Wrapper,
)
from profstack.readers.memory import lines
from profstack.readers.memory.blocks import DeviceHistory
from profstack.readers.memory.lines import line_figures, line_records, timeline, truncations
from profstack.readers.memory.memory_profiler import MemoryProfiler, tool_records
from profstack.readers.memory.readings import Reading
from profstack.readers.memory.tracer import COMPILES, OTHER_TRACER, MemoryTracer
from profstack.storage.schema.column import Record, Records


class MemoryWrapper(Wrapper):
    """Traces lines with profstack's own tracer, for memory_profiler too; writes its files."""

    name = "memory"
    package = "memory-profiler"
    occupies = frozenset({"sys.settrace"})
    cuts: ClassVar[bool] = True
    modes: ClassVar[tuple[Mode, ...]] = (
        # A round-2 slice of ten steps includes work of every tenth step.
        Mode("lines", 2, 2, turn=10, later_turn=55, steps=10, calls=LISTENED, in_discovery=True),
    )
    description = Description(
        technique="tracing",
        tool="profstack's line tracer, with listings by memory_profiler",
        measures="growth of the resident set over every line of the script's own files, the "
        "largest within one run, and how often the line ran; as a second source what malloc has "
        "in use, or live device bytes; net growth over each module's calls",
        does_not_measure="lines of installed packages, other threads, what a line took and gave "
        "back within a millisecond, functions after their first 2,000 events in a slice",
        usual_slowdown="1.05 on a 100 ms step, 1.2 on a 5 ms step, 2 to 3 on a 0.3 ms step",
        conflicts="anything else that uses sys.settrace; torch.compile",
    )

    def __init__(self) -> None:
        super().__init__()
        self._tracer: MemoryTracer | None = None
        self._modules: ModuleGrowth | None = None
        self._tool: MemoryProfiler | None = None
        self._history = DeviceHistory()
        self._snapshot: Path | None = None

    @staticmethod
    def unavailable_reason() -> str | None:
        """Return whether memory_profiler is missing."""
        return lines.missing()

    def busy_reason(self, mode: str) -> str | None:
        """Return why another tool that traces lines or compiled code has precedence."""
        if (other := foreign_tracer()) is not None:
            return f"no memory by line: {other}"
        if has_compiled():
            return "no memory by line: dynamo would try to compile the tracer that sees lines"
        return None

    def listener(self) -> Listener | None:
        """Return the listener that adds up growth over each module's calls."""
        return self._modules

    def start(self, context: SliceContext) -> None:
        """Trace the script's lines, also of running frames."""
        self._context = context
        self.close()
        # Loaded before the tracer reads memory.
        self._tool = MemoryProfiler() if context.memory_by == MEMORY_PROFILER else None
        follow = () if self._tool is None else (self._tool.event,)
        self._tracer = MemoryTracer(self.on_end, *follow)
        self._modules = ModuleGrowth(self._tracer)
        self._snapshot = None
        self._history = DeviceHistory()
        self._history.begin()
        # Listeners are not called before the step rule is known.
        self._tracer.start(wakes=context.steps is not None)

    def stop(self) -> None:
        """End tracing."""
        if self._tracer is not None:
            self._tracer.stop()
        if self._context is not None:
            path = self._context.folder / "snapshot.pickle"
            if self._history.end(path):
                self._snapshot = path

    def abandon(self) -> None:
        """Remove only the tracer in a forked child, which has no device and no files."""
        self._history.abandon()
        self.stop()

    def close(self) -> None:
        """Release the slice."""
        tracer, self._tracer, self._modules, self._tool = self._tracer, None, None, None
        if tracer is not None:
            tracer.stop()
            tracer.release()

    def take(
        self, stamps: Sequence[float], modules: Mapping[int, Any], left_out: Collection[int] = ()
    ) -> SliceData:
        """Return rows of `memory_lines` and `module_memory`, and memory_profiler's files."""
        with closing(self):
            return self._taken(stamps, modules, left_out)

    def _taken(
        self, stamps: Sequence[float], modules: Mapping[int, Any], left_out: Collection[int]
    ) -> SliceData:
        tracer, growth, context = self._tracer, self._modules, self._context
        if tracer is None or growth is None or context is None:
            return SliceData(notes=[("empty-capture", "no line was traced")])
        if tracer.error is not None:
            raise tracer.error
        if tracer.ended in (COMPILES, OTHER_TRACER):
            notes = [("gave-way", f"memory by line gave way: {tracer.ended}")]
            return SliceData(notes=notes, memory_bytes=tracer.readings.memory_bytes)
        figures = line_figures(tracer, stamps, left_out)
        if not figures:
            text = "no line of the script's own files ran in the slice"
            return SliceData(notes=[("no-lines", text)], memory_bytes=tracer.readings.memory_bytes)
        unread = tracer.readings.heap_counter.reason
        rows = line_records(figures, context.index, unread)
        if self._tool is not None:
            rows = tool_records(rows, self._tool, context.index, evaluates=bool(left_out))
        frames: dict[str, Records] = {"memory_lines": rows}
        cut = [("lines-truncated", text) for text in truncations(tracer)]
        notes = [*self._history.problems, *cut]
        calls = growth.records(len(stamps) - 1, modules, context.index, left_out)
        if calls:
            frames["module_memory"] = calls
            if unread is not None:
                text = f"memory of modules is growth of the resident set: {unread}"
                notes.append(("modules-by-resident-set", text))
        artifacts = [self._plot(context, tracer)]
        problems: list[BaseException] = []
        with Guard(failed=problems.append):
            if context.keep_source:
                text = f"Slice {context.index}, from step {context.first_step}"
                path = context.folder / "lines.txt"
                with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(f"{text}\n\n{lines.listing(figures)}\n")
                artifacts.append(Artifact(path, "any editor"))
        for error in problems:
            # The figures are there without it.
            text = f"memory_profiler could not write its listing: {type(error).__name__}: {error}"
            notes.append(("no-listing", text))
        if self._snapshot is not None:
            artifacts.append(Artifact(self._snapshot, "pytorch.org/memory_viz"))
        parts = [f"some lines of {traced.code.co_name}" for traced in tracer.let_go.values()]
        if tracer.ended is not None:
            parts.append(f"everything {tracer.ended}")
        truncated, memory_bytes = "; ".join(parts) or None, tracer.readings.memory_bytes
        return SliceData(frames, artifacts, notes, truncated, memory_bytes=memory_bytes)

    def _plot(self, context: SliceContext, tracer: MemoryTracer) -> Artifact:
        """Add the slice's readings to `mprofile.dat`."""
        times, values = timeline(tracer.readings)
        path = context.folder / "mprofile.dat"
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            if not file.tell():
                file.write(lines.command_line())
            file.writelines(lines.plot_lines(times.tolist(), values.tolist()))
        return Artifact(path, "mprof plot")


class _Growth:
    """Calls of one module in one step, and the growth of memory over them by every source."""

    calls = 0
    resident: int | None = 0
    heap: int | None = 0
    device: int | None = 0
    device_peak: int | None = None

    def add(self, before: Reading, after: Reading) -> None:
        """Add a call."""
        self.calls += 1
        self.resident = _grown(self.resident, before.resident, after.resident)
        self.heap = _grown(self.heap, before.heap, after.heap)
        self.device = _grown(self.device, before.device, after.device)
        if before.device is not None and (after.device_peak or 0) > (before.device_peak or 0):
            # torch's peak is the script's, and not reset: a call's own is known where it is new.
            self.device_peak = max((after.device_peak or 0) - before.device, self.device_peak or 0)

    def add_up(self, other: _Growth) -> None:
        """Add another step."""
        self.calls += other.calls
        self.resident = _grown(self.resident, 0, other.resident)
        self.heap = _grown(self.heap, 0, other.heap)
        self.device = _grown(self.device, 0, other.device)
        peaks = [peak for peak in (self.device_peak, other.device_peak) if peak is not None]
        self.device_peak = max(peaks, default=None)


def _grown(total: int | None, before: int | None, after: int | None) -> int | None:
    return None if total is None or before is None or after is None else total + after - before


class ModuleGrowth(Listener):
    """Adds up, step by step, the growth of memory over the calls of each module."""

    def __init__(self, tracer: MemoryTracer) -> None:
        self._tracer = tracer
        self._steps: list[dict[str, _Growth]] = [{}]
        self._open: list[tuple[str, Reading]] = []

    def enter(self, kind: str, name: str, module: Any = None) -> None:
        """Wake the tracer; read memory at the begin of a module's call."""
        self._tracer.wake()
        if kind == "module" and self._tracer.running:
            self._open.append((name, self._tracer.readings.now()))

    def leave(self, kind: str, name: str) -> None:
        """Read memory at the end of a module's call."""
        if kind != "module":
            return
        while self._open:
            path, before = self._open.pop()
            if path == name:
                after = self._tracer.readings.now()
                self._steps[-1].setdefault(name, _Growth()).add(before, after)
                return

    def step_ended(self, number: int) -> None:
        """Pause the tracer at the end of a step."""
        self._tracer.pause()
        self._steps.append({})

    def step_begun(self, number: int) -> None:
        """Resume counting: a step has begun."""
        self._tracer.go_on()

    def records(
        self, steps: int, modules: Mapping[int, Any], index: int, left_out: Collection[int]
    ) -> list[Record]:
        """Return rows of `module_memory` over the slice's `steps` steps but those left out."""
        total: dict[str, _Growth] = {}
        for number, step in enumerate(self._steps[:steps]):
            if number not in left_out:
                for path, growth in step.items():
                    total.setdefault(path, _Growth()).add_up(growth)
        numbers = {module.path: number for number, module in modules.items()}
        return [
            {
                "slice": index,
                "module_id": numbers[path],
                "calls": growth.calls,
                "host_net_bytes": growth.resident if growth.heap is None else growth.heap,
                "device_net_bytes": growth.device,
                "device_peak_bytes": growth.device_peak,
            }
            for path, growth in total.items()
            if path in numbers
        ]
