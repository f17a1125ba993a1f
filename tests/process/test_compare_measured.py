"""`profstack compare` that measures both sides: two revisions in turn, failures, an interrupt."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.processes import clean_environment, git, run_python
from tests.support.recorded_runs import SGD

_TRAIN = f"""\
import sys, time
if sys.argv[1] == "waits":
    open(sys.argv[2], "w").close()
    time.sleep(100)
import torch
from work import pause
{SGD}model = torch.nn.Linear(8, 8)
optimizer = SGD(model.parameters(), 0.1)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(pause)
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository whose second commit waits longer in each step, in another module."""
    top = tmp_path / "project"
    top.mkdir()
    monkeypatch.chdir(top)
    (top / "train.py").write_text(_TRAIN)
    for text in ("pause = 0.01", "pause = 0.05"):
        (top / "work.py").write_text(text)
        if text.endswith("1"):
            git("init", "-q", "-b", "main")
        git("add", ".")
        git("commit", "-qm", text)
    (top / "work.py").write_text("raise SystemExit('neither side has this')")
    return top


def compare(*words, **keywords):
    return run_python("-m", "profstack", "compare", *words, **keywords)


def trees_of(tmp_path):
    return [name for name in os.listdir(tmp_path) if name.startswith("profstack-rev")]


@pytest.mark.timeout(600)
def test_two_revisions_are_measured_in_turn_and_the_slower_one_is_told(checkout, tmp_path):
    words = ("--rev", "HEAD~1", "--rev", "main", "--budget", "1s", "-o", "out", "train.py", "60")
    done = compare(*words, env={"TMPDIR": str(tmp_path)}, timeout=550)
    found = json.loads((checkout / "out" / "compare.json").read_text())
    sides = found["before"], found["after"]
    assert [side["recordings"] for side in sides] == [3, 3]
    assert sides[0]["commit"] == git("rev-parse", "HEAD~1").strip()
    before_s, after_s = (min(side["medians_s"]) for side in sides)
    # How much longer than it sleeps a step takes is the machine's business, on both sides.
    assert 0.01 < before_s < after_s
    assert after_s > 0.05
    begun = sorted(
        (json.loads((path / "report.json").read_text())["run"]["started_at"], path.name[0])
        for path in (checkout / "out").glob("*-000?")
    )
    assert "".join(side for _, side in begun) == "baabba"
    assert "uncommitted changes (1 tracked)" in done.stderr
    assert done.stderr.count("profstack: after ") == 4
    assert trees_of(tmp_path) == []
    assert git("worktree", "list").count("\n") == 1


def test_a_failing_side_is_one_line_with_its_exit_code_and_log(checkout):
    bad = "train.py --not-a-number"
    done = compare("-q", "--run", bad, "--run", "train.py 5", "-o", "out", code=2)
    assert done.stderr.count("\n") == 1
    assert "before: a process of 'train.py --not-a-number' ended with exit code 1" in done.stderr
    assert "out/logs/before-0001.log" in done.stderr
    assert "neither side has this" in (checkout / "out" / "logs" / "before-0001.log").read_text()


def test_trees_and_processes_end_with_an_interrupt(checkout, tmp_path):
    words = ("-m", "profstack", "compare", "--rev", "HEAD", "--rev", "HEAD", "-o", "out")
    command = [sys.executable, *words, "train.py", "waits", str(tmp_path / "begun")]
    how = {"env": clean_environment(TMPDIR=str(tmp_path)), "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **how)
    try:
        until = time.monotonic() + 120
        while not (tmp_path / "begun").exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert len(trees_of(tmp_path)) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.communicate()
    assert trees_of(tmp_path) == []
    assert git("worktree", "list").count("\n") == 1
