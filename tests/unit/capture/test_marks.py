"""Steps that the program marks itself: loops, calls, other workloads, and what lies between."""

import itertools

import pytest

from profstack.capture.marks import LONG_LOOP, marks_of
from profstack.capture.slices import SlicePlan, Targets, watch
from tests.support.engine import observed
from tests.support.tables import cases

CLEAN = SlicePlan("clean", (), 2, 2)
approx = pytest.approx


class Program:
    def __init__(self, one, moments):
        self.one, self.engine, self.marks = one, one.engine, marks_of(one.engine)
        self.moments = moments

    def loop(self, workload, walls_s, *, cut=False):
        assert self.marks.begin(workload)
        for wall_s in walls_s:
            self.moments.wait(wall_s)
            self.marks.ended()
        if cut:
            self.moments.wait(0.5)
        self.marks.end(cut=cut)

    def walls(self):
        self.engine.finish()
        return [row["wall_s"] for row in self.one.steps]


@pytest.fixture
def program(bench, moments):
    def make(*slices, **options):
        # Nothing settles by time: each step to settle is one step.
        targets = Targets(settle_s=0.0)
        one = bench("alpha", plan=slices, targets=targets, live_optimizers=frozenset, **options)
        one.engine.begin()
        return Program(one, moments)

    return make


TAILS = ("..", ".", ".")


@cases(
    "slices loops story",
    # What a slice lacks comes first in the next loop. In one after a long one a step settles;
    # short loops have none to spare.
    ((observed(7), CLEAN), "t3 t9", "alpha .., alpha ....., clean .., watch .."),
    ((observed(8), CLEAN), "t4 t9", "alpha ..., settle ., alpha ....., clean .., watch ."),
    ((observed(20),), "t3 t3 t3", "alpha .., alpha ..., alpha ..."),
    ((observed(2),), "t5 v4 t4", ", startup d, ".join([f"alpha .., watch {n}" for n in TAILS])),
    # A step that is left before its end gives no rows. Within a slice of a tool that cannot
    # tell when it saw something all of it comes again.
    ((observed(3), CLEAN), "t3! t7!", "settle .., alpha p..., clean .., watch .. +p"),
    *(((observed(3),), "t3!", "settle .. +p"), ((observed(3),), "t6!F", "alpha ..., watch ..")),
)
def test_a_program_loop_by_loop(program, slices, loops, story):
    assert LONG_LOOP == 4
    made = program(*slices)
    walls, parts = [], []
    for each in loops.split():
        steps = [0.1 + 0.01 * number for number in range(int(each[1]))]
        made.loop(each[0], steps, cut="!" in each)
        assert made.engine.planned is None
        made.moments.wait(50.0)
        walls += [*steps, *[None] * ("!" in each and "F" not in each)]
        parts.append(each[0])
    made.marks.close(failed="F" in loops)
    assert (made.walls(), made.one.story) == (approx(walls), f"startup d, {story}")
    plans = [row["plan"] for row in made.one.slices]
    assert plans[-1] == len([*itertools.groupby(parts)])
    assert made.one.facts["counts_by_phase"] == {"other": len(walls)}


def test_a_slice_lacks_steps_and_seconds(program):
    made = program(observed(5, 3.0))
    made.loop("train", [0.25, 0.5, 0.75])
    made.marks.begin("train")
    planned = made.engine.planned
    assert (planned.kind, planned.steps, planned.min_s) == ("alpha", 3, approx(3.0 - 1.25))
    for _ in range(5):
        made.moments.wait(0.3)
        made.marks.ended()
    # It has enough steps, and a moment is missing: that and one step are left of it.
    made.marks.end()
    made.marks.begin("train")
    while made.engine.planned.kind == "settle":
        made.marks.ended()
    planned = made.engine.planned
    assert (planned.steps, planned.min_s) == (1, approx(0.25))


def test_calls_of_a_function_with_what_comes_before_them(program, moments):
    made = program(observed(2))

    def call(workload="f", *, fails=False):
        def function():
            moments.wait(0.25)
            if fails:
                raise ValueError("the script's own")
            return "result"

        moments.wait(1.0)
        assert made.marks.call(workload, function) == "result"

    for workload in "fffg":
        call(workload)
    with pytest.raises(ValueError, match="own"):
        call("g", fails=True)
    assert made.walls()[:4] == approx([0.25, 1.25, 1.25, 0.25])
    assert [row["plan"] for row in made.one.steps] == [1, 1, 1, 2]
    call()
    made = program(observed(2))
    made.marks.begin("outer")
    call()
    made.marks.end()
    assert made.one.steps == []


def test_it_repeats_until_all_is_measured_or_the_time_is_over(program, moments):
    def call():
        moments.wait(0.5)
        calls.append(1)
        return len(calls)

    slices = (observed(2, number=1), observed(3), SlicePlan("clean", (), 3, 4))
    # All is seen when each layer had its first slice, which is waited for in any case.
    for max_seconds, expected, in_time in ((100.0, 10, True), (4.2, 9, False), (0.1, 3, False)):
        calls, made = [], program(*slices)
        assert made.marks.begin("model")
        assert made.marks.repeat(call, max_seconds) == (expected, expected, in_time)
        assert (made.marks.over, len(made.one.steps)) == (False, expected)
    # The watch for the early page is not the end of the plan.
    for number, complete in ((0, False), (2, True)):
        made.engine.planned = watch(number)
        assert made.marks.complete is complete
    made.engine.planned = None


def test_the_scripts_own_marks_end_no_step_while_a_session_marks(program, moments):
    made = program(observed(2))
    step = made.engine.events.user_step
    made.marks.entered()
    made.marks.begin("train")
    for _ in range(3):
        moments.wait(0.5)
        step()
        step()
        made.marks.ended()
    assert len(made.one.steps) + made.engine.log.count == 3
    made.marks.end()
    made.marks.left()
    # Afterwards they do: the first one only says where the next step begins.
    for _ in range(3):
        moments.wait(0.25)
        step()
    assert (made.walls(), made.one.notes) == (approx([0.5] * 3 + [0.25] * 2), ["step-ignored"])
