"""Loops of a script are told apart, and slices begin where the user says."""

import sys
from itertools import groupby
from types import SimpleNamespace

import pytest
import torch

from profstack.capture import user_regions
from profstack.capture.engine import Engine
from profstack.capture.loops import MOST_LOOPS, NEW_LOOP, NEW_PLACES, BeginAt, Loops
from profstack.capture.slices import SlicePlan, Targets
from tests.support.engine import VirtualOptimizer, milli, observed
from tests.support.tables import cases

ELSEWHERE = Engine.elsewhere


class Told:
    """Steps of made-up places: each letter is one call site of this file."""

    def __init__(self):
        self.loops = Loops(SimpleNamespace(is_grad_enabled=lambda: True))
        self.total, self.number, self.goes_on, self.sites = 0, {}, False, {"step": self.step}
        for letter in "abcdefghijklmnopqrstuvwxyz":
            exec(compile(f"def {letter}(): return step()", f"cell {letter}", "exec"), self.sites)

    def step(self, state=0, delayed=False):
        frame = sys._getframe(1)
        self.total += 1
        if self.total == 1 or self.goes_on:
            self.loops.begin(frame, state, self.total, goes_on=self.goes_on)
        elif not self.loops.same(frame, state):
            self.loops.take(frame, state, self.total, delayed=delayed)
        return str(self.number.setdefault(id(self.loops.current), len(self.number)))

    def run(self, letters):
        """Make steps; at a capital another optimizer of the same rule begins to end them."""
        loops = ""
        for letter in letters:
            self.goes_on = letter.isupper()
            loops += self.sites[letter.lower()]()
        return loops


ONE, FEW = "aab" + "abbabaabb" * 3, "c" * (NEW_LOOP - 1)


@cases(
    "letters loops",
    # A place that makes several steps in a row; a loop that is known comes back at once.
    ("aaaa" + "b" * NEW_LOOP + "abab", "0" * (3 + NEW_LOOP) + "10101"),
    # Places that alternate are one loop.
    (f"{ONE}{FEW}accccc", "0" * len(f"{ONE}{FEW}accccc")),
    # Several new places are another one after more steps.
    ("a" + "bc" * NEW_PLACES + "a", "0" * NEW_PLACES + "1" * (NEW_PLACES + 1) + "0"),
    # Another optimizer goes on with the loop of its place, or begins one at once.
    ("aaAaBbbaAaBb", "000011100011"),
    # What it does fewer times than that before the loop is back is a part of it.
    ("aaBbabbbbB", "0011000000"),
)
def test_what_makes_another_loop(letters, loops):
    assert Told().run(letters) == loops


def test_too_many_loops_are_watched_together():
    told = Told()
    for letter in "abcdefghijklmnopqrstu":
        told.run(letter * NEW_LOOP)
    assert len(told.number) == MOST_LOOPS + 1
    assert told.loops.current.waits


def test_steps_that_begin_at_calls_belong_to_the_place_that_began_them():
    told = Told()
    told.sites["step"] = lambda: told.step(delayed=True)
    assert told.sites["a"]() + told.sites["a"]() == "00"
    # The boundary in the first call of b ends a step of a.
    assert [told.sites["b"]() for _ in range(NEW_LOOP + 1)] == [*"0" * NEW_LOOP, "1"]


def test_where_slices_begin_is_read(tmp_path):
    source = "import x\nfor a in b:\n    c(\n        d,\n    )\n\n\n@e\ndef f():\n    pass\n"
    (tmp_path / "own.py").write_text(source)
    places = {at: BeginAt.parse(f"own.py:{at}", "/nowhere", str(tmp_path)) for at in (2, 4, 8)}
    assert [place.lines for place in places.values()] == [(2, 5), (3, 5), (8, 10)]
    file = str(tmp_path / "own.py")
    assert [places[2].holds(file, line) for line in (1, 2, 5, 6)] == [False, True, True, False]
    assert not places[2].holds("own.py", 3)
    assert (BeginAt.parse(7).step, BeginAt.parse("0").step) == (7, 0)
    assert BeginAt.parse("layer:3").region == "layer:3"
    for wrong in ("-1", " ", "none.py:3", "own.py:7", "own.py:99"):
        with pytest.raises(ValueError, match=r"\w"):
            BeginAt.parse(wrong, str(tmp_path))


# -- in the engine -------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self, moments):
        super().__init__()
        self.moments = moments

    def forward(self, x, wall_s):
        self.moments.wait(wall_s)
        return x


def plans_of(one):
    """The plans of the steps that are of their slice's loop, with how many come in a row."""
    own = [row["plan"] for row in one.steps if "loop" not in row["flags"]]
    return [(plan, len(list(steps))) for plan, steps in groupby(own)]


@pytest.fixture
def calls(virtual, moments, monkeypatch):
    def make(**options):
        targets = Targets(settle_s=0.0001)
        one, _ = virtual("alpha", targets=targets, live_optimizers=frozenset, **options)
        monkeypatch.setattr(Engine, "elsewhere", ELSEWHERE)
        model, x = Model(moments), torch.zeros(3)

        def repeat(count, wall_ms):
            for wall_s in milli(*[wall_ms] * count):
                model(x, wall_s)

        return one, repeat, model

    return make


def test_a_loop_without_gradients_has_a_plan_of_its_own(calls):
    one, repeat, model = calls()
    for measured in (False, True):
        with torch.set_grad_enabled(not measured):
            repeat(80 if measured else 10, 5)
    model.eval()
    repeat(20, 5)
    one.engine.finish()
    lost = NEW_LOOP
    # All are called at one line: the state of gradients and of the model tells them apart.
    assert plans_of(one) == [(1, 10), (2, 80 - lost), (3, 20 - lost)]
    facts = [one.facts[f"plan_{plan}"] for plan in (1, 2, 3)]
    states = [(fact["gradients"], fact["training"]) for fact in facts]
    assert states == [(True, True), (False, True), (True, False)]
    slices = {row["plan"] for row in one.slices if row["layer"] == "alpha"}
    # The third never becomes a quarter of the second.
    assert slices == {1, 2}


def test_a_new_optimizer_at_the_same_line_goes_on_with_the_loop(virtual, monkeypatch):
    plan = [observed(1), observed(60), SlicePlan("clean", (), 2, 30)]
    one, training = virtual("alpha", plan=plan, targets=Targets(settle_s=0.0001))
    monkeypatch.setattr(Engine, "elsewhere", ELSEWHERE)
    training.run(milli(*[5] * 20))
    kept = [training.optimizer]
    for steps in (50, 70, 40):
        one.engine._budget.waiting = (("alpha", "timed"),)
        training.optimizer = VirtualOptimizer()
        kept.append(training.optimizer)
        training.run(milli(*[6] * steps))
    one.engine.finish()
    assert (plans_of(one), one.engine._budget.waiting) == ([(1, 20), (2, 160)], None)
    # Two steps tell that another one ends steps. Slices that it cuts short are taken once more.
    kinds = " ".join(f"{kind} {steps}" for kind, steps in one.kinds)
    assert kinds.endswith("alpha 1 settle 47 startup 2 settle 1 alpha 60 clean 7 startup 2 "
                          "settle 1 clean 30 watch 7")  # fmt: skip


@pytest.mark.parametrize("wall_ms", [5, 1])
def test_an_optimizer_that_each_step_makes_anew_ends_it_like_any_other(
    virtual, monkeypatch, wall_ms
):
    plan = [observed(1), observed(20), SlicePlan("clean", (), 2, 30), observed(25)]
    one, training = virtual("alpha", plan=plan, targets=Targets(settle_s=0.0001))
    monkeypatch.setattr(Engine, "elsewhere", ELSEWHERE)
    for _ in range(150):
        training.optimizer = VirtualOptimizer()
        training.run(milli(wall_ms))
    # One of another line is another loop.
    for _ in range(NEW_PLACES):
        training.optimizer = VirtualOptimizer()
        training.step(1e-3)
    one.engine.finish()
    assert plans_of(one)[0] == (1, 150)
    kinds = " ".join(f"{kind} {steps}" for kind, steps in one.kinds)
    assert "alpha 20" in kinds
    assert "alpha 25" in kinds


def test_no_layer_sees_a_step_of_another_loop(calls):
    one, repeat, _ = calls()
    for _ in range(2):
        repeat(25, 4)
        repeat(30, 5)
    one.engine.finish()
    assert [plan for plan, _ in plans_of(one)] == [1, 2, 1, 2]
    assert min(row["round"] for row in one.slices) == 0
    foreign = [row for row in one.steps if "loop" in row["flags"]]
    # Three until the second loop is known, then one each.
    assert len(foreign) == NEW_LOOP + 2
    whole = [row for row in one.slices if row["counted_steps"] == row["steps"]]
    kinds = {row["slice"]: row["layer"] for row in whole}
    assert {kinds.get(row["slice"]) for row in foreign} <= {None}


def test_slices_begin_inside_a_region(calls):
    one, repeat, _ = calls(begin_at=BeginAt.parse("measured"))
    try:
        repeat(40, 5)
        for _ in range(30):
            with user_regions.region("measured"):
                repeat(1, 1)
        repeat(10, 5)
    finally:
        one.engine.finish()
        user_regions.switch_off()
    assert plans_of(one) == [(1, 40), (2, 30 - NEW_LOOP), (1, 10 - 1)]
    assert {row["plan"] for row in one.slices if row["layer"]} == {2}
