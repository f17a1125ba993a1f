"""What the joining of ranks needs of one rank: small, whatever its report holds.

A launch of a thousand ranks is joined from these alone; the whole report is read again of the few
ranks that are shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

import msgspec
import numpy as np

from profstack.code_owner import place_words
from profstack.compare.inequalities import step_flop
from profstack.findings import rules
from profstack.findings.reading import is_profiled, source_line
from profstack.storage.schema.report import Place, Report

# Figures of single steps that are a rank's own: collectives make the whole step equally long.
OWN_TIMES = ("wait_s", "cpu_s")
# Parts of the step's bar that are no work of the rank's own.
_NO_WORK = frozenset({"idle", "not attributed"})
# Functions of torch.distributed in which all ranks of a group meet.
_COLLECTIVE = re.compile(
    r"\b(all_reduce|all_gather\w*|all_to_all\w*|broadcast\w*|reduce_scatter\w*|reduce|gather\w*"
    r"|scatter\w*|barrier|monitored_barrier)\s*\("
)


class Step(msgspec.Struct, frozen=True, array_like=True):
    """Times of one step of a rank, in seconds; None where they are not known."""

    wall_s: float | None
    wait_s: float | None
    cpu_s: float | None


class Rank(msgspec.Struct, frozen=True, dict=True):
    """One rank, by its report; times are per clean step, in seconds.

    `folder` is the name of its recording's folder. `waits_s` is the time in which it waits in
    collectives, `parts` are those of the step's bar, `warm` its warm steps by number, and `slow`
    what the watch saw in its slowest steps. `met_in` is the collective in whose line the rank
    ended, and that line in words.
    """

    number: int
    folder: str
    node: int | None
    world_size: int | None
    recorded_ranks: int | None
    status: str
    status_reason: str | None
    finished_at: str | None
    steps: int
    batch_size: float | None
    step_s: float | None
    waits_s: float | None
    cpu_s: float | None
    total_s: float
    peak_bytes: float | None
    flop: float | None
    cause: str | None
    is_profiled: bool
    parts: dict[str, float]
    warm: dict[int, Step]
    slow: list[tuple[int, str]]
    met_in: tuple[str, str] | None

    @classmethod
    def of(cls, number: int, folder: str, report: Report) -> Rank:
        """Return what is kept of a rank's report."""
        run, tables, verdict = report["run"], report["tables"], report["verdict"]
        bar, step_s = report["step_bar"], report["benchmark"]["median_s"] or None
        clean = [row["cpu_s"] for row in tables["steps"] if not row["flags"]]
        cpu = [seconds for seconds in clean if seconds is not None]
        held = [row["peak_bytes"] for row in tables["memory_owners"]]
        return cls(
            number=number,
            folder=folder,
            node=run.get("node"),
            world_size=run["world_size"],
            recorded_ranks=run.get("recorded_ranks"),
            status=report["status"],
            status_reason=report["status_reason"],
            finished_at=run["finished_at"],
            steps=report["step"]["count"],
            batch_size=report["step"]["batch_size"],
            step_s=step_s,
            waits_s=_waits_s(report, step_s),
            cpu_s=float(np.mean(cpu)) if cpu else None,
            total_s=_total_s(report),
            peak_bytes=sum(each for each in held if each is not None) if any(held) else None,
            flop=step_flop(report),
            cause=verdict["slug"] if verdict else None,
            is_profiled=is_profiled(report),
            parts={row["name"]: row["seconds"] for row in (bar["parts"] if bar else ())},
            warm=_warm(report),
            slow=[(row["index"] or 0, row["doing"]) for row in tables["outliers"] if row["doing"]],
            met_in=_met_in(report, run.get("ended_at")),
        )

    @property
    def own_s(self) -> float | None:
        """Its step without the wait in collectives."""
        return None if self.waits_s is None else max((self.step_s or 0.0) - self.waits_s, 0.0)

    @cached_property
    def work(self) -> Mapping[str, float]:
        """Seconds of its own work in a clean step, by part."""
        return {name: seconds for name, seconds in self.parts.items() if name not in _NO_WORK}


def _total_s(report: Report) -> float:
    """Return the seconds of all steps; those that several layers share count once."""
    slices = (row for row in report["slices"] if row["steps"])
    walls = {(row["plan"], row["first_step"]): row["wall_s"] or 0.0 for row in slices}
    return sum(walls.values())


def _waits_s(report: Report, step_s: float | None) -> float | None:
    """Return how long a clean step waits in collectives; None where that is not known."""
    verdict = report["verdict"]
    for row in verdict["evidence"] if verdict else ():
        if row["test"] == rules.COMMUNICATION and row["share"] is not None and step_s:
            return row["share"] * step_s
    return None


def _warm(report: Report) -> dict[int, Step]:
    """Return the warm steps of the reported phase by their number.

    Steps of a run whose waits are not known are left out; of a trace none are.
    """
    warm = {row["index"] for row in report["slices"] if row["kind"] not in ("startup", "warmup")}
    return {
        row["index"]: Step(row["wall_s"], row["wait_s"], row["cpu_s"])
        for row in report["tables"]["steps"]
        if row["slice"] in warm
        and row["index"] is not None
        and (row["wait_s"] is not None or is_profiled(report))
        and not row["flags"]
        and row["phase"] == report["step"]["phase"]
    }


def _met_in(report: Report, place: Place | None) -> tuple[str, str] | None:
    """Return the collective in whose line a rank ended, and the line; None where it was in none."""
    if place is None:
        return None
    found = _COLLECTIVE.search(source_line(report, place["file"], place["line"]))
    return (found[1], place_words(place["file"], place["line"])) if found else None
