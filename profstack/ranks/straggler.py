"""Which rank makes the others wait: by how much, since when, in which of its steps.

In a collective every rank waits for the last to arrive, so all steps take equally long. What tells
the ranks apart is their own time: the step less the wait in collectives. The rank with the most is
the straggler, if the others really wait that much longer than it does. A rank that is late in some
steps alone shows in no median: its waits for data and its CPU time are compared step by step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import NDArray

from profstack.findings import rules
from profstack.stats.summary import FloatArray
from profstack.storage.schema.rank_rows import RareLateness, Straggler
from profstack.storage.schema.report import Report

# A rank is late from this share of the step on. Equal ranks on two shared cores differ by less.
LEAST_LATE = 0.15
# Of its lateness, the part by which the others must be seen to wait longer than it does.
_WAITED_FOR = 0.5
# A step in which a rank is late by more than this share of a usual one is a late step.
_LATE_STEP = 0.3
# Lateness in some steps is news from this share of the time of all steps on.
_LEAST_RARE = 0.05
# Late steps that are more than this share are nearly all: then it is late from some step on.
_NEARLY_ALL = 0.8
# Fewer steps on either side of a change say nothing of it.
_FEWEST = 8
# Figures of single steps that are a rank's own: collectives make the whole step equally long.
_OWN = ("wait_s", "cpu_s")
# Parts of the step's bar that are no work of the rank's own.
_NO_WORK = frozenset({"idle", "not attributed"})


@dataclass(frozen=True)
class Rank:
    """One rank: its number, its folder's name, and its report."""

    number: int
    folder: str
    report: Report

    @property
    def step_s(self) -> float | None:
        """Median of its clean steps, seconds."""
        return self.report["benchmark"]["median_s"] or None

    @cached_property
    def waits_s(self) -> float | None:
        """Time of a clean step in which it waits in collectives; None where that is not known."""
        verdict, step_s = self.report["verdict"], self.step_s
        for row in verdict["evidence"] if verdict else ():
            if row["test"] == rules.COMMUNICATION and row["share"] is not None and step_s:
                return row["share"] * step_s
        return None

    @property
    def own_s(self) -> float | None:
        """Its step without that wait."""
        return None if self.waits_s is None else max((self.step_s or 0.0) - self.waits_s, 0.0)

    @cached_property
    def parts(self) -> dict[str, float]:
        """Seconds of its own work in a clean step by part."""
        bar = self.report["step_bar"]
        rows = bar["parts"] if bar else []
        return {row["name"]: row["seconds"] for row in rows if row["name"] not in _NO_WORK}


def lateness(ranks: Sequence[Rank]) -> dict[int, float]:
    """Return by how much each rank's own time exceeds the median of the others', in seconds."""
    own = {rank.number: rank.own_s for rank in ranks if rank.own_s is not None}
    return {
        number: seconds - median(other for key, other in own.items() if key != number)
        for number, seconds in own.items()
        if len(own) > 1
    }


def largest_difference(rank: Rank, others: Sequence[Rank]) -> tuple[str, float] | None:
    """Return the part of a rank's step that exceeds the others' median most, and by how much."""
    found = [
        (seconds - median(each.parts.get(name, 0.0) for each in others), name)
        for name, seconds in rank.parts.items()
        if others
    ]
    most, name = max(found, default=(0.0, ""))
    return (name, most) if most > 0.0 else None


def straggler(ranks: Sequence[Rank]) -> Straggler | None:
    """Return the rank that makes the others wait; None where none does, or nobody knows."""
    steps = StepTimes(ranks)
    late = lateness(ranks)
    number = max(late, key=lambda key: late[key], default=None)
    if number is not None and _is_waited_for(number, late[number], ranks):
        rank = next(each for each in ranks if each.number == number)
        found = steps.change(number, (rank.step_s or 0.0) * _LATE_STEP)
        return {
            "rank": number,
            "late_s": late[number],
            "since_step": found,
            "rare": None,
            "whole_node": _whole_node(rank, late, ranks),
        }
    return _in_some_steps(ranks, steps)


def _is_waited_for(number: int, late_s: float, ranks: Sequence[Rank]) -> bool:
    """Return whether a rank is late, and the others wait for as long as that."""
    waits = {rank.number: rank.waits_s for rank in ranks if rank.waits_s is not None}
    step_s = median(rank.step_s or 0.0 for rank in ranks)
    others = [seconds for key, seconds in waits.items() if key != number]
    waited = median(others) - waits[number]
    return late_s >= LEAST_LATE * step_s and waited >= _WAITED_FOR * late_s


def _whole_node(rank: Rank, late: Mapping[int, float], ranks: Sequence[Rank]) -> bool:
    """Return whether all ranks of its machine, of several machines, are late like it."""
    node = rank.report["run"].get("node")
    nodes = {each.number: each.report["run"].get("node") for each in ranks}
    if node is None or len({*nodes.values()}) < 2:
        return False
    same = [late[each] for each in late if nodes[each] == node]
    return len(same) > 1 and min(same) >= late[rank.number] / 2.0


def _in_some_steps(ranks: Sequence[Rank], steps: StepTimes) -> Straggler | None:
    """Return a rank that is late in some steps alone, where these cost much in all."""
    step_s = median(rank.step_s or 0.0 for rank in ranks)
    best: Straggler | None = None
    for rank in ranks:
        late = steps.late_s(rank.number)
        if not len(late) or not step_s:
            continue
        at = np.flatnonzero(late >= _LATE_STEP * step_s)
        lost_s = float(late[at].sum())
        if len(at) < 3 or lost_s < _LEAST_RARE * step_s * len(late):
            continue
        numbers = steps.numbers[at]
        apart = np.diff(numbers)
        usual = int(np.median(apart))
        rare: RareLateness = {
            "share": len(at) / len(late),
            "every": usual if usual > 1 and bool((apart % usual == 0).all()) else None,
            "first_step": int(numbers[0]),
            "late_s": float(np.median(late[at])),
        }
        mean_s = lost_s / len(late)
        if best is None or mean_s > best["late_s"]:
            best = {
                "rank": rank.number,
                "late_s": mean_s,
                "since_step": None,
                "rare": rare,
                "whole_node": False,
            }
    return best


class StepTimes:
    """Waits and CPU times of the steps that every rank has clean, step by step.

    `numbers` are the steps; in launches whose ranks record together their slices begin at the same
    steps, so that a step is clean on all of them or on none.
    """

    def __init__(self, ranks: Sequence[Rank]) -> None:
        rows = {rank.number: _clean_rows(rank.report) for rank in ranks}
        common = set.intersection(*map(set, rows.values())) if rows else set()
        self.numbers = np.array(sorted(common), dtype=np.int64)
        self._values: dict[str, dict[int, FloatArray]] = {
            name: {
                number: np.array(
                    [np.nan if steps[at][name] is None else steps[at][name] for at in self.numbers],
                    dtype=np.float64,
                )
                for number, steps in rows.items()
            }
            for name in ("wall_s", *_OWN)
        }

    def late_s(self, number: int) -> FloatArray:
        """Return by how much a rank is later than the others' median, for each step.

        By its wait before the model's first call, or by its CPU time: the larger. Empty where
        neither is known of all ranks.
        """
        found = []
        for name in _OWN:
            values = self._values[name]
            others = [each for key, each in values.items() if key != number]
            if others and not any(np.isnan(each).any() for each in values.values()):
                found.append(values[number] - np.median(others, axis=0))
        return np.max(found, axis=0) if found else np.zeros(0)

    def largest(self, name: str, number: int, at: NDArray[np.int64]) -> float | None:
        """Return the largest `wall_s`, `wait_s` or `cpu_s` of a rank in some of the steps."""
        values = self._values[name][number][at]
        return None if np.isnan(values).all() else float(np.nanmax(values))

    def change(self, number: int, limit_s: float) -> int | None:
        """Return the step from which on a rank is late by `limit_s`; None: from the first on."""
        late = self.late_s(number) >= limit_s
        counts = np.cumsum(late)
        for at in range(_FEWEST, len(late) - _FEWEST):
            before, after = counts[at - 1] / at, (counts[-1] - counts[at - 1]) / (len(late) - at)
            if late[at] and before <= 1.0 - _NEARLY_ALL and after >= _NEARLY_ALL:
                return int(self.numbers[at])
        return None


def _clean_rows(report: Report) -> dict[int, Mapping[str, float | None]]:
    """Return the clean steps of the reported phase by their number."""
    clean = {row["index"] for row in report["slices"] if row["kind"] == "clean"}
    return {
        row["index"]: {"wait_s": row["wait_s"], "cpu_s": row["cpu_s"], "wall_s": row["wall_s"]}
        for row in report["tables"]["steps"]
        if row["slice"] in clean
        and row["index"] is not None
        and not row["flags"]
        and row["phase"] == report["step"]["phase"]
    }
