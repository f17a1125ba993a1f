"""Events of the hooks become boundaries, rules and flags: on one thread, by one rule."""

import weakref
from _thread import get_ident
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from profstack.capture.module_names import ModuleInfo
from profstack.capture.step_events import StepEvents
from profstack.capture.step_log import EVAL
from tests.support.engine import VirtualOptimizer, elsewhere
from tests.support.tables import cases


class Told:
    """Stands for the engine: writes down what it is told, and follows each rule that is found."""

    def __init__(self, moments, live=""):
        self.moments, self.told = moments, []
        self.optimizers, self.net = {name: VirtualOptimizer() for name in "ABC"}, nn.Identity()
        self.log, self.generations = SimpleNamespace(last=0.0, total=0), []
        self.log.generated = lambda *row: self.generations.append(row)
        self.is_in_loop = lambda: False
        self.begin_discovery = lambda: self.told.append("discovery")
        self.attention = lambda: self.told.append("attention")
        self.quick_ended = lambda flags: self.told.append(f"quick {flags}")
        self.disarm = self.told.append
        living = frozenset(id(self.optimizers[name]) for name in live)
        self.events = StepEvents(self, lambda: living, None)

    def boundary(self):
        self.log.last, self.log.total = self.moments.now, self.log.total + 1
        self.told.append("step")
        self.events.begin_step()

    def adopt(self, rule, now):
        assert now == self.moments.now
        times = [f"{each - 100:g}" for each in (rule.first_start, *rule.past_ends)]
        events, trains = self.events, self.events.backward_seen
        events.follow(rule)
        # Whether it trains, and is told of calls and passes; and whether its last step has no end.
        seen = {"t": trains, "c": events.follows_calls, "p": events.follows_backward}
        letters = [each for each, is_so in {**seen, "o": events.open_ended}.items() if is_so]
        self.told.append(f"{rule.name}({' '.join(times)}){''.join(letters)}")
        assert events.backward_seen is False
        followed = events.followed_optimizer and events.followed_optimizer()
        assert (id(followed) == rule.source) is (rule.name == "optimizer")
        self.log.last = rule.past_ends[-1] if rule.past_ends else now

    def take(self):
        told = [*self.told, *["eval"] * bool(self.events.flags & EVAL)]
        self.told.clear()
        return told

    def happen(self, script):
        """Let events happen, as the table below names them; `@` is before those of a thread."""
        for word in script.split():
            if word[0] == "@":
                elsewhere(self.event, word[1:])
            else:
                self.event(word)
        return " ".join(self.take())

    def event(self, word):
        events, which = self.events, word[1:]
        if word.isdigit():
            self.moments.wait(float(word))
        elif word[0] in "+-":
            happened = events.optimizer_started if word[0] == "+" else events.optimizer_ended
            happened(self.optimizers[which])
        elif word[0] == "!":
            gone = events._candidates[id(self.optimizers[which])] = weakref.ref(VirtualOptimizer())
            events.followed_optimizer = events.followed_optimizer if which == "B" else gone
        elif word == "=":
            self.is_in_loop = lambda: True
        elif word[0] in "<>":
            happened = events.call_started if word[0] == "<" else events.call_ended
            happened(self.net.train(which == "m"), named(2 if which == "t" else 1, which == "l"))
        elif word in "met":
            self.event(f"<{word}")
            self.event(f">{word}")
        elif word in "gG":
            events.generate_started(self.net)
            for each in "eeee":
                self.event(each)
            events.generate_ended({"new_tokens": 9}, completed=word == "g")
        elif word == "b":
            events.backward_started()
            self.moments.wait(1.0)
            events.backward_ended()
        else:
            calls = {"s": events.user_step, "k": events.marked, "l": events.look}
            calls["f"] = lambda: events.first_activity(self.net, (), {})
            calls["?"] = lambda: events.evaluated({"e": named(1), "t": named(2)}.get(which))
            calls["S"] = lambda: events.start_over("step")
            calls[word[0]]()


def named(number, is_loss=False):
    return ModuleInfo(number, f"Net#{number}", None, "Net", number, None, 100, is_loss=is_loss)


@pytest.fixture
def make(moments):
    return lambda *live: Told(moments, *live)


# Events: `+A` and `-A` begin and end an optimizer's step; `m` is a call in training, `e` one of the
# same module and `t` one of another in evaluation, `<m` and `>m` the two ends of one; `b` a
# backward pass of a second, `g` a `generate` and `G` one that fails; `s` and `k` mark a step; `f`
# is the first activity, `?e` an evaluation that is reported, `!A` the end of one whose place
# another one takes; a number waits.
@cases(
    "live script told",
    # A step begins with the first training, or the first activity, and not with evaluation.
    ("A", "7 f 1 f 2 -A", "discovery optimizer(7 10)"),
    ("A", "f e 5 m 1 m 2 -A", "discovery optimizer(5 8)"),
    # A module that trained is evaluated; one that never did is a part, and so is a loss.
    ("A", "m -A | t ?t ? <l @e | m e | -A", "optimizer(0 0) | | eval | step"),
    ("A", "m -A ?e | l | l", "optimizer(0 0) attention eval | quick 1 | quick 0"),
    # Steps of optimizers in one another; starts are not reported in every slice.
    ("A", "+A +B -B -A | +A +B -B -A -B -A", "optimizer(0 0) | step step"),
    # The one followed is inside another by now. What an error ended is left behind.
    ("A", "+A +B -B -A | +B +A -A | +A +A -A | +B -B +A -A", "optimizer(0 0) | | | step"),
    # A later loop has two of its own: the one that told the rule is not the one that ends steps.
    (
        "A",
        f"-A {'-A ' * 17}| 1 -B 2 -C | 3 -B | 4 -C | -B -C",
        f"optimizer(0 0) {'step ' * 17}| | | optimizer(0 3 10) | step",
    ),
    # Another one that lies where the one followed lay is a new one, beside one that never steps.
    (
        "AB",
        f"{'-A ' * 6}| -A | !A {'-A ' * 5}| -A | -A",
        "optimizer(0 0 0 0 0 0 0) | step | | optimizer(0 0 0 0 0 0 0) | step",
    ),
    ("A", "-B -B -A -B -B -A | !B -B -B -A | !B -B -A", "optimizer(0 0) step | step | step"),
    # In the loop of the one that is gone another one goes on, and each that follows it.
    ("A", "-A | = !A -A | -A | !A -B | !A -A", "optimizer(0 0) | step | step | step | step"),
    # One that made more steps was that of a fold: it is looked for who ends steps now.
    ("A", "-A -A -A -A | = !A -A | -A", "optimizer(0 0) step step step | optimizer(0 0) | step"),
    # Backward passes, but not those inside the step of an optimizer, nor other threads'.
    ("", "b b b | b | @b | +A b", "backward(0 1 2 3)tp | step | |"),
    ("A", "-A | @+A @-A @-B | -A", "optimizer(0 0) | | step"),
    # Calls end where no optimizer lives; in a hand-written update they begin the next step,
    # and the call in evaluation begins the step that it is in.
    ("", "1 <e 2 >e <e 2 >e <e 2 >e | >t >l @>e | e", "module(1 3 5 7)cp | | step"),
    ("", "<m b <m b <m | >m | <m | <e", "module(0 1 2)tcpo | | step | step eval"),
    ("", "G g | g | @g", "generate(0 0)p | step |"),
    # Marked steps take over and begin with the next: the rule before counted what ended.
    ("A", "-A 3 s | s @s @k | k", "optimizer(0 0) step(3)tp | step | step"),
    # Of other work only the marked steps count, and the first begins when it does.
    ("", "1 f 2 s | 1 S 3 -A s", "discovery step(1 3)p | step(4 7)p"),
)
def test_what_becomes_of_events(make, live, script, told):
    made = make(live)
    found = " | ".join(map(made.happen, script.split("|")))
    assert found.split() == told.split()


def test_the_first_activity_of_a_step_says_how_long_it_waited_and_what_it_was_given(make, moments):
    told, net = make("A"), nn.Identity()
    events, x = told.events, torch.zeros(4, 3)

    def seen():
        return events.activity, events.waiting, events.shape and tuple(events.shape)

    assert events.waiting
    moments.wait(0.7)
    events.first_activity(net, (x,), {"other": torch.zeros(9)})
    assert (seen(), events.first_module()) == ((100.7, False, (4, 3)), net)
    told.event("-A")
    events.begin_step()
    assert seen() == (None, True, None)
    elsewhere(events.first_activity, nn.ReLU(), (), {})
    assert seen() == (None, True, None)
    moments.wait(0.25)
    events.first_activity(nn.ReLU(), (), {"the_mask": torch.zeros(8), "x": torch.zeros(7)})
    events.first_activity(None, (), {})
    assert (seen(), events.first_module()) == ((100.95, False, (7,)), net)
    del net
    assert events.first_module() is None


def test_a_loaders_batches_are_added_up_until_the_step_ends(make, moments):
    told = make("A")
    events = told.events
    for asked, waits in ((101.0, 2.0), (105.0, 0.5)):
        moments.now = asked + waits
        events.batch_asked(asked)
    events.thread = get_ident()
    elsewhere(events.batch_asked, 90.0)
    assert (events.asked, events.loader_s) == (101.0, 2.5)
    events.begin_step()
    assert (events.asked, events.loader_s) == (None, 0.0)
    # A data set that calls a model ends the wait, and may end the step before.
    moments.now = 107.0
    events.first_activity(None, (), {})
    moments.now = 109.0
    events.batch_asked(106.5)
    assert (events.asked, events.loader_s) == (106.5, 0.5)
    told.log.last = 108.0
    events.batch_asked(107.5)
    assert events.loader_s == 0.5


def test_the_first_token_is_there_when_the_model_is_called_again(make, moments):
    told = make()
    events = told.events
    for calls in (3, 1):
        events.generate_started(told.net)
        for _ in range(calls):
            moments.wait(0.5)
            events.call_started(told.net, named(1))
            moments.wait(2.0)
            events.call_ended(told.net, named(1))
        events.generate_ended({"new_tokens": calls}, completed=True)
    events.generate_started(told.net)
    events.generate_ended(None, completed=False)
    assert told.generations == [(7.5, 3.0, {"new_tokens": 3}), (2.5, None, {"new_tokens": 1})]


def test_who_comes_first_in_a_step_of_calls_is_seen_where_all_calls_are(make):
    told, found = make(""), []
    assert (told.happen("f e"), told.events.others_first) == ("discovery", False)
    told.happen("1 <e 2 >e <e 2 >e <e 2 >e <e 2 >e")
    for told.events.sees_all, word in ((True, "e"), (True, "t"), (False, "e"), (True, "e")):
        told.events.begin_step()
        told.happen(f"f {word}")
        found.append(told.events.others_first)
    assert (told.events.rule, found) == ("module", [False, True, True, False])
