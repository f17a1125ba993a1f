"""Does `profstack compare` call equal programs equal, and does it see a step made 5 % slower?

    python benchmarks/compare_equal.py RECORDINGS [--pairs 20] [--trials 10] [--processes 5]

Three programs are recorded in fresh processes, two for each pair, and compared with one recording a
side: a pair that is told as faster or slower is a false answer. Then a program whose step is made
5 % longer (it repeats a layer more often) is compared with itself as it was, with `--processes`
recordings a side that take turns: "told" where the answer is slower, "holds" where the interval
holds the ratio by hand, of both steps in turn in one process. Recordings that are already in
RECORDINGS are used again. Run it with nothing else running (about 25 minutes).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from compare_planted import CHECKOUT, program, record

from profstack.commands.compare import read_side
from profstack.compare.comparison import compare
from profstack.storage.schema.comparison import Comparison

PROGRAMS = {
    "training with a loader": program([]),
    "transformer": (CHECKOUT / "examples" / "small_transformer.py").read_text("utf-8"),
    "two layers": (CHECKOUT / "examples" / "two_layer_net.py").read_text("utf-8"),
}
USUAL, LONGER = 40, 42
_REPEATED = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
layer = nn.Linear(192, 192)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
batch = torch.randn(48, 192)


def step(repeats={repeats}):
    hidden = batch
    for _ in range(repeats):
        hidden = torch.tanh(layer(hidden))
    optimizer.zero_grad()
    hidden.square().mean().backward()
    optimizer.step()


def main():
    for _ in range(300):
        step()


if __name__ == "__main__":
    main()
"""


def ratio_by_hand(rounds: int = 400) -> float:
    """Return the longer step over the usual one: medians of both in turn, in this process."""
    names: dict[str, Any] = {"__name__": "by_hand"}
    exec(_REPEATED.format(repeats=USUAL), names)
    step: Callable[[int], None] = names["step"]
    times: dict[int, list[float]] = {USUAL: [], LONGER: []}
    for turn in range(rounds):
        for repeats in (USUAL, LONGER) if turn % 2 == 0 else (LONGER, USUAL):
            began = time.perf_counter()
            step(repeats)
            times[repeats].append(time.perf_counter() - began)
    warm = {repeats: median(each[rounds // 10 :]) for repeats, each in times.items()}
    return warm[LONGER] / warm[USUAL]


def compared(before: list[Path], after: list[Path]) -> Comparison:
    """Compare recordings, some a side."""
    sides = (read_side([str(folder) for folder in side]) for side in (before, after))
    return compare(*sides)


def told(comparison: Comparison) -> str:
    """Return the answer's slug with its ratio and interval."""
    verdict = comparison["verdict"]
    figures = [verdict[name] for name in ("ratio", "ci95_low", "ci95_high")]
    words = ["-" if each is None else f"{each:.4f}" for each in figures]
    return f"{verdict['slug']:8}{words[0]:>9} ({words[1]} to {words[2]})"


def equal(home: Path, pairs: int) -> int:
    """Compare programs with themselves; return how many pairs were told as different."""
    false = 0
    for name, text in PROGRAMS.items():
        for number in range(pairs):
            sides = [home / name.replace(" ", "-") / f"{number:02}-{side}" for side in "ab"]
            for folder in sides:
                record(folder, text, "1")
            found = compared(sides[:1], sides[1:])
            is_false = found["verdict"]["slug"] in ("faster", "slower")
            false += is_false
            print(f"{name:24}{number:3}  {told(found)}{'   FALSE' if is_false else ''}", flush=True)
    return false


def power(home: Path, trials: int, processes: int, by_hand: float) -> tuple[int, int]:
    """Compare the longer step with the usual one; return how often it is told, and holds."""
    slower = holds = 0
    for trial in range(trials):
        sides: dict[int, list[Path]] = {USUAL: [], LONGER: []}
        for number in range(processes):
            for repeats in (USUAL, LONGER) if number % 2 == 0 else (LONGER, USUAL):
                folder = home / "longer" / f"{trial:02}-{number:02}-{repeats}"
                record(folder, _REPEATED.format(repeats=repeats), "1")
                sides[repeats].append(folder)
        found = compared(sides[USUAL], sides[LONGER])
        verdict = found["verdict"]
        low, high = verdict["ci95_low"] or 0.0, verdict["ci95_high"] or 0.0
        slower += verdict["slug"] == "slower"
        holds += low <= by_hand <= high
        word = "holds" if low <= by_hand <= high else "does not hold"
        print(f"{USUAL} -> {LONGER} layers{trial:11}  {told(found)}   {word}", flush=True)
    return slower, holds


def main() -> None:
    """Record, compare, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--pairs", type=int, default=20, help="pairs of each of three programs")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--processes", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    home = options.recordings.resolve()
    if options.pairs:
        false = equal(home, options.pairs)
        print(f"{false} of {options.pairs * len(PROGRAMS)} equal pairs were told as different")
    if options.trials:
        before = ratio_by_hand()
        slower, holds = power(home, options.trials, options.processes, before)
        print(f"by hand {before:.4f} before the trials, {ratio_by_hand():.4f} after them")
        print(f"told in {slower} of {options.trials}; the interval holds it in {holds}")


if __name__ == "__main__":
    main()
