"""The script is kept unharmed: whose an error is, signals, threads, forks, wrappers."""

import _thread
import functools
import gc
import os
import signal
import sys
import threading
import traceback
from types import SimpleNamespace

import pytest

from profstack import guard
from profstack.guard import Guard, delay_signals, is_scripts, unwatch_forks


class TimeUpError(OSError):
    """As `TimeoutError` is: what code that asks the system for something expects."""


def time_is_up(*_):
    raise TimeUpError("time is up")


def plain(number, frame):
    time_is_up()


def taken_off(*_, extra="time is up"):
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    time_is_up(extra)


class Limit:
    def end(self, number, frame):
        del frame
        raise TimeUpError("time is up")


HANDLERS = {
    "method": Limit().end,
    "plain": plain,
    "taken_off": taken_off,
    "itself": lambda number, frame: {}[number],
    "partial": functools.partial(lambda extra, number, frame: time_is_up(), "time is up"),
}


def frames(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def interrupt():
    signal.raise_signal(signal.SIGUSR1)


def caught(action):
    try:
        action()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("handler", list(HANDLERS))
def test_what_a_handler_raises_is_the_scripts(handle, handler):
    handle(HANDLERS[handler])
    error = caught(interrupt)
    assert is_scripts(error)
    # The traceback begins with the handler: nothing of what it interrupted is left.
    assert frames(error)[0] not in ("interrupt", "caught")
    assert is_scripts(error)


def test_what_ends_programs_is_the_scripts_and_an_error_of_our_own_is_not(handle):
    handle(plain)
    for end in (KeyboardInterrupt(), SystemExit(0), GeneratorExit()):
        assert is_scripts(end)
    # As a trace function, which is given the frame it is called from; a number is no signal's.
    traced = lambda frame, event, argument: time_is_up()  # noqa: E731
    counted = lambda number, name: time_is_up()  # noqa: E731
    for work in (
        lambda: traced(sys._getframe(0), "call", None),
        lambda: counted(3, "step"),
        lambda: {}["missing"],
    ):
        assert not is_scripts(caught(work))
    assert not is_scripts(ValueError("never raised"))


def test_a_guard_keeps_errors_of_our_own():
    failed = []
    with Guard(failed=failed.append):
        raise ValueError("a defect")
    assert [str(error) for error in failed] == ["a defect"]
    with pytest.raises(ValueError, match="another kind"), Guard((OSError, KeyError)):
        raise ValueError("another kind")


@pytest.mark.parametrize("always", [False, True])
def test_a_guard_passes_on_what_is_the_scripts(handle, always):
    handle(HANDLERS["itself"])
    failed = []
    own = Guard(BaseException, failed.append, always=always)
    for end, kind in ((interrupt, KeyError), (functools.partial(sys.exit, 0), SystemExit)):
        with pytest.raises(kind) as error, own:
            end()
        assert is_scripts(error.value)
        assert "interrupt" not in frames(error.value)
    assert len(failed) == (2 if always else 0)


@pytest.fixture
def told():
    """What handlers of SIGINT and SIGTERM were told, whoever ignored them before."""
    told, numbers = [], (signal.SIGINT, signal.SIGTERM)
    note = lambda number, frame: told.append(signal.Signals(number).name)  # noqa: E731
    before = [signal.signal(number, note) for number in numbers]
    yield told
    for number, earlier in zip(numbers, before, strict=True):
        signal.signal(number, earlier)


def test_signals_wait_for_work_that_is_not_to_be_torn_apart(told, monkeypatch):
    def work():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
        told.append("work")

    handlers = lambda: [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]  # noqa: E731
    before = handlers()
    delay_signals(work)
    assert (told, handlers()) == (["work", "SIGTERM", "SIGINT"], before)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        delay_signals(work)
    with pytest.raises(ValueError, match="its own"):
        delay_signals(lambda: int("its own"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # A script that ends by Ctrl-C needs no second one; a handler of its own gets it all the same.
    ctrl_c = functools.partial(signal.raise_signal, signal.SIGINT)
    monkeypatch.setattr(sys, "last_type", KeyboardInterrupt, raising=False)
    delay_signals(ctrl_c)
    signal.signal(signal.SIGINT, before[0])
    delay_signals(ctrl_c)
    assert told[3:] == ["work", "SIGTERM", "SIGINT"]


class Worker(guard.WorkerThread):
    def __init__(self, *, fails=False):
        super().__init__()
        self.fails, self.done = fails, []

    def prepare(self):
        self.done.append(("prepared", _thread.get_native_id() in guard.native_numbers))
        if self.fails:
            raise ValueError("the thread ends")

    def work(self, halt):
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        self.done.append(("blocks", blocked >= {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}))
        halt.acquire()
        self.done.append("halted")


RUN = [("prepared", True), ("blocks", True), "halted"]


def test_a_worker_runs_from_start_to_stop_unseen():
    threads, worker, own = threading.enumerate(), Worker(), set(guard.native_numbers)
    worker.start()
    assert (worker.done[0], threading.enumerate()) == (RUN[0], threads)
    assert len(guard.native_numbers) == len(own) + 1
    worker.begin_thread()
    for _ in range(2):
        worker.stop()
    worker.begin_thread()
    assert (worker.done, guard.native_numbers) == (RUN, own)
    worker.start()
    worker.stop()
    assert worker.done == RUN * 2


def test_a_worker_that_cannot_prepare_or_begin_ends_without_a_word(monkeypatch):
    broken, printed = Worker(fails=True), []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    for _ in range(2):
        broken.start()
        broken.stop()
        assert broken.done == RUN[:1]
        monkeypatch.setattr(guard, "block_signals", lambda signals: 1 / 0)
    assert printed == []


# From Python 3.13 on a thread begins again at the first collection after a fork.
collect = gc.collect if sys.version_info >= (3, 13) else lambda: None


def test_every_fork_is_told_to_those_that_watch():
    class Told(guard.ForkSafeThread):
        def __init__(self):
            self.told = []

        begin_thread = lambda self: self.told.append("begin")  # noqa: E731
        end_thread = lambda self: self.told.append("end")  # noqa: E731
        forget = lambda self: os._exit(23)  # noqa: E731

    first, second = Told(), Told()
    for each in (first, second):
        guard.watch_forks(each)
    for _ in range(2):
        unwatch_forks(first)
    if (child := os.fork()) == 0:
        os._exit(1)
    _, status = os.waitpid(child, 0)
    collect()
    unwatch_forks(second)
    assert (first.told, second.told) == ([], ["end", "begin"])
    assert os.waitstatus_to_exitcode(status) == 23


def test_a_wrapper_comes_off_unless_another_is_over_it():
    base = type("Base", (), {"method": lambda self: "base"})
    for owner, own in ((base, True), (type("Child", (base,), {}), False)):
        before = dict(vars(owner))
        restore = guard.replace(owner, "method", lambda self: "ours")
        assert owner().method() == "ours"
        restore()
        assert (dict(vars(owner)), "method" in before) == (before, own)
        restore = guard.replace(owner, "method", lambda self: "ours")
        owner.method = lambda self: "theirs"
        restore()
        assert owner().method() == "theirs"


def test_what_dynamo_sees_and_whether_it_compiled_anything(monkeypatch):
    original, wrapper = lambda: "original", lambda: "ours"
    wrapper.note = "kept"
    assert guard.traced_as(wrapper, original) is wrapper
    assert wrapper._torchdynamo_inline is original
    theirs = functools.wraps(wrapper)(lambda: None)
    assert (theirs.note, hasattr(theirs, "_torchdynamo_inline")) == ("kept", False)
    assert list(wrapper.__dict__) == ["note"]
    for total, compiled in ((0, False), (3, True)):
        books = SimpleNamespace(counters={"frames": {"total": total}})
        monkeypatch.setitem(sys.modules, "torch._dynamo.utils", books)
        assert guard.has_compiled() is compiled
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils")
    assert guard.has_compiled() is False
