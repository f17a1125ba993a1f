"""Which steps count as clean, by which clock, and where the warm-up ends."""

import random
from statistics import median

import pytest

from profstack.analysis import clean_steps as module
from profstack.stats.blocks import COVERED
from profstack.storage.vocabulary import WORKER
from tests.support.recordings import Run
from tests.support.tables import cases, rows_of

FEW = module.FEW_STEPS


def scattered(count, wall, seed=1):
    chance = random.Random(seed)
    return [wall * (1 + 0.01 * chance.gauss(0, 1)) for _ in range(count)]


def made(run, *parts):
    """Slices: kind, times of the steps or (number, time, seed), and what else they have."""
    for kind, walls, *more in parts:
        walls = scattered(*walls) if isinstance(walls, tuple) else walls
        layer = {"layer": "torch", "mode": "timed"} if kind == "torch" else {}
        run.slice(kind, walls, **layer, **(more[0] if more else {}))
    return found_in(run)


def found_in(run):
    clean = module.clean_steps(run.recorded())
    return clean, [row["step"] for row in clean.steps], [row["slug"] for row in clean.warnings]


def test_steps_with_evaluation_or_cut_short_do_not_count(tmp_path):
    flags = ("eval", "partial", "eval switch", "slow")
    for flag, counts in (*((each, 0) for each in flags), ("checkpoint", 1)):
        part = ("clean", [0.011, 0.012, 0.013], {"flags": {1: flag}})
        numbers = made(Run(tmp_path / flag), ("clean", [0.01] * 10), part)[1]
        assert (11 in numbers) == counts
        steps = rows_of("flags wall_s", (flag, 0.1), ("", 0.0), ("switch", 0.2))
        assert module.timed_steps(steps) == (steps[::2] if counts else steps[2:])
        assert [module.is_flagged(row, *flag.split(), "x") for row in steps[:2]] == [True, False]


@pytest.mark.parametrize(("settled", "kept"), [(2, "all"), (3, "settled")])
def test_steps_right_after_an_observer_count_where_few_others_do(run, settled, kept):
    early = {"number": 1, "flags": {0: "switch"}}
    for wall_s in (11e-3, 14e-3, 13e-3):
        made(run, ("torch", [0.02], {"number": 1}), ("clean", [wall_s], early))
    clean, numbers, slugs = made(run, ("clean", (settled, 0.01)))
    others = list(range(6, 6 + settled))
    assert numbers == (others if kept == "settled" else [1, 3, 5, *others])
    assert slugs.count("unsettled-clean-steps") == (kept == "all")
    assert kept == "settled" or f"{3 + settled} clean steps" in clean.warnings[0]["text"]


# One step of eight at most is a pause. It takes five medians, and adds a tenth to the mean step.
@cases("count long factor kind out", "40 5 5.3 native True; 39 5 5.3 native False",
       "40 5 4.7 native False; 40 1 5.5 native True; 60 1 5.5 native False",
       "40 2 5.3 WORKER False",
       "150 3 30. 0.33 True; 150 3 30. 0.34 False")  # fmt: skip
def test_a_rare_pause_is_of_the_run_and_not_of_the_step(run, count, long, factor, kind, out):
    walls = scattered(count, 0.01)
    for number in range(20, 20 + long):
        walls[number] = factor * 0.01
    if isinstance(kind, float):
        # Others of so much of a pause: below a third they are noise of the machine.
        walls[30:150:7] = [kind * factor * 0.01] * len(walls[30:150:7])
    row = {"kind": WORKER if kind == "WORKER" else "native", "process": 1, "threads": 1}
    clean, numbers, slugs = made(run, ("clean", walls, {"frames": {"thread_times": [row]}}))
    pauses = [*range(20, 20 + long)] if out else []
    assert [row["step"] for row in clean.paused] == pauses
    assert numbers == [number for number in range(count) if number not in pauses]
    assert slugs == ["pauses"] * out


def test_where_the_warmup_ends(tmp_path):
    # Slow steps at the start are warm-up, observed ones by their number.
    first = ("startup", [0.5], {"number": 0, "flags": {0: "discovery"}})
    parts = (first, ("clean", (4, 0.03)), ("torch", [0.012, 0.013, 0.012]), ("clean", (30, 0.01)))
    clean, numbers, _ = made(Run(tmp_path / "slow"), *parts)
    assert (clean.warmup_steps in (5, 8), numbers) == (True, list(range(8, 38)))
    # Steps of unobserved slices show it.
    for kind, count in (("watch", 4), ("torch", 0)):
        parts = ((kind, [0.09, 0.08, 0.07, 0.06]), ("clean", (20, 0.01)))
        assert made(Run(tmp_path / kind), *parts)[0].warmup_steps == count
    # It begins with the first step of its plan.
    run = Run(tmp_path / "plans")
    run.clean(9, wall=1.0)
    run.begin_plan("module", "eval")
    parts = (("startup", [0.5, 0.02, 0.015], {"number": 0}), ("clean", (30, 0.01)))
    clean, numbers, _ = made(run, *parts)
    assert (clean.warmup_steps, clean.warm_from, numbers) == (3, 12, list(range(12, 42)))


@pytest.mark.parametrize("more", [(), (("clean", (20, 0.01, 5)),)])
def test_faster_steps_after_the_last_layer_are_changed_work(run, more):
    late = {"number": 3}
    parts = [("clean", (20, 0.02, 1)), ("torch", [0.03] * 4), ("clean", (20, 0.02, 2))]
    parts += [("watch", (100, 0.02, 3), late), ("watch", (300, 0.01, 4), late), *more]
    clean, numbers, _ = made(run, *parts)
    assert numbers == [*range(20), *range(24, 44)]
    assert clean.median_s == pytest.approx(0.02, rel=0.01)
    (text,) = (row["text"] for row in clean.warnings if row["slug"] == "work-changed")
    assert "20.0 ms" in text or "19.9 ms" in text or "20.1 ms" in text
    place = int(text.split("step ")[1].split()[0].rstrip(","))
    assert 144 * 15 / 16 - 1 <= place <= 144 * 17 / 16 + 1


def test_without_layers_the_steps_after_the_warmup_count(run):
    parts = [("clean", (20, 0.02, 1)), ("clean", (60, 0.01, 2)), ("watch", (300, 0.01, 3))]
    clean, numbers, slugs = made(run, *parts)
    assert (numbers[-1], slugs) == (79, [])
    assert 20 <= numbers[0] <= 26
    assert clean.median_s == pytest.approx(0.01, rel=0.02)


# Events of one stream see nothing of another: then the host's times count.
@pytest.mark.parametrize("share", [COVERED * 1.001, COVERED * 0.999, 5.0, 0.5, None])
def test_the_devices_times_count_where_all_are_known_and_cover_the_hosts(run, share):
    walls, clock = scattered(20, 0.01), "device" if share and share > COVERED else "host"
    devices = [wall * (share or 1.0) for wall in walls]
    if share is None:
        devices[7] = None
    last = ("torch", [9], {"devices": [None]})
    clean = made(run, ("clean", walls, {"devices": devices}), last)[0]
    known = devices if clock == "device" else walls
    assert (clean.clock, clean.median_s) == (clock, pytest.approx(median(known)))
    run.writer.facts({"synchronised": True})
    assert found_in(run)[0].clock == "host"


@cases("factor earlier tells kept", (1.04, 30, True, "earlier"), (1.04, FEW, True, "earlier"),
       (1.04, FEW - 1, True, "all"), (1.012, 30, False, "all"))  # fmt: skip
def test_a_lasting_change_leaves_the_earlier_steps(run, factor, earlier, tells, kept):
    parts = [("clean", (earlier, 0.01, 1)), ("torch", [0.012, 0.013, 0.012], {"number": 2})]
    clean, numbers, slugs = made(run, *parts, ("clean", (30, 0.01 * factor, 2)))
    assert (module._LASTING, slugs) == (0.02, ["clean-changed"] * tells)
    assert len(numbers) == (earlier if kept == "earlier" else earlier + 30)
    if tells:
        text = clean.warnings[0]["text"]
        assert ("torch" in text, "only the earlier" in text) == (True, kept == "earlier")
        assert float(text.split("take ")[1].split()[0]) == pytest.approx(factor, abs=0.01)
