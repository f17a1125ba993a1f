"""The tables of threads and processes: who used the CPU in a clean step, and who sees that work."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import cast

from profstack.analysis.clean_steps import Clean
from profstack.storage.reader import (
    Recorded,
    Row,
    Selection,
    added,
    grouped,
    known,
    known_sum,
    known_total,
    ratio,
    whole,
)
from profstack.storage.schema.report import Processes, table_rows
from profstack.storage.schema.rows import ThreadRow
from profstack.storage.vocabulary import (
    BACKWARD,
    MAIN,
    NATIVE,
    OTHER,
    OWN,
    PIN,
    WITH_DATA,
    WORKER,
)
from profstack.units import format_seconds, format_share

READINGS = "thread_readings"
# Rows of the table; the smallest beyond them are one row.
MOST_ROWS = 60
REST = "(more threads)"
_NUMBER = re.compile(r"\d+")

# Which layers see what threads do; of the steps' own thread it is all of them.
_SEEN_BY: dict[str, tuple[str, ...]] = {
    # torch hands its profiler and its modes on to the threads that work for a backward pass.
    BACKWARD: ("torch", "flops"),
    # An operator's time is that of all who work on it.
    NATIVE: ("torch",),
}
_PROCESS = "a process of its own, into which no layer looks: run its program under profstack"
_NOTES = {
    MAIN: "the thread that makes the steps; a backward pass on the CPU runs on it too",
    BACKWARD: "backward passes on a device: the torch layer joins their operators with the "
    "modules whose forward made them; the watch and the Python layers do not look there",
    WORKER: "no layer looks into other processes: run the DataLoader with num_workers=0, and its "
    "functions and operators are in the step's wait",
    PIN: "copies batches to pinned memory, unseen by all layers: with pin_memory=False the copy "
    "to the device does that work, on the steps' thread",
    OWN: "profstack's own; it is idle in clean steps",
    NATIVE: "begun by no Python code: pools for single operators (OpenMP, BLAS) and the like; "
    "their work is inside the time of operators, with OMP_NUM_THREADS=1 on the steps' thread",
    OTHER: "the layers look at the steps' thread alone: call its function there to see inside; "
    'profstack.region("...") around its work tells its wall time',
}
_NO_SLICE = "no clean slice was recorded to its end"
_NO_READINGS = (
    "the recording holds no readings of threads: an earlier version made it, or it was broken off"
)
# A thread that used more than this share of the time was not measured well enough: what reading
# the clocks takes is in its time, and counts for much where steps are short.
_MOST_OF_A_STEP = 1.05
_ENDED = "it ended within the slices: known by the difference of totals, not by name"


def threads(recorded: Recorded, clean: Clean) -> list[ThreadRow]:
    """Rows of `threads`, the largest CPU time first; of the clean slices alone."""
    readings, chosen = _of_clean(recorded, clean)
    if chosen is None:
        return []
    seen = [row["name"] for row in recorded.table("layers") if row["status"] in WITH_DATA]
    names = _folded(readings)
    groups = grouped(
        [{**row, "name": names[row["name"] or ""]} for row in readings], "kind", "name", "process"
    )
    # A sum with an unknown part is unknown.
    used_s = {key: known_total(row["cpu_s"] for row in rows) for key, rows in groups.items()}
    total = known_total(used_s.values())
    step_s = chosen.per_step(chosen.wall_s)
    found = []
    # Threads that ended have no process.
    for key in sorted(groups, key=lambda key: (key[0], key[1], -1 if key[2] is None else key[2])):
        (kind, name, process), rows = key, groups[key]
        cpu_s = chosen.per_step(used_s[key])
        counts = (
            known_sum(row["threads"] for row in some) for some in grouped(rows, "slice").values()
        )
        note = _PROCESS if kind == OTHER and process != 0 else _NOTES[kind]
        off_s = no_core_s = None
        if kind == MAIN and step_s and cpu_s is not None and cpu_s <= _MOST_OF_A_STEP * step_s:
            off_s = max(step_s - cpu_s, 0.0)
            no_core_s = chosen.per_step(added(row["delay_s"] for row in rows))
        found.append(
            {
                "kind": kind,
                "name": name,
                "process": process,
                "threads": max((count for count in counts if count is not None), default=None),
                "cpu_s": cpu_s,
                "share": ratio(used_s[key], total),
                "off_cpu_s": off_s,
                "no_core_s": None if off_s is None or no_core_s is None else min(no_core_s, off_s),
                "layers": [
                    layer for layer in seen if kind == MAIN or layer in _SEEN_BY.get(kind, ())
                ],
                "note": f"{_ENDED}; {note}" if name.endswith("that ended") else note,
            }
        )
    made: list[ThreadRow] = table_rows("threads", found)
    return _shortened(sorted(made, key=lambda row: (row["cpu_s"] is None, -(row["cpu_s"] or 0.0))))


def processes(
    recorded: Recorded, clean: Clean, rows: Sequence[ThreadRow], *, has_device: bool
) -> Processes:
    """Return `processes` of the report from the table of threads; times per clean step."""
    _, chosen = _of_clean(recorded, clean)
    readings = recorded.facts.get(READINGS) or {}
    result = cast("Processes", dict.fromkeys(Processes.__annotations__))
    result["sentences"] = []
    result["reading_s"] = ratio(readings.get("took_s"), readings.get("readings"))
    if chosen is None or not rows:
        without = _NO_SLICE if readings else (_skipped(recorded) or _NO_READINGS)
        result["reason"] = readings.get("reason") or without
        return result
    cpu_s = known_total(row["cpu_s"] for row in rows)
    step_s = chosen.per_step(chosen.wall_s)
    main = next((row for row in rows if row["kind"] == MAIN), None)
    workers = [row for row in rows if row["kind"] == WORKER]
    waits = known(clean.steps, "wait_s")
    result.update(
        {
            "steps": chosen.steps,
            "step_s": step_s,
            "cpu_s": None if cpu_s is None else float(cpu_s),
            "cores": ratio(cpu_s, step_s),
            "off_cpu_s": main["off_cpu_s"] if main else None,
            "no_core_s": main["no_core_s"] if main else None,
            "unseen_share": _unseen(rows),
            "workers": sum(row["process"] is not None for row in workers),
            "worker_cpu_s": known_total(row["cpu_s"] for row in workers) if workers else None,
            "wait_s": fmean(waits) if waits else None,
        }
    )
    result["sentences"] = [
        *_on_the_step(result, main),
        *(_on_workers(result) if workers else ()),
        *_on_backward(recorded, rows, has_device=has_device),
    ]
    return result


def _of_clean(recorded: Recorded, clean: Clean) -> tuple[list[Row], Selection | None]:
    """Return the readings of the slices with the clean steps, else of all clean slices.

    Slices that hold a pause are left out where others remain: they are read as a whole.
    """
    every = recorded.table("thread_times")
    inside, paused = ({row["slice"] for row in rows} for rows in (clean.steps, clean.paused))
    counted = [row for row in every if row["slice"] in inside]
    counted = [row for row in counted if row["slice"] not in paused] or counted
    chosen = recorded.holding(counted or every)
    return recorded.rows("thread_times", chosen), chosen


def _folded(rows: Sequence[Row]) -> Mapping[str, str]:
    """Map names to those without their numbers where several differ only in those."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(row["name"] or "" for row in rows):
        alike[_NUMBER.sub("#", name)].append(name)
    return {
        name: bare if len(names) > 1 else name for bare, names in alike.items() for name in names
    }


def _shortened(rows: list[ThreadRow]) -> list[ThreadRow]:
    """Keep at most `MOST_ROWS` rows; the smallest become one."""
    kept, rest = rows[: MOST_ROWS - 1], rows[MOST_ROWS - 1 :]
    if len(rest) < 2:
        return rows
    kinds = {row["kind"] for row in rest}
    together: dict[str, object] = {
        **{name: known_total(row[name] for row in rest) for name in ("cpu_s", "share")},
        "kind": kinds.pop() if len(kinds) == 1 else OTHER,
        "name": REST,
        "threads": whole(known_total(row["threads"] for row in rest)),
        "layers": [],
        "note": f"the {len(rest)} smallest rows together",
    }
    return [*kept, *table_rows("threads", [together])]


def _skipped(recorded: Recorded) -> str | None:
    """Return the one reason for which all layers were skipped; None if one was not."""
    layers = recorded.table("layers")
    reasons = {row["reason"] if row["status"] == "skipped" else None for row in layers}
    return reasons.pop() if len(reasons) == 1 else None


# --- Sentences ------------------------------------------------------------------------------------


def _unseen(rows: Sequence[ThreadRow]) -> float | None:
    """Return the share of the CPU time in threads and processes that no layer looks into."""
    if any(row["share"] is None for row in rows):
        return None
    return known_total(row["share"] for row in rows if not row["layers"] and row["kind"] != OWN)


def _on_the_step(figures: Processes, main: ThreadRow | None) -> list[str]:
    sentences = []
    off_s, took = figures["off_cpu_s"], f"took {format_seconds(figures['step_s'])} on average"
    if off_s == 0:
        sentences.append(f"the steps' thread ran all the time of a clean step, which {took}")
    elif off_s is not None and main is not None:
        text = (
            f"the steps' thread ran for {format_seconds(main['cpu_s'])} of a clean step, which "
            f"{took}; for {format_seconds(off_s)} it waited"
        )
        if figures["no_core_s"] is not None:
            text += f", {format_seconds(figures['no_core_s'])} of that for a core to run on"
        sentences.append(text)
    if figures["unseen_share"]:
        sentences.append(
            f"{format_share(figures['unseen_share'])} of the CPU time is used in threads and "
            "processes that no layer looks into"
        )
    return sentences


def _on_workers(figures: Processes) -> list[str]:
    count, used = figures["workers"], figures["worker_cpu_s"]
    who = "1 DataLoader worker uses" if count == 1 else f"{count or ''} DataLoader workers use"
    text = f"{who.strip()} {format_seconds(used)} of CPU time per step"
    if used is None:
        text = f"{who.strip()} CPU time that the system does not give"
    wait_s, step_s = figures["wait_s"], figures["step_s"]
    if wait_s is None or not step_s:
        return [f"{text}; how long the steps wait for their data is not known"]
    share = f"{format_share(wait_s / step_s)} of it"
    return [
        f"{text}; a step waits {format_seconds(wait_s)} ({share}) before its model's first call"
    ]


def _on_backward(recorded: Recorded, rows: Sequence[ThreadRow], *, has_device: bool) -> list[str]:
    found = sum(row["threads"] or 0 for row in rows if row["kind"] == BACKWARD)
    if found:
        who = "1 thread" if found == 1 else f"{found} threads"
        text = f"backward passes run on {who} of torch's: the torch layer joins their operators "
        return [text + "with the modules whose forward made them"]
    if recorded.phase == "train" and not has_device:
        return ["the backward pass runs on the steps' own thread, as always on the CPU"]
    return []
