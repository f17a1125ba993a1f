"""Reading a profile's events as columns, against torch's `events()` and `key_averages()`.

Both get the same profile of about 400,000 events and make the same table: calls, own time and
total time per operator. Prints the ratio of CPU times, the largest difference, and the names
that differ because torch merges an event into a parent of the same name.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import defaultdict
from typing import Any

import torch
from workloads import training_step

from profstack.torchtrace.attribution import attribute
from profstack.torchtrace.events import read_host
from profstack.torchtrace.operatorrows import operator_records

Table = dict[str, tuple[int, float, float]]


def profile(events: int) -> Any:
    """A finished profile of at least `events` events.

    Each step works out one mean, on a CPU the two operators `aten::mean` and `aten::div_` that
    call themselves: torch's tables merge such an only child into its parent, ours do not.
    """
    _, _, train = training_step(16, 8, 4)
    numbers = torch.ones(8)

    def step() -> None:
        train()
        numbers.mean()

    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as one:
        step()
    per_step = len(one.profiler.kineto_results.events())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as result:
        for _ in range(events // per_step + 1):
            step()
    return result


def by_columns(results: Any) -> Table:
    """The table by profstack's way, owners of all events included."""
    events = results.events()
    host = read_host(events)
    edges = [int(host.start.min()), int(host.end.max())]
    owned = attribute(host, edges, lambda number: False)
    table: Table = defaultdict(lambda: (0, 0.0, 0.0))
    for row in operator_records(owned, 0, edges, host.start * 0):
        calls, own, total = table[row["name"]]
        table[row["name"]] = (
            calls + row["calls"],
            own + row["self_s"],
            total + row["total_s"],
        )
    return dict(table)


def by_torch(result: Any) -> Table:
    """The table by torch's way."""
    averages = result.key_averages()
    return {
        row.key: (row.count, row.self_cpu_time_total * 1e-6, row.cpu_time_total * 1e-6)
        for row in averages
    }


def main() -> None:
    """Measure once: torch's way takes its time by the number of events alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = profile(options.events)
    results = result.profiler.kineto_results
    count = len(results.events())
    # The first reading touches memory that none has touched before: it is no round.
    by_columns(results)
    ours_s = []
    for _ in range(options.rounds):
        gc.collect()
        gc.disable()
        before = time.process_time()
        ours = by_columns(results)
        ours_s.append(time.process_time() - before)
        gc.enable()
    before = time.process_time()
    theirs = by_torch(result)
    torch_s = time.process_time() - before
    best, worst = min(ours_s), max(ours_s)
    print(f"{count:,} events, CPU time: torch {torch_s:.2f} s, columns {best:.2f}-{worst:.2f} s")
    print(f"torch / columns = {torch_s / worst:.1f} to {torch_s / best:.1f}")
    print(f"columns: {count / worst / 1e6:.2f} M events/s or better")
    merged = sorted(
        name for name in ours.keys() & theirs.keys() if ours[name][0] != theirs[name][0]
    )
    same = sorted((ours.keys() & theirs.keys()) - set(merged))
    largest = max(
        abs(a - b) for name in same for a, b in zip(ours[name][1:], theirs[name][1:], strict=True)
    )
    relative = max(
        abs(a - b) / max(b, 1e-9)
        for name in same
        for a, b in zip(ours[name][1:], theirs[name][1:], strict=True)
    )
    print(f"{len(same)} names agree, largest difference {largest:.1e} s ({relative:.1e} relative)")
    print("merged by torch into a parent of the same name: " + (", ".join(merged) or "none"))
    only = sorted(ours.keys() ^ theirs.keys())
    print("in one table only: " + (", ".join(only) or "none"))


if __name__ == "__main__":
    main()
