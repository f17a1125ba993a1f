"""Source lines and functions in the report: whose they are, and figures per step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_recording import CPROFILE_S, TORCH_S, Run, by, function

from profstack.ownfiles import FACT

PLACES = {
    "roots": ["/home/u/app/"],
    "libraries": ["/opt/python/lib/python3.11/"],
    "profstack": ["/opt/python/lib/python3.11/site-packages/profstack/"],
    "working": "/home/u/",
    "text": False,
    "sep": "/",
}
TRAIN = "/home/u/app/train.py"
TORCH = "/opt/python/lib/python3.11/site-packages/torch/nn/modules/linear.py"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A recording that tells where the script lies."""
    made = Run(tmp_path / "rec")
    made.writer.facts({FACT: PLACES})
    return made


def line(number: int, file: str = TRAIN, **values: Any) -> dict[str, Any]:
    """A record of `lines`."""
    times = {"python_s": 0.003, "operator_s": 0.006, "backward_s": 0.0}
    return {"file": file, "line": number, "source": "x", "calls": 3, **times, **values}


def test_the_users_lines_come_first_with_figures_per_step(run: Run) -> None:
    rows = [
        line(2, "/elsewhere/lib.py"),
        line(9, backward_s=0.0045, device_s=0.03),
        line(5, calls=None, reason="it ran too often"),
    ]
    run.clean()
    run.torch([TORCH_S] * 3, mode="lines", frames={"lines": rows})
    run.torch([TORCH_S] * 3, mode="lines", frames={"lines": [line(5), line(9)]})
    run.layers(torch="recorded")
    report = run.finish()
    lines = report["tables"]["lines"]
    assert [(row["line"], row["own"]) for row in lines] == [(5, True), (9, True), (2, False)]
    found = by(lines, "line")
    assert found[9]["operator_s"] == pytest.approx(0.002)
    assert found[9]["backward_s"] == pytest.approx(0.00075)
    assert found[9]["device_s"] == pytest.approx(0.005)
    assert (found[9]["reason"], found[2]["device_s"]) == (None, None)
    # A count that one slice gave up is no count, and the row says so.
    assert (found[5]["calls"], found[5]["reason"]) == (None, "it ran too often")
    assert report["cells_reason"]["lines.reason"] == "its figures are whole"


def functions(run: Run) -> list[dict[str, Any]]:
    """A slice in which the user's function, a library's and a built-in one ran."""
    rows = [
        function("step", 3, 0.001, file=TRAIN, total_s=0.01),
        function("forward", 3, 0.006, file=TORCH, total_s=0.006),
        function("<built-in method torch.mm>", 3, 0.003, file="~", line=0, total_s=0.003),
    ]
    run.clean()
    run.cprofile([CPROFILE_S] * 3, frames={"functions": rows})
    run.layers(cprofile="recorded")
    return run.finish()["tables"]["functions"]


def test_functions_say_whose_they_are(run: Run) -> None:
    assert [(row["name"], row["own"], row["package"]) for row in functions(run)] == [
        ("forward", False, "torch"),
        ("<built-in method torch.mm>", False, "(built-in)"),
        ("step", True, "(own files)"),
    ]


def test_a_recording_that_does_not_tell_leaves_it_open(tmp_path: Path) -> None:
    run = Run(tmp_path / "rec")
    run.torch([TORCH_S] * 3, mode="lines", frames={"lines": [line(5)]})
    rows = functions(run)
    assert {(row["own"], row["package"]) for row in rows} == {(None, None)}


def test_why_it_is_open(tmp_path: Path) -> None:
    run = Run(tmp_path / "rec")
    run.torch([TORCH_S] * 3, mode="lines", frames={"lines": [line(5)]})
    run.layers(torch="recorded")
    report = run.finish()
    assert report["tables"]["lines"][0]["own"] is None
    assert "where the script's files lie" in report["columns_reason"]["lines.own"]
