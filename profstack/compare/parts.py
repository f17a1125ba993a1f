"""The parts of the step and of the run on both sides: they add up to the difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from profstack.compare.noise import Noise
from profstack.compare.places import WAITS, Found
from profstack.compare.sides import Side
from profstack.stats.processes import weights
from profstack.stats.summary import FloatArray
from profstack.storage.schema.comparison import Bar, PartChange, PartPlace

# Differences below this share of the whole are no news, however exactly they are known.
_LEAST = 0.002


@dataclass(frozen=True)
class Totals:
    """The step or the run on both sides, in seconds, on one grid with its parts."""

    before_s: float
    after_s: float
    parts: list[PartChange]


def totals(
    of: Bar,
    before: Side,
    after: Side,
    noise: Noise,
    places_of: Callable[[str, float], Sequence[Found]],
) -> Totals | None:
    """Return the step or the run with its parts; None where a side has none.

    `places_of` gives the places of a part, by its name and its difference in seconds.
    """
    before_s, after_s = before.mean_s(of), after.mean_s(of)
    bars = before.bars(of), after.bars(of)
    if before_s is None or after_s is None or not all(bars):
        return None
    names = list(dict.fromkeys(name for side in bars for bar in side for name in bar))
    # One grid for both sides: then differences are exact as well.
    whole = max(before_s, after_s)
    digit = math.ulp(whole)
    grids = [round(each / digit) * digit for each in (before_s, after_s)]
    was_values, now_values = _matrix(names, bars[0]), _matrix(names, bars[1])
    kept = _weights(before, of, was_values), _weights(after, of, now_values)
    means = [
        _add_up(was_values @ kept[0], grids[0], digit),
        _add_up(now_values @ kept[1], grids[1], digit),
    ]
    _, _, reach = noise.reaches(was_values, now_values, whole, families=len(names), kept=kept)
    parts = []
    for at, name in enumerate(names):
        was, now = means[0][at], means[1][at]
        difference = now - was
        beyond = bool(abs(difference) > max(float(reach[at]), _LEAST * whole))
        # What has most of the difference is named, too: the whole may be beyond noise.
        is_most = 2.0 * abs(difference) >= abs(grids[1] - grids[0]) > 0.0
        places: list[PartPlace] = [
            {"file": place.file, "line": place.line, "cause": place.cause}
            for place in (places_of(name, difference) if beyond or is_most else ())
        ]
        first = places[0] if places else PartPlace(file=None, line=None, cause=None)
        parts.append(
            PartChange(
                of=of,
                name=name,
                before_s=was,
                after_s=now,
                difference_s=difference,
                low_s=difference - float(reach[at]),
                high_s=difference + float(reach[at]),
                beyond_noise=beyond,
                **first,
                places=places,
            )
        )
    return Totals(grids[0], grids[1], parts)


# Parts of the run that are the step's.
_WAITING, _STEPS = "waiting for data", "steps"


def same_in_step(part: str, difference_s: float, step: Sequence[PartChange]) -> list[Found]:
    """Return the places that the step has for the same part of the run; none where it has none.

    The whole of the steps has those of the part of the step that changed most.
    """
    if part not in (_WAITING, _STEPS):
        return []
    same = [
        each
        for each in step
        if each["beyond_noise"]
        and each["places"]
        and (each["name"] in WAITS) == (part == _WAITING)
        and (each["difference_s"] > 0) == (difference_s > 0)
    ]
    most = max(same, key=lambda each: abs(each["difference_s"]), default=None)
    return [] if most is None else [Found(**place) for place in most["places"]]


def _weights(side: Side, of: Bar, matrix: FloatArray) -> FloatArray:
    """Return the weight of each recording; those of the whole where it has as many processes."""
    found = side.totals_s(of)
    return weights(found if len(found) == matrix.shape[1] else matrix.sum(axis=0).tolist())


def _matrix(names: Sequence[str], bars: Sequence[dict[str, float]]) -> FloatArray:
    """Return the time of each part, one column per recording; a missing part takes no time."""
    return np.array([[bar.get(name, 0.0) for bar in bars] for name in names], dtype=np.float64)


def _add_up(values: FloatArray, whole: float, digit: float) -> list[float]:
    """Return values on the grid that add up to the whole, what is missing at the largest one."""
    scaled = values * (whole / total) if (total := float(values.sum())) else values
    exact = [round(float(value) / digit) * digit for value in scaled]
    exact[int(np.argmax(values))] += whole - sum(exact)
    return exact
