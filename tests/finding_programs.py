"""Programs that have one problem each, and their mended twins: run, and asked what was found.

`tests/programs/SLUG__VARIANT/bad.py` has the problem that the finding `SLUG` (with `_` for `-`)
is about, `mended.py` beside it is the same program without. Each has a function
`main(steps, after_step)` and calls it where it is run as a script; `after_step()` is called at
the end of each step, so that benchmarks/findings.py can time both by hand. A line that a finding
should name ends in a comment `# @NAME`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ahead import done_ahead
from conftest import clean_environment

# Asked for a case and which of its programs.
Runs = Callable[[tuple[str, str]], dict[str, Any]]
# Whose files are the user's, in recordings that tests write themselves.
PLACES = {
    "roots": ["/app/"],
    "libraries": ["/lib/"],
    "profstack": ["/lib/"],
    "working": "/app/",
    "text": False,
    "sep": "/",
}
WHICH = ("bad", "mended")
PROGRAMS = Path(__file__).parent / "programs"


def run_program(folder: Path, case: str, which: str, layers: str | None = None) -> dict[str, Any]:
    """The report of `profstack run` over a copy of `which` ("bad" or "mended") in `folder`.

    The copy stands in a folder of its own, so that it is a project by itself.
    """
    place = folder / case / which
    place.mkdir(parents=True)
    shutil.copy(PROGRAMS / case / f"{which}.py", place)
    return run_script(place, f"{which}.py", layers)


def run_script(folder: Path, script: str, layers: str | None = None) -> dict[str, Any]:
    """The report of `profstack run` over a script in `folder`, run there as a user does.

    With "said", what was printed.
    """
    chosen = ["--layers", layers] if layers else []
    done = subprocess.run(
        [sys.executable, "-m", "profstack", "run", *chosen, "-o", "rec", script],
        cwd=folder,
        env=clean_environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((folder / "rec" / "report.json").read_text())
    return report | {"said": done.stderr + done.stdout}


@contextmanager
def runs_ahead(
    request: pytest.FixtureRequest,
    factory: pytest.TempPathFactory,
    layers: Mapping[str, str] | None = None,
) -> Iterator[Runs]:
    """The reports of the programs that tests ask for by a parameter `program`, run ahead."""
    folder = factory.mktemp("programs")

    def run(program: tuple[str, str]) -> dict[str, Any]:
        return run_program(folder, *program, (layers or {}).get(program[0]))

    with done_ahead(request, "program", run) as got:
        yield got


def run_twins(
    folder: Path, case: str, layers: str | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The reports of the bad program and of its mended twin, which run at the same time."""
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run_program, folder, case, which, layers) for which in WHICH]
    bad, mended = (run.result() for run in runs)
    return bad, mended


def found(report: dict[str, Any], slug: str) -> list[dict[str, Any]]:
    """The findings of this slug."""
    return [each for each in report["findings"] if each["slug"] == slug]


def line_of(case: str, mark: str, which: str = "bad") -> int:
    """The line that ends in `# @mark`."""
    lines = (PROGRAMS / case / f"{which}.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# @{mark}"))


def had_no_core(report: dict[str, Any]) -> bool:
    """Whether the steps' thread stood ready a good part of the clean steps and got no core."""
    without = (report.get("processes") or {}).get("no_core_s")
    return without is not None and without > 0.1 * report["benchmark"]["median_s"]
