"""What a run's counting, memory and watch layers found, in a line each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from profstack.report.nsystext import is_import_alone, nsys_line
from profstack.report.tables import weight
from profstack.units import format_bytes, format_count, format_seconds

# Of a finding's advice so many characters stand in a summary.
_LONGEST = 220


def highlights(report: Mapping[str, Any]) -> list[str]:
    """The lines of a summary; none of a layer that found nothing. Names in them are as recorded."""
    lines = (
        _owned(report), _threads(report), _peak(report), _flops(report), _growth(report),
        _startup(report), _outliers(report), nsys_line(report),
    )  # fmt: skip
    return [line for line in lines if line is not None]


def finding_lines(report: Mapping[str, Any]) -> list[str]:
    """What was found wrong: its title, where it is and what it costs, and what to do."""
    lines = []
    for finding in report.get("findings") or []:
        words = []
        if (place := place_of(finding)) is not None:
            words.append(place)
        if finding.get("gain_s") is not None:
            gain = format_seconds(finding["gain_s"])
            gain = f"at least {gain}" if is_lower_limit(finding) else gain
            words.append(f"{gain} a step, {finding.get('gain_is') or 'estimated'}")
        told = f" ({'; '.join(words)})" if words else ""
        advice = f". {first_sentences(finding['advice'])}" if finding.get("advice") else ""
        lines.append(f"{finding.get('title')}{told}{advice}")
    return lines


def is_lower_limit(finding: Mapping[str, Any]) -> bool:
    """Whether a gain is the lower one of two limits that are far from each other."""
    first: Any = next(iter(finding.get("evidence") or ()), None)
    return isinstance(first, Mapping) and first.get("limits_agree") is False


def place_of(finding: Mapping[str, Any]) -> str | None:
    """Where a finding is: its line, else its module; None where it has neither."""
    if finding.get("file"):
        return _at(finding)
    return str(finding["module"]) if finding.get("module") else None


def first_sentences(words: Any, longest: int = _LONGEST) -> str:
    """As many whole sentences as have room, one at least; the page has them all."""
    sentences = re.split(r"(?<=[.!?]) ", str(words))
    kept = sentences[0]
    for sentence in sentences[1:]:
        if len(kept) + len(sentence) > longest:
            break
        kept += f" {sentence}"
    return kept


def _owned(report: Mapping[str, Any]) -> str | None:
    """How much of the step has an owner, and what has none."""
    sums = report.get("attribution") or {}
    if sums.get("owned_share") is None:
        return None
    words = f"owners: {_percent(sums['owned_share'])} of a step's time has one"
    rest = [row for row in sums.get("unowned") or [] if (row.get("share") or 0.0) >= 0.0005]
    named = ", ".join(f"{row['path']} {_percent(row['share'])}" for row in rest)
    return words + (f"; not {named}" if named else "")


def _threads(report: Mapping[str, Any]) -> str | None:
    """What the steps' thread did, and how much is done where no layer looks; else why not told."""
    told = report.get("processes") or {}
    if is_import_alone(report):
        return None
    if told.get("reason"):
        return f"threads: not told: {told['reason']}"
    sentences = [str(sentence) for sentence in told.get("sentences") or []]
    return f"threads: {'; '.join(sentences[:2])}" if sentences else None


def peak_bytes(report: Mapping[str, Any]) -> int | None:
    """The bytes at the peak of a step, on the device that holds most; None where not known."""
    totals: dict[Any, int] = {}
    for row in report["tables"].get("memory_owners") or []:
        totals[row.get("device")] = totals.get(row.get("device"), 0) + (row.get("peak_bytes") or 0)
    return max(totals.values(), default=0) or None


def _peak(report: Mapping[str, Any]) -> str | None:
    """Whose the bytes are at the peak of a step, on the device that holds most."""
    devices: dict[Any, list[Mapping[str, Any]]] = {}
    for row in report["tables"].get("memory_owners") or []:
        devices.setdefault(row.get("device"), []).append(row)
    totals = {
        name: sum(row.get("peak_bytes") or 0 for row in rows) for name, rows in devices.items()
    }
    whole = max(totals.values(), default=0)
    if not whole:
        return None
    device = max(totals, key=lambda name: totals[name])
    rows = sorted(devices[device], key=weight("peak_bytes"), reverse=True)
    kinds = [
        f"{row['kind']} {format_bytes(row['peak_bytes'])}"
        for row in rows
        if (row.get("peak_bytes") or 0) >= 0.01 * whole
    ]
    where = f" on {device}" if len(devices) > 1 else ""
    words = f"bytes at the peak of a step{where}: {format_bytes(whole)}, {', '.join(kinds[:5])}"
    return words + _holder(report, device)


def _holder(report: Mapping[str, Any], device: Any) -> str:
    """What holds most of a device's bytes at the peak."""
    rows = report["tables"].get("peak_holders") or []
    held = [row for row in rows if row.get("device") == device and row.get("bytes")]
    if not held:
        return ""
    first = max(held, key=weight("bytes"))
    whose = f" of {first['module']}" if first.get("module") else ""
    return f"; the largest holder: {first['kind']}{whose}, {format_bytes(first['bytes'])}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _flops(report: Mapping[str, Any]) -> str | None:
    """Operations of a step by the counter of record, and what it leaves out."""
    source = (report.get("columns_source") or {}).get("modules.forward_flop") or ""
    rows = report["tables"].get("flops") or []
    record = next((row for row in rows if source.startswith(str(row["counter"]))), None)
    if record is None:
        return None
    words = f"operations: {format_count(record.get('forward_flop'))} FLOP forward"
    if record.get("backward_flop") is not None:
        words += f", {format_count(record['backward_flop'])} backward"
    words += f" per step ({record['counter']})"
    left = [str(row.get("operator")) for row in record.get("uncounted") or []]
    return words + (f"; without a formula: {', '.join(left)}" if left else "")


def _growth(report: Mapping[str, Any]) -> str | None:
    """The line over which memory grew most at once."""
    lines = [row for row in report["tables"].get("lines") or [] if row.get("largest_bytes")]
    if not lines:
        return None
    line = max(lines, key=weight("largest_bytes"))
    source = str(line.get("source") or "").strip()
    return f"memory: largest growth {format_bytes(line['largest_bytes'])} at {_at(line)}  {source}"


def _startup(report: Mapping[str, Any]) -> str | None:
    """The lines of the script that its start-up went to."""
    rows = report["tables"].get("lines") or []
    lines = [row for row in rows if (row.get("startup_share") or 0.0) >= 0.01]
    lines.sort(key=weight("startup_share"), reverse=True)
    shares = [f"{100 * line['startup_share']:.0f} % {_at(line)}" for line in lines[:3]]
    return f"start-up: {', '.join(shares)}" if shares else None


def _outliers(report: Mapping[str, Any]) -> str | None:
    """How many steps are out of line, and the slowest of them."""
    rows = report["tables"].get("outliers") or []
    if not rows:
        return None
    slowest = max(rows, key=weight("wall_s"))
    count = "1 step" if len(rows) == 1 else f"{len(rows)} steps"
    doing = f": {slowest['doing']}" if slowest.get("doing") else ""
    took = format_seconds(slowest.get("wall_s"))
    return f"out of line: {count}; step {slowest['index']} took {took}{doing}"


def _at(row: Mapping[str, Any]) -> str:
    number = f":{row['line']}" if row.get("line") is not None else ""
    return f"{file_name(row['file'])}{number}"


def file_name(path: Any) -> str:
    """The last part of a path, as any system writes it."""
    return str(path).replace("\\", "/").rsplit("/", 1)[-1]
