"""Why a benchmark's figures may not be trusted as they stand, and what to do about each.

Every doubt names the number it comes from, why that matters, and the next command to try.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from profstack.benchmark.devicestate import slowed_by
from profstack.units import format_seconds

FEW_STEPS = 10
# One of a hundred samples lies beyond the 99th percentile.
_ENOUGH = 100
# An interval needs six, and is no wild guess from about so many.
_SOME = 20
_DRIFT = 0.05
# An effective number of samples below a third of theirs.
_AUTOCORRELATION = 0.5
# CPU time below this share of the wall time, or above one thread's worth, is worth a word.
_LITTLE_CPU = 0.9
_BUSY = 0.5
_OUTLIERS = 0.05
_LONGEST_ADVICE_S = 600.0
_LAYERS_APART = 0.05
_MARKING_S = 5e-6
# The watch looks every so often: steps that are shorter it sees one of many.
_WATCH_S = 0.01

Figures = Mapping[str, Any]


def of_bench(figures: Figures, environment: Figures, *, watched: bool = False) -> list[str]:
    """The doubts of `profstack bench`, the gravest first; `watched` where the watch was on."""
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


def of_run(figures: Figures, environment: Figures, *, watched: bool = False) -> list[str]:
    """The doubts of the clean steps of `profstack run`."""
    more = "let the script run more steps"
    found = []
    if figures["n"] < FEW_STEPS:
        found.append(f"only {figures['n']} clean steps: the median is rough; {more}")
    found += _drift(figures, f"{more}, or repeat on an idle machine")
    # A script runs in one process: there is no option to repeat it in several.
    found += _machine(figures, environment, _can_look(figures, watched), or_else="")
    return found


def of_layers(median_s: float, session_median_s: float | None) -> list[str]:
    """Whether the clean steps between the layers' slices took what the benchmark's did."""
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


def _warmup(figures: Figures) -> Iterator[str]:
    if figures.get("warmup_settled") is False:
        yield (
            f"no end of the warm-up was seen ({figures['warmup_reason']}): the samples may still "
            f"be falling; repeat with {_fixed_counts(figures)}"
        )


def _fixed_counts(figures: Figures) -> str:
    """Counts that are enough, or of long calls the time in which they would be."""
    each_s = (figures.get("calls_per_sample") or 1) * figures["mean_s"]
    if 500 * each_s <= _LONGEST_ADVICE_S:
        return "--warmup 200 --repeat 300"
    if 50 * each_s <= _LONGEST_ADVICE_S:
        return f"--max-seconds {math.ceil(5 * each_s) * 10}"
    return "--warmup 5 --repeat 10"


def _samples(figures: Figures) -> Iterator[str]:
    """Too few of them, or an interval that stayed wider than was asked for."""
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


def _longer(figures: Figures, samples: float) -> str:
    """What to do to have so many samples."""
    if figures.get("target_interval") is None:
        return f"repeat with --repeat {max(_ENOUGH, round(samples))}"
    calls = figures.get("calls_per_sample") or 1
    seconds = samples * calls * figures["mean_s"] * 1.2
    if seconds > _LONGEST_ADVICE_S:
        half = relative_half_width(figures)
        wider = "on a quieter machine" if half is None else f"with --target {half * 1.2:.1g}"
        return f"that would take about {format_seconds(seconds)}: repeat {wider}"
    return f"repeat with --max-seconds {max(20, -(-int(seconds + 1) // 10) * 10)}"


def relative_half_width(figures: Figures) -> float | None:
    """How far the interval of the median reaches from it, as a share of it."""
    low, high, middle = (figures.get(key) for key in ("ci95_low_s", "ci95_high_s", "median_s"))
    if low is None or high is None or not middle:
        return None
    return float(max(high - middle, middle - low) / middle)


def _drift(figures: Figures, remedy: str) -> Iterator[str]:
    drift = figures["drift"]
    if drift is not None and abs(drift) > _DRIFT:
        yield (
            f"the step time drifted by {100 * drift:+.1f} % from the first third of the samples "
            f"to the last: the machine or the work changed; {remedy}"
        )


def _can_look(figures: Figures, watched: bool) -> bool:
    """Whether the watch could tell more of a step: it has not yet, and a step takes long enough."""
    return not watched and (figures["median_s"] or 0.0) >= _WATCH_S


def _series(figures: Figures, look: bool) -> Iterator[str]:
    """Samples that depend on each other, or that have a second kind among them."""
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
            f"{outliers} of {n} samples are outliers (slowest {format_seconds(_slowest(figures))},"
            f" median {format_seconds(figures['median_s'])}): something interrupts the work; "
            "repeat on an idle machine" + (", or look at them with --layers watch" if look else "")
        )


def _slowest(figures: Figures) -> float | None:
    return max(figures["samples_s"], default=None)


def _machine(
    figures: Figures, environment: Figures, look: bool, or_else: str = ", or with --processes 5"
) -> Iterator[str]:
    """What the machine was doing besides, and how it was set up."""
    # Both means of the same calls: beside a median, what interrupts the work would show twice.
    wall, cpu = figures.get("cpu_wall_s"), figures.get("cpu_mean_s")
    load = (environment.get("load_average") or [None])[0]
    cores = environment.get("usable_cores") or environment.get("logical_cores")
    if wall and cpu is not None and cpu < _LITTLE_CPU * wall and not figures["device_median_s"]:
        yield (
            f"on average a step takes {format_seconds(wall)} of wall time and "
            f"{format_seconds(cpu)} of CPU time (ratio {cpu / wall:.2f}): it waits for files, a "
            "lock or a core that others have; repeat on an idle machine"
            + (", or see where with --layers watch" if look else "")
        )
    if load is not None and cores and load > _BUSY * cores:
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


def _model(figures: Figures) -> Iterator[str]:
    """A model in a state in which it is seldom used."""
    unusual: Sequence[str] = figures.get("training_layers") or ()
    if unusual and not figures["gradients"]:
        yield (
            f"the model is in training mode ({', '.join(unusual)}) and no gradients are recorded: "
            "as inference its results are random or change its statistics; call model.eval() in "
            "the factory, or measure training with a function that does a step"
        )


def _processes(figures: Figures) -> Iterator[str]:
    """What one process says nothing of, or how far several were apart."""
    between = figures.get("between_process") or {}
    half = relative_half_width(figures)
    if between.get("processes"):
        spread = between.get("spread")
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
