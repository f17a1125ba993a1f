"""Options, the parser and the output that several commands share."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO, TypeVar

from profstack import layer
from profstack.errors import ProfstackError, UsageError

if TYPE_CHECKING:
    from profstack.storage.schema.comparison import Comparison
    from profstack.storage.schema.history import History


def chosen_layers(layers: str | None, skip: str | None) -> tuple[list[str], dict[str, str]]:
    """Return the layers asked for, and those left out with the reason of each.

    Raise UsageError for an unknown name.
    """
    picked = layer.pick(layers.split(",") if layers else None, skip.split(",") if skip else ())
    kept, left_out = layer.beside_nsys(picked)
    if left_out and not kept:
        raise UsageError(
            f"under Nsight Systems there is no layer {' or '.join(left_out)}",
            next_step=f"the layers are {', '.join(layer.BESIDE_NSYS)} there",
        )
    return kept, left_out


def add_recording_options(group: argparse._ActionsContainer) -> None:
    """Add the options of the commands that measure: the recording, its page, and the output."""
    add = group.add_argument
    add("-o", "--output", metavar="DIR", help="folder of the recording (default: profstack-runs/)")
    add("--force", action="store_true", help="replace the recording in --output")
    add("--open", action="store_true", help="open the page when it is written")
    add("-q", "--quiet", action="store_true", help="no progress and no summary")


def count(text: str) -> int:
    """Return a whole number above 0."""
    return int(_above_0(text, int))


def number(text: str) -> float:
    """Return a number above 0."""
    return _above_0(text, float)


def _above_0(text: str, kind: type[int] | type[float]) -> float:
    try:
        value = kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no number") from None
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


class CommandParser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `UsageError` instead of printing its usage and exiting.

    Options cannot be abbreviated: a script's `--max` must never be taken for `--max-steps`.
    """

    def __init__(self, command: str, description: str) -> None:
        super().__init__(
            prog=f"profstack {command}",
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise the message as an error of this command that names its help."""
        command = self.prog.removeprefix("profstack ")
        raise UsageError(message, where=command, next_step=f"see '{self.prog} --help'")


# -----------------------------------------------------------------------------
# What several commands print or open: text for the terminal's width, pages, and failures.
# -----------------------------------------------------------------------------


def tell(line: str) -> None:
    """Print a line on standard error at once."""
    print(line, file=sys.stderr, flush=True)


def make_output(folder: Path) -> None:
    """Make the folder of `-o`; raise UsageError where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what, next_step = f"cannot be made ({error.strerror})", "choose another folder with -o"
        raise UsageError(what, where=str(folder), next_step=next_step) from error


Content = TypeVar("Content", "Comparison", "History")


def write_both(
    content: Content, folder: Path, name: str, write_page: Callable[[Content, Path], None]
) -> Path:
    """Write NAME.json and NAME.html into a folder, and return the page's path."""
    from profstack.report import files

    make_output(folder)
    files.write(content, folder / f"{name}.json")
    page = folder / f"{name}.html"
    write_page(content, page)
    return page


def open_page(page: Path) -> None:
    """Open a page in the browser."""
    import webbrowser

    webbrowser.open(page.resolve().as_uri())


def terminal_of(stream: TextIO, width: int = 80) -> tuple[int, bool]:
    """Return width and colour of a stream; without colour and of this width if no terminal."""
    from profstack.report.screen import colourful

    if not stream.isatty():
        return width, False
    return shutil.get_terminal_size().columns, colourful(stream)


def shown(text_of: Callable[..., str], report: object, stream: TextIO) -> str:
    """Return a report as text for a stream, of the terminal's width even where it is none."""
    from profstack.report.screen import colourful, fitting

    width = shutil.get_terminal_size((80, 24)).columns
    text = text_of(report, width=width, colour=colourful(stream))
    return fitting(text.rstrip(), stream.encoding)


def not_written(folder: Path, error: Exception) -> str:
    """Return a line on a failed page: the error, and the command that writes the page again."""
    if isinstance(error, ProfstackError):
        # Its own next step is for another command.
        why = f"{error.where}: {error.what}" if error.where else error.what
    else:
        why = f"{type(error).__name__}: {error}"
    again = f"profstack report {shlex.quote(str(folder))}"
    return (
        f"profstack: the page was not written ({' '.join(why.split())}); "
        f"the recording is kept, to write it again: {again}"
    )
