"""Does `profstack try` find the known remedy, and is its gain the one of the edit made by hand?

For each program of benchmarks/programs whose remedy is one of the changes: `profstack try` runs in
a copy of its folder, the diff of the remedy is applied by `git apply`, and the program and the
edited one run by hand, in turn and in fresh processes. A row has the best change found and whether
it is the remedy, the remedy's ratio with its interval, the ratio by hand, and whether that lies in
the interval. `--nothing N` tries programs that nothing helps N times instead (only changes that do
nothing to them), and counts invocations that tell a gain; `--breaks` tries changes that break
programs, and counts those that are told so.

Run it with nothing else running: some 5 minutes a program with all changes (`--changes remedy`
tries the remedy alone, in a minute).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from findings import PROGRAMS, times_by_hand

REMEDIES = {
    "batchnorm_training_at_inference__blocks": "eval-mode",
    "batchnorm_training_at_inference__features": "eval-mode",
    "batchnorm_training_at_inference__forgotten_eval": "eval-mode",
    "batchnorm_training_at_inference__sequence": "eval-mode",
    "data_starved__accumulated": "workers",
    "data_starved__few_workers": "workers",
    "data_starved__no_workers": "workers",
    "grad_in_inference__convolutions": "inference-mode",
    "unfused_optimizer__few_large": "fused-optimizer",
    "unfused_optimizer__many_small": "fused-optimizer",
    "unfused_optimizer__momentum": "fused-optimizer",
    "zero_grad_to_zeros__set_to_none_false": "set-to-none",
}
# Programs that a change breaks: what is changed, and the program's own lines. Each has to be told
# as one that breaks, or whose results differ, and never be recommended.
_TRAIN = """
for step in range(40):
    x = torch.rand(8, 6)
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
_NET = "net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))\n"
_ADAM = "optimizer = torch.optim.Adam(net.parameters(), lr=0.01)\n"
_LOOP = "for step in range(40):\n    "
_ROWS = """
class Rows(torch.utils.data.Dataset):
    seen = 0
    def __len__(self):
        return 400
    def __getitem__(self, at):
        Rows.seen += 1
        return torch.full((6,), float({item}))
{net}optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(Rows(), batch_size=8):
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
_SQUARE = "net(x).square().mean()"
BREAKS = {
    "digits lost in a difference": (
        "bfloat16",
        _NET + _ADAM + _TRAIN.format(loss="((net(x) + 4096.0) - 4096.0).square().mean()"),
    ),
    "an inverse without bfloat16": (
        "bfloat16",
        _NET + _ADAM + _TRAIN.format(loss="torch.linalg.inv(net(x)[:6] + torch.eye(6)).sum()"),
    ),
    "random numbers in the data set": (
        "workers",
        _ROWS.format(net=_NET, item="random.random()", loss=_SQUARE),
    ),
    "a data set that counts": (
        "workers",
        _ROWS.format(net=_NET, item="at", loss=f"Rows.seen * {_SQUARE}"),
    ),
    "a batch of fixed size": (
        "batch-size",
        _ROWS.format(net=_NET, item="at", loss="(net(x) - torch.zeros(8, 6)).square().mean()"),
    ),
    "gradients of an inference": (
        "inference-mode",
        _NET + _LOOP + "torch.autograd.grad(net(torch.rand(8, 6)).sum(), net[0].bias)\n",
    ),
    "a result changed in place": (
        "inference-mode",
        _NET + _LOOP + "net(torch.rand(8, 6)).add_(1.0)\n",
    ),
    "a view of an image": (
        "channels-last",
        "net = nn.Conv2d(3, 4, 3)\n" + _LOOP + "net(torch.rand(2, 3, 9, 9)).view(2, -1).sum()\n",
    ),
    "complex parameters": (
        "fused-optimizer",
        "net = nn.Linear(6, 6, dtype=torch.complex64)\n"
        + _ADAM
        + _TRAIN.format(loss="net(x.to(torch.complex64)).abs().mean()"),
    ),
    "gradients that are read after": (
        "set-to-none",
        _NET
        + _ADAM
        + _TRAIN.format(loss=_SQUARE)
        + "    optimizer.zero_grad(set_to_none=False)\n    net[0].weight.grad.norm()\n",
    ),
}
# What does nothing to the first program, which has no DataLoader's workers and no GPU.
NOTHING = ("huge-pages", "no-logging")


def tried(folder: Path, words: Sequence[str]) -> dict[str, Any]:
    """Run `profstack try` in a folder and return its report."""
    command = [sys.executable, "-m", "profstack", "try", "--json", "-q", *words, "bad.py"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise SystemExit(f"{folder.name}: {done.stderr.strip()}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def by_hand(before: Path, after: Path, repeats: int, steps: int) -> tuple[float, float]:
    """Return after over before of median steps in fresh processes, and the error of its log."""
    logs = []
    for turn in range(repeats):
        pair = {}
        for program in (before, after) if turn % 2 == 0 else (after, before):
            pair[program] = median(times_by_hand(program, steps))
        logs.append(math.log(pair[after] / pair[before]))
    error = stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return math.exp(fmean(logs)), error


def one(case: str, words: Sequence[str], repeats: int, *, alone: bool) -> bool:
    """Try one program and print its row; return whether all of it holds."""
    remedy = REMEDIES[case]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / case
        shutil.copytree(PROGRAMS / case, folder, ignore=shutil.ignore_patterns("mended*", "__py*"))
        report = tried(folder, [*words, *(["--change", remedy] if alone else [])])
        rows = [row for row in report["trials"] if row["recommended"]]
        best = min(rows, key=lambda row: row["ratio"], default=None)
        found = min(
            (row for row in report["trials"] if row["changes"] == [remedy] and row["ratio"]),
            key=lambda row: row["ratio"],
            default=None,
        )
        named = best["change"] if best else "none"
        line = f"{case:50}{named:28}"
        if found is None or not found["diff"]:
            print(f"{line}no row or no diff of {remedy}", flush=True)
            return False
        before = folder.parent / "before.py"
        shutil.copy(folder / "bad.py", before)
        applied = subprocess.run(
            ["git", "apply"], input=found["diff"], text=True, cwd=folder, check=False
        )
        hand, error = by_hand(before, folder / "bad.py", repeats, report["steps"])
        low, high = found["ci95_low"], found["ci95_high"]
        # The ratio by hand is measured with an error of its own.
        is_within = low * math.exp(-2 * error) <= hand <= high * math.exp(2 * error)
        holds = (applied.returncode == 0, best is not None and best["changes"] == [remedy])
        print(
            f"{line}{found['ratio']:8.3f} ({low:.3f} to {high:.3f}){hand:10.3f} +- {error:.3f}"
            f"   applies {'yes' if holds[0] else 'NO'}, remedy {'yes' if holds[1] else 'NO'}, "
            f"within {'yes' if is_within else 'NO'}, {report['seconds']:.0f} s",
            flush=True,
        )
        return all(holds) and is_within


def nothing(count: int, words: Sequence[str]) -> int:
    """Try what changes nothing; return how many invocations told a gain."""
    told = 0
    for number in range(count):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "work"
            shutil.copytree(PROGRAMS / "module_dominates__slow_block", folder)
            asked = [word for change in NOTHING for word in ("--change", change)]
            report = tried(folder, [*words, *asked])
        verdicts = {row["change"]: row["verdict"] for row in report["trials"]}
        told += "gains" in verdicts.values()
        print(number, verdicts, f"floor {report['floor']:.4f}", flush=True)
    return told


def breaks(words: Sequence[str]) -> int:
    """Try changes that break programs; return how many were told so."""
    told = 0
    for name, (change, text) in BREAKS.items():
        with tempfile.TemporaryDirectory() as folder:
            head = "import random\nimport torch\nfrom torch import nn\n\n"
            (Path(folder) / "bad.py").write_text(head + text, encoding="utf-8")
            report = tried(Path(folder), [*words, "--steps", "20", "--change", change])
        rows = [row for row in report["trials"] if row["changes"] == [change]]
        is_told = bool(rows) and all(
            not row["recommended"] and (row["verdict"] == "breaks" or row["results"] == "different")
            for row in rows
        )
        told += is_told
        said = [(row["change"], row["verdict"], row["results"], row["reason"]) for row in rows]
        print(f"{name:34}{'told' if is_told else 'NOT TOLD':10}{said}", flush=True)
    return told


def main() -> None:
    """Try the programs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(REMEDIES)}")
    parser.add_argument("--changes", choices=("all", "remedy"), default="all")
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of processes by hand")
    parser.add_argument("--nothing", type=int, metavar="N")
    parser.add_argument("--breaks", action="store_true", help="try changes that break programs")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    words = ["--budget", options.budget]
    if options.nothing:
        told = nothing(options.nothing, words)
        print(f"{told} of {options.nothing} invocations told a gain of changes that do nothing")
        return
    if options.breaks:
        print(f"{breaks(words)} of {len(BREAKS)} changes that break results were told so")
        return
    cases = options.cases or list(REMEDIES)
    alone = options.changes == "remedy"
    held = sum(one(case, words, options.repeats, alone=alone) for case in cases)
    print(f"{held} of {len(cases)} found the remedy, with an edit that applies and has its gain")


if __name__ == "__main__":
    main()
