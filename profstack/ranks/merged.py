"""One report of all ranks of a launch: who makes whom wait, and each rank's step side by side.

The report shows the figures and tables of one rank, the straggler if there is one, and adds the
tables that join the ranks. Nothing is measured again: it is made of the ranks' own reports.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import PurePath
from statistics import median
from typing import Literal, cast

import numpy as np

from profstack.analysis.build import cells_reason, columns_reason, nulls_of
from profstack.code_owner import place_words
from profstack.compare.places import Places
from profstack.compare.sides import Side
from profstack.ranks.collectives import Call, Meetings, meetings, mismatch
from profstack.ranks.rank import OWN_TIMES, Rank
from profstack.ranks.straggler import (
    LEAST_LATE,
    StepTimes,
    change_at,
    largest_difference,
    lateness,
    straggler,
)
from profstack.ranks.summary import Spread, Summary, together
from profstack.storage.schema.rank_rows import (
    RankPartRow,
    RankRow,
    RankStepRow,
    RankWorkRow,
    RareLateness,
    StepSpread,
    Straggler,
)
from profstack.storage.schema.report import (
    REPORT,
    Place,
    RankTables,
    Report,
    ReportWarning,
    Tables,
    Verdict,
)
from profstack.storage.schema.rows import ALONE, CollectiveRow
from profstack.units import format_bytes, format_count, format_seconds, format_share

RankKind = Literal["rank", "process"]
# Columns of the picture of steps by rank.
MOST_BINS = 120
_JOINED = frozenset(("collectives", *RankTables.__annotations__))
# Ranks whose work differs by less do the same.
_SAME_WORK = 0.01


def numbered(
    names: Sequence[str],
    read: Callable[[str], Report],
    calls: Callable[[str], Sequence[Call]] = lambda _: (),
) -> tuple[RankKind, Summary]:
    """Return the summary of the ranks whose reports are in the folders of these names.

    `read` reads the report in a folder, one at a time, and `calls` its collectives. Processes of a
    script that are not each a rank of its own have the numbers of their folders.
    """
    kind: RankKind = "rank"
    given: dict[str, int | None] = {}
    if names[0].startswith("process-"):
        given = {name: read(name)["run"]["rank"] for name in names}
        if None in given.values() or len({*given.values()}) < len(given):
            kind, given = "process", {name: int(name.rpartition("-")[2]) for name in names}

    def one(name: str) -> Summary:
        report = read(name)
        number = given.get(name, report["run"]["rank"])
        if number is None:
            # A rank that was killed has not written it.
            tail = name.rpartition("-")[2]
            number = int(tail) if tail.isdecimal() else 0
        return Summary.of(Rank.of(number, name, report), report, calls(name))

    return kind, together(map(one, names))


def merged(
    kind: RankKind,
    summary: Summary,
    read: Callable[[str], Report],
    recorded: Collection[int] | None = None,
) -> Report:
    """Return the report of several ranks.

    `read` reads the whole report of the few ranks that are shown, by the name of the folder.
    `recorded` are the ranks that were to record; None for all of the launch.
    """
    ranks = sorted(summary.ranks.values(), key=lambda rank: rank.number)
    # In order, so that of two that tie the same one is named whoever was read first.
    called, met, found = dict(sorted(summary.calls.items())), None, None
    if kind == "rank":
        met = meetings(called, {rank.number: _node(rank) for rank in ranks})
        found = _since(straggler(ranks) or _last_to_come(ranks, met), ranks, met)
    first = ranks[0] if kind == "rank" else max(ranks, key=lambda rank: rank.total_s)
    shown = next((rank for rank in ranks if found and rank.number == found["rank"]), first)
    report = copy.copy(read(shown.folder))
    missing = _missing(ranks, recorded) if kind == "rank" else []
    own = [rank.own_s for rank in ranks if rank.own_s is not None]
    report["ranks"] = {
        "kind": kind,
        "count": len(ranks),
        "world_size": shown.world_size,
        "missing": missing,
        "shown": shown.number,
        "straggler": found,
        "spread_s": max(own) - min(own) if len(own) > 1 and kind == "rank" else None,
        "collectives": None if met is None else met.facts(met.met),
        "steps": _spread_of_steps(summary.steps),
    }
    places = _places(ranks, found, read) if kind == "rank" else {}
    rows = list(_rank_rows(ranks, places, missing))
    if kind == "process":
        # Programs of their own are not compared.
        rows = [{**row, "late_s": None, "part": None, "part_s": None} for row in rows]
    work = list(summary.rows()) if kind == "rank" else []
    _add_tables(report, ranks, shown, met, (rows, work))
    if kind == "process":
        ends: list[ReportWarning] = [
            {"slug": each["slug"], "text": each["text"].replace("rank ", "process ", 1)}
            for each in _ended(ranks, missing)
        ]
        report["warnings"] = [*ends, *report["warnings"]]
        report["verdict"] = _of_processes(ranks, shown, report["verdict"])
        return report
    report["warnings"] = [*_ended(ranks, missing), *_unequal(ranks), *report["warnings"]]
    if text := mismatch(called):
        report["warnings"].insert(0, {"slug": "collectives-differ", "text": text})
    lost = _mismatch(ranks), _ended(ranks, missing)
    words = "" if met is None else _meeting_words(met, report["tables"]["collectives"])
    report["verdict"] = _verdict(ranks, shown, found, places, lost, words, report["verdict"])
    return report


def _of_processes(ranks: Sequence[Rank], shown: Rank, own: Verdict | None) -> Verdict | None:
    """Return the verdict on processes that are no ranks of one launch: the busiest one's own."""
    if own is None or len(ranks) < 2:
        return own
    words = f"Of {len(ranks)} processes, process {shown.number} spent most time in steps. "
    return {**own, "sentence": words + own["sentence"]}


def _add_tables(
    report: Report,
    ranks: Sequence[Rank],
    shown: Rank,
    met: Meetings | None,
    joined_rows: tuple[list[RankRow], list[RankWorkRow]],
) -> None:
    """Put the tables that join the ranks into the report, with the reasons of their columns.

    `joined_rows` are those of the ranks and of their work.
    """
    tables = copy.copy(report["tables"])
    tables["ranks"], tables["rank_work"] = joined_rows
    tables["rank_parts"] = list(_part_rows(ranks))
    tables["rank_steps"] = list(_step_rows(ranks, met))
    tables["collectives"] = _with_meetings(tables["collectives"], met)
    tables["artifacts"] = [
        {**row, "path": str(PurePath(shown.folder, row["path"]))} for row in tables["artifacts"]
    ]
    report["tables"] = tables
    joined = cast("Tables", {name: tables.get(name, []) if name in _JOINED else []
                             for name in REPORT})  # fmt: skip
    nulls = nulls_of(joined)
    lacking = columns_reason(nulls, report["layers"], has_device=False)
    # What the shown rank alone did not know is known now.
    of_one = {
        key: reason
        for key, reason in report["columns_reason"].items()
        if key.partition(".")[0] not in _JOINED
    }
    alone = {key: "no step that all ranks recorded has them" for key in lacking
             if key.startswith("collectives.") and lacking[key] == ALONE}  # fmt: skip
    report["columns_reason"] = {**of_one, **lacking, **alone}
    report["cells_reason"] = {**report["cells_reason"], **cells_reason(nulls)}


def _spread_of_steps(steps: Spread) -> StepSpread | None:
    """Return how long the steps of all ranks are; None where no step is clean."""
    if steps.most is None:
        return None
    most, rank = steps.most
    p50_s, p90_s, p99_s = (steps.quantile_s(share) for share in (0.5, 0.9, 0.99))
    return {
        "count": steps.count,
        "p50_s": p50_s,
        "p90_s": p90_s,
        "p99_s": p99_s,
        "most_s": most * 1e-9,
        "most_rank": rank,
    }


def _node(rank: Rank) -> int | None:
    """Return the number of a rank's machine; of a trace each may be of another, below 0."""
    return -1 - rank.number if rank.node is None and rank.is_profiled else rank.node


def _last_to_come(ranks: Sequence[Rank], met: Meetings | None) -> Straggler | None:
    """Return the rank for which the others wait in their collectives, where no step is clean.

    Or the machine all of whose ranks they wait for. In a run a machine that is busy for a slice may
    make one rank the last of all its steps: there the clean steps decide.
    """
    steps = [rank.step_s for rank in ranks if rank.step_s]
    if met is None or not steps or not all(rank.is_profiled for rank in ranks):
        return None
    late = met.late_rank
    if late is None:
        return _last_node(ranks, met, median(steps))
    late_s = met.waits_for_s(late)
    return _always_late(late, late_s) if late_s >= LEAST_LATE * median(steps) else None


def _last_node(ranks: Sequence[Rank], met: Meetings, step_s: float) -> Straggler | None:
    """Return the latest rank of a machine whose ranks the others wait for."""
    node = met.late_node({rank.number: rank.node for rank in ranks})
    own, others = (
        {rank.number: rank.own_s for rank in ranks if rank.own_s is not None
         and (rank.node == node) is inside}
        for inside in (True, False)
    )  # fmt: skip
    if node is None or len(own) < 2 or not others:
        return None
    late_s = median(own.values()) - median(others.values())
    latest = max(own, key=lambda rank: own[rank])
    return _always_late(latest, late_s, is_node=True) if late_s >= LEAST_LATE * step_s else None


def _always_late(rank: int, late_s: float, *, is_node: bool = False) -> Straggler:
    return {
        "rank": rank,
        "late_s": late_s,
        "since_step": None,
        "rare": None,
        "whole_node": is_node,
    }


def _since(
    found: Straggler | None, ranks: Sequence[Rank], met: Meetings | None
) -> Straggler | None:
    """Return the straggler with the step from which on it is late, by the collectives of traces.

    Traces have no clean steps, which tell it of a run.
    """
    if found is None or met is None or not all(rank.is_profiled for rank in ranks):
        return found
    waits = met.waits_by_step(found["rank"])
    late = np.array([*waits.values()])
    at = change_at(late >= found["late_s"] / 2.0)
    if at is None:
        return found
    late_s = float(np.median(late[at:]))
    return {**found, "since_step": [*waits][at], "late_s": late_s}


def _with_meetings(rows: Sequence[CollectiveRow], met: Meetings | None) -> list[CollectiveRow]:
    """Return the shown rank's rows with what all ranks together tell of them."""
    if met is None:
        return list(rows)
    found = []
    for row in rows:
        if own := met.by_key.get((row["name"], row["bytes"])):
            facts = met.facts(own)
            row = {
                **row,
                "skew_s": facts["skew_s"],
                "transfer_s": facts["transfer_s"],
                "bytes_per_s": facts["bytes_per_s"],
                "last_rank": facts["last_rank"],
                "last_share": facts["last_share"],
            }
        found.append(row)
    return found


def _meeting_words(met: Meetings, rows: Sequence[CollectiveRow]) -> str:
    """Return what a step's collectives are made of, as a sentence after another one."""
    facts = met.facts(met.met)
    rate, whole_s = facts["bytes_per_s"], sum(row["wall_s"] or 0.0 for row in rows)
    moved = f" ({format_bytes(rate)}/s)" if rate is not None else ""
    hidden = [row["hidden_s"] for row in rows if row["hidden_s"] is not None]
    share = sum(hidden) / whole_s if whole_s > 0.0 else 0.0
    beside = f" Other work overlaps {format_share(share)} of their time."
    late = met.late_rank
    last = "the last one" if late is None else f"the last one, mostly rank {late},"
    return (
        f" In the collectives of a step a rank waits {format_seconds(facts['skew_s'])} for {last} "
        f"to come. The transfer then takes {format_seconds(facts['transfer_s'])}{moved}."
        f"{beside if hidden else ''}"
    )


def _missing(ranks: Sequence[Rank], recorded: Collection[int] | None) -> list[int]:
    """Return the ranks that were to record and have no report.

    Of a launch in which some were to record, and nobody says which, none is known to be missing.
    """
    first = ranks[0]
    size = first.world_size or 0
    if recorded is None:
        recorded = range(size) if first.recorded_ranks in (None, size) else ()
    return sorted({rank for rank in recorded if rank < size} - {rank.number for rank in ranks})


# What the ranks' own reports say ------------------------------------------------------------------


def _others(rank: Rank, ranks: Sequence[Rank]) -> list[Rank]:
    return [each for each in ranks if each is not rank]


def _places(
    ranks: Sequence[Rank], found: Straggler | None, read: Callable[[str], Report]
) -> dict[int, Place]:
    """Return the place of the straggler's largest difference to another rank, by its number."""
    rank = next((each for each in ranks if found and each.number == found["rank"]), None)
    if rank is None or found is None or found["rare"] is not None:
        return {}
    # The one in the middle stands for the others: their code is the same.
    others = sorted(_others(rank, ranks), key=lambda each: each.own_s or 0.0)
    other = others[len(others) // 2]
    difference = largest_difference(rank, others)
    if difference is not None:
        sides = [Side(each.folder, [read(each.folder)]) for each in (other, rank)]
        places = Places(*sides)
        for place in places.of_step(*difference):
            if place.file is not None and place.line is not None:
                return {rank.number: {"file": place.file, "line": place.line}}
    if (verdict := read(rank.folder)["verdict"]) is None:
        return {}
    for row in verdict["evidence"]:
        file, line = row.get("file"), row.get("line")
        if row["test"] == verdict["slug"] and file is not None and line is not None:
            return {rank.number: {"file": file, "line": line}}
    return {}


def _doing(rank: Rank, rare: RareLateness) -> str:
    """Return what the watch saw most in a slow step, in brackets; empty where it saw none."""
    for number, doing in rank.slow:
        if number >= rare["first_step"]:
            return f" ({doing})"
    return ""


def _rank_rows(
    ranks: Sequence[Rank], places: Mapping[int, Place], missing: Sequence[int]
) -> Iterator[RankRow]:
    late = lateness(ranks)
    for rank in ranks:
        place = places.get(rank.number)
        part, part_s = largest_difference(rank, _others(rank, ranks)) or (None, None)
        yield {
            "rank": rank.number,
            "node": rank.node,
            "folder": rank.folder,
            "status": rank.status,
            "ended": rank.status_reason,
            "steps": rank.steps,
            "step_s": rank.step_s,
            "waits_s": rank.waits_s,
            "own_s": rank.own_s,
            "late_s": late.get(rank.number),
            "part": part,
            "part_s": part_s,
            "file": place and place["file"],
            "line": place and place["line"],
            "cpu_s": rank.cpu_s,
            "peak_bytes": rank.peak_bytes,
            "flop": rank.flop,
            "cause": rank.cause,
        }
    for number in missing:
        yield {
            **dict.fromkeys(RankRow.__annotations__),  # type: ignore[typeddict-item]  # all null
            "rank": number,
            "folder": f"rank-{number:05d}",
            "status": "missing",
            "ended": "it left no report",
        }


def _part_rows(ranks: Sequence[Rank]) -> Iterator[RankPartRow]:
    for rank in ranks:
        for part, seconds in rank.parts.items():
            yield {"rank": rank.number, "part": part, "time_s": seconds}


def _step_rows(ranks: Sequence[Rank], met: Meetings | None) -> Iterator[RankStepRow]:
    """Yield the steps of all ranks in at most `MOST_BINS` columns; of runs the clean ones.

    Traces tell by their collectives alone how late a rank is.
    """
    steps = StepTimes(ranks)
    bins = np.array_split(np.arange(len(steps.numbers)), min(MOST_BINS, len(steps.numbers)) or 1)
    for rank in ranks:
        late = np.maximum.reduce(
            [each for name in OWN_TIMES if len(each := steps.late_s(rank.number, name))]
            or [np.zeros(0)]
        )
        if met is not None and rank.is_profiled:
            late_s = met.late_by_step.get(rank.number, {})
            late = np.array([late_s.get(number, np.nan) for number in steps.numbers.tolist()])
        for at in bins if len(steps.numbers) else ():
            known = late[at][~np.isnan(late[at])] if len(late) else late
            yield {
                "rank": rank.number,
                "first_step": int(steps.numbers[at[0]]),
                "last_step": int(steps.numbers[at[-1]]),
                "wall_s": steps.largest("wall_s", rank.number, at),
                "wait_s": steps.largest("wait_s", rank.number, at),
                "cpu_s": steps.largest("cpu_s", rank.number, at),
                # 0 where it is not later in any of them.
                "late_s": max(float(known.max()), 0.0) if len(known) else None,
            }


def _ended(ranks: Sequence[Rank], missing: Sequence[int]) -> list[ReportWarning]:
    """Return warnings on ranks that did not come to their end, in the order of their ends."""
    broken = [rank for rank in ranks if rank.status != "complete"]
    # Of a rank whose own profstack was ended too, by its launcher, the end is not known: the last.
    broken.sort(key=lambda rank: rank.finished_at or "9")
    found: list[ReportWarning] = []
    for rank in broken:
        if reason := rank.status_reason:
            said = re.sub(r"^it (?=was |ended )", " ", reason)
            said = said if said != reason else f": {reason}"
            text = f"rank {rank.number}{said}, after {rank.steps} steps"
            found.append({"slug": "rank-ended", "text": text})
    for number in missing:
        found.append({"slug": "rank-missing", "text": f"rank {number} left no report"})
    return found


def _mismatch(ranks: Sequence[Rank]) -> str:
    """Return that ranks ended in different collectives, which wait for each other for ever."""
    called = {rank.number: rank.met_in for rank in ranks if rank.met_in is not None}
    if len({name for name, _ in called.values()}) < 2:
        return ""
    by_call: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, call in called.items():
        by_call[call].append(number)
    told = [
        f"rank {', '.join(map(str, numbers))} {name} ({where})"
        for (name, where), numbers in list(by_call.items())[:3]
    ]
    return f"The ranks called different collectives and waited for each other: {'; '.join(told)}. "


_UNEQUAL = {"batch size": "batch_size", "operations of a step": "flop"}


def _unequal(ranks: Sequence[Rank]) -> Iterator[ReportWarning]:
    """Yield warnings on work that is not the same on all ranks."""
    for name, field in _UNEQUAL.items():
        each = {rank.number: getattr(rank, field) for rank in ranks}
        values = {number: value for number, value in each.items() if value is not None}
        if not values:
            continue
        least, most = (pick(values, key=lambda key: values[key]) for pick in (min, max))
        if values[most] > values[least] * (1.0 + _SAME_WORK):
            low, high = (format_count(values[number]) for number in (least, most))
            text = f"{name}: {low} on rank {least}, {high} on rank {most}"
            yield {
                "slug": "ranks-differ",
                "text": f"the ranks' work is not the same: {text}; where ranks hold parts of one "
                "model, that is meant",
            }


# The answer ---------------------------------------------------------------------------------------


def _verdict(
    ranks: Sequence[Rank],
    shown: Rank,
    found: Straggler | None,
    places: Mapping[int, Place],
    lost: tuple[str, Sequence[ReportWarning]],
    meeting_words: str,
    own: Verdict | None,
) -> Verdict | None:
    """Return the verdict on all ranks: the shown one's own, with whom it makes wait before it.

    `meeting_words` is the sentence on collectives, for where no rank makes the others wait.
    """
    if own is None:
        return None
    first, ended = lost
    if first:
        step = "Let all ranks of a group call the same collectives in the same order. "
        own = {**own, "action": f"{step}{own['action']}"}
    elif ended:
        text = ended[0]["text"]
        first = f"{text[0].upper()}{text[1:]}. "
    if len(ranks) == 1:
        return {**own, "sentence": first + own["sentence"]}
    if found is None:
        said = f"{_nobody(ranks)}{meeting_words} Rank {shown.number}: {own['sentence']}"
        return {**own, "sentence": first + said}
    words = _late_words(ranks, shown, found)
    place = places.get(shown.number)
    where = f" ({place_words(place['file'], place['line'])})" if place else ""
    difference = largest_difference(shown, _others(shown, ranks))
    why = ""
    if found["rare"] is not None:
        kinds = {"wait": "goes by before its model's first call", "cpu": "is CPU time of its own"}
        why = f": that time {kinds[found['rare']['kind']]}{_doing(shown, found['rare'])}"
    elif difference is not None:
        part, seconds = difference
        # The parts are of all steps: of those from one on they are no measure.
        more = "longer" if found["since_step"] is not None else f"{format_seconds(seconds)} more"
        why = f": its {part} takes {more} than theirs{where}"
    # How sure the rank's own cause is says little of the comparison of ranks.
    said = f"{first}{words}{why}."
    return {**own, "sentence": said, "sureness": "likely", "sureness_reason": None}


def _late_words(ranks: Sequence[Rank], shown: Rank, found: Straggler) -> str:
    """Return who waits for whom, for how long, and in which steps."""
    others = len(ranks) - 1
    if found["whole_node"]:
        others = sum(rank.node != shown.node for rank in ranks)
    whom = "the other rank wait" if others == 1 else f"the other {others} ranks wait"
    who = f"Rank {found['rank']}"
    if found["whole_node"]:
        who = f"Node {shown.node} (such as rank {found['rank']})"
    if (rare := found["rare"]) is not None:
        every = f", every {rare['every']}th" if rare["every"] else ""
        return (
            f"{who} makes {whom} {format_seconds(rare['late_s'])} in {format_share(rare['share'])} "
            f"of the steps{every}"
        )
    step_s, since = shown.step_s, ""
    if (first := found["since_step"]) is not None:
        since = f" from step {first} on"
        late = [step.wall_s for at, step in shown.warm.items() if at >= first and step.wall_s]
        step_s = median(late) if late else step_s
    share = format_share(found["late_s"] / (step_s or found["late_s"]))
    return f"{who} makes {whom} {format_seconds(found['late_s'])} of each step ({share}){since}"


def _nobody(ranks: Sequence[Rank]) -> str:
    """Return that no rank makes the others wait, or that nobody knows."""
    own = [rank.own_s for rank in ranks if rank.own_s is not None]
    steps = [rank.step_s for rank in ranks if rank.step_s]
    if len(own) < 2 or not steps:
        return f"Of {len(ranks)} ranks it is not known how long they wait for each other."
    waits = median(rank.waits_s or 0.0 for rank in ranks) / median(steps)
    apart = format_seconds(max(own) - min(own))
    words = f"None of {len(ranks)} ranks makes the others wait: their own times are {apart} apart"
    if waits >= LEAST_LATE:
        return f"{words}, and each spends {format_share(waits)} of a step in collectives."
    return f"{words}."
