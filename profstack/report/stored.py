"""What the commands that read a recording share: its report, built when there is none yet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from profstack.errors import RecordingError
from profstack.report.complete import complete_report
from profstack.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FOLDER_HELP = (
    "folder of a recording, or report.html or report.json in it; a folder of recordings stands "
    "for its newest (default: profstack-runs)"
)

# What every version of the report has.
_ALWAYS = ("steps", "modules", "operators", "functions", "calls", "lines")


def build(folder: Path) -> dict[str, Any]:
    """The report made from the recording's tables."""
    if not (folder / "recording.sqlite").is_file():
        raise RecordingError(
            "the tables are missing (recording.sqlite)",
            where=str(folder),
            next_step="'profstack show' and 'profstack view' still read report.json",
        )
    return complete_report(folder)


def load(folder: Path) -> dict[str, Any]:
    """The recording's report.json, or the report built anew where there is none."""
    path = folder / "report.json"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return build(folder)
    except (OSError, UnicodeDecodeError) as error:
        raise RecordingError(f"cannot be read ({error})", where=str(path)) from error
    return _checked(text, path)


def _is_whole(tables: Mapping[str, Any]) -> bool:
    """Whether all are lists of rows, and those that every command reads are among them."""
    return all(isinstance(rows, list) for rows in tables.values()) and all(
        name in tables for name in _ALWAYS
    )


def _checked(text: str, path: Path) -> dict[str, Any]:
    """The parsed report; what is none is said in one line."""
    remedy = f"write it again with 'profstack report {path.parent}'"
    try:
        report = json.loads(text)
    except ValueError as error:
        raise RecordingError(
            f"damaged JSON ({error})", where=str(path), next_step=remedy
        ) from error
    if not isinstance(report, dict) or not isinstance(report.get("tables"), dict):
        raise RecordingError("not a profstack report", where=str(path), next_step=remedy)
    version = report.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RecordingError(
            f"of version {version}, this profstack reads version {SCHEMA_VERSION}",
            where=str(path),
            next_step=remedy,
        )
    if not _is_whole(report["tables"]):
        raise RecordingError("its tables are not whole", where=str(path), next_step=remedy)
    return report
