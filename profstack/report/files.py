"""Find recordings; write and read their report.json and report.html."""

from __future__ import annotations

import gzip
import json
import shutil
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from profstack.errors import RecordingError
from profstack.guard import CollectorOff
from profstack.report.html import replace_text
from profstack.report.page import finite
from profstack.storage.folder import DATABASE, RUNS, check_files
from profstack.storage.schema.recorded import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from profstack.storage.schema.comparison import Comparison
    from profstack.storage.schema.history import History
    from profstack.storage.schema.report import Report


def write_report(folder: Path) -> Path:
    """Build the report of the recording in `folder`, write it, and return the page's path.

    Raise RecordingError where there is no recording.
    """
    # Nearly all that is made here is kept until the page is written: a collection would find
    # nothing, and takes a tenth of the time.
    with CollectorOff():
        return _write_report(folder)


def _write_report(folder: Path) -> Path:
    from profstack.report import html

    # The measured process has no time to compress the tools' plain JSON files.
    home = folder.resolve()
    for plain in folder.glob("*/*.json"):
        # What is behind a link is no file of the recording, and is not removed.
        is_own = plain.is_file() and plain.resolve() == home / plain.relative_to(folder)
        if is_own and plain.parent.name != "logs":
            packed = plain.with_name(plain.name + ".gz")
            with open(plain, "rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            plain.unlink()
    report = complete_report(folder)
    write(report, folder / "report.json")
    page = folder / "report.html"
    html.write(report, page)
    return page


# report.json ------------------------------------------------------------------------------------


def write(report: Report | Comparison | History, path: Path) -> None:
    """Write a report to `path` in one go: a reader sees the old file or the new one."""
    replace_text(path, text(report))


def text(report: Report | Comparison | History) -> str:
    """Return the report or the comparison as JSON, with one row of a table per line; null for NaN.

    So two reports can be compared with line tools, and a large one stays readable.
    """
    try:
        entries = [f"{json.dumps(key)}: {_value(value)}" for key, value in report.items()]
    except ValueError:
        entries = [f"{json.dumps(key)}: {_value(value)}" for key, value in finite(report).items()]
    return "{\n" + ",\n".join(entries) + "\n}\n"


def schema() -> dict[str, object]:
    """Return the JSON schema of report.json."""
    file = resources.files("profstack.report").joinpath("report.schema.json")
    return cast(dict[str, object], json.loads(file.read_text(encoding="utf-8")))


# NaN is an error, see `text`.
_row = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_other = json.JSONEncoder(allow_nan=False).encode


def _value(value: object, margin: str = "") -> str:
    """Return JSON with one line per row: only objects that hold lists are spread over lines."""
    if isinstance(value, dict) and any(isinstance(item, list) and item for item in value.values()):
        inner = margin + " "
        entries = (
            f"{inner}{json.dumps(key)}: {_value(item, inner)}" for key, item in value.items()
        )
        return "{\n" + ",\n".join(entries) + f"\n{margin}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        rows = (f"{margin} {_row(row)}" for row in value)
        return "[\n" + ",\n".join(rows) + f"\n{margin}]"
    return _other(value)


def complete_report(folder: Path) -> Report:
    """Return the report of the recording in `folder`, made from the recording alone.

    Raise RecordingError where there is no recording.
    """
    # These import numpy, which takes a while.
    from profstack.analysis.build import build_report
    from profstack.findings.judge import add_findings
    from profstack.storage.reader import Recorded

    try:
        recorded = Recorded(folder)
        report = build_report(recorded)
        add_findings(report, recorded)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # All values are of their types here; figures that contradict each other may still fail.
        raise _cannot_be_made(error, folder) from error
    return report


def _cannot_be_made(error: Exception, folder: Path) -> RecordingError:
    """Return the error of a recording whose tables contradict each other, with the place."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _HERE in frame.filename][-1]
    place = f"{Path(own.filename).name}:{own.lineno}"
    return RecordingError(
        f"no report can be made of its tables ({type(error).__name__} at {place}: {error})",
        where=str(folder),
        next_step="where profstack wrote them as they are, please report this line",
    )


_HERE = str(Path(__file__).parent.parent)


# Reading a report -------------------------------------------------------------------------------

FOLDER_HELP = (
    "folder of a recording, or report.html or report.json in it; a folder of recordings stands "
    "for its newest (default: profstack-runs)"
)

# Parts of a report that are read, each with its keys that are.
Parts = Mapping[str, Sequence[str]]
_NO_PARTS: Parts = {}

# Tables of every version of the report.
_ALWAYS = {"steps", "modules", "operators", "functions", "calls", "lines"}


def build(folder: Path) -> Report:
    """Return the report made from the recording's tables."""
    if not (folder / DATABASE).is_file():
        raise RecordingError(
            f"the tables are missing ({DATABASE})",
            where=str(folder),
            next_step="'profstack show' and 'profstack view' still read report.json",
        )
    return complete_report(folder)


def load(folder: Path, parts: Parts = _NO_PARTS) -> Report:
    """Return the recording's report.json, or the report built anew where there is none.

    Without `parts` it is refused; see `read`.
    """
    check_files(folder)
    path = folder / "report.json"
    remedy = f"write it again with 'profstack report {folder}'"
    return read(path, remedy, parts) if path.exists() else build(folder)


def read(path: Path, remedy: str, parts: Parts = _NO_PARTS) -> Report:
    """Return the report in a file; `remedy` is the next step where it cannot be read.

    What is later than the file is null or empty, but for `parts`: those must be there. Raise
    RecordingError for a report of another kind or with values of other types.
    """
    from profstack.storage.schema.facts import EnvironmentFacts
    from profstack.storage.schema.report import Report
    from profstack.storage.untrusted import check_within, parsed, read_text, typed

    text = read_text(path)
    try:
        report = parsed(text)
        if problem := _problem(report, parts):
            raise ValueError(problem)
        typed(report, Report)
        typed(report["environment"], EnvironmentFacts)
        check_within(row["path"] for row in report["tables"]["artifacts"])
        check_within(row["path"] for layer in report["layers"] for row in layer["artifacts"])
    except ValueError as error:
        raise RecordingError(str(error), where=str(path), next_step=remedy) from None
    return cast("Report", report)


def _problem(report: Any, parts: Parts) -> str | None:
    """Return why a file's content is no report that can be read; None where it is one."""
    tables = report.get("tables") if isinstance(report, dict) else None
    if not isinstance(tables, dict):
        return "not a profstack report"
    version = report.get("schema_version")
    if version != SCHEMA_VERSION:
        return f"of version {version}, this profstack reads version {SCHEMA_VERSION}"
    if not all(isinstance(rows, list) for rows in tables.values()) or not tables.keys() >= _ALWAYS:
        return "its tables are not whole"
    lacking = [name for name in parts if name not in report]
    for name, keys in parts.items():
        if isinstance(part := report.get(name), dict):
            lacking += [f"{name}.{key}" for key in keys if key not in part]
    return f"made by an older profstack, it lacks {', '.join(lacking)}" if lacking else None


# Finding a recording ----------------------------------------------------------------------------

_FILES = (DATABASE, "report.json")
_NEXT_STEP = "make one with 'profstack run script.py'"


def newest_recording(folder: Path) -> Path:
    """Return the recording in `folder` whose database was written last."""
    found = [home for entry in _entries(folder) if (home := _home(entry)) is not None]
    if not found:
        raise RecordingError("no recording yet", where=str(folder), next_step=_NEXT_STEP)
    newest = max(found, key=_written)
    check_files(newest)
    return newest


def recording_folder(given: str | None, *, exactly: bool = False) -> Path:
    """Return the recording named by `given`: its folder or a file in it; None is the newest.

    A folder of recordings means its newest one, unless `exactly` that folder must be a recording.
    """
    if given is None:
        return newest_recording(Path(RUNS))
    path = Path(given)
    if not path.exists():
        raise RecordingError("no such folder", where=given, next_step=_NEXT_STEP)
    folder = path if path.is_dir() else path.parent
    home = _home(folder)
    if home is not None:
        check_files(home)
        return home
    if not exactly and path.is_dir() and any(_home(entry) for entry in _entries(path)):
        return newest_recording(path)
    lacks = f"{DATABASE} is not {'in' if path.is_dir() else 'beside'} it"
    raise RecordingError(f"not a recording: {lacks}", where=given, next_step=_NEXT_STEP)


def reports_in(given: Path) -> list[Path]:
    """Return what holds a report at and below `given`, in the order of names.

    These are folders of recordings, and JSON files that are in none.
    """
    if given.is_file() and given.name not in _FILES:
        return [given]
    home = _home(given if given.is_dir() else given.parent)
    if home is not None:
        return [home]
    try:
        entries = sorted(given.iterdir())
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise RecordingError(what, where=str(given), next_step=_NEXT_STEP) from error
    found = [each for each in entries if each.is_dir() or each.suffix == ".json"]
    # A link may lead back to where it stands.
    return [path for each in found if not each.is_symlink() for path in reports_in(each)]


def all_recordings(given: Path) -> list[Path]:
    """Return the recording at `given`, or all of a folder of recordings in the order of names."""
    if given.is_dir() and _home(given) is None:
        found = (_home(entry) for entry in sorted(_entries(given)))
        if homes := [home for home in found if home is not None]:
            return homes
    return [recording_folder(str(given), exactly=True)]


def _entries(folder: Path) -> list[Path]:
    """Return the folders in `folder`; none where it does not exist or cannot be read."""
    try:
        return [entry for entry in folder.iterdir() if entry.is_dir()]
    except OSError:
        return []


def _home(folder: Path) -> Path | None:
    """Return the folder with the recording's files: of several ranks, that of the lowest."""
    if any((folder / name).is_file() for name in _FILES):
        return folder
    ranks = sorted(entry for entry in _entries(folder) if entry.name.startswith("rank-"))
    return next((rank for rank in ranks if (rank / DATABASE).is_file()), None)


def _written(home: Path) -> float:
    """Return when the recording was last written."""
    for name in _FILES:
        with suppress(OSError):
            return (home / name).stat().st_mtime
    return 0.0
