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

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from profstack.benchmark.peaks import OTHER_WORK
from profstack.merge.flops import BACKWARD, FORWARD, OTHER_TOOLS, Counted
from profstack.merge.modules import module_paths
from profstack.merge.recorded import Recorded, Selection, nullable
from profstack.merge.rooflinepoint import Roofs, point

# Operators beyond this many, by their time, are in the table of operators alone.
_MOST_OPERATORS = 60
# What a point may leave out of its bytes, as a share of its operators' time.
_LARGEST_GAP = 0.05
_OUTSIDE = "outside modules"
# Operators whose precision is that of cuDNN; all others that multiply go by that of products.
_BY_CUDNN = re.compile("conv|rnn")


@dataclass
class _Work:
    """What operators did per step: bytes, their time, and the time of those without a rule."""

    moved_bytes: float = 0.0
    total_s: float = 0.0
    opaque_s: float = 0.0
    opaque: dict[str, float] = field(default_factory=dict)
    types: dict[str, float] = field(default_factory=dict)
    multiplied: dict[str, float] = field(default_factory=dict)

    def add(self, row: Mapping[str, Any], seconds: float) -> None:
        """Add a row of `moved_bytes`; `seconds` is its time, on the device where there is one."""
        self.total_s += seconds
        if row["moved_bytes"] is None:
            self.opaque_s += seconds
            name = str(row["operator"])
            self.opaque[name] = self.opaque.get(name, 0.0) + seconds
            return
        self.moved_bytes += row["moved_bytes"]
        if (dtype := row["dtype"]) is not None:
            self.types[dtype] = self.types.get(dtype, 0.0) + seconds
            if row["counted"]:
                self.multiplied[dtype] = self.multiplied.get(dtype, 0.0) + seconds

    def dtype(self) -> str | None:
        """The type that most of the time of what is counted went to, or of all if nothing is.

        Products of bfloat16 beside an optimizer of float32 are held back by the peak of bfloat16,
        however long the optimizer takes.
        """
        types = self.multiplied or self.types
        return max(types, key=lambda name: types[name]) if types else None

    def bytes(self) -> tuple[float | None, str | None]:
        """Bytes moved, and what is lacking of them; None where that may be much."""
        if not self.total_s:
            return None, "no operator of it was seen with its inputs"
        gap = self.opaque_s / self.total_s
        names = sorted(self.opaque, key=lambda name: -self.opaque[name])[:3]
        listed = ", ".join(names)
        if gap > _LARGEST_GAP:
            return (
                None,
                f"no rule tells the bytes of {listed}: {100 * gap:.0f} % of its operators' time",
            )
        lacking = f"without the bytes of {listed}, for which there is no rule" if names else None
        return self.moved_bytes, lacking


def roofline(
    recorded: Recorded,
    timed: Selection | None,
    clean_s: float | None,
    record: Counted | None,
    shaped: Counted | None,
    modules: list[dict[str, Any]],
    peaks: dict[str, Any],
    *,
    step_s: float | None = None,
) -> dict[str, Any]:
    """`roofline` of the report.

    `step_s` is the time of a step where it is known better than by the clean steps (`bench`).
    `timed` are the slices of the torch layer that the tables rest on, `record` the counter whose
    operations stand at the modules and `shaped` the one at the operators; `modules` are the rows
    of that table, and `peaks` is what `read_peaks` gave.
    """
    roofs = Roofs(peaks)
    rows = _with_types(_moved_rows(recorded, timed), recorded, shaped, roofs)
    if record is not None and record.counter in OTHER_TOOLS and any(r["backward"] for r in rows):
        # These count no backward pass: their figures belong to a part of the time alone.
        record = None
    flop = _step_flop(record)
    whole = _together(rows)
    points = []
    step_s = clean_s if step_s is None else step_s
    if step_s is not None:
        moved, lacking = whole.bytes()
        points.append(
            point(roofs, "step", "step", whole.dtype(), flop, moved, step_s, "clean", lacking)
        )
    points += _module_points(recorded, rows, modules, record, roofs)
    operators = _operator_points(recorded, rows, timed, clean_s, shaped, roofs)
    return {
        "peaks": peaks,
        "mfu": _mfu(peaks, whole.dtype(), flop, step_s),
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
    peaks: Mapping[str, Any], dtype: str | None, flop: float | None, step_s: float | None
) -> list[dict[str, Any]]:
    """The share of each peak that the step reaches; above 1 something is wrong, and is said."""
    if flop is None or not step_s:
        return []
    rows = []
    for peak in peaks["flop_per_s"]:
        if peak["dtype"] != dtype or not peak["value"]:
            continue
        value = flop / step_s / peak["value"]
        warning = None
        if OTHER_WORK in (peak["how"] or ""):
            warning = (
                "the peak was measured beside other work, and may be higher: then this is less; "
                "next: measure again in an hour, when the machine is idle"
            )
        if value > 1:
            warning = (
                f"the step would reach {100 * value:.0f} % of the {peak['source']} peak: the count "
                "of operations, the time or the peak is wrong; next: see whether other work kept "
                "the peak low when it was measured, and what the counters of operations disagree on"
            )
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


def _moved_rows(recorded: Recorded, timed: Selection | None) -> list[dict[str, Any]]:
    """What moved bytes per step: one per operator, module, direction and type."""
    if timed is None:
        return []
    frame = recorded.rows("moved_bytes", timed)
    keys = ["operator", "module_id", "backward", "dtype"]
    columns = ["calls", "total_s", "device_s", "moved_bytes"]
    unknown = frame["moved_bytes"].isna()
    summed = frame.groupby([*keys, unknown.rename("unknown")], dropna=False)[columns].sum(
        min_count=1
    )
    on_device = bool(frame["device_s"].notna().any())
    rows = []
    for key, totals in zip(summed.index, summed.to_dict("records"), strict=True):
        named = {name: nullable(part) for name, part in zip(keys, key, strict=False)}
        moved = timed.per_step(totals["moved_bytes"])
        time = totals["device_s"] if on_device else totals["total_s"]
        rows.append({**named, "moved_bytes": moved, "seconds": timed.per_step(time) or 0.0})
    return rows


def _with_types(
    rows: list[dict[str, Any]], recorded: Recorded, shaped: Counted | None, roofs: Roofs
) -> list[dict[str, Any]]:
    """The rows with whether their operations are counted, and the type that they multiply in.

    What is stored as float32 is multiplied as TF32 on a GPU that can, where the script lets it.
    """
    facts = recorded.facts.get("environment", {})
    counts = shaped.by_place if shaped is not None else {}
    typed = []
    for row in rows:
        number = None if row["module_id"] is None else int(row["module_id"])
        dtype, counted = row["dtype"], bool(counts.get((row["operator"], number)))
        if dtype == "float32" and counted and roofs.flop_per_s("tf32") is not None:
            # As torch has it where the script says nothing.
            by_cudnn = _BY_CUDNN.search(row["operator"]) is not None
            name = "tf32_convolutions" if by_cudnn else "tf32_products"
            dtype = "tf32" if facts.get(name, by_cudnn) else dtype
        typed.append({**row, "dtype": dtype, "counted": counted})
    return typed


def _together(rows: list[dict[str, Any]]) -> _Work:
    work = _Work()
    for row in rows:
        work.add(row, row["seconds"])
    return work


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
    works: dict[int, _Work] = {}
    for row in rows:
        number = None if row["module_id"] is None else int(row["module_id"])
        while number is not None and number > 0:
            works.setdefault(number, _Work()).add(row, row["seconds"])
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
    works: dict[tuple[str, int | None], _Work] = {}
    for row in rows:
        number = None if row["module_id"] is None else int(row["module_id"])
        works.setdefault((row["operator"], number), _Work()).add(row, row["seconds"])
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
