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

from profstack.engine.core import Engine
from profstack.engine.layerstate import GuardedListener
from profstack.engine.observers import Observers
from profstack.flops.counting import Count
from profstack.interrupts import held_back, is_scripts
from profstack.memory.sampler import MemorySampler
from profstack.recording import Writer, create_folder, read_tables
from profstack.runner import make_plan
from profstack.slices import Targets

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
        held_back(work)
        assert told == ["work", "SIGTERM", "SIGINT"]
        assert [signal.getsignal(number) for number in before] == [handler, handler]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            held_back(work)
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
        self.observers = Observers(self.folder, LAYERS, self.writer)
        self.engine = Engine(
            self.folder,
            torch,
            self.writer,
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
    class Listener:
        calls = 0

        def __getattr__(self, name: str) -> Any:
            def told(*arguments: Any) -> None:
                type(self).calls += 1
                if name == method:
                    interrupt()

            return told

    handle(plain)
    ended: list[BaseException] = []
    listener = GuardedListener(Listener(), ended.append)
    arguments = {"enter": ("module", "Net"), "leave": ("module", "Net")}.get(method, (3,))
    with pytest.raises(TimeUpError):
        getattr(listener, method)(*arguments)
    assert len(ended) == 1
    seen = Listener.calls
    getattr(listener, method)(*arguments)
    assert Listener.calls == seen


def test_a_listener_that_fails_keeps_its_error(handle: Callable[[Any], None]) -> None:
    class Listener:
        def enter(self, kind: str, name: str, module: Any = None) -> None:
            raise TimeUpError("a defect that only looks like the script's")

    handle(plain)
    ended: list[BaseException] = []
    listener: Any = GuardedListener(Listener(), ended.append)  # type: ignore[arg-type]
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


def test_no_guard_of_ours_is_without_the_question() -> None:
    """Whoever adds a guard over everything must ask whose the error is."""
    # What runs in the measured process while the script does.
    names = (
        *("child", "inprocess", "loopsteps", "regionoutlet", "regions", "registry", "session"),
        *("engine/core", "engine/layerstate", "engine/marks", "engine/observers"),
        *("engine/stepevents", "hooks/calls", "torchtrace/linetrace", "memory/tracer"),
        *("memory/devicehistory", "flops/mode", "flops/flopsprofiler", "flops/copies"),
        *("flops/formulas", "wrappers/memory", "wrappers/nvtx", "wrappers/torch_profiler"),
    )
    asking = ("is_scripts", ".fail(", ".caught(", "_is_for_script(", "_ended(")
    missing = []
    for name in names:
        path = CHECKOUT / "profstack" / f"{name}.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ExceptHandler) or node.type is None:
                continue
            text = ast.unparse(node)
            catches_all = ast.unparse(node.type) in ("Exception", "BaseException")
            passes_on = text.endswith("raise") or any(word in text for word in asking)
            if catches_all and not passes_on:
                missing.append(f"{name}:{node.lineno}")
    assert missing == []
