"""What the tests on a GPU share: when they are skipped, and reports of programs that use one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.processes import run_python

NEEDS_GPU = [pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
# A training loop on the device; `@early` runs at the begin of each step, `@late` after forward.
_PROGRAM = """
import json
import time
import torch
from torch import nn
from torch.nn.functional import mse_loss
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(@width, @width)
        self.out = nn.Linear(@width, @width)
    def forward(self, x):
        return self.out(torch.relu(self.wide(x)))
model = Net().cuda()
x = torch.randn(@width, @width, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
for step in range(@steps):
    @early
    optimizer.zero_grad()
    loss = mse_loss(model(x), x)
    @late
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
print(json.dumps({"peak": torch.cuda.max_memory_allocated(), "loss": loss.item()}))
"""


def program(steps: int = 200, width: int = 2048, early: str = "pass", late: str = "pass") -> str:
    """The text of a training loop on the device."""
    text = _PROGRAM.replace("@width", str(width)).replace("@steps", str(steps))
    return text.replace("@early", early).replace("@late", late)


def python(folder: Path, *arguments: str, **environment: str) -> str:
    """Standard output of a Python in `folder` that sees profstack; what failed is shown."""
    return run_python(*arguments, cwd=folder, env=environment, timeout=600).stdout


def reported_program(folder: Path, text: str, *options: str) -> dict[str, Any]:
    """The report of a program's text; "said" in it is the JSON that the program printed."""
    (folder / "program.py").write_text(text, encoding="utf-8")
    said = python(folder, "-m", "profstack", "run", "-q", "-o", "rec", *options, "program.py")
    report: dict[str, Any] = json.loads((folder / "rec" / "report.json").read_text("utf-8"))
    return {**report, "said": json.loads(said.strip().splitlines()[-1])}


def module(report: dict[str, Any], path: str) -> dict[str, Any]:
    """The row of a module."""
    row: dict[str, Any] = next(row for row in report["tables"]["modules"] if row["path"] == path)
    return row
