"""The log of steps and slices: times stamped at boundaries, written as rows when a slice ends."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

from profstack import ownfiles, userregions
from profstack.benchmark.clock import Clock
from profstack.engine.compilelog import CompileLog
from profstack.engine.keeper import EVAL
from profstack.engine.slicerows import SliceRows, Stamp, progress
from profstack.environment import rss_bytes
from profstack.recording import Writer
from profstack.regions import ModuleNames
from profstack.slices import Planned
from profstack.steps import Found
from profstack.threadtimes import ThreadTimes
from profstack.wrapper import Captured, Records

_perf_counter = time.perf_counter
_process_time = time.process_time


class StepLog:
    """Stamps steps in memory and writes them slice by slice."""

    # Steps of the watch held in memory before they are written.
    FLUSH = 4096
    # Steps of the watch that are written one by one; later ones are only counted.
    MOST_WATCHED = 100_000

    def __init__(self, writer: Writer, clock: Clock, origin: float | None = None) -> None:
        self.writer = writer
        writer.facts({ownfiles.FACT: ownfiles.Places.of(ownfiles.script_folder()).fact()})
        self.clock = clock
        self.origin = _perf_counter() if origin is None else origin
        self.start = self.origin
        self.next_slice = 0
        self.counts: dict[str, int] = {}
        self.uncounted = 0
        self._plan = 0
        self._phase = "other"
        self._written = 0
        self._watched = 0
        self._cpu_start = 0.0
        self.rows: list[Stamp] = []
        # Ends of steps of which nothing else is known, written by a hook that holds the list; a
        # slice has these or rows.
        self.quick_ends: list[float] = []
        self._quick_flags: dict[int, int] = {}
        self._cpu_end: float | None = None
        self._events: list[Any] = []
        self._first_event: Any = None
        self.timed = False
        # Whether the device is waited for after every clean step, and whether it is in this slice.
        self.synchronised = self._waits = False
        self._settled = 0
        self._memory: list[dict[str, Any]] = []
        self._modules_written = 0
        self._last_progress: dict[str, Any] = {}
        self._threads = ThreadTimes()
        self._compiled = CompileLog(self.origin)

    @property
    def plan(self) -> int:
        """Number of the plan in progress, 0 before the first."""
        return self._plan

    @property
    def count(self) -> int:
        """Steps of the slice in progress."""
        return len(self.rows) or len(self.quick_ends)

    @property
    def last(self) -> float:
        """End of the latest step of the slice in progress, at first the slice's start."""
        if self.quick_ends:
            return self.quick_ends[-1]
        return self.rows[-1][0] if self.rows else self.start

    def flag_quick(self, flags: int) -> None:
        """The latest step of `quick_ends` held what `flags` say."""
        self._quick_flags[len(self.quick_ends) - 1] = flags

    def _complete_rows(self) -> None:
        """Rows of the steps of which the end alone is known."""
        if self.quick_ends:
            known = self._quick_flags.get
            self.rows.extend(
                (end, None, None, known(number, 0), None)
                for number, end in enumerate(self.quick_ends)
            )
            self._forget_quick()

    def _forget_quick(self) -> None:
        self.quick_ends.clear()
        self._quick_flags.clear()

    @property
    def total(self) -> int:
        """Steps so far, over all plans."""
        return self._written + self.count

    def stamp(self) -> None:
        """A step has ended now, and nothing is known of it; the engine stamps others itself."""
        self.rows.append((_perf_counter(), _process_time(), None, 0, None))

    def record_event(self) -> None:
        """Record the device's own mark of the boundary, and wait for it where that is asked for."""
        self._events.append(self.clock.record_event())
        if self._waits:
            self.clock.synchronize()

    def wait_for_device(self, planned: Planned, *, complete: bool) -> None:
        """Where tools observed, the last step ends when the device has done what it launched."""
        if self.timed:
            self.clock.synchronize()
        if self.timed and planned.observers and complete and self.rows:
            took = self.clock.elapsed_s(self._first_event, self._events[-1]) or 0.0
            self.rows[-1] = (max(self.last, self.start + took), *self.rows[-1][1:])

    def begin_plan(self, rule: str, phase: str) -> None:
        """A rule was found: a new plan begins."""
        self._plan += 1
        self._phase = phase
        self.writer.facts({f"plan_{self._plan}": {"rule": rule, "phase": phase}})

    def startup(self, found: Found, discovered: Mapping[str, Captured]) -> None:
        """Write the steps that were over before the rule was known, and what layers saw of them."""
        rows = self._slice_rows()
        starts = (found.first_start, *found.past_ends)
        steps = [
            rows.step(number, begin, end, None, "discovery")
            for number, (begin, end) in enumerate(itertools.pairwise(starts))
        ]
        slice_row = rows.slice("startup", len(steps), starts[0], starts[-1])
        frames: dict[str, list[Any]] = {"slices": [slice_row], "steps": steps}
        for layer, taken in discovered.items():
            # Its records bear the number of the slice: the layer's row takes the place.
            slice_row.update(kind=layer, layer=layer, mode="discovery", counted_steps=len(steps))
            slice_row["counted_wall_s"] = slice_row["wall_s"]
            for table, records in taken.frames.items():
                frames.setdefault(table, []).extend(records)
        self.next_slice += 1
        self._count(len(steps))
        self._sample_memory()
        self._write(frames)

    def begin_slice(self, planned: Planned, *, since_origin: bool = False) -> float:
        """A slice begins, now or at the script's first line; returns the time of its start."""
        self.rows.clear()
        self._forget_quick()
        self._events = []
        self._cpu_end = None
        timed = planned.observers or planned.kind in ("clean", "watch")
        self.timed = bool(timed) and self.clock.has_device
        self._waits = self.synchronised and planned.kind == "clean"
        if planned.kind == "clean":
            self._threads.begin()
        self._first_event = self.clock.record_event() if self.timed else None
        self._cpu_start = _process_time()
        self.start = _perf_counter()
        if since_origin:
            self._cpu_start = 0.0
            self.start = self.origin
        userregions.begin_slice(self.start)
        return self.start

    def stop(self, *, at_boundary: bool) -> None:
        """The slice ends here; steps whose CPU time nobody read have it as a whole only.

        Where it does not end at a step's boundary, as at the end of a run, clocks that are read
        now hold what the script has done since: they tell nothing of the steps.
        """
        self._cpu_end = _process_time() if at_boundary else None
        if at_boundary:
            self._threads.end()
        else:
            self._threads.discard()
        self._complete_rows()

    def end_slice(self, planned: Planned, captured: Mapping[str, Captured], stop_s: float) -> None:
        """Write the slice that is over, with what its observers saw, in one transaction."""
        self._sample_memory()
        self._last_progress = {}
        regions, threads = userregions.take(self.last), self._threads.take()
        if not self.count and not captured:
            return
        if planned.kind == "settle":
            self._settled = self.count
        steps = self._slice_rows().steps(
            *(self.rows, self.start, self._cpu_start, self._device_times()),
            # No step to settle was spent in the first round.
            after_switch=planned.round == 1,
        )
        frames: dict[str, list[Any]] = {"slices": [], "steps": steps}
        for position, (layer, mode) in enumerate(planned.observers):
            taken = captured.get(layer)
            if taken is None or not any(taken.frames.values()):
                continue
            row = self._slice_row(planned, position, layer, mode, stop_s)
            if not taken.holds_all:
                left_out = self.with_evaluation()
                row["counted_steps"] -= len(left_out)
                stamps = self.stamps()
                row["counted_wall_s"] -= sum(stamps[n + 1] - stamps[n] for n in left_out)
            frames["slices"].append(row)
            for table, records in taken.frames.items():
                frames.setdefault(table, []).extend(records)
        if not frames["slices"]:
            frames["slices"].append(self._slice_row(planned, 0, None, None, stop_s))
        number = frames["slices"][0]["slice"]
        frames["region_times"] = [{"slice": number, **row} for row in regions]
        frames["thread_times"] = [{"slice": number, **row} for row in threads]
        self.next_slice += max(1, len(planned.observers))
        if planned.kind != "settle":
            self._settled = 0
        if planned.kind == "watch":
            self._watched += self.count
            if self._watched > self.MOST_WATCHED:
                frames["steps"] = []
                self.uncounted += self.count
        self._last_progress = progress(planned, self.stamps(), self.total)
        self._count(self.count)
        self.start = self.last
        self.rows.clear()
        self._write(frames)

    def stamps(self) -> list[float]:
        """The start of the slice in progress and the ends of its steps."""
        return [self.start, *(row[0] for row in self.rows)]

    def with_evaluation(self) -> frozenset[int]:
        """Steps of the slice in progress that hold evaluation; none where all of them do."""
        held = frozenset(number for number, row in enumerate(self.rows) if row[3] & EVAL)
        return held if len(held) < len(self.rows) and self._phase == "train" else frozenset()

    def count_open_step(self) -> None:
        """The last step has begun but nothing tells its end: it counts, without a time."""
        row = self._slice_rows().step(self.count, self.last, None, None, "partial")
        self._write({"steps": [row]})
        self._count(1, open_step=True)

    def write_modules(self, names: ModuleNames) -> None:
        """Write module names when there are new ones."""
        if len(names.by_path) != self._modules_written:
            self._modules_written = len(names.by_path)
            self.writer.replace("modules", [named.record() for named in names.by_path.values()])

    def progress(self, planned: Planned) -> dict[str, Any]:
        """The event that tells the parent of the slice just ended."""
        return self._last_progress or {"event": "slice", "kind": planned.kind, "steps": 0}

    def finish(self, names: ModuleNames) -> None:
        """Write what spans the run; the file stays open for what the exit still tells."""
        self._modules_written = -1
        self.write_modules(names)
        self.writer.write(self._compiled.frames())
        self.writer.facts(
            {
                "compilations_reason": self._compiled.reason,
                "counts_by_phase": self.counts,
                "steps_only_counted": self.uncounted,
                "thread_readings": self._threads.facts(),
                "recording_ended": time.time(),
            }
        )

    def _count(self, steps: int, *, open_step: bool = False) -> None:
        self.counts[self._phase] = self.counts.get(self._phase, 0) + steps
        if not open_step:
            self._written += steps

    def _slice_rows(self) -> SliceRows:
        return SliceRows(self.origin, self._plan, self._phase, self.next_slice, self._written)

    def _slice_row(
        self, planned: Planned, position: int, layer: str | None, mode: str | None, stop_s: float
    ) -> dict[str, Any]:
        kind = layer or ("settle" if planned.observers else planned.kind)
        row = self._slice_rows().slice(
            *(kind, self.count, self.start, self.last),
            round_=planned.round,
            settled=self._settled,
        )
        return {
            **row,
            "slice": row["slice"] + position,
            "layer": layer,
            "mode": "shared" if len(planned.observers) > 1 else mode,
            "counted_steps": row["steps"],
            "counted_wall_s": row["wall_s"],
            "cpu_s": self._cpu(),
            "stop_s": stop_s if layer else None,
        }

    def _cpu(self) -> float | None:
        if not self.rows:
            return None
        end = self.rows[-1][1]
        end = self._cpu_end if end is None else end
        return end - self._cpu_start if end is not None else None

    def _device_times(self) -> list[float | None] | None:
        if not self._events:
            return None
        marks = itertools.pairwise([self._first_event, *self._events])
        return [self.clock.elapsed_s(first, second) for first, second in marks]

    def _sample_memory(self) -> None:
        allocated, reserved = self.clock.device_memory()
        self._memory.append(
            {
                "t_s": _perf_counter() - self.origin,
                "step": self.total,
                "rss_bytes": rss_bytes(),
                "device_allocated_bytes": allocated,
                "device_reserved_bytes": reserved,
            }
        )

    def _write(self, frames: dict[str, Records] | dict[str, list[Any]]) -> None:
        memory, self._memory = self._memory, []
        self.writer.write({**frames, **self._compiled.frames(), "memory": memory})
