"""torch.profiler: operators, backward functions, device kernels, memory, by module.

Measures: host time of every operator and backward function on the workload's thread and the
backward threads, their input shapes and the operations and bytes that follow from them,
device kernels with the operator that launched them, host and device memory taken and given back
(in slices of mode `detail`), the time of the script's own source lines (in slices of mode
`lines`), and the path from Python functions to operators and kernels (in one step, of mode
`stacks`).
Does not measure: how long Python functions take undisturbed (that is cProfile's), operators of
other threads, what runs inside an operator.
Usual slowdown: 1.05 on a 100 ms step, 1.3 on a 0.3 ms step; lines cost 1 us per line run (of a
function's first 10,000, and of short windows after them), stacks 0.2 us per call of a function.
Conflicts: another torch.profiler, Nsight Systems (one CUPTI client at a time); lines use
`sys.settrace`, stacks `sys.setprofile`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar

from profstack.guard import Guard, foreign_tracer, has_compiled
from profstack.layer import (
    RANGED,
    Artifact,
    Description,
    Mode,
    SliceContext,
    SliceData,
    Wrapper,
    calls_per_step,
)
from profstack.readers.memory.owners import MemoryOwners, ObservedStep
from profstack.readers.torchtrace import events as trace
from profstack.readers.torchtrace.attribution import Attribution, attribute
from profstack.readers.torchtrace.bounds import (
    EventBound,
    OtherProfilers,
    ScriptRanges,
    StackBound,
    whole_paths,
)
from profstack.readers.torchtrace.call_paths import path_records
from profstack.readers.torchtrace.line_tracer import LineTracer
from profstack.readers.torchtrace.lines import LineSlice, line_tables
from profstack.readers.torchtrace.slice_tables import Frames, Notes, ObservedSlice, slice_tables

# What a slice shared with others occupies: no lines are traced in it, and no stacks.
_WITHOUT_STACKS = frozenset({"kineto", "cupti"})


_exits_registered = False


def _register_exit_of_children() -> None:
    """Have children forked from here on end where Kineto would keep them waiting for ever.

    A thread of Kineto's waits for a condition in the parent. A child has no such thread, and its
    `exit` destroys the condition, which waits for it. `exit` calls the handlers registered last
    first: in a child that is `_exit` itself, so that no destructor of a library that was loaded
    before the fork is called. Where the C library has no `on_exit` it does not wait either.
    """
    global _exits_registered
    if _exits_registered or not hasattr(os, "register_at_fork"):
        return
    _exits_registered, libc = True, ctypes.CDLL(None)
    if not hasattr(libc, "on_exit"):
        return
    end, flush = (ctypes.cast(each, ctypes.c_void_p) for each in (libc._exit, libc.fflush))

    def in_child() -> None:
        # It is called with the exit code.
        libc.on_exit(end, None)
        # Before it, all that C code has written and buffered is written out.
        libc.__cxa_atexit(flush, None, None)

    os.register_at_fork(after_in_child=in_child)


class TorchProfilerWrapper(Wrapper):
    """Drives `torch.profiler.profile`; reads its events as columns."""

    name = "torch"
    occupies = frozenset({"kineto", "cupti", "sys.settrace", "sys.setprofile"})
    cuts: ClassVar[bool] = True
    modes: ClassVar[tuple[Mode, ...]] = (
        Mode("detail", 1, 1, turn=40, calls=RANGED),
        Mode("timed", 2, turn=40, calls=RANGED),
        Mode("lines", 1, 2, turn=60, calls=RANGED),
        # After cProfile, which counts the calls that a trace of stacks has to hold.
        Mode("stacks", 2, 2, turn=70, calls=RANGED),
        Mode("shared", 0, 0, calls=RANGED, occupies=_WITHOUT_STACKS),
        Mode("whole", 0, 0, calls=RANGED, occupies=_WITHOUT_STACKS),
    )
    # torch writes the end of a range into freed memory when one profile stops and another starts
    # inside that range, as the boundary after `Optimizer.step` is.
    restarts: ClassVar[bool] = False
    description = Description(
        technique="tracing",
        tool="torch.profiler",
        measures="operators, backward functions and device kernels by module, with shapes, "
        "floating-point operations and memory; time of the script's own source lines in a slice of "
        "its own; the path from Python functions to operators and kernels in one step of its own",
        does_not_measure="how long Python functions take undisturbed, operators called on other "
        "threads, the inside of an operator",
        usual_slowdown="1.05 on a 100 ms step, 1.3 on a 0.3 ms step",
        conflicts="another torch.profiler; Nsight Systems; lines use sys.settrace, "
        "stacks sys.setprofile",
    )

    def __init__(self) -> None:
        super().__init__()
        self._profile: Any = None
        self._tracer: LineTracer | None = None
        self._clock_offset_ns = 0
        self._results: Any = None
        self._trace: Path | None = None
        self._trace_steps = 0
        self._gave_way = False
        self._on_device = False
        self._shapes = False
        self._every_thread = False
        self._size = EventBound()
        self._bound = StackBound()
        self._ranges: ScriptRanges | None = None
        self._owners: MemoryOwners | None = None
        self._others = OtherProfilers(self._give_way)
        torch = sys.modules.get("torch")
        if torch is not None:
            self._others.watch(torch.autograd.profiler)

    @staticmethod
    def unavailable_reason() -> str | None:
        """Return why there is no profiler: torch is missing, or was built without Kineto."""
        torch = sys.modules.get("torch")
        if torch is None:
            # In the measured process only the script may import it.
            return "torch has not been imported"
        if not torch.profiler.kineto_available():
            return "this torch was built without Kineto; install an official build of torch"
        return None

    @staticmethod
    def version() -> str | None:
        """Return the version of torch."""
        return str(sys.modules["torch"].__version__) if "torch" in sys.modules else None

    def busy_reason(self, mode: str) -> str | None:
        """Return why the slice cannot be recorded: the script's own profiler has precedence."""
        import torch

        if mode == "lines":
            if (other := foreign_tracer()) is not None:
                return f"no source lines: {other}"
            if has_compiled():
                return "no source lines: dynamo would try to compile the tracer that sees them"
        if not _on_main_thread() and self._all_threads() is None:
            return "the steps are not made by the main thread, the only one this torch profiles"
        reason = self._size.refusal(mode)
        if reason is None and mode == "stacks":
            reason = self._bound.refusal(self._counted())
        if reason is None and (self._others.active or torch._C._autograd._profiler_enabled()):
            reason = "the script uses torch.profiler itself"
        return reason

    def step_limit(self) -> int | None:
        """Return the steps within the bounds on events and memory, by the first slice's count."""
        if self._context is not None and self._context.mode == "stacks":
            return 1
        return self._size.step_limit()

    def start(self, context: SliceContext) -> None:
        """Start a profile with the options of the slice's mode."""
        import torch

        self._context = context
        self._gave_way = False
        # Looking for a device would spoil a later fork of a script that uses none.
        self._on_device = bool(
            torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch has none there
        )
        self._shapes = context.mode not in ("lines", "whole", "stacks")
        # A profile of one thread must be stopped by that thread. At the script's end, where a slice
        # may be cut off, all threads but the first are gone.
        self._every_thread = not _on_main_thread()
        self._owners = MemoryOwners() if context.mode == "detail" else None
        # torch.profiler.profile imports the whole of inductor at its start; the class below it,
        # which does the profiling, does not.
        self._profile = torch.autograd.profiler.profile(
            use_device="cuda" if self._on_device else None,
            record_shapes=self._shapes,
            profile_memory=context.mode == "detail",
            with_stack=context.mode == "stacks",
            use_kineto=True,
            experimental_config=self._all_threads() if self._every_thread else None,
        )
        _register_exit_of_children()
        with self._others.own_call():
            self._profile.__enter__()
        self._ranges = ScriptRanges(torch)
        self._ranges.watch()
        if self._owners is not None:
            self._owners.begun()
        if self._every_thread or context.mode in ("lines", "stacks"):
            with torch._C._profiler._RecordFunctionFast(trace.SLICE_RANGE):
                pass
        self._clock_offset_ns = trace.clock_offset_ns()
        self._tracer = LineTracer() if context.mode == "lines" else None
        if self._tracer is not None:
            self._tracer.start()
        if context.mode == "stacks":
            self._bound.begin(self._counted())

    def stop(self) -> None:
        """Stop the profile; also when the script's own profiler is about to start."""
        if self._tracer is not None:
            self._tracer.stop()
        self._bound.end()
        if self._ranges is not None:
            self._ranges.end()
        profile, self._profile = self._profile, None
        if profile is not None:
            whole = whole_paths() if profile.with_stack else contextlib.nullcontext()
            with self._others.own_call(), whole:
                profile.__exit__(None, None, None)
            self._results = profile.kineto_results

    def take(
        self, stamps: Sequence[float], modules: Mapping[int, Any], left_out: Collection[int] = ()
    ) -> SliceData:
        """Return rows of modules, operators, kernels and lines of the slice."""
        results, self._results = self._results, None
        context = self._context
        if self._gave_way or results is None or context is None:
            self._tracer = None
            text = "torch.profiler gave way to one the script started itself"
            return SliceData(notes=[("gave-way", text)])
        events = results.events()
        # The slice's start and the ends of its steps on the profiler's clock.
        boundaries = [round(stamp * 1e9) + self._clock_offset_ns for stamp in stamps]
        if context.mode == "stacks":
            lacking = self._bound.cut
            if left_out:
                why = "the script evaluated its model in the step that was traced"
                lacking = f"no call paths: {why}"
            if lacking is not None:
                return SliceData(notes=[("no-call-paths", lacking)])
            rows = path_records(events, boundaries, modules, context.index, device=self._on_device)
            return SliceData({"call_paths": rows})
        if self._every_thread:
            events = list(compress(events, trace.of_observed_thread(events).tolist()))
        # Without a device every event is the host's.
        kinds = trace.kinds_of(events) if self._on_device else None
        host = trace.read_host(events, kinds, inputs=self._shapes)
        if not len(host) and context.mode != "lines":
            return SliceData(notes=[("empty-capture", "torch.profiler saw no event in its slice")])
        steps = max(1, len(stamps) - 1)
        self._size.learn(len(events), steps)
        trace.clip_to_steps(host, boundaries, left_out)
        kernels = trace.of_kinds(trace.DEVICE_KINDS, events, kinds)

        def is_loss(number: int) -> bool:
            return bool(modules[number].is_loss)

        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            lined = LineSlice(context.index, boundaries, left_out, kernels, is_loss=is_loss)
            tables, notes = line_tables(tracer, host, lined)
            return SliceData({**tables}, notes=notes)
        if context.mode == "timed":
            self._bound.learn(stamps, host)
        runtime = trace.of_kinds(trace.RUNTIME_KINDS, events, kinds)
        # A profile of all threads has no allocations.
        memory = context.mode == "detail" and not self._every_thread
        observed = ObservedSlice(context.index, kernels, self._shapes, memory, runtime)
        owned = attribute(host, boundaries, is_loss, left_out)
        frames, notes = self._tables(results, owned, observed, modules)
        return SliceData(frames, self._export(results, steps, context), notes)

    def _tables(
        self, results: Any, owned: Attribution, observed: ObservedSlice, modules: Mapping[int, Any]
    ) -> tuple[Frames, Notes]:
        """Return rows of modules, operators, kernels, and owners of the memory taken."""
        frames, notes = slice_tables(owned, observed)
        owners, self._owners = self._owners, None
        if owners is not None:
            step = ObservedStep(
                observed.index, owned.boundaries_ns, owned.left_out, modules, self._clock_offset_ns
            )
            rows, more = owners.tables(results, owned, step)
            frames |= rows
            notes += more
        return frames, notes

    def _counted(self) -> float | None:
        """Return calls of functions per step of this run, by the layer that counts them."""
        return calls_per_step(self._context.folder.parent) if self._context is not None else None

    def _export(self, results: Any, steps: int, context: SliceContext) -> list[Artifact]:
        """Write the trace of the longest slice so far; the parent compresses it."""
        if steps <= self._trace_steps:
            return []
        self._trace_steps = steps
        path = context.folder / "trace.json"
        results.save(str(path))
        return [Artifact(path, "Perfetto, chrome://tracing, HTA, TraceLens")]

    @staticmethod
    def _all_threads() -> Any:
        """Return the option to record every thread; only those of the slice are read.

        None where this torch has no such option.
        """
        from torch._C._profiler import _ExperimentalConfig

        try:
            return _ExperimentalConfig(profile_all_threads=True)
        except TypeError:
            return None

    def _give_way(self) -> None:
        """End the slice: the script is about to start its own profiler."""
        self._gave_way |= self._profile is not None
        # Errors in here are ours, and the script's profiler must start. Also between slices: ranges
        # may be on already for the next one.
        for end in (self.stop, self.on_give_way):
            with Guard():
                end()

    def close(self) -> None:
        """Stop watching for other profilers."""
        self._others.close()


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
