"""What every finding is made of, and how grave one is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from profstack.findings.rules import rule_of

Finding = dict[str, Any]

# What costs less of the clean step is not told: it is within what two runs differ by anyway.
WORTH_TELLING = 0.01
# Shares of the clean step from which a finding is grave: a fifth is what a run on other hardware
# costs, a twentieth is more than two runs of one program differ by.
_HIGH, _MEDIUM = 0.2, 0.05
_NO_NUMBER = "the figures that it would be made from are not all known"
_ORDER = ("high", "medium", "low")


def finding(
    slug: str,
    title: str,
    *,
    severity: str,
    evidence: Sequence[Mapping[str, Any]],
    advice: str,
    layers: Iterable[str],
    gain_s: float | None = None,
    gain_is: str = "estimated",
    gain_reason: str | None = None,
    file: str | None = None,
    line: int | None = None,
    module: str | None = None,
) -> Finding:
    """One finding of a rule that stands in `RULES`; `gain_s` is seconds per clean step.

    Without a gain there must be a `gain_reason`. Raises KeyError for a slug without a rule and
    ValueError where neither is given.
    """
    rule_of(slug)
    if gain_s is None and not gain_reason:
        raise ValueError(f"{slug} has no gain and no reason why")
    return {
        "slug": slug,
        "title": title,
        "severity": severity,
        "gain_s": gain_s,
        "gain_is": None if gain_s is None else gain_is,
        "gain_reason": gain_reason if gain_s is None else None,
        "file": file,
        "line": line,
        "module": module,
        "layers": sorted(set(layers)),
        "evidence": [dict(row) for row in evidence],
        "advice": advice,
    }


def severity_of(cost_s: float, step_s: float) -> str:
    """How grave a cost in seconds per clean step is beside the step."""
    share = cost_s / step_s if step_s else 0.0
    return "high" if share >= _HIGH else "medium" if share >= _MEDIUM else "low"


def bounded(told: Finding, step_s: float | None) -> Finding:
    """A finding whose gain is a number, and no more than the clean step, whatever made it."""
    gain = told["gain_s"]
    if gain is None:
        return told
    if not math.isfinite(gain):
        return {**told, "gain_s": None, "gain_is": None, "gain_reason": _NO_NUMBER}
    return {**told, "gain_s": max(min(gain, step_s or gain), 0.0)}


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The gravest first, among equals the one that costs most; those without a gain after them."""
    return sorted(
        findings,
        key=lambda each: (
            _ORDER.index(each["severity"]) if each["severity"] in _ORDER else len(_ORDER),
            -(each["gain_s"] or 0.0),
        ),
    )
