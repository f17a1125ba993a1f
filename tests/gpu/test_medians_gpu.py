"""The clean median by CUDA's events, against a loop that is timed by hand."""

import json

import pytest

from tests.support.gpu_programs import NEEDS_GPU, program, python, reported_program

pytestmark = NEEDS_GPU

_MARK = "event = torch.cuda.Event(enable_timing=True); event.record(); marks.append(event)"
_TELL = """
import statistics
pairs = list(zip(marks, marks[1:]))[len(marks) // 4 :]
print(json.dumps(statistics.median(a.elapsed_time(b) / 1e3 for a, b in pairs)))
"""


def test_the_device_median_is_that_of_a_loop_timed_by_hand(tmp_path):
    report = reported_program(tmp_path, program(steps=400))
    by_hand = program(steps=400, early=_MARK).replace("import json", "import json\nmarks = []", 1)
    hand_s = json.loads(python(tmp_path, "-c", by_hand + _TELL).strip().splitlines()[-1])
    benchmark = report["benchmark"]
    assert benchmark["clock"] == "device"
    assert benchmark["device_median_s"] == pytest.approx(hand_s, rel=0.05)
    assert benchmark["host_median_s"] is not None
    assert report["tables"]["steps"][-1]["wall_s"] > 0


def test_the_host_runs_ahead_and_the_device_is_timed(tmp_path):
    # Steps long enough that the device sets the pace: its median is the steps' rate.
    report = reported_program(tmp_path, program(steps=120, width=8192))
    assert report["benchmark"]["device_median_s"] > 2 * 8192**3 * (2 + 3) / 2e15
    launches = report["tables"]["launches"]
    busy, idle = (sum(row[f"device_{each}_s"] for row in launches) for each in ("busy", "idle"))
    assert busy / (busy + idle) > 0.8
