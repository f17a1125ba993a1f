"""A finding's form, and what all rules read from a report."""

import pytest

from profstack.findings import reading
from profstack.findings.reading import CallGraph, FunctionKey, key_of
from profstack.findings.rules import MEMORY_GROWTH
from tests.support import findings as made
from tests.support.findings import MS, TRACED_S, TRAIN, built_in, call, function, line, report_of
from tests.support.tables import of


def told(**changes):
    fields = {"severity": "low", "evidence": [], "advice": "Mend it.", "gain_s": 0.3}
    return reading.finding(MEMORY_GROWTH, "Title", **fields | changes)


def gain(finding):
    return of(finding, "gain_s gain_is gain_reason")


def test_a_finding_has_its_rules_slug_its_place_and_a_gain_or_a_reason_why_not():
    rows = [{"a": 1.0}]
    found = told(evidence=rows, layers=["torch", "cprofile", "torch"], module="Net", place=line(7))
    expected = ["memory-growth", ["cprofile", "torch"], TRAIN, 7, "Net", rows]
    assert of(found, "slug layers file line module evidence") == expected
    assert found["evidence"][0] is not rows[0]
    assert of(told(), "file line") == [None, None]
    known = told(gain_s=0.0, gain_is="measured", gain_reason="not needed")
    unknown = told(gain_s=None, gain_is="measured", gain_reason="why")
    found = [*map(gain, (known, unknown, told()))]
    assert found == [[0.0, "measured", None], [None, None, "why"], [0.3, "estimated", None]]
    with pytest.raises(ValueError, match="memory-growth"):
        told(gain_s=None)


def test_findings_are_bounded_and_in_calibrated_time():
    # A fifth of 4 s, and a twentieth.
    costs = {0.9: "high", 0.8: "high", 0.79: "medium", 0.2: "medium", 0.19: "low", 0.0: "low"}
    assert {cost: reading.severity_of(cost, 4.0) for cost in costs} == costs
    assert (reading.severity_of(1.0, 0.0), reading.WORTH_TELLING) == ("low", 0.01)
    for gain_s, step_s, bound in ((3, 2, 2), (1.5, 2, 1.5), (-1, 2, 0), (3, None, 3), (3, 0, 3)):
        assert gain(reading.bounded(told(gain_s=gain_s), step_s)) == [bound, "estimated", None]
    report = report_of()
    assert reading.calibrated(report, 0.005) == pytest.approx(0.005 / TRACED_S * made.STEP_S)
    assert (reading.calibrated(report, 0.0), reading.calibrated(report, None)) == (0.0, None)


TEXT = """import torch


@torch.no_grad()
def make(index):
    values = []
    def inner():
        return 1
    return values


async def main():
    for _ in range(9):
        make(1)
"""
MAKE = FunctionKey(TRAIN, 4, "make")


def test_calls_lead_to_the_nearest_own_function_by_the_longest_way():
    main, make, leaf = function("main", 0.1), function("make", 0.2, line=9), built_in("sin", 0.1)
    calls = [call(main, make, 0.5), call(make, make, 0.4), call(make, leaf, None)]
    calls += [call(leaf, make, 7.0, phase="startup")]
    functions = [main, make, function("load", 3.0, phase="startup")]
    graph = CallGraph(report_of(functions=functions, calls=calls))
    keys = [*map(key_of, (main, make, leaf))]
    assert list(graph.rows) == keys[:2]
    assert graph.callers_s == {keys[1]: {keys[0]: 0.5}, keys[2]: {keys[1]: 0.0}}
    assert [graph.below([key]) for key in keys] == [set(keys[1:]), set(keys[1:]), set()]
    top, near_ = function("top", 0.1), function("near", 0.1, line=9)
    far, library = function("far", 0, line=2), function("wrap", 0.1, file="/lib/x.py")
    write = built_in("write", 0.5)
    calls = [call(top, near_, 0.9), call(near_, library, 0.4), call(far, library, 0.3)]
    calls += [call(library, write, 0.5), call(write, library, 9.0)]
    graph = CallGraph(report_of(functions=[top, near_, far, library, write], calls=calls))
    assert graph.own_caller({key_of(write): 0.5})["name"] == "near"


def test_a_line_is_of_the_innermost_function_whose_text_it_is_in():
    rows = [line(6, python_s=0.2), line(8, python_s=0.9), line(9, operator_s=0.3), line(14)]
    tables = {"lines": [*rows, line(6, file="/b.py")], "functions": [function("make", 1, line=4)]}
    report = report_of(parts={"sources": [{"file": TRAIN, "text": TEXT}]}, **tables)
    graph = CallGraph(report)
    spans = [graph.span_around((TRAIN, number)) for number in range(1, 15)]
    names = "- - - make make make inner inner make - - main main main"
    assert " ".join(span.name if span else "-" for span in spans) == names
    # The second has no row of its own.
    assert [graph.function_around(line(at)) for at in (9, 14)] == [MAKE, None]
    assert [row["line"] for row in graph.lines_of(MAKE)] == [6, 9]
    assert graph.heaviest_line(MAKE)["line"] == 9


def test_what_calls_anything_is_not_below_those_who_call_it_little():
    names = ("work", "loop", "hooks", "on_end", "inside")
    work, loop, hooks, on_end, inside = (
        function(name, 1 * MS, 10 * MS, line=at) for at, name in enumerate(names, 2)
    )

    def below(of_work, **more):
        rest = call(loop, hooks, (10 - of_work) * MS, **more)
        edges = [call(work, hooks, of_work * MS), rest, call(hooks, on_end, 10 * MS)]
        graph = CallGraph(report_of(functions=[work, loop, hooks, on_end, inside],
                                    calls=[*edges, call(work, inside, 10 * MS)]))  # fmt: skip
        found = graph.below_in_part([key_of(work)])
        assert found <= graph.below([key_of(work)])
        return {each.name for each in found}

    assert below(1.9) == {"inside"}
    assert below(2.1) == {"inside", "hooks", "on_end"}
