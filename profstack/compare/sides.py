"""One side of a comparison: the reports of a program's recordings, and their figures together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

from profstack.storage.schema.comparison import SideFacts
from profstack.storage.schema.report import Report


@dataclass
class Side:
    """One side: what it is called, and the report of each of its recordings.

    `folders` are where they lie, in the same order. The recordings are of one program.
    """

    label: str
    reports: Sequence[Report]
    folders: Sequence[str] = field(default_factory=list)

    @cached_property
    def first(self) -> Report:
        """The report that stands for the side where one must: texts, names, environment."""
        return self.reports[0]

    @cached_property
    def medians_s(self) -> list[float]:
        """Clean median of each recording that has one, seconds."""
        return self.figures(lambda report: report["benchmark"]["median_s"])

    def figures(self, read: Callable[[Report], float | None]) -> list[float]:
        """Return one figure of each recording that has it."""
        return [value for report in self.reports if (value := read(report)) is not None]

    def figure(self, read: Callable[[Report], float | None]) -> float | None:
        """Return the median of one figure over the recordings; None where none has it."""
        found = self.figures(read)
        return float(median(found)) if found else None

    def facts(self) -> SideFacts:
        """Return the side as compare.json has it."""
        return {
            "label": self.label,
            "folders": list(self.folders),
            "script": self.first["script"],
            "commit": _text(self.first["environment"].get("commit")),
            "recordings": len(self.reports),
            "steps": sum(report["benchmark"]["n"] for report in self.reports),
            "medians_s": self.medians_s,
        }


def _text(value: object) -> str | None:
    return None if value is None else str(value)
