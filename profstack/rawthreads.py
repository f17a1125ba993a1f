"""Threads that a script does not know of: signals pass them by, and no fork finds them.

They are raw ones, since those of `threading` would show in the script's list of threads. Python
warns of a fork in a process that has several threads: before one they are ended, and begun anew
after it.

The watch loads this before the script's first line: nothing may be imported here that a bare
interpreter has not loaded (`borrowed` leaves no trace).
"""

import _thread
import os
import sys
import time

from profstack.interrupts import is_scripts

# As typing's own, which is not to be imported here; type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Forked(Protocol):
        """What has a thread: it is told of every fork of the process."""

        def before_fork(self) -> None:
            """The process is about to fork: there shall be no thread of ours in it."""

        def after_fork(self) -> None:
            """The process has forked, and goes on."""

        def forget(self) -> None:
            """In the child of a fork: what the thread was for is another process's."""


# Native numbers of the threads that are profstack's own.
native_numbers: "set[int]" = set()
_living: "list[Forked]" = []
_forks_seen = False


def borrowed(name: str) -> "Any":
    """A module of the interpreter itself, without leaving it in `sys.modules`."""
    known = name in sys.modules
    module = __import__(name)
    if not known:
        del sys.modules[name]
    return module


def block_signals(signals: "Any") -> None:
    """Let a signal come where it came without the calling thread; `signals` is `_signal`.

    Every thread of profstack's begins with this, and so it is known by its native number.
    """
    if hasattr(signals, "pthread_sigmask"):
        signals.pthread_sigmask(signals.SIG_BLOCK, signals.valid_signals())
    native_numbers.add(_thread.get_native_id())


def wait_until_gone(native: "int | None", patience_s: float) -> None:
    """Wait until the system knows a thread no more that has ended, by its native number.

    The interpreter has let go of it before the system does, and there is no joining it.
    """
    until = time.perf_counter() + patience_s
    native_numbers.discard(native or 0)
    while hasattr(os, "sched_getaffinity") and native and time.perf_counter() < until:
        try:
            os.sched_getaffinity(native)
        except OSError as error:
            if is_scripts(error):
                raise
            break
        time.sleep(0)


# -- forks ---------------------------------------------------------------------------------------


class GoneAtForks:
    """Ends its thread before a fork and begins it anew after; `_end` and `_begin` do that.

    One that was made while another thread forks was not told of the beginning.
    """

    # Forks that are going on, each on its own thread.
    _forking = 0

    def before_fork(self) -> None:
        """The process is about to fork: there shall be no thread of ours in it."""
        self._forking += 1
        self._end()

    def after_fork(self) -> None:
        """The process has forked, and goes on."""
        self._forking = max(0, self._forking - 1)
        after_the_fork(self._begin)

    def _begin(self) -> None:
        """Start the thread, where it is wanted and no fork is going on."""
        raise NotImplementedError

    def _end(self) -> None:
        """End the thread and wait until it is gone."""
        raise NotImplementedError


def at_forks(thing: "Forked") -> None:
    """Tell it of all forks from here on."""
    global _forks_seen
    _living.append(thing)
    if _forks_seen or not hasattr(os, "register_at_fork"):
        return
    _forks_seen = True
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)


def no_more_forks(thing: "Forked") -> None:
    """Tell it of none any more; nothing where it is not told."""
    # By identity: what is compared otherwise may be anything.
    _living[:] = [each for each in _living if each is not thing]


def after_the_fork(call: "Callable[[], None]") -> None:
    """Call as soon as Python has counted the threads that the forked process has."""
    if sys.version_info >= (3, 13):
        # It does so only after all that is to be told of the fork.
        _Later(call)
    else:
        call()


class _Later:
    """Calls once, at the next garbage collection: the one moment soon after that always comes."""

    def __init__(self, call: "Callable[[], None]") -> None:
        self._call = call
        self._itself = self

    def __del__(self) -> None:
        self._call()


def _before() -> None:
    for each in list(_living):
        each.before_fork()


def _after() -> None:
    for each in list(_living):
        each.after_fork()


def _in_child() -> None:
    for each in list(_living):
        each.forget()
    _living.clear()
    native_numbers.clear()
