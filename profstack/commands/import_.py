"""`profstack import`: make a recording of files that other tools wrote, or add them to one.

A file's format is recognised by its content. Files that are imported together belong to one run and
become one recording; traces of several ranks become one each, with one page of all of them.
"""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from profstack.commands.options import open_page
from profstack.errors import UsageError
from profstack.report.files import recording_folder
from profstack.storage.vocabulary import WITH_DATA

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from profstack.readers.formats import Format, Request, Taken
    from profstack.storage.reader import Recorded
    from profstack.storage.schema.column import Records

HELP = "Make a recording of files of other tools: traces, profiles, memory, reports of Nsight."

_FILES_HELP = """\
FILE is a trace of torch.profiler (.json, .json.gz), a profile of cProfile (.prof), a file of mprof
(.dat), a snapshot of CUDA memory (.pickle), a profile of speedscope (.json of py-spy and others),
or a report of Nsight Systems: an export (nsys export --type sqlite) or a .nsys-rep, .qdrep,
.qdstrm, which is exported first where nsys is found. Of a folder all files that are known are
taken. Files are told by their content, and several become one recording; traces of several ranks
become one each, with one page of all.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = _FILES_HELP
    add = parser.add_argument
    add("files", metavar="FILE", nargs="+", help="file of another tool, or a folder of them")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--into", metavar="DIR", help="recording of the same program to add it to")
    where.add_argument("-o", "--output", metavar="DIR", help="folder of a recording of its own")
    add("--force", action="store_true", help="replace the recording in --output")
    add(
        "--process",
        type=int,
        metavar="PID",
        help="of several processes in a report of Nsight this one (default: all, side by side)",
    )
    add(
        "--step-range",
        metavar="NAME",
        help="the NVTX range of a report of Nsight that is a step, '' for none (default: "
        "profstack's own, else one that repeats)",
    )
    add("--nsys-path", metavar="PATH", help="nsys, or the folder it is in (default: found)")
    add("--open", action="store_true", help="open the page in a browser")


def execute(arguments: argparse.Namespace) -> int:
    """Import the files and write the page."""
    if arguments.force and arguments.output is None:
        raise UsageError("--force needs --output", where="import", next_step="name the folder")
    groups = _by_format(arguments.files)
    if arguments.into is None and (ranks := _ranks_in(groups)):
        page = _import_ranks(ranks, arguments)
        print(f"Wrote {page}")
        if arguments.open:
            open_page(page)
        return 0
    from profstack.readers.imports import begin, put
    from profstack.report.files import write_report
    from profstack.report.screen import printable

    into = None
    if arguments.into is not None:
        into = recording_folder(arguments.into, exactly=True)
    # No folder is made, and none is changed, where a file cannot be read.
    taken = _take(groups, into, arguments)
    folder = into
    if folder is None:
        folder = _new_folder(arguments)
        begin(folder)
    put(folder, taken)
    page = write_report(folder)
    for _, each in taken:
        for line in each.summary:
            # Names and versions come from outside.
            print(printable(line))
    print(f"Wrote {page}")
    if arguments.open:
        open_page(page)
    return 0


def _new_folder(arguments: argparse.Namespace) -> Path:
    from profstack.storage.folder import create_folder

    name = Path(arguments.files[0]).name.split(".")[0] or "import"
    return create_folder(name, arguments.output, force=arguments.force)


# Ranks --------------------------------------------------------------------------------------------


def _ranks_in(groups: Mapping[Format, Sequence[Path]]) -> dict[int, list[Path]]:
    """Return traces by rank where all files are traces, and of several ranks; else nothing."""
    from profstack.readers.torchtrace.importing import FORMAT, by_rank

    ranks = by_rank(groups[FORMAT]) if [*groups] == [FORMAT] else {}
    return ranks if len(ranks) > 1 else {}


def _import_ranks(ranks: Mapping[int, Sequence[Path]], arguments: argparse.Namespace) -> Path:
    """Make a recording of each rank and one page of all; return that page.

    A rank whose trace cannot be read is named and left out. Raise the first error where there is
    none that can.
    """
    import sys

    from profstack.commands.merge import write_merged
    from profstack.errors import ProfstackError
    from profstack.readers.formats import Request, beginning
    from profstack.readers.imports import begin, put
    from profstack.readers.torchtrace.importing import FORMAT, node_numbers, world_size
    from profstack.report.files import write_report
    from profstack.report.screen import printable
    from profstack.storage.folder import create_folder

    folder, failed, size = None, dict[int, ProfstackError](), world_size(ranks)
    nodes = node_numbers({rank: beginning(files[0]) for rank, files in ranks.items()})
    for rank, files in sorted(ranks.items()):
        try:
            taken = FORMAT.take(files, Request(numbered=True))
        except ProfstackError as error:
            failed[rank] = error
            continue
        if folder is None:
            if arguments.force and Path(arguments.output).is_dir():
                _clear_ranks(Path(arguments.output))
            folder = _new_folder(arguments)
        own = create_folder("", str(folder / f"rank-{rank:05d}"), force=False)
        node = nodes.get(rank)
        begin(own, rank=rank, world_size=size, recorded_ranks=len(ranks), node=node)
        put(own, [(FORMAT, taken)])
        write_report(own)
        for line in taken.summary:
            print(printable(f"rank {rank}: {line}"))
    if folder is None:
        raise min(failed.items())[1]
    for rank, why in failed.items():
        print(printable(f"rank {rank} is left out: {why}"), file=sys.stderr)
    return write_merged(folder, ranks)


def _clear_ranks(folder: Path) -> None:
    """Remove the recordings of ranks in a folder, and the page of all of them."""
    import shutil
    from contextlib import suppress

    from profstack.commands.merge import rank_folders

    for each in (ranks := rank_folders(folder)):
        shutil.rmtree(each)
    for name in ("report.json", "report.html") if ranks else ():
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        # It stays where it holds anything.
        (folder / "logs").rmdir()


# Telling formats ----------------------------------------------------------------------------------


def _by_format(given: Sequence[str]) -> dict[Format, list[Path]]:
    """Sort files by their formats, in the order of the command line.

    Of a folder the files that are known are taken, in the order of names. Raises UsageError for
    what is no regular file, or none of a known format.
    """
    from profstack.readers.imports import formats

    known = formats()
    groups: dict[Format, list[Path]] = {}
    for name in given:
        path = Path(name)
        inside = path.is_dir()
        files = sorted(each for each in path.iterdir() if each.is_file()) if inside else [path]
        pairs = [(file, _format_of(file, known)) for file in files]
        pairs = [(file, found) for file, found in pairs if found is not None]
        if not pairs:
            what = "none of its files is a profile" if inside else "no profile that is known here"
            raise UsageError(what, where=name, next_step=_next_step(known))
        for file, found in pairs:
            if found is not None and file not in groups.setdefault(found, []):
                groups[found].append(file)
    return groups


def _format_of(path: Path, known: Sequence[Format]) -> Format | None:
    from profstack.readers.formats import beginning

    if not path.is_file():
        what = "no regular file" if path.exists() else "no such file"
        beside = [] if path.exists() else _beside(path, known)
        step = f"beside it is {beside[0].name}" if beside else _next_step(known)
        raise UsageError(what, where=str(path), next_step=step)
    try:
        start = beginning(path)
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise UsageError(what, where=str(path), next_step=_next_step(known)) from None
    return next((each for each in known if each.recognise(start, path.name)), None)


def _beside(path: Path, known: Sequence[Format]) -> list[Path]:
    """Return files of the same name with another ending, which can be imported.

    nsys leaves a .qdstrm where it has no importer, under the name that was asked of it.
    """
    try:
        found = sorted(each for each in path.parent.iterdir() if each.stem == path.stem)
    except OSError:
        return []
    return [each for each in found if each.is_file() and _format_of(each, known) is not None]


def _next_step(known: Sequence[Format]) -> str:
    return "give a " + ", or a ".join(f"{each.name} ({each.endings})" for each in known)


# Into a recording ---------------------------------------------------------------------------------


def _take(
    groups: dict[Format, list[Path]], into: Path | None, arguments: argparse.Namespace
) -> list[tuple[Format, Taken]]:
    """Read all files; rows of each format are numbered behind those that are there before."""
    from profstack.readers.formats import ORIGIN, Request
    from profstack.storage.reader import Recorded

    request = Request(
        process=arguments.process,
        nsys_path=arguments.nsys_path,
        step_range=arguments.step_range,
    )
    filled: set[str] = set()
    if into is not None:
        # Read before it is written to: it may be damaged, or of another version.
        recorded = Recorded(into)
        present = {name: recorded.table(name) for name in ("slices", "steps", "modules")}
        request = replace(request, plan=recorded.plan or 1, origin_s=_origin_s(recorded))
        request = _behind(request, present)
        filled = _filled(recorded.table("layers"))
    taken = []
    for kind, files in groups.items():
        each = kind.take(files, request)
        own = _filled(each.added.get("layers", ()))
        if doubled := sorted(own & filled):
            raise UsageError(
                f"there are figures of the layer {doubled[0]} already",
                where=str(files[0]),
                next_step="import it with -o into a recording of its own",
            )
        filled |= own
        request = _behind(request, each.added)
        if request.origin_s is None and isinstance(first_s := each.facts.get(ORIGIN), float):
            request = replace(request, origin_s=first_s)
        taken.append((kind, each))
    return taken


def _origin_s(recorded: Recorded) -> float | None:
    """Return when the recording's times begin, in seconds since 1970; None if unknown."""
    from profstack.readers.formats import ORIGIN

    facts, run = recorded.facts, recorded.run
    if ORIGIN in facts:
        return float(facts[ORIGIN])
    started = run.get("run", {}).get("started_at")
    if not isinstance(started, str) or "origin_clock_s" not in facts or "begun_clock_s" not in run:
        return None
    begun_s = datetime.datetime.fromisoformat(started).timestamp()
    return begun_s + float(facts["origin_clock_s"]) - run["begun_clock_s"]


def _filled(layers: Records) -> set[str]:
    """Return the names of the layers that have data."""
    return {str(row["name"]) for row in layers if row["status"] in WITH_DATA}


def _behind(request: Request, rows: Mapping[str, Records]) -> Request:
    """Return the request for what is imported beside these rows of slices, steps and modules."""

    def next_number(table: str, column: str, least: int) -> int:
        return max([least, *(int(row[column] or 0) + 1 for row in rows.get(table, ()))])

    paths = {str(row["path"]): int(row["module_id"] or 0) for row in rows.get("modules", ())}
    return replace(
        request,
        slice=next_number("slices", "slice", request.slice),
        step=next_number("steps", "step", request.step),
        modules={**request.modules, **paths},
    )
