"""The files of the page's source view: their text where it was recorded, and what stands on it.

Times and bytes stand in the table of lines; here is only which files there are, whose they are and
their text, so that the lines round those with figures can be shown too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profstack.report.tables import number

Record = Mapping[str, Any]


@dataclass(frozen=True)
class SourceFile:
    """One file of the user's own; `text` is None where it was not recorded, for `reason`."""

    file: str
    seconds: float
    text: str | None
    reason: str | None


def with_source(lines: Sequence[Record], texts: Sequence[Record]) -> list[Record]:
    """The same lines; those that came without their text have it where the file's is known."""
    known = {str(row["file"]): row["text"].split("\n") for row in texts if row.get("text")}
    filled: list[Record] = []
    for line in lines:
        text = known.get(str(line["file"]), ())
        number_of = line.get("line") or 0
        if line.get("source") is None and 0 < number_of <= len(text):
            line = {**line, "source": text[number_of - 1]}
        filled.append(line)
    return filled


def source_files(lines: Sequence[Record], texts: Sequence[Record]) -> list[SourceFile]:
    """The user's own files that have lines, the one with the most time first."""
    times: dict[str, float] = {}
    for line in lines:
        if line.get("own") is False:
            continue
        file = str(line["file"])
        seconds = max(number(line.get("python_s")), 0.0) + max(number(line.get("operator_s")), 0.0)
        times[file] = times.get(file, 0.0) + seconds
    known = {str(row["file"]): row for row in texts}
    missing = {"text": None, "reason": "no slice traced its lines"}
    found = []
    for file in sorted(times, key=lambda file: (-times[file], file)):
        row = known.get(file, missing)
        found.append(SourceFile(file, times[file], row["text"], row["reason"]))
    return found
