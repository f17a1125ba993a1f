"""Are the gains that findings promise there? Programs with a problem, and the same ones mended.

For every folder of benchmarks/programs: `profstack run` over the program that has the problem
gives the finding and its `gain_s`; where there is one, that program and its mended twins run by
hand, in turn and in fresh processes, round that run, and what is gained is the median step of the
one less that of the other. "ratio" is the estimated gain over the measured one, "of_shares" the
same of both as shares of their steps, which differs where the machine was not equally fast all the
time.

A gain is to be within 30 % of what is measured: "yes" where the ratio is, "of shares" where only
that of shares is (other work slowed the one or the other: repeat it on a quiet machine), else
"NO". A twin that is mended in another way than the gain is about is shown and not judged. Findings
without a gain show why. Run it with nothing else running (about 8 minutes); `--quick` only shows
that it runs.
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

PROGRAMS = Path(__file__).resolve().parent / "programs"
COLUMNS = ("clean_ms", "bad_ms", "mended_ms", "estimated_ms", "measured_ms", "ratio", "of_shares")
# The first steps of a program are slower than all others.
WARM = 5
# Whether the C allocator gives freed pages back to the system differs from process to process, and
# taking them anew costs large tensors more than what is measured here: it keeps them, in all runs.
KEEPS_PAGES = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
# How far an estimated gain may be from the measured one.
WITHIN = (0.7, 1.3)
# Where there are several ways of mending, the one that the gain is about.
ABOUT = {"data_starved__no_workers": "mended_workers"}


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
    environment = {**os.environ, **KEEPS_PAGES}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    # A program that is about being short has none that are warm.
    return times[WARM:] or times


def reported(program: Path, slug: str) -> tuple[float | None, list[dict[str, Any]]]:
    """The clean step that `profstack run` measures, and the findings of this slug."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(program, folder)
        command = [sys.executable, "-m", "profstack", "run", "-q", "-o", "rec", program.name]
        environment = {**os.environ, **KEEPS_PAGES, "PROFSTACK_PEAKS": "0"}
        subprocess.run(command, check=True, capture_output=True, cwd=folder, env=environment)
        report = json.loads((Path(folder) / "rec" / "report.json").read_text(encoding="utf-8"))
    found = [each for each in report["findings"] if each["slug"] == slug]
    return report["benchmark"]["median_s"], found


def measure(case: str, repeats: int, steps: int | None) -> None:
    """Return the gain that the finding of a case promises, and that of each way to fix it."""
    programs = [PROGRAMS / case / "bad.py", *sorted((PROGRAMS / case).glob("mended*.py"))]
    counts = [steps or _steps(program) for program in programs]
    times: list[list[float]] = [[] for _ in programs]
    clean_s: float | None = None
    found: list[dict[str, Any]] = []
    for turn in range(repeats):
        if turn == repeats // 2:
            clean_s, found = reported(programs[0], slug_of(case))
            if not found or found[0]["gain_s"] is None:
                break
        for each, program, count in zip(times, programs, counts, strict=True):
            each.append(median(times_by_hand(program, count)))
    if found and found[0]["gain_s"] is not None and clean_s:
        bad_s, *mended = (median(each) for each in times)
        for program, mended_s in zip(programs[1:], mended, strict=True):
            judged = program.stem == ABOUT.get(case, "mended")
            name = f"{case} {program.stem}"
            show(name, row_of(clean_s, found[0]["gain_s"], bad_s, mended_s), judged=judged)
    else:
        print(f"{case:52}" + ("   no gain to measure" if found else "   NOT FOUND"))
    for finding in found:
        print(f"    {finding['title']} ({finding.get('gain_reason') or finding['gain_is']})")
    sys.stdout.flush()


def row_of(clean_s: float, gain_s: float, bad_s: float, mended_s: float) -> dict[str, float | None]:
    """The figures of one way of mending; the ratios are None where it gained nothing."""
    gained = bad_s - mended_s
    return {
        "clean_ms": clean_s * 1e3,
        "bad_ms": bad_s * 1e3,
        "mended_ms": mended_s * 1e3,
        "estimated_ms": gain_s * 1e3,
        "measured_ms": gained * 1e3,
        "ratio": gain_s / gained if gained > 0 else None,
        # The same of shares of the step: what else the machine had to do is in both of them.
        "of_shares": gain_s / clean_s / (gained / bad_s) if gained > 0 else None,
    }


def verdict(row: dict[str, float | None]) -> str:
    """Whether the estimate is as near as it is to be."""
    near = {
        name: ratio is not None and WITHIN[0] <= ratio <= WITHIN[1]
        for name in ("ratio", "of_shares")
        for ratio in (row[name],)
    }
    return "yes" if near["ratio"] else "of shares" if near["of_shares"] else "NO"


def _steps(program: Path) -> int:
    """How many steps the program makes by itself, from its text."""
    lines = program.read_text(encoding="utf-8").splitlines()
    found = next(line for line in lines if line.startswith("STEPS = "))
    return int(found.removeprefix("STEPS = "))


def show(name: str, row: dict[str, float | None], *, judged: bool) -> None:
    """One row of the table."""
    values = (row[column] for column in COLUMNS)
    cells = ("-" if value is None else f"{value:.3f}" for value in values)
    result = verdict(row) if judged else "(another way)"
    print(f"{name:52}" + "".join(f"{cell:>14}" for cell in cells) + f"  {result}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the cases and print the table."""
    known = sorted(each.parent.name for each in PROGRAMS.glob("*/bad.py"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(known)}")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each program")
    parser.add_argument("--quick", action="store_true", help="once, with few steps")
    parser.add_argument("--steps", type=int, help="of each program timed by hand")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        run_steps(options.child, options.steps)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    repeats, steps = (1, 20) if options.quick else (options.repeats, options.steps)
    print(" " * 52 + "".join(f"{column:>14}" for column in COLUMNS) + "  within 30 %")
    for case in options.cases or known:
        measure(case, repeats, steps)


if __name__ == "__main__":
    main()
