"""The engine in one process, in slices of virtual time."""

import functools
import itertools
import json
import random
import signal
from operator import attrgetter
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from torch.utils.data import DataLoader, Dataset

from profstack.capture.run_limits import DUE_S, FIXED_S, LOOK_S, PATIENCE_S, Limits
from profstack.capture.slices import MOST_REPEATED, SlicePlan, Targets, settle
from profstack.capture.step_log import StepLog, StopRun
from profstack.storage.folder import PAGE_MARKER, PROGRESS
from tests.support.engine import VirtualTraining, milli, observed, patched
from tests.support.tables import cases, of

INSTANT = Targets(settle_s=0.0)
approx = pytest.approx


def uneven(count):
    source = random.Random(3)
    return [0.008 * source.lognormvariate(0.0, 0.5) for _ in range(count)]


def test_how_far_ahead_it_aims(virtual):
    def aims(*times):
        for wall_s in milli(*times):
            training.step(wall_s)
            yield one.engine.log.count, one.engine.arming.aim.steps

    one, training = virtual("alpha", plan=[observed(3, 0.05), observed(4)], targets=Targets())
    # 29.5 ms after three: 20.5 are missing, which are two steps, and one more to be sure. Then
    # 40.5 ms are too few after six steps of 6.75 ms: 1.4 of these are missing.
    found = list(aims(8, 10, 11, 8.5, 3, 4, 4, 2, 5, 6))
    assert [count for count, _ in found] == [*range(9), 0]
    assert [aim for _, aim in found] == [3, 3, 3, 6, 6, 6, 8, 8, 9, 4]
    training.run(milli(1, 2, 3, 4))
    assert one.kinds[1:] == [("alpha", 9), ("alpha", 4)]
    one.engine.finish()
    limits = Limits(13, began=0.0)
    one, training = virtual("alpha", plan=[observed(4, 1.0)], targets=Targets(), limits=limits)
    # At most twice as far, since steps may become slower. The script has had one step before the
    # slice: the 13th, where it must end, is its 12th.
    assert list(aims(*[2, 3, 4, 5, 6] * 2))[4::5] == [(4, 9), (9, 12)]


def test_slices_and_steps_have_the_times_that_passed(virtual, moments):
    begun = moments.now
    slices = [observed(3), settle(Targets(), 2), SlicePlan("clean", (), 2, 4)]
    one, training = virtual("alpha", plan=slices)
    walls = milli(21, 13, 34, 8, 2, 3, 55, 5, 34, 89)
    waits, cpus = milli(1, 4, 2, 3, 1, 1.5, 1, 2, 5, 30), milli(5, 7, 11, 2, 1, 1, 13, 3, 21, 40)
    for each in zip(walls, waits, cpus, strict=True):
        training.step(*each)
    moments.wait(3.0)
    one.engine.finish()
    assert one.story == "startup d, alpha ..., settle .., clean ...."
    # The first step begins with its first activity.
    starts = [waits[0], *list(itertools.accumulate(walls, initial=0.0))[1:]]
    for row, first, count in zip(one.slices[1:], (1, 4, 6), (3, 2, 4), strict=True):
        names = "first_step steps settle_steps round phase"
        settled = 0 if first == 1 else 2
        assert of(row, names) == [first, count, settled, 2, "train"]
        walls_s, cpus_s = (sum(each[first : first + count]) for each in (walls, cpus))
        times = of(row, "started_s wall_s counted_wall_s cpu_s")
        assert times == approx([starts[first], walls_s, walls_s, cpus_s])
    assert [row["stop_s"] is not None for row in one.slices] == [False, True, False, False]
    steps = one.steps
    assert [row["wall_s"] for row in steps] == approx([walls[0] - waits[0], *walls[1:]])
    assert [row["cpu_s"] for row in steps[1:]] == approx(cpus[1:])
    assert [row["wait_s"] for row in steps[6:]] == approx(waits[6:])
    assert {(row["batch_size"], row["shape"]) for row in steps[6:]} == {(5, "5x3")}
    stamps = approx([begun + each for each in starts[1:5]])
    assert one.wrapper("alpha").of("take") == [(stamps, set())]
    first, *_ = (one.folder / PROGRESS).read_text().splitlines()
    assert json.loads(first) == {"event": "rule", "rule": "optimizer", "phase": "train"}


def test_clean_steps_tell_when_a_loader_is_asked_and_for_how_long(virtual, moments):
    class Slow(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            moments.wait(0.002 + index * 1e-4, 0.0)
            return index

    one, training = virtual("alpha", plan=[SlicePlan("clean", (), 2, 4), observed(2)])
    batches = iter(DataLoader(Slow(), batch_size=2))
    for number in range(7):
        training.step(0.050, 0.003 + number * 1e-3, batches=batches if number != 4 else None)
    one.engine.finish()
    assert one.story == "startup d, clean ...., alpha .."
    before, inside = ([row[name] for row in one.steps] for name in ("before_loader_s", "loader_s"))
    assert (before[1:4], inside[1:4]) == (approx(milli(4, 5, 6)), approx(milli(4.5, 4.9, 5.3)))
    assert (before[4:], inside[4:]) == ([None] * 3, [None] * 3)
    assert [row["wait_s"] for row in one.steps[1:5]] == approx(milli(8.5, 9.9, 11.3, 7.0))


def slices_of(text):
    """`alpha 3 9` are three steps and nine seconds of a layer at least; with a `1` in round 1."""
    for each in text.split(", "):
        kind, steps, *min_s = each.rstrip("!").split()
        layers = ((kind, "timed"),) * (kind != "x")
        yield SlicePlan(kind, layers, 1 if each[-1] == "!" else 2, int(steps), *map(float, min_s))


AGAIN = ", settle ., alpha ..e" * MOST_REPEATED


@cases(
    "slices script story",
    # What evaluation spoils is measured again where its tool cannot leave evaluation out, and
    # not without end, nor where all steps hold some, nor in round 1.
    ("beta 3", "9 1 2 e 3", "beta ..e"),
    # Where it can, others come in their place, up to twice as many steps.
    ("beta 3, x 99", "9 1 2 e 3 4 5 6", "beta ..e., x .."),
    ("beta 2, x 99", "9 e 1 2 e 3 e 4 5 6", "beta e.ee, x .."),
    ("alpha 3, x 99", "9" + " 1 2 e 3 4" * 6, f"alpha ..e{AGAIN}, x ....."),
    ("alpha 2, x 99", "9 e 8 e 7 6 5", "alpha ee, x .."),
    ("alpha 2!, x 99", "9 8 e 7 6 5", "alpha se, x .."),
    # One that is cut off gives no rows where its tool cannot tell when it saw something.
    ("alpha 3 9", "3 4 5", "settle .."),
    ("alpha 3 9", "3 4 5 6 7", "settle ...."),
    ("beta 3 9", "3 4 5 6 7", "beta ...."),
    # One that must not begin where it has ended gets a step to settle.
    ("beta 2, beta 2, alpha 2, x 1", "3 " * 9, "beta .., settle ., beta .., alpha .., x ."),
    # A rule that is found later begins another plan: `profstack.step()` goes before optimizers.
    (
        "alpha 3, x 99",
        "2 3 4 5 6 7 3 u 5 u 8 u 1 u 2 u",
        "alpha ..., x ..., startup , settle ., alpha ...",
    ),
    ("x 1", "1 2 3 4 5 6 7 8 9 8 7 6", "x ., watch ......., watch ..."),
)
def test_a_run_slice_by_slice(virtual, monkeypatch, slices, script, story):
    monkeypatch.setattr(StepLog, "FLUSH", 7)
    one, training = virtual("alpha", "beta", plan=list(slices_of(slices)), targets=INSTANT)
    training.play(script, one)
    one.engine.finish()
    assert one.story == f"startup d, {story}"
    calls = {row["slice"]: row["calls"] for row in one.table("functions")}
    for row in one.slices[1:]:
        steps = [each for each in one.steps if each["slice"] == row["slice"]]
        kept = [each["wall_s"] for each in steps if "eval" not in each["flags"]]
        if row["layer"] is not None and kept:
            assert of(row, "steps counted_steps") == [len(steps), len(kept)]
            assert (row["counted_wall_s"], calls[row["slice"]]) == (approx(sum(kept)), len(kept))
    status = {name: row["status"] for name, row in one.layers.items()}
    seen = {row["layer"] for row in one.slices}
    assert status == {name: "recorded" if name in seen else "empty" for name in ("alpha", "beta")}
    plans = [row["plan"] for row in one.slices]
    assert plans == sorted(plans)
    rules = ["optimizer", *["step"] * ("u" in script)]
    assert set(plans) == set(range(1, len(rules) + 1))
    found = [one.facts[f"plan_{number}"] for number in sorted(set(plans))]
    assert [(fact["rule"], fact["phase"]) for fact in found] == [(rule, "train") for rule in rules]


def test_the_background_observes_where_nothing_else_does(virtual):
    slices = [observed(1), settle(INSTANT, 2), SlicePlan("clean", (), 2, 1)]
    one, training = virtual("alpha", "behind", plan=slices, targets=INSTANT)
    told, waited, clock = [], [], one.engine.log.clock
    clock.synchronize = lambda: waited.append((told[-1:], len(one.wrapper("alpha").contexts)))
    for wall_s in milli(5, 6, 7, 8, 9):
        training.step(wall_s)
        asked = [each[0] for each in one.wrapper("behind").asked if each[0] in ("resume", "pause")]
        told.append(f"{one.engine.planned.kind} {asked[-1]}")
    assert told == ["alpha pause", "settle resume", "clean pause", "watch resume", "watch resume"]
    # The device is waited for before the tool starts, and before the clean steps.
    assert waited == [([], 0), (["settle resume"], 1)]


def test_what_measuring_adds_stays_within_its_budget(virtual, moments):
    begins = {}
    for budget in (None, 5.0, 40.0):
        group = [settle(INSTANT, 2, (("alpha", "timed"),)), observed(2)]
        plan = [SlicePlan("clean", (), 2, 3), *group, *group, *group]
        one, training = virtual("alpha", plan=plan, budget=budget)
        # Its stop takes 3 s, and it makes two steps of 0.1 s half as long again.
        alpha = one.wrapper("alpha")
        alpha.stop = lambda: moments.wait(3.0)
        for _ in range(600):
            is_observed = one.engine.planned is not None and one.engine.planned.observers
            training.step(0.15 if is_observed else 0.1)
        rows = [row for row in one.slices if row["kind"] == "alpha"]
        begins[budget] = [row["started_s"] for row in rows]
        one.engine.finish()
        assert ("budget" in one.notes) is (len(rows) < 3)
    # The first takes 3.1 of the free seconds, and each of the others would take as much.
    assert begins[None] == approx([0.5, 3.9, 7.3], abs=0.2)
    assert begins[5.0] == approx([0.5, 20 * (6.2 - FIXED_S)], abs=0.3)
    assert begins[40.0] == approx([0.5, 3.9, 2.5 * (9.3 - FIXED_S)], abs=0.3)


def test_the_page_is_asked_for_once_and_waited_for(virtual, moments):
    assert (DUE_S, PATIENCE_S, LOOK_S) == (60.0, 30.0, 0.05)

    def after(*walls_s):
        training.run(walls_s)
        asked = (one.folder / PROGRESS).read_text().count('{"event": "page"}\n')
        return asked, one.engine.planned.kind, one.engine.planned.round

    for wait, comes in ((True, True), (True, False), (False, True)):
        slices = [observed(1, number=1), observed(1), observed(1), observed(400, 500.0)]
        one, training = virtual("alpha", plan=slices, wait_for_page=wait)
        moments.wait(500.0)
        # A minute of measuring has passed at the second step, but round 1 alone is over.
        assert [after(1.0), after(DUE_S + 0.1)] == [(0, "alpha", 1), (0, "alpha", 2)]
        if not wait:
            assert after(1.0) == (0, "alpha", 2)
        else:
            assert after(1.0) == (1, "watch", 0)
            (one.folder / PAGE_MARKER).touch()
            assert after(LOOK_S * 0.9) == (1, "watch", 0)
            if not comes:
                (one.folder / PAGE_MARKER).unlink()
                assert after(PATIENCE_S - LOOK_S) == (1, "watch", 0)
            assert (after(LOOK_S * 1.2), one.engine.planned.steps) == ((1, "alpha", 2), 1)
        assert after(*[2.0] * 500) == (1, "watch", 9)
        one.engine.finish()


def test_limits_on_both_sides(moments):
    limits = Limits(12, 8.0, began=moments.now)
    moments.wait(7.75)
    assert [limits.reached(steps) for steps in (11, 12)] == [None, "max_steps"]
    moments.wait(0.25)
    assert (limits.reached(3), limits.next_look(5)) == ("max_seconds", [1])
    assert Limits(1, by_plan="nsys", plan_is_over=True).reached(5) == "nsys"
    for each in (Limits(plan_is_over=True), Limits(by_plan="nsys")):
        assert (each.reached(900), each.next_look(900)) == (None, [])
    assert [Limits(12).next_look(steps) for steps in (5, 12)] == [[7], [1]]


@cases(
    "limits plan_steps steps why",
    (Limits(6, began=0.0), 50, 6, "max_steps"),
    (Limits(None, 0.6, began=100.0), 50, 4, "max_seconds"),
    # Under nsys the run is over with the plan.
    (Limits(by_plan="nsys", began=0.0), 3, 4, "nsys"),
)
def test_a_limit_ends_the_run_at_a_boundary_and_asks_twice(virtual, limits, plan_steps, steps, why):
    one, training = virtual("alpha", plan=[observed(plan_steps)], limits=limits)
    caught = []
    for number in range(1, 21):
        try:
            training.step(0.15 + number * 1e-3)
        except StopRun as stopped:
            caught.append((number, stopped.code))
    # Caught it is raised once more, and then it lets go.
    assert caught == [(steps, 0), (steps + 1, 0)]
    state = one.engine.stopped_by, one.engine.events.done, len(one.steps)
    assert state == (why, True, steps + 1)


def test_a_workload_without_steps_is_measured_whole(bench, moments):
    def whole(*layers, **options):
        training = VirtualTraining(moments)
        one = bench(*layers, plan=[observed(2)], live_optimizers=training.living, **options)
        one.engine.tools["alpha"] = "a tool"
        one.engine.begin(whole=(("alpha", "timed"),))
        return one, training

    one, _ = whole("alpha", "beta", origin=moments.now - 5.0)
    moments.wait(2.5)
    one.engine.finish()
    (row,) = one.slices
    assert of(row, "kind layer started_s wall_s") == ["alpha", "alpha", 0.0, 7.5]
    assert (len(one.steps), one.wrapper("alpha").of("hand_over")) == (1, [("a tool",)])
    # Steps end it, and what was seen of it is dropped: its step was cut off.
    one, training = whole("alpha")
    training.play("5 6 7")
    one.engine.finish()
    assert [row["plan"] for row in one.slices if row["kind"] == "alpha"] == [2]
    assert ("alpha", 2) in one.kinds


def test_a_forked_child_has_no_hooks_and_writes_nothing(virtual):
    before, mixin = patched(), type("Mixin", (), {"generate": lambda self: "text"})
    library, plain = SimpleNamespace(GenerationMixin=mixin), mixin.generate
    one, training = virtual("alpha", "beta", plan=[observed(5, layer="beta")])
    one.engine.generation_arrived(library)
    assert (patched() != before, mixin.generate is not plain) == (True, True)
    training.run(milli(4, 5, 6))
    alpha, beta = one.wrapper("alpha"), one.wrapper("beta")

    def written():
        return one.table("steps"), one.slices, (one.folder / PROGRESS).read_text()

    earlier = written()
    # What `register_at_fork` does in a run.
    one.engine.abandon()
    one.engine.generation_arrived(library)
    assert (patched(), mixin.generate) == (before, plain)
    assert (alpha.of("abandon"), alpha.of("close"), beta.of("abandon")) == ([], [()], [()])
    training.run(milli(7, 8, 9, 10, 11))
    one.engine.finish()
    assert written() == earlier
    assert beta.of("take") == beta.of("finish") == []


@pytest.mark.parametrize("method", ["start", "stop", "take", "busy_reason", "finish"])
def test_a_wrapper_that_raises_ends_its_layer_and_nothing_else(virtual, method):
    one, training = virtual("alpha", "beta", plan=[observed(2), observed(2, layer="beta")])
    failing = one.wrapper("alpha")
    failing.raises[method] = RuntimeError("made to fail")
    training.run(uneven(20))
    one.engine.finish()
    status = "recorded" if method == "finish" else "failed"
    assert [one.layers[name]["status"] for name in ("alpha", "beta")] == [status, "recorded"]
    assert "RuntimeError: made to fail (engine.py:" in one.layers["alpha"]["reason"]
    # The slice of one that did not start is passed over. Its tool may be half on.
    assert method not in ("start", "busy_reason") or one.kinds[1] == ("beta", 2)
    assert method != "start" or failing.of("stop")
    assert (one.notes, len(one.steps)) == (["layer-failed"], 20)


@pytest.mark.parametrize("place", ["write_modules", "end_slice", "begin_slice", "startup"])
def test_an_error_of_our_own_disarms_and_never_reaches_the_script(virtual, place, monkeypatch):
    before = patched()
    one, training = virtual("alpha", plan=[observed(2)])
    fail = Mock(side_effect=RuntimeError("made to fail"))
    monkeypatch.setattr(one.engine.log, place, fail)
    training.run(uneven(20))
    assert (patched(), fail.call_count) == (before, 1)
    (note,) = one.table("notes")
    assert (note["slug"], "made to fail" in note["text"]) == ("disarmed", True)


# As `TimeoutError` is: what code that asks the system for something expects.
TimeUpError = type("TimeUpError", (OSError,), {})
# An object of the engine's, one of its methods, and in which call of it the signal arrives.
INTERRUPTED = [
    *(("engine", "look", 2), ("engine.log", "end_slice", 1), ("engine.hooks", "set_mode", 3)),
    *(("alpha", method, 1) for method in ("start", "take", "busy_reason")),
    ("behind", "flush", 2),
]


@pytest.mark.parametrize(("owner", "method", "call"), INTERRUPTED)
def test_a_signals_error_comes_once_wherever_it_arrives(virtual, handle, owner, method, call):
    handle(Mock(side_effect=TimeUpError("time is up")))
    before = patched()
    one, training = virtual("alpha", "behind", plan=[observed(2), settle(INSTANT, 2), observed(2)])
    layers = {name: one.wrapper(name) for name in ("alpha", "behind")}
    place = layers.get(owner) or attrgetter(owner)(one)
    original, calls, raised = getattr(place, method), [], []

    @functools.wraps(original)
    def interrupted(*arguments, **keywords):
        calls.append(method)
        if len(calls) == call:
            signal.raise_signal(signal.SIGUSR1)
        return original(*arguments, **keywords)

    setattr(place, method, interrupted)
    for wall_s in uneven(40):
        try:
            training.step(wall_s)
        except TimeUpError as error:
            raised.append(str(error))
    assert raised == ["time is up"]
    # Nobody knows what stood when it came: everything is off, and the recording says so.
    assert patched() == before
    assert "disarmed" in one.notes
    assert "empty" not in {row["status"] for row in one.table("layers")}
