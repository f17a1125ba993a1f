"""Finding steps, with made-up events: what ends an iteration in scripts of every shape.

A script is a string of one-letter events, each a second after the last; what the finder makes of
it is compared with the iterations that the script's author would count.
"""

import pytest
import torch
from torch import nn

from profstack.capture.step_rules import LONG_PATIENCE, RARE, RULES, EvaluationWatch, StepFinder
from tests.support.engine import Net
from tests.support.tables import cases

PARAMETERS = {"m": 1000, "n": 100, "e": 1000}


class Script:
    """Tells a finder of events as the engine does, and counts the steps it makes of them.

    Letters: `A` to `D` are steps of optimizers, `m`, `n` and `e` calls of modules, `b` is a
    backward pass, `g` a `generate`, `s` a `profstack.step()`.
    """

    def __init__(self, live="", forced=None):
        self.live, self.now, self.found = frozenset(map(ord, live)), 0.0, None
        self.finder = StepFinder(self._living, forced)
        # The ends of all steps, plan by plan.
        self.plans, self.ends = [], []

    def _living(self):
        return self.live

    def run(self, events):
        for event in events:
            self.now += 1.0
            self._happen(event, self.now - 1.0)
        return self

    def _happen(self, event, begun):
        finder, source = self.finder, ord(event)
        if event in PARAMETERS:
            if finder.rule == "module" and finder.source == source:
                self.ends[-1].append(self.now if finder.inference else begun)
                return
            self.adopt(finder.call_started(source, PARAMETERS[event], begun))
            self.adopt(finder.call_ended(source, self.now))
            return
        rule = {"b": "backward", "g": "generate", "s": "step"}.get(event, "optimizer")
        if rule == "optimizer":
            found = finder.optimizer_step(source, self.now, 0.0)
        elif rule == "backward":
            found = finder.backward_ended(begun, self.now)
        else:
            found = finder.ended(rule, self.now, 0.0)
        if not found and finder.rule == rule and finder.source in (source, None):
            self.ends[-1].append(self.now)
        self.adopt(found)

    def adopt(self, found):
        if found is not None:
            self.plans.append((found.name, chr(found.source) if found.source else None))
            self.ends.append(list(found.past_ends))
            assert self.ends[-1] == sorted(found.past_ends)
            self.found = found


AB = [("optimizer", "A"), ("optimizer", "B")]
A, B = AB[:1], AB[1:]
M, BACKWARD, STEP = [("module", "m")], [("backward", None)], [("step", None)]
RARELY = "".join("mbAmbB" if number % 100 == 0 else "mbA" for number in range(300))


@cases(
    "live events plans steps",
    ("A", ("mb" * 64 + "A") * 5, A, [5]),
    # A GAN, one with a critic trained more often, and three of them.
    ("AB", "mbAmbB" * 20, B, [20]),
    ("AB", ("mbA" * 5 + "mbB") * 12, B, [12]),
    # One that never steps: what was seen while it was waited for is counted.
    ("ABC", "mbAmbB" * 20, B, [20]),
    # One after the other. Up to 3 steps nobody knows that A is not to be followed by B.
    ("AB", "mbA" * 3 + "mbB" * 30, B, [30]),
    ("AB", "mbA" * 10 + "mbB" * 30, AB, [10, 30]),
    # Until another takes twice as many steps as in other cycles.
    ("AB", ("mbA" * 12 + "mbB") * 5 + "mbA" * 24 + "mbB", AB, [12, 6]),
    ("AB", ("mbA" * 12 + "mbB") * 5 + "mbA" * 25, [*AB, *A], [12, 5, 25]),
    # One that steps too rarely ends no cycle; it may come first, too.
    ("AB", ("mbA" * (RARE + 1) + "mbB") * 5, A, [5 * (RARE + 1)]),
    ("AB", ("mbA" * RARE + "mbB") * 5, AB, [RARE, 5]),
    ("AB", RARELY, [*B, *A], [1, 299]),
    # Another loop with optimizers of its own, all of which step once in an iteration.
    ("CAB", "mbC" * 30 + "mbAB" * 30, [("optimizer", "C"), *B], [30, 30]),
    # A critic alone at first, and a second phase in which the end of the cycle sleeps.
    ("AB", "mbA" * 60 + "mbAmbB" * 40, AB, [62, 39]),
    ("AB", "mbAmbB" * 30 + "mbA" * 60, [*B, *A], [30, 60]),
    # Without an optimizer: where the forward begins, or the call ends, of the largest module.
    ("", "nbmb" * 10, M, [9]),
    ("", "mmg" * 6, [("generate", None)], [6]),
    # Evaluation before training is no step while the optimizer lives.
    ("A", "m" * 200 + "mbA" * 20, A, [20]),
    ("A", "m" * (LONG_PATIENCE - 1), [], []),
    ("A", "m" * (LONG_PATIENCE + 50), M, [LONG_PATIENCE + 50]),
    *(("", "mm", [], []), ("", "mmm", M, [3]), ("", "bb", [], []), ("", "bbb", BACKWARD, [3])),
    # What the user says takes over, and nothing takes over from it.
    ("A", "mbA" * 5 + "mbAs" * 10, [*A, *STEP], [6, 10]),
    ("A", "s" + "mbgA" * 40, STEP, [1]),
)
def test_steps_of_a_script(live, events, plans, steps):
    script = Script(live).run(events)
    assert (script.plans, list(map(len, script.ends))) == (plans, steps)


def test_what_is_found_later():
    # A plan that is taken over begins with the steps that showed it.
    assert Script("A").run("mbA" * 20 + "mbBmbB").found.past_ends == (63.0, 66.0)
    # One at the address of another is a new one.
    for gone, plans, steps in (("A", [*B, *A], [18, 2]), ("B", [*B, *B], [17, 3])):
        script = Script("AB").run("mbAmbB" * 17)
        script.finder.forget(ord(gone))
        assert (script.run("mbAmbB" * 3).plans, list(map(len, script.ends))) == (plans, steps)
    script = Script("A").run("m" * (LONG_PATIENCE - 1))
    script.live = frozenset()
    assert script.run("mm").plans == M
    # An optimizer made late begins a plan, and training after inference too.
    for live, events, later, more, plans in (
        ("A", "mbA" * 50, "B", "mbB" * 40, [(50, *A), (40, *B)]),
        ("", "m" * 10, "A", "mbA" * 10, [(11, *M), (10, *A)]),
    ):
        script = Script(live).run(events)
        script.live = frozenset(map(ord, later))
        script.run(more)
        assert list(zip(map(len, script.ends), script.plans, strict=True)) == plans


@cases(
    "rule events steps",
    *(("step", "mbAs", 10), ("optimizer", "mbAgs", 10), ("generate", "mbAgs", 10)),
    *(("backward", "mbbAs", 20), ("module", "mnbAs", 9), ("none", "mbAgs", 0)),
)
def test_a_forced_rule_is_the_only_one(rule, events, steps):
    script = Script("A", forced=rule).run(events * 10)
    assert [plan for plan, _ in script.plans] == [rule] * (steps > 0)
    assert sum(map(len, script.ends)) == steps
    assert RULES == ("step", "optimizer", "generate", "module", "backward")
    finder = StepFinder(frozenset)
    assert all(map(finder.allowed, RULES))
    finder.rule = "generate"
    assert list(map(finder.allowed, RULES)) == [True, True, True, False, False]


@pytest.mark.parametrize(("live", "events", "plan", "ends"), [
    ("AB", "mbA" * 4, ("optimizer", "A"), [3.0, 6.0, 9.0, 12.0]),
    ("ABC", "mbAmbBmbA", ("optimizer", "B"), [6.0]),
    ("A", "m" * 20, ("module", "m"), [float(number) for number in range(1, 21)]),
    ("", "nmnm", ("module", "m"), [2.0, 4.0]), ("", "bb", ("backward", None), [1.0, 2.0]),
])  # fmt: skip
def test_the_end_concludes_from_what_was_seen(live, events, plan, ends):
    script = Script(live).run(events)
    assert script.plans == []
    script.adopt(script.finder.conclude(0.0))
    assert (script.plans, script.ends) == ([plan], [ends])
    assert script.found.first_start == (1.0 if events[0] == "n" else 0.0)
    for live, events, forced in (("", "", None), ("AB", "mbAmbA", "none"), ("A", "mbA", None)):
        assert Script(live, forced).run(events).finder.conclude(0.0) is None


OWN = {"train": lambda self, mode=True: nn.Module.train(self, mode)}


@pytest.mark.parametrize("kind", [Net, type("WithTrain", (Net,), OWN)])
def test_a_switch_of_the_mode_is_reported_and_the_class_left_as_it_was(kind, monkeypatch):
    before, plain, reported, net = dict(kind.__dict__), nn.Module.train, [], kind()
    watch = EvaluationWatch(torch, reported.append)
    for root in (nn.Module(), object()):
        watch.put(root)
        assert (watch.watched, nn.Module.train, watch.is_on(net)) == (None, plain, False)
    watch.put(net)
    assert (watch.is_on(net), watch.is_on(nn.Linear(2, 2))) == (True, False)
    assert (net.train() is net, [*reported], net.eval() is net) == (True, [net], True)
    net.train(False)
    nn.Linear(2, 2).eval()
    # Nor is a switch reported while a graph is traced.
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "_is_compiling_flag", True, raising=False)
        net.eval()
    assert reported == [net] * 3
    watch.take_off()
    watch.take_off()
    net.eval()
    assert (reported, dict(kind.__dict__)) == ([net] * 3, before)
