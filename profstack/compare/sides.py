"""One side of a comparison: the reports of a program's recordings, and their figures together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

import numpy as np

from profstack.stats.processes import weights
from profstack.stats.summary import FloatArray
from profstack.storage.schema.comparison import Bar, SideFacts
from profstack.storage.schema.report import Report, RunPart


@dataclass
class Side:
    """One side: what it is called, and the report of each of its recordings.

    `folders` are where they lie, in the same order. The recordings are of one program.
    """

    label: str
    reports: Sequence[Report]
    folders: Sequence[str] = field(default_factory=list)

    @property
    def first(self) -> Report:
        """The report that stands for the side where one must: texts, names, environment."""
        return self.reports[0]

    @cached_property
    def medians_s(self) -> list[float]:
        """Clean median of each process that has one, seconds."""
        if len(self.reports) == 1:
            between = self.first["benchmark"].get("between_process")
            if between and between["medians_s"] and (between["processes"] or 0) > 1:
                return [value for value in between["medians_s"] if value]
        return [value for value in map(_step_s, self.reports) if value]

    @cached_property
    def runs_s(self) -> list[float]:
        """Time of each whole run, less what profiling added; of those whose parts are known."""
        return [total for report in self.reports if (total := sum(run_parts(report).values()))]

    def totals_s(self, of: Bar) -> list[float]:
        """Return the time of the step, or of the run, in each process."""
        return self.medians_s if of == "step" else self.runs_s

    def mean_s(self, of: Bar) -> float | None:
        """Return the side's time: the mean over its processes, of six and more the trimmed one."""
        totals = self.totals_s(of)
        return float(np.asarray(totals) @ weights(totals)) if totals else None

    def bars(self, of: Bar) -> list[dict[str, float]]:
        """Return the parts of the step or the run by name, of each recording that has them."""
        if of == "run":
            return [parts for report in self.reports if (parts := run_parts(report))]
        return [_step_parts(report) for report in self.reports if _step_s(report)]

    @cached_property
    def kept(self) -> FloatArray:
        """Weight of each recording in means over the side, by the order of their steps.

        A recording without steps has none, unless that is so of all.
        """
        known = [at for at, report in enumerate(self.reports) if _step_s(report)]
        if not known:
            return np.full(len(self.reports), 1.0 / len(self.reports))
        found = np.zeros(len(self.reports))
        found[known] = weights([_step_s(self.reports[at]) or 0.0 for at in known])
        return found

    def figures(self, read: Callable[[Report], float | None]) -> list[float]:
        """Return one figure of each recording that has it."""
        return [value for report in self.reports if (value := read(report)) is not None]

    def figure(self, read: Callable[[Report], float | None]) -> float | None:
        """Return the median of one figure over the recordings; None where none has it."""
        found = self.figures(read)
        return float(median(found)) if found else None

    def facts(self) -> SideFacts:
        """Return the side as compare.json has it."""
        commit = self.first["environment"].get("commit")
        return {
            "label": self.label,
            "folders": list(self.folders),
            "script": self.first["script"],
            "commit": None if commit is None else str(commit),
            "recordings": len(self.reports),
            "steps": sum(report["benchmark"]["n"] for report in self.reports),
            "medians_s": self.medians_s,
        }


def _step_s(report: Report) -> float | None:
    return report["benchmark"]["median_s"] or None


def _step_parts(report: Report) -> dict[str, float]:
    bar = report["step_bar"]
    parts = {part["name"]: part["seconds"] for part in bar["parts"]} if bar else {}
    return {str(name): seconds for name, seconds in parts.items()} or {
        "not attributed": _step_s(report) or 0.0
    }


def run_rows(report: Report) -> list[RunPart]:
    """Return the parts of the run that are the program's own."""
    return [part for part in report.get("run_bar") or [] if part["part"] != "profstack"]


def run_parts(report: Report) -> dict[str, float]:
    """Return the time of each part of the run by its name."""
    return {part["part"]: part["wall_s"] for part in run_rows(report)}
