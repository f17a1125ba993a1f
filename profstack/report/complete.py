"""The whole report of a recording: its tables and figures, and what is found in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def complete_report(folder: Path) -> dict[str, Any]:
    """Everything `report.json` holds, from the recording in `folder` alone.

    Raises RecordingError where there is no recording.
    """
    # pandas comes with them: only a command that needs it may pay for it.
    from profstack.findings import add_findings
    from profstack.merge import build_report

    report = build_report(folder)
    add_findings(report, folder)
    return report
