"""What was found on each side: which findings are of the side, and not of one recording's chance.

A finding is the same where its rule, and its module or the function around its line, are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profstack.compare.places import Places
from profstack.compare.sides import Side
from profstack.storage.schema.comparison import ComparedFinding
from profstack.storage.schema.report import Report

Key = tuple[object, ...]

# A layer of another status cannot have seen anything.
_RAN = {"recorded", "emitted", "empty"}


@dataclass
class _Seen:
    """A finding or warning: the recordings that have it, and the layers that it is from."""

    finding: ComparedFinding
    recordings: set[int]
    layers: set[str]


class SideFindings:
    """The findings and warnings of one side; `which` is 0 for the first side."""

    def __init__(self, side: Side, which: int, places: Places) -> None:
        self._seen: dict[tuple[Key, int], _Seen] = {}
        self._ran = [_layers(report) for report in side.reports]
        for number, report in enumerate(side.reports):
            times: Counter[Key] = Counter()
            for key, finding, layers in _of_report(report, which, places):
                self._add((key, times[key]), number, finding, layers & self._ran[number])
                times[key] += 1

    def _add(
        self, key: tuple[Key, int], number: int, finding: ComparedFinding, layers: set[str]
    ) -> None:
        seen = self._seen.setdefault(key, _Seen(finding, set(), set()))
        seen.finding = finding
        seen.recordings.add(number)
        seen.layers |= layers

    def _is_usual(self, seen: _Seen) -> bool:
        """Return whether half of the recordings that could have a finding have it."""
        could = [number for number, ran in enumerate(self._ran) if seen.layers <= ran]
        return len(seen.recordings) >= len({*could, *seen.recordings}) / 2

    def __contains__(self, key: Key) -> bool:
        """Return whether any recording has a finding."""
        return (key, 0) in self._seen

    def usual(self) -> Iterator[tuple[Key, ComparedFinding]]:
        """Yield what most recordings have, each rule once in a module or function."""
        for (key, time), seen in self._seen.items():
            if time == 0 and self._is_usual(seen):
                yield key, seen.finding

    def count(self) -> int:
        """Return the number of findings that most recordings have, without warnings."""
        findings = (seen for seen in self._seen.values() if seen.finding["kind"] == "finding")
        return sum(map(self._is_usual, findings))


def gone_and_new(sides: Sequence[SideFindings]) -> Iterator[ComparedFinding]:
    """Yield findings that most of one side's recordings have, and none of the other's."""
    before, after = sides
    for key, finding in before.usual():
        if key not in after:
            yield {**finding, "status": "gone"}
    for key, finding in after.usual():
        if key not in before:
            yield {**finding, "status": "new"}


def _layers(report: Report) -> set[str]:
    return {str(row["name"]) for row in report["layers"] if row["status"] in _RAN}


def _of_report(
    report: Report, which: int, places: Places
) -> Iterator[tuple[Key, ComparedFinding, set[str]]]:
    """Yield what tells a finding from others, the finding, and the layers that it is from."""
    for each in report["findings"]:
        place = each["module"] or _function_around(each["file"], each["line"], which, places)
        found: ComparedFinding = {
            "kind": "finding",
            "status": "new",
            "slug": each["slug"],
            "title": each["title"],
            "file": each["file"],
            "line": each["line"],
        }
        yield ("finding", each["slug"], place), found, set(each["layers"])
    for warning in report["warnings"]:
        told: ComparedFinding = {
            "kind": "warning",
            "status": "new",
            "slug": warning["slug"],
            "title": warning["text"],
            "file": None,
            "line": None,
        }
        yield ("warning", warning["slug"]), told, set()


def _function_around(file: str | None, line: int | None, which: int, places: Places) -> object:
    if file is None or line is None:
        return None
    there = places.sources.files.get(file, file) if which == 0 else file
    return there, places.sources.function_at(which, file, line)
