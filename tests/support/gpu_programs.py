"""What the tests on a GPU share: when they are skipped, and reports of programs that use one."""

import json

import pytest
import torch

from tests.support.processes import run_python
from tests.support.recorded_runs import report_of

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


def program(steps=200, width=2048, early="pass", late="pass"):
    """The text of a training loop on the device."""
    text = _PROGRAM.replace("@width", str(width)).replace("@steps", str(steps))
    return text.replace("@early", early).replace("@late", late)


def python(folder, *arguments, **environment):
    """Standard output of a Python in `folder` that sees profstack; what failed is shown."""
    return run_python(*arguments, cwd=folder, env=environment, timeout=600).stdout


def reported_program(folder, text, *options):
    """The report of a program's text; "said" in it is the JSON that the program printed."""
    (folder / "program.py").write_text(text, encoding="utf-8")
    said = python(folder, "-m", "profstack", "run", "-q", "-o", "rec", *options, "program.py")
    return report_of(folder / "rec") | {"said": json.loads(said.strip().splitlines()[-1])}


def module(report, path):
    return next(row for row in report["tables"]["modules"] if row["path"] == path)
