"""Finding steps, with made-up events: what ends an iteration in scripts of every shape.

A script is a string of one-letter events, each a second after the last; what the finder makes of
it is compared with the iterations that the script's author would count.
"""

from __future__ import annotations

import pytest

from profstack.capture.step_rules import LONG_PATIENCE, RARE, RULES, OptimizerCycle, StepFinder

# Parameters of the modules that the made-up scripts call.
PARAMETERS = {"m": 1000, "n": 100, "e": 1000}


class Script:
    """Tells a finder of events as the engine does, and counts the steps it makes of them.

    Letters: `A` to `D` are steps of optimizers, `m` and `n` calls of a large and a small module,
    `b` is a backward pass, `g` a `generate`, `s` a `profstack.step()`.
    """

    def __init__(self, live: str = "", forced: str | None = None) -> None:
        self.live = frozenset(map(ord, live))
        self.looks = 0
        self.finder = StepFinder(self._living, forced)
        self.now = 0.0
        self.first: float | None = None
        self.plans: list[tuple[str, str | None]] = []
        # The ends of all steps, plan by plan.
        self.ends: list[list[float]] = []

    def _living(self) -> frozenset[int]:
        self.looks += 1
        return self.live

    def run(self, events: str) -> Script:
        """Let the events happen."""
        for event in events:
            self._happen(event)
        return self

    def _happen(self, event: str) -> None:
        begun, self.now = self.now, self.now + 1.0
        finder = self.finder
        first = self.first = begun if self.first is None else self.first
        found = None
        if event in "ABCD":
            if finder.rule == "optimizer" and finder.source == ord(event):
                finder.optimizer_step(ord(event), 0.0, 0.0)
                self.ends[-1].append(self.now)
                return
            found = finder.optimizer_step(ord(event), self.now, first)
        elif event == "b":
            found = finder.backward_ended(begun, self.now)
            if finder.rule == "backward" and not found:
                self.ends[-1].append(self.now)
        elif event in PARAMETERS:
            self._call(event, begun)
            return
        elif event == "g":
            found = finder.ended("generate", self.now, first)
            if finder.rule == "generate" and not found:
                self.ends[-1].append(self.now)
        elif event == "s":
            found = finder.ended("step", self.now, first)
            if finder.rule == "step" and not found:
                self.ends[-1].append(self.now)
        self._adopt(found)

    def _call(self, event: str, begun: float) -> None:
        finder = self.finder
        own = finder.rule == "module" and finder.source == ord(event)
        if own:
            self.ends[-1].append(self.now if finder.inference else begun)
            return
        self._adopt(finder.call_started(ord(event), PARAMETERS[event], begun))
        self._adopt(finder.call_ended(ord(event), self.now))

    def _adopt(self, found: object) -> None:
        if found is None:
            return
        source = chr(found.source) if found.source is not None else None
        self.plans.append((found.name, source))
        self.ends.append(list(found.past_ends))
        assert list(found.past_ends) == sorted(found.past_ends)
        assert found.first_start <= found.past_ends[0]
        self.found = found

    @property
    def steps(self) -> int:
        """All steps, over all plans."""
        return sum(map(len, self.ends))


# -- optimizers --------------------------------------------------------------------------------


def test_one_optimizer_is_known_at_its_first_step() -> None:
    script = Script("A").run("mbA")
    assert script.plans == [("optimizer", "A")]
    assert script.found.first_start == 0.0
    assert script.found.past_ends == (3.0,)
    assert script.run("mbA" * 9).steps == 10


@pytest.mark.parametrize("backwards", [4, 8, 64])
def test_accumulation_is_one_step_per_optimizer_step(backwards: int) -> None:
    script = Script("A").run(("mb" * backwards + "A") * 5)
    assert script.plans == [("optimizer", "A")]
    assert script.steps == 5


def test_a_gan_steps_by_the_second_of_its_two_optimizers() -> None:
    script = Script("DA").run("mbDmbA" * 20)
    assert script.plans == [("optimizer", "A")]
    assert script.steps == 20


@pytest.mark.parametrize("critic_steps", [2, 5])
def test_a_critic_trained_more_often_is_part_of_the_step(critic_steps: int) -> None:
    script = Script("DA").run(("mbD" * critic_steps + "mbA") * 12)
    assert script.plans == [("optimizer", "A")]
    assert script.steps == 12
    assert script.found.first_start == 0.0


def test_td3_updates_its_actor_with_every_second_critic() -> None:
    script = Script("DA").run("mbDmbDmbA" * 12)
    assert script.plans == [("optimizer", "A")]
    assert script.steps == 12


def test_a_generator_updated_at_multiples_of_five_ends_the_cycle_all_the_same() -> None:
    events = "".join("mbDmbA" if number % 5 == 0 else "mbD" for number in range(60))
    script = Script("DA").run(events)
    assert script.plans == [("optimizer", "A")]
    assert script.steps == 12


def test_a_critic_trained_too_often_to_be_waited_for_is_corrected_later() -> None:
    script = Script("DA").run(("mbD" * 10 + "mbA") * 6)
    assert script.plans == [("optimizer", "D"), ("optimizer", "A")]
    assert len(script.ends[1]) == 6


def test_three_optimizers_end_with_the_last_of_them() -> None:
    script = Script("ABC").run("mbAmbBmbC" * 7)
    assert script.plans == [("optimizer", "C")]
    assert script.steps == 7


def test_two_of_three_optimizers_end_with_the_second_when_the_third_sleeps() -> None:
    script = Script("ABC").run("mbAmbB" * 20)
    assert script.plans == [("optimizer", "B")]
    # The first B steps are over by the time the rule is known, and are counted.
    assert script.steps == 20


def test_an_optimizer_that_never_steps_loses_no_step() -> None:
    script = Script("AB").run("mbA" * 20)
    assert script.plans == [("optimizer", "A")]
    assert script.steps == 20
    assert script.ends[0] == [3.0 * number for number in range(1, 21)]


@pytest.mark.parametrize("first", [3, 10, 40])
def test_two_optimizers_trained_one_after_the_other_make_two_plans(first: int) -> None:
    script = Script("AB").run("mbA" * first + "mbB" * 30)
    if first == 3:
        # Nobody knew yet that A was not to be followed by B: B ends the cycle of both.
        assert script.plans == [("optimizer", "B")]
        assert script.steps == 30
        return
    assert script.plans == [("optimizer", "A"), ("optimizer", "B")]
    assert len(script.ends[0]) == first
    assert len(script.ends[1]) == 30


def test_an_optimizer_made_late_begins_a_plan() -> None:
    script = Script("A").run("mbA" * 50)
    script.live = frozenset(map(ord, "B"))
    script.run("mbB" * 40)
    assert script.plans == [("optimizer", "A"), ("optimizer", "B")]
    assert [len(ends) for ends in script.ends] == [50, 40]


@pytest.mark.parametrize("every", [RARE + 2, 50])
def test_a_rare_optimizer_is_ignored(every: int) -> None:
    script = Script("AB").run(("mbA" * every + "mbB") * 5)
    assert script.plans == [("optimizer", "A")]
    assert script.steps == 5 * every


def test_a_rare_optimizer_that_happens_to_come_first_is_ignored_too() -> None:
    events = "".join("mbAmbB" if number % 100 == 0 else "mbA" for number in range(300))
    script = Script("AB").run(events)
    assert script.plans == [("optimizer", "B"), ("optimizer", "A")]
    # The first iteration counts as the step of both; nothing is lost or counted twice.
    assert script.steps == 300


def test_a_critic_trained_alone_at_first_makes_the_gan_a_plan_of_its_own() -> None:
    script = Script("DA").run("mbD" * 60 + "mbDmbA" * 40)
    assert script.plans == [("optimizer", "D"), ("optimizer", "A")]
    assert 60 + 40 <= script.steps <= 60 + 40 + 1


def test_a_second_phase_in_which_the_end_of_the_cycle_sleeps() -> None:
    script = Script("DA").run("mbDmbA" * 30 + "mbD" * 60)
    assert script.plans == [("optimizer", "A"), ("optimizer", "D")]
    assert script.steps == 90


def test_a_plan_that_is_taken_over_begins_with_the_steps_that_showed_it() -> None:
    script = Script("A").run("mbA" * 20)
    script.run("mbBmbB")
    assert script.found.past_ends == (63.0, 66.0)


def test_wrapped_optimizers_count_once() -> None:
    # As accelerate does it: the wrapper is an Optimizer too, and steps when the inner one has.
    script = Script("AW").run("mbA" * 20)
    assert script.plans == [("optimizer", "A")]
    assert script.steps == 20


def test_the_search_for_living_optimizers_is_made_once_per_optimizer() -> None:
    script = Script("DA").run("mbDmbA" * 50)
    assert script.looks == 2


def test_the_cycle_alone_says_when_its_end_is_known_anew() -> None:
    cycle = OptimizerCycle()
    living = frozenset({1, 2})
    told = [cycle.saw(key, lambda: living) for key in (1, 2, 1, 2, 1, 2)]
    assert told == [False, True, False, False, False, False]
    assert cycle.last == 2


# -- no optimizer ------------------------------------------------------------------------------


def test_a_hand_written_update_steps_where_its_forward_begins() -> None:
    script = Script().run("mb" * 10)
    assert script.plans == [("module", "m")]
    assert not script.finder.inference
    assert script.found.first_start == 0.0
    # The tenth step has begun, and nothing has told its end.
    assert script.ends[0] == [2.0 * number for number in range(1, 10)]


def test_inference_steps_where_the_call_ends() -> None:
    script = Script().run("m" * 10)
    assert script.plans == [("module", "m")]
    assert script.finder.inference
    assert script.ends[0] == [float(number) for number in range(1, 11)]


def test_inference_steps_by_the_module_with_most_parameters() -> None:
    script = Script().run("nm" * 10)
    assert script.plans == [("module", "m")]
    assert script.steps == 10


def test_plain_tensors_step_by_backward() -> None:
    script = Script().run("b" * 10)
    assert script.plans == [("backward", None)]
    assert script.found.first_start == 0.0
    assert script.steps == 10


def test_evaluation_before_training_is_no_step_while_the_optimizer_lives() -> None:
    script = Script("A").run("m" * 100)
    assert script.plans == []
    script.run("mbA" * 20)
    assert script.plans == [("optimizer", "A")]
    assert script.steps == 20


def test_a_long_evaluation_looks_for_optimizers_seldom() -> None:
    script = Script("A").run("m" * (LONG_PATIENCE - 1))
    assert script.plans == []
    assert script.looks <= 8


def test_an_optimizer_that_never_stepped_is_given_up_in_the_end() -> None:
    script = Script("A").run("m" * (LONG_PATIENCE + 50))
    assert script.plans == [("module", "m")]
    assert script.steps == LONG_PATIENCE + 50


def test_an_optimizer_dropped_unused_does_not_keep_inference_waiting_for_long() -> None:
    script = Script("A").run("m" * 5)
    script.live = frozenset()
    script.run("m" * 10)
    assert script.plans == [("module", "m")]
    assert script.steps == 15


def test_training_after_inference_begins_a_plan() -> None:
    script = Script().run("m" * 10)
    script.live = frozenset(map(ord, "A"))
    script.run("mbA" * 10)
    assert script.plans == [("module", "m"), ("optimizer", "A")]
    assert len(script.ends[1]) == 10


# -- what the user says ------------------------------------------------------------------------


def test_generate_goes_before_modules() -> None:
    script = Script().run("mmg" * 6)
    assert script.plans == [("generate", None)]
    assert script.steps == 6


def test_a_users_step_takes_over_from_whatever_stands() -> None:
    script = Script("A").run("mbA" * 5 + "mbAs" * 10)
    assert script.plans == [("optimizer", "A"), ("step", None)]
    assert [len(ends) for ends in script.ends] == [6, 10]


def test_nothing_takes_over_from_a_users_step() -> None:
    script = Script("A").run("s" + "mbgA" * 40)
    assert script.plans == [("step", None)]


@pytest.mark.parametrize(
    ("rule", "events", "steps"),
    [
        ("step", "mbAs", 10),
        ("optimizer", "mbAgs", 10),
        ("generate", "mbAgs", 10),
        ("backward", "mbbAs", 20),
        ("module", "mnbAs", 9),
    ],
)
def test_a_forced_rule_is_the_only_one(rule: str, events: str, steps: int) -> None:
    script = Script("A", forced=rule).run(events * 10)
    assert [plan for plan, _ in script.plans] == [rule]
    assert script.steps == steps


def test_no_rule_fires_where_steps_are_not_wanted() -> None:
    script = Script(forced="none").run("mbAgs" * 300)
    assert script.plans == []


def test_the_rules_stand_in_the_order_in_which_they_win() -> None:
    assert RULES == ("step", "optimizer", "generate", "module", "backward")


# -- a script that ends before its rule is known -----------------------------------------------


@pytest.mark.parametrize(
    ("live", "events", "rule", "ends"),
    [
        ("AB", "mbA" * 4, ("optimizer", "A"), [3.0, 6.0, 9.0, 12.0]),
        ("ABC", "mbAmbB" * 3, ("optimizer", "B"), [6.0, 12.0, 18.0]),
        ("A", "m" * 20, ("module", "m"), [float(number) for number in range(1, 21)]),
        ("", "nmnm", ("module", "m"), [2.0, 4.0]),
        ("", "mbmb", ("module", "m"), [2.0]),
        ("", "bb", ("backward", None), [1.0, 2.0]),
    ],
)
def test_the_end_concludes_from_what_was_seen(
    live: str, events: str, rule: tuple[str, str | None], ends: list[float]
) -> None:
    script = Script(live).run(events)
    assert script.plans == []
    script._adopt(script.finder.conclude(0.0))
    assert script.plans == [rule]
    assert script.ends == [ends]


@pytest.mark.parametrize(("live", "events", "forced"), [("", "", None), ("AB", "mbAmbA", "none")])
def test_nothing_is_concluded_from_nothing(live: str, events: str, forced: str | None) -> None:
    assert Script(live, forced).run(events).finder.conclude(0.0) is None


def test_a_rule_that_stands_is_concluded_no_more() -> None:
    assert Script("A").run("mbA").finder.conclude(0.0) is None


def test_steps_told_together_are_as_many_as_steps_told_singly() -> None:
    cycle = OptimizerCycle()
    for _ in range(2):
        cycle.saw(1, lambda: frozenset({1}))
    cycle.ended(RARE + 10)
    # Rare by now: it does not belong to the cycle.
    assert not cycle.saw(2, lambda: frozenset({1, 2}))
    assert cycle.last == 1


def test_optimizers_that_are_forgotten_are_found_anew() -> None:
    script = Script("A").run("mbA" * 5)
    script.finder.forget_optimizers()
    assert script.finder.optimizer_step(ord("A"), 20.0, 18.0) is not None
