"""The time that profstack's way of driving a tool adds to the tool itself.

In one process and in turn: a slice of N steps observed by a layer, as in a run, and N steps
under the raw tool with the same flags. Prints the ratio of CPU times per step with a bootstrap
interval over rounds. Run it with nothing else running and OMP_NUM_THREADS=1.

The step is a small MLP's, with three module calls; the torch layer gives each module call a range
of its own, which the raw tool does not, at about 3 us each.

The layer nvtx has no raw tool beside it: it is set against the bare step, where no tool listens to
its ranges, so that its line is what the markers cost a run that is not under Nsight Systems.
"""

from __future__ import annotations

import argparse
import cProfile
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from workloads import STEPS, training_step

from profstack.capture.engine import Engine
from profstack.capture.observers import Observers
from profstack.capture.run import live_optimizers
from profstack.capture.slices import SlicePlan, Targets
from profstack.stats.summary import pooled_ratio
from profstack.storage.folder import DATABASE, Writer

Step = Callable[[], None]
SETTLE = 10


def raw_cprofile(step: Step, steps: int) -> float:
    """CPU time of `steps` steps under cProfile alone."""
    profiler = cProfile.Profile()
    profiler.enable()
    before = time.process_time()
    for _ in range(steps):
        step()
    spent = time.process_time() - before
    profiler.disable()
    return spent


def raw_torch(**flags: Any) -> Callable[[Step, int], float]:
    """Return a loop over the step under torch.profiler with `flags`."""

    def measure(step: Step, steps: int) -> float:
        activities = [torch.profiler.ProfilerActivity.CPU]
        profiler = torch.profiler.profile(activities=activities, **flags)
        profiler.start()
        before = time.process_time()
        for _ in range(steps):
            step()
        spent = time.process_time() - before
        profiler.stop()
        return spent

    return measure


def bare(step: Step, steps: int) -> float:
    """CPU time of `steps` steps with nothing around them."""
    before = time.process_time()
    for _ in range(steps):
        step()
    return time.process_time() - before


# Layer and mode -> the raw tool, and its name with flags.
CASES: dict[tuple[str, str], tuple[Callable[[Step, int], float], str]] = {
    ("cprofile", "timed"): (raw_cprofile, "cProfile.Profile()"),
    ("torch", "timed"): (
        raw_torch(record_shapes=True),
        "torch.profiler.profile(activities=[CPU], record_shapes=True)",
    ),
    ("torch", "detail"): (
        raw_torch(record_shapes=True, profile_memory=True),
        "torch.profiler.profile(activities=[CPU], record_shapes=True, profile_memory=True)",
    ),
    ("nvtx", "timed"): (bare, "no tool, no listener"),
}


def plan(layer: str, mode: str, steps: int) -> Iterator[SlicePlan]:
    """Slices of the layer for ever, each after steps to settle, as in a run."""
    while True:
        yield SlicePlan("settle", (), 2, SETTLE, prepares=((layer, mode),))
        yield SlicePlan(layer, ((layer, mode),), 2, steps)


def rounds_of(
    layer: str, mode: str, raw: Callable[[Step, int], float], steps: int, rounds: int
) -> list[tuple[list[float], list[float]]]:
    """CPU time per step of each round: the layer's slice, the raw tool."""
    _, _, step = training_step(*STEPS["0.3 ms"])
    raw_s: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        writer = Writer(folder)
        engine = Engine(
            torch,
            Observers([layer], writer),
            lambda: plan(layer, mode, steps),
            Targets(),
            live_optimizers=live_optimizers,
            wait_for_page=False,
        )
        engine.begin()
        step()
        engine.detach()
        raw(step, steps)
        engine.rearm()
        for _ in range(rounds + 1):
            for _ in range(SETTLE + steps):
                step()
            engine.detach()
            for _ in range(SETTLE):
                step()
            raw_s.append(raw(step, steps))
            engine.rearm()
        engine.finish()
        query = "SELECT cpu_s FROM slices WHERE layer = ? AND steps = ? ORDER BY slice"
        database: Any = sqlite3.connect(folder / DATABASE)
        ours = [row[0] for row in database.execute(query, (layer, steps))]
        database.close()
    pairs = list(zip(ours, raw_s, strict=False))[1 : rounds + 1]
    return [([own / steps], [other / steps]) for own, other in pairs]


def main() -> None:
    """Measure every layer and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100, help="steps of one slice")
    parser.add_argument("--layer", help="this layer alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for (layer, mode), (raw, name) in CASES.items():
        if options.layer not in (None, layer):
            continue
        pairs = rounds_of(layer, mode, raw, options.steps, options.rounds)
        ratio = pooled_ratio(pairs)
        added_s = median(own - other for [own], [other] in pairs)
        print(
            f"{layer}/{mode} over {name}: CPU per 0.3 ms step, {len(pairs)} rounds of "
            f"{options.steps} steps: {ratio.factor:.3f} (95 %: {ratio.low:.3f} to "
            f"{ratio.high:.3f}), {added_s * 1e6:+.1f} us a step"
        )


if __name__ == "__main__":
    main()
