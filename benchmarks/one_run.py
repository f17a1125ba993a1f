"""What a whole `profstack run` with its page costs over plain `python`.

Runs a small GPT-2 training of 60 steps both ways, in interleaved rounds of fresh processes, and
prints CPU time (children included) and wall time of each with the ratios. Run it with nothing
else running and OMP_NUM_THREADS=1.
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    script = [str(SCRIPT), "--steps", str(options.steps)]
    cpu, wall = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            output = os.path.join(folder, str(number))
            profiled = [sys.executable, "-m", "profstack", "run", "-q", "-o", output, *script]
            commands = [[sys.executable, *script], profiled]
            measured = {}
            for which in (0, 1) if number % 2 else (1, 0):
                measured[which] = run(commands[which])
            cpu.append(measured[1][0] / measured[0][0])
            wall.append(measured[1][1] / measured[0][1])
            print(
                f"round {number + 1}: plain {measured[0][0]:.2f} s CPU, {measured[0][1]:.2f} s; "
                f"profstack {measured[1][0]:.2f} s CPU, {measured[1][1]:.2f} s; "
                f"CPU ratio {cpu[-1]:.3f}, wall ratio {wall[-1]:.3f}"
            )
    print(
        f"profstack run over plain python, {options.steps} steps, {options.rounds} rounds: "
        f"CPU {statistics.median(cpu):.3f} ({min(cpu):.3f} to {max(cpu):.3f}), "
        f"wall {statistics.median(wall):.3f} ({min(wall):.3f} to {max(wall):.3f})"
    )


if __name__ == "__main__":
    main()
