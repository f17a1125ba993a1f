"""The hooks of each slice: the least that its observers and steps need."""

import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch.optim import optimizer as optimizers

from profstack.capture import arming
from profstack.capture.hooks import DISCOVER, LIGHT, OFF, QUIET, RANGES, ROOT
from profstack.capture.slices import SlicePlan, Targets, settle
from profstack.capture.step_events import StepEvents
from profstack.layer import LISTENED, RANGED, Mode
from tests.support.engine import Alpha, Hears, VirtualOptimizer, elsewhere, observed
from tests.support.tables import cases

MODES = (Mode("timed"), *(Mode(kind, 0, 0, calls=kind) for kind in (RANGED, LISTENED)))
WAITS = SlicePlan("settle", (), 0, 99)
CLEAN = SlicePlan("clean", (), 2, 4)


def test_the_quick_hook_stamps_the_steps_of_the_followed_optimizer_on_its_thread(monkeypatch):
    times = iter((3.0, 5.0, 9.0, 17.0))
    monkeypatch.setattr(arming, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    looks, others, ends, told = [], [], [], StepEvents(SimpleNamespace(boundary=None), set, None)
    told.look, told.optimizer_ended = lambda: looks.append(len(ends)), others.append
    told.elsewhere = lambda frame: None
    followed, other = VirtualOptimizer(), VirtualOptimizer()
    # Its start may be reported.
    told.optimizer_started(followed)
    hook = arming.optimizer_hook(torch, weakref.ref(followed), ends, arming.Aim(3), told, [])
    for optimizer in (followed, followed, other):
        hook(optimizer, (), {})
    elsewhere(hook, followed, (), {})
    assert (ends, others, looks, told.stepping) == ([3.0, 5.0], [other, followed], [], [])
    for _ in range(2):
        hook(followed, (), {})
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True, raising=False)
    hook(followed, (), {})
    assert (looks, ends) == ([3, 4], [3.0, 5.0, 9.0, 17.0])


@pytest.mark.parametrize("by_calls", [False, True])
@cases(
    "kind seen mode by_call_mode",
    *(("clean", None, ROOT, ROOT), ("settle", None, ROOT, ROOT), ("watch", None, QUIET, ROOT)),
    *(("x", None, OFF, ROOT), ("alpha", "timed", LIGHT, ROOT)),
    *(("alpha", RANGED, RANGES, RANGES), ("alpha", LISTENED, DISCOVER, DISCOVER)),
    ("whole", "timed", RANGES, RANGES),
)
def test_the_mode_of_each_slice(virtual, monkeypatch, kind, seen, mode, by_call_mode, by_calls):
    monkeypatch.setattr(Alpha, "modes", MODES)
    one, training = virtual("alpha", plan=[WAITS])
    training.play("11 13")
    hooks, events, arm = one.engine.hooks, one.engine.events, one.engine.arming.arm
    if by_calls:
        events.rule, events.finder.source = "module", hooks.names.by_path["Net"].module_id
    layers = (("alpha", seen),) if seen else ()
    arm(SlicePlan(kind, layers, 2, 1))
    assert hooks.state.mode == (by_call_mode if by_calls else mode)
    if hooks.state.mode in (ROOT, LIGHT):
        assert hooks.root_class is type(training.net)
    if seen and kind != "whole":
        # The steps to settle before it have its hooks on already.
        arm(settle(Targets(), 2, layers))
        assert hooks.state.mode == (by_call_mode if by_calls else {LIGHT: OFF}.get(mode, mode))
    # A wrapper of the model's class alone does not see that another model comes first in a step.
    for hooks.state.mode, events.others_first, waits in (
        *((ROOT, False, True), (ROOT, True, False), (RANGES, True, True), (LIGHT, False, True)),
    ):
        events.follows_calls = True
        one.engine.arming.begin(CLEAN)
        assert (events.waits, events.sees_all) == (waits, hooks.state.mode == RANGES)
    # Where the module that ends steps is gone, all calls are watched.
    for events.rule, events._first_module in (("module", None), ("optimizer", None)):
        events.finder.source = 77
        arm(CLEAN)
        assert hooks.state.mode == DISCOVER


@cases(
    "means number short",
    *(((0.99,), 2, True), ((1.01,), 2, False), ((), 2, False)),
    # Round 1 records everything: its steps give the batch size of the others.
    ((0.99,), 1, False),
    # The middle one decides, not their mean.
    *(((0.2, 0.9, 5), 2, True), ((0.1, 1.05, 1.1), 2, False)),
)
def test_steps_are_short_by_the_median_of_clean_slices(virtual, monkeypatch, means, number, short):
    assert arming.SHORT_S == 0.002
    one, training = virtual("alpha", plan=[WAITS])
    training.step(0.011)
    armed, clean = one.engine.arming, SlicePlan("clean", (), number, 1)
    for mean in means:
        for kind, mean_s in (("clean", arming.SHORT_S * mean), ("alpha", 50.0), ("clean", None)):
            armed.learn({"kind": kind, "mean_s": mean_s})
    # A tool's slice has its own hooks.
    for planned, mode in ((clean, QUIET if short else ROOT), (observed(1, number=number), LIGHT)):
        armed.arm(planned)
        assert one.engine.hooks.state.mode == mode
    # With a device, after a compilation and by other rules the full boundary is kept.
    books = SimpleNamespace(counters={"frames": {"total": 1}})
    for kept in (
        lambda patch: patch.setattr(type(one.engine.log.clock), "has_device", True),
        lambda patch: patch.setitem(sys.modules, "torch._dynamo.utils", books),
        lambda patch: patch.setattr(one.engine.events, "followed_optimizer", None),
        lambda patch: setattr(one.engine.log, "plan", 9),
    ):
        assert (armed.quick_hook(clean) is not None) is short
        with monkeypatch.context() as patch:
            kept(patch)
            assert armed.quick_hook(clean) is None


def test_short_steps_are_stamped_with_evaluation_and_all(virtual):
    one, training = virtual("alpha", plan=[CLEAN, CLEAN, observed(3)])
    training.play("0.9 .8 .7 .6 .5 1.1 e 1.3 1.2 1.4 3 4 5")
    one.engine.finish()
    assert one.story == "startup d, clean ...., clean .e.., alpha ..."
    steps, walls = one.steps[1:], [0.8, 0.7, 0.6, 0.5, 1.1, 1.3, 1.2, 1.4, 3, 4, 5]
    assert [row["wall_s"] * 1e3 for row in steps] == pytest.approx(walls)
    # The second slice has ends alone: neither waits nor shapes.
    for name in ("wait_s", "cpu_s"):
        assert [row[name] is None for row in steps[:8]] == [False] * 4 + [True] * 4
    assert one.slices[2]["cpu_s"] == pytest.approx(5.0e-3 * 0.75)


def test_a_listener_hears_its_slice_alone_and_the_usual_hook_ends_its_steps(virtual, monkeypatch):
    monkeypatch.setattr(Alpha, "modes", MODES)
    planned = SlicePlan("alpha", (("alpha", LISTENED),), 1, 2)
    one, training = virtual("alpha", plan=[SlicePlan("clean", (), 1, 1), planned])
    heard = one.wrapper("alpha").heard = Hears()
    training.play("10 " * 7)
    name = "VirtualOptimizer"
    call = ["+module Net Net", "-module Net", f"+optimizer {name} {name}", f"-optimizer {name}"]
    assert heard.heard == ["begun 2", *call, "ended 3", "begun 3", *call, "ended 4"]
    notes = one.facts["setup_1"]
    assert (notes["calls"]["count"], notes["steps"]) == (0, 2)
    hooks = list(optimizers._global_optimizer_post_hooks.values())
    one.engine.arming.learn({"kind": "clean", "mean_s": arming.SHORT_S / 2})
    assert one.engine.hooks.exchange_step_hook() is True
    assert list(optimizers._global_optimizer_post_hooks.values()) == hooks
    assert one.engine.events.waits
