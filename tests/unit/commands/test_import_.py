"""`profstack import` as its user runs it: what it adds to, what it says, what it refuses."""

import json
import os
from pathlib import Path

import pytest

from profstack.commands import import_, main
from profstack.readers.nsys import tool
from profstack.storage.folder import DATABASE, Writer
from tests.support.commands import refused
from tests.support.nsys_files import PID, NsysFile, change, thread_of

OTHER = PID + 1


@pytest.fixture
def source(tmp_path):
    with NsysFile(tmp_path / "a.sqlite") as file:
        for pid, steps in ((PID, 2), (OTHER, 3)):
            for number in range(steps):
                start, thread = 1000 * (number + 1), thread_of(pid, pid)
                file.step(number, start, start + 900, thread=thread)
                file.range(start + 100, start + 500, f"Net{pid}", thread=thread)
    return file.path


def report(folder):
    return json.loads((folder / "report.json").read_text("utf-8"))


def test_an_export_becomes_a_recording_of_its_own(source, tmp_path, capsys):
    folder = tmp_path / "own"
    command = ["import", str(source), "-o", str(folder)]
    assert main(command) == 0
    said = capsys.readouterr().out.splitlines()
    summary = "a.sqlite of nsys 2024.3.1.75: 3 steps; 1 other process left out"
    assert said == [summary, f"Wrote {folder / 'report.html'}"]
    assert (folder / "report.html").is_file()
    (net,) = report(folder)["tables"]["nsys_modules"]
    assert (net["path"], net["calls"]) == (f"Net{OTHER}", 1.0)
    refused(capsys, *command)
    assert main([*command, "--force", "--process", str(PID)]) == 0
    assert report(folder)["nsys"]["process"] == PID
    assert f"{PID} (4)" in refused(capsys, *command, "--process", "7", "--force")
    assert report(folder)["nsys"]["process"] == PID
    into = ["import", str(source), "--into", str(tmp_path / "rec")]
    (tmp_path / "rec" / "logs").mkdir(parents=True)
    Writer(tmp_path / "rec").close()
    assert [main([*into, "--process", str(PID)]) for _ in range(2)] == [0, 0]
    assert len(report(tmp_path / "rec")["tables"]["nsys_steps"]) == 2
    database = tmp_path / "rec" / DATABASE
    for content in (b"SQLite format 3\0" + bytes(5000), b""):
        database.write_bytes(content)
        refused(capsys, *into)
        assert database.read_bytes() == content


def test_what_is_no_file_and_what_a_file_says_moves_no_cursor(source, tmp_path, capsys):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    told = {"fifo": "no regular file", "folder": "a folder, no file", "\x1b[2Jnone": "no such file"}
    for name, what in told.items():
        line = refused(capsys, "import", str(tmp_path / name))
        assert (f"{name[-4:]}: {what};" in line, "\x1b" in line) == (True, False)
    named = source.rename(tmp_path / "\x1b[2Ja.sqlite")
    value = "'\x1b]0;owned\x07' WHERE name = 'EXPORT_PRODUCT_VERSION'"
    change(named, f"UPDATE META_DATA_EXPORT SET value = {value}")
    assert main(["import", str(named), "-o", str(tmp_path / "rec")]) == 0
    said = capsys.readouterr().out
    assert "owned" in said
    assert not {"\x1b", "\x07"} & set(said.replace(str(tmp_path), ""))


def test_options_reach_the_exporter_and_the_page_is_opened(source, tmp_path, monkeypatch):
    opened, asked = [], []
    monkeypatch.setattr(import_, "open_page", opened.append)
    monkeypatch.setattr(tool, "sqlite_of", lambda *_, nsys_path: asked.append(nsys_path) or source)
    monkeypatch.chdir(tmp_path)
    Path("my.run.nsys-rep").touch()
    for more in ([], ["--open", "--nsys-path", "/opt/nsys"]):
        assert main(["import", "my.run.nsys-rep", *more]) == 0
    assert asked == [None, "/opt/nsys"]
    [page] = opened
    assert "my" in page.parent.name
    run = json.loads((page.parent / "logs" / "run.json").read_text("utf-8"))
    assert (run["script"], run["argv"], run["run"]) == (None, [], {"exit_code": None})
