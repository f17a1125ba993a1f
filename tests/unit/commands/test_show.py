"""`profstack show`: which recording it takes, what it prints, and how it refuses."""

import csv
import io
import json

import pytest

from profstack.commands import main
from profstack.report import files
from tests.support.commands import make_recording, refuses
from tests.support.overview import add_verdict, finding
from tests.support.reports import build, completed


@pytest.fixture
def show(recording, capsys):
    def show(words="", kind="text"):
        assert main(["show", *words.split(), "--format", kind]) == 0
        printed = capsys.readouterr().out
        if kind == "csv":
            return list(csv.DictReader(io.StringIO(printed)))
        return json.loads(printed) if kind == "json" else printed

    return show


def test_a_recording_that_was_not_named_is_named(recording, capsys):
    make_recording(recording.with_name("train-0002"), age_s=60)
    own = "profstack-runs/train-0001"
    for words in ([], ["profstack-runs"], [own], [f"{own}/report.json"]):
        assert main(["show", *words]) == 0
        said = "" if own in "".join(words) else f"profstack: reading {recording}\n"
        assert capsys.readouterr().err == said


def test_it_prints_the_summary_the_whole_report_findings_and_the_verdict(show, recording):
    printed = show()
    assert ("clean step: median 4.01 ms" in printed, "\x1b" in printed) == (True, False)
    assert show(kind="json") == completed(build(), files.schema())
    report = build()
    add_verdict(report)
    report["findings"] = [finding("slug", f"number {count}") for count in range(3)]
    files.write(completed(report, files.schema()), recording / "report.json")
    titles = [one["title"] for one in show("--findings", "json")]
    assert titles == ["number 0", "number 1", "number 2"]
    assert show("--findings --limit 2").endswith("\n1 more of 3 findings\n")
    markdown = show("--findings --limit 2", "md")
    assert ("number 1" in markdown, "number 2" in markdown) == (True, False)
    assert "number 2" in str(show("--findings", "csv"))
    assert "45 %" in show("--verdict")
    assert "0.45" in str(show("--verdict", "csv"))


def test_a_table_is_ordered_by_weight_and_cut(show):
    rows = build()["tables"]["functions"]
    steps = [row for row in rows if row["phase"] != "startup"]
    heading, *lines, last = show("--table functions --limit 17").splitlines()
    assert heading.split()[:4] == ["phase", "file", "line", "name"]
    for row, line in zip(sorted(steps, key=lambda row: -row["self_s"])[:2], lines, strict=False):
        assert row["name"][:20] in line
    assert not any("startup" in line for line in lines)
    assert last == f"{len(rows) - 17} more of {len(rows)} rows: --limit {len(rows)}"
    assert "more of" not in show(f"--table functions --limit {len(rows)}")
    count, printed = len(build()["tables"]["steps"]), show("--table steps").splitlines()
    assert printed[21:] == [f"{count - 20} more of {count} rows: --limit {count}"]
    assert len(show("--table steps", "json")) == count


def test_figures_fall_and_texts_and_numbers_of_places_rise(show):
    short, whole = (f"--table functions --sort {name}" for name in ("self", "self_s"))
    assert show(short, "json") == show(whole, "json")
    columns = ("operators calibrated_s falls", "operators name", "steps index", "lines line")
    for words in (*columns, "functions calls falls"):
        table, column, *falls = words.split()
        words = f"--table {table} --sort {column}"
        found = [row[column] for row in show(words, "json")]
        values = [value for value in found if value is not None]
        assert len(values) > 1
        # Not measured comes last, and is empty in CSV.
        assert found == sorted(values, reverse=bool(falls)) + [None] * (len(found) - len(values))
        printed = [row[column] for row in show(words, "csv")]
        assert printed[: len(values)] == [str(value) for value in values]
        assert len(show(f"{words} --limit 3", "md").splitlines()) == 3 + 2


BAD_INPUT = """
--table module | the tables are steps, modules // --sort self_s | --sort needs a table
--table steps --sort self_s | its columns are index, phase // --limit 3 | --limit needs a table
--verdict --limit 3 | --limit needs a table // --table steps --limit 0 | at least 1
--format csv | --format csv needs a table // --format md | --format md needs a table
--format xml | show --help // --findings --verdict | not allowed with
"""


def test_what_it_cannot_print_or_read_is_one_line_with_the_remedy(recording, capsys):
    refuses(capsys, BAD_INPUT, "show")
    (recording / "report.json").write_bytes(b"{")
    refuses(capsys, "| damaged JSON // nowhere | no such folder", "show")
