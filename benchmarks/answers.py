"""Does the first answer name the cause? Programs with one known cause each, and their mended twins.

Each program of benchmarks/answers/ has one planted cause of slowness, and is mended by `--mended`.
The half `blind` was written by someone who knows no rule of profstack, and is not looked at while
rules are made; the half `known` is what the rules are tried on. A blind half that was looked at
becomes known, and a new one is written. Of each program:

- "named": `first` where the verdict's sentence, its action or the finding that it begins with names
  the cause, `three` where one of the first three findings does, else `missed`. A cause is named by
  one of its places (a function) or in one of its ways to say it (`programs.json`). A finding on how
  the optimizer steps names no cause by its place, which is in the function of the loop.
- "false": findings of the mended twin that promise more than 3 % of the run. With `--try` the
  remedies of these are tried (`profstack try`), and what is measured to gain as much is not false.
  What a part of the run takes, "at most", is no promise.
- "estimated" and "true": the gain of the first finding that names the cause, and what the twin
  gains: of the clean step in ms, or of the whole run in s, measured without profstack. One that
  gives no number has no estimate, whatever later ones about the same place say of a part of it. A
  gain of the run that is told as "at most" is a bound, and counted apart.
- "cost": wall time with profstack over wall time without; it holds the fixed part.
- "bar": how far the parts of the run's bar are from its wall time, in percent.

Programs whose packages are not installed are left out and counted. Run it with nothing else
running, about a minute a program; `--quick` takes two programs only.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent / "answers"
HALVES = ("blind", "known")
COLUMNS = ("named", "false", "estimated", "true", "ratio", "cost", "bar")
# A gain that is promised in a mended program counts as false from this share of the run on.
FALSE_SHARE = 0.03
WITHIN = (0.7, 1.3)
# A bound holds where the gain is no larger, but for what two runs differ by.
HOLDS = 0.8
LIMIT_S = 300
# Their place is the line that calls the optimizer, in the function that holds all else.
OF_OPTIMIZER = ("unfused-optimizer", "zero-grad-to-zeros")
PACKAGES = ("accelerate", "lightning", "transformers", "sklearn", "pandas", "PIL")


@dataclass(frozen=True)
class Program:
    """A program, what is wrong with it, and how an answer may name that."""

    half: str
    name: str
    cause: str
    level: str
    places: tuple[str, ...]
    said_by: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def path(self) -> Path:
        """Where it is."""
        return ROOT / self.half / f"{self.name}.py"

    def lacks(self) -> str | None:
        """Return a package that it needs and that is not installed."""
        text = self.path.read_text(encoding="utf-8")
        for package in PACKAGES:
            wanted = re.search(rf"^\s*(?:import|from) {package}\b", text, re.MULTILINE)
            if wanted and importlib.util.find_spec(package) is None:
                return package
        return None

    def spans(self) -> Iterator[tuple[str, range]]:
        """Yield the functions that are right places, each with its lines."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        for name, node in _functions(tree):
            for place in self.places:
                wanted = re.sub(r"[^\w.].*", "", place.rpartition(":")[2])
                if wanted and (name == wanted or name.endswith(f".{wanted}")):
                    yield node.name, range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _functions(
    tree: ast.AST, above: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function with its qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{above}.{node.name}".lstrip(".")
            if not isinstance(node, ast.ClassDef):
                yield name, node
            yield from _functions(node, name)
        else:
            yield from _functions(node, above)


def programs() -> list[Program]:
    """Return the programs of both halves."""
    found = []
    for half in HALVES:
        listed = json.loads((ROOT / half / "programs.json").read_text(encoding="utf-8"))
        for name, row in sorted(listed.items()):
            words = tuple(row["places"]), tuple(row["said_by"]), tuple(row.get("argv", ()))
            found.append(Program(half, name, row["cause"], row["level"], *words))
    return found


def run(command: Sequence[str], folder: Path) -> float:
    """Run a command in a folder; its wall time in seconds."""
    began = time.perf_counter()
    done = subprocess.run(
        command, check=False, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}: {done.stderr[-300:]}")
    return time.perf_counter() - began


def answer(program: Program, keep: Path | None) -> dict[str, Any]:
    """Run the slow version with profstack alone; the row of the table without its twin."""
    with tempfile.TemporaryDirectory() as made:
        recording = Path(made) / "rec" if keep is None else keep / program.name
        command = [sys.executable, "-m", "profstack", "run", "-q", "--force", "-o", str(recording)]
        run([*command, str(program.path), *program.arguments], Path(made))
        report = json.loads((recording / "report.json").read_text(encoding="utf-8"))
    row = row_of(program, {}, report, None)
    return row | {"cost": None}


def measure(program: Program, keep: Path | None, *, tries: bool) -> dict[str, Any]:
    """Run both versions with and without profstack; the row of the table."""
    plain: dict[bool, float] = {}
    reports: dict[bool, dict[str, Any]] = {}
    cost = None
    for mended in (False, True):
        arguments = [*program.arguments, *(["--mended"] if mended else [])]
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            script = str(program.path)
            plain[mended] = run([sys.executable, script, *arguments], folder)
            recording = folder / "rec"
            if keep is not None:
                recording = keep / f"{program.name}{'-mended' if mended else ''}"
            command = [sys.executable, "-m", "profstack", "run", "-q", "--force", "-o"]
            took_s = run([*command, str(recording), script, *arguments], folder)
            if not mended:
                cost = took_s / plain[mended]
            text = (recording / "report.json").read_text(encoding="utf-8")
            reports[mended] = json.loads(text)
            if mended:
                row = row_of(program, plain, reports[False], reports[True]) | {"cost": cost}
                if tries and row["false"]:
                    kept = kept_promises(recording, folder)
                    row["false"] = [title for title in row["false"] if title not in kept]
    return row


def kept_promises(recording: Path, folder: Path) -> set[str]:
    """Try the remedies of a recording's findings; the titles of those measured to gain as much."""
    command = [sys.executable, "-m", "profstack", "try", "-q", "--budget", "4m", str(recording)]
    try:
        run(command, folder)
    except RuntimeError:
        # None of them is one that can be tried.
        return set()
    report = json.loads((recording / "report.json").read_text(encoding="utf-8"))
    return {
        each["title"]
        for each in report["findings"]
        if each["gain_is"] == "measured" and _gain(report, each)
    }


def row_of(
    program: Program, plain: dict[bool, float], slow: dict[str, Any], mended: dict[str, Any] | None
) -> dict[str, Any]:
    """Judge the answers of both versions, or of the slow one alone."""
    answers = [_first_answer(slow), *([found] for found in slow["findings"][:3])]
    names = [_names(program, answer) for answer in answers]
    named = "first" if names[0] else "three" if any(names[1:]) else "missed"
    about = [each for each in slow["findings"] if _names(program, [each])]
    estimated, true, is_bound = None, None, False
    if program.level == "run":
        true = plain[False] - plain[True] if plain else None
        told = about[0] if about and about[0]["run_gain_s"] else None
        estimated = None if told is None else told["run_gain_s"]
        is_bound = told is not None and told["run_gain_is"] == "at most"
    elif mended is not None:
        before, after = (each["benchmark"]["median_s"] for each in (slow, mended))
        true = (before - after) * 1e3 if before and after else None
        gain_s = about[0]["gain_s"] if about else None
        estimated = None if gain_s is None else gain_s * 1e3
    bars = [abs(_bar_error(each)) for each in (slow, mended or slow) if each["run_bar"]]
    promised = mended["findings"] if mended is not None else ()
    return {
        "named": named,
        "false": [each["title"] for each in promised if mended and _gain(mended, each)],
        "estimated": estimated,
        "true": true,
        "ratio": estimated / true if estimated and true and true > 0 else None,
        "is_bound": is_bound,
        "bar": 100 * max(bars) if bars else None,
        "verdict": slow["verdict"],
        "findings": [each["title"] for each in slow["findings"][:3]],
    }


def _first_answer(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the verdict's words, with the finding that it begins with."""
    verdict = report["verdict"]
    said = {"title": verdict["sentence"], "advice": verdict["action"]}
    words = said["title"] + said["advice"]
    return [said, *(each for each in report["findings"] if each["title"] in words)]


def _names(program: Program, answer: Sequence[dict[str, Any]]) -> bool:
    """Whether an answer names the cause: by a place, or by what it says."""
    is_of_optimizer = any(each.get("slug") in OF_OPTIMIZER for each in answer)
    spans = [] if is_of_optimizer else list(program.spans())
    for each in answer:
        words = f"{each['title']} {each['advice']}"
        if any(re.search(pattern, words, re.IGNORECASE) for pattern in program.said_by):
            return True
        if any(re.search(rf"\b{re.escape(name)}\b", words) for name, _ in spans):
            return True
        file, line = each.get("file"), each.get("line")
        places = re.findall(rf"\b{re.escape(program.path.name)}:(\d+)", words)
        lines = [int(at) for at in places]
        if file and Path(file).name == program.path.name:
            lines.append(line or 0)
        if any(at in span for at in lines for _, span in spans):
            return True
    return False


def _gain(report: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether a finding promises more than a small share of the run."""
    whole = sum(row["wall_s"] for row in report["run_bar"] if row["share"] is not None)
    steps = ("steps", "waiting for data")
    steps_s = sum(row["wall_s"] for row in report["run_bar"] if row["part"] in steps)
    median_s, gain_s = report["benchmark"]["median_s"], found["gain_s"]
    of_run_s = 0.0 if found["run_gain_is"] == "at most" else found["run_gain_s"] or 0.0
    if gain_s and median_s:
        of_run_s = max(of_run_s, gain_s / median_s * steps_s)
    return bool(whole) and of_run_s > FALSE_SHARE * whole


def _bar_error(report: dict[str, Any]) -> float:
    parts_s: float = sum(row["wall_s"] for row in report["run_bar"])
    whole_s: float = report["run"]["duration_s"]
    return parts_s / whole_s - 1


def show(program: Program, row: dict[str, Any]) -> None:
    """Print one row of the table, and below it what was said and what was false."""
    cells = []
    for column in COLUMNS:
        value = len(row["false"]) if column == "false" else row[column]
        number = f"{value:.2f}" if isinstance(value, float) else str(value)
        cells.append(f"{'-' if value is None else number:>10}")
    print(f"{program.half:6}{program.name:44}{''.join(cells)}")
    if program.half == "known":
        print(f"      cause: {program.cause}")
        print(f"      said:  {row['verdict']['sentence']} {row['verdict']['action']}")
        for title in row["findings"]:
            print(f"             - {title}")
        for title in row["false"]:
            print(f"      false: {title}")
    sys.stdout.flush()


def summary(rows: Sequence[tuple[Program, dict[str, Any]]], half: str) -> str:
    """Return the figures of one half in a line."""
    mine = [row for program, row in rows if program.half == half]
    if not mine:
        return f"{half}: no program was run"
    count = len(mine)
    first = sum(row["named"] == "first" for row in mine)
    three = first + sum(row["named"] == "three" for row in mine)
    false = sum(bool(row["false"]) for row in mine)
    known = [row for row in mine if row["ratio"] is not None]
    ratios = [row["ratio"] for row in known if not row["is_bound"]]
    near = sum(WITHIN[0] <= ratio <= WITHIN[1] for ratio in ratios)
    bounds = [row["ratio"] for row in known if row["is_bound"]]
    held = sum(ratio >= HOLDS for ratio in bounds)
    bars = [row["bar"] for row in mine if row["bar"] is not None]
    return (
        f"{half}: named first {first} of {count} ({first / count:.0%}), among three {three} "
        f"({three / count:.0%}); twins with a false finding {false}; gains within 30 % {near} of "
        f"{len(ratios)}, bounds ('at most') that hold {held} of {len(bounds)}; "
        f"runs' bars within {max(bars, default=0.0):.3f} % ({len(bars)} of them)"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the programs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help="all without any")
    parser.add_argument("--half", choices=HALVES, help="one half only")
    parser.add_argument("--keep", type=Path, help="folder in which the recordings are kept")
    parser.add_argument("--answers", action="store_true", help="the slow versions alone")
    parser.add_argument("--try", dest="tries", action="store_true", help="see 'false'")
    parser.add_argument("--quick", action="store_true", help="two programs of each half")
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = [
        each
        for each in programs()
        if (not options.names or each.name in options.names) and options.half in (None, each.half)
    ]
    if options.quick:
        chosen = [each for half in HALVES for each in chosen if each.half == half][:2]
    if options.keep is not None:
        options.keep = options.keep.resolve()
    print(f"{'half':6}{'program':44}" + "".join(f"{column:>10}" for column in COLUMNS))
    rows: list[tuple[Program, dict[str, Any]]] = []
    for program in chosen:
        lacks = program.lacks()
        if lacks is not None:
            print(f"{program.half:6}{program.name:44}  left out: {lacks} is not installed")
            continue
        try:
            if options.answers:
                row = answer(program, options.keep)
            else:
                row = measure(program, options.keep, tries=options.tries)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            print(f"{program.half:6}{program.name:44}  failed: {error}")
            continue
        rows.append((program, row))
        show(program, row)
    for half in HALVES:
        print(summary(rows, half))


if __name__ == "__main__":
    main()
