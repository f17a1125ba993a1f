"""Is a lock the same every time, and does a check say what was changed?

`profstack lock` over five programs (a training with workers, one with dropout, a compiled one, an
inference, a transformer), again and again in fresh processes: all locks of a program must be equal,
byte for byte. "left out" are facts that the first lock names as unstable.

Then changes are planted into a script that is locked, one after the other, and `profstack check`
says what it takes each for: "right" where its first line on it names the cause and the line. A
script that was only rewritten must be equal.

It judges no times, so it may run beside other work (about 15 minutes of CPU time). `--quick` makes
one lock a program, and plants two changes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parent.parent
PROGRAMS = {
    "workers": ("examples/slow_loader.py", "--workers", "2", "--size", "32"),
    "dropout": ("examples/train_digits.py",),
    "compile": ("benchmarks/programs/recompilations__counter/mended.py",),
    "inference": ("examples/resnet18_inference.py", "--size", "64"),
    "transformer": ("examples/small_transformer.py", "--steps", "40"),
}

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.last = nn.Linear(64, 4)

    def forward(self, x):
        return self.last(self.first(x).relu())


def augment(x):
    return x + 0.1 * torch.randn_like(x)


def train(model, batches):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    for inputs, labels in batches:
        inputs = augment(inputs)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
data = TensorDataset(torch.randn(1280, 16), torch.randint(4, (1280,)))
model = Net()
train(model, DataLoader(data, batch_size=32))
"""
COMPILED = SCRIPT.replace("model = Net()", 'model = torch.compile(Net(), backend="eager")')


class Change(NamedTuple):
    """A planted change: texts to replace, and what the first line on it must hold.

    `at` is a text of the line that must be named. Without `words` nothing may differ.
    """

    name: str
    script: str
    before: str
    after: str
    words: str
    at: str = ""


TAKES_ALL = "        loss = nn.functional.cross_entropy(model(inputs), labels)\n"
CALL, STEP = "augment(inputs)", "optimizer.step()\n"
CHANGES = [
    Change("only rewritten", SCRIPT, "def augment", "# Noise.\n\n\ndef augment", ""),
    Change("item added", SCRIPT, STEP, f"{STEP}        loss.item()\n", ".item()", "loss.item()"),
    Change("float() added", SCRIPT, STEP, f"{STEP}        float(loss)\n", "read", "float("),
    Change("cpu() added", SCRIPT, CALL, f"{CALL}.cpu()", ".cpu()", ".cpu()"),
    Change("layer doubled", SCRIPT, ".relu()", ".relu().relu()", "aten::relu 2", ".relu()"),
    Change(
        "module doubled",
        SCRIPT,
        "self.first = nn.Linear(16, 64)",
        "self.first = nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 64))",
        "Net.first",
        "self.first = ",
    ),
    Change("layer wider", SCRIPT, "64", "96", "parameters", "nn.Linear(16, 96)"),
    Change("batch changed", SCRIPT, "size=32", "size=64", "64 samples", "batch_size=64"),
    Change("optimizer unfused", SCRIPT, "foreach=True", "foreach=False", "one tensor", "AdamW("),
    Change("function twice", SCRIPT, CALL, f"augment({CALL})", "augment()", "(augment("),
    Change(
        "autocast",
        SCRIPT,
        TAKES_ALL,
        f'        with torch.autocast("cpu", torch.bfloat16):\n    {TAKES_ALL}',
        "bfloat16",
        "autocast(",
    ),
    Change(
        "parameters of another type",
        SCRIPT,
        "model = Net()",
        "model = Net().double()\ndata.tensors = (data.tensors[0].double(), data.tensors[1])",
        "number type",
        "Net().double()",
    ),
    Change(
        "parameters frozen",
        SCRIPT,
        "model = Net()",
        "model = Net()\nmodel.first.requires_grad_(False)",
        "frozen",
        "requires_grad_",
    ),
    Change("graph break", COMPILED, "return self.", "print(); return self.", "break", "print()"),
    Change(
        "new shapes",
        COMPILED,
        "labels in batches:\n",
        "labels in batches:\n        sizes.append(20 if len(sizes) % 2 else 30)\n"
        "        inputs, labels = inputs[: sizes[-1]], labels[: sizes[-1]]\n",
        "compiled again",
        "def forward",
    ),
]


def profstack(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of profstack in `folder`."""
    paths = (str(CHECKOUT), os.environ.get("PYTHONPATH"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(
        [sys.executable, "-m", "profstack", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def repeat(folder: Path, programs: Sequence[str], locks: int, runs: int) -> bool:
    """Make locks of programs; print how many are equal, and return whether all are."""
    rows = []
    for name in programs:
        script, *arguments = PROGRAMS[name]
        texts, begun = [], time.perf_counter()
        for _ in range(locks):
            path = folder / f"{name}.lock"
            words = ("lock", "-q", "--force", "-o", str(path), "--runs", str(runs))
            made = profstack(CHECKOUT, *words, script, *arguments)
            if made.returncode:
                print(f"{name}: {made.stderr.strip()}")
            texts.append(path.read_text(encoding="utf-8") if not made.returncode else "")
            path.unlink(missing_ok=True)
        common = max(set(texts), key=texts.count)
        equal = texts.count(common) if common else 0
        lines = common.splitlines()
        left_out = next((at for at, line in enumerate(lines) if "[unstable." in line), len(lines))
        unstable = [line for line in lines[left_out:] if " = " in line]
        facts = sum(" = " in line for line in lines) - len(unstable)
        each_s = (time.perf_counter() - begun) / locks
        rows.append(equal == locks)
        print(
            f"{name:<12} {equal} of {locks} locks are equal; {facts} facts, {len(unstable)} left "
            f"out, {len(lines)} lines, {each_s:.0f} s a lock",
            flush=True,
        )
        for text in set(texts) - {common}:
            other = text.splitlines()
            print(*(f"    - {line}" for line in lines if line not in other), sep="\n")
            print(*(f"    + {line}" for line in other if line not in lines), sep="\n")
        print(*(f"    left out: {line}" for line in unstable), sep="\n" if unstable else "", end="")
    return all(rows)


def plant(folder: Path, changes: list[Change]) -> bool:
    """Plant changes one by one; print what a check says, and return whether all is right."""
    right = 0
    for script in dict.fromkeys(change.script for change in changes):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "train.py").write_text(_with_sizes(script), encoding="utf-8")
        profstack(folder, "lock", "-q", "train.py")
        _commit(folder)
        for change in changes:
            if change.script is script:
                right += _is_right(folder, change)
    print(f"{right} of {len(changes)} right")
    return right == len(changes)


def _with_sizes(script: str) -> str:
    """Return the script with a list that one of the changes uses."""
    return script.replace("torch.manual_seed", "sizes = []\ntorch.manual_seed")


def _commit(folder: Path) -> None:
    """Commit the script and its lock, as a user does; nothing where there is no git."""
    git = ["git", "-C", str(folder), "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    if shutil.which("git"):
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "Lock"]):
            subprocess.run([*git, *words], check=True)


def _is_right(folder: Path, change: Change) -> bool:
    """Check a changed script; print the lines that the check says on it."""
    text = _with_sizes(change.script).replace(change.before, change.after)
    (folder / "train.py").write_text(text, encoding="utf-8")
    answer = profstack(folder, "check", "-q", "train.py")
    causes = [line for line in answer.stdout.splitlines() if line[:1].isdigit()]
    if not change.words:
        right = answer.returncode == 0
    else:
        lines = text.splitlines()
        numbers = [number for number, line in enumerate(lines, 1) if change.at in line]
        said = next((line for line in causes if change.words in line), "")
        right = answer.returncode == 1 and any(said.endswith(f"train.py:{n}") for n in numbers)
    word = "right" if right else "WRONG"
    print(f"{change.name:<26} {word}, exit {answer.returncode}, {len(causes)} causes", flush=True)
    print(*(f"    {line}" for line in causes or [answer.stderr.strip() or "equal"]), sep="\n")
    return right


def main() -> int:
    """Run both parts; return 1 where a lock differs or a check is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--locks", type=int, default=6, help="locks of each program")
    parser.add_argument("--runs", type=int, default=2, help="fresh processes for each lock")
    parser.add_argument("--program", choices=PROGRAMS, help="locks of this program alone")
    parser.add_argument("--only", choices=("locks", "changes"), help="one part alone")
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    options = parser.parse_args()
    locks, changes = (1, CHANGES[:2]) if options.quick else (options.locks, CHANGES)
    programs = [options.program] if options.program else list(PROGRAMS)
    good = True
    with tempfile.TemporaryDirectory() as name:
        if options.only != "changes":
            good &= repeat(Path(name), programs, locks, options.runs)
        if options.only != "locks":
            good &= plant(Path(name) / "planted", changes)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
