"""First calls in fresh processes."""

import pytest

from profstack.bench import cold_start
from profstack.bench.subject import Request, Subject

TARGET = """
import time
import torch
calls = 0
def step():
    global calls
    calls += 1
    print("to standard output")
    time.sleep(0.05 if calls == 1 else 0.002)
def fails():
    raise ValueError("on purpose")
"""


def fresh(folder, name, seconds):
    """Starts of a target, of which as many are begun as the seconds allow."""
    (folder / "target.py").write_text(TARGET)
    subject = Subject(name, lambda: None, request=Request(f"{folder}/target.py:{name}"))
    return cold_start.fresh_processes(subject, 4, 2e-3, seconds)


def test_the_first_calls_of_a_process_are_timed_or_it_says_why_not(tmp_path, capfd):
    starts, why = fresh(tmp_path, "step", 0.0)
    assert why is None
    assert len(starts) == 1, "after the time is up none is begun, but one is"
    (start,) = starts
    assert len(start.cold_s) == len(start.warm_s) == 4
    # Sleeps last at least what they are asked for; the first call is the process's own.
    assert start.cold_s[0] >= 0.05
    assert min(*start.cold_s[1:], *start.warm_s) < 0.05
    assert (start.reports[0], capfd.readouterr().out) == (pytest.approx(sum(start.cold_s) / 4), "")
    why = "a fresh process failed (ValueError: on purpose)"
    assert fresh(tmp_path, "fails", 60.0) == ([], why)
