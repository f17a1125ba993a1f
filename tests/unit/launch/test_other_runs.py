"""Runs that know of one another: measuring gives way at once, and no run waits for it."""

import subprocess
import sys

import pytest

from profstack.launch import other_runs
from profstack.launch.other_runs import GaveWayError, announced, is_running, run_giving_way

HOLDS = """
import sys
from profstack.launch.other_runs import announced
with announced():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_run_is_known_to_others_until_it_ends_or_is_killed():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDS], text=True, **pipes) as another:
        assert (another.stdout.readline(), is_running()) == ("held\n", True)
        with announced():
            another.kill()
            another.wait()
            assert is_running()
        assert not is_running()


WAITS = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"]


def test_a_command_ends_where_a_run_begins(monkeypatch):
    done = run_giving_way([sys.executable, "-c", "print(7)"], timeout=60, capture_output=True)
    assert (done.stdout, done.returncode) == (b"7\n", 0)
    with pytest.raises(subprocess.TimeoutExpired):
        run_giving_way(WAITS, timeout=0.1, capture_output=True)
    started, popen = [], subprocess.Popen
    start = lambda *given, **how: started.append(popen(*given, **how)) or started[-1]  # noqa: E731
    monkeypatch.setattr(subprocess, "Popen", start)
    asked = iter([False, False, True])
    monkeypatch.setattr(other_runs, "is_running", lambda: next(asked))
    with pytest.raises(GaveWayError):
        run_giving_way(WAITS, timeout=60, capture_output=True)
    (process,) = started
    assert process.returncode == -9
    # It is not even begun while one goes on.
    monkeypatch.setattr(other_runs, "is_running", lambda: True)
    with pytest.raises(GaveWayError):
        run_giving_way(WAITS, timeout=60, capture_output=True)
    assert len(started) == 1
