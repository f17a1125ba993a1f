"""Files that are replaced while somebody may be reading them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from profstack.errors import RecordingError


def replace_text(path: Path, content: str) -> None:
    """Write `content` beside `path` and move it there, so that no half-written file is ever seen.

    Names of files may hold bytes that are no UTF-8 (Python keeps them as lone surrogates); they
    are written as question marks, since a file with an invalid encoding opens nowhere.
    """
    try:
        if path.exists() and not path.is_file():
            # A device or a pipe is written to: it must not be replaced.
            with open(path, "w", encoding="utf-8", errors="replace", newline="\n") as file:
                file.write(content)
            return
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
                file.write(content)
            # mkstemp makes private files; a page is as readable as any other new file.
            Path(temporary).chmod(0o666 & ~_umask())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RecordingError(
            f"cannot be written ({error.strerror or error})",
            where=str(path),
            next_step="choose another place with -o FILE",
        ) from error


def _umask() -> int:
    """The process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
