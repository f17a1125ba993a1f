"""Writes the report of a recording into its folder: report.json and report.html."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path


def write_report(folder: Path) -> Path:
    """Build the report of the recording in `folder` and write it; returns the page's path.

    Raises RecordingError where there is no recording.
    """
    from profstack.report import html, jsonfile
    from profstack.report.complete import complete_report

    _compress_traces(folder)
    report = complete_report(folder)
    jsonfile.write(report, folder / "report.json")
    page = folder / "report.html"
    html.write(report, page)
    return page


def _compress_traces(folder: Path) -> None:
    """Compress what the tools left plain, out of the measured process's way."""
    for plain in folder.glob("*/*.json"):
        if plain.parent.name == "logs":
            continue
        packed = plain.with_name(plain.name + ".gz")
        with open(plain, "rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        plain.unlink()
