"""Are the gains that findings promise there? Programs with a problem, and the same ones mended.

For every folder of tests/programs: `profstack run` over the program that has the problem gives the
finding and its `gain_s`; then that program and its mended twins run by hand in turn, in fresh
processes, and what is gained is the median step of the one less that of the other. "ratio" is the
estimated gain over the measured one, "of_shares" the same of both as shares of their steps, which
differs where the machine was not equally fast all the time; findings without a gain show why.
Run it with nothing else running; `--quick` only shows that it runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

PROGRAMS = Path(__file__).resolve().parent.parent / "tests" / "programs"
COLUMNS = ("clean_ms", "bad_ms", "mended_ms", "estimated_ms", "measured_ms", "ratio", "of_shares")
# The first steps of a program are slower than all others.
WARM = 5


def slug_of(case: str) -> str:
    """The finding that a folder of programs is about."""
    return case.split("__", maxsplit=1)[0].replace("_", "-")


def run_steps(program: Path, steps: int) -> None:
    """Run a program in this process and print the time of each of its steps as JSON."""
    spec = importlib.util.spec_from_file_location("program", program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["program"] = module
    spec.loader.exec_module(module)
    stamps: list[float] = []
    module.main(steps, lambda: stamps.append(time.perf_counter()))
    times = [after - before for before, after in pairwise(stamps)]
    print(json.dumps(times))


def times_by_hand(program: Path, steps: int) -> list[float]:
    """Seconds of the warm steps of a program in a fresh process."""
    command = [sys.executable, __file__, "--child", str(program), "--steps", str(steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return times[WARM:]


def reported(program: Path, slug: str) -> tuple[float | None, list[dict[str, Any]]]:
    """The clean step that `profstack run` measures, and the findings of this slug."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(program, folder)
        command = [sys.executable, "-m", "profstack", "run", "-q", "-o", "rec", program.name]
        environment = {**os.environ, "PROFSTACK_PEAKS": "0"}
        subprocess.run(command, check=True, capture_output=True, cwd=folder, env=environment)
        report = json.loads((Path(folder) / "rec" / "report.json").read_text(encoding="utf-8"))
    found = [each for each in report["findings"] if each["slug"] == slug]
    return report["benchmark"]["median_s"], found


def measure(case: str, repeats: int, steps: int | None) -> None:
    """What the finding of a case promises, and what each way of mending it brings."""
    programs = [PROGRAMS / case / "bad.py", *sorted((PROGRAMS / case).glob("mended*.py"))]
    counts = [steps or _steps(program) for program in programs]
    clean_s, found = reported(programs[0], slug_of(case))
    times: list[list[float]] = [[] for _ in programs]
    for _ in range(repeats):
        for each, program, count in zip(times, programs, counts, strict=True):
            each.append(median(times_by_hand(program, count)))
    bad_s, *mended = (median(each) for each in times)
    estimated = found[0]["gain_s"] if found else None
    for program, mended_s in zip(programs[1:], mended, strict=True):
        row = {
            "case": f"{case} {program.stem}",
            "clean_ms": clean_s and clean_s * 1e3,
            "bad_ms": bad_s * 1e3,
            "mended_ms": mended_s * 1e3,
            "estimated_ms": None if estimated is None else estimated * 1e3,
            "measured_ms": (bad_s - mended_s) * 1e3,
            "ratio": None if estimated is None else estimated / (bad_s - mended_s),
            # The same of shares of the step: what else the machine had to do is in both of them.
            "of_shares": None
            if estimated is None
            else estimated / clean_s / (1 - mended_s / bad_s),
        }
        show(row)
    for told in found:
        print(f"    {told['title']} ({told.get('gain_reason') or told['gain_is']})")
    if not found:
        print("    NOT FOUND")
    sys.stdout.flush()


def _steps(program: Path) -> int:
    """How many steps the program makes by itself, from its text."""
    lines = program.read_text(encoding="utf-8").splitlines()
    found = next(line for line in lines if line.startswith("STEPS = "))
    return int(found.removeprefix("STEPS = "))


def show(row: dict[str, Any]) -> None:
    """One row of the table."""
    cells = ("-" if row[name] is None else f"{row[name]:.3f}" for name in COLUMNS)
    print(f"{row['case']:52}" + "".join(f"{cell:>14}" for cell in cells))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the cases and print the table."""
    known = sorted(each.parent.name for each in PROGRAMS.glob("*/bad.py"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(known)}")
    parser.add_argument("--repeats", type=int, default=5, help="processes of each program")
    parser.add_argument("--quick", action="store_true", help="once, with few steps")
    parser.add_argument("--steps", type=int, help="of each program timed by hand")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        run_steps(options.child, options.steps)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    repeats, steps = (1, 20) if options.quick else (options.repeats, options.steps)
    print(" " * 52 + "".join(f"{column:>14}" for column in COLUMNS))
    for case in options.cases or known:
        measure(case, repeats, steps)


if __name__ == "__main__":
    main()
