"""`profstack report`: write report.json and report.html of a recording again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from profstack.commands.merge import is_of_others, merged_report, rank_folders
from profstack.commands.options import open_page
from profstack.report import files
from profstack.storage.folder import DATABASE

if TYPE_CHECKING:
    import argparse

HELP = "Write report.json and report.html again from a recording's tables."


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("folder", nargs="?", metavar="DIR", help=files.FOLDER_HELP)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the page there and leave the recording as is"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


def execute(arguments: argparse.Namespace) -> int:
    """Build the report and write it."""
    from profstack.launch.background_peaks import take_in
    from profstack.report import html

    folder = files.recording_folder(arguments.folder)
    of_ranks = not (folder / DATABASE).is_file() and rank_folders(folder)
    if arguments.output is None:
        for rank in of_ranks or ():
            files.write_report(rank)
        take_in(folder)
    report = merged_report(folder) if of_ranks else files.build(folder)
    if not of_ranks and is_of_others(report, folder):
        report = merged_report(folder)
    page = folder if arguments.output is None else Path(arguments.output)
    if page.is_dir():
        page = page / "report.html"
    if arguments.output is None:
        files.write(report, folder / "report.json")
    html.write(report, page, recording=folder)
    if arguments.open:
        open_page(page)
    print(f"Wrote {page}")
    return 0
