"""The part `benchmark` of the report: by a run's clean steps, or a benchmark's own samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from profstack.benchmark import doubts
from profstack.benchmark.conditions import GC_ON
from profstack.benchmark.figures import by_shape
from profstack.benchmark.statistics import Summary, summarize
from profstack.benchmark.subject import READ
from profstack.merge.cleansteps import Clean, times_of
from profstack.merge.nosteps import why_no_steps
from profstack.merge.recorded import Recorded, nullable

# The figures of the report's `benchmark`; those that only `profstack bench` has are null of a run.
_FIGURES = (
    "mode clock n samples_s counted_steps warmup_steps first_step_s first_step_layer median_s "
    "iqr_s mean_s std_s min_s p90_s p99_s ci95_low_s ci95_high_s cpu_median_s cpu_mean_s "
    "cpu_wall_s cores_busy cpu_reason host_median_s device_median_s autocorrelation drift "
    "outliers steps_per_s items_per_s "
    "between_process target initialisation_s warmup_s warmup_reason stopped_by calls_per_sample "
    "garbage batch_size batch_size_is gradients training modes_note synchronised_median_s "
    "synchronised_ci95_low_s synchronised_ci95_high_s pipelined_median_s pipelined_ci95_low_s "
    "pipelined_ci95_high_s device_state"
)
_LISTS = "by_shape mistakes ablation throughput throughput_limits compare warnings"
# Why none is clean where every slice had its turn, so that more steps would not help.
NONE_CLEAN = "each held an evaluation of the model, or nothing tells when it began and ended"
# What the report has under other names, or in words, of the figures of `profstack bench`; medians
# of CPU times are in those of old recordings.
_INNER = ("part_problems", "warmup_settled", "target_interval", "training_layers", "cpu_median_s")
# CPU time above that of all cores by more than this is no error at the edges of the steps.
_BEYOND_ALL = 1.05


def benchmark(
    recorded: Recorded, clean: Clean, environment: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The part `benchmark` of the report; every figure null with a warning where none is."""
    result: dict[str, Any] = dict.fromkeys(_FIGURES.split())
    result.update((name, []) for name in _LISTS.split())
    if clean.bench is not None:
        return _of_bench(result, recorded, clean, environment or {})
    steps = clean.steps
    mode = "synchronised" if recorded.facts.get("synchronised") else "pipelined"
    result.update(mode=mode, clock=clean.clock, n=len(steps), samples_s=[], counted_steps=[])
    result["garbage"] = GC_ON
    first = recorded.steps["wall_s"].iloc[:1]
    result["first_step_s"] = nullable(first.iloc[0]) if len(first) else None
    result["first_step_layer"] = _layer_of_first(recorded)
    if not len(steps):
        result["warnings"].append(_why_none_clean(recorded))
        return result
    times = times_of(steps, clean.clock)
    summary = summarize(times.tolist())
    result.update(_figures(recorded, clean, times, summary), warmup_steps=clean.warmup_steps)
    _add_cores(result, environment or {})
    result.update(
        {
            f"{mode}_median_s": summary.median,
            f"{mode}_ci95_low_s": summary.ci95_low,
            f"{mode}_ci95_high_s": summary.ci95_high,
            "by_shape": _by_shape(steps, times),
        }
    )
    result["warnings"] += doubts.of_run(result, environment or {}, watched=_watched(recorded))
    return result


def _why_none_clean(recorded: Recorded) -> str:
    """Why there is no clean step, and what would help."""
    if recorded.rule == "whole":
        return "the workload was measured whole, under observation: no clean time can be given"
    missing = why_no_steps(recorded)
    if missing is not None:
        return missing
    if (recorded.slices["kind"] == "watch").any():
        return f"there is no clean step: {NONE_CLEAN}"
    return "no clean step was left after warm-up: let the script run more steps"


def _of_bench(
    result: dict[str, Any], recorded: Recorded, clean: Clean, environment: Mapping[str, Any]
) -> dict[str, Any]:
    """What `profstack bench` measured before any layer, and what speaks against it."""
    fact: Mapping[str, Any] = clean.bench or {}
    problems = list(fact["problems"])
    figures = fact["figures"]
    if figures is None:
        result.update(n=0, samples_s=[], counted_steps=[])
        result["warnings"] += problems or ["nothing was measured"]
        return result
    result.update({key: value for key, value in figures.items() if key not in _INNER})
    _add_cores(result, environment)
    # The samples are no steps of the recording: its steps are those of the layers, after them.
    result["counted_steps"] = []
    result["warnings"] += [
        *problems,
        *figures.get("part_problems", []),
        *doubts.of_bench(figures, environment, watched=_watched(recorded)),
        *doubts.of_layers(figures["median_s"], clean.session_median_s),
    ]
    return result


def _watched(recorded: Recorded) -> bool:
    """Whether the watch was on."""
    layers = recorded.frames["layers"]
    return bool((layers.loc[layers["name"] == "watch", "status"] == "recorded").any())


def _by_shape(steps: pd.DataFrame, times: pd.Series[float]) -> list[dict[str, Any]]:
    """Clean step times by the shape of the step's first input, which short steps do not tell."""
    return by_shape({str(shape): of.tolist() for shape, of in times.groupby(steps["shape"])})


def _layer_of_first(recorded: Recorded) -> str | None:
    """The layer that watched the first step, whose time is then no clean one."""
    numbers = recorded.steps["slice"].iloc[:1]
    slices = recorded.slices
    layers = slices[slices["slice"].isin(numbers)]["layer"].dropna()
    return str(layers.iloc[0]) if len(layers) else None


def _cpu_and_wall(recorded: Recorded, steps: pd.DataFrame) -> dict[str, float | None]:
    """CPU time of a clean step, and wall time of the same: means over all that is known.

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
        return {"cpu_mean_s": None, "cpu_wall_s": None}
    sums = known[["cpu_s", "wall_s"]].sum() / count
    return {"cpu_mean_s": float(sums["cpu_s"]), "cpu_wall_s": float(sums["wall_s"])}


def _add_cores(result: dict[str, Any], environment: Mapping[str, Any]) -> None:
    """How many cores were busy on average, never more than there are.

    At both ends of a series of steps the CPU clock is off by up to a tick for each other core.
    """
    cpu_s, wall_s = result.get("cpu_mean_s"), result["cpu_wall_s"]
    if cpu_s is None or not wall_s:
        result.update(cpu_mean_s=None, cpu_wall_s=None)
        result["cpu_reason"] = "no CPU time of clean steps was read"
        return
    cores = environment.get("usable_cores") or environment.get("logical_cores") or math.inf
    if cpu_s > _BEYOND_ALL * cores * wall_s:
        result.update(cpu_mean_s=None, cpu_wall_s=None)
        result["cpu_reason"] = (
            f"the CPU clock tells more time than {cores} cores have: it counts other threads in "
            "the scheduler's ticks, too coarse for so few and short steps"
        )
        return
    result["cpu_mean_s"] = min(cpu_s, cores * wall_s)
    result["cores_busy"] = min(cpu_s / wall_s, cores)


def _figures(
    recorded: Recorded, clean: Clean, times: pd.Series[float], summary: Summary
) -> dict[str, Any]:
    """What the clean steps say."""
    steps = clean.steps
    # Of very short steps the clean slices do not tell it: the others of the plan do, but for
    # those of the warm-up, which may have had smaller or larger batches.
    warm = recorded.steps[recorded.steps["step"] >= clean.warm_from]
    items = steps["batch_size"].dropna()
    items = items if len(items) else warm["batch_size"].dropna()
    batch = float(items.median()) if len(items) else None
    counted = steps["batch_size"].dropna()
    return {
        "samples_s": times.tolist(),
        "counted_steps": steps["step"].tolist(),
        **summary.columns(float(counted.mean()) if len(counted) else batch),
        "batch_size": int(batch) if batch else None,
        "batch_size_is": READ if batch else None,
        **_cpu_and_wall(recorded, steps),
        "host_median_s": nullable(steps["wall_s"].median()),
        "device_median_s": nullable(steps["device_s"].median()),
    }
