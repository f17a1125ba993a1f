"""The history of programs: every field of history.json and what it means."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from profstack.storage.schema.column import Figure, Text


class HistoryRun(TypedDict):
    """One recording."""

    path: Annotated[str, "folder of the recording, or its report"]
    started_at: Annotated[str, "when it began, ISO 8601 in UTC"]
    commit: Annotated[Text, "commit of the script's repository; null outside of one"]
    changed: Annotated[bool | None, "whether files differed from the commit; null if not known"]
    steps: Annotated[int, "clean steps"]
    median_s: Annotated[Figure, "median clean step; null where there is none"]
    ci95_low_s: Annotated[Figure, "low end of the median's 95 % interval inside that process"]
    ci95_high_s: Annotated[Figure, "high end of that interval"]
    memory_peak_bytes: Annotated[Figure, "bytes of tensors at the peak of a step"]
    verdict: Annotated[Text, "what holds a step back, as the run's own page says it"]
    reason: Annotated[Text, "why there is no median"]


class HistoryChange(TypedDict):
    """A change that is more than noise."""

    figure: Annotated[Literal["step", "memory"], "what changed"]
    run: Annotated[int, "place in `runs` of the first run after the change"]
    commit: Annotated[Text, "its commit"]
    commit_before: Annotated[Text, "commit of the last run before the change"]
    same_commit: Annotated[
        bool, "whether both runs are of one commit: then the code is not what changed"
    ]
    before: Annotated[float, "median of the runs from the last change to this one, in s or bytes"]
    after: Annotated[float, "median of the runs from this change to the next one"]
    ratio: Annotated[Figure, "after over before"]
    ci95_low: Annotated[Figure, "low end of the ratio's 95 % interval; null with too few runs"]
    ci95_high: Annotated[Figure, "high end of it"]
    p: Annotated[float, "chance to see such a change where there is none"]
    differences: Annotated[list[str], "what else was not equal in the runs next to the change"]
    sentence: Annotated[str, "the change in words"]


class ProgramHistory(TypedDict):
    """The recordings of one program in order of time, and its changes."""

    script: Annotated[str, "script, module or session"]
    runs: Annotated[list[HistoryRun], "its recordings, the oldest first"]
    changes: Annotated[list[HistoryChange], "changes of the step, then of memory"]
    reasons: Annotated[list[str], "why a figure was not searched for changes"]


class LeftOut(TypedDict):
    """A file that is in no history."""

    path: Annotated[str, "the file or folder"]
    reason: Annotated[str, "why"]


class History(TypedDict):
    """Everything history.json holds."""

    schema_version: Annotated[Literal[1], "raised where a field changes its meaning"]
    profstack_version: Annotated[str, "version of profstack that wrote it"]
    programs: Annotated[list[ProgramHistory], "one for each script, the one with most runs first"]
    left_out: Annotated[list[LeftOut], "what could not be read"]
