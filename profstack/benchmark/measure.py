"""The loop of a benchmark: one callable, called until its time is stable and then known well.

First the first call by itself, then warm-up until the times show no more of it, then samples in
blocks until the interval of their median is narrow enough. All of it is bounded, and what ended
it is said.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from profstack.benchmark.clock import Clock
from profstack.benchmark.conditions import GC_OFF, GC_ON, undisturbed
from profstack.benchmark.statistics import Summary, median_interval, summarize
from profstack.benchmark.warmup import Warmup, detect

SYNCHRONISED, PIPELINED = "synchronised", "pipelined"

# Two readings of the clock and an append take 0.1 us: of a sample this long they are 0.2 %.
_SHORTEST_SAMPLE_S = 50e-6
# Reading the process's CPU clock is a system call of 0.6 us: below this it is read per block.
_SHORTEST_WITH_CPU_S = 1e-3
_FIRST_BLOCK = 8
_LONGEST_BLOCK_S = 0.5
# Looking at the interval after every sample would stop at the luckiest moment: it is looked at
# when there are a quarter more samples than last time.
_GROWTH = 1.25


@dataclass(frozen=True)
class Policy:
    """How long to measure.

    `mode` is `synchronised` (the device is waited for after every sample) or `pipelined` (only
    round each block). `warmup` and `repeat` are fixed counts of samples; None leaves them to the
    data: warm-up ends when its end is seen in the times, and sampling when the 95 % interval of
    the median reaches no further than `target` (a fraction) from it. `max_warmup_s` and `max_s`
    bound both. `collect` leaves the garbage collector on.
    """

    mode: str = SYNCHRONISED
    warmup: int | None = None
    repeat: int | None = None
    target: float = 0.01
    min_samples: int = 50
    max_samples: int = 100_000
    max_warmup_s: float = 10.0
    max_s: float = 10.0
    collect: bool = False

    @property
    def garbage(self) -> str:
        """What happens to garbage collection, in words."""
        return GC_ON if self.collect else GC_OFF


@dataclass
class Samples:
    """Times of one series, in seconds per call: host, process CPU, and device where there is one.

    A sample is `calls` calls. `cpu_s` has one value per sample, or one per block where samples are
    short; `device_s` is empty without a device.
    """

    calls: int = 1
    host_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    device_s: list[float | None] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)

    def extend(self, more: Samples) -> None:
        """Add a later block of the same series."""
        self.host_s += more.host_s
        self.cpu_s += more.cpu_s
        self.device_s += more.device_s
        self.blocks += more.blocks


@dataclass
class Measured:
    """What a benchmark of one callable found; times in seconds per call.

    `warmup_s` are the calls before the samples, the first included; `warmup` is what was seen in
    them. `stopped_by` is `interval`, `time`, `samples` or `repeat`.
    """

    policy: Policy
    first_s: float
    warmup_s: list[float]
    warmup: Warmup
    samples: Samples
    stopped_by: str

    @property
    def series_s(self) -> list[float]:
        """The samples the mode's median is of.

        In a pipeline the host runs ahead: there the device's own times are the steps', if it has
        them all.
        """
        device = [one for one in self.samples.device_s if one is not None]
        whole = bool(device) and len(device) == len(self.samples.host_s)
        return device if whole and self.policy.mode == PIPELINED else self.samples.host_s

    @property
    def clock(self) -> str:
        """Whose time `series_s` is: `host` or `device`."""
        return "host" if self.series_s is self.samples.host_s else "device"

    def summary(self) -> Summary:
        """The samples in numbers."""
        return summarize(self.series_s)


def measure(call: Callable[[], Any], policy: Policy, clock: Clock | None = None) -> Measured:
    """Time `call` under `policy`; an error in it is raised as it is."""
    clock = clock or Clock()
    with undisturbed(collect=policy.collect):
        synchronised = policy.mode == SYNCHRONISED
        first = timed_block(call, 1, 1, clock, synchronised=synchronised)
        warmup_s, warmup, typical_s = _warm_up(call, first.host_s[0], policy, clock)
        samples, stopped_by = _sample(call, typical_s, policy, clock)
    return Measured(policy, first.host_s[0], warmup_s, warmup, samples, stopped_by)


def timed_block(
    call: Callable[[], Any],
    samples: int,
    calls: int,
    clock: Clock,
    *,
    synchronised: bool = True,
    with_cpu: bool = True,
) -> Samples:
    """`samples` samples of `calls` calls each; the device is idle before and after.

    `with_cpu` reads the CPU clock after every sample, else once for the block.
    """
    now, cpu, wait, mark = clock.now, clock.cpu, clock.synchronize, clock.record_event
    has_device, repeats = clock.has_device, range(calls)
    wait()
    events = [mark()] if has_device else []
    cpus, stamps = [cpu()], [now()]
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
    wait()
    if not with_cpu:
        cpus.append(cpu())
    per_cpu = calls if with_cpu else calls * samples
    return Samples(
        calls,
        [(end - start) / calls for start, end in pairwise(stamps)],
        [(end - start) / per_cpu for start, end in pairwise(cpus)],
        [_per_call(clock.elapsed_s(start, end), calls) for start, end in pairwise(events)],
        [samples],
    )


def _per_call(seconds: float | None, calls: int) -> float | None:
    return None if seconds is None else seconds / calls


def _warm_up(
    call: Callable[[], Any], first_s: float, policy: Policy, clock: Clock
) -> tuple[list[float], Warmup, float]:
    """Call until the times are stable: them all, what was seen in them, and a typical one."""
    times = [first_s]
    synchronised = policy.mode == SYNCHRONISED
    if policy.warmup is not None:
        # One call at least: what the first one takes tells nothing of the next.
        left = max(policy.warmup - 1, 1)
        times += timed_block(call, left, 1, clock, synchronised=synchronised).host_s
        fixed = Warmup(policy.warmup, policy.warmup, True, f"fixed at {policy.warmup} calls")
        return times, fixed, float(median(times[1:][-_FIRST_BLOCK:]))
    began, size = clock.now(), _FIRST_BLOCK
    while True:
        times += timed_block(call, size, 1, clock, synchronised=synchronised).host_s
        seen = detect(times)
        spent = clock.now() - began
        if seen.settled or spent > policy.max_warmup_s or len(times) >= policy.max_samples:
            return times, seen, float(median(times[len(times) // 2 :]))
        size = _within(len(times), times[-1], policy.max_warmup_s - spent)


def _sample(
    call: Callable[[], Any], typical_s: float, policy: Policy, clock: Clock
) -> tuple[Samples, str]:
    """Samples of a warm callable, and what ended them."""
    calls = max(1, math.ceil(_SHORTEST_SAMPLE_S / max(typical_s, 1e-9)))
    taken = Samples(calls)
    wanted = policy.repeat if policy.repeat is not None else policy.min_samples
    began = clock.now()
    while True:
        size = _within(wanted - len(taken.host_s), typical_s * calls, _LONGEST_BLOCK_S)
        taken.extend(
            timed_block(
                call,
                size,
                calls,
                clock,
                synchronised=policy.mode == SYNCHRONISED,
                with_cpu=typical_s * calls >= _SHORTEST_WITH_CPU_S,
            )
        )
        if not policy.collect:
            gc.collect()
        if len(taken.host_s) >= wanted:
            ended = _why_enough(taken, policy)
            if ended is not None:
                return taken, ended
            wanted = math.ceil(wanted * _GROWTH)
        if policy.repeat is None and clock.now() - began > policy.max_s:
            return taken, "time"


def _why_enough(taken: Samples, policy: Policy) -> str | None:
    """What ends the sampling, None where it goes on."""
    if policy.repeat is not None:
        return "repeat"
    interval = median_interval(taken.host_s)
    middle = float(median(taken.host_s))
    if interval is not None and max(interval[1] - middle, middle - interval[0]) <= (
        policy.target * middle
    ):
        return "interval"
    return "samples" if len(taken.host_s) >= policy.max_samples else None


def _within(samples: int, sample_s: float, seconds: float) -> int:
    """As many samples as fit into `seconds`, at least one and at most those wanted."""
    return max(1, min(samples, int(seconds / max(sample_s, 1e-9))))
