"""The clean steps of a recording: which of them count, and whose clock tells their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from profstack.benchfolder import FACT
from profstack.benchmark.blocks import COVERED
from profstack.benchmark.doubts import FEW_STEPS
from profstack.benchmark.statistics import compare_before_after
from profstack.benchmark.warmup import Warmup
from profstack.merge.recorded import Recorded
from profstack.merge.warmsteps import WarmSteps, warm_steps

# A change left behind by an observer is worth a warning from this size on.
_LASTING = 0.02
HOST, DEVICE = "host", "device"


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
    return DEVICE if known and device.sum() >= COVERED * steps["wall_s"].sum() else HOST


def clean_steps(recorded: Recorded) -> Clean:
    """Choose the clean steps: unobserved, warm, settled, without evaluation in them."""
    steps = recorded.steps
    warnings: list[dict[str, str]] = []
    unobserved = steps[steps["kind"].isin(["startup", "settle", "clean", "watch"])]
    unobserved = unobserved[(unobserved["wall_s"] > 0) & ~flagged(unobserved, "eval", "partial")]
    clean = steps[(steps["kind"] == "clean") & (steps["wall_s"] > 0)]
    clean = clean[~flagged(clean, "eval", "partial")]
    warm = warm_steps(recorded, unobserved, clean)
    bench = recorded.facts.get(FACT)
    is_warm = bench is not None and (bench["figures"] or {}).get("warmup_settled")
    if bench is not None and is_warm and not bench.get("layers_apart"):
        # The callable was warm before the first layer was begun, in the same process.
        begun = int(steps["step"].min()) if len(steps) else 0
        warm = WarmSteps(Warmup(0, 0, True, "it was warm when the layers began"), begun)
    clean = clean[clean["step"] >= warm.first]
    if warm.until is not None:
        clean = clean[clean["step"] < warm.until]
    settled = clean[~flagged(clean, "switch")]
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
    warnings += warm.warnings
    clock = HOST if recorded.facts.get("synchronised") else _clock_of(clean)
    clean, lasting = _before_the_change(recorded, clean, clock)
    if not len(steps):
        # There is nothing that could be wrong with them.
        warnings, lasting = [], []
    found = warnings + lasting
    warmup = warm.warmup
    return Clean(clean, warmup.steps, warmup.settled, found, warm.first, bench, clock)


def flagged(steps: pd.DataFrame, *words: str) -> pd.Series[bool]:
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
        before, after = slices_beside(clean, observers["slice"].tolist(), clock)
        change = compare_before_after(before, after)
        if not change.distinguishable or change.factor is None:
            continue
        if abs(change.factor - 1.0) < _LASTING:
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


def slices_beside(
    clean: pd.DataFrame, observed: Sequence[int], clock: str
) -> tuple[list[list[float]], list[list[float]]]:
    """Clean step times of the slices right before and right after each observed slice."""
    by_slice = times_by_slice(clean, clock)
    before, after = [], []
    for index in observed:
        earlier = [number for number in by_slice if number < index]
        later = [number for number in by_slice if number > index]
        if earlier and later:
            before.append(by_slice[max(earlier)])
            after.append(by_slice[min(later)])
    return before, after


def times_by_slice(steps: pd.DataFrame, clock: str) -> dict[int, list[float]]:
    """Step times by the number of their slice."""
    times: dict[int, list[float]] = {}
    seconds = times_of(steps, clock).tolist()
    for index, took_s in zip(steps["slice"].tolist(), seconds, strict=True):
        times.setdefault(int(index), []).append(took_s)
    return times
