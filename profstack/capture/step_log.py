"""Log steps and slices, and write their rows when a slice ends."""

from __future__ import annotations

import itertools
import json
import re
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from profstack import code_owner
from profstack.capture import user_regions
from profstack.capture.module_names import ModuleNames
from profstack.capture.slices import Event, SlicePlan
from profstack.capture.step_rules import StepRule
from profstack.capture.threads import ThreadTimes
from profstack.environment import rss_bytes, run_delay_s
from profstack.guard import Guard
from profstack.layer import SliceData
from profstack.stats.clock import Clock
from profstack.storage.folder import Writer
from profstack.storage.schema.column import Records, SqlValue

Record = dict[str, SqlValue]

# -- compilations and graph breaks, read from dynamo's own logs when a slice ends ----------------
#
# Dynamo keeps a record of every compilation, with its time and the guard that failed, and a list of
# the graph breaks. They are only read, never cleared, and only where the script itself has imported
# dynamo. No version of torch promises any of it: what is missing is None, and logs that cannot be
# read end this one with a reason.

# A guard and its line fit into so many characters; the rest is dynamo's own advice.
LONGEST_TEXT = 600
# More rows than these say nothing new.
_MOST_ROWS = 2000
# The innermost frames of a graph break: the user's own code is among them.
_MOST_FRAMES = 12
# A guard on an environment variable would show its value.
_SECRET = re.compile(r"environ|getenv", re.IGNORECASE)
HIDDEN = "a guard on an environment variable, whose value is not recorded"


class CompileLog:
    """Reads what was compiled since it was made; `origin` is the recording's zero of time."""

    def __init__(self, origin: float) -> None:
        self._origin = origin
        self._latest: Any = None
        self._breaks: list[Any] = []
        self._breaks_read = self._rows = 0
        # Why later compilations are missing, or None.
        self.reason: str | None = None
        # What was compiled before this recording began is not its own.
        self.frames()
        self._rows = 0

    def frames(self) -> dict[str, Records]:
        """Return rows of `compilations` and `graph_breaks` since the last call."""
        utils = sys.modules.get("torch._dynamo.utils")
        if utils is None or self.reason is not None:
            return {}
        rows: dict[str, list[Record]] = {}
        with Guard(failed=self._fail):
            rows = {"compilations": self._compiled(utils), "graph_breaks": self._broken(utils)}
        self._rows += sum(map(len, rows.values()))
        if self._rows > _MOST_ROWS:
            what = "compilations and graph breaks"
            self.reason = f"the first {_MOST_ROWS} {what} alone were recorded"
        return {table: records for table, records in rows.items() if records}

    def _fail(self, error: BaseException) -> None:
        self.reason = f"dynamo's books could not be read: {type(error).__name__}: {error}"

    def _compiled(self, utils: Any) -> list[Record]:
        read = getattr(utils, "get_compilation_metrics", None)
        known = list(read()) if read is not None else []
        if not known:
            self._latest = None
            return []
        # Dynamo keeps only the latest few, and the script may clear them.
        places = [place for place, each in enumerate(known) if each is self._latest]
        fresh = known[places[-1] + 1 :] if places else known
        self._latest = known[-1]
        zero = time.time() - time.perf_counter() + self._origin
        return [_compilation(utils, each, zero) for each in fresh]

    def _broken(self, utils: Any) -> list[Record]:
        known = getattr(utils, "graph_break_reasons", None)
        if not isinstance(known, list):
            return []
        if known is not self._breaks or len(known) < self._breaks_read:
            self._breaks, self._breaks_read = known, 0
        fresh, self._breaks_read = known[self._breaks_read :], len(known)
        return [_graph_break(each) for each in fresh]


def _compilation(utils: Any, metrics: Any, zero: float) -> Record:
    """Return the row of one record of dynamo's; `zero` is the recording's zero since 1970."""

    def get(name: str) -> Any:
        return getattr(metrics, name, None)

    begun_us, lasted_us, forward = get("start_time_us"), get("duration_us"), get("is_forward")
    file, line, again = get("co_filename"), get("co_firstlineno"), get("cache_size")
    reason = get("recompile_reason")
    if reason is None and again and not hasattr(metrics, "recompile_reason"):
        reason = _last_failure(utils, file, line)
    return {
        "t_s": None if begun_us is None else begun_us / 1e6 - zero,
        "wall_s": None if lasted_us is None else lasted_us / 1e6,
        "compile_id": _text(get("compile_id")),
        "name": _text(get("co_name")),
        "file": _text(file),
        "line": line,
        "backward": None if forward is None else int(not forward),
        "versions": again,
        "operators": get("graph_op_count"),
        "reason": _text(reason),
        "failure": _text(get("fail_reason")),
    }


def _last_failure(utils: Any, file: Any, line: Any) -> str | None:
    """Return the latest guard that failed in a function, where its record does not say."""
    for code, reasons in list((getattr(utils, "guard_failures", None) or {}).items()):
        place = (getattr(code, "co_filename", None), getattr(code, "co_firstlineno", None))
        if place == (file, line) and reasons:
            latest = reasons[-1]
            return str(getattr(latest, "reason", latest))
    return None


def _graph_break(reason: Any) -> Record:
    frames = list(getattr(reason, "user_stack", None) or ())[-_MOST_FRAMES:]
    stack = json.dumps([[frame.filename, frame.lineno, frame.name] for frame in frames])
    return {"reason": _text(getattr(reason, "reason", None)), "stack": stack}


def _text(value: Any) -> str | None:
    """Return a bounded text without values of environment variables."""
    if value is None:
        return None
    text = str(value)
    return HIDDEN if _SECRET.search(text) else text[:LONGEST_TEXT]


# -- steps and slices ----------------------------------------------------------------------------

# Flags of a step, which keep it out of medians. A slow one is there where those beside it are not.
EVAL, SWITCH, LOOP, SLOW = 1, 2, 4, 8
_FLAG_NAMES = ((EVAL, "eval"), (SWITCH, "switch"), (LOOP, "loop"), (SLOW, "slow"))
# What a row of steps says of each combination.
_FLAG_WORDS = tuple(
    " ".join(word for bit, word in _FLAG_NAMES if flags & bit) for flags in range(2 * SLOW)
)

# A step between those that are kept is slow from so many times the median of its slice on.
_SLOW, _MOST_SLOW = 1.4, 50

# End of a step, process CPU time there, its first activity, its flags, shape of its input, when a
# DataLoader was first asked in its wait, and for how long.
Stamp = tuple[float, float | None, float | None, int, Any, float | None, float]

_perf_counter, _process_time = time.perf_counter, time.process_time


class StopRun(SystemExit):
    """Raised at a step boundary when the asked-for number of steps or seconds is reached."""


class StepLog:
    """Stamps steps in memory and writes them slice by slice."""

    # Steps of the watch held in memory before they are written.
    FLUSH = 4096
    # Steps of the watch that are written one by one; of later ones each second one, after as many
    # again each fourth, and so on, and the slowest of those between. A job of days has millions.
    ALL_WATCHED, ALL_IF_SPARING = 5_000, 1_000

    def __init__(self, writer: Writer, clock: Clock, origin: float | None = None) -> None:
        self.writer = writer
        writer.facts({code_owner.FACT: code_owner.Places.of(code_owner.script_folder()).fact()})
        self.clock = clock
        self.origin = _perf_counter() if origin is None else origin
        self.start = self.origin
        # By the system's own clock, which the parent process reads too.
        writer.facts({"origin_clock_s": self.origin})
        self.next_slice = 0
        self.counts: dict[str, int] = {}
        # Number of the plan in progress, 0 before the first.
        self.plan = self._plans = 0
        self._phase = "other"
        self._phases: dict[int, str] = {}
        self._switch_s: float | None = None
        self._written = 0
        # Rows of steps of the watch.
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
        # Whether it keeps the rows of fewer steps.
        self.sparing = False
        self._settled = 0
        self._memory: list[Record] = []
        # Of the slice in progress; in a long one the first ones.
        self._generations: list[Record] = []
        self._modules_written = 0
        self._threads = ThreadTimes()
        # The thread of the slice's steps, and for how long it had no core: until `stop` its total.
        self._thread = 0
        self._delay_s: float | None = None
        self._compiled = CompileLog(self.origin)

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

    @property
    def total(self) -> int:
        """Steps so far, over all plans."""
        return self._written + self.count

    def stamps(self) -> list[float]:
        """Return the start of the slice in progress and the ends of its steps."""
        return [self.start, *(row[0] for row in self.rows)]

    def left_out(self) -> frozenset[int]:
        """Return steps of the slice with evaluation, or of another loop; none where all are so."""
        flags = (EVAL | LOOP) if self._phase == "train" else LOOP
        held = frozenset(number for number, row in enumerate(self.rows) if row[3] & flags)
        return held if len(held) < len(self.rows) else frozenset()

    def is_foreign(self) -> bool:
        """Return whether every step of the slice belongs to another loop."""
        return bool(self.rows) and all(row[3] & LOOP for row in self.rows)

    # -- while a slice lasts -----------------------------------------------------------------

    def begin_plan(self, rule: str, phase: str, loop: Mapping[str, object] | None = None) -> None:
        """Begin a new plan: a rule or a loop was found."""
        self.plan = self._plans = self._plans + 1
        self._phase = self._phases[self.plan] = phase
        self.writer.facts({f"plan_{self.plan}": {"rule": rule, "phase": phase, **(loop or {})}})

    def resume_plan(self, plan: int) -> None:
        """Go on with a plan: its loop has come back."""
        self.plan, self._phase = plan, self._phases[plan]

    def begin_slice(
        self, planned: SlicePlan, *, since_origin: bool = False, stopped: float | None = None
    ) -> float:
        """Begin a slice, now or at the script's first line; return the time of its start.

        The script stands still since `stopped`, None where it went on until now.
        """
        self.rows.clear()
        self._forget_quick()
        self._events = []
        self._cpu_end = None
        timed = planned.observers or planned.kind in ("clean", "watch")
        self.timed = bool(timed) and self.clock.has_device
        self._waits = self.synchronised and planned.kind == "clean"
        if planned.kind == "clean":
            self._threads.begin()
        self._thread = threading.get_native_id()
        self._delay_s = run_delay_s(self._thread) if planned.observers else None
        self._first_event = self.clock.record_event() if self.timed else None
        self._cpu_start = 0.0 if since_origin else _process_time()
        self.start = self.origin if since_origin else _perf_counter()
        self._switch_s = None if stopped is None else self.start - stopped
        user_regions.begin_slice(self.start)
        return self.start

    def generated(self, wall_s: float, first_s: float | None, tokens: Mapping[str, Any]) -> None:
        """Note a call of `generate` in the step in progress."""
        if len(self._generations) < self.FLUSH:
            times = {"step": self.total, "wall_s": wall_s, "first_token_s": first_s}
            self._generations.append({**times, **tokens})

    def stamp(self) -> None:
        """End a step now, of which nothing else is known; the engine stamps others itself."""
        self.rows.append((_perf_counter(), _process_time(), None, 0, None, None, 0.0))

    def record_event(self) -> None:
        """Record the device's own mark of the boundary, and wait for it where that is asked for."""
        self._events.append(self.clock.record_event())
        if self._waits:
            self.clock.synchronize()

    def flag(self, flags: int, back: int = 0) -> None:
        """Flag the latest step, or one that was so many steps before it."""
        if self.quick_ends:
            latest = len(self.quick_ends) - 1 - back
            self._quick_flags[latest] = self._quick_flags.get(latest, 0) | flags
        else:
            end, cpu, activity, before, *others = self.rows[-1]
            self.rows[-1] = (end, cpu, activity, before | flags, *others)

    def _forget_quick(self) -> None:
        self.quick_ends.clear()
        self._quick_flags.clear()

    def stop(self, *, at_boundary: bool) -> None:
        """End the slice here; steps whose CPU time was not read have it as a whole only.

        Where it does not end at a step's boundary, as at the end of a run, the clocks would also
        count what the script has done since: they say nothing of the steps.
        """
        self._cpu_end = _process_time() if at_boundary else None
        if self._delay_s is not None:
            until_s = run_delay_s(self._thread)
            self._delay_s = None if until_s is None else until_s - self._delay_s
        if at_boundary:
            self._threads.end()
        else:
            self._threads.discard()
        self.rows.extend(
            (end, None, None, self._quick_flags.get(number, 0), None, None, 0.0)
            for number, end in enumerate(self.quick_ends)
        )
        self._forget_quick()

    def wait_for_device(self, planned: SlicePlan, *, complete: bool) -> None:
        """Move the last step's end to when the device is done, where tools observed."""
        if self.timed:
            self.clock.synchronize()
        if self.timed and planned.observers and complete and self.rows:
            took = self.clock.elapsed_s(self._first_event, self._events[-1]) or 0.0
            self.rows[-1] = (max(self.last, self.start + took), *self.rows[-1][1:])

    # -- rows ----------------------------------------------------------------------------------

    def startup(self, rule: StepRule, discovered: Mapping[str, SliceData]) -> None:
        """Write the steps that were over before the rule was known, and what layers saw of them."""
        starts = (rule.first_start, *rule.past_ends)
        steps = [
            self._step_record(number, begin, end, None, "discovery")
            for number, (begin, end) in enumerate(itertools.pairwise(starts))
        ]
        row = self._slice_record("startup", len(steps), starts[0], starts[-1])
        frames: dict[str, list[Any]] = {"slices": [row], "steps": steps}
        for layer, taken in discovered.items():
            # Its records bear the number of the slice: the layer's row takes the place.
            row.update(kind=layer, layer=layer, mode="discovery", counted_steps=len(steps))
            row["counted_wall_s"] = row["wall_s"]
            for table, records in taken.frames.items():
                frames.setdefault(table, []).extend(records)
        self.next_slice += 1
        self._count(len(steps))
        self._sample_memory()
        self._write(frames)

    def end_slice(
        self, planned: SlicePlan, captured: Mapping[str, SliceData], stop_s: float
    ) -> Event:
        """Write the ended slice with what its observers saw, in one transaction.

        Returns the event for the parent process.
        """
        self._sample_memory()
        regions, threads = user_regions.take(self.last), self._threads.take()
        if not self.count and not captured:
            return {"event": "slice", "kind": planned.kind, "steps": 0}
        if planned.kind == "settle":
            self._settled = self.count
        kept = self._thinned() if planned.kind == "watch" else None
        # No step to settle was spent in the first round.
        steps = self._step_records(after_switch=planned.round == 1, kept=kept)
        frames: dict[str, list[Any]] = {"slices": [], "steps": steps}
        for position, (layer, mode) in enumerate(planned.observers):
            taken = captured.get(layer)
            if taken is None or not any(taken.frames.values()):
                continue
            left_out = frozenset() if taken.holds_all else self.left_out()
            mode = "shared" if len(planned.observers) > 1 else mode
            row = self._observed_record(planned, layer, left_out, position)
            frames["slices"].append({**row, "layer": layer, "mode": mode, "stop_s": stop_s})
            for table, records in taken.frames.items():
                frames.setdefault(table, []).extend(records)
        if not frames["slices"]:
            kind = "settle" if planned.observers else planned.kind
            frames["slices"].append(self._observed_record(planned, kind, frozenset(), 0))
        number = frames["slices"][0]["slice"]
        frames["region_times"] = [{"slice": number, **row} for row in regions]
        frames["thread_times"] = [{"slice": number, **row} for row in threads]
        self.next_slice += max(1, len(planned.observers))
        if planned.kind != "settle":
            self._settled = 0
        if planned.kind == "watch":
            self._watched += len(steps)
        event = self._slice_event(planned)
        self._count(self.count)
        self.start = self.last
        self.rows.clear()
        self._write(frames)
        return event

    def _slice_event(self, planned: SlicePlan) -> Event:
        walls = sorted(after - before for before, after in itertools.pairwise(self.stamps()))
        return {
            "event": "slice",
            "kind": planned.kind,
            "round": planned.round,
            "layers": [f"{layer}/{mode}" for layer, mode in planned.observers],
            "steps": len(walls),
            "total": self.total,
            "median_s": walls[len(walls) // 2] if walls else None,
            "mean_s": sum(walls) / len(walls) if walls else None,
        }

    def _slice_record(self, kind: str, steps: int, start: float, end: float) -> Record:
        """Return the row of `slices`, but for what its observers are and have counted."""
        return {
            "slice": self.next_slice,
            "kind": kind,
            "plan": self.plan,
            "phase": self._phase,
            "round": 0,
            "first_step": self._written,
            "steps": steps,
            "started_s": start - self.origin,
            "wall_s": end - start,
            "settle_steps": 0,
            "switch_s": self._switch_s,
        }

    def _observed_record(
        self, planned: SlicePlan, kind: str, left_out: frozenset[int], position: int
    ) -> Record:
        """Return the row of the slice in progress; `left_out` are steps that do not count."""
        stamps = self.stamps()
        wall_s = self.last - self.start
        cpu_end = self.rows[-1][1] or self._cpu_end if self.rows else None
        return {
            **self._slice_record(kind, self.count, self.start, self.last),
            "slice": self.next_slice + position,
            "round": planned.round,
            "settle_steps": self._settled,
            "counted_steps": self.count - len(left_out),
            "counted_wall_s": wall_s - sum(stamps[n + 1] - stamps[n] for n in left_out),
            "cpu_s": cpu_end - self._cpu_start if cpu_end is not None else None,
            "delay_s": self._delay_s,
        }

    def _step_record(
        self, number: int, begin: float, end: float | None, shape: Any, flags: str
    ) -> Record:
        """Return the row of the slice's step `number`, from 0, as far as its times tell."""
        dimensions = list(shape) if shape is not None else []
        return {
            "step": self._written + number,
            "plan": self.plan,
            "phase": self._phase,
            "slice": self.next_slice,
            "started_s": begin - self.origin,
            # No time between: the step's beginning left no trace (`profstack.step()` alone).
            "wall_s": end - begin if end is not None and end > begin else None,
            "batch_size": int(dimensions[0]) if dimensions else None,
            "shape": "x".join(str(int(size)) for size in dimensions) or None,
            "flags": flags,
        }

    def _thinned(self) -> dict[int, int] | None:
        """Return the steps of a slice of the watch to keep, with a flag each; None for all."""
        every = self.ALL_IF_SPARING if self.sparing else self.ALL_WATCHED
        apart = 1 << (self._watched // every)
        if apart == 1:
            return None
        walls = [after - before for before, after in itertools.pairwise(self.stamps())]
        least_s = _SLOW * sorted(walls)[len(walls) // 2]
        slow = (number for number, wall_s in enumerate(walls) if wall_s >= least_s)
        slowest = sorted(slow, key=lambda number: -walls[number])[:_MOST_SLOW]
        return dict.fromkeys(slowest, SLOW) | dict.fromkeys(range(0, len(walls), apart), 0)

    def _step_records(
        self, *, after_switch: bool, kept: Mapping[int, int] | None = None
    ) -> list[Record]:
        """Return the rows of all steps, or of those `kept`, with their flags.

        `after_switch` where none was spent to settle before.
        """
        rows = []
        marks = itertools.pairwise((self._first_event, *self._events))
        device_s = [self.clock.elapsed_s(first, second) for first, second in marks]
        begin = self.start
        cpu_begin: float | None = self._cpu_start
        for number, (end, cpu, activity, flags, shape, asked, loader_s) in enumerate(self.rows):
            if kept is not None:
                if number not in kept:
                    begin, cpu_begin = end, cpu
                    continue
                flags |= kept[number]
            if after_switch and number == 0:
                flags |= SWITCH
            if self._phase != "train":
                # Where evaluation is what is measured it disturbs nothing.
                flags &= ~EVAL
            row = self._step_record(number, begin, end, shape, _FLAG_WORDS[flags])
            row["cpu_s"] = cpu - cpu_begin if cpu is not None and cpu_begin is not None else None
            row["wait_s"] = activity - begin if activity is not None else None
            row["before_loader_s"] = asked - begin if asked is not None else None
            row["loader_s"] = loader_s if asked is not None else None
            row["device_s"] = device_s[number] if device_s else None
            rows.append(row)
            begin, cpu_begin = end, cpu
        return rows

    def count_open_step(self) -> None:
        """Count the last step, which has begun but whose end is unknown, without a time."""
        self._write({"steps": [self._step_record(self.count, self.last, None, None, "partial")]})
        # It is written, but the number of the next step stays.
        self.counts[self._phase] = self.counts.get(self._phase, 0) + 1

    def write_modules(self, names: ModuleNames) -> None:
        """Write module names when there are new ones."""
        if len(names.by_path) != self._modules_written:
            self._modules_written = len(names.by_path)
            self.writer.replace("modules", [named.record() for named in names.by_path.values()])

    def finish(self, names: ModuleNames) -> None:
        """Write what spans the run; the file stays open for facts known at the exit."""
        self._modules_written = -1
        self.write_modules(names)
        self.writer.write(self._compiled.frames())
        self.writer.facts(
            {
                code_owner.CELLS: code_owner.cell_numbers(),
                "compilations_reason": self._compiled.reason,
                "counts_by_phase": self.counts,
                "thread_readings": self._threads.facts(),
                "recording_ended": time.time(),
            }
        )

    def _count(self, steps: int) -> None:
        self.counts[self._phase] = self.counts.get(self._phase, 0) + steps
        self._written += steps

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

    def _write(self, frames: Mapping[str, Records]) -> None:
        memory, self._memory = self._memory, []
        generations, self._generations = self._generations, []
        more = {"memory": memory, "generations": generations}
        self.writer.write({**frames, **self._compiled.frames(), **more})
