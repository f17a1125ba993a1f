"""Tries one batch size: a few calls to see whether memory suffices, and, if asked, many timed.

An error on the way becomes a `Probe` and lets go of all that the attempt held, so that the next
one finds the memory that this one found.
"""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from profstack import environment
from profstack.benchmark.blocks import timed_block
from profstack.benchmark.clock import Clock
from profstack.benchmark.measure import Policy, measure
from profstack.benchmark.subject import Subject
from profstack.units import format_seconds

WORKED, MEASURED = "worked", "measured"
REFUSED, FAILED, ENDED = "refused", "failed", "ended"

# What allocators say that have nothing left.
_REFUSALS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "defaultcpuallocator: not enough memory",
    "std::bad_alloc",
    "alloc_failed",
    "memoryerror",
    "thread creation failed",
)
# What libraries say when memory is short, but not only then.
_UNCERTAIN = (
    "could not create a primitive",
    "could not create a memory",
    "could not execute a primitive",
    "unable to find a valid cudnn algorithm",
)
_LONGEST_REASON = 240
# The kernel counts resident pages per core and adds them up late: readings are off by as much.
_UNTOLD_BYTES = 2**20
# Fewer samples than this have no 90th percentile: it would be the maximum.
_ENOUGH_FOR_P90 = 10


@dataclass(frozen=True)
class Trial:
    """How one batch size is tried: `calls` calls to see that it runs, then `batches` timed ones.

    There are fewer calls, but two at least, where they would take longer than `warmup_s`, and
    fewer batches where they would take longer than `measure_s`. Between them stands a warm-up
    until times are stable, which `warmup_s` bounds too. An allocator needs a few calls until it
    has arranged itself: the first one alone is the smallest.
    """

    batches: int = 100
    measure_s: float = 20.0
    warmup_s: float = 2.0
    calls: int = 8


@dataclass
class Probe:
    """What trying one batch size gave; times in seconds, memory in bytes, None if not measured.

    `status` is `worked` (it ran, and was not timed), `measured`, `refused` (memory did not
    suffice), `failed` (another error) or `ended` (it took too long). `certain` is False where
    memory may be the reason and need not be. Every batch is waited for; `items_per_s` is of the
    total time and the latencies are of the same batches. `peak_memory_bytes` is, on a CPU, what
    the process grew by above the loaded model, and on a device the most that tensors held, the
    model included.
    """

    batch_size: int
    status: str
    reason: str | None = None
    batches: int | None = None
    total_s: float | None = None
    items_per_s: float | None = None
    latency_s: float | None = None
    latency_p90_s: float | None = None
    peak_memory_bytes: int | None = None
    certain: bool = True

    @property
    def worked(self) -> bool:
        """Whether the batch size ran."""
        return self.status in (WORKED, MEASURED)

    def as_json(self) -> dict[str, Any]:
        """The same as plain data; `Probe(**data)` takes it again."""
        return asdict(self)


class HostMemory:
    """The resident memory of this process, above what it has when this is made."""

    def __init__(self) -> None:
        self._floor = environment.peak_rss_bytes(reset=True)
        self._base = environment.rss_bytes()

    def begin(self) -> None:
        """Start a new peak; what is measured is still above the beginning."""
        self._floor = environment.peak_rss_bytes(reset=True)

    def peak(self) -> tuple[int | None, str | None]:
        """Most bytes since `begin`, or None and why."""
        peak = environment.peak_rss_bytes()
        if peak is None or self._base is None or self._floor is None:
            return None, "this system does not tell a process's peak memory"
        if peak <= max(self._floor, self._base) + _UNTOLD_BYTES:
            return None, "the peak memory was hardly more than the process had before"
        return peak - self._base, None

    def clear(self) -> None:
        """Let go of what nothing holds any more."""
        gc.collect()


class DeviceMemory:
    """What torch's allocator of one kind of device (`torch.cuda`, ...) has given out."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def begin(self) -> None:
        """Start a new peak."""
        self._if_there("reset_peak_memory_stats")

    def peak(self) -> tuple[int | None, str | None]:
        """Most bytes in tensors since `begin`, the model's included, or None and why."""
        peak = self._if_there("max_memory_allocated")
        return (None, "this device does not tell its peak memory") if peak is None else (peak, None)

    def clear(self) -> None:
        """Give back to the device what no tensor holds any more."""
        gc.collect()
        self._if_there("empty_cache")

    def _if_there(self, name: str) -> Any:
        function = getattr(self._module, name, None)
        return None if function is None else function()


Memory = HostMemory | DeviceMemory


def attempt(
    make: Callable[[int], Subject],
    batch_size: int,
    trial: Trial,
    clock: Clock,
    memory: Memory,
    *,
    timed: bool,
) -> Probe:
    """Try one batch size of what `make` gives; errors of the model become the probe's reason."""
    try:
        probe = _tried(make, batch_size, trial, clock, memory, timed=timed)
    except (Exception, SystemExit) as error:
        probe = judged(error, batch_size)
    # The error is gone by now, and with it the frames that held the batch and its results.
    memory.clear()
    return probe


def judged(error: BaseException, batch_size: int) -> Probe:
    """What an error says of a batch size: that memory refused it, or that the model failed."""
    said = str(error).strip()
    reason = f"{type(error).__name__}: {said.splitlines()[0]}" if said else type(error).__name__
    reason = reason if len(reason) <= _LONGEST_REASON else reason[:_LONGEST_REASON] + "…"
    one: BaseException | None = error
    seen: list[BaseException] = []
    while one is not None and one not in seen:
        if _is_refusal(one):
            return Probe(batch_size, REFUSED, reason)
        seen.append(one)
        one = one.__cause__ or one.__context__
    return Probe(batch_size, FAILED, reason, certain=not says(said, _UNCERTAIN))


def says_no_memory(text: str) -> bool:
    """Whether a program's last words are those of an allocator that has nothing left."""
    return says(text, _REFUSALS)


def says(text: str, phrases: tuple[str, ...]) -> bool:
    """Whether one of the phrases, in small letters, stands in a text."""
    small = text.lower()
    return any(phrase in small for phrase in phrases)


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # By its name: each torch has it in a place of its own.
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and says_no_memory(str(error))


def _tried(
    make: Callable[[int], Subject],
    batch_size: int,
    trial: Trial,
    clock: Clock,
    memory: Memory,
    *,
    timed: bool,
) -> Probe:
    memory.begin()
    subject = make(batch_size)
    call = subject.step
    with subject.conditions():
        times: list[float] = []
        while len(times) < 2 or (len(times) < trial.calls and sum(times) < trial.warmup_s):
            times += timed_block(call, 1, 1, clock).host_s
        if timed:
            return _timed(call, batch_size, min(times), trial, clock, memory)
    return Probe(batch_size, WORKED)


def _timed(
    call: Callable[[], Any],
    batch_size: int,
    typical_s: float,
    trial: Trial,
    clock: Clock,
    memory: Memory,
) -> Probe:
    """Rate and latency over the trial's batches, or over as many as its time allows."""
    samples = max(1, min(trial.batches, int(trial.measure_s / max(typical_s, 1e-9))))
    measured = measure(call, Policy(repeat=samples, max_warmup_s=trial.warmup_s), clock)
    host_s, calls = np.asarray(measured.samples.host_s), measured.samples.calls
    total_s, batches = float(host_s.sum()) * calls, len(host_s) * calls
    peak_bytes, why_no_peak = memory.peak()
    notes = []
    if batches < trial.batches:
        bound = format_seconds(trial.measure_s)
        notes.append(f"{batches} of {trial.batches} batches: the time bound is {bound}")
    if why_no_peak is not None:
        notes.append(why_no_peak)
    return Probe(
        batch_size,
        MEASURED,
        "; ".join(notes) or None,
        batches=batches,
        total_s=total_s,
        items_per_s=batches * batch_size / total_s,
        latency_s=float(np.median(host_s)),
        latency_p90_s=float(np.quantile(host_s, 0.9)) if len(host_s) >= _ENOUGH_FOR_P90 else None,
        peak_memory_bytes=peak_bytes,
    )
