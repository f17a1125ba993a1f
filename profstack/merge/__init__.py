"""Joins what the layers saw into one report: the only place that knows keys across tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from profstack import __version__
from profstack.merge.attribution import attribution
from profstack.merge.benchmark import benchmark
from profstack.merge.cleansteps import Clean, clean_steps
from profstack.merge.disagreements import disagreements
from profstack.merge.flops import SHAPES, Counted, counted, of_record
from profstack.merge.flopsteps import of_timed_steps, unlike_clean
from profstack.merge.launches import launch_means
from profstack.merge.layers import layer_rows, probe_effects, select
from profstack.merge.lines import source_texts
from profstack.merge.machinepeaks import read_peaks
from profstack.merge.modules import module_paths
from profstack.merge.nosteps import why_no_steps
from profstack.merge.nsys import is_import_alone, nsys_fact, nsys_warnings
from profstack.merge.outliers import RULE
from profstack.merge.peak import peak_facts
from profstack.merge.reasons import cells_reason, columns_reason
from profstack.merge.recorded import Recorded, Selection, nullable
from profstack.merge.roofline import roofline
from profstack.merge.setup import setup
from profstack.merge.status import status, status_reason
from profstack.merge.tables import report_tables
from profstack.merge.threads import processes
from profstack.merge.watch import few_samples, summary
from profstack.privacy import home_relative
from profstack.registry import IMPORT_IT
from profstack.runfacts import read_run
from profstack.schema import SCHEMA_VERSION
from profstack.target import launcher_warning

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
    run = read_run(folder)
    clean = clean_steps(recorded)
    selections = select(recorded)
    # What the tables call calibrated rests on the factors that the selections learn here.
    effects = probe_effects(recorded, clean, selections)
    counters, differing = of_timed_steps(recorded, counted(recorded), selections["torch"])
    tables, sources = report_tables(recorded, clean, selections, counters)
    layers = layer_rows(recorded, clean, run, selections)
    environment = {**recorded.facts.get("environment", {}), **run.get("environment", {})}
    has_device = environment.get("device") not in (None, "cpu")
    timed = (recorded, selections["torch"], clean.median_s)
    record = of_record(counters)
    unlike = unlike_clean(recorded, clean, record)
    counts = (record, counters.get(SHAPES), unlike)
    return {
        "schema_version": SCHEMA_VERSION,
        "profstack_version": __version__,
        "script": run.get("script"),
        "argv": run.get("argv", []),
        "status": status(recorded, run),
        "status_reason": status_reason(recorded, run),
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
        "roofline": roofline(*timed, *counts, tables["modules"], read_peaks(folder)),
        "tables": tables,
        "columns_reason": columns_reason(
            tables, layers, has_device=has_device, few_samples=few_samples(recorded)
        ),
        "cells_reason": cells_reason(tables),
        "columns_source": sources,
        "watch": _watch(recorded, tables["functions"]),
        "processes": processes(recorded, clean, tables["threads"], has_device=has_device),
        "attribution": attribution(*timed, peak_facts(recorded)),
        "launching": launch_means(recorded, selections["torch"]),
        "nsys": nsys_fact(recorded),
        "setup": setup(recorded),
        "sources": source_texts(recorded),
        "warnings": [
            *_launcher(run.get("script")),
            *_warnings(recorded, clean, selections, counters, tables["nsys_modules"]),
            *differing,
            *_unlike(unlike),
        ],
    }


def _warnings(
    recorded: Recorded,
    clean: Clean,
    selections: dict[str, Selection | None],
    counters: dict[str, Counted],
    nsys_modules: list[dict[str, Any]],
) -> list[dict[str, str]]:
    """What speaks against the figures, from all that was joined."""
    return [
        # Of a run that is not in the recording there is no warm-up to miss.
        *([] if is_import_alone(recorded) else clean.warnings),
        *_mixed(selections),
        *disagreements(counters, module_paths(recorded)),
        *nsys_warnings(nsys_modules, (nsys_fact(recorded) or {}).get("notes", ())),
        *_notes(recorded),
    ]


def _launcher(script: str | None) -> list[dict[str, str]]:
    """A warning where the run was of a launcher, and the script ran elsewhere."""
    text = launcher_warning(script)
    return [] if text is None else [{"slug": "launcher", "text": text}]


def _unlike(why: str | None) -> list[dict[str, str]]:
    """A warning where the clean steps are not known to have done the work that was counted."""
    if why is None:
        return []
    text = (
        f"{why}. There is no FLOP/s of the step, and calibrated times are the shares of the steps "
        "that the torch layer timed"
    )
    return [{"slug": "clean-steps-differ", "text": text}]


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
        "reason": why_no_steps(recorded) if _of_a_script(recorded, clean) else None,
    }


def _of_a_script(recorded: Recorded, clean: Clean) -> bool:
    """Whether a script was run: neither a callable's benchmark nor a mere import."""
    return clean.bench is None and not is_import_alone(recorded)


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


def _watch(recorded: Recorded, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """How much the watch has seen, and whether it agrees with cProfile; None without a watch."""
    if not len(recorded.frames["watch_samples"]):
        return None
    said = summary(recorded, rows)
    said["rank_functions"] = said.pop("compared_functions")
    return {**said, "outlier_rule": RULE}


def _notes(recorded: Recorded) -> list[dict[str, str]]:
    frame, layers = recorded.frames["notes"], recorded.frames["layers"]
    seen = layers.loc[layers["status"] == "recorded", "name"].tolist()
    if "watch" in seen:
        # It is asked again and again, and had seen nothing yet when it said so.
        frame = frame[(frame["layer"] != "watch") | (frame["slug"] != "empty-capture")]
    if nsys_fact(recorded) is not None:
        # What a note asks for has been done.
        frame = frame.assign(text=frame["text"].str.removesuffix(IMPORT_IT))
    notes = frame.to_dict("records")
    # Each slice may have said the same.
    told = dict.fromkeys((str(row["slug"]), home_relative(str(row["text"]))) for row in notes)
    return [{"slug": slug, "text": text} for slug, text in told]
