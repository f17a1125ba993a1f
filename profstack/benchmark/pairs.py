"""Two ways of timing the same call, in turn: what each would have reported, over and over.

A report is the one number that a person would write down: the median of a block of calls, for
one. The machine's speed drifts by more than most ways of timing differ, so each report of the one
way stands next to one of the other, and which of them comes first changes from pair to pair.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

from profstack.benchmark.blocks import timed_block
from profstack.benchmark.clock import Clock
from profstack.benchmark.measure import Policy
from profstack.benchmark.statistics import Ratio, pooled_ratio

Report = Callable[[], float]

# The fewest pairs that give a 95 % interval, and as many as are taken where time allows.
FEWEST, MOST = 6, 12
_MOST_SAMPLES = 50
# A sample is at least this long: reading the clock takes 0.1 us.
_SHORTEST_SAMPLE_S = 50e-6
# What fills the caches again after the other way had them; longer calls do so by themselves.
_SETTLE_S, _SETTLES_ITSELF_S, _MOST_SETTLING = 3e-3, 0.1, 10
# The share of the time for a benchmark that one comparison may take.
_SHARE = 0.25


@dataclass(frozen=True)
class Plan:
    """How much is measured: `rounds` pairs of blocks of `samples` samples of `calls` calls.

    `settling` calls go before each block. After `seconds` no pair is begun, but `FEWEST` are taken
    whatever they take.
    """

    rounds: int
    samples: int
    calls: int
    settling: int
    seconds: float


def plan_for(call_s: float, policy: Policy) -> Plan:
    """The plan for calls that take `call_s` seconds."""
    seconds = policy.max_s * _SHARE
    call_s = max(call_s, 1e-9)
    calls = max(1, math.ceil(_SHORTEST_SAMPLE_S / call_s))
    affordable = seconds / (2 * calls * call_s)
    settling = 0
    if call_s < _SETTLES_ITSELF_S:
        settling = min(max(math.ceil(_SETTLE_S / call_s), 1), _MOST_SETTLING)
    rounds = max(FEWEST, min(MOST, int(affordable)))
    samples = max(1, min(_MOST_SAMPLES, int(affordable / rounds)))
    return Plan(rounds, samples, calls, settling, seconds)


def typical_s(call: Callable[[], Any], clock: Clock) -> float:
    """About what a call takes, from three after the first."""
    return float(median(timed_block(call, 4, 1, clock).host_s[1:]))


def settled(call: Callable[[], Any], plan: Plan, clock: Clock) -> None:
    """Fill the caches with this call's own things; the device is idle afterwards."""
    for _ in range(plan.settling):
        call()
    clock.synchronize()


def block_s(call: Callable[[], Any], plan: Plan, clock: Clock) -> list[float]:
    """One block as it is right: warm, every sample waited for; in seconds per call."""
    settled(call, plan, clock)
    return timed_block(call, plan.samples, plan.calls, clock, with_cpu=False).host_s


def interleave(wrong: Report, right: Report, plan: Plan, clock: Clock) -> list[tuple[float, float]]:
    """Pairs of reports (wrong, right), the order changing from pair to pair."""
    pairs: list[tuple[float, float]] = []
    began = clock.now()
    for number in range(plan.rounds):
        if number % 2:
            first = right()
            pairs.append((wrong(), first))
        else:
            first = wrong()
            pairs.append((first, right()))
        if number + 1 >= FEWEST and clock.now() - began > plan.seconds:
            break
    if not gc.isenabled():
        gc.collect()
    return pairs


def figures(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """Mean and deviation of both sides, and the factor between them with its interval."""
    wrong, right = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    ratio = pooled_ratio([([one], [other]) for one, other in pairs])
    return side_figures("wrong", wrong) | side_figures("right", right) | ratio_figures(ratio)


def side_figures(side: str, reports: list[float]) -> dict[str, Any]:
    """Mean, deviation and number of one side's reports."""
    return {
        f"{side}_s": fmean(reports),
        f"{side}_std_s": stdev(reports) if len(reports) > 1 else None,
        f"n_{side}": len(reports),
    }


def ratio_figures(ratio: Ratio) -> dict[str, Any]:
    """A ratio as a row of the table has it."""
    return {"factor": ratio.factor, "ci95_low": ratio.low, "ci95_high": ratio.high}
