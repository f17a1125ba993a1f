"""A fresh process that gets one request and answers it with lines of JSON; it may be killed.

The request is JSON on its standard input. Answers go through a pipe of their own, so that output of
the target cannot mix with them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from time import monotonic
from typing import IO, Any

_START = "import sys; sys.path[:] = {paths!r}; from {module} import main; main()"
_LAST_WORDS = 4096
# Given to a process whose answers are all there, to end.
_TO_END_S = 10.0


class FreshProcess:
    """A process that runs `main` of a module; leaving the block ends it and all that it started."""

    def __init__(self, module: str, request: Mapping[str, object]) -> None:
        # Closed with the process.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._answers, end = os.pipe()
        self._rest = b""
        self._is_ending = False
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START.format(paths=sys.path, module=module)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(end,),
                env=_plain_environment(),
                # A group of its own: it ends with all that it starts.
                start_new_session=True,
            )
        except BaseException:
            os.close(self._answers)
            self._errors.close()
            raise
        finally:
            os.close(end)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps({**request, "answers": end}).encode())

    def __enter__(self) -> FreshProcess:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._answers)
        self._errors.close()

    def answer(self, patience_s: float) -> dict[str, Any] | None:
        """Return the next answer; None when there is no further one, or none in time."""
        deadline = monotonic() + patience_s
        while b"\n" not in self._rest:
            left = deadline - monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                return None
            more = os.read(self._answers, 65536)
            if not more:
                self._is_ending = True
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def exit_code(self) -> int | None:
        """Return the exit code of a process without a further answer; None if it still runs."""
        try:
            # A process that has closed its answers is ending; one that was too slow is not.
            return self._process.wait(_TO_END_S if self._is_ending else 0.0)
        except subprocess.TimeoutExpired:
            return None

    def last_words(self) -> str:
        """Return the last line of the process on standard error."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _LAST_WORDS))
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def receive() -> tuple[dict[str, Any], Callable[[Mapping[str, object]], None]]:
    """Return, in the fresh process, its request and a function that answers."""
    request = json.load(sys.stdin)
    answers = request.pop("answers")

    def answer(content: Mapping[str, object]) -> None:
        os.write(answers, json.dumps(content).encode() + b"\n")

    return request, answer


def _plain_environment() -> dict[str, str]:
    """Return the environment without variables that arm profstack, and with recording off.

    The target may use profstack itself.
    """
    armed = "PROFSTACK_CHILD"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(armed)}
    return {**kept, "PROFSTACK": "0"}
