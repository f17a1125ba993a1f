"""What one call of a callable makes torch do: operators, kernels, and compiled graphs.

Operators are counted where a program calls them: `aten::linear` is one, and the `aten::addmm` that
it calls in turn is not counted again. Kernels of a device are counted as the profiler sees them.
On the CPU an operator's own kernels are seen by nobody; those that inductor generates are, if the
code is built with `PROFILED` (measured on torch 2.13: events named `graph_0_cpp_fused_...`), which
is done on a second build, so that the one that is timed has no marks in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from profstack.benchmark.clock import Clock

# Options of torch.compile with which generated CPU kernels are seen by the profiler.
PROFILED = {"cpp.enable_kernel_profile": True}

_OPERATOR = re.compile(r"(?!autograd::|profiler::)[A-Za-z_]\w*::\w+(\.\w+)?$")
_GENERATED = re.compile(r"(graph_\d+_)?cpp_\w+$")
_FUSED = re.compile(r"triton_|.*fused")
_COPIES = ("Memcpy", "Memset")
_UNSEEN = "an operator's own kernels on the CPU are not seen"


@dataclass(frozen=True)
class Counts:
    """Of one call; None where it could not be counted, and `note` says why."""

    operators: int | None = None
    kernels: int | None = None
    fused_names: list[str] | None = None
    note: str | None = None


@dataclass(frozen=True)
class Graphs:
    """What the compiler has counted in this process so far."""

    graphs: int
    breaks: int
    cached: int
    reasons: Mapping[str, int]

    def since(self, before: Graphs) -> Graphs:
        """What was added after `before`."""
        fresh = {
            reason: count - before.reasons.get(reason, 0)
            for reason, count in self.reasons.items()
            if count > before.reasons.get(reason, 0)
        }
        return Graphs(
            self.graphs - before.graphs, sum(fresh.values()), self.cached - before.cached, fresh
        )


def graphs() -> Graphs:
    """The compiler's counters, which are only read: they are the program's too."""
    from torch._dynamo.utils import counters

    # They make an entry for whatever they are asked for.
    held = {group: dict(values) for group, values in counters.items()}
    breaks = held.get("graph_break", {})
    return Graphs(
        int(held.get("stats", {}).get("unique_graphs", 0)),
        int(sum(breaks.values())),
        int(held.get("inductor", {}).get("fxgraph_cache_hit", 0)),
        {str(reason): int(count) for reason, count in breaks.items()},
    )


def counted(
    step: Callable[[], Any], clock: Clock, *, on_device: bool = False, generated: bool = False
) -> Counts:
    """One call under torch.profiler; call it warm.

    `on_device` says that it works on an accelerator, whose kernels are counted then; `generated`
    that the CPU kernels in it were built with `PROFILED`.
    """
    import torch

    profiler: Any = torch.autograd
    if profiler._profiler_enabled():
        return Counts(note="not counted: another torch profiler is at work")
    try:
        with quietly():
            events = _events(step, clock, on_device=on_device)
    except RuntimeError as error:
        lines = str(error).splitlines() or [type(error).__name__]
        return Counts(note=f"not counted: the profiler says {lines[0]}")
    on_host = [event for event in events if event.device_type() == profiler.DeviceType.CPU]
    operators = _outermost(on_host)
    if not on_host:
        return Counts(note="not counted: the profiler saw nothing in this call")
    if on_device:
        names = [event.name() for event in events if _is_kernel(event, profiler.DeviceType.CPU)]
    elif generated:
        names = [event.name() for event in on_host if _GENERATED.match(event.name())]
    else:
        return Counts(operators, None, None, _UNSEEN)
    fused = list(dict.fromkeys(name for name in names if _FUSED.match(name)))
    note = None if on_device else f"kernels: those generated; {_UNSEEN}"
    return Counts(operators, len(names), fused, note)


def _events(step: Callable[[], Any], clock: Clock, *, on_device: bool) -> list[Any]:
    """The profiler's events of one call, read where they are cheapest."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    supported: Any = vars(torch.autograd)["_supported_activities"]

    kinds = {ProfilerActivity.CPU}
    if on_device:
        kinds |= set(supported())
        # The first session on a device starts late, and may miss the first kernels.
        with profile(activities=kinds):
            step()
            clock.synchronize()
    clock.synchronize()
    with profile(activities=kinds) as session:
        step()
        clock.synchronize()
    return list(session.profiler.kineto_results.events())


def _outermost(events: list[Any]) -> int:
    """Operators that no other operator of the same thread calls."""
    spans = sorted(
        (event.start_thread_id(), event.start_ns(), -event.duration_ns())
        for event in events
        if _OPERATOR.match(event.name())
    )
    count, thread, until = 0, None, 0
    for of_thread, start, minus_duration in spans:
        if of_thread != thread or start >= until:
            count += 1
            thread, until = of_thread, start - minus_duration
    return count


def _is_kernel(event: Any, host: Any) -> bool:
    """Whether a device ran this: neither a copy nor a range that somebody named."""
    if event.device_type() == host or event.is_user_annotation():
        return False
    return not event.name().startswith(_COPIES)


@contextmanager
def quietly() -> Iterator[None]:
    """Round the start of a torch profiler: Kineto prints to standard error unless told not to.

    It reads its level once, when the first profiler of the process starts; what the workload sees
    in its environment is as before.
    """
    before = os.environ.get("KINETO_LOG_LEVEL")
    os.environ["KINETO_LOG_LEVEL"] = "6"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("KINETO_LOG_LEVEL", None)
        else:
            os.environ["KINETO_LOG_LEVEL"] = before
