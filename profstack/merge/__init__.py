"""Joins what the layers saw into one report: the only place that knows keys across tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from profstack import __version__
from profstack.benchfolder import FACT
from profstack.engine.layerstate import WITH_DATA
from profstack.merge.attribution import attribution
from profstack.merge.benchmark import Clean, benchmark, clean_steps
from profstack.merge.callpaths import call_paths
from profstack.merge.disagreements import disagreements
from profstack.merge.floprows import flop_rows
from profstack.merge.flops import (
    SHAPES,
    Counted,
    counted,
    flop_sources,
    of_operators,
    of_record,
)
from profstack.merge.functions import calls, functions
from profstack.merge.launches import gaps, launch_means, launches
from profstack.merge.layers import layer_rows, probe_effects, select
from profstack.merge.lines import lines, module_lines, source_texts
from profstack.merge.machinepeaks import read_peaks
from profstack.merge.memory import memory_lines, memory_rows, module_memory
from profstack.merge.modules import module_paths, modules
from profstack.merge.nsys import is_import_alone, nsys_fact, nsys_tables, nsys_warnings
from profstack.merge.operators import kernels, operators
from profstack.merge.outliers import RULE, outlier_rows
from profstack.merge.peak import memory_owners, peak_facts, peak_holders, peak_sources
from profstack.merge.pythoncost import add_python_cost
from profstack.merge.reasons import cells_reason, columns_reason
from profstack.merge.recorded import Recorded, Selection, nullable, records
from profstack.merge.regions import ranges, regions
from profstack.merge.roofline import roofline
from profstack.merge.setup import setup
from profstack.merge.threads import processes, threads
from profstack.merge.watch import function_shares, line_shares, summary, watch_rows
from profstack.privacy import home_relative
from profstack.schema import REPORT, SCHEMA_VERSION

# What the parent writes of a run; null where it was killed before it could.
_RUN = (
    "started_at",
    "finished_at",
    "duration_s",
    "exit_code",
    "signal",
    "stopped_by",
    "rank",
    "world_size",
)


def build_report(folder: Path) -> dict[str, Any]:
    """Everything `report.json` holds, from the recording alone.

    Raises RecordingError where `folder` is no recording.
    """
    recorded = Recorded(folder)
    run = _read_run(folder)
    clean = clean_steps(recorded)
    selections = select(recorded)
    effects = probe_effects(recorded, clean, selections)
    counters = counted(recorded)
    tables, sources = _tables(recorded, clean, selections, counters)
    layers = layer_rows(recorded, clean, run, selections)
    environment = {**recorded.facts.get("environment", {}), **run.get("environment", {})}
    warnings = [
        # Of a run that is not in the recording there is no warm-up to miss.
        *([] if is_import_alone(recorded) else clean.warnings),
        *_mixed(selections),
        *disagreements(counters, module_paths(recorded)),
        *nsys_warnings(tables["nsys_modules"], (nsys_fact(recorded) or {}).get("notes", ())),
        *_notes(recorded),
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "profstack_version": __version__,
        "script": run.get("script"),
        "argv": run.get("argv", []),
        "status": _status(recorded, run),
        "run": {**dict.fromkeys(_RUN), "id": folder.resolve().name, **run.get("run", {})},
        "environment": {"python": None, "torch": None, **environment},
        "step": _step(recorded, clean),
        "slices": _slices(recorded),
        "benchmark": _benchmark(recorded, clean, environment, tables["modules"]),
        "probe_effect": effects,
        "layers": layers,
        "verdict": None,
        "step_bar": None,
        "findings": [],
        "roofline": roofline(
            recorded,
            selections["torch"],
            clean.median_s,
            of_record(counters),
            counters.get(SHAPES),
            tables["modules"],
            read_peaks(folder),
        ),
        "tables": tables,
        "columns_reason": columns_reason(
            tables, layers, has_device=environment.get("device") not in (None, "cpu")
        ),
        "cells_reason": cells_reason(tables),
        "columns_source": sources,
        "watch": _watch(recorded, tables["functions"]),
        "processes": processes(
            *(recorded, clean, tables["threads"]),
            has_device=environment.get("device") not in (None, "cpu"),
        ),
        "attribution": attribution(
            *(recorded, selections["torch"], clean.median_s, peak_facts(recorded))
        ),
        "launching": launch_means(recorded, selections["torch"]),
        "nsys": nsys_fact(recorded),
        "setup": setup(recorded),
        "sources": source_texts(recorded),
        "warnings": warnings,
    }


def _read_run(folder: Path) -> dict[str, Any]:
    try:
        text = (folder / "logs" / "run.json").read_text(encoding="utf-8")
        run: dict[str, Any] = json.loads(text)
    except (OSError, ValueError):
        # The parent was killed before it wrote this: the tables are there all the same.
        return {}
    return run


def _mixed(selections: dict[str, Selection | None]) -> list[dict[str, str]]:
    """A warning for each layer that never had a slice without evaluation in it."""
    return [
        {
            "slug": "evaluation-in-slice",
            "text": f"every slice of {layer} holds steps in which the script evaluated its model: "
            "its figures are of training and evaluation together",
        }
        for layer, selection in selections.items()
        if selection is not None and selection.mixed
    ]


def _status(recorded: Recorded, run: dict[str, Any]) -> str:
    bench = recorded.facts.get(FACT)
    if bench is not None:
        return _bench_status(recorded, run, bench)
    if is_import_alone(recorded):
        return "complete"
    if not len(recorded.frames["steps"]) and not _whole(recorded):
        # Between steps that were not found the watch may have looked.
        return "partial" if recorded.frames["layers"]["status"].isin(WITH_DATA).any() else "failed"
    ended = "recording_ended" in recorded.facts
    # A session ends while its process goes on.
    clean_exit = run.get("run", {}).get("exit_code") is not None or run.get("in_process", False)
    cut_short = "uncaught" in recorded.facts
    return "complete" if ended and clean_exit and not cut_short else "partial"


def _whole(recorded: Recorded) -> bool:
    """Whether a script without steps was measured as a whole."""
    slices = recorded.frames["slices"]
    return bool(len(slices)) and bool((slices["kind"] == "whole").any())


def _bench_status(recorded: Recorded, run: dict[str, Any], bench: dict[str, Any]) -> str:
    """Of a benchmark: whether it measured, and whether all that was asked for came to its end."""
    if bench["figures"] is None:
        return "failed"
    code = run.get("run", {}).get("exit_code")
    ended = code == 0 or run.get("in_process", False)
    layers_ended = "recording_ended" in recorded.facts or not len(recorded.frames["steps"])
    cut_short = bench["problems"] or bench["figures"].get("part_problems")
    return "complete" if ended and layers_ended and not cut_short else "partial"


def _step(recorded: Recorded, clean: Clean) -> dict[str, Any]:
    counts = recorded.facts.get("counts_by_phase")
    if counts is None:
        # A killed run wrote no final count: what it wrote step by step is what is known.
        counts = recorded.frames["steps"].groupby("phase").size().to_dict()
    steps = recorded.steps
    batches = steps["batch_size"].dropna()
    return {
        "rule": recorded.rule,
        "phase": recorded.phase,
        "count": int(counts.get(recorded.phase, 0)) if recorded.phase else 0,
        "counts_by_phase": {phase: int(count) for phase, count in counts.items()},
        "batch_size": int(batches.mode().iloc[0]) if len(batches) else None,
        "shapes": steps["shape"].dropna().value_counts().index.tolist()[:20],
    }


def _slices(recorded: Recorded) -> list[dict[str, Any]]:
    medians = recorded.frames["steps"].groupby("slice")["wall_s"].median()
    rows = []
    for row in recorded.frames["slices"].sort_values("slice").to_dict("records"):
        entry = {str(key): nullable(value) for key, value in row.items()}
        entry["index"] = entry.pop("slice")
        entry["step_median_s"] = nullable(medians.get(entry["index"]))
        if entry["step_median_s"] is None and entry["mode"] == "shared":
            entry["step_median_s"] = nullable(entry["wall_s"])
        rows.append(entry)
    return rows


def _benchmark(
    recorded: Recorded,
    clean: Clean,
    environment: dict[str, Any],
    modules: list[dict[str, Any]],
) -> dict[str, Any]:
    """The clean figures.

    A run's items per second stand only where one call of one model takes in a step's whole batch;
    of a benchmark the batch size is read from the inputs of the very call, or stated.
    """
    figures = benchmark(recorded, clean, environment)
    if is_import_alone(recorded):
        figures["warnings"] = []
    if clean.bench is not None:
        return figures
    calls = [
        row["calls"]
        for row in modules
        if row["depth"] == 0 and row["parameters"] and row["calls"] is not None
    ]
    if figures["items_per_s"] is not None and any(count > 1.01 for count in calls):
        figures["items_per_s"] = None
        figures["warnings"].append(
            f"no items per second: a step calls its model {max(calls):.3g} times, and the batch "
            "size is known of one call"
        )
    return figures


def _tables(
    recorded: Recorded,
    clean: Clean,
    selections: dict[str, Selection | None],
    counters: dict[str, Counted],
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """All tables of the report, and what those columns rest on that have several sources."""
    torch, cprofile = selections["torch"], selections["cprofile"]
    record = of_record(counters)
    bytes_of, sources = module_memory(recorded, recorded.select("torch", (("detail",),)))
    traced = recorded.select("torch", (("lines",),))
    median = clean.median_s
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in REPORT}
    rows.update(
        steps=_step_rows(recorded),
        modules=modules(recorded, torch, median, bytes_of, record),
        operators=operators(recorded, torch, median, of_operators(counters)),
        kernels=kernels(recorded, torch),
        functions=functions(recorded, cprofile, median, function_shares(recorded)),
        calls=calls(recorded, cprofile),
        call_paths=call_paths(recorded),
        lines=lines(recorded, traced, memory_lines(recorded), _watched_lines(recorded)),
        module_lines=module_lines(recorded, traced),
        memory=memory_rows(recorded),
        memory_owners=memory_owners(recorded),
        peak_holders=peak_holders(recorded),
        regions=regions(recorded, torch),
        ranges=ranges(recorded, selections.get("nvtx")),
        watch=watch_rows(recorded),
        outliers=outlier_rows(recorded, clean),
        flops=flop_rows(recorded, counters, torch),
        threads=threads(recorded, clean),
        launches=launches(recorded, torch),
        gaps=gaps(recorded, torch),
        artifacts=records(recorded.frames["artifacts"]),
    )
    rows.update(nsys_tables(recorded, rows["modules"], torch))
    add_python_cost(rows["modules"], rows["operators"])
    sources.update(flop_sources(counters))
    sources.update(peak_sources(recorded))
    tables = {}
    for name, table in rows.items():
        empty = dict.fromkeys(REPORT[name].names)
        tables[name] = [{**empty, **row} for row in table]
    return tables, sources


def _watched_lines(recorded: Recorded) -> dict[tuple[str, int], dict[str, Any]]:
    """The watch's columns of `lines`, by file and line."""
    columns: dict[tuple[str, int], dict[str, Any]] = {}
    for phase, column in (("startup", "startup_share"), ("step", "watch_share")):
        for key, (share, _) in line_shares(recorded, phase).items():
            columns.setdefault(key, {})[column] = share
    for key, (_, grown) in line_shares(recorded).items():
        columns.setdefault(key, {})["watch_bytes"] = grown
    frames = recorded.frames["watch_frames"]
    texts = frames[frames["source"].notna()][["file", "line", "source"]].drop_duplicates()
    for file, line, source in texts.itertuples(index=False):
        if (file, line) in columns:
            columns[file, line]["source"] = source
    return columns


def _watch(recorded: Recorded, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """How much the watch has seen, and whether it agrees with cProfile; None without a watch."""
    if not len(recorded.frames["watch_samples"]):
        return None
    said = summary(recorded, rows)
    said["rank_functions"] = said.pop("compared_functions")
    return {**said, "outlier_rule": RULE}


def _step_rows(recorded: Recorded) -> list[dict[str, Any]]:
    columns = {"step": "index"}
    frame = recorded.frames["steps"].sort_values("step", kind="stable").rename(columns=columns)
    kept = [*REPORT["steps"].names, "flags"]
    return records(frame[kept])


def _notes(recorded: Recorded) -> list[dict[str, str]]:
    frame, layers = recorded.frames["notes"], recorded.frames["layers"]
    seen = layers.loc[layers["status"] == "recorded", "name"].tolist()
    if "watch" in seen:
        # It is asked again and again, and had seen nothing yet when it said so.
        frame = frame[(frame["layer"] != "watch") | (frame["slug"] != "empty-capture")]
    notes = frame.to_dict("records")
    # Each slice may have said the same.
    told = dict.fromkeys((str(row["slug"]), home_relative(str(row["text"]))) for row in notes)
    return [{"slug": slug, "text": text} for slug, text in told]
