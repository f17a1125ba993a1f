"""The shares that the verdict's tests look at, each with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from profstack.findings.devicecut import DeviceCut
from profstack.findings.figures import to_source
from profstack.findings.stepbar import hottest, link_of
from profstack.findings.stepcut import Cut
from profstack.findings.verdictrules import (
    COMMUNICATION,
    COMPUTE,
    INPUT,
    IO,
    LAUNCH,
    MEMORY,
    PYTHON,
)

_NO_PEAKS = "the machine's peaks are not known: next: run without --no-peaks"


@dataclass
class Measure:
    """A test's share of the clean step, null with a reason; where to look, and what else to tell.

    `file` and `line` are of the script, or null.
    """

    share: float | None
    reason: str | None = None
    link: str | None = None
    file: str | None = None
    line: int | None = None
    name: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def measures(report: Mapping[str, Any], cut: Cut, device: DeviceCut | None) -> dict[str, Measure]:
    """All tests' measures by slug."""
    if not cut.torch:
        found = {slug: Measure(None, cut.torch_reason) for slug in (LAUNCH, COMPUTE, MEMORY)}
        found[PYTHON] = Measure(None, cut.torch_reason)
        found[COMMUNICATION] = Measure(None, cut.torch_reason)
        found[INPUT] = Measure(cut.wait, _no_wait(cut))
        found[IO] = Measure(None, cut.torch_reason)
    elif device is not None:
        found = _on_device(cut, device)
    else:
        found = _on_host(cut)
    if cut.torch:
        found |= _roofs(report, cut.median_s, cut.scale if device is None else 1.0)
    _add_places(found, report, cut)
    return found


def _no_wait(cut: Cut) -> str | None:
    return None if cut.wait is not None else "nothing told how long a step waits for its data"


def _on_host(cut: Cut) -> dict[str, Measure]:
    small = {"calls": cut.small_calls}
    if cut.small_calls:
        small["call_s"] = cut.small * cut.median_s / cut.small_calls
    # What waits for other ranks is no Python, even where it is not told to be idle.
    return {
        INPUT: Measure(cut.wait, _no_wait(cut), "modules/(wait)"),
        IO: Measure(cut.io, cut.io_time.reason),
        COMMUNICATION: Measure(cut.communication, name=cut.communication_name),
        PYTHON: Measure(cut.python),
        LAUNCH: Measure(cut.small, facts=small),
    }


def _on_device(cut: Cut, device: DeviceCut) -> dict[str, Measure]:
    """The device is idle for some reason; what the host did then is divided as its time is."""
    waits, late = device.data_wait, device.host_late
    io = None
    if cut.io is not None:
        io = min(cut.io, waits + late)
        late -= max(io - waits, 0.0)
        waits = max(waits - io, 0.0)
    idle = (cut.wait or 0.0) + (cut.io or 0.0) + (cut.idle or 0.0)
    work = max(1 - idle - cut.in_waits, 0.0)
    of_python = min(cut.python / work, 1.0) if work else 0.0
    return {
        INPUT: Measure(waits, link="modules/(wait)"),
        IO: Measure(io, cut.io_time.reason),
        COMMUNICATION: Measure(device.communication, name=device.communication_name),
        PYTHON: Measure(late * of_python),
        LAUNCH: Measure(late * (1 - of_python), link="ranges/gaps"),
    }


def _roofs(report: Mapping[str, Any], median_s: float, scale: float) -> dict[str, Measure]:
    """What the roofline says of operators, as shares of the clean step.

    `scale` makes clean time of an operator's: a device's kernels take as long as in clean steps.
    """
    roofline = report.get("roofline") or {}
    bounds = roofline.get("bounds")
    if bounds is None:
        lacks = (roofline.get("peaks") or {}).get("reason") or _NO_PEAKS
        return {slug: Measure(None, lacks) for slug in (COMPUTE, MEMORY)}
    found = {}
    for slug, bound in ((COMPUTE, "compute"), (MEMORY, "memory")):
        points = [
            row
            for row in roofline["points"]
            if row["kind"] == "operator" and row["bound"] == bound and row["seconds"]
        ]
        first = max(points, key=lambda row: float(row["seconds"]), default=None)
        link = f"operators/{str(first['name']).partition(' in ')[0]}" if first else None
        shares = {name: min(bounds[name] * scale / median_s, 1.0) for name in bounds}
        facts = _rates(roofline, slug)
        if slug == COMPUTE:
            facts["below_limits_share"] = shares["overhead_s"]
            facts["limit_unknown_share"] = shares["unknown_s"]
        found[slug] = Measure(shares[f"{bound}_s"], link=link, facts=facts)
    return found


def _rates(roofline: Mapping[str, Any], slug: str) -> dict[str, Any]:
    """What the whole step reaches of the machine's peak."""
    step = next((row for row in roofline["points"] if row["kind"] == "step"), None)
    if step is None:
        return {}
    if slug == COMPUTE:
        mfu = next((row for row in roofline["mfu"] if row["source"] == "measured"), None)
        share = mfu["value"] if mfu is not None else None
        known = {} if share is None else {"peak_share": share}
        return {**known, "flop_per_s": step["flop_per_s"]}
    moved, seconds = step["moved_bytes"], step["seconds"]
    return {"bytes_per_s": moved / seconds} if moved and seconds else {}


def _add_places(found: dict[str, Measure], report: Mapping[str, Any], cut: Cut) -> None:
    """The functions and lines of the script that the causes stand at."""
    python = hottest(report["tables"])
    if python is not None and found[PYTHON].share is not None:
        found[PYTHON].link = link_of(python)
        _place(found[PYTHON], python)
    if cut.after is not None and cut.after_python > cut.python / 2:
        file, number = cut.after.line["file"], cut.after.line["line"]
        found[PYTHON].file, found[PYTHON].line, found[PYTHON].name = file, number, None
        found[PYTHON].link = to_source(file, number)
        found[PYTHON].facts["after_step_share"] = cut.after_python
    row = cut.io_time.function
    if row is not None:
        _place(found[IO], row)
    if row or cut.io_time.heaviest:
        found[IO].link = link_of(row or cut.io_time.heaviest or {})
    if cut.has_loader:
        loader = _loads(report)
        if loader is not None:
            _place(found[INPUT], loader)
    # No layer sees into workers, and a script's own first level is no function: then it is a line.
    for slug, share in ((INPUT, cut.wait), (IO, cut.io)):
        line = _line_outside(report, share) if found[slug].file is None else None
        if line is not None:
            found[slug].file, found[slug].line = line["file"], line["line"]
    if found[COMMUNICATION].name and found[COMMUNICATION].link is None:
        on_host = cut.communication_name == found[COMMUNICATION].name
        view = "ranges" if on_host else "kernels"
        found[COMMUNICATION].link = f"{view}/{found[COMMUNICATION].name}"
    if found[LAUNCH].link is None and cut.torch:
        found[LAUNCH].link = _most_called(report)


def _place(measure: Measure, row: Mapping[str, Any]) -> None:
    measure.file, measure.line, measure.name = row["file"], row["line"], row["name"]


def _loads(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The user's own function that a data set's items come from."""
    called = set()
    for row in report["tables"]["calls"]:
        if "torch/utils/data/" in str(row["caller"]).replace("\\", "/"):
            called.add(row["callee"])
    rows = [
        row
        for row in report["tables"]["functions"]
        if row.get("phase") == "step"
        and row.get("own")
        and f"{row['file']}:{row['line']}({row['name']})" in called
    ]
    return max(rows, key=lambda row: float(row["total_s"] or 0.0), default=None)


def _line_outside(report: Mapping[str, Any], wanted: float | None) -> Mapping[str, Any] | None:
    """The line of the script that takes about as much of the step as is wanted, outside its work.

    What a line does in modules, in the loss or in the optimizer does not count: a line that calls
    the model may take as long.
    """
    working: dict[tuple[Any, Any], float] = {}
    for row in report["tables"].get("module_lines") or ():
        if row["module"] is not None and row["module"] != "(wait)":
            place = (row["file"], row["line"])
            working[place] = working.get(place, 0.0) + _line_s(row)
    lines = [
        row
        for row in report["tables"]["lines"]
        if row.get("own") and row.get("python_s") is not None
    ]
    whole = sum(map(_line_s, lines))
    if not whole or not wanted or not working:
        return None

    def idle_s(row: Mapping[str, Any]) -> float:
        return _line_s(row) - working.get((row["file"], row["line"]), 0.0)

    first = max(lines, key=idle_s)
    share = idle_s(first) / whole
    return first if 0.6 * wanted <= share <= 1.2 * wanted else None


def _line_s(row: Mapping[str, Any]) -> float:
    return float((row["python_s"] or 0.0) + (row["operator_s"] or 0.0))


def _most_called(report: Mapping[str, Any]) -> str | None:
    """The operator that is called most often."""
    calls: dict[str, float] = {}
    for row in report["tables"]["operators"]:
        name = str(row["name"])
        if name.startswith("aten::"):
            calls[name] = calls.get(name, 0.0) + float(row["calls"] or 0.0)
    return f"operators/{max(calls, key=lambda name: calls[name])}" if calls else None
