"""What findings share: extents of functions, loops by their text, one time told twice, limits."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from data_findings import completed
from data_full_report import full
from data_recording import Run

from profstack.findings.judge import FAMILIES, link_overlaps
from profstack.findings.reading import (
    CallGraph,
    FunctionKey,
    bounded,
    drop_unkeyed,
    finding,
)
from profstack.findings.rules import RULES
from profstack.findings.synchronization import calls_the_model, has_carried_name
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import Finding, Place

FILE = "/app/train.py"
TEXT = """import torch


@torch.no_grad()
def make(index):
    values = []
    def inner():
        return 1
    return values


def main():
    for _ in range(9):
        make(1)
        loss.backward()
"""


def line(number: int, **figures: Any) -> dict[str, Any]:
    """A row of the lines."""
    row = {"file": FILE, "line": number, "python_s": 0.1, "operator_s": 0.0, "reason": None}
    return row | {"own": True, "calls": 1.0, "source": ""} | figures


def report_of(*lines: dict[str, Any], **tables: list[dict[str, Any]]) -> dict[str, Any]:
    """A report of these lines, in which cProfile saw `make` alone."""
    function = {"phase": "step", "file": FILE, "line": 4, "name": "make", "own": True}
    empty = {"functions": [function], "calls": [], "module_lines": [], "modules": []}
    return completed(
        {
            "sources": [{"file": FILE, "text": TEXT}],
            "tables": {**empty, "lines": list(lines), **tables},
        }
    )


# -- extents -------------------------------------------------------------------------------------

MAKE = FunctionKey(FILE, 4, "make")


def at(number: int) -> Place:
    """A line of the file."""
    return {"file": FILE, "line": number}


def test_a_line_of_the_loop_is_not_of_the_function_above_it() -> None:
    report = report_of(line(6), line(8), line(14, python_s=0.7))
    graph = CallGraph(report)
    assert graph.function_around(at(6)) == MAKE
    assert graph.function_around(at(14)) is None
    assert graph.function_around(at(2)) is None
    assert [row["line"] for row in graph.lines_of(MAKE)] == [6]
    heaviest = graph.heaviest_line(MAKE)
    assert heaviest is not None
    assert heaviest["line"] == 6


def test_a_file_whose_text_is_not_known_has_no_extents() -> None:
    report = report_of(line(6), line(14))
    for sources in ([], [{"file": FILE, "text": None}], [{"file": FILE, "text": "def ("}]):
        report["sources"] = sources
        assert CallGraph(report).span_around((FILE, 6)) is None
        assert CallGraph(report).function_around(at(6)) is None
        assert len(CallGraph(report).lines_of(MAKE)) == 2


# -- loops ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "carried"),
    [
        (["pred = net(x[i])", "total = total + loss(pred)"], False),
        (["total += net(x[i])"], False),
        (["total += net(total)"], True),
        (["total = total + 1", "y = net(total)"], True),
        (["h, c = cell(x[t], (h, c))"], True),
        (["logits = net(s); a = draw(logits)", "s, r = step(a)"], True),
        (["a = net(x)", "b = net(a)"], False),
        (["for x in xs:", "    y = net(x)"], False),
        (["count += 1  # count is read nowhere"], False),
    ],
)
def test_what_a_loop_carries_is_read_from_its_text(texts: list[str], carried: bool) -> None:
    rows = [line(number, source=text) for number, text in enumerate(texts)]
    assert has_carried_name(rows) is carried


def test_a_loop_calls_the_model_where_that_is_called_as_often() -> None:
    modules = [{"path": "Net", "depth": 0, "calls": 20.0}, {"path": "(loss)", "depth": 0}]
    report = report_of(modules=[{"calls": None, **row} for row in modules])
    assert calls_the_model(report, line(3, calls=20.0))
    assert not calls_the_model(report, line(3, calls=256.0))
    assert calls_the_model(report, line(3, calls=None))
    # A line that runs once beside a model that does may hold a loop of its own.
    report["tables"]["modules"][0]["calls"] = 1.0
    assert not calls_the_model(report, line(3, calls=1.0))


# -- one time, told twice ------------------------------------------------------------------------


def told(slug: str, *evidence: dict[str, Any], gain_s: float = 1.0, **where: Any) -> Finding:
    """A finding at a place."""
    (rule,) = (each for each in RULES if each.slug == slug)
    fields: dict[str, Any] = {"evidence": evidence, "advice": "Mend it."}
    return finding(rule, slug, severity="high", gain_s=gain_s, **fields, **where)


def others(findings: list[Finding]) -> list[list[str]]:
    return [
        [row["same_time_as"] for row in each["evidence"] if "same_time_as" in row]
        for each in findings
    ]


def test_a_hot_spot_in_the_data_set_says_that_it_is_the_same_time() -> None:
    made = {"function": "make", "file": FILE, "line": 4}
    pair = [told("python-hot-spot", made), told("data-starved", {"wait_s": 1.0}, made)]
    link_overlaps(pair, report_of())
    assert others(pair) == [["data-starved"], ["python-hot-spot"]]
    assert pair[0]["evidence"][-1]["link"] == "overview/data-starved"
    assert "gains do not add up" in pair[1]["advice"]


def test_lines_and_modules_are_the_same_time_where_they_meet() -> None:
    hot = told("python-hot-spot", {"function": "make", "file": FILE, "line": 4})
    asks = told("forced-synchronisation", place=at(6))
    elsewhere = told("forced-synchronisation", place=at(14))
    small = told("small-operators", module="Net.heads")
    module = told("module-dominates", module="Net.heads")
    report = report_of(module_lines=[{"file": FILE, "line": 6, "module": "Net.heads.0"}])
    findings = [hot, asks, elsewhere, small, module]
    link_overlaps(findings, report)
    first, second, third, fourth, fifth = map(set, others(findings))
    assert {"forced-synchronisation", "small-operators", "module-dominates"} == first
    assert {"python-hot-spot", "small-operators", "module-dominates"} == second
    assert third == set()
    assert fourth == {"python-hot-spot", "forced-synchronisation", "module-dominates"}
    assert fifth == {"python-hot-spot", "forced-synchronisation", "small-operators"}


def test_an_optimizer_and_a_hot_spot_share_nothing() -> None:
    pair = [
        told("python-hot-spot", {"function": "make", "file": FILE, "line": 4}),
        told("unfused-optimizer", module="(optimizer)"),
    ]
    link_overlaps(pair, report_of())
    assert others(pair) == [[], []]


# -- limits --------------------------------------------------------------------------------------


def test_no_gain_is_more_than_the_step_or_no_number() -> None:
    assert bounded(told("python-hot-spot", gain_s=3.0), 2.0)["gain_s"] == 2.0
    assert bounded(told("python-hot-spot", gain_s=1.0), 2.0)["gain_s"] == 1.0
    none = bounded(told("python-hot-spot", gain_s=math.nan), 2.0)
    assert (none["gain_s"], none["gain_is"]) == (None, None)
    assert none["gain_reason"]


def columns(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, key) for name, rows in report["tables"].items() if rows for key in rows[0]]


def test_no_family_falls_over_what_a_recording_lacks(tmp_path: Path) -> None:
    made = Run(tmp_path / "rec")
    made.clean(20)
    made.writer.close()
    recorded, whole = Recorded(tmp_path / "rec"), completed(full())
    whole["findings"] = []
    text = json.dumps(whole)
    reports = []
    for name, key in columns(whole):
        report = json.loads(text)
        for row in report["tables"][name]:
            row[key] = None
        reports.append(((name, key), report))
    for name in whole["tables"]:
        report = copy.copy(whole)
        report["tables"] = {**whole["tables"], name: []}
        reports.append(((name, "all rows"), report))
    for name in ("attribution", "roofline"):
        reports.append(((name, "all of it"), {**whole, name: None}))
    for without, report in reports:
        read = drop_unkeyed(report)
        for family in FAMILIES:
            for each in family(recorded, read):
                assert each["gain_s"] is not None or each["gain_reason"], without
