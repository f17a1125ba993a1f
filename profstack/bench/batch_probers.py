"""Probers of batch sizes: on a device in this process, on a CPU in processes of their own.

A device's allocator refuses a request and continues. On a CPU the system grants more than it has
and then kills a process: there a process under a memory limit tries, and its end is a result too.
"""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from profstack.bench.batch_trial import (
    ENDED,
    FAILED,
    REFUSED,
    SHARE,
    DeviceMemory,
    Maker,
    Probe,
    Task,
    Trial,
    attempt,
    says_no_memory,
)
from profstack.bench.fresh_process import FreshProcess
from profstack.bench.subject import Request
from profstack.errors import UsageError
from profstack.stats.clock import Clock
from profstack.units import format_seconds

_LONGEST_WORDS = 200

# A prober tries batch sizes of one subject in one floating-point type. `attempt` tries one size, as
# if it were the first; `walk` tries size after size without timing, up to the first that does not
# run. `memory_limit_bytes` are the bytes that a probe may take, if known (after the first attempt,
# for some); `dtype` is the type that is tried, if there is one; `about` says what the figures of
# memory mean.


@dataclass
class DeviceProber:
    """Tries in this process, on the device that the subject is on."""

    make: Maker
    dtype: str | None
    memory: DeviceMemory
    memory_limit_bytes: int | None
    trial: Trial
    clock: Clock
    about: str = "peak memory is what the device's allocator had given out, the model included"

    def attempt(self, batch_size: int, *, timed: bool) -> Probe:
        """Try one size, then return its memory to the device."""
        return attempt(self.make, batch_size, self.trial, self.clock, self.memory, timed=timed)

    def walk(self, first: int, last: int) -> Generator[Probe, None, None]:
        """Try size after size, up to the first that does not run."""
        for batch_size in range(first, last + 1):
            probe = self.attempt(batch_size, timed=False)
            yield probe
            if not probe.worked:
                return


@contextlib.contextmanager
def limited_device(kind: str, limit_bytes: int | None) -> Iterator[tuple[DeviceMemory, int | None]]:
    """Let the current device's allocator allocate at most so much in addition.

    Yields the device's memory and the bytes that are then free for a batch, if known. Raises
    UsageError for a kind of device whose allocator takes no limit.
    """
    import torch

    module: Any = getattr(torch, kind, None)
    memory = DeviceMemory(module)
    allow: Any = getattr(module, "set_per_process_memory_fraction", None)
    # It returns the free and the total bytes of the current device.
    ask: Any = getattr(module, "mem_get_info", None)
    if limit_bytes is not None and (allow is None or ask is None):
        raise UsageError(
            f"--memory-limit: torch sets no limit for {kind}",
            next_step="leave it out: the search ends where the device's memory does",
        )
    memory.clear()
    if limit_bytes is None:
        yield memory, int(ask()[0]) if ask is not None else None
        return
    held = module.memory_reserved()
    # Older versions of torch cannot return the limit: assume that there is none.
    before = getattr(module, "get_per_process_memory_fraction", lambda: 1.0)()
    allow(min(before, (held + limit_bytes) / ask()[1]))
    try:
        yield memory, limit_bytes
    finally:
        allow(before)


class ChildProber:
    """Tries each size in a fresh process that may take so much memory above the loaded target.

    Without `limit_bytes` the first process may take a share of the memory that is available once
    it has loaded the target, and all others as much. A process without an answer after
    `patience_s` (and the trial's own time) is killed. Raises UsageError where no memory limit can
    be set.
    """

    def __init__(
        self,
        request: Request,
        dtype: str | None,
        trial: Trial,
        *,
        limit_bytes: int | None,
        patience_s: float,
    ) -> None:
        self.dtype = dtype
        self.memory_limit_bytes = limit_bytes
        share = f", {100 * SHARE:.0f} % of what was available then" if limit_bytes is None else ""
        self.about = (
            f"memory is counted on top of the process with the model loaded: the limit{share}, and "
            f"the peak"
        )
        self._request, self._wanted, self._trial = request, dtype, trial
        self._patience_s = patience_s + trial.measure_s + trial.warmup_s

    def attempt(self, batch_size: int, *, timed: bool) -> Probe:
        """Try one size in a process of its own."""
        with contextlib.closing(self._tried(batch_size, batch_size, timed=timed)) as answers:
            return next(answers)

    def walk(self, first: int, last: int) -> Generator[Probe, None, None]:
        """Try size after size, up to the first that does not run in a fresh process.

        Many sizes share a process, which saves its start. A size that is refused there, where
        earlier ones may have fragmented the memory, is tried again as the first of another process.
        """
        while first <= last:
            begun_at = first
            with contextlib.closing(self._tried(first, last, timed=False)) as answers:
                for probe in answers:
                    if probe.worked:
                        yield probe
                        first = probe.batch_size + 1
                    elif probe.batch_size == begun_at or probe.status != REFUSED:
                        yield probe
                        return

    def _tried(self, first: int, last: int, *, timed: bool) -> Generator[Probe, None, None]:
        """Yield one process's results: the sizes that ran, then the one that did not."""
        import torch

        task = Task(
            self._request,
            self._wanted,
            self._trial,
            first,
            last,
            timed,
            threads=torch.get_num_threads(),
            allowance_bytes=self.memory_limit_bytes,
            give_up_s=math.ceil(2 * self._patience_s),
        )
        ready = None
        with FreshProcess(Task.__module__, asdict(task)) as child:
            while first <= last:
                answer = child.answer(self._patience_s)
                if answer is None:
                    yield self._post_mortem(child, first, is_loaded=ready is not None)
                    return
                if "no_limit" in answer:
                    raise UsageError(
                        f"the largest batch on a CPU is looked for under a memory limit, but "
                        f"{answer['no_limit']}",
                        next_step="state one (--memory-limit 4GiB) or search on Linux",
                    )
                if "failed" in answer:
                    yield Probe(first, FAILED, f"the target was not loaded: {answer['failed']}")
                    return
                if ready is None:
                    ready = answer["ready"]
                    self.memory_limit_bytes, self.dtype = ready["allowance_bytes"], ready["dtype"]
                    continue
                probe = Probe(**answer["probe"])
                yield probe
                if not probe.worked:
                    return
                first += 1

    def _post_mortem(self, child: FreshProcess, batch_size: int, *, is_loaded: bool) -> Probe:
        """Return the result for the size at which a process ended without an answer."""
        code = child.exit_code()
        if code is None:
            reason = f"no answer after {format_seconds(self._patience_s)}: the process was ended"
            return Probe(batch_size, ENDED, reason)
        words = child.last_words()[:_LONGEST_WORDS]
        said = f": {words}" if words else ""
        by = _signal_name(code) if code < 0 else f"exit code {code}"
        if not is_loaded:
            return Probe(batch_size, FAILED, f"the target was not loaded ({by}){said}")
        if code < 0:
            hint = " (so does the system when memory is short)" if code == -signal.SIGKILL else ""
            reason = f"its process was killed by {by}{hint}{said}"
            return Probe(batch_size, REFUSED, reason, certain=says_no_memory(words))
        reason = f"its process ended with {by} and without an answer{said}"
        return Probe(batch_size, REFUSED if says_no_memory(words) else FAILED, reason)


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


Prober = DeviceProber | ChildProber
