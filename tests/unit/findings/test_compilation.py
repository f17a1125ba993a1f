"""Findings on torch.compile: what is compiled again, what it costs, and where graphs end."""

import json
import os
from statistics import median
from types import SimpleNamespace

import pytest

from profstack.code_owner import FACT
from profstack.findings.compilation import compiling, failed_guard, kind_of, varying_size
from profstack.storage.reader import Recorded
from tests.support.findings import PLACES, TRAIN, links, report_of
from tests.support.recordings import CLEAN_S, Run
from tests.support.tables import cases, near, of


class Compiled:
    """A recording of 60 steps of 10 ms, and what was compiled in them."""

    def __init__(self, folder):
        self.run = Run(folder)
        self.run.writer.facts({FACT: PLACES})
        self.rows, self.breaks = [], []
        self.run.clean(60)

    def compile(self, step=0, guard=None, wall_s=0.006, **fields):
        """A version of train.py's `f`; the first one has number 0."""
        number = sum(not row.get("backward") for row in self.rows)
        known = {"t_s": 1.0 + (step + 0.1) * CLEAN_S, "wall_s": wall_s, "versions": number}
        known |= {"compile_id": f"0/{number}", "name": "f", "file": TRAIN, "line": 3, "backward": 0}
        reason = None if guard is None else f"0/{number - 1}: {guard}"
        self.rows.append({**known, "reason": reason, **fields})

    def recorded(self):
        self.run.writer.write({"compilations": self.rows, "graph_breaks": self.breaks})
        self.run.writer.close()
        return Recorded(self.run.folder)

    def told(self, **changes):
        return compiling(self.recorded(), report_of(**{"step_s": CLEAN_S, **changes}))

    def counters(self, *steps, **more):
        """The first version, then one for each step whose guard is on a number."""
        self.compile()
        for step in steps:
            self.compile(step, f"L['n'] == {step}", **more)
        return self


@pytest.fixture
def made(tmp_path):
    return Compiled(tmp_path / "rec")


def test_a_value_that_changes_twice_is_told_with_what_it_cost(made):
    made.compile(0, wall_s=3.0)
    made.compile(20, "L['way'] == 'a'  # y = x * len(way)  # train.py:4 in f")
    made.compile(40, "L['way'] == 'b'  # y = x * len(way)  # train.py:5 in f")
    made.compile(40, None, 0.003, backward=1, compile_id="0/2", name=None, file=None, line=None)
    (told,) = made.told()
    assert of(told, "gain_s file line severity") == [None, TRAIN, 4, "low"]
    figures, guard = told["evidence"]
    # 6 ms and 9 ms over the 59 steps after the first.
    names = "per_step_s compile_s recompilations steps given_up"
    assert of(figures, names) == near(0.015 / 59, 0.0075, 2, 59, False)
    assert of(guard, "failed_guard times") == ["L['way'] == 'a'", 2]


def test_recompiling_twice_takes_no_longer_than_once_for_all_sizes(made):
    made.compile(0, wall_s=3.0)
    for at, (before, after) in enumerate(((16, 24), (24, 40))):
        text = f"tensor 'L['x']' size mismatch at index 1. expected {before}, actual {after}"
        made.compile(10 + at, text, wall_s=0.5 - 0.01 * at)
    (told,) = made.told()
    assert of(told, "run_s run_gain_s") == near(0.99, None)


def test_recompiling_by_length_is_told_with_the_dimension_and_what_one_for_all_saves(made):
    def size(before, after, dimension=1):
        text = f"tensor 'L['x']' size mismatch at index {dimension}. "
        return f"{text}expected {before}, actual {after}"

    made.compile(0, wall_s=3.0)
    for at, guard in enumerate((size(16, 24), size(24, 40), "L['n'] == 1")):
        made.compile(10 + at, guard, wall_s=0.1 * (1 + at))
    made.compile(20, None, 0.05, backward=1, compile_id="0/2", name=None, file=None, line=None)
    (told,) = made.told()
    # The longest of them, three times, takes the place of these and of the first.
    assert of(told, "run_s run_gain_s") == near(0.65, 0.65 - 2 * 0.3)
    assert of(told["evidence"][1], "tensor dimension sizes") == ["x", 1, 3]
    assert "mark_dynamic(x, 1)" in told["advice"]
    # Half of them are for something else.
    guards = [size(16, 24), size(24, 40, dimension=0), size(40, 48), "L['n'] == 1"]
    versions = [SimpleNamespace(guard=guard) for guard in guards]
    assert varying_size(versions) is None
    assert varying_size(versions[:3]).sizes == {16, 24, 40, 48}


@cases("is_found guards",
       *((1, ["L['n'] == 1", "L['n'] == 2"]), (0, ["L['n'] == 1", "L['m'] == 2", "L['k'] == 3"])),
       (1, ["L['n'] == 1", "L['m'] == 2", "L['k'] == 3", "grad_mode"]),
       *((0, [None, None, None]), (1, [None, None, None, None])))  # fmt: skip
def test_the_same_guard_twice_or_four_in_all_are_too_many(made, guards, is_found):
    made.compile(0, wall_s=3.0)
    for at, guard in enumerate(guards):
        made.compile(10 + at, guard)
    assert len(made.told()) == is_found


@cases("factor is_found", "1.001 1; 0.999 0")
def test_compiling_takes_a_hundredth_of_the_step(made, factor, is_found):
    wall_s = factor * 0.01 * CLEAN_S * 59 / 3
    assert len(made.counters(10, 20, 30, wall_s=wall_s).told()) == is_found


# A median step's, where most steps compile; no more than the step takes.
@cases("steps longer gain_is", "30 0 measured; 29 0 None; 59 .03 measured")
def test_the_gain_is_a_median_steps_where_most_of_them_compile(made, steps, longer, gain_is):
    walls = [longer or 0.001 + 0.0001 * step for step in range(steps)]
    made.compile(0)
    for step, wall_s in enumerate(walls):
        made.compile(step + 1, f"L['n'] == {step}", wall_s=wall_s)
    (told,) = made.told()
    gain_s = min(median(walls), CLEAN_S) if gain_is else None
    assert of(told, "gain_s gain_is line") == near(gain_s, gain_is, 3)
    assert told["evidence"][0]["per_step_s"] == pytest.approx(sum(walls) / 59)
    assert len(told["evidence"]) == 2, "one guard, whatever its values"


STACK = 'User Stack:\n File "/app/a.py", line 9\n File "/b.py", line 3'


def test_guards_are_read_with_their_place_and_are_of_a_kind_with_others_on_the_same_thing():
    for same, one, other in (
        (True, "L['x'].size()[0] == 32", "L['x'].size()[0] == 7"),
        *((True, "L['way'] == 'a'", "L['way'] == \"b\""), (False, "grad_mode", None)),
        *((False, "L['x'] == 'a'", "L['y'] == 'a'"), (False, "x2 == 1", "x3 == 1")),
    ):
        assert (kind_of(one) == kind_of(other)) is same
    for reason, *expected in (
        (None, None, None, None),
        ("0/3: L['n'] == 1  # y = n  # app/train.py:17 in f", "L['n'] == 1", None, 17),
        (f"12/0: a ==\t 2\n{STACK}", "a == 2", "/app/a.py", 9),
        (f"0/0: L['{os.path.expanduser('~')}/x'] == 1", "L['~/x'] == 1", None, None),
    ):
        assert failed_guard(reason) == (*expected,)


PRINT = "Unsupported call\n  Explanation: Dynamo cannot trace print.\n  Hint: x"
IN_F = [[TRAIN, 3, "f"], [TRAIN, 9, "helper"], ["/lib/torch/x.py", 4, "inner"]]
TORCH = {"layers": [{"name": "torch", "status": "recorded"}]}


def runs(frame, calls):
    return {"path": f"Torch-Compiled Region: {frame}/1", "calls": calls, "source": "torch"}


def test_a_break_in_code_that_runs_is_told_at_the_users_line(made):
    made.compile(0)
    made.compile(0, name="torch_dynamo_resume_in_f_at_9", compile_id="1/0")
    made.compile(0, name="g", compile_id="2/0")
    other = [[TRAIN, 3, "torch_dynamo_resume_in_f_at_9"], [TRAIN, 12, "late"]]
    stacks = [other, IN_F, IN_F, [[TRAIN, 40, "g"]], [["/lib/x.py", 4, "y"]]]
    made.breaks = [{"reason": PRINT, "stack": json.dumps(stack)} for stack in stacks]
    regions = [runs(0, 1.5), runs(1, 2.0), runs(0, 0.25), runs(3, 9.0)]
    (told,) = made.told(parts=TORCH, regions=regions)
    assert of(told, "file line gain_s severity") == [TRAIN, 9, None, "medium"]
    figures, *places = told["evidence"]
    assert figures == {"graph_breaks": 2, "graphs_per_step": 3.75}
    found = [of(each, "function times_compiled line") for each in places]
    assert found == [["f", 2, 9], ["f", 1, 12]]
    assert places[0]["reason"] == "Unsupported call: Dynamo cannot trace print"
    assert links(told) == [f"source/{TRAIN}:9", f"source/{TRAIN}:12"]
