"""`profstack import` as its user runs it: what it adds to, what it says, what it refuses."""

import cProfile
import gzip
import json
import os
import pickle
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from profstack.commands import main
from profstack.readers import imports
from profstack.readers.formats import Format, Taken
from profstack.report import files
from profstack.storage.folder import Writer, facts_of, read_tables, write_run
from tests.support import snapshots
from tests.support.commands import refused
from tests.support.engine import table
from tests.support.nsys_files import PID, NsysFile, change, thread_of
from tests.support.rank_traces import rank_trace
from tests.support.recorded_runs import report_of
from tests.support.recordings import Run
from tests.support.reports import validate
from tests.support.tables import cases, of, rows_of

OTHER = PID + 1
# A module of the capture, and of what other formats record.
MODULE = f"Net{PID}"


@pytest.fixture
def source(tmp_path):
    with NsysFile(tmp_path / "a.sqlite") as file:
        for pid, steps in ((PID, 2), (OTHER, 3)):
            for number in range(steps):
                start, thread = 1000 * (number + 1), thread_of(pid, pid)
                file.step(number, start, start + 900, thread=thread)
                file.range(start + 100, start + 500, f"Net{pid}", thread=thread)
    return file.path


def test_an_export_becomes_a_recording_of_its_own(source, tmp_path, capsys):
    folder = tmp_path / "own"
    command = ["import", str(source), "-o", str(folder)]
    assert main(command) == 0
    said = capsys.readouterr().out.splitlines()
    summary = "a.sqlite of nsys 2024.3.1.75: 3 steps; 2 processes side by side"
    assert said == [summary, f"Wrote {folder / 'report.html'}"]
    assert (folder / "report.html").is_file()
    (net,) = report_of(folder)["tables"]["nsys_modules"]
    assert (net["path"], net["calls"]) == (f"Net{OTHER}", 1.0)
    refused(capsys, *command)
    assert main([*command, "--force", "--process", str(PID)]) == 0
    assert report_of(folder)["nsys"]["process"] == PID
    assert f"{PID} (4)" in refused(capsys, *command, "--process", "7", "--force")
    assert report_of(folder)["nsys"]["process"] == PID
    into = ["import", str(source), "--into", str(tmp_path / "rec")]
    (tmp_path / "rec" / "logs").mkdir(parents=True)
    Writer(tmp_path / "rec").close()
    assert [main([*into, "--process", str(PID)]) for _ in range(2)] == [0, 0]
    assert len(report_of(tmp_path / "rec")["tables"]["nsys_steps"]) == 2


def test_traces_of_ranks_are_one_page_with_who_comes_last(tmp_path, capsys):
    for rank, late_us in ((0, 0), (1, 300)):
        (tmp_path / f"run.rank{rank}.json").write_text(rank_trace(late_us))
    (tmp_path / "run.rank2.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    assert main(["import", str(tmp_path), "-o", str(tmp_path / "all")]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("rank 2 is left out: ")
    assert said.out.splitlines()[-1] == f"Wrote {tmp_path / 'all' / 'report.html'}"
    found = report_of(tmp_path / "all")
    validate(found)
    assert (found["ranks"]["count"], found["ranks"]["missing"]) == (2, [2])
    assert found["ranks"]["collectives"]["skew_s"] == pytest.approx(150e-6, rel=1e-2)
    said = "Rank 2 left no report. Rank 1 makes the other rank wait 300 µs of each step (30 %)."
    assert found["verdict"]["sentence"] == said
    own = report_of(tmp_path / "all" / "rank-00001")
    assert (own["run"]["rank"], own["tables"]["collectives"][0]["bytes"]) == (1, 4096)
    assert main(["import", str(tmp_path), "-o", str(tmp_path / "all"), "--force"]) == 0
    # None of them can be read.
    for rank in (0, 1):
        (tmp_path / f"run.rank{rank}.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    refused(capsys, "import", str(tmp_path), "-o", str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_what_is_no_file_and_what_a_file_says_moves_no_cursor(source, tmp_path, capsys):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no profile")
    (tmp_path / "zipped").write_bytes(b"\x1f\x8b, and no more of gzip")
    told = {"fifo": "no regular file", "folder": "none of its files is a profile"}
    told |= dict.fromkeys(("text", "zipped"), "no profile that is known here")
    told["\x1b[2Jnone"] = "no such file"
    for name, what in told.items():
        words = (str(source), str(tmp_path / name), "-o", str(tmp_path / "o"))
        line = refused(capsys, "import", *words)
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


@cases(
    "recorded captured warned",
    # A wrapper makes paths longer at the front, and is a module itself.
    ("Net Net.fc Net.fc.a", "DDP DDP.module DDP.module.fc DDP.module.fc.a", "2 of the capt"),
    ("Net Net.fc Net.fc.a Net.b", "W W.module.fc W.module.fc.a W.module.b", ""),
    ("Net Net.a Net.b (loss)", "Net Net.a Net.c Net.d", "2 of the capture's 4 modules"),
    ("Net Net.a", "GPT GPT.h GPT.h.0", None),
)
def test_a_foreign_capture_is_refused(recorded, captured, warned, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(files, "write_report", lambda folder: folder / "report.html")
    with NsysFile(tmp_path / "a.sqlite") as file:
        for number, path in enumerate(captured.split(), 1):
            file.step(number, 100 * number, 100 * number + 90)
            file.range(100 * number + 1, 100 * number + 50, path)
    folder = tmp_path / "rec"
    (folder / "logs").mkdir(parents=True)
    with closing(Writer(folder)) as writer:
        writer.write({"modules": rows_of("module_id path", *enumerate(recorded.split(), 1))})
    command = ["import", str(tmp_path / "a.sqlite"), "--into", str(folder)]
    if warned is None:
        line = refused(capsys, *command)
        assert "is of another program: none of its 3 modules (GPT, GPT.h, GPT.h.0)" in line
        assert table(folder, "nsys_steps") == []
        return
    assert main(command) == 0
    notes = dict(facts_of(read_tables(folder))["nsys"]["notes"])
    assert ("nsys-other-program" in notes) is bool(warned)
    assert notes.get("nsys-other-program", "").startswith(warned)


ONE, TWO = (
    Format(name, f".{mark}", lambda start, _, mark=mark: start.startswith(mark.encode()), None)
    for name, mark in (("kind one", "one"), ("kind two", "two"))
)


def taker(layer, asked):
    """What a format does: one slice of two steps, with one module, seen by `layer`."""

    def take(files, request):
        asked.append((layer, [file.name for file in files], request))
        number = request.modules.get(MODULE, len(request.modules) + 1)
        slice_ = {"slice": request.slice, "kind": layer, "layer": layer, "plan": request.plan}
        steps = [{"step": request.step + each, "slice": request.slice} for each in (0, 1)]
        added = {
            "layers": [{"name": layer, "tool": f"file of {layer}", "status": "recorded"}],
            "slices": [{**slice_, "first_step": request.step, "steps": 2}],
            "steps": [{**step, "plan": request.plan, "wall_s": 0.5} for step in steps],
            "modules": [{"module_id": number, "path": MODULE}] if not request.modules else [],
        }
        return Taken(files, [f"{layer}: 2 steps"], added=added)

    return take


def test_files_of_several_formats_become_one_recording(tmp_path, capsys, monkeypatch):
    asked, own = [], str(tmp_path / "own")
    known = [replace(ONE, take=taker("torch", asked)), replace(TWO, take=taker("cprofile", asked))]
    monkeypatch.setattr(imports, "formats", lambda: known)
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
    assert (second.slice, second.step, second.modules) == (1, 2, {MODULE: 1})
    found = report_of(Path(own))
    tools = [of(row, "name tool") for row in found["layers"]]
    assert tools == [["torch", "file of torch"], ["cprofile", "file of cprofile"]]
    read = [["a.json", "kind one"], ["b.x", "kind one"], ["two.json", "kind two"]]
    assert [of(each, "file format") for each in found["imports"]] == read
    assert (found["status"], found["script"], found["step"]["reason"]) == ("complete", None, None)
    doubled = refused(capsys, "import", str(tmp_path / "two.json"), "--into", own)
    assert "figures of the layer cprofile already" in doubled


def test_times_of_several_files_are_of_one_clock(tmp_path, monkeypatch):
    snapshot = snapshots.snapshot()
    first_s = snapshot["device_traces"][0][0]["time_us"] / 1e6
    (tmp_path / "device").write_bytes(gzip.compress(pickle.dumps(snapshot)))
    for name, begin_s in {"one": first_s - 2, "two": first_s + 0.25, "other": 5.0}.items():
        # The readings' clock is not that of the snapshot.
        at_s = 0.0 if name == "other" else begin_s - first_s
        (tmp_path / name).write_text(f"MEM 10.0 {begin_s:.4f}\nMEM 30.0 {begin_s + 1:.4f}\n")
        own = tmp_path / f"own-{name}"
        words = [str(tmp_path / "device"), str(tmp_path / name), "-o", str(own)]
        assert main(["import", *words]) == 0
        rows = table(own, "memory")
        host, device = (
            [row["t_s"] for row in rows if row[column] is not None]
            for column in ("rss_bytes", "device_allocated_bytes")
        )
        # The files are taken in the order of the command line.
        assert host == pytest.approx([at_s, at_s + 1], abs=1e-4)
        assert device[0] == 0
        found = report_of(own)
        layers = [of(row, "name status") for row in found["layers"]]
        assert layers == [["snapshot", "recorded"], ["mprof", "recorded"]]
        warned = [each["slug"] for each in found["warnings"]]
        assert warned == ["import-clock"] * (name == "other")
    monkeypatch.setattr(files, "write_report", lambda folder: folder / "report.html")
    recording = tmp_path / "live"
    (recording / "logs").mkdir(parents=True)
    with closing(Writer(recording)) as writer:
        writer.facts({"origin_clock_s": 107.5})
    run = {"started_at": "2026-01-01T00:00:00.250+00:00"}
    write_run(recording, {"script": "a.py", "argv": [], "begun_clock_s": 100.0, "run": run})
    began_s = datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp()
    (tmp_path / "late").write_text(f"MEM 10.0 {began_s + 9:.4f}\n")
    assert main(["import", str(tmp_path / "late"), "--into", str(recording)]) == 0
    (row,) = table(recording, "memory")
    assert row["t_s"] == pytest.approx(1.25, abs=1e-3)


def test_a_profile_of_the_whole_program_is_apart_from_the_steps(tmp_path):
    profiler = cProfile.Profile()
    profiler.runcall(sorted, range(50), key=lambda number: -number)
    profiler.dump_stats(tmp_path / "functions")
    stack = [{"name": "work", "file": "train.py", "line": 7}, {"name": "rest"}]
    profile = {"type": "sampled", "unit": "seconds", "samples": [[0], [0, 1]] * 40}
    profile |= {"name": "t", "weights": [0.03, 0.01] * 40, "startValue": 0, "endValue": 1.6}
    speedscope = {"exporter": "py-spy@1", "profiles": [profile], "shared": {"frames": stack}}
    (tmp_path / "samples").write_text(json.dumps(speedscope))
    run = Run(tmp_path / "live", "step")
    run.clean(8, 0.25)
    run.close(run={"script": "a.py", "argv": ["a.py"], "run": {"exit_code": 0}})
    for name in ("functions", "samples"):
        assert main(["import", str(tmp_path / name), "--into", str(run.folder)]) == 0
    beside = report_of(run.folder)
    assert {row["status"] for row in beside["layers"]} == {"recorded"}
    tables = [beside["tables"][name] for name in ("functions", "calls", "watch")]
    assert {row["phase"] for rows in tables for row in rows} == {"program"}
    assert [row["calls"] for row in tables[0] if "lambda" in row["name"]] == [50]
    assert beside["benchmark"]["n"] == 8
    # No finding and no verdict takes such times for those of a step.
    assert "train.py" not in json.dumps([beside["verdict"], beside["findings"]])
    validate(beside)
