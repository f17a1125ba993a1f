"""Several ways of running the same thing, timed in turn: the loop of a comparison of variants.

Each is warmed up by itself, then all are measured in rounds of one block each, in an order that
rotates from round to round: what the machine does meanwhile falls on all alike, and a speedup rests
on blocks that stood next to each other.
"""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass, field, replace
from statistics import median

from profstack.benchmark.blocks import SYNCHRONISED, Samples, timed_block
from profstack.benchmark.clock import Clock
from profstack.benchmark.conditions import undisturbed
from profstack.benchmark.measure import Measured, Policy, measure
from profstack.benchmark.statistics import Ratio, median_interval, pooled_ratio
from profstack.benchmark.variantbuild import EAGER, Built, why_failed
from profstack.benchmark.variantcounts import Counts, Graphs
from profstack.benchmark.variantresults import Compared

# Fewer pairs of blocks than 6 give no interval of a speedup; with 10 one bad block does no harm.
_ROUNDS = 10
# A block is long enough for one interrupt not to be most of it, and short beside a drift.
_BLOCK_S, _FEWEST, _MOST = 10e-3, 5, 50
# The call after another variant's finds cold caches; of longer calls that is a small part.
_SHORT_CALL_S = 50e-3
_GROWTH = 1.25


@dataclass
class Variant:
    """One way of running the subject, as far as it has come.

    `failure` is its status and reason where it has failed. `ready_s` is what building it and its
    first call took, `warm_s` a typical call at the end of its warm-up. `measured` is None until
    then, and again once it has failed.
    """

    name: str
    built: Built | None = None
    failure: tuple[str, str] | None = None
    ready_s: float = 0.0
    warm_s: float = 0.0
    measured: Measured | None = None
    result: Compared = field(default_factory=lambda: Compared(None))
    compiled: Graphs | None = None
    counts: Counts = field(default_factory=Counts)
    notes: list[str] = field(default_factory=list)

    def fail(self, error: Exception) -> None:
        """It is out; torch's own frames in the traceback would keep its tensors alive."""
        error.__traceback__ = None
        self.failure = why_failed(error)

    @property
    def blocks(self) -> list[list[float]]:
        """Its samples in seconds per call, block by block."""
        assert self.measured is not None  # of one that has not failed
        series, found, start = self.measured.series_s, [], 0
        for size in self.measured.samples.blocks:
            found.append(series[start : start + size])
            start += size
        return found


def measure_in_turn(variants: list[Variant], policy: Policy, clock: Clock, rotate: int) -> None:
    """Warm each variant up by itself, then measure all of them in turn."""
    for variant in variants:
        if variant.built is not None and variant.failure is None:
            try:
                _warm_up(variant, policy, clock)
            except Exception as error:
                _drop(variant, error)
    with undisturbed(collect=policy.collect):
        began, number = clock.now(), 0
        looked = _ROUNDS if policy.repeat is None else min(_ROUNDS, policy.repeat)
        while True:
            alive = [variant for variant in variants if variant.measured is not None]
            _round(alive, number, rotate, policy, clock)
            number += 1
            if policy.repeat is None and clock.now() - began > policy.max_s * len(alive):
                return
            if number >= looked:
                if policy.repeat is not None or _is_enough(variants, policy):
                    return
                looked = math.ceil(looked * _GROWTH)


def _round(alive: list[Variant], number: int, rotate: int, policy: Policy, clock: Clock) -> None:
    """A block of each variant; one that fails has no further."""
    size, first = _size(alive, policy, number), (number + rotate) % len(alive)
    for variant in alive[first:] + alive[:first]:
        try:
            _block(variant, size, policy, clock)
        except Exception as error:
            _drop(variant, error)
    if not policy.collect:
        # What the blocks have left is young: to go through all of torch's objects takes 0.2 s.
        gc.collect(1)


def _drop(variant: Variant, error: Exception) -> None:
    """A variant that fails while it is measured is out; eager's errors are the user's to see."""
    if variant.name == EAGER:
        raise error
    variant.fail(error)
    variant.measured = None


def _warm_up(variant: Variant, policy: Policy, clock: Clock) -> None:
    assert variant.built is not None  # the caller has looked
    # One sample: what the loop of a benchmark does before its samples is what is wanted of it.
    warm = measure(variant.built.step, replace(policy, repeat=1), clock)
    later = warm.warmup_s[len(warm.warmup_s) // 2 :]
    variant.warm_s = float(median(later))
    variant.measured = replace(warm, samples=Samples(warm.samples.calls))
    if not warm.warmup.settled:
        variant.notes.append(f"its warm-up had not ended: {warm.warmup.reason}")


def _size(alive: list[Variant], policy: Policy, number: int) -> int:
    """Samples in each block of this round; as many of every variant."""
    if policy.repeat is not None:
        rounds = min(_ROUNDS, policy.repeat)
        return policy.repeat // rounds + (number < policy.repeat % rounds)
    measured = [(one.measured, one.warm_s) for one in alive]
    sample_s = max(warm_s * (one.samples.calls if one else 1) for one, warm_s in measured)
    if sample_s * _FEWEST * _ROUNDS > policy.max_s:
        return max(1, int(policy.max_s / (sample_s * _ROUNDS)))
    fewest = max(_FEWEST, math.ceil(policy.min_samples / _ROUNDS))
    return min(max(fewest, math.ceil(_BLOCK_S / sample_s)), max(_MOST, fewest))


def _block(variant: Variant, size: int, policy: Policy, clock: Clock) -> None:
    """One more block of a variant's samples, its own things in the caches."""
    assert variant.built is not None  # it is alive
    assert variant.measured is not None
    step = variant.built.step
    if variant.warm_s < _SHORT_CALL_S:
        step()
    samples = variant.measured.samples
    samples.extend(
        timed_block(
            step,
            size,
            samples.calls,
            clock,
            synchronised=policy.mode == SYNCHRONISED,
            with_cpu=False,
            # A fixed count is the user's own word.
            longest_s=policy.max_s if policy.repeat is None else math.inf,
        )
    )


def _is_enough(variants: list[Variant], policy: Policy) -> bool:
    """Whether every median and every speedup is known as well as was asked for."""
    alive = [variant for variant in variants if variant.measured is not None]
    eager = next(variant for variant in alive if variant.name == EAGER)
    if sum(map(len, eager.blocks)) >= policy.max_samples:
        return True
    for variant in alive:
        series = variant.measured.series_s if variant.measured else []
        interval, middle = median_interval(series), float(median(series))
        if interval is None or max(interval[1] - middle, middle - interval[0]) > (
            policy.target * middle
        ):
            return False
        if variant is not eager and not _is_close(speedup(eager, variant), policy.target):
            return False
    return True


def _is_close(ratio: Ratio, target: float) -> bool:
    if ratio.factor is None or ratio.low is None or ratio.high is None:
        return False
    return max(ratio.high - ratio.factor, ratio.factor - ratio.low) <= target * ratio.factor


def speedup(eager: Variant, variant: Variant) -> Ratio:
    """Eager's time over the variant's, from the blocks that stood side by side."""
    return pooled_ratio(list(zip(eager.blocks, variant.blocks, strict=False)))
