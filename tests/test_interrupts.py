"""What a signal's handler raises while profstack is at work reaches the script, and once."""

from __future__ import annotations

import ast
import functools
import gc
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import CHECKOUT
from torch import nn

from profstack.capture.engine import Engine
from profstack.capture.observers import GuardedListener, Observers
from profstack.capture.run import make_plan
from profstack.capture.slices import Targets
from profstack.guard import Guard, delay_signals, is_scripts
from profstack.layer import Listener
from profstack.readers.flops.counting import Count
from profstack.readers.memory.readings import MemorySampler
from profstack.storage.folder import Writer, create_folder, read_tables

TARGETS = Targets(3, 0.0, 2, 2, 2, 0.0, 20, 0.0, 2)
LAYERS = ["cprofile", "torch", "nvtx", "memory", "flops", "watch"]


class TimeUpError(OSError):
    """As `TimeoutError` is: what code that asks the system for something expects."""


def plain(number: int, frame: Any) -> None:
    raise TimeUpError("time is up")


def indirect(number: int, frame: Any) -> None:
    plain(0, None)


def unnamed(*_: Any) -> None:
    raise TimeUpError("time is up")


def thrown_away(number: int, frame: Any) -> None:
    del number, frame
    raise TimeUpError("time is up")


def taken_off(number: int, frame: Any) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    raise TimeUpError("time is up")


def third(extra: str, number: int, frame: Any) -> None:
    raise TimeUpError(extra)


class Limit:
    def end(self, number: int, frame: Any) -> None:
        del frame
        raise TimeUpError("time is up")

    def __call__(self, number: int, frame: Any) -> None:
        del frame
        raise TimeUpError("time is up")


HANDLERS: dict[str, Any] = {
    **{each.__name__: each for each in (plain, indirect, unnamed, thrown_away, taken_off)},
    "partial": functools.partial(third, "time is up"),
    "method": Limit().end,
    "object": Limit(),
}


@pytest.fixture
def handle() -> Iterator[Callable[[Any], None]]:
    """Install a handler; afterwards the one that was there before is back."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler) and None
    signal.signal(signal.SIGUSR1, before)


def interrupt() -> None:
    signal.raise_signal(signal.SIGUSR1)


def caught(action: Callable[[], None]) -> BaseException:
    try:
        action()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("handler", list(HANDLERS))
def test_what_a_handler_raises_is_the_scripts(handle: Callable[[Any], None], handler: str) -> None:
    handle(HANDLERS[handler])
    error = caught(interrupt)
    assert is_scripts(error)
    # The traceback begins with the handler: nothing of what it interrupted is left.
    assert error.__traceback__ is not None
    assert error.__traceback__.tb_frame.f_code.co_name not in ("interrupt", "<lambda>", "caught")
    assert is_scripts(error)


def test_an_error_of_our_own_is_not(handle: Callable[[Any], None]) -> None:
    def traced(frame: Any, event: str, argument: Any) -> None:
        raise TimeUpError("as a trace function, which is given the frame it is called from")

    handle(plain)
    frame = sys._getframe
    assert not is_scripts(caught(lambda: traced(frame(0), "call", None)))
    assert not is_scripts(caught(lambda: {}["missing"]))
    error = ValueError("never raised")
    assert not is_scripts(error)


def test_the_question_leaves_nothing_for_the_garbage_collector() -> None:
    """What holds an error that holds its frames would hold all that the script has there."""

    class Big:
        pass

    def asks() -> weakref.ref[Big]:
        big = Big()
        sampler = MemorySampler(lambda: (0, 0))
        sampler.start()
        # It asks whose the error is by which the system says that the thread has gone.
        sampler.stop()
        return weakref.ref(big)

    gc.collect()
    gc.disable()
    try:
        assert asks()() is None
    finally:
        gc.enable()


def test_what_ends_programs_is_the_scripts() -> None:
    assert is_scripts(KeyboardInterrupt())
    assert is_scripts(SystemExit(0))
    assert is_scripts(GeneratorExit())


def test_signals_wait_for_work_that_is_not_to_be_torn_apart() -> None:
    told: list[str] = []

    def handler(number: int, frame: Any) -> None:
        told.append(signal.Signals(number).name)

    def work() -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
        told.append("work")

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        delay_signals(work)
        assert told == ["work", "SIGTERM", "SIGINT"]
        assert [signal.getsignal(number) for number in before] == [handler, handler]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            delay_signals(work)
        assert told[3:] == ["work", "SIGTERM"]
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


# -- in the midst of a run -----------------------------------------------------------------------


class Workload:
    """Trains with a limit on its time, and goes on when that is up."""

    def __init__(self, folder: Path) -> None:
        self.before = hooks()
        self.folder = create_folder("train", str(folder), force=False)
        self.writer = Writer(self.folder)
        self.observers = Observers(LAYERS, self.writer)
        self.engine = Engine(
            torch,
            self.observers,
            lambda: make_plan(LAYERS, TARGETS),
            TARGETS,
            live_optimizers=lambda: frozenset([id(self.optimizer)]),
            wait_for_page=False,
        )
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.raised: list[BaseException] = []

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(4, 8)).square().mean().backward()
        self.optimizer.step()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            try:
                self.step()
            except (TimeUpError, KeyboardInterrupt) as error:
                self.raised.append(error)

    def table(self, name: str) -> list[dict[str, Any]]:
        columns, rows = read_tables(self.folder)[name]
        return [dict(zip(columns, row, strict=True)) for row in rows]


@pytest.fixture
def workload(tmp_path: Path) -> Iterator[Workload]:
    made = Workload(tmp_path / "rec")
    yield made
    made.engine.finish()


# Where the signal arrives: an object of the engine's, and one of its methods.
PLACES = {
    "a step's end": ("engine", "look"),
    "the rule is found": ("engine", "_follow"),
    "before a slice is written": ("engine.log", "end_slice"),
    "a slice is written": ("writer", "write"),
    "a slice begins": ("engine.log", "begin_slice"),
    "hooks are put on": ("engine.hooks", "set_mode"),
    **{
        f"{layer} {method}s": (f"observers.layers.{layer}.wrapper", method)
        for layer in ("torch", "cprofile", "memory", "flops", "nvtx")
        for method in ("start", "stop", "take")
    },
    "a layer is asked": ("observers.layers.torch.wrapper", "busy_reason"),
    "the watch is flushed": ("observers.layers.watch.wrapper", "flush"),
}


def interrupted_at(workload: Any, place: str, raising: Callable[[], None]) -> None:
    """Let the signal arrive in the third call of a method, or the first of a rare one."""
    owner, method = PLACES[place]
    for name in owner.split("."):
        workload = workload[name] if isinstance(workload, dict) else getattr(workload, name)
    original, calls = getattr(workload, method), []

    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        calls.append(1)
        if len(calls) == (3 if method in ("look", "write", "begin_slice", "set_mode") else 1):
            raising()
        return original(*arguments, **keywords)

    setattr(workload, method, call)


def hooks() -> list[Any]:
    from torch.optim import optimizer

    return [
        nn.Module.__call__,
        torch.autograd.backward,
        len(optimizer._global_optimizer_pre_hooks),
        len(optimizer._global_optimizer_post_hooks),
        torch.autograd.profiler._prepare_profiler,
        sys.getprofile(),
        sys.gettrace(),
        torch._C._autograd._profiler_enabled(),
    ]


@pytest.mark.parametrize("place", list(PLACES))
def test_the_script_gets_its_error_once_wherever_the_signal_arrives(
    workload: Workload, handle: Callable[[Any], None], place: str
) -> None:
    handle(plain)
    interrupted_at(workload, place, interrupt)
    workload.engine.begin()
    workload.run(40)
    assert [str(error) for error in workload.raised] == ["time is up"]
    # Nobody knows what stood when it came: everything is off, and the recording says so.
    assert hooks() == workload.before
    (note,) = [row for row in workload.table("notes") if row["slug"] == "disarmed"]
    assert "interruption of the script's" in note["text"]
    assert "TimeUpError" in note["text"]
    waiting = [row for row in workload.table("layers") if row["status"] == "empty"]
    assert waiting == []


def test_ctrl_c_in_the_midst_of_a_switch_ends_the_recording(workload: Workload) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    interrupted_at(workload, "torch stops", stop)
    workload.engine.begin()
    workload.run(40)
    assert len(workload.raised) == 1
    assert hooks() == workload.before


@pytest.mark.parametrize("method", ["enter", "leave", "step_ended", "step_begun"])
def test_a_signal_in_a_listener_ends_the_listener_and_reaches_the_script(
    handle: Callable[[Any], None], method: str
) -> None:
    class Interrupted(Listener):
        calls = 0

        def __getattribute__(self, name: str) -> Any:
            def called(*arguments: Any) -> None:
                Interrupted.calls += 1
                if name == method:
                    interrupt()

            return False if name == "takes_apart" else called

    handle(plain)
    ended: list[BaseException] = []
    listener = GuardedListener(Interrupted(), ended.append)
    arguments = {"enter": ("module", "Net"), "leave": ("module", "Net")}.get(method, (3,))
    with pytest.raises(TimeUpError):
        getattr(listener, method)(*arguments)
    assert len(ended) == 1
    seen = Interrupted.calls
    getattr(listener, method)(*arguments)
    assert Interrupted.calls == seen


def test_a_listener_that_fails_keeps_its_error(handle: Callable[[Any], None]) -> None:
    class Broken(Listener):
        def enter(self, kind: str, name: str, module: Any = None) -> None:
            raise TimeUpError("a defect that only looks like the script's")

    handle(plain)
    ended: list[BaseException] = []
    listener: Any = GuardedListener(Broken(), ended.append)
    listener.enter("module", "Net")
    assert len(ended) == 1


def test_a_layer_that_was_interrupted_while_it_listened_says_so(
    workload: Workload, handle: Callable[[Any], None]
) -> None:
    handle(plain)
    wrapper: Any = workload.observers.layers["nvtx"].wrapper
    start, told = wrapper.start, []

    def started(context: Any) -> None:
        start(context)
        enter = wrapper._emitter.enter

        def interrupted(*arguments: Any) -> None:
            if not told:
                told.append(1)
                interrupt()
            enter(*arguments)

        wrapper._emitter.enter = interrupted

    wrapper.start = started
    workload.engine.begin()
    workload.run(40)
    assert len(workload.raised) == 1
    layers = {row["name"]: row for row in workload.table("layers")}
    assert layers["nvtx"]["status"] == "failed"
    assert "interruption of the script's" in layers["nvtx"]["reason"]
    # The others go on: it came into the work of this one alone.
    assert layers["torch"]["status"] == "recorded"
    assert layers["cprofile"]["status"] == "recorded"


def test_a_signal_while_an_operator_is_counted_is_raised_once(
    workload: Workload, handle: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not come again when the layer's figures are taken."""
    owner, calls = Count.owner, []

    def interrupted(self: Count) -> Any:
        calls.append(1)
        if len(calls) == 2:
            interrupt()
        return owner(self)

    handle(plain)
    monkeypatch.setattr(Count, "owner", interrupted)
    workload.engine.begin()
    workload.run(40)
    assert len(calls) >= 2
    assert len(workload.raised) == 1
    texts = [row["text"] for row in workload.table("notes") if row["layer"] == "flops"]
    assert any("signal's handler" in text for text in texts)
    layers = {row["name"]: row for row in workload.table("layers")}
    assert layers["torch"]["status"] == "recorded"


# What runs in the measured process while the script does.
PACKAGE = CHECKOUT / "profstack"
IN_THE_SCRIPT = [
    *(PACKAGE / "capture").glob("*.py"),
    *(PACKAGE / "readers").rglob("*.py"),
    *(CHECKOUT / "wrappers").glob("*.py"),
    *(PACKAGE / f"{name}.py" for name in ("guard", "layer", "models", "session", "environment")),
    *(PACKAGE / "launch" / f"{name}.py" for name in ("child", "in_process")),
]


ASKING = ("is_scripts", "_is_for_script(", "self._passes(", ".caught(")
# Functions in which no handler of a signal runs: bodies of profstack's own threads, and what
# `delay_signals` calls.
UNINTERRUPTED = ("_run", "run", "finish_engine", "record_without_torch")


@pytest.mark.parametrize("path", IN_THE_SCRIPT, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_handler_is_without_the_question(path: Path) -> None:
    """Whoever catches everything must use `Guard`, or ask whose the error is."""
    missing = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    free = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in UNINTERRUPTED
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler) or id(node) in free:
            continue
        text = ast.unparse(node)
        catches_all = node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
        # A decorated generator throws the error into the script's own.
        asks = any(part in text for part in (*ASKING, "inner.throw", "inner.athrow"))
        if catches_all and not (asks or text.endswith("raise")):
            missing.append(node.lineno)
    assert missing == []


def test_a_guard_keeps_errors_of_our_own() -> None:
    failed: list[BaseException] = []
    with Guard(failed=failed.append):
        raise ValueError("a defect")
    assert [str(error) for error in failed] == ["a defect"]
    with Guard():
        raise ValueError("a defect")
    with pytest.raises(ValueError, match="another kind"), Guard(OSError):
        raise ValueError("another kind")


@pytest.mark.parametrize("always", [False, True])
def test_a_guard_passes_on_what_is_the_scripts(handle: Callable[[Any], None], always: bool) -> None:
    handle(plain)
    failed: list[BaseException] = []
    guard = Guard(BaseException, failed.append, always=always)
    for end, kind in ((interrupt, TimeUpError), (functools.partial(sys.exit, 0), SystemExit)):
        with pytest.raises(kind) as caught_error, guard:
            end()
        assert is_scripts(caught_error.value)
    assert len(failed) == (2 if always else 0)


def test_a_guard_leaves_the_script_its_own_traceback(handle: Callable[[Any], None]) -> None:
    def work() -> None:
        with Guard():
            interrupt()

    handle(plain)
    trace = caught(work).__traceback__
    names = []
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert names[-1] == "plain"
    assert "interrupt" not in names
