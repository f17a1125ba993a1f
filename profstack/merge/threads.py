"""The tables of threads and processes: who used the CPU in a clean step, and who sees that work."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pandas as pd

from profstack.merge.cleansteps import Clean
from profstack.merge.recorded import Recorded, Selection, nullable
from profstack.units import format_seconds, format_share

Rows = list[dict[str, Any]]

MAIN, BACKWARD, WORKER, PIN = ("main", "backward", "DataLoader worker", "DataLoader pin memory")
OWN, NATIVE, OTHER = "profstack", "native", "other"
READINGS = "thread_readings"
# Rows of the table; the smallest beyond them are one row.
MOST_ROWS = 60
REST = "(more threads)"
_NO_PROCESS = -1

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
    OWN: "profstack's own; it stands still in clean steps",
    NATIVE: "begun by no Python code: pools for single operators (OpenMP, BLAS) and the like; "
    "their work is inside the time of operators, with OMP_NUM_THREADS=1 on the steps' thread",
    OTHER: "the layers look at the steps' thread alone: call its function there to see inside; "
    'profstack.region("...") around its work tells its wall time',
}
_NO_SLICE = "no clean slice was recorded to its end"
_NO_READINGS = (
    "the recording holds no readings of threads: an earlier version made it, or it was broken off"
)
# A thread that used more than this share of the time has not been told well enough: what reading
# the clocks takes is in its time, and counts for much where steps are short.
_MOST_OF_A_STEP = 1.05
_ENDED = "it ended within the slices: known by the difference of totals, not by name"


def threads(recorded: Recorded, clean: Clean) -> Rows:
    """Rows of `threads`, the largest CPU time first; of the clean slices alone."""
    frame, chosen = _of_clean(recorded, clean)
    if chosen is None:
        return []
    layers = recorded.frames["layers"]
    seen = layers.loc[layers["status"].isin(["recorded", "emitted"]), "name"].tolist()
    # Of those that ended no process is known; what is missing is no key to look up by.
    frame = frame.assign(name=_folded(frame), process=frame["process"].fillna(_NO_PROCESS))
    frame["unknown"] = frame["cpu_s"].isna()
    keys = ["kind", "name", "process"]
    by_slice = frame.groupby([*keys, "slice"])["threads"].sum(min_count=1)
    grouped = frame.groupby(keys)
    sums = grouped[["cpu_s", "delay_s"]].sum(min_count=1)
    sums["threads"] = by_slice.groupby(level=keys).max()
    # A sum of which a part is not known is none.
    sums["cpu_s"] = sums["cpu_s"].where(~grouped["unknown"].any())
    total = sums["cpu_s"].sum() if sums["cpu_s"].notna().all() else None
    rows = []
    for key, row in sums.iterrows():
        kind, name, number = (nullable(part) for part in key)
        process = None if number == _NO_PROCESS else int(number)
        rows.append(
            {
                "kind": kind,
                "name": name,
                "process": process,
                "threads": _whole(row["threads"]),
                "cpu_s": chosen.per_step(nullable(row["cpu_s"])),
                "share": nullable(row["cpu_s"]) / total if total else None,
                **_of_the_steps(kind, row, chosen),
                "layers": _layers(kind, process, seen),
                "note": _note(kind, name, process),
            }
        )
    rows.sort(key=lambda row: (row["cpu_s"] is None, -(row["cpu_s"] or 0.0)))
    return _shortened(rows)


def processes(recorded: Recorded, clean: Clean, rows: Rows, *, has_device: bool) -> dict[str, Any]:
    """What the table of threads comes to: `processes` of the report; times per clean step.

    `cores` is the CPU time of the process tree over the time of a step; `unseen_share` the part
    of it that is done where no layer looks; `sentences` say what follows, as plain facts.
    """
    _, chosen = _of_clean(recorded, clean)
    told = recorded.facts.get(READINGS) or {}
    result: dict[str, Any] = dict.fromkeys(
        ("steps", "step_s", "cpu_s", "cores", "off_cpu_s", "no_core_s", "unseen_share", "workers")
    )
    result.update(worker_cpu_s=None, wait_s=None, sentences=[], reading_s=None)
    if told.get("readings"):
        result["reading_s"] = told["took_s"] / told["readings"]
    if chosen is None or not rows:
        without = _NO_SLICE if told else (_skipped(recorded) or _NO_READINGS)
        result["reason"] = told.get("reason") or without
        return result
    known = [row["cpu_s"] for row in rows]
    cpu_s = None if None in known else float(sum(known))
    step_s = chosen.per_step(chosen.wall_s)
    main = next((row for row in rows if row["kind"] == MAIN), {})
    workers = [row for row in rows if row["kind"] == WORKER]
    alive = [row for row in workers if row["process"] is not None]
    waits = clean.steps["wait_s"].dropna()
    result.update(
        steps=chosen.steps,
        step_s=step_s,
        cpu_s=cpu_s,
        cores=cpu_s / step_s if cpu_s is not None and step_s else None,
        off_cpu_s=main.get("off_cpu_s"),
        no_core_s=main.get("no_core_s"),
        unseen_share=_unseen(rows),
        workers=len(alive),
        worker_cpu_s=_sum(row["cpu_s"] for row in workers) if workers else None,
        wait_s=float(waits.mean()) if len(waits) else None,
        reason=None,
    )
    result["sentences"] = [
        *_on_the_step(result, main),
        *_on_workers(result, bool(workers)),
        *_on_backward(recorded, rows, has_device=has_device),
    ]
    return result


# -- rows ------------------------------------------------------------------------------------------


def _of_clean(recorded: Recorded, clean: Clean) -> tuple[pd.DataFrame, Selection | None]:
    """The readings of the slices that the clean steps are in, else of all clean ones."""
    frame = recorded.frames["thread_times"]
    counted = frame[frame["slice"].isin(clean.steps["slice"].unique())]
    frame = counted if len(counted) else frame
    chosen = recorded.holding(frame) if len(frame) else None
    if chosen is None:
        return frame, None
    return frame[frame["slice"].isin(chosen.slices)], chosen


def _folded(frame: pd.DataFrame) -> pd.Series[str]:
    """Names without their numbers where several differ in those alone."""
    names = frame["name"].fillna("").astype(str)
    bare = names.str.replace(r"\d+", "#", regex=True)
    variants = names.groupby(bare).transform("nunique")
    folded: pd.Series[str] = names.where(variants == 1, bare)
    return folded


def _of_the_steps(kind: Any, row: Any, chosen: Selection) -> dict[str, float | None]:
    """For how much of a step the steps' own thread did not run; None for all others."""
    step_s = chosen.per_step(chosen.wall_s)
    cpu_s = chosen.per_step(nullable(row["cpu_s"]))
    if kind != MAIN or step_s is None or cpu_s is None or cpu_s > _MOST_OF_A_STEP * step_s:
        return {"off_cpu_s": None, "no_core_s": None}
    off_s = max(step_s - cpu_s, 0.0)
    no_core_s = chosen.per_step(nullable(row["delay_s"]))
    return {"off_cpu_s": off_s, "no_core_s": None if no_core_s is None else min(no_core_s, off_s)}


def _layers(kind: Any, process: Any, seen: Collection[str]) -> list[str]:
    if kind == MAIN:
        return list(seen)
    return [name for name in seen if name in _SEEN_BY.get(kind, ())]


def _note(kind: Any, name: Any, process: Any) -> str:
    note = _NOTES[kind]
    if kind == OTHER and process != 0:
        note = _PROCESS
    return f"{_ENDED}; {note}" if re.search("that ended$", str(name)) else note


def _shortened(rows: Rows) -> Rows:
    """At most `MOST_ROWS`; those left out together are one."""
    kept, rest = rows[: MOST_ROWS - 1], rows[MOST_ROWS - 1 :]
    if len(rest) < 2:
        return rows
    kinds = {row["kind"] for row in rest}
    shared = {"kind": kinds.pop() if len(kinds) == 1 else OTHER, "name": REST, "process": None}
    sums = {column: _sum(row[column] for row in rest) for column in ("cpu_s", "share", "threads")}
    empty: dict[str, Any] = {"off_cpu_s": None, "no_core_s": None, "layers": []}
    return [*kept, {**shared, **sums, **empty, "note": f"the {len(rest)} smallest rows together"}]


def _whole(value: Any) -> int | None:
    value = nullable(value)
    return None if value is None else int(value)


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum; None where one of them is not known."""
    held = list(values)
    known = [value for value in held if value is not None]
    return sum(known) if len(known) == len(held) else None


# -- sentences -------------------------------------------------------------------------------------


def _unseen(rows: Rows) -> float | None:
    """The share of the CPU time in threads and processes that no layer looks into."""
    if any(row["share"] is None for row in rows):
        return None
    return float(sum(row["share"] for row in rows if not row["layers"] and row["kind"] != OWN))


def _on_the_step(told: Mapping[str, Any], main: Mapping[str, Any]) -> list[str]:
    sentences = []
    off_s, step_s = told["off_cpu_s"], told["step_s"]
    if off_s == 0:
        sentences.append(
            "the steps' thread ran all the time of a clean step, which took "
            f"{format_seconds(step_s)} on average"
        )
    elif off_s is not None:
        text = (
            f"the steps' thread ran for {format_seconds(main['cpu_s'])} of a clean step, which "
            f"took {format_seconds(step_s)} on average; for {format_seconds(off_s)} it waited"
        )
        if told["no_core_s"] is not None:
            text += f", {format_seconds(told['no_core_s'])} of that for a core to run on"
        sentences.append(text)
    if told["unseen_share"]:
        sentences.append(
            f"{format_share(told['unseen_share'])} of the CPU time is used in threads and "
            "processes that no layer looks into"
        )
    return sentences


def _skipped(recorded: Recorded) -> str | None:
    """The one reason for which no layer was there, and nothing was read; None where one was."""
    layers = recorded.frames["layers"]
    reasons = layers.loc[layers["status"] == "skipped", "reason"]
    all_skipped = len(layers) and len(reasons) == len(layers) and reasons.nunique() == 1
    return str(reasons.iloc[0]) if all_skipped else None


def _on_workers(told: Mapping[str, Any], had_workers: bool) -> list[str]:
    if not had_workers:
        return []
    count = told["workers"]
    who = "1 DataLoader worker uses" if count == 1 else f"{count or ''} DataLoader workers use"
    used = told["worker_cpu_s"]
    text = f"{who.strip()} {format_seconds(used)} of CPU time per step"
    if used is None:
        text = f"{who.strip()} CPU time that the system did not tell"
    wait_s, step_s = told["wait_s"], told["step_s"]
    if wait_s is None or not step_s:
        return [f"{text}; nothing told how long the steps wait for their data"]
    share = f"{format_share(wait_s / step_s)} of it"
    return [f"{text}; a step waits {format_seconds(wait_s)} ({share}) before its first work"]


def _on_backward(recorded: Recorded, rows: Rows, *, has_device: bool) -> list[str]:
    found = sum(row["threads"] or 0 for row in rows if row["kind"] == BACKWARD)
    if found:
        who = "1 thread" if found == 1 else f"{found} threads"
        text = f"backward passes run on {who} of torch's: the torch layer joins their operators "
        return [text + "with the modules whose forward made them"]
    if recorded.phase == "train" and not has_device:
        return ["the backward pass runs on the steps' own thread, as always on the CPU"]
    return []
