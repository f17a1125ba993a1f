"""Kept recordings still give the reports that were made when they were recorded.

`tests/data/recordings/` holds a digits training, a training that was killed in a step, and an
import of Nsight Systems beside a torch slice, all recorded before the modules were rearranged and
without their artifacts. After a change that is meant to alter reports, look at what
`scripts/compare_reports.py` prints, then run it with `--keep`.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CHECKOUT, clean_environment

SCRIPT = CHECKOUT / "scripts" / "compare_reports.py"
RECORDINGS = CHECKOUT / "tests" / "data" / "recordings"

sys.path.insert(0, str(SCRIPT.parent))
import compare_reports as compare  # noqa: E402 - it is in no package


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env=clean_environment(), check=False
    )


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A recording whose kept report differs from what it gives in three fields."""
    folder = tmp_path / "import"
    shutil.copytree(RECORDINGS / "import", folder)
    path = folder / "report.json.gz"
    report = json.loads(gzip.decompress(path.read_bytes()))
    report["profstack_version"] = "0.0.0"
    report["tables"]["modules"][1]["calls"] += 2.0**-40
    del report["run"]["exit_code"]
    path.write_bytes(gzip.compress(json.dumps(report).encode()))
    return folder


@pytest.mark.parametrize("name", sorted(path.name for path in RECORDINGS.iterdir()))
def test_a_kept_recording_gives_the_same_report(name: str) -> None:
    done = run(RECORDINGS / name)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 recording in ")


def test_every_difference_is_printed_with_both_values(changed: Path) -> None:
    before = sorted(path.stat().st_mtime_ns for path in changed.rglob("*"))
    done = run(changed, "--ignore", "status")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == f"{changed}: 2 differences"
    assert lines[1].startswith('  expected: profstack_version: "0.0.0" -> ')
    assert "  run.exit_code: (absent) -> 0" in lines
    assert "  tables.modules[1].calls: 1.0000000000009095 -> 1.0" in lines
    assert "       1 tables.modules[].calls" in lines
    # It works on a copy.
    assert sorted(path.stat().st_mtime_ns for path in changed.rglob("*")) == before


def test_named_fields_are_ignored(changed: Path) -> None:
    done = run(changed, "--ignore", "tables.*[].calls", "--ignore", "run")
    assert done.returncode == 0
    assert "no differences, 2 ignored" in done.stdout.splitlines()[-1]


def test_new_reports_are_kept_if_asked_for(changed: Path) -> None:
    assert run(changed, "--keep", "--terminal").returncode == 0
    assert run(changed, "--terminal").returncode == 0
    (changed / "show.txt").write_text("something else\n")
    done = run(changed, "--terminal")
    assert done.returncode == 1
    assert '  terminal[0]: "something else" -> (absent)' in done.stdout.splitlines()


def test_what_cannot_be_compared_is_no_success(tmp_path: Path) -> None:
    assert run(tmp_path).returncode == 2
    folder = tmp_path / "import"
    shutil.copytree(RECORDINGS / "import", folder)
    (folder / "report.json.gz").unlink()
    done = run(tmp_path)
    assert done.returncode == 2
    assert "CANNOT BE COMPARED: no report.json is kept" in done.stdout


def test_values_are_compared_exactly() -> None:
    old: compare.Json = {"a": [1, None, 0.1], "b": {"c": True}, "gone": []}
    new: compare.Json = {"b": {"c": 1}, "a": [1.0, None, 0.1 + 2**-56, 4], "come": None}
    assert [str(one) for one in compare.differences(old, new)] == [
        "a[0]: 1 -> 1.0",
        "a[2]: 0.1 -> 0.10000000000000002",
        "a[3]: (absent) -> 4",
        "b.c: true -> 1",
        "gone: [] -> (absent)",
        "come: (absent) -> null",
    ]
    assert list(compare.differences(old, old)) == []


def test_a_pattern_stands_for_any_row_or_key_and_what_is_in_it() -> None:
    assert compare.is_ignored("tables.modules[3].calls", ["tables.*[].calls"])
    assert compare.is_ignored("tables.modules[3].calls", ["run", "tables.modules[]"])
    assert not compare.is_ignored("tables.modules_by_name[3]", ["tables.modules"])
    assert not compare.is_ignored("tables.modules[3].calls", ["modules", "calls"])


def test_a_page_of_its_own_making_has_the_same_data(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    shutil.copytree(RECORDINGS / "killed", folder)
    assert run(folder, "--keep", "--pages").returncode == 0
    page = folder / "report.html"
    data = compare.page_data(page.read_text("utf-8"))
    assert isinstance(data, dict)
    tables = data["tables"]
    assert isinstance(tables, dict)
    assert {"modules", "operators", "functions"} <= set(tables)
    text = page.read_text("utf-8")
    assert '"status":"partial"' in text
    page.write_text(text.replace('"status":"partial"', '"status":"complete"'), "utf-8")
    done = run(folder, "--pages")
    assert done.returncode == 1
    assert '  page.facts.status: "complete" -> "partial"' in done.stdout.splitlines()
