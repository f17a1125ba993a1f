"""The nvtx layer: what it emits, that it stays nested, and that nothing of the script's changes.

`nvtx_listener.c` is a real listener, compiled here: NVTX itself loads it as it does Nsight Systems.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import RunProfstack, clean_environment
from torch import nn
from torch.utils.checkpoint import checkpoint

from profstack import layer
from profstack.capture.hooks import DISCOVER, TorchHooks
from profstack.capture.module_names import ModuleNames
from profstack.layer import SliceContext, SliceData
from profstack.readers import nvtx
from profstack.readers.nvtx import Domain, Emitter
from profstack.wrappers.nvtx import NvtxWrapper, records

ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class Recorder:
    """A domain that remembers; has the methods of nvtx's from 0.2.12 on."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.told: list[str] = []
        self.numbers: list[int] = []
        self.categories: dict[str, str] = {}
        # Ranges that nest in nothing: begins and ends in order, and names by handle.
        self.apart: list[str] = []
        self.handles: list[str] = []

    def get_event_attributes(
        self,
        message: str | None = None,
        color: int | None = None,
        category: str | None = None,
        payload: int | None = None,
    ) -> tuple[str, int | None]:
        assert message is not None
        assert isinstance(color, int)
        assert category is not None
        self.categories[message] = category
        return message, payload

    def push_range(self, attributes: tuple[str, int | None]) -> None:
        message, payload = attributes
        self.told.append("  " * len(self.open) + message)
        self.open.append(message)
        if payload is not None:
            self.numbers.append(payload)

    def pop_range(self) -> None:
        self.open.pop()

    def start_range(self, attributes: tuple[str, int | None]) -> int:
        self.apart.append(f"+{attributes[0]}")
        self.handles.append(attributes[0])
        return len(self.handles)

    def end_range(self, handle: int) -> None:
        self.apart.append(f"-{self.handles[handle - 1]}")


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr("nvtx.get_domain", lambda name: made if name == "profstack" else None)
    return made


@pytest.fixture
def emitter(domain: Recorder) -> Emitter:
    made = Emitter(Domain())
    made.start(7)
    return made


class Sink:
    """Told of everything, says nothing."""

    waiting = False
    follows_calls = follows_backward = True
    evaluated = first_activity = call_started = call_ended = "".format
    backward_started = backward_ended = optimizer_started = optimizer_ended = "".format


@pytest.fixture
def hooks() -> Iterator[TorchHooks]:
    made = TorchHooks(torch, Sink(), ModuleNames())
    made.install()
    made.set_mode(DISCOVER)
    yield made
    made.remove()


def observed(
    hooks: TorchHooks, folder: Path, *steps: Callable[[], Any], left_out: tuple[int, ...] = ()
) -> SliceData:
    """One slice of these steps, told of as the engine does; the last one is ended."""
    wrapper = NvtxWrapper()
    wrapper.start(SliceContext(3, "timed", len(steps), folder, first_step=10))
    listener = wrapper.listener()
    assert listener is not None
    hooks.listen(listener)
    for number, step in enumerate(steps, 11):
        step()
        listener.step_ended(number)
        if number < 10 + len(steps):
            listener.step_begun(number)
    hooks.listen(None)
    wrapper.stop()
    return wrapper.take([0.0] * (len(steps) + 1), {}, left_out)


def counted(taken: SliceData) -> dict[tuple[str, str], int]:
    return {(row["kind"], row["name"]): row["calls"] for row in taken.frames["ranges"]}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def training(net: nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loss = nn.MSELoss()

    def step() -> None:
        optimizer.zero_grad()
        loss(net(torch.ones(2, 4)), torch.zeros(2, 4)).backward()
        optimizer.step()

    return step


# -- what is emitted -------------------------------------------------------------------------------


def test_a_training_step_in_ranges(hooks: TorchHooks, domain: Recorder, tmp_path: Path) -> None:
    step = training(Net())
    taken = observed(hooks, tmp_path, step, step)
    inside = [
        "  forward",
        "    Net",
        "      Net.linear",
        "  MSELoss",
        "  backward",
        "  optimizer SGD",
    ]
    assert domain.told == ["step 10", *inside, "step 11", *inside]
    assert domain.numbers == [10, 11]
    assert domain.open == []
    assert domain.categories == {
        "step": "step",
        "step 10": "step",
        "step 11": "step",
        "forward": "forward",
        "Net": "module",
        "Net.linear": "module",
        "MSELoss": "module",
        "backward": "backward",
        "optimizer SGD": "optimizer",
    }
    assert counted(taken) == {
        ("step", "step"): 2,
        ("module", "MSELoss"): 2,
        ("module", "Net"): 2,
        ("module", "Net.linear"): 2,
        ("forward", "forward"): 2,
        ("backward", "backward"): 2,
        ("optimizer", "SGD"): 2,
    }
    assert {row["slice"] for row in taken.frames["ranges"]} == {3}
    assert taken.status == "recorded"


def test_steps_that_are_left_out_and_the_open_one_are_in_no_row(
    hooks: TorchHooks, domain: Recorder, tmp_path: Path
) -> None:
    net = Net()
    step, plain = training(net), lambda: net(torch.ones(2, 4))
    taken = observed(hooks, tmp_path, step, plain, step, left_out=(0,))
    assert counted(taken)["step", "step"] == 2
    assert counted(taken)["module", "Net"] == 2
    assert counted(taken)["backward", "backward"] == 1

    wrapper = NvtxWrapper()
    wrapper.start(SliceContext(0, "timed", 5, tmp_path))
    listener = wrapper.listener()
    assert listener is not None
    for _ in range(2):
        listener.enter("backward", "backward")
        listener.leave("backward", "backward")
        listener.step_ended(1)
        listener.step_begun(1)
    listener.enter("backward", "backward")
    wrapper.stop()
    assert counted(wrapper.take([0.0, 1.0, 2.0], {}))["backward", "backward"] == 2
    assert domain.open == []


def test_cost_is_that_of_the_emits(
    hooks: TorchHooks, domain: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by 1 s at each look, and by 10 s within each push and pop."""
    now = [0.0]

    def look() -> float:
        now[0] += 1.0
        return now[0]

    def slowly(action: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any) -> Any:
            now[0] += 10.0
            return action(*arguments)

        return slow

    monkeypatch.setattr(nvtx, "_clock", look)
    nvtx.clock_s.cache_clear()
    domain.push_range = slowly(domain.push_range)  # type: ignore[method-assign]
    domain.pop_range = slowly(domain.pop_range)  # type: ignore[method-assign]
    step = training(Net())
    taken = observed(hooks, tmp_path, step, step, step)
    nvtx.clock_s.cache_clear()
    # Three calls of each: 10 s for the push and 10 s for the pop, the clock's own 1 s taken off.
    assert {row["emit_s"] for row in taken.frames["ranges"]} == {60.0}


def test_a_cost_that_is_not_above_the_clocks_own_is_unknown() -> None:
    clock = nvtx.clock_s()
    assert clock > 0
    assert nvtx.less_the_clock("module", 10, 19 * clock) is None
    assert nvtx.less_the_clock("module", 10, 21 * clock) == pytest.approx(clock)
    assert nvtx.less_the_clock("step", 10, 29 * clock) is None


def test_forward_is_of_a_model_and_neither_of_a_loss_nor_of_work_done_again(
    hooks: TorchHooks, domain: Recorder, tmp_path: Path
) -> None:
    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    step = training(Saving())
    observed(hooks, tmp_path, step)
    assert domain.told == [
        "step 10",
        "  forward",
        "    Saving",
        "      Saving.inner",
        "        Saving.inner.linear",
        "  MSELoss",
        "  backward",
        "    Saving.inner",
        "      Saving.inner.linear",
        "  optimizer SGD",
    ]


def test_closure_of_an_optimizer_is_inside_it(
    hooks: TorchHooks, domain: Recorder, tmp_path: Path
) -> None:
    net = Net()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(torch.ones(2, 4)).sum()
        loss.backward()
        return loss

    observed(hooks, tmp_path, lambda: optimizer.step(closure))
    assert domain.told == [
        "step 10",
        "  optimizer LBFGS",
        "    forward",
        "      Net",
        "        Net.linear",
        "    backward",
    ]


# -- nesting ---------------------------------------------------------------------------------------


def test_an_optimizer_that_fails_leaves_the_domain_balanced(
    hooks: TorchHooks, domain: Recorder, tmp_path: Path
) -> None:
    class Fails(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> Any:
            if closure == "fail":
                raise FloatingPointError("the script's own")

    net = Net()
    optimizer = Fails(net.parameters(), {})

    def step() -> None:
        with pytest.raises(FloatingPointError):
            optimizer.step("fail")
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    observed(hooks, tmp_path, step, step)
    # The hook of torch after a step is not called where it fails: nothing tells that it has ended.
    inside = [
        "  optimizer Fails",
        "    forward",
        "      Net",
        "        Net.linear",
        "    backward",
        "    optimizer Fails",
    ]
    assert domain.told == ["step 10", *inside, "step 11", *inside]
    assert domain.open == []


def test_a_module_that_fails_leaves_the_domain_balanced(
    hooks: TorchHooks, domain: Recorder, tmp_path: Path
) -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("the script's own")

    net = nn.Sequential(nn.Linear(4, 4), Fails())

    def step() -> None:
        with pytest.raises(KeyError):
            net(torch.ones(2, 4))

    observed(hooks, tmp_path, step, step)
    inside = ["  forward", "    Sequential", "      Sequential.0", "      Sequential.1"]
    assert domain.told == ["step 10", *inside, "step 11", *inside]


def test_a_region_across_steps_goes_on_in_the_next(emitter: Emitter, domain: Recorder) -> None:
    emitter.enter("region", "epoch")
    emitter.enter("module", "Net")
    emitter.leave("module", "Net")
    emitter.step_ended(8)
    assert domain.open == []
    emitter.step_begun(8)
    assert domain.open == ["step 8", "epoch"]
    emitter.leave("region", "epoch")
    assert domain.open == ["step 8"]
    emitter.stop()
    assert domain.told == [
        "step 7",
        "  epoch",
        "    forward",
        "      Net",
        "step 8",
        "  epoch",
        # The step has not ended: who reads the ranges is not to count it.
        "  cut step 8",
    ]
    assert domain.open == []


def test_a_slice_that_ends_begins_no_further_step(emitter: Emitter, domain: Recorder) -> None:
    emitter.enter("region", "epoch")
    emitter.step_ended(8)
    emitter.stop()
    emitter.start(20)
    assert domain.told == ["step 7", "  epoch", "step 20"]
    emitter.step_begun(20)
    emitter.stop()
    assert domain.numbers == [7, 20]


def test_regions_of_two_tasks_that_overlap(emitter: Emitter, domain: Recorder) -> None:
    emitter.enter("region", "a")
    emitter.enter("region", "b")
    emitter.leave("region", "a")
    assert domain.open == ["step 7", "b"]
    emitter.enter("region", "a")
    emitter.leave("region", "b")
    assert domain.open == ["step 7", "a"]
    emitter.leave("region", "a")
    assert domain.open == ["step 7"]
    assert domain.told == ["step 7", "  a", "    b", "  b", "    a", "  a"]


def test_ranges_of_their_own_go_on_across_steps_and_are_counted_where_they_begin(
    emitter: Emitter, domain: Recorder
) -> None:
    emitter.enter_apart(1, "load")
    emitter.enter("region", "train")
    emitter.enter_apart(2, "load")
    emitter.leave_apart(1)
    emitter.leave("region", "train")
    emitter.step_ended(8)
    emitter.step_begun(8)
    thread = threading.Thread(target=emitter.leave_apart, args=(2,))
    thread.start()
    thread.join()
    # It began before the slice did.
    emitter.leave_apart(3)
    emitter.enter_apart(4, "open")
    emitter.step_ended(9)
    emitter.stop()
    # Nothing more is begun, and what has ended is not ended again.
    emitter.enter_apart(5, "late")
    emitter.leave_apart(4)
    emitter.leave_apart(5)
    assert domain.apart == ["+load", "+load", "-load", "-load", "+open", "-open"]
    assert domain.told == ["step 7", "  train", "step 8"]
    told = [{(r["kind"], r["name"]): r["calls"] for r in records(3, [s])} for s in emitter.steps]
    assert told == [
        {("step", "step"): 1, ("region", "load"): 2, ("region", "train"): 1},
        {("step", "step"): 1, ("region", "load"): 0, ("region", "open"): 1},
    ]
    assert {row["slice"] for row in records(3, emitter.steps)} == {3}


def test_a_region_that_ends_in_a_call_of_a_module(emitter: Emitter, domain: Recorder) -> None:
    """A generator that was begun outside: the call goes on."""
    emitter.enter("region", "batches")
    emitter.enter("module", "Net")
    emitter.leave("region", "batches")
    assert domain.open == ["step 7", "forward", "Net"]
    emitter.leave("module", "Net")
    assert domain.open == ["step 7"]


def test_what_began_before_the_slice_is_not_ended_in_it(emitter: Emitter, domain: Recorder) -> None:
    emitter.leave("region", "epoch")
    emitter.enter("module", "Net")
    emitter.leave("optimizer", "SGD")
    assert domain.open == ["step 7", "forward", "Net"]
    emitter.leave("module", "Net")
    emitter.leave("module", "Net")
    assert domain.open == ["step 7"]


def test_another_thread_pops_nothing(emitter: Emitter, domain: Recorder) -> None:
    """A push is taken back by its own thread alone; elsewhere it would take another's range."""
    thread = threading.Thread(target=emitter.stop)
    thread.start()
    thread.join()
    assert domain.open == ["step 7"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_emits_nothing(domain: Recorder, tmp_path: Path) -> None:
    wrapper = NvtxWrapper()
    wrapper.start(SliceContext(0, "timed", 5, tmp_path))
    before = (list(domain.told), list(domain.open))
    child = os.fork()
    if child == 0:
        wrapper.abandon()
        wrapper.stop()
        os._exit(0 if (domain.told, domain.open) == before and not wrapper.listener() else 1)
    assert os.waitpid(child, 0)[1] == 0
    wrapper.stop()
    assert domain.open == []


# -- other versions of nvtx, and none --------------------------------------------------------------


def test_old_nvtx_is_driven_by_its_context_manager(
    hooks: TorchHooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 0.2.11 a domain cannot push; test_nsys.py runs the real one."""
    recorder = Recorder()

    class Annotate:
        def __init__(
            self, message: str, color: int, domain: str, category: str, payload: int | None
        ) -> None:
            assert domain == "profstack"
            self.attributes = recorder.get_event_attributes(message, color, category, payload)

        def __enter__(self) -> Annotate:
            recorder.push_range(self.attributes)
            return self

        def __exit__(self, *_: object) -> bool:
            recorder.pop_range()
            return False

    old = types.SimpleNamespace(
        annotate=Annotate,
        get_domain=lambda name: object(),
        start_range=lambda message, *_: recorder.start_range((message, None)),
        end_range=recorder.end_range,
    )
    monkeypatch.setitem(sys.modules, "nvtx", old)  # type: ignore[arg-type]  # a stand-in
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    taken = observed(hooks, tmp_path, training(Net()))
    assert [line.strip() for line in recorder.told[:3]] == ["step 10", "forward", "Net"]
    assert recorder.numbers == [10]
    assert recorder.open == []
    assert taken.status == "emitted"
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/a/listener.so")
    assert observed(hooks, tmp_path, training(Net())).status == "recorded"


def test_without_a_listener_ranges_are_emitted(hooks: TorchHooks, tmp_path: Path) -> None:
    """The package as it is installed."""
    assert "NVTX_INJECTION64_PATH" not in os.environ
    taken = observed(hooks, tmp_path, training(Net()))
    assert taken.status == "emitted"
    assert counted(taken)["step", "step"] == 1
    assert taken.notes == []


def test_nsys_that_takes_no_ranges_is_told(
    hooks: TorchHooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    taken = observed(hooks, tmp_path, training(Net()))
    assert taken.status == "emitted"
    ((slug, text),) = taken.notes
    assert slug == "no-listener"
    assert "--trace" in text
    # Set after NVTX has looked: as if an nsys were there that knows older versions alone.
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/a/listener.so")
    ((_, text),) = observed(hooks, tmp_path, training(Net())).notes
    assert f"nvtx {NvtxWrapper.version()}" in text
    assert "0.2.11" in text


def test_reasons_not_to_be_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NvtxWrapper.unavailable_reason() is None
    with monkeypatch.context() as patch:
        patch.setenv("NVTX_DISABLE", "1")
        assert "NVTX_DISABLE" in str(NvtxWrapper.unavailable_reason())
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        assert "pip install nvtx" in str(NvtxWrapper.unavailable_reason())
    (tmp_path / "nvtx.py").write_text("raise SystemExit('the script own module')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nvtx", raising=False)
    reason = str(NvtxWrapper.unavailable_reason())
    assert str(tmp_path / "nvtx.py") in reason


# -- CUDA ------------------------------------------------------------------------------------------


@pytest.fixture
def cuda_calls(monkeypatch: pytest.MonkeyPatch, domain: Recorder) -> list[str]:
    """As if the script had brought up CUDA: what is asked of its profiler, and when."""
    calls: list[str] = []
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    for name in ("start", "stop"):

        def call(name: str = name) -> None:
            calls.append(f"{name} with {domain.open}")

        call.__name__ = name
        monkeypatch.setattr(f"torch.cuda.profiler.{name}", call)

    def synchronize() -> None:
        calls.append("synchronize")

    monkeypatch.setattr("torch.cuda.synchronize", synchronize)
    return calls


def test_cuda_profiler_stands_round_the_slice(
    hooks: TorchHooks, cuda_calls: list[str], tmp_path: Path
) -> None:
    observed(hooks, tmp_path, training(Net()), training(Net()))
    # The listener's capture is to hold what was launched in the slice, which runs after it.
    assert cuda_calls == ["start with []", "synchronize", "stop with []"]


def test_cuda_profiler_that_fails_costs_no_range(
    hooks: TorchHooks,
    cuda_calls: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start() -> None:
        raise RuntimeError("not permitted")

    monkeypatch.setattr("torch.cuda.profiler.start", start)
    taken = observed(hooks, tmp_path, training(Net()))
    assert counted(taken)["step", "step"] == 1
    assert taken.notes == [("cuda-profiler", "cudaProfilerStart: not permitted")]
    assert cuda_calls == []


def test_a_script_without_cuda_keeps_it_down(
    hooks: TorchHooks, domain: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda._lazy_init", lambda: pytest.fail("CUDA was brought up"))
    observed(hooks, tmp_path, training(Net()))
    assert domain.numbers == [10]


# -- in a run, with a listener ---------------------------------------------------------------------

# The script's own ranges lie across steps' ends; an error ends some of its optimizer's steps; a
# helper thread trains a model of its own.
SCRIPT = """
import threading
import nvtx
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x))

class Rare(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        if self.fails:
            raise FloatingPointError("no step")
        return super().step()

torch.manual_seed(0)
net = Net()
optimizer = Rare(net.parameters(), lr=0.1)
optimizer.fails = False
criterion = nn.CrossEntropyLoss()
stop = threading.Event()
mine = nn.Linear(2, 2)

def other():
    while not stop.is_set():
        mine(torch.ones(1, 2)).sum().backward()

helper = threading.Thread(target=other)
helper.start()
x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
steps = 0
for batch in range(150):
    nvtx.push_range(f"batch {batch}")
    with nvtx.annotate("inside", domain="mine"):
        loss = criterion(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.fails = batch % 10 == 9
    try:
        optimizer.step()
        steps += 1
    except FloatingPointError:
        pass
    nvtx.pop_range()
stop.set()
helper.join()
print(steps, f"{loss.item():.9f}")
"""


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The listener, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a listener with")
    library = tmp_path_factory.mktemp("listener") / "listener.so"
    source = Path(__file__).with_name("nvtx_listener.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source], check=True
    )
    return library


def read_log(path: Path) -> dict[str, list[tuple[list[str], str, str]]]:
    """By domain, in order: the ranges around, the payload and the text. Fails if unbalanced."""
    found: dict[str, list[tuple[list[str], str, str]]] = {}
    stacks: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        what, _, name, *rest = line.split("\t")
        stack = stacks.setdefault(name, [])
        if what == "push":
            found.setdefault(name, []).append((list(stack), rest[1], rest[2]))
            stack.append(rest[2])
        elif what == "pop":
            stack.pop()
    assert not any(stacks.values())
    return found


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(folder / "recording.sqlite") as database:
        return database.execute(query).fetchall()


@pytest.mark.slow
def test_a_listener_gets_the_steps_of_the_slices_and_the_script_its_own(
    run_profstack: RunProfstack, listener: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    listening = {**ONE_THREAD, "NVTX_INJECTION64_PATH": str(listener)}
    plain = subprocess.run(
        [sys.executable, script],
        env=clean_environment(**listening, NVTX_LISTENER_LOG=str(tmp_path / "plain.log")),
        capture_output=True,
        text=True,
        check=True,
    )
    # Slices by steps alone: how many of them the script has does not hang on the machine's load.
    by_steps = ("--layers", "torch,nvtx", "--rounds", "2", "--slice-s", "1e-9")
    done = run_profstack(
        ["run", "-o", "rec", *by_steps, script],
        env={**listening, "NVTX_LISTENER_LOG": str(tmp_path / "run.log")},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    theirs, ours = read_log(tmp_path / "plain.log"), read_log(tmp_path / "run.log")
    emitted = ours.pop("profstack")
    assert ours == theirs
    check_emitted(emitted, tmp_path / "rec")
    assert rows(tmp_path / "rec", "SELECT status FROM layers WHERE name = 'nvtx'") == [
        ("recorded",)
    ]
    assert rows(tmp_path / "rec", "SELECT status FROM layers WHERE name = 'torch'") == [
        ("recorded",)
    ]


def check_emitted(emitted: list[tuple[list[str], str, str]], folder: Path) -> None:
    """Against the recording: the steps' numbers, and how often each range was emitted."""
    slices = rows(folder, "SELECT first_step, steps FROM slices WHERE layer = 'nvtx'")
    assert len(slices) >= 2
    numbers = [first + n for first, steps in slices for n in range(steps)]
    steps = [(around, number, text) for around, number, text in emitted if text[:5] == "step "]
    assert steps == [([], str(number), f"step {number}") for number in numbers]
    for around, _, text in emitted:
        if text == "Net.body.0":
            assert around[0].startswith("step ")
            assert around[-3:] == ["forward", "Net", "Net.body"]
        assert "Linear" not in text
    texts = Counter(text.partition(" ")[0] for _, _, text in emitted)
    told = rows(folder, "SELECT kind, name, SUM(calls) FROM ranges GROUP BY kind, name")
    as_text = {name if kind != "optimizer" else kind: calls for kind, name, calls in told}
    assert as_text == texts


@pytest.mark.slow
def test_graphs_and_breaks_are_those_of_plain_python(
    run_profstack: RunProfstack, tmp_path: Path
) -> None:
    script = tmp_path / "compiled.py"
    script.write_text(
        """
import torch
from torch import nn
from torch._dynamo.utils import counters

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.two(self.one(x)).square().mean()

torch.manual_seed(0)
net = Net()
compiled = torch.compile(net, backend="aot_eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for batch in range(80):
    optimizer.zero_grad()
    # The second shape has it compiled once more.
    loss = compiled(torch.ones(4 if batch < 3 else 6, 8))
    loss.backward()
    optimizer.step()
print(f"{loss.item():.9f}")
print({name: dict(counters[name]) for name in ("stats", "graph_break", "frames")})
"""
    )
    environment = ONE_THREAD
    plain = subprocess.run(
        [sys.executable, script],
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "unique_graphs" in plain.stdout
    done = run_profstack(["run", "--layers", "nvtx", "-o", "rec", script], env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    folder = tmp_path / "rec"
    names = {name for (name,) in rows(folder, "SELECT name FROM ranges WHERE kind = 'module'")}
    # A compiled region gets one range, under the path of the model that it wraps (this backend
    # calls its graphs as modules); none of the modules that were compiled away.
    assert "Net" in names
    assert not any(name.endswith(("one", "two")) for name in names)
    assert rows(folder, "SELECT COUNT(*) FROM ranges WHERE kind = 'backward'")[0][0] >= 2


# -- under Nsight Systems --------------------------------------------------------------------------


def test_under_nsys_the_other_layers_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = layer.layer_names()
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)
    assert layer.beside_nsys(layers) == (layers, {})
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "123")
    kept, left_out = layer.beside_nsys(layers)
    assert "nvtx" in kept
    assert set(kept) <= {"nvtx", "watch"}
    assert {"cprofile", "torch"} <= set(left_out)
    assert set(kept) | set(left_out) == set(layers)
    assert all("Nsight Systems" in reason for reason in left_out.values())


def test_a_layer_that_cannot_be_beside_nsys_is_refused(run_profstack: RunProfstack) -> None:
    done = run_profstack(
        ["run", "--layers", "torch,cprofile", "-c", "pass"],
        env={"NSYS_PROFILING_SESSION_ID": "1"},
    )
    assert done.returncode == 2
    assert "under Nsight Systems there is no layer cprofile or torch" in done.stderr
    assert "nvtx" in done.stderr


@pytest.mark.slow
def test_a_run_under_nsys_arms_nvtx_and_says_why_not_the_others(
    run_profstack: RunProfstack, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_profstack(
        ["run", "--startup", "cprofile", "-o", "rec", script],
        env={**ONE_THREAD, "NSYS_PROFILING_SESSION_ID": "1"},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "rec" / "report.json").read_text(encoding="utf-8"))
    layers = {row["name"]: row for row in report["layers"]}
    assert layers["nvtx"]["status"] == "emitted"
    for name in set(layers) - {"nvtx", "watch"}:
        assert layers[name]["status"] == "skipped"
        assert "Nsight Systems" in layers[name]["reason"]
    assert {"cprofile", "torch"} <= set(layers)
    kinds = {kind for (kind,) in rows(tmp_path / "rec", "SELECT kind FROM slices")}
    assert kinds <= {"startup", "nvtx", "clean", "settle", "watch", "discovery"}
    assert report["benchmark"]["median_s"] > 0
    assert any("--trace" in warning["text"] for warning in report["warnings"])
