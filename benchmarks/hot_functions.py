"""Seven hot functions, called in every step of a small training, for `line_shares.py`.

A line that ends in `#: name` is a part whose time is measured by hand in a copy of this file.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn


def tokenise(text: str) -> list[int]:
    """Return numbers of words: one loop of lines with very different times."""
    vocabulary: dict[str, int] = {}
    numbers: list[int] = []
    for word in text.split():
        word = "".join(sorted(word.strip(".,").lower()))  #: letters
        known = vocabulary.setdefault(word, len(vocabulary))  #: look up
        numbers.append(known + word.count("e") + word.count("a") + word.count("o"))  #: append
    return numbers


def in_phases(count: int) -> float:
    """Return a sum of two loops, the second of which is never seen by who looks at the start."""
    total = 0.0
    for number in range(count):
        total += sum(range(number % 16))  #: first loop
    for number in range(count):
        total += sum(map(math.sqrt, range(number % 40)))  #: second loop
    return total


def blend(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Return the mean of two colours; called for each pixel."""
    mixed = tuple([(one[at] + other[at]) // 2 for at in range(len(one))])  #: mix
    return tuple(sorted(mixed))  #: sort


def by_pixel(width: int) -> list[tuple[int, ...]]:
    """Return pixels that another function makes, one call for each."""
    made = []
    for x in range(width):
        colour = (x % 256, (x * 7) % 256, (x * 13) % 256, x % 3, x % 5)  #: colour
        made.append(blend(colour, (128, 64, 32, 16, 8)))
    return made


def recur(state: torch.Tensor, weight: torch.Tensor, steps: int) -> float:
    """Return the end of a hand-written recurrence: operators and Python in turns."""
    total = 0.0
    for step in range(steps):
        state = torch.tanh(state @ weight)  #: cell
        size = float(state[0, 0])  #: item
        total += sum([size * each for each in range(step % 100)])  #: weigh
    return total


def fields(count: int) -> Iterator[tuple[int, str]]:
    """Yield parts of rows of text, read by a loop elsewhere."""
    for number in range(count):
        row = f"{number};{number * 7};{number % 9:05d};name".upper()  #: make
        for part in row.split(";"):
            yield number, part


def read(count: int) -> dict[str, int]:
    """Return what a generator yields, by its text."""
    found = {}
    for number, part in fields(count):
        found[part[:3]] = number + len(part.strip("0").center(9))  #: keep
    return found


def smooth(signal: torch.Tensor, count: int) -> torch.Tensor:
    """Return a signal after long operators, which let go of the interpreter, and short ones."""
    for _ in range(count):
        ordered = torch.sort(signal)[0]  #: long
        peak = ordered[-1]  #: view
        signal = torch.roll(signal, 1) * 0.5 + peak  #: short
    return signal


def score(row: tuple[int, int]) -> float:
    """Return the key of a row; called by `sorted`, not by a line."""
    near = math.hypot(row[0] - 50, row[1] - 50) + sum(range(row[0] % 12))  #: near
    return near if row[0] % 2 else -near  #: sign


def ranked(rows: list[tuple[int, int]]) -> list[str]:
    """Return rows in the order of a key, in words."""
    order = sorted(rows, key=score)
    return [f"{first}-{second}" for first, second in order]  #: words


WEIGHT = torch.randn(48, 48) / 7
STATE = torch.ones(1, 48)


def calls() -> dict[str, Callable[[], Any]]:
    """Return what is called in each step by name."""
    text = "The quick brown fox, jumping over everything, was not seen. " * 300
    signal = torch.arange(2000).remainder(17).float()
    rows = [(at * 7919 % 101, at * 104729 % 103) for at in range(6000)]
    return {
        "tokenise": lambda: tokenise(text),
        "in_phases": lambda: in_phases(4000),
        "by_pixel": lambda: by_pixel(5000),
        "recur": lambda: recur(STATE, WEIGHT, 1500),
        "ranked": lambda: ranked(rows),
        "read": lambda: read(1500),
        "smooth": lambda: smooth(signal, 600),
    }


# Functions that are judged together: one calls the other.
MEMBERS = {
    "by_pixel": ("by_pixel", "blend"),
    "ranked": ("ranked", "score"),
    "read": ("read", "fields"),
}


def main(steps: int) -> None:
    """Train for some steps, each of which calls all of them."""
    model = nn.Linear(48, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    called = calls()
    for _ in range(steps):
        with torch.no_grad():
            for call in called.values():
                call()
        model(WEIGHT).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
