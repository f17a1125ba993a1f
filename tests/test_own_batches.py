"""Batches that a script makes without a DataLoader: whose function starves the step, and whose not.

A whole program stands in test_findings_data.py. The figures here are of a step of 10 ms, of which
4 ms go by before its first work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_findings import completed
from data_recording import Run

from profstack.analysis.functions import COST
from profstack.findings.data_loading import data_starved
from profstack.storage.reader import Recorded

TRAIN = "/app/train.py"
STEP_S, WAIT_S = 0.010, 0.004


def told_of(
    folder: Path,
    name: str,
    lines: list[tuple[int, str]],
    *,
    total_s: float = 0.0038,
    slowed: float = 1.0,
    elsewhere_s: float | None = 0.0002,
) -> list[dict[str, Any]]:
    """What is told of a function at line 5 that cProfile saw for `total_s`."""
    run = Run(folder)
    run.writer.facts({COST: {"bytecode_factor": slowed}})
    run.clean(20)
    run.writer.close()
    row = {"phase": "step", "file": TRAIN, "line": 5, "name": name, "own": True, "calls": 1.0}
    row |= {"self_s": total_s, "total_s": total_s, "calibrated_s": total_s}
    parts = {"(wait)": WAIT_S, "(loss)": 0.0, "(not attributed)": elsewhere_s}
    report: dict[str, Any] = {
        "benchmark": {"median_s": STEP_S, "counted_steps": [0]},
        "sources": [{"file": TRAIN, "text": f"\n\n\n\ndef {name}(self):\n    x\n    x\n\n"}],
        "tables": {
            "functions": [row],
            "calls": [],
            "steps": [{"index": 0, "wait_s": WAIT_S, "wall_s": STEP_S}],
            "modules": [{"path": path, "calibrated_s": time} for path, time in parts.items()],
            "regions": [],
            "lines": [{"file": TRAIN, "line": line, "source": text} for line, text in lines],
        },
    }
    return data_starved(Recorded(folder), completed(report))


LOOP = (20, "    for x in source:")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("__next__", [(6, "return x"), LOOP]),
        ("__iter__", [(6, "yield x"), (20, "    for x in Prefetcher(320):")]),
        ("batches", [(6, "yield x"), LOOP]),
        ("batches", [(6, "yield x"), (20, "    x = next(source)")]),
        ("draw", [(6, "return x"), (20, "    x = draw()")]),
    ],
)
def test_what_gives_a_batch_starves_the_step(
    tmp_path: Path, name: str, lines: list[tuple[int, str]]
) -> None:
    (told,) = told_of(tmp_path / "rec", name, lines)
    assert (told["file"], told["line"]) == (TRAIN, 5)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        # It is called and gives nothing, for all that there is a loop.
        ("log", [(6, "return"), (20, "    for x in source:"), (21, "log(loss)")]),
        # Nobody asks a generator for anything.
        ("batches", [(6, "yield x"), (20, "    x = torch.randn(3)")]),
    ],
)
def test_what_gives_none_does_not(tmp_path: Path, name: str, lines: list[tuple[int, str]]) -> None:
    assert told_of(tmp_path / "rec", name, lines) == []


def test_python_that_cprofile_slowed_beyond_the_wait_has_all_of_it(tmp_path: Path) -> None:
    draw = [(6, "return x"), (20, "    x = draw()")]
    (told,) = told_of(tmp_path / "one", "draw", draw, total_s=0.007, slowed=3.0)
    assert told["evidence"][1]["clean_s"] == pytest.approx(WAIT_S)
    # It was not slowed: it runs elsewhere.
    assert told_of(tmp_path / "two", "draw", draw, total_s=0.007) == []
    # There is as much time elsewhere, or nobody knows.
    slowed = {"total_s": 0.007, "slowed": 3.0}
    assert told_of(tmp_path / "three", "draw", draw, elsewhere_s=0.003, **slowed) == []
    assert told_of(tmp_path / "four", "draw", draw, elsewhere_s=None, **slowed) == []
    # Even by what profiling slows at most it is too long.
    assert told_of(tmp_path / "five", "draw", draw, total_s=0.02, slowed=3.0) == []
