"""The clean benchmark and the probe effects, from the log of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from profstack.benchfolder import FACT
from profstack.benchmark import doubts
from profstack.benchmark.conditions import GC_ON
from profstack.benchmark.figures import by_shape
from profstack.benchmark.statistics import (
    Ratio,
    Summary,
    compare_before_after,
    ratio_interval,
    summarize,
)
from profstack.benchmark.subject import READ
from profstack.benchmark.warmup import Warmup, detect
from profstack.merge.recorded import Recorded, Selection, nullable

# A change left behind by an observer is worth a warning from this size on.
LASTING = 0.02
FEW_STEPS = doubts.FEW_STEPS
HOST, DEVICE = "host", "device"
# The device's times count if they cover this part of the host's; events of one stream see nothing
# of another stream or device.
_COVERED = 0.9


@dataclass
class Clean:
    """The steps that count as clean, and what was found on the way to them."""

    steps: pd.DataFrame
    warmup_steps: int | None
    settled: bool | None
    warnings: list[dict[str, str]]
    # The first step that is warm.
    warm_from: int = 0
    # What `profstack bench` measured before any layer, if this is its recording.
    bench: Mapping[str, Any] | None = None
    # Whose times count: where the host runs ahead of a device, its own are those of launches.
    clock: str = HOST

    @property
    def median_s(self) -> float | None:
        """Median time of a clean step, the headline; None when there is none.

        A benchmark has its own, of all its samples.
        """
        if self.bench is not None and self.bench["figures"] is not None:
            return float(self.bench["figures"]["median_s"])
        return self.session_median_s

    @property
    def session_median_s(self) -> float | None:
        """Median time of the clean steps between the layers' slices."""
        return float(times_of(self.steps, self.clock).median()) if len(self.steps) else None


def times_of(steps: pd.DataFrame, clock: str) -> pd.Series[float]:
    """Seconds of each step by the host's clock or the device's."""
    return steps["device_s" if clock == DEVICE else "wall_s"].astype(float)


def _clock_of(steps: pd.DataFrame) -> str:
    """Whose times of these steps count, as for `profstack bench` (see `Samples.series`)."""
    device = times_of(steps, DEVICE)
    known = len(steps) > 0 and bool(device.notna().all())
    return DEVICE if known and device.sum() >= _COVERED * steps["wall_s"].sum() else HOST


def clean_steps(recorded: Recorded) -> Clean:
    """Choose the clean steps: unobserved, warm, settled, without evaluation in them."""
    steps = recorded.steps
    warnings: list[dict[str, str]] = []
    unobserved = steps[steps["kind"].isin(["startup", "settle", "clean", "watch"])]
    unobserved = unobserved[(unobserved["wall_s"] > 0) & ~_has(unobserved, "eval", "partial")]
    # Another plan's steps may have gone before: this one's warm-up begins with its own first step.
    first = int(steps["step"].min()) if len(steps) else 0
    numbers = (unobserved["step"] - first).tolist()
    warm = detect(unobserved["wall_s"].tolist(), indices=numbers)
    bench = recorded.facts.get(FACT)
    is_warm = bench is not None and (bench["figures"] or {}).get("warmup_settled")
    if bench is not None and is_warm and not bench.get("layers_apart"):
        # The callable was warm before the first layer was begun, in the same process.
        warm = Warmup(0, 0, True, "it was warm when the layers began")
    clean = steps[(steps["kind"] == "clean") & ~_has(steps, "eval", "partial")]
    clean = clean[clean["step"] >= first + warm.steps]
    settled = clean[~_has(clean, "switch")]
    if len(settled) >= 3:
        clean = settled
    elif len(clean):
        warnings.append(
            {
                "slug": "unsettled-clean-steps",
                "text": f"the run gave {len(clean)} clean steps, each right after an observer: "
                "the clean time is an upper bound; let the script run more steps",
            }
        )
    if not warm.settled:
        warnings.append({"slug": "warmup-unsettled", "text": warm.reason})
    clock = HOST if recorded.facts.get("synchronised") else _clock_of(clean)
    clean, lasting = _before_the_change(recorded, clean, clock)
    if bench is not None and not len(steps):
        # No layer was recorded: there is nothing that could be wrong with their steps.
        warnings, lasting = [], []
    found = warnings + lasting
    return Clean(clean, warm.steps, warm.settled, found, first + warm.steps, bench, clock)


def _has(steps: pd.DataFrame, *words: str) -> pd.Series[bool]:
    """Which steps carry one of the flags."""
    return steps["flags"].map(lambda flags: not set(flags.split()).isdisjoint(words)).astype(bool)


def _before_the_change(
    recorded: Recorded, clean: pd.DataFrame, clock: str
) -> tuple[pd.DataFrame, list[dict[str, str]]]:
    """Where clean slices after an observer differ from those before it, only the earlier count."""
    warnings = []
    for layer in recorded.slices["layer"].dropna().unique():
        observers = recorded.slices[recorded.slices["layer"] == layer]
        observers = observers[observers["round"] > 1]
        before, after = _around(clean, observers["slice"].tolist(), clock)
        change = compare_before_after(before, after)
        if not change.distinguishable or change.factor is None:
            continue
        if abs(change.factor - 1.0) < LASTING:
            continue
        text = (
            f"clean steps after {layer} take {change.factor:.3f} times those before it "
            f"(95 %: {change.low:.3f} to {change.high:.3f})"
        )
        earlier = clean[clean["step"] < observers["first_step"].min()]
        if len(earlier) >= FEW_STEPS:
            clean = earlier
            text += ": only the earlier ones count"
        warnings.append({"slug": "clean-changed", "text": text})
    return clean, warnings


def _around(
    clean: pd.DataFrame, observed: Sequence[int], clock: str
) -> tuple[list[list[float]], list[list[float]]]:
    """Clean step times of the slices right before and right after each observed slice."""
    by_slice = _by_slice(clean, clock)
    before, after = [], []
    for index in observed:
        earlier = [number for number in by_slice if number < index]
        later = [number for number in by_slice if number > index]
        if earlier and later:
            before.append(by_slice[max(earlier)])
            after.append(by_slice[min(later)])
    return before, after


def _by_slice(steps: pd.DataFrame, clock: str) -> dict[int, list[float]]:
    """Step times by the number of their slice."""
    times: dict[int, list[float]] = {}
    seconds = times_of(steps, clock).tolist()
    for index, took_s in zip(steps["slice"].tolist(), seconds, strict=True):
        times.setdefault(int(index), []).append(took_s)
    return times


# A layer that began before the step rule was known saw the first steps: nothing is like them.
DISCOVERY = "discovery"


def probe_effect(
    recorded: Recorded, clean: Clean, layer: str, selection: Selection
) -> dict[str, Any]:
    """Step time in the layer's slices over step time in the clean slices next to them.

    Of a slice that two layers shared nobody can say what either of them cost: the factor is null,
    and `note` says why. The first steps of a run are slow without any layer: they give no factor.
    """
    own, beside, clock = _compared(recorded, clean, selection)
    note = _no_factor(selection, own, beside)
    ratio = Ratio(None, None, None)
    if note is None:
        ratio = ratio_interval(list(_by_slice(own, clock).values()), beside)
        if (own["step"] < clean.warm_from).all():
            note = "its steps lay in the warm-up, which was slow by itself"
    flat = [step for group in beside for step in group]
    return {
        **no_effect(layer),
        "n_layer": len(own),
        "n_clean": len(flat),
        "step_median_s": nullable(times_of(own, clock).median()) if len(own) else None,
        "clean_median_s": float(pd.Series(flat).median()) if flat else None,
        "factor": ratio.factor,
        "ci95_low": ratio.low,
        "ci95_high": ratio.high,
        "note": note,
    }


def no_effect(layer: str) -> dict[str, Any]:
    """The probe effect of a layer of which none is known."""
    figures = ("step_median_s", "clean_median_s", "factor", "ci95_low", "ci95_high", "note")
    return {"layer": layer, "n_layer": 0, "n_clean": 0, **dict.fromkeys(figures)}


def plain_factor(recorded: Recorded, clean: Clean, selection: Selection) -> float | None:
    """The probe effect as one number, for the lesser modes of a layer."""
    own, beside, clock = _compared(recorded, clean, selection)
    if _no_factor(selection, own, beside) is not None:
        return None
    flat = pd.Series([step for group in beside for step in group])
    return float(times_of(own, clock).median() / flat.median())


def _compared(
    recorded: Recorded, clean: Clean, selection: Selection
) -> tuple[pd.DataFrame, list[list[float]], str]:
    """The steps a layer watched, the times of the clean slices beside them, and whose they are."""
    own = recorded.steps_of(selection.slices)
    own = own[(own["wall_s"] > 0) & ~_has(own, "eval", "partial")]
    # Without events in the layer's slices only the host's times can be compared.
    clock = clean.clock if own["device_s"].notna().all() else HOST
    before, after = _around(clean.steps, selection.slices, clock)
    return own, before + after or list(_by_slice(clean.steps, clock).values()), clock


def _no_factor(selection: Selection, own: pd.DataFrame, beside: list[list[float]]) -> str | None:
    """Why no factor can be given; None where one can."""
    if selection.mode == "shared":
        return "it shared its steps with another layer: nobody can say what either cost"
    if selection.mode == "whole":
        return "the script was measured whole: there is no clean step beside it"
    if selection.mode == DISCOVERY:
        return "it watched the first steps alone, which are slow without any layer"
    if not len(own):
        return "none of its steps has a time of its own"
    return None if beside else "there was no clean step to compare with"


# The figures of the report's `benchmark`; those that only `profstack bench` has are null of a run.
FIGURES = (
    "mode clock n samples_s counted_steps warmup_steps first_step_s first_step_layer median_s "
    "iqr_s mean_s std_s min_s p90_s p99_s ci95_low_s ci95_high_s cpu_median_s cpu_wall_s "
    "host_median_s device_median_s autocorrelation drift outliers steps_per_s items_per_s "
    "between_process target initialisation_s warmup_s warmup_reason stopped_by calls_per_sample "
    "garbage batch_size batch_size_is gradients training modes_note synchronised_median_s "
    "synchronised_ci95_low_s synchronised_ci95_high_s pipelined_median_s pipelined_ci95_low_s "
    "pipelined_ci95_high_s device_state"
)
LISTS = "by_shape mistakes ablation throughput throughput_limits compare warnings"
# What the report has under other names, or in words, of the figures of `profstack bench`.
_INNER = ("part_problems", "warmup_settled", "target_interval", "training_layers")


def benchmark(
    recorded: Recorded, clean: Clean, environment: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The part `benchmark` of the report; every figure null with a warning where none is."""
    result: dict[str, Any] = dict.fromkeys(FIGURES.split())
    result.update((name, []) for name in LISTS.split())
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
        why = (
            "the workload was measured whole, under observation: no clean time can be given"
            if recorded.rule == "whole"
            else "no clean step was left after warm-up: let the script run more steps"
        )
        result["warnings"].append(why)
        return result
    times = times_of(steps, clean.clock)
    summary = summarize(times.tolist())
    result.update(_figures(recorded, steps, times, summary), warmup_steps=clean.warmup_steps)
    result.update(
        {
            f"{mode}_median_s": summary.median,
            f"{mode}_ci95_low_s": summary.ci95_low,
            f"{mode}_ci95_high_s": summary.ci95_high,
            "by_shape": _by_shape(steps, times),
        }
    )
    result["warnings"] += doubts.of_run(result, environment or {})
    return result


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
    # The samples are no steps of the recording: its steps are those of the layers, after them.
    result["counted_steps"] = []
    result["warnings"] += [
        *problems,
        *figures.get("part_problems", []),
        *doubts.of_bench(figures, environment),
        *doubts.of_layers(figures["median_s"], clean.session_median_s),
    ]
    return result


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
    """CPU time of a clean step, and wall time of the same: medians, or of the slices' means.

    Reading the CPU clock takes a third of a percent of a 0.3 ms step: there it is read per slice.
    """
    own = steps["cpu_s"].dropna()
    if len(own):
        wall_s = steps.loc[own.index, "wall_s"].median()
        return {"cpu_median_s": float(own.median()), "cpu_wall_s": float(wall_s)}
    slices = recorded.slices[recorded.slices["slice"].isin(steps["slice"].unique())]
    # A slice that the end of the run has cut short has none.
    slices = slices[slices["cpu_s"].notna()]
    cpu_s = nullable((slices["cpu_s"] / slices["steps"]).median())
    beside = steps[steps["slice"].isin(slices["slice"])]
    wall_s = None if cpu_s is None else float(beside.groupby("slice")["wall_s"].mean().median())
    return {"cpu_median_s": cpu_s, "cpu_wall_s": wall_s}


def _figures(
    recorded: Recorded, steps: pd.DataFrame, times: pd.Series[float], summary: Summary
) -> dict[str, Any]:
    """What the clean steps say."""
    # Of very short steps the clean slices do not tell it: the others of the plan do.
    items = steps["batch_size"].dropna()
    items = items if len(items) else recorded.steps["batch_size"].dropna()
    batch = float(items.median()) if len(items) else None
    return {
        "samples_s": times.tolist(),
        "counted_steps": steps["step"].tolist(),
        **summary.columns(batch),
        "batch_size": int(batch) if batch else None,
        "batch_size_is": READ if batch else None,
        **_cpu_and_wall(recorded, steps),
        "host_median_s": nullable(steps["wall_s"].median()),
        "device_median_s": nullable(steps["device_s"].median()),
    }
