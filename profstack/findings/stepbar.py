"""`step_bar` of the report: the clean step as one bar, whose parts add up to its median.

Of a run on a CPU the bar is the time of the thread that makes the steps, on an accelerator that
of the device; `time_line` says which. A part that is not known is not in it, and what then is
left is a part of its own, "not attributed". What goes by before a step's first work is a wait for
data where torch's DataLoader was asked for some; else it is called what it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from profstack.findings.devicecut import DeviceCut
from profstack.findings.figures import short
from profstack.findings.iotime import IoTime, is_io, loading_share
from profstack.findings.stepcut import Cut
from profstack.regions import OUTSIDE as OUTSIDE_NUMBER
from profstack.regions import STEP_PARTS
from profstack.units import format_seconds

# Smaller parts are left to the rest: they would only be the rounding of others.
_LEAST = 1e-6
# A rest from this share of the step on is told in words.
_TOLD = 0.01
# Other parts from this share on are told in words, too.
_NAMED = 0.05
# Lines that are named for them.
_MOST_LINES = 2
REST, OUTSIDE = "not attributed", STEP_PARTS[OUTSIDE_NUMBER]
DATA_WAIT, BEFORE = "data wait", "before first work"
HOST, DEVICE = "host", "device"
NO_CLEAN = "there is no clean step whose time could be divided"
# In the order in which a step does them; what is no work of the step's stands last.
NAMES = (
    DATA_WAIT, BEFORE, "forward", "loss", "backward", "optimizer", "Python", "I/O", "idle", "other",
)  # fmt: skip


def step_bar(
    report: Mapping[str, Any], cut: Cut | None, device: DeviceCut | None
) -> dict[str, Any]:
    """The bar; without parts, and with a reason, where there is no clean step."""
    if cut is None:
        return {"median_s": None, "time_line": None, "parts": [], "reason": NO_CLEAN, "note": None}
    if device is not None and cut.torch:
        shares, of, kind = _of_device(device), DEVICE, "calibrated"
    else:
        shares, of, kind = _of_host(cut), HOST, cut.wait_is
    links = _links(report, cut, device)
    parts = []
    for name in NAMES:
        share = shares.get(name)
        if share is not None and share > _LEAST:
            is_ = kind if name in (DATA_WAIT, BEFORE) else "calibrated"
            parts.append(_part(name, share * cut.median_s, cut.median_s, links.get(name), is_))
    rest = cut.median_s - sum(part["seconds"] for part in parts)
    if abs(rest) > _LEAST * cut.median_s:
        parts.append(_part(REST, rest, cut.median_s, links.get(REST), "calibrated"))
    _add_up(parts, cut.median_s)
    reason = (
        None if cut.torch else f"only the wait before its first work is known: {cut.torch_reason}"
    )
    if cut.torch and rest > _TOLD * cut.median_s:
        reason = f"the torch layer's rows leave {100 * rest / cut.median_s:.0f} % without an owner"
    if not cut.torch and cut.wait is None:
        parts, reason = [], f"nothing tells what a step goes to: {cut.torch_reason}"
    much = cut.torch and of == HOST and cut.other >= _NAMED
    notes = [_of_the_wait(report, parts, of), _other(report) if much else None]
    note = "; ".join(each for each in notes if each is not None) or None
    told = {"median_s": cut.median_s, "time_line": of, "parts": parts, "reason": reason}
    return {**told, "note": note}


def _of_the_wait(
    report: Mapping[str, Any], parts: list[dict[str, Any]], time_line: str
) -> str | None:
    """Why the wait's own row has another time than the bar; null where it has the same."""
    part = next((part for part in parts if part["name"] in (DATA_WAIT, BEFORE)), None)
    row = next((row for row in report["tables"]["modules"] if row["path"] == "(wait)"), None)
    row_s = row["calibrated_s"] if row is not None else None
    if part is None or row_s is None or format_seconds(row_s) == format_seconds(part["seconds"]):
        return None
    whose = "the device's, which had no kernel to run"
    if time_line == HOST:
        slices = "clean steps" if part["is"] == "clean" else "the torch layer's slices"
        whose = f"that of {slices}, less what other parts have of it"
    return (
        f"'{part['name']}' is {whose}; the row (wait) of the modules has the whole wait as the "
        f"torch layer saw it, calibrated: {format_seconds(row_s)}"
    )


def _other(report: Mapping[str, Any]) -> str | None:
    """What is in "other": operators outside modules, and the lines that call most of them."""
    rows = [
        row
        for row in report["tables"].get("module_lines") or ()
        if row["module"] in (None, OUTSIDE) and row["operator_s"]
    ]
    if not rows or report["benchmark"].get("target") is not None:
        return None
    times: dict[str, float] = {}
    for row in rows:
        place = f"{short(str(row['file']))}:{row['line']}"
        times[place] = times.get(place, 0.0) + float(row["operator_s"])
    first = sorted(times, key=lambda place: -times[place])[:_MOST_LINES]
    if sum(times[place] for place in first) < sum(times.values()) / 2:
        return None
    return (
        f"other is operators that the script calls outside modules, most at {' and '.join(first)}"
    )


def _add_up(parts: list[dict[str, Any]], median_s: float) -> None:
    """Make the sum the median itself, to the last digit: what rounding leaves is the last part's.

    On a grid as fine as the median's own last digit no addition rounds, in whatever order.
    """
    if not parts:
        return
    digit = math.ulp(median_s)
    for part in parts:
        part["seconds"] = round(part["seconds"] / digit) * digit
    parts[-1]["seconds"] += median_s - sum(part["seconds"] for part in parts)


def _part(
    name: str, seconds: float, median_s: float, link: str | None, kind: str
) -> dict[str, Any]:
    return {
        "name": name,
        "seconds": seconds,
        "share": seconds / median_s,
        "link": link,
        "is": kind,
    }


def _of_host(cut: Cut) -> dict[str, float | None]:
    wait = DATA_WAIT if cut.has_loader else BEFORE
    if not cut.torch:
        return {wait: cut.wait}
    return {
        wait: cut.wait,
        "forward": cut.forward,
        "loss": cut.loss,
        "backward": cut.backward,
        "optimizer": cut.optimizer,
        "Python": cut.python,
        "I/O": cut.io,
        "idle": cut.idle,
        "other": cut.other,
    }


def _of_device(device: DeviceCut) -> dict[str, float | None]:
    """Kernels by part of the step, and why none ran; Python is what the device waits for then."""
    return {
        **device.parts,
        DATA_WAIT: device.data_wait,
        "idle": max(device.idle - device.data_wait, 0.0),
    }


def _links(report: Mapping[str, Any], cut: Cut, device: DeviceCut | None) -> dict[str, str | None]:
    """Where each part's rows stand; null where none does."""
    paths = {str(row["path"]): row for row in report["tables"]["modules"]}
    roots = [path for path, row in paths.items() if row["depth"] == 0 and path[0] != "("]
    models = [path for path in roots if paths[path].get("parameters")] or roots
    model = max(models, key=lambda path: paths[path].get("forward_s") or 0.0, default=None)
    losses = [path for path in roots if str(paths[path]["type"]).endswith("Loss")]
    loss = losses[0] if losses else "(loss)"
    of_model = f"modules/{model}" if model is not None else None

    def part(path: str | None) -> str | None:
        return f"modules/{path}" if path in paths else None

    return {
        DATA_WAIT: part("(wait)"),
        BEFORE: part("(wait)"),
        "forward": of_model,
        "loss": part(loss),
        "backward": of_model or part("(gradient accumulation)"),
        "optimizer": part("(optimizer)"),
        "Python": python_link(report["tables"]),
        "I/O": _io_link(cut.io_time),
        "idle": _idle_link(cut, device),
        "other": part("(outside modules)"),
        REST: part("(not attributed)"),
    }


def hottest(tables: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The function written in Python with the most time of its own; the user's own before others.

    What data is loaded by belongs to the wait, and what reads and writes to I/O. A library's
    function comes first only where it has five times as much as the user's first one.
    """
    loading = loading_share(tables)
    rows: list[Mapping[str, Any]] = [
        row
        for row in tables["functions"]
        if row.get("phase") == "step" and row["file"] != "~" and row.get("self_s")
    ]
    rows.sort(key=lambda row: -float(row["self_s"]))
    rows = [row for row in rows if not is_io(row) and loading(row) < 0.5]
    users = next((row for row in rows if row.get("own")), None)
    if users is None or float(rows[0]["self_s"]) > 5 * float(users["self_s"]):
        return rows[0] if rows else None
    return users


def python_link(tables: Mapping[str, Any]) -> str | None:
    """Where the hottest function stands."""
    row = hottest(tables)
    return link_of(row) if row is not None else None


def link_of(row: Mapping[str, Any]) -> str:
    """Where a function stands in the page."""
    return f"python/{row['file']}:{row['line']}:{row['name']}"


def _idle_link(cut: Cut, device: DeviceCut | None) -> str:
    """What tells of the idle time: the device's gaps, collectives, or the threads' clocks."""
    if device is not None:
        return "ranges/gaps"
    return f"ranges/{cut.communication_name}" if cut.communication else "method/threads"


def _io_link(told: IoTime) -> str | None:
    row = told.function or told.heaviest
    return link_of(row) if row is not None else None
