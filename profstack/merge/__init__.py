"""Joins what the layers saw into one report: the only place that knows keys across tools."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from profstack import __version__, registry
from profstack.merge.benchmark import Clean, benchmark, clean_steps, probe_effect
from profstack.merge.functions import PROFILED, calls, functions
from profstack.merge.modules import TIMED, kernels, lines, modules, operators
from profstack.merge.recorded import Recorded, Selection, nullable
from profstack.privacy import home_relative
from profstack.schema import REPORT, SCHEMA_VERSION

_WATCHED = {"torch": TIMED, "cprofile": PROFILED}
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
_LATER = "profstack {version} has no layer for it yet"


def build_report(folder: Path) -> dict[str, Any]:
    """Everything `report.json` holds, from the recording alone.

    Raises RecordingError where `folder` is no recording.
    """
    recorded = Recorded(folder)
    run = _read_run(folder)
    clean = clean_steps(recorded)
    selections = {layer: recorded.select(layer, modes) for layer, modes in _WATCHED.items()}
    effects = _probe_effects(recorded, clean, selections)
    tables = _tables(recorded, clean, selections)
    warnings = [*clean.warnings, *_mixed(selections), *_notes(recorded)]
    return {
        "schema_version": SCHEMA_VERSION,
        "profstack_version": __version__,
        "script": run.get("script"),
        "argv": run.get("argv", []),
        "status": _status(recorded, run),
        "run": {**dict.fromkeys(_RUN), "id": folder.resolve().name, **run.get("run", {})},
        "environment": {
            "python": None,
            "torch": None,
            **recorded.facts.get("environment", {}),
            **run.get("environment", {}),
        },
        "step": _step(recorded, clean),
        "slices": _slices(recorded),
        "benchmark": _with_items(benchmark(recorded, clean), tables["modules"]),
        "probe_effect": effects,
        "layers": _layers(recorded, run, selections),
        "verdict": None,
        "findings": [],
        "roofline": {"peaks": {}, "points": []},
        "tables": tables,
        "columns_reason": _columns_reason(tables),
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
    if not len(recorded.frames["steps"]):
        return "failed"
    ended = "recording_ended" in recorded.facts
    clean_exit = run.get("run", {}).get("exit_code") is not None
    cut_short = "uncaught" in recorded.facts
    return "complete" if ended and clean_exit and not cut_short else "partial"


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


def _with_items(figures: dict[str, Any], modules: list[dict[str, Any]]) -> dict[str, Any]:
    """Items per second stand only where one call of one model takes in a step's whole batch."""
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


def _probe_effects(
    recorded: Recorded, clean: Clean, selections: dict[str, Selection | None]
) -> list[dict[str, Any]]:
    effects = []
    for layer, selection in selections.items():
        if selection is None:
            continue
        effect = probe_effect(recorded, clean, layer, selection)
        selection.factor = effect["factor"]
        effects.append(effect)
    return effects


def _layers(
    recorded: Recorded, run: dict[str, Any], selections: dict[str, Selection | None]
) -> list[dict[str, Any]]:
    artifacts = [
        {str(key): nullable(value) for key, value in row.items()}
        for row in recorded.frames["artifacts"].to_dict("records")
    ]
    slices = recorded.frames["slices"]
    rows = []
    for row in recorded.frames["layers"].to_dict("records"):
        layer = {str(key): nullable(value) for key, value in row.items()}
        own = slices[slices["layer"] == layer["name"]]
        description = registry.load(layer["name"]).description
        selection = selections.get(layer["name"])
        layer.update(
            technique=description.technique,
            tool=description.tool,
            measures=description.measures,
            does_not_measure=description.does_not_measure,
            usual_slowdown=description.usual_slowdown,
            conflicts=description.conflicts,
            steps=int(own["steps"].sum()),
            stop_s=nullable(own["stop_s"].sum()) if len(own) else None,
            artifacts=[item for item in artifacts if item["layer"] == layer["name"]],
            audit=_audit(own, selection),
            command=None,
        )
        if layer["status"] == "empty":
            layer["reason"] = layer["reason"] or _why_empty(recorded)
            layer["command"] = _command(run, layer["name"])
        if layer["reason"]:
            layer["reason"] = home_relative(layer["reason"])
        rows.append(layer)
    return rows


def _audit(own: Any, selection: Selection | None) -> list[str]:
    if selection is None:
        return []
    lines = [f"{selection.steps} steps in {len(selection.slices)} slices ({selection.mode})"]
    others = own[~own["slice"].isin(selection.slices)]
    for mode, group in others.groupby("mode"):
        lines.append(f"{int(group['steps'].sum())} more in slices of mode {mode}")
    return lines


def _why_empty(recorded: Recorded) -> str:
    count = len(recorded.frames["steps"])
    if not count:
        return "no step was found in the script"
    steps = "1 step" if count == 1 else f"{count} steps"
    return f"the script ended after {steps}, before this layer's turn came"


def _command(run: dict[str, Any], layer: str) -> str | None:
    """The command that fills an empty layer: the same script measured whole."""
    target = run.get("argv")
    if not target:
        return None
    # The same steps would leave it empty again; measured whole it has data.
    return shlex.join(["profstack", "run", "--step-by", "none", "--layers", layer, *target])


def _tables(
    recorded: Recorded, clean: Clean, selections: dict[str, Selection | None]
) -> dict[str, list[dict[str, Any]]]:
    torch, cprofile = selections["torch"], selections["cprofile"]
    detail = recorded.select("torch", (("detail",),))
    traced = recorded.select("torch", (("lines",),))
    median = clean.median_s
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in REPORT}
    rows.update(
        steps=_step_rows(recorded),
        modules=modules(recorded, torch, detail, median),
        operators=operators(recorded, torch, median),
        kernels=kernels(recorded, torch),
        functions=functions(recorded, cprofile, median),
        calls=calls(recorded, cprofile),
        lines=lines(recorded, traced),
        memory=_plain(recorded.frames["memory"]),
        artifacts=_plain(recorded.frames["artifacts"]),
    )
    return {
        name: [{**dict.fromkeys(REPORT[name].names), **row} for row in table]
        for name, table in rows.items()
    }


def _step_rows(recorded: Recorded) -> list[dict[str, Any]]:
    columns = {"step": "index"}
    frame = recorded.frames["steps"].sort_values("step", kind="stable").rename(columns=columns)
    kept = [*REPORT["steps"].names, "flags"]
    return _plain(frame[kept])


def _plain(frame: Any) -> list[dict[str, Any]]:
    return [
        {str(key): nullable(value) for key, value in row.items()}
        for row in frame.to_dict("records")
    ]


def _notes(recorded: Recorded) -> list[dict[str, str]]:
    notes = recorded.frames["notes"].to_dict("records")
    # Each slice may have said the same.
    told = dict.fromkeys((str(row["slug"]), home_relative(str(row["text"]))) for row in notes)
    return [{"slug": slug, "text": text} for slug, text in told]


def _columns_reason(tables: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """Why a column is null in every row of a table that has rows."""
    reasons = {}
    later = _LATER.format(version=__version__)
    for name, rows in tables.items():
        for column in REPORT[name].names if rows else ():
            if any(row[column] is not None for row in rows):
                continue
            if "device" in column:
                reasons[f"{name}.{column}"] = "no accelerator was in use"
            elif column == "calibrated_s":
                reasons[f"{name}.{column}"] = (
                    "the slice had fewer than 3 steps or a probe effect above 3, "
                    "or there was no clean time"
                )
            else:
                reasons[f"{name}.{column}"] = later
    return reasons
