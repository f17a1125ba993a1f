"""The memory readings of a recording that tell of the script alone, as steps and bytes.

Layers leave memory behind, and the first steps take what a script needs: what counts are the
slices from the second round on in which nothing observed. The resident set is read at their edges
and, where the watch runs, all through them; it goes up and down within a step, so of many readings
the lowest of each stretch is taken: what is kept over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from profstack.findings.trend import Floats, Group
from profstack.merge.recorded import Recorded

_UNOBSERVED = ("clean", "watch")
# Stretches that a long group is divided into, and the readings that each has at least.
_MOST_STRETCHES = 40
_FEWEST_READINGS = 8


def resident(recorded: Recorded) -> list[Group]:
    """Groups of the resident set, one for each run of slices that nothing observed."""
    edges = _known(recorded.frames["memory"], "rss_bytes")
    watched = _known(recorded.frames["watch_samples"], "rss_bytes")
    groups = [_group(recorded, run, edges, watched) for run in _runs(recorded)]
    return [group for group in groups if len(group[0]) > 1]


def on_device(recorded: Recorded) -> list[Group]:
    """One group of the bytes in live tensors on the device, read at the edges of all slices.

    The layers take no memory there.
    """
    edges = _known(recorded.frames["memory"], "device_allocated_bytes")
    slices = recorded.slices[recorded.slices["round"] > 1]
    if not len(slices):
        return []
    begun = slices["first_step"].min()
    ended = (slices["first_step"] + slices["steps"]).max()
    edges = edges[(edges["step"] >= begun) & (edges["step"] <= ended)]
    edges = edges.drop_duplicates("step", keep="last").sort_values("step")
    return [(_floats(edges["step"]), _floats(edges["device_allocated_bytes"]))]


def _known(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    found: pd.DataFrame = frame[frame[column].notna()].sort_values("t_s", kind="stable")
    return found


def _floats(column: Any) -> Floats:
    return np.asarray(column, dtype=np.float64)


def _runs(recorded: Recorded) -> list[pd.DataFrame]:
    """Slices that nothing observed, those together that follow each other without a gap."""
    slices = recorded.slices
    chosen = slices[
        slices["kind"].isin(_UNOBSERVED) & (slices["round"] > 1) & (slices["steps"] > 0)
    ]
    after = chosen["first_step"] + chosen["steps"]
    breaks = (chosen["first_step"] != after.shift()).cumsum()
    return [run for _, run in chosen.groupby(breaks)]


def _group(
    recorded: Recorded, run: pd.DataFrame, edges: pd.DataFrame, watched: pd.DataFrame
) -> Group:
    """The readings of one run of slices: those of the watch where it has enough, else the edges."""
    begun, ended = _begin_and_end(run)
    first = int(run["first_step"].iloc[0])
    last = int(run["first_step"].iloc[-1] + run["steps"].iloc[-1])
    inside = watched[(watched["t_s"] >= begun) & (watched["t_s"] <= ended)]
    if len(inside) >= 4 * _FEWEST_READINGS:
        steps = _steps_at(recorded, run, _floats(inside["t_s"]))
        return _lowest(steps, _floats(inside["rss_bytes"]), last - first)
    # An edge is read when the slice before it has ended, and bears the number of steps by then.
    at = edges[(edges["step"] >= first) & (edges["step"] <= last)]
    at = at[(at["step"] > first) | (at["t_s"] <= begun)].drop_duplicates("step", keep="last")
    return _floats(at["step"]), _floats(at["rss_bytes"])


def _begin_and_end(run: pd.DataFrame) -> tuple[float, float]:
    last = run.iloc[-1]
    return float(run["started_s"].iloc[0]), float(last["started_s"] + last["wall_s"])


def _steps_at(recorded: Recorded, run: pd.DataFrame, times: Floats) -> Floats:
    """The step, with its fraction, in progress at each time."""
    steps = recorded.steps_of(run["slice"].tolist())
    steps = steps[steps["started_s"].notna()]
    ends = run["started_s"] + run["wall_s"]
    # Of a very long run the steps are only counted: its slices' edges are known all the same.
    known = np.concatenate([_floats(steps["started_s"]), _floats(run["started_s"]), _floats(ends)])
    numbers = np.concatenate(
        [
            _floats(steps["step"]),
            _floats(run["first_step"]),
            _floats(run["first_step"] + run["steps"]),
        ]
    )
    order = np.lexsort((numbers, known))
    found: Floats = np.interp(times, known[order], numbers[order])
    return found


def _lowest(steps: Floats, values: Floats, count: int) -> Group:
    """The lowest reading of each stretch of steps."""
    stretches = max(1, min(_MOST_STRETCHES, len(steps) // _FEWEST_READINGS, count))
    edges = np.linspace(steps[0], steps[-1], stretches + 1)
    at = np.clip(np.searchsorted(edges, steps, side="right") - 1, 0, stretches - 1)
    chosen = [
        inside[values[inside].argmin()]
        for inside in (np.flatnonzero(at == number) for number in range(stretches))
        if len(inside)
    ]
    return steps[chosen], values[chosen]


def covered(groups: Sequence[Group]) -> float:
    """Steps from the first to the last reading of each group, added up."""
    return float(sum(steps[-1] - steps[0] for steps, _ in groups))
