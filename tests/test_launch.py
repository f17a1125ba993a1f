"""Starting the script: a plain python in everything but one folder that is gone again at once.

The children here import no torch, so they show what the start alone changes; what arming changes
stands in test_do_no_harm.py.
"""

from __future__ import annotations

import ast
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CHECKOUT, clean_environment

from profstack.errors import UsageError
from profstack.launch import process
from profstack.launch.process import SignalObserver

# What a script can see of how it was started.
LOOK = """
import os, signal, sys
own = lambda name: name.split(".")[0] == "profstack"
print({
    "argv": sys.argv,
    "environment": dict(os.environ),
    "path": sys.path,
    "modules": sorted(name for name in sys.modules if not own(name)),
    "cache": sorted(sys.path_importer_cache),
    "finders": [type(one).__name__ for one in sys.meta_path if not own(type(one).__module__)],
    "mask": sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "flags": str(sys.flags),
    "spec": __spec__ and (__spec__.name, __spec__.origin, type(__spec__.loader).__name__),
    "profile": sys.getprofile(),
})
"""


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that tells what it sees; the environment is clean and the folder the test's own."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("PYTHON", "PROFSTACK", "PYTEST", "COVERAGE")):
            monkeypatch.delenv(name)
    (tmp_path / "rec" / "logs").mkdir(parents=True)
    (tmp_path / "look.py").write_text(LOOK)
    return tmp_path / "look.py"


def launched(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code and output of `launch.run`."""
    capfd.readouterr()
    code = process.run(arguments, Path("rec"), [], lambda: None)
    return (code, *capfd.readouterr())


def plain(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The same of plain python."""
    capfd.readouterr()
    # As Python knows it: pytest's readline adds to the environment behind its back.
    code = subprocess.run(
        [sys.executable, *arguments], env=dict(os.environ), check=False
    ).returncode
    return (code, *capfd.readouterr())


# -- the interpreter's flags -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("-m profstack run t.py", ""),
        ("/usr/bin/profstack run -W t.py", ""),
        ("-O -B -m profstack run -O", "-O -B"),
        ("-X utf8 -W error -m profstack", "-X utf8 -W error"),
        ("-Xutf8 -Werror -OO profstack", "-Xutf8 -Werror -OO"),
        ("--check-hash-based-pycs never -m profstack", "--check-hash-based-pycs never"),
        ("-c code -O", ""),
        ("- -O", ""),
        ("-u -- profstack", "-u"),
    ],
)
def test_the_interpreters_flags_are_passed_on(words: str, flags: str) -> None:
    assert process.interpreter_flags(["python", *words.split()]) == flags.split()


@pytest.mark.parametrize("flag", ["-I", "-E", "-S", "-bS", "-IB"])
def test_a_flag_that_keeps_us_out_is_refused_in_one_line(
    flag: str, look: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-O", flag, "-m", "profstack"])
    with pytest.raises(UsageError) as caught:
        process.run(["look.py"], Path("rec"), [], lambda: None)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert f"-{flag.strip('-bB')}" in message


@pytest.mark.parametrize("value", ["ignore::UserWarning", "ignore::ImportWarning"])
def test_a_flags_value_is_no_flag(value: str) -> None:
    flags = process.interpreter_flags(["python", "-W", value, "-X", "utf8", "-m", "profstack"])
    assert process._isolating(flags) is None


# -- what the script sees ----------------------------------------------------------------------


@pytest.mark.parametrize("python_path", [None, "", "extra", f"extra{os.pathsep}other"])
@pytest.mark.parametrize("target", [["look.py", "-x"], ["-m", "look", "-x"], ["-c", LOOK, "-x"]])
def test_the_script_sees_a_plain_start(
    look: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    python_path: str | None,
    target: list[str],
) -> None:
    if python_path is not None:
        monkeypatch.setenv("PYTHONPATH", python_path)
    # Byte code is written by whoever comes first.
    plain(target, capfd)
    expected = plain(target, capfd)
    seen = launched(target, capfd)
    assert ast.literal_eval(seen[1]) == ast.literal_eval(expected[1])
    assert seen[0] == 0
    assert seen[2] == ""


def test_blocked_signals_stay_blocked(look: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
    try:
        _, seen, _ = launched(["look.py"], capfd)
        assert ast.literal_eval(seen)["mask"] == [signal.SIGUSR1, signal.SIGTERM]
        here = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        assert here == before | {signal.SIGUSR1, signal.SIGTERM}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(3)", 3),
        ("import os; os._exit(9)", 9),
        ("1/0", 1),
        ("import os; os.kill(os.getpid(), 11)", -11),
    ],
)
def test_the_exit_code_is_the_scripts(
    look: Path, capfd: pytest.CaptureFixture[str], code: str, expected: int
) -> None:
    assert launched(["-c", code], capfd) == (expected, *plain(["-c", code], capfd)[1:])


def test_standard_input_is_the_scripts(look: Path) -> None:
    driver = (
        "from profstack.launch import process as launch; from pathlib import Path; import sys; "
    )
    driver += "sys.exit(launch.run(['-', 'word'], Path('rec'), [], lambda: None))"
    done = subprocess.run(
        [sys.executable, "-c", driver],
        env=clean_environment(),
        input="import sys; print('from stdin', sys.argv)",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "from stdin ['-', 'word']\n", done.stderr


def test_the_poll_goes_on_while_the_script_runs(look: Path) -> None:
    times = []
    process.run(["-c", "import time; time.sleep(0.6)"], Path("rec"), [], lambda: times.append(1))
    assert len(times) >= 2


# -- sitecustomize -----------------------------------------------------------------------------


def test_the_environments_own_sitecustomize_runs_as_ever(
    look: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = look.parent / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, sys\n"
        "print('own', __file__, os.environ.get('PYTHONPATH'), sys.path[:2])\n"
        "print([name for name in os.environ if 'PROFSTACK' in name])\n"
    )
    monkeypatch.setenv("PYTHONPATH", "site")
    script = ["-c", "import sitecustomize; print(sitecustomize.__file__)"]
    plain(script, capfd)
    expected = plain(script, capfd)
    assert expected[1].count("own ") == 1
    assert launched(script, capfd) == expected


def test_an_error_in_the_environments_own_sitecustomize_is_told_as_ever(
    look: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (look.parent / "sitecustomize.py").write_text("1/0\n")
    monkeypatch.setenv("PYTHONPATH", str(look.parent))
    script = ["-c", "print('script')"]
    code, output, errors = launched(script, capfd)
    assert (code, output) == (0, "script\n")
    assert "ZeroDivisionError" in errors
    assert plain(script, capfd)[:2] == (0, "script\n")


def test_a_usercustomize_runs_as_ever(
    look: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A virtual environment has no user site; the interpreter it was made from may have.
    monkeypatch.setattr(sys, "executable", getattr(sys, "_base_executable", sys.executable))
    monkeypatch.setenv("PYTHONUSERBASE", str(look.parent / "user"))
    asked = plain(["-c", "import site; print(site.ENABLE_USER_SITE, site.USER_SITE)"], capfd)
    enabled, folder = asked[1].split()
    if enabled != "True":
        pytest.skip("no user site here")
    Path(folder).mkdir(parents=True)
    (Path(folder) / "usercustomize.py").write_text("print('user')\n")
    expected = plain(["-c", "print('script')"], capfd)
    assert expected[1] == "user\nscript\n"
    assert launched(["-c", "print('script')"], capfd) == expected


# -- children of the script --------------------------------------------------------------------

# What of us a process holds: the finder of an editable installation is not ours.
TELL = (
    "import os, sys; print([name for name in os.environ if name.startswith('PROFSTACK')], "
    "[name for name in (*sys.modules, *(type(finder).__module__ for finder in sys.meta_path)) "
    "if name.split('.')[0] == 'profstack'])"
)
SPAWN = f"""
import multiprocessing

def tell():
    {TELL}

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=tell)
    process.start()
    process.join()
"""


def test_a_subprocess_of_the_script_is_not_armed(
    look: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TELL!r}])"
    assert launched(["-c", script], capfd)[:2] == (0, "[] []\n")


def test_a_spawned_worker_is_not_armed(look: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (look.parent / "spawn.py").write_text(SPAWN)
    assert launched(["spawn.py"], capfd)[:2] == (0, "[] []\n")


def test_the_script_itself_is_armed(look: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = "from profstack.launch import child; print(child._pid, __import__('os').getpid())"
    _, output, _ = launched(["-c", script], capfd)
    assert len(set(output.split())) == 1


# -- the import of torch -----------------------------------------------------------------------


@pytest.mark.parametrize("text", ["def f():\n    1/0\nf()\n", "import no_such_module\n", "x = (\n"])
def test_a_torch_that_cannot_be_imported_fails_as_ever(
    look: Path, capfd: pytest.CaptureFixture[str], text: str
) -> None:
    (look.parent / "torch.py").write_text(text)
    (look.parent / "train.py").write_text("def main():\n    import torch\n\nmain()\n")
    expected = plain(["train.py"], capfd)
    assert expected[0] == 1
    assert launched(["train.py"], capfd) == expected


def test_a_torch_that_is_not_torch_is_left_alone(
    look: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (look.parent / "torch.py").write_text("x = 1\n")
    script = "import torch; print(torch.x, type(torch.__loader__), type(torch.__spec__.loader))"
    expected = plain(["-c", script], capfd)
    code, output, errors = launched(["-c", script], capfd)
    assert (code, output) == (0, expected[1])
    assert errors.startswith("profstack: not armed")
    assert len(errors.splitlines()) == 1


# -- signals -----------------------------------------------------------------------------------

DRIVER = """
import sys
from pathlib import Path
from profstack.launch import process as launch
print("code", launch.run(sys.argv[1:], Path("rec"), [], lambda: None), flush=True)
"""
COUNT = """
import signal, time
got = []
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, _: got.append(int(number)))
print("ready", flush=True)
end = time.monotonic() + 20
while not got and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.5)
print("got", got, flush=True)
raise SystemExit(4)
"""


def drive(**keywords: Any) -> subprocess.Popen[str]:
    """`launch.run` of the counting script in a process of its own."""
    run = subprocess.Popen(
        [sys.executable, "-c", DRIVER, "-c", COUNT],
        env=clean_environment(PYTHONPATH=str(CHECKOUT)),
        stdout=subprocess.PIPE,
        text=True,
        **keywords,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    return run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sent_to_us_reaches_the_script_once(look: Path, number: signal.Signals) -> None:
    run = drive()
    run.send_signal(number)
    output, _ = run.communicate(timeout=30)
    assert output.splitlines() == [f"got [{int(number)}]", "code 4"]
    assert run.returncode == 0


def test_the_terminals_interrupt_reaches_the_script_once(look: Path) -> None:
    master, slave = pty.openpty()
    import fcntl

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    run = drive(stdin=slave, preexec_fn=own_terminal)
    try:
        # The terminal sends it to every process in the foreground.
        os.write(master, b"\x03")
        output, _ = run.communicate(timeout=30)
    finally:
        os.close(master)
        os.close(slave)
    assert output.splitlines() == [f"got [{int(signal.SIGINT)}]", "code 4"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sent_to_the_group_reaches_the_script_once(
    look: Path, number: signal.Signals
) -> None:
    run = drive(start_new_session=True)
    os.killpg(run.pid, number)
    output, _ = run.communicate(timeout=30)
    assert output.splitlines() == [f"got [{int(number)}]", "code 4"]


@pytest.fixture
def observer() -> Iterator[SignalObserver]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    made = SignalObserver(["train.py"])
    yield made
    made.end()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_the_observer_tells_each_signal_once(observer: SignalObserver) -> None:
    assert not observer.received(signal.SIGINT)
    os.kill(observer._process.pid, signal.SIGINT)
    assert not observer.received(signal.SIGTERM)
    assert observer.received(signal.SIGINT)
    assert not observer.received(signal.SIGINT)


def test_an_observer_that_was_killed_has_got_nothing(observer: SignalObserver) -> None:
    observer._process.kill()
    observer._process.wait()
    assert not observer.received(signal.SIGINT)
    assert observer.read() == b""


def test_the_witness_ends_with_a_killed_parent() -> None:
    driver = "from profstack.launch.process import SignalObserver; import os, signal; "
    driver += "made = SignalObserver([]); print(made._process.pid, flush=True); "
    driver += "os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run(
        [sys.executable, "-c", driver],
        env=clean_environment(PYTHONPATH=str(CHECKOUT)),
        capture_output=True,
        check=False,
    )
    arguments = Path(f"/proc/{int(done.stdout)}/cmdline")
    for _ in range(1000):
        # A process that nobody has waited for yet is there, without arguments.
        if not arguments.exists() or not arguments.read_bytes():
            return
        time.sleep(0.01)
    raise AssertionError("it is still there")


def test_passed_through_becomes_the_script(look: Path) -> None:
    driver = "import os, sys; print(os.getpid(), flush=True); "
    driver += "from profstack.launch import process as launch; "
    driver += "launch.run_unrecorded(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-B", "-c", driver, "-c", "import os, sys; print(os.getpid(), sys.flags)"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    first, second = done.stdout.splitlines()
    assert first == second.split()[0]
    assert "dont_write_bytecode=1" in second
