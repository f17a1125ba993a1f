"""What the page and the terminal are given of owners, and what becomes of older recordings."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from data_full_report import full, on_a_device
from data_recording import (
    TORCH_S,
    Run,
    by,
    module,
    module_times,
    operator,
    report_of,
)
from data_report import build, row

from profstack.code_owner import package_of
from profstack.errors import RecordingError
from profstack.report import html, terminal
from profstack.report.page import own_first, path_records, prepare
from profstack.report.page_tables import MOST_ROWS
from profstack.storage.folder import DATABASE
from profstack.storage.schema.report import REPORT


@pytest.mark.parametrize(
    ("file", "own", "package"),
    [
        ("/home/a/train.py", True, "(own files)"),
        ("/home/a/train.py", None, "(own files)"),
        ("/venv/lib/python3.11/site-packages/torch/nn/modules/conv.py", None, "torch"),
        ("/usr/lib/python3/dist-packages/yaml/loader.py", False, "yaml"),
        ("/venv/lib/python3.11/site-packages/six.py", False, "six"),
        ("C:\\venv\\Lib\\site-packages\\numpy\\core.py", False, "numpy"),
        ("/venv/lib/python3.11/site-packages/mine/train.py", True, "(own files)"),
        ("~/.pyenv/versions/3.11.7/lib/python3.11/contextlib.py", None, "Python"),
        ("<frozen importlib._bootstrap>", False, "Python"),
        ("<eval_with_key>.0", None, "(generated code)"),
        ("~", None, "(built-in)"),
        ("torch/nn/modules/conv.py", False, "torch"),
        ("/opt/vendor/fast.py", False, "vendor"),
        ("helper.py", False, "helper"),
    ],
)
def test_a_file_belongs_to_a_library_or_to_the_user(file: str, own: Any, package: str) -> None:
    assert package_of(file, own=own) == package


def test_lines_of_the_users_are_kept_before_any_librarys() -> None:
    heavy = row("lines", file="lib.py", own=False, python_s=9.0)
    light = row("lines", file="mine.py", own=True, python_s=0.1)
    unknown = row("lines", file="old.py", own=None, python_s=0.2)
    assert sorted([heavy, light, unknown], key=own_first("python_s")) == [heavy, light, unknown]


def test_a_light_function_of_the_users_is_not_cut_away() -> None:
    report = build()
    report["tables"]["functions"] = [
        row("functions", phase="step", file="lib.py", name=f"f{at}", own=False, self_s=1.0)
        for at in range(MOST_ROWS)
    ] + [row("functions", phase="step", file="mine.py", line=3, name="mine", own=True, self_s=0.0)]
    table = prepare(report).tables["functions"]
    name = [column.key for column in table.columns].index("name")
    assert table.rows[0][name] == "mine"
    assert len(table.rows) == MOST_ROWS


def _node(node: int, parent: int | None, total_s: float) -> dict[str, Any]:
    return row("call_paths", node=node, parent=parent, name=f"f{node}", total_s=total_s)


def test_cut_paths_keep_all_that_leads_to_what_they_keep() -> None:
    # A kernel's way up has no time of its own, and is lighter than the branches beside it.
    records = [_node(1, None, 9.0), _node(2, 1, 0.0), _node(3, 2, 5.0), _node(4, 1, 1.0)]
    kept = [record["node"] for record in path_records(records, most=3)]
    assert kept == [1, 2, 3]
    assert len(path_records(records, most=4)) == 4


def test_paths_that_lead_nowhere_are_left_out() -> None:
    circle = [_node(5, 6, 8.0), _node(6, 5, 8.0)]
    orphans = [_node(7, 99, 7.0), _node(8, 7, 6.0)]
    records = [_node(1, None, 1.0), *circle, *orphans, _node(2, 1, 0.5)]
    assert [record["node"] for record in path_records(records)] == [1, 2]


def test_a_deep_path_is_no_trouble() -> None:
    records = [_node(number, number - 1 or None, 1.0) for number in range(1, 3_000)]
    assert len(path_records(records)) == 2_999
    table = prepare(build() | {"tables": build()["tables"] | {"call_paths": records}})
    assert table.tables["call_paths"].total == 2_999


def test_a_share_is_shown_as_one_and_a_yes_as_one() -> None:
    own = REPORT["lines"].column("own")
    assert own is not None
    assert own.unit == "flag"
    assert str(terminal.cell(value=True, unit="flag")) == "yes"
    assert str(terminal.cell(value=False, unit="flag")) == "no"


def test_python_cost_is_what_operators_leave_of_the_self_time(tmp_path: Path) -> None:
    run = Run(tmp_path / "rec")
    run.clean()
    frames = {
        "module_times": [
            module_times(1, 4, 0.040, forward_self_s=0.016),
            module_times(2, 4, 0.024),
            module_times(-3, 4, 0.004),
        ],
        "operators": [
            operator("aten::mm", 4, 0.020, module_id=2),
            operator("aten::add", 4, 0.012, module_id=1),
            operator("aten::mul", 4, 0.002),
        ],
    }
    run.torch([TORCH_S] * 4, frames=frames)
    run.clean()
    run.writer.replace("modules", [module(1, "Net"), module(2, "Net.layer", 1)])
    run.layers(torch="recorded")
    report = run.finish()
    rows = by(report["tables"]["modules"], "path")
    assert rows["Net"]["python_s"] == pytest.approx(0.001)
    assert rows["Net.layer"]["python_s"] == pytest.approx(0.001)
    assert rows["(optimizer)"]["python_s"] is None
    assert "it is no module" in report["cells_reason"]["modules.python_s"]


def test_operators_longer_than_their_module_leave_no_python_cost(tmp_path: Path) -> None:
    run = Run(tmp_path / "rec")
    run.clean()
    frames = {
        "module_times": [module_times(1, 3, 0.003), module_times(2, 3, 0.003)],
        "operators": [
            operator("aten::mm", 3, 0.009, module_id=1),
            operator("aten::mm", 3, 0.003 + 1e-12, module_id=2),
        ],
    }
    run.torch([TORCH_S] * 3, frames=frames)
    run.clean()
    run.writer.replace("modules", [module(1, "Net"), module(2, "Other")])
    run.layers(torch="recorded")
    rows = by(run.finish()["tables"]["modules"], "path")
    assert rows["Net"]["python_s"] is None
    assert rows["Other"]["python_s"] == 0.0


# What the first recordings had; tables and columns came later.
_FIRST = {
    "facts", "slices", "steps", "modules", "module_times", "operators", "functions", "calls",
    "layers", "notes", "artifacts", "memory",
}  # fmt: skip


def _age(folder: Path) -> None:
    """Take away what a recording made long ago would not have."""
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        assert names >= _FIRST
        for name in names - _FIRST:
            database.execute(f'DROP TABLE "{name}"')
        database.execute("ALTER TABLE operators DROP COLUMN moved_bytes")
        database.commit()


def test_a_recording_made_before_a_table_is_read_as_having_no_rows(tmp_path: Path) -> None:
    run = Run(tmp_path / "rec")
    run.clean()
    frames = {
        "module_times": [module_times(1, 3, 0.03)],
        "operators": [operator("aten::mm", 3, 0.02, module_id=1)],
    }
    run.torch([TORCH_S] * 3, frames=frames)
    run.clean()
    run.writer.replace("modules", [module(1, "Net")])
    run.layers(torch="recorded")
    before = run.finish()
    _age(run.folder)
    report = report_of(run.folder)
    assert report["tables"]["modules"] == before["tables"]["modules"]
    assert report["tables"]["operators"][0]["moved_bytes"] is None
    for name in ("memory_owners", "peak_holders", "call_paths", "regions", "gaps"):
        assert report["tables"][name] == []
    assert "Net" in html.render(report)
    assert "clean step" in terminal.summary(report, width=80, colour=False)


def test_a_recording_without_its_facts_is_none(tmp_path: Path) -> None:
    run = Run(tmp_path / "rec")
    run.clean()
    run.finish()
    with closing(sqlite3.connect(run.folder / DATABASE)) as database:
        database.execute("DROP TABLE facts")
        database.commit()
    with pytest.raises(RecordingError, match="cannot be read"):
        report_of(run.folder)


def test_the_summary_says_what_owns_the_step_and_its_memory() -> None:
    said = " ".join(terminal.summary(full(), width=80, colour=False).split())
    for words in (
        (
            "owners: 97.2 % of a step's time has one; not (outside modules) 1.6 %, "
            "(not attributed) 1.2 %"
        ),
        (
            "threads: the steps' thread ran for 4.10 ms of a clean step; 19 % of the CPU time is "
            "used in threads and processes that no layer looks into"
        ),
        "bytes at the peak of a step: 385 MiB, activations 181 MiB, optimizer state 88.0 MiB",
        "the largest holder: activations of Digits.features.2, 96.0 MiB",
        (
            "finding: A copy to the host waits for the device (train.py:66; 400 µs a step, "
            "estimated). Take the loss once every hundred steps."
        ),
        "finding: Memory grows by 64.0 MiB a step (train.py:68). Keep loss.item()",
    ):
        assert words in said, words


def test_the_summary_says_why_nothing_is_known_of_threads() -> None:
    report = full()
    report["processes"] |= {"sentences": [], "reason": "no clean slice was recorded"}
    said = " ".join(terminal.summary(report, width=80, colour=False).split())
    assert "threads: not known: no clean slice was recorded" in said
    # A report made before there was such a table says nothing.
    del report["processes"]
    assert "threads:" not in terminal.summary(report, width=80, colour=False)


def test_of_several_devices_the_summary_tells_the_fullest() -> None:
    report = on_a_device()
    for record in report["tables"]["memory_owners"]:
        if record["device"] == "cuda:0":
            record["peak_bytes"] *= 2
    said = " ".join(terminal.summary(report, width=80, colour=False).split())
    assert "at the peak of a step on cuda:0: 770 MiB, activations 362 MiB" in said
    assert "the largest holder" not in said, "the holders of that device are not known"


def test_only_the_first_findings_are_printed() -> None:
    report = full()
    report["findings"] *= 4
    said = terminal.summary(report, width=80, colour=False)
    assert said.count("finding: ") == 5
    assert "3 more findings are on the page" in said


def test_of_long_advice_the_first_sentences_are_printed() -> None:
    report = full()
    report["findings"][0]["advice"] = "Do this. " + "And that, at length" * 20 + ". Not shown."
    said = " ".join(terminal.summary(report, width=80, colour=False).split())
    assert "estimated). Do this. finding:" in said


def test_findings_cannot_drive_the_terminal() -> None:
    report = full()
    evil = "\x1b]0;owned\x07\x1b[2J[bold red]x[/]\udc80"
    report["findings"][0] |= {"title": evil, "advice": evil, "file": evil}
    report["tables"]["memory_owners"][3]["kind"] = evil
    report["tables"]["peak_holders"][0] |= {"kind": evil, "module": evil}
    report["attribution"]["unowned"][0]["path"] = evil
    printed = terminal.summary(json.loads(json.dumps(report)), width=80, colour=False)
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert "[bold red]x[/]" in printed
    printed.encode("utf-8")
