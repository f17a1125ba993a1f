"""`profstack run --rerun`: layers that stayed empty are filled by a second run of the script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import RunProfstack

# Too short for every layer to have its turn; each start of the script leaves a line.
SCRIPT = """
import os, signal, sys, torch
with open("starts.txt", "a") as file:
    file.write("start\\n")
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
if "signal" in sys.argv:
    os.kill(os.getpid(), signal.SIGTERM)
sys.exit(3)
"""


def starts_and_report(
    tmp_path: Path, run_profstack: RunProfstack, *words: str
) -> tuple[int, int, dict[str, Any]]:
    """How often the script was started, the exit code of profstack, and the report."""
    (tmp_path / "short.py").write_text(SCRIPT)
    done = run_profstack(["run", "-q", "-o", "rec", "--rerun", "short.py", *words])
    report: dict[str, Any] = json.loads((tmp_path / "rec" / "report.json").read_text())
    starts = len((tmp_path / "starts.txt").read_text().splitlines())
    return starts, done.returncode, report


def empty_layers(report: dict[str, Any]) -> set[str]:
    """Names of the layers that had no slice."""
    return {each["name"] for each in report["layers"] if each["status"] == "empty"}


@pytest.mark.slow
def test_a_second_run_fills_the_layers_that_stayed_empty(
    tmp_path: Path, run_profstack: RunProfstack
) -> None:
    starts, code, report = starts_and_report(tmp_path, run_profstack)
    assert (starts, code) == (2, 3)
    texts = " ".join(each["text"] for each in report["warnings"] if each["slug"] == "rerun")
    assert "layer cprofile was filled" in texts
    assert "layer torch was filled" in texts
    assert empty_layers(report).isdisjoint({"cprofile", "torch"})
    assert any(row["file"].endswith("sgd.py") for row in report["tables"]["functions"])
    assert report["run"]["exit_code"] == 3


@pytest.mark.slow
def test_a_script_that_a_signal_ended_is_not_started_again(
    tmp_path: Path, run_profstack: RunProfstack
) -> None:
    starts, code, report = starts_and_report(tmp_path, run_profstack, "signal")
    assert (starts, code) == (1, 128 + 15)
    assert report["run"]["signal"] == 15
    assert {"cprofile", "torch"} <= empty_layers(report)
