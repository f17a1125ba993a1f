"""What is noise: how much fresh processes of one program differ on this machine.

Several recordings a side show it themselves. With one a side nothing in them does: steps inside a
process differ 4 to 20 times less than processes do. Then the spread is taken from earlier
comparisons on this machine, which leave it in the user's cache, or from `bench --processes`; where
there is neither, a wide one is assumed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from profstack.cache import keep_cached, read_cached
from profstack.compare.inequalities import waited_share
from profstack.compare.sides import Side
from profstack.stats.processes import (
    Means,
    Prior,
    difference_reach,
    means,
    means_together,
    student_quantile,
    weights,
)
from profstack.stats.summary import FloatArray
from profstack.storage.schema.comparison import Bar, SpreadSource
from profstack.storage.schema.report import Report

CONFIDENCE = 0.95
# Assumed of a machine that nothing is known of: a tenth between two processes is usual, a fifth
# is not (measured on virtual machines with other work).
ASSUMED = Prior(0.05, 3.0)
# The spread of another program is no more than this many processes' worth of knowledge.
_OTHER_PROGRAM = 4.0
# That of the same program on another day.
_SAME_PROGRAM = 12.0
_ASSUMED_WEIGHT = 0.3
# A part of a step, or a row of a table, differs more than the whole: by this share of itself, and
# by this share of the whole, since calibration moves time from one part to another.
_OF_ITSELF, _OF_THE_WHOLE = 0.1, 0.015
# The same where processes are known to differ by less or more, in standard deviations.
_PER_DEVIATION = 2.0
# The whole run has an end and a beginning that depend on the file system's caches.
_RUN_FACTOR = 1.5

# Steps that wait for more of their time say nothing at all.
_MOST_WAITED = 0.95

_STORE = "process-spreads.json"
_MOST_KEPT = 200


@dataclass(frozen=True)
class Change:
    """A figure on both sides with the reach of its difference's interval to each side."""

    before: float
    after: float
    reach: float | None

    @property
    def difference(self) -> float:
        """After less before."""
        return self.after - self.before


@dataclass(frozen=True)
class Known:
    """The spread between processes where the sides do not show it themselves."""

    prior: Prior
    source: SpreadSource


class Noise:
    """Intervals of the differences between two sides."""

    def __init__(self, before: Side, after: Side, confidence: float = CONFIDENCE) -> None:
        self.before, self.after, self.confidence = before, after, confidence
        self.disturbed = max(_disturbance(before), _disturbance(after))

    @cached_property
    def known(self) -> Known:
        """The spread between processes that single recordings have."""
        for side in (self.before, self.after):
            if len(side.medians_s) > 2:
                logs = np.log(np.asarray(side.medians_s))
                return Known(Prior(float(logs.std(ddof=1)), len(logs) - 1), "between processes")
        return stored_spread(self.before.first) or Known(ASSUMED, "assumed")

    def source(self, of: Bar) -> SpreadSource:
        """Return what the interval of the whole is made from."""
        counts = [len(side.totals_s(of)) for side in (self.before, self.after)]
        return "between processes" if min(counts) > 1 else self.known.source

    def ratio_reach(self, of: Bar) -> float | None:
        """Return how far the logarithm of after over before can be from the truth."""
        sides = [side.totals_s(of) for side in (self.before, self.after)]
        if not all(sides):
            return None
        prior = Prior(0.0, 0.0)
        if min(map(len, sides)) == 1:
            factor = _RUN_FACTOR if of == "run" else 1.0
            deviation = self._of_whole(factor, self._inside() if of == "step" else 0.0)
            freedom = float(self.known.prior.freedom)
            if self.known.source == "between processes":
                # One spread for both sides, known from one of them: Student's pooled interval.
                rate = sum(float(np.square(weights(totals)).sum()) for totals in sides)
                return student_quantile(self.confidence, freedom) * deviation * math.sqrt(rate)
            prior = Prior(deviation, freedom)
        both = [means(np.log(np.asarray([totals])), prior) for totals in sides]
        return float(difference_reach(both[0], both[1], self.confidence)[0])

    def _of_whole(self, factor: float = 1.0, inside: float = 0.0) -> float:
        """Return the relative standard deviation of a single recording's step or run."""
        return math.hypot(float(self.known.prior.deviation) * factor, inside, self.disturbed)

    def _inside(self) -> float:
        """Return the relative standard deviation of a median by the steps of its own process."""
        found = [0.0]
        for report in (*self.before.reports, *self.after.reports):
            mark = report["benchmark"]
            low, high, middle = mark["ci95_low_s"], mark["ci95_high_s"], mark["median_s"]
            if low is not None and high is not None and middle:
                found.append((high - low) / 4.0 / middle)
            elif mark["n"] and middle:
                # Too few steps for an interval.
                found.append(0.1)
        return max(found)

    def reaches(
        self,
        before: FloatArray,
        after: FloatArray,
        whole: float,
        *,
        exact: bool = False,
        wholes: bool = False,
        families: int = 1,
        kept: tuple[FloatArray, FloatArray] | None = None,
    ) -> tuple[Means, Means, FloatArray]:
        """Return both means and the reach of the difference of each row, one column a recording.

        NaN is a recording that did not measure the row. Each row is trimmed by its own order; with
        `kept`, the weights of both sides, all rows are parts of one whole and keep these weights.
        `whole` is the step or the run that rows are parts of; `exact` figures, such as counts, have
        no spread but that which is seen, and `wholes` that of a step. With `families` rows the
        intervals hold for all together.
        """
        both = []
        counts = [(~np.isnan(side)).sum(axis=1) for side in (before, after)]
        # These rows do not show their spread on both sides.
        single = np.minimum(counts[0], counts[1]) <= 1
        for which, values in enumerate((before, after)):
            known = Prior(0.0, 0.0)
            if exact:
                # Nothing is known of its spread; it has none as a rule.
                known = Prior(0.0, 1e6)
            elif single.any():
                middle = np.nan_to_num(values).sum(axis=1) / np.maximum(counts[which], 1)
                known = self._row_prior(middle, whole, wholes=wholes)
            freedom = np.where(single, known.freedom, 0.0)
            prior = Prior(np.where(single, known.deviation, 0.0), freedom)
            both.append(
                means_together(values, kept[which], prior) if kept else means(values, prior)
            )
        confidence = 1.0 - (1.0 - self.confidence) / max(families, 1)
        return both[0], both[1], difference_reach(both[0], both[1], confidence)

    def _row_prior(self, middle: FloatArray, whole: float, *, wholes: bool) -> Prior:
        """Return the spread of rows with these means: parts of a whole, or wholes themselves."""
        if wholes:
            return Prior(self._of_whole() * middle, self.known.prior.freedom)
        deviation = float(self.known.prior.deviation)
        of_itself = max(_OF_ITSELF, _PER_DEVIATION * deviation, self.disturbed)
        of_whole = max(_OF_THE_WHOLE, deviation / 2.0)
        return Prior(np.hypot(of_itself * middle, of_whole * whole), self.known.prior.freedom)


def _disturbance(side: Side) -> float:
    """Return the relative standard deviation that waiting for a core adds to a side's steps.

    A step that waits for half of its time takes twice as long: half of that, as a logarithm, is
    taken for the usual error.
    """
    shares = [waited_share(report) or 0.0 for report in side.reports]
    return -math.log(1.0 - min(max(shares), _MOST_WAITED)) / 2.0


# The store of spreads in the user's cache.


def _machine(report: Report) -> str:
    facts = report["environment"]
    names = ("cpu", "usable_cores", "gpu", "device")
    return "|".join(str(facts.get(name)) for name in names)


def _stored() -> list[dict[str, object]]:
    try:
        found = json.loads(read_cached(_STORE) or "[]")
    except ValueError:
        return []
    names = {"machine", "script", "deviation", "freedom", "runs"}
    rows = found if isinstance(found, list) else []
    return [row for row in rows if isinstance(row, dict) and row.keys() >= names]


def stored_spread(report: Report) -> Known | None:
    """Return the spread of this machine from earlier comparisons; the same program's if known."""
    here = [row for row in _stored() if row["machine"] == _machine(report)]
    same = [row for row in here if row["script"] == report["script"]]
    rows = same or here
    if not rows:
        return None
    freedoms = np.array([float(cast(float, row["freedom"])) for row in rows])
    deviations = np.array([float(cast(float, row["deviation"])) for row in rows])
    if not (np.isfinite(deviations).all() and (freedoms > 0).all()):
        return None
    # A machine is not always as it was: what is assumed of any machine counts a little, too.
    freedom = float(freedoms.sum())
    sums = float((freedoms * deviations**2).sum()) + _ASSUMED_WEIGHT * float(ASSUMED.deviation) ** 2
    pooled = math.sqrt(sums / (freedom + _ASSUMED_WEIGHT))
    if same:
        return Known(Prior(pooled, min(freedom, _SAME_PROGRAM)), "this machine")
    # Programs differ: the larger of the usual and the upper quarter.
    wide = max(pooled, float(np.quantile(deviations, 0.75)))
    return Known(Prior(wide, min(freedom, _OTHER_PROGRAM)), "this machine")


def remember_spread(sides: Sequence[Side]) -> None:
    """Keep the spread of sides with several recordings for comparisons of single ones."""
    rows = _stored()
    known = {str(row["runs"]) for row in rows}
    for side in sides:
        runs = "|".join(sorted(str(report["run"]["id"]) for report in side.reports))
        if len(side.medians_s) < 2 or runs in known:
            continue
        deviation = float(np.log(np.asarray(side.medians_s)).std(ddof=1))
        rows.append(
            {
                "machine": _machine(side.first),
                "script": side.first["script"],
                "deviation": deviation,
                "freedom": len(side.medians_s) - 1,
                "runs": runs,
            }
        )
    keep_cached(_STORE, json.dumps(rows[-_MOST_KEPT:]))
