"""`profstack import`: takes in what another tool recorded, into a recording or as one of its own.

What Nsight Systems wrote is read from its SQLite export; a report is exported first.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from profstack.errors import UsageError
from profstack.report.newest import recording_folder

if TYPE_CHECKING:
    import argparse

HELP = "Take in a report of Nsight Systems: its ranges, kernels, copies and calls."

_FILES_HELP = """\
FILE is an export (nsys export --type sqlite) or a report (.nsys-rep, .qdrep, .qdstrm), which is
exported first where nsys is found. Nothing of the environment that the file holds, and nothing of
processes other than the one with profstack's ranges, is taken in.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = _FILES_HELP
    add = parser.add_argument
    add("file", metavar="FILE", help="export or report of Nsight Systems")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--into", metavar="DIR", help="recording of the same program to add it to")
    where.add_argument("-o", "--output", metavar="DIR", help="folder of a recording of its own")
    add("--force", action="store_true", help="replace the recording in --output")
    add(
        "--process",
        type=int,
        metavar="PID",
        help="of several processes this one (default: the one with profstack's ranges)",
    )
    add("--nsys-path", metavar="PATH", help="nsys, or the folder it is in (default: found)")
    add("--open", action="store_true", help="open the page in a browser")


def execute(arguments: argparse.Namespace) -> int:
    """Import the file and write the page."""
    source = Path(arguments.file)
    if not source.is_file():
        what = "no such file"
        if source.exists():
            what = "a folder, no file" if source.is_dir() else "no regular file"
        raise UsageError(
            what,
            where=arguments.file,
            next_step="give an export or a report of Nsight Systems (.sqlite, .nsys-rep)",
        )
    if arguments.force and arguments.output is None:
        raise UsageError("--force needs --output", where="import", next_step="name the folder")
    if arguments.into is not None:
        folder, fact = _into(source, arguments)
    else:
        folder, fact = _alone(source, arguments)
    from profstack.report.textparts import printable
    from profstack.report.write import write_report

    page = write_report(folder)
    # Both the file's name and its version are others' words.
    print(printable(_told(fact)))
    print(f"Wrote {page}")
    if arguments.open:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    return 0


def _into(source: Path, arguments: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """Add it to a recording that is there."""
    from profstack.nsys.importing import import_file

    folder = recording_folder(arguments.into, exactly=True)
    return folder, import_file(
        source, folder, nsys_path=arguments.nsys_path, process=arguments.process
    )


def _alone(source: Path, arguments: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """Make a recording of nothing else; where the file cannot be read none is made."""
    from profstack.nsys.importing import read_file, write_import
    from profstack.recording import create_folder
    from profstack.runfacts import write_run

    read = read_file(source, nsys_path=arguments.nsys_path, process=arguments.process)
    name = source.name.split(".")[0] or "nsys"
    folder = create_folder(name, arguments.output, force=arguments.force)
    content: dict[str, Any] = {
        "script": None,
        "argv": [],
        "run": {"exit_code": None},
        "environment": {},
    }
    write_run(folder, content)
    write_import(folder, *read)
    return folder, read[1]


def _told(fact: dict[str, Any]) -> str:
    """What was taken in, in one line."""
    if fact["steps"]:
        much = "1 step" if fact["steps"] == 1 else f"{fact['steps']:,} steps"
    else:
        much = "no step range, so all figures are of the whole capture"
    version = f" of nsys {fact['version']}" if fact["version"] else ""
    others = fact["other_processes"]
    left = f"; {others} other process{'es' * (others > 1)} left out" if others else ""
    return f"{fact['file']}{version}: {much}{left}"
