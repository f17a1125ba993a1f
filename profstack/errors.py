"""Errors that a user can act on: one line with the problem, its place, and the next step.

The command line prints that line of a `ProfstackError` on standard error and exits with code 2; any
other error is a defect of profstack and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ProfstackError(Exception):
    """Base of all errors that a user can fix; `str(error)` is the line to print."""

    def __init__(self, what: str, *, where: str = "", next_step: str = "") -> None:
        self.what = what
        self.where = where
        self.next_step = next_step
        message = f"{where}: {what}" if where else what
        super().__init__(f"{message}; {next_step}" if next_step else message)


class UsageError(ProfstackError):
    """The command line or an argument of the Python interface is not usable as given."""


class TargetError(ProfstackError):
    """The script, module or callable to measure cannot be started."""


class RecordingError(ProfstackError):
    """A recording's folder is missing, not writable, damaged or of another version."""


@contextmanager
def naming_arguments(place: str) -> Iterator[None]:
    """Name arguments of Python functions in errors, in place of a command's options.

    `place` is the argument with the path of the output.
    """
    options = {"with --output": f"with {place}=", "with -o FILE": f"with {place}="}
    options["--force"] = "force=True"
    try:
        yield
    except ProfstackError as error:
        what, next_step = error.what, error.next_step
        for option, argument in options.items():
            what, next_step = what.replace(option, argument), next_step.replace(option, argument)
        raise type(error)(what, where=error.where, next_step=next_step) from error.__cause__
