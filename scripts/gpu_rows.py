"""Rows of the GPU check's table: what a report says, beside what torch and a hand-timed loop say.

Each function reads one report (see `report.schema.json`) and gives rows. A figure that the report
has not is `not measured`, with the report's own reason where it has one; it is `FAILED` only where
it had to be there.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OK, FAILED, NOT_MEASURED = "ok", "FAILED", "not measured"
NEEDS_CUDA = "needs CUDA"

Report = Mapping[str, Any]

# A layer that has what it wants says so by one of these; `emitted` is nvtx without a listener.
_RECORDED = ("recorded", "emitted")
# Of the device time, what must have found the module or the part of the step that launched it.
LEAST_JOINED = 0.95
# Of the joined time in training: backward takes about twice what forward takes.
BACKWARD_SHARE = (0.35, 0.85)
# Two ways to time the same steps, and two processes: on a CPU that others use, far apart.
MEDIAN_RATIO = {"cuda": (0.95, 1.05), "cpu": (0.4, 2.5)}
PEAK_RATIO = (0.98, 1.02)
FLOP_RATIO = (0.999, 1.001)
SLUGS = {
    "item": "forced-synchronisation",
    "pageable": "host-to-device-copy",
    "float32": "float32-matmul-without-tf32",
}


@dataclass(frozen=True)
class Row:
    """One line of the table; `reason` says why, where the verdict is not ok."""

    part: str
    what: str
    value: str
    expected: str
    verdict: str
    reason: str = ""


def judged(
    part: str, what: str, value: float | None, limits: tuple[float, float], why: str = ""
) -> Row:
    """A row of a number that must lie within limits; None is not measured, for the reason given."""
    low, high = limits
    expected = f"{low:g} to {high:g}" if math.isfinite(high) else f"at least {low:g}"
    if value is None:
        return Row(part, what, "-", expected, NOT_MEASURED, why)
    inside = low <= value <= high
    return Row(part, what, f"{value:.4g}", expected, OK if inside else FAILED)


def layer_rows(part: str, report: Report) -> list[Row]:
    """Whether every layer has data, one row for all and one for each that has none."""
    layers = report["layers"]
    lacking = [layer for layer in layers if layer["status"] not in _RECORDED]
    value = f"{len(layers) - len(lacking)} of {len(layers)}"
    whole = Row(part, "layers recorded", value, "all", FAILED if lacking else OK)
    return [
        whole,
        *(
            Row(part, f"layer {one['name']}", one["status"], "recorded", FAILED, one["reason"])
            for one in lacking
        ),
    ]


def kernel_rows(part: str, report: Report, *, on_cuda: bool) -> list[Row]:
    """Share of the device's time that found its module or part, and backward's share of that."""
    kernels = report["tables"]["kernels"]
    total = sum(row["device_s"] or 0.0 for row in kernels)
    owned = [row for row in kernels if row["module"] not in (None, "(not attributed)")]
    joined = sum(row["device_s"] or 0.0 for row in owned) / total if total else None
    why = _without_kernels(on_cuda)
    tops = [row for row in report["tables"]["modules"] if row["depth"] == 0]
    forward, backward = (
        sum(row[column] or 0.0 for row in tops if not row["path"].startswith("("))
        for column in ("forward_device_s", "backward_device_s")
    )
    share = backward / (forward + backward) if forward + backward else None
    rows = [
        judged(part, "kernels joined, share of device time", joined, (LEAST_JOINED, 1.0), why),
        judged(part, "backward's share of the modules' device time", share, BACKWARD_SHARE, why),
        judged(part, "device's busy share of a step", _busy_share(report), (0.0, 1.0), why),
    ]
    return [_must(row) if on_cuda else row for row in rows]


def _without_kernels(on_cuda: bool) -> str:
    return "no kernel was recorded" if on_cuda else NEEDS_CUDA


def _busy_share(report: Report) -> float | None:
    rows = [row for row in report["tables"]["launches"] if row["device_busy_s"] is not None]
    busy = sum(float(row["device_busy_s"]) for row in rows)
    whole = busy + sum(float(row["device_idle_s"] or 0.0) for row in rows)
    return busy / whole if whole > 0 else None


def _must(row: Row) -> Row:
    """With a device, what is not measured there is a failure."""
    if row.verdict != NOT_MEASURED:
        return row
    return Row(row.part, row.what, row.value, row.expected, FAILED, row.reason)


def median_rows(part: str, report: Report, hand: Report, *, on_cuda: bool) -> list[Row]:
    """The clean median over that of the hand-timed loop, both by events on a GPU."""
    benchmark = report["benchmark"]
    clock = benchmark["clock"]
    wanted = "device" if on_cuda else "host"
    mine = benchmark["device_median_s"] if on_cuda else benchmark["host_median_s"]
    theirs = hand["median_s"]
    ratio = mine / theirs if mine is not None and theirs else None
    limits = MEDIAN_RATIO["cuda" if on_cuda else "cpu"]
    row = judged(part, "clean median over hand-timed", ratio, limits, "no clean median")
    shown = f"{row.value} ({_ms(mine)} / {_ms(theirs)}, {benchmark['n']} clean steps)"
    return [
        Row(
            part, "clock of the clean steps", str(clock), wanted, OK if clock == wanted else FAILED
        ),
        _must(Row(row.part, row.what, shown, row.expected, row.verdict, row.reason)),
    ]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.3f} ms"


def memory_rows(
    part: str, report: Report, said: Report, hand: Report, *, on_cuda: bool
) -> list[Row]:
    """The device's peak against torch's own, and torch's own with profstack against without."""
    own, alone = said.get("max_memory_allocated"), hand.get("max_memory_allocated")
    found = [
        row["peak_bytes"] or 0
        for row in report["tables"]["memory_owners"]
        if row["device"].startswith("cuda")
    ]
    peak = sum(found) if found else None
    why = "memory_owners has no row of the device" if on_cuda else NEEDS_CUDA
    rows = [
        judged(
            part,
            "device memory peak over torch.cuda.max_memory_allocated",
            peak / own if peak is not None and own else None,
            PEAK_RATIO,
            why,
        ),
        judged(
            part,
            "max_memory_allocated with profstack over without",
            own / alone if own and alone else None,
            PEAK_RATIO,
            why,
        ),
    ]
    return [_must(row) if on_cuda else row for row in rows]


def flop_rows(part: str, report: Report, by_hand: int | None) -> list[Row]:
    """Operations of a step against a count by hand, the rate achieved, and MFU."""
    record = next((row for row in report["tables"]["flops"] if row["note"] is None), None)
    counted = _both(record) if record is not None else None
    median_s = report["benchmark"]["median_s"]
    rate = counted / median_s if counted and median_s else None
    rows = [judged(part, "achieved FLOP/s", rate, (1.0, math.inf), "no operations were counted")]
    if by_hand is not None:
        ratio = counted / by_hand if counted else None
        row = judged(part, "FLOP of a step over a count by hand", ratio, FLOP_RATIO, "not counted")
        rows.append(_must(row))
    uses = report["roofline"]["mfu"]
    why = (
        report["roofline"]["peaks"]["reason"] or report["roofline"]["reason"] or "no peak is known"
    )
    if not uses:
        return [*rows, judged(part, "MFU", None, (0.0, 1.0), why)]
    for use in uses:
        what = f"MFU of the {use['source']} peak in {use['dtype']}"
        rows.append(judged(part, what, use["value"], (0.001, 1.0), use["warning"] or ""))
    return rows


def _both(row: Mapping[str, Any]) -> int | None:
    forward, backward = row["forward_flop"], row["backward_flop"]
    return None if forward is None or backward is None else int(forward + backward)


def loss_row(part: str, said: Report, hand: Report, *, on_cuda: bool) -> Row:
    """The last loss with profstack and without; a GPU adds up in another order each time."""
    mine, theirs = float(said["loss"]), float(hand["loss"])
    same = math.isclose(mine, theirs, rel_tol=0.05, abs_tol=0.05) if on_cuda else mine == theirs
    expected = "about the same" if on_cuda else "the same to the last digit"
    value = f"{mine:.9g} / {theirs:.9g}"
    return Row(part, "last loss with profstack / without", value, expected, OK if same else FAILED)


def planted_part(model: str, mistake: str | None) -> str:
    """Return the heading of the rows of one run with a planted mistake, or with none."""
    return f"{model}, nothing planted" if mistake is None else f"{model}, planted {mistake}"


def slug_of(mistake: str | None) -> str:
    """The finding expected; of the three that can be planted none where nothing is."""
    return "none" if mistake is None else SLUGS[mistake]


def mistake_rows(part: str, mistake: str | None, report: Report) -> list[Row]:
    """The planted mistake is found and named with its line; nothing planted, none of them found."""
    found = {finding["slug"]: finding for finding in report["findings"]}
    planted = found.keys() & set(SLUGS.values())
    value = ", ".join(sorted(planted)) or "none"
    expected = slug_of(mistake)
    right = planted == ({expected} if mistake else set())
    rows = [Row(part, "findings", value, expected, OK if right else FAILED)]
    finding = found.get(expected)
    if finding is None:
        return rows
    if mistake != "float32":
        line = finding["line"]
        rows.append(Row(part, "its line", str(line), "a line", OK if line else FAILED))
    gain, reason = finding["gain_s"], finding["gain_reason"] or ""
    verdict = NOT_MEASURED if gain is None else OK if gain > 0 else FAILED
    return [*rows, Row(part, "what it costs a step", _ms(gain), "above 0", verdict, reason)]


def lock_rows(first: str, second: str, *, on_cuda: bool) -> list[Row]:
    """Rows of two locks of one script: equal to the last byte, and with what the device does."""
    equal = "equal" if first == second else "different"
    rows = [Row("lock", "two locks", equal, "equal", OK if first == second else FAILED)]
    for fact in ("kernel launches", '[memory."cuda:0"]'):
        if on_cuda:
            value, verdict = ("held", OK) if fact in first else ("missing", FAILED)
            rows.append(Row("lock", fact, value, "held", verdict))
        else:
            rows.append(Row("lock", fact, "-", "held", NOT_MEASURED, NEEDS_CUDA))
    return rows


def check_row(said: str, line: int) -> Row:
    """The row of a check that must name the line of a wait for the device."""
    place = re.compile(rf"\.py:{line}\b")
    named = next((text.strip() for text in said.splitlines() if place.search(text)), None)
    verdict = FAILED if named is None else OK
    return Row("lock", "planted wait", named or "not named", f"line {line}", verdict)


def compare_rows(content: Report, line: int, *, on_cuda: bool) -> list[Row]:
    """Rows of a comparison whose second side waits for the device in each step."""
    verdict = content["verdict"]
    whole = verdict["after_s"] - verdict["before_s"]
    parts = sum(part["difference_s"] for part in content["parts"] if part["of"] == "step")
    rows = [judged("compare", "parts over difference", parts / whole, FLOP_RATIO)]
    if not on_cuda:
        return [*rows, Row("compare", "verdict", "-", "slower", NOT_MEASURED, NEEDS_CUDA)]
    # A wait that costs less than two processes differ cannot be told: so said, it is no fault.
    slug, sentence = verdict["slug"], verdict["sentence"]
    told = {"slower": OK, "unclear": NOT_MEASURED}.get(slug, FAILED)
    rows.append(Row("compare", "verdict", slug, "slower", told, sentence))
    if told == OK:
        named = any(part["line"] == line for part in content["parts"])
        value = "named" if named else "not named"
        rows.append(Row("compare", f"line {line}", value, "named", OK if named else FAILED))
    return rows


def throughput_rows(report: Report, *, on_cuda: bool) -> list[Row]:
    """The largest batch, what limited it, and that a larger one was refused on a GPU."""
    part = "throughput"
    benchmark = report["benchmark"]
    limits: Sequence[Mapping[str, Any]] = benchmark["throughput_limits"] or ()
    if not limits:
        return [Row(part, "largest batch", "-", "1 or more", FAILED, "the report has no search")]
    found = limits[0]
    largest = found["largest_batch"]
    rows = [
        Row(part, "largest batch", str(largest), "1 or more", OK if largest else FAILED),
        judged(
            part,
            "items/s at the knee",
            found["knee_items_per_s"],
            (sys.float_info.min, math.inf),
            "no rate",
        ),
    ]
    refused = [row for row in benchmark["throughput"] if row["status"] == "refused"]
    what, expected = "a larger batch was refused", "out of memory"
    reason = str(found["limited_by"])
    if refused:
        size = min(row["batch_size"] for row in refused)
        rows.append(Row(part, what, f"batch {size}", expected, OK, refused[0]["reason"] or ""))
    else:
        rows.append(Row(part, what, "no", expected, FAILED if on_cuda else NOT_MEASURED, reason))
    return rows


def nsys_rows(report: Report, *, on_cuda: bool, usable: bool) -> list[Row]:
    """Return the rows of the second run, under Nsight Systems, if one is `usable`."""
    part, tables = "nsys", report["tables"]
    layer = next(layer for layer in report["layers"] if layer["name"] == "nvtx")
    ranges, kernels = tables["nsys_ranges"], tables["nsys_kernels"]
    warned = "; ".join(one["text"] for one in report["warnings"] if "nsys" in one["slug"])
    why = str(layer["reason"] or warned or "the import brought no row")
    modules = sum(row["kind"] == "module" for row in ranges)
    verdict = OK if modules else FAILED if usable else NOT_MEASURED
    seen = Row(part, "module ranges seen", str(modules), "above 0", verdict, "" if modules else why)
    total = sum(row["device_s"] or 0.0 for row in kernels)
    # Of a module, a backward pass, an optimizer's step: a step's own range tells nothing more.
    owned = [row for row in kernels if row["range_kind"] not in (None, "step")]
    joined = sum(row["device_s"] or 0.0 for row in owned)
    share = joined / total if total else None
    lacks = why if on_cuda else NEEDS_CUDA
    row = judged(part, "kernels joined, share of device time", share, (LEAST_JOINED, 1.0), lacks)
    return [seen, _must(row) if on_cuda and usable else row]
