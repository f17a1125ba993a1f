"""Judge `profstack compare` by pairs with one planted difference each.

    python benchmarks/compare_planted.py RECORDINGS [--processes 3] [--only NAME ...]

Every pair is one small program and a change of it, recorded in fresh processes that take turns.
Recordings that are already in RECORDINGS are used again. It prints the first line of each
comparison, whether it is right, and what is wrong with it: the answer, the place of the cause, or a
part that is said to have changed and has not. The unchanged program against itself is a pair, too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from profstack.storage.schema.comparison import Comparison

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

BASE = """\
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
DTYPE = torch.float32
BATCH = 64


def scaled(sample):
    return sample * 0.5 + 0.1


class Samples(Dataset):
    def __init__(self, count):
        self.inputs = torch.randn(count, 64, dtype=DTYPE)
        self.targets = torch.randint(0, 10, (count,))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return scaled(self.inputs[index]), self.targets[index]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, 2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, values):
        return values + self.second(torch.relu(self.first(values)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(64, 256)
        self.blocks = nn.Sequential(Block(256), Block(256))
        self.head = nn.Linear(256, 10)

    def forward(self, values):
        return self.head(self.blocks(torch.relu(self.stem(values))))


def penalty(model):
    return sum(p.detach().abs().mean() for p in model.head.parameters())


def evaluate(model, inputs, targets):
    model.eval()
    with torch.no_grad():
        for _ in range(8):
            right = (model(inputs).argmax(1) == targets).float().mean()
    model.train()
    return float(right)


def set_up():
    table = {}
    for number in range(1000):
        table[number] = number
    return table


def train():
    set_up()
    data = Samples(64 * BATCH)
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    model = Net().to(DTYPE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(5):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_of(model(inputs), targets)
            loss.backward()
            optimizer.step()
            penalty(model)


train()
"""


@dataclass
class Pair:
    """A change of the program and what the comparison has to say of it.

    `edits` replace texts of the program. `place` is text of the line that the first line has to
    name, on the changed side; `parts` are parts that may change, the first has to. `words` have to
    be in the first line.
    """

    name: str
    edits: list[tuple[str, str]]
    slug: str
    figure: str = "step"
    place: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    before: list[tuple[str, str]] = field(default_factory=list)
    threads: tuple[str, str] = ("1", "1")


_SCALED = "    return sample * 0.5 + 0.1\n"
_PENALTY = "    return sum(p.detach().abs().mean() for p in model.head.parameters())\n"
_RELU = "        return values + self.second(torch.relu(self.first(values)))\n"
_ADAM = "    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)\n"
_BLOCKS = "        self.blocks = nn.Sequential(Block(256), Block(256))\n"
_PENALTY_CALL = "            penalty(model)\n"
_STEP = "            optimizer.step()\n"
_LATE = ("after the step", "other", "Python", "idle", "not attributed")
_LOADING = ("data wait", "making the batch", "before the model's first call")

_COMPILED = [
    (
        "    model = Net().to(DTYPE)\n",
        (
            "    model = Net().to(DTYPE)\n"
            '    compiled = torch.compile(model, backend="aot_eager", dynamic=False)\n'
        ),
    ),
    ("loss_of(model(inputs), targets)", "loss_of(compiled(inputs), targets)"),
]
_ZERO = "            optimizer.zero_grad()\n"

PAIRS = [
    Pair("unchanged", [], "same"),
    Pair(
        "compiled again",
        [
            *_COMPILED,
            (_ZERO, "            inputs, targets = inputs[epoch:], targets[epoch:]\n" + _ZERO),
        ],
        "slower",
        figure="run",
        parts=("first step and compilation",),
        place=("inputs[epoch:]", "compiled(inputs)", "def forward(self, values)"),
        before=_COMPILED,
    ),
    Pair(
        "loader slower",
        [(_SCALED, "    for _ in range(6):\n        sample = sample.sort()[0]\n" + _SCALED)],
        "slower",
        place=("sample = sample.sort()[0]", "def scaled(sample)"),
        parts=_LOADING,
    ),
    Pair(
        "sync added",
        [
            (
                _PENALTY,
                "    return [p.norm().item() for p in model.parameters() for _ in range(8)]\n",
            )
        ],
        "slower",
        place=("p.norm().item()", "def penalty(model)"),
        parts=_LATE,
    ),
    Pair(
        "optimizer unfused",
        [(_ADAM, _ADAM.replace("fused=True", "foreach=False"))],
        "slower",
        place=("optimizer.step()",),
        parts=("optimizer", "Python", *_LATE),
        words=("fused",),
    ),
    Pair(
        "optimizer fused",
        [],
        "faster",
        before=[(_ADAM, _ADAM.replace("fused=True", "foreach=False"))],
        place=("optimizer.step()",),
        parts=("optimizer", "Python", *_LATE),
        words=("fused",),
    ),
    Pair(
        "block doubled",
        [
            (
                _BLOCKS,
                _BLOCKS.replace("Block(256))", "Block(256), Block(256), Block(256), Block(256))"),
            )
        ],
        "slower",
        # After the step the graph is let go, which is twice as large.
        parts=("forward", "backward", "optimizer", "Python", *_LATE),
        place=(
            "self.second(torch.relu(self.first(values)))",
            "self.head(self.blocks(",
            "loss.back",
        ),
        words=("FLOP",),
    ),
    Pair(
        "Python loop",
        [
            (
                _PENALTY,
                (
                    "    total = 0\n    for number in range(20_000):\n        total += number\n"
                    "    return total\n"
                ),
            )
        ],
        "slower",
        place=("def penalty(model)", "total += number", "for number in range"),
        parts=("Python", *_LATE),
    ),
    Pair(
        "allocation added",
        [(_RELU, "        torch.zeros(12_000_000)\n" + _RELU)],
        "slower",
        place=("torch.zeros(12_000_000)",),
        # Blocks that the C library always gives back: of smaller ones some processes keep the pages
        # and some do not, and take two to three times as long. They leave cold caches to all else.
        parts=("forward", "Python", "backward", "loss", "optimizer", *_LATE, *_LOADING),
    ),
    Pair(
        "float64",
        [("torch.float32", "torch.float64")],
        "slower",
        parts=("forward", "backward", "optimizer", "loss", "Python", *_LATE, *_LOADING),
        words=("float64",),
    ),
    Pair(
        "batch doubled",
        [("BATCH = 64", "BATCH = 128")],
        "slower",
        parts=("forward", "backward", "loss", "optimizer", "Python", *_LATE, *_LOADING),
        words=("batch", "128"),
    ),
    Pair(
        "threads",
        [("torch.set_num_threads(1)", "torch.set_num_threads(2)")],
        "any",
        parts=("forward", "backward", "loss", "optimizer", "Python", *_LATE, *_LOADING),
    ),
    Pair(
        "renamed and slower",
        [
            ("def scaled(sample):", "def augmented(sample):"),
            ("return scaled(self.inputs", "return augmented(self.inputs"),
            (_SCALED, "    for _ in range(8):\n        sample = sample.flip(0)\n" + _SCALED),
        ],
        "slower",
        place=("sample = sample.flip(0)", "def augmented(sample)"),
        parts=_LOADING,
    ),
    Pair(
        "sleep",
        [(_PENALTY_CALL, _PENALTY_CALL + "            time.sleep(0.002)\n")],
        "slower",
        place=("time.sleep(0.002)",),
        parts=("idle", *_LATE),
    ),
    Pair(
        "evaluation added",
        [
            (_PENALTY_CALL, _PENALTY_CALL + "        evaluate(model, data.inputs, data.targets)\n"),
        ],
        "slower",
        figure="run",
        place=("evaluate(model, data.inputs", "def evaluate", "right = (model(inputs)"),
        parts=("evaluation",),
    ),
    Pair(
        "start-up heavier",
        [("range(1000)", "range(20_000_000)")],
        "slower",
        figure="run",
        place=("def set_up", "table[number] = number", "for number in range", "    set_up()"),
        parts=("model and data set-up", "start-up and imports"),
    ),
    Pair(
        "loop in the model",
        [
            (
                _RELU,
                (
                    "        parts = [self.first(one) for one in values.split(4)]\n"
                    "        return values + self.second(torch.relu(torch.cat(parts)))\n"
                ),
            )
        ],
        "slower",
        place=("parts = [self.first(one)", "def forward", "loss.backward()"),
        parts=("forward", "backward", "Python", "optimizer"),
    ),
]


def program(edits: list[tuple[str, str]]) -> str:
    """Return the program with the edits; each text has to be in it once."""
    text = BASE
    for old, new in edits:
        if text.count(old) != 1:
            raise SystemExit(f"{old!r} is {text.count(old)} times in the program")
        text = text.replace(old, new)
    return text


def record(folder: Path, text: str, threads: str) -> None:
    """Record the program into the folder, unless that was done."""
    with contextlib.suppress(OSError):
        if '"status": "complete"' in (folder / "report.json").read_text(encoding="utf-8")[:2000]:
            return
    script = folder.parent / "train.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "profstack", "run", "-q", "--force", "-o", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": str(CHECKOUT)}
    subprocess.run([*command, str(script)], check=True, env=environment, capture_output=True)


def record_pair(pair: Pair, home: Path, processes: int) -> tuple[list[Path], list[Path]]:
    """Return the recordings of both sides, recorded in turn where they are missing."""
    sides: tuple[list[Path], list[Path]] = ([], [])
    texts = program(pair.before), program(pair.edits)
    for number in range(processes):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        for which in order:
            # The unchanged program is recorded for every pair: the machine is not always the same.
            folder = home / f"{pair.name}-{which}".replace(" ", "-") / f"{number:02}"
            record(folder, texts[which], pair.threads[which])
            sides[which].append(folder)
    return sides


def faults(pair: Pair, comparison: Comparison, text: str) -> list[str]:
    """Return what is wrong with a comparison."""
    verdict, found = comparison["verdict"], []
    sentence = verdict["sentence"]
    if pair.slug != "any" and verdict["slug"] != pair.slug:
        found.append(f"{verdict['slug']} and not {pair.slug}")
    if verdict["figure"] != pair.figure:
        found.append(f"of the {verdict['figure']} and not the {pair.figure}")
    found += [f"no word of {word}" for word in pair.words if word not in sentence]
    told = [p for p in comparison["parts"] if p["of"] == pair.figure and p["beyond_noise"]]
    found += [f"part {part['name']} changed" for part in told if part["name"] not in pair.parts]
    # A part that has most of the difference may be no more than noise by itself, if that is said.
    mostly = any(f"mostly {part} " in sentence for part in pair.parts)
    if pair.parts and pair.slug != "any" and not told and not mostly:
        found.append("no part beyond noise, and none that has most of the difference")
    if pair.place:
        lines = text.splitlines()
        wanted = {
            number
            for number, line in enumerate(lines, 1)
            if any(place in line for place in pair.place)
        }
        if not any(f"train.py:{number}" in sentence for number in wanted):
            found.append(f"names none of train.py:{','.join(map(str, sorted(wanted)))}")
    return found


def main() -> int:
    """Record, compare and print; return 1 where a pair is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--record", action="store_true", help="record alone, compare nothing")
    arguments = parser.parse_args()
    wrong = 0
    for pair in PAIRS:
        if arguments.only and pair.name not in arguments.only:
            continue
        sides = record_pair(pair, arguments.recordings, arguments.processes)
        if arguments.record:
            continue
        from profstack.commands.compare import read_side
        from profstack.compare.comparison import compare

        before, after = (read_side([str(folder) for folder in side]) for side in sides)
        comparison = compare(before, after)
        found = faults(pair, comparison, program(pair.edits))
        wrong += bool(found)
        print(f"{'wrong' if found else 'right':<6}{pair.name}")
        print(f"      {comparison['verdict']['sentence']}")
        for fault in found:
            print(f"      -- {fault}")
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
