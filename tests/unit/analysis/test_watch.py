"""From the watch's samples to its tables: shares, growth of memory, outliers and their work."""

from itertools import accumulate

import pytest

from profstack.analysis import watch
from profstack.analysis.clean_steps import Clean
from profstack.storage.vocabulary import WATCH_INTERVAL_S
from tests.support.cells import cell, cells
from tests.support.recordings import STEP_S, Sampled

SCRIPT, HELPER = "/home/somebody/work/train.py", "/home/somebody/work/parts/data.py"
LIBRARY = "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py"
MIB = 2**20
near = pytest.approx


@pytest.fixture
def made(tmp_path):
    return Sampled(tmp_path / "recording")


MAIN = (SCRIPT, 30, "<module>")
STEP = (SCRIPT, 20, "step")
FORWARD = (LIBRARY, 134, "forward")
SAVE = (SCRIPT, 12, "save")


def outliers(made, clean=(STEP_S,) * 5):
    steps = [{"wall_s": wall_s} for wall_s in clean]
    return watch.outlier_rows(made.recorded(), Clean(steps, 0, []))


def test_shares_are_of_the_time_and_counts_of_the_looks(made):
    made.sample(0.5, MAIN, weight=6.0)
    made.sample(0.6, MAIN, STEP, weight=2.0)
    begins = made.even(4)
    # One that calls itself counts once; without a stack it counts as time.
    made.samples(begins[0], (0.01, 3.0, 0, MAIN, STEP, FORWARD, FORWARD))
    made.samples(begins[1], (0.01, 1.0, 0, MAIN, STEP), (STEP_S + 0.01, 4.0, 0))
    made.samples(begins[3], (STEP_S + 0.5, 5.0, 0, MAIN, SAVE))
    rows = watch.watch_rows(made.recorded())
    assert cells(rows, "phase name samples self_share total_share line") == [
        ("startup", "<module>", 2, 0.75, 1.0, 1), ("startup", "step", 1, 0.25, 0.25, 1),
        ("step", "forward", 1, 0.375, 0.375, 1), ("step", "step", 2, 0.125, 0.5, 1),
        ("step", "<module>", 2, 0.0, 0.5, 1), ("other", "save", 1, 1.0, 1.0, 1),
        ("other", "<module>", 1, 0.0, 1.0, 1)]  # fmt: skip


def test_growth_belongs_to_where_it_ended_and_a_pause_is_nobodys(made):
    begins = made.begins("watch", [STEP_S] * 3)
    first = (0.001, 0, 0), (0.010, 1, 5 * MIB, MAIN, STEP), (0.020, 1, MIB, MAIN, STEP, FORWARD)
    made.samples(begins[0], *first)
    # 70 MiB are what another layer's slice has taken meanwhile.
    made.samples(begins[1], (0.001, 1, -2 * MIB, MAIN, STEP), (0.002, 0, 0), (0.010, 0, 70 * MIB))
    made.samples(begins[1], (0.015, 1, 2 * MIB, MAIN, STEP, FORWARD))
    recorded = made.recorded()
    grown = {row["name"]: row["rss_bytes"] for row in watch.watch_rows(recorded)}
    assert grown == {"step": 3 * MIB, "forward": 3 * MIB, "<module>": None}
    assert watch.line_shares(recorded) == {(SCRIPT, 20): (1.0, 6 * MIB)}


def test_samples_of_a_rare_pause_are_of_no_usual_step(made):
    # Of hundreds of steps one in two has a row, and the two that saved: as rare as they were.
    walls = [*[STEP_S] * 60, 9 * STEP_S, *[STEP_S] * 60, 9 * STEP_S]
    flags = {60: "slow", 121: "slow"}
    begins = list(accumulate(walls[:-1], initial=made.now))
    made.slice("watch", walls, flags=flags)
    made.samples(begins[5], (0.5 * STEP_S, 1.0, 0, MAIN, STEP))
    made.samples(begins[60], (4 * STEP_S, 1.0, 0, MAIN, SAVE))
    usual = watch.watched(made.recorded()).in_usual_steps
    assert [each.t_s for each in usual] == pytest.approx([begins[5] + 0.5 * STEP_S])


def test_a_line_is_the_innermost_one_of_the_scripts_own_folder(made, tmp_path):
    helper, elsewhere = (HELPER, 7, "load"), ("/home/somebody/other/tool.py", 3, "run")
    # A thread's stack begins in Python's own files.
    threading = ("/usr/lib/python3.11/threading.py", 975, "run")
    made.sample(0.1, MAIN, FORWARD)
    stacks = [(MAIN, STEP, FORWARD), (MAIN, helper, elsewhere), (threading,)]
    stacks += [(MAIN, helper, ("<string>", 1, "<module>")), (threading, STEP, FORWARD)]
    for begin, stack in zip(made.even(5), stacks, strict=True):
        made.sample(begin + 0.01, *stack)
    recorded = made.recorded()
    shares = {line: share for line, (share, _) in watch.line_shares(recorded, "step").items()}
    assert shares == {(SCRIPT, 20): 0.4, (HELPER, 7): 0.4}
    assert watch.line_shares(recorded, "startup") == {(SCRIPT, 30): (1.0, None)}
    # Other samplers leave out the folder that a file was imported from.
    files = ("json/decoder.py", "work/json.py")
    assert [watch.Frame(file, 1, "f", 1).is_installed for file in files] == [True, False]


def test_slow_steps_stand_out_against_the_clean_ones(made):
    for kind in ("clean", "settle", "cprofile", "startup"):
        made.begins(kind, [STEP_S, 1.0, STEP_S])
    walls = [STEP_S] * 20
    walls[3], walls[7], walls[11] = 0.029, 0.031, 0.5
    begins = made.begins("watch", walls)
    # Where the watch did not look its samples are not counted as none.
    found = cells(outliers(made), "index samples rss_bytes doing")
    assert found == [(23, None, None, None), (19, None, None, None)]
    for number in range(40):
        made.sample(begins[11] + 0.005 + number * 0.01, MAIN, STEP if number < 15 else SAVE)
    doing = "train.py:30 <module> > train.py:12 save"
    assert cells(outliers(made), "index samples doing factor rss_bytes") == [
        (23, 40, doing, near(25.0), 0), (19, 0, None, near(1.55), None)]  # fmt: skip


# Clean steps apart by a median of 1 ms have a robust deviation of 1.4826 ms.
@pytest.mark.parametrize(("clean", "limit"), [
    ([STEP_S] * 5, STEP_S * (1 + watch.SLOWER)),
    ([0.010, 0.016, STEP_S, 0.024, 0.031], STEP_S + watch.DEVIATIONS * 1.4826 * 0.004),
])  # fmt: skip
def test_a_step_is_slow_beyond_its_limit(made, clean, limit):
    made.begins("watch", [limit * 0.999, limit * 1.001, STEP_S])
    assert cells(outliers(made, clean), "index factor") == [(1, near(limit * 1.001 / STEP_S))]
    assert (watch.SLOWER, watch.GROWN_MORE) == (0.5, 2.0)


@pytest.mark.parametrize("usual", [0, 5 * MIB])
@pytest.mark.parametrize("less", [0, 1])
def test_a_step_takes_memory_from_its_limit_on(made, usual, less):
    taken = (int(usual * watch.GROWN_MORE) or watch.GROWN_BYTES) - less
    for number, begin in enumerate(made.even(20)):
        grown = taken if number == 7 else usual - number % 2 * (usual > 0)
        made.sample(begin + 0.010, MAIN, STEP, grown=grown)
        made.sample(begin + 0.019, MAIN, STEP, grown=-grown)
    assert cells(outliers(made), "index rss_bytes") == [(7, taken)] * (not less)


@pytest.mark.parametrize("count", [watch.FEWEST_SAMPLES - 1, watch.FEWEST_SAMPLES])
def test_a_few_samples_of_steps_give_no_shares_of_them(made, count):
    made.sample(0.4, MAIN)
    made.sample(0.5, MAIN, SAVE, weight=3.0, grown=7)
    for number, begin in enumerate(made.even(count)):
        made.sample(begin + 0.01, MAIN, STEP, weight=1.0 + number % 2)
    recorded, few = made.recorded(), count < watch.FEWEST_SAMPLES
    lines = watch.watched_lines(recorded)
    assert cell(lines[SCRIPT, 12], "watch_share startup_share watch_bytes") == (None, 0.75, 7)
    shares = cell(lines[SCRIPT, 20], "watch_share startup_share")
    assert shares == (None if few else 1.0, None)
    why = watch.few_samples(recorded)
    assert ((why is not None), watch.step_parts(recorded) is None) == (few, few)


def frames(*places):
    return tuple(watch.Frame(file, line, name, line) for file, line, name in places)


def test_a_steps_parts_are_by_the_stacks_of_its_samples(made):
    torch = "/opt/venv/lib/python3.11/site-packages/torch"
    call = (f"{torch}/nn/modules/module.py", 1, "_call_impl")
    back = (f"{torch}/autograd/graph.py", 1, "_engine_run_backward")
    stacks = {
        "data wait": [(f"{torch}/utils/data/dataloader.py", 1, "__next__")],
        "backward": [back, call], "optimizer": [(f"{torch}/optim/adam.py", 1, "step")],
        "loss": [call, (f"{torch}/nn/modules/loss.py", 1, "forward")], "forward": [call, FORWARD],
        "other": [(f"{torch}/optim/lr_scheduler.py", 1, "step")]}  # fmt: skip
    # Lightning makes its step inside the optimizer's.
    inside = [*stacks["optimizer"], ("/lib/lightning/loops.py", 1, "_wrap_closure")]
    for part in ("forward", "backward", "data wait"):
        assert watch.step_part_at(frames(*inside, *stacks[part])) == (part, 2)
    own = (SCRIPT, 1, "training_step")
    assert watch.step_part_at(frames(*inside, own)) == ("other", 3)
    assert watch.step_part_at(frames(own, *stacks["optimizer"])) == ("optimizer", 1)
    zeroed = (f"{torch}/optim/optimizer.py", 1, "zero_grad")
    assert watch.step_part_at(frames(*inside, zeroed)) == ("optimizer", 2)
    begins = made.even(60)
    for number, begin in enumerate(begins[:59]):
        stack = list(stacks.values())[number % 6]
        made.sample(begin + 0.01, MAIN, *stack, weight=1 + number % 6)
    found = watch.step_parts(made.recorded())
    whole = sum(1 + number % 6 for number in range(59))
    counts = {part: len(range(place, 59, 6)) * (1 + place) for place, part in enumerate(stacks)}
    assert found == near({part: count / whole for part, count in counts.items()})
    # What evaluates is no part of a step, and too few are not divided.
    made.sample(begins[59] + 0.01, MAIN, back, weight=99, evaluating=1)
    assert watch.step_parts(made.recorded()) == found


def test_the_rank_correlation_is_spearmans_with_built_in_time_at_the_caller(made):
    own = {name: 0.001 * (1 + place) for place, name in enumerate("abcdef")}
    same = {"file": SCRIPT, "line": 1, "calls": 1}
    functions = [{**same, "name": name, "self_s": s, "total_s": s} for name, s in own.items()]
    # By its own time alone `a` would be last; with what it calls it is first.
    call = {"caller_file": SCRIPT, "caller_line": 1, "caller_name": "a", "calls": 1}
    call |= {"callee_file": "~", "callee_line": 0, "callee_name": "<built-in conv2d>"}
    call |= {"self_s": 0.02, "total_s": 0.02}
    made.begins("cprofile", [STEP_S], functions=functions, calls=[call])
    shares = {"a": 25, "f": 12, "e": 10, "c": 8, "d": 3, "b": 2}
    names = "".join(name * count for name, count in shares.items())
    for begin, name in zip(made.even(len(names)), names, strict=True):
        made.sample(begin + 0.01, (SCRIPT, 1, name))
    said = watch.watch_facts(made.recorded(), [{**row, "phase": "step"} for row in functions])
    order = sorted(own, key=lambda name: own[name] + 0.02 * (name == "a"))
    mine = sorted(shares, key=lambda name: shares[name])
    by_hand = 1 - 6 * sum((order.index(n) - mine.index(n)) ** 2 for n in own) / (6 * 35)
    assert 0 < by_hand < 1
    names = "rank_correlation rank_functions reason samples watched_s"
    assert cell(said, names) == (near(by_hand), 6, None, 60, near(60 * WATCH_INTERVAL_S))
