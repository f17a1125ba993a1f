"""Trials of made-up scripts: who is run when, what is told of it, and what nothing tells."""

import math
import random

import pytest

from profstack.changes.contract import Change, Edit
from profstack.errors import TargetError
from profstack.launch import trial_report, trials
from profstack.launch.trials import Arm, Plan, Process, Trials, ratio_of, read_process
from profstack.stats.processes import Prior
from tests.support.recordings import Run
from tests.support.tables import cases, of

SEEN = {"root": {"name": "net"}, "cores": 4}
RESULTS = {"losses": [[[[], 2.0, 2.0]]], "outputs": [], "gradients": []}
RESULTS |= {"inputs": [[[[4], 1.0, 1.0]]], "random": ["a"]}


class Script:
    """A script whose steps take `step_s`, times the factor of each change that is made.

    `then` alters what a process has found, by what was chosen and whether it only looks.
    """

    def __init__(self, factors, noise=0.01, seed=1, length=None, then=lambda *_: None):
        self.factors, self.noise, self.length, self.then = factors, noise, length, then
        self.chance, self.clock, self.ran = random.Random(seed), 0.0, []

    def __call__(self, chosen, *, steps, seconds=None, observe=False):
        names = [f"{name}={value}" if value is not None else name for name, value in chosen.items()]
        self.ran.append("+".join(names) or "plain")
        factor = math.prod(self.factors.get(name, 1.0) for name in names)
        made = min(steps, self.length or steps)
        if isinstance(broken := self.factors.get(names[0] if names else ""), str):
            return Process(code=1, said=broken, wall_s=1.0)
        step_s = 0.1 * factor * math.exp(self.chance.gauss(0.0, self.noise))
        self.clock += 5.0 + made * step_s
        held = {name: [["/w/a.py", 3, 1]] for name in chosen}
        if "idle" in chosen:
            held["idle"] = []
        results = {**RESULTS, "losses": [[[[], 2.0 * self.factors.get("loss", 1.0), 2.0]]]}
        told = {"held": held, "seen": SEEN, "results": results if names else RESULTS, "failed": {}}
        told |= {"peak_rss_bytes": 100 + len(names)}
        first_s = 3.0 if "slow_first" in chosen else 0.2
        times = {"step_s": step_s, "item_s": step_s / 4, "run_s": step_s, "first_s": first_s}
        process = Process(made, **times, wall_s=5.0 + made * step_s, told=told)
        self.then(process, chosen, observe)
        return process


def change(name, **more):
    known = {"results": "digits", "applies": lambda seen: None, "edit": Edit(line=f"{name}()")}
    return Change(name, f"make it {name}", **{**known, **more})


@pytest.fixture
def make(monkeypatch, tmp_path):
    def make(script, *names, budget_s=1e9, known=(), **plan):
        found = {name: change(name) for name in names} | {each.name: each for each in known}
        monkeypatch.setattr(trials, "changes", lambda: found)
        monkeypatch.setattr(trials.time, "monotonic", lambda: script.clock)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "a.py").write_text("import torch\n")
        made = Trials(["a.py"], tmp_path, Plan(budget_s, in_place=True, **plan), lambda line: None)
        monkeypatch.setattr(made, "_run", script)
        made.look()
        made.choose()
        made.run()
        return made

    return make


def told(made, columns="change verdict"):
    return [of(row, columns) for row in trial_report.report_of(made, ["a.py"], 1.0)["trials"]]


def test_gains_and_losses_are_told_and_nothing_else(make):
    script = Script({"fast": 0.8, "slow": 1.25, "broken": "no such thing"})
    made = make(script, "fast", "slow", "none", "broken", "idle")
    found = dict(told(made))
    assert found == {"fast": "gains", "none": "same", "idle": "same", "slow": "loses",
                     "broken": "breaks"}  # fmt: skip
    # The first run looks; each round turns round, with the plain script at both ends.
    assert script.ran[1:8] == ["plain", "fast", "slow", "none", "broken", "idle", "plain"]
    assert script.ran[8:13] == ["plain", "none", "slow", "fast", "plain"]
    counts = {arm.name: len(arm.processes) for arm in made.arms}
    assert (counts["broken"], counts["idle"]) == (1, 1)
    assert counts["fast"] == counts["slow"] == trials.LEAST < counts["none"]
    reasons = dict(told(made, "change reason"))
    assert reasons["broken"] == "no such thing"
    assert reasons["idle"] == "it changed nothing in this run"


def test_nothing_is_told_of_changes_that_do_nothing(make):
    names = [f"n{number}" for number in range(12)]
    gains = 0
    for seed in range(20):
        made = make(Script({}, noise=0.04, seed=seed), *names)
        gains += any(word != "same" for _, word in told(made))
    assert gains <= 2


@cases("budget_s rounds ended", (1e9, 12, "12 processes of each are the most"),
       (190.0, 4, "the budget is used up"), (60.0, 2, "the budget is used up"))  # fmt: skip
def test_the_budget_ends_it(make, budget_s, rounds, ended):
    made = make(Script({}, noise=0.3), "none", budget_s=budget_s, steps=50)
    assert made.ended == ended
    assert abs(len(made.plain.processes) - rounds) <= 1
    assert made.steps == 50


@cases("budget_s count", (1e9, 5), (160.0, 4), (140.0, 3), (1.0, 1))
def test_a_short_budget_tries_few_changes_to_an_end(make, budget_s, count):
    # A process takes 5 s and 20 steps of 0.1 s, three of each arm are the least.
    names = [f"n{number}" for number in range(5)]
    made = make(Script({"n0": 0.7}, noise=0.001), *names, budget_s=budget_s + 25.0, steps=20)
    assert [arm.name for arm in made.arms] == names[:count]
    assert list(made.left_out) == names[count:]
    assert all("--budget 3m is enough" in reason for reason in made.left_out.values())
    if count > 1:
        assert dict(told(made))["n0"] == "gains"


@cases("enough_s length steps whole", (3.0, None, 30, None), (3.0, 25, 25, 25), (3.0, 90, 30, 90),
       (0.1, None, 20, None), (1e3, None, 2_000, None), (1e3, 199, 199, 199))  # fmt: skip
def test_as_many_steps_as_take_some_seconds(make, monkeypatch, enough_s, length, steps, whole):
    monkeypatch.setattr(trials, "ENOUGH_S", enough_s)
    made = make(Script({}, noise=0.0, length=length), "none")
    assert (made.steps, made.whole_steps) == (steps, whole)


def test_a_script_that_fails_or_has_no_step_is_no_target(make):
    with pytest.raises(TargetError, match="cannot run"):
        make(Script({"": "cannot run"}), "none")
    script = Script({})
    script.__class__ = type("", (Script,), {"__call__": lambda *given, **how: Process(wall_s=1.0)})
    with pytest.raises(TargetError, match="no step"):
        make(script, "none")


def test_each_value_is_an_arm_and_why_others_are_left_out(make):
    workers = change("w", values=lambda seen: [1, 4])
    none = change("v", values=lambda seen: [])
    never = change("x", applies=lambda seen: f"{seen.cores} cores are few")
    made = make(Script({"w=4": 0.5}), known=[workers, none, never])
    assert told(made, "change verdict changes") == [
        ["w=4", "gains", ["w"]], ["w=1", "same", ["w"]]]  # fmt: skip
    assert made.left_out == {"v": "no other value is left to try", "x": "4 cores are few"}


def test_results_beyond_the_kind_are_not_recommended(make):
    names = "change recommended results reason"
    made = make(Script({"fast": 0.8, "loss": 1.01}), "fast")
    reason = "it changes results beyond its kind, and is not recommended"
    assert told(made, names) == [["fast", False, "different", reason]]
    for factor, kind in ((1.0 + 1e-5, "digits"), (1.01, "precision"), (3.0, "different")):
        made = make(Script({"fast": 0.8, "loss": factor}), known=[change("fast", results=kind)])
        ((_, recommended, _, reason),) = told(made, names)
        assert (recommended, reason) == (True, None)
    made = make(Script({"fast": 0.8}), known=[change("fast", to_know=True)])
    assert told(made, "verdict recommended") == [["gains", False]]


@cases(
    "noise loss kind results allowed plain",
    # Plain processes that differ are told, and a change may differ as much as they do.
    (1e-6, 1 + 5e-7, "equal", "digits", True, "digits"),
    (1e-6, 1 + 5e-6, "equal", "digits", False, "digits"),
    (1e-6, 1 + 5e-6, "digits", "digits", True, "digits"),
    # Where they differ by more than the change may, nothing is known of it.
    (0.3, 1.0, "digits", None, False, "different"),
    (0.3, 1.0, "different", "equal", True, "different"),
    (0.0, 1.0, "equal", "equal", True, "equal"),
)  # fmt: skip
def test_differing_plain_processes_are_a_limit(make, noise, loss, kind, results, allowed, plain):
    def differ(process, chosen, _):
        if not chosen and len(script.ran) > 2:
            process.told["results"] = {**RESULTS, "losses": [[[[], 2.0 * (1 + noise), 2.0]]]}

    script = Script({"fast": 0.8, "loss": loss}, then=differ)
    made = make(script, known=[change("fast", results=kind)])
    assert told(made, "verdict results recommended") == [["gains", results, allowed]]
    assert trial_report.report_of(made, ["a.py"], 1.0)["plain_results"] == plain


@cases("carried loss results limit", (0.0, 1.0005, "different", 1e-4),
       (1e-4, 1.0005, "digits", 1e-3), (1e-4, 1.002, "different", 1e-3))  # fmt: skip
def test_last_digits_are_as_large_as_the_script_carries_them(make, carried, loss, results, limit):
    def carry(process, _, observe):
        if observe:
            process.told["results"] = {**RESULTS, "losses": [[[[], 2.0 * (1 + carried), 2.0]]]}

    made = make(Script({"fast": 0.8, "loss": loss}, then=carry), "fast")
    assert told(made, "results recommended") == [[results, results == "digits"]]
    found = trial_report.report_of(made, ["a.py"], 1.0)["digits_limit"]
    assert found == pytest.approx(limit, rel=1e-3)


@cases("budget_s counts", (1e9, "8 12 12 12"), (245.0, "5 5 3 3"), (290.0, "6 6 3 3"))
def test_a_short_budget_goes_on_with_those_that_gain_most(make, budget_s, counts):
    # A round takes 42 s, and one of two arms and the plain ones 28 s; the first is clear after 8.
    made = make(Script({"a": 0.95, "b": 0.95}, noise=0.03), *"abcd", budget_s=budget_s, steps=20)
    assert " ".join(str(len(arm.processes)) for arm in made.arms) == counts
    assert ["others gained" in (arm.closed or "") for arm in made.arms[2:]] == ["3" in counts] * 2


def test_few_processes_tell_nothing(make):
    made = make(Script({"fast": 0.5}), "fast", budget_s=55.0, steps=20)
    reason = "only 2 of 3 processes were run in the budget: not told"
    assert told(made, "verdict recommended reason") == [["same", False, reason]]


def test_without_evidence_nothing_is_recommended(make):
    for then, wanted, said in (
        (lambda process, *_: process.told.update(results={}), "gains", "cannot be compared"),
        (lambda process, *_: process.told.clear(), "same", "was not written"),
    ):
        made = make(Script({"fast": 0.8}, then=then), "fast")
        ((verdict, results, *others),) = told(made, "verdict results recommended reason")
        assert (verdict, results, others[0], said in others[1]) == (wanted, None, False, True)


@cases("given own results recommended", ("inputs", True, "equal", True),
       ("inputs", False, "different", False), ("random", True, "different", False))  # fmt: skip
def test_other_data_is_another_result_but_for_a_change_that_is_about_it(
    make, given, own, results, recommended
):
    def then(process, chosen, _):
        if chosen:
            other = {"inputs": [[[[1], 2.0, 2.0]]], "random": ["b"]}[given]
            process.told["results"] = {**process.told["results"], given: other}

    made = make(Script({"fast": 0.5}, then=then), known=[change("fast", other_inputs=own)])
    assert told(made, "verdict results recommended") == [["gains", results, recommended]]


def test_items_are_compared_where_a_step_has_more_of_them(make):
    def widen(process, chosen, _):
        process.item_s = process.step_s / (8 if chosen else 4)

    wide = change("fast", results="different", measure="item")
    made = make(Script({"fast": 1.5}, noise=0.001, length=100, then=widen), known=[wide])
    names = "verdict times_of before_s after_s run_gain_s break_even_steps"
    ((*words, before, after, gain, pays),) = told(made, names)
    assert (words, gain, pays) == (["gains", "item"], None, None)
    assert [before, after] == pytest.approx([0.025, 0.15 / 8], rel=0.01)


def test_what_lies_between_steps_is_timed_where_a_change_is_about_it(make):
    def save(process, chosen, _):
        # All time from step to step differs more than steps do.
        between = 0.0 if chosen else 0.1
        process.run_s = process.step_s + between * math.exp(script.chance.gauss(0.0, 0.05))

    script = Script({}, noise=0.001, then=save)
    made = make(script, known=[change("no-saving", measure="run", to_know=True)])
    ((*words, before, after),) = told(made, "verdict times_of recommended before_s after_s")
    assert words == ["gains", "run", False]
    assert [before, after] == pytest.approx([0.2, 0.1], rel=0.1)
    assert made.spread("run").deviation > 5 * made.spread().deviation
    assert made.floor("run") != made.floor()
    both = Arm("both", {"no-saving": None, "fast": None})
    made._known["fast"] = change("fast")
    assert made.measure(both) == "run"


def test_a_process_is_read_with_all_that_lies_between_its_steps(tmp_path):
    run = Run(tmp_path / "r")
    # Two steps with evaluation in them, and five of another loop.
    run.slice("clean", [0.11 if at % 20 == 9 else 0.01 for at in range(40)],
              flags={9: "eval", 29: "eval"})  # fmt: skip
    run.begin_plan("module", "eval")
    run.slice("clean", [0.02] * 5)
    run.close()
    (tmp_path / "r" / "logs" / "trial.json").write_text('{"results": {"losses": [1]}}')
    found = Process()
    read_process(tmp_path / "r", found)
    assert (found.steps, found.results) == (40, {"losses": [1]})
    assert found.step_s == pytest.approx(0.01)
    assert found.item_s == pytest.approx(0.01 / 32)
    assert found.run_s == pytest.approx((38 * 0.01 + 2 * 0.11 + 5 * 0.02) / 40)


def test_every_warm_step_of_a_process_counts_but_the_first_ones(tmp_path):
    run = Run(tmp_path / "r")
    # Twenty clean steps that use up what was prepared; what comes after them is the usual time.
    run.slice("clean", [0.002] * 20)
    run.slice("watch", [0.009] * 60 + [0.029])
    run.close()
    whole, after = Process(), Process()
    read_process(tmp_path / "r", whole)
    read_process(tmp_path / "r", after, 20)
    assert whole.step_s == pytest.approx((20 * 0.002 + 60 * 0.009 + 0.029) / 81)
    assert (after.steps, after.step_s) == (81, pytest.approx((60 * 0.009 + 0.029) / 61))
    assert after.run_s == pytest.approx(after.step_s)
    # Of fewer steps the first half is left out: a change may give a step more items.
    few = Process()
    read_process(tmp_path / "r", few, 70)
    assert few.step_s == pytest.approx((40 * 0.009 + 0.029) / 41)


LOADERS = [{"num_workers": 3, "prefetch_factor": 2}, {"num_workers": 0, "prefetch_factor": None}]


@cases(
    "loaders tried length steps lead",
    ([], {}, None, 30, 0),
    # Batches made in the step; then by workers, by those of a change, with a longer queue.
    (LOADERS[1:], {}, None, 30, 0),
    (LOADERS, {}, None, 54, 24),
    (LOADERS[1:], {"workers": 2}, None, 46, 16),
    (LOADERS, {"prefetch": 5}, None, 60, 30),
    # No more than the steps that count, but a queue of batches in any case.
    (LOADERS, {"prefetch": 12}, None, 66, 36),
    # Scripts of few steps.
    (LOADERS, {}, 40, 40, 24),
    (LOADERS, {}, 52, 52, 24),
)
def test_steps_are_added_for_what_workers_prepare(make, loaders, tried, length, steps, lead):
    found = [change(name, values=lambda _, value=value: [value]) for name, value in tried.items()]

    def see(process, chosen, observe):
        process.told["seen"] = {**SEEN, "loaders": loaders}

    made = make(Script({}, length=length, then=see), known=found or [change("a")], steps=None)
    assert (made.steps, made._lead) == (steps, lead)


def test_gains_together_are_run_and_what_excludes_is_left(make):
    script = Script({"a": 0.7, "b": 0.8, "c": 0.9})
    made = make(script, known=[change("a"), change("b", excludes=("a",)), change("c")])
    gains = [arm for name in "abc" for arm in made.arms if arm.name == name]
    before = len(script.ran)
    made.combine(gains)
    turn = ["plain", "a+c", "plain"]
    assert script.ran[before:] == turn * 3
    (best,) = trial_report.report_of(made, ["a.py"], 1.0)["best"]
    assert (best["changes"], best["verdict"]) == (["a", "c"], "gains")
    assert best["ratio"] == pytest.approx(0.63, rel=0.03)
    made.combine(gains[:1])
    assert len(made.together) == 1


def test_a_row_has_the_gain_of_the_run_and_when_a_slow_first_step_pays(make):
    names = "run_gain_s first_step_s break_even_steps peak_rss_bytes plain_peak_rss_bytes edit diff"
    made = make(Script({"slow_first": 0.5}, noise=0.0, length=100), "slow_first")
    (row,) = told(made, names)
    diff = "--- a/a.py\n+++ b/a.py\n@@ -1 +1,3 @@\n import torch\n+\n+slow_first()\n"
    assert row == [pytest.approx(5.0), 3.0, math.ceil(2.8 / 0.05), 101, 100, None, diff]
    made = make(Script({"fast": 0.5}, noise=0.0), "fast")
    assert told(made, names)[0][:3] == [None, 0.2, None]


@cases("before after low high", ((1, 1.1), (2, 2.2), 1.2, 3.4), ((), (1,), None, None),
       ((1,), (2, 2.2), None, None))  # fmt: skip
def test_a_ratio_needs_processes_of_both(before, after, low, high):
    found = ratio_of(before, after, 0.95, Prior(0.05, 6.0))
    assert (found.low is None, found.high is None) == (low is None, high is None)
    if low is not None:
        assert low < found.low < found.factor < found.high < high
        assert found.factor == pytest.approx(2.0)
    assert ratio_of((1.0, 1.0), (2.0, 2.0), 0.95, Prior(0.0, 0.0)).low is None


def test_the_spread_is_that_of_all_arms(tmp_path):
    made = Trials.__new__(Trials)
    made.plain, made.again, made.arms = Arm("p", {}), Arm("q", {}), [Arm("r", {}), Arm("s", {})]
    every = (made.plain, (1, 2)), (made.again, (1,)), (made.arms[0], (3, 3, 3)), (made.arms[1], ())
    for arm, times in every:
        arm.processes = [Process(step_s=time) for time in times]
    # Of log 2 apart, and of none: of the variances over the middle of chance the median.
    found = made.spread()
    usual = (math.log(2) ** 2 / 2 / (1 - 2 / 9) ** 3 + 0.0) / 2
    assert found.deviation == pytest.approx(math.sqrt(usual))
    assert found.freedom == 3.0


def test_a_change_that_spreads_far_more_hides_no_gain_of_others_and_is_told_by_itself(make):
    def then(process, chosen, _):
        if "wild" in chosen:
            process.step_s *= 0.75 * math.exp(script.chance.gauss(0.0, 0.4))

    for seed in range(6):
        script = Script({"fast": 0.85}, noise=0.01, seed=seed, then=then)
        made = make(script, "fast", "wild", "none", "other", budget_s=400.0, steps=20)
        found = dict(told(made))
        assert (found["fast"], found["none"]) == ("gains", "same")
        rows = {row[0]: row[1:] for row in told(made, "change ci95_low ci95_high")}
        (low, high), (lowest, highest) = rows["fast"], rows["wild"]
        assert high / low < 1.2 < 1.4 < highest / lowest


_LONG = "torch.utils.checkpoint.CheckpointError: recomputed\n  by others\nSee workaround examples."
_RAISED = f"Traceback (most recent call last):\n  File x\n{_LONG}\n\n"


@cases("printed code said",
    (_RAISED, 1, "torch.utils.checkpoint.CheckpointError: recomputed (exit code 1)"),
    (f"{_RAISED}During it:\nKeyError: 3", 1, "KeyError: 3 (exit code 1)"),
    ("step 1\n killed\n", -9, "killed (signal 9)"),
    ("no Errors: were found", 2, "no Errors: were found (exit code 2)"), ("", 3, "exit code 3"),
)  # fmt: skip
def test_how_a_script_failed_is_its_error_else_its_last_line(tmp_path, printed, code, said):
    (tmp_path / "output.txt").write_text(printed)
    assert trials._last_words(tmp_path / "output.txt", code) == said
