"""`profstack merge`: write one page of all ranks of a launch."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from profstack.commands.options import open_page
from profstack.errors import RecordingError, UsageError
from profstack.report import files
from profstack.report.screen import printable
from profstack.storage.folder import DATABASE, process_folders, read_run

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Sequence

    from profstack.ranks.collectives import Call
    from profstack.ranks.summary import Summary
    from profstack.scale.reduce import Launch
    from profstack.scale.sources import Source
    from profstack.storage.schema.facts import RunTimes
    from profstack.storage.schema.report import Report

HELP = "Write one page of all ranks of a launch: who makes whom wait, and why."
_RECORDED = ("report.json", DATABASE)
_NEXT_STEP = "record several ranks with 'profstack run --nproc-per-node 2 train.py'"
_PATHS = """\
PATH is the folder of a launch (rank-00000 ..., or process-1 ... of what a script started), or a
folder or files of traces of torch.profiler or of reports of Nsight, one of each rank. It may be a
URL that fsspec opens (s3://, gs://). More than a few are read side by side by Dask, on this machine
or on the cluster of a scheduler: pip install 'profstack[scale]'.
"""
# From so many recordings on they are summed up side by side.
_MANY = 64
# Beside the shown ranks these many of the latest have a page of their own.
_LATEST = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = _PATHS
    add = parser.add_argument
    add("paths", metavar="PATH", nargs="+", help="folder of a launch, or of its ranks' files")
    add("-o", "--output", metavar="DIR", help="folder of the page, where it is not the launch's")
    add("--open", action="store_true", help="open the page in a browser")
    group = parser.add_argument_group("many ranks, by Dask")
    group.add_argument("--scheduler", metavar="ADDRESS", help="scheduler of a cluster, tcp://...")
    group.add_argument(
        "--workers", type=int, metavar="N", help="processes of this machine; 0: read one by one"
    )
    group.add_argument(
        "--memory-limit", default="auto", metavar="BYTES", help="of each of them, such as 2GB"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Merge the ranks' reports and write the page."""
    page = _of_many(arguments) if _is_many(arguments) else write_merged(Path(arguments.paths[0]))
    if arguments.open:
        open_page(page)
    print(f"Wrote {page}")
    return 0


def _is_many(arguments: argparse.Namespace) -> bool:
    """Return whether ranks are to be summed up one by one: by what is asked, or by their number."""
    first = Path(arguments.paths[0])
    there = rank_folders(first) if first.is_dir() else []
    asked = (arguments.output, arguments.scheduler, arguments.workers)
    is_asked = len(arguments.paths) > 1 or any(each is not None for each in asked)
    if there and there[0].name.startswith("process-"):
        if is_asked:
            what, step = "a script's processes are merged where they are", "give the folder alone"
            raise UsageError(what, where=str(first), next_step=step)
        return False
    return is_asked or not first.exists() or not 0 < len(there) < _MANY


def rank_folders(folder: Path) -> list[Path]:
    """Return the recordings in a folder of the ranks, or of the processes that a script started."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise RecordingError(what, where=str(folder), next_step=_NEXT_STEP) from None
    ranks = [each for each in entries if each.name.startswith("rank-")] or process_folders(folder)
    return [each for each in ranks if any((each / name).is_file() for name in _RECORDED)]


def is_of_others(report: Report, folder: Path) -> bool:
    """Return whether a script's report has no steps, but processes that it started have some."""
    step = report["step"]
    if step["count"] and step["rule"] != "whole":
        return False
    return any(files.load(home)["step"]["count"] for home in process_folders(folder))


def merged_report(folder: Path, recorded: Collection[int] | None = None) -> Report:
    """Return the report of all ranks in a folder.

    `recorded` are the ranks that were to record; None for all of the launch. Raise RecordingError
    where no rank has a recording, or where few of many have one.
    """
    from profstack.scale.cluster import KEPT, MARK

    if (folder / KEPT / MARK).is_file():
        what, step = "few of its ranks have a recording", "merge their files: merge PATH -o DIR"
        raise RecordingError(what, where=str(folder), next_step=f"profstack {step}")
    from profstack.guard import CollectorOff
    from profstack.ranks.merged import merged, numbered

    with CollectorOff():
        names = [each.name for each in rank_folders(folder)]
        if not names:
            raise RecordingError("no rank has a recording", where=str(folder), next_step=_NEXT_STEP)

        def read(name: str) -> Report:
            return files.load(folder / name)

        kind, summary = numbered(names, read, lambda name: _calls(folder / name))
        report = merged(kind, summary, read, recorded)
    _add_end(report, read_run(folder).get("run", {}))
    return report


def _add_end(report: Report, run: RunTimes) -> None:
    """Put how the script itself ended into the report of the processes that it started."""
    code, signal = run.get("exit_code"), run.get("signal")
    if code is None and signal is None:
        return
    report["run"] = {**report["run"], "exit_code": code, "signal": signal}
    if (code or signal) and report["status"] == "complete":
        report["status"] = "partial"
        how = f"signal {signal}" if signal else f"exit code {code}"
        report["status_reason"] = f"the script itself ended with {how}"


def _calls(folder: Path) -> list[Call]:
    """Return the collectives of a rank; none where its report came without its recording."""
    from profstack.ranks.collectives import read_calls

    return read_calls(folder) if (folder / DATABASE).is_file() else []


def write_merged(folder: Path, recorded: Collection[int] | None = None) -> Path:
    """Write report.json and report.html of all ranks into their folder; return the page's path."""
    from profstack.report import html

    report, page = merged_report(folder, recorded), folder / "report.html"
    files.write(report, folder / "report.json")
    html.write(report, page)
    return page


# Many ranks ---------------------------------------------------------------------------------------


def _of_many(arguments: argparse.Namespace) -> Path:
    """Sum up ranks one by one, wherever their files are, and write the page of all."""
    from profstack.scale import cluster, sources
    from profstack.scale.reduce import Launch

    if arguments.workers is not None and arguments.workers < 0:
        what, step = "no number of processes", "give 0 to read ranks one by one"
        raise UsageError(what, where=f"--workers {arguments.workers}", next_step=step)
    given = arguments.output and Path(arguments.output)
    found = sources.find(arguments.paths, given)
    launch = Launch(found.world_size, len(found.sources))
    plan = cluster.Plan(arguments.scheduler, arguments.workers, arguments.memory_limit)
    folder = _output(arguments)
    try:
        summary = cluster.summed_up(found.sources, launch, plan, folder, _tell)
        for name, why in sorted({**found.left_out, **summary.left_out}.items()):
            print(printable(f"{name} is left out: {why}"), file=sys.stderr)
        if not summary.ranks:
            what, where = "no rank could be read", arguments.paths[0]
            raise RecordingError(what, where=where, next_step=_NEXT_STEP)
        return _write_page(summary, found.sources, launch, folder)
    except OSError as error:
        what, step = (
            f"cannot be written ({error.strerror or error})",
            "make room, or give another -o",
        )
        raise RecordingError(what, where=str(folder), next_step=step) from None


def _write_page(summary: Summary, sources: Sequence[Source], launch: Launch, folder: Path) -> Path:
    """Write the report, the page and the tables of ranks that were summed up; return the page."""
    from profstack.guard import CollectorOff
    from profstack.ranks.merged import merged
    from profstack.report import html
    from profstack.scale import parquet
    from profstack.scale.reduce import shown

    by_name = {
        summary.ranks[each.rank].folder: each for each in sources if each.rank in summary.ranks
    }
    # Of recordings those are missing that were to record, of traces those between others.
    is_launch = all(each.is_recording for each in sources)
    recorded = None if is_launch else range(sources[-1].rank + 1)

    @lru_cache(_LATEST)
    def read(name: str) -> Report:
        return shown(by_name[name], launch, folder)

    with CollectorOff():
        report, page = merged("rank", summary, read, recorded), folder / "report.html"
        rows = report["tables"]["ranks"]
        known = [row for row in rows if row["folder"] in by_name]
        for row in sorted(known, key=lambda row: -(row["late_s"] or 0.0))[:_LATEST]:
            read(str(row["folder"]))
        for row in rows:
            if not (folder / str(row["folder"]) / "report.html").is_file():
                row["folder"] = None
        files.write(report, folder / "report.json")
        html.write(report, page)
    if find_spec("pyarrow") is not None:
        parquet.write(report["tables"], folder / parquet.FOLDER)
    return page


def _output(arguments: argparse.Namespace) -> Path:
    """Return the folder of the page: the launch's own, or one that is made.

    One of an earlier start is taken up.
    """
    from profstack.scale.cluster import KEPT, MARK
    from profstack.storage.folder import create_folder

    first = Path(arguments.paths[0])
    own = first.is_dir() and bool(rank_folders(first))
    folder = first if arguments.output is None and own else None
    if arguments.output is not None and (Path(arguments.output) / KEPT / MARK).is_file():
        folder = Path(arguments.output)
    if folder is None:
        name = first.name.split(".")[0] or "ranks"
        folder = create_folder(name, arguments.output, force=False)
        (folder / KEPT).mkdir()
        text = "Ranks that were summed up: a second start of 'profstack merge' takes them up.\n"
        (folder / KEPT / MARK).write_text(text, encoding="utf-8")
    (folder / KEPT).mkdir(exist_ok=True)
    return folder


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
