"""The published rule of the verdict, as data: README and the page list it from here.

Each test has a measure, a share of the clean step between 0 and 1, and a threshold. The tests
that reach their thresholds are candidates, and the one with the largest share is the verdict.
`margin` is by how much it could shrink and still be it: the smaller one of its distances to its
threshold and to the next candidate. Candidates closer together than `LEAST_APART` give `unclear`,
and so does a share that is not known but could be as large as the first one. Without a candidate
the step is `balanced`.
"""

from __future__ import annotations

from dataclasses import dataclass

# Two shares closer than this are not told apart: runs of one program differ by as much.
LEAST_APART = 0.05
# Fewer clean steps than this have no median worth the name.
FEWEST_CLEAN = 5
# A 95 % interval as wide as this, beside the median, leaves nothing to judge.
WIDEST_INTERVAL = 1.0
# A thread that stands still for as much of the step, for a reason that no test knows, is told of.
STANDING = 0.30
# A median that its interval leaves further than this, to a side, is told with the interval.
TOLD_INTERVAL = 0.10

INPUT, IO, COMMUNICATION = "input-bound", "io-bound", "communication-bound"
PYTHON, LAUNCH, COMPUTE, MEMORY = "python-bound", "launch-bound", "compute-bound", "memory-bound"
BALANCED, UNCLEAR = "balanced", "unclear"


@dataclass(frozen=True)
class VerdictRule:
    """One test: what it measures in words, and the share from which it can be the verdict."""

    slug: str
    title: str
    measure: str
    threshold: float


RULES: tuple[VerdictRule, ...] = (
    VerdictRule(
        INPUT,
        "Input-bound",
        "The wait for the next batch: the time in a DataLoader, or without one the time before "
        "the step's first module call, less what reads and writes files, and what the loop does "
        "after the optimizer's step that no step takes as its input. On an accelerator, the time "
        "in which the device is idle for it.",
        0.30,
    ),
    VerdictRule(
        IO,
        "I/O-bound",
        "Functions that read or write files, sockets or databases outside a DataLoader, by "
        "cProfile: checkpoints, logs, samples read by hand.",
        0.30,
    ),
    VerdictRule(
        COMMUNICATION,
        "Communication-bound",
        "Collectives between ranks (gloo, NCCL, MPI), as far as the steps' thread, or the "
        "device, does nothing else meanwhile.",
        0.30,
    ),
    VerdictRule(
        PYTHON,
        "Python-bound",
        "Time of the steps' thread outside operators, outside the wait, reading and writing, "
        "and not idle. On an accelerator, Python's part of the time in which the device is idle "
        "because the host is late.",
        0.40,
    ),
    VerdictRule(
        LAUNCH,
        "Launch-bound",
        "Own time of operators that take less than 10 µs a call: the cost of calling them. On "
        "an accelerator, the operators' part of the time in which the device is idle because "
        "the host is late.",
        0.40,
    ),
    VerdictRule(
        COMPUTE,
        "Compute-bound",
        "Operators right of the roofline's ridge, half of whose time or more is explained by "
        "the machine's measured peak of operations per second.",
        0.40,
    ),
    VerdictRule(
        MEMORY,
        "Memory-bound",
        "Operators left of the roofline's ridge, or without a count of operations, half of "
        "whose time or more is explained by the machine's measured memory bandwidth.",
        0.40,
    ),
)
# What the remaining verdicts stand for.
OTHERS = {
    BALANCED: "No test reaches its threshold: no single cause takes most of the step. Where "
    "operators take half of it or more, the sentence says at which limits they are; and which "
    f"test it nearly is, if one lacks less than {100 * LEAST_APART:.0f} points of a hundred.",
    UNCLEAR: f"No clean time, fewer than {FEWEST_CLEAN} clean steps, an interval as wide as the "
    "median (unless the clean steps wait for longer than for all else, by their own clock), "
    f"figures that are not calibrated, two causes closer than "
    f"{100 * LEAST_APART:.0f} points of a hundred, a share that is not known and could be as "
    f"large as the first, or a thread that stands still for {100 * STANDING:.0f} % of the step or "
    "more, and for longer than any test measures.",
}
TITLES = {**{rule.slug: rule.title for rule in RULES}, BALANCED: "Balanced", UNCLEAR: "Unclear"}


def rule_of(slug: str) -> VerdictRule:
    """The test of a slug; raises KeyError for one that has none."""
    for rule in RULES:
        if rule.slug == slug:
            return rule
    raise KeyError(slug)
