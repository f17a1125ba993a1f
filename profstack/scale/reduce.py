"""One rank's files become its summary: fetched, read, reported on, and thrown away but for that."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from profstack.errors import ProfstackError, UsageError
from profstack.guard import CollectorOff
from profstack.ranks.collectives import Call, read_calls
from profstack.ranks.rank import Rank
from profstack.ranks.summary import Summary
from profstack.scale.sources import ENDINGS, RECORDED, Source
from profstack.storage.folder import DATABASE, create_folder

if TYPE_CHECKING:
    from profstack.storage.schema.report import Report


@dataclass(frozen=True)
class Launch:
    """The launch that ranks are of: its size, and how many of it left files."""

    world_size: int
    recorded: int


def folder_name(rank: int) -> str:
    """Return the name of a rank's own folder."""
    return f"rank-{rank:05d}"


def reduced(source: Source, launch: Launch) -> Summary:
    """Return the summary of a rank; where its files cannot be read, of none, with the reason."""
    try:
        with tempfile.TemporaryDirectory(prefix="profstack-rank-") as made, CollectorOff():
            report, calls = _read(source, launch, Path(made))
            rank = Rank.of(source.rank, folder_name(source.rank), report)
            return Summary.of(rank, report, calls)
    except (ProfstackError, OSError) as error:
        return Summary(left_out={source.name: str(error)})


def record(source: Source, launch: Launch, folder: Path) -> None:
    """Make a rank's own recording of its files, in a folder that is made, with its page.

    Of a recording elsewhere the report and the tables are copied.
    """
    from profstack.report.files import write_report

    with local(source) as files:
        own = create_folder("", str(folder), force=False)
        if source.is_recording:
            (home,) = files
            for name in RECORDED:
                if (home / name).is_file():
                    shutil.copy(home / name, own / name)
        else:
            _import(files, source, launch, own)
    write_report(own)


def _read(source: Source, launch: Launch, made: Path) -> tuple[Report, list[Call]]:
    """Return the report of a rank and its collectives."""
    from profstack.report import files as reports

    with local(source) as files:
        if source.is_recording:
            (home,) = files
            has_calls = (home / DATABASE).is_file()
            return reports.load(home), read_calls(home) if has_calls else []
        own = create_folder("", str(made / "recording"), force=False)
        _import(files, source, launch, own)
        return reports.complete_report(own), read_calls(own)


def _import(files: list[Path], source: Source, launch: Launch, folder: Path) -> None:
    from profstack.readers.formats import Request, beginning
    from profstack.readers.imports import begin, formats, put

    start = beginning(files[0])
    kind = next((each for each in formats() if each.recognise(start, files[0].name)), None)
    if kind is None:
        step = f"give traces of torch.profiler, or reports of Nsight ({', '.join(ENDINGS)})"
        raise UsageError("no profile that is known here", where=files[0].name, next_step=step)
    taken = kind.take(files, Request(numbered=True))
    size, recorded = launch.world_size, launch.recorded
    begin(folder, rank=source.rank, world_size=size, recorded_ranks=recorded, node=source.node)
    put(folder, [(kind, taken)])


@contextmanager
def local(source: Source) -> Iterator[list[Path]]:
    """Give a rank's files as files of this machine; what is elsewhere is fetched, and removed."""
    import fsspec

    found = [fsspec.core.url_to_fs(url) for url in source.files]
    if all("file" in _protocols(system) for system, _ in found):
        yield [Path(path) for _, path in found]
        return
    with tempfile.TemporaryDirectory(prefix="profstack-fetched-") as made:
        files = []
        for number, (system, path) in enumerate(found):
            # Names say what a file is, and two of them may be the same.
            target = Path(made) / str(number) / PurePosixPath(path).name
            target.parent.mkdir()
            if source.is_recording:
                target.mkdir()
                for name in RECORDED:
                    if system.exists(f"{path}/{name}"):
                        system.get_file(f"{path}/{name}", str(target / name))
            else:
                system.get_file(path, str(target))
            files.append(target)
        yield files


def _protocols(system: object) -> tuple[str, ...]:
    names = getattr(system, "protocol", ())
    return (names,) if isinstance(names, str) else tuple(names)
