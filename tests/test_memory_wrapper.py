"""Memory by line: what a line takes stands on that line, and the script never notices."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import CHECKOUT, RunProfstack, clean_environment
from torch import nn

from profstack.capture.hooks import DISCOVER, TorchHooks
from profstack.capture.module_names import ModuleNames
from profstack.layer import SliceContext, SliceData
from profstack.readers.memory import lines as memory_lines
from profstack.readers.memory import readings as memory_readings
from profstack.readers.memory import readings as memoryreadings
from profstack.readers.memory import readings as memorysampler
from profstack.readers.memory import tracer as memorytrace
from profstack.readers.memory.readings import (
    CUDA,
    MALLOC,
    UNKNOWN,
    HeapCounter,
    MemorySampler,
    Readings,
)
from profstack.readers.memory.tracer import BUDGET, MemoryTracer
from profstack.readers.torchtrace import line_tracer
from profstack.wrappers.memory import MemoryWrapper, ModuleGrowth

HERE = Path(__file__)
SOURCE = HERE.read_text(encoding="utf-8").splitlines()
MIB = 1 << 20
# Pages of code that is run for the first time, and what glibc keeps: nothing a test looks for.
SLACK = 2 * MIB
KEPT: list[torch.Tensor] = []


@pytest.fixture(autouse=True)
def _own_lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This folder is the script's; whoever traces the tests themselves steps aside."""
    monkeypatch.setattr(line_tracer, "script_folder", lambda: str(HERE.parent))
    before = sys.gettrace()
    sys.settrace(None)
    torch.manual_seed(0)
    # What other tests gave back would be taken again, and the process not grow.
    ctypes.CDLL(None).malloc_trim(0)
    yield
    KEPT.clear()
    sys.settrace(before)


def at(mark: str) -> int:
    """The number of the one line of this file that ends with the comment `mark`."""
    lines = [number for number, text in enumerate(SOURCE, 1) if text.endswith(f"# @{mark}")]
    assert len(lines) == 1, mark
    return lines[0]


# A tensor of that many MiB, every page of it touched, by a function that is not the script's.
take: Callable[[int], torch.Tensor] = eval(
    compile("lambda mib: torch.ones(mib << 20, dtype=torch.uint8)", "/library.py", "eval"),
    {"torch": torch},
)


def observe(
    step: Callable[[], object],
    folder: Path,
    steps: int = 2,
    left_out: tuple[int, ...] = (),
    planned: int | None = 2,
) -> SliceData:
    """What the layer captures of `steps` calls of `step`, told of steps as the engine tells it."""
    wrapper = MemoryWrapper()
    wrapper.start(SliceContext(0, "lines", planned, folder))
    told: Any = wrapper.listener() if planned else None
    try:
        stamps = [time.perf_counter()]
        if told:
            told.step_begun(0)
        for number in range(steps):
            step()
            stamps.append(time.perf_counter())
            if told:
                told.step_ended(number + 1)
                told.step_begun(number + 1)
    finally:
        wrapper.stop()
    return wrapper.take(stamps, {}, left_out)


def rows_of(captured: SliceData) -> dict[int, dict[str, Any]]:
    """Rows by line of this file."""
    rows = [row for row in captured.frames["memory_lines"] if row["file"] == str(HERE)]
    assert len({row["line"] for row in rows}) == len(rows)
    return {row["line"]: row for row in rows}


def near(mib: float) -> Any:
    return pytest.approx(mib * MIB, abs=SLACK)


# -- whose memory it is ----------------------------------------------------------------------------


def takes_and_frees() -> None:
    held = take(40)  # @take
    held = held[:1].clone()  # @free
    KEPT.append(take(8))  # @keep
    del held


def test_growth_stands_on_its_line_with_its_sign(tmp_path: Path) -> None:
    takes_and_frees()
    rows = rows_of(observe(takes_and_frees, tmp_path))
    for mark, mib in (("take", 40), ("free", -40), ("keep", 8)):
        row = rows[at(mark)]
        assert row["allocated_bytes"] == pytest.approx(2 * mib * MIB, abs=20_000), mark
        assert row["second_source"] == MALLOC
        assert row["occurrences"] == 2
        assert row["source"] == SOURCE[at(mark) - 1]
    assert rows[at("take")]["largest_bytes"] == near(40)
    assert rows[at("keep")]["largest_bytes"] == near(8)


_RESIDENT = """\
import json, sys, time
import torch
from pathlib import Path
from profstack.readers.memory import readings as memoryreadings
from profstack.layer import SliceContext
from profstack.wrappers.memory import MemoryWrapper

if len(sys.argv) > 1:
    memoryreadings.rss_bytes = lambda: None
torch.ones(1)
wrapper = MemoryWrapper()
begun = time.perf_counter()
wrapper.start(SliceContext(0, "lines", 2, Path(".")))
for step in range(2):
    held = torch.ones(100 << 20, dtype=torch.uint8)
    del held
    torch.ones(100 << 20, dtype=torch.uint8)
    kept = torch.empty(100 << 20, dtype=torch.uint8)
    kept.fill_(1)
wrapper.stop()
taken = wrapper.take([begun, time.perf_counter()], {})
print(json.dumps(taken.frames["memory_lines"]))
"""


@pytest.mark.parametrize("arguments", [(), ("psutil",)])
def test_resident_set_in_a_process_of_its_own(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Where nothing was given back before that could be taken again; a line that only gives back
    has grown by 0 at most."""
    (tmp_path / "script.py").write_text(_RESIDENT)
    rows = {row["line"]: row for row in json.loads(plain(tmp_path, *arguments))}
    expected = {15: (200, 100), 16: (-200, 0), 17: (0, 100), 18: (-100, 100), 19: (200, 100)}
    for line, (increment, largest) in expected.items():
        assert rows[line]["increment_bytes"] == near(increment), line
        assert rows[line]["largest_bytes"] == near(largest), line
    # Memory that was taken and not touched is no part of the process yet.
    assert rows[18]["allocated_bytes"] == near(100)
    assert rows[15]["usage_bytes"] - rows[16]["usage_bytes"] == near(100)


def at_once() -> None:
    take(128)  # @at-once


def test_what_a_line_gives_back_itself_shows_as_its_largest(tmp_path: Path) -> None:
    at_once()
    row = rows_of(observe(at_once, tmp_path, steps=3))[at("at-once")]
    assert row["increment_bytes"] < 10 * MIB
    assert row["allocated_bytes"] == pytest.approx(0, abs=20_000)
    assert row["largest_bytes"] == near(128)


def reused_at_once() -> None:
    take(12)  # @reused-at-once


def test_largest_is_seen_where_memory_is_used_again(tmp_path: Path) -> None:
    # glibc gives back to the system what it has mapped for a tensor, and then maps less.
    take(30)
    row = rows_of(observe(reused_at_once, tmp_path, steps=10))[at("reused-at-once")]
    assert row["allocated_bytes"] == pytest.approx(0, abs=20_000)
    assert row["largest_bytes"] == near(12)


def reuses() -> None:
    for _ in range(4):
        held = torch.empty(20_000, dtype=torch.uint8)  # @reuse
        del held


def test_second_source_sees_what_the_resident_set_does_not(tmp_path: Path) -> None:
    """Memory that was given back and is taken again makes no process larger."""
    reuses()
    row = rows_of(observe(reuses, tmp_path))[at("reuse")]
    assert row["allocated_bytes"] == pytest.approx(8 * 20_000, abs=4_000)
    assert row["increment_bytes"] < 60_000


def inner() -> torch.Tensor:
    return take(24)  # @callee


def outer() -> None:
    KEPT.append(inner())  # @caller
    KEPT.clear()


def test_callers_line_has_not_what_the_called_function_took(tmp_path: Path) -> None:
    rows = rows_of(observe(outer, tmp_path))
    assert rows[at("callee")]["allocated_bytes"] == pytest.approx(48 * MIB, abs=20_000)
    assert rows[at("caller")]["allocated_bytes"] == pytest.approx(0, abs=20_000)
    assert rows[at("caller")]["largest_bytes"] == near(0)


def local_only() -> None:
    held = take(24)  # @local
    held.sum()


def lets_locals_go() -> None:
    local_only()  # @lets-go


def test_locals_are_given_back_on_the_line_that_called(tmp_path: Path) -> None:
    rows = rows_of(observe(lets_locals_go, tmp_path))
    assert rows[at("local")]["allocated_bytes"] == pytest.approx(48 * MIB, abs=20_000)
    assert rows[at("lets-go")]["allocated_bytes"] == pytest.approx(-48 * MIB, abs=20_000)
    assert rows[at("lets-go")]["largest_bytes"] <= SLACK


# -- what runs in odd ways -------------------------------------------------------------------------


def numbers() -> Iterator[int]:
    for number in range(3):
        held = take(4)  # @in-generator
        yield number
        del held  # @after-yield


def consumes() -> None:
    for _ in numbers():
        KEPT.append(take(2))  # @consumer
    KEPT.clear()


def test_generator(tmp_path: Path) -> None:
    rows = rows_of(observe(consumes, tmp_path))
    expected = {"in-generator": 24, "after-yield": -24, "consumer": 12}
    for mark, mib in expected.items():
        assert rows[at(mark)]["allocated_bytes"] == pytest.approx(mib * MIB, abs=20_000), mark
        assert rows[at(mark)]["occurrences"] == 6


def test_generator_that_runs_the_loop_was_entered_before_the_slice(tmp_path: Path) -> None:
    def steps() -> Iterator[None]:
        while True:
            KEPT.append(take(3))  # @in-older-generator
            yield

    loop = steps()
    next(loop)
    row = rows_of(observe(lambda: next(loop), tmp_path))[at("in-older-generator")]
    assert row["allocated_bytes"] == pytest.approx(6 * MIB, abs=20_000)
    assert row["occurrences"] == 2


def deep(left: int) -> None:
    if left:
        KEPT.append(take(1))  # @on-the-way-down
        deep(left - 1)


def test_recursion(tmp_path: Path) -> None:
    row = rows_of(observe(lambda: deep(5), tmp_path))[at("on-the-way-down")]
    assert row["allocated_bytes"] == pytest.approx(10 * MIB, abs=20_000)
    assert row["occurrences"] == 10


def failing() -> None:
    KEPT.append(take(4))  # @before-error
    raise KeyError("on purpose")  # @error


def test_exception_that_is_caught(tmp_path: Path) -> None:
    def step() -> None:
        try:
            failing()
        except KeyError:
            KEPT.append(take(2))  # @handler

    rows = rows_of(observe(step, tmp_path))
    assert rows[at("before-error")]["allocated_bytes"] == pytest.approx(8 * MIB, abs=20_000)
    assert rows[at("handler")]["allocated_bytes"] == pytest.approx(4 * MIB, abs=20_000)
    assert rows[at("error")]["occurrences"] == 2


def test_error_passes_through_with_its_own_traceback(tmp_path: Path) -> None:
    def told() -> list[str]:
        try:
            failing()
        except KeyError as error:
            names, trace = [], error.__traceback__
            while trace is not None:
                names.append(trace.tb_frame.f_code.co_name)
                trace = trace.tb_next
            return names
        return []

    found: list[list[str]] = []
    observe(lambda: found.append(told()), tmp_path)
    assert found == [["told", "failing"]] * 2


async def waits() -> None:
    await asyncio.sleep(0)
    KEPT.append(take(4))  # @after-await
    await asyncio.sleep(0)


def test_coroutines(tmp_path: Path) -> None:
    async def both() -> None:
        await asyncio.gather(waits(), waits())

    row = rows_of(observe(lambda: asyncio.run(both()), tmp_path))[at("after-await")]
    assert row["allocated_bytes"] == pytest.approx(16 * MIB, abs=20_000)
    assert row["occurrences"] == 4


def test_other_threads_are_not_traced(tmp_path: Path) -> None:
    def work() -> None:
        KEPT.append(take(1))  # @in-thread

    def step() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert at("in-thread") not in rows_of(observe(step, tmp_path))


def test_code_that_libraries_make_up_is_not_the_scripts(tmp_path: Path) -> None:
    from collections import namedtuple

    pair = namedtuple("pair", "first second")  # its __new__ stands in "<string>"
    files = {row["file"] for row in observe(lambda: pair(1, 2), tmp_path).frames["memory_lines"]}
    assert files == {str(HERE)}


# -- which steps count -----------------------------------------------------------------------------


def test_steps_left_out_and_what_follows_the_last_do_not_count(tmp_path: Path) -> None:
    wrapper = MemoryWrapper()
    wrapper.start(SliceContext(0, "lines", 3, tmp_path))
    told: Any = wrapper.listener()
    stamps = [time.perf_counter()]
    for number in range(4):
        KEPT.append(take(4))  # @each-step
        if number < 3:
            stamps.append(time.perf_counter())
            told.step_ended(number + 1)
            told.step_begun(number + 1)
    wrapper.stop()
    row = rows_of(wrapper.take(stamps, {}, (1,)))[at("each-step")]
    assert row["allocated_bytes"] == pytest.approx(8 * MIB, abs=20_000)
    assert row["occurrences"] == 2


def test_line_on_which_discovery_begins_counts(tmp_path: Path) -> None:
    """It calls the first module, and takes more than any later one."""
    wrapper = MemoryWrapper()

    def first_call() -> None:
        begun.append(time.perf_counter())
        wrapper.start(SliceContext(0, "lines", None, tmp_path))
        KEPT.append(take(8))

    begun: list[float] = []
    namespace: dict[str, Any] = {"first_call": first_call, "__name__": "__main__"}
    code = compile("first_call()\npass\n", str(HERE.parent / "made_up.py"), "exec")
    # Of the functions here only that one is the script's.
    exec(code, namespace)
    end = time.perf_counter()
    wrapper.stop()
    rows = {
        (Path(row["file"]).name, row["line"]): row
        for row in wrapper.take([begun[0], end], {}).frames["memory_lines"]
    }
    assert rows["made_up.py", 2]["occurrences"] == 1
    line = first_call.__code__.co_firstlineno + 3
    assert rows[HERE.name, line]["allocated_bytes"] == pytest.approx(8 * MIB, abs=20_000)
    assert rows[HERE.name, line - 1]["occurrences"] == 1


def test_growth_between_two_steps_is_no_lines(tmp_path: Path) -> None:
    """There the engine works, at the end of the very line on which the step ends."""
    wrapper = MemoryWrapper()
    wrapper.start(SliceContext(0, "lines", 2, tmp_path))
    told: Any = wrapper.listener()
    stamps = [time.perf_counter()]

    def boundary(number: int) -> None:
        stamps.append(time.perf_counter())
        told.step_ended(number)
        KEPT.append(take(8))
        told.step_begun(number)

    code = compile("for number in (1, 2):\n    boundary(number)\n", "/elsewhere.py", "exec")
    exec(code, {"boundary": boundary})
    stamps.append(time.perf_counter())
    wrapper.stop()
    captured = wrapper.take(stamps, {})
    # This function's own lines run in it too, which the engine's do not.
    total = sum(row["allocated_bytes"] for row in captured.frames["memory_lines"])
    assert total == pytest.approx(16 * MIB, abs=40_000) or total == pytest.approx(0, abs=40_000)


# -- hot loops -------------------------------------------------------------------------------------


def hot() -> int:
    total = 0
    for number in range(60_000):
        total += number * number
    return total


def square(number: int) -> int:
    number *= number
    return number


def hot_calls() -> int:
    return sum(square(number) for number in range(20_000))


@pytest.mark.parametrize("step", [hot, hot_calls])
def test_hot_loop_is_let_go_and_says_so(step: Callable[[], int], tmp_path: Path) -> None:
    captured = observe(step, tmp_path, steps=3)
    assert step.__name__ in str(captured.truncated) or "square" in str(captured.truncated)
    notes = [text for slug, text in captured.notes if slug == "lines-truncated"]
    assert any("test_memory_wrapper.py" in text for text in notes)


@pytest.mark.parametrize("step", [hot, hot_calls])
def test_events_of_a_hot_loop_are_bounded(step: Callable[[], int]) -> None:
    tracer = MemoryTracer()
    tracer.start()
    for _ in range(100):
        step()
        tracer.go_on()
    tracer.stop()
    assert tracer.readings.count < 4 * (BUDGET + 200)
    assert all(traced.spent <= BUDGET + 200 for traced in tracer.let_go.values())


def test_lines_behind_a_hot_loop_are_seen_in_every_step(tmp_path: Path) -> None:
    wrapper = MemoryWrapper()
    wrapper.start(SliceContext(0, "lines", 5, tmp_path))
    told: Any = wrapper.listener()
    stamps = [time.perf_counter()]
    for number in range(5):
        for _ in range(3_000):
            number += 0
        told.enter("module", "Net")
        told.leave("module", "Net")
        KEPT.append(take(2))  # @behind-the-loop
        stamps.append(time.perf_counter())
        told.step_ended(number + 1)
        told.step_begun(number + 1)
    wrapper.stop()
    row = rows_of(wrapper.take(stamps, {}))[at("behind-the-loop")]
    assert row["occurrences"] == 5
    assert row["allocated_bytes"] == pytest.approx(10 * MIB, abs=20_000)


def test_tracing_ends_after_so_many_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where no step is ever found it would go on for hours."""
    monkeypatch.setattr(memorytrace, "MOST_CALLS", 50)
    traced: list[bool] = []

    def step() -> None:
        for _ in range(60):
            json.dumps([])
        traced.append(sys.gettrace() is not None)

    captured = observe(step, tmp_path, planned=None)
    assert traced == [False, False]
    assert "after 50 calls" in str(captured.truncated)


def test_room_for_more_readings_is_no_lines_growth(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memoryreadings, "_ROOM", 16)
    captured = observe(hot, tmp_path, planned=None)
    assert captured.memory_bytes is not None
    assert captured.memory_bytes > 6 * 8 * 1000
    for row in captured.frames["memory_lines"]:
        # A second source that got too dear for the machine's load has no figure.
        assert abs(row["allocated_bytes"] or 0) < 10_000, row


# -- giving way, and leaving nothing ---------------------------------------------------------------


def test_a_trace_function_of_the_scripts_wins(tmp_path: Path) -> None:
    def other(frame: Any, event: str, argument: Any) -> None:
        return None

    def step() -> None:
        sys.settrace(other)
        hot()

    captured = observe(step, tmp_path)
    assert sys.gettrace() is other
    assert MemoryWrapper().busy_reason("lines") is not None
    sys.settrace(None)
    assert MemoryWrapper().busy_reason("lines") is None
    assert [slug for slug, _ in captured.notes] == ["gave-way"]
    assert not captured.frames


def test_a_script_that_switches_tracing_off_is_let_do_so(tmp_path: Path) -> None:
    captured = observe(lambda: sys.settrace(None), tmp_path)
    assert [slug for slug, _ in captured.notes] == ["gave-way"]
    assert sys.gettrace() is None


# A function in a file that is called as dynamo's is where it begins to compile a frame.
_CONVERT = "def compile_frame(work=lambda: None):\n    work()\n"
_NAMES: dict[str, Any] = {}
exec(compile(_CONVERT, str(HERE.parent / "torch/_dynamo/convert_frame.py"), "exec"), _NAMES)
compile_frame = _NAMES["compile_frame"]


class TimeUpError(Exception):
    """What a signal handler of the script's raises."""


def test_signal_that_arrives_in_the_tracer_is_the_scripts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def handler(number: int, frame: Any) -> None:
        raise TimeUpError

    wrapper = MemoryWrapper()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        wrapper.start(SliceContext(0, "lines", 1, tmp_path))
        tracer: Any = wrapper._tracer
        read = tracer.readings._resident

        def interrupted() -> int | None:
            if tracer.readings.count == 50:
                tracer.readings._resident = read
                signal.raise_signal(signal.SIGUSR1)
            return read()

        tracer.readings._resident = interrupted
        with pytest.raises(TimeUpError) as caught:
            hot()
    finally:
        wrapper.stop()
        signal.signal(signal.SIGUSR1, before)
    names, trace = [], caught.value.__traceback__
    while trace is not None:
        names.append(Path(trace.tb_frame.f_code.co_filename).name)
        trace = trace.tb_next
    assert set(names) == {HERE.name}
    assert sys.gettrace() is None
    taken = wrapper.take([0.0, time.perf_counter()], {})
    assert "signal" in str(taken.truncated)


@pytest.mark.parametrize("way", ["compiles", "calls", "stopped"])
def test_tracer_tells_when_it_has_ended_by_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    ended: list[bool] = []
    wrapper = MemoryWrapper()
    wrapper.on_end = lambda: ended.append(sys.gettrace() is None)
    if way == "calls":
        monkeypatch.setattr(memorytrace, "MOST_CALLS", 5)
    wrapper.start(SliceContext(0, "lines", 1, tmp_path))
    if way == "compiles":
        compile_frame()
    elif way == "calls":
        hot_calls()
    told = list(ended)
    tracer = wrapper._tracer
    assert tracer is not None
    # Nor is memory sampled for the rest of a slice that traces nothing.
    samples = tracer.readings.sampler.count
    time.sleep(0.02)
    assert way == "stopped" or tracer.readings.sampler.count == samples
    wrapper.stop()
    assert told == ended == ([] if way == "stopped" else [True])


def test_defect_of_our_own_ends_the_layer_and_not_the_script(tmp_path: Path) -> None:
    wrapper = MemoryWrapper()
    wrapper.start(SliceContext(0, "lines", 1, tmp_path))
    tracer: Any = wrapper._tracer
    del tracer.readings.times
    assert hot() > 0
    assert sys.gettrace() is None
    wrapper.stop()
    with pytest.raises(AttributeError, match="times"):
        wrapper.take([0.0, time.perf_counter()], {})


def test_nothing_is_left_on_frames_or_threads(tmp_path: Path) -> None:
    frame = sys._getframe()
    threads = [thread.name for thread in threading.enumerate()]
    tracer = MemoryTracer()
    tracer.start()
    assert frame.f_trace is not None
    assert [thread.name for thread in threading.enumerate()] == threads
    total = 0
    for number in range(BUDGET):
        total += number
    assert frame.f_trace is None
    tracer.stop()
    tracer.stop()
    assert (frame.f_trace, frame.f_trace_lines, sys.gettrace()) == (None, True, None)


def test_frame_that_returns_is_not_kept_alive() -> None:
    class Big:
        pass

    tracer = MemoryTracer()

    def epoch() -> weakref.ref[Big]:
        big = Big()
        tracer.start()
        return weakref.ref(big)

    alive = epoch()
    try:
        assert alive() is None
    finally:
        tracer.stop()


def test_tracer_goes_without_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        tracer = MemoryTracer()
        tracer.start()
        hot()
        tracer.stop()
        alive = weakref.ref(tracer)
        del tracer
        assert alive() is None
    finally:
        gc.enable()


def test_suspended_generator_is_let_go_later(tmp_path: Path) -> None:
    generator = numbers()
    observe(lambda: next(generator, None), tmp_path, steps=1)
    assert generator.gi_frame is not None  # type: ignore[attr-defined]
    sys.settrace(lambda *_: None)
    try:
        next(generator)
    finally:
        sys.settrace(None)
    assert generator.gi_frame.f_trace is None  # type: ignore[attr-defined]


def test_suspended_generator_holds_nothing_of_what_was_seen(tmp_path: Path) -> None:
    generator: Any = numbers()
    observe(lambda: next(generator, None), tmp_path, steps=1)
    readings = generator.gi_frame.f_trace.__self__.tracer.readings
    assert readings.memory_bytes == 0
    # It goes on all the same.
    assert next(generator) == 1


def test_discarded_slice_is_let_go_of_by_the_next_one_or_the_end(tmp_path: Path) -> None:
    wrapper = MemoryWrapper()
    for end in (lambda: wrapper.start(SliceContext(1, "lines", 1, tmp_path)), wrapper.close):
        wrapper.start(SliceContext(0, "lines", 1, tmp_path))
        tracer = wrapper._tracer
        assert tracer is not None
        wrapper.stop()
        assert tracer.readings.memory_bytes > MIB
        end()
        assert tracer.readings.memory_bytes == 0
        wrapper.stop()
    assert sys.gettrace() is None


def test_slice_after_a_slice_within_one_generator(tmp_path: Path) -> None:
    """The loop of a script may be a generator; each slice traces it anew."""

    def loop() -> Iterator[dict[int, dict[str, Any]]]:
        for _ in range(2):
            wrapper = MemoryWrapper()
            begun = time.perf_counter()
            wrapper.start(SliceContext(0, "lines", 1, tmp_path))
            yield {}
            KEPT.append(take(2))  # @in-looping-generator
            wrapper.stop()
            yield rows_of(wrapper.take([begun, time.perf_counter()], {}))

    found = [rows for rows in loop() if rows]
    assert [rows[at("in-looping-generator")]["occurrences"] for rows in found] == [1, 1]


# -- the second source -----------------------------------------------------------------------------


def test_counter_sees_what_torch_takes_to_the_byte() -> None:
    counter = HeapCounter()
    assert counter.reason is None
    for size in (100_000, 10 * MIB, 80 * MIB):
        before = counter.read()
        held = torch.empty(size, dtype=torch.uint8)
        after = counter.read()
        assert 0 <= after - before - size < 5_000
        del held
        assert counter.read() - before < 1_000


@pytest.mark.slow
def test_counter_that_is_too_dear_is_asked_no_more(tmp_path: Path) -> None:
    """A heap of a hundred thousand holes takes tens of milliseconds to count."""
    pieces = [torch.empty(100 + 7 * (number % 500)) for number in range(200_000)]
    del pieces[::2]
    captured = observe(takes_and_frees, tmp_path)
    row = rows_of(captured)[at("take")]
    assert row["allocated_bytes"] is None
    assert "no longer asked" in row["second_source"]
    assert row["increment_bytes"] is not None
    assert len(pieces) == 100_000


def test_other_allocators_are_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that was put in malloc's place leaves glibc's counters as they are."""
    assert not memory_readings._sees_tensors(memory_readings._Mallinfo)
    reason = "torch's CPU tensors do not come from glibc's malloc here"
    monkeypatch.setattr(memory_readings, "_mallinfo", lambda: (memory_readings._Mallinfo, reason))
    row = rows_of(observe(takes_and_frees, tmp_path))[at("take")]
    assert (row["allocated_bytes"], row["second_source"]) == (None, reason)
    assert row["increment_bytes"] is not None


def test_growth_that_could_not_be_read_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memoryreadings, "resident_reader", lambda: lambda: None)
    readings = Readings()
    readings.add(0, 0)
    assert readings.resident[0] == UNKNOWN
    assert readings.now().resident is None


# -- samples ---------------------------------------------------------------------------------------


def test_sampler_reads_until_it_is_stopped() -> None:
    sampler = MemorySampler(lambda: (7, UNKNOWN))
    sampler.start()
    while sampler.count < 5:
        time.sleep(0.001)
    sampler.stop()
    seen = sampler.count
    time.sleep(0.02)
    assert sampler.count == seen
    assert set(sampler.resident[:seen]) == {7}
    assert set(sampler.heap[:seen]) == {UNKNOWN}
    assert list(sampler.times[:seen]) == sorted(sampler.times[:seen])
    sampler.stop()


def test_sampler_that_fails_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    def fails() -> tuple[int, int]:
        raise OSError("gone")

    sampler = MemorySampler(fails)
    sampler.start()
    time.sleep(0.01)
    sampler.stop()
    assert capfd.readouterr() == ("", "")


def run_sampler(code: str) -> str:
    """What a process prints that has no other thread than the sampler's."""
    begin = """
        import os, signal, time
        def threads():
            return len(os.listdir("/proc/self/task"))
        # What is registered first is called last before a fork.
        at_fork = []
        os.register_at_fork(before=lambda: at_fork.append(threads()))
        from profstack.readers.memory.readings import MemorySampler
        sampler = MemorySampler(lambda: (1, 1))
        sampler.start()
        def more():
            before, until = sampler.count, time.perf_counter() + 20
            while sampler.count == before and time.perf_counter() < until:
                time.sleep(0.001)
            return sampler.count > before
        assert more() and threads() == 2
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(begin) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=clean_environment(PYTHONPATH=str(CHECKOUT)),
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells it")
def test_fork_finds_no_thread_of_the_samplers() -> None:
    printed = run_sampler(
        """
        import gc
        for _ in range(5):
            pid = os.fork()
            if not pid:
                sampler.stop()
                os._exit(threads() != 1)
            assert os.waitpid(pid, 0)[1] == 0
            # From Python 3.13 on it is begun again with the next collection.
            gc.collect()
            assert more(), "it goes on after the fork"
        sampler.stop()
        print(at_fork, threads())
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        print(threads())
        """
    )
    assert printed == "[1, 1, 1, 1, 1] 1\n1\n"


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="no signals to wait for")
def test_signal_that_the_script_has_blocked_passes_the_sampler_by() -> None:
    """A thread that does not block it would be given it, and the process would end."""
    printed = run_sampler(
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        os.kill(os.getpid(), signal.SIGUSR1)
        assert more()
        print(signal.sigtimedwait({signal.SIGUSR1}, 5).si_signo == signal.SIGUSR1)
        sampler.stop()
        """
    )
    assert printed == "True\n"


def test_thinned_samples_keep_the_highest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memorysampler, "MOST_SAMPLES", 8)
    sampler = MemorySampler(lambda: (0, 0))
    for number, (resident, heap) in enumerate(
        [(1, 0), (9, 0), (1, 0), (1, 0), (2, 4), (5, 0), (1, 0), (1, 0), (2, 0)]
    ):
        sampler.keep(number, resident, heap)
    assert list(sampler.resident[: sampler.count]) == [9, 1, 2, 1, 2]
    assert list(sampler.heap[: sampler.count]) == [0, 0, 4, 0, 0]
    assert list(sampler.times[: sampler.count]) == [1, 2, 4, 6, 8]


def test_forked_child_is_not_traced_and_writes_nothing(tmp_path: Path) -> None:
    wrapper = MemoryWrapper()
    wrapper.start(SliceContext(0, "lines", 1, tmp_path))
    child = os.fork()
    if not child:
        wrapper.abandon()
        left = sys.gettrace() is not None or bool(list(tmp_path.iterdir()))
        os._exit(int(left))
    _, status = os.waitpid(child, 0)
    wrapper.stop()
    assert os.waitstatus_to_exitcode(status) == 0


# -- modules ---------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(64, 4096, bias=False)
        self.narrow = nn.Linear(4096, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(self.wide(x))  # type: ignore[no-any-return]


def test_growth_of_modules(tmp_path: Path) -> None:
    """What a call took and still holds when it returns; children are part of it."""

    class Sink:
        waiting = follows_calls = follows_backward = False

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_, **__: None

    net, x = Net(), torch.ones(32, 64)
    net(x).sum().backward()
    hooks = TorchHooks(torch, Sink(), ModuleNames())
    hooks.install()
    hooks.set_mode(DISCOVER)
    wrapper = MemoryWrapper()
    try:
        wrapper.start(SliceContext(0, "lines", 4, tmp_path))
        hooks.listen(wrapper.listener())
        stamps = [time.perf_counter()]
        for number in range(4):
            if number == 3:
                net(x)
            net(x).sum().backward()
            stamps.append(time.perf_counter())
            wrapper.listener().step_ended(number + 1)  # type: ignore[union-attr]
        hooks.listen(None)
        wrapper.stop()
        captured = wrapper.take(stamps, hooks.names.by_number(), (3,))
    finally:
        wrapper.stop()
        hooks.remove()
    paths = {number: named.path for number, named in hooks.names.by_number().items()}
    rows = {paths[row["module_id"]]: row for row in captured.frames["module_memory"]}
    wide, narrow = 32 * 4096 * 4, 32 * 16 * 4
    expected = {"Net.wide": wide, "Net.narrow": narrow, "Net": wide + narrow}
    for path, held in expected.items():
        assert rows[path]["calls"] == 3
        assert rows[path]["host_net_bytes"] == pytest.approx(3 * held, abs=10_000), path
        assert rows[path]["device_net_bytes"] is None


# -- the device ------------------------------------------------------------------------------------


class Device:
    """Stands where torch keeps its functions on a CUDA device, which no machine of tests has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, recording: bool = False) -> None:
        self.live, self.peak = 1000, 1000
        self.said: list[Any] = []
        cuda = torch.cuda
        monkeypatch.setattr(cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(cuda, "memory_stats_as_nested_dict", self.stats)
        monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: recording, raising=False)
        monkeypatch.setattr(cuda.memory, "_record_memory_history", self.record)
        monkeypatch.setattr(cuda.memory, "_dump_snapshot", self.dump)

    def stats(self) -> Any:
        return {"allocated_bytes": {"all": {"current": self.live, "peak": self.peak}}}

    def record(self, enabled: str | None = "all", **keywords: Any) -> None:
        self.said.append(enabled)

    def dump(self, path: str) -> None:
        self.said.append("dump")
        Path(path).write_bytes(b"snapshot")

    def take(self, size: int) -> None:
        self.live += size  # @on-device
        self.peak = max(self.peak, self.live)


def test_device_memory_by_line_and_its_history(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = Device(monkeypatch)

    def step() -> None:
        device.take(5000)
        take(1)  # @on-host

    captured = observe(step, tmp_path)
    rows = rows_of(captured)
    row = rows[at("on-device")]
    assert (row["allocated_bytes"], row["second_source"]) == (10_000, CUDA)
    assert rows[at("on-host")]["second_source"] == MALLOC
    assert device.said == ["all", "dump", None]
    assert [artifact.path.name for artifact in captured.artifacts][-1] == "snapshot.pickle"


def test_history_that_the_script_records_is_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = Device(monkeypatch, recording=True)
    observe(hot, tmp_path)
    assert device.said == []
    assert not (tmp_path / "snapshot.pickle").exists()


@pytest.mark.parametrize("enabled", ["state", None])
def test_history_that_the_script_begins_or_ends_meanwhile_is_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, enabled: str | None
) -> None:
    """By whatever name it called it: all of them come to the same function of torch's."""
    said: list[Any] = []

    def switch(enabled: str | None, *_: Any) -> None:
        said.append(enabled)

    begin: Any = torch.cuda.memory._record_memory_history
    Device(monkeypatch)
    # As on a machine with a device: torch's own function over a switch that this build lacks.
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", begin)
    monkeypatch.setattr(torch._C, "_cuda_record_memory_history", switch, raising=False)
    captured = observe(lambda: begin(enabled), tmp_path, steps=1)
    assert said == ["all", enabled]
    assert torch._C._cuda_record_memory_history is switch  # type: ignore[attr-defined]
    (told,) = [text for slug, text in captured.notes if slug == "no-snapshot"]
    assert told.endswith("the script called torch.cuda.memory._record_memory_history meanwhile")
    assert not (tmp_path / "snapshot.pickle").exists()


def test_history_that_cannot_be_had_costs_no_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = Device(monkeypatch)

    def fails(path: str) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", fails)
    captured = observe(takes_and_frees, tmp_path)
    assert ("no-snapshot", "no history of the device's memory: RuntimeError: no room") in (
        captured.notes
    )
    assert rows_of(captured)[at("take")]["allocated_bytes"] == near(80)
    assert device.said == ["all", None]


def test_forked_child_leaves_the_device_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = Device(monkeypatch)
    wrapper = MemoryWrapper()
    wrapper.start(SliceContext(0, "lines", 1, tmp_path))
    wrapper.abandon()
    assert device.said == ["all"]


def test_peak_of_a_module_is_known_where_it_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    tracer = MemoryTracer()
    growth = ModuleGrowth(tracer)
    names = ModuleNames()
    net = nn.Sequential(nn.ReLU())
    names.root(net, None)
    tracer.start()
    for size in (4000, -4000, 2000):
        growth.enter("module", "Sequential")
        device.take(size)
        growth.leave("module", "Sequential")
        growth.step_ended(0)
    tracer.stop()

    def row(left_out: tuple[int, ...]) -> tuple[int, int | None]:
        (found,) = growth.records(3, names.by_number(), 0, left_out)
        return found["device_net_bytes"], found["device_peak_bytes"]

    assert row(()) == (2000, 4000)
    # Torch's peak is the script's: a later call that stays below it has no peak of its own.
    assert row((0,)) == (-2000, None)


# -- memory_profiler's files -----------------------------------------------------------------------


def test_memory_profilers_own_listing_shows_the_figures(tmp_path: Path) -> None:
    captured = observe(takes_and_frees, tmp_path)
    text = (tmp_path / "lines.txt").read_text(encoding="utf-8")
    shown = {
        int(line.split()[0]): line.split()
        for line in text.splitlines()
        if line.strip()[:1].isdigit() and "MiB" in line
    }
    for mark in ("take", "free", "keep"):
        _, usage, _, increment, _, occurrences, *source = shown[at(mark)]
        row = rows_of(captured)[at(mark)]
        assert float(usage) == round(row["usage_bytes"] / MIB, 1)
        assert float(increment) == round(row["increment_bytes"] / MIB, 1)
        assert int(occurrences) == 2
        assert source[-1] == f"@{mark}"


def test_files_are_those_that_mprof_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mprof import read_mprofile_file

    monkeypatch.setattr(sys, "argv", ["train.py", "--api-key", "abc123", "--lr", "1\n2"])
    wrapper = MemoryWrapper()
    for index in range(2):
        before = time.time()
        wrapper.start(SliceContext(index, "lines", 1, tmp_path))
        begun = time.perf_counter()
        at_once()
        wrapper.stop()
        captured = wrapper.take([begun, time.perf_counter()], {})
    assert [artifact.opens_in for artifact in captured.artifacts] == ["mprof plot", "any editor"]
    text = (tmp_path / "mprofile.dat").read_text(encoding="utf-8")
    assert text.count("CMDLINE") == 1
    assert "abc123" not in text
    read = read_mprofile_file(str(tmp_path / "mprofile.dat"))
    assert read["cmd_line"] == "python train.py --api-key *** --lr 1 2\n"
    assert read["timestamp"] == sorted(read["timestamp"])
    assert before <= read["timestamp"][-1] <= time.time()
    usage = max(row["usage_bytes"] for row in rows_of(captured).values())
    assert max(read["mem_usage"]) >= usage / MIB - 0.001
    assert min(read["mem_usage"]) > 50


def test_of_many_readings_the_highest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_lines, "MOST_LINES", 3)
    lines = list(
        memory_lines.plot_lines(range(8), [MIB * value for value in (1, 2, 9, 1, 1, 1, 3, 1)])
    )
    assert [float(line.split()[1]) for line in lines] == [9.0, 1.0, 3.0]


def test_listing_that_cannot_be_written_costs_no_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory_lines, "_memory_profiler", lambda: None)
    captured = observe(takes_and_frees, tmp_path)
    assert rows_of(captured)[at("take")]["allocated_bytes"] == near(80)
    assert "no-listing" in [slug for slug, _ in captured.notes]


def test_memory_profiler_finds_no_file_of_the_scripts(tmp_path: Path) -> None:
    """It imports `pdb`, and that `code` and `cmd`: names that a script may have for its own."""
    (tmp_path / "code.py").write_text("print('the script has imported its own')\n")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """\
            import sys
            from profstack.readers.memory import lines
            lines._memory_profiler()
            assert sys.meta_path[0].__name__ != "_Finder" and "pdb" not in sys.modules
            assert "IPython" not in sys.modules
            print("loaded", "memory_profiler" in sys.modules)
            import code, cmd
            print(cmd.Cmd.__module__)
            """
        ).replace('sys.meta_path[0].__name__ != "_Finder"', "'_Finder' not in repr(sys.meta_path)")
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=clean_environment(PYTHONPATH=str(CHECKOUT)),
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == "loaded True\nthe script has imported its own\ncmd\n"


# -- whole runs ------------------------------------------------------------------------------------

_TRAINING = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters())
for step in range(60):
    x = torch.randn(32, 64)
    {planted}
    loss = model(x).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
print(loss.item())
"""


class Run:
    """A recording that was made by `profstack run`."""

    def __init__(self, folder: Path) -> None:
        self._database: Any = sqlite3.connect(folder / "recording.sqlite")

    def rows(self, query: str) -> list[Any]:
        return self._database.execute(query).fetchall()  # type: ignore[no-any-return]

    def lines(self, mode: str, columns: str) -> dict[int, Any]:
        """The rest of the columns by the first, of the script's lines in slices of the mode."""
        query = (
            f"SELECT {columns} FROM memory_lines JOIN slices USING (slice) "
            f"WHERE mode = '{mode}' AND file LIKE '%script.py'"
        )
        return {row[0]: row[1:] for row in self.rows(query)}


def recorded(
    run_profstack: RunProfstack, folder: Path, text: str, *arguments: str
) -> tuple[Run, str]:
    """The recording of a script under the memory layer, and what the script printed."""
    script = folder / "script.py"
    script.write_text(text, encoding="utf-8")
    done = run_profstack(
        ["run", "-q", "--layers", "memory", "-o", "out", "script.py", *arguments],
        env={"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return Run(folder / "out"), done.stdout


def plain(folder: Path, *arguments: str) -> str:
    """What the same script prints under plain python."""
    return subprocess.run(
        [sys.executable, "script.py", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env=clean_environment(OMP_NUM_THREADS="1"),
        check=True,
    ).stdout


@pytest.mark.slow
def test_module_level_loop_from_the_first_step(run_profstack: RunProfstack, tmp_path: Path) -> None:
    """What is planted in every tenth step comes first, though its lines give it back themselves."""
    planted = "if step % 10 == 3: spare = torch.ones(16 * 2**20)"
    after = "if step % 10 == 7: torch.ones(24 * 2**20).sum()"
    run, printed = recorded(run_profstack, tmp_path, _TRAINING.format(planted=planted, after=after))
    assert printed == plain(tmp_path)
    first, later = (
        run.lines(mode, "line, occurrences, allocated_bytes") for mode in ("discovery", "lines")
    )
    # From the first call of a module on, in the frame that was running already.
    assert {10, 11, 12, 13} <= first.keys()
    assert all(first[line][0] == first[10][0] for line in (10, 11, 12, 13))
    parameters = 64 * 64 + 64 + 64 * 10 + 10
    # Adam makes two tensors like each parameter in its first step.
    assert 2 * 4 * parameters < first[13][1] < 2 * 4 * parameters + 60_000
    ((steps,),) = run.rows("SELECT steps FROM slices WHERE mode = 'lines'")
    assert steps >= 10
    assert {line: later[line][0] for line in range(7, 15)} == dict.fromkeys(range(7, 15), steps)
    largest = run.lines("lines", "line, largest_bytes")
    ordered = sorted(largest, key=largest.__getitem__, reverse=True)
    assert ordered[:2] == [14, 9]
    assert largest[14][0] == near(96)
    assert largest[9][0] == near(64)
    assert largest[ordered[2]][0] < 10 * MIB
    calls = run.rows(
        "SELECT path, calls, host_net_bytes FROM module_memory JOIN modules USING (module_id)"
    )
    by_path = {path: (count, held / count) for path, count, held in calls}
    assert by_path["Sequential.0"] == (steps, pytest.approx(32 * 64 * 4, abs=3_000))
    assert run.rows("SELECT status, truncated FROM layers") == [("recorded", None)]


@pytest.mark.slow
def test_hot_loop_of_a_run_is_bounded(run_profstack: RunProfstack, tmp_path: Path) -> None:
    planted = "for number in range(60_000): number += number"
    run, printed = recorded(
        run_profstack, tmp_path, _TRAINING.format(planted=planted, after="pass")
    )
    assert printed == plain(tmp_path)
    seen = run.lines("lines", "line, occurrences")
    ((steps,),) = run.rows("SELECT steps FROM slices WHERE mode = 'lines'")
    assert seen[9][0] <= BUDGET
    assert {line: seen[line][0] for line in range(10, 15)} == dict.fromkeys(range(10, 15), steps)
    ((truncated,),) = run.rows("SELECT truncated FROM layers")
    assert "<module>" in truncated


_COMPILED = """\
import sys
import torch
from torch import nn

def after(x):
    return x * 2 + 1

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return after(torch.relu(self.layer(x)))

net = Net()
model = torch.compile(net, backend="aot_eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(30):
    loss = model(torch.ones(4, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
from torch._dynamo.utils import counters
print(loss.item(), {name: dict(counters[name]) for name in ("frames", "stats", "graph_break")})
"""


@pytest.mark.slow
def test_compiled_script_has_its_own_graphs_alone(
    run_profstack: RunProfstack, tmp_path: Path
) -> None:
    run, printed = recorded(run_profstack, tmp_path, _COMPILED)
    assert printed == plain(tmp_path)
    status, reason = run.rows("SELECT status, reason FROM layers")[0]
    assert status != "recorded"
    assert "dynamo" in reason
