"""Which rank makes the others wait: by how much, since when, in which of its steps.

In a collective every rank waits for the last to arrive, so all steps take equally long. What tells
the ranks apart is their own time: the step less the wait in collectives. The rank with the most is
the straggler, if the others really wait that much longer than it does. A rank that is late in some
steps alone shows in no median: its waits for data and its CPU time are compared step by step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from profstack.ranks.rank import OWN_TIMES, Rank
from profstack.stats.summary import FloatArray
from profstack.storage.schema.rank_rows import Straggler

# A rank is late from this share of the step on. Equal ranks on two shared cores differ by less.
LEAST_LATE = 0.15
# Of its lateness, the part by which the others must be seen to wait longer than it does.
_WAITED_FOR = 0.5
# The clean steps agree where so many are late, by this part of its lateness in the median.
_MOST_STEPS, _AGREES = 0.75, 0.3
# Lateness that no clean step can show, of a sleep or a file, is believed from this share on.
_VERY_LATE = 0.4
# A rank that is late by chance is not late by so many times as much as any other.
_BY_FAR = 3.0
# A step in which a rank is late by more than this share of a usual one is a late step.
_LATE_STEP = 0.5
# Lateness in some steps is news from this share of the time of all steps on.
_LEAST_RARE = 0.05
# Late steps that are more than this share are nearly all: then it is late from some step on.
_NEARLY_ALL = 0.8
# Where a usual step is late by this part of the late ones, it is late in all.
_NOT_RARE = 0.25
# Among more ranks than this one alone does not move the median: it need not be left out.
MANY = 16
# Late steps are those beyond so many usual differences, and one rank's by chance up to this.
_BEYOND_NOISE, _BY_CHANCE = 4.0, 0.05
# Fewer steps on either side of a change say nothing of it.
_FEWEST = 8


def lateness(ranks: Sequence[Rank]) -> dict[int, float]:
    """Return by how much each rank's own time exceeds the median of the others', in seconds."""
    own = {rank.number: rank.own_s for rank in ranks if rank.own_s is not None}
    return {
        number: seconds - median(other for key, other in own.items() if key != number)
        for number, seconds in own.items()
        if len(own) > 1
    }


def largest_difference(rank: Rank, others: Sequence[Rank]) -> tuple[str, float] | None:
    """Return the part of a rank's step that exceeds the others' median most, and by how much."""
    found = [
        (seconds - median(each.work.get(name, 0.0) for each in others), name)
        for name, seconds in rank.work.items()
        if others
    ]
    most, name = max(found, default=(0.0, ""))
    return (name, most) if most > 0.0 else None


def straggler(ranks: Sequence[Rank]) -> Straggler | None:
    """Return the rank that makes the others wait; None where none does, or nobody knows."""
    steps = StepTimes(ranks)
    late = lateness(ranks)
    by_steps = _by_steps(ranks, steps)
    if by_steps is not None and by_steps["rare"] is not None:
        # A traced step may have been one of them: that does not make it late in all.
        return by_steps
    number = max(late, key=lambda key: late[key], default=None)
    rank = next((each for each in ranks if each.number == number), None)
    if number is not None and rank is not None and _is_late(rank, late[number], ranks, steps):
        since, share = steps.change(number, (rank.step_s or 0.0) * _LATE_STEP)
        return {
            "rank": number,
            # Steps of all kinds were traced: those that are late have all of it.
            "late_s": late[number] / share,
            "since_step": since,
            "rare": None,
            "whole_node": _whole_node(rank, late, ranks),
        }
    return by_steps


def _is_late(rank: Rank, late_s: float, ranks: Sequence[Rank], steps: StepTimes) -> bool:
    """Return whether a rank is late, the others wait for it, and its own steps show why.

    How long ranks wait is known from a few traced steps, which a busy machine disturbs: either the
    clean steps agree, most of them and by much of it, or it is very late by one part of the step.
    """
    waits = {each.number: each.waits_s for each in ranks if each.waits_s is not None}
    step_s = median(each.step_s or 0.0 for each in ranks)
    others = [seconds for key, seconds in waits.items() if key != rank.number]
    waited = median(others) - waits[rank.number]
    if late_s < LEAST_LATE * step_s or waited < _WAITED_FOR * late_s:
        return False
    for late in (steps.late_s(rank.number, name) for name in OWN_TIMES):
        enough = len(late) >= _FEWEST and float(np.median(late)) >= _AGREES * late_s
        if enough and float((late > 0.0).mean()) >= _MOST_STEPS:
            return True
    part = largest_difference(rank, [each for each in ranks if each is not rank])
    return late_s >= _VERY_LATE * step_s and part is not None and part[1] >= _AGREES * late_s


def _whole_node(rank: Rank, late: Mapping[int, float], ranks: Sequence[Rank]) -> bool:
    """Return whether all ranks of its machine, of several machines, are late like it."""
    node = rank.node
    nodes = {each.number: each.node for each in ranks}
    if node is None or len({*nodes.values()}) < 2:
        return False
    same = [late[each] for each in late if nodes[each] == node]
    return len(same) > 1 and min(same) >= late[rank.number] / 2.0


def _by_steps(ranks: Sequence[Rank], steps: StepTimes) -> Straggler | None:
    """Return the rank that is late by its own steps, in some or from one on, if it costs much.

    On a busy machine each rank is late now and then: it has to be so by far more than the others,
    and more often than by chance.
    """
    step_s = median(rank.step_s or 0.0 for rank in ranks)
    late = {(rank.number, name): steps.late_s(rank.number, name)
            for rank in ranks for name in OWN_TIMES}  # fmt: skip
    limits = {
        name: max(_LATE_STEP * step_s, _BEYOND_NOISE * steps.noise_s(name)) for name in OWN_TIMES
    }
    lost = {key: float(each[each >= limits[key[1]]].sum()) for key, each in late.items()}
    number, name = max(lost, key=lambda key: lost[key])
    own, limit = late[number, name], limits[name]
    at = np.flatnonzero(own >= limit)
    most = max((seconds for key, seconds in lost.items() if key[0] != number), default=0.0)
    lost_s = lost[number, name]
    others = sum(int((each >= limit).sum()) for key, each in late.items()
                 if key[0] != number and key[1] == name)  # fmt: skip
    if lost_s < _LEAST_RARE * step_s * len(own) or lost_s < _BY_FAR * most or limit <= 0.0:
        return None
    numbers = steps.numbers[at]
    every = math.gcd(*np.diff(numbers).tolist()) if len(at) > 1 else 0
    # Steps at random would hardly be a multiple of the same number apart.
    regular = every ** (2.0 - len(at)) if every > 1 else 1.0
    if chance(len(at), others, len(ranks)) * regular > _BY_CHANCE:
        return None
    (since, _), usual = steps.change(number, limit), float(np.median(own))
    slow = float(np.median(own[at]))
    if since is not None or usual > _NOT_RARE * slow:
        return {
            "rank": number,
            "late_s": slow if since is not None else usual,
            "since_step": since,
            "rare": None,
            "whole_node": False,
        }
    return {
        "rank": number,
        "late_s": lost_s / len(own),
        "since_step": None,
        "rare": {
            "kind": "wait" if name == "wait_s" else "cpu",
            "share": len(at) / len(own),
            "every": every if every > 1 else None,
            "first_step": int(numbers[0]),
            "late_s": slow,
        },
        "whole_node": False,
    }


def chance(own: int, others: int, ranks: int) -> float:
    """Return how likely one of equal ranks has so many of all late steps, or more."""
    total, share = own + others, 1.0 / ranks
    if ranks < 2:
        return 1.0
    # By logarithms: of a thousand steps the ways are more than a number can hold.
    tail = sum(
        math.exp(
            math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)
            + count * math.log(share) + (total - count) * math.log1p(-share)
        )
        for count in range(own, total + 1)
    )  # fmt: skip
    return min(ranks * tail, 1.0)


class StepTimes:
    """Waits and CPU times of the steps that all ranks have in common, step by step.

    `numbers` are the steps. In launches whose ranks record together their slices begin at the same
    steps: what a layer adds to a step it adds on all of them.
    """

    def __init__(self, ranks: Sequence[Rank]) -> None:
        common = set.intersection(*(set(rank.warm) for rank in ranks)) if ranks else set()
        self.numbers = np.array(sorted(common), dtype=np.int64)
        self._values: dict[str, dict[int, FloatArray]] = {
            name: {
                rank.number: np.array(
                    [getattr(rank.warm[at], name) for at in self.numbers.tolist()], np.float64
                )
                for rank in ranks
            }
            for name in ("wall_s", *OWN_TIMES)
        }
        self._known = {
            name: not any(np.isnan(each).any() for each in values.values())
            for name, values in self._values.items()
        }
        self._medians: dict[str, FloatArray] = {}

    def late_s(self, number: int, name: str) -> FloatArray:
        """Return by how much a rank's `wait_s` or `cpu_s` exceeds the others' median, by step.

        Empty where it is not known of all ranks.
        """
        values = self._values[name]
        if len(values) < 2 or not self._known[name]:
            return np.zeros(0)
        if len(values) > MANY:
            usual = self._medians.setdefault(name, np.median([*values.values()], axis=0))
        else:
            others = [each for key, each in values.items() if key != number]
            usual = np.median(others, axis=0)
        return np.asarray(values[number] - usual)

    def noise_s(self, name: str) -> float:
        """Return how much a rank's lateness varies from step to step; 0 where it is not known."""
        late = (self.late_s(number, name) for number in self._values[name])
        apart = [np.abs(each - np.median(each)) for each in late if len(each)]
        # Half of a normal distribution lies within 0.67 deviations.
        return float(np.median(np.concatenate(apart))) / 0.67 if apart else 0.0

    def largest(self, name: str, number: int, at: NDArray[np.int64]) -> float | None:
        """Return the largest `wall_s`, `wait_s` or `cpu_s` of a rank in some of the steps."""
        values = self._values[name][number][at]
        return None if np.isnan(values).all() else float(np.nanmax(values))

    def change(self, number: int, limit_s: float) -> tuple[int | None, float]:
        """Return the step from which on a rank is late by `limit_s`, and the share of such steps.

        None: from the first on.
        """
        for late in (self.late_s(number, name) >= limit_s for name in OWN_TIMES):
            if (at := change_at(late)) is not None:
                return int(self.numbers[at]), 1.0 - at / len(late)
        return None, 1.0


def change_at(late: NDArray[np.bool_]) -> int | None:
    """Return the place from which on nearly all steps are late, and before which nearly none is."""
    counts = np.cumsum(late)
    for at in range(_FEWEST, len(late) - _FEWEST):
        before = counts[at - 1] / at
        after = (counts[-1] - counts[at - 1]) / (len(late) - at)
        if late[at] and before <= 1.0 - _NEARLY_ALL and after >= _NEARLY_ALL:
            return at
    return None
