"""Where batch sizes are tried: on a device in this process, on a CPU each in a process of its own.

A device's allocator refuses and goes on. On a CPU the system grants more than it has and then
kills someone: there a process under a memory limit tries, and its death is an answer too.
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
from typing import IO, Any, Protocol

from profstack.benchmark.clock import Clock
from profstack.benchmark.probedtype import Maker
from profstack.benchmark.probelimit import SHARE
from profstack.benchmark.probetrial import (
    ENDED,
    FAILED,
    REFUSED,
    DeviceMemory,
    Probe,
    Trial,
    attempt,
    says_no_memory,
)
from profstack.benchmark.subject import Request
from profstack.errors import UsageError
from profstack.units import format_seconds

_START = (
    "import sys; sys.path[:] = {paths!r}; from profstack.benchmark.probechild import main; main()"
)
_LAST_WORDS = 4096
# Given to a process whose answers are all there, to end.
_TO_END_S = 10.0


class Prober(Protocol):
    """Tries batch sizes of one subject in one floating-point type."""

    # What a probe may take, in bytes, where that is known; the first attempt may tell it.
    memory_limit_bytes: int | None
    # The floating-point type that is tried, where there is one.
    dtype: str | None
    # What the figures of memory mean here, in words.
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
        """Try one size; what it held is given back to the device."""
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
    """The current device's allocator gives out so much more than it holds, and no more.

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
    # Older ones do not tell it: there is none then, unless the program has set one itself.
    before = getattr(module, "get_per_process_memory_fraction", lambda: 1.0)()
    allow(min(before, (held + limit_bytes) / ask()[1]))
    try:
        yield
    finally:
        allow(before)


class ChildProber:
    """Tries each size in a fresh process that may take so much memory above the loaded target.

    Without `limit_bytes` the first process takes a share of what is available once it has loaded
    the target, and all others get the same. A process that has not answered after `patience_s`
    (and the trial's own time) is killed. Raises UsageError where no memory limit can be set.
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

        Many sizes share a process, which saves its start. One that is refused there may have
        found the memory in pieces that others left: it is tried again as the first of another.
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
        """Answers of one process: those of sizes that ran, then one of the size that did not."""
        with _Child(self._asked(first, last, timed=timed)) as child:
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

    def _asked(self, first: int, last: int, *, timed: bool) -> dict[str, Any]:
        import torch

        return {
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


class _Child:
    """One such process; leaving the block ends it, with whatever it has started."""

    def __init__(self, asked: dict[str, Any]) -> None:
        # Closed with the process, not with a block.
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
                # A group of its own: what it starts is ended with it.
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
            stdin.write(json.dumps({**asked, "answers": end}).encode())

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._answers)
        self._errors.close()

    def answer(self, patience_s: float) -> dict[str, Any] | None:
        """The next answer; None when no further one comes, or none in time."""
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
        answer: dict[str, Any] = json.loads(line)
        self._ready = self._ready or "ready" in answer
        return answer

    def post_mortem(self, batch_size: int, patience_s: float) -> Probe:
        """What the end of a process without an answer says of the size that was due."""
        try:
            # One whose answers have ended is ending; one that only took too long is not.
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
        """The last line that the process wrote on standard error."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _LAST_WORDS))
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:200]


def _plain_environment() -> dict[str, str]:
    """The environment without what would arm profstack in the child."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("PROFSTACK_CHILD")
    }


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
