"""Source lines: what runs on a line stands on that line, and the sum is never above the wall."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import CHECKOUT, clean_environment
from torch import nn
from torch_slice import Slice, observe

from profstack.readers.torchtrace import line_tracer
from profstack.readers.torchtrace import lines as torchtrace_lines
from profstack.readers.torchtrace.events import SLICE_RANGE, read_host
from profstack.readers.torchtrace.line_tracer import BUDGET, LineTracer, is_users
from profstack.readers.torchtrace.lines import LineSlice, line_tables, source_records
from profstack.storage.vocabulary import BACKWARD_RANGE, MODULE_PREFIX

HERE = Path(__file__)
SOURCE = HERE.read_text(encoding="utf-8").splitlines()


@pytest.fixture(autouse=True)
def _own_lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This folder is the script's; whoever traces the tests themselves steps aside."""
    monkeypatch.setattr(line_tracer, "script_folder", lambda: str(HERE.parent))
    before = sys.gettrace()
    sys.settrace(None)
    torch.manual_seed(0)
    yield
    sys.settrace(before)


def at(mark: str) -> int:
    """The number of the one line of this file that ends with the comment `mark`."""
    lines = [number for number, text in enumerate(SOURCE, 1) if text.endswith(f"# @{mark}")]
    assert len(lines) == 1, mark
    return lines[0]


def traced(step: Callable[[], object], steps: int = 2, warm: int = 1) -> Slice:
    return observe(step, steps, mode="lines", warm=warm)


def lines_of(seen: Slice) -> dict[int, dict[str, Any]]:
    rows = [row for row in seen.captured.frames["lines"] if row["file"] == str(HERE)]
    assert len({row["line"] for row in rows}) == len(rows)
    return {row["line"]: row for row in rows}


def check_sums(seen: Slice) -> None:
    """Time is shared out once: never negative, never more than there was."""
    rows = seen.captured.frames["lines"]
    assert all(row["python_s"] >= 0 and row["operator_s"] >= 0 for row in rows)
    total = sum(row["python_s"] + row["operator_s"] for row in rows)
    assert total <= seen.wall_s + 2e-9  # stamps are whole nanoseconds
    # The step function's own lines are all there is but for the caller's loop, in which the
    # machine may have done something else.
    assert total > 0.5 * seen.wall_s


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight  # @in-module-sign
        y = self.linear(y)  # @in-module-call
        return y + x  # @in-module-return


NET = Net()
X = torch.randn(256, 64)


def signs() -> torch.Tensor:
    a = X @ X.T  # @matmul
    b = a + a  # @add
    c = -b  # @neg
    d = c[0]  # @index
    d += 1  # @iadd
    n = len("no operator here")  # @no-operator
    return d * n  # @mul


def many_lines() -> torch.Tensor:
    return torch.cat(
        [
            X @ X.T,  # @multi-first
            torch.relu(
                X @ X.T  # @multi-second
            ),
        ]
    )


def train() -> None:
    out = NET(X)  # @call-module
    loss = out.pow(2).mean()  # @loss
    loss.backward()  # @backward
    NET.zero_grad()


def test_operators_written_as_signs_land_on_their_line() -> None:
    seen = traced(signs)
    rows = lines_of(seen)
    for mark in ("matmul", "add", "neg", "index", "iadd", "mul"):
        assert rows[at(mark)]["operator_s"] > 0, mark
        assert rows[at(mark)]["calls"] == 2, mark
    assert rows[at("no-operator")]["operator_s"] == 0
    assert rows[at("matmul")]["operator_s"] > rows[at("iadd")]["operator_s"]
    assert rows[at("matmul")]["source"] == SOURCE[at("matmul") - 1]
    check_sums(seen)


def test_call_over_several_lines() -> None:
    rows = lines_of(traced(many_lines))
    assert rows[at("multi-first")]["operator_s"] > 0
    assert rows[at("multi-second")]["operator_s"] > 0


def test_operators_inside_a_module_are_on_the_modules_own_lines() -> None:
    seen = traced(train)
    rows = lines_of(seen)
    for mark in ("in-module-sign", "in-module-call", "in-module-return"):
        assert rows[at(mark)]["operator_s"] > 0, mark
    # The line that calls the module runs no operator itself, though a range of ours begins there.
    assert rows[at("call-module")]["operator_s"] == 0
    check_sums(seen)


def test_line_of_backward_has_the_operators_of_the_backward_pass() -> None:
    seen = traced(train)
    row = lines_of(seen)[at("backward")]
    host = seen.host()
    evaluates = host.names.where(lambda name: name.startswith("autograd::engine::evaluate"))
    inside = host.duration[evaluates].sum() * 1e-9
    assert row["operator_s"] >= 0.99 * inside
    assert row["calls"] == 2
    # Of what the line has in operators all but a trace is backward work; of the forward's nothing.
    assert 0.9 * row["operator_s"] < row["backward_s"] <= row["operator_s"]
    assert lines_of(seen)[at("loss")]["backward_s"] == 0
    assert row["device_s"] is None


def test_range_of_the_scripts_own_is_no_operator() -> None:
    def step() -> None:
        with torch.profiler.record_function("whole step"):  # @range
            X.sum()  # @in-range

    rows = lines_of(traced(step))
    assert rows[at("in-range")]["operator_s"] > 0
    assert rows[at("range")]["operator_s"] == 0


class Python(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)  # @sleep-in-function
        return x * 2  # @mul-in-function

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2  # @backward-in-function


def test_python_inside_an_operator_stands_on_its_own_lines() -> None:
    x = torch.randn(64, 64, requires_grad=True)

    def step() -> None:
        y = Python.apply(x)  # @apply
        y.sum().backward()  # @backward-of-function

    seen = traced(step)
    rows = lines_of(seen)
    assert rows[at("sleep-in-function")]["python_s"] >= 0.04
    # What was slept is not there a second time.
    apply = rows[at("apply")]["operator_s"]
    assert apply < rows[at("sleep-in-function")]["python_s"]
    assert rows[at("mul-in-function")]["operator_s"] > 0
    assert rows[at("backward-in-function")]["operator_s"] > 0
    assert rows[at("backward-of-function")]["backward_s"] > 0
    check_sums(seen)


def numbers() -> Iterator[torch.Tensor]:
    for size in (8, 16):
        taken = X[:size] @ X.T  # @in-generator
        yield taken
        time.sleep(0.02)  # @after-yield


def test_generator() -> None:
    def step() -> None:
        for value in numbers():
            time.sleep(0.001)  # @consumer
            value.sum()

    seen = traced(step)
    rows = lines_of(seen)
    assert rows[at("in-generator")]["operator_s"] > 0
    assert rows[at("in-generator")]["calls"] == 4
    assert rows[at("after-yield")]["python_s"] >= 0.08
    assert 0.004 <= rows[at("consumer")]["python_s"] < rows[at("after-yield")]["python_s"]
    check_sums(seen)


def halve(depth: int) -> torch.Tensor:
    if depth == 0:
        return X.sum()  # @deepest
    inner = halve(depth - 1)
    return inner / 2  # @on-the-way-back


def test_recursion() -> None:
    seen = traced(lambda: halve(5))
    rows = lines_of(seen)
    assert rows[at("deepest")]["calls"] == 2
    assert rows[at("on-the-way-back")]["calls"] == 10
    assert rows[at("on-the-way-back")]["operator_s"] > 0
    check_sums(seen)


def failing() -> None:
    X.sum()
    raise KeyError("on purpose")  # @raise


def test_exception_that_is_caught() -> None:
    def step() -> None:
        try:
            failing()
        except KeyError:
            time.sleep(0.02)  # @handler
        X.sum()  # @after-handler

    seen = traced(step)
    rows = lines_of(seen)
    assert rows[at("raise")]["calls"] == 2
    assert rows[at("handler")]["python_s"] >= 0.04
    assert rows[at("raise")]["python_s"] < rows[at("handler")]["python_s"]
    assert rows[at("after-handler")]["operator_s"] > 0
    check_sums(seen)


def hot() -> int:
    total = 0
    for number in range(60_000):
        total += number * number  # @hot
    X.sum()
    return total


def square(number: int) -> int:
    number *= number
    return number


def hot_calls() -> int:
    total = 0
    for number in range(60_000):
        total += square(number)
    return total


@pytest.mark.timed
@pytest.mark.parametrize("step", [hot, hot_calls])
def test_hot_loop_is_let_go_and_says_so(step: Callable[[], int]) -> None:
    seen = traced(step, steps=1, warm=0)
    slugs = [slug for slug, _ in seen.captured.notes]
    assert "lines-truncated" in slugs
    assert any(step.__name__ in text for _, text in seen.captured.notes)
    rows = lines_of(seen)
    own = [row for line, row in rows.items() if step.__code__.co_firstlineno <= line]
    first = rows[step.__code__.co_firstlineno]
    # No line of it has a count that stops at the budget and looks whole, and each says why.
    end = step.__code__.co_firstlineno + 6
    assert all(row["calls"] is None for row in own if row["line"] < end)
    assert all(f"({step.__name__})" in row["reason"] for row in own if row["line"] < end)
    assert first["python_s"] > 0.5 * seen.wall_s or step is hot_calls
    check_sums(seen)


class Counted(LineTracer):
    """Counts what the interpreter tells it: each time costs, whatever becomes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.events: dict[str, int] = {"call": 0, "line": 0, "return": 0, "exception": 0}

    def _global(self, frame: Any, event: str, argument: Any) -> Any:
        self.events[event] += 1
        return super()._global(frame, event, argument)

    def _local(self, frame: Any, event: str, argument: Any) -> Any:
        self.events[event] += 1
        return super()._local(frame, event, argument)


@pytest.mark.parametrize("step", [hot, hot_calls])
def test_events_and_stamps_of_a_hot_loop_are_bounded(step: Callable[[], int]) -> None:
    tracer = Counted()
    tracer.start()
    step()
    step()
    tracer.stop()
    # Of a call the interpreter tells always, of its lines and its end only where it is traced.
    assert tracer.events["call"] <= 2 * 60_000 + 10
    assert BUDGET < tracer.events["line"] < 3 * BUDGET
    assert tracer.events["return"] < 3 * BUDGET
    assert len(tracer.times) < 20 * BUDGET


class TimeUpError(Exception):
    """What a signal handler of the script's raises."""


@pytest.mark.parametrize("own", [False, True], ids=["scripts", "own"])
@pytest.mark.parametrize("place", ["_info", "_stamp"])
def test_error_in_the_tracer_ends_it_and_only_the_scripts_own_passes(place: str, own: bool) -> None:
    def handler(number: int, frame: Any) -> None:
        raise TimeUpError

    tracer: Any = LineTracer()
    original, calls = getattr(tracer, place), []

    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        calls.append(1)
        if len(calls) == 20:
            if own:
                raise KeyError("a defect")
            signal.raise_signal(signal.SIGUSR1)
        return original(*arguments, **keywords)

    raised, before = 0, signal.signal(signal.SIGUSR1, handler)
    try:
        tracer.start()
        setattr(tracer, place, interrupted)
        try:
            hot_calls()
        except TimeUpError:
            raised += 1
        assert sys.gettrace() is None
        hot_calls()
    finally:
        tracer.stop()
        signal.signal(signal.SIGUSR1, before)
    assert raised == (not own)
    assert len(calls) == 20
    assert tracer.ended == ("KeyError: 'a defect'" if own else "a signal's handler raised")
    # What comes after it is no line's time.
    assert tracer.places[-1] < 0
    assert len(tracer.places) == len(tracer.times) == len(tracer.runs)


def test_end_of_the_tracer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = LineTracer._stamp, []

    def fails(self: LineTracer, *arguments: Any, **keywords: Any) -> Any:
        calls.append(1)
        return 1 // 0 if len(calls) == 8 else original(self, *arguments, **keywords)

    monkeypatch.setattr(LineTracer, "_stamp", fails)
    notes = traced(signs, steps=2).captured.notes
    told = [text for slug, text in notes if slug == "lines-truncated"]
    assert told == ["lines were traced until ZeroDivisionError: integer division or modulo by zero"]


def test_recursive_function_over_budget_costs_no_more() -> None:
    def deep(left: int) -> int:
        total = 0
        for number in range(30):
            total += number
        return total + (deep(left - 1) if left else 0)

    tracer = LineTracer()
    tracer.start()
    deep(200)
    for _ in range(100):
        deep(200)
    tracer.stop()
    assert len(tracer.times) < 20 * BUDGET


def test_settrace_of_the_scripts_own_is_left_alone() -> None:
    def other(frame: Any, event: str, argument: Any) -> None:
        return None

    sys.settrace(other)
    try:
        with pytest.raises(RuntimeError, match="settrace"):
            LineTracer().start()
        assert sys.gettrace() is other
    finally:
        sys.settrace(None)

    tracer = LineTracer()
    tracer.start()
    sys.settrace(other)
    tracer.stop()
    try:
        assert sys.gettrace() is other
    finally:
        sys.settrace(None)


def test_nothing_is_left_on_frames() -> None:
    frame = sys._getframe()
    tracer = LineTracer()
    tracer.start()
    assert frame.f_trace is not None
    total = 0
    for number in range(BUDGET):
        total += number
    assert frame.f_trace_lines is False
    tracer.stop()
    tracer.stop()
    assert sys.gettrace() is None
    assert frame.f_trace is None
    assert frame.f_trace_lines is True


def test_frame_that_returns_is_not_kept_alive() -> None:
    import weakref

    class Big:
        pass

    tracer = LineTracer()

    def epoch() -> weakref.ref[Big]:
        big = Big()
        tracer.start()
        return weakref.ref(big)

    alive = epoch()
    try:
        assert alive() is None
    finally:
        tracer.stop()


def test_suspended_generator_is_let_go_later() -> None:
    def endless() -> Iterator[int]:
        number = 0
        while True:
            number += 1
            yield number

    generator = endless()
    tracer = LineTracer()
    tracer.start()
    next(generator)
    tracer.stop()
    stamps = len(tracer.times)
    sys.settrace(lambda *_: None)
    try:
        next(generator)
        next(generator)
    finally:
        sys.settrace(None)
    assert len(tracer.times) == stamps
    assert generator.gi_frame is not None
    assert generator.gi_frame.f_trace is None


def test_library_code_is_not_traced() -> None:
    seen = traced(lambda: nn.functional.gelu(re.sub("a", "b", "aaa") and NET(X)))
    files = {row["file"] for row in seen.captured.frames["lines"]}
    assert str(HERE) in files
    assert not any("torch" in Path(file).parts or file.endswith("re.py") for file in files)
    assert not any("profstack" in Path(file).parts[-2:] for file in files)


def test_whose_files_are_the_users(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert is_users(str(tmp_path / "train.py"), root)
    assert is_users(str(tmp_path / "lib" / "data.py"), root)
    assert is_users("/tmp/ipykernel_7/1234567.py", root)
    assert is_users("<ipython-input-3-abc>", root)
    assert not is_users("<frozen importlib._bootstrap>", root)
    assert not is_users(str(torch.__file__), root)
    assert not is_users(line_tracer.__file__, str(CHECKOUT))
    assert not is_users(str(tmp_path) + "-other/train.py", root)


def test_steps_left_out_are_not_counted() -> None:
    seen = observe(signs, 3, mode="lines", left_out=(1,))
    rows = lines_of(seen)
    assert rows[at("matmul")]["calls"] == 2
    kept = (seen.stamps[1] - seen.stamps[0]) + (seen.stamps[3] - seen.stamps[2])
    total = sum(row["python_s"] + row["operator_s"] for row in rows.values())
    assert total <= kept * (1 + 1e-6) + 1e-6


def test_module_level_code_that_is_already_running(tmp_path: Path) -> None:
    """The loop of a script without functions was entered long before the slice began."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """\
            import sys
            import torch
            sys.path.insert(0, TESTS)
            from torch_slice import observe_inline

            x = torch.randn(64, 64)
            slice_ = observe_inline("lines")
            slice_.begin()
            for step in range(3):
                y = x @ x
                z = y + 1
                slice_.step()
            rows = {row["line"]: row for row in slice_.end()["lines"]}
            print(rows[10]["calls"], rows[10]["operator_s"] > 0, rows[11]["operator_s"] > 0)
            """
        ).replace("TESTS", repr(str(HERE.parent)))
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=clean_environment(PYTHONPATH=str(CHECKOUT)),
        check=False,
    )
    assert done.stdout.split() == ["3", "True", "True"], done.stderr


class Event:
    """An event as Kineto tells it, of a machine with a device, which this one need not have."""

    def __init__(self, name: str, begin: int, end: int, **more: int) -> None:
        self._name, self._begin, self._end = name, begin, end
        self._more = (
            {"thread": 1, "made_on": 0, "correlation": 0, "linked": 0} | {"sequence": -1} | more
        )

    def name(self) -> str:
        return self._name

    def start_ns(self) -> int:
        return self._begin

    def duration_ns(self) -> int:
        return self._end - self._begin

    def start_thread_id(self) -> int:
        return self._more["thread"]

    def fwd_thread_id(self) -> int:
        return self._more["made_on"]

    def sequence_nr(self) -> int:
        return self._more["sequence"]

    def correlation_id(self) -> int:
        return self._more["correlation"]

    def linked_correlation_id(self) -> int:
        return self._more["linked"]

    def is_user_annotation(self) -> bool:
        return False


def stamped(stamps: list[tuple[int, int]]) -> LineTracer:
    """A tracer that has stamped the times at which lines of one function began."""
    tracer: Any = LineTracer()
    code = signs.__code__
    tracer.lines = [(code, line) for line in sorted({line for _, line in stamps})]
    tracer.places = [tracer.lines.index((code, line)) for _, line in stamps]
    tracer.times = [time for time, _ in stamps]
    tracer.runs = [True] * len(stamps)
    return tracer  # type: ignore[no-any-return]


def on_device(stamps: list[tuple[int, int]], events: list[Event], kernels: list[Event]) -> Any:
    """Rows by line of a slice from 0 to 1000 ns whose lines began at `stamps` of (time, line)."""
    tracer = stamped(stamps)
    seen = LineSlice(0, [0, 1000], kernels=kernels)
    rows = line_tables(tracer, read_host(events), seen)[0]["lines"]
    return {row["line"]: {name: _ns(row[name]) for name in _TIMES} for row in rows}


_TIMES = ("python_s", "operator_s", "backward_s", "device_s")


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


def test_kernels_stand_on_the_line_that_launched_them() -> None:
    events = [
        Event(SLICE_RANGE, 0, 1),
        Event("aten::linear", 100, 200),
        Event("aten::addmm", 120, 190, correlation=7),
        Event("aten::relu", 300, 350, correlation=8),
        # Another thread of the script's has more operators, and they are no line's.
        *(Event("aten::add", 100 + 10 * at, 105 + 10 * at, thread=9) for at in range(9)),
    ]
    kernels = [
        # They run long after the line that launched them.
        Event("gemm", 800, 900, linked=7),
        Event("relu", 900, 930, linked=8),
        Event("relu", 930, 940, linked=8),
        Event("of another library", 940, 950, linked=99),
    ]
    rows = on_device([(50, 1), (250, 2), (400, 3)], events, kernels)
    assert rows[1] == dict(zip(_TIMES, (100, 100, 0, 100), strict=True))
    assert rows[2] == dict(zip(_TIMES, (100, 50, 0, 40), strict=True))
    assert rows[3] == dict(zip(_TIMES, (600, 0, 0, 0), strict=True))


def test_backward_work_on_a_devices_thread_is_the_waiting_lines() -> None:
    evaluate = "autograd::engine::evaluate_function: MmBackward0"
    events = [
        Event(SLICE_RANGE, 0, 1),
        Event("aten::mm", 60, 90, correlation=1),
        Event(evaluate, 300, 400, thread=5, made_on=1),
        Event("aten::mm", 310, 390, thread=5, made_on=1, correlation=2),
        # Two devices' threads at once: the line waits for both only once.
        Event(evaluate, 350, 450, thread=6, made_on=1),
        # Somebody else's backward pass.
        Event(evaluate, 500, 550, thread=8, made_on=7),
    ]
    kernels = [Event("gemm", 700, 720, linked=1), Event("gemm", 800, 900, linked=2)]
    rows = on_device([(50, 1), (200, 2), (600, 3)], events, kernels)
    assert rows[1] == dict(zip(_TIMES, (120, 30, 0, 20), strict=True))
    assert rows[2] == dict(zip(_TIMES, (250, 150, 150, 100), strict=True))
    assert rows[3]["operator_s"] == 0


def test_an_operator_goes_on_behind_the_python_inside_it() -> None:
    # Line 1 calls an operator that calls back into line 2, and goes on in the operator.
    events = [Event(SLICE_RANGE, 0, 1), Event("Function", 100, 500), Event("aten::mul", 250, 280)]
    rows = on_device([(50, 1), (200, 2), (300, 1), (600, 3)], events, [])
    assert rows[1] == dict(zip(_TIMES, (150, 300, 0, None), strict=True))
    assert rows[2] == dict(zip(_TIMES, (70, 30, 0, None), strict=True))


def parts_of(seen: Slice) -> dict[tuple[str | None, int], dict[str, Any]]:
    """Rows of `module_lines` of this file, by module path and line."""
    rows = seen.captured.frames["module_lines"]
    parts = [row for row in rows if row["file"] == str(HERE)]
    found = {(seen.path(row["module_id"]), row["line"]): row for row in parts}
    assert len(found) == len(parts)
    return found


def test_the_parts_of_a_line_by_module_add_up_to_the_line() -> None:
    seen = traced(train, 3)
    lines = seen.captured.frames["lines"]
    parts = seen.captured.frames["module_lines"]
    for line in lines:
        own = [row for row in parts if (row["file"], row["line"]) == (line["file"], line["line"])]
        assert own
        for name in ("calls", "python_s", "operator_s", "backward_s"):
            assert sum(row[name] for row in own) == pytest.approx(line[name], abs=1e-12), name
        assert all(row["python_s"] >= 0 and row["operator_s"] >= 0 for row in own)


def test_a_line_stands_at_the_module_that_the_time_was_spent_in() -> None:
    parts = parts_of(traced(train, 3))
    sign, call, backward = at("in-module-sign"), at("in-module-call"), at("backward")
    assert parts["Net", sign]["calls"] == 3
    assert parts["Net", sign]["operator_s"] > 0
    assert ("Net.linear", sign) not in parts
    # The call's operators are the child's, its run and the way there are the caller's.
    assert parts["Net.linear", call]["operator_s"] > 0
    assert parts["Net.linear", call]["calls"] == 0
    assert parts["Net", call]["calls"] == 3
    assert parts["Net", call]["operator_s"] == 0
    # The one line of the backward pass is divided by whose forward made the work.
    for owner in ("Net", "Net.linear", "(gradient accumulation)"):
        assert parts[owner, backward]["backward_s"] > 0
    assert parts[None, backward]["calls"] == 3
    assert {row["operator_s"] for (_, line), row in parts.items() if line == at("no-operator")} <= {
        0
    }


def test_backward_work_on_a_devices_thread_stands_at_its_module() -> None:
    module, evaluate = MODULE_PREFIX + "3", "autograd::engine::evaluate_function: MmBackward0"
    forward = Event("aten::mm", 110, 190, correlation=1, sequence=5)
    events = [
        Event(SLICE_RANGE, 0, 1),
        Event(module, 100, 200),
        forward,
        Event(BACKWARD_RANGE, 290, 480),
        Event(evaluate, 300, 400, thread=5, made_on=1, sequence=5),
        Event("aten::mm", 310, 390, thread=5, made_on=1, correlation=2, sequence=5),
    ]
    kernels = [Event("gemm", 700, 720, linked=1), Event("gemm", 800, 900, linked=2)]
    tracer = stamped([(50, 1), (250, 2), (600, 3)])
    frames, notes = line_tables(tracer, read_host(events), LineSlice(0, [0, 1000], (), kernels))
    assert notes == []
    parts = {(row["module_id"], row["line"]): row for row in frames["module_lines"]}
    assert {name: _ns(parts[3, 1][name]) for name in _TIMES} == {
        "python_s": 20, "operator_s": 80, "backward_s": 0, "device_s": 20
    }  # fmt: skip
    assert _ns(parts[3, 2]["backward_s"]) == 100
    assert _ns(parts[3, 2]["device_s"]) == 100
    assert _ns(parts[None, 1]["python_s"]) == 100


def test_the_text_of_the_scripts_own_files_is_kept_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = traced(signs)
    kept = {row["file"]: row["text"] for row in seen.captured.frames["source_files"]}
    assert kept[str(HERE)] == HERE.read_text(encoding="utf-8")
    monkeypatch.setattr(torchtrace_lines, "LARGEST", 2000)
    monkeypatch.setattr(torchtrace_lines, "LARGEST_SUM", 3000)
    for name, lines in (("a", 190), ("b", 100), ("c", 300), ("d", 10)):
        (tmp_path / f"{name}.py").write_text("x = 'é é'\n" * lines, encoding="utf-8")
    files = [str(tmp_path / f"{name}.py") for name in "abcde"]
    rows = source_records(files, 0)
    assert [row["text"] is not None for row in rows] == [False, True, False, True, False]
    assert [row["bytes"] for row in rows] == [2280, 1200, 3600, 120, None]
    assert [row["reason"] is None for row in rows] == [row["text"] is not None for row in rows]
    assert "could not be read" in rows[4]["reason"]
