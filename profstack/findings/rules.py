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
        "data-starved",
        "Data loading starves the step",
        "Of the clean step at least a quarter is waiting for the DataLoader (torch's own ranges "
        "round it say how much of the wait is its); without a DataLoader, at least half of such a "
        "wait must be in the user's own functions outside modules.",
        "Estimated: the step less the longest of its own work, the loading over the workers, and "
        "all CPU time over the cores. None where there is no DataLoader, or no core is left.",
    ),
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
