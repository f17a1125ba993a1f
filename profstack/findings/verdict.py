"""`verdict` and `step_bar` of the report: in one sentence, what holds a step back.

The rule and its thresholds stand in `verdictrules`, the sentences in `verdictwords`; here the rule
is applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profstack.findings.devicecut import DeviceCut, device_cut
from profstack.findings.measures import Measure, measures
from profstack.findings.notorch import had_all_slices
from profstack.findings.standing import most_unknown, stands_still
from profstack.findings.stepbar import step_bar
from profstack.findings.stepcut import Cut, host_cut
from profstack.findings.verdictrules import (
    BALANCED,
    FEWEST_CLEAN,
    IO,
    LEAST_APART,
    PYTHON,
    RULES,
    TITLES,
    UNCLEAR,
    WIDEST_INTERVAL,
    rule_of,
)
from profstack.findings.verdictwords import CAUSES, of, sentence, step_words
from profstack.merge.benchmark import NONE_CLEAN
from profstack.merge.recorded import Recorded
from profstack.units import format_seconds, format_share


def add_verdict(report: dict[str, Any], recorded: Recorded) -> None:
    """Put `verdict` and `step_bar` into the report; a failure becomes a warning."""
    report.update(verdict=None, step_bar=None)
    try:
        cut = host_cut(recorded, report)
        device = device_cut(report)
        report["step_bar"] = step_bar(report, cut, device)
        report["verdict"] = verdict(report, cut, device)
    except Exception as error:
        # The figures stand without it.
        text = f"the verdict is missing: {type(error).__name__}: {error}"
        report["warnings"].append({"slug": "verdict-failed", "text": text})


def verdict(report: Mapping[str, Any], cut: Cut | None, device: DeviceCut | None) -> dict[str, Any]:
    """The verdict by the published rule, with a row of evidence for every test."""
    doubt = _doubt(report, cut)
    if cut is None or doubt is not None:
        return _said(UNCLEAR, doubt or "there is no clean step", None, [])
    found = measures(report, cut, device)
    idle = (cut.idle or 0.0) - cut.communication if device is None else 0.0
    shares = {name: measure.share for name, measure in found.items()}
    slug, margin, why = decide(shares, max(idle, 0.0))
    if why is not None and not cut.torch:
        why = _only_the_wait(cut, report)
    step = step_words(report["benchmark"])
    still = stands_still(report["tables"], cut, step, idle, shares)
    if still is not None:
        slug, margin, why = UNCLEAR, None, still
    words = why
    if words is None:
        words = sentence(slug, found, step, margin, has_loader=cut.has_loader)
    return _said(slug, words, margin, _evidence(found, cut.median_s))


def decide(
    shares: Mapping[str, float | None], idle: float = 0.0
) -> tuple[str, float | None, str | None]:
    """The slug, its margin, and in words why it is unclear or else null.

    `shares` are the measures of the tests by slug; null for what is not known, which can be no
    part of the `idle` share. The margin of `balanced` is what the nearest test lacks to its
    threshold.
    """
    known = {slug: share for slug, share in shares.items() if share is not None}
    order = sorted(known, key=lambda slug: -known[slug])
    candidates = [slug for slug in order if known[slug] >= rule_of(slug).threshold]
    could_be = _could_be(shares, known, idle)
    if not candidates:
        if could_be is not None:
            return UNCLEAR, None, could_be
        lacks = [rule_of(slug).threshold - share for slug, share in known.items()]
        return BALANCED, min(lacks), None
    first, *others = candidates
    share = known[first]
    if others and share - known[others[0]] < LEAST_APART:
        margin = share - known[others[0]]
        both = f"{of(first, share)} and {of(others[0], known[others[0]])}"
        return UNCLEAR, margin, f"two causes weigh about the same, {both}"
    if could_be is not None and most_unknown(known, idle) > share - LEAST_APART:
        return UNCLEAR, None, could_be
    next_ = known[others[0]] if others else 0.0
    margin = min(share - rule_of(first).threshold, share - next_)
    return first, margin, None


def _only_the_wait(cut: Cut, report: Mapping[str, Any]) -> str:
    """Why nothing is told where the torch layer's slices cannot be used."""
    # Where gradients are accumulated a step waits again within it.
    wait = ""
    if cut.wait is not None:
        wait = f"; before its first work a step waits {format_share(cut.wait)} of its time"
    step = f"; {cut.torch_step}" if cut.torch_step else ""
    return f"{cut.torch_reason}{wait}{step}"


def _could_be(
    shares: Mapping[str, float | None], known: Mapping[str, float], idle: float
) -> str | None:
    """What is not known and large enough to be the verdict; None where nothing is."""
    # Reading and writing that is not told apart stands in the wait and in Python.
    apart = shares.get(PYTHON) is None
    unknown = [slug for slug, share in shares.items() if share is None and (apart or slug != IO)]
    most = most_unknown(known, idle)
    able = [slug for slug in unknown if most >= rule_of(slug).threshold]
    if not able:
        return None
    names = " or ".join(CAUSES[slug] for slug in able)
    return f"up to {format_share(most)} of the step could be {names}, which is not known"


def _doubt(report: Mapping[str, Any], cut: Cut | None) -> str | None:
    """Why nothing can be said of the step; None where something can."""
    mark = report.get("benchmark") or {}
    median, count = mark.get("median_s"), mark.get("n") or 0
    if median is None:
        return _without_steps(report)
    if count < FEWEST_CLEAN:
        steps = "1 clean step" if count == 1 else f"{count} clean steps"
        return f"the run gave {steps}, and {FEWEST_CLEAN} are needed; let it make more steps"
    low, high = mark.get("ci95_low_s"), mark.get("ci95_high_s")
    wide = low is not None and high is not None and high - low >= WIDEST_INTERVAL * median
    if wide and not _mostly_waits(cut):
        span = f"{format_seconds(low)} to {format_seconds(high)}"
        return (
            f"the clean step's time is too uncertain ({span} at 95 %): other work disturbed the "
            "machine, or the steps differ; repeat when it is idle, or let it make more steps"
        )
    return None


def _mostly_waits(cut: Cut | None) -> bool:
    """Whether the clean steps themselves say that they wait for longer than for all else.

    With workers one step finds its batch ready and the next one waits for two: the median of such
    steps is rough, and what they wait in all is not.
    """
    if cut is None or cut.wait is None or cut.wait_is != "clean":
        return False
    return cut.wait - (1 - cut.wait) >= LEAST_APART


def _without_steps(report: Mapping[str, Any]) -> str:
    """What can be said where there is no clean step."""
    count = (report.get("step") or {}).get("count") or 0
    rule = (report.get("step") or {}).get("rule")
    if (report.get("argv") or [""])[0] == "bench" and report.get("status_reason"):
        return f"it has no figures: {report['status_reason']}"
    if _without_torch(report):
        how = report.get("status_reason")
        ended = how is not None and report["run"]["exit_code"] != 0
        return f"{how} before it imported torch" if ended else "the script never imported torch"
    if rule == "whole":
        how = report.get("status_reason")
        if how is not None:
            return f"{how}, and was measured as a whole{_whole(report)}"
        return (
            f"no step that repeats was found, and the script was measured as a whole"
            f"{_whole(report)}; profstack.step() at the end of each step makes more of it"
        )
    if report.get("nsys") and not report.get("layers"):
        return "the recording holds an import of Nsight Systems alone"
    if not count:
        return (report.get("step") or {}).get("reason") or "no step was found in the script"
    steps = "1 step" if count == 1 else f"{count} steps"
    if had_all_slices(report):
        return f"of the script's {steps} none that went unobserved can be timed: {NONE_CLEAN}"
    return f"the script ended after {steps}, and none was both warm and clean; let it make more"


def _without_torch(report: Mapping[str, Any]) -> bool:
    """Whether it was the run of a script that never imported torch."""
    is_run = any((report.get("run") or {}).get(key) is not None for key in ("exit_code", "signal"))
    is_bench = (report.get("benchmark") or {}).get("target") is not None
    return is_run and not is_bench and (report.get("environment") or {}).get("torch") is None


def _whole(report: Mapping[str, Any]) -> str:
    """How much of a script's time its operators took; nothing where the torch layer has none."""
    tables = report["tables"]
    whole = sum(row.get("self_s") or 0.0 for row in tables["modules"])
    operators = sum(row.get("self_s") or 0.0 for row in tables["operators"])
    if not whole:
        return ""
    share = format_share(min(operators / whole, 1.0))
    return f": {share} of its {format_seconds(whole)} went to operators"


def _said(
    slug: str, words: str, margin: float | None, evidence: list[dict[str, Any]]
) -> dict[str, Any]:
    """The verdict as it stands in the report."""
    sentence = f"{TITLES[slug]}: {words}."
    return {"slug": slug, "sentence": sentence, "margin": margin, "evidence": evidence}


def _evidence(found: Mapping[str, Measure], median_s: float) -> list[dict[str, Any]]:
    """A row for every test, the largest share first; those that are not known last."""
    rows = []
    for rule in RULES:
        measure = found[rule.slug]
        row: dict[str, Any] = {
            "test": rule.slug,
            "share": measure.share,
            "threshold_share": rule.threshold,
            "time_s": None if measure.share is None else measure.share * median_s,
        }
        more = {"file": measure.file, "line": measure.line, "name": measure.name}
        more |= {**measure.facts, "reason": measure.reason, "link": measure.link}
        rows.append({**row, **{key: value for key, value in more.items() if value is not None}})
    return sorted(rows, key=lambda row: (row["share"] is None, -(row["share"] or 0.0)))
