"""Keep the script unharmed while profstack's code runs in its process.

The interpreter runs a signal's handler between any two instructions, also between two of
profstack's. What the handler raises (a time limit's error, say) belongs to the script and must
reach it. `Guard` separates the two: errors of profstack's own code end in it, the script's pass.

Used from the script's first line on: import nothing here that a bare interpreter has not loaded.
"""

import _thread
import os
import sys
import time

# As in typing, which must not be imported here; type checkers know the name.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType
    from typing import Any


_VARARGS = 0x04
# The package's folder: the beginning of every file name of profstack itself.
PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


class Guard:
    """Suppress the errors of profstack's own code in a `with` block; the script's errors pass.

    Only errors of `kinds` are suppressed. `failed` is called with a suppressed error; with
    `always` it is also called with an error of the script's before that passes.

    An object holds no state, so one can be entered many times, on any thread; but an object that
    keeps a guard with a method of its own as `failed` is a cycle, which only the collector frees.
    A `with` block costs 0.12 microseconds with a guard made beforehand and 0.25 with a new one.
    Code that runs at every call of a module or an operator, or for every tensor, uses `try` and
    `is_scripts` instead, which costs 0.02.
    """

    __slots__ = ("_always", "_failed", "_kinds")

    def __init__(
        self,
        kinds: "type[BaseException] | tuple[type[BaseException], ...]" = Exception,
        failed: "Callable[[BaseException], object] | None" = None,
        *,
        always: bool = False,
    ) -> None:
        self._kinds = kinds
        self._failed = failed
        self._always = always

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: "BaseException | None", trace: object) -> bool:
        if error is None or not isinstance(error, self._kinds):
            return False
        passes = is_scripts(error)
        if self._failed is not None and (self._always or not passes):
            self._failed(error)
        return not passes


def is_scripts(error: "BaseException") -> bool:
    """Return whether an error caught in profstack's code belongs to the script.

    These are the errors that end programs (Ctrl-C, `sys.exit`) and those raised by the handler of
    a signal. The traceback of the latter is cut so that it begins with the handler. Follow a true
    answer by a bare `raise`.
    """
    trace = error.__traceback__
    while trace is not None:
        if _handles_signal(trace.tb_frame):
            error.__traceback__ = trace
            return True
        trace = trace.tb_next
    return not isinstance(error, Exception)


def _handles_signal(frame: "FrameType") -> bool:
    """Return whether the interpreter called this frame's function for a signal.

    Such a function gets a number and the very frame that it was called from. A handler that has
    deleted these arguments is recognised as long as it is installed.
    """
    interrupted, code = frame.f_back, frame.f_code
    if interrupted is None or code.co_filename.startswith(PACKAGE):
        # Reading the locals of a frame of ours would make it hold the error that holds the frame.
        return False
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    held = [frame.f_locals.get(name) for name in names]
    if code.co_flags & _VARARGS:
        rest = frame.f_locals.get(code.co_varnames[len(names)])
        held.extend(rest if isinstance(rest, tuple) else ())
    given = any(
        held[at] is interrupted and isinstance(held[at - 1], int) for at in range(1, len(held))
    )
    return given or code in _installed_handlers()


def _installed_handlers() -> "list[CodeType]":
    """Return the code of all handlers: functions, methods, partials and callable objects."""
    # Loaded by the script if it has handlers.
    signals: Any = sys.modules.get("_signal")
    if signals is None:
        return []
    handlers = [signals.getsignal(number) for number in signals.valid_signals()]
    functions = [
        each
        if hasattr(each, "__code__")
        else getattr(each, "func", None) or type(each).__call__  # a partial, an object
        for each in handlers
    ]
    return [each.__code__ for each in functions if hasattr(each, "__code__")]


def delay_signals(work: "Callable[[], None]") -> None:
    """Do `work` without interruption: SIGINT and SIGTERM take effect after it.

    Their handlers are exchanged meanwhile, since a blocked signal goes to another thread. For the
    end of the script's process, when nothing of the script's runs any more.
    """
    import signal

    arrived: list[int] = []
    handlers: dict[int, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        # None is a handler that Python cannot put back.
        if handler not in (None, signal.SIG_IGN):
            handlers[number] = handler
            signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        work()
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    is_interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
    for each in dict.fromkeys(arrived):
        # A script that already ends by Ctrl-C needs no second one.
        if not is_interrupted or handlers[each] is not signal.default_int_handler:
            signal.raise_signal(each)


# -- threads of profstack's own: no signals, no forks --------------------------------------------
#
# They are raw threads, since those of `threading` would show in the script's list of threads.
# Python warns of a fork in a process with several threads: ours end before a fork and begin again
# after it. The watch uses this before the script's first line.

# Native numbers of profstack's own threads.
native_numbers: "set[int]" = set()
_fork_listeners: "list[ForkSafeThread]" = []
_forks_registered = False
# A thread of ours answers in microseconds. If it does not, the script goes on after this time.
PATIENCE_S = 1.0


def import_unseen(name: str) -> "Any":
    """Import a module of the interpreter's own without leaving it in `sys.modules`."""
    known = name in sys.modules
    module = __import__(name)
    if not known:
        del sys.modules[name]
    return module


def block_signals(signals: "Any") -> None:
    """Block all signals on the calling thread, and note it as one of ours.

    Every thread of profstack's begins with this; `signals` is the module `_signal`.
    """
    if hasattr(signals, "pthread_sigmask"):
        signals.pthread_sigmask(signals.SIG_BLOCK, signals.valid_signals())
    native_numbers.add(_thread.get_native_id())


def wait_until_gone(native: "int | None") -> None:
    """Wait until the system has removed an ended thread, given by its native number.

    The interpreter lets go of a thread before the system does, and a raw one cannot be joined.
    """
    until = time.perf_counter() + PATIENCE_S
    native_numbers.discard(native or 0)
    with Guard(OSError):
        while hasattr(os, "sched_getaffinity") and native and time.perf_counter() < until:
            os.sched_getaffinity(native)
            time.sleep(0)


class ForkSafeThread:
    """Base of what runs a thread: the thread ends before a fork and begins again after it."""

    # Forks in progress, each on its own thread.
    forking = 0

    def before_fork(self) -> None:
        """End the thread: the process is about to fork."""
        self.forking += 1
        self.end_thread()

    def after_fork(self) -> None:
        """Begin the thread again: the process has forked."""
        # An object made while another thread forks has seen no beginning of that fork.
        self.forking = max(0, self.forking - 1)
        if sys.version_info >= (3, 13):
            # Python counts the process's threads after all functions registered for forks.
            _CalledByCollector(self.begin_thread)
        else:
            self.begin_thread()

    def begin_thread(self) -> None:
        """Start the thread if it is wanted and no fork is in progress."""
        raise NotImplementedError

    def end_thread(self) -> None:
        """End the thread and wait until it is gone."""
        raise NotImplementedError

    def forget(self) -> None:
        """Let go of everything, in the child of a fork: the thread was the parent's."""
        raise NotImplementedError


def watch_forks(thread: ForkSafeThread) -> None:
    """Call the methods of `thread` at all forks from here on."""
    global _forks_registered
    _fork_listeners.append(thread)
    if _forks_registered or not hasattr(os, "register_at_fork"):
        return
    _forks_registered = True
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def unwatch_forks(thread: ForkSafeThread) -> None:
    """End what `watch_forks` began; nothing where it was not called."""
    # By identity: a comparison could be anything's.
    _fork_listeners[:] = [each for each in _fork_listeners if each is not thread]


def locked_lock() -> "Any":
    """Return a new lock that is held already."""
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


class _Run:
    """One run of a thread, with locks to end it and to wait for its begin and end."""

    def __init__(self) -> None:
        self.halt, self.ready, self.gone = (locked_lock() for _ in range(3))
        self.native: int | None = None


class WorkerThread(ForkSafeThread):
    """Base of what works on a thread of its own from `start` to `stop`."""

    def __init__(self) -> None:
        self._signals = import_unseen("_signal")
        self._running: _Run | None = None
        self._wanted_in: int | None = None

    def prepare(self) -> None:
        """Do on the thread what `start` waits for."""

    def work(self, halt: "Any") -> None:
        """Work on the thread until the lock `halt` can be acquired."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin the thread; RuntimeError where the process may have no more threads."""
        self._wanted_in = os.getpid()
        watch_forks(self)
        self.begin_thread()

    def stop(self) -> None:
        """End the thread and wait for it; safe to call twice, and in a forked child."""
        self._wanted_in = None
        unwatch_forks(self)
        self.end_thread()

    def forget(self) -> None:
        """Let go of the thread in the child of a fork: it was the parent's."""
        self._wanted_in = self._running = None

    def begin_thread(self) -> None:
        """Start the thread if it is wanted and no fork is in progress."""
        if self._running is not None or self.forking or self._wanted_in != os.getpid():
            return
        run = _Run()
        _thread.start_new_thread(self._run, (run,))
        self._running = run
        run.ready.acquire(timeout=PATIENCE_S)

    def end_thread(self) -> None:
        """End the thread and wait until it is gone."""
        run, self._running = self._running, None
        if run is not None:
            run.halt.release()
            run.gone.acquire(timeout=PATIENCE_S)
            wait_until_gone(run.native)

    def _run(self, run: _Run) -> None:
        try:
            try:
                block_signals(self._signals)
                run.native = _thread.get_native_id()
                self.prepare()
            finally:
                run.ready.release()
            self.work(run.halt)
        except Exception:
            pass  # it would be printed; the script goes on without this thread
        finally:
            run.gone.release()


class _CalledByCollector:
    """Call once at the next garbage collection: the one moment soon after that always comes."""

    def __init__(self, call: "Callable[[], None]") -> None:
        self._call = call
        self._itself = self

    def __del__(self) -> None:
        self._call()


def _before_fork() -> None:
    for each in list(_fork_listeners):
        each.before_fork()


def _after_fork() -> None:
    for each in list(_fork_listeners):
        each.after_fork()


def _in_child() -> None:
    for each in list(_fork_listeners):
        each.forget()
    _fork_listeners.clear()
    native_numbers.clear()


# -- wrappers on functions of the script's: unseen by dynamo and in tracebacks -------------------


def compiling(torch: "Any") -> "tuple[Callable[[], bool], Any]":
    """Return the two halves of `torch.compiler.is_compiling()`, without the calls it makes.

    Dynamo takes the first for true, and so never reads the second.
    """
    return torch.compiler.is_dynamo_compiling, torch.compiler


def dynamo_callback(torch: "Any") -> "Callable[[], Any]":
    """Return what gives dynamo's plan for the frames of this thread: None for nothing.

    Otherwise the call is part of compiled code that dynamo could not take in as a whole. A wrapper
    then passes the call on at once, so that dynamo looks at the frame behind it. Ask after
    `compiling`, since dynamo cannot trace this.
    """
    # The question that comes first is a frame too, and dynamo would compile it.
    unseen_by_dynamo(torch, torch.compiler.is_dynamo_compiling)
    found: Callable[[], Any] = torch._C._dynamo.eval_frame.get_eval_frame_callback
    return found


def unseen_by_dynamo(torch: "Any", wrapper: "Any", *, with_callees: bool = False) -> "Any":
    """Make dynamo skip a wrapper's frame and look at its callees instead; return the wrapper.

    With `with_callees` dynamo skips everything inside too, for a wrapper that calls no code of the
    script's (torch before 2.7 cannot do that, and looks at the callees).
    """
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        inside = action.SKIP if with_callees else action.DEFAULT
        strategy = frames._FrameExecStrategy(action.SKIP, inside)
        frames.set_code_exec_strategy(wrapper.__code__, strategy)
    elif hasattr(frames, "skip_code"):
        frames.skip_code(wrapper.__code__)
    return wrapper


def traced_as(wrapper: "Any", original: "Any") -> "Any":
    """Make dynamo read `original` where it takes a call of `wrapper` into a graph.

    Whatever it read of the wrapper would become a guard of the graph, and the graph would be
    compiled again at every exchange of wrappers. Returns the wrapper.
    """
    wrapper.__dict__ = _UncopiedDict(wrapper.__dict__)
    wrapper._torchdynamo_inline = original
    return wrapper


class _UncopiedDict(dict):  # type: ignore[type-arg]  # typing is not to be imported here
    """Attributes of a function; `functools.wraps` copies all but the one that dynamo reads.

    Otherwise dynamo would skip what a script has put around our wrapper.
    """

    def keys(self) -> "Any":
        """Return the names of the attributes to copy."""
        return [name for name in dict.__iter__(self) if name != "_torchdynamo_inline"]

    def __iter__(self) -> "Iterator[str]":
        return iter(self.keys())


def replace(owner: "Any", name: str, wrapper: "Any") -> "Callable[[], None]":
    """Put `wrapper` on an attribute of `owner`; return what takes it off.

    Where the script has put another wrapper over it, that one stays, and ours passes through.
    """
    own = name in owner.__dict__
    original = owner.__dict__.get(name)
    setattr(owner, name, wrapper)

    def restore() -> None:
        if owner.__dict__.get(name) is wrapper:
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

    return restore


def strip_frame(error: BaseException) -> None:
    """Remove the calling wrapper's own entry from the traceback of `error`.

    Follow it by a bare `raise`, which adds no entry for its own frame.
    """
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def foreign_tracer() -> "str | None":
    """Return what uses `sys.settrace` on this thread, as a reason; None where nothing does."""
    trace = sys.gettrace()
    if trace is None:
        return None
    if getattr(trace, "__module__", None) == "memory_profiler":
        return "memory_profiler uses sys.settrace: remove its @profile from the script"
    return "a debugger or a coverage tool uses sys.settrace"


def has_compiled() -> bool:
    """Return whether dynamo has compiled anything in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"]["total"])


# -- the garbage collector, off while profstack works: its scans would be in the script's time ---


class CollectorOff:
    """Switch the garbage collector off in a `with` block; afterwards it is as it was."""

    def __enter__(self) -> None:
        import gc

        self._enable = gc.enable if gc.isenabled() else None
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._enable is not None:
            self._enable()


def complain(text: str) -> None:
    """Write one line to standard error; a closed stream is no error."""
    with Guard():
        sys.stderr.write(f"profstack: {text}\n")
