"""The roofline: what the step, its modules and its operators reach of what the machine can do.

A point is work (floating-point operations, bytes moved) over time. Its intensity is operations
per byte; the roof over it is the machine's peak rate, or its memory's rate times the intensity
where that is lower; both as measured on this machine, or as stated for a GPU that was not
measured. Which roof holds a point back:

- compute: its intensity is above the ridge, and the roof explains at least half of its time;
- memory: its intensity is below the ridge, and the roof explains at least half of its time;
- overhead: the roof explains less than half: the rest is launching, waiting, Python, or kernels
  that use the machine badly;
- none, with a reason, where operations, bytes, time or a peak are not known. Without a count of
  operations a point whose bytes alone explain half of its time is memory-bound all the same.

Bytes are those of every operator by itself, all its inputs and outputs, and a module's are the
sum over its operators. That is an upper bound on the traffic of the memory: what caches keep from
one operator to the next never reaches it, so a point may lie above the memory's roof. Then it is
the peak that holds it back, if that explains half of its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from profstack.benchmark.peaks import OTHER_WORK
from profstack.merge.flops import BACKWARD, FORWARD, OTHER_TOOLS, Counted
from profstack.merge.modules import module_paths
from profstack.merge.movedbytes import Work, moved_rows, together
from profstack.merge.recorded import Recorded, Selection
from profstack.merge.rooflinepoint import Roofs, point

# Operators beyond this many, by their time, are in the table of operators alone.
_MOST_OPERATORS = 60
_OUTSIDE = "outside modules"


def roofline(
    recorded: Recorded,
    timed: Selection | None,
    clean_s: float | None,
    record: Counted | None,
    shaped: Counted | None,
    unlike: str | None,
    modules: list[dict[str, Any]],
    peaks: dict[str, Any],
) -> dict[str, Any]:
    """`roofline` of the report.

    `timed` are the slices of the torch layer that the tables rest on, `record` the counter whose
    operations stand at the modules and `shaped` the one at the operators; `unlike` says why these
    are no operations of the clean steps. `modules` are the rows of that table, and `peaks` is what
    `read_peaks` gave.
    """
    roofs = Roofs(peaks)
    rows = moved_rows(recorded, timed, shaped, roofs)
    if record is not None and record.counter in OTHER_TOOLS and any(r["backward"] for r in rows):
        # These count no backward pass: their figures belong to a part of the time alone.
        record = None
    flop = _step_flop(record)
    whole = together(rows)
    points = []
    if clean_s is not None:
        moved, lacking = whole.bytes()
        step = point(roofs, "step", "step", whole.dtype(), flop, moved, clean_s, "clean", lacking)
        if unlike is not None:
            step.update(flop_per_s=None, share_of_peak=None, bound=None, reason=unlike)
        points.append(step)
    points += _module_points(recorded, rows, modules, record, roofs)
    operators = _operator_points(recorded, rows, timed, clean_s, shaped, roofs)
    return {
        "peaks": peaks,
        "mfu": _mfu(peaks, whole.dtype(), flop, clean_s, unlike),
        "points": [*points, *operators[:_MOST_OPERATORS]],
        "bounds": _bounds(operators, roofs),
        "reason": None
        if points or operators
        else "there is neither a clean time nor a slice of the torch layer",
    }


def _step_flop(record: Counted | None) -> float | None:
    if record is None:
        return None
    both = [record.total(direction) for direction in (FORWARD, BACKWARD)]
    known = [one for one in both if one is not None]
    return sum(known) if known else None


def _mfu(
    peaks: Mapping[str, Any],
    dtype: str | None,
    flop: float | None,
    step_s: float | None,
    unlike: str | None,
) -> list[dict[str, Any]]:
    """The share of each peak that the step reaches; above 1 it is none, and that is said."""
    if flop is None or not step_s:
        return []
    rows = []
    for peak in peaks["flop_per_s"]:
        if peak["dtype"] != dtype or not peak["value"]:
            continue
        value: float | None = flop / step_s / peak["value"]
        warning = None
        if OTHER_WORK in (peak["how"] or ""):
            warning = (
                "the peak was measured beside other work, and may be higher: then this is less; "
                "next: measure again in an hour, when the machine is idle"
            )
        if unlike is not None:
            value, warning = None, unlike
        elif value is not None and value > 1:
            warning = (
                f"no share: the step would do more than the {peak['source']} peak, so the count of "
                "operations, the time or the peak is wrong; next: see whether other work kept "
                "the peak low when it was measured, and what the counters of operations disagree on"
            )
            value = None
        rows.append(
            {
                "source": peak["source"],
                "dtype": peak["dtype"],
                "value": value,
                "flop": flop,
                "seconds": step_s,
                "warning": warning,
            }
        )
    return rows


def _bounds(operators: list[dict[str, Any]], roofs: Roofs) -> dict[str, float] | None:
    """Seconds per step of all operators by what holds them back; None where no roof is known."""
    if roofs.bytes_per_s is None or not any(row["seconds"] for row in operators):
        return None
    sums = dict.fromkeys(("compute_s", "memory_s", "overhead_s", "unknown_s"), 0.0)
    for row in operators:
        sums[f"{row['bound'] or 'unknown'}_s"] += row["seconds"] or 0.0
    return sums


def _module_points(
    recorded: Recorded,
    rows: list[dict[str, Any]],
    modules: list[dict[str, Any]],
    record: Counted | None,
    roofs: Roofs,
) -> list[dict[str, Any]]:
    """A point for every root and every module without modules inside."""
    paths = {path: number for number, path in module_paths(recorded).items()}
    known = recorded.frames["modules"]
    parents = {
        int(number): None if pd.isna(parent) else int(parent)
        for number, parent in zip(known["module_id"], known["parent_id"], strict=True)
    }
    works: dict[int, Work] = {}
    for row in rows:
        number = None if row["module_id"] is None else int(row["module_id"])
        while number is not None and number > 0:
            works.setdefault(number, Work()).add(row)
            number = parents.get(number)
    inner = {parents[number] for number in works if parents.get(number) is not None}
    points = []
    for row in modules:
        number = paths.get(row["path"])
        if number not in works or (row["depth"] > 0 and number in inner):
            continue
        work = works[number]
        flop = None
        if record is not None:
            both = [record.modules.get((number, way)) for way in (FORWARD, BACKWARD)]
            flop = sum(one or 0.0 for one in both) if any(one is not None for one in both) else None
        moved, lacking = work.bytes()
        device = [row.get("forward_device_s"), row.get("backward_device_s")]
        seconds = row.get("calibrated_s")
        if any(device):
            seconds = sum(one or 0.0 for one in device)
        points.append(
            point(
                roofs,
                "module",
                row["path"],
                work.dtype(),
                flop,
                moved,
                seconds,
                "device" if any(device) else "calibrated",
                lacking,
            )
        )
    return points


def _operator_points(
    recorded: Recorded,
    rows: list[dict[str, Any]],
    timed: Selection | None,
    clean_s: float | None,
    shaped: Counted | None,
    roofs: Roofs,
) -> list[dict[str, Any]]:
    """A point for each operator of each module, those with most time first."""
    if timed is None:
        return []
    paths = module_paths(recorded)
    works: dict[tuple[str, int | None], Work] = {}
    for row in rows:
        number = None if row["module_id"] is None else int(row["module_id"])
        works.setdefault((row["operator"], number), Work()).add(row)
    heaviest = sorted(works, key=lambda place: -works[place].total_s)
    on_device = bool(recorded.rows("moved_bytes", timed)["device_s"].notna().any())
    points = []
    for place in heaviest:
        name, number = place
        work = works[place]
        if not work.moved_bytes and not work.opaque_s:
            # Views and memory that is only taken: no work that a roof could hold back.
            continue
        moved, lacking = work.bytes()
        where = paths.get(number, _OUTSIDE) if number is not None else _OUTSIDE
        seconds: float | None = work.total_s
        if not on_device:
            seconds = timed.calibrated(work.total_s * timed.steps, clean_s)
        points.append(
            point(
                roofs,
                "operator",
                f"{name} in {where}",
                work.dtype(),
                shaped.by_place.get(place) if shaped is not None else None,
                moved,
                seconds,
                "device" if on_device else "calibrated",
                lacking,
            )
        )
    return points
