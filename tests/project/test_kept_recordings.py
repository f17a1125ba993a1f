"""Kept recordings still give the reports that were made when they were recorded.

`tests/support/data/recordings/` holds a digits training, a training that was killed in a
step, and an import of Nsight Systems beside a torch slice, all recorded before the modules
were rearranged and without their artifacts. After a change that is meant to alter reports, look
at what `scripts/compare_reports.py` prints, then run it with `--keep`.
"""

import shutil
import sys

import pytest

from tests.support.hostile_recordings import KEPT as RECORDINGS
from tests.support.processes import CHECKOUT

sys.path.insert(0, str(CHECKOUT / "scripts"))
import compare_reports as compare


@pytest.fixture
def run(capsys):
    def run(*arguments):
        return compare.main(list(map(str, arguments))), capsys.readouterr().out.splitlines()

    return run


def test_kept_recordings_give_the_same_reports_or_no_success(run, tmp_path):
    status, lines = run(RECORDINGS)
    assert status == 0, lines
    assert lines[-1].startswith(f"{len(list(RECORDINGS.iterdir()))} recordings in ")
    assert run(tmp_path)[0] == 2
    (shutil.copytree(RECORDINGS / "import", tmp_path / "import") / "report.json.gz").unlink()
    status, lines = run(tmp_path)
    assert status == 2
    assert "CANNOT BE COMPARED: no report.json is kept" in "\n".join(lines)


def test_values_are_compared_exactly():
    old = {"a": [1, None, 0.1], "b": {"c": True}, "gone": [], "sum": 0.1}
    new = {"b": {"c": 1}, "a": [1.0, None, 0.1 + 3e-13, 4], "come": None, "sum": 0.1 + 5e-14}
    assert [str(one) for one in compare.differences(old, new)] == [
        *("a[0]: 1 -> 1.0", "a[2]: 0.1 -> 0.1000000000003", "a[3]: (absent) -> 4"),
        *("b.c: true -> 1", "gone: [] -> (absent)", "come: (absent) -> null"),
    ]
    assert list(compare.differences(old, old)) == []
    # A pattern stands for any row or key and what is in it.
    path = "tables.modules[3].calls"
    for pattern, ignored in (
        ("tables.*[].calls", True),
        ("tables.modules[]", True),
        ("calls", False),
    ):
        assert compare.is_ignored(path, [pattern]) is ignored
    assert not compare.is_ignored("tables.modules_by_name[3]", ["tables.modules"])
