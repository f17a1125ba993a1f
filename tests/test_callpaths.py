"""Call paths: functions, operators and kernels of one step in one tree whose sums are exact."""

from __future__ import annotations

import gc
import importlib
import random
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from data_recording import Run
from torch import nn
from torch_slice import Slice, observe

from profstack.analysis.functions import OTHER, folded
from profstack.code_owner import FACT, Places
from profstack.layer import SliceContext, SliceData, calls_per_step, count_calls
from profstack.readers.torchtrace import bounds
from profstack.readers.torchtrace.call_paths import Definitions, path_records
from profstack.readers.torchtrace.events import SLICE_RANGE
from profstack.wrappers.cprofile import CProfileWrapper
from profstack.wrappers.torch_profiler import TorchProfilerWrapper

HERE = __file__
Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _nobody_traces() -> Iterator[None]:
    before = sys.gettrace(), sys.getprofile()
    sys.settrace(None)
    sys.setprofile(None)
    yield
    assert sys.getprofile() is None
    assert threading.getprofile() is None
    sys.settrace(before[0])
    sys.setprofile(before[1])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(torch.relu(self.first(x)))
        return result


def known(count: int) -> torch.Tensor:
    """Makes two operators each time."""
    return torch.ones(count) + torch.zeros(count)


def numbers() -> Iterator[int]:
    yield 1
    yield 2


def depth(number: int) -> int:
    return 0 if number == 0 else depth(number - 1)


def decorator(function: Callable[[], int]) -> Callable[[], int]:
    def inner() -> int:
        return function()

    return inner


@decorator
@decorator
def decorated() -> int:
    return len([each + 1 for each in range(3)])


def raises() -> None:
    raise KeyError


def fails() -> None:
    for _ in range(3):
        try:
            [].pop()
        except IndexError:
            pass
    try:
        raises()
    except KeyError:
        pass


class Twice:
    """The same function's name, called from two files of one name."""

    def __init__(self, folder: Path) -> None:
        self.modules = []
        for part in ("a", "b"):
            path = folder / part / "twice.py"
            path.parent.mkdir(parents=True)
            path.write_text("def same(x):\n    return abs(x)\n")
            spec = importlib.util.spec_from_file_location(f"twice_{part}", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self.modules.append(module)

    def __call__(self) -> None:
        first, second = self.modules
        first.same(-1)
        second.same(-2)
        second.same(-3)


def work(twice: Twice) -> None:
    """Functions of every kind, with counts that are known."""
    for count in range(1, 4):
        known(count)
    for _ in numbers():
        pass
    sum(each for each in numbers())
    depth(3)
    decorated()
    fails()
    sorted([3, 1, 2], key=lambda number: -number)
    twice()


class Traced:
    """One step with its stacks, the same work under cProfile, and what was to be left alone."""

    def __init__(self, folder: Path) -> None:
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.x = torch.ones(4, 8)
        self.twice = Twice(folder)
        # Found in different folders of `sys.path`, of which torch cuts names off.
        sys.path[:0] = [str(folder / "a"), str(folder / "b")]
        try:
            self.seen: Slice = observe(self.step, 1, "stacks")
        finally:
            del sys.path[:2]
        self.rows: Rows = [dict(row) for row in self.seen.captured.frames["call_paths"]]
        profile = CProfileWrapper()
        profile.start(SliceContext(0, "timed", 1, folder / "cprofile"))
        self.step()
        profile.stop()
        self.profiled = profile.take([0.0, 1.0], {})

    def step(self) -> None:
        self.optimizer.zero_grad()
        work(self.twice)
        self.model(self.x).pow(2).mean().backward()
        self.optimizer.step()


@pytest.fixture(scope="module")
def traced() -> Iterator[Traced]:
    with tempfile.TemporaryDirectory() as folder:
        yield Traced(Path(folder))


def children(rows: Rows) -> dict[Any, Rows]:
    found: dict[Any, Rows] = defaultdict(list)
    for row in rows:
        found[row["parent"]].append(row)
    return found


def under(rows: Rows, node: Any) -> Rows:
    """Everything below a node."""
    below, waiting = [], [node]
    inside = children(rows)
    while waiting:
        found = inside[waiting.pop()]
        below += found
        waiting += [row["node"] for row in found]
    return below


def named(rows: Rows, name: str, kind: str = "function") -> dict[str, Any]:
    (row,) = [row for row in rows if (row["name"], row["kind"]) == (name, kind)]
    return row


def path(rows: Rows, row: dict[str, Any]) -> list[str]:
    by_number = {each["node"]: each for each in rows}
    names = [row["name"]]
    while row["parent"] is not None:
        row = by_number[row["parent"]]
        names.append(row["name"])
    return names[::-1]


def assert_adds_up(rows: Rows) -> None:
    inside = children(rows)
    for row in rows:
        if row["total_s"] is None:
            continue
        below = sum(each["total_s"] or 0.0 for each in inside[row["node"]])
        assert row["self_s"] >= 0
        assert row["self_s"] + below == pytest.approx(row["total_s"], abs=1e-12)


# -- the tree ----------------------------------------------------------------------------------


def test_own_time_and_callees_add_up_to_every_node_and_the_roots_to_the_step(
    traced: Traced,
) -> None:
    assert_adds_up(traced.rows)
    roots = sum(row["total_s"] for row in traced.rows if row["parent"] is None)
    # Both clocks are read within a microsecond.
    assert roots == pytest.approx(traced.seen.wall_s, abs=2e-5)


def test_callers_come_first_and_every_path_is_one_node(traced: Traced) -> None:
    numbers = [row["node"] for row in traced.rows]
    assert numbers == list(range(1, len(numbers) + 1))
    assert all((row["parent"] or 0) < row["node"] for row in traced.rows)
    keys = Counter(
        (row["parent"], row["kind"], row["name"], row["file"], row["line"]) for row in traced.rows
    )
    assert set(keys.values()) == {1}


def test_operators_stand_under_the_function_that_called_them(traced: Traced) -> None:
    row = named(traced.rows, "known")
    assert (row["calls"], row["file"], row["line"]) == (3, HERE, known.__code__.co_firstlineno)
    assert path(traced.rows, row)[-3:] == ["step", "work", "known"]
    inside = under(traced.rows, row["node"])
    operators = Counter(
        {each["name"]: each["calls"] for each in inside if each["kind"] == "operator"}
    )
    assert operators["aten::ones"] == operators["aten::zeros"] == operators["aten::add"] == 3
    # `ones` is called through a built-in function, `+` by the function itself.
    assert path(traced.rows, named(inside, "aten::add", "operator"))[-2] == "known"
    assert path(traced.rows, named(inside, "aten::ones", "operator"))[-2] == (
        "<built-in method ones of type>"
    )


def test_calls_are_those_that_cprofile_counts(traced: Traced) -> None:
    counted: Counter[Any] = Counter()
    for row in traced.rows:
        if row["kind"] == "function" and row["file"] != "~" and row["calls"]:
            counted[row["file"], row["line"], row["name"]] += row["calls"]
    exact = {
        (row["file"], row["line"], row["name"]): row["calls"]
        for row in traced.profiled.frames["functions"]
        if row["file"] != "~"
    }
    # The step itself runs when cProfile begins or is called; the way to `forward` is no node.
    assert exact[HERE, depth.__code__.co_firstlineno, "depth"] == 4
    for key, calls in exact.items():
        if key[2] not in ("_wrapped_call_impl", "_call_impl", "stop", "step"):
            assert counted[key] == calls, key


def test_generators_are_one_node_at_their_definition(traced: Traced) -> None:
    first = numbers.__code__.co_firstlineno
    rows = [row for row in traced.rows if row["name"] == "numbers"]
    # Once by the loop, once by the generator expression: entered twice and once more to end.
    assert [(row["calls"], row["line"]) for row in rows] == [(3, first), (3, first)]
    assert path(traced.rows, rows[1])[-3:-1] == ["<built-in function sum>", "<genexpr>"]


def test_recursion_is_a_path_of_its_own_depth(traced: Traced) -> None:
    rows = [row for row in traced.rows if row["name"] == "depth"]
    assert [row["calls"] for row in rows] == [1, 1, 1, 1]
    assert path(traced.rows, rows[-1])[-5:] == ["work", *["depth"] * 4]


def test_two_files_of_one_name_stay_two(traced: Traced) -> None:
    rows = [row for row in traced.rows if row["name"] == "same"]
    assert {Path(row["file"]).parent.name: row["calls"] for row in rows} == {"a": 1, "b": 2}
    for row in rows:
        (inner,) = under(traced.rows, row["node"])
        assert (inner["name"], inner["calls"]) == ("<built-in function abs>", row["calls"])


def test_what_ends_by_an_error_ends_there(traced: Traced) -> None:
    row = named(traced.rows, "fails")
    inside = {each["name"]: each["calls"] for each in under(traced.rows, row["node"])}
    assert inside == {"<built-in method pop of list>": 3, "raises": 1}


def test_what_profstack_and_torch_put_between_is_no_node(traced: Traced) -> None:
    for row in traced.rows:
        assert "profstack" + "/hooks" not in (row["file"] or "")
        assert row["name"] not in ("_wrapped_call_impl", "_call_impl", "is_dynamo_compiling")
        assert not row["name"].startswith(("nn.Module: ", "profstack::"))
        assert " object at 0x" not in row["name"]
    # `model(x)` calls forward, and that the forward of its layers.
    forward = next(row for row in traced.rows if row["name"] == "forward" and row["file"] == HERE)
    assert path(traced.rows, forward)[-2] == "step"
    (linear,) = [
        row for row in traced.rows if row["parent"] == forward["node"] and row["name"] == "forward"
    ]
    assert linear["calls"] == 2
    inside = under(traced.rows, linear["node"])
    assert named(inside, "aten::linear", "operator")["calls"] == 2


def test_backward_work_is_told_by_module(traced: Traced) -> None:
    rows = {row["name"]: row for row in traced.rows if row["name"].startswith("backward of ")}
    assert rows.keys() == {
        f"backward of {owner}"
        for owner in ("Net", "Net.first", "Net.second", "(loss)", "(gradient accumulation)")
    }
    # Two parameters of two layers.
    assert rows["backward of (gradient accumulation)"]["calls"] == 4
    for row in rows.values():
        # On the CPU the script's own thread does it, inside of `backward`.
        assert "backward" in path(traced.rows, row)
        assert row["self_s"] == pytest.approx(0.0, abs=1e-12)
    first = under(traced.rows, rows["backward of Net.first"]["node"])
    assert named(first, "aten::mm", "operator")["calls"] == 1


def test_what_was_running_before_was_not_called_in_the_step(traced: Traced) -> None:
    row = named(traced.rows, "observe")
    assert row["calls"] == 0
    assert row["line"] == observe.__code__.co_firstlineno
    assert row["total_s"] == pytest.approx(traced.seen.wall_s, abs=2e-5)


# -- a device ----------------------------------------------------------------------------------


class Event:
    """A made-up event with the accessors that are read; this machine has no device."""

    def __init__(self, kind: str, name: str, start: int, end: int, **more: int) -> None:
        self._kind, self._name, self._start, self._end = kind, name, start, end
        self._more = {"thread": 1, "sequence": -1, "forward": 0, "number": 0, "linked": 0, **more}

    def activity_type(self) -> str:
        return self._kind

    def name(self) -> str:
        return self._name

    def start_ns(self) -> int:
        return self._start

    def duration_ns(self) -> int:
        return self._end - self._start

    def start_thread_id(self) -> int:
        return self._more["thread"]

    def sequence_nr(self) -> int:
        return self._more["sequence"]

    def fwd_thread_id(self) -> int:
        return self._more["forward"]

    def correlation_id(self) -> int:
        return self._more["number"]

    def linked_correlation_id(self) -> int:
        return self._more["linked"]


EVALUATE = "autograd::engine::evaluate_function: MmBackward0"


def on_device() -> list[Event]:
    """A function whose operator launches two kernels, and a backward on a thread of its own."""
    return [
        Event("cpu_op", SLICE_RANGE, 0, 1),
        Event("python_function", "/x/train.py(3): train", 5, 10_000),
        Event("python_function", "<built-in method mm of type object at 0x7f>", 150, 900),
        Event("cpu_op", "profstack::module 1", 100, 1_000),
        Event("cpu_op", "aten::mm", 200, 800, sequence=7, number=11),
        Event("python_function", "/x/train.py(9): elsewhere", 5, 10_000, thread=3),
        Event("cpu_op", EVALUATE, 3_000, 5_000, thread=2, sequence=7, forward=1, number=12),
        Event("cpu_op", "MmBackward0", 3_100, 4_900, thread=2, sequence=7, forward=1, number=13),
        Event("cpu_op", "aten::mm", 3_200, 4_000, thread=2, number=14),
        Event("kernel", "gemm", 1_000, 3_000, linked=11),
        Event("kernel", "gemm", 3_000, 4_500, linked=11),
        Event("kernel", "gemm", 6_000, 9_000, linked=14),
        Event("gpu_memcpy", "Memcpy", 9_000, 9_100, linked=99),
    ]


@pytest.fixture
def device_rows() -> Rows:
    modules = {1: SimpleNamespace(path="Net", is_loss=False)}
    return path_records(on_device(), [100, 9_500], modules, 4, device=True)


def test_kernels_stand_under_the_operator_that_launched_them(device_rows: Rows) -> None:
    kernels = [row for row in device_rows if row["kind"] == "kernel"]
    assert [(path(device_rows, row), row["calls"], row["device_s"]) for row in kernels] == [
        (["train", "<built-in method mm of type>", "aten::mm", "gemm"], 2, pytest.approx(3.5e-6)),
        (
            ["backward of Net", EVALUATE, "MmBackward0", "aten::mm", "gemm"],
            1,
            pytest.approx(3e-6),
        ),
        # Nothing tells who launched it.
        (["Memcpy"], 1, pytest.approx(1e-7)),
    ]
    assert all(row["total_s"] is None and row["self_s"] is None for row in kernels)
    assert named(device_rows, "train")["device_s"] == pytest.approx(3.5e-6)
    assert_adds_up(device_rows)


def test_backward_on_a_devices_thread_is_a_path_of_its_own(device_rows: Rows) -> None:
    row = named(device_rows, "backward of Net", "operator")
    assert row["parent"] is None
    assert (row["calls"], row["total_s"]) == (1, pytest.approx(2e-6))
    # Another thread's functions are not the step's.
    assert not any(row["name"] == "elsewhere" for row in device_rows)


def test_without_a_device_its_times_are_unknown(traced: Traced) -> None:
    assert {row["device_s"] for row in traced.rows} == {None}
    assert {row["kind"] for row in traced.rows} == {"function", "operator"}


# -- where a function is defined ---------------------------------------------------------------


SOURCE = """
@decorator
@decorator(
    1
)
def made():
    yield 1
    def made():
        yield 2
    yield 3

class Thing:
    value = [
        each
        for each in range(3)
    ]

pick = any(
    x + 1
    for x in range(3)
)
one = any(x for x in range(3))
"""


def test_definitions_are_found_from_any_line(tmp_path: Path) -> None:
    file = tmp_path / "source.py"
    file.write_text(SOURCE)
    first = Definitions().first_line
    compiled = compile(SOURCE, str(file), "exec")
    outer = next(code for code in compiled.co_consts if getattr(code, "co_name", "") == "made")
    assert first(str(file), "made", 7) == outer.co_firstlineno == 2
    assert first(str(file), "made", 2) == 2
    assert first(str(file), "made", 9) == 8
    assert first(str(file), "made", 10) == 2
    # A comprehension is entered at its beginning; a generator also where it had yielded.
    assert first(str(file), "<listcomp>", 13) == 13
    assert [first(str(file), "<genexpr>", line) for line in (18, 19, 20, 22)] == [18, 18, 18, 22]
    assert first(str(file), "<module>", 12) == 1
    # Where nothing tells, the line stays.
    assert first(str(file), "absent", 7) == 7
    assert first(str(tmp_path / "none.py"), "made", 7) == 7
    assert first("<string>", "made", 7) == 7


# -- what bounds it, and what it leaves behind -------------------------------------------------


def hot() -> None:
    """Far more calls than may be traced; on any machine longer than the deadline."""
    for _ in range(1_500_000):
        nothing()


def nothing() -> None:
    pass


def test_a_hot_loop_is_cut_off_and_its_trace_thrown_away() -> None:
    seen = observe(hot, 1, "stacks", warm=0)
    assert not seen.captured.frames
    ((slug, text),) = seen.captured.notes
    assert slug == "no-call-paths"
    assert "to fit into memory" in text
    traced = sum(event.name().endswith("nothing") for event in seen.events.events())
    assert 0 < traced < 1_500_000
    assert sys.getprofile() is None


def test_other_threads_are_not_traced_while_the_step_waits() -> None:
    over = threading.Event()

    def busy() -> None:
        while not over.is_set():
            nothing()

    others = [threading.Thread(target=busy) for _ in range(2)]
    for thread in others:
        thread.start()
    try:
        seen = observe(lambda: time.sleep(0.1), 1, "stacks", warm=0)
    finally:
        over.set()
        for thread in others:
            thread.join()
    names = [event.name() for event in seen.events.events()]
    # Some run between the profiler's start and the moment in which they are let go.
    assert sum(name.endswith(": nothing") for name in names) < 20_000
    assert any(name.endswith("sleep>") for name in names)
    assert seen.captured.frames["call_paths"]


def test_an_interruption_that_comes_in_the_cut_is_the_scripts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: None) -> None:
        raise KeyboardInterrupt

    bound, put = bounds.StackBound(), sys.setprofile
    bound._step_s = 0.0001
    put(lambda *_: None)
    bound.begin(0.0)
    # As the handler of Ctrl-C does it.
    monkeypatch.setattr(sys, "setprofile", interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            hot()
    finally:
        put(None)
        bound.end()


def refusal(counted: float | None = 10.0) -> str | None:
    return bounds.StackBound().refusal(counted)


def test_reasons_not_to_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal() is None
    assert "50,000 calls" in str(refusal(50_000.0))
    for put in (sys.setprofile, sys.settrace, threading.setprofile, threading.settrace):
        put(lambda *_: None)
        try:
            assert "profiler or debugger" in str(refusal())
        finally:
            put(None)  # type: ignore[arg-type]  # as sys.setprofile
    monkeypatch.setattr(bounds, "has_compiled", lambda: True)
    assert "dynamo" in str(refusal())
    monkeypatch.undo()
    said: list[str | None] = []
    thread = threading.Thread(target=lambda: said.append(refusal()))
    thread.start()
    thread.join()
    assert "main thread" in str(said[0])


def test_a_torch_that_lists_no_calls_of_functions_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch._C._autograd._KinetoEvent.activity_type")
    assert "from 2.13 on" in str(refusal())
    wrapper = TorchProfilerWrapper()
    assert "from 2.13 on" in str(wrapper.busy_reason("stacks"))
    # What else it records needs no such events.
    assert wrapper.busy_reason("timed") is None


def test_a_torch_that_profiles_its_main_thread_alone_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_the_option() -> object:
        return object()

    monkeypatch.setattr("torch._C._profiler._ExperimentalConfig", without_the_option)
    wrapper, said = TorchProfilerWrapper(), list[str | None]()
    thread = threading.Thread(target=lambda: said.append(wrapper.busy_reason("timed")))
    thread.start()
    thread.join()
    assert "main thread" in str(said[0])
    assert wrapper.busy_reason("timed") is None


def test_without_a_count_the_time_outside_operators_bounds_the_calls() -> None:
    def slow() -> None:
        known(1)
        until = time.perf_counter() + 0.05
        while time.perf_counter() < until:
            pass

    wrapper = TorchProfilerWrapper()
    assert wrapper.busy_reason("stacks") is None
    observe(lambda: known(3), 2, "timed", warm=0, wrapper=wrapper)
    assert wrapper.busy_reason("stacks") is None
    observe(slow, 2, "timed", warm=0, wrapper=wrapper)
    assert "calls of functions" in str(wrapper.busy_reason("stacks"))


def test_what_cprofile_counts_is_told(tmp_path: Path) -> None:
    profile = CProfileWrapper()
    profile.start(SliceContext(0, "timed", 2, tmp_path / "cprofile"))
    for _ in range(10):
        nothing()
    profile.stop()
    profile.take([0.0, 1.0, 2.0], {})
    counted = calls_per_step(tmp_path)
    # Two steps; what stops the profile is called under it too.
    assert counted is not None
    assert 5 <= counted < 10
    count_calls(tmp_path, 3, 1)
    assert calls_per_step(tmp_path) == counted
    assert calls_per_step(tmp_path / "other") is None


def captured(step: Callable[[], object], wrapper: TorchProfilerWrapper, folder: Path) -> SliceData:
    wrapper.start(SliceContext(0, "stacks", 1, folder))
    begun = time.perf_counter()
    try:
        step()
        ended = time.perf_counter()
    finally:
        wrapper.stop()
    return wrapper.take([begun, ended], {})


def test_it_leaves_nothing_behind_and_harms_no_result(tmp_path: Path) -> None:
    tracer = importlib.import_module("torch.profiler.python_tracer")
    prefixes = tracer._prefix_regex

    def losses(wrapper: TorchProfilerWrapper | None) -> list[float]:
        torch.manual_seed(0)
        random.seed(0)
        model = Net()
        optimizer = torch.optim.Adam(model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).pow(2).mean() * random.random()
            loss.backward()
            optimizer.step()
            made.append(loss.item())

        made: list[float] = []
        for number in range(4):
            if wrapper is not None and number == 2:
                assert captured(step, wrapper, tmp_path).frames["call_paths"]
            else:
                step()
        return made

    before = losses(None)
    wrapper = TorchProfilerWrapper()
    threads = threading.enumerate(), len(stackbound_threads())
    try:
        assert losses(wrapper) == before
        assert losses(wrapper) == before
    finally:
        wrapper.close()
    assert (threading.enumerate(), len(stackbound_threads())) == threads
    assert tracer._prefix_regex is prefixes
    assert sys.getprofile() is None
    gc.collect()


def stackbound_threads() -> dict[int, Any]:
    """All threads that run Python, also those that `threading` does not know."""
    return sys._current_frames()


# -- the report --------------------------------------------------------------------------------


def node(
    number: int, parent: int | None, total: float | None, own: float | None, **more: Any
) -> Any:
    return {
        "node": number,
        "parent": parent,
        "kind": "function",
        "name": f"f{number}",
        "file": "/home/x/train.py",
        "line": 3,
        "calls": 1,
        "total_s": total,
        "self_s": own,
        "device_s": None,
        **more,
    }


def test_small_branches_stand_together_and_sums_stay() -> None:
    rows = [
        node(1, None, 1.0, 0.4),
        node(2, 1, 0.5, 0.4996),
        node(3, 2, 0.0004, 0.0001),
        node(4, 3, 0.0003, 0.0003),
        node(5, 1, 0.0996, 0.0996),
        node(6, 1, 0.0002, 0.0002, calls=3),
        node(7, 1, 0.0002, 0.0001, kind="operator", file=None, line=None),
        node(8, 7, 0.0001, 0.0001),
    ]
    cut = folded(rows)
    assert_adds_up(cut)
    assert [path(cut, row) for row in cut] == [
        ["f1"],
        ["f1", "f2"],
        ["f1", "f2", OTHER],
        ["f1", "f5"],
        ["f1", OTHER],
    ]
    other = cut[-1]
    assert (other["calls"], other["self_s"]) == (4, pytest.approx(0.0004))
    assert (other["kind"], other["file"]) == ("function", None)


def test_a_kernel_that_takes_long_is_kept_under_a_short_operator() -> None:
    operator = {"kind": "operator", "file": None, "line": None}
    kernel = {**operator, "kind": "kernel"}
    rows = [
        node(1, None, 1.0, 0.9998, device_s=2.0),
        node(2, 1, 0.0001, 0.0001, device_s=1.9999, **operator),
        node(3, 2, None, None, device_s=1.9999, **kernel),
        node(4, 1, 0.0001, 0.0001, device_s=0.0001, **operator),
        node(5, 4, None, None, device_s=0.0001, **kernel),
    ]
    assert [row["name"] for row in folded(rows)] == ["f1", "f2", "f3", OTHER]
    assert folded(rows)[-1]["device_s"] == pytest.approx(0.0001)


def test_a_tree_of_any_size_is_cut_to_what_a_page_bears() -> None:
    count = 4_000
    rows = [node(1, None, 1.0, 0.0)]
    for number in range(count):
        rows.append(node(2 + 2 * number, 1, 1 / count, 0.4 / count))
        rows.append(node(3 + 2 * number, 2 + 2 * number, 0.6 / count, 0.6 / count))
    cut = folded(rows, 100)
    assert len(cut) <= 100
    assert_adds_up(cut)
    assert cut[0]["total_s"] == 1.0


def test_report_has_the_tree_of_the_slice_with_stacks(tmp_path: Path) -> None:
    run = Run(tmp_path / "rec")
    script = tmp_path / "train.py"
    run.clean()
    frames = {
        "call_paths": [
            node(1, None, 0.02, 0.015, file=str(script), calls=0),
            node(2, 1, 0.005, 0.005, kind="operator", name="aten::mm", file=None, line=None),
        ]
    }
    run.torch([0.02], mode="stacks", frames=frames)
    run.clean()
    run.writer.facts({FACT: Places.of(str(tmp_path)).fact()})
    run.layers(torch="recorded")
    rows = run.finish()["tables"]["call_paths"]
    told = [(row["node"], row["parent"], row["name"], row["own"], row["calls"]) for row in rows]
    assert told == [(1, None, "f1", True, 0.0), (2, 1, "aten::mm", None, 1.0)]
    assert [row["line"] for row in rows] == [3, None]
    assert rows[0]["total_s"] == pytest.approx(0.02)
