"""What `profstack run` with a budget, and `--light`, add to programs of about a minute.

Six programs, three of them busy in Python, run in interleaved rounds under plain `python`, under
`profstack run --budget 10` and under `profstack run --light`. For each it prints CPU seconds (all
processes) and wall seconds over those of plain `python`, with and without the fixed part: what a
run of a few steps adds, and with a budget the seconds that it leaves to every run. Promised is at
most 12 % with the budget, and 2 % with `--light`, beyond the fixed part; `start` is the time until
the program's first step that `--light` adds. Run it with nothing else running and
OMP_NUM_THREADS=1 (about half an hour); `--quick` only shows that it runs.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from one_run import run

if TYPE_CHECKING:
    # Only the programs import it, when they run.
    import torch

Step = Callable[[], object]
WAYS = {
    "plain": [],
    "budget": ["-m", "profstack", "run", "--no-peaks", "--budget", "10"],
    "light": ["-m", "profstack", "run", "--light"],
}
# What each may add beyond the fixed part.
LIMITS = {"budget": 0.12, "light": 0.02}
# Steps of the runs that tell the fixed part.
FEW = 3
# Steps before those that tell how many take a minute, and these.
WARM = 100


def _training(
    model: torch.nn.Module, make: Callable[[], tuple[torch.Tensor, torch.Tensor]]
) -> Step:
    """Return a training step of a classifier on batches that are made in each step."""
    from torch.nn.functional import cross_entropy
    from torch.optim import SGD

    optimizer = SGD(model.parameters(), lr=0.01)

    def step() -> None:
        inputs, labels = make()
        loss = cross_entropy(model(inputs).flatten(0, -2), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has none there
        optimizer.step()

    return step


def words() -> Step:
    """Tokenize text in Python, then train on counts of tokens."""
    import torch

    text = [f"{word}-{random.choice('abcdef')}" for word in ["the", "quick", "brown", "fox"] * 60]

    def count(size: int) -> list[list[float]]:
        rows = []
        for number in range(size):
            row = [0.0] * 128
            for word in text:
                stem, _, ending = word.partition("-")
                row[(len(stem) * 31 + ord(ending) + number) % 128] += 1.0
            rows.append(row)
        return rows

    def make() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(count(16)), torch.randint(0, 10, (16,))

    return _training(torch.nn.Linear(128, 10), make)


def game() -> Step:
    """Play a game whose rules are many calls of small functions, with a small policy."""
    import torch

    class Player:
        def __init__(self) -> None:
            self.place, self.speed = 0.0, 0.0

        def push(self, force: float) -> float:
            self.speed = self._slowed(self.speed + force)
            return self._bounded(self.place + self.speed)

        def _slowed(self, speed: float) -> float:
            return speed * 0.9

        def _bounded(self, place: float) -> float:
            self.place = max(-1.0, min(1.0, place))
            return self.place

    players = [Player() for _ in range(200)]

    def make() -> tuple[torch.Tensor, torch.Tensor]:
        rows = [[each.push(random.uniform(-1, 1)) for _ in range(8)] for each in players]
        return torch.tensor(rows), torch.tensor([int(row[-1] > 0) for row in rows])

    return _training(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Linear(32, 2)), make)


def loader() -> Step:
    """Train from a DataLoader without workers, whose samples are made in Python."""
    import torch

    class Samples(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
        def __len__(self) -> int:
            return 4096

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            row = [((index * 7 + at * 13) % 97) / 97.0 for at in range(256)]
            return torch.tensor(row).flip(0).mul(0.5), index % 10

    batches = torch.utils.data.DataLoader(Samples(), batch_size=32, shuffle=True)
    waiting = iter(batches)

    def make() -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal waiting
        batch = next(waiting, None)
        if batch is None:
            waiting = iter(batches)
            batch = next(waiting)
        return batch[0], batch[1]

    return _training(torch.nn.Sequential(torch.nn.Linear(256, 64), torch.nn.Linear(64, 10)), make)


def cells() -> Step:
    """Train a recurrent network of many small operators."""
    import torch

    class Cells(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = torch.nn.GRUCell(16, 32), torch.nn.Linear(32, 4)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            state = inputs.new_zeros(len(inputs), 32)
            for moment in inputs.unbind(1):
                state = self.cell(moment, state)
            out: torch.Tensor = self.head(state)
            return out

    return _training(Cells(), lambda: (torch.randn(8, 40, 16), torch.randint(0, 4, (8,))))


def images() -> Step:
    """Train a convolutional network."""
    import torch
    from torch import nn

    layers = (nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU())
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return _training(model, lambda: (torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))))


def language() -> Step:
    """Train a small language model."""
    import torch
    from torch import nn

    block = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    model = nn.Sequential(nn.Embedding(500, 128), nn.TransformerEncoder(block, 3))
    model.append(nn.Linear(128, 500))

    def make() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(0, 500, (8, 64)), torch.randint(0, 500, (8 * 64,))

    return _training(model, make)


PROGRAMS = {each.__name__: each for each in (words, game, loader, cells, images, language)}


def program(name: str, steps: int, seconds: float) -> float:
    """Run a program for so many steps, and return when the first began.

    Without a number of steps, return how many of them take so many seconds.
    """
    import torch

    torch.manual_seed(0)
    random.seed(0)
    step = PROGRAMS[name]()
    # By the system's clock, so that it can be compared with when the process was started.
    first = time.time()
    for _ in range(steps or WARM):
        step()
    if steps:
        return first
    # The first ones take several times as long.
    begun = time.time()
    for _ in range(WARM):
        step()
    return max(FEW, int(seconds * WARM / (time.time() - begun)))


def measured(way: str, name: str, steps: int) -> tuple[float, float, float]:
    """Return CPU and wall seconds of a run, and the seconds until its first step."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "first"
        script = [__file__, "--program", name, "--steps", str(steps), "--output", str(output)]
        own = ["-o", str(Path(folder) / "recording")] if WAYS[way] else []
        begun = time.time()
        cpu, wall = run([sys.executable, *WAYS[way], *own, *script])
        return cpu, wall, float(output.read_text(encoding="utf-8")) - begun


def judged(
    name: str, steps: int, rounds: int, ways: Sequence[str], allowed_s: float
) -> dict[str, list[float]]:
    """Run a program in these ways, and return what each adds as shares of the plain run."""
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        order = sorted(("plain", *ways), reverse=bool(number % 2))
        whole = {way: measured(way, name, steps) for way in order}
        few = {way: measured(way, name, FEW) for way in order}
        for way in ways:
            for at, clock in ((0, "CPU"), (1, "wall")):
                plain = whole["plain"][at]
                added = whole[way][at] - plain
                fixed = few[way][at] - few["plain"][at] + (allowed_s if way == "budget" else 0.0)
                found.setdefault(f"{way} {clock}", []).append(added / plain)
                found.setdefault(f"{way} {clock} beyond", []).append(max(added - fixed, 0) / plain)
        if "light" in ways:
            found.setdefault("start", []).append(few["light"][2] - few["plain"][2])
        found.setdefault("plain", []).append(whole["plain"][1])
    return found


def main() -> None:
    """Measure and print."""
    from profstack.capture.run_limits import FIXED_S

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each program")
    parser.add_argument("--only", choices=PROGRAMS, help="this program alone")
    parser.add_argument("--way", choices=("budget", "light"), help="this way alone")
    parser.add_argument("--quick", action="store_true", help="one round of short programs")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rounds, seconds = (1, 0.5) if options.quick else (options.rounds, options.seconds)
    for name in [options.only] if options.only else PROGRAMS:
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "steps"
            own = ["--program", name, "--seconds", str(seconds), "--output", str(output)]
            run([sys.executable, __file__, *own])
            steps = int(output.read_text(encoding="utf-8"))
        ways = [options.way] if options.way else ["budget", "light"]
        added_by = judged(name, steps, rounds, ways, FIXED_S)
        found = {key: median(one) for key, one in added_by.items()}
        print(f"{name}, {steps} steps, {found['plain']:.1f} s alone, {rounds} rounds:")
        for way in ways:
            limit = LIMITS[way]
            for clock in ("CPU", "wall"):
                added, beyond = found[f"{way} {clock}"], found[f"{way} {clock} beyond"]
                kept = "kept" if beyond <= limit else "NOT KEPT"
                print(
                    f"  {way:<7}{clock:<5}{added:+8.1%} in all, {beyond:6.1%} beyond the fixed part"
                    f" (at most {limit:.0%}: {kept})"
                )
        if "start" in found:
            print(f"  light starts {found['start']:+.2f} s later", flush=True)


def main_of_program() -> None:
    """Run one program, as the command line names it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--program")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--output")
    options = parser.parse_args()
    found = program(options.program, options.steps, options.seconds)
    Path(options.output).write_text(str(found), encoding="utf-8")


if __name__ == "__main__":
    main_of_program() if "--program" in sys.argv else main()
