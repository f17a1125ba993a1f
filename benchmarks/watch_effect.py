"""Does the watch slow the steps that it watches?

In one process, over the same steps: blocks with the sampler resumed against blocks with it
paused, in turn. The steps are launches of small operators, a language model's, and two that are
busy in Python. Prints the ratio of the medians and of the CPU times with a bootstrap interval over
pairs of blocks, by the interval at which the sampler looked: 10 ms at first, and later what it has
chosen by its own cost. Run it with nothing else running and OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Callable

import torch
from budget import PROGRAMS
from workloads import STEPS, training_step

from profstack.readers.watch import Sampler
from profstack.stats.summary import pooled_ratio

Pairs = list[tuple[list[float], list[float]]]
# Programs of `budget.py` whose threads let go of the interpreter's lock only when asked to.
_IN_PYTHON = ("words", "game")


def block(step: Callable[[], object], steps: int) -> tuple[list[float], float]:
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
    step: Callable[[], object], steps: int, blocks: int
) -> dict[float, tuple[Pairs, Pairs, int]]:
    """Pairs of blocks (watched, paused) of wall and of CPU times, and samples, by the interval."""
    found: defaultdict[float, tuple[Pairs, Pairs, int]] = defaultdict(lambda: ([], [], 0))
    sampler = Sampler(time.perf_counter())
    for number in range(blocks):
        measured = {}
        interval_s, before = sampler.interval_s, sampler.taken
        for watched in (True, False) if number % 2 else (False, True):
            if watched:
                sampler.resume()
            block(step, max(3, steps // 10))
            measured[watched] = block(step, steps)
            sampler.pause()
        walls, cpus, taken = found[interval_s]
        walls.append((measured[True][0], measured[False][0]))
        cpus.append(([measured[True][1]], [measured[False][1]]))
        found[interval_s] = walls, cpus, taken + sampler.taken - before
    sampler.close()
    return found


def main() -> None:
    """Measure every workload and print two lines for each of its intervals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one block")
    parser.add_argument("--only", choices=[*STEPS, *_IN_PYTHON], help="this step alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    for name in [options.only] if options.only else [*STEPS, *_IN_PYTHON]:
        step = PROGRAMS[name]() if name in _IN_PYTHON else training_step(*STEPS[name])[2]
        block(step, 50)
        median = sorted(block(step, 50)[0])[25]
        steps = max(10, int(options.seconds / median))
        print(f"{name} step (measured {median * 1e3:.3f} ms), {steps} steps each:")
        found = watched_and_paused(step, steps, options.blocks)
        for interval_s, (walls, cpus, taken) in found.items():
            print(f"  every {interval_s * 1e3:.0f} ms, {len(walls)} pairs, {taken} samples:")
            for what, pairs in (("wall", walls), ("CPU", cpus)):
                ratio = pooled_ratio(pairs)
                print(
                    f"    {what} time, watched / paused = {ratio.factor:.4f} "
                    f"(95 %: {ratio.low:.4f} to {ratio.high:.4f})"
                )


if __name__ == "__main__":
    main()
