"""Does `profstack try` find the known remedy, and is its gain the one of the edit made by hand?

For each program of benchmarks/programs whose remedy is one of the changes: `profstack try` runs in
a copy of its folder, the diff of the remedy is applied by `git apply`, and the program and the
edited one run by hand, in turn and in fresh processes. A row has the best change found and whether
it is the remedy, the remedy's ratio with its interval, the ratio by hand, and whether that lies in
the interval. `--nothing N` tries programs that nothing helps N times instead (only changes that do
nothing to them), and counts invocations that tell a gain.

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


def main() -> None:
    """Try the programs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(REMEDIES)}")
    parser.add_argument("--changes", choices=("all", "remedy"), default="all")
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of processes by hand")
    parser.add_argument("--nothing", type=int, metavar="N")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    words = ["--budget", options.budget]
    if options.nothing:
        told = nothing(options.nothing, words)
        print(f"{told} of {options.nothing} invocations told a gain of changes that do nothing")
        return
    cases = options.cases or list(REMEDIES)
    alone = options.changes == "remedy"
    held = sum(one(case, words, options.repeats, alone=alone) for case in cases)
    print(f"{held} of {len(cases)} found the remedy, with an edit that applies and has its gain")


if __name__ == "__main__":
    main()
