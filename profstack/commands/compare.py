"""`profstack compare`: two sides, one answer: faster or slower, by how much, and why."""

from __future__ import annotations

import glob
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from profstack.commands.options import open_page
from profstack.errors import RecordingError, UsageError
from profstack.report import files

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from profstack.compare.sides import Side
    from profstack.storage.schema.comparison import Comparison

HELP = "Say which of two recordings is faster, by how much beyond noise, and why."

_SIDES_HELP = """\
BEFORE and AFTER are each a recording's folder or its report.json, several of the same
program separated by commas, a quoted pattern ('runs/old-*'), or a folder of recordings,
which stands for all of them. Several a side may also be written one by one:

  profstack compare BEFORE AFTER
  profstack compare BEFORE1 BEFORE2 BEFORE3 --with AFTER1 AFTER2 AFTER3
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = _SIDES_HELP
    parser.add_argument("sides", nargs="*", metavar="SIDE", help="BEFORE AFTER, see below")
    parser.add_argument(
        "--with", nargs="+", dest="after", metavar="AFTER", help="the second side's recordings"
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="write compare.json and compare.html")
    parser.add_argument("--open", action="store_true", help="open the page; needs -o")
    parser.add_argument(
        "--format",
        choices=("text", "json", "markdown", "csv"),
        default="text",
        help="default: text",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Compare, print the answer, and write the files that were asked for."""
    before, after = (read_side(paths) for paths in _sides(arguments))
    from profstack.compare.comparison import compare
    from profstack.compare.noise import remember_spread
    from profstack.report import terminal_compare
    from profstack.report.screen import fitting

    if arguments.open and arguments.output is None:
        raise UsageError("--open needs -o DIR", where="compare", next_step="add '-o comparison'")
    comparison = compare(before, after)
    remember_spread((before, after))
    if arguments.format == "json":
        printed = files.text(comparison)
    elif arguments.format == "csv":
        printed = terminal_compare.as_csv(comparison)
    else:
        printed = terminal_compare.text(comparison)
    sys.stdout.write(fitting(printed, sys.stdout.encoding))
    if arguments.output is not None:
        page = _write(comparison, Path(arguments.output))
        if arguments.format == "text":
            print(f"Wrote {page}")
        if arguments.open:
            open_page(page)
    return 0


def _write(comparison: Comparison, folder: Path) -> Path:
    """Write compare.json and compare.html into a folder, and return the page's path."""
    from profstack.report import compare_page

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"cannot be made ({error.strerror})"
        raise UsageError(
            what, where=str(folder), next_step="choose another folder with -o"
        ) from error
    files.write(comparison, folder / "compare.json")
    page = folder / "compare.html"
    compare_page.write(comparison, page)
    return page


def _sides(arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the paths of both sides as they were given."""
    given, after = arguments.sides, arguments.after
    if after is not None:
        if not given:
            what = "the first side is missing before --with"
            raise UsageError(what, where="compare", next_step="write 'compare BEFORE --with AFTER'")
        return given, after
    if len(given) != 2:
        what = f"two sides are needed, {len(given)} given"
        several = "'compare BEFORE1 BEFORE2 --with AFTER1 AFTER2'"
        next_step = f"write 'compare BEFORE AFTER'; several recordings a side: {several}"
        raise UsageError(what, where="compare", next_step=next_step)
    return [given[0]], [given[1]]


def read_side(paths: Sequence[str], *, label: str | None = None) -> Side:
    """Return the recordings that `paths` name as one side; `label` is what to call it."""
    from profstack.compare.sides import Side

    folders = [folder for path in paths for folder in _recordings(path)]
    folders = list(dict.fromkeys(folders))
    reports = [files.load(folder) for folder in folders]
    names = [str(folder) for folder in folders]
    return Side(label or ", ".join(str(path) for path in paths), reports, names)


def _recordings(given: str) -> list[Path]:
    """Return the recordings that one argument names, in the order of their names."""
    if Path(given).exists():
        return files.all_recordings(Path(given))
    if "," in given:
        return [folder for part in given.split(",") if part for folder in _recordings(part)]
    matches = sorted(glob.glob(given))
    if not matches:
        next_step = "name a recording's folder, or make one with 'profstack run script.py'"
        raise RecordingError("no such recording", where=given, next_step=next_step)
    return [folder for match in matches for folder in files.all_recordings(Path(match))]
