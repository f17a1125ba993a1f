"""What a loop does after the optimizer's step: what makes no input is no wait for a batch.

The loop's text is real, the times on its lines are made up; the whole program is run as users do.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from data_findings import completed
from finding_programs import had_no_core, run_script

from profstack.findings.data_loading import before_first_work
from profstack.findings.step_cut import after_step

TRAIN = "/app/train.py"
LOOP = """
import math
import torch

def measured(values):
    return sum(values)

hist = []
for x in source:
    loss = net(x).sum()
    loss.backward()
    optimizer.step()
    {after}
"""
STEP, AFTER, MEASURED = 12, 13, 6


def report_of(after: str, text: str = LOOP, inside_s: float = 0.0) -> dict[str, Any]:
    """A step in which 6 ms go by on the line after the optimizer's step, 2 ms on the loop's."""
    own = {"phase": "step", "file": TRAIN, "line": 5, "name": "measured", "own": True}
    figures = {"calls": 1.0, "self_s": 0.006, "total_s": 0.006, "calibrated_s": 0.006}
    rows = [
        ("(optimizer)", STEP, 0.001, 0.0),
        (None, STEP - 3, 0.002, 0.0),
        (None, AFTER, 0.0045, 0.0015),
        (None, MEASURED, inside_s, 0.0),
    ]
    lines = [
        {"module": module, "file": TRAIN, "line": line, "python_s": python, "operator_s": operator}
        for module, line, python, operator in rows
    ]
    return completed(
        {
            "sources": [{"file": TRAIN, "text": text.format(after=after)}],
            "tables": {
                "module_lines": lines,
                "lines": lines,
                "functions": [{**own, **figures}],
                "calls": [],
                "modules": [],
            },
        }
    )


@pytest.mark.parametrize(
    "after",
    [
        "hist.append(float(loss))",
        "p = torch.sigmoid(x).numpy(); hist.append(math.log(p.mean()))",
        "print(loss.item())",
        "total += loss.item()",
    ],
)
def test_what_no_step_reads_is_no_input(after: str) -> None:
    found = after_step(report_of(after))
    assert found is not None
    assert found.share == pytest.approx(6 / 8)
    assert found.outside_operators == pytest.approx(4.5 / 6)
    assert found.line["line"] == AFTER


@pytest.mark.parametrize(
    "after",
    [
        # What the next step works on, by its name or within what it has.
        "x = draw()",
        "source.append(draw())",
        "source[0] = draw()",
        "evaluate(net)",
    ],
)
def test_what_a_step_reads_may_be_its_input(after: str) -> None:
    assert after_step(report_of(after)) is None


def test_functions_that_are_called_there_count_with_their_lines() -> None:
    report = report_of("hist.append(measured(loss))", inside_s=0.008)
    found = after_step(report)
    assert found is not None
    assert found.share == pytest.approx(14 / 16)
    assert found.line["line"] == MEASURED
    # They do not make the batch either.
    assert before_first_work(report, 0.014, 1.0) == []
    (row,) = before_first_work(report_of("x = measured(loss)"), 0.014, 1.0)
    assert row.row["name"] == "measured"


def test_without_a_loop_round_the_step_or_its_text_nothing_is_told() -> None:
    assert after_step(report_of("hist.append(1)", LOOP.replace("for x in source", "if x"))) is None
    assert after_step(report_of("hist.append(1)") | {"sources": []}) is None
    report = report_of("hist.append(1)")
    del report["tables"]["module_lines"][0]
    assert after_step(report) is None


def test_what_stands_on_the_line_of_the_step_is_not_after_it() -> None:
    one_line = "y = net(x); y.backward(); optimizer.step(); hist.append(1)"
    report = report_of("", "\n" * (STEP - 2) + f"for x in source:\n    {one_line}\n")
    assert report["sources"][0]["text"].splitlines()[STEP - 1].strip() == one_line
    report["tables"]["module_lines"].append(
        {"module": None, "file": TRAIN, "line": STEP, "python_s": 0.01, "operator_s": 0.0}
    )
    assert after_step(report) is None


METRICS = '''\
"""A training that works out a measure of its own by NumPy in each step, once it is made."""

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(32, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
history = []
for _ in range(150):
    x = torch.randn(32, 32)
    out = net(x)
    optimizer.zero_grad()
    out.square().mean().backward()
    optimizer.step()
    scores = out.detach().numpy().repeat(400)
    history.append(float(np.median(np.sort(scores))))
'''


@pytest.mark.timed
@pytest.mark.slow
def test_a_measure_after_the_step_is_python_and_no_wait_for_a_batch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(METRICS))
    report = run_script(tmp_path, "train.py", "torch,cprofile")
    if had_no_core(report):
        pytest.skip("other work had the cores: what the step waited for is not told from that")
    verdict = report["verdict"]
    assert verdict["slug"] == "python-bound"
    assert "most of it after the optimizer's step (train.py:18)" in verdict["sentence"]
    parts = {part["name"]: part["share"] for part in report["step_bar"]["parts"]}
    assert parts["Python"] > 0.5
    # A preempted call may take a quarter of so short a step; the measure takes more than half.
    assert parts.get("before first work", 0.0) < 0.4
