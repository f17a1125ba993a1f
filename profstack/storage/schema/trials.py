"""What `profstack try` found: every field of try.json and what it means.

The names are a contract with programs that read try.json. A figure that is not known is null, with
a reason beside it.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from profstack.storage.schema.column import Figure, Text, Whole

TrialVerdict = Literal["gains", "loses", "same", "breaks"]
TrialResults = Literal["equal", "digits", "different"]


class TrialRow(TypedDict):
    """One change, or several together, beside the plain script."""

    change: Annotated[str, "name of the change, with its value: `workers=4`"]
    changes: Annotated[list[str], "names of all changes that were made together"]
    findings: Annotated[list[str], "rules whose findings it is a remedy of"]
    summary: Annotated[str, "what was changed, in words"]
    verdict: Annotated[
        TrialVerdict,
        "gains, loses: beyond the interval and beyond what the plain script differs from itself; "
        "same: neither was shown; breaks: the script failed, or results that must not change did",
    ]
    reason: Annotated[Text, "why it breaks, is the same, or may not be recommended"]
    recommended: Annotated[bool, "whether it gains and leaves results as its kind allows"]
    times_of: Annotated[
        Literal["step", "item", "run"],
        "item: the change puts another number of items into a step; run: all time from step to "
        "step, since what is changed lies between steps",
    ]
    before_s: Annotated[Figure, "time of a step, or item, of the plain script: median of processes"]
    after_s: Annotated[Figure, "the same with the change"]
    ratio: Annotated[
        Figure, "after over before; of the time of an item where steps have other numbers of items"
    ]
    ci95_low: Annotated[Figure, "low end of the ratio's interval, corrected for all looks"]
    ci95_high: Annotated[Figure, "high end of the ratio's interval"]
    processes: Annotated[Whole, "fresh processes with the change"]
    run_gain_s: Annotated[Figure, "gain of the whole run; null where its steps are not known"]
    first_step_s: Annotated[Figure, "median time of the first step: compiling is in it"]
    break_even_steps: Annotated[
        Whole, "steps from which a longer first step pays; null where it is no longer"
    ]
    peak_rss_bytes: Annotated[Whole, "largest resident set of its processes"]
    plain_peak_rss_bytes: Annotated[Whole, "largest resident set of the plain processes"]
    peak_device_bytes: Annotated[Whole, "largest memory of tensors on the device"]
    plain_peak_device_bytes: Annotated[Whole, "the same of the plain processes"]
    results: Annotated[
        TrialResults | None,
        "what it does to losses, gradients and outputs of the first steps; null: not comparable",
    ]
    largest_difference: Annotated[Figure, "largest relative difference of these"]
    file: Annotated[Text, "the user's file that the edit is of"]
    line: Annotated[Whole, "line of the place"]
    diff: Annotated[Text, "the edit as a unified diff from the working folder"]
    edit: Annotated[Text, "the edit as one line, where there is no diff"]


class TrialReport(TypedDict):
    """One invocation of `profstack try`."""

    schema_version: Annotated[int, "raised where a field changes its meaning"]
    command: Annotated[list[str], "arguments of the script"]
    steps: Annotated[int, "steps of each process"]
    floor: Annotated[Figure, "what the plain script seemed to gain or lose against itself"]
    confidence: Annotated[float, "confidence of each interval"]
    plain_processes: Annotated[int, "processes of the plain script; 0: calls in one process"]
    plain_results: Annotated[
        TrialResults | None,
        "whether plain runs with the same seed give the same results; null: nothing to compare",
    ]
    digits_limit: Annotated[
        float,
        "largest relative difference that is told as one of the last digits: larger in a script "
        "whose first steps carry the last digits of its parameters further",
    ]
    seconds: Annotated[float, "time of the whole invocation"]
    ended: Annotated[str, "why no further process was started"]
    trials: Annotated[list[TrialRow], "a row for each change that was tried, the best first"]
    best: Annotated[list[TrialRow], "the gains that do not exclude each other, made together"]
    left_out: Annotated[dict[str, str], "changes that were not tried, and why"]
