"""Which line of the script a step's wait, or its reading of files, is said to be spent on."""

from __future__ import annotations

from typing import Any

from data_findings import completed

from profstack.findings.verdict import line_outside_work


def _report(*, in_modules: bool) -> dict[str, Any]:
    """A line that calls the model takes the most, and the one that asks for a batch nearly so."""
    lines = [
        {"file": "train.py", "line": 26, "own": True, "python_s": 0.5, "operator_s": 2.9},
        {"file": "train.py", "line": 35, "own": True, "python_s": 2.8, "operator_s": 0.0},
        {"file": "train.py", "line": 38, "own": True, "python_s": 0.6, "operator_s": 1.5},
    ]
    owned = [
        {**line, "module": "Net" if line["line"] != 35 else "(wait)"} for line in lines
    ]  # fmt: skip
    return completed({"tables": {"lines": lines, "module_lines": owned if in_modules else []}})


def test_the_line_that_asks_for_a_batch_is_told_though_the_models_takes_longer() -> None:
    line = line_outside_work(_report(in_modules=True), 0.4)
    assert line is not None
    assert line["line"] == 35


def test_no_line_is_told_that_takes_much_less_or_more_than_the_wait() -> None:
    assert line_outside_work(_report(in_modules=True), 0.9) is None
    assert line_outside_work(_report(in_modules=True), 0.1) is None
    # Without knowing whose the lines' time is none is told: the longest may be the model's.
    assert line_outside_work(_report(in_modules=False), 0.4) is None
