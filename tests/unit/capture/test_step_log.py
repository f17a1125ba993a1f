"""Rows of steps and slices: every time, flag and count, from steps of virtual time."""

import itertools
import json
import math
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from profstack.capture import step_log
from profstack.capture.module_names import ModuleNames
from profstack.capture.slices import SlicePlan
from profstack.capture.step_log import EVAL, HIDDEN, SWITCH, CompileLog, StepLog
from profstack.capture.step_rules import StepRule
from profstack.layer import SliceData
from profstack.stats.clock import Clock
from profstack.storage.folder import Writer, facts_of, read_tables
from tests.support.engine import table
from tests.support.tables import of
from tests.support.virtual_machine import Machine

WALLS = (0.013, 0.0071, 0.029, 0.0113, 0.0052)
CPUS = (0.011, 0.0023, 0.017, 0.0191, 0.0013)
CLEAN, SETTLE = SlicePlan("clean", (), 2, 3), SlicePlan("settle", (), 2, 1)
TIMED = (("a", "m"),)
approx = partial(pytest.approx, abs=1e-9)


class Logged:
    """A log in a folder, whose steps end when a test says so, beside the rows it must write.

    The model keeps what is known of each step and slice, in words of its own.
    """

    def __init__(self, folder, moments, clock=None):
        (folder / "logs").mkdir()
        self.moments, self.writer = moments, Writer(folder)
        self.table = partial(table, folder)
        self.log = StepLog(self.writer, clock or Clock(SimpleNamespace(), device=False), 90.0)
        self.slices, self.steps = [], []

    def slice(self, planned, steps, captured=None, *, quick=False, at_boundary=True, since=None):
        """A slice to its end; a step is `(wall_s, cpu_s, wait_s, flags, shape)`, or their head."""
        log, moments = self.log, self.moments
        start, cpu = moments.now if since is None else since, moments.cpu if since is None else 0.0
        assert log.begin_slice(planned, since_origin=since is not None) == log.start == start
        for number, given in enumerate(steps):
            usual = (0.5, 0.25, None, 0, None)
            wall_s, cpu_s, wait_s, flags, shape = (*given, *usual[len(given) :])
            begun, cpu_before = (start, cpu) if number == 0 else (moments.now, moments.cpu)
            moments.wait(wall_s, cpu_s)
            activity = None if wait_s is None else begun + wait_s
            if quick:
                log.quick_ends.append(moments.now)
                if flags:
                    log.flag(flags)
            else:
                log.rows.append((moments.now, moments.cpu, activity, flags, shape, None, 0.0))
            times = [begun - 90, moments.now - begun, None if quick else moments.cpu - cpu_before]
            self.steps.append([*map(known, times), wait_s and known(wait_s)])
        ended, cpu_s = moments.now, moments.cpu - cpu
        assert (log.count, log.last) == (len(steps), approx(ended))
        evaluated, total = log.left_out(), log.total
        moments.wait(0.75, 0.125)
        log.stop(at_boundary=at_boundary)
        assert log.stamps()[-1] == approx(ended)
        event = log.end_slice(planned, captured or {}, 0.625)
        assert (log.count, log.total) == (0, total)
        cpu_s = (cpu_s + 0.125 if at_boundary else None) if quick else cpu_s
        self.slices.append([start - 90, ended - start, cpu_s])
        return event, evaluated


def known(value):
    return None if value is None else approx(value)


@pytest.fixture
def logged(tmp_path, moments):
    made = Logged(tmp_path, moments)
    yield made
    made.writer.close()


@pytest.fixture
def recorded(logged, monkeypatch):
    limits = (StepLog.FLUSH, StepLog.ALL_WATCHED, StepLog.ALL_IF_SPARING)
    assert limits == (4096, 5_000, 1_000)
    monkeypatch.setattr(StepLog, "ALL_WATCHED", 5)
    log, rows = logged.log, {"functions": [{"slice": 0, "name": "f"}]}
    log.begin_plan("optimizer", "train")
    # The steps before the rule, and what layers saw of them.
    ends = tuple(itertools.accumulate(WALLS, initial=91.5))
    log.startup(StepRule("optimizer", 1, ends[0], ends[1:]), {})
    log.startup(StepRule("optimizer", 1, 93.0, (96.0,)), {"memory": SliceData(rows)})
    # A step whose beginning left no trace has no time.
    log.startup(StepRule("step", None, 97.0, (97.0,)), {})
    logged.slice(SETTLE, [()] * 3)
    logged.slice(SETTLE, [()] * 2)
    waits, flags = (0.004, None, 0.0, 0.011, 0.001), (0, EVAL, 0, EVAL | SWITCH, SWITCH)
    shapes = (None, (4, 3, 2), (), (7,), None)
    steps = list(zip(WALLS, CPUS, waits, flags, shapes, strict=True))
    event, evaluated = logged.slice(CLEAN, steps)
    told = of(event, "kind round layers steps total median_s mean_s")
    assert told == ["clean", 2, [], 5, 17, approx(0.0113), approx(math.fsum(WALLS) / 5)]
    assert evaluated == {1, 3}
    # Evaluation is left out of what layers counted that cannot cut.
    planned = SlicePlan("a", (("a", "timed"), ("b", "lines"), ("none", "lines")), 1, 3)
    captured = {"a": SliceData(rows), "b": SliceData(rows, holds_all=True)}
    captured["none"] = SliceData({"functions": []})
    steps = list(zip(WALLS, CPUS, [None] * 5, (0, EVAL, EVAL, 0, 0), strict=True))
    event, _ = logged.slice(planned, steps, captured)
    assert event["layers"] == ["a/timed", "b/lines", "none/lines"]
    # The next slice's number is behind those of all three.
    assert log.next_slice == 9
    # Steps of which only the ends are known: the clocks of the slice count to its end, and say
    # nothing where steps ended before that.
    for at_boundary in (True, False):
        logged.slice(CLEAN, steps, quick=True, at_boundary=at_boundary)
    # Where all steps evaluate, or none trains, nothing is left out.
    assert logged.slice(CLEAN, [(0.5, 0.5, None, EVAL)])[1] == set()
    log.begin_plan("module", "eval")
    assert logged.slice(CLEAN, [(0.5, 0.5, None, flag) for flag in (0, EVAL)])[1] == set()
    # Of the whole since the first line no layer has data. One without steps has no row.
    whole = SlicePlan("whole", (("a", "whole"),), 0, 1)
    logged.slice(whole, [()], since=90.0)
    event, _ = logged.slice(CLEAN, [])
    assert event == {"event": "slice", "kind": "clean", "steps": 0}
    for count in (3, 2, 4):
        logged.slice(SlicePlan("watch", (), 4, 1), [()] * count)
    # One that has begun at the end is counted, without a time and without moving the next.
    log.count_open_step()
    log.finish(ModuleNames())
    return logged


def test_a_recording_slice_by_slice(recorded, tmp_path):
    logged, found = recorded, recorded.table("slices")
    names = "slice kind layer mode plan round first_step steps counted_steps settle_steps"
    assert [" ".join(map(str, of(row, names))) for row in found] == [
        "0 startup None None 1 0 0 5 None 0", "1 memory memory discovery 1 0 5 1 1 0",
        "2 startup None None 1 0 6 1 None 0", "3 settle None None 1 2 7 3 3 3",
        "4 settle None None 1 2 10 2 2 2", "5 clean None None 1 2 12 5 5 2",
        "6 a a shared 1 1 17 5 3 0", "7 b b shared 1 1 17 5 5 0",
        "9 clean None None 1 2 22 5 5 0", "10 clean None None 1 2 27 5 5 0",
        "11 clean None None 1 2 32 1 1 0", "12 clean None None 2 2 33 2 2 0",
        "13 settle None None 2 0 35 1 1 0",
        "14 watch None None 2 4 36 3 3 0", "15 watch None None 2 4 39 2 2 0",
        "16 watch None None 2 4 41 4 4 0",
    ]  # fmt: skip
    times = "started_s wall_s cpu_s counted_wall_s"
    first, memory, _ = (of(row, times) for row in found[:3])
    assert first == [approx(1.5), approx(sum(WALLS)), None, None]
    assert memory == [approx(3.0), approx(3.0), None, approx(3.0)]
    expected = [*logged.slices[:4], logged.slices[3], *logged.slices[4:9], *logged.slices[10:]]
    taken = [of(row, "started_s wall_s cpu_s") for row in found[3:]]
    assert [list(map(known, each)) for each in expected] == taken
    less_s = sum(WALLS) - WALLS[1] - WALLS[2]
    counted = [approx(less_s if row["layer"] == "a" else row["wall_s"]) for row in found[3:]]
    assert [row["counted_wall_s"] for row in found[3:]] == counted
    stops = {row["layer"]: row["stop_s"] for row in found[3:]}
    assert stops == {None: None, "a": 0.625, "b": 0.625}
    assert len(logged.table("functions")) == 3
    timed = [row["slice"] for row in logged.table("thread_times")]
    assert set(timed) == {5, 9, 11, 12}
    steps = logged.table("steps")
    # Each second one where as many of the watch were written as are written one by one.
    assert [row["step"] for row in steps] == [*range(42), 43, 45]
    words = [["discovery"] * 7, [""] * 5, ["", "eval", "", "eval switch", "switch"]]
    # Round 1 has no step to settle: its first step has the price of the switch.
    words += [["switch", "eval", "eval", "", ""], *[["", "eval", "eval", "", ""]] * 2, ["eval"]]
    assert [row["flags"] for row in steps] == [*itertools.chain(*words), *[""] * 10, "partial"]
    assert {(row["plan"], row["phase"]) for row in steps[33:]} == {(2, "eval")}
    assert {(row["plan"], row["phase"]) for row in steps[:33]} == {(1, "train")}
    assert [row["wall_s"] for row in steps[:7]] == [*map(approx, WALLS), approx(3.0), None]
    assert [of(row, "started_s wall_s cpu_s wait_s") for row in steps[7:41]] == logged.steps[:34]
    sizes = [of(row, "batch_size shape") for row in steps[12:17]]
    assert sizes == [[None, None], [4, "4x3x2"], [None, None], [7, "7"], [None, None]]
    assert of(steps[-1], "wall_s device_s") == [None, None]
    memory = logged.table("memory")
    assert [row["step"] for row in memory[:6]] == [5, 6, 7, 10, 12, 17]
    assert memory[5]["t_s"] == approx(sum(logged.slices[2][:2]) + 0.75)
    assert memory[5]["rss_bytes"] > 1_000_000
    facts = facts_of(read_tables(tmp_path))
    assert facts["counts_by_phase"] == {"train": 33, "eval": 13}
    assert of(facts, "plan_2 compilations_reason") == [{"rule": "module", "phase": "eval"}, None]
    assert set(facts["thread_readings"]) == {"readings", "took_s", "reason"}


@pytest.mark.parametrize("sparing", [False, True])
def test_of_many_steps_of_the_watch_some_are_kept_and_those_that_are_slow(
    logged, monkeypatch, sparing
):
    logged.log.sparing = sparing
    monkeypatch.setattr(StepLog, "ALL_WATCHED", 80 if sparing else 8)
    monkeypatch.setattr(StepLog, "ALL_IF_SPARING", 8 if sparing else 1)
    logged.log.begin_plan("optimizer", "train")
    # 1.4 times the median is slow; one that is kept anyway counts like all others.
    slow = {3: (2.81, 1.0), 4: (9.0, 1.0, None, EVAL), 5: (2.79, 1.0)}
    second = [slow.get(number, (2.0, 1.0)) for number in range(8)]
    for steps in ([(1.0, 1.0)] * 8, second, [(0.5, 1.0)] * 4, [(1.0, 1.0)] * 8):
        logged.slice(SlicePlan("watch", (), 4, 1), steps)
    rows = logged.table("steps")
    assert [row["step"] for row in rows] == [*range(9), 10, 11, 12, 14, 16, 18, 20, 22, 24, 26]
    flags = {row["step"]: row["flags"] for row in rows if row["flags"]}
    assert flags == {11: "slow", 12: "eval"}
    # Each has its own time, whatever was left out before it.
    assert [of(row, "wall_s cpu_s") for row in rows[10:13]] == [
        *([approx(2.81), approx(1.0)], [approx(9.0), approx(1.0)], [approx(2.0), approx(1.0)])
    ]


def test_slices_of_layers_have_the_wait_of_their_thread_for_a_core(logged, monkeypatch):
    waited = iter((5.0, 5.25, 7.0, None, None))
    monkeypatch.setattr(step_log, "run_delay_s", lambda thread: next(waited))
    rows = {"functions": [{"slice": 0, "name": "f"}]}
    for planned in (SlicePlan("a", TIMED, 1, 3), CLEAN, *[SlicePlan("a", TIMED, 1, 3)] * 2):
        logged.slice(planned, [()] * 3, {"a": SliceData(rows)})
    assert [row["delay_s"] for row in logged.table("slices")] == [0.25, None, None, None]
    assert next(waited, "all read") == "all read"


@pytest.mark.parametrize("synchronised", [False, True])
@pytest.mark.parametrize(
    ("observers", "complete", "known"),
    [(TIMED, True, True), (TIMED, True, False), (TIMED, False, True), ((), True, True)],
)
def test_the_device_is_asked_where_steps_are_timed(
    tmp_path, moments, monkeypatch, observers, complete, known, synchronised
):
    machine = Machine(has_device=True)
    clock = machine.clock()
    logged = Logged(tmp_path, moments, clock)
    log = logged.log
    clock.device_memory = lambda: (2048, 4096)
    log.synchronised, machine.host_s = synchronised, moments.now
    planned = SlicePlan("a" if observers else "clean", observers, 2, 3)
    log.begin_slice(planned)
    # A clean step is waited for where that is asked for; no other one is.
    waited = synchronised and not observers
    for host_s, device_s in ((0.01, 0.03), (0.02, 0.05), (0.005, 0.011)):
        machine.launch(device_s, launch_s=host_s)
        moments.now = machine.host_s
        log.record_event()
        assert (machine.host_s == machine.device_s) is waited
        moments.now = machine.host_s
        log.rows.append((moments.now, moments.cpu, None, 0, None, None, 0.0))
    ended = machine.device_s
    log.stop(at_boundary=True)
    with monkeypatch.context() as patch:
        if not known:
            patch.setattr(clock, "elapsed_s", lambda first, second: None)
        log.wait_for_device(planned, complete=complete)
    # Behind a tool the last step ends when the device is done; else when the host was.
    by_device = (observers and complete and known) or waited
    assert log.last == approx(ended if by_device else 100.035)
    log.end_slice(planned, {}, 0.0)
    # The device begins each step as soon as the host has launched it, and it has time.
    times = [0.04, 0.07, 0.016] if waited else [0.04, 0.05, 0.011]
    assert [row["device_s"] for row in logged.table("steps")] == approx(times)
    row = logged.table("memory")[0]
    assert of(row, "device_allocated_bytes device_reserved_bytes") == [2048, 4096]
    for kind, timed in (("settle", False), ("clean", True), ("watch", True)):
        log.begin_slice(SlicePlan(kind, (), 2, 1))
        assert log.timed is timed
    logged.writer.close()


@pytest.fixture
def dynamo(monkeypatch):
    made = SimpleNamespace(known=[], graph_break_reasons=[], guard_failures={})
    made.get_compilation_metrics = lambda: made.known
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", made)
    clock = SimpleNamespace(time=lambda: 5000.0, perf_counter=lambda: 300.0)
    monkeypatch.setattr(step_log, "time", clock)
    return made


def compiled(**values):
    return SimpleNamespace(**{"co_name": "f", "start_time_us": 4_960_500_000, **values})


def test_what_was_compiled_since_is_a_row_each(dynamo):
    dynamo.known = [compiled(co_name="before")]
    log = CompileLog(270.0)
    assert log.frames() == {}
    dynamo.known += [
        compiled(co_filename="a.py", co_firstlineno=7, duration_us=2_500_000, is_forward=True),
        compiled(is_forward=False, cache_size=2, graph_op_count=9, recompile_reason="L['x']"),
    ]
    first, second = log.frames()["compilations"]
    # The recording began at 4970 seconds since 1970.
    known = [-9.5, 2.5, 0, "a.py", 7, "f", None]
    assert of(first, "t_s wall_s backward file line name compile_id") == known
    known = [1, 2, 9, "L['x']", None]
    assert of(second, "backward versions operators reason wall_s") == known
    assert log.frames() == {}
    # The script may clear dynamo's books; what comes then is new.
    dynamo.known = []
    assert log.frames() == {}
    dynamo.known = [compiled(fail_reason="os.environ['KEY'] == 'x'", is_forward=None)]
    (third,) = log.frames()["compilations"]
    assert of(third, "failure backward") == [HIDDEN, None]


def test_graph_breaks_with_the_innermost_frames(dynamo):
    log = CompileLog(0.0)
    frames = [SimpleNamespace(filename="a.py", lineno=line, name="f") for line in range(20)]
    dynamo.graph_break_reasons.append(SimpleNamespace(reason="print", user_stack=frames))
    stack = json.dumps([["a.py", line, "f"] for line in range(8, 20)])
    assert log.frames() == {"graph_breaks": [{"reason": "print", "stack": stack}]}
    assert log.frames() == {}
    dynamo.graph_break_reasons.append(SimpleNamespace(reason="getenv"))
    assert log.frames() == {"graph_breaks": [{"reason": HIDDEN, "stack": "[]"}]}
    dynamo.graph_break_reasons = [SimpleNamespace(reason="new")]
    assert [row["reason"] for row in log.frames()["graph_breaks"]] == ["new"]


def test_books_that_cannot_be_read_end_it_with_a_reason(dynamo):
    log, read = CompileLog(0.0), dynamo.get_compilation_metrics
    dynamo.get_compilation_metrics = lambda: 1 / 0
    assert (log.frames(), "ZeroDivisionError" in log.reason) == ({}, True)
    dynamo.get_compilation_metrics = read
    assert log.frames() == {}
    for rows, ended in ((2000, False), (2001, True)):
        dynamo.known = []
        log = CompileLog(0.0)
        dynamo.known = [compiled() for _ in range(rows)]
        assert len(log.frames()["compilations"]) == rows
        assert (log.reason is not None) is ended
