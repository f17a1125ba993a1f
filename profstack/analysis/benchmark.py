"""Make the part `benchmark` of the report, with the warnings about its figures.

The figures are those of a run's clean steps, or of the samples of `profstack bench`. Each warning
names the number it comes from, why that matters, and the next command to try.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import cast

from profstack.analysis.clean_steps import FEW_STEPS, Clean, known_times, why_no_steps
from profstack.stats.blocks import GC_ON
from profstack.stats.clock import slowed_by
from profstack.stats.summary import by_shape, summarize
from profstack.storage.reader import Recorded, Row, added, grouped, known, ratio
from profstack.storage.schema.report import BenchFigures, Benchmark, BenchResult
from profstack.storage.vocabulary import READ
from profstack.units import format_seconds

# The reason where every slice was made and no step is clean: more steps would not help.
NONE_CLEAN = "each held an evaluation of the model, or nothing tells when it began and ended"
# Fields of the report that are lists, and are empty where nothing was measured.
_LISTS = (
    *("by_shape", "mistakes", "ablation", "throughput", "throughput_limits", "compare", "warnings"),
    *("samples_s", "counted_steps"),
)
# Figures of `profstack bench` that the report gives under other names or in words. Old recordings
# have medians of CPU times.
_INNER = ("part_problems", "warmup_settled", "target_interval", "training_layers", "cpu_median_s")
# The CPU clock's error at the ends of a series explains CPU time of all cores times this.
_BEYOND_ALL = 1.05

Environment = Mapping[str, object]


def step_name(mark: Benchmark) -> str:
    """Return what the benchmark's samples are: no step of an imported trace is a clean one."""
    return "step under the profiler" if mark["mode"] == "profiled" else "clean step"


def benchmark(recorded: Recorded, clean: Clean, environment: Environment) -> Benchmark:
    """Return the part `benchmark` of the report; without a figure, warnings say why."""
    # The optional fields, times of a target, are left out for a run.
    nothing = dict.fromkeys(Benchmark.__required_keys__)
    result = cast("Benchmark", {**nothing, **{name: [] for name in _LISTS}, "n": 0})
    if clean.bench is not None:
        _add_bench(result, clean.bench, recorded, clean, environment)
    else:
        _add_run(result, recorded, clean, environment)
    return result


def _add_run(result: Benchmark, recorded: Recorded, clean: Clean, environment: Environment) -> None:
    """Add the figures of a run's clean steps."""
    steps = clean.steps
    first = recorded.steps[0] if recorded.steps else None
    begun = [row for row in recorded.slices if first and row["slice"] == first["slice"]]
    if recorded.is_import:
        result["mode"] = "profiled"
    else:
        result["mode"] = "synchronised" if recorded.facts.get("synchronised") else "pipelined"
    result["clock"] = clean.clock
    result["n"] = len(steps)
    result["garbage"] = GC_ON
    result["first_step_s"] = first["wall_s"] if first else None
    result["first_step_layer"] = next(iter(known(begun, "layer")), None)
    if not steps:
        result["warnings"].append(_why_none_clean(recorded))
        return
    times = known_times(steps, clean.clock)
    summary = summarize(times)
    # In very short clean steps the batch size is not read: then that of the plan's other warm steps
    # counts. Batches of the warm-up may have another size.
    warm = (row for row in recorded.steps if row["step"] >= clean.warm_from)
    counted = known(steps, "batch_size")
    sizes = counted or known(warm, "batch_size")
    batch = float(median(sizes)) if sizes else None
    items = fmean(counted) if counted else batch
    cpu_mean_s, cpu_wall_s = _cpu_and_wall(recorded, steps, clean.paused)
    # The shape of the input is not read in very short steps.
    by_input = sorted(grouped((row for row in steps if row["shape"]), "shape").items())
    shapes = {shape: known_times(rows, clean.clock) for (shape,), rows in by_input}
    figures = {
        **summary.columns(items),
        "samples_s": times,
        "counted_steps": [row["step"] for row in steps],
        "batch_size": int(batch) if batch else None,
        "batch_size_is": READ if batch else None,
        "cpu_mean_s": cpu_mean_s,
        "cpu_wall_s": cpu_wall_s,
        "host_median_s": median(known(steps, "wall_s")),
        "device_median_s": median(device_s) if (device_s := known(steps, "device_s")) else None,
        "warmup_steps": clean.warmup_steps,
        "by_shape": by_shape(shapes),
    }
    if result["mode"] != "profiled":
        named = {"median_s": summary.median, "ci95_low_s": summary.ci95_low}
        named["ci95_high_s"] = summary.ci95_high
        figures |= {f"{result['mode']}_{name}": value for name, value in named.items()}
    result.update(cast("Benchmark", figures))
    _add_cores(result, environment)
    result["warnings"] += of_run(result, environment, watched=_is_watched(recorded))


def _why_none_clean(recorded: Recorded) -> str:
    """Say why there is no clean step, and what would help."""
    if recorded.rule == "whole":
        return "the workload was measured whole, under observation: no clean time can be given"
    if (missing := why_no_steps(recorded)) is not None:
        return missing
    if any(row["kind"] == "watch" for row in recorded.slices):
        return f"there is no clean step: {NONE_CLEAN}"
    return "no clean step was left after warm-up: let the script run more steps"


def _add_bench(
    result: Benchmark,
    bench: BenchResult,
    recorded: Recorded,
    clean: Clean,
    environment: Environment,
) -> None:
    """Add what `profstack bench` measured before any layer, and the warnings about it."""
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
        *of_bench(figures, environment, watched=_is_watched(recorded)),
        *of_layers(figures["median_s"] or 0.0, clean.session_median_s),
    ]


def _is_watched(recorded: Recorded) -> bool:
    """Return whether the watch was on."""
    layers = recorded.table("layers")
    return any(row["name"] == "watch" and row["status"] == "recorded" for row in layers)


def _cpu_and_wall(
    recorded: Recorded, steps: Sequence[Row], paused: Sequence[Row]
) -> tuple[float | None, float | None]:
    """Return the mean CPU time of a clean step, and the mean wall time of the same steps.

    The CPU time of a single step is too coarse (see `Samples.cpu_and_wall_s`). Where steps are very
    short the CPU clock is read once per slice: reading it takes 0.3 % of a step of 0.3 ms. Slices
    that hold a pause are left out.
    """
    read = [row for row in steps if row["cpu_s"] is not None]
    count = len(read)
    if not count:
        whole = {row["slice"] for row in steps} - {row["slice"] for row in paused}
        # A slice that the end of the run has cut short has none.
        read = [
            row for row in recorded.slices if row["slice"] in whole and row["cpu_s"] is not None
        ]
        count = sum(known(read, "steps"))
    cpu_s, wall_s = (ratio(added(known(read, name)), count) for name in ("cpu_s", "wall_s"))
    return cpu_s, wall_s


def _add_cores(result: Benchmark, environment: Environment) -> None:
    """Add the average number of busy cores, at most those of the machine.

    At each end of a series of steps the CPU clock may be off by one tick per other core.
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


# --- Warnings: what makes the figures uncertain, and what to do about it --------------------------

# One of a hundred samples lies beyond the 99th percentile.
_ENOUGH = 100
# An interval needs six samples; from about this many on it is useful.
_SOME = 20
_DRIFT = 0.05
# At this correlation of neighbours, samples are worth a third of their number.
_AUTOCORRELATION = 0.5
# CPU time below this share of the wall time is reported.
_LITTLE_CPU = 0.9
# Other work is reported where its load average is more than this share of the cores, and together
# with the cores that a step uses (the same share where that is not known) more than there are.
_BUSY = 0.5
_CROWDED = 1.1
_OUTLIERS = 0.05
_LONGEST_ADVICE_S = 600.0
_LAYERS_APART = 0.05
_MARKING_S = 5e-6
# The watch samples at this interval: of shorter steps it sees only some.
_WATCH_S = 0.01


def of_bench(
    figures: BenchFigures, environment: Environment, *, watched: bool = False
) -> list[str]:
    """List the warnings of `profstack bench`, the gravest first; `watched`: the watch was on."""
    look = _can_look(figures, watched)
    if figures["stopped_by"] == "interrupt":
        stopped = f"interrupted after {figures['n']} samples: the figures are of those alone"
        return [stopped, *_machine(figures, environment, look), *_model(figures)]
    return [
        *_warmup(figures),
        *_samples(figures),
        *_drift(figures, "repeat with --max-seconds 60, or on an idle machine"),
        *_series(figures, look),
        *_machine(figures, environment, look),
        *_model(figures),
        *_processes(figures),
    ]


def of_run(figures: Benchmark, environment: Environment, *, watched: bool = False) -> list[str]:
    """List the warnings about the clean steps of `profstack run`."""
    more = "let the script run more steps"
    few = f"only {figures['n']} clean steps: the median is rough; {more}"
    return [
        *([few] if figures["n"] < FEW_STEPS else []),
        *_drift(figures, f"{more}, or repeat on an idle machine"),
        # A script runs in one process: there is no option to repeat it in several.
        *_machine(figures, environment, _can_look(figures, watched), or_else=""),
    ]


def of_layers(median_s: float, session_median_s: float | None) -> list[str]:
    """Warn where clean steps between the layers' slices differ from the benchmark's."""
    if session_median_s is None or not median_s:
        return []
    change = session_median_s / median_s - 1.0
    # The clean steps of a session are marked one by one, and the benchmark's calls are not.
    if abs(change) <= _LAYERS_APART or abs(session_median_s - median_s) <= _MARKING_S:
        return []
    text = (
        f"the clean steps between the layers take {format_seconds(session_median_s)}, "
        f"{change + 1:.3g} times what they took in the benchmark: the tables' shares hold, and "
        "their calibrated times are scaled to the benchmark; for closer ones repeat with "
        "--layers torch"
    )
    return [text]


def _warmup(figures: BenchFigures) -> Iterator[str]:
    if figures.get("warmup_settled") is not False:
        return
    # Enough samples; for long calls a time limit, or fewer samples.
    each_s, options = _seconds_per_sample(figures), "--warmup 5 --repeat 10"
    if 500 * each_s <= _LONGEST_ADVICE_S:
        options = "--warmup 200 --repeat 300"
    elif 50 * each_s <= _LONGEST_ADVICE_S:
        options = f"--max-seconds {math.ceil(5 * each_s) * 10}"
    yield (
        f"no end of the warm-up was seen ({figures['warmup_reason']}): the samples may still "
        f"be falling; repeat with {options}"
    )


def _seconds_per_sample(figures: Benchmark) -> float:
    return (figures.get("calls_per_sample") or 1) * (figures["mean_s"] or 0.0)


def _samples(figures: BenchFigures) -> Iterator[str]:
    """Warn of too few samples, or of an interval wider than the target."""
    n, half = figures["n"], relative_half_width(figures)
    target = figures.get("target_interval")
    if half is None:
        yield f"no interval of the median: {n} samples are too few; {_longer(figures, _SOME)}"
    elif target is not None and half > target:
        # The interval narrows with the root of the samples.
        yield (
            f"the interval reaches {half:.2g} of the median to either side, and {target:.2g} was "
            f"asked for: {_longer(figures, n * (half / target) ** 2)}"
        )
    if half is not None and n < _ENOUGH:
        yield (
            f"only {n} samples: no p99 can be given, which needs {_ENOUGH}; "
            f"{_longer(figures, _ENOUGH)}"
        )


def _longer(figures: BenchFigures, samples: float) -> str:
    """Return the advice that gives so many samples."""
    if figures.get("target_interval") is None:
        return f"repeat with --repeat {max(_ENOUGH, round(samples))}"
    seconds = samples * _seconds_per_sample(figures) * 1.2
    if seconds > _LONGEST_ADVICE_S:
        half = relative_half_width(figures)
        wider = "on a quieter machine"
        if half is not None and half < 0.7:  # a target is less than the whole median
            wider = f"with --target {half * 1.2:.1g}"
        return f"that would take about {format_seconds(seconds)}: repeat {wider}"
    return f"repeat with --max-seconds {max(20, -(-int(seconds + 1) // 10) * 10)}"


def relative_half_width(figures: Benchmark) -> float | None:
    """Return the larger half of the median's interval as a share of the median."""
    low, high = figures.get("ci95_low_s"), figures.get("ci95_high_s")
    middle = figures.get("median_s")
    if low is None or high is None or not middle:
        return None
    return float(max(high - middle, middle - low) / middle)


def _drift(figures: Benchmark, remedy: str) -> Iterator[str]:
    drift = figures["drift"]
    if drift is not None and abs(drift) > _DRIFT:
        yield (
            f"the step time drifted by {100 * drift:+.1f} % from the first third of the samples "
            f"to the last: the machine or the work changed; {remedy}"
        )


def _can_look(figures: Benchmark, watched: bool) -> bool:
    """Return whether the watch could show more: it was off, and a step is long enough."""
    return not watched and (figures["median_s"] or 0.0) >= _WATCH_S


def _series(figures: Benchmark, look: bool) -> Iterator[str]:
    """Warn of samples that depend on each other, and of outliers."""
    dependence, n = figures["autocorrelation"], figures["n"]
    if dependence is not None and dependence > _AUTOCORRELATION:
        yield (
            f"neighbouring samples are correlated by {dependence:.2f}: {n} samples tell what "
            f"{n * (1 - dependence) / (1 + dependence):.0f} independent ones would, which the "
            "interval allows for; repeat with --processes 5"
        )
    outliers = figures["outliers"] or 0
    if outliers > max(3, _OUTLIERS * n):
        yield (
            f"{outliers} of {n} samples are outliers (slowest "
            f"{format_seconds(max(figures['samples_s'], default=None))},"
            f" median {format_seconds(figures['median_s'])}): something interrupts the work; "
            "repeat on an idle machine" + (", or look at them with --layers watch" if look else "")
        )


def _machine(
    figures: Benchmark,
    environment: Environment,
    look: bool,
    or_else: str = ", or with --processes 5",
) -> Iterator[str]:
    """Warn of other work on the machine, and of its settings."""
    # Both are means of the same calls: beside a median, an interruption would look like waiting.
    wall, cpu = figures.get("cpu_wall_s"), figures.get("cpu_mean_s")
    loads = environment.get("load_average")
    load = float(loads[0]) if isinstance(loads, list) and loads else None
    counted = environment.get("usable_cores") or environment.get("logical_cores")
    cores = counted if isinstance(counted, int) else 0
    if wall and cpu is not None and cpu < _LITTLE_CPU * wall and not figures["device_median_s"]:
        yield (
            f"on average a step takes {format_seconds(wall)} of wall time and "
            f"{format_seconds(cpu)} of CPU time (ratio {cpu / wall:.2f}): it waits for files, a "
            "lock or a core that others have; repeat on an idle machine"
            + (", or see where with --layers watch" if look else "")
        )
    used = cpu / wall if wall and cpu is not None else _BUSY * cores
    if load is not None and load > _BUSY * cores > 0 and load + used > _CROWDED * cores:
        yield (
            f"the load average was {load:g} on {cores} usable cores before the start: other work "
            f"took part of the machine; repeat when it is idle{or_else}"
        )
    if environment.get("cpu_governor") == "powersave":
        yield (
            "the CPU governor is powersave: clocks rise late and the times depend on what ran "
            "before; try 'sudo cpupower frequency-set -g performance' and repeat"
        )
    for reason in slowed_by(figures.get("device_state")):
        yield (
            f"{reason}: the device ran below its speed; let it cool or raise its limit, see "
            "'nvidia-smi -q -d PERFORMANCE', and repeat"
        )


def _model(figures: BenchFigures) -> Iterator[str]:
    """Warn of a model in training mode without gradients."""
    unusual = figures.get("training_layers") or ()
    if unusual and not figures["gradients"]:
        yield (
            f"the model is in training mode ({', '.join(unusual)}) and no gradients are recorded: "
            "as inference its results are random or change its statistics; call model.eval() in "
            "the factory, or measure training with a function that does a step"
        )


def _processes(figures: Benchmark) -> Iterator[str]:
    """Warn of the spread between processes, or that it is not known."""
    between = figures.get("between_process")
    half = relative_half_width(figures)
    if between and between["processes"]:
        spread = between["spread"]
        if spread is not None and half is not None and spread > 2 * half:
            yield (
                f"{between['processes']} processes differ by {100 * spread:.1f} %, and the "
                f"interval inside one reaches {100 * half:.1f} %: smaller differences between "
                "two programs show nothing; "
                f"compare with --processes {max(5, 2 * between['processes'])}"
            )
    elif half is not None:
        yield (
            f"the interval ({100 * half:.2f} % to either side) is of one process and says nothing "
            "of the spread between processes, which was 4 to 20 times as wide where it was "
            "measured: try --processes 5 before comparing"
        )
