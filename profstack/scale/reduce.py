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
from profstack.ranks.collectives import read_calls
from profstack.ranks.rank import Rank
from profstack.ranks.summary import Summary
from profstack.report import files
from profstack.scale.sources import ENDINGS, RECORDED, Source, is_local
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
    name = folder_name(source.rank)
    try:
        with tempfile.TemporaryDirectory(prefix="profstack-rank-") as made, CollectorOff():
            if source.is_recording:
                with local(source) as (home,):
                    calls = read_calls(home) if (home / DATABASE).is_file() else []
                    report = files.load(home)
                    return Summary.of(Rank.of(source.rank, name, report), report, calls)
            own = create_folder("", str(Path(made) / "recording"), force=False)
            left_out = _import(source, launch, own)
            report = files.complete_report(own)
            found = Summary.of(Rank.of(source.rank, name, report), report, read_calls(own))
            found.left_out = left_out
            return found
    except ProfstackError as error:
        return Summary(left_out={source.name: str(error)})
    except Exception as error:
        # File systems behind a URL have errors of their own, and no rank ends the others.
        return Summary(left_out={source.name: f"{type(error).__name__}: {error}"})


def shown(source: Source, launch: Launch, folder: Path) -> Report:
    """Return the whole report of a rank; of traces with a recording of its own in `folder`.

    One that an earlier start has made of the same files is taken as it is.
    """
    if source.is_recording:
        with local(source) as (home,):
            return files.load(home)
    own, mark = folder / folder_name(source.rank), Path("logs", "made-of.txt")
    of = f"{source.key} {launch} {source.node}"
    if not (own / mark).is_file() or (own / mark).read_text(encoding="utf-8") != of:
        part = own.with_name(own.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        _import(source, launch, create_folder("", str(part), force=False))
        files.write_report(part)
        (part / mark).write_text(of, encoding="utf-8")
        if (own / mark).is_file():
            shutil.rmtree(own)
        part.rename(own)
    return files.load(own)


def _import(source: Source, launch: Launch, folder: Path) -> dict[str, str]:
    """Make a recording of a rank's files in a folder; return which of them are left out, and why.

    Files of one kind count: traces, else the first kind that is known.
    """
    from profstack.readers.formats import Format, Request, beginning
    from profstack.readers.imports import begin, formats, put
    from profstack.readers.torchtrace.importing import FORMAT as TRACES

    with local(source) as own:
        by_kind: dict[Format, list[Path]] = {}
        for path in own:
            start = beginning(path)
            kind = next((each for each in formats() if each.recognise(start, path.name)), None)
            if kind is not None:
                by_kind.setdefault(kind, []).append(path)
        if not by_kind:
            step = f"give traces of torch.profiler, or reports of Nsight ({', '.join(ENDINGS)})"
            raise UsageError("no profile that is known here", where=source.name, next_step=step)
        kind = TRACES if TRACES in by_kind else next(iter(by_kind))
        # A report of Nsight lies beside its export.
        exports = [path for path in by_kind[kind] if path.suffix == ".sqlite"]
        taken = kind.take(exports or by_kind[kind], Request(numbered=True))
        size, recorded = launch.world_size, launch.recorded
        begin(folder, rank=source.rank, world_size=size, recorded_ranks=recorded, node=source.node)
        put(folder, [(kind, taken)])
        others = {*own} - {*taken.files}
        why = f"beside the files of rank {source.rank} that were read"
        return {f"{path.parent.name}/{path.name}": why for path in others}


@contextmanager
def local(source: Source) -> Iterator[list[Path]]:
    """Give a rank's files as files of this machine; what is elsewhere is fetched, and removed."""
    import fsspec

    found = [fsspec.core.url_to_fs(url) for url in source.files]
    if all(is_local(system) for system, _ in found):
        yield [Path(path) for _, path in found]
        return
    with tempfile.TemporaryDirectory(prefix="profstack-fetched-") as made:
        fetched = []
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
            fetched.append(target)
        yield fetched
