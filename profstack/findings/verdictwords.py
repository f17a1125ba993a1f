"""The sentences of the verdict: what the rule came to, with the figures that it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profstack.benchmark.doubts import relative_half_width
from profstack.findings.measures import Measure
from profstack.findings.verdictrules import (
    BALANCED,
    COMMUNICATION,
    COMPUTE,
    INPUT,
    IO,
    LAUNCH,
    LEAST_APART,
    MEMORY,
    PYTHON,
    TITLES,
    TOLD_INTERVAL,
    rule_of,
)
from profstack.units import format_count, format_seconds, format_share

Found = Mapping[str, Measure]
# What the tests look at, inside a sentence.
CAUSES = {
    INPUT: "the wait for data",
    IO: "reading and writing files",
    COMMUNICATION: "communication",
    PYTHON: "Python",
    LAUNCH: "calling small operators",
    COMPUTE: "arithmetic",
    MEMORY: "memory traffic",
}
# From this share of a step on a balanced step is told as its operators.
_MOSTLY_OPERATORS = 0.5


def of(slug: str, share: float) -> str:
    """A test with its share."""
    return f"{_named(slug)} ({format_share(share)})"


def _named(slug: str) -> str:
    return TITLES[slug] if slug == IO else TITLES[slug].lower()


def step_words(mark: Mapping[str, Any]) -> str:
    """The clean step with its time, and with its interval where it is not known well."""
    median = float(mark["median_s"])
    words = f"a clean step of {format_seconds(median)}"
    half = relative_half_width(mark)
    if half is None or half <= TOLD_INTERVAL:
        return words
    low, high = format_seconds(mark["ci95_low_s"]), format_seconds(mark["ci95_high_s"])
    return f"{words} (at 95 %: {low} to {high})"


def sentence(slug: str, found: Found, step: str, margin: float | None, *, has_loader: bool) -> str:
    """What the verdict says of the step, with the share in it and where to look."""
    if slug == BALANCED:
        return _balanced(found, step, has_loader) + _nearest(found, margin)
    measure = found[slug]
    share = format_share(measure.share or 0.0)
    what = {
        INPUT: "waits for the next batch"
        if has_loader
        else "goes by before its first work: in making its batch, or in what else the script does "
        "there",
        IO: "reads and writes files",
        COMMUNICATION: f"is spent waiting for other ranks ({measure.name})",
        PYTHON: "is Python, outside all operators"
        + (
            ", most of it after the optimizer's step" if "after_step_share" in measure.facts else ""
        ),
        LAUNCH: "goes to operators so small that calling them is most of their cost"
        + _each(measure),
        COMPUTE: "is in operators at the limit of the machine's arithmetic" + _reaches(measure),
        MEMORY: "is in operators at the limit of the memory's bandwidth",
    }[slug]
    untold = ""
    if slug == INPUT and not has_loader and found[IO].share is None:
        untold = "; how much of that reads or writes files is not known"
    return f"{share} of {step} {what}{_where(slug, measure)}{untold}"


def _each(measure: Measure) -> str:
    """How many small operators there are, and what one takes; of a device it is not told."""
    if not measure.facts.get("call_s"):
        return ""
    calls = format_count(round(measure.facts["calls"]))
    return f" ({calls} a step, {format_seconds(measure.facts['call_s'])} each)"


def _reaches(measure: Measure) -> str:
    peak = measure.facts.get("peak_share")
    return "" if peak is None else f"; the step reaches {format_share(peak)} of the peak"


def _where(slug: str, measure: Measure) -> str:
    if measure.file is None or slug not in (INPUT, IO, PYTHON):
        return ""
    name = measure.file.replace("\\", "/").rsplit("/", 1)[-1]
    return f" ({name}:{measure.line})"


def _balanced(found: Found, step: str, has_loader: bool) -> str:
    told = _operators(found, step)
    if told is not None:
        return told
    known = {slug: one.share for slug, one in found.items() if one.share}
    largest = sorted(known, key=lambda slug: -(known[slug] or 0.0))[:3]
    names = CAUSES if has_loader else {**CAUSES, INPUT: "what comes before its first work"}
    listed = ", ".join(f"{names[slug]} {format_share(known[slug] or 0.0)}" for slug in largest)
    told = f"; the largest are {listed}" if listed else ""
    return f"no single cause takes most of {step}{told}"


def _operators(found: Found, step: str) -> str | None:
    """A step that is mostly operators, by what holds them back; None of any other step."""
    arithmetic, traffic = found[COMPUTE], found[MEMORY]
    below = arithmetic.facts.get("below_limits_share")
    unknown = arithmetic.facts.get("limit_unknown_share")
    if arithmetic.share is None or traffic.share is None or below is None or unknown is None:
        return None
    whole = arithmetic.share + traffic.share + below + unknown
    if whole < _MOSTLY_OPERATORS:
        return None
    parts = {
        "at the limit of the machine's arithmetic": arithmetic.share,
        "at the memory's": traffic.share,
        "below both": below,
        "with a limit that is not known": unknown,
    }
    listed = ", ".join(f"{format_share(share)} {name}" for name, share in parts.items() if share)
    return (
        f"operators take {format_share(whole)} of {step}, and no single cause holds most of it "
        f"back: {listed}{_reaches(arithmetic)}"
    )


def _nearest(found: Found, margin: float | None) -> str:
    """The test that a small change would make the verdict; nothing where none is near."""
    if margin is None or margin >= LEAST_APART:
        return ""
    lacks = {
        slug: rule_of(slug).threshold - measure.share
        for slug, measure in found.items()
        if measure.share is not None
    }
    slug = min(lacks, key=lambda name: lacks[name])
    share, threshold = format_share(found[slug].share or 0.0), format_share(rule_of(slug).threshold)
    return f"; nearly {_named(slug)} ({share}, which it is from {threshold} on)"
