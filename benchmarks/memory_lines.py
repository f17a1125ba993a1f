"""The time of a step while memory is traced by line, over its undisturbed time.

Each workload is run as a script under `profstack run --layers memory`, several times; the steps
of the memory slice are set against the clean steps of the same run. Prints the median ratio over
the runs, and the ratio of the slowest step there was. Run it with nothing else running and
OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

_HEAD = """
import sys
import torch
sys.path.insert(0, {benchmarks!r})
from workloads import STEPS, training_step

_, _, train = training_step(*STEPS[{name!r}])
"""
_STEP = _HEAD + "for _ in range({steps}):\n    train()\n"
_LINES = """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range({steps}):
    inputs = torch.randn(32, 64)
    loss = model(inputs).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
_HOT = """
def hot():
    total = 0
    for number in range(60_000):
        total += number * number
    return total

"""
# Name -> the script and its number of steps.
WORKLOADS: dict[str, tuple[str, int]] = {
    "0.3 ms step in a module of its own": (_STEP.replace("{name!r}", "'0.3 ms'"), 300),
    "5 ms step": (_STEP.replace("{name!r}", "'5 ms'"), 150),
    "loop of five lines at module level": ("import torch\n" + _LINES, 300),
    "60,000 rounds in a function": (
        "import torch\n" + _HOT + _LINES.replace("    inputs", "    hot()\n    inputs"),
        80,
    ),
    "60,000 rounds at module level": (
        "import torch\n"
        + _LINES.replace(
            "    inputs",
            "    for number in range(60_000):\n        number *= number\n    inputs",
            1,
        ),
        80,
    ),
}


def ratios(script: str, steps: int) -> tuple[float, float]:
    """The median and the slowest step of the memory slice over the clean median, of one run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        benchmarks = str(Path(__file__).resolve().parent)
        path = folder / "workload.py"
        path.write_text(script.format(benchmarks=benchmarks, steps=steps), encoding="utf-8")
        subprocess.run(
            [
                *(sys.executable, "-m", "profstack", "run", "-q", "--layers", "memory"),
                *("-o", str(folder / "out"), str(path)),
            ],
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join((str(Path(benchmarks).parent),))},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        database: Any = sqlite3.connect(folder / "out" / "recording.sqlite")
        query = (
            "SELECT steps.wall_s FROM steps JOIN slices USING (slice) "
            "WHERE kind = ? AND slices.round > 1"
        )
        memory = [row[0] for row in database.execute(query, ("memory",))]
        clean = [row[0] for row in database.execute(query, ("clean",))]
        database.close()
    return median(memory) / median(clean), max(memory) / median(clean)


def main() -> None:
    """Measure every workload and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    for name, (script, steps) in WORKLOADS.items():
        found = [ratios(script, steps) for _ in range(options.runs)]
        middle = median(ratio for ratio, _ in found)
        slowest = median(ratio for _, ratio in found)
        print(f"{name}: median step {middle:.2f}, slowest step {slowest:.2f} (n = {options.runs})")


if __name__ == "__main__":
    main()
