"""Does profstack measure the time that others measure? And does its interval hold what it says?

For four workloads, in one process: profstack's median, that of torch.utils.benchmark's
`blocked_autorange`, and that of a loop written by hand. The three take turns, another one first in
each round, and their ratio is taken round by round, so that the machine's drift hits all of them.
Torch's median is one of means over as many calls as it puts into a block, which is higher than
a median of single calls where some of them are slow. So it is set beside the same statistic of our
samples, means over as many neighbours; the ratio to our median of single calls follows.

Then the coverage of the stated 95 % interval on a real launch-bound loop. Run it with nothing else
running and OMP_NUM_THREADS=1; `--quick` only shows that it runs.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import torch
from interval_coverage import coverage, long_series
from torch import nn
from torch.utils.benchmark import Timer
from workloads import STEPS, training_step

from profstack.bench.measure import Policy, measure
from profstack.stats.summary import Ratio, pooled_ratio
from profstack.units import format_seconds

Step = Callable[[], Any]
# Samples of one short series whose interval is put to the test.
LENGTHS = (50, 100, 200)


@dataclass(frozen=True)
class Workload:
    """A step, and what it is called under."""

    name: str
    step: Step
    conditions: Callable[[], AbstractContextManager[Any]]


def convolutions() -> Workload:
    """A convolution net's forward pass over four small images."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).eval()
    images = torch.randn(4, 3, 64, 64)
    return Workload("convolution net", lambda: model(images), torch.inference_mode)


def transformer() -> Workload:
    """Two encoder layers' forward pass over four sequences of 64 tokens."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    tokens = torch.randn(4, 64, 128)
    return Workload("transformer forward", lambda: model(tokens), torch.inference_mode)


def workloads() -> Iterator[Workload]:
    """The four, the launch-bound one first."""
    _, _, small = training_step(*STEPS["0.3 ms"])
    yield Workload("launch-bound MLP step", small, nullcontext)
    yield convolutions()
    yield transformer()
    _, _, large = training_step(*STEPS["5 ms"])
    yield Workload("training step", large, nullcontext)


def ours(step: Step, seconds: float, typical_s: float) -> list[float]:
    """As many of profstack's samples as fit into `seconds`.

    The count is fixed, so that all three ways get the same time whatever their times look like.
    """
    repeat = max(10, int(seconds / typical_s))
    return measure(step, Policy(repeat=repeat, max_warmup_s=seconds / 2)).series_s


def median_of_means(times: Sequence[float], size: int) -> float:
    """The median of means over `size` neighbours, as torch takes it."""
    starts = range(0, len(times) - size + 1, size)
    return median(fmean(times[start : start + size]) for start in starts)


def torchs(step: Step, seconds: float) -> tuple[float, int]:
    """torch.utils.benchmark's median, and how many calls its blocks have."""
    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    found = timer.blocked_autorange(min_run_time=seconds)
    return found.median, found.number_per_run


def by_hand(step: Step, seconds: float) -> float:
    """The median of a loop as one writes it who knows how: warm-up, one clock, single calls."""
    for _ in range(10):
        step()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 10:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return median(times)


def rounds_of(step: Step, rounds: int, seconds: float) -> tuple[list[dict[str, float]], int]:
    """Return the times of the three ways in each round, and the size of torch's blocks."""
    blocks: list[int] = []
    typical_s = by_hand(step, seconds)

    def torchs_median() -> float:
        found, block = torchs(step, seconds)
        blocks.append(block)
        return found

    def our_median() -> float:
        samples.append(ours(step, seconds, typical_s))
        return median(samples[-1])

    samples: list[list[float]] = []
    ways: list[tuple[str, Callable[[], float]]] = [
        ("ours", our_median),
        ("torch", torchs_median),
        ("hand", lambda: by_hand(step, seconds)),
    ]
    found: list[dict[str, float]] = []
    for number in range(rounds):
        turn = number % len(ways)
        found.append({name: way() for name, way in (*ways[turn:], *ways[:turn])})
    block = int(median(blocks))
    for one, times in zip(found, samples, strict=True):
        one["ours in blocks"] = median_of_means(times, block)
    return found, block


def over(found: Sequence[dict[str, float]], own: str, other: str) -> Ratio:
    """Our median over another's, round by round."""
    return pooled_ratio([([one[own]], [one[other]]) for one in found])


def in_words(ratio: Ratio) -> str:
    """A ratio with its interval."""
    return f"{ratio.factor:.4f} (95 %: {ratio.low:.4f} to {ratio.high:.4f})"


def compare_medians(rounds: int, seconds: float) -> None:
    """A line for each workload and each other way."""
    print(f"{rounds} rounds in turn, {seconds:g} s for each way in each round")
    for workload in workloads():
        with workload.conditions():
            found, block = rounds_of(workload.step, rounds, seconds)
        typical = format_seconds(median(one["ours"] for one in found))
        print(
            f"{workload.name} ({typical}): ours over torch.utils.benchmark, both as medians of "
            f"means over {block}: {in_words(over(found, 'ours in blocks', 'torch'))}; of single "
            f"calls over that: {in_words(over(found, 'ours', 'torch'))}; ours over a loop by hand: "
            f"{in_words(over(found, 'ours', 'hand'))}",
            flush=True,
        )


def show_coverage(steps: int) -> None:
    """A line for each length of a short series."""
    workload = next(workloads())
    times = long_series(workload.step, steps)
    print(f"{workload.name}, {steps} steps: how often a short series' 95 % interval holds")
    for length in LENGTHS:
        seen = coverage(times, length)
        correlation = "none" if seen.autocorrelation is None else f"{seen.autocorrelation:.2f}"
        print(
            f"  {length} samples ({seen.series} series, autocorrelation {correlation}): "
            f"{seen.local:.1%} +- {seen.error:.1%} the median of its neighbourhood (exact "
            f"intervals without drift: {seen.expected:.1%}), {seen.whole:.1%} that of all steps",
            flush=True,
        )


def main() -> None:
    """Measure and print all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=90)
    parser.add_argument("--seconds", type=float, default=0.12, help="of each way in each round")
    parser.add_argument("--steps", type=int, default=100_000, help="of the series for coverage")
    parser.add_argument("--quick", action="store_true", help="12 short rounds and 6000 steps")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.steps = 12, 0.03, 6000
    torch.set_num_threads(1)
    # What the imports made is never garbage: looking through it costs 50 ms a collection.
    gc.collect()
    gc.freeze()
    compare_medians(options.rounds, options.seconds)
    show_coverage(options.steps)


if __name__ == "__main__":
    main()
