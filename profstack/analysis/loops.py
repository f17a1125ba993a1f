"""The loops of a script that made steps, and which of them the report is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from profstack.code_owner import place_words
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import LoopFacts, ReportWarning
from profstack.units import format_seconds

# The fact that holds the text of `--begin-at`.
BEGIN_AT = "begin_at"


def loop_rows(recorded: Recorded) -> list[LoopFacts]:
    """Return the loops of the run in order; none where their call sites are not known."""
    known = {plan: recorded.loop_facts(plan) for plan in recorded.plan_times}
    sites = {plan: _lines(facts) for plan, facts in known.items()}
    return [
        {
            "plan": plan,
            "place": _place(plan, sites),
            "steps": recorded.plan_steps[plan],
            "time_s": recorded.plan_times[plan] or None,
            "phase": facts.get("phase"),
            "gradients": facts.get("gradients"),
            "training": facts.get("training"),
            "reported": plan == recorded.plan,
        }
        for plan, facts in known.items()
        if "site" in facts
    ]


def loop_warnings(recorded: Recorded, rows: list[LoopFacts]) -> list[ReportWarning]:
    """Say which loop the figures are of where there are several, or that a place never came."""
    warnings: list[ReportWarning] = []
    wanted = recorded.facts.get(BEGIN_AT)
    begun = any("site" in facts and not facts["waits"] for facts in _facts(recorded))
    if wanted is not None and not begun:
        what = "that step never came" if str(wanted).isdigit() else "no step was made there"
        text = f"--begin-at {wanted}: {what}, so no layer had a slice; the steps are only timed"
        warnings.append({"slug": "begin-at", "text": text})
    others = [row for row in rows if not row["reported"]]
    reported = next((row for row in rows if row["reported"]), None)
    if reported is None or not others:
        return warnings
    others.sort(key=lambda row: -(row["time_s"] or 0.0))
    told = "; ".join(map(_words, others[:MOST_TOLD]))
    more = len(others) - MOST_TOLD
    told += f"; and {more} more" if more > 0 else ""
    text = f"the figures are of the loop {_words(reported)}. The others count apart: {told}"
    return [*warnings, {"slug": "loops", "text": text}]


# Other loops that are named in a sentence.
MOST_TOLD = 4


def _facts(recorded: Recorded) -> list[Mapping[str, Any]]:
    return [recorded.loop_facts(plan) for plan in recorded.plan_times]


def _lines(facts: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Return the own lines of a loop's call site, the innermost first."""
    return cast("list[tuple[str, int, str]]", facts.get("site") or [])[::-1]


def _place(plan: int, sites: Mapping[int, list[tuple[str, int, str]]]) -> str | None:
    """Return the innermost line, and the first around it that no other loop has there."""
    own = sites[plan]
    if not own:
        return None
    place = place_words(own[0][0], own[0][1])
    same = [site for other, site in sites.items() if other != plan and site[:1] == own[:1]]
    for depth, line in enumerate(own[1:], 1):
        if same and all(site[depth : depth + 1] != [line] for site in same):
            return f"{place}, called at {place_words(line[0], line[1])}"
    return place


def _words(row: LoopFacts) -> str:
    count = f"{row['steps']} step{'s' * (row['steps'] != 1)}"
    took = "" if row["time_s"] is None else f", {format_seconds(row['time_s'])}"
    state = ""
    if row["gradients"] is not None:
        state = f", gradients {'on' if row['gradients'] else 'off'}"
        state += f", {'training' if row['training'] else 'eval'} mode"
    return f"{_at(row['place'])} ({count}{took}{state})"


def _at(place: str | None) -> str:
    return "before the place, or elsewhere" if place is None else f"at {place}"
