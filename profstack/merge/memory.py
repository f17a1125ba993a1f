"""Memory: of source lines, of modules, and over the time of the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from profstack.merge.recorded import Recorded, Selection, nullable, records

LINE_COLUMNS = (
    "usage_bytes",
    "increment_bytes",
    "largest_bytes",
    "allocated_bytes",
    "memory_source",
    "occurrences",
)
# What a report holds of the watch's samples; the recording has them all.
MOST_SAMPLES = 20_000


def memory_lines(recorded: Recorded) -> dict[tuple[str, int], dict[str, Any]]:
    """The memory columns of `lines` by file and line, over all runs that the layer saw.

    The first steps take the memory: all slices of the layer count, and nothing is divided by
    steps.
    """
    frame = recorded.rows("memory_lines", recorded.select_all("memory"))
    if not len(frame):
        return {}
    grouped = frame.groupby(["file", "line"])
    summed = grouped[["increment_bytes", "allocated_bytes", "occurrences"]].sum(min_count=1)
    # Both figures of a line are of the same runs, or the second is not known.
    told = grouped["allocated_bytes"].count() == grouped.size()
    summed["allocated_bytes"] = summed["allocated_bytes"].where(told)
    highest = grouped[["usage_bytes", "largest_bytes"]].max()
    texts = grouped[["source", "second_source"]].agg(_one_text)
    return {
        (str(key[0]), int(key[1])): {
            "source": nullable(text["source"]),
            "usage_bytes": _whole(most["usage_bytes"]),
            "increment_bytes": _whole(total["increment_bytes"]),
            "largest_bytes": _whole(most["largest_bytes"]),
            "allocated_bytes": _whole(total["allocated_bytes"]),
            "memory_source": nullable(text["second_source"]),
            "occurrences": nullable(total["occurrences"]),
        }
        for key, total, most, text in zip(
            summed.index.tolist(),
            summed.to_dict("records"),
            highest.to_dict("records"),
            texts.to_dict("records"),
            strict=True,
        )
    }


def _one_text(column: pd.Series[Any]) -> str | None:
    """The texts of a line's slices, each once."""
    return "; ".join(dict.fromkeys(str(text) for text in column.dropna())) or None


def _whole(value: Any) -> int | None:
    return None if value is None or value != value else round(value)


def module_memory(
    recorded: Recorded, detail: Selection | None
) -> tuple[dict[int, dict[str, float | None]], dict[str, str]]:
    """Bytes of each module per step, and by column what they were measured with.

    torch's allocator tells every byte it gives out and takes back, by the module that asked. What
    the memory layer sees grow over a call holds whatever else was taken meanwhile: it stands only
    where the first source saw nothing.
    """
    found: dict[int, dict[str, float | None]] = {}
    sources: dict[str, str] = {}
    allocator = recorded.rows("module_times", detail)
    grown_in = recorded.holding(recorded.frames["module_memory"])
    grown = recorded.rows("module_memory", grown_in)
    for column in ("host_net_bytes", "device_net_bytes"):
        for rows, selection, words in (
            (allocator, detail, "what torch's allocator gave out and took back"),
            (grown, grown_in, _GROWTH[column]),
        ):
            if selection is not None and rows[column].notna().any():
                _add(found, column, rows, selection)
                sources[f"modules.{column}"] = f"{words}, {selection.in_words()}"
                break
    told = recorded.rows("module_peaks", detail)
    for column in ("host_peak_bytes", "device_peak_bytes"):
        for rows, selection, words in (
            (told, detail, "every block that torch's allocator gave out and took back"),
            (grown, grown_in, "the highest that torch's device allocator knows"),
        ):
            if selection is not None and column in rows and rows[column].notna().any():
                _highest(found, column, rows)
                sources[f"modules.{column}"] = f"{words}, {selection.in_words()}"
                break
    return found, sources


_GROWTH = {
    "host_net_bytes": "growth of malloc's bytes in use, or of the resident set where the notes "
    "say so, over the module's calls",
    "device_net_bytes": "growth of live device bytes over the module's calls",
}


def _add(
    found: dict[int, dict[str, float | None]], column: str, rows: pd.DataFrame, selection: Selection
) -> None:
    summed = rows.groupby("module_id")[column].sum(min_count=1)
    for module, total in zip(summed.index.tolist(), summed.tolist(), strict=True):
        found.setdefault(int(module), {})[column] = selection.per_step(total)


def _highest(found: dict[int, dict[str, float | None]], column: str, rows: pd.DataFrame) -> None:
    """The highest of all calls; peaks of different steps are never added."""
    peaks = rows.groupby("module_id")[column].max().dropna()
    for module, peak in zip(peaks.index.tolist(), peaks.tolist(), strict=True):
        found.setdefault(int(module), {})[column] = float(peak)


def memory_rows(recorded: Recorded) -> list[dict[str, Any]]:
    """Rows of `memory`: the samples at slice edges and those of the watch, in order of time."""
    edges = recorded.frames["memory"]
    watched = recorded.frames["watch_samples"]
    watched = _extremes(watched[watched["rss_bytes"].notna()].sort_values("t_s"))
    samples = pd.DataFrame(
        {"t_s": watched["t_s"], "step": _step_at(recorded, watched["t_s"])}
    ).assign(rss_bytes=watched["rss_bytes"])
    frames = [frame for frame in (edges, samples) if len(frame)]
    if not frames:
        return []
    joined = pd.concat(frames).sort_values("t_s", kind="stable")
    rows = records(joined)
    for row in rows:
        row.update({name: _whole(row[name]) for name in row if name != "t_s"})
    return rows


def _extremes(samples: pd.DataFrame) -> pd.DataFrame:
    """At most `MOST_SAMPLES`: of each stretch of time the smallest and the largest."""
    if len(samples) <= MOST_SAMPLES:
        return samples
    stretch = np.arange(len(samples)) * (MOST_SAMPLES // 2) // len(samples)
    groups = samples["rss_bytes"].reset_index(drop=True).groupby(stretch)
    kept = np.unique(np.concatenate([groups.idxmin(), groups.idxmax()]))
    thinned: pd.DataFrame = samples.iloc[kept]
    return thinned


def _step_at(recorded: Recorded, times: pd.Series[Any]) -> list[int | None]:
    """The step that was in progress at each time; None before the first and after the last."""
    steps = recorded.frames["steps"]
    steps = steps[steps["started_s"].notna()].sort_values("started_s")
    if not len(steps):
        return [None] * len(times)
    starts = steps["started_s"].to_numpy(float)
    ends = starts + steps["wall_s"].fillna(0.0).to_numpy(float)
    numbers = steps["step"].tolist()
    at = np.searchsorted(starts, times.to_numpy(float), side="right") - 1
    return [
        int(numbers[position]) if position >= 0 and time <= ends[position] else None
        for position, time in zip(at.tolist(), times.tolist(), strict=True)
    ]
