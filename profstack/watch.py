"""The watch's sampler: what the workload's thread does every 10 ms, and the resident set.

It runs from before the script's first line, so nothing may be imported here that a bare
interpreter has not loaded. Its thread is a raw one: `threading` does not know it, the process does
not wait for it, and whenever the process forks it is gone.

A sample weighs the watched time since the one before it, in units of 10 ms: what keeps the
interpreter to itself for long is not lost. While the watch pauses its thread waits for a lock.
"""

import _thread
import os
import sys
import time

from profstack.environment import rss_bytes, rss_in, rss_text
from profstack.interrupts import is_scripts
from profstack.rawthreads import (
    GoneAtForks,
    at_forks,
    block_signals,
    borrowed,
    no_more_forks,
    wait_until_gone,
)
from profstack.samples import Samples, Stacks

# As typing's own, which is not to be imported here; type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

INTERVAL_S = 0.010
# Samples after which the interval doubles, and how often: 160 ms from the 50th minute on.
PER_LEVEL = 20_000
MOST_LEVELS = 4
# The thread answers in microseconds. Should it not, the script shall go on all the same.
PATIENCE_S = 1.0

_perf_counter, _get_ident = time.perf_counter, _thread.get_ident


class Sampler(GoneAtForks):
    """Samples while it is resumed; `origin` is when the recording began, by `perf_counter`.

    The thread it follows is the one that resumed it last, else the one that made it.
    """

    def __init__(self, origin: float) -> None:
        self.stacks = Stacks()
        self.interval_s = INTERVAL_S
        self.taken = 0
        # When it began to sample less often, and how often then.
        self.thinned: list[tuple[float, float]] = []
        # Why it samples no more, if it failed; and whether it stood back for a profiler.
        self.failure: str | None = None
        self.gave_way = False
        self._samples = Samples()
        self._gc, self._signals = borrowed("gc"), borrowed("_signal")
        self._origin = origin
        self._pid = os.getpid()
        self._made_on = self._followed = _get_ident()
        self._wanted = self._closed = False
        # When the watched time began that the next sample stands for; while it pauses, how much
        # of that there was before.
        self._since = 0.0
        self._before = 0.0
        self._most_bytes = 0
        self._unread = False
        self._alive = self._ending = False
        self._native: int | None = None
        # Released to have the thread look what is wanted; and by the thread when it stands still,
        # and when it has ended.
        self._wake, self._still, self._ended = (_locked() for _ in range(3))
        at_forks(self)

    # -- from the outside ------------------------------------------------------------------------

    def resume(self) -> None:
        """Watch the calling thread from here on."""
        if self._closed or os.getpid() != self._pid:
            return
        self._followed = _get_ident()
        if _is_profiled():
            self.gave_way = True
            self.pause()
            return
        if self._wanted and (self._alive or self._forking):
            return
        now = _perf_counter()
        self._since = now - self._before
        self._read(now)
        self._wanted = True
        if self._alive:
            self._poke()
        else:
            self._start()

    def pause(self) -> None:
        """Watch no more until it is resumed: the thread stands still when this returns."""
        if not self._wanted or os.getpid() != self._pid:
            return
        self._wanted = False
        self._ask(self._still)
        now = _perf_counter()
        # A sample that is overdue has missed its time: nobody knows what it would have seen.
        self._before = min(now - self._since, self.interval_s)
        self._read(now)

    def flush(self) -> "tuple[list[dict[str, Any]], list[dict[str, Any]]]":
        """Records of the frames and of the samples since the last time."""
        watched = self._wanted
        self.pause()
        self.memory_bytes()
        samples, self._samples = self._samples, Samples()
        frames = self.stacks.take()
        if watched:
            self.resume()
        return frames, samples.records()

    def has_seen(self) -> bool:
        """Whether there is a sample of any frame; asked when it samples no more."""
        return any(row["frame"] is not None for row in self._samples.records())

    def memory_bytes(self) -> int:
        """The most memory it has held at once, as far as it knows."""
        held = self.stacks.memory_bytes() + self._samples.memory_bytes()
        self._most_bytes = max(self._most_bytes, held)
        return self._most_bytes

    def close(self) -> None:
        """End the thread for good; what was not flushed stays. Safe to call twice."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._wanted = False
        self._end()
        no_more_forks(self)

    # -- the thread ------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._forking:
            # It is started when the process has forked.
            return
        self._ending = False
        self._alive = True
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError as error:
            self._alive = False
            if is_scripts(error):
                raise
            # As many threads as this process may have, or an interpreter about to end.
            self.failure = str(error)

    def _poke(self) -> None:
        if self._wake.locked():
            self._wake.release()

    def _ask(self, answer: "Any") -> None:
        """Have the thread look what is wanted, and wait for its answer."""
        answer.acquire(False)
        if self._alive:
            self._poke()
            answer.acquire(True, PATIENCE_S)

    def _end(self) -> None:
        """End the thread, and wait until the system knows it no more."""
        if not self._alive:
            return
        self._ending = True
        self._ask(self._ended)
        wait_until_gone(self._native, PATIENCE_S)

    def _run(self) -> None:
        try:
            block_signals(self._signals)
            self._native = _thread.get_native_id()
            self._watch()
        except BaseException as error:
            self._wanted = False
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            self._alive = False
            for answer in (self._still, self._ended):
                if answer.locked():
                    answer.release()

    def _watch(self) -> None:
        # Bound once: a method bound at each wait is an allocation too, see `_sample`.
        wait, still = self._wake.acquire, self._still
        while not self._ending:
            if not self._wanted:
                if still.locked():
                    still.release()
                wait()
                continue
            left = self._since + self.interval_s - _perf_counter()
            if left > 0:
                wait(*self._for_seconds(left))
            elif _is_profiled():
                self.gave_way = True
                return
            else:
                self._sample()

    def _for_seconds(self, seconds: float) -> "tuple[bool, float]":
        """The arguments of a wait, made as in `_sample`: a call would make the tuple itself."""
        collecting = self._gc.isenabled()
        self._gc.disable()
        arguments = (True, seconds)
        if collecting:
            self._gc.enable()
        return arguments

    def _sample(self) -> None:
        if self._unread:
            # The script may have closed the file: this opens it again.
            rss_bytes()
        text = rss_text()
        collecting = self._gc.isenabled()
        # Whatever is allocated may have garbage collected, and finalizers of the script's objects
        # shall not come to be run on this thread. Nothing in between lets go of the interpreter.
        self._gc.disable()
        try:
            rss = rss_in(text)
            self._unread = rss is None
            region = self._region()
            number = self.stacks.place(_frame_of(self._followed) or _frame_of(self._made_on))
            now = _perf_counter()
            weight = (now - self._since) / INTERVAL_S if number is not None else 0.0
            self._samples.add(now - self._origin, rss, number or 0, region, weight)
            self._since = now
            self.taken += 1
            if self.taken % PER_LEVEL == 0 and len(self.thinned) < MOST_LEVELS:
                self.interval_s *= 2
                self.thinned.append((now - self._origin, self.interval_s))
        finally:
            if collecting:
                self._gc.enable()

    def _read(self, now: float) -> None:
        """Note the resident set at the edge of a pause: what grows meanwhile is nobody's here."""
        self._samples.add(now - self._origin, rss_bytes())

    def _region(self) -> "str | None":
        """The user's region that the followed thread is in, if the script has any."""
        module = sys.modules.get("profstack.userregions")
        current: Callable[[int], str | None] | None = getattr(module, "current", None)
        return current(self._followed) if current is not None else None

    # -- forks -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._wanted and not self._alive and os.getpid() == self._pid:
            self._start()

    def forget(self) -> None:
        """In the child of a fork: this is another process's sampler."""
        self._closed = True
        self._wanted = self._alive = False
        self._samples = Samples()
        self.stacks = Stacks()


def _locked() -> "Any":
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


def _frame_of(thread: int) -> "Any":
    return sys._current_frames().get(thread)


# Asked for once: to look for what is not there makes an error, an allocation as in `_sample`.
_MONITORING: "Any" = getattr(sys, "monitoring", None)


def _is_profiled() -> bool:
    """Whether a profiler counts what this thread does as the script's, as cProfile from 3.12 on."""
    return _MONITORING is not None and _MONITORING.get_tool(_MONITORING.PROFILER_ID) is not None
