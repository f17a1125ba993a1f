"""Data loading with workers alive: what a clean step waits, and what other layers may not hide."""

from __future__ import annotations

from typing import Any

import pytest
from data_findings import completed

from profstack.findings.data_loading import data_starved

MS = 1e-3


def report_of(
    *, loader: float = 3.9, no_core: float = 1.6, worker_cpu: float = 10.5, cores: int = 2
) -> dict[str, Any]:
    """What a run gave whose two workers are always busy: times in milliseconds.

    A clean step takes 7.5 in the middle and 9.8 on average, half of which it waits. In the torch
    layer's slices it takes 10 and is 4.3 before its first work, `loader` of that in the loader.
    """
    steps = [{"index": at, "wall_s": 9.8 * MS, "wait_s": 4.8 * MS} for at in range(20)]
    loads = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    times = {"source": "torch", "path": loads, "calls": 1.0, "wall_s": loader * MS}
    loop = {"file": "/app/train.py", "line": 55, "source": "for x, y in loader:", "own": True}
    return completed(
        {
            "benchmark": {"median_s": 7.5 * MS, "counted_steps": list(range(20))},
            "attribution": {
                "step_s": 10 * MS,
                "calibrated_owned_s": 7.4 * MS,
                "clean_median_s": 7.5 * MS,
            },
            "processes": {
                "step_s": 9.8 * MS,
                "cpu_s": 16.4 * MS,
                "no_core_s": no_core * MS,
                "workers": 2,
                "worker_cpu_s": worker_cpu * MS,
            },
            "environment": {"usable_cores": cores},
            "layers": [{"name": "torch", "status": "recorded"}],
            "tables": {
                "steps": steps,
                "modules": [{"path": "(wait)", "self_s": 4.3 * MS, "calibrated_s": 3.2 * MS}],
                "regions": [times],
                "functions": [],
                "calls": [],
                "lines": [loop | {"python_s": 4 * MS, "operator_s": 0.0}],
            },
        }
    )


@pytest.mark.parametrize("no_core", [0.0, 1.6, 5.2])
def test_a_thread_without_a_core_does_not_hide_what_the_step_waits_for(no_core: float) -> None:
    (told,) = data_starved(None, report_of(no_core=no_core))  # type: ignore[arg-type]
    assert told["title"].startswith("Data loading takes 44 % of a step")
    wait = told["evidence"][0]
    # Both are of one step: the one in the middle, not of the longer one on average.
    assert wait.get("waited_for_core_s", 0.0) == pytest.approx(
        min(no_core / 9.8 * 7.5, 3.33) * MS, rel=0.01
    )
    # What a worker uses of an average step: of the one in the middle it would be 70 %.
    assert wait["worker_busy_share"] == pytest.approx(0.536, abs=0.001)
    # Both cores have work.
    assert told["gain_s"] is None
    assert "cores are in use" in told["gain_reason"]
    assert "only cheaper samples help" in told["advice"]
    assert "Try num_workers" not in told["advice"]
    assert "one run with num_workers=0 names the functions" in told["advice"]
    assert ("had no core" in told["advice"]) is (no_core == 5.2)
    assert ("If no other program ran" in told["advice"]) is (no_core == 5.2)


def test_workers_without_a_core_are_not_said_to_wait_for_a_disk() -> None:
    (told,) = data_starved(None, report_of(worker_cpu=6.0))  # type: ignore[arg-type]
    assert "mostly waits" not in told["advice"]
    (told,) = data_starved(None, report_of(worker_cpu=6.0, no_core=0.1))  # type: ignore[arg-type]
    assert "mostly waits (for files, a network, or a core)" in told["advice"]


def test_more_workers_are_advised_where_cores_are_left() -> None:
    (told,) = data_starved(None, report_of(cores=8, no_core=0.1))  # type: ignore[arg-type]
    assert "Try num_workers=4 with persistent_workers=True" in told["advice"]
    assert 0 < told["gain_s"] < told["evidence"][0]["loading_s"]
