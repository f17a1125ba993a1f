"""Whether the clean step time itself can be trusted: enough steps, a narrow interval, settled.

`too-short-or-noisy`: fewer than ten clean steps, or an interval of the median that reaches further
than 20 % of it to a side. Five per cent is what a comparison of two runs wants, and the finding
says how far the interval reaches beside that; but one shared machine scatters by more than that
without anything being wrong with the program, and what the other findings promise is good to 30 %.
Where the interval is wider than a fifth, neither their limits (a tenth of the step) nor their
gains hold, and the reader must know.

`warmup-never-settles`: the steps still change at the end of the run, beyond their scatter. A
change below a fifth is left to the warnings for the same reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profstack.benchfolder import FACT
from profstack.benchmark.doubts import FEW_STEPS, relative_half_width
from profstack.findings.figures import clean_step_s
from profstack.findings.made import Finding, finding
from profstack.merge.recorded import Recorded
from profstack.units import format_seconds, format_share

NOISY, UNSETTLED = "too-short-or-noisy", "warmup-never-settles"
# What two runs that are compared should be known to, and from where on nothing here holds.
_WANTED, _TOO_WIDE = 0.05, 0.2
# Fewer unobserved steps than this show no trend that means something.
_FEWEST_FOR_TREND = 30
_NO_TIME = "it says how far the other figures can be trusted; it costs no time"


def trust(recorded: Recorded, report: Mapping[str, Any]) -> list[Finding]:
    """What speaks against the clean figures."""
    found = [_noisy(report), _unsettled(recorded, report)]
    return [each for each in found if each is not None]


def _noisy(report: Mapping[str, Any]) -> Finding | None:
    figures = report.get("benchmark") or {}
    count = figures.get("n")
    if not count:
        # Without any clean step there is no figure that could be doubted; a warning says why.
        return None
    half = relative_half_width(figures)
    few = count < FEW_STEPS
    if not few and (half is None or half <= _TOO_WIDE):
        return None
    if few:
        title = f"Only {count} clean {'step' if count == 1 else 'steps'}: the step time is rough"
    else:
        title = f"The step time is rough: its interval reaches {format_share(half)} to a side"
    return finding(
        NOISY,
        title,
        severity="low",
        gain_reason=_NO_TIME,
        layers=(),
        evidence=[
            {
                "clean_steps": count,
                "clean_steps_wanted": FEW_STEPS,
                "median_s": figures["median_s"],
                "ci95_low_s": figures.get("ci95_low_s"),
                "ci95_high_s": figures.get("ci95_high_s"),
                "interval_share": half,
                "interval_wanted_share": _WANTED,
                "link": "benchmark/samples",
            }
        ],
        advice=_noisy_advice(count, half),
    )


def _noisy_advice(count: int, half: float | None) -> str:
    reach = (
        "there are too few of them for an interval"
        if half is None
        else f"the 95 % interval reaches {format_share(half)} of the median to a side, and "
        f"{format_share(_WANTED)} is wanted where two runs are compared"
    )
    return (
        f"There are {count} clean steps (at least {FEW_STEPS} are wanted), and {reach}. Gains and "
        "shares on this page are no better than that. Let the script run more steps, on a machine "
        "with nothing else to do; 'profstack bench' repeats until the interval is narrow."
    )


def _unsettled(recorded: Recorded, report: Mapping[str, Any]) -> Finding | None:
    """The steps that were not observed change to the very end, and by much."""
    told = [row["text"] for row in report["warnings"] if row["slug"] == "warmup-unsettled"]
    step_s = clean_step_s(report)
    if not told or step_s is None or recorded.facts.get(FACT) is not None:
        return None
    steps = recorded.steps
    free = steps[steps["kind"].isin(["settle", "clean", "watch"]) & (steps["wall_s"] > 0)]
    free = free[free["flags"] == ""]
    if len(free) < _FEWEST_FOR_TREND:
        return None
    third = len(free) // 3
    early = float(free["wall_s"].iloc[third : 2 * third].median())
    late = float(free["wall_s"].iloc[-third:].median())
    change = late / early - 1.0
    if abs(change) <= _TOO_WIDE:
        return None
    direction = "slower" if change > 0 else "faster"
    return finding(
        UNSETTLED,
        f"The step never settles: it is still getting {direction} when the run ends",
        severity="low",
        gain_reason=_NO_TIME,
        layers=(),
        evidence=[
            {
                "steps": len(free),
                "middle_third_s": early,
                "last_third_s": late,
                "change_share": change,
                "seen": told[0],
                "link": "benchmark/warmup",
            }
        ],
        advice=f"Steps take {format_seconds(late)} in the last third of the run and "
        f"{format_seconds(early)} in the one before ({told[0]}), so the median is one of a moving "
        "thing. "
        + (
            "Look for what grows with the steps: a list or a cache that each step goes through, a "
            "graph that is kept, longer inputs; or a machine that gets hot or is shared."
            if change > 0
            else "Caches, an allocator or a compiler are still settling: let the run go on longer."
        ),
    )
