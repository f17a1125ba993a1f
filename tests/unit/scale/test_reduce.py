"""One rank's files summed up: as an import of them says, wherever they are."""

import fsspec
import pytest

from profstack.commands import main
from profstack.ranks.collectives import read_calls
from profstack.ranks.rank import Rank
from profstack.ranks.summary import Summary
from profstack.report import files
from profstack.scale.reduce import Launch, reduced, shown
from profstack.scale.sources import find
from tests.support.launches import launch
from tests.support.rank_traces import rank_trace, told_rank
from tests.support.reports import completed

OF = Launch(world_size=2, recorded=2)


@pytest.fixture
def traces(tmp_path):
    for rank, late_us in ((0, 0), (1, 300)):
        text = rank_trace(late_us, **told_rank(rank, 2))
        (tmp_path / f"run.rank{rank}.json").write_text(text)
    return tmp_path


def test_a_trace_is_summed_up_as_its_import_says(traces):
    assert main(["import", str(traces), "-o", str(traces / "all")]) == 0
    sources = find([str(traces)]).sources
    for source in find([str(traces / "run.rank0.json"), str(traces / "run.rank1.json")]).sources:
        home = traces / "all" / f"rank-{source.rank:05d}"
        found = reduced(source, OF)
        kept = files.load(home)
        expected = Rank.of(source.rank, home.name, kept)
        assert found.ranks == {source.rank: expected}
        assert found == Summary.of(expected, kept, read_calls(home))
        assert len(found.calls[source.rank]) == 12
        assert found.work["operator"]["aten::mm"].total > 0
    # Beside recordings traces of the same ranks do not count; these give the same.
    assert [each.is_recording for each in sources] == [True, True]
    assert reduced(sources[1], OF) == found


def test_what_is_behind_a_url_is_fetched_and_gives_the_same(traces):
    system = fsspec.filesystem("memory")
    try:
        for path in sorted(traces.iterdir()):
            system.pipe_file(f"/launch/{path.name}", path.read_bytes())
        there, here = (find([path]).sources for path in ("memory://launch", str(traces)))
        assert [reduced(each, OF) for each in there] == [reduced(each, OF) for each in here]
    finally:
        system.rm("/launch", recursive=True)


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "the file is empty"), ('{"a": 1}', "no profile that is known here")],
)
def test_a_file_that_cannot_be_read_is_named_and_left_out(tmp_path, content, said):
    (tmp_path / "rank3.json").write_text(content)
    [source] = find([str(tmp_path)]).sources
    found = reduced(source, OF)
    assert (found.ranks, found.calls, found.steps.count) == ({}, {}, 0)
    ((name, why),) = found.left_out.items()
    assert name == f"{tmp_path.name}/rank3.json"
    assert said in why or "no profile" in why
    (tmp_path / "rank3.json").unlink()
    assert list(reduced(source, OF).left_out) == [name]


def test_a_rank_that_is_shown_gets_a_recording_of_its_own(traces):
    source, out = find([str(traces)]).sources[1], traces / "out"
    out.mkdir()
    report = shown(source, OF, out)
    assert (report["run"]["rank"], report["run"]["world_size"]) == (1, 2)
    own = out / "rank-00001"
    made = (own / "report.html").stat().st_mtime_ns
    assert shown(source, OF, out) == report
    assert (own / "report.html").stat().st_mtime_ns == made
    # Of other files, or of another launch, it is made anew; what was half made counts for nothing.
    (out / "rank-00001.part").mkdir()
    assert shown(source, Launch(4, 2), out)["run"]["world_size"] == 4
    (traces / "run.rank1.json").write_text(rank_trace(100, **told_rank(1, 2)))
    [again] = find([str(traces / "run.rank1.json")], out).sources
    assert shown(again, OF, out)["tables"]["operators"] == report["tables"]["operators"]
    assert sorted(path.name for path in out.iterdir()) == ["rank-00001"]


def test_a_recording_elsewhere_is_shown_as_it_is_and_copied_nowhere(tmp_path):
    [made] = launch(1)
    home = tmp_path / made.folder
    home.mkdir()
    whole = completed(made.report, files.schema())
    files.write(whole, home / "report.json")
    (tmp_path / "out").mkdir()
    [source] = find([str(tmp_path)]).sources
    assert shown(source, OF, tmp_path / "out") == files.load(home)
    assert not list((tmp_path / "out").iterdir())


def test_of_several_kinds_of_files_the_traces_are_read_and_the_others_told(traces):
    # Whatever the folder is called.
    home = traces / "a b%20#?é" / "rank_0"
    home.mkdir(parents=True)
    (traces / "run.rank0.json").rename(home / "trace.json")
    (home / "arguments.json").write_text('{"lr": 0.1}')
    [source, _] = find([str(traces)]).sources
    assert len(source.files) == 2
    found = reduced(source, OF)
    assert list(found.ranks) == [0]
    assert found.left_out == {"rank_0/arguments.json": "beside the files of rank 0 that were read"}


def test_a_report_without_its_tables_is_summed_up_too(tmp_path):
    [made] = launch(1)
    home = tmp_path / made.folder
    home.mkdir()
    files.write(completed(made.report, files.schema()), home / "report.json")
    [source] = find([str(tmp_path)]).sources
    found = reduced(source, OF)
    assert found.ranks[0].step_s == pytest.approx(made.rank.step_s)
    assert (found.calls, found.steps.count) == ({}, len(made.rank.warm))
