"""`profstack import` as its user runs it: what it adds to, what it says, what it refuses."""

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from profstack.commands import import_, main
from profstack.readers.formats import Format, Taken
from profstack.readers.nsys import importing as nsys
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
    (tmp_path / "text").write_text("no profile")
    (tmp_path / "zipped").write_bytes(b"\x1f\x8b, and no more of gzip")
    told = {
        "fifo": "no regular file",
        "folder": "none of its files is a profile",
        "\x1b[2Jnone": "no such file",
        **dict.fromkeys(("text", "zipped"), "no profile that is known here"),
    }
    for name, what in told.items():
        line = refused(
            capsys, "import", str(source), str(tmp_path / name), "-o", str(tmp_path / "o")
        )
        assert (f"{name[-4:]}: {what};" in line, "\x1b" in line) == (True, False)
        assert "Nsight Systems report (.nsys-rep" in line
    assert not (tmp_path / "o").exists()
    named = source.rename(tmp_path / "\x1b[2Ja.sqlite")
    value = "'\x1b]0;owned\x07' WHERE name = 'EXPORT_PRODUCT_VERSION'"
    change(named, f"UPDATE META_DATA_EXPORT SET value = {value}")
    assert main(["import", str(named), "-o", str(tmp_path / "rec")]) == 0
    said = capsys.readouterr().out
    assert "owned" in said
    assert not {"\x1b", "\x07"} & set(said.replace(str(tmp_path), ""))


ONE, TWO = (
    Format(name, f".{mark}", lambda start, _, mark=mark: start.startswith(mark.encode()), None)
    for name, mark in (("kind one", "one"), ("kind two", "two"))
)


def taker(layer, asked):
    """What a format does: one slice of two steps, with one module, seen by `layer`."""

    def take(files, request):
        asked.append((layer, [file.name for file in files], request))
        number = request.modules.get("Net", len(request.modules) + 1)
        slice_ = {"slice": request.slice, "kind": layer, "layer": layer, "plan": request.plan}
        steps = [{"step": request.step + each, "slice": request.slice} for each in (0, 1)]
        added = {
            "layers": [{"name": layer, "tool": f"file of {layer}", "status": "recorded"}],
            "slices": [{**slice_, "first_step": request.step, "steps": 2}],
            "steps": [{**step, "plan": request.plan, "wall_s": 0.5} for step in steps],
            "modules": [{"module_id": number, "path": "Net"}] if not request.modules else [],
        }
        return Taken(files, [f"{layer}: 2 steps"], added=added)

    return take


def test_files_of_several_formats_become_one_recording(source, tmp_path, capsys, monkeypatch):
    asked, own = [], str(tmp_path / "own")
    known = [replace(ONE, take=taker("torch", asked)), replace(TWO, take=taker("cprofile", asked))]
    monkeypatch.setattr(import_, "_formats", lambda: known)
    (tmp_path / "in").mkdir()
    for name, content in {"b.x": b"one", "a.json": gzip.compress(b"one"), "c.one": b"text"}.items():
        (tmp_path / "in" / name).write_bytes(content)
    (tmp_path / "two.json").write_text("two")
    assert main(["import", str(tmp_path / "in"), str(tmp_path / "two.json"), "-o", own]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == ["torch: 2 steps", "cprofile: 2 steps", f"Wrote {own}/report.html"]
    (_, torch, first), (_, cprofile, second) = asked
    assert (torch, cprofile) == (["a.json", "b.x"], ["two.json"])
    assert (first.slice, first.step, first.modules) == (0, 0, {})
    assert (second.slice, second.step, second.modules) == (1, 2, {"Net": 1})
    found = report(Path(own))
    assert [(row["name"], row["tool"]) for row in found["layers"]] == [
        ("torch", "file of torch"),
        ("cprofile", "file of cprofile"),
    ]
    files = [("a.json", "kind one"), ("b.x", "kind one"), ("two.json", "kind two")]
    assert [(each["file"], each["format"]) for each in found["imports"]] == files
    assert (found["status"], found["script"], found["step"]["reason"]) == ("complete", None, None)
    doubled = refused(capsys, "import", str(tmp_path / "two.json"), "--into", own)
    assert "figures of the layer cprofile already" in doubled
    known.append(nsys.FORMAT)
    assert main(["import", str(source), "--into", own]) == 0
    assert [each["file"] for each in report(Path(own))["imports"]][2:] == ["two.json", "a.sqlite"]
    assert len(report(Path(own))["layers"]) == 2


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
