"""From a profiler's events to finished tables: profstack, torch, and the reading of a saved trace.

Run it with `python benchmarks/ingest.py` (a few minutes), or with `--quick` on a tenth of the
events. Two kinds of profiles are read, of about 400,000 events each: a plain one, and a detailed
one, taken with shapes and memory. Every figure is made in a process of its own:

* torch: `events()` and `key_averages()`, which make one table of operators;
* profstack: the raw events to all tables of a slice (modules, operators, moved bytes, operations,
  regions, launches), read once for the first time, as in a run, and again. Beside it is what
  no reader in Python gets below: torch's list of raw events, and one call for each thing asked of
  each event;
* a saved trace: reading the file that torch wrote, to all tables, and `json.load` of it alone.

Speeds are by CPU time of one thread with the garbage collector off, as in a run. Memory is how far
the resident set grew above what the profile itself takes. At the end both tables of operators
are compared: the largest difference, and the names that differ because torch merges an event into
a parent of the same name.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from workloads import training_step

from profstack.capture.hooks import DISCOVER, RANGES, TorchHooks
from profstack.capture.module_names import ModuleNames
from profstack.capture.step_events import StepEvents
from profstack.environment import peak_rss_bytes
from profstack.readers.torchtrace.attribution import attribute
from profstack.readers.torchtrace.columns import blocks, column
from profstack.readers.torchtrace.events import MEMORY_NAME, clip_to_steps, read_host
from profstack.readers.torchtrace.saved_trace import read_trace
from profstack.readers.torchtrace.slice_tables import Frames, ObservedSlice, slice_tables

EVENTS, QUICK = 400_000, 40_000
KINDS = ("plain", "detailed")
# What a plain profile is asked for of every event; a detailed one also for what operators got.
ASKED = ("name", "start_ns", "duration_ns", "start_thread_id", "sequence_nr")
Table = dict[str, tuple[int, float, float]]


class _NoEvents:
    """Takes the events of the hooks, which are not needed here."""

    waiting = False
    follows_calls = True
    follows_backward = True

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None


def profile(events: int, *, detailed: bool) -> tuple[Any, list[int]]:
    """A finished profile of about `events` events with the ranges of modules; its steps' edges.

    Each step works out one mean, on a CPU the two operators `aten::mean` and `aten::div_` that
    call themselves: torch's tables merge such an only child into its parent, ours do not.
    """
    _, _, train = training_step(16, 8, 4)
    numbers = torch.ones(8)

    def step() -> None:
        train()
        numbers.mean()

    def profiled(steps: int) -> tuple[Any, list[int]]:
        with torch.autograd.profiler.profile(
            use_kineto=True, record_shapes=detailed, profile_memory=detailed
        ) as taken:
            offset = time.time_ns() - time.perf_counter_ns()
            edges = [time.perf_counter_ns() + offset]
            for _ in range(steps):
                step()
                edges.append(time.perf_counter_ns() + offset)
        return taken, edges

    hooks = TorchHooks(torch, cast(StepEvents, _NoEvents()), ModuleNames())
    hooks.install()
    try:
        hooks.set_mode(DISCOVER)
        step()
        hooks.set_mode(RANGES)
        hooks.emit_ranges(True)
        one, _ = profiled(1)
        result = profiled(max(1, events // len(one.kineto_results.events())))
        hooks.emit_ranges(False)
    finally:
        hooks.remove()
    return result


def tables(events: Any, kinds: Any, edges: list[int], *, detailed: bool) -> Frames:
    """All tables of a slice, the way the torch layer makes them."""
    host = read_host(events, kinds, inputs=detailed)
    clip_to_steps(host, edges)
    owned = attribute(host, edges, lambda number: False)
    observed = ObservedSlice(0, (), shapes=detailed, memory=detailed)
    frames, notes = slice_tables(owned, observed)
    if notes:
        raise SystemExit(f"a table is missing: {notes}")
    return frames


def accessors_alone(events: Any, *, detailed: bool) -> None:
    """One call for everything that is asked of each event, and nothing made of the answers."""
    for part in blocks(len(events)):
        block = events[part]
        for accessor in ASKED:
            for _ in column(block, accessor):
                pass
        if detailed:
            given = [event for event in block if event.name() != MEMORY_NAME]
            for accessor in ("shapes", "dtypes"):
                for _ in column(given, accessor):
                    pass


def cpu_s(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    before = time.thread_time()
    held = work()
    after = time.thread_time()
    del held
    return after - before


def measured(work: Callable[[], object], rounds: int) -> dict[str, Any]:
    """CPU time of the first call and the least of all, and what memory grew by in the first."""
    gc.collect()
    gc.disable()
    before = peak_rss_bytes(reset=True)
    first = cpu_s(work)
    after = peak_rss_bytes()
    grown = None if before is None or after is None else after - before
    least = min([first, *(cpu_s(work) for _ in range(rounds - 1))])
    gc.enable()
    return {"first_s": first, "least_s": least, "bytes": grown}


# -- what each process of its own measures ---------------------------------------------------------


def of_torch(options: argparse.Namespace, *, detailed: bool) -> dict[str, Any]:
    """torch's way, and for a plain profile how its table differs from ours."""
    result, edges = profile(options.events, detailed=detailed)
    found = measured(lambda: result.function_events, 1)
    theirs: list[Any] = []
    found["first_s"] += cpu_s(lambda: theirs.extend(result.key_averages()))
    found["least_s"] = found["first_s"]
    events = result.kineto_results.events()
    found["count"] = len(events)
    if not detailed:
        frames = tables(events, None, edges, detailed=False)
        found["differences"] = differences(_by_name(frames), _by_torch(theirs))
    return found


def of_profstack(options: argparse.Namespace, *, detailed: bool) -> dict[str, Any]:
    """Our way; torch's list of raw events and the accessors' calls beside it."""
    taken, edges = profile(options.events, detailed=detailed)
    results = taken.kineto_results
    # What is imported and made once only is no part of it.
    small, small_edges = profile(1000, detailed=detailed)
    tables(small.kineto_results.events(), None, small_edges, detailed=detailed)

    def work() -> object:
        return tables(results.events(), None, edges, detailed=detailed)

    found = measured(work, options.rounds)
    gc.disable()
    found["list_s"] = min(cpu_s(lambda: len(results.events())) for _ in range(options.rounds))
    events = results.events()
    found["count"] = len(events)
    found["calls_s"] = min(
        cpu_s(lambda: accessors_alone(events, detailed=detailed)) for _ in range(options.rounds)
    )
    if options.trace:
        results.save(str(options.trace))
    return found


def of_saved(options: argparse.Namespace, *, detailed: bool) -> dict[str, Any]:
    """A saved trace to all tables."""
    size = options.trace.stat().st_size

    def work() -> object:
        trace = read_trace(options.trace)
        start = trace.events[0].start_ns()
        edges = [start, start + (1 << 50)]
        return trace, tables(trace.events, trace.kinds, edges, detailed=trace.shapes)

    found = measured(work, 1)
    return {**found, "count": len(read_trace(options.trace).events), "size": size}


def of_json(options: argparse.Namespace, *, detailed: bool) -> dict[str, Any]:
    """Return the cost of reading a saved trace alone."""

    def work() -> object:
        with open(options.trace, encoding="utf-8") as file:
            return json.load(file)

    return measured(work, 1)


def _by_name(frames: Frames) -> Table:
    table: Table = defaultdict(lambda: (0, 0.0, 0.0))
    for row in cast("list[dict[str, Any]]", frames["operators"]):
        calls, own, total = table[row["name"]]
        table[row["name"]] = calls + row["calls"], own + row["self_s"], total + row["total_s"]
    return dict(table)


def _by_torch(averages: list[Any]) -> Table:
    return {
        row.key: (row.count, row.self_cpu_time_total * 1e-6, row.cpu_time_total * 1e-6)
        for row in averages
    }


def differences(ours: Table, theirs: Table) -> list[str]:
    """How two tables of operators differ, in words."""
    both = ours.keys() & theirs.keys()
    merged = sorted(name for name in both if ours[name][0] != theirs[name][0])
    pairs = [
        pair
        for name in both - set(merged)
        for pair in zip(ours[name][1:], theirs[name][1:], strict=True)
    ]
    largest = max(abs(a - b) for a, b in pairs)
    relative = max(abs(a - b) / max(b, 1e-9) for a, b in pairs)
    only = [name for name in ours.keys() ^ theirs.keys() if not name.startswith("profstack::")]
    agree = f"{len(both) - len(merged)} names agree"
    return [
        f"{agree}, largest difference {largest:.1e} s ({relative:.1e} relative)",
        f"merged by torch into a parent of the same name: {', '.join(merged) or 'none'}",
        f"in one table only: {', '.join(sorted(only)) or 'none'}",
    ]


PARTS = {"torch": of_torch, "profstack": of_profstack, "saved": of_saved, "json": of_json}


def apart(part: str, kind: str, options: argparse.Namespace, trace: Path) -> dict[str, Any]:
    """Return the figures of a process of its own."""
    numbers = [f"--events={options.events}", f"--rounds={options.rounds}"]
    command = [sys.executable, __file__, *numbers, f"--trace={trace}", "--part", part, kind]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


# -- the table -------------------------------------------------------------------------------------


def line(what: str, count: int, seconds: float, grown: int | None = None) -> str:
    """One line of the table."""
    each, rate = seconds / count * 1e9, count / seconds / 1e6
    memory = "" if grown is None else f"{grown / count:8,.0f}"
    return f"  {what:<46}{each:10,.0f}{rate:10.2f}{memory}"


def show(kind: str, options: argparse.Namespace, trace: Path) -> None:
    """Measure one kind of profile and print its part of the table."""
    ours = apart("profstack", kind, options, trace)
    theirs = apart("torch", kind, options, trace)
    count = ours["count"]
    print(f"{kind + f' profile, {count:,} events':<48}{'ns/event':>10}{'M/s':>10}{'B/event':>8}")
    torch_s = theirs["least_s"] / theirs["count"] * count
    print(line("torch: events() and key_averages()", count, torch_s))
    print(line("profstack: all tables, read for the first time", count, ours["first_s"]))
    print(line("profstack: all tables, read again", count, ours["least_s"], ours["bytes"]))
    rest = ours["least_s"] - ours["list_s"] - ours["calls_s"]
    print(line("  torch's list of raw events made and freed", count, ours["list_s"]))
    print(line("  accessor calls alone", count, ours["calls_s"]))
    print(line("  all else, which is profstack's", count, max(rest, 1e-9)))
    saved, loaded = (apart(part, kind, options, trace) for part in ("saved", "json"))
    print(line("saved trace: all tables", count, saved["least_s"], saved["bytes"]))
    print(line("saved trace: json.load alone", count, loaded["least_s"], loaded["bytes"]))
    print(f"  torch / profstack: time {torch_s / ours['least_s']:.1f}", end="")
    if theirs["bytes"] is not None and ours["bytes"] is not None:
        events = theirs["bytes"] / theirs["count"]
        share = ours["bytes"] / count / events
        print(
            f"; memory of events() {events:,.0f} B/event, profstack's is {share:.2f} of it", end=""
        )
        of_size = saved["bytes"] / saved["size"]
        print(f"\n  memory of reading the saved trace: {of_size:.2f} times its size", end="")
    print()
    for text in theirs.get("differences", ()):
        print(f"  {text}")
    print(flush=True)


def main() -> None:
    """Measure every kind apart, or, as such a process, one of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, help=f"of each profile ({EVENTS:,})")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} events")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("kind", nargs="?", choices=KINDS, help="only this kind of profile")
    options = parser.parse_args()
    options.events = options.events or (QUICK if options.quick else EVENTS)
    torch.set_num_threads(1)
    if options.part:
        print(json.dumps(PARTS[options.part](options, detailed=options.kind == "detailed")))
        return
    with tempfile.TemporaryDirectory() as folder:
        for kind in [options.kind] if options.kind else KINDS:
            show(kind, options, Path(folder) / f"{kind}.json")


if __name__ == "__main__":
    main()
