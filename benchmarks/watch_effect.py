"""Does the watch slow the steps that it watches?

In one process, over the same steps: blocks with the sampler resumed against blocks with it
paused, in turn. Prints the ratio of the medians and of the CPU times with a bootstrap interval
over pairs of blocks. Run it with nothing else running and OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from workloads import STEPS, training_step

from profstack.readers.watch import Sampler
from profstack.stats.summary import pooled_ratio

Pairs = list[tuple[list[float], list[float]]]


def block(step: Callable[[], None], steps: int) -> tuple[list[float], float]:
    """Times of `steps` steps, and the CPU time of all of them."""
    times = []
    cpu = time.process_time()
    before = time.perf_counter()
    for _ in range(steps):
        step()
        now = time.perf_counter()
        times.append(now - before)
        before = now
    return times, time.process_time() - cpu


def watched_and_paused(
    step: Callable[[], None], steps: int, blocks: int
) -> tuple[Pairs, Pairs, int]:
    """Pairs of blocks (watched, paused), of wall times and of CPU times, and the samples taken."""
    walls, cpus = [], []
    sampler = Sampler(time.perf_counter())
    for number in range(blocks):
        measured = {}
        for watched in (True, False) if number % 2 else (False, True):
            if watched:
                sampler.resume()
            block(step, max(3, steps // 10))
            measured[watched] = block(step, steps)
            sampler.pause()
        walls.append((measured[True][0], measured[False][0]))
        cpus.append(([measured[True][1]], [measured[False][1]]))
    sampler.close()
    return walls, cpus, sampler.taken


def main() -> None:
    """Measure both workloads and print two lines for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one block")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, size in STEPS.items():
        _, _, step = training_step(*size)
        block(step, 50)
        median = sorted(block(step, 50)[0])[25]
        steps = max(10, int(options.seconds / median))
        walls, cpus, taken = watched_and_paused(step, steps, options.blocks)
        print(f"{name} step (measured {median * 1e3:.3f} ms), {taken} samples, {steps} steps each:")
        for what, pairs in (("wall", walls), ("CPU", cpus)):
            ratio = pooled_ratio(pairs)
            print(
                f"  {what} time, watched / paused = {ratio.factor:.4f} "
                f"(95 %: {ratio.low:.4f} to {ratio.high:.4f})"
            )


if __name__ == "__main__":
    main()
