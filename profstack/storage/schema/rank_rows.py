"""Rows of the tables that join the ranks of a launch: each rank, its step, and its time line."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from profstack.storage.schema.column import (
    Calibrated,
    Clean,
    Counted,
    Fact,
    Figure,
    Text,
    Whole,
    cell,
    empty,
)

_NO_WAIT = cell("the rank's torch layer did not see how long it waits for others")


class RankRow(TypedDict):
    """A rank of the launch; times are per clean step."""

    rank: Annotated[Fact, "rank of the process"]
    node: Annotated[
        Fact,
        "number of its machine",
        empty("the launcher did not number the machines"),
        cell("the launcher did not number its machine"),
    ]
    folder: Annotated[
        Text,
        "its own recording, inside this one",
        empty("no rank has a recording here"),
        cell("of many ranks those that are shown, and the latest, have a recording here"),
    ]
    status: Annotated[str, "complete, partial or failed; missing: it left no report"]
    ended: Annotated[Text, "how it ended", cell("by itself, without an error")]
    steps: Annotated[Fact, "steps that it made", cell("it left no report")]
    step_s: Annotated[Clean, "step | median of its clean steps", cell("it has no clean step")]
    waits_s: Annotated[Clean, "waits for others | time in which it waits in collectives", _NO_WAIT]
    own_s: Annotated[Clean, "own time | its step without that", _NO_WAIT]
    late_s: Annotated[
        Clean, "late by | its own time less the median of the other ranks' own times", _NO_WAIT
    ]
    part: Annotated[
        Text,
        "the part of its step that takes most more time than on the other ranks",
        cell("no part takes longer than on the other ranks"),
    ]
    part_s: Annotated[
        Clean, "by | how much more that is", cell("no part takes longer than on the other ranks")
    ]
    file: Annotated[
        Text,
        "source file of that part",
        empty("no place was found for any rank's part"),
        cell("no place was found for that part"),
    ]
    line: Annotated[
        Fact,
        "line in that file",
        empty("no place was found for any rank's part"),
        cell("no place was found for that part"),
    ]
    cpu_s: Annotated[
        Clean,
        "CPU | mean CPU time of the process in a clean step",
        empty("steps so short that reading the CPU clock would slow them"),
        cell("its steps were too short to read the CPU clock"),
    ]
    peak_bytes: Annotated[
        Counted, "tensors at the peak of a step", cell("its torch layer saw no memory")
    ]
    flop: Annotated[Counted, "operations of a step", cell("its operations were not counted")]
    cause: Annotated[Text, "verdict on its own step", cell("it left no report")]


class RankPartRow(TypedDict):
    """A part of one rank's clean step; the parts of a rank add up to its step."""

    rank: Annotated[Fact, "rank of the process"]
    part: Annotated[str, "part of the step"]
    time_s: Annotated[Clean, "time of the part"]


class RankStepRow(TypedDict):
    """Some consecutive steps of one rank."""

    rank: Annotated[Fact, "rank of the process"]
    first_step: Annotated[Fact, "first of the steps"]
    last_step: Annotated[Fact, "last of the steps"]
    wall_s: Annotated[
        Clean, "longest | host time of the longest of them", cell("none of them was timed")
    ]
    wait_s: Annotated[
        Clean,
        "before the model | longest time before the model's first call",
        empty("it is not known when the first work of any step began"),
        cell("it is not known when their first work began"),
    ]
    cpu_s: Annotated[
        Clean,
        "CPU | most CPU time of one of them",
        empty("steps so short that reading the CPU clock would slow them"),
        cell("they were too short to read the CPU clock"),
    ]
    late_s: Annotated[
        Clean,
        "late by | the longest time by which one of them was later than on most ranks; of traces, "
        "by which the rank came later to a collective",
        empty(
            "neither waits nor CPU times are known of every step, nor did all ranks of traces make "
            "the same collectives"
        ),
        cell("not known of these steps"),
    ]


class RankWorkRow(TypedDict):
    """What ranks do in a step, by name: how its time differs among them."""

    kind: Annotated[str, "module, with what is inside it; or operator, without"]
    name: Annotated[str, "module path, or operator"]
    ranks: Annotated[Fact, "ranks that have it"]
    mean_s: Annotated[Calibrated, "mean of these ranks"]
    middle_s: Annotated[Calibrated, "median | of these ranks, to within 1 %"]
    most_s: Annotated[Calibrated, "most | the time of the rank that has the longest"]
    most_rank: Annotated[Fact, "by rank | that rank"]
    more_s: Annotated[Calibrated, "more | the longest less the median"]


class RareLateness(TypedDict):
    """Steps in which one rank was late, where it is not late in all of them."""

    kind: Annotated[
        Literal["wait", "cpu"], "wait: before the model's first call; cpu: by its CPU time"
    ]
    share: Annotated[float, "share of its steps"]
    every: Annotated[Whole, "steps from one to the next; null where that changes"]
    first_step: Annotated[int, "the first of them"]
    late_s: Annotated[float, "median time by which it was late in them"]


class Straggler(TypedDict):
    """The rank that makes the others wait."""

    rank: Annotated[int, "rank"]
    late_s: Annotated[
        float, "its own time of a step, of those that are late, less the other ranks' median, s"
    ]
    since_step: Annotated[Whole, "step from which on it is late; null: from the first on"]
    rare: Annotated[RareLateness | None, "where it is late in some steps alone; null else"]
    whole_node: Annotated[bool, "all ranks of its machine are late like it"]


class Meetings(TypedDict):
    """Collectives that all ranks made, in the steps that all recorded; times are per step."""

    skew_s: Annotated[float, "waiting for the last rank to come, mean of the ranks, seconds"]
    transfer_s: Annotated[float, "from then to the end on most ranks, seconds"]
    bytes_per_s: Annotated[Figure, "bytes of a rank over that time; null where sizes are unknown"]
    last_rank: Annotated[int, "the rank that came last most often"]
    last_share: Annotated[float, "in which share of them it came last"]
    clock_error_s: Annotated[float, "how far clocks of machines may still be apart, seconds"]


class StepSpread(TypedDict):
    """How long the warm steps of all ranks are; quantiles are right to within 1 %."""

    count: Annotated[int, "steps of all ranks"]
    p50_s: Annotated[Figure, "median, seconds"]
    p90_s: Annotated[Figure, "nine of ten are shorter, seconds"]
    p99_s: Annotated[Figure, "99 of 100 are shorter, seconds"]
    most_s: Annotated[float, "the longest, seconds"]
    most_rank: Annotated[int, "the rank that made it"]


class RanksFacts(TypedDict):
    """What a report of several ranks is made of."""

    kind: Annotated[
        Literal["rank", "process"],
        "rank: of a launch; process: one that the script started, by its number, without a rank",
    ]
    count: Annotated[int, "ranks with a report"]
    world_size: Annotated[Whole, "processes of the launch; null where it is not known"]
    missing: Annotated[list[int], "ranks that were to record and left no report"]
    shown: Annotated[int, "rank whose own figures and tables the report shows"]
    straggler: Annotated[Straggler | None, "the rank that makes the others wait; null: none does"]
    spread_s: Annotated[Figure, "largest less smallest own time; null where not known"]
    collectives: Annotated[
        Meetings | None, "collectives that were matched; null: no step of all ranks has any"
    ]
    steps: Annotated[StepSpread | None, "warm steps of all ranks; null where none has any"]
