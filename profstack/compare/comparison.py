"""Compare two sides: the answer, what explains it, and every table side by side."""

from __future__ import annotations

from collections.abc import Sequence

from profstack.compare.sides import Side
from profstack.environment import __version__
from profstack.storage.schema.comparison import Comparison, ComparisonVerdict, PartChange
from profstack.storage.schema.report import Report


def compare(before: Side, after: Side, *, rules: Sequence[str] = ()) -> Comparison:
    """Compare the recordings of two sides; `rules` are those of `--fail-if`."""
    return {
        "schema_version": 1,
        "profstack_version": __version__,
        "before": before.facts(),
        "after": after.facts(),
        "verdict": _verdict(before, after),
        "inequalities": [],
        "parts": _parts(before, after),
        "tables": [],
        "findings": [],
        "gates": [],
    }


def _verdict(before: Side, after: Side) -> ComparisonVerdict:
    b = before.figure(lambda report: report["benchmark"]["median_s"])
    a = after.figure(lambda report: report["benchmark"]["median_s"])
    ratio = a / b if a is not None and b else None
    return {
        "slug": "unclear",
        "sentence": "cannot tell: the spread between processes is not known",
        "action": "",
        "figure": "none" if ratio is None else "step",
        "before_s": b,
        "after_s": a,
        "ratio": ratio,
        "ci95_low": None,
        "ci95_high": None,
        "spread": None,
        "floor": None,
        "reason": "the spread between processes is not known",
    }


def _bar(report: Report) -> dict[str, float]:
    bar = report["step_bar"]
    return {part["name"]: part["seconds"] for part in bar["parts"]} if bar else {}


def _parts(before: Side, after: Side) -> list[PartChange]:
    was, now = _bar(before.first), _bar(after.first)
    return [
        {
            "of": "step",
            "name": name,
            "before_s": was.get(name, 0.0),
            "after_s": now.get(name, 0.0),
            "difference_s": now.get(name, 0.0) - was.get(name, 0.0),
            "low_s": None,
            "high_s": None,
            "beyond_noise": None,
            "file": None,
            "line": None,
            "cause": None,
        }
        for name in dict.fromkeys((*was, *now))
    ]
