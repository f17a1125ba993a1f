"""Does the boundary of a clean slice change the step it times?

In one process, over the same boundaries: blocks of steps with profstack armed as in a clean
slice, against blocks with everything detached, in turn. Prints the ratio of the medians with a
bootstrap interval over pairs of blocks. Run it with nothing else running and OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from workloads import STEPS, step_times, training_step

from profstack.capture.engine import Engine
from profstack.capture.observers import Observers
from profstack.capture.run import live_optimizers
from profstack.capture.slices import SlicePlan, Targets
from profstack.stats.summary import pooled_ratio
from profstack.storage.folder import Writer


def endless_clean() -> Iterator[SlicePlan]:
    """A few clean steps, which tell how long one takes, then a clean slice that does not end."""
    yield SlicePlan("clean", (), 2, 20)
    yield SlicePlan("clean", (), 2, 1, float("inf"))


def armed_and_detached(
    step: Callable[[], None], steps: int, blocks: int
) -> list[tuple[list[float], list[float]]]:
    """Pairs of blocks (armed, detached), the order changing from pair to pair."""
    pairs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        writer = Writer(folder)
        engine = Engine(
            torch,
            Observers([], writer),
            endless_clean,
            Targets(),
            live_optimizers=live_optimizers,
        )
        engine.begin()
        step_times(step, steps)
        for number in range(blocks):
            measured = {}
            for armed in (True, False) if number % 2 else (False, True):
                if armed:
                    engine.rearm()
                else:
                    engine.detach()
                step_times(step, max(3, steps // 10))
                measured[armed] = step_times(step, steps)
            pairs.append((measured[True], measured[False]))
        if engine.log.total < blocks * steps:
            raise SystemExit("the armed blocks were not armed: no step was seen in them")
        engine.finish()
    return pairs


def main() -> None:
    """Measure both workloads and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    # The machine's own speed changes within seconds: many short blocks in turn cancel that better
    # than few long ones.
    parser.add_argument("--blocks", type=int, default=80)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one block")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, size in STEPS.items():
        _, _, step = training_step(*size)
        step_times(step, 50)
        median = sorted(step_times(step, 50))[25]
        steps = max(100, int(options.seconds / median))
        pairs = armed_and_detached(step, steps, options.blocks)
        ratio = pooled_ratio(pairs)
        print(
            f"{name} step (measured {median * 1e3:.3f} ms), {options.blocks} + {options.blocks} "
            f"blocks of {steps} steps: armed / detached = {ratio.factor:.4f} "
            f"(95 %: {ratio.low:.4f} to {ratio.high:.4f})"
        )


if __name__ == "__main__":
    main()
