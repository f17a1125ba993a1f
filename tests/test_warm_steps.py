"""Where a run's warm-up ends, told apart from a change of its work, on made-up recordings."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from data_recording import Run, by, module, module_times, operator

from profstack.findings.step_cut import host_cut
from profstack.report.files import complete_report
from profstack.storage.reader import Recorded

SLOW_S, FAST_S = 0.009, 0.001
Report = dict[str, Any]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """An empty recording."""
    return Run(tmp_path / "rec")


def scattered(count: int, wall_s: float, seed: int = 0) -> list[float]:
    """Times of steps that scatter by a few percent."""
    random = Random(seed)
    return [wall_s * random.uniform(0.97, 1.03) for _ in range(count)]


def rounds(run: Run, wall_s: float, *, clean: int = 8) -> None:
    """Two slices of the torch layer among clean ones, the first round's step before them."""
    run.slice("startup", [0.05], number=0, flags={0: "discovery"})
    for number in (2, 3):
        run.slice("clean", scattered(clean, wall_s, number))
        frames = {
            "module_times": [module_times(1, 5, 5 * wall_s)],
            "operators": [operator("aten::mm", 5, 4 * wall_s, module_id=1)],
        }
        run.torch(scattered(5, 1.2 * wall_s), number=number, frames=frames)
        run.slice("clean", scattered(clean, wall_s, number + 10))
    run.writer.replace("modules", [module(1, "Net")])
    run.layers(torch="recorded")


def warnings(report: Report) -> dict[str, str]:
    """The texts of the warnings by slug."""
    return {row["slug"]: row["text"] for row in report["warnings"]}


def test_steps_that_get_faster_later_do_not_take_away_what_was_measured(run: Run) -> None:
    # A dataset that caches its samples in the first epoch: 300 slow steps, all slices in them.
    rounds(run, SLOW_S)
    run.slice("clean", scattered(40, SLOW_S, 5), number=4)
    run.slice("watch", scattered(300 - run.steps, SLOW_S, 6), number=4)
    run.slice("watch", scattered(600, FAST_S, 7), number=4)
    run.finish()
    report = complete_report(run.folder)
    mark = report["benchmark"]
    assert (mark["n"], mark["warmup_steps"]) == (72, 1)
    assert mark["median_s"] == pytest.approx(SLOW_S, rel=0.02)
    assert by(report["probe_effect"], "layer")["torch"]["factor"] == pytest.approx(1.2, rel=0.03)
    told = re.match(
        r"from about step (\d+) on, steps take (?:1\.0\d m|99\d µ)s instead of (?:9\.0|8\.9)\d ms: "
        "the figures are of the steps before,",
        warnings(report)["work-changed"],
    )
    assert told is not None
    assert int(told[1]) == pytest.approx(300, rel=0.05)
    assert "warmup-unsettled" not in warnings(report)
    assert "layer slowed" not in report["verdict"]["sentence"]


def test_the_clean_steps_count_that_are_of_the_same_work_as_the_layers(run: Run) -> None:
    # Smaller batches from step 60 on, in which the last clean slice lies.
    rounds(run, SLOW_S)
    change = run.steps
    run.slice("clean", scattered(400, FAST_S, 5), number=4)
    report = run.finish()
    assert report["benchmark"]["n"] == 32
    assert report["benchmark"]["median_s"] == pytest.approx(SLOW_S, rel=0.02)
    assert by(report["probe_effect"], "layer")["torch"]["note"] is None
    assert f"from about step {change} on" in warnings(report)["work-changed"]


def test_few_slow_steps_before_many_fast_ones_are_a_warm_up(run: Run) -> None:
    # Four clean steps before the last slice: what was slow may well have been the warm-up.
    rounds(run, SLOW_S, clean=1)
    run.slice("clean", scattered(400, FAST_S, 5), number=4)
    run.finish()
    report = complete_report(run.folder)
    assert report["benchmark"]["n"] == 400
    assert report["benchmark"]["median_s"] == pytest.approx(FAST_S, rel=0.02)
    assert "work-changed" not in warnings(report)
    sentence = report["verdict"]["sentence"]
    # The layer made its steps a fifth longer; that they take ten times as long is not its doing.
    assert "its steps lay in the warm-up, which was slow by itself" in sentence
    assert "the torch layer slowed" not in sentence


def test_a_warm_up_that_never_settles_is_told_whatever_was_clean_in_it(run: Run) -> None:
    rounds(run, SLOW_S)
    run.slice("clean", [SLOW_S * 0.99**at for at in range(60)], number=4)
    falling = [SLOW_S * 0.99**at for at in range(60, 300)]
    run.slice("watch", falling, number=4)
    report = run.finish()
    assert "warmup-unsettled" in warnings(report)


def test_steps_of_the_same_time_after_the_slices_are_no_change(run: Run) -> None:
    rounds(run, SLOW_S)
    run.slice("watch", scattered(600, SLOW_S, 7), number=4)
    report = run.finish()
    assert report["benchmark"]["n"] == 32
    assert not warnings(report)


def test_no_more_steps_are_asked_for_where_they_would_not_help(run: Run) -> None:
    run.slice("clean", [SLOW_S] * 20, flags=dict.fromkeys(range(20), "eval"))
    run.slice("watch", [SLOW_S] * 20, flags=dict.fromkeys(range(20), "eval"), number=4)
    run.finish()
    report = complete_report(run.folder)
    why = "each held an evaluation of the model, or nothing tells when it began and ended"
    told = [report["verdict"]["sentence"], *report["benchmark"]["warnings"]]
    assert all(why in text for text in told)
    assert not any("more" in text for text in told)


@pytest.mark.parametrize(("known", "items"), [(True, 32), (False, None)])
def test_items_of_the_warm_up_are_no_items_of_the_clean_steps(
    run: Run, known: bool, items: int | None
) -> None:
    """Very short steps do not tell their batches in clean slices: others that are warm may."""
    rounds(run, SLOW_S, clean=1)
    last = run.slice("clean", scattered(400, FAST_S, 5), number=4)
    warm = run.slice("watch", scattered(100, FAST_S, 6), number=4)
    run.finish()
    untold = (last,) if known else (last, warm)
    with closing(sqlite3.connect(run.folder / "recording.sqlite")) as database:
        places = ",".join(str(number) for number in untold)
        database.execute(f"UPDATE steps SET batch_size = NULL WHERE slice IN ({places})")
        database.commit()
    report = complete_report(run.folder)
    assert report["benchmark"]["n"] == 400
    assert report["benchmark"]["batch_size"] == items
    assert (report["benchmark"]["items_per_s"] is None) is not known


def test_a_factor_that_noise_explains_is_not_called_slowing(run: Run) -> None:
    random = Random(3)
    for _ in range(2):
        run.slice("clean", [SLOW_S * random.choice([0.2, 5.0, 0.2]) for _ in range(9)])
        frames = {"module_times": [module_times(1, 6, 0.2)]}
        run.torch([SLOW_S * random.choice([0.2, 5.0, 5.0]) for _ in range(6)], frames=frames)
        run.slice("clean", [SLOW_S * random.choice([0.2, 5.0, 0.2]) for _ in range(9)])
    run.writer.replace("modules", [module(1, "Net")])
    run.layers(torch="recorded")
    recorded = Recorded(run.folder)
    report = complete_report(run.folder)
    effect = by(report["probe_effect"], "layer")["torch"]
    assert effect["factor"] > 3
    assert effect["ci95_low"] <= 1
    cut = host_cut(recorded, report)
    assert cut is not None
    assert str(cut.torch_reason).startswith(
        "how much the torch layer slowed its steps is not known"
    )
