"""Tells whether a signal came to the script as well, so that it is not passed on a second time.

The kernel says who sent a signal, not to whom else. So a process of ours stands beside the script
that does nothing but note its signals: what is sent to the process group, to the session, to all
processes of a job or to those with the script's name among their arguments reaches it as it
reaches the script. What is sent to the parent alone does not.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence

# The interpreter itself writes the number of every signal to standard output, as it comes; a zero
# follows each time it is asked. It ends with its parent, who held the end of standard input.
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
_ASKED = b"?"
# The kernel signals the processes of a group one after the other.
_ONE_AFTER_THE_OTHER_S = 0.02
# What was noted longer ago is a signal that never came to the parent.
_SAME_S = 1.0
# It answers at once; one that was stopped never does.
_ANSWER_S = 2.0


class GroupWitness:
    """The process. It is started with the signals blocked, and notes them when it is ready."""

    def __init__(self, arguments: Sequence[str]) -> None:
        # Nothing of the environment, and no module but python's own: it is there in 20 ms.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CODE, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self._noted: dict[int, float] = {}

    def got(self, number: int) -> bool:
        """Whether the signal that has just come to the parent has come here too."""
        time.sleep(_ONE_AFTER_THE_OTHER_S)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(_ASKED)
        except OSError:
            # It has been killed: nobody knows, and what was sent to us alone must not be lost.
            return False
        end = time.monotonic() + _ANSWER_S
        while 0 not in self.look(max(end - time.monotonic(), 0.0)) and time.monotonic() < end:
            pass
        return time.monotonic() - self._noted.pop(number, -_SAME_S) < _SAME_S

    def look(self, wait_s: float = 0.0) -> bytes:
        """Take in what it has written; to be called now and then, so that it is known when."""
        assert self._process.stdout is not None
        said = b""
        if select.select([self._process.stdout], [], [], wait_s)[0]:
            said = os.read(self._process.stdout.fileno(), 4096)
        now = time.monotonic()
        self._noted.update((number, now) for number in said)
        return said

    def end(self) -> None:
        """Away with it."""
        self._process.kill()
        self._process.communicate()
