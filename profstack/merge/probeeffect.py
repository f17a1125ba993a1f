"""The probe effects: how much longer a layer made the steps that it watched."""

from __future__ import annotations

from typing import Any

import pandas as pd

from profstack.benchmark.statistics import Ratio, ratio_interval
from profstack.merge.cleansteps import (
    HOST,
    Clean,
    flagged,
    slices_beside,
    times_by_slice,
    times_of,
)
from profstack.merge.recorded import Recorded, Selection, nullable

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
        ratio = ratio_interval(list(times_by_slice(own, clock).values()), beside)
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
    own = own[(own["wall_s"] > 0) & ~flagged(own, "eval", "partial")]
    # Without events in the layer's slices only the host's times can be compared.
    clock = clean.clock if own["device_s"].notna().all() else HOST
    before, after = slices_beside(clean.steps, selection.slices, clock)
    return own, before + after or list(times_by_slice(clean.steps, clock).values()), clock


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
