"""Lines traced in odd code, with memory that the tests set: nothing here depends on a real heap."""

import gc
import inspect
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch  # noqa: F401  # the tracer asks what the script has loaded

from profstack.readers.memory import tracer as memory_tracer
from profstack.readers.memory.lines import line_figures
from profstack.readers.memory.tracer import BUDGET, MemoryTracer
from profstack.wrappers.memory import MemoryWrapper
from tests.support.set_memory import LIBRARY, marked, memory_is_set, starts

FILE = str(Path(__file__).with_name("script.py"))
SCRIPT = """
import collections, threading
PAIR = collections.namedtuple("PAIR", "first second")
def inner():
    held = take(40)  # @take
    held = take(3)  # @replace
    KEPT.append(take(8))  # @keep
    return held
def outer():
    KEPT.append(inner())  # @caller
    inner()  # @lets-go
def numbers():
    for number in range(3):
        held = take(4)  # @in-generator
        yield number
        del held  # @after-yield
def consumes():
    for _ in numbers():
        KEPT.append(take(2))  # @consumer
def failing():
    KEPT.append(take(4))  # @before-error
    raise KeyError("on purpose")  # @error
def catches():
    try:
        failing()
    except KeyError:
        KEPT.append(take(2))  # @handler
def work():
    KEPT.append(take(1))  # @in-thread
def on_a_thread():
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    PAIR(1, 2)  # whose __new__ is in "<string>"
def at_a_boundary(tracer):
    ends_step(tracer.pause, tracer.go_on)  # @boundary
    HEAP[0] += 3  # @behind-the-boundary
    tracer.stop()
def hot(times):
    total = 0
    for number in range(times):
        total += number
    return total
def square(number):
    number *= number
    return number
def hot_calls(times):
    return sum(square(number) for number in range(times))
def epoch(tracer):
    big = {1, 2}
    tracer.start()
    return weakref.ref(big)
"""
AT = marked(SCRIPT)
OWN = {**LIBRARY, "weakref": weakref}
exec(compile(SCRIPT, FILE, "exec"), OWN)
hot, square = OWN["hot"], OWN["square"]


@pytest.fixture(autouse=True)
def _own_lines(monkeypatch):
    with memory_is_set(monkeypatch, __file__):
        yield


def begun(**how):
    tracer = MemoryTracer()
    tracer.start(**how)
    return tracer


def grown(tracer):
    """Growth and runs of the marked lines of the script."""
    found = line_figures(tracer, [0.0, 9e9])
    assert {file for file, _ in found} <= {__file__, FILE}
    known = {mark: found[FILE, line] for mark, line in AT.items() if (FILE, line) in found}
    return {mark: (each.malloc_bytes, each.occurrences) for mark, each in known.items()}


# With its sign, and not what the called function took on the caller's line.
OUTER = {"take": (160, 4), "replace": (4 * (3 - 40), 4), "keep": (32, 4), "caller": (0, 2)}


@pytest.mark.parametrize(("step", "expected"), [
    ("outer", OUTER | {"lets-go": (2 * -3, 2)}),
    ("consumes", {"in-generator": (24, 6), "after-yield": (-24, 6), "consumer": (12, 6)}),
    ("catches", {"before-error": (8, 2), "error": (0, 2), "handler": (4, 2)}), ("on_a_thread", {}),
])  # fmt: skip
def test_growth_is_on_the_line_of_the_script_that_ran(step, expected):
    tracer = begun()
    for _ in range(2):
        OWN[step]()
    tracer.stop()
    assert (tracer.ended, grown(tracer)) == (None, expected)


def test_growth_between_two_steps_is_no_lines():
    tracer = begun()
    # The engine works at the end of the very line on which the step ends.
    OWN["at_a_boundary"](tracer)
    found = grown(tracer)
    assert (found["boundary"], found["behind-the-boundary"][0]) == ((12, 1), 3)
    # What ran before the first step of a slice is dropped.
    tracer = MemoryTracer()
    assert starts(tracer) == (1, 1)
    tracer.stop()
    count = tracer.readings.count
    for act in (tracer.pause, tracer.go_on, tracer.wake):
        act()
    assert tracer.readings.count == count


def test_events_of_a_hot_loop_are_bounded():
    # The budget is a promise of the layer's description.
    assert f"first {BUDGET:,} events" in MemoryWrapper.description.does_not_measure
    for step in (hot, OWN["hot_calls"]):
        tracer = begun()
        for _ in range(100):
            step(BUDGET)
            tracer.go_on()
        tracer.stop()
        assert {each.code.co_name for each in tracer.let_go.values()} & {"hot", "square"}
        assert BUDGET < max(each.spent for each in tracer.let_go.values()) <= BUDGET + 200
        assert BUDGET < tracer.readings.count < 4 * (BUDGET + 200)


@pytest.mark.parametrize(("calls", "rests"), [(50, set()), (51, {"square"})])
def test_a_function_rests_after_so_many_lines_in_a_row(calls, rests):
    # Two lines a call; the limit is 100.
    tracer = begun()
    list(map(square, range(calls)))
    tracer.stop()
    assert {each.code.co_name for each in tracer.let_go.values()} == rests


def ending():
    """A tracer, and whether tracing and sampling were off each time that it told of its end."""
    told, stopped = [], []
    tracer = MemoryTracer(lambda: told.append(sys.gettrace() is None and bool(stopped)))
    stop = tracer.readings.sampler.stop
    tracer.readings.sampler.stop = lambda: stopped.append(stop())
    return tracer, told


def test_it_ends_after_so_many_calls_when_dynamo_compiles_or_by_another(monkeypatch):
    assert 10**6 < memory_tracer.MOST_CALLS < 4 * 10**6
    file, names = str(Path(__file__).parent / "torch/_dynamo/convert_frame.py"), {}
    exec(compile("def compile_frame():\n    pass\n", file, "exec"), names)
    tracer, told = ending()
    tracer.start()
    names["compile_frame"]()
    assert (tracer.ended, told, sys.gettrace()) == (memory_tracer.COMPILES, [True], None)
    tracer.stop()
    # Where no step is ever found it would go on for hours.
    monkeypatch.setattr(memory_tracer, "MOST_CALLS", 50)
    tracer, told = ending()
    tracer.start()
    list(map(square, range(49)))
    assert tracer.running
    list(map(square, range(2)))
    assert (tracer.running, "after 50 calls" in str(tracer.ended)) == (False, True)
    tracer.stop()
    assert told == [True]
    # A trace function of the script wins.
    for other in (None, lambda frame, event, argument: None):
        tracer = begun()
        sys.settrace(other)
        hot(10)
        tracer.stop()
        assert (sys.gettrace(), tracer.ended) == (other, memory_tracer.OTHER_TRACER)
    with pytest.raises(RuntimeError, match="settrace"):
        MemoryTracer().start()


def test_nothing_is_left_on_frames_or_threads():
    frame, threads, told = inspect.currentframe(), threading.enumerate(), []
    tracer = MemoryTracer(lambda: told.append("ended"))
    tracer.start()
    assert (frame.f_trace is not None, threading.enumerate()) == (True, threads)
    tracer.stop()
    tracer.stop()
    assert (frame.f_trace, frame.f_trace_lines, sys.gettrace()) == (None, True, None)
    assert (told, tracer.ended) == ([], None)
    # A frame that returns is not kept alive, and a tracer goes without the collector.
    tracer = MemoryTracer()
    held = OWN["epoch"](tracer)()
    tracer.stop()
    gc.collect()
    gc.disable()
    try:
        tracer = begun()
        hot(1000)
        tracer.stop()
        alive = weakref.ref(tracer)
        del tracer
        assert (alive(), held) == (None, None)
    finally:
        gc.enable()
