"""The report's table of regions: by source and path, from which slices, and what is not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_recording import TORCH_S, Run

from profstack.analysis.operators import MOST_ALIKE

OWN = "profstack.region"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """An empty recording."""
    return Run(tmp_path / "rec")


def timed(path: str, calls: int, wall_s: float, **values: Any) -> dict[str, Any]:
    """A record of `region_times`."""
    row = {"path": path, "source": OWN, "calls": calls, "wall_s": wall_s}
    return {**row, "threads": 1, "on_steps_thread": 1, **values}


def done(path: str, source: str = OWN, **values: Any) -> dict[str, Any]:
    """A record of `region_work` over three steps."""
    row = {"path": path, "source": source, "calls": 3, "wall_s": 0.03, "operator_s": 0.003}
    return {**row, "threads": 1, **values}


def table(run: Run) -> tuple[dict[tuple[str, str], dict[str, Any]], dict[str, Any]]:
    """The rows by source and path, and the report."""
    run.layers(torch="recorded")
    report = run.finish()
    rows = {(row["source"], row["path"]): row for row in report["tables"]["regions"]}
    assert len(rows) == len(report["tables"]["regions"])
    return rows, report


def test_times_are_clean_and_work_is_that_of_the_profile(run: Run) -> None:
    run.torch(
        [TORCH_S],
        mode="detail",
        number=1,
        frames={"region_work": [done("load", host_net_bytes=400, operator_s=9.0, flop=9)]},
    )
    run.clean(5, frames={"region_times": [timed("load", 10, 0.02)]})
    run.torch(
        [TORCH_S] * 3,
        frames={
            "region_times": [timed("load", 6, 9.0)],
            "region_work": [done("load", wall_s=9.0, flop=600)],
        },
    )
    rows, report = table(run)
    row = rows[OWN, "load"]
    assert row["calls"] == pytest.approx(2.0)
    assert row["wall_s"] == pytest.approx(0.004)
    assert row["operator_s"] == pytest.approx(0.001)
    assert row["flop"] == pytest.approx(200)
    # Of the step whose memory was watched.
    assert row["host_net_bytes"] == 400
    assert row["threads"] == "the steps' own"
    assert "clean slices" in row["measured_in"]
    assert "torch layer's slices, 3 steps" in row["measured_in"]
    assert row["device_s"] is None
    assert report["columns_reason"]["regions.device_s"] == "no accelerator was in use"


def test_a_range_of_the_same_name_is_another_row(run: Run) -> None:
    run.clean(
        5, frames={"region_times": [timed("load", 5, 0.01), timed("load", 10, 0.02, source="nvtx")]}
    )
    run.torch(
        [TORCH_S] * 3,
        frames={
            "region_work": [
                done("load"),
                done("load", "record_function", calls=6, operator_s=0.006),
            ]
        },
    )
    rows, _ = table(run)
    assert {key: row["wall_s"] for key, row in rows.items()} == {
        (OWN, "load"): pytest.approx(0.002),
        ("nvtx", "load"): pytest.approx(0.004),
        # A profile alone sees it: its time is of slices that were slowed, and it says so.
        ("record_function", "load"): pytest.approx(0.01),
    }
    function = rows["record_function", "load"]
    assert function["calls"] == pytest.approx(2.0)
    assert function["measured_in"] == "the torch layer's slices, 3 steps"
    assert rows["nvtx", "load"]["operator_s"] is None


def test_what_no_slice_of_a_layer_entered_is_null_with_a_reason(run: Run) -> None:
    run.clean(5, frames={"region_times": [timed("rare", 1, 0.02), timed("load", 5, 0.01)]})
    run.torch([TORCH_S] * 3, frames={"region_work": [done("load", flop=3)]})
    rows, report = table(run)
    rare = rows[OWN, "rare"]
    assert [rare[name] for name in ("operator_s", "flop", "host_net_bytes")] == [None] * 3
    assert "no slice of the torch layer entered it" in report["cells_reason"]["regions.operator_s"]
    assert "formula" in report["cells_reason"]["regions.flop"]
    assert "memory" in report["columns_reason"]["regions.host_net_bytes"]


def test_without_the_torch_layer_the_reason_is_that(run: Run) -> None:
    run.clean(5, frames={"region_times": [timed("load", 5, 0.01)]})
    run.layers(torch="skipped")
    report = run.finish()
    [row] = report["tables"]["regions"]
    assert row["operator_s"] is None
    assert "torch is skipped" in report["columns_reason"]["regions.operator_s"]


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ([(1, 1)], "the steps' own"),
        ([(1, 0)], "1 other"),
        ([(3, 1), (4, 1)], "the steps' own and 3 others"),
        ([(2, 0)], "2 others"),
        ([(None, None)], None),
    ],
)
def test_threads_in_words(run: Run, seen: list[tuple[Any, Any]], words: str | None) -> None:
    for threads, own in seen:
        entered = timed("load", 5, 0.01, threads=threads, on_steps_thread=own)
        run.clean(5, frames={"region_times": [entered]})
    rows, _ = table(run)
    assert rows[OWN, "load"]["threads"] == words


def test_names_with_numbers_without_end_stand_as_one(run: Run) -> None:
    count = MOST_ALIKE + 1
    steps = [timed(f"step {number}/layer {number % 3}", 1, 0.001) for number in range(count)]
    run.clean(count, frames={"region_times": steps})
    # A number that only another slice has is the same region, and of clean steps all the same.
    run.torch(
        [TORCH_S] * 3,
        frames={
            "region_times": [timed("step 1000/layer 0", 3, 9.0)],
            "region_work": [done("step 1000/layer 0"), done("step 1001/layer 0")],
        },
    )
    rows, _ = table(run)
    assert list(rows) == [(OWN, f"step #/layer {number}") for number in range(3)]
    assert sum(row["calls"] for row in rows.values()) == pytest.approx(1.0)
    first = rows[OWN, "step #/layer 0"]
    assert first["wall_s"] == pytest.approx(0.001 / 3)
    assert first["operator_s"] == pytest.approx(0.002)
    assert "with a layer" not in first["measured_in"]


def test_a_recording_without_regions_has_no_rows(run: Run) -> None:
    run.clean(5)
    rows, report = table(run)
    assert rows == {}
    assert not any(key.startswith("regions.") for key in report["columns_reason"])
