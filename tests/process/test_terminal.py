"""A run in a terminal: colours, and the script's own words, which stay."""

import os
import pty
import re
import subprocess
import sys

from tests.support.processes import clean_environment
from tests.support.recorded_runs import SGD, report_of

SCRIPT = f"""
import time
import torch
{SGD}print("Overwrite? ", end="", flush=True)
time.sleep(0.6)
print("yes", flush=True)
model = torch.nn.Linear(16, 4)
optimizer = SGD(model.parameters(), lr=0.01)
for step in range(40):
    time.sleep(0.03)
    optimizer.zero_grad()
    model(torch.randn(8, 16)).pow(2).mean().backward()
    optimizer.step()
print("no end", end="")
"""


def on_a_terminal(folder, *words):
    """What a command writes to a terminal of 80 columns, with and without its colours."""
    ours, theirs = pty.openpty()
    environment = clean_environment(TERM="xterm", COLUMNS="80")
    environment.pop("NO_COLOR", None)
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    command = [sys.executable, "-m", "profstack", *words]
    with subprocess.Popen(command, cwd=folder, env=environment, **ends) as child:
        os.close(theirs)
        pieces = []
        # A closed other end is an error on Linux.
        try:
            while piece := os.read(ours, 65_536):
                pieces.append(piece)
        except OSError:
            pass
        assert child.wait(timeout=300) == 0
    os.close(ours)
    printed = b"".join(pieces).decode("utf-8").replace("\r\n", "\n")
    return printed, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)


def test_a_run_in_a_terminal_ends_readably(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("run", "--layers", "torch,cprofile", "-o", "rec", "train.py")
    printed, bare = on_a_terminal(tmp_path, *words)
    assert "\x1b[" in printed
    # What the script writes stays: neither is it written over nor gone on with.
    assert printed.startswith("Overwrite? yes\n")
    _, ours = printed.split("no end")
    assert ours.startswith("\n")
    lines = [line.rpartition("\r")[2].rstrip() for line in bare.splitlines()]
    assert lines[-1] == "Wrote rec/report.html"
    sentence = f"verdict: {report_of(tmp_path / 'rec')['verdict']['sentence']}"
    assert sentence in " ".join(" ".join(lines).split())
