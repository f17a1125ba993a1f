"""The pytest plugin: limits on both sides, kept times, the table, and locks."""

import os
import time
from types import SimpleNamespace

import pandas
import psutil
import pytest
import torch

from profstack import environment, pytest_steps
from profstack.bench import measure
from profstack.compare import kept_times
from profstack.errors import RecordingError
from profstack.launch import counted_run
from profstack.lock import meaning, places
from profstack.lock import text as lock_text
from profstack.report import html, screen
from profstack.stats.summary import summarize
from profstack.wrappers import cprofile, flops, memory, torch_profiler
from tests.support.tables import cases

# Pytester forgets what it imports: torch cannot be imported twice, and others take long.
LOADED = (pandas, psutil, torch, counted_run, meaning, places)
LOADED += (lock_text, html, screen, cprofile, flops, memory, torch_profiler)

ALONE = ("-p", "profstack.pytest_plugin", "--strict-markers", "-p", "no:cacheprovider")


class _Measured:
    """A measurement whose times are what the step returns, in seconds."""

    def __init__(self, call, policy):
        self._step_s = call()

    def summary(self):
        return summarize([self._step_s * (0.95 + 0.001 * (37 * at % 101)) for at in range(101)])


@pytest.fixture
def run(pytester, monkeypatch):
    """Run a test file with the plugin alone; the step of a test returns the time it took."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(measure, "measure", _Measured)
    monkeypatch.setattr(environment, "run_delays_s", dict)
    monkeypatch.setattr(environment, "others_cpu_s", float)

    def run(text, *options):
        pytester.makepyfile(test_it=text)
        return pytester.runpytest_inprocess(*ALONE, *options)

    return run


def _step(limits, step_s):
    mark = f"@pytest.mark.profstack({limits})\n" if limits else ""
    body = f"def test_step(measure_step): measure_step(lambda: {step_s})\n"
    return f"import pytest\n{mark}{body}"


@cases("step_s result", (0.0097, "passed"), (0.01001, "cannot tell"), (0.0104, "failed"))
def test_a_limit_in_seconds_is_held_with_the_interval(run, step_s, result):
    # The interval of the made-up times reaches 1 to 2 % to both sides.
    text = _step("max_s=0.01", step_s)
    strict = run(text, "--profstack-strict")
    strict.assert_outcomes(**({"passed": 1} if result == "passed" else {"failed": 1}))
    if result != "passed":
        strict.stdout.fnmatch_lines(["*the step takes *, the limit is 10.0 ms"])
    run(text).assert_outcomes(**({"failed": 1} if result == "failed" else {"passed": 1}))


@pytest.mark.parametrize(("which", "share", "step_s", "words"), [
    ("others", 0.22, 0.02, None), ("others", 0.28, 0.02, "other programs used 28 % of"),
    ("waited", 0.28, 0.06, None),
    ("waited", 0.28, 0.02, "waited for a core for 11 %")])  # fmt: skip
def test_a_busy_machine_has_four_times_the_limit(run, monkeypatch, which, share, step_s, words):
    clock = [0.0]

    def measured(call, policy):
        clock[0] += 1.0
        return _Measured(call, policy)

    # The others' and the waiting threads' clocks go on by a share of the test's own.
    monkeypatch.setattr(measure, "measure", measured)
    times = SimpleNamespace(perf_counter=lambda: clock[0], time=time.time)
    monkeypatch.setattr(pytest_steps, "time", times)
    if which == "others":
        cores = os.cpu_count() or 1
        monkeypatch.setattr(environment, "others_cpu_s", lambda: cores * share * clock[0])
    else:
        monkeypatch.setattr(environment, "run_delays_s", lambda: {1: 0.4 * share * clock[0]})
    strict = run(_step("max_s=0.01", step_s), "--profstack-strict")
    line = f"cannot tell: the step takes *{words}*" if words else "the step takes *"
    strict.stdout.fnmatch_lines([line])


def test_times_are_kept_and_compared_by_what_processes_differ_by(run, pytester, monkeypatch):
    known = {"commit": "a", "changed": False}
    monkeypatch.setattr(environment, "environment_facts", lambda _: known)
    for step_s in (0.010, 0.0101, 0.0099):
        result = run(_step("", step_s), "--profstack-save")
    result.stdout.fnmatch_lines(["*profstack: steps*", "test_it.py::test_step*9.9?*saved*"])
    [path] = (pytester.path / ".profstack" / "times").iterdir()
    kept = kept_times.read(path)
    assert [round(row["median_s"], 4) for row in kept] == [0.0100, 0.0101, 0.0099]
    # Three processes cannot tell a tenth, and can tell a half.
    run(_step("compare='5%'", 0.011)).assert_outcomes(passed=1)
    run(_step("compare='5%'", 0.011), "--profstack-strict").assert_outcomes(failed=1)
    slower = run(_step("", 0.015), "--profstack-compare=5%", "--profstack-save")
    slower.assert_outcomes(failed=1)
    slower.stdout.fnmatch_lines(["step +50.0 % (*) against the kept time, *; the limit is 5 %"])
    assert kept_times.read(path) == kept


def test_wrong_limits_are_refused_and_off_calls_once(run):
    for limits in ("max_seconds=1", "0.5", "compare='fast'"):
        run(_step(limits, 0.01)).assert_outcomes(errors=1)
    text = "def test_step(measure_step, calls=[]):\n    step = measure_step(calls.append, 1)\n"
    text += "    assert (calls, step.median_s) == ([1], None)\n"
    result = run(text, "--profstack-off")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*profstack: steps*")


_COUNTED = """
import pytest, torch
net = torch.nn.Linear(8, 4)
def step():
    loss = net(torch.ones(2, 8)).sum()
    loss.backward()
    loss.item()
def test_lock(lock_step): lock_step(step)
@pytest.mark.profstack(max_flop={flop} - 1, max_syncs=1)
def test_flop(measure_step): measure_step(lambda: step() or 0.01)
@pytest.mark.profstack(max_flop={flop}, max_syncs=0)
def test_syncs(measure_step): measure_step(lambda: step() or 0.01)
"""


def test_exact_numbers_have_locks_and_limits(run):
    # A forward and one backward product: the inputs need no gradient.
    flop = 2 * 2 * (2 * 8 * 4)
    counted = _COUNTED.format(flop=flop)
    broken = run(counted)
    broken.assert_outcomes(failed=3)
    broken.stdout.fnmatch_lines(["*write it with --profstack-lock and commit it"])
    broken.stdout.fnmatch_lines([f"most floating-point*: {flop - 1}, counted {flop}"])
    broken.stdout.fnmatch_lines(["most waits for the device in a step: 0, counted 1"])
    run(counted, "--profstack-lock", "-k", "test_lock").assert_outcomes(passed=1)


def test_a_failure_holds_no_escape_sequences():
    with pytest.raises(pytest.fail.Exception, match=r"^a\?\[2J: b$"), pytest_steps._failing():
        raise RecordingError("b", where="a\x1b[2J")
    assert pytest_steps._printable("a\x1b\nb\r::c") == "a?\nb ::c"
