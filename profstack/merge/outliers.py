"""Steps of the watch that stand out: much slower than a clean one, or taking memory as few do.

`RULE` says in words what counts. Steps shorter than the sampling interval mostly hold no sample:
of them only the time is known, and memory that was still there when the next sample came.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from profstack.merge.cleansteps import Clean, times_of
from profstack.merge.recorded import Recorded
from profstack.merge.watched import Frame, Sample, Stack, Watched, own_frames, watched

# How far above the clean median a step is slow: in robust standard deviations, and in its time.
DEVIATIONS = 5.0
SLOWER = 0.5
# What a step must have grown by at least, and how much more than nine of ten others have.
GROWN_BYTES = 4 * 2**20
GROWN_MORE = 2.0
MOST_ROWS = 200
RULE = (
    "steps in slices of the watch that took half as long again as the clean median and more than "
    "5 robust standard deviations (1.4826 times the median absolute deviation) above it, or in "
    "which the resident set rose by 4 MiB and by twice what it rose by in nine of ten others; "
    f"the {MOST_ROWS} that stand out most"
)
_MOST_SHOWN = 5


def outlier_rows(recorded: Recorded, clean: Clean) -> list[dict[str, Any]]:
    """Rows of `outliers`, the slowest first; `samples` counts the looks that fell into the step.

    It is None where the watch has looked nowhere.
    """
    steps = recorded.steps
    steps = steps[(steps["kind"] == "watch") & (steps["wall_s"] > 0)]
    if not len(steps):
        return []
    begins = steps["started_s"].to_numpy(dtype=float)
    walls = steps["wall_s"].to_numpy(dtype=float)
    # By the clock that the median is of: the host's own steps are shorter where it runs ahead.
    took = times_of(steps, clean.clock).fillna(steps["wall_s"]).to_numpy(dtype=float)
    ends = begins + walls
    seen = watched(recorded)
    grown = _growth(seen, begins.tolist(), ends.tolist())
    median_s = clean.median_s
    slow = took > _slow_from(clean)
    took_memory = _took_memory(grown)
    chosen = np.flatnonzero(slow | np.isin(np.arange(len(walls)), list(took_memory)))
    # What stands out most: memory first, since it is rarer, then the time lost.
    ranked = sorted(chosen.tolist(), key=lambda row: (row not in took_memory, -took[row], row))[
        :MOST_ROWS
    ]
    inside = _by_step(seen.samples, begins.tolist(), ends.tolist())
    numbers = steps["step"].tolist()
    return [
        {
            "index": int(numbers[row]),
            "wall_s": float(walls[row]),
            "factor": float(took[row] / median_s) if median_s else None,
            "rss_bytes": grown.get(row),
            # Where the watch did not run none could have fallen into a step.
            "samples": len(inside.get(row, ())) if seen.samples else None,
            "doing": _doing(seen, inside.get(row, [])),
        }
        for row in sorted(ranked, key=lambda row: (-walls[row], row))
    ]


def _slow_from(clean: Clean) -> float:
    """The time above which a step is slow; without clean steps none is."""
    if clean.median_s is None:
        return float("inf")
    times = times_of(clean.steps, clean.clock)
    deviation = 1.4826 * float((times - clean.median_s).abs().median())
    return clean.median_s + max(DEVIATIONS * deviation, SLOWER * clean.median_s)


def _took_memory(grown: dict[int, int]) -> set[int]:
    """The steps that have grown by much more than most."""
    if not grown:
        return set()
    usual = float(np.quantile(list(grown.values()), 0.9, method="lower"))
    least = max(GROWN_BYTES, GROWN_MORE * usual)
    return {row for row, growth in grown.items() if growth >= least}


def _growth(seen: Watched, begins: list[float], ends: list[float]) -> dict[int, int]:
    """How far above its level at the step's start the resident set has been seen, by step.

    A change between two readings belongs to the step that had most of the time between them.
    """
    changes: dict[int, list[float]] = defaultdict(list)
    readings = list(zip(seen.read_at, seen.read_bytes, strict=True))
    for (earlier, before), (later, after) in pairwise(readings):
        row = _most_of(earlier, later, begins, ends)
        if row is not None:
            changes[row].append(after - before)
    return {
        row: int(max(0.0, np.cumsum(changes_in_order).max()))
        for row, changes_in_order in changes.items()
    }


def _most_of(
    earlier: float, later: float, begins: Sequence[float], ends: Sequence[float]
) -> int | None:
    """The step that lies in this time for longest; None where none does."""
    first = max(bisect_right(begins, earlier) - 1, 0)
    last = bisect_right(begins, later)
    overlaps = [
        (min(ends[row], later) - max(begins[row], earlier), row) for row in range(first, last)
    ]
    longest, row = max(overlaps, default=(0.0, -1))
    return row if longest > 0 else None


def _by_step(
    samples: Sequence[Sample], begins: Sequence[float], ends: Sequence[float]
) -> dict[int, list[Sample]]:
    inside: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        row = bisect_right(begins, sample.t_s) - 1
        if row >= 0 and sample.t_s <= ends[row]:
            inside[row].append(sample)
    return inside


def _doing(seen: Watched, samples: list[Sample]) -> str | None:
    """What most of the time went to: the stack as far as more than half of it agrees."""
    sums = seen.by_stack(samples)
    half = sum(each.weight for each in sums) / 2
    path: Stack = ()
    while True:
        depth = len(path)
        nexts: dict[Frame, float] = defaultdict(float)
        for each in sums:
            if each.stack[:depth] == path and len(each.stack) > depth:
                nexts[each.stack[depth]] += each.weight
        best = max(nexts, key=lambda frame: nexts[frame], default=None)
        if best is None or nexts[best] <= half:
            break
        path = (*path, best)
    if not path:
        return None
    regions: dict[str | None, float] = defaultdict(float)
    for sample in samples:
        regions[sample.region] += sample.weight
    region = max(regions, key=lambda name: regions[name])
    named = f"[{region}] " if region is not None and regions[region] > half else ""
    return named + _shown(path)


def _shown(path: Stack) -> str:
    """A stack in one line, outermost first: all of it, or the script's own end and the very end."""
    kept = set(range(len(path)))
    if len(path) > _MOST_SHOWN:
        own = set(own_frames(path))
        places = [place for place, frame in enumerate(path) if frame in own]
        kept = {*places[2 - _MOST_SHOWN :], len(path) - 2, len(path) - 1}
    words: list[str] = []
    for place, frame in enumerate(path):
        if place in kept:
            words.append(f"{os.path.basename(frame.file)}:{frame.line} {frame.name}")
        elif not words or words[-1] != "…":
            words.append("…")
    return " > ".join(words)
