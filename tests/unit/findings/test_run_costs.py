"""Findings of the whole run: both sides of each limit, and what the advice saves."""

from types import SimpleNamespace

import pytest

from profstack.findings import rules
from profstack.findings import run_costs as module
from profstack.findings.run_costs import run_costs
from tests.support.findings import TRAIN, report_of
from tests.support.recordings import Sampled
from tests.support.tables import cases, near, of

FIGURES = "slug run_s run_gain_s run_gain_is file line"


def found(part, wall_s, share, *, compiled_s=0.0, count=50, by="samples", times=9, kept=0.08,
          seen=None, again=()):  # fmt: skip
    known = {"file": TRAIN, "line": 7, "name": "work", "by": by, "functions": [], "times": times}
    rows = [{"part": part, "wall_s": wall_s, "share": share, "longest_s": kept * wall_s, **known}]
    rows.append({**rows[0], "part": "profstack", "share": None, "wall_s": 99.0})
    tables = {"compilations": [{"wall_s": compiled_s}]}
    report = report_of(parts={"run_bar": rows, "step": {"count": count}, "watch": seen and {"": 9}})
    report["findings"] = list(again)
    return run_costs(seen or SimpleNamespace(table=tables.__getitem__, facts={}), report)


@cases("part rule least_s saved", ("evaluation", rules.EVALUATION_COST, 1.0, 0.9),
       ("checkpoints and saving", rules.SAVING_COST, 1.0, 0.9),
       ("logging and callbacks", rules.LOGGING_COST, 0.5, 0.9),
       ("start-up and imports", rules.SLOW_START, 30.0, 1.0),
       ("model and data set-up", rules.SLOW_START, 1.0, 1.0),
       ("first step and compilation", rules.COMPILATION_COST, 5.0, 0.5),
       ("shutdown", rules.SLOW_SHUTDOWN, 10.0, 1.0))  # fmt: skip
def test_a_part_is_found_from_its_share_and_its_seconds_on(part, rule, least_s, saved):
    compiled = {"compiled_s": 0.5 * least_s}
    (told,) = found(part, least_s, rule.threshold, **compiled)
    is_rarer = saved == 0.9
    kind = "estimated" if is_rarer else "at most"
    assert of(told, FIGURES) == near(rule.slug, least_s, saved * least_s, kind, TRAIN, 7)
    for times, kept, share in ((2, 0.4, 0.6), (20, 0.11, 0.89), (1, 0.4, None), (None, 0.4, None)):
        (few,) = found(part, least_s, rule.threshold, times=times, kept=kept, **compiled)
        share = share if is_rarer else saved
        assert [few["run_gain_s"]] == near(share and share * least_s)
    assert told["severity"] == ("high" if rule.threshold >= 0.2 else "medium")
    assert not found(part, 0.99 * least_s, rule.threshold, **compiled)
    assert not found(part, least_s, 0.99 * rule.threshold, **compiled)
    assert not found(part, least_s, rule.threshold, count=0, **compiled)
    is_setup = part == "model and data set-up"
    assert bool(found(part, least_s, rule.threshold, by="clock", **compiled)) is not is_setup
    # A first step may be long for other reasons than its compilation.
    is_found = bool(found(part, least_s, 0.9, compiled_s=0.49 * least_s))
    assert is_found is (rule is not rules.COMPILATION_COST)


def test_what_is_compiled_again_has_a_finding_of_its_own():
    rule = rules.COMPILATION_COST
    (alone,) = found("first step and compilation", 6.0, rule.threshold, compiled_s=5.0)
    again = [{"slug": "recompilations", "run_s": 4.0}, {"slug": "recompilations", "run_s": None}]
    (less,) = found("first step and compilation", 6.0, rule.threshold, compiled_s=5.0, again=again)
    assert [each["run_gain_s"] for each in (alone, less)] == near(5.0, 1.0)
    (none,) = found("first step and compilation", 6.0, rule.threshold, compiled_s=3.5, again=again)
    assert none["run_gain_s"] == 0


@cases("share wall_s is_found", (0.1, 0.5, True), (0.099, 0.5, False), (0.1, 0.49, False))
def test_own_code_beside_the_steps_is_found_from_its_share_on(share, wall_s, is_found):
    inner = {"file": TRAIN, "line": 31}
    slow = {"file": TRAIN, "line": 8, "name": "table", "inner": inner, "wall_s": wall_s}
    other = {"part": "other", "wall_s": 2 * wall_s, "share": 2 * share, "by": "samples"}
    other |= {"functions": [slow, {**slow, "name": None, "wall_s": 0.3 * wall_s}]}
    steps_s = wall_s / share - other["wall_s"]
    rows = [other, {"part": "steps", "wall_s": steps_s, "share": 1 - 2 * share}]
    # What it takes elsewhere goes, too, but for the steps themselves.
    same = [{**slow, "line": 9, "wall_s": 0.25}, {**slow, "name": "other"}]
    rows[-1]["functions"] = [slow]
    rows.append({"part": "evaluation", "wall_s": 0.0, "share": 0.0, "functions": same})
    report = report_of(parts={"run_bar": rows, "step": {"count": 50}})
    found = run_costs(SimpleNamespace(frames={}, facts={}), report)
    assert bool(found) is is_found
    for told in found:
        whole_s = wall_s + 0.25
        assert of(told, FIGURES) == near("run-code-cost", whole_s, whole_s, "at most", TRAIN, 8)


@cases("first second names", "0.59 0.2 f,g; 0.6 0.2 None; 0.45 0.15 f,g; 0.45 0.14 None",
       "0.5 0.09 None")  # fmt: skip
def test_functions_that_share_a_part_are_named_and_what_is_known_of_their_lines(
    first, second, names
):
    text = "\n" * 30 + "at = self.words.index(w)\n"
    rows = [("f", 8, 31, first), ("g", 9, 2, second), (None, 5, 31, 0.05)]
    functions = [
        {"name": name, "file": TRAIN, "line": line, "wall_s": 10 * share}
        | {"inner": {"file": TRAIN, "line": inner}}
        for name, line, inner, share in rows
    ]
    row = {"part": "model and data set-up", "wall_s": 10.0, "share": 0.9, "by": "samples"}
    row |= {"file": TRAIN, "line": 7, "name": "main", "times": 1, "longest_s": 10.0}
    bar = [{**row, "functions": functions}]
    parts = {"run_bar": bar, "step": {"count": 50}, "watch": {}, "benchmark": {"n": 9}}
    report = report_of(parts=parts)
    report["sources"] = [{"file": TRAIN, "text": text}]
    (told,) = run_costs(SimpleNamespace(table=lambda name: [], facts={}), report)
    shared = "of the run, most of it in f and g"
    assert (shared in told["title"], told["line"]) == (names is not None, 8 if names else 7)
    assert "`self.words` is searched" in told["advice"]


@cases("joined times gain_s", "30 9 8.1; 30 1 2.7; 29 1 None; 100 9 9.")
def test_a_trainer_that_joins_its_predictions_is_told_to_keep_less(tmp_path, joined, times, gain_s):
    made = Sampled(tmp_path / "rec")
    made.even(10)
    trainer = ("/opt/lib/python3.11/site-packages/transformers/trainer.py", 3, "evaluation_loop")
    joins = (trainer[0].replace("trainer.py", "trainer_pt_utils.py"), 9, "nested_concat")
    made.sample(made.now - 0.1, MAIN, trainer, joins, weight=joined)
    made.sample(made.now - 0.1, MAIN, trainer, weight=100 - joined)
    made.sample(made.now - 0.1, MAIN, (*joins[:2], "other"), weight=500)
    (told,) = found("evaluation", 9.0, 0.5, seen=made.recorded(), times=times)
    assert [told["run_gain_s"]] == near(gain_s)
    is_told = told["advice"].startswith(f"{joined} % of it joins the predictions")
    assert ("preprocess_logits_for_metrics" in told["advice"]) is is_told is (joined > 29)


STOP = ("/w/train.py", 60, "ends")
CALL = ("/opt/lib/python3.11/site-packages/torch/nn/modules/module.py", 1, "_call_impl")


@cases("weight clean is_found", "11 0 True; 9 0 False; 11 5 False")
def test_a_function_of_steps_of_which_none_is_clean(tmp_path, weight, clean, is_found):
    made = Sampled(tmp_path / "rec")
    made.even(3)
    for number in range(40):
        made.sample(made.now - 0.03 + 0.0005 * number, MAIN, FIT, CALL, weight=100 - weight)
        made.sample(made.now - 0.03 + 0.0005 * number, MAIN, FIT, STOP, weight=weight)
    rows = [{"part": "steps", "wall_s": 16.0, "share": 0.8, "functions": []},
            {"part": "other", "wall_s": 2.0, "share": 0.1, "functions": []},
            {"part": "shutdown", "wall_s": 0.1, "share": 0.1, "functions": []}]  # fmt: skip
    parts = {"run_bar": rows, "step": {"count": 3}, "watch": {"samples": 9}}
    report = report_of(parts=parts | {"benchmark": {"n": clean}, "processes": {"workers": 1}})
    found = [each for each in run_costs(made.recorded(), report) if each["file"] == STOP[0]]
    assert bool(found) is is_found
    for told in found:
        wall_s = 18.0 * weight / 100
        assert of(told, FIGURES) == near("run-code-cost", wall_s, wall_s, "at most", STOP[0], 1)
        assert "in its steps" in told["title"]


PACKAGES = "/opt/lib/python3.11/site-packages"
TORCH, BIG = (f"{PACKAGES}/{name}/__init__.py" for name in ("torch", "big"))
LIMITS = rules.IMPORT_SAMPLES, rules.IMPORT_USED


@cases("weight run_s used later is_found", (100, 10.0, 0.05, 10, True),
       (99, 9.9, 0.04, 10, False), (100, 10.1, 0.05, 10, False), (100, 10.0, 0.06, 10, False),
       (100, 10.0, 0.05, 9, False))  # fmt: skip
def test_a_long_import_that_is_hardly_used(tmp_path, weight, run_s, used, later, is_found):
    assert LIMITS == (10, 0.05)
    made = Sampled(tmp_path / "rec")
    made.sample(0.2, MAIN, (TORCH, 5, "<module>"), weight=500)
    made.sample(0.3, MAIN, (BIG, 5, "<module>"), (f"{PACKAGES}/other/a.py", 2, "f"), weight=weight)
    made.sample(0.4, MAIN, (BIG, 6, "<module>"), (TORCH, 9, "<module>"), weight=300)
    made.begins("clean", [0.01] * 20)
    made.even(400)
    for number in range(later - 1):
        made.sample(made.now - 3.0 + 0.01 * number, MAIN, FIT)
    made.sample(made.now - 0.5, MAIN, FIT, (BIG, 7, "seed"), weight=100 * used)
    rows = [{"part": "steps", "wall_s": run_s, "share": 1.0, "functions": []}]
    report = report_of(parts={"run_bar": rows, "step": {"count": 420}})
    report["watch"] = {"samples": 9}
    found = run_costs(made.recorded(), report)
    assert bool(found) is is_found
    for told in found:
        saved_s = 0.01 * weight
        assert of(told, FIGURES) == near("import-cost", saved_s, saved_s, "at most", *MAIN[:2])


@cases("torch_s left_s", "12 28; 36.9 3.1; 37.1 None")
def test_importing_torch_at_the_start_is_no_part_of_what_can_go(tmp_path, torch_s, left_s):
    made = Sampled(tmp_path / "rec")
    made.sample(0.2, MAIN, (BIG, 6, "<module>"), (TORCH, 5, "<module>"), weight=100 * torch_s)
    made.sample(0.3, MAIN, (BIG, 6, "<module>"), weight=700)
    made.even(20)
    made.sample(made.now - 0.05, MAIN, FIT, (TORCH, 9, "<module>"), weight=100)
    told = found("start-up and imports", 40.0, 0.5, seen=made.recorded())
    costs = [near("slow-start", 40.0, left_s, "at most", TRAIN, 7)] * (left_s is not None)
    assert [of(each, FIGURES) for each in told] == costs


MAIN, FIT = ("/w/train.py", 30, "<module>"), ("/w/train.py", 20, "fit")


# Each line needs its workers once: what it starts more often can be saved.
@cases("starts started_s run_s gain_s", ((2, 1), 0.9, 25.0, 1.3 / 3), ((2,), 1.2, 25.0, None),
       ((), 9.0, 25.0, None), ((4, 3), 0.85, 25.0, 1.25 * 5 / 7), ((3,), 0.84, 25.0, None),
       ((3,), 0.58, 9.0, None), ((3,), 0.62, 9.0, 1.02 * 2 / 3))  # fmt: skip
def test_what_starting_workers_again_costs(tmp_path, starts, started_s, run_s, gain_s):
    made = Sampled(tmp_path / "rec")
    made.even(200)
    lines = zip((FIT[1], 44), starts, strict=False)
    places = [{"file": FIT[0], "line": line, "starts": count} for line, count in lines]
    counts = {"started_s": started_s, "ended_s": 0.4, "places": places}
    fact = {"starts": sum(starts), **counts} if starts else None
    made.writer.facts({"worker_starts": fact})
    rows = [{"part": "steps", "wall_s": run_s, "share": 1.0, "functions": []}]
    report = report_of(parts={"run_bar": rows, "step": {"count": 200}, "watch": {"samples": 9}})
    costs = (started_s + 0.4, gain_s, "estimated", *FIT[:2])
    expected = [near("worker-starts", *costs)] * (gain_s is not None)
    assert [of(told, FIGURES) for told in run_costs(made.recorded(), report)] == expected


@pytest.mark.parametrize("by", ["clock", "samples"])
def test_a_start_that_went_by_before_the_watch_has_no_finding(monkeypatch, by):
    imports = SimpleNamespace(torch_s=0.0, seconds={}, used={}, later=0, places={})
    monkeypatch.setattr(module, "_Imports", lambda recorded: imports)
    row = {"part": "start-up and imports", "wall_s": 30.0, "share": 0.9, "by": by, "times": None}
    row |= {"longest_s": None, "file": TRAIN, "line": 7, "name": "<module>", "functions": []}
    parts = {"run_bar": [row], "step": {"count": 50}, "watch": {"samples": 9}}
    report = report_of(parts=parts | {"processes": {"workers": 0}})
    monkeypatch.setattr(module, "_worker_starts", lambda recorded, report: [])
    told = run_costs(SimpleNamespace(table=lambda name: []), report)
    assert [each["slug"] for each in told] == ["slow-start"] * (by == "samples")
