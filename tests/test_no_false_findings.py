"""The examples have none of the problems that findings are about, but for those that are named.

What is true of an example is written down here with its reason: a new rule that tells something of
one of them is wrong, or says something that belongs into this table. The runs themselves are those
of test_examples.py, which hands every report to `check`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from profstack.findings.rules import RULES

# A default optimizer of a small model updates its tensors one by one on a CPU: it is so, and
# `fused=True` would be faster. How much of the step that is hangs on the machine.
_DEFAULT_OPTIMIZER = "it takes torch's default optimizer, which is not fused on a CPU"

# What may be told of an example, by the name of its run, and why it is true.
ALLOWED: dict[str, dict[str, str]] = {
    "digits": {"unfused-optimizer": _DEFAULT_OPTIMIZER},
    "lecture": {},
    "lecture_plain": {},
    "transformer": {"unfused-optimizer": _DEFAULT_OPTIMIZER},
    "resnet18": {},
    "nvtx": {
        "unfused-optimizer": _DEFAULT_OPTIMIZER,
        "small-operators": "a GRU over a sequence works through its elements one after the other, "
        "on a batch of 32 and a width of 64",
    },
    "loader": {
        "data-starved": "it is made to wait for its data",
        "python-hot-spot": "the pictures are drawn by Python in the process that trains",
    },
}


def _is_rough(finding: Mapping[str, Any]) -> bool:
    """Whether the figures beside it bear it out: they are the machine's, not the example's."""
    figures = finding["evidence"][0]
    interval = figures["interval_share"]
    return figures["clean_steps"] < 10 or (interval is not None and interval > 0.2)


def _is_moving(finding: Mapping[str, Any]) -> bool:
    """Whether the step time did change to the end, by what the finding says."""
    figures = finding["evidence"][0]
    change = figures["last_third_s"] / figures["middle_third_s"] - 1.0
    return abs(change) > 0.2 and change == pytest.approx(figures["change_share"])


# Of every run these are true where its figures say so: they tell of the machine, or of a run that
# is kept short for the tests.
BY_FIGURES: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "too-short-or-noisy": _is_rough,
    "warmup-never-settles": _is_moving,
}


def check(example: str, report: Mapping[str, Any]) -> None:
    """Nothing is told of the run of an example that is not true of it."""
    allowed = ALLOWED[example]
    wrong = [
        f"{finding['slug']}: {finding['title']}"
        for finding in report["findings"]
        if finding["slug"] not in allowed
        and not BY_FIGURES.get(finding["slug"], lambda finding: False)(finding)
    ]
    assert wrong == []
    assert [row for row in report["warnings"] if row["slug"] == "findings-failed"] == []


def test_every_example_is_judged_and_what_is_allowed_is_a_rule() -> None:
    # Here, since that module asks this one.
    from test_examples import RUNS

    assert ALLOWED.keys() == RUNS.keys()
    slugs = {rule.slug for rule in RULES}
    for allowed in ALLOWED.values():
        assert allowed.keys() <= slugs
        assert all(allowed.values())
    assert BY_FIGURES.keys() <= slugs


def finding(slug: str, **figures: Any) -> dict[str, Any]:
    """A finding with these figures."""
    return {"slug": slug, "title": slug, "evidence": [figures]}


@pytest.mark.parametrize(
    "told",
    [
        finding("memory-growth"),
        finding("small-operators"),
        finding("too-short-or-noisy", clean_steps=50, interval_share=0.1),
        finding("too-short-or-noisy", clean_steps=10, interval_share=None),
        finding("warmup-never-settles", middle_third_s=0.01, last_third_s=0.011, change_share=0.1),
    ],
    ids=lambda told: told["slug"],
)
def test_what_is_not_true_of_an_example_fails_it(told: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        check("digits", {"findings": [told], "warnings": []})


@pytest.mark.parametrize(
    "told",
    [
        finding("unfused-optimizer"),
        finding("too-short-or-noisy", clean_steps=9, interval_share=None),
        finding("too-short-or-noisy", clean_steps=50, interval_share=0.3),
        finding("warmup-never-settles", middle_third_s=0.01, last_third_s=0.015, change_share=0.5),
    ],
    ids=lambda told: told["slug"],
)
def test_what_is_true_of_an_example_passes(told: dict[str, Any]) -> None:
    check("digits", {"findings": [told], "warnings": []})


def test_a_family_that_failed_fails_the_example() -> None:
    failed = {"slug": "findings-failed", "text": "KeyError"}
    with pytest.raises(AssertionError):
        check("lecture", {"findings": [], "warnings": [failed]})
