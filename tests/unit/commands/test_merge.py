"""`profstack merge`, and what other commands make of a folder of ranks."""

import json

import pytest

from profstack.commands import main
from profstack.commands.merge import is_of_others
from profstack.report import files
from tests.support.commands import refused
from tests.support.launches import launch
from tests.support.reports import completed


def test_the_ranks_with_a_recording_are_merged_into_their_folder(tmp_path, capsys):
    folder = tmp_path
    # Without a rank that is one line.
    for where, said in ((folder, "no rank has a recording"), (folder / "x", "cannot be read")):
        assert said in refused(capsys, "merge", str(where))
    # Three ranks, the last of which is late, beside a folder of something else.
    for rank in launch(3, late={2: lambda step: 0.011}):
        (folder / rank.folder).mkdir()
        whole = completed(rank.report, files.schema())
        files.write(whole, folder / rank.folder / "report.json")
    (folder / "rank-notes").mkdir()
    assert main(["merge", str(folder)]) == 0
    assert capsys.readouterr() == (f"Wrote {folder / 'report.html'}\n", "")
    report = json.loads((folder / "report.json").read_text())
    assert (report["ranks"]["count"], report["ranks"]["straggler"]["rank"]) == (3, 2)
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    # `show` reads all of them, not the lowest.
    assert main(["show", str(folder), "--table", "ranks", "--format", "csv"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    found = [row.partition(",")[0] for row in rows]
    # The latest first.
    assert (found[0], sorted(found)) == ("2", ["0", "1", "2"])
    assert main(["history", str(folder), "--format", "csv"]) == 0
    assert "90fd44f" in capsys.readouterr().out


@pytest.mark.parametrize(("count", "rule", "others"), [(9, "step", 0), (0, "", 1), (9, "whole", 1)])
def test_a_script_without_own_steps_is_of_others(tmp_path, monkeypatch, count, rule, others):
    monkeypatch.setattr(files, "load", lambda _: {"step": {"count": 3}})
    (tmp_path / "process-1").mkdir()
    (tmp_path / "process-1" / "recording.sqlite").touch()
    assert is_of_others({"step": {"count": count, "rule": rule}}, tmp_path) is bool(others)
