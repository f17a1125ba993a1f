"""Starting the script: flags, environment, its exit code, and signals that are passed on."""

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from profstack.errors import UsageError
from profstack.launch import process

# What follows `python`, and where its own flags end.
FLAGS = """
|-m profstack run t.py // |/usr/bin/profstack run -W t.py // -O -B| -m profstack run -O
-X utf8 -W error| -m profstack // -Xutf8 -Werror -OO| profstack // |-c code -O // |- -O
--check-hash-based-pycs never| -m profstack // -u| -- profstack // -O -W|
"""


def test_the_interpreters_flags_are_passed_on_also_where_it_becomes_the_script(monkeypatch):
    for row in FLAGS.strip().replace("\n", " // ").split(" // "):
        flags = row.partition("|")[0].split()
        assert process.interpreter_flags(["python", *row.replace("|", "").split()]) == flags
    became = []
    monkeypatch.setattr(os, "execv", lambda *given: became.append(given))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-O", "-m", "profstack", "run", "-q"])
    process.run_unrecorded(["-m", "train"])
    assert became == [(sys.executable, [sys.executable, "-O", "-m", "train"])]


@pytest.fixture
def observer(monkeypatch):
    """Stands for the observer, which has got no signal; `made` is what it was made with."""
    told = Mock(**{"received.return_value": False})
    told.made.return_value = told
    monkeypatch.setattr(process, "SignalObserver", told.made)
    return told


@pytest.fixture
def run(tmp_path, monkeypatch, observer):
    def run(text, poll=lambda: None, *flags):
        monkeypatch.setattr(sys, "orig_argv", ["python", *flags, "-m", "profstack", "run"])
        return process.run(["-c", text], tmp_path / "rec", ["watch", "profile"], poll)

    monkeypatch.setattr(sys, "executable", "/bin/sh")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "extra")
    # A signal that is left over fails a test, and does not end whatever runs the tests.
    handlers, left = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}, []
    for each in handlers:
        signal.signal(each, lambda number, _: left.append(number))
    yield run
    for each, handler in handlers.items():
        signal.signal(each, handler)
    assert left == []


def test_ignored_signals_stay_ignored_where_others_interrupt():
    before, found = signal.signal(signal.SIGHUP, signal.SIG_IGN), []
    try:
        with process.interrupted_by_signals():
            found.append(signal.getsignal(signal.SIGHUP))
        found.append(signal.getsignal(signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert found == [signal.SIG_IGN] * 2


@pytest.mark.parametrize("waits", [True, False])
def test_the_exit_code_is_the_scripts(run, monkeypatch, observer, waits):
    if not waits:
        # As on a system that cannot wait for signals.
        monkeypatch.delattr(signal, "sigtimedwait")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    for text, code in {"exit 0": 0, "exit 3": 3, "kill -9 $$": -9, "kill -15 $$": -15}.items():
        assert run(text) == code
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    assert observer.end.call_count == (4 if waits else 0)


def test_flags_and_folder_reach_the_child_but_one_that_keeps_us_out(run, observer):
    text = 'echo "$- $PROFSTACK_CHILD $PROFSTACK_CHILD_OPTIONS $PYTHONPATH" > told.txt'
    assert run(text + "; echo $PROFSTACK_PYTHONPATH >> told.txt", lambda: None, "-u") == 0
    flags, *told = Path("told.txt").read_text().split()
    paths = os.pathsep.join([str(Path(process.__file__).parent / "injected"), "extra"])
    assert told == [str(Path("rec").resolve()), "watch", "profile", paths, "extra"]
    (arguments,) = observer.made.call_args.args
    assert ("u" in flags, list(arguments)[:2]) == (True, ["-u", "-c"])
    for flag in ("-I", "-E", "-S", "-bS", "-IB"):
        with pytest.raises(UsageError, match=f"python -{flag.strip('-bB')} keeps") as caught:
            run("touch ran", lambda: None, "-O", flag)
        assert "\n" not in str(caught.value)
    assert not Path("ran").exists()


@pytest.mark.parametrize(("later_s", "gap_s"), [(60.0, process.POLL_S), (0.0, 0.4)])
def test_the_poll_goes_on_while_the_script_runs(run, observer, monkeypatch, later_s, gap_s):
    monkeypatch.setattr(process, "LATER_S", later_s)
    times = []

    def poll():
        times.append(time.monotonic())
        if len(times) == 3:
            Path("go").touch()

    assert (run("until [ -e go ]; do sleep 0.02; done", poll), len(times) >= 3) == (0, True)
    assert times[1] - times[0] >= gap_s * 0.9
    assert (observer.read.call_count, process.POLL_S) == (len(times), 0.1)


@pytest.mark.parametrize(("alone", "way"), [(True, "kill"), (False, "killpg")])
def test_a_process_is_ended_alone_or_with_its_group(monkeypatch, alone, way):
    sent, ended = [], SimpleNamespace(pid=7, wait=lambda *_: 0)
    for name in ("kill", "killpg"):
        monkeypatch.setattr(os, name, lambda *given, name=name: sent.append((name, *given)))
    process.end_session(ended, alone=alone)
    assert sent == [(way, 7, signal.SIGINT), ("killpg", 7, signal.SIGKILL)]
