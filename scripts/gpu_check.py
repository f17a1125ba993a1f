"""Every layer on a real GPU, judged: a table of what profstack says beside what torch says.

    python scripts/gpu_check.py                        where torch and profstack's packages are
    python scripts/gpu_check.py --wheels               what to download where there is a network
    python scripts/gpu_check.py --wheelhouse wheels    and to use where there is none
    python scripts/gpu_check.py --device cpu --scale tiny --parts mlp

Runs a ResNet-18, a GPT-2 and an MLP under `profstack run` and once more by hand, plants mistakes
that must be found, looks for the largest batch up to where memory ends, and profiles under Nsight
Systems where that is installed. A part that fails is a row of the table and never stops the others.
The exit code is 1 if any row failed, 2 if the check could not be begun.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import gpu_wheels
from gpu_parts import CHECKOUT, PARTS, Bench, PartError, rows_of
from gpu_rows import FAILED, NOT_MEASURED, OK, Row

VERDICTS = (OK, FAILED, NOT_MEASURED)
_FACTS = """
import json, platform, sys
import torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
    "gpu": torch.cuda.get_device_name(0) if cuda else None,
    "gpu_memory_gib": round(torch.cuda.mem_get_info()[1] / 2**30, 1) if cuda else None,
}))
"""


# -- the table -------------------------------------------------------------------------------------


def head_facts(bench: Bench) -> dict[str, Any]:
    """Date, device, driver and versions; PartError where torch cannot be imported."""
    facts: dict[str, Any] = json.loads(bench.python("-c", _FACTS))
    version = bench.python("-c", "import profstack; print(profstack.__version__)").strip()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **facts,
        "driver": _driver() if facts["gpu"] else None,
        "profstack": version,
        "device": bench.device,
        "scale": bench.scale,
    }


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else None


def as_text(rows: Sequence[Row]) -> str:
    """Return the table with its columns aligned; a reason is in the line below."""
    cells = [("part", "what", "value", "expected", "verdict")]
    cells += [(row.part, row.what, row.value, row.expected, row.verdict) for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    lines = []
    for line, row in zip(cells, (None, *rows), strict=True):
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        lines.append("  ".join(padded).rstrip())
        if row is not None and row.reason:
            lines.append(f"{'':{widths[0]}}    {row.reason}")
    return "\n".join(lines)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def child_environment(*folders: Path) -> dict[str, str]:
    """The programs' environment: what this Python finds by the caller's path they find, too."""
    before = [each for each in (os.environ.get("PYTHONPATH"),) if each]
    paths = [*map(str, (CHECKOUT, *folders)), *before]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def check(options: argparse.Namespace, folder: Path) -> int:
    """Run the parts asked for and print their table; the exit code."""
    packages = folder / "packages"
    if options.wheelhouse is not None:
        problem = gpu_wheels.install(options.wheelhouse.resolve(), packages, _say)
        if problem is not None:
            return _no(problem)
    elif lacking := gpu_wheels.missing():
        return _no(f"not installed: {', '.join(lacking)}; see --wheels and --wheelhouse")
    environment = child_environment(packages)
    bench = Bench(folder, options.device, options.scale, environment, options.nsys_path)
    try:
        facts = head_facts(bench)
    except PartError as error:
        return _no(str(error))
    if bench.on_cuda and facts["gpu"] is None:
        return _no("torch finds no CUDA device; --device cpu checks what needs none")
    _say("\n".join(f"{name:>14}: {value}" for name, value in facts.items()) + "\n")
    rows: list[Row] = []
    for part in options.parts:
        begun = time.monotonic()
        found = list(rows_of(part, bench))
        # At once: a check that is cut off has then lost no more than one part.
        _say(as_text(found) + "\n")
        sys.stderr.write(f"gpu_check: {part}: {time.monotonic() - begun:.0f} s\n")
        rows += found
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in VERDICTS}
    _say(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if options.json is not None:
        content = {**facts, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 1 if counts[FAILED] else 0


def _no(problem: str) -> int:
    sys.stderr.write(f"gpu_check: {problem}\n")
    return 2


def main(argv: Sequence[str] | None = None) -> int:
    """Read the options and check; the exit code."""
    text = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=text)
    parser.add_argument("--wheels", action="store_true", help="say what to download, and end")
    parser.add_argument("--wheelhouse", type=Path, metavar="DIR", help="folder of these wheels")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--scale", choices=("full", "tiny"), default="full")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of %(default)s")
    parser.add_argument("--nsys-path", metavar="FILE", help="nsys, where it is not on PATH")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there as well")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the recordings in a new DIR")
    options = parser.parse_args(argv)
    options.parts = options.parts.split(",")
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))}: not one of {', '.join(PARTS)}")
    if options.wheels:
        _say(gpu_wheels.listing())
        return 0
    if options.keep is not None:
        options.keep.mkdir(parents=True)
        return check(options, options.keep.resolve())
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as name:
        return check(options, Path(name))


if __name__ == "__main__":
    sys.exit(main())
