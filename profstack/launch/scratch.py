"""Run a script in a copy of the working folder: what it writes there goes away with the copy."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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

# A linked folder of this size is copied; a larger one, of data as a rule, is linked again.
_MOST_LINKED = 64 << 20

ArgumentsIn = Callable[[Sequence[str]], list[str]]


class Scratch:
    """Copies of a folder; with `in_place` there is none, and the folder itself is used.

    A link to a file is copied as that file, and a small folder that a link leads to as that folder.
    Large ones are linked again, to where they lead: `linked` names them, since what is written
    through them is not undone.
    """

    def __init__(self, folder: Path, *, in_place: bool, limit_bytes: int) -> None:
        self._folder, self._in_place = folder.resolve(), in_place
        self.linked: list[str] = []
        self._inside: list[str] = []
        self._copied: list[str] = []
        if not in_place:
            self._check(limit_bytes)

    def _check(self, limit_bytes: int) -> None:
        """Raise UsageError for a folder with more bytes than the limit, and sort its links."""
        total = 0
        for top, folders, files in os.walk(self._folder):
            folders[:] = [name for name in folders if name not in LEFT_OUT]
            total += _bytes(top, files)
            for name in (name for name in folders if os.path.islink(os.path.join(top, name))):
                total += self._sort(os.path.join(top, name))
            if total > limit_bytes:
                raise UsageError(
                    f"the working folder has more than {limit_bytes >> 20} MiB to copy",
                    where=str(self._folder),
                    next_step="start it in the script's own folder, raise --copy-limit, or give "
                    "--in-place where the script writes nothing that matters",
                )

    def _sort(self, path: str) -> int:
        """Put a linked folder to those that are linked or copied; return the bytes to copy."""
        target = Path(path).resolve()
        if target.is_relative_to(self._folder):
            self._inside.append(path)
            return 0
        size = self._size(target)
        (self.linked if size is None else self._copied).append(path)
        return size or 0

    def _size(self, target: Path) -> int | None:
        """Return the bytes of a linked folder; None for one that is not to be copied."""
        if self._folder.is_relative_to(target):
            return None
        size = 0
        for top, _, files in os.walk(target):
            size += _bytes(top, files)
            if size > _MOST_LINKED:
                return None
        return size

    @contextmanager
    def copy(self) -> Iterator[tuple[Path, ArgumentsIn]]:
        """Make a copy; yield its folder, and what gives arguments the paths in it.

        Raise UsageError for files that cannot be copied.
        """
        if self._in_place:
            yield self._folder, list
            return
        top = Path(tempfile.mkdtemp(prefix="profstack-try-"))
        copied = top / self._folder.name
        try:
            self._copy_to(copied)
            yield copied, lambda arguments: [self._moved(word, copied) for word in arguments]
        finally:
            shutil.rmtree(top, ignore_errors=True)

    def _copy_to(self, copied: Path) -> None:
        try:
            shutil.copytree(self._folder, copied, ignore=_ignore)
            for path in self._copied:
                shutil.copytree(path, copied / Path(path).relative_to(self._folder), ignore=_ignore)
        except shutil.Error as error:
            source, _, reason = error.args[0][0]
            raise UsageError(
                f"cannot be copied ({reason})",
                where=str(source),
                next_step="make it readable, or give --in-place",
            ) from None
        for path in (*self._inside, *self.linked):
            made = copied / Path(path).relative_to(self._folder)
            if made.parent.is_dir():
                made.symlink_to(self._moved(str(Path(path).resolve()), copied))

    def _moved(self, word: str, copied: Path) -> str:
        """Return an argument that is a path into the folder as one into the copy.

        It may be the value of an option (`--out=/path`). One that leads out of the folder from it
        (`../data`) becomes absolute.
        """
        name, equals, tail = word.partition("=")
        if equals and os.path.isabs(tail) and not os.path.isabs(name):
            return f"{name}={self._moved(tail, copied)}"
        path = Path(word)
        if not path.is_absolute():
            is_outside = path.parts[:1] == ("..",) and (self._folder / path).exists()
            return str((self._folder / path).resolve()) if is_outside else word
        try:
            return str(copied / path.resolve().relative_to(self._folder))
        except (OSError, ValueError):
            return word


def _bytes(top: str, files: Sequence[str]) -> int:
    """Return the size of files of a folder; what is gone meanwhile has none."""
    total = 0
    for name in files:
        with suppress(OSError):
            total += os.stat(os.path.join(top, name)).st_size
    return total


def _ignore(folder: str, names: list[str]) -> set[str]:
    """Return what is not copied; what is no file or folder would block whoever opens it."""
    paths = {name: os.path.join(folder, name) for name in names}
    plain = {name for name, at in paths.items() if os.path.isfile(at) or os.path.isdir(at)}
    # Linked folders are seen to by themselves; one may hold the link to it.
    linked = {name for name in plain if os.path.islink(paths[name]) and os.path.isdir(paths[name])}
    return {*LEFT_OUT}.intersection(names) | ({*names} - plain) | linked
