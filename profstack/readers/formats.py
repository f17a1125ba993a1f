"""The contract of an import: how a file of another tool is recognised, and what is taken of it.

A format is one `Format` in the module that reads its files; `profstack/commands/import_.py` lists
all of them. Files of one format that are imported together belong to one run.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from profstack.storage.schema.column import Records

# Bytes by which a file is recognised, of a compressed one after decompression.
BEGINNING = 1 << 18
GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Request:
    """What a format has to know beside its files.

    `slice` and `step` are the first numbers that the recording has free, `plan` is the plan that
    new slices join, `modules` are the numbers of the modules it has, by path. The options are those
    of the command.
    """

    slice: int = 0
    step: int = 0
    plan: int = 1
    modules: Mapping[str, int] = field(default_factory=dict)
    process: int | None = None
    nsys_path: str | None = None


@dataclass
class Taken:
    """What becomes part of a recording.

    `added` are rows beside those that its tables have; among them one of `layers` for each layer
    that the files fill, with the `tool` that made them. `replaced` are rows in place of all that a
    table has. `files` are those that were read, `summary` is printed.
    """

    files: Sequence[Path]
    summary: Sequence[str]
    added: dict[str, Records] = field(default_factory=dict)
    replaced: dict[str, Records] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)


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
        start = file.read(BEGINNING)
    if start[:2] == GZIP:
        try:
            return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(start, BEGINNING)
        except zlib.error:
            return start
    return start
