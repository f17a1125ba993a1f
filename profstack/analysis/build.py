"""Join what the layers saw into one report."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from statistics import fmean, median
from typing import Literal, cast

from profstack.analysis import (
    flops,
    functions,
    memory,
    modules,
    nsys,
    operators,
    requests,
    threads,
    watch,
)
from profstack.analysis.benchmark import benchmark
from profstack.analysis.clean_steps import Clean, clean_steps, why_no_steps
from profstack.analysis.layers import Selections, layer_rows, probe_effects, select
from profstack.analysis.loops import loop_rows, loop_warnings
from profstack.analysis.roofline import read_peaks, roofline
from profstack.analysis.run_bar import PROFSTACK, run_bar
from profstack.code_owner import place_words
from profstack.environment import __version__
from profstack.errors import RecordingError
from profstack.layer import IMPORT_IT
from profstack.privacy import home_relative
from profstack.storage.folder import TRIALS_FILE, process_folders
from profstack.storage.reader import Recorded, Selection, added, grouped, in_order, known
from profstack.storage.schema import report as schema
from profstack.storage.schema.column import Column
from profstack.storage.schema.facts import SetupFact
from profstack.storage.schema.layer_table import LayerTable
from profstack.storage.schema.recorded import SCHEMA_VERSION
from profstack.storage.schema.rows import NOT_CALIBRATED, ModuleRow
from profstack.storage.schema.trials import TrialReport
from profstack.storage.untrusted import read_json
from profstack.storage.vocabulary import BENCH_FACT, WITH_DATA, launcher_warning
from profstack.units import format_seconds

# -----------------------------------------------------------------------------
# Tables that layers declared themselves, with figures per step.
# -----------------------------------------------------------------------------


def layer_tables(recorded: Recorded, selections: Selections) -> list[schema.LayerTableFacts]:
    """Return every table that a layer of this recording declared, with its rows per step."""
    fields = schema.LayerColumn.__annotations__
    found: list[schema.LayerTableFacts] = []
    for layer, table in recorded.layer_tables.values():
        selection = selections.get(layer) or recorded.select_all(layer)
        columns = [{field: getattr(column, field) for field in fields} for column in table.columns]
        found.append(
            {
                "name": table.name,
                "layer": layer,
                "title": table.title,
                "text": table.text,
                "join": table.join,
                "columns": cast("list[schema.LayerColumn]", columns),
                "rows": _rows(recorded, table, selection),
            }
        )
    return found


def _rows(
    recorded: Recorded, table: LayerTable, selection: Selection | None
) -> list[dict[str, schema.LayerValue]]:
    """Add rows of the selected slices up by their key columns, and divide them by the steps."""
    if selection is None or not selection.steps:
        return []
    found: list[dict[str, schema.LayerValue]] = []
    for key, rows in grouped(recorded.rows(table.name, selection), *table.keys).items():
        row: dict[str, schema.LayerValue] = dict(zip(table.keys, key, strict=True))
        for name in table.figures:
            values = known(rows, name)
            row[name] = selection.per_step(added(values))
            if name in table.largest:
                row[name] = max(values, default=None)
        found.append({column.name: row.get(column.name) for column in table.columns})
    if (order := table.order) is not None:
        known_rows = [row for row in found if row[order] is not None]
        ranked = sorted(known_rows, key=itemgetter(order), reverse=True)
        found = [*ranked, *(row for row in found if row[order] is None)]
    return found


# -----------------------------------------------------------------------------
# Reasons for empty tables, columns and cells of the report, from the declared columns.
# -----------------------------------------------------------------------------

_NO_DEVICE = "no accelerator was in use"
_NOT_SEEN = "nothing was seen of it in this run"


def table_reason(name: str, layers: Iterable[schema.LayerFacts], *, has_device: bool) -> str:
    """Say why a table has no rows, and what to do where a command gives it some."""
    if name.startswith("nsys_"):
        return "Nsight Systems saw none of it: profstack run --nsys script.py"
    known = {layer["name"]: layer for layer in layers}
    given_by = schema.REPORT[name].given_by
    if given_by is not None and (lacking := _why_lacking(given_by, known)) is not None:
        command = known[given_by].get("command") if given_by in known else None
        return f"{lacking}; next: {command}" if command else lacking
    if name in ("kernels", "gaps") and not has_device:
        return _NO_DEVICE
    if name == "collectives":
        return "no collective was seen: only backends such as gloo and NCCL name theirs"
    return _NOT_SEEN


def columns_reason(
    nulls: Sequence[Nulls],
    layers: Iterable[schema.LayerFacts],
    *,
    has_device: bool,
    few_samples: str | None = None,
) -> dict[str, str]:
    """Say why a column is null in every row of a table that has rows (`nulls_of`), by its name.

    `few_samples` says that the watch has too few samples of steps to give shares of them.
    """
    known = {layer["name"]: layer for layer in layers}
    found = {
        f"{name}.{column.name}": _reason(name, column, known, has_device)
        for name, column, missing, count in nulls
        if missing == count
    }
    for key in ("functions.watch_share", "lines.watch_share"):
        if few_samples is not None and key in found:
            found[key] = few_samples
    return found


def cells_reason(nulls: Sequence[Nulls]) -> dict[str, str]:
    """Say why single cells are null in a column with figures elsewhere, by `table.column`."""
    return {
        f"{name}.{column.name}": column.cell or "not seen there"
        for name, column, missing, count in nulls
        if 0 < missing < count
    }


# A column of a table with rows: its null cells, and all of its cells.
Nulls = tuple[str, Column, int, int]


def nulls_of(tables: schema.Tables) -> list[Nulls]:
    """Count the null cells of each column of the tables with rows."""
    found = []
    for name, table in schema.REPORT.items():
        rows = cast("Mapping[str, Sequence[Mapping[str, object]]]", tables)[name]
        for column in table.columns if rows else ():
            missing = list(map(itemgetter(column.name), rows)).count(None)
            found.append((name, column, missing, len(rows)))
    return found


def _reason(
    table: str, column: Column, layers: Mapping[str, schema.LayerFacts], has_device: bool
) -> str:
    # An import may be of another machine than the one that the layers ran on.
    if "device" in column.name and not has_device and not table.startswith("nsys_"):
        return _NO_DEVICE
    if column.name == "calibrated_s":
        return NOT_CALIBRATED
    lacking = None if column.needs is None else _why_lacking(column.needs, layers)
    return lacking or column.empty or _NOT_SEEN


def _why_lacking(layer: str, layers: Mapping[str, schema.LayerFacts]) -> str | None:
    """Say why a layer gave nothing; None where it has data."""
    if layer not in layers:
        return f"the layer {layer} was not asked for"
    row = layers[layer]
    if row["status"] in WITH_DATA:
        return None
    because = f": {row['reason']}" if row["reason"] else ""
    return f"the layer {layer} is {row['status']}{because}"


def build_report(recorded: Recorded) -> schema.Report:
    """Join everything that `report.json` holds, without verdict and findings."""
    clean = clean_steps(recorded)
    selections = select(recorded)
    # Calibrated times in the tables need the factors that this sets in the selections.
    effects = probe_effects(recorded, clean, selections)
    torch = selections["torch"]
    counters, differing = flops.of_timed_steps(recorded, flops.counted(recorded), torch)
    tables, sources = _tables(recorded, clean, selections, counters)
    nulls = nulls_of(tables)
    record, shaped = flops.of_record(counters), counters.get(flops.SHAPES)
    layers = layer_rows(recorded, clean, selections)
    for layer in layers:
        layer["reason"] = layer["reason"] and flops.limited(layer["reason"], record)
    run = recorded.run
    environment = {**recorded.facts.get("environment", {}), **run.get("environment", {})}
    has_device = environment.get("device") not in (None, "cpu")
    few, held_at_peak = watch.few_samples(recorded), memory.peak_facts(recorded)
    unlike = flops.unlike_clean(recorded, clean, record)
    median_s, peaks = clean.median_s, read_peaks(recorded.folder)
    run_parts, undivided = run_bar(recorded, clean)
    step = _step(recorded, clean)
    mark = _benchmark(recorded, clean, environment, tables["modules"])
    return {
        "schema_version": SCHEMA_VERSION,
        "profstack_version": __version__,
        "script": run.get("script"),
        "argv": run.get("argv", []),
        "status": status(recorded),
        "status_reason": status_reason(recorded),
        "run": {**_run(recorded), "items_per_s": _run_rate(recorded, mark, run_parts)},
        "environment": {"python": None, "torch": None, **environment},
        "step": step,
        "slices": _slices(recorded),
        "benchmark": mark,
        "probe_effect": effects,
        "layers": layers,
        "verdict": None,
        "requests": requests.requests(recorded, clean),
        "tokens": requests.tokens(recorded, clean),
        "run_bar": run_parts,
        "run_bar_reason": undivided,
        "step_bar": None,
        "findings": [],
        "roofline": roofline(
            recorded, torch, median_s, record, shaped, unlike, tables["modules"], peaks
        ),
        "tables": tables,
        "columns_reason": columns_reason(nulls, layers, has_device=has_device, few_samples=few),
        "cells_reason": cells_reason(nulls),
        "columns_source": sources,
        "watch": watch.watch_facts(recorded, tables["functions"])
        if recorded.count("watch_samples")
        else None,
        "processes": threads.processes(recorded, clean, tables["threads"], has_device=has_device),
        "attribution": modules.attribution(recorded, torch, median_s, held_at_peak),
        "launching": operators.launch_means(recorded, torch),
        "layer_tables": layer_tables(recorded, selections),
        "nsys": nsys.nsys_facts(recorded, torch),
        "imports": recorded.imports,
        "ranks": None,
        "tried": _tried(recorded.folder),
        "setup": setup(recorded),
        "sources": memory.source_texts(recorded),
        "warnings": [
            *_run_warnings(recorded, clean, selections),
            *flops.disagreements(counters, recorded.module_paths),
            *nsys.nsys_warnings(recorded, tables["nsys_modules"], torch),
            *_notes(recorded, record),
            *differing,
            *_unlike(unlike),
        ],
    }


def _tried(folder: Path) -> TrialReport | None:
    """Return what `profstack try` has left in the folder; None without a whole file of it."""
    with suppress(FileNotFoundError, RecordingError):
        return cast("TrialReport", read_json(folder / TRIALS_FILE, TrialReport, inside=folder))
    return None


# --- Tables ---------------------------------------------------------------------------------------


def _tables(
    recorded: Recorded, clean: Clean, selections: Selections, counters: Mapping[str, flops.Counted]
) -> tuple[schema.Tables, dict[str, str]]:
    """Return all tables, and the sources of those columns that have several."""
    torch, cprofile = selections["torch"], selections["cprofile"]
    median = clean.median_s
    bytes_of, sources = memory.module_memory(recorded, recorded.select("torch", (("detail",),)))
    sources.update(flops.flop_sources(counters))
    sources.update(memory.peak_sources(recorded))
    traced = recorded.select("torch", (("lines",),))
    shares = watch.function_shares(recorded) if watch.few_samples(recorded) is None else {}
    operator_rows = operators.operators(recorded, torch, median, flops.of_operators(counters))
    module_rows = modules.modules(
        recorded, torch, median, bytes_of, flops.of_record(counters), operator_rows
    )
    held, watched = memory.memory_lines(recorded), watch.watched_lines(recorded)
    steps = in_order(recorded.table("steps"), "step")
    tables: schema.JoinedTables = {
        "steps": schema.table_rows("steps", ({**row, "index": row["step"]} for row in steps)),
        "modules": module_rows,
        "operators": operator_rows,
        "kernels": operators.kernels(recorded, torch),
        "functions": functions.functions(recorded, cprofile, median, shares),
        "calls": functions.calls(recorded, cprofile),
        "lines": memory.lines(recorded, traced, held, watched),
        "module_lines": memory.module_lines(recorded, traced),
        "memory": memory.memory_rows(recorded),
        "memory_owners": memory.memory_owners(recorded),
        "peak_holders": memory.peak_holders(recorded),
        "call_paths": functions.call_paths(recorded),
        "threads": threads.threads(recorded, clean),
        "launches": operators.launches(recorded, torch),
        "gaps": operators.gaps(recorded, torch),
        "collectives": operators.collectives(recorded, torch),
        "regions": operators.regions(recorded, torch),
        "ranges": operators.ranges(recorded, selections.get("nvtx")),
        "watch": watch.watch_rows(recorded),
        "outliers": watch.outlier_rows(recorded, clean),
        "flops": flops.flop_rows(recorded, counters, torch),
        "artifacts": schema.table_rows("artifacts", recorded.table("artifacts")),
    }
    alone: schema.RankTables = {"ranks": [], "rank_parts": [], "rank_steps": [], "rank_work": []}
    return {**tables, **nsys.nsys_tables(recorded, module_rows, torch), **alone}, sources


# --- Status: whether all that the recording was made for came to its end --------------------------


def status(recorded: Recorded) -> Literal["complete", "partial", "failed"]:
    """Return `status` of the report."""
    code, in_process = _exit_code(recorded), recorded.run.get("in_process", False)
    has_steps = recorded.count("steps") > 0
    ended = "recording_ended" in recorded.facts
    bench: schema.BenchResult | None = recorded.facts.get(BENCH_FACT)
    if bench is not None:
        figures = bench["figures"]
        if figures is None:
            return "failed"
        cut_short = bench["problems"] or figures.get("part_problems")
        is_whole = (code == 0 or in_process) and (ended or not has_steps) and not cut_short
        return "complete" if is_whole else "partial"
    if recorded.is_import:
        return "complete"
    if not has_steps and all(row["kind"] != "whole" for row in recorded.table("slices")):
        # The watch may have looked between steps that were not found.
        has_data = any(row["status"] in WITH_DATA for row in recorded.table("layers"))
        return "partial" if has_data else "failed"
    # A session ends while its process goes on.
    is_whole = ended and (code is not None or in_process) and "uncaught" not in recorded.facts
    return "complete" if is_whole else "partial"


def _exit_code(recorded: Recorded) -> object:
    return recorded.run.get("run", {}).get("exit_code")


def status_reason(recorded: Recorded) -> str | None:
    """Say how a run ended that is not complete; None for one that is.

    For a benchmark it says only why there are no figures: all else is among its warnings.
    """
    bench: schema.BenchResult | None = recorded.facts.get(BENCH_FACT)
    if bench is not None:
        if bench["figures"] is not None or not bench["problems"]:
            return None
        problem = re.sub(r"^process \d+: ", "", bench["problems"][0])
        is_end = problem.startswith(("ended", "interrupted"))
        return problem if is_end else f"the target raised {problem}"
    if status(recorded) == "complete":
        return None
    if recorded.facts.get("uncaught") is not None:
        at = recorded.facts.get("uncaught_at")
        where = f" at {place_words(*at)}" if at is not None else ""
        return f"it ended with {recorded.facts['uncaught']}{where}"
    number = recorded.run.get("run", {}).get("signal")
    if isinstance(number, int):
        return f"it was ended by {_signal_name(number)}"
    code = _exit_code(recorded)
    if code is None:
        in_process = recorded.run.get("in_process")
        return None if in_process else "profstack itself was ended before the script"
    had_torch = recorded.facts.get("environment", {}).get("torch") is not None
    if had_torch and "recording_ended" not in recorded.facts:
        return f"it ended with exit code {code} at once, as by os._exit: what was open is lost"
    if code:
        return f"it ended with exit code {code}"
    return "no step was found" if had_torch else "it never imported torch"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# --- Setup: how the script had set its work up ----------------------------------------------------

_NONE = "no layer saw calls in the first steps: that takes the memory, the flops or the nvtx layer"


def setup(recorded: Recorded) -> schema.Setup:
    """Return the notes on the report's plan, with a reason where there are none.

    `tf32_products` and `tf32_convolutions` say whether numbers stored as float32 are multiplied
    as TF32, None without a CUDA device.
    """
    noted: SetupFact | None = recorded.facts.get(f"setup_{recorded.plan}")
    environment = recorded.facts.get("environment", {})
    found: schema.Setup = {
        "steps": 0 if noted is None else noted["steps"],
        "reason": _NONE if noted is None else noted["failed"],
        "tf32_products": environment.get("tf32_products"),
        "tf32_convolutions": environment.get("tf32_convolutions"),
        "targets": _targets(recorded),
    }
    if noted is None or noted["failed"] is not None:
        return found
    known = cast("schema.Setup", {key: value for key, value in noted.items() if key != "failed"})
    if (repeated := known.get("repeated")) is not None:
        places = {name: _place(repeated[name]) for name in ("first", "again")}
        known["repeated"] = cast("schema.RepeatedFacts", {**repeated, **places})
    known["gathered"] = [
        {**each, "place": _place(each["place"])} for each in known.get("gathered") or ()
    ]
    optimizers: list[schema.OptimizerFacts] = [
        {**each, "place": _place(each["place"])} for each in noted["optimizers"]
    ]
    return {
        **known,
        **found,
        "calls": {**noted["calls"], "place": _place(noted["calls"]["place"])},
        "optimizers": optimizers,
    }


def _targets(recorded: Recorded) -> schema.TargetFacts | None:
    """Return the targets of the losses over most classes; None where none were seen."""
    numbers = {row["slice"] for row in recorded.slices}
    rows = [row for row in recorded.table("loss_targets") if row["slice"] in numbers]
    classes = max((row["classes"] for row in rows), default=None)
    if classes is None:
        return None
    rows = [row for row in rows if row["classes"] == classes]
    return {
        "classes": classes,
        "per_call": sorted({row["targets"] for row in rows}),
        "targets": sum(row["targets"] * row["calls"] for row in rows),
        "ignored": sum(row["ignored"] for row in rows),
        "ignored_index": rows[0]["ignored_index"],
    }


def _place(place: schema.Place | None) -> schema.Place | None:
    """Return the place with its file named as in all tables."""
    return None if place is None else {**place, "file": home_relative(place["file"])}


# --- Steps and slices -----------------------------------------------------------------------------


def _run(recorded: Recorded) -> schema.Run:
    """Return the facts of the run; null if the parent process was killed before writing them."""
    facts = recorded.run.get("run", {})
    empty = dict.fromkeys(schema.Run.__annotations__)
    at = recorded.facts.get("uncaught_at")
    place = None if at is None else {"file": home_relative(at[0]), "line": at[1]}
    found = {**empty, "id": recorded.folder.resolve().name, **facts, "ended_at": place}
    return cast("schema.Run", found)


def _run_rate(
    recorded: Recorded, mark: schema.Benchmark, parts: list[schema.RunPart]
) -> float | None:
    """Return items of the steps of all loops of the phase over the run's time, without profstack's.

    Steps whose batch was not read count as the mean of the others.
    """
    batches = known(recorded.steps, "batch_size")
    if mark["items_per_s"] is None or not batches or not parts:
        return None
    own_s = sum(part["wall_s"] for part in parts if part["part"] != PROFSTACK)
    by_plan = grouped(recorded.table("steps"), "plan")
    items = sum(
        count * fmean(known(by_plan.get((plan,), ()), "batch_size") or batches)
        for plan, count in recorded.plan_steps.items()
        if recorded.loop_facts(plan).get("phase", recorded.phase) == recorded.phase
    )
    return items / own_s if own_s > 0 else None


def _step(recorded: Recorded, clean: Clean) -> schema.StepFacts:
    counts: dict[str, int] | None = recorded.facts.get("counts_by_phase")
    if counts is None:
        # A killed run wrote no final count: the steps of its slices are counted. Those that several
        # layers share have a row each.
        spans = {
            (row["phase"], row["first_step"]): row["steps"]
            for row in recorded.table("slices")
            if row["steps"] and row["phase"] is not None
        }
        summed: Counter[str] = Counter()
        for (phase, _), steps in spans.items():
            summed[phase] += steps
        counts = dict(sorted(summed.items()))
    batches = Counter(known(recorded.steps, "batch_size"))
    shapes = Counter(known(recorded.steps, "shape"))
    count = counts.get(recorded.phase, 0) if recorded.phase else 0
    loops = loop_rows(recorded)
    if len(loops) > 1:
        count = next((row["steps"] for row in loops if row["reported"]), count)
    is_script = clean.bench is None and not recorded.is_import
    return {
        "rule": recorded.rule,
        "count": count,
        "phase": recorded.phase,
        "counts_by_phase": counts,
        # Of several that are as common it is the smallest.
        "batch_size": max(sorted(batches), key=batches.__getitem__, default=None),
        "shapes": [shape for shape, _ in shapes.most_common(20)],
        "loops": loops,
        "reason": why_no_steps(recorded) if is_script else None,
    }


def _slices(recorded: Recorded) -> list[schema.SliceFacts]:
    # A slow one that was kept alone is not as the others of its slice.
    usual = (row for row in recorded.table("steps") if "slow" not in row["flags"])
    steps, rows = grouped(usual, "slice"), []
    for row in in_order(recorded.table("slices"), "slice"):
        times = known(steps.get((row["slice"],), ()), "wall_s")
        facts = {name: value for name, value in row.items() if name != "slice"}
        shared_s = row["wall_s"] if row["mode"] == "shared" else None
        facts |= {"index": row["slice"], "step_median_s": median(times) if times else shared_s}
        rows.append(cast("schema.SliceFacts", facts))
    return rows


def _benchmark(
    recorded: Recorded,
    clean: Clean,
    environment: Mapping[str, object],
    module_rows: Sequence[ModuleRow],
) -> schema.Benchmark:
    """Return the clean figures.

    A run has items per second only if one call of one model takes in a step's whole batch; the
    batch size of a benchmark is read from the inputs of the call itself, or stated.
    """
    figures = benchmark(recorded, clean, environment)
    if recorded.is_import:
        figures["warnings"] = []
    if clean.bench is not None:
        return figures
    calls = [
        row["calls"]
        for row in module_rows
        if row["depth"] == 0 and row["parameters"] and row["calls"] is not None
    ]
    if figures["items_per_s"] is not None and any(count > 1.01 for count in calls):
        figures["items_per_s"] = None
        figures["warnings"].append(
            f"no items per second: a step calls its model {max(calls):.3g} times, and the batch "
            "size is known of one call"
        )
    return figures


# --- Warnings -------------------------------------------------------------------------------------


def _run_warnings(
    recorded: Recorded, clean: Clean, selections: Selections
) -> list[schema.ReportWarning]:
    """Warn of a launcher, an error with a remedy, the clean steps, and slices with evaluation."""
    warnings: list[schema.ReportWarning] = []
    if (remedy := recorded.facts.get("remedy")) is not None:
        warnings.append({"slug": "undefined-profile", "text": remedy})
    launcher = launcher_warning(recorded.run.get("script"))
    if launcher is not None and not process_folders(recorded.folder):
        warnings.append({"slug": "launcher", "text": launcher})
    if (started := process_folders(recorded.folder)) and len(recorded.steps):
        names = ", ".join(home.name for home in started)
        text = f"processes that the script started have pages of their own: {names}"
        warnings.append({"slug": "children", "text": text})
    if recorded.is_import:
        warnings += _of_profiler(recorded)
    else:
        warnings += [*loop_warnings(recorded, loop_rows(recorded)), *clean.warnings]
    if paused := recorded.paused_steps:
        step, more = paused[0], f" ({len(paused)} such steps)" if len(paused) > 1 else ""
        text = (
            f"step {step['step']}, which a layer watched, took {format_seconds(step['wall_s'])}"
            f"{more}: such pauses are no part of the clean times; it is listed among the "
            "outliers"
        )
        warnings.append({"slug": "pauses", "text": text})
    for layer, selection in selections.items():
        if selection is not None and selection.mixed:
            text = (
                f"every slice of {layer} holds steps in which the script evaluated its model: "
                "its figures are of training and evaluation together"
            )
            warnings.append({"slug": "evaluation-in-slice", "text": text})
    return warnings


def _of_profiler(recorded: Recorded) -> list[schema.ReportWarning]:
    """Warn that the steps of an import had a profiler on them; nothing without steps."""
    if not recorded.steps:
        return []
    text = (
        "all times are of steps under the profiler that wrote the trace: it makes Python and small "
        "operators slower than others, and no step is a clean one; 'profstack run' measures both"
    )
    return [{"slug": "profiled-steps", "text": text}]


def _unlike(why: str | None) -> list[schema.ReportWarning]:
    """Warn that the clean steps are not known to have done the work that was counted."""
    if why is None:
        return []
    text = (
        f"{why}. There is no FLOP/s of the step, and calibrated times are the shares of the steps "
        "that the torch layer timed"
    )
    return [{"slug": "clean-steps-differ", "text": text}]


def _notes(recorded: Recorded, record: flops.Counted | None) -> list[schema.ReportWarning]:
    """Return the notes of all layers, each once: several slices may have written the same.

    Those that the counter of record contradicts are left out.
    """
    notes = recorded.table("notes")
    status = {row["name"]: row["status"] for row in recorded.table("layers")}
    if status.get("watch") == "recorded":
        # The watch was asked again and again, and had seen nothing yet when it said so.
        is_over = ("watch", "empty-capture")
        notes = [row for row in notes if (row["layer"], row["slug"]) != is_over]
    # The import that a note asks for has been done.
    done = "" if nsys.nsys_fact(recorded) is None else IMPORT_IT
    texts = ((row["slug"], row["text"].removesuffix(done)) for row in notes)
    once = dict.fromkeys((slug, home_relative(text)) for slug, text in texts)
    known = ((slug, text) for slug, text in once if flops.limited(text, record) == text)
    return [{"slug": slug, "text": text} for slug, text in known]
