"""`profstack run --nsys`: an ordinary run, a second one under nsys, and one recording of both."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import CHECKOUT, RunProfstack, clean_environment
from nsys_runs import alone, environment_with, is_old, nsys, nvtx_path

from profstack.capture.run import capture_plan
from profstack.capture.slices import Targets
from profstack.commands.run import FirstRun, NsysRun, second_options
from profstack.errors import UsageError
from profstack.launch import second_run
from profstack.launch.target import Target
from profstack.privacy import package_version
from profstack.readers.nsys import tool
from profstack.storage.folder import Writer, record_nothing

__all__ = ["is_old", "nsys", "nvtx_path"]

STEPS = 80
CANARY = "canary-77b0e1d4"
# It says how often and how far it has run, and what it read from standard input.
PROGRAM = """
import sys, time
import torch
import profstack

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
    def forward(self, x):
        return self.inner(self.inner(x))

net = torch.nn.Sequential(Block(), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters())
print("begun")
steps = 0
try:
    for _ in range(int(sys.argv[1])):
        with profstack.region("update"):
            loss = net(torch.ones(4, 8)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.002)
        steps += 1
finally:
    with open("runs.txt", "a") as file:
        print(steps, file=file)
print(f"steps: {steps}")
"""


def rows(folder: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(folder / "recording.sqlite")) as database:
        return database.execute(query).fetchall()


@dataclass(frozen=True)
class Ran:
    """What a run left behind."""

    folder: Path
    output: str
    errors: str
    code: int


def run(folder: Path, python_path: str | None, arguments: list[str], script: str = PROGRAM) -> Ran:
    """Run `profstack run --nsys` in a folder."""
    (folder / "script.py").write_text(script, encoding="utf-8")
    words = ["run", "--nsys", "-o", "recording", "script.py", *arguments]
    with alone():
        done = subprocess.run(
            [sys.executable, "-m", "profstack", *words],
            cwd=folder,
            env=environment_with(python_path, A_TOKEN=CANARY),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    return Ran(folder / "recording", done.stdout, done.stderr, done.returncode)


@pytest.fixture(scope="module")
def ran(nsys: str, nvtx_path: str | None, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run in one command, which the tests below look at."""
    ran = run(tmp_path_factory.mktemp("driven"), nvtx_path, [str(STEPS)])
    assert ran.code == 0, ran.errors
    return ran


@pytest.mark.slow
def test_every_step_and_every_module_range_is_in_the_recording(ran: Ran) -> None:
    fact = json.loads(rows(ran.folder, "SELECT value FROM facts WHERE key = 'nsys'")[0][0])
    numbers = [number for (number,) in rows(ran.folder, "SELECT step FROM nsys_steps")]
    assert len(numbers) == fact["steps"] >= 10
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    # Steps have become warm before.
    assert numbers[0] >= 10
    query = """SELECT inner.kind, inner.name, outer.name, inner.calls
        FROM nsys_ranges AS inner LEFT JOIN nsys_ranges AS outer ON inner.parent = outer.node
        WHERE inner.domain = 'profstack'"""
    once, twice = len(numbers), 2 * len(numbers)
    assert {row[:3]: row[3] for row in rows(ran.folder, query)} == {
        ("step", "step", None): once,
        ("region", "update", "step"): once,
        ("forward", "forward", "update"): once,
        ("module", "Sequential", "forward"): once,
        ("module", "Sequential.0", "Sequential"): once,
        ("module", "Sequential.0.inner", "Sequential.0"): twice,
        ("module", "Sequential.1", "Sequential"): once,
        ("module", "Sequential.2", "Sequential"): once,
        ("backward", "backward", "step"): once,
        ("optimizer", "optimizer Adam", "step"): once,
    }


@pytest.mark.slow
def test_the_first_run_is_whole_and_the_second_ends_after_its_steps(ran: Ran) -> None:
    runs = [int(line) for line in (ran.folder.parent / "runs.txt").read_text().split()]
    [first, second] = runs
    assert first == STEPS
    last = rows(ran.folder, "SELECT max(step) FROM nsys_steps")[0][0]
    # `finally` of a script that was ended at the boundary has run.
    assert second in (last, last + 1)
    assert second < STEPS
    status = dict(rows(ran.folder, "SELECT name, status FROM layers"))
    assert status["cprofile"] == status["torch"] == "recorded"
    assert rows(ran.folder, "SELECT count(*) FROM steps WHERE slice >= 0")[0][0] == STEPS
    assert rows(ran.folder, "SELECT * FROM notes WHERE slug = 'nsys-run'") == []


@pytest.mark.slow
def test_only_the_first_runs_output_is_seen(ran: Ran) -> None:
    assert ran.output == f"begun\nsteps: {STEPS}\n"
    assert ran.errors.count("running again under Nsight Systems") == 1
    assert "Generating" not in ran.errors


@pytest.mark.slow
def test_the_report_lies_beside_the_recording_and_nothing_of_the_environment_in_it(
    ran: Ran,
) -> None:
    assert ran.folder.with_name("recording.nsys-rep").stat().st_size > 10_000
    assert "recording.nsys-rep; it holds the environment" in ran.errors
    assert not list(ran.folder.parent.rglob("*.sqlite*")) or {
        path.name for path in ran.folder.parent.rglob("*.sqlite*")
    } == {"recording.sqlite"}
    for path in ran.folder.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_modules_stand_beside_the_torch_layers(ran: Ran) -> None:
    report = json.loads((ran.folder / "report.json").read_text(encoding="utf-8"))
    assert report["nsys"]["steps"] >= 10
    rows = {row["path"]: row for row in report["tables"]["nsys_modules"]}
    paths = [row["path"] for row in report["tables"]["modules"]]
    assert set(rows) == {path for path in paths if not path.startswith("(")}
    for path, calls in (("Sequential", 1), ("Sequential.0.inner", 2)):
        assert rows[path]["calls"] == rows[path]["torch_calls"] == calls
        assert rows[path]["host_s"] > 0


@pytest.mark.slow
def test_a_script_that_fails_the_second_time_costs_nothing(
    nsys: str, nvtx_path: str | None, tmp_path: Path
) -> None:
    script = "import os\nos.mkdir('once')\n" + PROGRAM
    ran = run(tmp_path, nvtx_path, ["30"], script)
    assert ran.code == 0
    assert ran.output == "begun\nsteps: 30\n"
    notes = [text for (text,) in rows(ran.folder, "SELECT text FROM notes WHERE slug='nsys-run'")]
    assert any("ended with exit code 1" in text for text in notes), notes
    # What it said stands on the terminal alone: it may hold anything.
    assert "last words there: FileExistsError" in ran.errors
    assert not any("FileExistsError" in text for text in notes)
    assert "Traceback" not in ran.errors
    report = json.loads((ran.folder / "report.json").read_text(encoding="utf-8"))
    assert report["benchmark"]["median_s"] > 0
    assert any("exit code 1" in warning["text"] for warning in report["warnings"])


# -- bounds ----------------------------------------------------------------------------------------


@pytest.fixture
def captured(nsys: str, tmp_path: Path) -> Callable[..., second_run.NsysRun]:
    """Run code under nsys."""

    def run(code: str, limit_s: int = 60) -> second_run.NsysRun:
        command = [sys.executable, "-c", code]
        environment = clean_environment()
        found = tool.find_nsys(nsys)
        return second_run.capture(
            found, command, environment, tmp_path, on_device=False, limit_s=limit_s
        )

    return run


@pytest.mark.slow
def test_a_script_that_never_ends_is_ended(
    captured: Callable[..., second_run.NsysRun], tmp_path: Path
) -> None:
    begun = time.monotonic()
    result = captured("import time\nwhile True: time.sleep(0.1)", limit_s=3)
    assert result.timed_out
    assert time.monotonic() - begun < 60
    assert result.report == tmp_path / "capture.nsys-rep"
    assert result.report.stat().st_size > 1000


@pytest.mark.slow
def test_code_and_last_word_are_the_scripts(captured: Callable[..., second_run.NsysRun]) -> None:
    result = captured("import sys; print('out'); print('a', file=sys.stderr); sys.exit('no data')")
    assert (result.exit_code, result.said, result.timed_out) == (1, "no data", False)
    assert captured("import sys; sys.exit(len(sys.stdin.read()))").exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_parent_ends_nsys_and_the_script(
    nsys: str, tmp_path: Path, number: signal.Signals
) -> None:
    sleeping = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(100)"
    code = f"""
import sys
from pathlib import Path
from profstack.launch import second_run
from profstack.readers.nsys import tool
command = [sys.executable, "-c", {sleeping!r}]
try:
    second_run.capture(tool.find_nsys({nsys!r}), command, {clean_environment()!r}, Path("."),
                   on_device=False, limit_s=100)
except KeyboardInterrupt:
    print("interrupted")
"""
    pid = tmp_path / "pid"
    with alone():
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=clean_environment(PYTHONPATH=str(CHECKOUT)),
            stdout=subprocess.PIPE,
            text=True,
        )
        while not (pid.exists() and pid.read_text()):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert output == "interrupted\n"
    script = int(pid.read_text())
    deadline = time.monotonic() + 20
    while Path(f"/proc/{script}/cmdline").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(script, 0)


def fake_nsys(folder: Path, does: str) -> tool.Nsys:
    """A program that is called like nsys and does what is said."""
    program = folder / "nsys"
    program.write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
    program.chmod(0o755)
    return tool.Nsys(str(program), "2030.1", None)


def test_an_nsys_that_leaves_no_report_says_what_it_said(tmp_path: Path) -> None:
    found = fake_nsys(tmp_path, "echo 'Illegal --trace argument' >&2; exit 1")
    with pytest.raises(tool.NsysError, match=r"left no report \(code 1\): Illegal --trace"):
        second_run.capture(found, ["true"], {}, tmp_path, on_device=True, limit_s=5)


def test_cuda_is_traced_only_where_it_is_used_and_neither_samples_nor_switches_are(
    tmp_path: Path,
) -> None:
    found = fake_nsys(tmp_path, f'echo "$@" > {tmp_path}/said; touch {tmp_path}/capture.nsys-rep')
    for on_device in (True, False):
        second_run.capture(found, ["true", "-t"], {}, tmp_path, on_device=on_device, limit_s=5)
        words = (tmp_path / "said").read_text().split()
        assert words[0] == "profile"
        assert words[-2:] == ["true", "-t"]
        assert {"--sample=none", "--cpuctxsw=none", "--duration=5"} <= set(words)
        [trace] = [word for word in words if word.startswith("--trace=")]
        assert ("cuda" in trace) is on_device
        assert "nvtx" in trace


def test_a_report_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    kept = []
    for text, force in (("1", False), ("2", False), ("3", True)):
        (tmp_path / "capture.nsys-rep").write_text(text)
        kept.append(second_run.keep(tmp_path / "capture.nsys-rep", folder, force=force))
    assert [path.name for path in kept] == ["a b.nsys-rep", "a b-2.nsys-rep", "a b.nsys-rep"]
    assert kept[0].read_text() == "3"


# -- what can not be -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        (["--nsys", "-"], {}, "standard input"),
        (["--nsys", "-c", "pass"], {"RANK": "1", "WORLD_SIZE": "2"}, "one rank of several"),
        (["--nsys", "-c", "pass"], {"NSYS_PROFILING_SESSION_ID": "7"}, "observes this run already"),
        (["--nsys", "--layers", "torch", "-c", "pass"], {}, "the layer nvtx"),
        (["--nsys", "--skip", "nvtx", "-c", "pass"], {}, "the layer nvtx"),
        (["--nsys-path", "/nowhere", "-c", "pass"], {}, "--nsys-path /nowhere: no nsys there"),
    ],
)
def test_where_there_can_be_no_second_run_one_line_says_so(
    run_profstack: RunProfstack,
    tmp_path: Path,
    words: list[str],
    variables: dict[str, str],
    said: str,
) -> None:
    done = run_profstack(["run", *words], env=variables)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert said in line
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A recording that holds next to nothing."""
    folder = tmp_path / "recording"
    (folder / "logs").mkdir(parents=True)
    record_nothing(folder, ["nvtx"], "a test")
    return folder


def prepared(words: tuple[str, ...] = ("script.py",)) -> NsysRun:
    options = argparse.Namespace(nsys=True, nsys_path=None, force=False)
    return NsysRun.prepared(options, Target(words), ["nvtx"], None)


def test_without_nsys_the_run_goes_on_and_is_told_what_to_install(
    recording: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tool, "_USUAL", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    again = prepared()
    said: list[str] = []
    again.announce(said.append)
    again.execute(recording, 0, {}, 1.0)
    [line] = said
    assert "the package nsight-systems" in line
    ((text,),) = rows(recording, "SELECT text FROM notes WHERE slug = 'nsys-run'")
    assert text in line


def test_without_nsys_the_layer_says_what_to_install(
    run_profstack: RunProfstack, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(PROGRAM, encoding="utf-8")
    words = ["run", "--nsys", "--layers", "nvtx", "-o", "recording", "script.py", "60"]
    # None on the path nor in the usual folders, as where it is not installed.
    code = f"""
import sys
from profstack.commands import main
from profstack.readers.nsys import tool
tool._USUAL = ()
sys.exit(main({words!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=clean_environment(PATH=str(tmp_path / "empty"), PYTHONPATH=str(CHECKOUT)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "recording" / "report.json").read_text(encoding="utf-8"))
    (layer,) = (row for row in report["layers"] if row["name"] == "nvtx")
    assert layer["status"] == "emitted"
    assert "the package nsight-systems" in layer["reason"]
    # It has data all the same: the terminal's last lines name it among those, and warn.
    assert "layers: nvtx" in done.stderr
    assert "warning: no run under Nsight Systems" in done.stderr
    shown = run_profstack(["show", "recording"]).stdout
    assert "the package nsight-systems" in " ".join(shown.split())


def pair(monkeypatch: pytest.MonkeyPatch, nvtx: str) -> None:
    """An nsys of 2022 and that nvtx."""
    old = tool.Nsys("/nsys", "2022.4.2.1-df9881f", None)
    monkeypatch.setattr(tool, "find_nsys", lambda given: old)
    monkeypatch.setattr("profstack.commands.run.package_version", {"nvtx": nvtx}.get)


def emitted(recording: Path, device: str) -> None:
    """Let the recording be of 30 steps on that device."""
    writer = Writer(recording)
    writer.replace("layers", [{"name": "nvtx", "status": "emitted"}])
    writer.facts({"environment": {"device": device}})
    writer.replace("steps", [{"step": step, "plan": 1} for step in range(30)])
    writer.close()


@pytest.mark.parametrize(
    ("nvtx", "device"), [("0.2.17", "cpu"), ("0.2.17", "cuda"), ("0.2.11", "cpu")]
)
def test_a_pair_that_does_not_work_is_started_for_a_device_alone(
    recording: Path, monkeypatch: pytest.MonkeyPatch, nvtx: str, device: str
) -> None:
    pair(monkeypatch, nvtx)
    emitted(recording, device)
    started = []

    def capture(*_: Any, **given: Any) -> second_run.NsysRun:
        started.append(given["on_device"])
        raise tool.NsysError("it was started")

    monkeypatch.setattr(second_run, "capture", capture)
    again = prepared()
    again.announce(lambda line: None)
    again.execute(recording, 0, {"targets": {"slice_steps": 3}}, 1.0)
    ((reason,),) = rows(recording, "SELECT reason FROM layers")
    if (nvtx, device) == ("0.2.17", "cpu"):
        assert started == []
        assert reason.startswith("no run under Nsight Systems, which has nothing to see: nsys 2022")
        assert reason.endswith("pip install nvtx==0.2.11")
    else:
        assert started == [device == "cuda"]
        assert "it was started" in reason


def test_a_pair_that_does_not_work_is_why_there_is_no_range(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = second_run.NsysRun(Path("x.nsys-rep"), 0, False, said="")
    facts = FirstRun(30, True, True, "")
    for nvtx in ("0.2.17", "0.2.11"):
        pair(monkeypatch, nvtx)
        emitted(recording, "cuda")
        prepared()._judge(recording, result, facts, 99, {"steps": 0})
        ((reason,),) = rows(recording, "SELECT reason FROM layers")
        assert reason.startswith("the run under Nsight Systems has no range of a step")
        assert reason.endswith("pip install nvtx==0.2.11") is (nvtx == "0.2.17")


def test_a_pair_that_does_not_work_is_said_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for version, nvtx, works in (
        ("2022.4.2.1-df9881f", "0.2.17", False),
        ("2022.4.2.1-df9881f", "0.2.11", True),
        ("2024.6.2.225-1", "0.2.17", True),
    ):
        found = tool.Nsys("/nsys", version, None)
        monkeypatch.setattr(tool, "find_nsys", lambda given, found=found: found)
        monkeypatch.setattr("profstack.commands.run.package_version", {"nvtx": nvtx}.get)
        said: list[str] = []
        prepared().announce(said.append)
        assert said == [] if works else "pip install nvtx==0.2.11" in said[0], said


@pytest.mark.parametrize(
    ("captured", "first", "steps", "texts"),
    [
        ((0, False), (30, True), 10, []),
        ((0, False), (0, True), 0, []),
        ((0, False), (30, True), 0, ["has no range of a step"]),
        ((0, False), (30, False), 0, ["has no range of a step: no nvtx here"]),
        (
            (143, True),
            (30, True),
            4,
            ["was ended after 99 s, before the steps it was for were over"],
        ),
        ((143, False), (0, True), 0, ["ended with exit code 143"]),
    ],
)
def test_what_a_capture_lacks_is_noted(
    recording: Path,
    monkeypatch: pytest.MonkeyPatch,
    captured: tuple[int, bool],
    first: tuple[int, bool],
    steps: int,
    texts: list[str],
) -> None:
    # Of a year whose nsys takes the ranges of every nvtx.
    monkeypatch.setattr(tool, "find_nsys", lambda given: tool.Nsys("/nsys", "2030.1", None))
    result = second_run.NsysRun(Path("x.nsys-rep"), *captured, said="killed")
    facts = FirstRun(first[0], False, first[1], "no nvtx here")
    prepared()._judge(recording, result, facts, 99, {"steps": steps})
    notes = rows(recording, "SELECT text FROM notes WHERE slug = 'nsys-run'")
    assert [text for (text,) in notes] == [f"the run under Nsight Systems {each}" for each in texts]


def test_a_script_that_failed_is_not_run_again(
    recording: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tool, "find_nsys", lambda given: tool.Nsys("/nsys", "2024.1", None))
    for code, word in ((3, "exit code 3"), (-9, "signal 9")):
        again = prepared()
        said: list[str] = []
        again.announce(said.append)
        again.execute(recording, code, {}, 1.0)
        assert word in said[-1]


def test_an_error_of_ours_in_the_second_run_is_a_note(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "find_nsys", lambda given: tool.Nsys("/nsys", "2024.1", None))
    again = prepared()
    said: list[str] = []
    again.announce(said.append)
    again.execute(recording, 0, {}, 1.0)
    ((text,),) = rows(recording, "SELECT text FROM notes WHERE slug = 'nsys-run'")
    assert text.startswith("the run under Nsight Systems came to nothing: KeyError")
    assert said[-1].startswith("profstack: the run under Nsight Systems came to nothing: KeyError")


# -- how many steps --------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 12, 22, 30, 100, 10**6])
@pytest.mark.parametrize("slice_steps", [1, 3, 40])
def test_the_capture_fits_into_the_script(steps: int, slice_steps: int) -> None:
    options = {"targets": {"slice_steps": slice_steps}, "layers": ["torch", "nvtx"], "whole": True}
    second = second_options(options, FirstRun(steps, False, True, ""))
    capture = second["capture"]
    assert second["layers"] == ["nvtx"]
    assert capture["warmup"] >= 1
    assert capture["steps"] >= 1
    if steps >= 4:
        assert 2 + capture["warmup"] + capture["steps"] <= steps
    if steps >= 60:
        assert capture == {"warmup": 10, "steps": max(10, slice_steps)}


def test_a_capture_is_one_slice_also_where_its_layer_is_not_there() -> None:
    for layers, kind in ((["nvtx"], "nvtx"), ([], "clean")):
        slices = list(capture_plan(layers, Targets(), warmup=4, steps=7))
        assert [each.kind for each in slices] == ["settle", kind, "watch"]
        assert [each.steps for each in slices[:2]] == [4, 7]


def test_what_the_first_run_tells(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    folder.mkdir()
    writer = Writer(folder)
    writer.facts({"environment": {"device": "cuda"}})
    writer.write(
        {
            "layers": [{"name": "nvtx", "status": "skipped", "reason": "not installed"}],
            "steps": [{"step": step, "plan": 1} for step in range(7)],
        }
    )
    assert FirstRun.read(folder) == FirstRun(7, True, False, "not installed")
    writer.facts({"plan_1": {"rule": "whole", "phase": "other"}})
    writer.close()
    assert FirstRun.read(folder).steps == 0


def test_a_wrong_path_of_nsys_is_the_users_to_mend(tmp_path: Path) -> None:
    options = argparse.Namespace(nsys=True, nsys_path=str(tmp_path), force=False)
    with pytest.raises(UsageError, match="no nsys there"):
        NsysRun.prepared(options, Target(("script.py",)), ["nvtx"], None)
    assert package_version("nvtx")
