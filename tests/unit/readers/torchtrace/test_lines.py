"""Rows of source lines: every moment on one line, as operator's or Python's time, by its owner."""

from pathlib import Path

import pytest
import torch
from torch import nn

from profstack.readers.torchtrace import line_tracer
from profstack.readers.torchtrace.events import SLICE_RANGE, read_host
from profstack.readers.torchtrace.line_tracer import LONG_LINE_NS
from profstack.readers.torchtrace.lines import FEWEST_RUNS, LineSlice, line_tables
from profstack.storage import vocabulary as words
from tests.support.events import Event, events
from tests.support.torch_slices import observe

FILE = str(Path(__file__))
CODE = compile("pass", FILE, "exec")
BEGIN = Event(SLICE_RANGE, 0, 1)


def stamped(stamps, runs=None):
    """A tracer that has stamped when lines of one file began; None is no line."""
    tracer = line_tracer.LineTracer()
    tracer.lines = [(CODE, line) for line in sorted({line for _, line in stamps if line})]
    tracer.places = [tracer.lines.index((CODE, line)) if line else -1 for _, line in stamps]
    tracer.times = [moment for moment, _ in stamps]
    tracer.entered = [*tracer.times]
    tracer.in_window = [False] * len(stamps)
    tracer.passed = [0] * len(stamps)
    tracer.runs = runs or [True] * len(stamps)
    return tracer


def ns(row):
    """Python's, operators', backward and device time of a row in nanoseconds."""
    times = (row[f"{name}_s"] for name in ("python", "operator", "backward", "device"))
    return tuple(time if time is None else round(time * 1e9) for time in times)


def rows_of(stamps, made, **more):
    """Times by line, and by module and line, of a slice from 0 to 1000 ns."""
    host = read_host([BEGIN, *events(made)])
    frames, notes = line_tables(stamped(stamps), host, LineSlice(3, [0, 1000], **more))
    assert {row["slice"] for table in frames.values() for row in table} == {3}
    parts = {(row["module_id"], row["line"]): ns(row) for row in frames["module_lines"]}
    assert notes == []
    return {row["line"]: ns(row) for row in frames["lines"]}, parts


def test_every_moment_is_on_one_line_as_pythons_or_an_operators():
    # The step from 200 on does not count; nor does a run that began before, or one that goes on.
    stamps = [(10, 4), (60, 7), (90, None), (100, 11), (130, 4), (210, 7)]
    made = events("module:1 30-80; aten::mm 40-70; aten::add 75-78; module:2 110-150")
    host = read_host([Event(SLICE_RANGE, 19, 20), *made, *events("aten::mm 220-230")])
    tracer = stamped(stamps, [True, True, False, True, False, True])
    frames, notes = line_tables(tracer, host, LineSlice(0, [20, 200, 300], (1,)))
    figures = [
        {key(row): [row["calls"], *ns(row)[:2]] for row in frames[table] if any(ns(row)[:2])}
        for table, key in (
            ("module_lines", lambda row: (row["module_id"], row["line"])),
            ("lines", lambda row: row["line"]),
        )
    ]
    # An operator's time is the line's that called it, while that runs.
    assert figures[0] == {
        (None, 4): [0, 60, 0],
        (1, 4): [0, 10, 20],
        (2, 4): [0, 20, 0],
        (1, 7): [1, 17, 3],
        (None, 7): [0, 10, 0],
        (None, 11): [1, 10, 0],
        (2, 11): [0, 20, 0],
    }
    assert (figures[1], notes) == ({4: [0, 90, 20], 7: [1, 27, 3], 11: [1, 30, 0]}, [])


def test_kernels_are_on_the_line_that_launched_them():
    made = "module:3 90-210; aten::linear 100-200; aten::addmm 120-190 number=7;"
    made += "aten::relu 300-350 number=8;"
    # Another thread of the script's has more operators, and they are no line's.
    made += "".join(f"aten::add {100 + 10 * n}-{105 + 10 * n} thread=9;" for n in range(9))
    # They run long after the line that launched them; the last one is of another library.
    kernels = "gemm 800-900 linked=7; relu 900-930 linked=8; relu 930-940 linked=8; "
    kernels = events(kernels + "other 940-950 linked=99")
    lines, parts = rows_of([(50, 1), (250, 2), (400, 3)], made, kernels=kernels)
    assert lines == {1: (100, 100, 0, 100), 2: (100, 50, 0, 40), 3: (600, 0, 0, 0)}
    assert (parts[3, 1], parts[None, 1]) == ((20, 100, 0, 100), (80, 0, 0, 0))


def test_backward_work_on_a_devices_thread_is_the_waiting_lines():
    # Two devices' threads at once: the line waits for both only once; and another thread's pass.
    made = """
        module:3 55-95; aten::mm 60-90 number=1 sequence=5; pass 290-480
        function:X 300-400 thread=5 forward=1 sequence=5; aten::mm 310-390 thread=5 number=2
        function:X 350-450 thread=6 forward=1; function:X 500-550 thread=8 forward=7
    """
    kernels = events("gemm 700-720 linked=1; gemm 800-900 linked=2")
    lines, parts = rows_of([(50, 1), (200, 2), (600, 3)], made, kernels=kernels)
    assert lines == {1: (120, 30, 0, 20), 2: (250, 150, 150, 100), 3: (400, 0, 0, 0)}
    # The functions' own time as they ran; what runs beside the first one has no owner of its own.
    owned = {owner: times for (owner, line), times in parts.items() if line == 2}
    assert [sum(column) for column in zip(*owned.values(), strict=True)] == list(lines[2])
    assert (parts[3, 1], owned[3][1:]) == ((10, 30, 0, 20), (50, 50, 100))


def test_what_a_closure_does_is_nobodys_and_around_it_the_optimizers():
    made = "step 50-600 user=1; closure 80-500; module:1 100-200; aten::add 210-240;"
    made += "aten::mul 520-530"
    lines, parts = rows_of([(10, 1), (300, 2)], made)
    assert lines == {1: (260, 30, 0, None), 2: (690, 10, 0, None)}
    none, optimizer, net = ({1: (130, 30), 2: (600, 0)}, {1: (30, 0), 2: (90, 10)}, {1: (100, 0)})
    for owner, wanted in ((None, none), (words.OPTIMIZER, optimizer), (1, net)):
        assert {line: times[:2] for (of, line), times in parts.items() if of == owner} == wanted


HOT = compile("def hot():\n  a\n  b\n  c", FILE, "exec").co_consts[0]
BUDGET = 30


def hot_rows(windows, left_out=(), long=0):
    """Rows of a function whose lines 2 and 3 were timed, then counted, and timed in windows.

    In the first runs they take 20 and 10 ns, in windows 30 and 40; line 3 is once a long one.
    """
    tracer, at = stamped([]), 0
    info = tracer._codes[id(HOT)] = line_tracer._CodeInfo(HOT, own=True)
    info.counted = {2: 700, 3: 900, 4: -3}
    lines = [(2, 20, False), (3, 10, False)] * BUDGET + [(2, 30, True), (3, 40, True)] * windows
    for line, length, in_window in [*lines, *[(3, long, False)] * bool(long), (None, 0, False)]:
        tracer.times.append(at)
        tracer.entered.append(at)
        tracer.places.append(tracer.place_of(HOT, line) if line else -1)
        tracer.runs.append(line is not None)
        tracer.in_window.append(in_window)
        tracer.passed.append(0)
        at += length
    edges = [0, at, at + 1] if left_out else [0, at + 1]
    frames, notes = line_tables(tracer, read_host([BEGIN]), LineSlice(0, edges, left_out))
    assert notes == []
    return {row["line"]: row for row in frames["lines"]}


@pytest.mark.parametrize("windows", [FEWEST_RUNS, FEWEST_RUNS - 1])
def test_counted_runs_of_a_line_take_what_those_in_windows_do_or_all_where_they_are_few(windows):
    rows = hot_rows(windows, long=LONG_LINE_NS)
    for line, first, later, count, more in ((2, 20, 30, 700, 0), (3, 10, 40, 900, LONG_LINE_NS)):
        timed = BUDGET * first + windows * later
        few = windows < FEWEST_RUNS
        samples = windows + BUDGET * few
        mean = timed / samples if few else later
        assert rows[line]["python_s"] * 1e9 == pytest.approx(timed + count * mean + more)
        assert rows[line]["calls"] == BUDGET + windows + count + (more > 0)
        assert (rows[line]["samples"], rows[line]["reason"]) == (samples, None)
    # Where a step is left out, the runs of the others are not known.
    assert [hot_rows(40, left_out=[1])[line]["calls"] for line in (2, 3)] == [None, None]


def test_a_run_is_long_from_a_limit_on():
    at_limit, below = (hot_rows(0, long=LONG_LINE_NS - less)[3] for less in (0, 1))
    assert (at_limit["samples"], below["samples"]) == (BUDGET, BUDGET + 1)


def test_what_a_stamp_costs_is_taken_from_both_ends_of_a_line():
    tracer = stamped([(50, 1), (250, 2)])
    tracer.costs = line_tracer.TracingCosts(stamp_ns=11)
    host = read_host([BEGIN, *events("module:3 40-300; aten::mm 50-60; aten::add 240-250")])
    frames, _ = line_tables(tracer, host, LineSlice(0, [0, 1000]))
    [row] = [row for row in frames["lines"] if row["line"] == 1]
    # Five nanoseconds at its begin and six at its end.
    assert ns(row)[:2] == (200 - 11 - 9, 5 + 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        y = x @ self.weight  # @sign
        y = self.linear(y)  # @child
        return y + x  # @return


class Python(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2  # @in-function

    @staticmethod
    def backward(ctx, grad):
        return grad * 2  # @in-backward


def batches():
    for size in (8, 16):
        yield torch.ones(size, 64)  # @in-generator


NET = Net()


def program():
    for x in batches():
        out = NET(x)  # @call
        loss = Python.apply(out).pow(2).mean()  # @loss
        loss.backward()  # @backward
    with torch.profiler.record_function("the_script::own"):  # @range
        d = out[0]  # @index
        d = -d  # @neg
    len("no operator here")  # @none


def test_operators_are_on_the_lines_that_call_them(monkeypatch):
    monkeypatch.setattr(line_tracer, "script_folder", lambda: str(Path(FILE).parent))
    seen = observe(program, 3, mode="lines", warm=1)
    source = Path(FILE).read_text(encoding="utf-8").splitlines()
    at = {text.split("# @")[1]: number for number, text in enumerate(source, 1) if "  # @" in text}
    rows = {row["line"]: row for row in seen.captured.frames["lines"] if row["file"] == FILE}
    calls = dict.fromkeys([*at][:9], 6) | dict.fromkeys(("index", "neg", "none"), 3)
    assert {mark: rows[at[mark]]["calls"] for mark in calls} == calls
    without = {mark for mark in calls if not rows[at[mark]]["operator_s"]}
    # Of the forward's lines nothing is backward work.
    backward = {mark for mark in calls if rows[at[mark]]["backward_s"]}
    assert (without, backward) == ({"call", "none"}, {"backward", "in-backward"})
    assert rows[at["range"]]["operator_s"] == 0
    whole = sum(row["python_s"] + row["operator_s"] for row in rows.values())
    assert 0 < whole <= seen.wall_s + 2e-9  # stamps are whole nanoseconds
    text = {row["file"]: row["text"] for row in seen.captured.frames["source_files"]}
    assert text[FILE].splitlines() == source
    table = seen.captured.frames["module_lines"]
    parts = {(seen.path(row["module_id"]), row["line"]): row for row in table}
    assert parts["Net", at["child"]]["operator_s"] == parts["Net.linear", at["child"]]["calls"] == 0
    assert parts["Net.linear", at["child"]]["operator_s"] > 0
    # only operators inside no other one.
    table = seen.captured.frames["line_operators"]
    found = {(row["line"], row["operator"]): row for row in table if row["file"] == FILE}
    linear = found[at["child"], "aten::linear"]
    assert (seen.path(linear["module_id"]), linear["calls"]) == ("Net.linear", 6)
    assert (found[at["neg"], "aten::neg"]["calls"], (at["child"], "aten::addmm") in found) == (3, 0)
    for owner in ("Net", "Net.linear", "(gradient accumulation)"):
        assert parts[owner, at["backward"]]["backward_s"] > 0
