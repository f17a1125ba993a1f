"""What a recording says of its run itself: what was run, when, and how it ended.

It is a file beside the tables: whoever started the run writes it, not the layers.
"""

from __future__ import annotations

import datetime
import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FILE = Path("logs", "run.json")


def write_run(folder: Path, content: Mapping[str, Any]) -> None:
    """Write what is known of the run that the recording in `folder` is of."""
    (folder / _FILE).write_text(json.dumps(content), encoding="utf-8")


def read_run(folder: Path) -> dict[str, Any]:
    """What was written; nothing of a run whose parent was killed before it could."""
    try:
        run: dict[str, Any] = json.loads((folder / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return run


def run_times(started: float, duration_s: float) -> dict[str, Any]:
    """A run's own number, and when it was; it has just ended."""
    return {
        "id": str(uuid.uuid4()),
        "started_at": iso(started),
        "finished_at": iso(time.time()),
        "duration_s": duration_s,
    }


def exit_facts(code: int) -> dict[str, int | None]:
    """How a process ended whose exit code is negative where a signal killed it."""
    return {"exit_code": code if code >= 0 else None, "signal": -code if code < 0 else None}


def iso(seconds: float) -> str:
    """A moment in seconds since 1970 as the reports write it."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return moment.isoformat(timespec="milliseconds")
