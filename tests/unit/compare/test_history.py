"""`profstack history`: runs in order of time, the commits that changed them, what is left out."""

import copy
import csv
import io

import numpy as np
import pytest

from profstack.commands import main
from profstack.compare.history import history
from profstack.report import files
from profstack.report import history as shown
from tests.support.commands import refuses
from tests.support.reports import HOSTILE, build
from tests.support.tables import of

COMMITS = [f"{number:02d}abcdef{number:032d}" for number in range(20)]


def _report(at, step_s, *, commit=None, peak=1000.0, **environment):
    report = copy.deepcopy(build())
    report["script"] = "train.py"
    report["run"]["started_at"] = f"2026-03-{at + 1:02d}T10:00:00.000+00:00"
    report["benchmark"] |= {"median_s": step_s, "ci95_low_s": step_s, "ci95_high_s": step_s * 1.1}
    report["environment"] |= {"commit": commit, "changed": False, **environment}
    report["attribution"] = {**(report["attribution"] or {}), "memory_peak_bytes": peak}
    return report


def _runs(*, change=12, factor=1.1, commits=COMMITS, count=20, **of_change):
    noise = np.exp(np.random.default_rng(2).normal(0.0, 0.02, count))
    for at in range(count):
        late = at >= change
        step_s = 0.004 * noise[at] * (factor if late else 1.0)
        extra = of_change if late else {}
        yield f"runs/{at}", _report(at, step_s, commit=commits[at], **extra)


def test_a_slower_commit_is_named_with_its_size_and_what_else_changed():
    runs = list(_runs(peak=1500.0, torch="9.9"))
    # The order of the files is not that of time.
    [program] = history(reversed(runs))["programs"]
    assert [run["path"] for run in program["runs"]] == [path for path, _ in runs]
    step, memory = program["changes"]
    assert of(step, "figure run commit commit_before") == ["step", 12, COMMITS[12], COMMITS[11]]
    medians = [run["median_s"] for run in program["runs"]]
    assert step["before"] == pytest.approx(np.median(medians[:12]))
    assert step["after"] == pytest.approx(np.median(medians[12:]))
    assert step["ci95_low"] < 1.1 < step["ci95_high"]
    assert step["differences"] == [f"torch: {build()['environment']['torch']} -> 9.9"]
    assert f"slower from commit {COMMITS[12][:8]} on" in step["sentence"]
    assert (memory["figure"], memory["run"], memory["after"]) == ("memory", 12, 1500.0)


def test_too_few_runs_and_runs_without_a_median_are_said():
    runs = list(_runs(count=9, change=9))
    runs[4][1]["benchmark"]["median_s"] = None
    runs[4][1]["status_reason"] = "it was killed"
    runs[5][1]["run"]["started_at"] = None
    made = history(runs)
    [program] = made["programs"]
    assert program["changes"] == []
    counts = [reason.partition(" runs")[0] for reason in program["reasons"]]
    assert counts == ["step: 7", "memory: 8"]
    assert [run["reason"] for run in program["runs"]].count("it was killed") == 1
    assert made["left_out"] == [{"path": "runs/5", "reason": "it does not say when it began"}]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Reports in folders and in files, another program's, and files that are none."""
    monkeypatch.chdir(tmp_path)
    for path, report in _runs():
        home = tmp_path / path
        number = int(home.name)
        place = home / "report.json" if number % 2 else home.with_name(f"{number}.json")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(files.text(report), encoding="utf-8")
    other = _report(3, 1.0) | {"script": f"other{HOSTILE}.py"}
    (tmp_path / "runs" / "other.json").write_text(files.text(other), encoding="utf-8")
    (tmp_path / "runs" / "stray.json").write_text("{}", encoding="utf-8")
    return tmp_path


def test_the_command_lists_draws_and_exports(folder, capsys):
    assert main(["history", "runs", "--script", "train.py", "-o", "out"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("train.py: 20 runs, 2026-03-01 to 2026-03-20\n")
    [marked] = [line for line in text.splitlines() if "<-" in line]
    assert marked.startswith(f"2026-03-13 10:00  {COMMITS[12][:8]}")
    assert "left out: runs/stray.json: not a profstack report" in text
    assert text.endswith("Wrote out/history.html\n")
    assert main(["history", "runs", "--format", "csv"]) == 0
    printed = capsys.readouterr().out
    assert all(line.isprintable() for line in printed.splitlines())
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert len(rows) == 21
    assert [row["commit"] for row in rows if row["change"]] == [COMMITS[12]]


def test_names_of_programs_are_data_on_the_page():
    made = history([("a", _report(0, 1.0) | {"script": HOSTILE})])
    assert "<img" not in shown.render(made)


def test_history_refuses(folder, capsys):
    table = "nothing | nothing: no such folder // runs --script a.py | no run of a.py"
    table += " // runs -o runs/stray.json | runs/stray.json: cannot be made (File exists)"
    refuses(capsys, table, "history")
