"""Why the device is idle: a late host, a wait for a value, a copy, a wait for data."""

import pytest

from tests.support.gpu_programs import NEEDS_GPU, program, reported_program
from tests.support.tables import cases

pytestmark = NEEDS_GPU

LATE = "time.sleep(0.005)"
WAITS = "loss.item(); time.sleep(0.005)"


@cases(
    "where does cause",
    *(("late", WAITS, "synchronisation"), ("late", LATE, "host late")),
    ("early", LATE, "data wait"),
)
def test_a_pause_of_the_host_has_its_cause(tmp_path, where, does, cause):
    tables = reported_program(tmp_path, program(steps=120, width=1024, **{where: does}))["tables"]
    gaps = {row["cause"]: row["total_s"] for row in tables["gaps"]}
    assert max(gaps, key=gaps.get) == cause, gaps
    assert 0.004 < gaps[cause] < 0.008
    if cause == "host late":
        # Idle and busy are the step.
        idle = [row["device_idle_s"] for row in tables["launches"]]
        assert min(idle) > 0.004
        assert min(row["device_busy_s"] for row in tables["launches"]) > 0
        assert sum(gaps.values()) == pytest.approx(sum(idle) / len(idle), rel=0.05)


def test_a_copy_that_the_device_waits_for(tmp_path):
    early = 'pageable = torch.randn(64, 512, 512).to("cuda")'
    tables = reported_program(tmp_path, program(steps=80, width=1024, early=early))["tables"]
    copies = [row["name"] for row in tables["kernels"] if "HtoD" in row["name"]]
    assert copies
    assert all("Pageable" in name for name in copies)
    assert {row["cause"] for row in tables["gaps"]} & {"copy", "data wait"}
