"""Probers of batch sizes: on a device in this process, on a CPU in processes of their own.

A device's allocator refuses a request and continues. On a CPU the system grants more than it has
and then kills a process: there a process under a memory limit tries, and its end is a result too.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import asdict
from time import monotonic
from typing import IO, Protocol

from profstack.bench.batch_trial import (
    ENDED,
    FAILED,
    REFUSED,
    SHARE,
    DeviceMemory,
    Maker,
    Probe,
    Trial,
    TrialAnswer,
    TrialRequest,
    attempt,
    says_no_memory,
)
from profstack.bench.subject import Request
from profstack.errors import UsageError
from profstack.stats.clock import Clock
from profstack.units import format_seconds

_START = "import sys; sys.path[:] = {paths!r}; from profstack.bench.trial_child import main; main()"
_LAST_WORDS = 4096
# Given to a process whose answers are all there, to end.
_TO_END_S = 10.0


class Prober(Protocol):
    """Tries batch sizes of one subject in one floating-point type."""

    # Bytes that a probe may take, if known; some probers know it after the first attempt.
    memory_limit_bytes: int | None
    # The floating-point type that is tried, if there is one.
    dtype: str | None
    # The meaning of the figures of memory, in words.
    about: str

    def attempt(self, batch_size: int, *, timed: bool) -> Probe:
        """Try one size, as if it were the first."""
        ...

    def walk(self, first: int, last: int) -> Generator[Probe, None, None]:
        """Try size after size without timing, up to the first that does not run."""
        ...


class DeviceProber:
    """Tries in this process, on the device that the subject is on."""

    about = "peak memory is what the device's allocator had given out, the model included"

    def __init__(
        self, make: Maker, kind: str, trial: Trial, clock: Clock, limit_bytes: int | None
    ) -> None:
        import torch

        module = getattr(torch, kind, None)
        self.dtype: str | None = None
        self.memory_limit_bytes = limit_bytes
        self._make, self._trial, self._clock = make, trial, clock
        self._memory = DeviceMemory(module)
        if limit_bytes is None:
            self._memory.clear()
            # Free and total bytes of the current device.
            ask = getattr(module, "mem_get_info", None)
            self.memory_limit_bytes = int(ask()[0]) if ask is not None else None

    def attempt(self, batch_size: int, *, timed: bool) -> Probe:
        """Try one size, then return its memory to the device."""
        return attempt(self._make, batch_size, self._trial, self._clock, self._memory, timed=timed)

    def walk(self, first: int, last: int) -> Generator[Probe, None, None]:
        """Try size after size, up to the first that does not run."""
        for batch_size in range(first, last + 1):
            probe = self.attempt(batch_size, timed=False)
            yield probe
            if not probe.worked:
                return


@contextlib.contextmanager
def limited_device(kind: str, limit_bytes: int | None) -> Iterator[None]:
    """Let the current device's allocator allocate at most so much in addition.

    Raises UsageError for a kind of device whose allocator takes no limit.
    """
    if limit_bytes is None:
        yield
        return
    import torch

    module = getattr(torch, kind, None)
    allow = getattr(module, "set_per_process_memory_fraction", None)
    ask = getattr(module, "mem_get_info", None)
    if allow is None or ask is None:
        raise UsageError(
            f"--memory-limit: torch sets no limit for {kind}",
            next_step="leave it out: the search ends where the device's memory does",
        )
    DeviceMemory(module).clear()
    held = getattr(torch, kind).memory_reserved()
    # Older versions of torch cannot return the limit: assume that there is none.
    before = getattr(module, "get_per_process_memory_fraction", lambda: 1.0)()
    allow(min(before, (held + limit_bytes) / ask()[1]))
    try:
        yield
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
        with _TrialProcess(self._trial_request(first, last, timed=timed)) as child:
            due = first
            while due <= last:
                answer = child.answer(self._patience_s)
                if answer is None:
                    yield child.post_mortem(due, self._patience_s)
                    return
                if "no_limit" in answer:
                    raise UsageError(
                        f"the largest batch on a CPU is looked for under a memory limit, but "
                        f"{answer['no_limit']}",
                        next_step="state one (--memory-limit 4GiB) or search on Linux",
                    )
                if "failed" in answer:
                    yield Probe(due, FAILED, f"the target was not loaded: {answer['failed']}")
                    return
                if "ready" in answer:
                    self.memory_limit_bytes = answer["ready"]["allowance_bytes"]
                    self.dtype = answer["ready"]["dtype"]
                    continue
                probe = Probe(**answer["probe"])
                yield probe
                if not probe.worked:
                    return
                due += 1

    def _trial_request(self, first: int, last: int, *, timed: bool) -> TrialRequest:
        import torch

        return {
            "answers": -1,
            "request": self._request.as_json(),
            "dtype": self._wanted,
            "first": first,
            "last": last,
            "timed": timed,
            "trial": asdict(self._trial),
            "threads": torch.get_num_threads(),
            "allowance_bytes": self.memory_limit_bytes,
            "give_up_s": math.ceil(2 * self._patience_s),
        }


class _TrialProcess:
    """One such process; leaving the block ends it and all processes that it started."""

    def __init__(self, request: TrialRequest) -> None:
        # Closed with the process.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._answers, end = os.pipe()
        self._rest = b""
        self._ready = False
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START.format(paths=sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(end,),
                env=_plain_environment(),
                # A group of its own: it ends with all that it starts.
                start_new_session=True,
            )
        except BaseException:
            os.close(self._answers)
            self._errors.close()
            raise
        finally:
            os.close(end)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps({**request, "answers": end}).encode())

    def __enter__(self) -> _TrialProcess:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._answers)
        self._errors.close()

    def answer(self, patience_s: float) -> TrialAnswer | None:
        """Return the next answer; None when there is no further one, or none in time."""
        deadline = monotonic() + patience_s
        while b"\n" not in self._rest:
            left = deadline - monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                return None
            more = os.read(self._answers, 65536)
            if not more:
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        answer: TrialAnswer = json.loads(line)
        self._ready = self._ready or "ready" in answer
        return answer

    def post_mortem(self, batch_size: int, patience_s: float) -> Probe:
        """Return the result for the size at which a process ended without an answer."""
        try:
            # A process that has closed its answers is ending; one that was too slow is not.
            code = self._process.wait(_TO_END_S if self._at_end() else 0.0)
        except subprocess.TimeoutExpired:
            reason = f"no answer after {format_seconds(patience_s)}: the process was ended"
            return Probe(batch_size, ENDED, reason)
        words = self._last_words()
        said = f": {words}" if words else ""
        if not self._ready:
            how = _signal_name(code) if code < 0 else f"exit code {code}"
            return Probe(batch_size, FAILED, f"the target was not loaded ({how}){said}")
        if code < 0:
            hint = " (so does the system when memory is short)" if code == -signal.SIGKILL else ""
            reason = f"its process was killed by {_signal_name(code)}{hint}{said}"
            return Probe(batch_size, REFUSED, reason, certain=says_no_memory(words))
        reason = f"its process ended with exit code {code} and without an answer{said}"
        return Probe(batch_size, REFUSED if says_no_memory(words) else FAILED, reason)

    def _at_end(self) -> bool:
        readable = select.select([self._answers], [], [], 0)[0]
        return bool(readable) and not os.read(self._answers, 1)

    def _last_words(self) -> str:
        """Return the last line of the process on standard error."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _LAST_WORDS))
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:200]


def _plain_environment() -> dict[str, str]:
    """Return the environment without the variables that arm profstack in a child."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("PROFSTACK_CHILD")
    }


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
