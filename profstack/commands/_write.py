"""Writes the report of a recording: report.json and report.html, and the trace compressed."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import Any


def write_report(folder: Path, page: Path | None = None) -> Path:
    """Build the report of the recording in `folder` and write it; returns the page's path.

    Raises RecordingError where there is no recording.
    """
    from profstack.merge import build_report
    from profstack.report import html, jsonfile

    report = build_report(folder)
    _compress_traces(folder, report)
    jsonfile.write(report, folder / "report.json")
    path = page if page is not None else folder / "report.html"
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(html.render(report), encoding="utf-8")
    # A reader never sees half a page, also when the run's end refreshes it.
    os.replace(partial, path)
    return path


def _compress_traces(folder: Path, report: dict[str, Any]) -> None:
    """Compress what the tools left plain, out of the measured process's way."""
    entries = [*report["tables"]["artifacts"]]
    for layer in report["layers"]:
        entries += layer["artifacts"]
    for entry in entries:
        plain = folder / entry["path"]
        if plain.suffix != ".json":
            continue
        packed = plain.with_name(plain.name + ".gz")
        if plain.is_file():
            with open(plain, "rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            plain.unlink()
        if packed.is_file():
            entry["path"] += ".gz"
            entry["bytes"] = packed.stat().st_size
