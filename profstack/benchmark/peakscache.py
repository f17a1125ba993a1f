"""What is kept of a machine's peaks, in one file of the user's cache folder.

Entries are by device, CPU, threads, version of torch and type. The file is whole at every moment,
what is damaged in it is as if it were not there, and where there is no folder for it nothing is
kept: then only time is lost.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# TF32 is how tensor cores multiply numbers that are stored as float32.
DTYPES = ("float32", "tf32", "bfloat16", "float16", "float64")
MEMORY = "memory"

_VERSION = 1
_RETRIED_S = 3600.0


@dataclass(frozen=True)
class Machine:
    """What the peaks depend on. `device` is cpu or cuda; `threads` is None on a GPU."""

    device: str
    name: str | None
    cpu: str | None
    threads: int | None
    torch: str | None

    def key(self, dtype: str) -> str:
        """What one rate is kept under."""
        threads = "" if self.threads is None else str(self.threads)
        parts = (self.device, self.name or "", self.cpu or "", threads, self.torch or "", dtype)
        return " | ".join(parts)


def cache_path() -> Path | None:
    """The file that peaks are kept in; None where the user has no folder for such files."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with contextlib.suppress(RuntimeError):
        # A relative one is to be ignored: it would be another in every folder.
        folder = folder if folder.is_absolute() else Path.home() / ".cache"
        return folder / "profstack" / "peaks.json"
    return None


def known(machine: Machine) -> dict[str, dict[str, Any]]:
    """What need not be measured again on `machine`, by type."""
    kept = _read_cache()
    rates = {dtype: kept.get(machine.key(dtype)) for dtype in (*DTYPES, MEMORY)}
    return {dtype: rate for dtype, rate in rates.items() if rate is not None and not _is_old(rate)}


def _is_old(rate: dict[str, Any]) -> bool:
    """Whether a rate was measured beside other work or not at all, and some time ago.

    It may be better now: memory that was full is free again.
    """
    if not rate["disturbed"] and rate["value"] is not None:
        return False
    try:
        tried_at = datetime.datetime.fromisoformat(rate.get("tried_at") or rate["measured_at"])
        age = datetime.datetime.now(datetime.timezone.utc) - tried_at
    except (TypeError, ValueError):
        return True
    return age.total_seconds() > _RETRIED_S


def _read_cache() -> dict[str, dict[str, Any]]:
    """All that is kept; nothing of a file that is damaged or of another version."""
    path = cache_path()
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path else {}
        if content.get("version") != _VERSION:
            return {}
        return {str(key): entry for key, entry in content["peaks"].items() if _is_whole(entry)}
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return {}


def _is_whole(entry: dict[str, Any]) -> bool:
    if not {"dtype", "value", "how", "measured_at", "disturbed"} <= entry.keys():
        return False
    value = entry["value"]
    return value is None or (isinstance(value, float) and math.isfinite(value) and value > 0)


def keep(machine: Machine, entries: Iterable[dict[str, Any]]) -> None:
    """Add to what is kept; the file is whole at every moment, and what fails costs only time."""
    path = cache_path()
    if path is None:
        return
    kept = {**_read_cache(), **{machine.key(entry["dtype"]): entry for entry in entries}}
    text = json.dumps({"version": _VERSION, "peaks": kept}, indent=1)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix="peaks-", delete=False
        ) as file:
            name = file.name
            try:
                file.write(text)
                file.close()
                os.replace(name, path)
            except OSError:
                # A full disk, mostly.
                os.unlink(name)


def better(machine: Machine, entry: dict[str, Any]) -> dict[str, Any]:
    """Of a rate and one that was measured before, the higher counts."""
    # The machine did reach it, and other work only ever slows one down.
    before = _read_cache().get(machine.key(entry["dtype"]))
    if before is None or (before["value"] or 0) <= (entry["value"] or 0):
        return entry
    return {**before, "tried_at": entry["measured_at"]}
