"""Time one block of calls: the readings of the clocks, and which of them count.

This is the innermost loop of every measurement. The times of a series of blocks are one `Samples`.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from profstack.stats.clock import Clock

SYNCHRONISED, PIPELINED = "synchronised", "pipelined"

# The device's own marks leave out the ends of a block; if they leave out more, they miss work.
COVERED = 0.9


@dataclass
class Samples:
    """Times of one series, in seconds per call: host, process CPU, and device where there is one.

    A sample is `calls` calls. `cpu_s` has one value per sample, or one per block where samples are
    short; `device_s` is empty without a device. Each block has its number of samples in `blocks`
    and in `block_s` the mean time of a call over all of it, until the device was idle again.
    """

    calls: int = 1
    host_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    device_s: list[float | None] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    block_s: list[float] = field(default_factory=list)

    @property
    def total_s(self) -> float:
        """Total seconds of all samples, waiting for the device included."""
        each = zip(self.blocks, self.block_s, strict=True)
        return self.calls * sum(samples * seconds for samples, seconds in each)

    def cpu_and_wall_s(self) -> tuple[float | None, float | None]:
        """Return mean CPU time of a call and mean wall time of the same calls.

        A median would be a coin toss: the system adds the time of threads on other cores only at
        its scheduler's ticks, some milliseconds apart.
        """
        if not self.cpu_s:
            return None, None
        each = len(self.cpu_s) == len(self.host_s)
        wall_s = self.host_s if each else self.block_s
        weights = [1] * len(self.host_s) if each else self.blocks
        whole = sum(weights)
        cpu, wall = (
            sum(value * weight for value, weight in zip(values, weights, strict=True))
            for values in (self.cpu_s, wall_s)
        )
        return cpu / whole, wall / whole

    def extend(self, more: Samples) -> None:
        """Add a later block of the same series."""
        self.host_s += more.host_s
        self.cpu_s += more.cpu_s
        self.device_s += more.device_s
        self.blocks += more.blocks
        self.block_s += more.block_s

    def series(self, mode: str) -> tuple[list[float], str]:
        """Return the times that count in this mode, and their clock: `host` or `device`.

        In a pipeline the host runs ahead and its own stamps are those of launches. There the
        device's times count if all are known and cover the work; if not (events of two devices
        cannot be compared, and those of one stream see nothing of another stream or device), the
        means of whole blocks do.
        """
        if mode == SYNCHRONISED or not self.device_s:
            return self.host_s, "host"
        device = [one for one in self.device_s if one is not None]
        if len(device) == len(self.host_s) and self.calls * sum(device) >= COVERED * self.total_s:
            return device, "device"
        return self.block_s, "host"


def timed_block(
    call: Callable[[], Any],
    samples: int,
    calls: int,
    clock: Clock,
    *,
    synchronised: bool = True,
    with_cpu: bool = True,
    longest_s: float = math.inf,
) -> Samples:
    """Time `samples` samples of `calls` calls each; the device is idle before and after.

    `with_cpu` reads the CPU clock after every sample, else once for the block. The first sample
    that ends after `longest_s` seconds is the last one.
    """
    now, cpu, wait, mark = clock.now, clock.cpu, clock.synchronize, clock.record_event
    has_device, repeats = clock.has_device, range(calls)
    wait()
    events = [mark()] if has_device else []
    cpus, stamps = [cpu()], [now()]
    until = stamps[0] + longest_s
    for _ in range(samples):
        for _ in repeats:
            call()
        if has_device:
            events.append(mark())
        if synchronised:
            wait()
        stamps.append(now())
        if with_cpu:
            cpus.append(cpu())
        if stamps[-1] > until:
            break
    wait()
    ended = now()
    samples = len(stamps) - 1
    if not with_cpu:
        cpus.append(cpu())
    per_cpu = calls if with_cpu else calls * samples
    return Samples(
        calls,
        [(end - start) / calls for start, end in pairwise(stamps)],
        [(end - start) / per_cpu for start, end in pairwise(cpus)],
        [_per_call(clock.elapsed_s(start, end), calls) for start, end in pairwise(events)],
        [samples],
        [(ended - stamps[0]) / (calls * samples)],
    )


def _per_call(seconds: float | None, calls: int) -> float | None:
    return None if seconds is None else seconds / calls


# --- Set aside while a benchmark's own loop is timed ----------------------------------------------

# A trace or profile function (a debugger's, coverage's) would be timed with every call, and a
# garbage collection falls on whichever call happens to be running. This is for the benchmark's own
# loop only: the calls of `profstack run` are timed as the script has them.

GC_OFF = "off while timing, collected between blocks of samples"
GC_ON = "as the program has it"


@contextmanager
def undisturbed(*, collect: bool = False) -> Iterator[None]:
    """Switch off this thread's trace and profile functions, and, unless `collect`, collections.

    Earlier garbage is collected first, so that it costs no later call.
    """
    trace, profile = sys.gettrace(), sys.getprofile()
    was_enabled = gc.isenabled()
    if not collect:
        gc.collect()
        gc.disable()
    if trace is not None:
        sys.settrace(None)
    if profile is not None:
        sys.setprofile(None)
    try:
        yield
    finally:
        if profile is not None:
            sys.setprofile(profile)
        if trace is not None:
            sys.settrace(trace)
        if not collect and was_enabled:
            gc.enable()
