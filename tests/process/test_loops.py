"""A script that warms up and then measures: the page is of the loop that it measures."""

from tests.support.processes import run_python
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


def run(folder, *options):
    (folder / "bench.py").write_text(SCRIPT)
    words = ("-m", "profstack", "run", "-o", "rec", *FAST, *options, "bench.py")
    done = run_python(*words, code=None, cwd=folder)
    return done, None if done.returncode else report_of(folder / "rec")


def test_the_page_is_of_the_loop_that_is_measured(tmp_path):
    _, report = run(tmp_path)
    loops = {row["place"]: row for row in report["step"]["loops"]}
    assert [(row["steps"], row["reported"]) for row in loops.values()] == [(12, False), (300, True)]
    assert ([*loops], report["step"]["count"]) == (["bench.py:5", "bench.py:8"], 300)
    assert report["setup"]["calls"]["count"] > report["setup"]["calls"]["with_grad"] == 0
    text = next(each["text"] for each in report["warnings"] if each["slug"] == "loops")
    assert text.index("bench.py:8") < text.index("bench.py:5")
    counted = report["benchmark"]["counted_steps"]
    assert counted
    assert min(counted) >= 12


def test_slices_begin_where_the_user_says(tmp_path):
    _, report = run(tmp_path, "--begin-at", "bench.py:6")
    observed = [row["first_step"] for row in report["slices"] if row["layer"]]
    assert observed
    assert min(observed) >= 12
    assert report["step"]["count"] == 300
    assert not [each for each in report["warnings"] if each["slug"] == "begin-at"]


def test_a_place_in_another_file_is_refused(tmp_path):
    done, _ = run(tmp_path, "--begin-at", "other.py:3")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "other.py" in done.stderr
