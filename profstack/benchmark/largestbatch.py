"""The search for the largest batch that runs, in one data type.

Sizes are doubled until one is refused; between the last that ran and the first that did not the
largest is found by halving, or, in a linear search, by adding one at a time from the beginning.
Both end with a size that ran and the next larger one that did not. Every size that ran, in powers
of two, and the largest itself are timed, each in the state of memory that a fresh start has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from profstack.benchmark.probers import Prober
from profstack.benchmark.probetrial import (
    ENDED,
    FAILED,
    MEASURED,
    REFUSED,
    WORKED,
    Probe,
    Trial,
)
from profstack.units import format_seconds

BINARY, LINEAR = "binary", "linear"

# The knee is the smallest measured batch with this part of the highest measured rate: beyond it,
# batches get slower in return for little.
KNEE_SHARE = 0.9
KNEE_RULE = (
    f"the knee is the smallest measured batch with {100 * KNEE_SHARE:.0f} % of the highest rate"
)
# How often the largest size is made smaller when it runs, but not as often as timing needs.
_TRIES = 4
_LINE_EVERY_S = 5.0


@dataclass(frozen=True)
class Options:
    """How far and how long to search.

    `max_batch` is the largest size tried. `memory_limit_bytes` is what a batch may take on top of
    the loaded model; None means, on a CPU, 80 % of the memory that is available then, and on a
    device all of it. `trial` says how one size is timed. `patience_s` is how long a process may
    take to load the target or to try one size before it is ended (on a CPU; a device's own
    process cannot be ended), and `max_search_s` after how long no further size of a data type is
    tried.
    """

    max_batch: int = 65536
    memory_limit_bytes: int | None = None
    trial: Trial = field(default_factory=Trial)
    patience_s: float = 180.0
    max_search_s: float = 900.0


def knee(measured: Sequence[Probe]) -> Probe | None:
    """The smallest batch with 90 % of the highest rate, None without a rate."""
    rates = [one.items_per_s for one in measured if one.items_per_s is not None]
    if not rates:
        return None
    enough = [
        one
        for one in measured
        if one.items_per_s is not None and one.items_per_s >= KNEE_SHARE * max(rates)
    ]
    return min(enough, key=lambda one: one.batch_size)


class Search:
    """The search in one data type: what was tried, and what ended it."""

    def __init__(
        self,
        search: str,
        options: Options,
        tell: Callable[[str], None],
        keep: Callable[[Search], None],
        dtype: str | None,
    ) -> None:
        self.is_over = False
        self.dtype = dtype
        self._linear = search == LINEAR
        self._options, self._tell, self._keep = options, tell, keep
        self._told_at = 0.0
        self._prober: Prober | None = None
        self._until = monotonic() + options.max_search_s
        self._probes: list[Probe] = []
        self._stopper: Probe | None = None
        # Largest size that ran, smallest that did not.
        self._worked, self._not = 0, options.max_batch + 1
        self._stopped_by: str | None = None
        self._limit_bytes = options.memory_limit_bytes
        self._notes: list[str] = []

    def run(self, prober: Prober) -> None:
        """Find the largest batch and time the sizes on the way."""
        self._prober = prober
        self._tell(f"{prober.dtype or 'as it is'}: looking for the largest batch")
        if self._linear:
            with closing(prober.walk(1, self._options.max_batch)) as walk:
                for probe in walk:
                    if not self._take(probe) or self._is_late():
                        break
            self._time_powers(prober)
        else:
            self._double(prober)
            self._halve(prober)
        self._time_largest(prober)
        self._notes.append(prober.about)

    def stop(self, probe: Probe) -> None:
        """Take note of the size that did not run, and of why."""
        self._not, self._stopper = probe.batch_size, probe

    def shown(self) -> list[Probe]:
        """What was measured and what did not run, by batch size."""
        told = [one for one in self._probes if one.status in (MEASURED, REFUSED, FAILED, ENDED)]
        if self._stopper is not None and self._stopper not in told:
            told.append(self._stopper)
        return sorted(told, key=lambda one: one.batch_size)

    def limits(self) -> dict[str, Any]:
        """The search's row of `benchmark.throughput_limits`."""
        measured = [one for one in self._probes if one.status == MEASURED]
        bend = knee(measured)
        best = max(measured, key=lambda one: one.items_per_s or 0.0, default=None)
        return {
            "dtype": self.dtype,
            "search": LINEAR if self._linear else BINARY,
            "largest_batch": self._worked or None,
            "limited_by": self._limited_by(),
            "memory_limit_bytes": self._limit_bytes,
            "knee_batch": bend and bend.batch_size,
            "knee_items_per_s": bend and bend.items_per_s,
            "max_items_per_s": best and best.items_per_s,
            "max_batch": best and best.batch_size,
            "note": "; ".join([*self._untried(), *self._notes, KNEE_RULE]),
        }

    def _double(self, prober: Prober) -> None:
        """Double the size, timing each, until one does not run."""
        size = 1
        while self._worked < self._options.max_batch and not self._is_late():
            if not self._take(prober.attempt(size, timed=True)):
                return
            size = min(2 * size, self._options.max_batch)

    def _halve(self, prober: Prober) -> None:
        """Between a size that ran and one that memory refused, find where it ends."""
        while self._refused and self._not - self._worked > 1 and not self._is_late():
            middle = (self._worked + self._not) // 2
            self._take(prober.attempt(middle, timed=False))

    @property
    def _refused(self) -> bool:
        return self._stopper is not None and self._stopper.status == REFUSED

    def _time_powers(self, prober: Prober) -> None:
        """Time the powers of two that ran."""
        size = 1
        while size < self._worked:
            self._timed(prober, size)
            size *= 2

    def _time_largest(self, prober: Prober) -> None:
        """Time the largest size, or a little less where so many batches need more memory."""
        done = {one.batch_size for one in self._probes if one.status == MEASURED}
        largest, most = self._worked, max(done, default=0)
        for _ in range(_TRIES):
            if self._worked <= most:
                return
            probe = self._timed(prober, self._worked)
            if probe.worked:
                return
            self._notes = [f"batches up to {largest} ran a few times, but not while timed"]
            self.stop(probe)
            self._worked = max(most, self._worked - max(1, self._worked // 16))
        self._worked = most

    def _timed(self, prober: Prober, size: int) -> Probe:
        probe = prober.attempt(size, timed=True)
        # It ran before: the same size is not shown twice.
        self._probes = [one for one in self._probes if one.batch_size != size]
        self._probes.append(probe)
        self._report(probe)
        return probe

    def _take(self, probe: Probe) -> bool:
        """Enter an attempt; whether the size ran."""
        # A library that fails where smaller batches ran, in words it has for short memory too.
        if probe.status == FAILED and not probe.certain and self._worked:
            probe.status = REFUSED
        self._probes.append(probe)
        if probe.worked:
            self._worked = probe.batch_size
        else:
            self.stop(probe)
        self._report(probe)
        return probe.worked

    def _report(self, probe: Probe) -> None:
        """Keep what there is, and say it: of a linear search a line every few seconds."""
        if self._prober is not None:
            self.dtype = self.dtype or self._prober.dtype
            self._limit_bytes = self._prober.memory_limit_bytes
        walks = self._linear and probe.status == WORKED
        if walks and monotonic() - self._told_at < _LINE_EVERY_S:
            return
        self._keep(self)
        self._told_at = monotonic()
        rate = f", {probe.items_per_s:.4g} items/s" if probe.items_per_s is not None else ""
        why = f": {probe.reason}" if probe.reason and not probe.worked else ""
        self._tell(f"batch of {probe.batch_size}: {probe.status}{rate}{why}")

    def _is_late(self) -> bool:
        if self._stopped_by is None and monotonic() > self._until:
            bound = format_seconds(self._options.max_search_s)
            self._stopped_by = f"the search's time bound of {bound}"
        return self._stopped_by is not None

    def _limited_by(self) -> str | None:
        size = self._not
        if not self.is_over:
            return "the search was ended before it was over"
        if self._stopped_by is not None and self._not - self._worked > 1:
            return self._stopped_by
        if self._stopper is None:
            return f"the largest size to try: no batch above {self._options.max_batch} was tried"
        if self._stopper.status == REFUSED:
            # A process may be killed, and a library fail, for other reasons than memory.
            what = "memory: " if self._stopper.certain else ""
            return f"{what}a batch of {size} was refused ({self._stopper.reason})"
        if self._stopper.status == ENDED:
            return f"time: a batch of {size} gave {self._stopper.reason}"
        return f"an error at a batch of {size}: {self._stopper.reason}"

    def _untried(self) -> list[str]:
        """What is not known of where the largest batch lies: sizes between the last two tried."""
        first, last = self._worked + 1, self._not - 1
        is_open = self._stopper is not None or self._stopped_by is not None
        is_open = (is_open or not self.is_over) and first <= last
        return [f"batches of {first} to {last} were not tried"] if is_open else []
