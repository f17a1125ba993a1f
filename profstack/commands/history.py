"""`profstack history`: the recordings of a program in order of time, and where it changed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from profstack.commands.options import open_page, terminal_of, write_both
from profstack.errors import RecordingError
from profstack.report import files
from profstack.storage.folder import RUNS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from profstack.storage.schema.history import LeftOut
    from profstack.storage.schema.report import Report

HELP = "List a program's runs in order of time, and the commits that changed its step or memory."

_EPILOG = """\
A change is said where it is more than what the runs around it differ by: at least 9 runs
are needed, and 3 on each side of a change. Keep the report.json of every commit in one
folder, each in a folder or under a name of its own.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = _EPILOG
    what = "folder of recordings or of report.json files, or one of them (default: profstack-runs)"
    parser.add_argument("folders", nargs="*", metavar="DIR", help=what)
    parser.add_argument("--script", metavar="NAME", help="runs of this script alone")
    parser.add_argument("--format", choices=("text", "json", "csv"), default="text")
    parser.add_argument("-o", "--output", metavar="DIR", help="write history.json and history.html")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


def execute(arguments: argparse.Namespace) -> int:
    """Read the reports, print the history, and write the files that were asked for."""
    paths = _paths(arguments.folders or [RUNS])
    from profstack.compare.history import history
    from profstack.report import history as shown
    from profstack.report.screen import fitting

    left_out: list[LeftOut] = []
    made = history(_reports(paths, left_out), left_out, arguments.script)
    if not made["programs"]:
        wanted = f" of {arguments.script}" if arguments.script else ""
        lost = made["left_out"]
        why = f" ({lost[0]['path']}: {lost[0]['reason']})" if lost else ""
        what = f"no run{wanted} in {len(paths)} reports{why}"
        raise RecordingError(what, next_step="see 'profstack history --help'")
    if arguments.format == "json":
        printed = files.text(made)
    elif arguments.format == "csv":
        printed = shown.as_csv(made)
    else:
        width, colour = terminal_of(sys.stdout)
        printed = shown.text(made, width=width, colour=colour)
    page = None
    if arguments.output is not None:
        page = write_both(made, Path(arguments.output), "history", shown.write)
    sys.stdout.write(fitting(printed, sys.stdout.encoding))
    if page is not None:
        if arguments.format == "text":
            print(f"Wrote {page}")
        if arguments.open:
            open_page(page)
    return 0


def _paths(given: Sequence[str]) -> list[Path]:
    """Return what holds a report in the folders given, each once."""
    found: list[Path] = []
    for name in given:
        if not Path(name).exists():
            next_step = "make recordings with 'profstack run script.py'"
            raise RecordingError("no such folder", where=name, next_step=next_step)
        found += files.reports_in(Path(name))
    return list(dict.fromkeys(found))


# Parts that are read of a report, with their keys that are read.
_PARTS = {
    "benchmark": ("median_s", "ci95_low_s", "ci95_high_s", "n"),
    "environment": (), "script": (), "run": ("started_at",), "step": ("batch_size",), "argv": (),
    "verdict": ("slug",), "attribution": ("memory_peak_bytes",),
}  # fmt: skip


def _reports(paths: Sequence[Path], left_out: list[LeftOut]) -> Iterator[tuple[str, Report]]:
    """Yield the reports one by one; add what cannot be read to `left_out`."""
    for path in paths:
        try:
            is_folder = path.is_dir()
            report = files.load(path, _PARTS) if is_folder else files.read(path, "", _PARTS)
        except RecordingError as error:
            left_out.append({"path": str(path), "reason": error.what})
        else:
            yield str(path), report
