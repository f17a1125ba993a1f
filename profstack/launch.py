"""Starts the measured script as a plain `python` of its own, and waits for it.

The child differs from `python script.py` in its environment alone: a folder with our
`sitecustomize` stands first on PYTHONPATH and is taken off again before the script begins.
Signals sent to the parent alone are passed on; those of the terminal, and what is sent to the whole
process group, reach the child by themselves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from profstack.errors import UsageError
from profstack.groupwitness import GroupWitness

POLL_S = 0.1
_INJECTED = Path(__file__).resolve().parent / "injected"
# si_code of a signal sent by the kernel, the terminal's Ctrl-C among them.
_SI_KERNEL = 128
_FORWARDED = frozenset({signal.SIGTERM, signal.SIGINT})


def interpreter_flags(original: Sequence[str] | None = None) -> list[str]:
    """The flags this interpreter was started with, as they stood on its command line."""
    words = list(sys.orig_argv if original is None else original)[1:]
    flags: list[str] = []
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-", "--"):
        word = words.pop(0)
        flags.append(word)
        if word in ("-X", "-W", "--check-hash-based-pycs") and words:
            flags.append(words.pop(0))
    return flags


def _isolating(flags: Sequence[str]) -> str | None:
    """A flag that keeps `sitecustomize` or PYTHONPATH from being read, if there is one."""
    for flag in flags:
        # What stands without a dash is the value of -X or -W.
        if flag.startswith("-") and not flag.startswith(("--", "-X", "-W")):
            for letter in "SIE":
                if letter in flag[1:]:
                    return f"-{letter}"
    return None


def child_environment(folder: Path, options: Sequence[str]) -> dict[str, str]:
    """The environment of the child: our folder on PYTHONPATH, and where the recording is."""
    environment = dict(os.environ)
    saved = environment.get("PYTHONPATH")
    parts = [str(_INJECTED)]
    if saved is not None:
        environment["PROFSTACK_PYTHONPATH"] = saved
        if saved:
            parts.append(saved)
    environment["PYTHONPATH"] = os.pathsep.join(parts)
    environment["PROFSTACK_CHILD"] = str(folder.resolve())
    if options:
        environment["PROFSTACK_CHILD_OPTIONS"] = " ".join(options)
    return environment


def run(
    arguments: Sequence[str], folder: Path, options: Sequence[str], poll: Callable[[], None]
) -> int:
    """Run `python arguments` to its end, calling `poll` ten times a second.

    Returns the exit code, negative for the signal that killed it. Raises UsageError when the
    interpreter's own flags make it impossible to arm the child.
    """
    flags = interpreter_flags()
    blocked = _isolating(flags)
    if blocked is not None:
        raise UsageError(
            f"python {blocked} keeps profstack out of the script's process",
            next_step=f"start profstack without {blocked}",
        )
    command = [sys.executable, *flags, *arguments]
    environment = child_environment(folder, options)
    if hasattr(signal, "sigtimedwait"):
        return _run_with_signals(command, environment, poll)
    child = subprocess.Popen(command, env=environment)
    while True:
        try:
            return child.wait(POLL_S)
        except subprocess.TimeoutExpired:
            poll()
        except KeyboardInterrupt:
            # The console has told the child as well; its exit code is what counts.
            continue


def passed_through(arguments: Sequence[str]) -> int:
    """Become `python arguments`: nothing of this run is recorded. Does not return on POSIX."""
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
    witness = None
    try:
        # The mask is inherited, and the script must find it, and the signals Python ignores, as
        # under plain python.
        child = os.posix_spawn(
            command[0],
            list(command),
            environment,
            setsigmask=before,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )
        with suppress(OSError):
            # Where there is no room for it every signal is passed on.
            witness = GroupWitness(command[1:])
        next_poll = time.monotonic() + POLL_S
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                if -code in _FORWARDED:
                    # What ended it may have come here as well: there is a page to be written.
                    signal.sigtimedwait({-code}, 0)
                return code
            got = signal.sigtimedwait(waited_for, POLL_S)
            if got is not None and got.si_signo in _FORWARDED:
                _forward(got, child, witness)
            if time.monotonic() >= next_poll:
                poll()
                if witness is not None:
                    witness.look()
                next_poll = time.monotonic() + POLL_S
    finally:
        if witness is not None:
            witness.end()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _forward(got: signal.struct_siginfo, child: int, witness: GroupWitness | None) -> None:
    """Pass a signal on to the child, unless it has come there by itself."""
    number = got.si_signo
    if witness is not None and witness.got(number):
        # `timeout` signals its child and then the group: here as there the two are one.
        signal.sigtimedwait({number}, 0)
    elif got.si_code != _SI_KERNEL:
        os.kill(child, number)
