"""Do the lines of a hot function have their true shares of it?

The parts of seven functions (`hot_functions.py`) are timed by hand, with `time.perf_counter` around
each of them in a copy of the file, less what the two readings themselves take; the functions' whole
times are those of the file as it is. Beside them are the shares that the table `lines` of a
recorded run gives. What no part has (headers of loops, calls) is `rest`. Exits with 1 where a share
is off by 10 points or more.

    python benchmarks/line_shares.py [--steps 60] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

PROGRAM = Path(__file__).with_name("hot_functions.py")
_PART = re.compile(r"^(\s+)(.*?)  #: (.*)$")
_DEFINED = re.compile(r"^def (\w+)")
MOST_POINTS = 10.0


def parts_by_line(text: str) -> dict[int, tuple[str, str]]:
    """Return function and part of each marked line; lines of a function without a part are rest."""
    found, function = {}, ""
    for number, line in enumerate(text.splitlines(), 1):
        defined = _DEFINED.match(line)
        function = defined[1] if defined else function if line.startswith((" ", ")")) else ""
        part = _PART.match(line)
        if function:
            found[number] = (function, part[3] if part else "rest")
    return found


def timed_copy(text: str) -> str:
    """Return the program with readings of the clock around every part."""
    lines = []
    for line in text.splitlines():
        part = _PART.match(line)
        if part is None:
            lines.append(line)
            continue
        indent, statement, name = part.groups()
        value = statement.startswith("return ")
        kept = "_value = " + statement.removeprefix("return ") if value else statement
        lines.append(f"{indent}_t0 = _clock(); {kept}; _spent({name!r}, _clock() - _t0)")
        if value:
            lines.append(f"{indent}return _value")
    return "\n".join(lines)


_clock = time.perf_counter
_readings: list[tuple[str, float]] = []


def _spent(part: str, seconds: float) -> None:
    _readings.append((part, seconds))


def _load(text: str) -> Any:
    """Return the names of the program, with those that a timed copy needs."""
    module = ModuleType(PROGRAM.stem)
    vars(module).update(_clock=_clock, _spent=_spent)
    exec(compile(text, str(PROGRAM), "exec"), vars(module))
    return module


def truth(rounds: int = 40) -> dict[str, dict[str, float]]:
    """Return the share of each part in its function, timed by hand.

    Every single run of a part is undisturbed once in so many rounds; a whole function may never be,
    and is timed by the thread's own clock. The size is the program's: a smaller one is faster per
    row, since the processor learns the data by heart.
    """
    text = PROGRAM.read_text(encoding="utf-8")
    plain, timed = _load(text), _load(timed_copy(text)).calls()
    reading_s = min(-_clock() + _clock() for _ in range(20_000))
    shares: dict[str, dict[str, float]] = {}
    with torch.no_grad():
        for name, call in plain.calls().items():
            whole_s, runs = math.inf, list[tuple[str, float]]()
            for _ in range(rounds):
                began = time.thread_time()
                call()
                whole_s = min(whole_s, time.thread_time() - began)
                _readings.clear()
                timed[name]()
                runs = list(map(min, runs, _readings)) if runs else list(_readings)
            parts: defaultdict[str, float] = defaultdict(float)
            for part, seconds in runs:
                parts[part] += max(0.0, seconds - reading_s) / whole_s
            shares[name] = {**parts, "rest": 1.0 - sum(parts.values())}
    return shares


def shown(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the shares that the table `lines` gives to the parts of each function."""
    text = PROGRAM.read_text(encoding="utf-8")
    plain, of_line = _load(text), parts_by_line(text)
    found: dict[str, dict[str, float]] = {}
    for name in plain.calls():
        members = plain.MEMBERS.get(name, (name,))
        times: defaultdict[str, float] = defaultdict(float)
        for row in report["tables"]["lines"]:
            function, part = of_line.get(row["line"], ("", ""))
            if row["file"].endswith(PROGRAM.name) and function in members:
                times[part] += (row["python_s"] or 0.0) + (row["operator_s"] or 0.0)
        whole = sum(times.values()) or 1.0
        found[name] = {part: seconds / whole for part, seconds in times.items()}
    return found


def record(folder: Path, steps: int) -> dict[str, Any]:
    """Run the program under profstack and return its report."""
    command = [sys.executable, "-m", "profstack", "run", "--quiet", "--output", str(folder)]
    subprocess.run([*command, "--force", str(PROGRAM), str(steps)], check=True)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return report


def main() -> int:
    """Print both shares of every part; return 1 where one is off."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--keep", type=Path, help="folder of the recording")
    options = parser.parse_args()
    by_hand = truth()
    with tempfile.TemporaryDirectory() as folder:
        seen = shown(record(options.keep or Path(folder) / "run", options.steps))
    worst = 0.0
    print(f"{'function':12}{'part':14}{'by hand':>10}{'lines':>10}{'off by':>10}")
    for name, parts in by_hand.items():
        for part, share in parts.items():
            off = 100 * (seen[name].get(part, 0.0) - share)
            worst = max(worst, abs(off))
            told = seen[name].get(part, 0.0)
            print(f"{name:12}{part:14}{share:10.1%}{told:10.1%}{off:+10.1f}")
    print(f"largest error: {worst:.1f} points (less than {MOST_POINTS:.0f} wanted)")
    return int(worst >= MOST_POINTS)


if __name__ == "__main__":
    sys.exit(main())
