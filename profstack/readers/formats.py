"""The contract of an import: how a file of another tool is recognised, and what is taken of it.

A format is one `Format` in the module that reads its files; `profstack/commands/import_.py` lists
all of them. Files of one format that are imported together belong to one run.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from profstack.errors import RecordingError, UsageError
from profstack.storage.folder import Writer
from profstack.storage.schema.column import Record, Records
from profstack.storage.schema.layer_table import LayerTable
from profstack.storage.vocabulary import PROGRAM
from profstack.units import format_bytes

# Bytes by which a file is recognised, of a compressed one after decompression.
BEGINNING = 1 << 18
# The fact of the moment from which a recording's times count, in seconds since 1970.
ORIGIN = "origin_unix_s"
GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Request:
    """What a format has to know beside its files.

    `slice` and `step` are the first numbers that the recording has free, `plan` is the plan that
    new slices join, `modules` are the numbers of the modules it has, by path. `origin_s` is when
    its times begin, in seconds since 1970, None where that is not known. The options are those of
    the command. `numbered` means that steps keep the numbers of their marks, where they have any:
    those of several ranks are told apart by them.
    """

    slice: int = 0
    step: int = 0
    plan: int = 1
    origin_s: float | None = None
    modules: Mapping[str, int] = field(default_factory=dict)
    process: int | None = None
    nsys_path: str | None = None
    step_range: str | None = None
    numbered: bool = False


@dataclass
class Taken:
    """What becomes part of a recording.

    `added` are rows beside those that its tables have; among them one of `layers` for each layer
    that the files fill, with the `tool` that made them. `replaced` are rows in place of all that a
    table has; `tables` are those that a layer has of its own. `files` are those that were read,
    `summary` is printed.
    """

    files: Sequence[Path]
    summary: Sequence[str]
    added: dict[str, Records] = field(default_factory=dict)
    replaced: dict[str, Records] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    tables: Mapping[str, Sequence[LayerTable]] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """A kind of file that can be imported.

    `name` says what such a file is ("torch.profiler trace"), `endings` how it is usually named.
    `recognise` judges the first `BEGINNING` bytes, decompressed, and the file's name, which counts
    only where the content says nothing. `take` reads the files of one run; it raises ProfstackError
    where that is not possible.
    """

    name: str
    endings: str
    recognise: Callable[[bytes, str], bool]
    take: Callable[[Sequence[Path], Request], Taken]


def beginning(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed; raises OSError where it cannot be read."""
    with path.open("rb") as file:
        return unpacked(file.read(BEGINNING))


def unpacked(start: bytes) -> bytes:
    """Return the first bytes of a file, decompressed where they are of gzip."""
    if start[:2] == GZIP:
        try:
            return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(start, BEGINNING)
        except zlib.error:
            return start
    return start


def content(path: Path, most: int) -> bytes:
    """Return all of a file, decompressed; raises UsageError for one that is no file or too large.

    A link is followed to a regular file; a pipe or a device is not waited for.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise unreadable(path, "no regular file")
            data = file.read(most + 1)
    except OSError as error:
        raise unreadable(path, f"cannot be read ({error.strerror or error})") from None
    if data[:2] == GZIP:
        try:
            unpacked = zlib.decompressobj(zlib.MAX_WBITS | 16)
            data = unpacked.decompress(data, most + 1)
        except zlib.error as error:
            raise unreadable(path, f"is damaged ({error})") from None
        if not unpacked.eof and len(data) <= most:
            raise unreadable(path, "ends early")
    if len(data) > most:
        raise unreadable(path, f"has more than {format_bytes(most)}")
    return data


def unreadable(
    path: Path, what: str, next_step: str = "give the file as its tool wrote it"
) -> UsageError:
    """Return the error of a file that cannot be imported."""
    return UsageError(what, where=str(path), next_step=next_step)


def single(files: Sequence[Path], what: str) -> Path:
    """Return the one file of a format that takes one at a time; UsageError where there are more."""
    if len(files) > 1:
        raise UsageError(
            f"one {what} is imported at a time",
            where=str(files[1]),
            next_step="import it with -o into a recording of its own",
        )
    return files[0]


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Writer]:
    """Open a recording to write an import into it; raise RecordingError where that fails."""
    try:
        with contextlib.closing(Writer(folder)) as writer:
            yield writer
    except (sqlite3.Error, OSError) as error:
        raise RecordingError(
            f"the import cannot be written ({error})",
            where=str(folder),
            next_step="make room there or let it be written to, and import again",
        ) from None


def imported_layer(
    request: Request,
    name: str,
    technique: str,
    tool: str,
    files: Sequence[Path],
    seconds: float,
    *,
    started_s: float | None = None,
    version: str | None = None,
    truncated: str | None = None,
) -> dict[str, Records]:
    """Return rows of `layers` and `slices` for files that watched a program as a whole.

    The slice has the number `request.slice`, and counts as one step of `seconds`: figures per step
    are totals. `started_s` is when it began by the recording's clock, None where that is not known.
    """
    layer: Record = {
        "name": name,
        "technique": technique,
        "tool": f"{tool}, read from {', '.join(path.name for path in files)}",
        "version": version,
        "status": "recorded",
        "truncated": truncated,
    }
    part: Record = {
        "slice": request.slice,
        "kind": name,
        "layer": name,
        "mode": PROGRAM,
        "plan": request.plan,
        "phase": "other",
        "round": 1,
        "first_step": request.step,
        "steps": 1,
        "started_s": started_s,
        "wall_s": seconds,
        "counted_steps": 1,
        "counted_wall_s": seconds,
    }
    return {"layers": [layer], "slices": [part]}


# Files whose clocks are further apart than this are not of one run.
_APART_S = 30 * 86400.0


def origin_of(request: Request, first_s: float, taken: Taken, layer: str) -> float:
    """Return the moment from which the times of a file with `first_s` count, since 1970.

    It is the recording's, so that the times of several files are of one clock; else the file's
    first one, which becomes a fact. A file whose clock is another keeps its own, with a note.
    """
    if request.origin_s is None:
        taken.facts[ORIGIN] = first_s
        return first_s
    if abs(first_s - request.origin_s) < _APART_S:
        return request.origin_s
    name = taken.files[0].name
    text = f"the clock of {name} is not that of the other files: its times count from its begin"
    taken.added["notes"] = [{"slug": "import-clock", "layer": layer, "text": text}]
    return first_s


# Rows of one series over time in a recording.
MOST_MOMENTS = 50_000


def extremes(values: Sequence[float], most: int = MOST_MOMENTS) -> Sequence[int]:
    """Return the places of at most `most` values: of each stretch the smallest and the largest."""
    if len(values) <= most:
        return range(len(values))
    kept = {0, len(values) - 1}
    stretches = (most - 2) // 2
    edges = [number * len(values) // stretches for number in range(stretches + 1)]
    for first, end in pairwise(edges):
        kept |= {pick(range(first, end), key=values.__getitem__) for pick in (min, max)}
    return sorted(kept)
