"""The part `benchmark` of the report: by a run's clean steps, or a benchmark's own samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import pandas as pd

from profstack.analysis import doubts
from profstack.analysis.clean_steps import Clean, times_of, why_no_steps
from profstack.stats.blocks import GC_ON
from profstack.stats.summary import by_shape, summarize
from profstack.storage.reader import Recorded, nullable
from profstack.storage.schema.report import Benchmark, BenchResult
from profstack.storage.vocabulary import READ

# Reason for no clean step although every slice had its turn, so that more steps would not help.
NONE_CLEAN = "each held an evaluation of the model, or nothing tells when it began and ended"
# Fields of the report that are lists, and are empty where nothing was measured.
_LISTS = (
    *("by_shape", "mistakes", "ablation", "throughput", "throughput_limits", "compare", "warnings"),
    *("samples_s", "counted_steps"),
)
# Figures of `profstack bench` that the report has under other names, or in words; medians of CPU
# times are in old recordings.
_INNER = ("part_problems", "warmup_settled", "target_interval", "training_layers", "cpu_median_s")
# CPU time above that of all cores by more than this is no error at the edges of the steps.
_BEYOND_ALL = 1.05


def benchmark(recorded: Recorded, clean: Clean, environment: Mapping[str, object]) -> Benchmark:
    """Return the part `benchmark` of the report; all figures null, with a warning, if none is."""
    # Of a run the times of a target are left out.
    empty: dict[str, object] = dict.fromkeys(Benchmark.__required_keys__)
    empty.update({name: [] for name in _LISTS}, n=0)
    result = cast("Benchmark", empty)
    if clean.bench is not None:
        _add_bench(result, clean.bench, recorded, clean, environment)
    else:
        _add_run(result, recorded, clean, environment)
    return result


def _add_run(
    result: Benchmark, recorded: Recorded, clean: Clean, environment: Mapping[str, object]
) -> None:
    """Add the figures of a run's clean steps."""
    steps = clean.steps
    first = recorded.steps.iloc[:1]
    slices = recorded.slices
    observers = slices[slices["slice"].isin(first["slice"])]["layer"].dropna()
    result["mode"] = "synchronised" if recorded.facts.get("synchronised") else "pipelined"
    result["clock"] = clean.clock
    result["n"] = len(steps)
    result["garbage"] = GC_ON
    result["first_step_s"] = nullable(first["wall_s"].iloc[0]) if len(first) else None
    result["first_step_layer"] = str(observers.iloc[0]) if len(observers) else None
    if not len(steps):
        result["warnings"].append(_why_none_clean(recorded))
        return
    times = times_of(steps, clean.clock)
    summary = summarize(times.tolist())
    # Very short steps do not tell their batch size in clean slices: the others of the plan do, but
    # for those of the warm-up, which may have had smaller or larger batches.
    warm = recorded.steps[recorded.steps["step"] >= clean.warm_from]["batch_size"].dropna()
    counted = steps["batch_size"].dropna()
    sizes = counted if len(counted) else warm
    batch = float(sizes.median()) if len(sizes) else None
    items = float(counted.mean()) if len(counted) else batch
    result.update(cast("Benchmark", summary.columns(items)))
    result["samples_s"] = times.tolist()
    result["counted_steps"] = steps["step"].tolist()
    result["batch_size"] = int(batch) if batch else None
    result["batch_size_is"] = READ if batch else None
    result["cpu_mean_s"], result["cpu_wall_s"] = _cpu_and_wall(recorded, steps)
    result["host_median_s"] = nullable(steps["wall_s"].median())
    result["device_median_s"] = nullable(steps["device_s"].median())
    result["warmup_steps"] = clean.warmup_steps
    _add_cores(result, environment)
    if result["mode"] == "synchronised":
        result["synchronised_median_s"] = summary.median
        result["synchronised_ci95_low_s"] = summary.ci95_low
        result["synchronised_ci95_high_s"] = summary.ci95_high
    else:
        result["pipelined_median_s"] = summary.median
        result["pipelined_ci95_low_s"] = summary.ci95_low
        result["pipelined_ci95_high_s"] = summary.ci95_high
    # Short steps do not tell the shape of their input.
    groups = times.groupby(steps["shape"])
    by_shapes = by_shape({str(shape): group.tolist() for shape, group in groups})
    result["by_shape"] = by_shapes
    result["warnings"] += doubts.of_run(result, environment, watched=_is_watched(recorded))


def _why_none_clean(recorded: Recorded) -> str:
    """Say why there is no clean step, and what would help."""
    if recorded.rule == "whole":
        return "the workload was measured whole, under observation: no clean time can be given"
    missing = why_no_steps(recorded)
    if missing is not None:
        return missing
    if (recorded.slices["kind"] == "watch").any():
        return f"there is no clean step: {NONE_CLEAN}"
    return "no clean step was left after warm-up: let the script run more steps"


def _add_bench(
    result: Benchmark,
    bench: BenchResult,
    recorded: Recorded,
    clean: Clean,
    environment: Mapping[str, object],
) -> None:
    """Add what `profstack bench` measured before any layer, and the doubts about it."""
    figures = bench["figures"]
    if figures is None:
        result["warnings"] += bench["problems"] or ["nothing was measured"]
        return
    kept = {key: value for key, value in figures.items() if key not in _INNER}
    result.update(cast("Benchmark", kept))
    _add_cores(result, environment)
    # The samples are no steps of the recording: its steps are those of the layers, after them.
    result["counted_steps"] = []
    result["warnings"] += [
        *bench["problems"],
        *figures.get("part_problems", []),
        *doubts.of_bench(figures, environment, watched=_is_watched(recorded)),
        *doubts.of_layers(figures["median_s"] or 0.0, clean.session_median_s),
    ]


def _is_watched(recorded: Recorded) -> bool:
    """Return whether the watch was on."""
    layers = recorded.frames["layers"]
    return bool((layers.loc[layers["name"] == "watch", "status"] == "recorded").any())


def _cpu_and_wall(recorded: Recorded, steps: pd.DataFrame) -> tuple[float | None, float | None]:
    """Return the mean CPU time of a clean step, and the mean wall time of the same steps.

    A single step's is no figure (see `Samples.cpu_and_wall_s`). Reading the CPU clock takes a third
    of a percent of a 0.3 ms step: there it is read per slice.
    """
    known = steps[steps["cpu_s"].notna()]
    count = len(known)
    if not count:
        known = recorded.slices[recorded.slices["slice"].isin(steps["slice"].unique())]
        # A slice that the end of the run has cut short has none.
        known = known[known["cpu_s"].notna()]
        count = int(known["steps"].sum())
    if not count:
        return None, None
    return float(known["cpu_s"].sum() / count), float(known["wall_s"].sum() / count)


def _add_cores(result: Benchmark, environment: Mapping[str, object]) -> None:
    """Add how many cores were busy on average, never more than there are.

    At both ends of a series of steps the CPU clock is off by up to a tick for each other core.
    """
    cpu_s, wall_s = result["cpu_mean_s"], result["cpu_wall_s"]
    known = environment.get("usable_cores") or environment.get("logical_cores")
    cores = known if isinstance(known, (int, float)) else math.inf
    if cpu_s is None or not wall_s:
        result["cpu_reason"] = "no CPU time of clean steps was read"
    elif cpu_s > _BEYOND_ALL * cores * wall_s:
        result["cpu_reason"] = (
            f"the CPU clock tells more time than {cores} cores have: it counts other threads in "
            "the scheduler's ticks, too coarse for so few and short steps"
        )
    else:
        result["cpu_mean_s"] = min(cpu_s, cores * wall_s)
        result["cores_busy"] = min(cpu_s / wall_s, cores)
        return
    result["cpu_mean_s"] = result["cpu_wall_s"] = None
