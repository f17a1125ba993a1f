"""How `profstack merge` grows with ranks and workers, and what a killed worker changes.

    python benchmarks/merge_scale.py [--ranks 1 16 256 1024] [--steps 64] [--distinct 1024]

Traces of a launch with one planted straggler are made by `simulated_ranks.py` (64 steps: 20 MB);
with `--distinct` so many ranks have a file of their own, the others are links to these. Each number
of ranks is merged by two workers of 2 GB each in a fresh process, then `--of` ranks by one and by
two workers in turn, and once more with one of the workers killed in the middle. It prints

- files a second, seconds a rank from the first rank that is finished on, and the growth: that over
  the same of the number before it (1 where time grows as ranks do);
- the efficiency of two workers: the time of one over twice the time of two, the cluster's start and
  the page included, and for the ranks alone;
- whether the report of the merge that lost a worker is equal to the other's, to the last digit;
- whether the planted rank is named, and how large page and report are.

Run it with nothing else running (about 15 minutes and 20 GB of disk; 2 GB with `--distinct 64`);
`--quick` shows in a minute that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
from simulated_ranks import write

LIMIT = "2GB"
_TOLD = re.compile(r"([\d,]+) of ([\d,]+) ranks in ")


@dataclass
class Merge:
    """One merge: seconds in all and of the ranks, the report, and the bytes of page and report."""

    whole_s: float
    ranks_s: float
    # From the first ranks that were told as finished to the last ones: how many, in how long.
    later: tuple[int, float]
    report: dict[str, Any]
    page_bytes: int
    report_bytes: int
    killed: bool


def merge(
    folder: Path, workers: int, during: Callable[[int, int], bool] = lambda pid, done: False
) -> Merge:
    """Merge a folder by so many workers; `during` gets the process and how many ranks are read."""
    with tempfile.TemporaryDirectory() as out:
        words = ["merge", str(folder), "-o", out, "--workers", str(workers), "--memory-limit"]
        began = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, "-m", "profstack", *words, LIMIT],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=dict(os.environ),
        )  # fmt: skip
        assert child.stderr is not None
        told: list[tuple[int, float]] = []
        started_s, killed, lines = began, False, []
        for line in child.stderr:
            lines.append(line)
            if "dashboard" in line:
                started_s = time.perf_counter()
            found = _TOLD.search(line)
            if found is not None:
                done, wanted = (int(each.replace(",", "")) for each in found.groups())
                told.append((done, time.perf_counter()))
                killed = killed or (done < wanted and during(child.pid, done))
        if child.wait():
            raise SystemExit("".join(lines))
        whole_s = time.perf_counter() - began
        (first, first_s), (last, last_s) = told[0], told[-1]
        page, report = Path(out) / "report.html", Path(out) / "report.json"
        return Merge(
            whole_s, last_s - started_s, (last - first, last_s - first_s),
            json.loads(report.read_text("utf-8")), page.stat().st_size, report.stat().st_size,
            killed,
        )  # fmt: skip


def parts(report: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what a report says of its ranks: all but when and by what command it was made."""
    for name in ("verdict", "step", "benchmark", "run_bar", "findings", "warnings", "facts"):
        yield name, report.get(name)
    yield from report["tables"].items()


def kill_at(count: int) -> Callable[[int, int], bool]:
    """Return what kills the busiest worker once so many ranks are read."""

    def during(pid: int, done: int) -> bool:
        if done < count:
            return False
        every = psutil.Process(pid).children(recursive=True)
        busiest = max(every, key=lambda each: sum(each.cpu_times()[:2]))
        threading.Thread(target=busiest.kill).start()
        return True

    return during


def some(folder: Path, every: Path, count: int) -> Path:
    """Return a folder with links to the traces of the first ranks."""
    made = folder / f"ranks-{count}"
    made.mkdir()
    for rank in range(count):
        os.link(every / f"rank{rank}.json", made / f"rank{rank}.json")
    return made


def growth(folder: Path, every: Path, counts: Sequence[int], planted: int, distinct: int) -> None:
    """Print a line for each number of ranks."""
    print(f"{'ranks':>7}{'whole s':>10}{'ranks s':>10}{'files/s':>10}{'s a rank':>11}{'growth':>9}")
    before: float | None = None
    for count in counts:
        made = merge(some(folder, every, count), 2)
        number, seconds = made.later
        each_s = seconds / number if number else None
        grown = f"{each_s / before:9.3f}" if each_s and before else f"{'-':>9}"
        shown = f"{each_s:11.4f}" if each_s else f"{'-':>11}"
        files = count / made.ranks_s
        print(f"{count:7}{made.whole_s:10.1f}{made.ranks_s:10.1f}{files:10.2f}{shown}{grown}")
        before = each_s or before
        sentence = made.report["verdict"]["sentence"]
        is_named = bool(re.search(rf"\brank {planted}\b", sentence, re.IGNORECASE))
        page, report = made.page_bytes / 1e6, made.report_bytes / 1e6
        print(f"        {sentence}")
        # A link to the file of another rank is not late.
        named = "-" if planted >= min(count, distinct) else "yes" if is_named else "NO"
        print(f"        planted rank named: {named}; page {page:.2f} MB, report {report:.2f} MB")
        sys.stdout.flush()


def efficiency(ranks: Path, count: int, repeats: int) -> Merge:
    """Print how much of two workers' time is used, and return a merge by two."""
    times: dict[int, list[Merge]] = {1: [], 2: []}
    for turn in range(repeats):
        for workers in (1, 2) if turn % 2 == 0 else (2, 1):
            times[workers].append(merge(ranks, workers))
    whole = {workers: median(each.whole_s for each in made) for workers, made in times.items()}
    alone = {workers: median(each.ranks_s for each in made) for workers, made in times.items()}
    print(
        f"{count} ranks by one worker {whole[1]:.1f} s, by two {whole[2]:.1f} s: efficiency "
        f"{whole[1] / whole[2] / 2:.2f}; of the ranks alone {alone[1]:.1f} and {alone[2]:.1f} s: "
        f"{alone[1] / alone[2] / 2:.2f}"
    )
    return times[2][0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the traces, merge them in all ways, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 16, 256, 1024])
    parser.add_argument("--of", type=int, default=64, help="ranks of the other comparisons")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--distinct", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    if options.quick:
        options.ranks, options.of, options.steps, options.repeats = [1, 16, 32], 24, 10, 1
    with tempfile.TemporaryDirectory() as name:
        folder, most = Path(name), max(*options.ranks, options.of)
        every = folder / "every"
        truth = write(every, most, options.steps, "straggler", links=options.distinct)
        size = (every / "rank0.json").stat().st_size / 1e6
        planted = truth["rank"]
        print(
            f"files of {size:.1f} MB, {min(options.distinct, most)} of them their own; {planted=}"
        )
        growth(folder, every, options.ranks, planted, options.distinct)
        compared = folder / "compared"
        compared.mkdir()
        ranks = some(compared, every, options.of)
        usual = efficiency(ranks, options.of, options.repeats)
        hurt = merge(ranks, 2, kill_at(options.of // 3))
        both = zip(parts(usual.report), parts(hurt.report), strict=True)
        other = [at for (at, one), (_, two) in both if one != two]
        print(
            f"a worker was killed: {hurt.killed}; what differs in the result: {other or 'nothing'}"
        )


if __name__ == "__main__":
    main()
