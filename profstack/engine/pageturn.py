"""When the page is to be written while the script runs, and how long measuring waits for it.

The parent process writes the page and takes a core for it, so nothing is measured meanwhile.
"""

from __future__ import annotations

import time
from pathlib import Path

from profstack.recording import PAGE_MARKER, tell

# Measuring has gone on for so long: the user shall see what there is.
DUE_S = 60.0
# The parent may be gone, or busy: measuring goes on without it.
PATIENCE_S = 30.0
LOOK_S = 0.05


class PageTurn:
    """Asks for the page once per run, and looks for it now and then."""

    def __init__(self, folder: Path, *, wait: bool) -> None:
        self._folder = folder
        self._wait = wait
        self._asked = False
        self._began: float | None = None
        self._since = 0.0
        self._looked = 0.0

    def measuring(self) -> None:
        """A slice begins."""
        if self._began is None:
            self._began = time.perf_counter()

    def is_due(self, finished_round: int) -> bool:
        """Whether every layer has had its first slice, and a minute of measuring has gone by."""
        if not self._wait or self._asked or finished_round < 2 or self._began is None:
            return False
        return time.perf_counter() - self._began > DUE_S

    def ask(self) -> None:
        """Ask the parent for the page, unless it was asked before."""
        if not self._asked:
            self._asked = True
            self._since = self._looked = time.perf_counter()
            tell(self._folder, {"event": "page"})

    def is_over(self, now: float) -> bool:
        """Whether the page has come, or is no longer waited for."""
        if now - self._looked < LOOK_S:
            return False
        self._looked = now
        return now - self._since > PATIENCE_S or (self._folder / PAGE_MARKER).exists()
