"""A script that warms up and then measures: the page is of the loop that it measures."""

from tests.support.recorded_runs import report_of

SCRIPT = """\
import torch
from profstack import region
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
x = torch.randn(64, 64)
for _ in range(12): model(x)
with torch.no_grad():
    with region("measured"):
        for _ in range(300): model(x)
"""
FAST = ("--layers", "cprofile,flops", "--no-peaks", "-q", "--rounds", "1", "--final-s", "0.05")


def test_the_page_is_of_the_loop_that_is_measured(run_profstack, tmp_path):
    (tmp_path / "bench.py").write_text(SCRIPT)
    run_profstack(["run", "-o", "rec", *FAST, "bench.py"])
    report = report_of(tmp_path / "rec")
    loops = {row["place"]: row for row in report["step"]["loops"]}
    assert [(row["steps"], row["reported"]) for row in loops.values()] == [(12, False), (300, True)]
    assert ([*loops], report["step"]["count"]) == (["bench.py:5", "bench.py:8"], 300)
    assert report["setup"]["calls"]["count"] > report["setup"]["calls"]["with_grad"] == 0
    text = next(each["text"] for each in report["warnings"] if each["slug"] == "loops")
    assert text.index("bench.py:8") < text.index("bench.py:5")
    assert min(report["benchmark"]["counted_steps"]) >= 12
