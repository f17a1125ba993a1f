"""Find recordings; write and read their report.json and report.html."""

from __future__ import annotations

import gzip
import json
import shutil
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from profstack.errors import RecordingError
from profstack.guard import CollectorOff
from profstack.report.html import replace_text
from profstack.report.page import finite
from profstack.storage.folder import DATABASE, RUNS
from profstack.storage.schema.recorded import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

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
    for plain in folder.glob("*/*.json"):
        if plain.parent.name != "logs":
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
    entries = (f"{json.dumps(key)}: {_value(value)}" for key, value in finite(report).items())
    return "{\n" + ",\n".join(entries) + "\n}\n"


def schema() -> dict[str, object]:
    """Return the JSON schema of report.json."""
    file = resources.files("profstack.report").joinpath("report.schema.json")
    return cast(dict[str, object], json.loads(file.read_text(encoding="utf-8")))


_row = json.JSONEncoder(separators=(",", ":")).encode


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
    return json.dumps(value)


def complete_report(folder: Path) -> Report:
    """Return the report of the recording in `folder`, made from the recording alone.

    Raise RecordingError where there is no recording.
    """
    # These import pandas, which takes a while.
    from profstack.analysis.build import build_report
    from profstack.findings.judge import add_findings
    from profstack.storage.reader import Recorded

    recorded = Recorded(folder)
    report = build_report(recorded)
    add_findings(report, recorded)
    return report


# Reading a report -------------------------------------------------------------------------------

FOLDER_HELP = (
    "folder of a recording, or report.html or report.json in it; a folder of recordings stands "
    "for its newest (default: profstack-runs)"
)

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


def load(folder: Path) -> Report:
    """Return the recording's report.json, or the report built anew where there is none."""
    path = folder / "report.json"
    remedy = f"write it again with 'profstack report {folder}'"
    return read(path, remedy) if path.exists() else build(folder)


def read(path: Path, remedy: str) -> Report:
    """Return the report in a file; `remedy` is the next step where it cannot be read."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordingError(f"cannot be read ({error})", where=str(path)) from error
    try:
        report = json.loads(content)
    except ValueError as error:
        what = f"damaged JSON ({error})"
        raise RecordingError(what, where=str(path), next_step=remedy) from error
    if problem := _problem(report):
        raise RecordingError(problem, where=str(path), next_step=remedy)
    return cast("Report", report)


def _problem(report: Any) -> str | None:
    """Return why a file's content is no report that can be read; None where it is one."""
    tables = report.get("tables") if isinstance(report, dict) else None
    if not isinstance(tables, dict):
        return "not a profstack report"
    version = report.get("schema_version")
    if version != SCHEMA_VERSION:
        return f"of version {version}, this profstack reads version {SCHEMA_VERSION}"
    if not all(isinstance(rows, list) for rows in tables.values()) or not tables.keys() >= _ALWAYS:
        return "its tables are not whole"
    return None


def lacking(
    report: Report, parts: Mapping[str, Sequence[str]], may_be_null: Collection[str] = ()
) -> str | None:
    """Return why a report of an older version cannot be used; None where it has what is read.

    `parts` are the parts that are read, each with its keys that are.
    """
    given = cast("Mapping[str, object]", report)
    found = [name for name in parts if name not in given]
    for name, keys in parts.items():
        part = given.get(name)
        if isinstance(part, dict):
            found += [f"{name}.{key}" for key in keys if key not in part]
        elif name in given and part is None and name not in may_be_null:
            found.append(name)
    return f"made by an older profstack, it lacks {', '.join(found)}" if found else None


# Finding a recording ----------------------------------------------------------------------------

_FILES = (DATABASE, "report.json")
_NEXT_STEP = "make one with 'profstack run script.py'"


def newest_recording(folder: Path) -> Path:
    """Return the recording in `folder` whose database was written last."""
    found = [home for entry in _entries(folder) if (home := _home(entry)) is not None]
    if not found:
        raise RecordingError("no recording yet", where=str(folder), next_step=_NEXT_STEP)
    return max(found, key=_written)


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
