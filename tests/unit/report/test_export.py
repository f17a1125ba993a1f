"""Tables, findings and the verdict as JSON, CSV and Markdown: plain values, nothing lost."""

import csv
import io
import json

import pytest

from profstack.report.export import findings_as, table_as, verdict_as
from profstack.storage.schema.report import REPORT
from tests.support.full_report import full
from tests.support.overview import add_verdict, finding


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("name", REPORT)
def test_rows_are_the_same_in_every_format(name):
    table, records = REPORT[name], full()["tables"][name]
    rows = [{column: record.get(column) for column in table.names} for record in records]
    assert json.loads(table_as("json", table, records)) == rows
    header, *found = csv.reader(io.StringIO(table_as("csv", table, records)))
    assert header == list(table.names)
    for row, cells in zip(rows, found, strict=True):
        for value, cell in zip(row.values(), cells, strict=True):
            if isinstance(value, float):
                assert float(cell) == value
            elif not isinstance(value, (list, dict)):
                assert cell == ("" if value is None else str(value))


def test_cells_are_text_that_markdown_and_any_encoding_take():
    values = {"name": "a|b<c\\d\ne\udce9", "self_s": float("nan"), "calls": 2.0, "shapes": ["x", 3]}
    table = REPORT["operators"]
    [row] = read(table_as("csv", table, [values]))
    assert [row[name] for name in values] == ["a|b<c\\d\ne?", "", "2.0", "x, 3"]
    assert "| a\\|b&lt;c\\\\d e? |" in table_as("md", table, [values])
    assert json.loads(table_as("json", table, [values]))[0]["self_s"] is None
    assert json.loads(table_as("json", table, [])) == []


def test_findings_are_whole_in_every_format():
    found = [
        finding("sync", "A *copy* [waits]", gain_s=0.0004, gain_is="measured", file="a/train.py",
                line=66, severity="high", evidence=[{"op": "a_b", "calls": 3.0}, {"op": "c"}]),
        finding("growth", "Memory <b>grows", gain_reason="it costs `bytes`", advice="Mend|it."),
    ]  # fmt: skip
    assert json.loads(findings_as("json", found)) == found
    first, second = read(findings_as("csv", found))
    assert (first["slug"], float(first["gain_s"]), first["line"]) == ("sync", 0.0004, "66")
    assert (json.loads(first["evidence"]), second["gain_s"]) == (found[0]["evidence"], "")
    assert set(first) == set(found[0])
    paragraphs = [
        "### 1. A \\*copy\\* \\[waits\\]",
        "`sync`, high; train.py:66, about 400 µs a step, measured", "- op a\\_b, calls 3\n- op c",
        "Next: Mend it.", "### 2. Memory &lt;b>grows",
        "`growth`, medium; no gain: it costs \\`bytes\\`", "Next: Mend\\|it."]  # fmt: skip
    assert findings_as("md", found).splitlines() == "\n\n".join(paragraphs).splitlines()


def test_the_verdict_has_its_tests_and_the_parts_of_the_step():
    report = add_verdict(full())
    both = {key: report[key] for key in ("verdict", "step_bar")}
    assert json.loads(verdict_as("json", report)) == json.loads(json.dumps(both))
    rows = read(verdict_as("csv", report))
    found = [" ".join((row["test"], row["share"], row["threshold_share"])) for row in rows]
    assert found == ["input-bound 0.45 0.3", "python-bound 0.2 0.4", "compute-bound  0.4"]
    report["verdict"]["sentence"] = "Input-bound: <b>\x1b"
    sentence, *_ = verdict_as("md", report).split("\n\n")
    assert sentence == "**Input-bound: &lt;b>?**"
