"""The peaks of the machine that a recording was made on: found after the run, and frozen with it.

They are measured by the parent in a process of its own, once the script has ended, unless they
are known from an earlier run, and stand in `logs/peaks.json` of the recording from then on: a
report made elsewhere, or later, is about the machine of the run.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from profstack.benchmark import peaks
from profstack.benchmark.datasheet import sheet
from profstack.benchmark.peakscache import DTYPES, Machine
from profstack.recording import DATABASE

FILE = Path("logs") / "peaks.json"
_ABOUT_S = 2
# A type that less of the operators' time went to than this has no peak measured for it.
_LEAST_SHARE = 0.01
_SOURCES = ("measured", "datasheet")
NO_TORCH = "the run has no torch in it"


def keep_peaks(
    folder: Path, *, measure: bool = True, tell: Callable[[str], None] | None = None
) -> None:
    """Write the peaks into a recording that is complete, if it has none yet; never raises.

    Peaks that are not known are measured where `measure` says so, after a line to `tell`, and
    PROFSTACK_PEAKS=0 does not forbid it.
    """
    if (folder / FILE).exists():
        return
    measure = measure and os.environ.get("PROFSTACK_PEAKS") != "0"
    try:
        content = _find(folder, measure=measure, tell=tell)
    except Exception as error:
        content = {"reason": f"the peaks could not be found: {type(error).__name__}: {error}"}
    path = folder / FILE
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        whole = path.with_suffix(".part")
        whole.write_text(json.dumps(content), encoding="utf-8")
        os.replace(whole, path)


def read_peaks(folder: Path) -> dict[str, Any]:
    """The peaks of a recording, with all keys of the report's `peaks`."""
    empty: dict[str, Any] = dict.fromkeys(("device", "threads", "torch", "measured_at", "reason"))
    empty.update(flop_per_s=[], bytes_per_s=[])
    try:
        kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
        found = {**empty, **{key: value for key, value in kept.items() if key in empty}}
        for rate in (*found["flop_per_s"], *found["bytes_per_s"]):
            if not math.isfinite(rate["value"]) or rate["source"] not in _SOURCES:
                raise ValueError(rate)
        if all(isinstance(rate["dtype"], str) for rate in found["flop_per_s"]):
            return found
        why = "the file of the peaks is damaged"
    except FileNotFoundError:
        why = "no peaks were measured for this recording"
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        why = "the file of the peaks is damaged"
    return {**empty, "reason": why}


def _find(folder: Path, *, measure: bool, tell: Callable[[str], None] | None) -> dict[str, Any]:
    environment, types = _facts(folder)
    device = environment.get("device")
    if device is None:
        return {"reason": NO_TORCH}
    stated = _stated(environment.get("gpu"))
    if device not in ("cpu", "cuda"):
        return {"device": device, "reason": "peaks are measured on CPUs and on CUDA devices alone"}
    machine = Machine(
        device,
        environment.get("gpu") if device == "cuda" else peaks.processor_name(),
        peaks.processor_name(),
        environment.get("torch_threads") if device == "cpu" else None,
        environment.get("torch"),
    )
    wanted = _wanted(types, device)
    found = peaks.cached(machine, wanted)
    if found is None and measure:
        if tell is not None:
            tell(f"profstack: measuring this machine's peaks, once (about {_ABOUT_S} s)")
        found = peaks.measured(machine, wanted)
    if found is None:
        found = {
            "device": machine.name,
            "threads": machine.threads,
            "torch": machine.torch,
            "reason": "the peaks of this machine are not known, and were not to be measured; "
            "next: profstack run without --no-peaks and without PROFSTACK_PEAKS=0",
        }
    for key, rates in stated.items():
        found[key] = [*found.get(key, []), *rates]
    return found


def _facts(folder: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """The environment as the measured process told it, and the types by their operators' time."""
    database = sqlite3.connect(f"{(folder / DATABASE).resolve().as_uri()}?mode=ro", uri=True)
    try:
        rows = database.execute("SELECT value FROM facts WHERE key = 'environment'").fetchall()
        times = database.execute(
            "SELECT dtype, SUM(total_s) FROM moved_bytes WHERE dtype IS NOT NULL GROUP BY dtype"
        ).fetchall()
    finally:
        database.close()
    environment: dict[str, Any] = json.loads(rows[-1][0]) if rows else {}
    return environment, {str(name): float(total or 0.0) for name, total in times}


def _wanted(types: Mapping[str, float], device: str) -> list[str]:
    """The types to measure, in the order of `DTYPES`; float32 where nothing tells."""
    whole = sum(types.values())
    used = {name for name, time in types.items() if time >= _LEAST_SHARE * whole}
    if device == "cuda" and "float32" in used:
        # Convolutions use it unless the script forbids it, products if the script allows it.
        used.add("tf32")
    return [name for name in DTYPES if name in used] or ["float32"]


def _stated(gpu: str | None) -> dict[str, list[dict[str, Any]]]:
    """What the maker states for the GPU, where its name is known exactly."""
    found = sheet(gpu)
    if found is None:
        return {}
    how = f"{found.source}, dense"
    return {
        "flop_per_s": [
            {"dtype": dtype, "value": value, "source": "datasheet", "how": how}
            for dtype, value in found.flop_per_s.items()
        ],
        "bytes_per_s": [{"value": found.bytes_per_s, "source": "datasheet", "how": found.source}],
    }
