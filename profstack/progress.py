"""Progress of a run on standard error, in whole lines: one per slice, few of them on a terminal.

Reads the log that the measured process appends to; standard output belongs to the script. What
moves and erases, as a spinner does, is for the time after the script alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from profstack.recording import PROGRESS
from profstack.units import format_seconds

RULES = {
    "step": "profstack.step()",
    "optimizer": "Optimizer.step",
    "generate": "outermost generate",
    "module": "outermost module call",
    "backward": "Tensor.backward",
    "whole": "no step: the script as a whole",
}


class ProgressLog:
    """Follows the measured process's log from where it was last read."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS
        self._position = 0

    def events(self) -> list[dict[str, Any]]:
        """The events written since the last call; a line still being written waits."""
        try:
            if os.stat(self._path).st_size <= self._position:
                return []
            with open(self._path, "rb") as file:
                file.seek(self._position)
                text = file.read()
        except OSError:
            return []
        complete, newline, _ = text.rpartition(b"\n")
        self._position += len(complete) + len(newline)
        return [event for event in map(_parsed, complete.splitlines()) if event is not None]


def _parsed(line: bytes) -> dict[str, Any] | None:
    """One line of the log; None for one that a full disk or a kill has torn."""
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return event


class Display:
    """Tells of slices as they end.

    The script writes to the same terminal, and nobody knows in which column it has left the
    cursor: nothing there is ever written over, and what is said begins on a line of its own.
    """

    def __init__(self, *, quiet: bool, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet
        self._terminal = self._stream.isatty()
        # Whether the script may have written since, and left a line unfinished.
        self._mid_line = False
        self._script_runs = False
        self._told: set[str] = set()
        self._status: Any = None

    @contextmanager
    def beside_script(self) -> Iterator[None]:
        """The script runs meanwhile, and writes where it likes."""
        self._script_runs = self._mid_line = True
        try:
            yield
        finally:
            self._script_runs = False

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """A spinner beside work of our own that takes a while; on a terminal alone."""
        if self._quiet or not self._terminal:
            yield
            return
        from rich.console import Console
        from rich.status import Status

        # The spinner erases the line it stands on.
        self._write(self._begin())
        self._status = Status(text, console=Console(file=self._stream))
        try:
            with self._status:
                yield
        finally:
            self._status = None

    def show(self, event: dict[str, Any]) -> None:
        """Tell of one event of the log; on a terminal only how steps are found, once."""
        text = describe(event)
        if text is None or self._quiet:
            return
        if self._terminal:
            if event["event"] != "rule" or text in self._told:
                return
            self._told.add(text)
        self.line(text)

    def line(self, text: str) -> None:
        """One line of its own."""
        if self._status is not None:
            self._status.console.print(text, markup=False, highlight=False, soft_wrap=True)
            return
        if (self._stream.encoding or "").lower().replace("-", "") not in ("utf8", "cp65001"):
            # The one sign of ours that no other encoding is sure to have.
            text = text.replace("µ", "u")
        self._write(f"{self._begin()}{text}\n")

    def _begin(self) -> str:
        """What ends a line that the script may have begun: on a terminal both are seen as one."""
        begun = self._mid_line and self._terminal
        self._mid_line = self._script_runs
        return "\n" if begun else ""

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            # Whoever read this has gone: the script goes on, and so does its recording.
            self._give_up()

    def _give_up(self) -> None:
        """Say nothing more; what is left unwritten would change the exit code at the end."""
        self._quiet = True
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def describe(event: dict[str, Any]) -> str | None:
    """One line for an event; None for those nobody needs to read."""
    kind = event.get("event")
    if kind == "rule":
        return f"profstack: steps by {RULES.get(event['rule'], event['rule'])} ({event['phase']})"
    if kind == "slice" and event["steps"] and event["kind"] != "settle":
        what = ", ".join(event.get("layers") or []) or event["kind"]
        steps = f"{event['steps']} step{'s' if event['steps'] != 1 else ''}"
        return (
            f"profstack: round {event['round']}, {what}: {steps}, "
            f"median {format_seconds(event['median_s'])} (step {event['total']})"
        )
    return None
