"""What is said where a measurement is done and its page cannot be written."""

from __future__ import annotations

import shlex
from pathlib import Path

from profstack.errors import ProfstackError


def not_written(folder: Path, error: Exception) -> str:
    """One line: what failed, that the recording is kept, and what writes the page again."""
    if isinstance(error, ProfstackError):
        # Its own next step is for another command.
        why = f"{error.where}: {error.what}" if error.where else error.what
    else:
        why = f"{type(error).__name__}: {error}"
    again = f"profstack report {shlex.quote(str(folder))}"
    return (
        f"profstack: the page was not written ({' '.join(why.split())}); "
        f"the recording is kept, to write it again: {again}"
    )
