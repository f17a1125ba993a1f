"""The cost of a `profstack run` with its page over plain `python`, and over five tools by hand.

Runs a small GPT-2 training of 60 steps in interleaved rounds of fresh processes, and prints CPU
time (children included) and wall time with the ratios. By hand are: the clean run, `python -m
cProfile`, torch.profiler with shapes, trace and table, `mprof run`, and flops-profiler. Run it with
nothing else running and OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "small_transformer.py"


def run(command: list[str]) -> tuple[float, float]:
    """CPU and wall seconds of a command and all its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall


def commands(output: Path, script: list[str]) -> dict[str, list[str]]:
    """Every way of running the script, by name; each may write into `output`."""
    python = sys.executable
    by_hand = str(Path(__file__).with_name("by_hand.py"))
    mprof = str(Path(python).with_name("mprof"))
    for name in ("torch", "flops"):
        (output / name).mkdir(parents=True)
    recording = str(output / "recording")
    return {
        "plain": [python, *script],
        "profstack": [python, "-m", "profstack", "run", "-q", "-o", recording, *script],
        "cProfile": [python, "-m", "cProfile", "-o", str(output / "profile.prof"), *script],
        "torch.profiler": [python, by_hand, "torch", str(output / "torch"), *script],
        "mprof": [mprof, "run", "-o", str(output / "mprofile.dat"), python, *script],
        "flops-profiler": [python, by_hand, "flops", str(output / "flops"), *script],
    }


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--by-hand", action="store_true", help="also the five tools by hand")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    script = [str(SCRIPT), "--steps", str(options.steps)]
    cpu, wall, share = [], [], []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            ways = commands(Path(folder), script)
            names = list(ways) if options.by_hand else ["plain", "profstack"]
            # Who comes first changes from round to round.
            order = names[number % len(names) :] + names[: number % len(names)]
            measured = {name: run(ways[name]) for name in order}
        cpu.append(measured["profstack"][0] / measured["plain"][0])
        wall.append(measured["profstack"][1] / measured["plain"][1])
        times = ", ".join(
            f"{name} {measured[name][0]:.2f} s CPU {measured[name][1]:.2f} s" for name in names
        )
        print(f"round {number + 1}: {times}; CPU ratio {cpu[-1]:.3f}, wall ratio {wall[-1]:.3f}")
        if options.by_hand:
            by_hand = sum(measured[name][0] for name in names if name != "profstack")
            share.append(measured["profstack"][0] / by_hand)
    rounds = f"{options.steps} steps, {options.rounds} rounds"
    print(f"profstack run over plain python, {rounds}: CPU {spread(cpu)}, wall {spread(wall)}")
    if share:
        print(f"profstack run over the five tools by hand, {rounds}: CPU {spread(share)}")


if __name__ == "__main__":
    main()
