"""Start the measured script in a Python process of its own, and wait for its end.

The process is started as `python script.py` is. Only its environment differs: the folder
`injected`, which holds our `sitecustomize`, comes first on PYTHONPATH. `sitecustomize` removes the
folder again before the script begins.

A signal to the whole process group, such as Ctrl-C on a terminal, reaches the script by itself. A
signal that was sent to the parent alone is passed on to the script.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from profstack.errors import UsageError
from profstack.storage.folder import OPTIONS_FILE

if TYPE_CHECKING:
    from profstack.capture.run import RunOptions

# -- what the child is told --------------------------------------------------


def write_options(folder: Path, options: RunOptions) -> None:
    """Write the options of the measured process into its folder."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    (folder / OPTIONS_FILE).write_text(json.dumps(options), encoding="utf-8")


# -- the signal observer -----------------------------------------------------
# When the parent gets a signal, it must find out whether the script has got it too. The kernel says
# who sent a signal, but not who else received it. So a third process, the observer, runs beside the
# script and notes the signals that it gets. A signal to the process group, to the session, to all
# processes of a job, or to all processes with the script's name among their arguments reaches both
# the script and the observer. A signal to the parent alone reaches neither of them.

# The program of the observer. For each signal the interpreter writes its number to standard output
# (`set_wakeup_fd`). For each request, a byte on standard input, the loop writes a zero. The
# observer ends when its standard input is closed, at the latest when the parent ends.
_CODE = """
import os, _signal as signal
os.set_blocking(1, False)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: None)
signal.set_wakeup_fd(1, warn_on_full_buffer=False)
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
while os.read(0, 1):
    os.write(1, bytes(1))
"""
_REQUEST = b"?"
# The kernel signals the processes of a group one after the other.
_ONE_AFTER_THE_OTHER_S = 0.02
# A signal noted longer ago is another one than the one that the parent has just received.
_SAME_S = 1.0
# It answers at once, unless it was stopped.
_ANSWER_S = 2.0


class SignalObserver:
    """Runs the observer, and reads which signals it has noted.

    Create it while the signals are blocked. The observer inherits the mask and unblocks the signals
    once it is ready, so that it misses none.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        # Without environment and site packages it is ready in 20 ms.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CODE, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self._noted: dict[int, float] = {}

    def received(self, number: int) -> bool:
        """Return whether the observer has got the signal that the parent has just received."""
        time.sleep(_ONE_AFTER_THE_OTHER_S)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(_REQUEST)
        except OSError:
            # It was killed. Pass the signal on, rather than lose one sent to the parent alone.
            return False
        end = time.monotonic() + _ANSWER_S
        while 0 not in self.read(max(end - time.monotonic(), 0.0)) and time.monotonic() < end:
            pass
        return time.monotonic() - self._noted.pop(number, -_SAME_S) < _SAME_S

    def read(self, wait_s: float = 0.0) -> bytes:
        """Read new notes of the observer, and keep the present time as the time of each.

        Call it regularly, so that these times are about right.
        """
        assert self._process.stdout is not None
        said = b""
        if select.select([self._process.stdout], [], [], wait_s)[0]:
            said = os.read(self._process.stdout.fileno(), 4096)
        now = time.monotonic()
        self._noted.update((number, now) for number in said)
        return said

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()


# Between two polls at first, and once the script has run for so long: each wakes this process.
POLL_S, LATER_POLL_S, LATER_S = 0.1, 0.4, 10.0
_INJECTED = Path(__file__).resolve().parent / "injected"
# si_code of a signal sent by the kernel, the terminal's Ctrl-C among them.
_SI_KERNEL = 128
_FORWARDED = frozenset({signal.SIGTERM, signal.SIGINT})
# Given to an interrupted process, to end its script and itself.
_GRACE_S = 10.0


def interpreter_flags(original: Sequence[str] | None = None) -> list[str]:
    """Return the flags of this interpreter's command line."""
    words = list(sys.orig_argv if original is None else original)[1:]
    flags: list[str] = []
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-", "--"):
        word = words.pop(0)
        flags.append(word)
        if word in ("-X", "-W", "--check-hash-based-pycs") and words:
            flags.append(words.pop(0))
    return flags


def _isolating(flags: Sequence[str]) -> str | None:
    """Return a flag that switches off `sitecustomize` or PYTHONPATH, if there is one."""
    # A word without a dash is the value of -X or -W.
    short = [each for each in flags if each[:1] == "-" and each[:2] not in ("--", "-X", "-W")]
    return next((f"-{letter}" for each in short for letter in "SIE" if letter in each), None)


def child_environment(folder: Path, options: Sequence[str]) -> dict[str, str]:
    """Return the child's environment: our folder on PYTHONPATH, and the recording's folder."""
    environment = dict(os.environ)
    saved = environment.get("PYTHONPATH")
    if saved is not None:
        environment["PROFSTACK_PYTHONPATH"] = saved
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_INJECTED), saved)))
    environment["PROFSTACK_CHILD"] = str(folder.resolve())
    if options:
        environment["PROFSTACK_CHILD_OPTIONS"] = " ".join(options)
    return environment


def command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of `python arguments`, with this interpreter and its flags.

    Raises UsageError where a flag makes it impossible to arm the child.
    """
    flags = interpreter_flags()
    blocked = _isolating(flags)
    if blocked is not None:
        raise UsageError(
            f"python {blocked} keeps profstack out of the script's process",
            next_step=f"start profstack without {blocked}",
        )
    return [sys.executable, *flags, *arguments]


def run(
    arguments: Sequence[str], folder: Path, options: Sequence[str], poll: Callable[[], None]
) -> int:
    """Run `python arguments` to its end, calling `poll` ten times a second, later less often.

    Returns the exit code, negative for the signal that killed it. Raises UsageError where a flag of
    the interpreter makes it impossible to arm the child.
    """
    words = command(arguments)
    environment = child_environment(folder, options)
    if hasattr(signal, "sigtimedwait"):
        return _run_with_signals(words, environment, poll)
    child = subprocess.Popen(words, env=environment)
    while True:
        try:
            return child.wait(POLL_S)
        except subprocess.TimeoutExpired:
            poll()
        except KeyboardInterrupt:
            # The console signals the child, too; its exit code counts.
            continue


def run_beside(words: Sequence[str], environment: dict[str, str]) -> int:
    """Run another program to its end; return its exit code, -n for signal n.

    Signals are passed on as to a script.
    """
    if hasattr(signal, "sigtimedwait"):
        return _run_with_signals(words, environment, lambda: None)
    return subprocess.call(words, env=environment)


def run_unrecorded(arguments: Sequence[str]) -> int:
    """Become `python arguments`, without recording. Does not return on POSIX."""
    command = [sys.executable, *interpreter_flags(), *arguments]
    if os.name == "posix":
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, command)
    return subprocess.call(command)


def _run_with_signals(
    command: Sequence[str], environment: dict[str, str], poll: Callable[[], None]
) -> int:
    waited_for = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    observer = None
    try:
        # The script inherits the mask and must find it, and the signals that Python ignores, as
        # under plain python.
        child = os.posix_spawn(
            command[0],
            list(command),
            environment,
            setsigmask=before,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )
        with suppress(OSError):
            # Without an observer every signal is passed on.
            observer = SignalObserver(command[1:])
        begun = time.monotonic()
        poll_s, next_poll = POLL_S, begun + POLL_S
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                if -code in _FORWARDED:
                    # The parent may have received it, too, and still has to write the page.
                    signal.sigtimedwait({-code}, 0)
                return code
            got = signal.sigtimedwait(waited_for, poll_s)
            if got is not None and got.si_signo in _FORWARDED:
                _forward(got, child, observer)
            if time.monotonic() >= next_poll:
                poll()
                if observer is not None:
                    observer.read()
                now = time.monotonic()
                poll_s = POLL_S if now - begun < LATER_S else LATER_POLL_S
                next_poll = now + poll_s
    finally:
        if observer is not None:
            observer.end()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _forward(got: signal.struct_siginfo, child: int, observer: SignalObserver | None) -> None:
    """Pass a signal on to the child, unless the child has received it by itself."""
    number = got.si_signo
    if observer is not None and observer.received(number):
        # `timeout` signals its child and then the group: take the two for one.
        signal.sigtimedwait({number}, 0)
    elif got.si_code != _SI_KERNEL:
        os.kill(child, number)


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does.

    Else what this process started, or made for a while, would outlive it. A signal that is ignored,
    as `nohup` ignores SIGHUP, stays ignored.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # None is a handler that is not Python's, which could not be put back.
    taken = [each for each in numbers if signal.getsignal(each) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, interrupt) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_for_session(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process with a session of its own, and return its exit code.

    An exception meanwhile, such as that of an interrupt, ends the whole session.
    """
    try:
        return process.wait()
    except BaseException:
        end_session(process)
        raise


def end_session(
    process: subprocess.Popen[bytes],
    numbers: Iterable[int] = (signal.SIGINT,),
    grace_s: float = _GRACE_S,
    *,
    alone: bool = False,
) -> int:
    """Signal a process with all that it has started, and kill what does not end.

    With `alone` the process itself ends what it has started. Each signal has `grace_s` seconds.
    """
    for number in numbers:
        with suppress(ProcessLookupError):
            (os.kill if alone else os.killpg)(process.pid, number)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(grace_s)
            break
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
