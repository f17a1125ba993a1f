"""What `profstack run` adds to a short script, and which part of profstack adds it.

Runs a short script in interleaved rounds under plain `python` and under `profstack run`, and prints
the CPU seconds (all processes) and wall seconds that profstack adds, then the parts: CPU seconds of
the parent process by what it does, and of the script's process by the recording's own times, which
are wall seconds. Each figure is the median over the rounds. Compare two checkouts with nothing else
running and OMP_NUM_THREADS=1; `--quick` only shows that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sqlite3
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from one_run import run, spread

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "train_digits.py"

# The parent's functions that are timed: part, module, name. One inside another counts for itself.
TIMED = (
    ("environment facts", "profstack.commands.run", "environment_facts"),
    ("waiting for the script", "profstack.launch.process", "run"),
    ("reading the recording", "profstack.storage.reader", "Recorded"),
    ("joining", "profstack.analysis.build", "build_report"),
    ("findings", "profstack.findings.judge", "add_findings"),
    ("report.json", "profstack.report.files", "write"),
    ("page", "profstack.report.html", "write"),
    ("terminal", "profstack.report.terminal", "ending"),
)


class Parts:
    """CPU seconds of this process by part; what no part has is `other`."""

    def __init__(self) -> None:
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        self._open: list[str] = ["other"]
        self._since = 0.0

    def _turn(self) -> None:
        now = time.process_time()
        self.spent_s[self._open[-1]] += now - self._since
        self._since = now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time counted for the part."""

        def call(*arguments: Any, **named: Any) -> Any:
            self._turn()
            self._open.append(part)
            try:
                return function(*arguments, **named)
            finally:
                self._turn()
                self._open.pop()

        return call

    def done(self) -> dict[str, float]:
        """Return all parts."""
        self._turn()
        return dict(self.spent_s)


def inside(output: str, arguments: list[str]) -> int:
    """Be the `profstack` command with these arguments; write the parts of its time to a file."""
    from importlib import import_module

    parts = Parts()
    load = parts.timed("imports", import_module)
    for part, module, name in TIMED[:2]:
        owner = load(module)
        setattr(owner, name, parts.timed(part, getattr(owner, name)))
    process: Any = import_module("profstack.launch.process")
    run_script, children = process.run, {}

    def then_import(*given: Any) -> int:
        code: int = run_script(*given)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        children["children"] = used.ru_utime + used.ru_stime
        for part, module, name in TIMED[2:]:
            owner = load(module)
            setattr(owner, name, parts.timed(part, getattr(owner, name)))
        return code

    process.run = then_import
    # As the command itself is called, which owns its process.
    sys.argv = ["profstack", *arguments]
    code: int = import_module("profstack.commands").main()
    Path(output).write_text(json.dumps({**parts.done(), **children}), encoding="utf-8")
    return code


def child_parts(recording: Path) -> dict[str, float]:
    """Return wall seconds for which the script's process stood still, from its recording."""
    with closing(sqlite3.connect(recording / "recording.sqlite")) as database:
        facts = {
            key: json.loads(value)
            for key, value in database.execute("SELECT key, value FROM facts")
        }
        query = "SELECT layer, mode, switch_s, stop_s, started_s FROM slices"
        slices = list(database.execute(query))
    parts = {name: facts[name][1] - facts[name][0] for name in ("arming", "finishing")}
    # Layers that share a slice share its switch.
    once = {started: switch or 0.0 for _, _, switch, _, started in slices}
    stops: defaultdict[str, float] = defaultdict(float)
    for layer, mode, _, stop_s, _ in slices:
        if stop_s is not None:
            stops[f"  stop of {layer}/{mode}"] += stop_s
    return {**parts, "switches": sum(once.values()), **stops}


def one_round(script: list[str], number: int) -> dict[str, float]:
    """Run the script both ways and return every figure of the round."""
    with tempfile.TemporaryDirectory() as name:
        folder, parts = Path(name), Path(name) / "parts.json"
        words = ["run", "--no-peaks", "-o", str(folder / "recording"), *script]
        ways = {
            "plain": [sys.executable, *script],
            "profstack": [sys.executable, __file__, "--inside", str(parts), *words],
        }
        # Who comes first changes from round to round.
        order = sorted(ways, reverse=bool(number % 2))
        measured = {way: run(ways[way]) for way in order}
        plain, ours = measured["plain"], measured["profstack"]
        parent: dict[str, float] = json.loads(parts.read_text(encoding="utf-8"))
        added = {"CPU": ours[0] - plain[0], "wall": ours[1] - plain[1], "plain CPU": plain[0]}
        processes = {"script and helpers": parent.pop("children") - plain[0]}
        own = {f"parent: {part}": spent for part, spent in parent.items()}
        stood = {
            f"script: {part}": spent for part, spent in child_parts(folder / "recording").items()
        }
        return {**added, "parent": sum(parent.values()), **own, **processes, **stood}


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--inside"]:
        sys.exit(inside(sys.argv[2], sys.argv[3:]))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--script", default=f"{SCRIPT} --epochs 5", help="script and arguments")
    parser.add_argument("--quick", action="store_true", help="one round of one epoch")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # An installation has its modules compiled: the round before the first one does that.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rounds, script = options.rounds, options.script.split()
    if options.quick:
        rounds, script = 1, [str(SCRIPT), "--epochs", "1"]
    found: defaultdict[str, list[float]] = defaultdict(list)
    if not options.quick:
        one_round(script, 0)
    for number in range(rounds):
        for name, value in one_round(script, number).items():
            found[name].append(value)
        print(f"round {number + 1}: {found['CPU'][-1]:.2f} s CPU added", file=sys.stderr)
    print(f"profstack run of {' '.join(script)}, {rounds} rounds:")
    for name in ("plain CPU", "CPU", "wall"):
        words = name if name.startswith("plain") else f"added {name}"
        print(f"{words}: {spread(found.pop(name))} s")
    for name, values in found.items():
        print(f"  {name:<42}{median(values):7.3f} s")


if __name__ == "__main__":
    main()
