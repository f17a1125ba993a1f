"""Why the device is idle: a late host, a wait for a value, a copy, a wait for data."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_programs import NEEDS_GPU, program, reported_program

pytestmark = NEEDS_GPU

LATE = "time.sleep(0.005)"
WAITS = "loss.item(); time.sleep(0.005)"
COPIES = 'torch.randn(64, @width, @width).to("cuda")'.replace("@width", "512")


@pytest.mark.parametrize(
    ("where", "does", "cause"),
    [
        ("late", WAITS, "synchronisation"),
        ("late", LATE, "host late"),
        ("early", LATE, "data wait"),
    ],
)
def test_a_pause_of_the_host_has_its_cause(
    tmp_path: Path, where: str, does: str, cause: str
) -> None:
    report = reported_program(tmp_path, program(steps=120, width=1024, **{where: does}))
    gaps = {row["cause"]: row for row in report["tables"]["gaps"]}
    assert cause in gaps, gaps
    longest = max(gaps.values(), key=lambda row: row["total_s"])
    assert longest["cause"] == cause
    assert 0.004 < gaps[cause]["total_s"] < 0.008


def test_a_copy_that_the_device_waits_for(tmp_path: Path) -> None:
    early = f"pageable = {COPIES}"
    report = reported_program(tmp_path, program(steps=80, width=1024, early=early))
    copies = [row for row in report["tables"]["kernels"] if "HtoD" in row["name"]]
    assert copies
    assert all("Pageable" in row["name"] for row in copies)
    causes = {row["cause"] for row in report["tables"]["gaps"]}
    assert "copy" in causes or "data wait" in causes


def test_idle_and_busy_are_the_step(tmp_path: Path) -> None:
    report = reported_program(tmp_path, program(steps=120, width=1024, late=LATE))
    for row in report["tables"]["launches"]:
        assert row["device_idle_s"] > 0.004
        assert row["device_busy_s"] > 0
    idle = sum(row["device_idle_s"] for row in report["tables"]["launches"])
    steps = len(report["tables"]["launches"])
    told = sum(row["total_s"] for row in report["tables"]["gaps"])
    assert told == pytest.approx(idle / steps, rel=0.05)
