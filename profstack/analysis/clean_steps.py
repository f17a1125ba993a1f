"""The clean steps of a recording, and where its warm-up ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from profstack.stats.blocks import COVERED
from profstack.stats.summary import ratio_interval
from profstack.stats.warmup import Warmup, detect
from profstack.storage.reader import Recorded, Row, flags_of, known
from profstack.storage.schema.report import BenchResult, ReportWarning
from profstack.storage.vocabulary import BENCH_FACT
from profstack.units import format_seconds

# --- Where a run's warm-up ends -------------------------------------------------------------------
#
# Steps may become faster long after the warm-up, for example when a dataset is cached after its
# first epoch, or when batches become smaller. By the times alone, all steps before that look like
# one long warm-up. A change after the last slice of a layer is not taken for one.

# Fewer clean steps make a rough median.
FEW_STEPS = 10
# A smaller change of the step time gets no warning.
_OTHER_STEPS = 0.05


@dataclass(frozen=True)
class WarmSteps:
    """The warm-up of a run, and the warm steps: from `first` on, and before `until` if it is set.

    Both are numbers of steps in the run.
    """

    warmup: Warmup
    first: int
    until: int | None = None
    warnings: list[ReportWarning] = field(default_factory=list)


def warm_steps(recorded: Recorded, unobserved: Sequence[Row], clean: Sequence[Row]) -> WarmSteps:
    """Find the warm steps among the unobserved ones; `clean` are those of the clean slices."""
    steps = recorded.steps
    # Steps of another plan may come first: the warm-up begins with the first step of this plan.
    begun = steps[0]["step"] if steps else 0
    found = _detect(unobserved, begun)
    usual = WarmSteps(found, begun + found.steps, None, _unsettled(found))
    if not found.steps or not clean:
        return usual
    left = clean[-1]["step"] >= usual.first
    observed = [row for row in recorded.slices if row["layer"] is not None and row["steps"]]
    # Where no layer had slices, none are to be compared with the steps between them.
    ends = [row["first_step"] + row["steps"] for row in observed]
    if left and (not ends or max(ends) > usual.first):
        return usual
    until = min(usual.first, clean[-1]["step"] + 1)
    again = _detect([row for row in unobserved if row["step"] < until], begun)
    kept = [row for row in clean if begun + again.steps <= row["step"] < until]
    if left and (not again.settled or len(kept) < FEW_STEPS):
        # The steps after the usual warm-up are surely warm; those before its end may not be.
        return usual
    later = [row for row in unobserved if row["step"] >= usual.first]
    warnings = [*_changed(kept, later, usual), *_unsettled(again), *usual.warnings]
    return WarmSteps(again, begun + again.steps, until, warnings)


def _detect(unobserved: Sequence[Row], begun: int) -> Warmup:
    numbers = [row["step"] - begun for row in unobserved]
    return detect([row["wall_s"] for row in unobserved], indices=numbers)


def _unsettled(warmup: Warmup) -> list[ReportWarning]:
    return [] if warmup.settled else [{"slug": "warmup-unsettled", "text": warmup.reason}]


def _changed(kept: Sequence[Row], later: Sequence[Row], usual: WarmSteps) -> list[ReportWarning]:
    """Warn that later steps take another time than those that count."""
    if not kept or not later:
        return []
    before_s, after_s = (median(row["wall_s"] for row in rows) for rows in (kept, later))
    if abs(after_s / before_s - 1.0) < _OTHER_STEPS:
        return []
    # The place is known to a sixteenth of the step's number. At most half of a series is called
    # warm-up: where times still fall there, the place is not known.
    where = f"from about step {usual.first} on" if usual.warmup.settled else "later in the run"
    text = (
        f"{where}, steps take {format_seconds(after_s)} instead of "
        f"{format_seconds(before_s)}: the figures are of the steps before, in which the layers "
        "had their slices; the script's work changed there, or the machine's other work"
    )
    return [{"slug": "work-changed", "text": text}]


# Kinds of slices that no layer watches but the sampler.
UNOBSERVED = ("startup", "settle", "clean", "watch")

# --- Clean steps ----------------------------------------------------------------------------------

# A smaller change of the clean steps after an observer gets no warning.
_LASTING = 0.02
# Pauses matter where without them the mean step is shorter by more than a tenth.
_MATTERS = 0.1
Clock = Literal["host", "device"]
Times = npt.NDArray[np.float64]
HOST: Final = "host"
DEVICE: Final = "device"


@dataclass
class Clean:
    """The steps that count as clean, and the warnings about them."""

    steps: list[Row]
    warmup_steps: int | None
    warnings: list[ReportWarning]
    # The first step that is warm.
    warm_from: int = 0
    # The result of `profstack bench`, measured before any layer, if this is its recording.
    bench: BenchResult | None = None
    # The clock of the step times: a host that runs ahead of a device only measures launches.
    clock: Clock = HOST
    # Rows of the steps left out as pauses.
    paused: list[Row] = field(default_factory=list)

    @property
    def median_s(self) -> float | None:
        """Median time of a clean step, the report's main figure; None without a clean step.

        In a recording of `profstack bench` it is the median of the benchmark's samples.
        """
        if self.bench is not None and self.bench["figures"] is not None:
            return self.bench["figures"]["median_s"]
        return self.session_median_s

    @property
    def session_median_s(self) -> float | None:
        """Median time of the clean steps between the layers' slices."""
        times = known_times(self.steps, self.clock)
        return median(times) if times else None


def times_of(steps: Sequence[Row], clock: Clock) -> list[Any]:
    """Return the seconds of each step by the host's clock or the device's, which may be missing."""
    name = "device_s" if clock == DEVICE else "wall_s"
    return [row[name] for row in steps]


def known_times(steps: Sequence[Row], clock: Clock) -> list[float]:
    """Return the seconds of the steps that have them by this clock."""
    return [seconds for seconds in times_of(steps, clock) if seconds is not None]


def clean_steps(recorded: Recorded) -> Clean:
    """Choose the clean steps: unobserved, warm, settled, without evaluation in them.

    An import has none such: its steps are those of the trace, under the profiler that wrote it.
    """
    steps = recorded.steps
    timed = timed_steps(steps)
    if recorded.is_import:
        return Clean(timed, None, [])
    unobserved = [row for row in timed if row["kind"] in UNOBSERVED]
    clean = [row for row in timed if row["kind"] == "clean"]
    warm = warm_steps(recorded, unobserved, clean)
    bench: BenchResult | None = recorded.facts.get(BENCH_FACT)
    is_warm = bench and bench["figures"] and bench["figures"].get("warmup_settled")
    if bench is not None and is_warm and not bench.get("layers_apart"):
        # The callable was warm before the first layer began, in the same process.
        begun = steps[0]["step"] if steps else 0
        warm = WarmSteps(Warmup(0, 0, True, "it was warm when the layers began"), begun)
    clean = [row for row in clean if row["step"] >= warm.first]
    if warm.until is not None:
        clean = [row for row in clean if row["step"] < warm.until]
    warnings = warm.warnings
    settled = [row for row in clean if not is_flagged(row, "switch")]
    if len(settled) >= 3:
        clean = settled
    elif clean:
        text = (
            f"the run gave {len(clean)} clean steps, each right after an observer: "
            "the clean time is an upper bound; let the script run more steps"
        )
        warnings = [{"slug": "unsettled-clean-steps", "text": text}, *warnings]
    clock: Clock = HOST
    if not recorded.facts.get("synchronised") and clean:
        # As `profstack bench` chooses it (see `Samples.series`).
        device_s, wall_s = known_times(clean, DEVICE), known_times(clean, HOST)
        is_known = len(device_s) == len(clean) and sum(device_s) >= COVERED * sum(wall_s)
        clock = DEVICE if is_known else HOST
    clean, paused, pauses = _without_pauses(recorded, clean, clock)
    clean, lasting = _before_the_change(recorded, clean, clock)
    # Without steps there is nothing to warn of.
    warnings = [*warnings, *pauses, *lasting] if steps else []
    return Clean(clean, warm.warmup.steps, warnings, warm.first, bench, clock, paused)


def is_flagged(step: Row, *words: str) -> bool:
    """Return whether a step has one of the flags."""
    return bool(step["flags"]) and not set(flags_of(step)).isdisjoint(words)


def timed_steps(steps: Sequence[Row]) -> list[Row]:
    """Return the loop's steps with a time of their own, whole and without evaluation in them.

    A slow one whose neighbours were not kept says nothing of how steps usually are.
    """
    timed = (row for row in steps if (row["wall_s"] or 0.0) > 0)
    return [row for row in timed if not is_flagged(row, "eval", "partial", "loop", "slow")]


def _without_pauses(
    recorded: Recorded, clean: list[Row], clock: Clock
) -> tuple[list[Row], list[Row], list[ReportWarning]]:
    """Return the clean steps without rare pauses, those that hold one, and a warning of them."""
    times = [
        row["wall_s"] if took_s is None else took_s
        for row, took_s in zip(clean, times_of(clean, clock), strict=True)
    ]
    long = recorded.rare_pauses(times)
    usual = [each for each, is_long in zip(times, long, strict=True) if not is_long]
    paused = [row for row, is_long in zip(clean, long, strict=True) if is_long]
    if not paused or fmean(times) <= (1 + _MATTERS) * fmean(usual):
        return clean, [], []
    kept = [row for row, is_long in zip(clean, long, strict=True) if not is_long]
    longest = format_seconds(max(times))
    took = f"1 took {longest}" if len(paused) == 1 else f"{len(paused)} took up to {longest}"
    text = (
        f"of {len(clean)} clean steps {took}, against a median of "
        f"{format_seconds(median(usual))}: such pauses are no part of the "
        "step's figures; the steps much slower than a clean one are listed"
    )
    return kept, paused, [{"slug": "pauses", "text": text}]


def _before_the_change(
    recorded: Recorded, clean: list[Row], clock: Clock
) -> tuple[list[Row], list[ReportWarning]]:
    """Drop clean steps after an observer that differ from those before it, and warn of that."""
    warnings: list[ReportWarning] = []
    for layer in dict.fromkeys(known(recorded.slices, "layer")):
        observers = [row for row in recorded.slices if row["layer"] == layer]
        observers = [row for row in observers if (row["round"] or 0) > 1]
        before, after = slices_beside(clean, [row["slice"] for row in observers], clock)
        change = ratio_interval(after, before)
        factor = change.factor if change.distinguishable else None
        if factor is None or abs(factor - 1.0) < _LASTING:
            continue
        text = (
            f"clean steps after {layer} take {factor:.3f} times those before it "
            f"(95 %: {change.low:.3f} to {change.high:.3f})"
        )
        begun = min(row["first_step"] for row in observers)
        earlier = [row for row in clean if row["step"] < begun]
        if len(earlier) >= FEW_STEPS:
            clean = earlier
            text += ": only the earlier ones count"
        warnings.append({"slug": "clean-changed", "text": text})
    return clean, warnings


def slices_beside(
    clean: Sequence[Row], observed: Iterable[int], clock: Clock
) -> tuple[list[list[float]], list[list[float]]]:
    """Return clean step times of the slices right before and right after each observed slice."""
    by_slice = times_by_slice(clean, clock)
    before, after = [], []
    for index in observed:
        earlier = [number for number in by_slice if number < index]
        later = [number for number in by_slice if number > index]
        if earlier and later:
            before.append(by_slice[max(earlier)])
            after.append(by_slice[min(later)])
    return before, after


def compared(
    recorded: Recorded, clean: Clean, slices: Sequence[int]
) -> tuple[list[Row], list[list[float]], Clock]:
    """Return the observed steps, times of the clean slices beside them, and the clock of both."""
    own = timed_steps(recorded.steps_of(slices))
    # Without events in the layer's slices only the host's times can be compared.
    clock = HOST if None in times_of(own, DEVICE) else clean.clock
    before, after = slices_beside(clean.steps, slices, clock)
    return own, before + after or list(times_by_slice(clean.steps, clock).values()), clock


def times_by_slice(steps: Sequence[Row], clock: Clock) -> dict[int, list[float]]:
    """Return step times by the number of their slice."""
    found: dict[int, list[float]] = {}
    for row, seconds in zip(steps, times_of(steps, clock), strict=True):
        found.setdefault(row["slice"], []).append(seconds)
    return found


def in_progress(times: Times, begins: Times, ends: Times) -> list[int]:
    """Return which of the intervals each time lies in, -1 for none; `begins` are in order."""
    at = np.searchsorted(begins, times, side="right") - 1
    return [
        place if place >= 0 and time <= ends[place] else -1
        for place, time in zip(at.tolist(), times, strict=True)
    ]


# --- Why a script has no steps, as far as its own process can tell --------------------------------

# The fact with the number of processes that the script made by `multiprocessing`.
PROCESSES_MADE = "processes_made"


def why_no_steps(recorded: Recorded) -> str | None:
    """Say why no step was recorded; None where one was."""
    if recorded.count("steps"):
        return None
    text, made = "no step was found in the script", recorded.facts.get(PROCESSES_MADE)
    if not made:
        return text
    which = "the process" if made == 1 else f"the {made} processes"
    return f"{text}, nor recorded in {which} that it started by multiprocessing"
