"""Runs that know of one another: measuring gives way at once, and no run waits for it."""

import os
import subprocess
import sys

import pytest

from profstack.launch import background_peaks, other_runs, peaks
from profstack.launch.other_runs import GaveWayError, announced, is_running, run_giving_way
from tests.support.recordings import Run

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


@pytest.fixture
def another():
    """Another process that announces a run, until it is closed."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDS], text=True, **pipes) as process:
        assert process.stdout.readline() == "held\n"
        yield process


def test_a_run_is_known_to_others_until_it_ends_or_is_killed(another):
    assert is_running()
    with announced():
        another.kill()
        another.wait()
        assert is_running()
    assert not is_running()


def test_a_run_waits_a_few_ms_at_most(tmp_path):
    import fcntl

    with announced():
        pass
    with open(tmp_path / "cache" / "profstack" / "runs.lock") as held:
        # One that asks, and was stopped by a signal while it did.
        fcntl.flock(held, fcntl.LOCK_EX)
        # Without an end it would wait for good.
        with announced():
            pass


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


def test_peaks_are_measured_when_the_run_that_interrupted_is_over(tmp_path, monkeypatch):
    folder, pauses, said = tmp_path / "run", [], []
    run = Run(folder)
    run.writer.facts({"environment": {"device": "cpu", "torch": "2", "torch_threads": 1}})
    run.torch([0.1] * 3)
    run.writer.close()
    before = peaks.keep_peaks(folder, later=True), (folder / "logs" / "peaks.json").read_bytes()
    assert before[0]

    def interrupted(command, **_):
        said.append((folder / "logs" / "peaks.json").read_bytes() == before[1])
        if len(said) < 3:
            raise GaveWayError
        raise OSError("measured")

    states = iter([True, False, False, True, True, False, False])
    monkeypatch.setattr(background_peaks, "is_running", lambda: next(states))
    monkeypatch.setattr(background_peaks, "run_giving_way", interrupted)
    monkeypatch.setattr(background_peaks, "_run_of", lambda folder: "1")
    monkeypatch.setattr(background_peaks, "_is_exclusive", lambda: False)
    monkeypatch.setattr(background_peaks.time, "sleep", pauses.append)
    monkeypatch.setattr("profstack.report.files.write_report", said.append)
    background_peaks.complete(folder, "1")
    assert (said, len(pauses)) == ([True, True, True, folder], 3)
    assert (peaks.are_pending(folder), os.listdir(folder / "logs")) == (False, ["peaks.json"])
