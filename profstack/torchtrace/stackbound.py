"""Bounds the slice with stacks: when a step's calls may be traced, and what ends the tracing.

The profiler keeps 1.4 KB of every call of a Python or built-in function, and cannot be told to
stop at some number of them. So a step is traced only where its calls are known to fit; and should
it run a loop that no step before it had, a thread that does nothing but wait for a deadline has
the calls traced no further. A trace that was cut off is thrown away. Calls of other threads, which
the profiler would keep as well, are not traced.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import importlib
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, pairwise, repeat, takewhile
from typing import Any

from profstack.interrupts import is_scripts
from profstack.passthrough import has_compiled
from profstack.rawthreads import (
    GoneAtForks,
    at_forks,
    block_signals,
    no_more_forks,
    wait_until_gone,
)
from profstack.regions import RANGE_PREFIX
from profstack.torchtrace.eventkinds import has_python_calls
from profstack.torchtrace.events import HostEvents

# 56 MB of the profiler's: 1.4 KB a call, measured on torch 2.13.
MOST_CALLS = 40_000
# Where nobody has counted the calls: Python code makes at most about one call in this time.
_BETWEEN_CALLS_S = 0.25e-6
# What tracing adds to a call, generously; and how much longer than others a step may take. A loop
# of calls that do nothing makes 5 million a second.
_TRACED_CALL_S = 0.5e-6
_LONGER = 1.1
_SLACK_S = 0.03
_PATIENCE_S = 1.0
# How soon something is raised again that could not get out.
_LOOK_S = 0.01


class StackBound:
    """What is known of the steps of one run, and the deadline of the step that is traced."""

    def __init__(self) -> None:
        self._step_s = 0.0
        self._python_s = 0.0
        self._deadline: _Deadline | None = None
        # Why the trace of the latest slice is incomplete, or None.
        self.cut: str | None = None

    def learn(self, stamps: Sequence[float], host: HostEvents) -> None:
        """A slice without stacks is over: its steps' edges in seconds, and its events."""
        steps = [end - begin for begin, end in pairwise(stamps)]
        if not steps:
            return
        # One disturbed step must not make room for millions of calls.
        longest = min(max(steps), 2 * statistics.median(steps))
        self._step_s = max(self._step_s, longest)
        in_ranges = host.names.where(lambda name: name.startswith(RANGE_PREFIX))
        operators_s = float(host.self_time()[~in_ranges].sum()) * 1e-9
        python_s = max(0.0, stamps[-1] - stamps[0] - operators_s) / len(steps)
        self._python_s = max(self._python_s, python_s)

    def refusal(self, counted: float | None) -> str | None:
        """Why the next step may not be traced; `counted` are the calls of a step, if known."""
        if threading.current_thread() is not threading.main_thread():
            return "no call paths: the steps are not made by the program's main thread"
        if not has_python_calls():
            return "no call paths: torch lists calls of Python functions from 2.13 on"
        if _profiled():
            return "no call paths: a profiler or debugger of the script's own is active"
        if has_compiled():
            return "no call paths: dynamo has compiled code, which has no Python calls to trace"
        calls = self._expected(counted)
        if calls > MOST_CALLS:
            return (
                f"no call paths: a step makes about {calls:,.0f} calls of functions; the trace of "
                f"their stacks is bounded to {MOST_CALLS:,}"
            )
        if _python_api() is None:
            return "no call paths: this Python cannot be told to trace one thread alone"
        return None

    def _expected(self, counted: float | None) -> float:
        return counted if counted is not None else self._python_s / _BETWEEN_CALLS_S

    def begin(self, counted: float | None) -> None:
        """The trace has begun, on the calling thread."""
        self.cut = None
        _leave_other_threads()
        allowed_s = _LONGER * self._step_s + _SLACK_S
        allowed_s += _TRACED_CALL_S * self._expected(counted)
        self._deadline = _Deadline(allowed_s)
        self._deadline.start()

    def end(self) -> None:
        """The slice is over; the trace ends next. Safe to call twice."""
        deadline, self._deadline = self._deadline, None
        if deadline is not None:
            deadline.stop()
            if deadline.cut:
                self.cut = (
                    "no call paths: the traced step took more than the "
                    f"{1e3 * deadline.allowed_s:.0f} ms in which its calls were sure to fit into "
                    "memory"
                )


@contextlib.contextmanager
def whole_paths() -> Iterator[None]:
    """Round the end of a profile with stacks: files of functions keep their whole paths.

    Torch cuts off the folders of `sys.path`, and so makes one of two files of one name.
    """
    # The profiler loads it now anyway.
    tracer: Any = importlib.import_module("torch.profiler.python_tracer")
    prefixes = tracer._prefix_regex
    tracer._prefix_regex = list
    try:
        yield
    finally:
        tracer._prefix_regex = prefixes


def _profiled() -> bool:
    """Whether calls are traced already, by whatever means this Python has."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None and any(
        monitoring.get_tool(tool) is not None
        for tool in (monitoring.PROFILER_ID, monitoring.DEBUGGER_ID)
    ):
        return True
    # Of other threads too: the trace puts its own in the place of theirs.
    functions = (sys.getprofile(), sys.gettrace(), threading.getprofile(), threading.gettrace())
    return any(function is not None for function in functions)


def _python_api() -> Any:
    """Python's functions for C; None where it has no ctypes, or not what one thread needs."""
    try:
        api = importlib.import_module("ctypes").pythonapi
        return api if api._PyEval_SetProfile else None
    except (ImportError, AttributeError):
        return None


def _leave_other_threads() -> None:
    """Trace the calls of the calling thread alone from here on.

    The profiler traces all threads that run when it begins. What they call is no part of the step,
    and however many calls they make, while the step waits perhaps, all would be kept.
    """
    ctypes: Any = importlib.import_module("ctypes")
    api = _python_api()
    pointer = ctypes.c_void_p

    def function(name: str, result: Any, arguments: int) -> Any:
        # A prototype of our own: those that the module holds are everybody's.
        return ctypes.PYFUNCTYPE(result, *[pointer] * arguments)((name, api))

    head = function("PyInterpreterState_ThreadHead", pointer, 1)
    # Called with the state and one word more, which it does not read.
    following = function("PyThreadState_Next", pointer, 2)
    set_profile = function("_PyEval_SetProfile", ctypes.c_int, 3)
    calling = function("PyThreadState_Get", pointer, 0)()
    interpreter = function("PyInterpreterState_Get", pointer, 0)()
    first = map(head, (interpreter,))
    states = takewhile(bool, accumulate(chain(first, repeat(None)), following))
    others = filter(calling.__ne__, states)
    collects = gc.isenabled()
    gc.disable()
    try:
        # The whole of it in one call, in which no other thread can run: a state that was read
        # might be gone before it is used, with the thread whose it was.
        deque(map(set_profile, others, repeat(None), repeat(None)), maxlen=0)
    finally:
        if collects:
            gc.enable()


class _Deadline(GoneAtForks):
    """Ends the tracing of calls when the calling thread has run for `allowed_s` seconds.

    Only a thread itself can have its calls traced no more: the interpreter is asked to call
    `_cut` on it between two instructions, as it calls the handlers of signals.
    """

    def __init__(self, allowed_s: float) -> None:
        self.allowed_s = allowed_s
        self.cut = False
        self._spent = _clock_of_this_thread()
        self._begun = self._spent()
        self._owner = _thread.get_ident()
        self._traced_by = sys.getprofile()
        self._signals: Any = importlib.import_module("_signal")
        self._wanted_in: int | None = None
        self._locks: tuple[Any, Any] | None = None
        self._native: int | None = None
        # What a signal's handler has raised where it could not get out: to be raised again.
        self._owed: type[BaseException] | None = None
        ctypes: Any = importlib.import_module("ctypes")
        self._api = _python_api()
        # Held until the interpreter has called it.
        self._pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._cut)

    def start(self) -> None:
        """Begin to wait."""
        self._wanted_in = os.getpid()
        at_forks(self)
        self._begin()

    def stop(self) -> None:
        """Wait no more; nothing is cut off after this."""
        self._wanted_in = None
        no_more_forks(self)
        self._end()
        self._pay()

    # -- forks -----------------------------------------------------------------------------------

    def forget(self) -> None:
        """In the child of a fork: this is another process's deadline."""
        self._wanted_in = self._locks = None

    # -- the thread ------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._locks is not None or self._forking or self._wanted_in != os.getpid():
            return
        locks = _thread.allocate_lock(), _thread.allocate_lock()
        for lock in locks:
            lock.acquire()
        _thread.start_new_thread(self._run, locks)
        self._locks = locks

    def _end(self) -> None:
        locks, self._locks = self._locks, None
        if locks is not None:
            halt, gone = locks
            halt.release()
            gone.acquire(timeout=_PATIENCE_S)
            wait_until_gone(self._native, _PATIENCE_S)

    def _run(self, halt: Any, gone: Any) -> None:
        try:
            block_signals(self._signals)
            self._native = _thread.get_native_id()
            left_s = self.allowed_s
            while left_s > 0:
                if halt.acquire(timeout=left_s):
                    return
                left_s = self.allowed_s - (self._spent() - self._begun)
            self._api.Py_AddPendingCall(self._pending, None)
            while not halt.acquire(timeout=_LOOK_S):
                self._pay()
        except Exception:
            pass  # it would be printed; the trace is bounded by what was expected of the step
        finally:
            gone.release()

    def _cut(self, _: Any) -> int:
        """Called by the interpreter on the traced thread; nothing that is raised can get out."""
        try:
            if self._wanted_in is not None and sys.getprofile() is self._traced_by:
                self.cut = True
                sys.setprofile(None)
        except BaseException as error:
            if is_scripts(error):
                # By the other thread: raised from here, it would be raised in here.
                self._owed = type(error)
        return 0

    def _pay(self) -> None:
        """Have the traced thread raise what it has raised in `_cut`."""
        owed, self._owed = self._owed, None
        if owed is not None:
            ctypes: Any = importlib.import_module("ctypes")
            owner = ctypes.c_ulong(self._owner)
            self._api.PyThreadState_SetAsyncExc(owner, ctypes.py_object(owed))


def _clock_of_this_thread() -> Callable[[], float]:
    """Seconds for which the calling thread has run, to be read on another one.

    Where the system does not tell, it is the time that has gone by.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.perf_counter
    clock = time.pthread_getcpuclockid(_thread.get_ident())
    return lambda: time.clock_gettime(clock)
