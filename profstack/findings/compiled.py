"""What torch.compile did in a run's steps: versions of one code compiled again, graphs ended early.

Dynamo's own records say what it compiled, when, for how long and which guard had failed; the step
that each belongs to is the one in which it began.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from profstack.merge.recorded import Recorded, records
from profstack.ownfiles import Places
from profstack.privacy import home_relative

# Slices in which nothing slowed the compiler.
_UNOBSERVED = ("startup", "settle", "clean", "watch")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")
_USERS_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
# The comment that a guard bears: the line's text, then the end of its path and its number.
_COMMENTS_PLACE = re.compile(r"\.py:(\d+) in ")
_LEADING_ID = re.compile(r"^\d+/\d+: *")
# What is asked for, not what it is asked of: keys and indices stand in brackets.
_VALUE = re.compile(r"""(\[[^\[\]]*\])|'[^']*'|"[^"]*"|(?<!\w)-?\d+(?:\.\d*)?(?:e[-+]?\d+)?""")
_LONGEST_GUARD, _LONGEST_REASON = 160, 240
# What dynamo says where it gives a code up that it compiled too often.
_LIMIT = re.compile(r"recompile[_ ]limit|cache[_ ]size[_ ]limit", re.IGNORECASE)


@dataclass(frozen=True)
class Version:
    """One compilation of a code: `number` is 0 for its first; `step` is null outside the steps."""

    frame: str
    number: int
    name: str | None
    file: str | None
    line: int | None
    began_s: float
    wall_s: float
    step: int | None
    undisturbed: bool
    guard: str | None
    guard_file: str | None
    guard_line: int | None
    limit: bool


def versions(recorded: Recorded) -> list[Version]:
    """All compilations in order of time, each with the time of its backward graph."""
    rows = [row for row in records(recorded.frames["compilations"]) if row["t_s"] is not None]
    rows.sort(key=lambda row: float(row["t_s"]))
    backward: dict[str, float] = {}
    for row in rows:
        if row["backward"]:
            key = str(row["compile_id"])
            backward[key] = backward.get(key, 0.0) + (row["wall_s"] or 0.0)
    place = _StepAt(recorded)
    return [
        _version(row, place, backward.get(str(row["compile_id"]), 0.0))
        for row in rows
        if not row["backward"]
    ]


def _version(row: dict[str, Any], place: _StepAt, backward_s: float) -> Version:
    frame, _, number = str(row["compile_id"]).partition("/")
    step, kind = place.of(float(row["t_s"]))
    guard, file, line = failed_guard(row["reason"])
    return Version(
        frame,
        # A restarted analysis stands as `0/1_1`.
        int(number.partition("_")[0] or 0),
        row["name"],
        row["file"],
        row["line"],
        float(row["t_s"]),
        (row["wall_s"] or 0.0) + backward_s,
        step,
        kind in _UNOBSERVED,
        guard,
        file,
        line,
        bool(_LIMIT.search(row["failure"] or "")),
    )


def failed_guard(reason: str | None) -> tuple[str | None, str | None, int | None]:
    """The expression of the guard that failed first, and the file and line that it stands for."""
    if not reason:
        return None, None, None
    first, _, rest = reason.partition("\n")
    guard = " ".join(_LEADING_ID.sub("", first).split("  #")[0].split())
    place = _USERS_PLACE.search(rest)
    if place is not None:
        return home_relative(guard[:_LONGEST_GUARD]), place[1], int(place[2])
    # The path in the comment is cut short: the line alone is known.
    comment = _COMMENTS_PLACE.search(first)
    return home_relative(guard[:_LONGEST_GUARD]), None, int(comment[1]) if comment else None


def kind_of(guard: str | None) -> str | None:
    """The same text for a guard on the same thing, whatever value it asked for."""
    return None if guard is None else _VALUE.sub(lambda match: match[1] or "_", guard)


class _StepAt:
    """The step that a time lies in, and the kind of its slice."""

    def __init__(self, recorded: Recorded) -> None:
        steps = recorded.steps[recorded.steps["started_s"].notna()]
        self._steps = [
            (float(begun), float(begun + wall), int(step), str(kind))
            for begun, wall, step, kind in zip(
                steps["started_s"], steps["wall_s"], steps["step"], steps["kind"], strict=True
            )
            if wall > 0
        ]

    def of(self, t_s: float) -> tuple[int | None, str | None]:
        for begun, ended, step, kind in self._steps:
            if begun <= t_s < ended:
                return step, kind
        return None, None


@dataclass(frozen=True)
class Break:
    """A place at which dynamo ended a graph: the user's own line, and the code it compiled."""

    reason: str
    file: str
    line: int
    code: str | None
    code_file: str | None
    times: int


def graph_breaks(recorded: Recorded) -> list[Break]:
    """The places in the user's own code at which graphs were ended, each once."""
    places = Places.read(recorded.facts)
    counts: Counter[tuple[str, str, int, str | None, str | None]] = Counter()
    for row in records(recorded.frames["graph_breaks"]):
        stack = json.loads(row["stack"] or "[]")
        own = [each for each in stack if places is None or places.is_own(str(each[0]))]
        if not own or own[-1][1] is None:
            continue
        code_file, _, code = stack[0]
        reason = _reason(row["reason"])
        counts[reason, str(own[-1][0]), int(own[-1][1]), function_of(code), str(code_file)] += 1
    return [Break(*key, times=times) for key, times in counts.items()]


def _reason(text: str | None) -> str:
    """Dynamo's reason in one line: what it could not do, and how it explains that."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    told = lines[:1] or ["dynamo gave no reason"]
    told += [
        line.removeprefix("Explanation: ") for line in lines[1:] if line.startswith("Explanation: ")
    ]
    if told[0].startswith("generic_jump"):
        told = [f"a branch (if, while) asks for the value of a tensor ({told[0]})"]
    return home_relative(": ".join(told[:2])[:_LONGEST_REASON]).rstrip(".")


def function_of(code: str | None) -> str | None:
    """The function that a code belongs to, also where it is the rest of it after a break."""
    found = _RESUMED.fullmatch(code or "")
    return found[1] if found else code


def frames_of(found: Iterable[Version], broken: Break) -> set[str]:
    """Numbers of the codes that a broken function was compiled as: itself and its rests."""
    return {
        each.frame
        for each in found
        if function_of(each.name) == broken.code and each.file == broken.code_file
    }
