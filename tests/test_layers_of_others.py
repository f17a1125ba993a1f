"""A layer from another package: made, installed, chosen, recorded, reported and shown."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import CHECKOUT, RunProfstack

from profstack.errors import UsageError
from profstack.storage.schema.layer_table import LayerTable, column

LAYER = '''
"""Counts calls of functions of the script by line, with sys.settrace."""

import sys
from profstack.layer import SliceData, Description, Mode, Wrapper
from profstack.storage.schema.layer_table import LayerTable, column


class Entries(Wrapper):
    name = "entries"
    occupies = frozenset({"sys.setprofile"})
    modes = (Mode("timed", turn=60, steps=3),)
    description = Description("counting", "entries", "entries", "all else", "1.1", "profilers")
    tables = (
        LayerTable(
            "entries",
            (
                column("file", "TEXT", "source file"),
                column("line", "INTEGER", "first line of the function"),
                column("entered", "REAL", "times entered", "counted"),
                column("deepest", "INTEGER", "deepest stack", "counted"),
            ),
            "functions entered",
            "How often each <function> was entered.",
            order="entered",
            largest=("deepest",),
            join="lines",
        ),
    )

    def start(self, context):
        self.index, self.seen = context.index, {}
        sys.setprofile(self._enter)

    def _enter(self, frame, event, argument):
        if event == "call" and frame.f_code.co_filename.endswith("train.py"):
            key = frame.f_code.co_filename, frame.f_code.co_firstlineno
            times, deepest = self.seen.get(key, (0, 0))
            depth, above = 0, frame
            while above is not None:
                depth, above = depth + 1, above.f_back
            self.seen[key] = times + 1, max(deepest, depth)

    def stop(self):
        if sys.getprofile() == self._enter:
            sys.setprofile(None)

    def take(self, stamps, modules, left_out=()):
        rows = [
            {"slice": self.index, "file": f, "line": n, "entered": times, "deepest": deepest}
            for (f, n), (times, deepest) in self.seen.items()
        ]
        return SliceData(frames={"entries": rows})
'''
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "entries-layer"
version = "1.0"
[project.entry-points."profstack.wrappers"]
entries = "entries_layer:Entries"
[tool.setuptools]
py-modules = ["entries_layer"]
"""
SCRIPT = """
import torch

def twice(x):
    return 2 * x

def thrice(x):
    return twice(x) + x

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(120):
    loss = model(thrice(twice(torch.randn(4, 8)))).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package was installed."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    (source / "entries_layer.py").write_text(LAYER)
    (source / "pyproject.toml").write_text(PROJECT)
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [sys.executable, "-m", "pip", *words, "--target", str(target), str(source)], check=True
    )
    return target


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def recorded(tmp_path: Path, site: Path, run_profstack: RunProfstack) -> tuple[Path, Run]:
    """A recording in which the layer took part, and how to start profstack beside the package."""

    def run(*words: Any) -> subprocess.CompletedProcess[str]:
        paths = {"PYTHONPATH": f"{site}:{CHECKOUT}"}
        return run_profstack([*words], env=paths)

    (tmp_path / "train.py").write_text(SCRIPT)
    folder = tmp_path / "rec"
    done = run("run", "-q", "--layers", "torch,entries", "-o", folder, "train.py")
    assert done.returncode == 0, done.stderr
    return folder, run


def test_a_layer_of_another_package_is_equal(
    recorded: tuple[Path, Run], run_profstack: RunProfstack
) -> None:
    folder, run = recorded
    report = json.loads((folder / "report.json").read_text())
    row = next(each for each in report["layers"] if each["name"] == "entries")
    assert (row["status"], row["technique"]) == ("recorded", "counting")
    (table,) = report["layer_tables"]
    assert (table["layer"], table["name"], table["join"]) == ("entries", "entries", "lines")
    figures = {each["line"]: (each["entered"], each["deepest"]) for each in table["rows"]}
    # Per step, however many steps the slices had; the largest of a slice is no sum.
    assert figures == {4: (2.0, 3), 7: (1.0, 2)}
    assert [each["line"] for each in table["rows"]] == [4, 7]

    shown = run("show", folder, "--table", "entries", "--format", "csv")
    printed = list(csv.DictReader(io.StringIO(shown.stdout)))
    assert [(each["line"], float(each["entered"])) for each in printed] == [("4", 2.0), ("7", 1.0)]
    refused = run("show", folder, "--table", "entrances")
    assert refused.returncode == 2
    assert refused.stderr.startswith("profstack: show: no table 'entrances'")
    assert refused.stderr.endswith("nsys_gaps, entries\n")
    missing = run("show", folder, "--table", "entries", "--sort", "times").stderr
    assert "table entries has no column 'times'" in missing
    # The page and the report are made again where the package is not installed.
    (folder / "report.json").unlink()
    assert run_profstack(["report", str(folder)]).returncode == 0
    again = json.loads((folder / "report.json").read_text())
    assert again["layer_tables"] == report["layer_tables"]
    assert "&lt;function&gt;" not in (folder / "report.html").read_text()


def test_an_unknown_layer_is_refused_with_the_known_ones(
    recorded: tuple[Path, Run],
) -> None:
    _, run = recorded
    done = run("run", "--layers", "torch,entrys", "train.py")
    assert done.returncode == 2
    assert "no layer 'entrys'" in done.stderr
    assert "memray, entries" in done.stderr


KEY = column("file", "TEXT", "file")
FIGURE = column("bytes", "INTEGER", "bytes", "counted")


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (LayerTable("other", (KEY, FIGURE), "", ""), "must begin with mine_"),
        (LayerTable("mine", (FIGURE,), "", ""), "no column without a sense"),
        (LayerTable("mine", (KEY, column("a b", "REAL", "", "raw")), "", ""), "column 'a b'"),
        (LayerTable("mine", (KEY, column("x", "BLOB", "", "raw")), "", ""), "type 'BLOB'"),
        (LayerTable("mine", (KEY, column("x", "REAL", "", "rough")), "", ""), "sense 'rough'"),
        (LayerTable("mine", (KEY, KEY), "", ""), "column 'file' twice"),
        (LayerTable("mine", (KEY, column("slice", "TEXT", "")), "", ""), "'slice'"),
        (LayerTable("mine", (KEY, FIGURE), "", "", order="size"), "order 'size'"),
        (LayerTable("mine", (KEY, FIGURE), "", "", largest=("file",)), "largest 'file'"),
        (LayerTable("mine", (KEY, FIGURE), "", "", join="lines"), "join 'lines'"),
    ],
)
def test_a_table_that_cannot_be_recorded_says_why(table: LayerTable, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        table.declare("mine")


def test_a_good_table_is_declared() -> None:
    declared = LayerTable("mine_files", (KEY, FIGURE), "title", "text", "bytes").declare("mine")
    assert [each["name"] for each in declared["columns"]] == ["file", "bytes"]
