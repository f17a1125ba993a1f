"""`profstack import`: add a report of Nsight Systems to a recording, or make one of it alone.

The report is read from its SQLite export, which nsys makes first where there is none.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from profstack.commands.options import open_page
from profstack.errors import UsageError
from profstack.report.files import recording_folder

if TYPE_CHECKING:
    import argparse

    from profstack.readers.nsys.importing import NsysImport

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
    from profstack.readers.nsys import importing
    from profstack.report.files import write_report
    from profstack.report.screen import printable
    from profstack.storage.folder import create_folder, write_run

    given = {"nsys_path": arguments.nsys_path, "process": arguments.process}
    if arguments.into is not None:
        folder = recording_folder(arguments.into, exactly=True)
        facts = importing.import_file(source, folder, **given)
    else:
        # No folder is made where the file cannot be read.
        read = importing.read_file(source, **given)
        name = source.name.split(".")[0] or "nsys"
        folder = create_folder(name, arguments.output, force=arguments.force)
        run = {"run": {"exit_code": None}, "environment": {}}
        write_run(folder, {"script": None, "argv": [], **run})
        importing.write_import(folder, *read)
        facts = read[1]
    page = write_report(folder)
    # The file's name and its version come from outside.
    print(printable(_summary(facts)))
    print(f"Wrote {page}")
    if arguments.open:
        open_page(page)
    return 0


def _summary(facts: NsysImport) -> str:
    """Return what was imported, in one line."""
    steps = "1 step" if facts["steps"] == 1 else f"{facts['steps']:,} steps"
    if not facts["steps"]:
        steps = "no step range, so all figures are of the whole capture"
    version = f" of nsys {facts['version']}" if facts["version"] else ""
    others = facts["other_processes"]
    left = f"; {others} other process{'es' * (others > 1)} left out" if others else ""
    return f"{facts['file']}{version}: {steps}{left}"
