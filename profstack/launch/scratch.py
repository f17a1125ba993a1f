"""Run a script in a copy of the working folder: what it writes there goes away with the copy."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from profstack.errors import UsageError

# Folders that no script reads its input from, and that may be large.
LEFT_OUT = frozenset(
    (
        ".git",
        ".hg",
        ".venv",
        "venv",
        "__pycache__",
        "node_modules",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        "profstack-runs",
    )
)

ArgumentsIn = Callable[[Sequence[str]], list[str]]


class Scratch:
    """Copies of a folder; with `in_place` there is none, and the folder itself is used.

    A link to a file is copied as that file; one to a folder is made again, to where it leads: what
    is written through it is not undone.
    """

    def __init__(self, folder: Path, *, in_place: bool, limit_bytes: int) -> None:
        self._folder, self._in_place = folder.resolve(), in_place
        if not in_place:
            self._check(limit_bytes)

    def _check(self, limit_bytes: int) -> None:
        """Raise UsageError for a folder with more bytes than the limit."""
        total = 0
        for top, folders, files in os.walk(self._folder):
            folders[:] = [name for name in folders if name not in LEFT_OUT]
            for name in files:
                try:
                    total += os.stat(os.path.join(top, name)).st_size
                except OSError:
                    continue
            if total > limit_bytes:
                raise UsageError(
                    f"the working folder has more than {limit_bytes >> 20} MiB to copy",
                    where=str(self._folder),
                    next_step="start it in the script's own folder, raise --copy-limit, or give "
                    "--in-place where the script writes nothing that matters",
                )

    @contextmanager
    def copy(self) -> Iterator[tuple[Path, ArgumentsIn]]:
        """Make a copy; yield its folder, and what gives arguments the paths in it."""
        if self._in_place:
            yield self._folder, list
            return
        top = Path(tempfile.mkdtemp(prefix="profstack-try-"))
        copied = top / self._folder.name
        try:
            shutil.copytree(self._folder, copied, ignore=_ignore)
            self._link(copied)
            yield copied, lambda arguments: [self._moved(word, copied) for word in arguments]
        finally:
            shutil.rmtree(top, ignore_errors=True)

    def _link(self, copied: Path) -> None:
        """Make the links to folders again: those that lead inside lead into the copy."""
        for top, folders, _ in os.walk(self._folder):
            for name in [name for name in folders if os.path.islink(os.path.join(top, name))]:
                target = Path(top, name).resolve()
                made = copied / Path(top, name).relative_to(self._folder)
                if made.parent.is_dir():
                    made.symlink_to(self._moved(str(target), copied))
            folders[:] = [name for name in folders if name not in LEFT_OUT]

    def _moved(self, word: str, copied: Path) -> str:
        """Return an argument that is a path into the folder as one into the copy."""
        path = Path(word)
        if not path.is_absolute():
            return word
        try:
            return str(copied / path.resolve().relative_to(self._folder))
        except (OSError, ValueError):
            return word


def _ignore(folder: str, names: list[str]) -> set[str]:
    """Return what is not copied; what is no file or folder would block whoever opens it."""
    paths = {name: os.path.join(folder, name) for name in names}
    plain = {name for name, at in paths.items() if os.path.isfile(at) or os.path.isdir(at)}
    # A folder that a link leads to may hold the link.
    linked = {name for name in plain if os.path.islink(paths[name]) and os.path.isdir(paths[name])}
    return (LEFT_OUT & {*names}) | ({*names} - plain) | linked
