"""The watch: a sampler over whatever neither a clean slice nor another layer's slice has.

Measures: every 10 ms what the thread that trains is doing, as a stack of functions and lines, in
which region of `profstack.region` it is, and the resident set of the process; start-up and steps
alike, by sampling `sys._current_frames`. A sample weighs the watched time since the one before.
Does not measure: single calls, what is over within 10 ms (a shorter step has less than one
sample), other threads, time inside built-in functions apart from the line that calls them, and
modules' paths. A sample comes when the interpreter's lock is free: of Python code between two
calls into torch the later call is shown.
Usual slowdown: 1.01 on a 0.3 ms step: a sample takes some 60 microseconds. Python code stops for
each sample, 0.1 to 0.9 ms: after 30 seconds they come less often, for half a percent; with --light
after 3, for a quarter of one.
Conflicts: from Python 3.12 on cProfile counts the calls of all threads: the watch gives way
as soon as it sees a profiler of the script's own.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from profstack import code_owner
from profstack.layer import Description, Mode, SliceContext, SliceData, Wrapper
from profstack.readers.watch import Sampler
from profstack.storage.schema.column import Records
from profstack.storage.vocabulary import WATCH_INTERVAL_S

# Intervals that are named one by one: as many as a long run has by its length alone.
_MOST_TIMES = 4


class WatchWrapper(Wrapper):
    """Runs the sampler between the slices of others, and hands over its samples."""

    name = "watch"
    # It has a thread of its own, and occupies nothing.
    occupies = frozenset()
    modes: ClassVar[tuple[Mode, ...]] = ()
    background: ClassVar[bool] = True
    from_start: ClassVar[bool] = True
    description = Description(
        technique="sampling",
        tool="sys._current_frames",
        measures="every 10 ms the stack of the thread that trains, by function and line, its "
        "region and the resident set; start-up and steps alike",
        does_not_measure="single calls, steps under 10 ms one by one, other threads, modules' "
        "paths, time inside built-in functions apart from the line that calls them; of Python "
        "code between two calls into torch the later call is shown",
        usual_slowdown="1.01 on a 0.3 ms step: 60 microseconds a sample",
        conflicts="a profiler of the script's own, from Python 3.12 on",
    )

    def __init__(self) -> None:
        super().__init__()
        self._origin = time.perf_counter()
        self._sampler: Sampler | None = None
        self._seen = False
        self._gave_way_noted = False
        self._places: code_owner.Places | None = None
        # Files of all frames so far: texts of the script's own are handed over once.
        self._files: set[str] = set()

    @staticmethod
    def version() -> str | None:
        """Return the version of Python: the sampler itself is profstack's own."""
        return f"Python {platform.python_version()}"

    def hand_over(self, tool: Any) -> None:
        """Take over the sampler that has run since the script's first line."""
        if self._sampler is not None:
            self._sampler.close()
        self._sampler = tool
        tool.stacks.own += (os.path.join(os.path.dirname(os.path.abspath(__file__)), ""),)

    def resume(self) -> None:
        """Sample the calling thread from here on."""
        if self._sampler is None:
            self.hand_over(Sampler(self._origin))
        assert self._sampler is not None
        self._sampler.resume()

    def pause(self) -> None:
        """Pause; the sampler's thread waits for a lock."""
        if self._sampler is not None:
            self._sampler.pause()

    def look_out(self, began: Callable[[], float], overdue_s: float) -> None:
        """Sample steps that are overdue, and pause otherwise: see `Sampler.look_out`."""
        if self._sampler is not None:
            self._sampler.look_out(began, overdue_s)

    def flush(self) -> SliceData:
        """Return frames and samples since the last time."""
        if self._sampler is None:
            return SliceData()
        frames, samples = self._sampler.flush()
        self._seen = self._seen or any(sample["weight"] for sample in samples)
        notes, cut = self._notes(self._sampler), []
        if changes := self._sampler.thinned:
            times = [f"{1e3 * each:.0f} ms from {s:.0f} s on" for s, each in changes]
            if len(changes) > _MOST_TIMES:
                least_s, most_s = min(each for _, each in changes), max(each for _, each in changes)
                begun_s = changes[0][0]
                times = [f"{1e3 * least_s:.0f} to {1e3 * most_s:.0f} ms from {begun_s:.0f} s on"]
            times.append(f"{1e3 * WATCH_INTERVAL_S:.0f} ms before")
            less = "to stay small and cheap the watch samples less often"
            cut.append(f"{less}: every {', every '.join(times)}")
        if self._sampler.stacks.cut:
            cut.append("stacks were too deep or too many: some are cut short")
        rows: dict[str, Records] = {}
        if self._seen:
            texts = code_owner.source_records(self._new_files(frames), None)
            rows = {"watch_frames": frames, "watch_samples": samples, "source_files": texts}
        return SliceData(
            rows,
            notes=notes,
            truncated="; ".join(cut) or None,
            memory_bytes=self._sampler.memory_bytes(),
        )

    def _new_files(self, frames: Records) -> list[str]:
        """Return the script's own files in frames that are new since the last time."""
        if self._places is None:
            self._places = code_owner.Places.of(code_owner.script_folder())
        seen = {str(frame["file"]) for frame in frames} - self._files
        self._files |= seen
        return sorted(filter(self._places.is_own, seen))

    def start(self, context: SliceContext) -> None:
        """Resume: the watch has no slices of its own."""
        self.resume()

    def stop(self) -> None:
        """Pause."""
        self.pause()

    def take(
        self, stamps: Sequence[float], modules: Mapping[int, Any], left_out: Collection[int] = ()
    ) -> SliceData:
        """Flush."""
        return self.flush()

    def abandon(self) -> None:
        """Drop the sampler in a forked child: its thread has ended before the fork."""
        self._sampler = None

    def close(self) -> None:
        """End the sampler's thread."""
        if self._sampler is not None:
            self._sampler.close()

    def _notes(self, sampler: Sampler) -> list[tuple[str, str]]:
        notes = []
        if sampler.failure is not None:
            notes.append(("watch-ended", f"the watch ended early, {sampler.failure}"))
        if sampler.gave_way and not self._gave_way_noted:
            self._gave_way_noted = True
            text = "the watch stood back for a profiler that counts every thread's calls"
            notes.append(("gave-way", text))
        if not self._seen:
            text = "the watch took no sample: while no other layer watched nothing ran for 10 ms"
            notes.append(("empty-capture", text))
        return notes
