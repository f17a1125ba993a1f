"""The argument parser of every command: its errors are profstack's one line and exit code 2."""

from __future__ import annotations

import argparse
from typing import NoReturn

from profstack.errors import UsageError


class CommandParser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `UsageError` instead of printing its usage and exiting.

    Options cannot be abbreviated: a script's `--max` must never be taken for `--max-steps`.
    """

    def __init__(self, command: str, description: str) -> None:
        super().__init__(
            prog=f"profstack {command}",
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise the message as an error of this command that names its help."""
        command = self.prog.removeprefix("profstack ")
        raise UsageError(message, where=command, next_step=f"see '{self.prog} --help'")
