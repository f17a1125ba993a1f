"""The whole run by owner: segments by the clock, samples by what each stack is of."""

import math

import pytest

from profstack.analysis.clean_steps import clean_steps
from profstack.analysis.run_bar import _longest_tenth_s, run_bar
from tests.support.recordings import Sampled
from tests.support.tables import cases, of

SCRIPT, PACKAGES = "/home/somebody/work/train.py", "/opt/lib/python3.11/site-packages"
MAIN, STEP = (SCRIPT, 30, "<module>"), (SCRIPT, 20, "test_step")
SAVE, LOG = (SCRIPT, 12, "save_model"), (SCRIPT, 14, "log_metrics")
EVALUATE, DATA = (SCRIPT, 25, "evaluate"), (SCRIPT, 9, "read_data")
FORWARD = (f"{PACKAGES}/torch/nn/modules/module.py", 1, "_call_impl")
IMPORTED = (f"{PACKAGES}/torch/__init__.py", 1, "<module>")
COMPILE = f"{PACKAGES}/torch/_dynamo/convert_frame.py"
LOADER = (f"{PACKAGES}/torch/utils/data/dataloader.py", 700, "__next__")
# The parent began half a second before the recording, and saw the end 0.75 s after its own.
BEGUN, ORIGIN = 99.5, 100.0


@pytest.fixture
def made(tmp_path):
    run = Sampled(tmp_path / "rec")
    run.writer.facts({"origin_clock_s": ORIGIN, "arming": [0.25, 0.5]})
    return run


def parts_of(made, duration_s, finishing, **run):
    made.writer.facts({"finishing": finishing})
    facts = {"run": {"duration_s": duration_s}, "begun_clock_s": BEGUN, **run}
    made.close(run=facts)
    recorded = made.recorded()
    rows, reason = run_bar(recorded, clean_steps(recorded))
    assert (bool(rows), math.fsum(row["wall_s"] for row in rows)) == (not reason, duration_s)
    own = [row["wall_s"] for row in rows if row["part"] != "profstack"]
    for row in rows:
        is_own = row["part"] == "profstack"
        assert row["share"] == (None if is_own else pytest.approx(row["wall_s"] / sum(own)))
    return {row["part"]: row for row in rows}


def test_every_second_has_one_owner(made):
    # Imports for 0.3 of what came before, but for profstack's own quarter of a second.
    made.sample(0.2, MAIN, IMPORTED, weight=18)
    made.sample(0.9, MAIN, DATA, weight=42)
    # A first step of 80 ms, then those of 20, of 30 under an observer, and an evaluation in one.
    made.begins("clean", [0.08, *[0.02] * 9])
    made.begins("cprofile", [0.03] * 5)
    rows = [{"t_s": made.now + 0.001 * n, "wall_s": 0.01 / n, "name": "f"} for n in (1, 2)]
    made.writer.write({"compilations": rows})
    made.slice("clean", [0.02, 0.52, *[0.02] * 8], flags={1: "eval"})
    # Between two loops the script saves, and stands still for the last millisecond alone.
    made.sample(made.now + 0.2, MAIN, SAVE, weight=40)
    made.now += 0.401
    begin = made.now
    made.even(100)
    for number, (stack, count) in enumerate({STEP: 36, SAVE: 10, LOG: 4, LOADER: 10}.items()):
        for place in range(count):
            made.sample(begin + 0.001 + 0.3 * number + 0.002 * place, MAIN, stack, weight=3)
    for place in range(40):
        made.sample(begin + 1.5 + 0.01 * place, MAIN, STEP, weight=2, evaluating=1)
    over = made.now
    made.sample(over + 0.1, MAIN, EVALUATE, weight=10)
    made.sample(over + 0.3, MAIN, weight=30)
    finishing = [over + 0.8, over + 1.1]
    found = parts_of(made, 0.5 + finishing[1] + 0.75, finishing)
    # Of the steps that the watch saw 12 of 180 log, and 30 save: as much of those in slices does.
    sliced, logs, saves = 10 * 0.02 + 5 * 0.02 + 10 * 0.02 - 0.01, 12 / 180, 30 / 180
    expected = {
        "start-up and imports": 0.5 + 0.3 * 0.75, "model and data set-up": 0.7 * 0.75,
        "first step and compilation": 0.07, "waiting for data": 2.0 * 30 / 260,
        "steps": sliced * (1 - logs - saves) + 2.0 * 108 / 260,
        "checkpoints and saving": 0.4 + sliced * saves + 2.0 * 30 / 260,
        "evaluation": 0.7 + 2.0 * 80 / 260,
        "logging and callbacks": sliced * logs + 2.0 * 12 / 260, "other": 0.8 * 3 / 4,
        "shutdown": 0.75, "profstack": 0.25 + 5 * 0.01 + 0.003 + 0.3}  # fmt: skip
    walls = {name: row["wall_s"] for name, row in found.items()}
    assert walls == pytest.approx(expected, abs=0.002)
    names = ("checkpoints and saving", "model and data set-up", "start-up and imports")
    places = [[12, "save_model", "samples"], [9, "read_data", "samples"], [30, "<module>", "clock"]]
    assert [of(found[name], "line name by") for name in names] == places
    (saved,), (read, *_) = (found[name]["functions"] for name in names[:2])
    seconds = {"wall_s": pytest.approx(expected["checkpoints and saving"], abs=0.002)}
    place = {"file": SCRIPT, "line": 12}
    assert saved == {**place, "name": "save_model", "inner": place, **seconds}
    # Saved between the loops and in the steps; evaluated in a step, and in the last ones and after.
    both = [of(found[name], "times longest_s") for name in (names[0], "evaluation")]
    longest = pytest.approx((0.4, 0.2 + 2.0 * 80 / 260), abs=0.002)
    assert [*zip(*both, strict=True)] == [(2, 2), longest]
    assert _longest_tenth_s([*range(25)]) == 24 + 23
    assert read["name"] == "read_data"
    # The function around the steps is the loop: its line counts.
    assert [row["name"] for row in found["other"]["functions"]] == [None]


def test_a_long_step_that_was_not_sampled_does_what_the_others_do(made):
    # Two of 30 clean steps take 0.2 s, of which one is sampled: it saves for 3/4 of it.
    made.begins("clean", [0.01] * 15)
    begin = made.now
    made.slice("clean", [*[0.01] * 4, 0.2, *[0.01] * 5, 0.22, *[0.01] * 4])
    for place in range(20):
        made.sample(begin + 0.041 + 0.009 * place, MAIN, SAVE if place % 4 else DATA)
    # One under an observer, which slows it: beyond what the others take it is the observer's.
    made.begins("cprofile", [*[0.01] * 4, 0.5, *[0.01] * 5])
    # One that slows all of its steps as much has the time.
    made.begins("cprofile", [0.25] * 4)
    over = made.now
    found = parts_of(made, over + 1.0, [over, over + 0.25])
    usual_s = 0.21 - 0.01
    expected = {"checkpoints and saving": 0.75 * (0.19 + 0.21 + usual_s),
                "other": 0.25 * (0.19 + 0.21 + usual_s), "steps": 44 * 0.01}  # fmt: skip
    expected["profstack"] = 0.25 + 0.25 + (0.5 - 0.21) + 4 * 0.24
    walls = {name: found[name]["wall_s"] for name in expected}
    assert walls == pytest.approx(expected, abs=0.003)
    saved = found["checkpoints and saving"]
    # The pieces of the sampled one, and one spell of each of the others.
    assert (saved["name"], saved["times"]) == ("save_model", 5 + 2)


def test_what_a_loader_calls_is_not_around_the_steps(made):
    # Most of the usual steps is in it, and more so of what is thrown away before them.
    item = (SCRIPT, 50, "__getitem__")
    made.sample(0.1, MAIN, weight=9)
    made.begins("clean", [0.02] * 5)
    begin = made.now
    made.sample(begin + 1.99, MAIN, LOADER, item, weight=200)
    made.now = begin + 2.0
    steps = made.now
    made.even(100)
    for number in range(90):
        stack = (LOADER, item) if number % 3 else (STEP, FORWARD)
        made.sample(steps + 0.005 + 0.02 * number, MAIN, *stack, weight=2)
    over = made.now
    found = parts_of(made, over + 0.5, [over, over])
    (function,) = found["other"]["functions"]
    assert (function["name"], function["wall_s"]) == ("__getitem__", pytest.approx(2.0, abs=0.01))


@cases("stack evaluating owner", (SAVE, None, "checkpoints and saving"),
       ((f"{PACKAGES}/torch/serialization.py", 1, "save"), 1, "checkpoints and saving"),
       ((f"{PACKAGES}/torch/autograd/function.py", 1, "save_for_backward"), None, "other"),
       (LOG, 1, "logging and callbacks"), ((SCRIPT, 3, "log_prob"), None, "other"),
       ((SCRIPT, 3, "on_epoch_end"), None, "logging and callbacks"),
       ((f"{PACKAGES}/tqdm/std.py", 3, "update"), None, "logging and callbacks"),
       (FORWARD, 1, "evaluation"),
       # The model of the next fold is made while the last one is in evaluation.
       (((SCRIPT, 8, "__init__"), FORWARD), 1, "model and data set-up"),
       (((f"{PACKAGES}/x/y.py", 8, "__init__"), FORWARD), 1, "evaluation"),
       ((SCRIPT, 8, "__init__"), None, "other"),
       # An object that an evaluation makes is a part of that.
       ((EVALUATE, (SCRIPT, 8, "__init__"), FORWARD), 1, "evaluation"),
       (EVALUATE, None, "evaluation"), ((f"{PACKAGES}/x/y.py", 3, "evaluate"), None, "other"),
       (IMPORTED, None, "start-up and imports"), (LOADER, None, "other"), (LOADER, 1, "evaluation"),
       # Evaluation by a library, where its own work is none of torch's.
       ((f"{PACKAGES}/transformers/trainer.py", 3, "evaluation_loop"), None, "evaluation"),
       ((f"{PACKAGES}/transformers/trainer.py", 3, "train"), None, "other"),
       ((f"{PACKAGES}/lightning/pytorch/loops/evaluation_loop.py", 3, "run"), None, "evaluation"),
       # A print takes its time itself, or what it prints is computed on its line.
       ((SCRIPT, 40, "show"), None, "logging and callbacks"),
       (((SCRIPT, 40, "show"), (f"{PACKAGES}/a.py", 3, "write")), None, "logging and callbacks"),
       (((SCRIPT, 40, "show"), (SCRIPT, 8, "learn")), None, "other"),
       (((SCRIPT, 40, "show"), FORWARD), None, "other"), ((SCRIPT, 39, "show"), None, "other"),
       ((COMPILE, 3, "_compile"), None, "first step and compilation"),
       ((COMPILE, 3, "<module>"), None, "start-up and imports"))  # fmt: skip
def test_a_stack_is_of_what_its_functions_say(made, stack, evaluating, owner):
    text = {"file": SCRIPT, "text": "\n" * 39 + "print(learn(x))\n"}
    made.writer.write({"source_files": [text]})
    made.sample(0.1, MAIN, STEP, weight=9)
    made.begins("clean", [0.02] * 5)
    stacks = stack if isinstance(stack[0], tuple) else (stack,)
    made.sample(made.now + 0.1, MAIN, *stacks, weight=4, evaluating=evaluating)
    end = made.now + 3.0
    found = parts_of(made, end + 0.5, [end, end])
    # Python's own start, and what came before the first step.
    before_s = {"start": 0.5, "model": 0.75}.get(owner[:5], 0.0)
    assert found[owner]["wall_s"] == pytest.approx(3.0 + before_s, abs=0.002)


@cases("first weight imports setup sampled", (3.0, 2, 0.5 + 1.6, 3.0 - 1.85, 0.0),
       (2.0, 15, 0.5 + 1.6, 3.0 - 1.85, 1.15), (0.11, 2, 0.5, 3.0 - 0.25, 3.0 - 0.25),
       (None, 0, 0.5 + 1.6, 3.0 - 1.85, 0.0))  # fmt: skip
def test_what_goes_by_before_the_watch_begins_is_nobodys(
    made, first, weight, imports, setup, sampled
):
    # In a process that another one starts: torch arrives at 1.6 s, its steps begin at 3 s.
    made.writer.facts({"arming": [1.6, 1.85]})
    if first is not None:
        made.sample(first, MAIN, DATA, weight=weight)
    made.now = 3.0
    made.begins("clean", [0.02] * 5)
    end = made.now
    found = parts_of(made, end + 0.5, [end, end])
    names = ("start-up and imports", "model and data set-up")
    assert [found[name]["wall_s"] for name in names] == pytest.approx([imports, setup], abs=0.002)
    seen = sum(row["wall_s"] for row in found[names[1]]["functions"])
    assert seen == pytest.approx(sampled, abs=0.02)
