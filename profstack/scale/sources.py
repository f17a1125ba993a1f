"""The files of a launch's ranks, on this machine or behind a URL: which there are, of which rank.

A path is any that fsspec opens (`s3://`, `gs://`, a local folder). What a file is shows when it is
read; here its rank is found, by what a trace says of itself, else by its name or its folder's.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from profstack.errors import UsageError
from profstack.readers.formats import unpacked
from profstack.readers.torchtrace.importing import node_numbers, rank_of, told_size

# How a trace, or a report of Nsight, is named; other files beside them are left alone.
ENDINGS = (".json", ".json.gz", ".sqlite", ".nsys-rep", ".qdrep")
# A recording's folder has one of these.
RECORDED = ("report.json", "recording.sqlite")
# The part of a file in which a trace says of which rank it is.
_HEAD = 1 << 16
# Beginnings are read side by side: behind a URL each takes a while.
_AT_ONCE = 16


@dataclass(frozen=True)
class Source:
    """What one rank left: files of one kind, or a recording's folder, as URLs.

    `key` changes whenever they do; `node` is the number of its machine, where that is known.
    """

    rank: int
    files: tuple[str, ...]
    is_recording: bool
    key: str
    node: int | None = None

    @property
    def name(self) -> str:
        """The name by which it is told: of the first file, with its folder."""
        return "/".join(PurePosixPath(self.files[0]).parts[-2:])


@dataclass
class Found:
    """What was found: a source for each rank, the launch's size, and what has no rank."""

    sources: list[Source] = field(default_factory=list)
    world_size: int = 0
    left_out: dict[str, str] = field(default_factory=dict)


def find(paths: Sequence[str]) -> Found:
    """Return the ranks whose files are at some paths; UsageError where there are none.

    Of a rank that left a recording and traces the recording counts.
    """
    found = Found()
    files: dict[int, list[_File]] = defaultdict(list)
    starts: dict[int, bytes] = {}
    recordings: dict[int, Source] = {}
    for path in paths:
        system, root = _opened(path)
        entries = _listed(system, root, path)
        homes = {home for each in entries if (home := _home(each.name)) is not None}
        for home in sorted(homes):
            rank = rank_of(b"", f"{home}/{RECORDED[0]}")
            if rank is None:
                found.left_out[home] = "its name has no rank"
                continue
            key = _key([each for each in entries if _is_in(each.name, {home})])
            recordings[rank] = Source(rank, (system.unstrip_protocol(home),), True, key)
        rest = [each for each in entries if _is_file_of_rank(each.name, homes)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            heads = list(pool.map(partial(_head, system), rest))
        for each, head in zip(rest, heads, strict=True):
            rank = rank_of(head, each.name)
            if rank is None:
                found.left_out[each.name] = "neither it nor its name says of which rank it is"
                continue
            found.world_size = max(found.world_size, told_size(head))
            files[rank].append(each)
            starts[rank] = head
    nodes = node_numbers(starts)
    for rank, own in files.items():
        own.sort(key=lambda each: each.url)
        urls = tuple(each.url for each in own)
        recordings.setdefault(rank, Source(rank, urls, False, _key(own), nodes.get(rank)))
    if not recordings:
        step = "give a folder of traces, one of each rank, or of rank-00000 and so on"
        raise UsageError("no rank left a file", where=", ".join(paths), next_step=step)
    found.sources = [recordings[rank] for rank in sorted(recordings)]
    found.world_size = max(found.world_size, found.sources[-1].rank + 1)
    return found


@dataclass(frozen=True)
class _File:
    """A file of a file system: its name there, its URL, and what is known of this version."""

    name: str
    url: str
    facts: str


def _opened(path: str) -> tuple[Any, str]:
    """Return the file system of a path, and the path in it."""
    import fsspec

    try:
        system, root = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError, OSError) as error:
        step = "see that the package for such addresses is installed"
        raise UsageError(f"cannot be opened ({error})", where=path, next_step=step) from None
    return system, root


def _listed(system: Any, root: str, path: str) -> list[_File]:
    """Return the files below a folder, or the file itself, by name."""
    try:
        listed = system.find(root, detail=True)
    except OSError as error:
        step = "see that it is there and may be read"
        what = f"cannot be listed ({error.strerror or error})"
        raise UsageError(what, where=path, next_step=step) from None
    return [
        _File(name, system.unstrip_protocol(name), _version(facts))
        for name, facts in sorted(listed.items())
    ]


def _version(facts: Mapping[str, Any]) -> str:
    """Return what tells versions of a file apart: its size, and its time or tag."""
    return f"{facts.get('size')} {facts.get('mtime') or facts.get('ETag') or ''}"


def _home(name: str) -> str | None:
    """Return the recording's folder that a file is the sign of."""
    at = PurePosixPath(name)
    is_sign = at.name in RECORDED and at.parent.name.startswith("rank-")
    return str(at.parent) if is_sign else None


def _is_file_of_rank(name: str, homes: set[str]) -> bool:
    """Return whether a file may be a rank's: the report of all ranks, say, is none."""
    known = name.endswith(ENDINGS) and PurePosixPath(name).name not in RECORDED
    return known and not _is_in(name, homes)


def _is_in(name: str, homes: set[str]) -> bool:
    return any(str(each) in homes for each in PurePosixPath(name).parents)


def _head(system: Any, file: _File) -> bytes:
    """Return the first bytes of a file, decompressed; none where it cannot be read."""
    try:
        return unpacked(system.cat_file(file.name, start=0, end=_HEAD))
    except OSError:
        return b""


def _key(files: Sequence[_File]) -> str:
    """Return a key of files, which changes with each of them."""
    known = repr([(each.url, each.facts) for each in files])
    return hashlib.sha256(known.encode()).hexdigest()[:16]
