"""NVTX: named ranges for Nsight Systems and other tools that listen, in the domain `profstack`.

Measures: nothing of the script's: it emits a range for every step with its number, module call,
forward, backward pass and optimizer step on the workload's thread and for every region on any
thread, counts them, and times what emitting each of them costs. Where CUDA is in use,
cudaProfilerStart and cudaProfilerStop are called round the slice. With a listener (under
`nsys profile -t nvtx`) the layer is recorded, and the times are in the listener's report; without
one it is emitted. Regions in generators and coroutines and on other threads, which need not nest,
are ranges with a start and an end of their own; all others are pushed and popped. One of these that
is open at a step's end is popped there and pushed again: it counts in both steps, as it does for
the listener.
Does not measure: module calls on other threads, modules inside a compiled region (it gets one
range), the time between a range's ends (the listener's report has it).
Usual slowdown: 1.01 on a 100 ms step, 1.1 on a 0.3 ms step.
Conflicts: a script that calls cudaProfilerStart itself, where the listener captures by it; its
own NVTX ranges are in domains of their own and are left alone.

A range's cost is read from the clock right before and after each push and pop, less what one
reading of the clock takes.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

from profstack.guard import Guard
from profstack.layer import LISTENED, Description, Listener, Mode, SliceContext, SliceData, Wrapper
from profstack.readers import nvtx
from profstack.readers.nvtx import KINDS, Domain, Emitter, Range
from profstack.storage.schema.column import Records

_NSYS = "NSYS_PROFILING_SESSION_ID"


class NvtxWrapper(Wrapper):
    """Emits ranges with the nvtx package for Nsight Systems and other listeners."""

    name = package = "nvtx"
    occupies = frozenset({"nvtx domain"})
    # In later rounds it comes after the timed layers: a short script may end before the last turns.
    modes: ClassVar[tuple[Mode, ...]] = (Mode("timed", 1, turn=25, later_turn=65, calls=LISTENED),)
    cuts: ClassVar[bool] = True
    description = Description(
        technique="tracing",
        tool="nvtx",
        measures="it emits a range for every step with its number, module call, forward, backward "
        "pass and optimizer step, and for regions on all threads, counts them, and times what "
        "emitting them costs",
        does_not_measure="module calls on other threads; modules inside a compiled region, which "
        "gets one range; the time between a range's ends, which is in the listener's report",
        usual_slowdown="1.01 on a 100 ms step, 1.1 on a 0.3 ms step",
        conflicts="a script that calls cudaProfilerStart itself, where the listener captures by it",
    )

    def __init__(self) -> None:
        super().__init__()
        self._domain: Domain | None = None
        self._emitter: Emitter | None = None
        self._observing = False
        self._cuda_profiler: Any = None
        self._notes: list[tuple[str, str]] = []

    @staticmethod
    def unavailable_reason() -> str | None:
        """Say that the package is missing, hidden by a file of the script's, or switched off."""
        spec = importlib.util.find_spec("nvtx")
        if spec is None:
            return "the package nvtx is not installed: pip install nvtx"
        folders = spec.submodule_search_locations or ()
        if not any(os.path.isdir(os.path.join(folder, "_lib")) for folder in folders):
            return f"the name nvtx belongs to another module here ({spec.origin})"
        if os.environ.get("NVTX_DISABLE"):
            return "the environment variable NVTX_DISABLE switches NVTX off"
        return None

    def listener(self) -> Listener | None:
        """Return the emitter of ranges."""
        return self._emitter if self._observing else None

    def start(self, context: SliceContext) -> None:
        """Open the domain at the first slice, and begin the first step's range."""
        if self._domain is None or self._emitter is None:
            self._domain = Domain()
            self._emitter = Emitter(self._domain)
            if not self._domain.is_taken and _NSYS in os.environ:
                why = "Nsight Systems was started without nvtx in --trace: no range reached it"
                if os.environ.get(nvtx.INJECTION):
                    what = f"Nsight Systems takes no range of nvtx {self.version()}"
                    why = f"{what}: {nvtx.limit_of_old_nsys()}; {nvtx.REMEDY}"
                self._notes.append(("no-listener", why))
        self._context = context
        torch = sys.modules.get("torch")
        # CUDA is not initialised for this.
        if torch is not None and torch.cuda.is_initialized():
            profiler = importlib.import_module("torch.cuda.profiler")
            if self._call_cuda("cudaProfilerStart", profiler.start):
                self._cuda_profiler = profiler
        self._observing = True
        self._emitter.start(context.first_step)

    def stop(self) -> None:
        """End open ranges."""
        if self._observing and self._emitter is not None:
            self._observing = False
            self._emitter.stop()
        profiler, self._cuda_profiler = self._cuda_profiler, None
        if profiler is not None:
            # Work launched in the slice runs after it, and the listener's capture ends here.
            self._call_cuda("cudaDeviceSynchronize", sys.modules["torch"].cuda.synchronize)
            self._call_cuda("cudaProfilerStop", profiler.stop)

    def abandon(self) -> None:
        """Emit no more in a forked child: the listener and the device are the parent's."""
        self._observing = False
        self._cuda_profiler = None
        if self._emitter is not None:
            self._emitter.abandon()

    def take(
        self, stamps: Sequence[float], modules: Mapping[int, Any], left_out: Collection[int] = ()
    ) -> SliceData:
        """Return rows of `ranges`, over the steps that have ended."""
        notes, self._notes = self._notes, []
        if self._emitter is None or self._domain is None or self._context is None:
            return SliceData(notes=notes)
        steps, self._emitter.steps = self._emitter.steps[: len(stamps) - 1], []
        kept = [step for number, step in enumerate(steps) if number not in left_out]
        rows = records(self._context.index, kept)
        if not rows and not notes:
            notes = [("empty-capture", "no step ended in the slice of NVTX ranges")]
        status = "recorded" if self._domain.is_taken else "emitted"
        return SliceData({"ranges": rows}, notes=notes, status=status)

    def _call_cuda(self, name: str, call: Callable[[], Any]) -> bool:
        """Return whether the call succeeded; an error becomes a note: the ranges go on."""
        problems: list[BaseException] = []
        with Guard(failed=problems.append):
            call()
        self._notes += [("cuda-profiler", f"{name}: {error}") for error in problems]
        return not problems


def records(index: int, steps: Sequence[Sequence[tuple[Range, int, float]]]) -> Records:
    """Return rows of `ranges`: the steps' ranges added up, without the clock's own time."""
    calls, emit_s = Counter[Range](), defaultdict[Range, float](float)
    for each, more, seconds in chain.from_iterable(steps):
        calls[each] += more
        emit_s[each] += seconds
    return [
        {
            "slice": index,
            "kind": each.kind,
            "name": each.name,
            "calls": calls[each],
            "emit_s": nvtx.less_the_clock(each.kind, calls[each], emit_s[each]),
        }
        for each in sorted(calls, key=lambda each: (KINDS.index(each.kind), each.name))
    ]
