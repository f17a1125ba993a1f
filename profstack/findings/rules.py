"""The rules by which findings are made, as data: README and the page list them from here.

A family of rules that makes findings of a new slug adds an entry to `RULES`, in the group it
belongs to, with the rule in one sentence that a reader can check by hand: what is looked at, and
the limits (the constants themselves stand in the family's module, with their reasons), and what
its `gain_s` is, or why it has none. Every slug that a family makes must stand here: a finding
whose slug does not is a defect, and a test says so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FindingRule:
    """One kind of finding: `rule` says when it is made, `gain` what its `gain_s` is."""

    slug: str
    title: str
    rule: str
    gain: str


RULES: tuple[FindingRule, ...] = (
    FindingRule(
        "memory-growth",
        "Memory grows with every step",
        "In the slices that nothing observed, the resident set (or the device's live tensors) "
        "grows in part after part of the steps, by more than 2 MiB in all (256 KiB on a device) "
        "beyond what profstack itself wrote down.",
        "None: it costs memory, not time.",
    ),
)


def rule_of(slug: str) -> FindingRule:
    """The rule of a slug; raises KeyError for one that no rule makes."""
    for rule in RULES:
        if rule.slug == slug:
            return rule
    raise KeyError(slug)
