"""The report of `profstack try`, from what its processes have found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from profstack.changes.contract import Edit, Seen, Value
from profstack.changes.edits import Patch, own_path, patch_of, words_of
from profstack.changes.results import judged
from profstack.launch.trials import LEAST, Arm, Process, Trials, Word, results_of
from profstack.privacy import presentable_argv
from profstack.storage.schema.trials import TrialReport, TrialRow

VERSION = 1
_ORDER: tuple[Word, ...] = ("gains", "same", "loses", "breaks")


def report_of(trials: Trials, arguments: Sequence[str], seconds: float) -> TrialReport:
    """Return the report of an invocation that has ended."""
    rows = [_row(trials, arm) for arm in trials.arms]
    rows.sort(key=lambda row: (_ORDER.index(row["verdict"]), row["ratio"] or math.inf))
    return {
        "schema_version": VERSION,
        "command": presentable_argv(list(arguments)),
        "steps": trials.steps,
        "floor": trials.largest_floor if trials.again.times() else None,
        "confidence": trials.confidence,
        "plain_processes": len(trials.plain.processes) + len(trials.again.processes),
        "plain_results": (
            judged(trials.noise, "equal", trials.digits)[0] if trials.noise is not None else None
        ),
        "digits_limit": trials.digits,
        "seconds": seconds,
        "ended": trials.ended,
        "trials": rows,
        "best": [_row(trials, arm) for arm in trials.together],
        "left_out": trials.left_out,
    }


def verdict_of(trials: Trials, arm: Arm) -> tuple[Word, str | None]:
    """Return what came of an arm, and why."""
    if arm.broken is not None:
        return "breaks", arm.broken
    found = trials.ratio(arm)
    if arm.closed is None and len(arm.processes) < LEAST:
        made = f"{len(arm.processes)} of {LEAST} processes were run"
        return "same", f"only {made} in the budget: not told"
    side = found.beyond(trials.largest_floor)
    if side:
        return "gains" if side < 0 else "loses", None
    return "same", arm.closed if arm.closed != "it is the same" else None


def _row(trials: Trials, arm: Arm) -> TrialRow:
    word, reason = verdict_of(trials, arm)
    results, largest, is_allowed = results_of(trials, arm)
    if word == "gains" and not is_allowed:
        reason = "it changes results beyond its kind, and is not recommended"
        if results is None:
            reason = "results cannot be compared, so it is not recommended"
    kinds = trials.change_of(arm)
    found, places = trials.ratio(arm), _places(arm)
    plain = [*trials.plain.processes, *trials.again.processes]
    of = trials.measure(arm)
    before, after = (_middle(each.time_s(of) for each in side) for side in (plain, arm.processes))
    first = _middle(each.first_s for each in arm.processes)
    plain_first = _middle(each.first_s for each in plain)
    by_items = of == "item"
    is_known = all(change.to_know for change in kinds)
    diff, edit = _edit(trials, arm, places)
    return {
        "change": arm.name,
        "changes": list(arm.chosen),
        "findings": sorted({slug for change in kinds for slug in change.findings}),
        "summary": "; ".join(change.summary for change in kinds),
        "verdict": word,
        "reason": reason,
        "recommended": word == "gains" and is_allowed and not is_known,
        "times_of": of,
        "before_s": before,
        "after_s": after,
        "ratio": found.factor,
        "ci95_low": found.low,
        "ci95_high": found.high,
        "processes": len(arm.processes),
        "run_gain_s": _of_run(trials, before, after) if of == "step" else None,
        "first_step_s": first,
        "break_even_steps": None if by_items else _break_even(before, after, plain_first, first),
        "peak_rss_bytes": _peak(arm.processes, "peak_rss_bytes"),
        "plain_peak_rss_bytes": _peak(plain, "peak_rss_bytes"),
        "peak_device_bytes": _peak(arm.processes, "peak_device_bytes"),
        "plain_peak_device_bytes": _peak(plain, "peak_device_bytes"),
        "results": results,
        "largest_difference": largest,
        "file": places[0][0] if places else None,
        "line": places[0][1] if places else None,
        "diff": diff,
        "edit": edit,
    }


def _middle(times: Iterable[float | None]) -> float | None:
    values = [value for value in times if value is not None]
    return median(values) if values else None


def _peak(processes: Sequence[Process], name: str) -> int | None:
    values = [each.told[name] for each in processes if each.told.get(name)]
    return max(values) if values else None


def _of_run(trials: Trials, before: float | None, after: float | None) -> float | None:
    if before is None or after is None or trials.whole_steps is None:
        return None
    return (before - after) * trials.whole_steps


def _break_even(
    before: float | None, after: float | None, plain_first: float | None, first: float | None
) -> int | None:
    """Return after how many steps a longer first step is made up for."""
    if before is None or after is None or plain_first is None or first is None:
        return None
    longer, gained = first - plain_first, before - after
    return math.ceil(longer / gained) if gained > 0 and longer > gained else None


def _places(arm: Arm) -> list[tuple[str, int]]:
    """Return where the change took hold in the user's own files, the most often first."""
    counts: dict[tuple[str, int], int] = {}
    for each in arm.processes:
        for places in each.told.get("held", {}).values():
            for file, line, count in places:
                if file is not None:
                    key = own_path(file, each.copies), int(line)
                    counts[key] = counts.get(key, 0) + count
    return sorted(counts, key=lambda key: -counts[key])


def _edit(
    trials: Trials, arm: Arm, places: Sequence[tuple[str, int]]
) -> tuple[str | None, str | None]:
    """Return the edit that keeps the change: a diff of all its places, or one line in words."""
    (change, *others), (value, *_) = trials.change_of(arm), arm.chosen.values()
    edit = change.edit
    if others or edit is None:
        return None, None
    words = words_of(edit, value, trials.seen)
    if edit.line or not places:
        places = [(trials.script, 0)] if trials.script else []
    elif edit.before_loop:
        places = places[:1]
    lines: dict[str, list[int]] = {}
    for file, line in places:
        lines.setdefault(file, []).append(line)
    diffs = [_diff(edit, value, file, numbers, trials.seen) for file, numbers in lines.items()]
    # A part of the places would be a part of the gain.
    found = "".join(each for each in diffs if each) if diffs and all(diffs) else None
    return found, None if found else words


def _diff(
    edit: Edit, value: Value | None, file: str, lines: Sequence[int], seen: Seen
) -> str | None:
    """Return the diff of one file with the edit at some of its lines; None where one fails."""
    try:
        with open(file, encoding="utf-8", newline="") as opened:
            before = text = opened.read()
    except (OSError, UnicodeDecodeError):
        return None
    # From the last line up: an edit moves what lies below it.
    for line in sorted(lines, reverse=True):
        after = patch_of(edit, value, file, line, seen, text).after
        if after is None:
            return None
        text = after
    return Patch(file, before, text).diff(Path.cwd())
