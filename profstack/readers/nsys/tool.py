"""Find Nsight Systems on this machine, and export its reports to SQLite with it.

An export is always made anew and into a folder of ours: a file beside a report may be of another
run, and holds the whole environment of that run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from profstack.errors import ProfstackError, UsageError

NAME = "nsys"
INSTALL = (
    "install Nsight Systems (the package nsight-systems, or nsight-systems-cli of NVIDIA), "
    "or name it with --nsys-path"
)
INSTALL_IMPORTER = (
    "install the host part of Nsight Systems too (the package nsight-systems, which has "
    "QdstrmImporter), or open the file on a machine that has it"
)
# Where packages of Debian, of NVIDIA and of CUDA put it, if not on the path.
_USUAL = (
    "/opt/nvidia/nsight-systems/*/bin",
    "/opt/nvidia/nsight-systems-cli/*/bin",
    "/opt/nvidia/nsight-systems*/bin",
    "/usr/lib/nsight-systems/bin",
    "/usr/local/cuda*/bin",
)
_IMPORTER = "QdstrmImporter"
# Advice where a tool cannot read a file.
_ASK = "is it whole, and of this nsys or an older one?"
_VERSION_TIMEOUT_S = 30
# A report of some gigabytes takes many minutes.
_EXPORT_TIMEOUT_S = 3600


class NsysError(ProfstackError):
    """Nsight Systems is missing, or failed."""


@dataclass(frozen=True)
class Nsys:
    """An nsys that works: `importer` makes reports of its `.qdstrm` files, if there is one."""

    path: str
    version: str | None
    importer: str | None

    @property
    def lacks_importer(self) -> bool:
        """Return whether its importer is missing for sure; of a wrapper script it is not known."""
        if self.importer is not None:
            return False
        with open(self.path, "rb") as file:
            return file.read(2) != b"#!"


def find_nsys(given: str | None = None) -> Nsys:
    """Find the nsys at `given` (the program or its folder), on the path, or in a usual folder.

    Raises UsageError where `given` is no nsys, and NsysError where none is found or none works.
    """
    if given is not None:
        path = _program_in(given)
        if path is None:
            raise UsageError(
                "no nsys there", where=f"--nsys-path {given}", next_step="name it or its folder"
            )
        return _checked(path)
    problem = None
    for path in _candidates():
        try:
            return _checked(path)
        except NsysError as error:
            problem = problem or error
    raise problem or NsysError("Nsight Systems (nsys) was not found", next_step=INSTALL)


def sqlite_of(report: Path, folder: Path, *, nsys_path: str | None = None) -> Path:
    """Export the report (`.nsys-rep`, `.qdrep` or `.qdstrm`) into `folder`.

    Raises NsysError where there is no nsys, or it cannot read the report.
    """
    try:
        nsys = find_nsys(nsys_path)
    except NsysError as error:
        raise NsysError(
            f"only Nsight Systems itself can read this, and {error.what}",
            where=str(report),
            next_step=f"{INSTALL}; or export it where it was made: "
            f"nsys export --type sqlite --force-overwrite true {report.name}",
        ) from None
    if report.suffix == ".qdstrm":
        report = report_of(report, folder, nsys)
    exported = folder / f"{report.stem}.sqlite"
    options = ["export", "--type", "sqlite", "--force-overwrite", "true"]
    _run([nsys.path, *options, "-o", str(exported), str(report)], report, _EXPORT_TIMEOUT_S)
    if not exported.is_file():
        raise NsysError(f"nsys {nsys.version} exported nothing", where=str(report), next_step=_ASK)
    return exported


def report_of(recorded: Path, folder: Path, nsys: Nsys) -> Path:
    """Make a report of a `.qdstrm`, which nsys leaves where it has no importer.

    Raises NsysError where the importer is not found, or cannot read the file.
    """
    if nsys.importer is None:
        raise NsysError(
            f"{_IMPORTER} of nsys {nsys.version} is not installed",
            where=str(recorded),
            next_step=INSTALL_IMPORTER,
        )
    report = folder / f"{recorded.stem}.nsys-rep"
    # The importer asks before it overwrites a file.
    report.unlink(missing_ok=True)
    _run([nsys.importer, "-i", str(recorded), "-o", str(report)], recorded, _EXPORT_TIMEOUT_S)
    if not report.is_file():
        raise NsysError(f"{_IMPORTER} made no report", where=str(recorded), next_step=_ASK)
    return report


def importer_of(path: str) -> str | None:
    """Find the importer of the nsys at `path`, which Debian keeps in another folder."""
    for start in dict.fromkeys((os.path.realpath(path), os.path.abspath(path))):
        for above in Path(start).parents:
            # One that is installed elsewhere may be of another version.
            top = Path(start).relative_to(above).parts[0]
            inner = ("", "lib/nsight-systems/") if top in ("bin", "lib", "lib64") else ("",)
            for folder in inner:
                for found in sorted(above.glob(f"{folder}host-linux-*/{_IMPORTER}")):
                    return str(found)
    return None


def last_line(text: str) -> str:
    """Return the last line of a tool's output; progress bars end in carriage returns.

    Of an exception it is the name: the lines in brackets after it are places in the tool.
    """
    lines = [line.strip() for line in re.split(r"[\r\n]+", text)]
    texts = [line for line in lines if line and not line.startswith("[")]
    return texts[-1].removeprefix("std::exception::what: ") if texts else "it said nothing"


def _program_in(given: str) -> str | None:
    for path in (given, os.path.join(given, NAME), os.path.join(given, "bin", NAME)):
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    return None


def _candidates() -> Iterator[str]:
    """Yield every nsys here: that on the path first, then those in usual folders, newest first."""
    seen = set()
    on_path = shutil.which(NAME)
    if on_path is not None:
        seen.add(os.path.realpath(on_path))
        yield on_path
    root = Path("/")
    folders = {folder for pattern in _USUAL for folder in root.glob(pattern.lstrip("/"))}
    for folder in sorted(folders, key=_release_in, reverse=True):
        path = _program_in(str(folder))
        if path is not None and os.path.realpath(path) not in seen:
            seen.add(os.path.realpath(path))
            yield path


def _release_in(folder: Path) -> tuple[tuple[int, ...], str]:
    """Return the release in a folder's name; not that of a CUDA it came with, nor a mere year."""
    found = re.search(r"(?<!\d)(20\d\d(?:\.\d+)+)", str(folder))
    return tuple(int(number) for number in found[1].split(".")) if found else (), str(folder)


def _checked(path: str) -> Nsys:
    output = _run([path, "--version"], Path(path), _VERSION_TIMEOUT_S, INSTALL)
    found = re.search(r"\d{4}\.\d\S*", output)
    return Nsys(path, found[0] if found else None, importer_of(path))


def _run(command: Sequence[str], where: Path, timeout_s: int, next_step: str = _ASK) -> str:
    """Run a tool and return its output. Raises NsysError, with its last line, where it fails."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        what = f"{Path(command[0]).name} did not end within {timeout_s} s"
        raise NsysError(what, where=str(where)) from None
    except OSError as error:
        raise NsysError(f"does not start: {error}", where=command[0], next_step=INSTALL) from None
    if done.returncode:
        reason = last_line(done.stderr if done.stderr.strip() else done.stdout)
        what = f"{Path(command[0]).name} ended with code {done.returncode}: {reason}"
        raise NsysError(what, where=str(where), next_step=next_step)
    return done.stdout
