"""The loop of a benchmark: call one callable until its time is stable and well known.

The first call is timed by itself. Warm-up follows until times are stable, then samples in blocks
until the interval of their median is narrow enough. All of it is bounded, and `stopped_by` says
what ended it.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from profstack.stats.blocks import GC_OFF, GC_ON, SYNCHRONISED, Samples, timed_block, undisturbed
from profstack.stats.clock import Clock
from profstack.stats.summary import Summary, median_interval, summarize
from profstack.stats.warmup import Warmup, detect

# Two readings of the clock and an append take 0.1 us: of a sample this long they are 0.1 %.
_SHORTEST_SAMPLE_S = 100e-6
# Reading the process's CPU clock is a system call of 0.6 us: below this it is read per block.
_SHORTEST_WITH_CPU_S = 1e-3
_FIRST_BLOCK = 8
# The later half of so many calls is long enough to show a trend.
_ENOUGH_CALLS = 16
_LONGEST_BLOCK_S = 0.5
# Collections, which may be long, take a tenth of the time at most.
_COLLECT_EVERY = 10.0
# A check after every sample would stop at the luckiest moment, so the interval is checked each
# time that there are a quarter more samples. It then holds the true median in 94-95 of 100 cases
# (autocorrelation 0 to 0.5), that of a series of fixed length in 95-96.
_GROWTH = 1.25


@dataclass(frozen=True)
class Policy:
    """How long to measure.

    `mode` is `synchronised` (wait for the device after every sample) or `pipelined` (only round
    each block). `warmup` and `repeat` are fixed counts of samples; None leaves them to the data:
    warm-up ends when its end is detected in the times, and sampling when the 95 % interval of the
    median reaches no further than `target` (a fraction) from it. There are `min_samples` at least
    (of a hundred one is beyond the 99th percentile), which take `min_s` seconds together: a
    hundred short calls are over before the machine's clock has changed once. `max_warmup_s` and
    `max_s` bound both in seconds, but no fixed count. `collect` leaves the garbage collector on.
    """

    mode: str = SYNCHRONISED
    warmup: int | None = None
    repeat: int | None = None
    target: float = 0.01
    min_samples: int = 100
    max_samples: int = 20_000
    min_s: float = 0.5
    max_warmup_s: float = 10.0
    max_s: float = 10.0
    collect: bool = False

    @property
    def garbage(self) -> str:
        """The garbage collector's setting, in words."""
        return GC_ON if self.collect else GC_OFF


@dataclass
class Measurement:
    """The times of one callable, in seconds per call.

    `warmup_s` are the calls before the samples, the first included, and `warmup` is detected in
    them. `stopped_by` is `interval`, `time`, `samples`, `repeat` or `interrupt`.
    """

    policy: Policy
    first_s: float
    warmup_s: list[float]
    warmup: Warmup
    samples: Samples
    stopped_by: str

    @property
    def series_s(self) -> list[float]:
        """The samples of the mode's median."""
        return self.samples.series(self.policy.mode)[0]

    @property
    def clock(self) -> str:
        """The clock of `series_s`: `host` or `device`."""
        return self.samples.series(self.policy.mode)[1]

    def summary(self) -> Summary:
        """Return the statistics of the samples."""
        return summarize(self.series_s)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while sampling: `measured` is what had been measured by then."""

    def __init__(self, measured: Measurement) -> None:
        super().__init__()
        self.measured = measured


def measure(
    call: Callable[[], Any],
    policy: Policy,
    clock: Clock | None = None,
    *,
    first_s: float | None = None,
) -> Measurement:
    """Time `call` under `policy`; an error in it is raised unchanged.

    `first_s` is the time of its first call in seconds, if it was made already. Ctrl-C after the
    first sample raises `Interrupted`.
    """
    clock = clock or Clock()
    with undisturbed(collect=policy.collect):
        if first_s is None:
            first_s = timed_block(call, 1, 1, clock).host_s[0]
        warmup_s, warmup, typical_s = _warm_up(call, first_s, policy, clock)
        calls, typical_s = _calls_per_sample(call, typical_s, policy.mode, clock)
        taken = Samples(calls)
        try:
            stopped_by = _sample(call, typical_s, taken, policy, clock)
        except KeyboardInterrupt:
            if not taken.host_s:
                raise
            measured = Measurement(policy, first_s, warmup_s, warmup, taken, "interrupt")
            raise Interrupted(measured) from None
    return Measurement(policy, first_s, warmup_s, warmup, taken, stopped_by)


def _warm_up(
    call: Callable[[], Any], first_s: float, policy: Policy, clock: Clock
) -> tuple[list[float], Warmup, float]:
    """Call until times are stable; return all times, the warm-up in them, and a typical time."""
    times = [first_s]
    synchronised = policy.mode == SYNCHRONISED

    def add(samples: int, longest_s: float = math.inf) -> None:
        block = timed_block(call, samples, 1, clock, synchronised=synchronised, longest_s=longest_s)
        series, _ = block.series(policy.mode)
        # Without times of single calls each has the mean of its block.
        taken = len(block.host_s)
        times.extend(series if len(series) == taken else series * taken)

    if policy.warmup is not None:
        # One call at least: the first call says nothing on the time of the next.
        add(max(policy.warmup - 1, 1))
        fixed = Warmup(policy.warmup, policy.warmup, True, f"fixed at {policy.warmup} calls")
        return times, fixed, float(median(times[1:][-_FIRST_BLOCK:]))
    began = clock.now()
    # The first call may have taken a minute, and so may the next ones.
    add(_within(_FIRST_BLOCK, first_s, policy.max_warmup_s), policy.max_warmup_s)
    while True:
        seen = detect(times)
        spent = clock.now() - began
        settled = seen.settled and len(times) >= _ENOUGH_CALLS
        if settled or spent > policy.max_warmup_s or len(times) >= policy.max_samples:
            return times, seen, float(median(times[len(times) // 2 :]))
        left_s = policy.max_warmup_s - spent
        add(_within(len(times), times[-1], left_s), left_s)


def _calls_per_sample(
    call: Callable[[], Any], typical_s: float, mode: str, clock: Clock
) -> tuple[int, float]:
    """Return the number of calls in a sample, and the time of one in seconds.

    `typical_s` is of single calls. Reading the clock is most of a very short one, so that samples
    are tried until they are long enough.
    """
    calls = max(1, math.ceil(_SHORTEST_SAMPLE_S / max(typical_s, 1e-9)))
    while calls > 1:
        block = timed_block(call, 3, calls, clock, synchronised=mode == SYNCHRONISED)
        typical_s = float(median(block.series(mode)[0]))
        needed = math.ceil(_SHORTEST_SAMPLE_S / max(typical_s, 1e-9))
        if needed <= _GROWTH * calls:
            break
        calls = min(needed, 16 * calls)
    return calls, typical_s


def _sample(
    call: Callable[[], Any], typical_s: float, taken: Samples, policy: Policy, clock: Clock
) -> str:
    """Fill `taken` with samples of a warm callable; return the reason that ended them."""
    sample_s = typical_s * taken.calls
    wanted, until = policy.repeat, clock.now() + policy.max_s
    if wanted is None:
        wanted = max(policy.min_samples, math.ceil(policy.min_s / max(sample_s, 1e-9)))
        wanted = min(wanted, policy.max_samples)
    waits, cpu = policy.mode == SYNCHRONISED, sample_s >= _SHORTEST_WITH_CPU_S
    collection_s = collected_at = 0.0
    while True:
        # A call may take far longer now than it did before.
        left_s = until - clock.now() if policy.repeat is None else math.inf
        longest_s = min(left_s, 2 * _LONGEST_BLOCK_S)
        size = _within(wanted - len(taken.host_s), sample_s, _LONGEST_BLOCK_S)
        block = timed_block(
            call, size, taken.calls, clock, synchronised=waits, with_cpu=cpu, longest_s=longest_s
        )
        taken.extend(block)
        if not policy.collect and taken.total_s - collected_at > _COLLECT_EVERY * collection_s:
            began = perf_counter()
            # Older objects were collected before the series: with torch's compiler loaded going
            # through them again would take 0.3 s.
            gc.collect(1)
            collection_s, collected_at = perf_counter() - began, taken.total_s
        if len(taken.host_s) >= wanted:
            if policy.repeat is not None:
                return "repeat"
            if len(taken.host_s) >= policy.max_samples:
                return "samples"
            series_s, _ = taken.series(policy.mode)
            if taken.total_s >= policy.min_s and is_known(series_s, policy.target):
                return "interval"
            wanted = min(math.ceil(wanted * _GROWTH), policy.max_samples)
        if policy.repeat is None and clock.now() >= until:
            return "time"


def is_known(series_s: Sequence[float], target: float) -> bool:
    """Return whether the median's 95 % interval reaches no further than `target` times from it."""
    interval, middle = median_interval(series_s), median(series_s)
    reach = target * middle
    return interval is not None and max(interval[1] - middle, middle - interval[0]) <= reach


def _within(samples: int, sample_s: float, seconds: float) -> int:
    """Return how many samples fit into `seconds`: at least one and at most those wanted."""
    return max(1, min(samples, int(seconds / max(sample_s, 1e-9))))
