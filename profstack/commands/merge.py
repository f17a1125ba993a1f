"""`profstack merge`: write one page of all ranks of a launch."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from profstack.commands.options import open_page
from profstack.errors import RecordingError
from profstack.report import files
from profstack.report.screen import printable
from profstack.storage.folder import DATABASE, process_folders, read_run

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Sequence

    from profstack.ranks.collectives import Call
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
    asked = (arguments.output, arguments.scheduler, arguments.workers)
    if len(arguments.paths) > 1 or any(each is not None for each in asked):
        return True
    return not first.is_dir() or not 0 < len(rank_folders(first)) < _MANY


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
    where no rank has a recording.
    """
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
    from profstack.guard import CollectorOff
    from profstack.ranks.merged import merged
    from profstack.report import html
    from profstack.scale import cluster, parquet, sources
    from profstack.scale.reduce import Launch

    found = sources.find(arguments.paths)
    launch = Launch(found.world_size, len(found.sources))
    folder = _output(arguments)
    plan = cluster.Plan(arguments.scheduler, arguments.workers, arguments.memory_limit)
    summary = cluster.summed_up(found.sources, launch, plan, folder, _tell)
    for name, why in sorted({**found.left_out, **summary.left_out}.items()):
        print(printable(f"{name} is left out: {why}"), file=sys.stderr)
    if not summary.ranks:
        raise RecordingError(
            "no rank could be read", where=arguments.paths[0], next_step=_NEXT_STEP
        )
    shown = _Shown(found.sources, launch, folder)
    with CollectorOff():
        recorded = [source.rank for source in found.sources]
        report = merged("rank", summary, shown.read, recorded)
        shown.keep_latest(report)
        page = folder / "report.html"
        files.write(report, folder / "report.json")
        html.write(report, page)
    if find_spec("pyarrow") is not None:
        parquet.write(report["tables"], folder / parquet.FOLDER)
    return page


def _output(arguments: argparse.Namespace) -> Path:
    """Return the folder of the page: the launch's own, or one that is made.

    One with summaries of an earlier start is taken up.
    """
    from profstack.scale.cluster import KEPT
    from profstack.storage.folder import create_folder

    first = Path(arguments.paths[0])
    if arguments.output is None and first.is_dir() and rank_folders(first):
        return first
    if arguments.output is not None and (Path(arguments.output) / KEPT).is_dir():
        return Path(arguments.output)
    return create_folder(first.name.split(".")[0] or "ranks", arguments.output, force=False)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Shown:
    """The whole reports of the ranks that are shown: those alone get a recording of their own."""

    def __init__(self, sources: Sequence[Source], launch: Launch, folder: Path) -> None:
        from profstack.scale.reduce import folder_name

        self._sources = {folder_name(source.rank): source for source in sources}
        self._launch, self._folder = launch, folder
        self._read: dict[str, Report] = {}

    def read(self, name: str) -> Report:
        """Return the report of the rank with a folder of this name; make it where it is not there.

        Other reports are let go: they are large.
        """
        from profstack.scale.reduce import record

        if name not in self._read:
            own = self._folder / name
            if not any((own / each).is_file() for each in _RECORDED):
                record(self._sources[name], self._launch, own)
            self._read[name] = files.load(own)
        return self._read[name]

    def keep_latest(self, report: Report) -> None:
        """Give the latest ranks pages of their own; of the others the page has no way there."""
        rows = report["tables"]["ranks"]
        late = sorted(rows, key=lambda row: -(row["late_s"] or 0.0))
        for row in late[:_LATEST]:
            if row["folder"] in self._sources:
                self.read(str(row["folder"]))
        for row in rows:
            if not (self._folder / str(row["folder"]) / "report.html").is_file():
                row["folder"] = None
