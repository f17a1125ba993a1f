"""The clean steps of a recording, and where its warm-up ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from profstack.stats.blocks import COVERED
from profstack.stats.summary import ratio_interval
from profstack.stats.warmup import Warmup, detect
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import BenchResult, ReportWarning
from profstack.storage.vocabulary import BENCH_FACT, WORKER
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


def warm_steps(recorded: Recorded, unobserved: pd.DataFrame, clean: pd.DataFrame) -> WarmSteps:
    """Find the warm steps among the unobserved ones; `clean` are those of the clean slices."""
    steps = recorded.steps
    # Steps of another plan may come first: the warm-up begins with the first step of this plan.
    begun = int(steps["step"].min()) if len(steps) else 0
    found = _detect(unobserved, begun)
    usual = WarmSteps(found, begun + found.steps, None, _unsettled(found))
    if not found.steps or not len(clean):
        return usual
    left = bool((clean["step"] >= usual.first).any())
    observed = recorded.slices[recorded.slices["layer"].notna() & (recorded.slices["steps"] > 0)]
    if left and (observed["first_step"] + observed["steps"] > usual.first).any():
        return usual
    until = min(usual.first, int(clean["step"].max()) + 1)
    again = _detect(unobserved[unobserved["step"] < until], begun)
    kept = clean[(clean["step"] >= begun + again.steps) & (clean["step"] < until)]
    if left and (not again.settled or len(kept) < FEW_STEPS):
        # The steps after the usual warm-up are surely warm; those before its end may not be.
        return usual
    later = unobserved[unobserved["step"] >= usual.first]
    warnings = [*_changed(kept, later, usual), *_unsettled(again), *usual.warnings]
    return WarmSteps(again, begun + again.steps, until, warnings)


def _detect(unobserved: pd.DataFrame, begun: int) -> Warmup:
    numbers = (unobserved["step"] - begun).tolist()
    return detect(unobserved["wall_s"].tolist(), indices=numbers)


def _unsettled(warmup: Warmup) -> list[ReportWarning]:
    return [] if warmup.settled else [{"slug": "warmup-unsettled", "text": warmup.reason}]


def _changed(kept: pd.DataFrame, later: pd.DataFrame, usual: WarmSteps) -> list[ReportWarning]:
    """Warn that later steps take another time than those that count."""
    before_s, after_s = float(kept["wall_s"].median()), float(later["wall_s"].median())
    if not len(later) or abs(after_s / before_s - 1.0) < _OTHER_STEPS:
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
# A pause is of the run, and not of the step: it takes so many medians, and without pauses the mean
# step is shorter by more than a tenth. One or two among the steps may be as much as the first share
# of them, those that come again (as a checkpoint each 50 steps does) the second.
PAUSE = 5.0
MOST_PAUSES = 2
RARE, RARE_AGAIN = 0.05, 0.02
_MATTERS = 0.1
Clock = Literal["host", "device"]
Times = npt.NDArray[np.float64]
HOST: Final = "host"
DEVICE: Final = "device"


@dataclass
class Clean:
    """The steps that count as clean, and the warnings about them."""

    steps: pd.DataFrame
    warmup_steps: int | None
    warnings: list[ReportWarning]
    # The first step that is warm.
    warm_from: int = 0
    # The result of `profstack bench`, measured before any layer, if this is its recording.
    bench: BenchResult | None = None
    # The clock of the step times: a host that runs ahead of a device only measures launches.
    clock: Clock = HOST
    # Rows of the steps left out as pauses.
    paused: pd.DataFrame = field(default_factory=pd.DataFrame)

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
        return float(times_of(self.steps, self.clock).median()) if len(self.steps) else None


def times_of(steps: pd.DataFrame, clock: Clock) -> pd.Series[float]:
    """Return the seconds of each step by the host's clock or the device's."""
    return steps["device_s" if clock == DEVICE else "wall_s"].astype(float)


def clean_steps(recorded: Recorded) -> Clean:
    """Choose the clean steps: unobserved, warm, settled, without evaluation in them.

    An import has none such: its steps are those of the trace, under the profiler that wrote it.
    """
    steps = recorded.steps
    timed = timed_steps(steps)
    if recorded.is_import:
        return Clean(timed, None, [])
    unobserved = timed[timed["kind"].isin(UNOBSERVED)]
    clean = timed[timed["kind"] == "clean"]
    warm = warm_steps(recorded, unobserved, clean)
    bench: BenchResult | None = recorded.facts.get(BENCH_FACT)
    is_warm = bench and bench["figures"] and bench["figures"].get("warmup_settled")
    if bench is not None and is_warm and not bench.get("layers_apart"):
        # The callable was warm before the first layer began, in the same process.
        begun = int(steps["step"].min()) if len(steps) else 0
        warm = WarmSteps(Warmup(0, 0, True, "it was warm when the layers began"), begun)
    clean = clean[clean["step"] >= warm.first]
    if warm.until is not None:
        clean = clean[clean["step"] < warm.until]
    warnings = warm.warnings
    settled = clean[~flagged(clean, "switch")]
    if len(settled) >= 3:
        clean = settled
    elif len(clean):
        text = (
            f"the run gave {len(clean)} clean steps, each right after an observer: "
            "the clean time is an upper bound; let the script run more steps"
        )
        warnings = [{"slug": "unsettled-clean-steps", "text": text}, *warnings]
    clock: Clock = HOST
    if not recorded.facts.get("synchronised") and len(clean):
        # As `profstack bench` chooses it (see `Samples.series`).
        device_s = times_of(clean, DEVICE)
        is_known = device_s.notna().all() and device_s.sum() >= COVERED * clean["wall_s"].sum()
        clock = DEVICE if is_known else HOST
    clean, paused, pauses = _without_pauses(recorded, clean, clock)
    clean, lasting = _before_the_change(recorded, clean, clock)
    # Without steps there is nothing to warn of.
    warnings = [*warnings, *pauses, *lasting] if len(steps) else []
    return Clean(clean, warm.warmup.steps, warnings, warm.first, bench, clock, paused)


def flagged(steps: pd.DataFrame, *words: str) -> pd.Series[bool]:
    """Return which steps have one of the flags."""
    return steps["flags"].map(lambda flags: not set(flags.split()).isdisjoint(words)).astype(bool)


def timed_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the loop's steps with a time of their own, whole and without evaluation in them."""
    timed: pd.DataFrame = steps[(steps["wall_s"] > 0) & ~flagged(steps, "eval", "partial", "loop")]
    return timed


def rare_pauses(recorded: Recorded, times: pd.Series[float]) -> pd.Series[bool]:
    """Return which times of steps are rare pauses.

    With DataLoader workers a rare long step is the wait for all of them: it is none.
    """
    # Shorter ones are the noise of a loaded machine.
    long = times > max(PAUSE * times.median(), times.max() / 3)
    most = max(min(MOST_PAUSES, RARE * len(times)), RARE_AGAIN * len(times))
    has_workers = (recorded.frames["thread_times"]["kind"] == WORKER).any()
    return long & (long.sum() <= most) & (not has_workers)


def _without_pauses(
    recorded: Recorded, clean: pd.DataFrame, clock: Clock
) -> tuple[pd.DataFrame, pd.DataFrame, list[ReportWarning]]:
    """Return the clean steps without rare pauses, those that hold one, and a warning of them."""
    times = times_of(clean, clock).fillna(clean["wall_s"])
    long = rare_pauses(recorded, times)
    kept, paused = clean[~long], clean[long]
    if not len(paused) or times.mean() <= (1 + _MATTERS) * times[~long].mean():
        return clean, clean[:0], []
    longest = format_seconds(float(times.max()))
    took = f"1 took {longest}" if len(paused) == 1 else f"{len(paused)} took up to {longest}"
    text = (
        f"of {len(clean)} clean steps {took}, against a median of "
        f"{format_seconds(float(times[~long].median()))}: such a pause is rare, and no part of the "
        "step's figures; the steps much slower than a clean one are listed"
    )
    return kept, paused, [{"slug": "pauses", "text": text}]


def _before_the_change(
    recorded: Recorded, clean: pd.DataFrame, clock: Clock
) -> tuple[pd.DataFrame, list[ReportWarning]]:
    """Drop clean steps after an observer that differ from those before it, and warn of that."""
    warnings: list[ReportWarning] = []
    for layer in recorded.slices["layer"].dropna().unique():
        observers = recorded.slices[recorded.slices["layer"] == layer]
        observers = observers[observers["round"] > 1]
        before, after = slices_beside(clean, observers["slice"].tolist(), clock)
        change = ratio_interval(after, before)
        factor = change.factor if change.distinguishable else None
        if factor is None or abs(factor - 1.0) < _LASTING:
            continue
        text = (
            f"clean steps after {layer} take {factor:.3f} times those before it "
            f"(95 %: {change.low:.3f} to {change.high:.3f})"
        )
        earlier = clean[clean["step"] < observers["first_step"].min()]
        if len(earlier) >= FEW_STEPS:
            clean = earlier
            text += ": only the earlier ones count"
        warnings.append({"slug": "clean-changed", "text": text})
    return clean, warnings


def slices_beside(
    clean: pd.DataFrame, observed: Sequence[int], clock: Clock
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
) -> tuple[pd.DataFrame, list[list[float]], Clock]:
    """Return the observed steps, times of the clean slices beside them, and the clock of both."""
    own = timed_steps(recorded.steps_of(slices))
    # Without events in the layer's slices only the host's times can be compared.
    clock = clean.clock if own["device_s"].notna().all() else HOST
    before, after = slices_beside(clean.steps, slices, clock)
    return own, before + after or list(times_by_slice(clean.steps, clock).values()), clock


def times_by_slice(steps: pd.DataFrame, clock: Clock) -> dict[int, list[float]]:
    """Return step times by the number of their slice."""
    found: dict[int, list[float]] = {}
    columns = zip(steps["slice"].tolist(), times_of(steps, clock).tolist(), strict=True)
    for number, seconds in columns:
        found.setdefault(int(number), []).append(seconds)
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
    if len(recorded.frames["steps"]):
        return None
    text, made = "no step was found in the script", recorded.facts.get(PROCESSES_MADE)
    if not made:
        return text
    which = "the process" if made == 1 else f"the {made} processes"
    return f"{text}, nor recorded in {which} that it started by multiprocessing"
