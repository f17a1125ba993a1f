"""`profstack merge`, and what other commands make of a folder of ranks."""

import json

import pytest

from profstack.commands import main
from profstack.commands.merge import is_of_others
from profstack.report import files
from tests.support.commands import refused
from tests.support.launches import launch
from tests.support.rank_traces import rank_trace, told_rank
from tests.support.reports import completed


def test_the_ranks_with_a_recording_are_merged_into_their_folder(tmp_path, capsys):
    folder = tmp_path
    # Without a rank that is one line.
    for where, said in ((folder, "no rank left a file"), (folder / "x", "it is not there")):
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


def test_two_ranks_and_a_broken_one_are_a_page_and_a_second_start_takes_them_up(tmp_path, capsys):
    traces, out = tmp_path / "traces", tmp_path / "traces" / "all"
    traces.mkdir()
    for rank, late_us in ((0, 0), (1, 300), (3, 0)):
        text = rank_trace(late_us, **told_rank(rank, 4))
        (traces / f"rank{rank}.json").write_text(text)
    (traces / "rank3.json").write_text('{"traceEvents": [], "schemaVersion": 1}')
    command = ["merge", str(traces), "-o", str(out)]
    assert main(command) == 0
    said = capsys.readouterr().err
    assert "traces/rank3.json is left out: " in said
    report = json.loads((out / "report.json").read_text())
    rows = {row["rank"]: row["folder"] for row in report["tables"]["ranks"]}
    # Rank 2 left no file at all.
    assert rows == {0: "rank-00000", 1: "rank-00001", 2: None, 3: None}
    assert (report["ranks"]["missing"], report["ranks"]["straggler"]["rank"]) == ([2, 3], 1)
    # What lies in the page's folder is none of the launch's.
    (traces / "rank1.json").write_text(rank_trace(0, **told_rank(1, 4)))
    (traces / "rank0.json").write_text(rank_trace(350, **told_rank(0, 4)))
    assert main(command) == 0
    assert "there from an earlier start" not in capsys.readouterr().err
    report = json.loads((out / "report.json").read_text())
    assert report["ranks"]["straggler"]["rank"] == report["ranks"]["shown"] == 0
    # Few of them have a recording: the page is not made of those alone.
    for words in (["merge", str(out)], ["report", str(out)]):
        assert "few of its ranks have a recording" in refused(capsys, *words)
    assert json.loads((out / "report.json").read_text()) == report


def test_options_that_cannot_be_are_one_line_and_leave_nothing(tmp_path, capsys):
    (tmp_path / "rank0.json").write_text(rank_trace(0))
    folder = tmp_path / "process-1"
    folder.mkdir()
    (folder / "recording.sqlite").touch()
    told = {
        ("--workers", "-1"): "no number of processes",
        ("--workers", "1", "--memory-limit", "many"): "no number of bytes",
    }
    for words, said in told.items():
        command = ["merge", str(tmp_path / "rank0.json"), "-o", str(tmp_path / "out"), *words]
        assert said in refused(capsys, *command)
    # A start that failed does not stand in the way of the next.
    assert main(command[:4]) == 0
    capsys.readouterr()
    assert "merged where they are" in refused(capsys, "merge", str(tmp_path), "-o", "x")
