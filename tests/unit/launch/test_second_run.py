"""Second runs: nsys and what it leaves, and the layers copied into the first recording."""

import json
import os
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from profstack.capture.slices import Targets
from profstack.launch import second_run
from profstack.readers.nsys import tool
from profstack.storage.folder import Writer
from profstack.storage.schema.layer_table import LayerTable, column
from tests.support.recorded_runs import rows_of

NSYS = """#!/bin/sh
for word; do
    echo "$word" >> words.txt
    case $word in --output=*) out=${word#--output=};; esac
done
echo "$GREETING" > environment.txt
%s
"""


@pytest.fixture
def nsys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def capture(does, **given):
        program = tmp_path / "nsys"
        program.write_text(NSYS % does)
        program.chmod(0o755)
        given = {"on_device": False, "limit_s": 50, **given}
        environment = {"PATH": os.environ["PATH"], "GREETING": "hello"}
        found = tool.Nsys(str(program), "2025.1", None)
        return second_run.capture(found, ["python", "a.py"], environment, tmp_path, **given)

    return capture


@pytest.mark.parametrize("on_device", [False, True])
def test_nsys_is_told_what_to_trace_and_for_how_long(nsys, on_device):
    ran = nsys('touch "$out.qdrep"', on_device=on_device, limit_s=37)
    assert ran == second_run.NsysRun(Path.cwd() / "capture.qdrep", 0, False, ran.said)
    first, *words, python, script = Path("words.txt").read_text().split()
    assert (first, python, script) == ("profile", "python", "a.py")
    assert {"--sample=none", "--cpuctxsw=none", "--duration=37", "--kill=sigterm"} <= set(words)
    assert {"--wait=primary", "--force-overwrite=true"} <= set(words)
    (trace,) = [word for word in words if word.startswith("--trace=")]
    assert ("cuda" in trace, "--cuda-memory-usage=true" in words) == (on_device, on_device)
    assert "nvtx" in trace
    assert Path("environment.txt").read_text() == "hello\n"


def test_code_last_word_limit_and_report_are_told_apart(nsys):
    said = "first\\nlast word\\rImporter error: x\\nno QDSTRM\\n"
    ran = nsys(f'touch "$out.nsys-rep"; printf "{said}" >&2; exit 5')
    assert (ran.exit_code, ran.said, ran.timed_out) == (5, "last word", False)
    # Only a SIGTERM at the limit is of the limit.
    for limit_s, code in ((0, 143), (0, 7), (50, 143)):
        ran = nsys(f'touch "$out.nsys-rep"; exit {code}', limit_s=limit_s)
        assert ran.timed_out is ((limit_s, code) == (0, 143))
    Path("capture.nsys-rep").unlink()
    with pytest.raises(tool.NsysError, match=r"nsys 2025.1 left no report \(code 3\): no driver"):
        nsys("echo no driver >&2; exit 3")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_us_ends_nsys_and_is_an_interrupt(nsys, number, monkeypatch):
    sent = []

    class Ready(subprocess.Popen):
        def wait(self, timeout=None):
            while not Path("ready").exists():
                time.sleep(0.01)
            if not sent:
                sent.append(number)
                os.kill(os.getpid(), number)
            return super().wait(timeout)

    monkeypatch.setattr(second_run.subprocess, "Popen", Ready)
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt):
        nsys("trap 'touch ended; exit' INT; touch ready; while true; do sleep 0.02; done")
    assert Path("ended").exists()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_report_is_kept_beside_the_recording(tmp_path):
    def keep(text, force):
        (tmp_path / "capture.qdrep").write_text(text)
        return second_run.keep(tmp_path / "capture.qdrep", tmp_path / "rec", force=force)

    kept = [keep(text, force=False) for text in "abc"]
    assert [path.name for path in kept] == ["rec.qdrep", "rec-2.qdrep", "rec-3.qdrep"]
    assert keep("d", force=True) == kept[0]
    assert [path.read_text() for path in kept] == ["d", "b", "c"]
    assert not (tmp_path / "capture.qdrep").exists()


HITS = (column("name", "TEXT", "name"), column("hits", "REAL", "hits", "counted"))
OWN = LayerTable("own", HITS, "Own", "")
COLUMNS = {"layers": "name status", "slices": "slice plan layer", "own": "slice name hits"}
COLUMNS |= {"modules": "module_id path parent_id", "operators": "slice name module_id"}
COLUMNS["artifacts"] = "layer path"


def write(folder, tables, own=(), **facts):
    (folder / "logs").mkdir(parents=True)
    with closing(Writer(folder)) as writer:
        if own:
            writer.declare("own", list(own))
        for name, rows in tables.items():
            columns = COLUMNS[name].split()
            writer.write({name: [dict(zip(columns, row, strict=True)) for row in rows]})
        writer.facts(facts)


def rows(folder, table, columns=None):
    names = ", ".join((columns or COLUMNS[table]).split())
    return rows_of(folder, f"SELECT {names} FROM {table}")


def test_layers_are_copied_with_our_numbers(tmp_path):
    first, again = tmp_path / "first", tmp_path / "again"
    empty = [(name, "empty") for name in ("torch", "own", "memory")]
    tables = {"layers": [*empty, ("flops", "recorded")], "slices": [(4, 3, "flops"), (5, 6, None)]}
    tables |= {"modules": [(2, "Net", None), (7, "Net.a", 2)], "operators": [(4, "old", 7)]}
    write(first, tables, torch_events=1, flops_kept=2)
    tables = {
        "layers": [("torch", "recorded"), ("own", "emitted"), *empty[2:], ("flops", "recorded")],
        "slices": [(11, 9, "torch"), (12, 9, "flops"), (13, 9, "torch"), (14, 9, "own")],
        # Net.a has another number, Net.b is new and so is what lies in it.
        "modules": [(1, "Net", None), (2, "Net.a", 1), (3, "Net.b", 1), (5, "Net.b.c", 3)],
        "operators": [(11, "mm", 2), (12, "add", 2), (13, "mul", 5), (13, "free", None)],
        "own": [(14, "x", 2.5)],
        "artifacts": [("torch", "torch/t"), ("flops", "flops/f")],
    }
    write(again, tables, [OWN], torch_events=8, flops_kept=9)
    (again / "torch").mkdir()
    (again / "torch" / "t").write_text("trace")
    assert second_run.empty_layers(first) == ["torch", "own", "memory"]
    assert second_run.copy_layers(first, again, ["torch", "own", "memory"]) == ["torch", "own"]
    found = {table: rows(first, table) for table in COLUMNS}
    assert sorted(found.pop("layers")) == [
        *(("flops", "recorded"), ("memory", "empty"), ("own", "emitted"), ("torch", "recorded"))
    ]
    assert found == {
        "slices": [(4, 3, "flops"), (5, 6, None), (6, 3, "torch"), (7, 3, "torch"), (8, 3, "own")],
        "modules": [(2, "Net", None), (7, "Net.a", 2), (8, "Net.b", 2), (9, "Net.b.c", 8)],
        "operators": [(4, "old", 7), (6, "mm", 7), (7, "mul", 9), (7, "free", None)],
        "own": [(8, "x", 2.5)],
        "artifacts": [("torch", "torch/t")],
    }
    assert (first / "torch" / "t").read_text() == "trace"
    facts = {key: json.loads(value) for key, value in rows(first, "facts", "key value")}
    assert (facts["torch_events"], facts["flops_kept"]) == (8, 2)
    assert facts["own_layer_tables"][0]["name"] == "own"
    assert rows(first, "notes", "slug layer") == [("rerun", "torch"), ("rerun", "own")]


def test_the_capture_takes_what_steps_there_are():
    given = {"layers": ["torch", "nvtx"], "left_out": {"torch": "x"}, "lockstep": False}
    given |= {"sync": True, "whole": True, "startup": "cprofile", "max_steps": 5, "step_by": "step"}
    changed = {"layers": ["nvtx"], "left_out": {}, "startup": None, "whole": False, "sync": False}
    # Steps of the first run and of a slice; then warm-up and captured.
    table = "100 3 10 10, 100 25 10 25, 34 3 10 10, 20 3 6 10, 14 3 4 8, 5 3 1 2, 0 3 1 1"
    for row in table.split(", "):
        ran, slice_steps, warmup, steps = map(int, row.split())
        first = {**given, "targets": {**vars(Targets()), "slice_steps": slice_steps}}
        capture = {"warmup": warmup, "steps": steps}
        assert second_run.options(first, second_run.FirstRun(ran, False, True, "")) == {
            **first, **changed, "capture": capture, "lockstep": True}  # fmt: skip
