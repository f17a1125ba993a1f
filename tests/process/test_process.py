"""Starting the script, without torch: what arming changes stands in test_do_no_harm.py."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from profstack.launch import process
from profstack.launch.process import SignalObserver
from tests.support.processes import CHECKOUT, clean_environment, run_python


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder; the environment is clean."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("PYTHON", "PROFSTACK", "PYTEST", "COVERAGE")):
            monkeypatch.delenv(name)
    (tmp_path / "rec" / "logs").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def both(folder, capfd):
    """Exit code and output of plain python and of `process.run`."""

    def both(*arguments):
        # The first makes the byte code.
        for _ in range(2):
            capfd.readouterr()
            # As Python knows it: pytest's readline adds to the environment behind its back.
            done = subprocess.run([sys.executable, *arguments], env=dict(os.environ), check=False)
        plain = (done.returncode, *capfd.readouterr())
        code = process.run([*arguments], Path("rec"), [], lambda: None)
        return plain, (code, *capfd.readouterr())

    return both


OWN_SITE = """
import os, sys
print('own', __file__, os.environ.get('PYTHONPATH'), sys.path[:2])
print([name for name in os.environ if 'PROFSTACK' in name])
"""


def test_the_environments_own_sitecustomize_runs_as_ever(folder, both, monkeypatch):
    (folder / "site").mkdir()
    site = folder / "site" / "sitecustomize.py"
    site.write_text(OWN_SITE)
    monkeypatch.setenv("PYTHONPATH", "site")
    expected, seen = both("-c", "import sitecustomize; print(sitecustomize.__file__)")
    assert (expected[1].count("own "), seen) == (1, expected)
    site.write_text("1/0\n")
    _, (code, output, errors) = both("-c", "print('script')")
    assert (code, output) == (0, "script\n")
    assert "ZeroDivisionError" in errors


def test_what_stands_for_torch_fails_as_ever_or_is_left_alone(folder, both):
    (folder / "train.py").write_text("def main():\n    import torch\n\nmain()\n")
    for text in ("def f():\n    1/0\nf()\n", "x = (\n"):
        (folder / "torch.py").write_text(text)
        expected, seen = both("train.py")
        assert (expected[0], seen) == (1, expected)
    (folder / "torch.py").write_text("x = 1\n")
    script = "import torch; print(torch.x, type(torch.__loader__), type(torch.__spec__.loader))"
    expected, (code, output, errors) = both("-c", script)
    assert (code, output) == expected[:2]
    assert errors.startswith("profstack: not armed")
    assert len(errors.splitlines()) == 1


DRIVER = """
import sys
from pathlib import Path
from profstack.launch import process
print("code", process.run(sys.argv[1:], Path("rec"), [], lambda: None), flush=True)
"""
COUNT = """
import signal, time
got, end = [], time.monotonic() + 60
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, _: got.append(int(number)))
print("ready", flush=True)
while not got and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.5)
print("got", got, flush=True)
raise SystemExit(4)
"""


@pytest.mark.parametrize("to", ["us", "group", "terminal"])
def test_a_signal_reaches_the_script_once(folder, to):
    number = signal.SIGTERM if to == "us" else signal.SIGINT
    master, slave = pty.openpty()

    def own_terminal():
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    how = {"stdin": slave, "stdout": subprocess.PIPE, "text": True, "preexec_fn": own_terminal}
    environment = clean_environment(PYTHONPATH=str(CHECKOUT))
    run = subprocess.Popen([sys.executable, "-c", DRIVER, "-c", COUNT], env=environment, **how)
    try:
        assert run.stdout.readline() == "ready\n"
        if to == "us":
            run.send_signal(number)
        elif to == "group":
            os.killpg(run.pid, number)
        else:
            # The terminal sends it to every process in the foreground.
            os.write(master, b"\x03")
        output, _ = run.communicate(timeout=90)
    finally:
        os.close(master)
        os.close(slave)
    assert (output.splitlines(), run.returncode) == ([f"got [{int(number)}]", "code 4"], 0)


@pytest.fixture
def observer():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    made = SignalObserver(["train.py"])
    yield made
    made.end()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_the_observer_tells_each_signal_once(observer, monkeypatch):
    # However long a busy machine takes.
    monkeypatch.setattr(process, "_SAME_S", 60.0)
    monkeypatch.setattr(process, "_ANSWER_S", 60.0)
    assert not observer.received(signal.SIGINT)
    os.kill(observer._process.pid, signal.SIGINT)
    assert not observer.received(signal.SIGTERM)
    assert observer.received(signal.SIGINT)
    assert not observer.received(signal.SIGINT)
    # One of long ago is another one.
    os.kill(observer._process.pid, signal.SIGTERM)
    assert signal.SIGTERM in observer.read(60.0)
    monkeypatch.setattr(process, "_SAME_S", 0.0)
    assert not observer.received(signal.SIGTERM)
    # One that was killed has got nothing.
    observer._process.kill()
    observer._process.wait()
    assert not observer.received(signal.SIGINT)
    assert observer.read() == b""


def test_the_observer_ends_with_a_killed_parent():
    driver = "from profstack.launch.process import SignalObserver; import os, signal; "
    driver += "made = SignalObserver([]); print(made._process.pid, flush=True); "
    driver += "os.kill(os.getpid(), signal.SIGKILL)"
    done = run_python("-c", driver, code=-signal.SIGKILL)
    arguments = Path(f"/proc/{int(done.stdout)}/cmdline")
    deadline = time.monotonic() + 60
    # A process that nobody has waited for yet is there, without arguments.
    while arguments.exists() and arguments.read_bytes():
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.01)
