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
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, cast

from profstack.analysis.flops import BACKWARD, FORWARD, OTHER_TOOLS, Counted
from profstack.errors import RecordingError
from profstack.storage.folder import PEAKS
from profstack.storage.reader import NO_SLICES, Recorded, Selection, known, known_sum
from profstack.storage.schema.report import Bounds, Peaks, Roofline, RooflinePoint, Utilization
from profstack.storage.schema.rows import ModuleRow
from profstack.storage.untrusted import read_json
from profstack.storage.vocabulary import OTHER_WORK

# --- Points: rate, roof, and what holds each back -------------------------------------------------

Bound = Literal["compute", "memory", "overhead"]
Kind = Literal["step", "module", "operator"]
Seconds = Literal["clean", "calibrated", "device"]
# A roof holds a point back where it explains at least this share of the point's time.
EXPLAINS = 0.5

_CACHED = "it finds its data in caches"
_NO_TIME = "its time is not calibrated: too few steps, or too much disturbed"


class Roofs:
    """The rates that hold a point back: as measured, or as stated where nothing was measured."""

    def __init__(self, peaks: Peaks) -> None:
        # By type, or `tf32`. A measured rate replaces a stated one.
        self.flop_per_s: dict[str | None, float] = {}
        for source in ("datasheet", "measured"):
            for peak in peaks["flop_per_s"]:
                if peak["source"] == source and peak["value"]:
                    self.flop_per_s[peak["dtype"]] = peak["value"]
        rates = {peak["source"]: peak["value"] for peak in peaks["bytes_per_s"]}
        self.bytes_per_s: float | None = rates.get("measured") or rates.get("datasheet")


def point(
    roofs: Roofs,
    kind: Kind,
    name: str,
    dtype: str | None,
    flop: float | None,
    moved: float | None,
    seconds: float | None,
    seconds_is: Seconds,
    lacking: str | None,
) -> RooflinePoint:
    """Return a row of `points`; `lacking` says what `moved` leaves out, or why it is None."""
    seconds = seconds if seconds is not None and seconds > 0 else None
    row: RooflinePoint = {
        "kind": kind,
        "name": name,
        "dtype": dtype,
        "flop": flop,
        "moved_bytes": moved,
        "seconds": seconds,
        "seconds_is": seconds_is if seconds is not None else None,
        "intensity": flop / moved if flop and moved else None,
        "flop_per_s": flop / seconds if flop and seconds else None,
        "share_of_peak": None,
        "bound": None,
        "reason": None,
    }
    row["share_of_peak"], row["bound"], row["reason"] = _judge(roofs, row, lacking)
    return row


def _judge(
    roofs: Roofs, row: RooflinePoint, lacking: str | None
) -> tuple[float | None, Bound | None, str | None]:
    """Return the share of the roof that is reached, what holds the point back, and the reason."""
    peak, memory = roofs.flop_per_s.get(row["dtype"]), roofs.bytes_per_s
    flop, moved, intensity = row["flop"], row["moved_bytes"], row["intensity"]
    if row["seconds"] is None:
        return None, None, _NO_TIME
    if memory is None or (flop and peak is None):
        return None, None, "no peak is known for it"
    if moved is None:
        return None, None, lacking
    if not flop or peak is None or intensity is None:
        return _without_flop(moved / row["seconds"] / memory)
    below = intensity < peak / memory
    share = flop / row["seconds"] / min(peak, memory * intensity)
    of_peak = flop / row["seconds"] / peak
    bound: Bound = "memory" if below else "compute"
    why = None
    if share < EXPLAINS:
        bound = "overhead"
        why = f"{percent(share)} of the rate that the {'memory' if below else 'peak'} allows"
    elif share > 1 and below:
        # A point faster than the memory is not held back by it.
        bound = "compute" if of_peak >= EXPLAINS else "memory"
        why = (
            f"it is above the memory's roof: {_CACHED}, and reaches {percent(of_peak)} of the peak"
        )
    elif share > 1:
        why = "it is above the peak: its operations, its time or the peak is wrong"
    reached = None if share > 1 and not below else share
    return reached, bound, "; ".join(text for text in (why, lacking) if text) or None


def _without_flop(share: float) -> tuple[float | None, Bound | None, str | None]:
    """Judge a point without operations: its bytes alone may explain the time."""
    if not share:
        return None, None, "it moves no bytes and nothing in it is counted: views, mostly"
    text = (
        "its operations are not counted: no formula is known for them; its bytes alone would take "
        f"{percent(share)} of its time at the memory's rate{f': {_CACHED}' if share > 1 else ''}"
    )
    return None, "memory" if share >= EXPLAINS else None, text


def percent(share: float) -> str:
    """Write a share as the page writes the same share in a figure."""
    if 0 < share < 0.001:
        return "less than 0.1 %"
    words = f"{100 * share:.{1 if share < 0.1 else 0}f} %"
    # 49.9 % is not the half that a label asks for.
    just_below = share < EXPLAINS <= round(100 * share) / 100
    return f"just under {words}" if just_below else words


# --- The work of operators per step: bytes moved, in what type, and what is not known of it -------
#
# Bytes are those of every operator by itself, all its inputs and outputs.

# Share of the time of a point's operators whose bytes may be unknown.
_LARGEST_GAP = 0.05
# Operators whose precision is that of cuDNN; all others that multiply use that of products.
_BY_CUDNN = re.compile("conv|rnn")


class MovedRow(NamedTuple):
    """Bytes moved per step by one operator of one module, in one direction and type.

    `seconds` is its time, on the device where there is one; `is_counted` says whether its
    operations are known.
    """

    operator: str
    module: int | None
    backward: bool
    dtype: str | None
    moved_bytes: float | None
    seconds: float
    is_counted: bool


@dataclass
class Work:
    """The work of operators per step: bytes, their time, and the time of those without a rule."""

    moved_bytes: float = 0.0
    total_s: float = 0.0
    opaque_s: float = 0.0
    opaque: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    types: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    multiplied: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, row: MovedRow) -> None:
        """Add one row."""
        self.total_s += row.seconds
        if row.moved_bytes is None:
            self.opaque_s += row.seconds
            self.opaque[row.operator] += row.seconds
            return
        self.moved_bytes += row.moved_bytes
        if row.dtype is not None:
            self.types[row.dtype] += row.seconds
            if row.is_counted:
                self.multiplied[row.dtype] += row.seconds

    def dtype(self) -> str | None:
        """Return the type with most of the time of counted operators, or of all if none is counted.

        Products of bfloat16 beside an optimizer of float32 are held back by the peak of bfloat16,
        however long the optimizer takes.
        """
        types = self.multiplied or self.types
        return max(types, key=lambda name: types[name]) if types else None

    def bytes(self) -> tuple[float | None, str | None]:
        """Return the bytes moved, and what they leave out; None where that may be much."""
        if not self.total_s:
            return None, "no operator of it was seen with its inputs"
        gap = self.opaque_s / self.total_s
        listed = ", ".join(sorted(self.opaque, key=lambda name: -self.opaque[name])[:3])
        if gap > _LARGEST_GAP:
            share = f"{100 * gap:.0f} % of its operators' time"
            return None, f"no rule tells the bytes of {listed}: {share}"
        lacking = f"without the bytes of {listed}, for which there is no rule" if listed else None
        return self.moved_bytes, lacking


def _moved_rows(
    recorded: Recorded, timed: Selection, shaped: Counted | None, roofs: Roofs
) -> list[MovedRow]:
    """Return the rows of the slices; `dtype` is the type that an operator computes in."""
    found = [
        {**row, "unknown": row["moved_bytes"] is None}
        for row in recorded.rows("moved_bytes", timed)
    ]
    time = "device_s" if known(found, "device_s") else "total_s"
    counts = shaped.by_place if shaped is not None else {}
    environment = recorded.facts.get("environment", {})
    rows = []
    keys = ("operator", "module_id", "backward", "dtype", "unknown")
    for row in recorded.step_rows(found, timed, keys, (time, "moved_bytes")):
        operator, module, dtype = row["operator"], row["module_id"], row["dtype"]
        is_counted = bool(counts.get((operator, module)))
        if dtype == "float32" and is_counted and "tf32" in roofs.flop_per_s:
            # As the script chose; torch's default is TF32 for convolutions only.
            by_cudnn = _BY_CUDNN.search(operator) is not None
            name = "tf32_convolutions" if by_cudnn else "tf32_products"
            dtype = "tf32" if environment.get(name, by_cudnn) else dtype
        moved, seconds, backward = row["moved_bytes"], row[time] or 0.0, bool(row["backward"])
        rows.append(MovedRow(operator, module, backward, dtype, moved, seconds, is_counted))
    return rows


# --- The part `roofline` of the report ------------------------------------------------------------

# Operators beyond this many, by their time, are in the table of operators alone.
_MOST_OPERATORS = 60


def roofline(
    recorded: Recorded,
    timed: Selection | None,
    clean_s: float | None,
    record: Counted | None,
    shaped: Counted | None,
    unlike: str | None,
    modules: Sequence[ModuleRow],
    peaks: Peaks,
) -> Roofline:
    """Return `roofline` of the report.

    `timed` are the torch layer's slices that the tables are made from, `record` the counter of the
    modules' operations and `shaped` that of the operators'; `unlike` says why these are not of the
    clean steps. `modules` are the rows of that table, and `peaks` comes from `read_peaks`.
    """
    timed = timed or NO_SLICES
    roofs = Roofs(peaks)
    rows = _moved_rows(recorded, timed, shaped, roofs)
    if record is not None and record.counter in OTHER_TOOLS and any(row.backward for row in rows):
        # These count no backward pass: their figures belong to a part of the time alone.
        record = None
    flop = None if record is None else known_sum(map(record.total, (FORWARD, BACKWARD)))
    step = Work()
    for moved in rows:
        step.add(moved)
    points = []
    if clean_s is not None:
        row = _work_point(roofs, "step", "step", step, flop, clean_s, "clean")
        if unlike is not None:
            row.update({"flop_per_s": None, "share_of_peak": None, "bound": None, "reason": unlike})
        points.append(row)
    points += _module_points(recorded, rows, modules, record, roofs)
    operators = _operator_points(recorded, rows, timed, clean_s, shaped, roofs)
    return {
        "peaks": peaks,
        "mfu": _utilization(peaks, step.dtype(), flop, clean_s, unlike),
        "points": [*points, *operators[:_MOST_OPERATORS]],
        "bounds": _bounds(operators, roofs),
        "reason": None
        if points or operators
        else "there is neither a clean time nor a slice of the torch layer",
    }


def _utilization(
    peaks: Peaks, dtype: str | None, flop: float | None, step_s: float | None, unlike: str | None
) -> list[Utilization]:
    """Return the share of each peak that the step reaches; one above 1 is null, with a warning."""
    if flop is None or not step_s:
        return []
    rows: list[Utilization] = []
    for peak in peaks["flop_per_s"]:
        if peak["dtype"] != dtype or not peak["value"]:
            continue
        share, warning = flop / step_s / peak["value"], unlike
        value = None if unlike is not None or share > 1 else share
        if unlike is None and share > 1:
            warning = (
                f"no share: the step would do more than the {peak['source']} peak, so the count of "
                "operations, the time or the peak is wrong; next: see whether other work kept "
                "the peak low when it was measured, and what the counters of operations disagree on"
            )
        elif unlike is None and OTHER_WORK in (peak["how"] or ""):
            warning = "measured while other work ran: the peak may be higher, and this share lower"
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


def _bounds(operators: Sequence[RooflinePoint], roofs: Roofs) -> Bounds | None:
    """Return seconds per step of all operators by bound; None where no roof is known."""
    if roofs.bytes_per_s is None or not any(row["seconds"] for row in operators):
        return None
    seconds = dict.fromkeys(Bounds.__annotations__, 0.0)
    for row in operators:
        seconds[f"{row['bound'] or 'unknown'}_s"] += row["seconds"] or 0.0
    return cast("Bounds", seconds)


def _work_point(
    roofs: Roofs,
    kind: Kind,
    name: str,
    work: Work,
    flop: float | None,
    seconds: float | None,
    seconds_is: Seconds,
) -> RooflinePoint:
    moved, lacking = work.bytes()
    return point(roofs, kind, name, work.dtype(), flop, moved, seconds, seconds_is, lacking)


def _module_points(
    recorded: Recorded,
    rows: Sequence[MovedRow],
    modules: Sequence[ModuleRow],
    record: Counted | None,
    roofs: Roofs,
) -> list[RooflinePoint]:
    """Return a point for every root and every module without modules inside."""
    numbers = {path: number for number, path in recorded.module_paths.items()}
    parents = recorded.module_parents
    works: dict[int, Work] = defaultdict(Work)
    for moved_row in rows:
        number = moved_row.module
        while number is not None and number > 0:
            works[number].add(moved_row)
            number = parents.get(number)
    inner = {parents.get(number) for number in works}
    points = []
    for row in modules:
        number = numbers.get(row["path"])
        if number not in works or (row["depth"] and number in inner):
            continue
        work = works[number]
        flop = None
        if record is not None:
            flop = known_sum(record.modules.get((number, way)) for way in (FORWARD, BACKWARD))
        device_s = known_sum((row["forward_device_s"], row["backward_device_s"]))
        seconds = device_s or row["calibrated_s"]
        measured: Seconds = "device" if device_s else "calibrated"
        points.append(_work_point(roofs, "module", row["path"], work, flop, seconds, measured))
    return points


def _operator_points(
    recorded: Recorded,
    rows: Sequence[MovedRow],
    timed: Selection,
    clean_s: float | None,
    shaped: Counted | None,
    roofs: Roofs,
) -> list[RooflinePoint]:
    """Return a point for each operator of each module, those with most time first."""
    works: dict[tuple[str, int | None], Work] = defaultdict(Work)
    for row in rows:
        works[row.operator, row.module].add(row)
    on_device = bool(known(recorded.rows("moved_bytes", timed), "device_s"))
    points = []
    for place, work in sorted(works.items(), key=lambda item: -item[1].total_s):
        if not work.moved_bytes and not work.opaque_s:
            # Views and memory that is only taken: no work that a roof could hold back.
            continue
        seconds: float | None = work.total_s
        if not on_device:
            seconds = timed.calibrated(work.total_s * timed.steps, clean_s)
        name = f"{place[0]} in {recorded.module_path(place[1]) or 'outside modules'}"
        flop = shaped.by_place.get(place) if shaped is not None else None
        measured: Seconds = "device" if on_device else "calibrated"
        points.append(_work_point(roofs, "operator", name, work, flop, seconds, measured))
    return points


# --- The peaks of a recording ---------------------------------------------------------------------


def read_peaks(folder: Path) -> Peaks:
    """Read the peaks of a recording; without figures, `reason` says why."""
    empty: Peaks = {
        "device": None,
        "threads": None,
        "torch": None,
        "measured_at": None,
        "reason": "the file of the peaks is damaged",
        "flop_per_s": [],
        "bytes_per_s": [],
    }
    try:
        kept = read_json(folder / PEAKS, Peaks, inside=folder)
    except FileNotFoundError:
        return {**empty, "reason": "no peaks were measured for this recording"}
    except RecordingError:
        return empty
    return cast("Peaks", {key: kept[key] for key in empty})
