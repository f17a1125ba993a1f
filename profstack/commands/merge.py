"""`profstack merge`: write one page of all ranks of a launch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from profstack.commands.options import open_page
from profstack.errors import RecordingError
from profstack.report import files
from profstack.storage.folder import DATABASE, process_folders, read_run

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection

    from profstack.ranks.collectives import Call
    from profstack.storage.schema.facts import RunTimes
    from profstack.storage.schema.report import Report

HELP = "Write one page of all ranks of a launch: who makes whom wait, and why."
_RECORDED = ("report.json", DATABASE)
_NEXT_STEP = "record several ranks with 'profstack run --nproc-per-node 2 train.py'"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("folder", metavar="DIR", help="folder of rank-00000 ... or process-1 ...")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


def execute(arguments: argparse.Namespace) -> int:
    """Merge the ranks' reports and write the page."""
    page = write_merged(Path(arguments.folder))
    if arguments.open:
        open_page(page)
    print(f"Wrote {page}")
    return 0


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
