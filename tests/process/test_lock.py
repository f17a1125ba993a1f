"""`profstack lock` and `profstack check` on a script that is changed."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from profstack.lock.lockfile import Lock, text_of
from tests.support.processes import clean_environment
from tests.support.recorded_runs import SGD

SCRIPT = f"""
import torch
from torch import nn
{SGD}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 2)

    def forward(self, x):
        return self.last(self.first(x).relu())

def augment(x):
    return x * 2

model = Net()
optimizer = SGD(model.parameters(), lr=0.1)
for step in range(40):
    inputs = augment(torch.ones(12, 8))
    loss = model(inputs).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def profstack(folder, *arguments):
    command = [sys.executable, "-m", "profstack", *arguments]
    options = {"cwd": folder, "env": clean_environment(), "capture_output": True, "text": True}
    return subprocess.run(command, check=False, **options)


def test_a_check_names_the_changed_line_alone(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    locked = profstack(tmp_path, "lock", "--runs", "2", "train.py")
    assert (locked.returncode, locked.stdout) == (0, "Wrote profstack.lock\n")
    text = (tmp_path / "profstack.lock").read_text()
    assert str(tmp_path) not in text
    # 12 samples: 2 x 12 x (8 x 16 + 16 x 2).
    lines = text.splitlines()
    for line in ("parameters = 178", "forward_flop = 3840", 'inputs = "12x8"'):
        assert line in lines
    assert '"train.py::augment" = 1' in lines
    script.write_text(SCRIPT.replace("optimizer.step()", "optimizer.step(); loss.item()"))
    differs = profstack(tmp_path, "check", "--annotations", "github", "train.py")
    line = 1 + script.read_text().splitlines().index("    optimizer.step(); loss.item()")
    assert differs.returncode == 1
    assert differs.stderr.count("::error ") == 1
    assert f"1 more synchronisation a step on an accelerator, train.py:{line}" in differs.stdout
    assert f"::error file=train.py,line={line},title=profstack%3A train.py" in differs.stderr
    files = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert files == ["profstack.lock", "train.py"]


# It starts a process, says so, and waits; neither ends by itself.
WAITS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
with open("started.tmp", "w") as file:
    file.write(str(child.pid))
os.rename("started.tmp", "started")
time.sleep(100)
"""


@pytest.mark.parametrize("command", ["lock", "check"])
def test_a_signal_ends_the_script_with_what_it_started(tmp_path, command):
    (tmp_path / "train.py").write_text(WAITS)
    (tmp_path / "tmp").mkdir()
    lock = Lock({"script": "train.py", "warmup": 1, "steps": 1}, {}, {})
    (tmp_path / "profstack.lock").write_text(text_of(lock))
    words = [sys.executable, "-m", "profstack", command, "train.py"]
    environment = clean_environment(TMPDIR=str(tmp_path / "tmp"))
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    started = tmp_path / "started"
    try:
        until = time.monotonic() + 120
        while not started.is_file() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        [script] = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
    assert not script.is_running()
    with pytest.raises(psutil.NoSuchProcess):
        # A zombie may be left where nobody takes it.
        psutil.Process(int(started.read_text())).exe()
    assert list((tmp_path / "tmp").glob("profstack-lock-*")) == []
