"""The clean median of steps that the device sets the pace of."""

from tests.support.gpu_programs import NEEDS_GPU, program, reported_program

pytestmark = NEEDS_GPU


def test_the_host_runs_ahead_and_the_device_is_timed(tmp_path):
    # Steps long enough that the device sets the pace: its median is the steps' rate.
    report = reported_program(tmp_path, program(steps=120, width=8192))
    assert report["benchmark"]["device_median_s"] > 2 * 8192**3 * (2 + 3) / 2e15
    launches = report["tables"]["launches"]
    busy, idle = (sum(row[f"device_{each}_s"] for row in launches) for each in ("busy", "idle"))
    assert busy / (busy + idle) > 0.8
