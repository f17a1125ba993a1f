"""Try one batch size: memory limit, data type, timing; and the process that tries sizes on a CPU.

An error becomes a `Probe` and releases all that the attempt held, so that the next one has the same
memory.
"""

from __future__ import annotations

import errno
import functools
import gc
import mmap
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from profstack import environment
from profstack.bench.fresh_process import receive
from profstack.bench.measure import Policy, measure
from profstack.bench.subject import Request, Subject, causes, in_a_line, map_inputs, of_model
from profstack.bench.target import load
from profstack.errors import UsageError
from profstack.stats.blocks import timed_block
from profstack.stats.clock import Clock
from profstack.units import format_seconds

WORKED, MEASURED = "worked", "measured"
REFUSED, FAILED, ENDED = "refused", "failed", "ended"

# Messages of allocators that have nothing left.
_REFUSALS = re.compile(
    "out of memory|can('t|not) allocate memory|DefaultCPUAllocator: not enough memory|"
    "std::bad_alloc|ALLOC_FAILED|MemoryError|thread creation failed",
    re.IGNORECASE,
)
# Messages of libraries when memory is short, but not only then.
_UNCERTAIN = re.compile(
    "could not create a (primitive|memory)|could not execute a primitive|"
    "unable to find a valid cuDNN algorithm",
    re.IGNORECASE,
)
_LONGEST_REASON = 240
# The kernel counts resident pages per core and adds them up late: readings are off by as much.
_UNCOUNTED_BYTES = 2**20
# Fewer samples than this have no 90th percentile: it would be the maximum.
_ENOUGH_FOR_P90 = 10


@dataclass(frozen=True)
class Trial:
    """How one batch size is tried: `calls` calls to see that it runs, then `batches` timed ones.

    There are fewer calls, but two at least, where they would take longer than `warmup_s`, and
    fewer batches where they would take longer than `measure_s`. A warm-up between them lasts until
    times are stable, at most `warmup_s`. An allocator needs a few calls to settle: the first one
    takes the least memory.
    """

    batches: int = 100
    measure_s: float = 20.0
    warmup_s: float = 2.0
    calls: int = 8


@dataclass
class Probe:
    """The result of trying one batch size, in seconds and bytes; None if not measured.

    `status` is `worked` (it ran, and was not timed), `measured`, `refused` (memory did not
    suffice), `failed` (another error) or `ended` (it took too long). `certain` is False where
    memory may be the reason and need not be. Every batch is waited for; `items_per_s` is of the
    total time and the latencies are of the same batches. `peak_memory_bytes` is, on a CPU, the
    growth of the process above the loaded model, and on a device the most that tensors held, the
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


class HostMemory:
    """The resident memory of this process above its size at the start."""

    def __init__(self) -> None:
        self._floor = environment.peak_rss_bytes(reset=True)
        self._base = environment.rss_bytes()

    def begin(self) -> None:
        """Start a new peak; the base stays."""
        self._floor = environment.peak_rss_bytes(reset=True)

    def peak(self) -> tuple[int | None, str | None]:
        """Most bytes since `begin`, or None and why."""
        peak = environment.peak_rss_bytes()
        if peak is None or self._base is None or self._floor is None:
            return None, "this system does not report a process's peak memory"
        if peak <= max(self._floor, self._base) + _UNCOUNTED_BYTES:
            return None, "the peak memory was hardly more than the process had before"
        return peak - self._base, None

    def clear(self) -> None:
        """Free unused objects."""
        gc.collect()


class DeviceMemory:
    """The memory of torch's allocator for one kind of device (`torch.cuda`, ...)."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def begin(self) -> None:
        """Start a new peak."""
        self._if_there("reset_peak_memory_stats")

    def peak(self) -> tuple[int | None, str | None]:
        """Most bytes in tensors since `begin`, the model's included, or None and why."""
        peak = self._if_there("max_memory_allocated")
        return peak, "this device does not report its peak memory" if peak is None else None

    def clear(self) -> None:
        """Return memory that no tensor holds to the device."""
        gc.collect()
        self._if_there("empty_cache")

    def _if_there(self, name: str) -> Any:
        function = getattr(self._module, name, None)
        return None if function is None else function()


Memory = HostMemory | DeviceMemory
Maker = Callable[[int], Subject]


def attempt(
    make: Maker, batch_size: int, trial: Trial, clock: Clock, memory: Memory, *, timed: bool
) -> Probe:
    """Try one batch size of the subject from `make`; the model's errors become the reason."""
    try:
        probe = _tried(make, batch_size, trial, clock, memory, timed)
    except (Exception, SystemExit) as error:
        probe = probe_of_error(error, batch_size)
    # The error's frames, which held the batch and its results, are gone by now.
    memory.clear()
    return probe


def probe_of_error(error: BaseException, batch_size: int) -> Probe:
    """Return the result of a batch size that raised: refused by memory, or failed."""
    reason = in_a_line(error)
    reason = reason if len(reason) <= _LONGEST_REASON else reason[:_LONGEST_REASON] + "…"
    if any(map(_is_refusal, causes(error))):
        return Probe(batch_size, REFUSED, reason)
    return Probe(batch_size, FAILED, reason, certain=not _UNCERTAIN.search(str(error)))


def says_no_memory(text: str) -> bool:
    """Return whether a program's last line is that of an allocator with nothing left."""
    return _REFUSALS.search(text) is not None


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # The second by name: its module differs between versions of torch.
    if any(kind.__name__ in ("MemoryError", "OutOfMemoryError") for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and says_no_memory(str(error))


def _tried(
    make: Maker, batch_size: int, trial: Trial, clock: Clock, memory: Memory, timed: bool
) -> Probe:
    """Call the subject a few times; time the trial's batches, or as many as its time allows."""
    memory.begin()
    subject = make(batch_size)
    call = subject.step
    with subject.conditions():
        times: list[float] = []
        while len(times) < 2 or (len(times) < trial.calls and sum(times) < trial.warmup_s):
            times += timed_block(call, 1, 1, clock).host_s
        if not timed:
            return Probe(batch_size, WORKED)
        samples = max(1, min(trial.batches, int(trial.measure_s / max(min(times), 1e-9))))
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


# -- conversion to another floating-point type -------------------------------
# Integer inputs (token numbers, masks) are not converted. Conversion is in place, as `Module.to`
# is; where the model is needed afterwards, its values are kept in main memory meanwhile.


def check_dtype(name: str) -> None:
    """Raise UsageError for a name that is no floating-point type of torch."""
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(
            f"--dtype {name}: torch has no such floating-point type",
            next_step="types are float32, bfloat16, float16 and float64",
        )


def own_dtype(subject: Subject) -> str | None:
    """Return the subject's floating-point type, None where it has several or none."""
    states = [state for _, state in _named_states(subject.model) if state.is_floating_point()]
    # Inputs decide only where there is no parameter.
    floating = states or [one for one in subject.tensors if one.is_floating_point()]
    names = {str(one.dtype).removeprefix("torch.") for one in floating}
    return names.pop() if len(names) == 1 else None


def device_kind(subject: Subject) -> str:
    """Return the kind of device of a subject's model or inputs: `cpu`, `cuda`, ..."""
    states = [state for _, state in _named_states(subject.model)]
    kinds = {str(one.device.type) for one in (*states, *subject.tensors)}
    return next(iter(sorted(kinds - {"cpu"})), "cpu")


def maker(subject: Subject, dtype: str | None) -> Maker:
    """Return the maker of the subject by batch size; its model is converted for good.

    The subject must have an `of_batch`. Where that does not need the subject, it is not kept.
    """
    of_batch, model = subject.of_batch, subject.model
    assert of_batch is not None
    if dtype is None:
        return of_batch
    import torch

    wanted = getattr(torch, dtype)
    if model is not None:
        model.to(wanted)
        # `of_model` enlarges inputs by a partial, a factory makes new ones by a function. Inputs
        # are converted before they are enlarged: the largest never exist in both types.
        if isinstance(of_batch, functools.partial):
            inputs, named = _cast((subject.inputs, dict(subject.named_inputs)), wanted)
            again = of_model(model, inputs, named, gradients=subject.gradients)
            assert again.of_batch is not None
            return again.of_batch

    def make(batch_size: int) -> Subject:
        made = of_batch(batch_size)
        # A factory's model of this size is new; a converted one stays as it is.
        if made.model is not None:
            made.model.to(wanted)
        inputs, named = _cast((made.inputs, dict(made.named_inputs)), wanted)
        return replace(made, inputs=inputs, named_inputs=named)

    return make


@contextmanager
def borrowed(subject: Subject, dtype: str | None) -> Iterator[Maker]:
    """Yield `maker`, and restore the model's own values and type in the end."""
    kept: dict[str, Any] = {}
    if dtype is not None and subject.model is not None:
        import torch

        wanted = getattr(torch, dtype)
        kept = {
            name: (state.dtype, state.device, state.detach().to("cpu", copy=True))
            for name, state in _named_states(subject.model)
            if state.is_floating_point() and state.dtype != wanted
        }
    try:
        yield maker(subject, dtype)
    finally:
        for name, state in _named_states(subject.model) if kept else ():
            if name in kept:
                own, device, values = kept[name]
                # Free the values of the other type first.
                state.data = state.data.new_empty(0)
                state.data = values.to(device=device, dtype=own)
                if state.grad is not None:
                    state.grad.data = state.grad.data.to(own)


def _cast(inputs: Any, wanted: Any) -> Any:
    return map_inputs(lambda one: one.to(wanted) if one.is_floating_point() else one, inputs)


def _named_states(model: Any) -> list[tuple[str, Any]]:
    """Return the parameters and buffers of a model, each tensor once."""
    return [] if model is None else [*model.named_parameters(), *model.named_buffers()]


# -- the memory limit of a process that tries batch sizes --------------------
# The limit is on what the process may map in addition: torch alone maps half a gigabyte of
# libraries that it hardly touches. `RLIMIT_DATA` counts private writable memory, which is close to
# what a model takes; where a system does not enforce it, `RLIMIT_AS` counts all addresses. Either
# is tried before it is used. Processes that the model starts, and memory shared with them, are not
# limited.

# Part of the available memory that a probe may take unless the user says otherwise. The rest is
# for the system and for other programs: none of them may be killed for a probe.
SHARE = 0.8

# The field of statm, in pages, that each limit counts: data and stack, all addresses.
_COUNTED_AT = (("RLIMIT_DATA", 5), ("RLIMIT_AS", 0))
# A trial limit allows so much, and must refuse twice as much.
_TRIED_BYTES = 64 * 2**20


class NoLimitError(Exception):
    """No memory limit works on this system; the text says why."""


class MemoryLimit(NamedTuple):
    """A limit in force: the bytes it allows in addition, and a call that lifts it."""

    allowance_bytes: int
    lift: Callable[[], None]


def share_of_available() -> int:
    """Return the bytes that a probe may take by default; raise NoLimitError if not known."""
    available = environment.available_memory_bytes()
    if available is None:
        raise NoLimitError("it is not known how much memory is available")
    return int(SHARE * available)


def limit_memory(allowance_bytes: int) -> MemoryLimit:
    """Allow this process so much memory in addition to what it has now.

    A lower limit of the process stays. Raises NoLimitError.
    """
    try:
        import resource
    except ImportError:
        raise NoLimitError("this system limits no process's memory") from None
    for name, place in _COUNTED_AT:
        number = getattr(resource, name, None)
        fields = environment.rss_text().split()
        # A system that does not count this field has 0 there.
        mapped = int(fields[place]) * mmap.PAGESIZE if len(fields) > place else 0
        if number is None or not mapped:
            continue
        before = resource.getrlimit(number)
        finite = [one for one in before if one != resource.RLIM_INFINITY]
        limit = min([mapped + allowance_bytes, *finite])
        try:
            if not _refuses(number, mapped + _TRIED_BYTES, before):
                continue
            resource.setrlimit(number, (limit, before[1]))
        except (OSError, ValueError):
            continue
        lift = functools.partial(resource.setrlimit, number, before)
        return MemoryLimit(max(0, limit - mapped), lift)
    raise NoLimitError("this system holds to no limit of a process's memory")


def _refuses(number: int, limit: int, before: tuple[int, int]) -> bool:
    """Return whether a mapping beyond such a limit is refused; restore the limit."""
    from resource import setrlimit

    finite = before[1] if before[1] >= 0 else limit
    setrlimit(number, (min(limit, finite), before[1]))
    try:
        mmap.mmap(-1, 2 * _TRIED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return True
    finally:
        setrlimit(number, before)
    return False


# -- the process that tries sizes --------------------------------------------
# On a CPU it loads the target, sets its limit and tries the sizes in order, until one does not run;
# the system may kill it. Its answers are `ready` once the limit holds, then `probe` for each size;
# or `failed` where the target cannot be loaded, `no_limit` without a limit.

# Elements of work that every thread of the pool gets a part of.
_PER_THREAD = 2**16


def main() -> None:
    """Try the sizes that the request names, the first to the last of `sizes`.

    Should this process hang after its parent has ended, it ends itself after `give_up_s`.
    """
    task, answer = receive()
    signal.alarm(task["give_up_s"])
    try:
        import torch

        torch.set_num_threads(task["threads"])
        make, dtype = _load(Request(**task["request"]), task["dtype"])
    except (Exception, SystemExit) as error:
        answer({"failed": probe_of_error(error, 0).reason})
        return
    # Allocate the memory of torch's threads and of the measurement before it is counted.
    torch.ones(torch.get_num_threads() * _PER_THREAD).add_(1.0)
    torch.mm(torch.ones(128, 128), torch.ones(128, 128))
    measure(lambda: None, Policy(repeat=100, max_warmup_s=0.05))
    trial, clock, memory = Trial(**task["trial"]), Clock(), HostMemory()
    try:
        allowance_bytes, lift = limit_memory(task["allowance_bytes"] or share_of_available())
    except NoLimitError as error:
        answer({"no_limit": str(error)})
        return
    answer({"ready": {"allowance_bytes": allowance_bytes, "dtype": dtype}})
    first, last = task["sizes"]
    for batch_size in range(first, last + 1):
        signal.alarm(task["give_up_s"])
        probe = attempt(make, batch_size, trial, clock, memory, timed=task["timed"])
        if not probe.worked:
            # The answer takes memory too, and a model may have kept all.
            lift()
        answer({"probe": asdict(probe)})
        if not probe.worked:
            return


def _load(request: Request, dtype: str | None) -> tuple[Maker, str | None]:
    """Return the maker of the target by batch size, and its floating-point type.

    The subject itself is not kept: it may hold tensors of the other type.
    """
    subject = load(request).subject
    return maker(subject, dtype), own_dtype(subject)
