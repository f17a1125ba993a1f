"""`profstack import` as its user runs it: what it adds to, what it says, what it refuses."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import RunProfstack
from nsys_files import PID, NsysFile

from profstack.commands import main
from profstack.readers.nsys import rows
from profstack.storage.folder import DATABASE, Writer

OTHER = PID + 1


def export(path: Path, generation: str = "2024", pids: tuple[int, ...] = (PID,)) -> Path:
    """Two steps of one module; of further processes as many as their turn says."""
    with NsysFile(path, generation) as file:
        for turn, pid in enumerate(pids):
            for number in range(2 + turn):
                start = 1000 * (number + 1)
                text, kind = f"step {number}", "step"
                file.range(start, start + 900, text, category=kind, payload=number, pid=pid)
                file.range(start + 100, start + 500, "Net", pid=pid)
    return path


def recording(folder: Path) -> Path:
    (folder / "logs").mkdir(parents=True)
    Writer(folder).close()
    return folder


def report(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "report.json").read_text("utf-8"))
    return content


def test_an_export_becomes_a_recording_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "own"
    assert main(["import", str(export(tmp_path / "a.sqlite")), "-o", str(folder)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith(": 2 steps")
    assert said[-1] == f"Wrote {folder / 'report.html'}"
    (net,) = report(folder)["tables"]["nsys_modules"]
    assert (net["path"], net["calls"]) == ("Net", 1.0)


def test_a_second_import_takes_the_place_of_the_first(tmp_path: Path) -> None:
    folder = recording(tmp_path / "rec")
    for _ in range(2):
        assert main(["import", str(export(tmp_path / "a.sqlite")), "--into", str(folder)]) == 0
        (tmp_path / "a.sqlite").unlink()
    assert len(report(folder)["tables"]["nsys_steps"]) == 2


CONTAINER = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(2)])
        self.heads = torch.nn.ModuleDict({"a": torch.nn.Linear(8, 1)})
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.heads["a"](x)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(30):
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


def test_an_import_goes_into_the_run_of_a_model_with_containers(
    run_profstack: RunProfstack, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(CONTAINER, encoding="utf-8")
    done = run_profstack(["run", "-q", "--layers", "torch", "-o", "rec", "script.py"])
    assert done.returncode == 0, done.stderr
    with NsysFile(tmp_path / "a.sqlite", "2024") as file:
        file.range(1000, 1900, "step 0", category="step", payload=0)
        file.range(1100, 1500, "Net")
        file.range(1200, 1300, "Net.blocks.0")
    folder = tmp_path / "rec"
    assert main(["import", str(tmp_path / "a.sqlite"), "--into", str(folder)]) == 0
    found = {row["path"]: row for row in report(folder)["tables"]["nsys_modules"]}
    assert list(found) == ["Net", "Net.blocks.0", "Net.blocks.1", "Net.heads.a"]
    assert (found["Net.blocks.0"]["calls"], found["Net.blocks.0"]["torch_calls"]) == (1.0, 1.0)


def test_a_run_under_nsys_asks_for_an_import_until_it_has_one(
    run_profstack: RunProfstack, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(CONTAINER, encoding="utf-8")
    words = ["run", "-q", "-o", "rec", "script.py"]
    done = run_profstack(words, env={"NSYS_PROFILING_SESSION_ID": "7"})
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "rec"

    def told() -> str:
        (text,) = (row["text"] for row in report(folder)["warnings"] if row["slug"] == "under-nsys")
        return str(text)

    before = told()
    assert before.endswith("; profstack import FILE.nsys-rep --into this folder adds what it saw")
    assert main(["import", str(export(tmp_path / "a.sqlite")), "--into", str(folder)]) == 0
    assert told() == before.partition("; profstack import")[0]


def test_one_of_several_processes_is_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(export(tmp_path / "a.sqlite", pids=(PID, OTHER)))
    assert main(["import", source, "-o", str(tmp_path / "most")]) == 0
    assert report(tmp_path / "most")["nsys"]["process"] == OTHER
    assert main(["import", source, "-o", str(tmp_path / "one"), "--process", str(PID)]) == 0
    told = report(tmp_path / "one")["nsys"]
    assert (told["process"], told["other_processes"], told["steps"]) == (PID, 1, 2)
    capsys.readouterr()
    assert main(["import", source, "-o", str(tmp_path / "none"), "--process", "7"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no event of process 7" in line
    assert f"{PID} (4)" in line
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("harm", ["damaged", "of another schema", "of nothing"])
def test_a_recording_that_cannot_be_read_is_refused_and_left_as_it_is(
    harm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recording(tmp_path / "rec")
    database = folder / DATABASE
    if harm == "damaged":
        database.write_bytes(b"SQLite format 3\0" + bytes(5000))
    elif harm == "of nothing":
        database.write_bytes(b"")
    else:
        with closing(sqlite3.connect(database)) as opened, opened:
            opened.execute("UPDATE facts SET value = 99 WHERE key = 'schema_version'")
    before = database.read_bytes()
    assert main(["import", str(export(tmp_path / "a.sqlite")), "--into", str(folder)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert database.read_bytes() == before


def test_what_is_no_file_is_told_as_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name, what in (
        ("fifo", "no regular file"),
        ("folder", "a folder, no file"),
        ("none", "no such file"),
    ):
        assert main(["import", str(tmp_path / name)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{name}: {what};" in line


def test_what_a_file_says_of_itself_moves_no_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = export(tmp_path / "\x1b[2Ja.sqlite")
    with closing(sqlite3.connect(source)) as opened, opened:
        (table,) = opened.execute(
            "SELECT name FROM sqlite_master WHERE sql LIKE '%name%value%' AND name LIKE '%EXPORT'"
        ).fetchone()
        opened.execute(
            f"UPDATE {table} SET value = '\x1b]0;owned\x07' WHERE name = 'EXPORT_PRODUCT_VERSION'"
        )
    assert main(["import", str(source), "-o", str(tmp_path / "rec")]) == 0
    assert main(["import", str(tmp_path / "\x1b[2Jnone.sqlite")]) == 2
    said = capsys.readouterr()
    assert "owned" in said.out
    assert "\x1b" not in said.out.replace(str(tmp_path), "") + said.err
    assert "\x07" not in said.out


def test_rows_that_had_to_be_left_out_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MOST_ROWS", 3)
    source = tmp_path / "a.sqlite"
    with NsysFile(source, "2024") as file:
        for number in range(5):
            file.range(10 * number, 10 * number + 5, f"kind {number}")
            file.call(10 * number + 1, 10 * number + 2, "cudaLaunchKernel", number + 1)
            file.kernel(10 * number + 2, 10 * number + 4, f"kernel {number}", number + 1)
    assert main(["import", str(source), "-o", str(tmp_path / "rec")]) == 0
    told = report(tmp_path / "rec")
    assert len(told["tables"]["nsys_kernels"]) == 3
    texts = [row["text"] for row in told["warnings"] if row["slug"] == "nsys-rows-left-out"]
    assert "2 rows of nsys_kernels with the least time are left out" in texts
