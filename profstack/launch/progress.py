"""Progress of a run on standard error, in whole lines: one per slice, few of them on a terminal.

It is read from the log that the measured process appends to; standard output belongs to the script.
A spinner, which erases text, appears only after the script has ended.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from profstack.capture.slices import Event
from profstack.storage.folder import PROGRESS

if TYPE_CHECKING:
    from rich.status import Status

RULES = {
    "step": "profstack.step()",
    "optimizer": "Optimizer.step",
    "generate": "outermost generate",
    "module": "outermost module call",
    "backward": "Tensor.backward",
    "whole": "no step: the script as a whole",
}


# Elsewhere than on a terminal no more lines are written; one more names the page.
MOST_LINES = 4


class ProgressLog:
    """Reads the measured process's log from where it was last read."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS
        self._position = 0

    def events(self) -> list[Event]:
        """Return the events written since the last call, without an unfinished line."""
        try:
            # It is asked several times a second, and opening a file costs more than that.
            if os.stat(self._path).st_size == self._position:
                return []
            with open(self._path, "rb") as file:
                file.seek(self._position)
                text = file.read()
        except OSError:
            return []
        complete, newline, _ = text.rpartition(b"\n")
        self._position += len(complete) + len(newline)
        found: list[Event] = []
        for line in complete.splitlines():
            # A full disk or a kill may have torn a line.
            with suppress(ValueError):
                found.append(json.loads(line))
        return found


class Display:
    """Prints slices as they end.

    The script writes to the same terminal and may leave the cursor in any column: nothing there is
    overwritten, and every message begins on a line of its own.
    """

    def __init__(self, *, quiet: bool, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet
        self._terminal = self._stream.isatty()
        # Whether the script may have written since, and left a line unfinished.
        self._mid_line = False
        self._script_runs = False
        self._shown: set[str] = set()
        self._status: Status | None = None

    @contextmanager
    def beside_script(self) -> Iterator[None]:
        """The script runs meanwhile, and may write."""
        self._script_runs = self._mid_line = True
        try:
            yield
        finally:
            self._script_runs = False

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Show a spinner during long work of our own; on a terminal alone."""
        if self._quiet or not self._terminal:
            yield
            return
        from rich.console import Console
        from rich.status import Status

        # The spinner erases its line.
        self._write(self._begin())
        self._status = Status(text, console=Console(file=self._stream))
        try:
            with self._status:
                yield
        finally:
            self._status = None

    def show(self, event: Event) -> None:
        """Print a step rule or a round of slices, once; on a terminal only the rule."""
        text, is_rule = describe(event), event.get("event") == "rule"
        if text is None or self._quiet or text in self._shown:
            return
        # On a terminal rules alone; elsewhere few lines in all.
        if is_rule if self._terminal else len(self._shown) < MOST_LINES:
            self._shown.add(text)
            self.line(text)

    def line(self, text: str) -> None:
        """Print one line."""
        if self._status is not None:
            self._status.console.print(text, markup=False, highlight=False, soft_wrap=True)
            return
        if (self._stream.encoding or "").lower().replace("-", "") not in ("utf8", "cp65001"):
            # Our only character that other encodings may lack.
            text = text.replace("µ", "u")
        self._write(f"{self._begin()}{text}\n")

    def _begin(self) -> str:
        """Return the end of a line that the script may have begun; needed on a terminal alone."""
        begun = self._mid_line and self._terminal
        self._mid_line = self._script_runs
        return "\n" if begun else ""

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            # The reader has gone: the script and its recording continue. Nothing more is printed:
            # text left unwritten would change the exit code at the end.
            self._quiet = True
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)


def describe(event: Event) -> str | None:
    """Return the line for an event; None for one that is not shown."""
    kind = event.get("event")
    if kind == "rule":
        return f"profstack: steps by {RULES.get(event['rule'], event['rule'])} ({event['phase']})"
    if kind == "slice" and event["steps"] and event["round"]:
        return f"profstack: round {event['round']} of the layers' slices"
    return None
