"""Bounds of the torch layer's slices: events, stacks, other profilers and open ranges.

The profiler keeps 1.4 KB of every call of a Python or built-in function, and has no limit on their
number. So a step is traced only where its calls are known to fit; and for a step with a loop that
no step before it had, a thread waits for a deadline and then ends the tracing of calls. A trace
that was cut off is thrown away. Calls of other threads, which the profiler would keep as well, are
not traced.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
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
from typing import Any, ClassVar

from profstack.guard import (
    Guard,
    WorkerThread,
    has_compiled,
    is_scripts,
    replace,
    traced_as,
    unseen_by_dynamo,
)
from profstack.readers.torchtrace.events import HostEvents, has_python_calls
from profstack.storage.vocabulary import RANGE_PREFIX

# Stacks: bounds by calls and by time ------------------------------------------------------------

# 56 MB of the profiler's memory: 1.4 KB a call, measured on torch 2.13.
MOST_CALLS = 40_000
# Where no layer has counted the calls: Python code makes at most about one call in this time.
_BETWEEN_CALLS_S = 0.25e-6
# The cost of tracing a call, generously; and how much longer than others a step may take. A loop
# of empty calls makes 5 million a second.
_TRACED_CALL_S = 0.5e-6
_LONGER = 1.1
_SLACK_S = 0.03
# How soon an error of a signal handler in `_cut` is raised again.
_RERAISE_S = 0.01


class StackBound:
    """Bounds by the earlier steps of one run, and the deadline of the step that is traced."""

    def __init__(self) -> None:
        self._step_s = 0.0
        self._python_s = 0.0
        self._deadline: _Deadline | None = None
        # Why the trace of the latest slice is incomplete, or None.
        self.cut: str | None = None

    def learn(self, stamps: Sequence[float], host: HostEvents) -> None:
        """Learn from a slice without stacks: its steps' edges in seconds, and its events."""
        steps = [end - begin for begin, end in pairwise(stamps)]
        if not steps:
            return
        # One disturbed step must not allow millions of calls.
        self._step_s = max(self._step_s, min(max(steps), 2 * statistics.median(steps)))
        in_ranges = host.names.where(lambda name: name.startswith(RANGE_PREFIX))
        operators_s = float(host.self_time()[~in_ranges].sum()) * 1e-9
        python_s = max(0.0, stamps[-1] - stamps[0] - operators_s) / len(steps)
        self._python_s = max(self._python_s, python_s)

    def refusal(self, counted: float | None) -> str | None:
        """Return why the next step may not be traced; `counted` are a step's calls, if known."""
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
            return "no call paths: this Python cannot trace one thread alone"
        return None

    def _expected(self, counted: float | None) -> float:
        return counted if counted is not None else self._python_s / _BETWEEN_CALLS_S

    def begin(self, counted: float | None) -> None:
        """Bound the trace that has begun, on the calling thread."""
        self.cut = None
        _trace_this_thread_alone()
        allowed_s = _LONGER * self._step_s + _TRACED_CALL_S * self._expected(counted)
        self._deadline = _Deadline(allowed_s + _SLACK_S)
        self._deadline.start()

    def end(self) -> None:
        """End the deadline before the trace ends; safe to call twice."""
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
    """Keep the whole paths of functions' files, around the end of a profile with stacks.

    Torch cuts off the folders of `sys.path`, so that two files of one name look the same.
    """
    # The profiler imports it anyway when it ends.
    tracer = importlib.import_module("torch.profiler.python_tracer")
    restore = replace(tracer, "_prefix_regex", list)
    try:
        yield
    finally:
        restore()


def _profiled() -> bool:
    """Return whether calls are traced already, by any means that this Python has."""
    monitoring = getattr(sys, "monitoring", None)
    # Other threads' too: the trace would replace theirs.
    tracers = [sys.getprofile(), sys.gettrace(), threading.getprofile(), threading.gettrace()]
    if monitoring is not None:
        tracers += map(monitoring.get_tool, (monitoring.PROFILER_ID, monitoring.DEBUGGER_ID))
    return any(tracer is not None for tracer in tracers)


def _python_api() -> Any:
    """Return Python's C functions; None without ctypes, or without those for one thread."""
    try:
        api = importlib.import_module("ctypes").pythonapi
        return api if api._PyEval_SetProfile else None
    except (ImportError, AttributeError):
        return None


def _trace_this_thread_alone() -> None:
    """End the tracing of calls on all threads but the calling one.

    The profiler traces all threads that run when it begins. Their calls are no part of the step,
    and all would be kept, however many they make while the step waits.
    """
    ctypes: Any = importlib.import_module("ctypes")
    api = _python_api()
    pointer = ctypes.c_void_p

    def function(name: str, result: Any, arguments: int) -> Any:
        # A prototype of our own: those of the module are shared with all other code.
        return ctypes.PYFUNCTYPE(result, *[pointer] * arguments)((name, api))

    head = function("PyInterpreterState_ThreadHead", pointer, 1)
    # Called with the state and one more argument, which it does not read.
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
        # All in one call, in which no other thread can run: else a thread might end, and its
        # state be freed, between the reading of the state and its use.
        deque(map(set_profile, others, repeat(None), repeat(None)), maxlen=0)
    finally:
        if collects:
            gc.enable()


class _Deadline(WorkerThread):
    """Ends the tracing of calls when the calling thread has run for `allowed_s` seconds.

    Only the thread itself can end the tracing of its calls: the interpreter calls `_cut` on it
    between two instructions, as it calls the handlers of signals.
    """

    def __init__(self, allowed_s: float) -> None:
        super().__init__()
        self.allowed_s = allowed_s
        self.cut = False
        self._spent = _clock_of_this_thread()
        self._begun = self._spent()
        self._owner = _thread.get_ident()
        self._traced_by = sys.getprofile()
        # An error of a signal's handler inside `_cut`, which cannot leave it: to be raised again.
        self._swallowed: type[BaseException] | None = None
        ctypes: Any = importlib.import_module("ctypes")
        self._api = _python_api()
        # Kept alive until the interpreter has called it.
        self._pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._cut)

    def stop(self) -> None:
        """Stop waiting; nothing is cut off after this."""
        super().stop()
        self._reraise()

    def work(self, halt: Any) -> None:
        """Wait for the deadline, then have the tracing ended, until `halt` can be acquired."""
        left_s = self.allowed_s
        while left_s > 0:
            if halt.acquire(timeout=left_s):
                return
            left_s = self.allowed_s - (self._spent() - self._begun)
        self._api.Py_AddPendingCall(self._pending, None)
        while not halt.acquire(timeout=_RERAISE_S):
            self._reraise()

    def _cut(self, _: Any) -> int:
        """End the tracing; the interpreter calls it on the traced thread and ignores errors."""
        try:
            if self._wanted_in is not None and sys.getprofile() is self._traced_by:
                self.cut = True
                sys.setprofile(None)
        except BaseException as error:
            if is_scripts(error):
                # Raised again by the other thread: from here it would be raised inside `_cut`.
                self._swallowed = type(error)
        return 0

    def _reraise(self) -> None:
        """Re-raise in the traced thread the error that was swallowed in `_cut`."""
        swallowed, self._swallowed = self._swallowed, None
        if swallowed is not None:
            ctypes: Any = importlib.import_module("ctypes")
            owner = ctypes.c_ulong(self._owner)
            self._api.PyThreadState_SetAsyncExc(owner, ctypes.py_object(swallowed))


def _clock_of_this_thread() -> Callable[[], float]:
    """Return a clock of the calling thread's run time in seconds, readable on other threads.

    Where the system has none, it is the time that has passed.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.perf_counter
    clock = time.pthread_getcpuclockid(_thread.get_ident())
    return lambda: time.clock_gettime(clock)


# Events: bounds by the count of an earlier slice ------------------------------------------------

# The profiler's own memory per event, nine tenths of it taken when the profile stops; measured
# with shapes on torch 2.13.
BYTES_PER_EVENT = 5_000
# One slice has at most this many events: the profiler takes 1 GiB for them.
MOST_EVENTS = (1 << 30) // BYTES_PER_EVENT
# A slice of mode `detail` has so many times the events: memory taken and given back is recorded.
_MORE_IN_DETAIL = 2


class EventBound:
    """Bounds a slice by its number of steps, and refuses slices that one step would exceed."""

    def __init__(self) -> None:
        self._per_step = 0.0

    def learn(self, events: int, steps: int) -> None:
        """Learn from a finished slice with so many events and steps."""
        self._per_step = max(self._per_step, events / steps)

    def step_limit(self) -> int | None:
        """Return the steps that stay within the bounds; None before the first slice."""
        return max(1, int(MOST_EVENTS / self._per_step)) if self._per_step else None

    def refusal(self, mode: str) -> str | None:
        """Return why a step cannot be traced again in this mode; None where it can."""
        events = self._per_step * (_MORE_IN_DETAIL if mode == "detail" else 1)
        if events <= MOST_EVENTS:
            return None
        return (
            f"no more slices of mode {mode}: a step makes about {events:,.0f} events, of which the "
            f"profiler would hold {events * BYTES_PER_EVENT / 1e9:.1f} GB; a slice is bounded to "
            f"{MOST_EVENTS:,} events"
        )


# The script's own profilers ---------------------------------------------------------------------
#
# There can be only one: a second one raises in the script, so profstack's gives way. A profiler
# with a schedule is prepared some steps before it is enabled, and must be left alone from then on.


class OtherProfilers:
    """Watches torch's profiler; `active` is true while the script has prepared one of its own.

    `give_way` is called before the script's profiler is, and must raise no error of profstack's.
    """

    # The same for layers that do not watch it themselves.
    any_active: ClassVar[bool] = False

    def __init__(self, give_way: Callable[[], None]) -> None:
        self.active = False
        self._give_way = give_way
        self._own_call = False
        self._restore: list[Callable[[], None]] = []

    def watch(self, module: Any) -> None:
        """Wrap the functions of `torch.autograd.profiler` that prepare and end a profile."""

        def wrapper(original: Callable[..., Any], active: bool) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                if not self._own_call:
                    self.active = OtherProfilers.any_active = active
                    if active:
                        self._give_way()
                return original(*args, **kwargs)

            return call

        for name, active in (("_prepare_profiler", True), ("_disable_profiler", False)):
            self._restore.append(replace(module, name, wrapper(getattr(module, name), active)))

    def close(self) -> None:
        """Put the original functions back."""
        OtherProfilers.any_active = False
        while self._restore:
            self._restore.pop()()

    @contextlib.contextmanager
    def own_call(self) -> Iterator[None]:
        """Mark calls of our own into torch.profiler, and keep Kineto quiet in them."""
        self._own_call = True
        try:
            with quiet_kineto():
                yield
        finally:
            self._own_call = False


@contextlib.contextmanager
def quiet_kineto() -> Iterator[None]:
    """Keep Kineto from printing to standard error, which is the script's; the environment returns.

    It reads its level once, when the first profiler of a process starts.
    """
    before = os.environ.get("KINETO_LOG_LEVEL")
    os.environ["KINETO_LOG_LEVEL"] = "6"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("KINETO_LOG_LEVEL", None)
        else:
            os.environ["KINETO_LOG_LEVEL"] = before


# The script's own ranges ------------------------------------------------------------------------


class ScriptRanges:
    """Ends the script's `record_function` ranges that are open at a slice's end.

    Where a range is entered in one profile and left in a later one, torch writes its end into the
    freed memory of the first. A range that was ended before is left without an effect.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._open: dict[int, Any] = {}
        self._restore: list[Callable[[], None]] = []

    def watch(self) -> None:
        """Note from here on which ranges are entered and left."""
        ranges = self._torch.autograd.profiler.record_function
        enter, leave, entered = ranges.__enter__, ranges.__exit__, self._open

        @functools.wraps(enter)
        def __enter__(self: Any) -> Any:
            result = enter(self)
            entered[id(self)] = self
            return result

        @functools.wraps(leave)
        def __exit__(self: Any, *error: Any) -> Any:
            # First: `end` may run on another thread while torch ends the range on this one.
            entered.pop(id(self), None)
            return leave(self, *error)

        for wrapper, original in ((__enter__, enter), (__exit__, leave)):
            hidden = traced_as(unseen_by_dynamo(self._torch, wrapper), original)
            self._restore.append(replace(ranges, original.__name__, hidden))

    def end(self) -> None:
        """End the open ranges, and note no more."""
        while self._restore:
            self._restore.pop()()
        # Whatever is wrong with a range, the profile is stopped after this.
        with Guard(), self._torch._C.DisableTorchFunctionSubclass():
            end = self._torch.ops.profiler._record_function_exit._RecordFunction
            while self._open:
                _, left_open = self._open.popitem()
                end(left_open.record)
