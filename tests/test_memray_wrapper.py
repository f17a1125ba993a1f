"""memray's layer: bytes by line, module and native function, against allocations of known size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import RunProfstack

from profstack.wrappers import memray as memray_layer

pytest.importorskip("memray")

SCRIPT = """
import numpy
import torch

class Wide(torch.nn.Module):
    def forward(self, x):
        return x.new_empty(1_000_000)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.wide = Wide()

    def forward(self, x):
        self.wide(x)
        return self.linear(x)

model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
kept = []
for step in range(160):
    scratch = numpy.empty(2_000_000, numpy.uint8)
    scratch = numpy.empty(500_000, numpy.uint8)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


WORDS = ("-o", "rec", "train.py", "--token=s3cr3t", "tail")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from conftest import clean_environment

    place = tmp_path_factory.mktemp("memray")
    (place / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [*(sys.executable, "-m", "profstack", "run", "-q", "--layers", "torch,memray"), *WORDS],
        cwd=place,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return place / "rec"


@pytest.fixture(scope="module")
def tables(folder: Path) -> dict[str, list[dict[str, Any]]]:
    report = json.loads((folder / "report.json").read_text())
    row = next(each for each in report["layers"] if each["name"] == "memray")
    assert row["status"] == "recorded", row["reason"]
    return {each["name"]: each["rows"] for each in report["layer_tables"]}


def line(text: str) -> int:
    return next(n for n, each in enumerate(SCRIPT.split("\n"), 1) if text in each)


def test_bytes_stand_at_the_lines_that_allocate(tables: dict[str, list[dict[str, Any]]]) -> None:
    at = {row["line"]: row for row in tables["memray_lines"] if row["file"]}
    large, small = at[line("2_000_000")], at[line("500_000")]
    assert large["allocated_bytes"] == pytest.approx(2_000_000, rel=0.01)
    assert small["allocated_bytes"] == pytest.approx(500_000, rel=0.01)
    # At the highest moment, inside the module, the small array is alive and the large one gone.
    assert large["peak_bytes"] == 0
    assert small["peak_bytes"] == pytest.approx(500_000, rel=0.01)
    assert at[line("new_empty")]["allocated_bytes"] == pytest.approx(4_000_000, rel=0.01)


def test_bytes_stand_at_the_module_that_allocates(tables: dict[str, list[dict[str, Any]]]) -> None:
    by_path = {row["path"]: row for row in tables["memray_modules"]}
    assert by_path["Net.wide"]["allocated_bytes"] == pytest.approx(4_000_000, rel=0.01)
    assert by_path["Net.wide"]["type"] == "Wide"
    assert by_path["Net.linear"]["allocated_bytes"] < 100_000
    assert by_path["(outside modules)"]["allocated_bytes"] >= 2_500_000


def test_native_functions_are_those_behind_the_allocator(
    tables: dict[str, list[dict[str, Any]]],
) -> None:
    heaviest = tables["memray_functions"][0]
    assert heaviest["allocated_bytes"] >= 2_000_000
    assert not heaviest["function"].startswith(("malloc", "operator new"))


def test_its_file_opens_in_memray(folder: Path, tmp_path: Path) -> None:
    (file, *_) = sorted((folder / "memray").glob("*.bin"))
    done = subprocess.run(
        [sys.executable, "-m", "memray", "flamegraph", "-o", tmp_path / "f.html", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "f.html").stat().st_size > 10_000


def test_secrets_on_the_command_line_are_in_no_file(folder: Path) -> None:
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert any(file.suffix == ".bin" and b"train.py" in file.read_bytes() for file in files)
    assert [file for file in files if b"s3cr3t" in file.read_bytes()] == []


def test_it_is_used_on_request_alone(run_profstack: RunProfstack, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("160", "12"))
    done = run_profstack(["run", "-q", "-o", "rec", "train.py"])
    assert done.returncode == 0
    layers = json.loads((tmp_path / "rec" / "report.json").read_text())["layers"]
    assert "memray" not in {each["name"] for each in layers}


class Record(NamedTuple):
    size: int
    stack_id: int = 0
    allocator: int = 6
    n_allocations: int = 1
    native_stack_id: int = 0
    native_segment_generation: int = 0

    def stack_trace(self) -> list[tuple[str, str, int]]:
        return [("work", "/script/train.py", 3)]

    def native_stack_trace(self, max_stacks: int) -> list[tuple[str, str, int]]:
        return [("malloc", "", 0), ("fill(int)", "", 0)]


class Reader:
    def get_allocation_records(self) -> list[Record]:
        return [Record(100), Record(0, allocator=5), Record(10), Record(1)]

    def get_high_watermark_allocation_records(self, merge_threads: bool) -> list[Record]:
        return [Record(70)]


def test_a_cut_slice_still_has_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memray_layer, "MOST_RECORDS", 2)
    wrapper = memray_layer.MemrayWrapper()
    sums = [memray_layer._Sums() for _ in range(3)]
    cut = wrapper._read(Reader(), memray_layer._StackPlaces(wrapper._places, {}), sums)
    assert cut == "only the first 2 allocations of the slice were read"
    assert [list(each.values()) for each in sums] == [[[2, 110, 70]]] * 3
    assert list(sums[2]) == [("fill",)]


@pytest.mark.parametrize(
    ("written", "kept", "left"),
    [
        (b"head train.py --token=abc tail", True, b"head train.py --token=*** tail"),
        (b"head of another form", False, b"head of another form"),
    ],
)
def test_a_command_line_is_masked_or_the_file_is_not_kept(
    written: bytes, kept: bool, left: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--token=abc"])
    (tmp_path / "slice.bin").write_bytes(written)
    assert memray_layer._mask_command_line(tmp_path / "slice.bin") is kept
    assert (tmp_path / "slice.bin").read_bytes() == left
