"""Memory and source lines: figures of lines, of modules and of the run, and owners at the peak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pandas as pd

from profstack.analysis.clean_steps import in_progress
from profstack.code_owner import Places
from profstack.privacy import home_relative
from profstack.storage.reader import NO_SLICES, Recorded, Selection, nullable, records, sums, whole
from profstack.storage.schema import rows as schema
from profstack.storage.schema.report import SourceText, table_rows
from profstack.storage.vocabulary import UNOWNED

# The most of the watch's samples in a report; the recording has them all.
MOST_SAMPLES = 20_000


LineKey = tuple[str, int]
# Figures of a line, by their columns in the table `lines`.
LineFigures = Mapping[str, Any]


# Columns of `memory_lines` that are added up over slices, those of other sources, and the highest.
_ADDED = ("increment_bytes", "occurrences")
_BESIDE = (
    "allocated_bytes",
    "memory_profiler_increment_bytes",
    "memory_profiler_occurrences",
)
_HIGHEST = ["usage_bytes", "largest_bytes", "memory_profiler_usage_bytes"]


def memory_lines(recorded: Recorded) -> dict[LineKey, LineFigures]:
    """Memory of lines by file and line, over all runs that the layer saw.

    The first steps take the memory: all slices of the layer count, and nothing is divided by
    steps.
    """
    frame = recorded.rows("memory_lines", recorded.select_all("memory"))
    if not len(frame):
        return {}
    grouped = frame.groupby(["file", "line"])
    figures = grouped[[*_ADDED, *_BESIDE]].sum(min_count=1)
    # All sources must be of the same runs, or the other ones are not known.
    counts = grouped[[*_ADDED, *_BESIDE]].count()
    for column in _BESIDE:
        figures[column] = figures[column].where(counts[column] == grouped.size())
    tool, own = "memory_profiler_increment_bytes", "increment_bytes"
    difference = (figures[tool] - figures[own]).where(counts[tool] == counts[own])
    figures["memory_profiler_difference_bytes"] = difference
    figures = figures.join(grouped[_HIGHEST].max())
    texts = grouped[["source", "second_source", "memory_profiler_reason"]].agg(_joined_texts)
    texts = texts.rename(columns={"second_source": "memory_source"}).to_dict("index")
    return {
        (str(file), int(line)): {
            **{str(name): nullable(text) for name, text in texts[file, line].items()},
            **{str(name): whole(value) for name, value in values.items()},
        }
        for (file, line), values in figures.to_dict("index").items()
    }


def _joined_texts(column: pd.Series[Any]) -> str | None:
    """Join the different texts of a line's slices."""
    return "; ".join(dict.fromkeys(str(text) for text in column.dropna())) or None


Bytes = dict[str, float | None]
_GROWTH = {
    "host_net_bytes": "growth of malloc's bytes in use, or of the resident set where the notes "
    "say so, over the module's calls",
    "device_net_bytes": "growth of live device bytes over the module's calls",
}


def module_memory(
    recorded: Recorded, detail: Selection | None
) -> tuple[dict[int, Bytes], dict[str, str]]:
    """Bytes of each module per step, and by column what they were measured with.

    torch's allocator knows every byte it gives out and takes back, and the module that asked. The
    memory layer's growth over a call includes whatever else was taken meanwhile: it is used only
    where the allocator saw nothing.
    """
    found: dict[int, Bytes] = {}
    sources: dict[str, str] = {}
    allocator = recorded.rows("module_times", detail)
    peaks = recorded.rows("module_peaks", detail)
    grown_in = recorded.holding(recorded.frames["module_memory"])
    grown = recorded.rows("module_memory", grown_in)
    blocks = "what torch's allocator gave out and took back"
    every_block = "every block that torch's allocator gave out and took back"
    highest = "the highest that torch's device allocator knows"
    for column in (*_GROWTH, "host_peak_bytes", "device_peak_bytes"):
        is_peak = column not in _GROWTH
        first = (peaks, detail, every_block) if is_peak else (allocator, detail, blocks)
        for rows, selection, words in (first, (grown, grown_in, _GROWTH.get(column, highest))):
            if selection is None or column not in rows or not rows[column].notna().any():
                continue
            by_module = rows.groupby("module_id")[column]
            # Peaks of different steps are never added.
            values = by_module.max().dropna() if is_peak else by_module.sum(min_count=1)
            for module, value in values.items():
                figure = float(value) if is_peak else selection.per_step(value)
                found.setdefault(int(str(module)), {})[column] = figure
            sources[f"modules.{column}"] = f"{words}, {selection.in_words()}"
            break
    return found, sources


def memory_rows(recorded: Recorded) -> list[schema.MemoryRow]:
    """Rows of `memory`: the samples at slice edges and those of the watch, in order of time."""
    edges = recorded.frames["memory"]
    watched = recorded.frames["watch_samples"]
    watched = _extremes(watched[watched["rss_bytes"].notna()].sort_values("t_s"))
    samples = watched[["t_s", "rss_bytes"]].assign(step=_step_at(recorded, watched["t_s"]))
    frames = [frame for frame in (edges, samples) if len(frame)]
    if not frames:
        return []
    joined = pd.concat(frames).sort_values("t_s", kind="stable")
    figures = [name for name in joined.columns if name != "t_s"]
    found = ({**row, **{name: whole(row[name]) for name in figures}} for row in records(joined))
    return table_rows("memory", found)


def _extremes(samples: pd.DataFrame) -> pd.DataFrame:
    """Keep at most `MOST_SAMPLES`: the smallest and the largest of each stretch of time."""
    if len(samples) <= MOST_SAMPLES:
        return samples
    stretch = np.arange(len(samples)) * (MOST_SAMPLES // 2) // len(samples)
    groups = samples["rss_bytes"].reset_index(drop=True).groupby(stretch)
    kept = np.unique(np.concatenate([groups.idxmin(), groups.idxmax()]))
    thinned: pd.DataFrame = samples.iloc[kept]
    return thinned


def _step_at(recorded: Recorded, times: pd.Series[Any]) -> list[int | None]:
    """Find the step in progress at each time; None before the first and after the last."""
    steps = recorded.frames["steps"]
    steps = steps[steps["started_s"].notna()].sort_values("started_s")
    starts = steps["started_s"].to_numpy(float)
    ends = starts + steps["wall_s"].fillna(0.0).to_numpy(float)
    numbers = steps["step"].tolist()
    at = in_progress(times.to_numpy(float), starts, ends)
    return [int(numbers[place]) if place >= 0 else None for place in at]


# --- Memory by owner in the observed step ---------------------------------------------------------

# The most holders of one device in a report, the largest first; the recording has them all.
MOST_HOLDERS = 300
HOST = "cpu"
_NOT_ATTRIBUTED = "not attributed"
# The owner of memory of these kinds is what took it.
_TAKEN = ("activations", "temporaries")


def memory_owners(recorded: Recorded) -> list[schema.MemoryOwnerRow]:
    """Rows of `memory_owners`; the kinds of a device add up to its peak."""
    rows = _of_observed_step(recorded, "memory_owners")
    if not len(rows):
        # An imported snapshot has a history in place of a step.
        rows = recorded.rows("memory_owners", recorded.select_all("snapshot"))
    return table_rows("memory_owners", records(rows))


def peak_holders(recorded: Recorded) -> list[schema.PeakHolderRow]:
    """Rows of `peak_holders`, the largest of each device first."""
    holders = _of_observed_step(recorded, "peak_holders")
    found = []
    for _, rows in holders.groupby("device", sort=False):
        total = int(rows["bytes"].sum())
        ranked = rows.sort_values("bytes", ascending=False, kind="stable")
        found += [
            {
                **row,
                "module": recorded.module_path(row["module_id"]),
                "backward": None if row["backward"] is None else bool(row["backward"]),
                "share": row["bytes"] / total if total else None,
            }
            for row in records(ranked.head(MOST_HOLDERS))
        ]
    return table_rows("peak_holders", found)


def peak_facts(recorded: Recorded) -> tuple[float | None, float | None]:
    """Return the bytes alive at the peak, and the share of them that has an owner.

    They are of the accelerator with the highest peak, or of the host where none was used. Memory
    has an owner if its kind is known; activations and temporaries must also have been taken by a
    module, or by a part of the step that owns its time.
    """
    holders = _of_observed_step(recorded, "peak_holders")
    if not len(holders):
        return None, None
    peaks = holders.groupby("device")["bytes"].sum()
    device = _main_device(peaks)
    rows = holders[holders["device"] == device]
    owner = pd.to_numeric(rows["module_id"])
    unowned = owner.isna() | owner.isin(UNOWNED)
    unknown = (rows["kind"] == _NOT_ATTRIBUTED) | (rows["kind"].isin(_TAKEN) & unowned)
    total = int(peaks[device])
    return total, int(rows.loc[~unknown, "bytes"].sum()) / total if total else None


def peak_sources(recorded: Recorded) -> Mapping[str, str]:
    """Return what the two tables are measured with, by `table.column`."""
    if not len(_of_observed_step(recorded, "memory_owners")):
        return {}
    events = "every block that torch's allocators gave out and took back in one step"
    return {
        "memory_owners.start_bytes": "the tensors alive before the step; of an accelerator also "
        "what its allocator counts",
        "memory_owners.peak_bytes": f"{events}, with the tensors alive before it",
        "peak_holders.bytes": f"{events}, with the tensors alive before it",
    }


def _main_device(peaks: pd.Series[Any]) -> str:
    """Return the accelerator with the highest peak; without one the host."""
    others = peaks.drop(HOST, errors="ignore")
    return str((others if len(others) else peaks).idxmax())


def _of_observed_step(recorded: Recorded, table: str) -> pd.DataFrame:
    """Return the rows of the slice with the highest peak: each slice is one step."""
    selection = recorded.select("torch", (("detail",),))
    rows = recorded.rows(table, selection)
    if not len(rows):
        return rows
    owners = recorded.rows("peak_holders", selection)
    peaks = owners.groupby(["slice", "device"])["bytes"].sum().unstack("device")
    highest = peaks[_main_device(peaks.max())].idxmax()
    chosen: pd.DataFrame = rows[rows["slice"] == highest]
    return chosen


# -----------------------------------------------------------------------------
# The table of source lines: what each layer saw on them, joined by file and line.
# -----------------------------------------------------------------------------

_SUMS = ("calls", "python_s", "operator_s", "backward_s", "device_s")


def lines(
    recorded: Recorded,
    traced: Selection | None,
    memory: Mapping[LineKey, LineFigures],
    watched: Mapping[LineKey, LineFigures],
) -> list[schema.LineRow]:
    """Rows of `lines`, the user's own files first.

    The work of a library is in the row of the user's line that called it; the library's functions
    are in `functions`.
    """
    times = _line_times(recorded, traced or NO_SLICES)
    places = Places.read(recorded.facts)
    rows = []
    for key in sorted({*times, *memory, *watched}):
        timed, held, seen = (figures.get(key, {}) for figures in (times, memory, watched))
        rows.append(
            {
                **seen,
                **held,
                **timed,
                "file": home_relative(key[0]),
                "line": key[1],
                "source": timed.get("source") or held.get("source") or seen.get("source"),
                "own": None if places is None else places.is_own(key[0]),
            }
        )
    return table_rows("lines", sorted(rows, key=lambda row: row["own"] is False))


def _line_times(recorded: Recorded, traced: Selection) -> dict[LineKey, LineFigures]:
    frame = recorded.rows("lines", traced)
    by_line = frame.groupby(["file", "line"])[["source", "reason", "samples"]]
    texts = by_line.first().to_dict("index")
    uncounted = _uncounted(frame)
    found: dict[LineKey, LineFigures] = {}
    for key, totals in sums(frame, ["file", "line"], _SUMS):
        figures = traced.figures(totals)
        if key in uncounted:
            figures["calls"] = None
        text = {str(name): nullable(value) for name, value in texts[key].items()}
        found[str(key[0]), int(key[1])] = {**figures, **text, "samples": whole(text["samples"])}
    return found


def _uncounted(frame: pd.DataFrame) -> set[tuple[Any, ...]]:
    """Return the lines without a count in one slice: they have no count at all."""
    return set(frame[frame["calls"].isna()][["file", "line"]].itertuples(index=False))


def module_lines(recorded: Recorded, traced: Selection | None) -> list[schema.ModuleLineRow]:
    """Rows of `module_lines`: the time on each line by module, in order of lines.

    The rows of a line add up to its row in `lines`; time outside modules and parts of the step
    has no module.
    """
    frame = recorded.rows("module_lines", traced)
    uncounted = _uncounted(frame)
    rows = []
    for row in recorded.step_rows(frame, traced, ("file", "line", "module_id"), _SUMS):
        if (row["file"], row["line"]) in uncounted:
            row["calls"] = None
        rows.append({**row, "file": home_relative(str(row["file"])), "line": int(row["line"])})
    return table_rows("module_lines", rows)


def source_texts(recorded: Recorded) -> list[SourceText]:
    """Texts of the user's own files, in the order in which they were seen.

    If several slices have a text of one file, the first is taken: the script was read from it.
    """
    texts: dict[str, SourceText] = {}
    frame = recorded.frames["source_files"][list(SourceText.__annotations__)]
    for row in cast("list[SourceText]", records(frame)):
        file = row["file"]
        if file not in texts or texts[file]["text"] is None:
            texts[file] = {**row, "file": home_relative(file)}
    return list(texts.values())
