"""Source lines and functions in the report: whose they are, and figures per step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_recording import CPROFILE_S, TORCH_S, Run, by, function

from profstack.code_owner import FACT
from profstack.storage.vocabulary import OPTIMIZER

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


def test_lines_stand_by_module_and_add_up(run: Run) -> None:
    def part(module: int | None, calls: int | None, operator_s: float) -> dict[str, Any]:
        times = {"python_s": 0.0, "operator_s": operator_s, "backward_s": 0.0}
        return {"file": TRAIN, "line": 5, "module_id": module, "calls": calls, **times}

    run.clean()
    parts = [part(None, 3, 0.003), part(2, 0, 0.0045), part(OPTIMIZER, 0, 0.0015)]
    frames = {"lines": [line(5, operator_s=0.009)], "module_lines": parts}
    run.torch([TORCH_S] * 3, mode="lines", frames=frames)
    run.writer.replace("modules", [{"module_id": 2, "path": "Net.fc", "instance": 1}])
    run.layers(torch="recorded")
    report = run.finish()
    rows = by(report["tables"]["module_lines"], "module")
    assert set(rows) == {None, "Net.fc", "(optimizer)"}
    assert rows["Net.fc"]["operator_s"] == pytest.approx(0.0015)
    assert rows[None]["calls"] == pytest.approx(1.0)
    assert rows["(optimizer)"]["device_s"] is None
    whole = sum(row["operator_s"] for row in report["tables"]["module_lines"])
    [row] = report["tables"]["lines"]
    assert whole == pytest.approx(row["operator_s"])


def test_the_first_text_of_a_file_is_told_and_why_there_is_none(run: Run) -> None:
    def text(file: str, content: str | None, reason: str | None = None) -> dict[str, Any]:
        return {"file": file, "text": content, "bytes": 9, "reason": reason}

    run.clean()
    big = text("/home/u/app/big.py", None, "it has more than 200 kB")
    for rows in ([text(TRAIN, "x = 1\n"), big], [text(TRAIN, "x = 2\n"), big]):
        run.torch([TORCH_S] * 3, mode="lines", frames={"lines": [line(1)], "source_files": rows})
    run.layers(torch="recorded")
    told = run.finish()["sources"]
    assert [(row["text"], row["reason"]) for row in told] == [
        ("x = 1\n", None), (None, "it has more than 200 kB")
    ]  # fmt: skip
    assert told[0]["file"] == TRAIN
