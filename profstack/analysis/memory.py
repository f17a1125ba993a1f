"""Memory and source lines: figures of lines, of modules and of the run, and owners at the peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np

from profstack.analysis.clean_steps import in_progress
from profstack.code_owner import Places
from profstack.privacy import home_relative
from profstack.storage.reader import (
    NO_SLICES,
    Recorded,
    Row,
    Selection,
    grouped,
    in_order,
    known,
    known_sum,
    known_total,
    ratio,
    sums,
    whole,
)
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
_HIGHEST = ("usage_bytes", "largest_bytes", "memory_profiler_usage_bytes")
# The different texts of a line's slices are joined.
_TEXTS = {
    "source": "source",
    "memory_source": "second_source",
    "memory_profiler_reason": "memory_profiler_reason",
}


def memory_lines(recorded: Recorded) -> dict[LineKey, LineFigures]:
    """Memory of lines by file and line, over all runs that the layer saw.

    The first steps take the memory: all slices of the layer count, and nothing is divided by
    steps.
    """
    found: dict[LineKey, LineFigures] = {}
    every = recorded.rows("memory_lines", recorded.select_all("memory"))
    for (file, line), rows in grouped(every, "file", "line").items():
        # All sources must be of the same runs, or the other ones are not known.
        figures: dict[str, Any] = {
            **{name: known_sum(row[name] for row in rows) for name in _ADDED},
            **{name: whole(known_total(row[name] for row in rows)) for name in _BESIDE},
            **{name: max(known(rows, name), default=None) for name in _HIGHEST},
        }
        tool, own = figures["memory_profiler_increment_bytes"], figures["increment_bytes"]
        is_same = tool is not None and len(known(rows, "increment_bytes")) == len(rows)
        figures["memory_profiler_difference_bytes"] = tool - own if is_same else None
        for name, column in _TEXTS.items():
            figures[name] = "; ".join(dict.fromkeys(known(rows, column))) or None
        found[file, line] = figures
    return found


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
    grown_in = recorded.holding(recorded.table("module_memory"))
    grown = recorded.rows("module_memory", grown_in)
    blocks = "what torch's allocator gave out and took back"
    every_block = "every block that torch's allocator gave out and took back"
    highest = "the highest that torch's device allocator knows"
    for column in (*_GROWTH, "host_peak_bytes", "device_peak_bytes"):
        is_peak = column not in _GROWTH
        first = (peaks, detail, every_block) if is_peak else (allocator, detail, blocks)
        for rows, selection, words in (first, (grown, grown_in, _GROWTH.get(column, highest))):
            if selection is None or all(row.get(column) is None for row in rows):
                continue
            for (module,), own in grouped(rows, "module_id").items():
                values = known(own, column)
                if values or not is_peak:
                    # Peaks of different steps are never added.
                    figure = (
                        float(max(values)) if is_peak else selection.per_step(known_sum(values))
                    )
                    found.setdefault(module, {})[column] = figure
            sources[f"modules.{column}"] = f"{words}, {selection.in_words()}"
            break
    return found, sources


def memory_rows(recorded: Recorded) -> list[schema.MemoryRow]:
    """Rows of `memory`: the samples at slice edges and those of the watch, in order of time."""
    columns = recorded.columns("watch_samples", "t_s", "rss_bytes")
    read = sorted((t_s, rss) for t_s, rss in zip(*columns, strict=True) if rss is not None)
    kept = _extremes(read)
    at = _step_at(recorded, [t_s for t_s, _ in kept])
    samples: list[Row] = [
        {"t_s": t_s, "rss_bytes": rss, "step": step}
        for (t_s, rss), step in zip(kept, at, strict=True)
    ]
    return table_rows("memory", in_order([*recorded.table("memory"), *samples], "t_s"))


def _extremes(samples: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Keep at most `MOST_SAMPLES`: the smallest and the largest of each stretch of time."""
    count, stretches = len(samples), MOST_SAMPLES // 2
    if count <= MOST_SAMPLES:
        return samples
    # The samples of a stretch are those of which number * stretches // count is the same.
    edges = [-(-count * stretch // stretches) for stretch in range(stretches + 1)]
    sizes = [rss for _, rss in samples]
    kept = set()
    for begin, end in pairwise(edges):
        inside = range(begin, end)
        kept |= {min(inside, key=sizes.__getitem__), max(inside, key=sizes.__getitem__)}
    return [samples[place] for place in sorted(kept)]


def _step_at(recorded: Recorded, times: Sequence[float]) -> list[int | None]:
    """Find the step in progress at each time; None where there is none.

    Of steps that were not kept it is the one before in their slice that was.
    """
    begun = (row for row in recorded.table("steps") if row["started_s"] is not None)
    steps = in_order(begun, "started_s")
    starts = np.array([row["started_s"] for row in steps], dtype=float)
    ends = starts + np.array([row["wall_s"] or 0.0 for row in steps], dtype=float)
    at = in_progress(np.array(times, dtype=float), starts, ends)
    slices = [
        row for row in recorded.table("slices") if None not in (row["started_s"], row["wall_s"])
    ]
    until = {row["slice"]: row["started_s"] + row["wall_s"] for row in slices}
    found: list[int | None] = []
    for place, before, time in zip(
        at, np.searchsorted(starts, times, "right") - 1, times, strict=True
    ):
        last = steps[max(place, before)] if max(place, before) >= 0 else None
        is_in = last is not None and (place >= 0 or time < until.get(last["slice"], time))
        found.append(last["step"] if last is not None and is_in else None)
    return found


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
    # An imported snapshot has a history in place of a step.
    rows = rows or recorded.rows("memory_owners", recorded.select_all("snapshot"))
    return table_rows("memory_owners", rows)


def peak_holders(recorded: Recorded) -> list[schema.PeakHolderRow]:
    """Rows of `peak_holders`, the largest of each device first."""
    holders = _of_observed_step(recorded, "peak_holders")
    found = []
    for rows in grouped(holders, "device").values():
        total = sum(known(rows, "bytes"))
        ranked = sorted(rows, key=lambda row: -row["bytes"])
        found += [
            {
                **row,
                "module": recorded.module_path(row["module_id"]),
                "backward": None if row["backward"] is None else bool(row["backward"]),
                "share": row["bytes"] / total if total else None,
            }
            for row in ranked[:MOST_HOLDERS]
        ]
    return table_rows("peak_holders", found)


def peak_facts(recorded: Recorded) -> tuple[float | None, float | None]:
    """Return the bytes alive at the peak, and the share of them that has an owner.

    They are of the accelerator with the highest peak, or of the host where none was used. Memory
    has an owner if its kind is known; activations and temporaries must also have been taken by a
    module, or by a part of the step that owns its time.
    """
    holders = _of_observed_step(recorded, "peak_holders")
    if not holders:
        return None, None
    device = _main_device(holders)
    rows = [row for row in holders if row["device"] == device]
    total, owned = sum(known(rows, "bytes")), sum(row["bytes"] for row in rows if _has_owner(row))
    return total, ratio(owned, total)


def _has_owner(row: Row) -> bool:
    has_module = row["module_id"] is not None and row["module_id"] not in UNOWNED
    return row["kind"] != _NOT_ATTRIBUTED and (row["kind"] not in _TAKEN or has_module)


def peak_sources(recorded: Recorded) -> Mapping[str, str]:
    """Return what the two tables are measured with, by `table.column`."""
    if not _of_observed_step(recorded, "memory_owners"):
        return {}
    events = "every block that torch's allocators gave out and took back in one step"
    return {
        "memory_owners.start_bytes": "the tensors alive before the step; of an accelerator also "
        "what its allocator counts",
        "memory_owners.peak_bytes": f"{events}, with the tensors alive before it",
        "peak_holders.bytes": f"{events}, with the tensors alive before it",
    }


def _main_device(holders: Sequence[Row]) -> str:
    """Return the accelerator with the highest peak in one slice; without one the host."""
    groups = grouped(holders, "slice", "device")
    peaks = {key: sum(known(rows, "bytes")) for key, rows in groups.items()}
    _, device = max(peaks, key=lambda key: (key[1] != HOST, peaks[key]))
    return str(device)


def _of_observed_step(recorded: Recorded, table: str) -> list[Row]:
    """Return the rows of the slice with the highest peak: each slice is one step."""
    selection = recorded.select("torch", (("detail",),))
    rows = recorded.rows(table, selection)
    holders = recorded.rows("peak_holders", selection)
    if not rows or not holders:
        return rows
    device = _main_device(holders)
    groups = grouped((row for row in holders if row["device"] == device), "slice")
    peaks = {number: sum(known(own, "bytes")) for (number,), own in groups.items()}
    highest = max(peaks, key=lambda number: (peaks[number], -number))
    return [row for row in rows if row["slice"] == highest]


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
    every = recorded.rows("lines", traced)
    by_line, uncounted = grouped(every, "file", "line"), _uncounted(every)
    found: dict[LineKey, LineFigures] = {}
    for key, totals in sums(every, ["file", "line"], _SUMS):
        figures: dict[str, Any] = traced.figures(totals)
        if key in uncounted:
            figures["calls"] = None
        for name in ("source", "reason", "samples"):
            figures[name] = next(iter(known(by_line[key], name)), None)
        found[key[0], key[1]] = figures
    return found


def _uncounted(rows: Sequence[Row]) -> set[tuple[Any, ...]]:
    """Return the lines without a count in one slice: they have no count at all."""
    return {(row["file"], row["line"]) for row in rows if row["calls"] is None}


def module_lines(recorded: Recorded, traced: Selection | None) -> list[schema.ModuleLineRow]:
    """Rows of `module_lines`: the time on each line by module, in order of lines.

    The rows of a line add up to its row in `lines`; time outside modules and parts of the step
    has no module.
    """
    every = recorded.rows("module_lines", traced)
    uncounted = _uncounted(every)
    rows = []
    for row in recorded.step_rows(every, traced, ("file", "line", "module_id"), _SUMS):
        if (row["file"], row["line"]) in uncounted:
            row["calls"] = None
        rows.append({**row, "file": home_relative(row["file"])})
    return table_rows("module_lines", rows)


def source_texts(recorded: Recorded) -> list[SourceText]:
    """Texts of the user's own files, in the order in which they were seen.

    If several slices have a text of one file, the first is taken: the script was read from it.
    """
    texts: dict[str, SourceText] = {}
    names = tuple(SourceText.__annotations__)
    for values in zip(*recorded.columns("source_files", *names), strict=True):
        row = cast("SourceText", dict(zip(names, values, strict=True)))
        file = row["file"]
        if file not in texts or texts[file]["text"] is None:
            texts[file] = {**row, "file": home_relative(file)}
    return list(texts.values())
