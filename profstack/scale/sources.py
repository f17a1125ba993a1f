"""The files of a launch's ranks, on this machine or behind a URL: which there are, of which rank.

A path is any that fsspec opens (`s3://`, `gs://`, a local folder). What a file is shows when it is
read; here its rank is found, by what a trace says of itself, else by its name or its folder's.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
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
_NEXT_STEP = "give a folder of traces, one of each rank, or of rank-00000 and so on"
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


def find(paths: Sequence[str], without: Path | None = None) -> Found:
    """Return the ranks whose files are at some paths; UsageError where there are none.

    Of a rank that left a recording and traces the recording counts. `without` is a folder that is
    left alone: that of the page.
    """
    found = Found()
    files: dict[int, dict[str, _File]] = defaultdict(dict)
    starts: dict[int, bytes] = {}
    recordings: dict[int, Source] = {}
    for path in paths:
        system, root = _opened(path)
        homes, rest = _sorted_out(_listed(system, root, path, without))
        if not homes and not rest:
            raise UsageError("no rank left a file", where=path, next_step=_NEXT_STEP)
        for home, own in homes.items():
            rank = rank_of(b"", f"{home}/{RECORDED[0]}")
            source = Source(rank or 0, (system.unstrip_protocol(home),), True, _key(own))
            if rank is None:
                found.left_out[home] = "its name has no rank"
            elif recordings.setdefault(rank, source).files != source.files:
                step = "merge one launch at a time"
                raise UsageError(f"rank {rank} is there twice", where=home, next_step=step)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            heads = list(pool.map(partial(_head, system), rest))
        for each, head in zip(rest, heads, strict=True):
            rank = rank_of(head, each.name)
            if rank is None:
                found.left_out[each.name] = "neither it nor its name says of which rank it is"
                continue
            found.world_size = max(found.world_size, told_size(head))
            files[rank][each.url] = each
            starts.setdefault(rank, head)
    nodes = node_numbers(starts)
    for rank, of_rank in files.items():
        urls = tuple(sorted(of_rank))
        key = _key([of_rank[url] for url in urls])
        recordings.setdefault(rank, Source(rank, urls, False, key, nodes.get(rank)))
    if not recordings:
        raise UsageError("no rank left a file", where=", ".join(paths), next_step=_NEXT_STEP)
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
    except Exception as error:
        # Each system has errors of its own.
        step = "see that the package for such addresses is installed"
        raise UsageError(f"cannot be opened ({error})", where=path, next_step=step) from None
    return system, root


def _listed(system: Any, root: str, path: str, without: Path | None) -> list[_File]:
    """Return the files below a folder, or the file itself, by name."""
    try:
        if is_local(system):
            return sorted(_local_files(Path(root), without), key=lambda each: each.name)
        listed = sorted(system.find(root, detail=True).items())
    except Exception as error:
        step = "see that it is there and may be read"
        raise UsageError(f"cannot be listed ({error})", where=path, next_step=step) from None
    return [_File(name, system.unstrip_protocol(name), _version(facts)) for name, facts in listed]


def is_local(system: Any) -> bool:
    """Return whether a file system is this machine's."""
    names = getattr(system, "protocol", ())
    return "file" in ((names,) if isinstance(names, str) else tuple(names))


def _local_files(root: Path, without: Path | None) -> Iterator[_File]:
    """Yield the files below a folder; links are followed, but in no circle."""
    if not root.exists():
        raise FileNotFoundError("it is not there")
    if root.is_file():
        yield _local_file(root)
        return
    seen = {without.resolve()} if without is not None else set()
    for folder, inside, names in os.walk(root, followlinks=True):
        here = Path(folder).resolve()
        if here in seen:
            inside.clear()
            continue
        seen.add(here)
        yield from (_local_file(Path(folder, name)) for name in names if _is_file(folder, name))


def _is_file(folder: str, name: str) -> bool:
    """Return whether it is a regular file, or a link to one: no pipe is waited for."""
    return os.path.isfile(os.path.join(folder, name))


def _local_file(path: Path) -> _File:
    facts = path.stat()
    return _File(str(path), f"file://{path.absolute()}", f"{facts.st_size} {facts.st_mtime_ns}")


# What file systems tell of a file's version.
_VERSION = frozenset(
    ("size", "mtime", "etag", "lastmodified", "last_modified", "generation", "modified", "created")
)


def _version(facts: Mapping[str, Any]) -> str:
    """Return what tells versions of a file apart: its size, and its time or tag."""
    known = {name.lower(): value for name, value in facts.items()}
    return repr(sorted((name, str(known[name])) for name in _VERSION & {*known}))


def _sorted_out(entries: Sequence[_File]) -> tuple[dict[str, list[_File]], list[_File]]:
    """Return the files of each recording by its folder, and the other files of ranks."""
    signs = (PurePosixPath(each.name) for each in entries)
    homes: dict[str, list[_File]] = {
        str(sign.parent): []
        for sign in signs
        if sign.name in RECORDED and sign.parent.name.startswith("rank-")
    }
    rest = []
    for each in entries:
        at = PurePosixPath(each.name)
        home = next((str(above) for above in at.parents if str(above) in homes), None)
        if home is not None:
            homes[home].append(each)
        elif each.name.endswith(ENDINGS) and at.name not in RECORDED:
            # The report of all ranks is none of a rank.
            rest.append(each)
    return homes, rest


def _head(system: Any, file: _File) -> bytes:
    """Return the first bytes of a file, decompressed; none where it cannot be read."""
    try:
        return unpacked(system.cat_file(file.name, start=0, end=_HEAD))
    except Exception:
        # It is named when it is read.
        return b""


def _key(files: Sequence[_File]) -> str:
    """Return a key of files, which changes with each of them."""
    known = repr([(each.url, each.facts) for each in files])
    return hashlib.sha256(known.encode()).hexdigest()[:16]
