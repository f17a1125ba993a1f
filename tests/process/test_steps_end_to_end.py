"""What a user gets of a run: layers, steps and a page, however the script ends."""

import os
import shlex
import signal
import subprocess
import sys
import time
from statistics import median

import pytest

from tests.support.processes import clean_environment, run_python
from tests.support.recorded_runs import SGD, SHORT_PLAN, TRAIN, report_of, steps_in

LAYERS = {"cprofile": "functions", "torch": "operators"}
FEW = ("--layers", "cprofile,torch")


def check_layers(report):
    """Both layers have data."""
    status = {row["name"]: row["status"] for row in report["layers"]}
    found = {name: (status[name], bool(report["tables"][LAYERS[name]])) for name in LAYERS}
    assert found == dict.fromkeys(LAYERS, ("recorded", True))


def test_a_training_has_data_of_every_layer_and_standard_output_is_its_own(recorded_run):
    run = recorded_run("train")
    assert run.code == 0
    report = run.report
    rule = report["step"]["rule"]
    assert (report["status"], rule, steps_in(report)) == ("complete", "optimizer", 40)
    assert {row["status"] for row in report["layers"]} <= {"recorded", "emitted"}
    check_layers(report)
    steps = [f"step {number}" for number in range(1, 41)]
    assert run.stdout.splitlines() == [*steps, "finally 40", "atexit"]
    first, *_, last = run.stderr.splitlines()
    assert (first, last) == ("profstack: steps by Optimizer.step (train)", "Wrote rec/report.html")
    # -q leaves the last line alone, beside the script's own.
    quiet = recorded_run("error").stderr
    assert "profstack" not in quiet.replace(str(recorded_run("error").folder), "")
    assert quiet.endswith("ZeroDivisionError: division by zero\nWrote rec/report.html\n")


def test_secrets_are_in_no_file_and_without_source_no_line_of_the_script(recorded_run):
    def holding(name, words):
        folder = recorded_run(name).recording
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)) for path in paths if words in path.read_bytes()}

    assert holding("train", b"hunter2") == set()
    assert recorded_run("train").report["argv"][-2:] == ["--token", "***"]
    words = b"model(torch.randn(4, 8)).pow(2)"
    assert holding("train", words) >= {"recording.sqlite", "report.json", "memory/lines.txt"}
    assert holding("error", words) == set()
    report = recorded_run("error").report
    assert [line for line in report["tables"]["lines"] if line["python_s"]]
    [source] = report["sources"]
    assert (source["text"], bool(source["reason"])) == (None, True)


def test_a_script_without_steps_is_measured_whole(recorded_run):
    run = recorded_run("whole")
    assert (run.code, run.stdout, run.report["step"]["rule"]) == (0, f"{50 * 32.0**3}\n", "whole")
    check_layers(run.report)
    assert "work" in {row["name"] for row in run.report["tables"]["functions"]}
    products = [row for row in run.report["tables"]["operators"] if row["name"] == "aten::matmul"]
    assert sum(row["calls"] for row in products) == 50


def test_however_a_script_ends_there_is_a_report_of_what_was_seen(recorded_run):
    run = recorded_run("max_steps")
    assert run.code == 0, run.stderr
    # As an exit would end it.
    assert (run.stdout.splitlines()[-2:], steps_in(run.report)) == (["finally 11", "atexit"], 12)
    assert (run.report["run"]["stopped_by"], run.report["run"]["exit_code"]) == ("max_steps", 0)
    run = recorded_run("error")
    report = run.report
    assert (run.code, report["run"]["exit_code"], steps_in(report)) == (1, 1, 20)
    assert report["status"] == "partial"
    assert "ZeroDivisionError" in report["status_reason"]
    check_layers(report)
    run = recorded_run("killed")
    assert run.code == 128 + 9, run.stderr
    assert (run.report["run"]["signal"], run.report["status"]) == (9, "partial")
    assert 0 < steps_in(run.report) <= 40


def start(folder, *command):
    """A command left running in a session of its own, once a few steps are done."""
    (folder / "train.py").write_text(TRAIN)
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    how = {"cwd": folder, "env": clean_environment(), "text": True, "start_new_session": True}
    run = subprocess.Popen(command, **how, **streams)
    assert any(line.startswith("step 15") for line in run.stdout)
    return run


PROFSTACK = (sys.executable, "-m", "profstack", "run", "-o", "rec", *FEW, "train.py")


PAUSES = f"""\
import time
import torch
from torch.utils.data import DataLoader, Dataset
{SGD}
class Items(Dataset):
    __len__ = lambda self: 80
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.ones(8)
def log(loss):
    time.sleep(0.006)
model = torch.nn.Linear(8, 8)
optimizer = SGD(model.parameters(), lr=0.01)
for x in DataLoader(Items(), batch_size=None):
    time.sleep(0.002)
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    log(loss)
"""


def test_clean_steps_tell_the_loader_from_what_comes_after_the_step_and_before_the_model(tmp_path):
    (tmp_path / "pauses.py").write_text(PAUSES, encoding="utf-8")
    words = ("-m", "profstack", "run", "-q", "-o", "rec", "--layers", "torch,cprofile", *SHORT_PLAN)
    run_python(*words, "pauses.py", cwd=tmp_path)
    report = report_of(tmp_path / "rec")
    counted = set(report["benchmark"]["counted_steps"])
    steps = [row for row in report["tables"]["steps"] if row["index"] in counted]
    names = ("wait_s", "before_loader_s", "loader_s")
    wait, after, loader = (median(row[name] for row in steps) for name in names)
    # A sleep is not shorter than it says; on a busy machine it is longer.
    assert 0.006 <= after < 0.018
    assert 0.004 <= loader < 0.012
    assert after + loader + 0.002 <= wait
    parts = {part["name"]: part["seconds"] for part in report["step_bar"]["parts"]}
    assert parts["data wait"] == pytest.approx(loader, rel=0.4)
    # The thread is idle in a sleep: that part is told as such.
    assert parts["idle"] + parts.get("after the step", 0.0) >= after


GUIDED = """\
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(64, 64)
    def forward(self, x, label):
        return self.inner(x) + label
net = Net().eval()
with torch.inference_mode():
    x = torch.randn(64, 64)
    for _ in range(60):
        with_label = net(x, torch.ones(1))
        without = net(x, torch.zeros(1))
        x = without + 1.0 * (with_label - without)
"""


def test_a_model_that_is_called_twice_on_its_input_is_noted(tmp_path):
    (tmp_path / "guided.py").write_text(GUIDED, encoding="utf-8")
    words = ("-m", "profstack", "run", "-q", "-o", "rec", *SHORT_PLAN, "guided.py")
    run_python(*words, cwd=tmp_path)
    noted = report_of(tmp_path / "rec")["setup"]["repeated"]
    assert (noted["module"], noted["on_all_the_same"]) == ("Net", 0)
    assert 0 < noted["on_same_input"] < noted["calls"]
    assert (noted["first"]["line"], noted["again"]["line"]) == (12, 13)


FROZEN = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
        self.texts, self.head = nn.Linear(256, 64).requires_grad_(False), nn.Linear(256, 64)
    def forward(self, x, words):
        return self.head(self.body(x)) @ self.texts(words).T
net, words = Net().double(), torch.randn(512, 256).double()
optimizer = torch.optim.SGD(net.head.parameters(), lr=0.01)
for _ in range(60):
    optimizer.zero_grad()
    net(torch.randn(128, 256).double(), words).square().mean().backward()
    optimizer.step()
"""


def test_unused_gradients_constant_parts_and_float64_are_found(tmp_path):
    (tmp_path / "frozen.py").write_text(FROZEN, encoding="utf-8")
    run_python("-m", "profstack", "run", "-q", "-o", "rec", "frozen.py", cwd=tmp_path)
    report = report_of(tmp_path / "rec")
    parts = report["setup"]["unused_gradients"]["modules"]
    assert [(part["module"], part["after_trained"]) for part in parts] == [("Net.body", False)]
    assert [part["module"] for part in report["setup"]["constant"]] == ["Net.texts"]
    found = {each["slug"]: (each["line"], each["module"]) for each in report["findings"]}
    assert found["unused-gradients"] == (11, "Net.body")
    assert found["double-precision"] == (10, None)


def test_ctrl_c_ends_the_script_and_a_shells_loop_too(tmp_path):
    # As from a terminal the signal goes to all; Python ends as by the signal itself: only then
    # does a shell end its loop.
    loop = f"for i in 1 2; do {shlex.join(PROFSTACK)} -1 -1 '' 0.02; done"
    shell = start(tmp_path, "bash", "-c", loop)
    os.killpg(shell.pid, signal.SIGINT)
    output, errors = shell.communicate(timeout=120)
    assert "step 1\n" not in output
    assert (output.count("finally"), errors.count("\nKeyboardInterrupt\n")) == (1, 1)
    assert "Wrote rec" in errors
    assert shell.returncode == -signal.SIGINT
    report = report_of(tmp_path / "rec")
    assert (report["run"]["signal"], report["run"]["exit_code"]) == (signal.SIGINT, None)
    assert report["status"] != "complete"
    assert steps_in(report) > 0


def test_the_script_outlives_a_killed_parent(tmp_path):
    run = start(tmp_path, *PROFSTACK, "60", "60", "open('ended', 'w').close()", "0.02")
    run.kill()
    assert run.wait(timeout=60) == -signal.SIGKILL
    deadline = time.monotonic() + 120
    while not (tmp_path / "ended").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (tmp_path / "ended").exists()
    assert (tmp_path / "rec" / "recording.sqlite").exists()
