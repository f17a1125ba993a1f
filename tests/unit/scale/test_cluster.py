"""Ranks summed up without a cluster, and taken up at a second start; the plan's errors."""

from dataclasses import replace

import pytest

from profstack.errors import UsageError
from profstack.ranks.summary import together
from profstack.scale import cluster
from profstack.scale.cluster import KEPT, Plan, summed_up
from profstack.scale.reduce import Launch, reduced
from profstack.scale.sources import find
from tests.support.rank_traces import rank_trace, told_rank

OF = Launch(3, 3)


@pytest.fixture
def traces(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(3):
        text = rank_trace(100 * rank, **told_rank(rank, 3))
        (folder / f"rank{rank}.json").write_text(text)
    return folder


def test_what_is_finished_is_not_read_again_at_a_second_start(traces, tmp_path, monkeypatch):
    (traces / "rank1.json").write_text("")
    read, told = [], []

    def noted(source, launch):
        read.append(source.rank)
        return reduced(source, launch)

    def start():
        read.clear(), told.clear()
        sources = find([str(traces)]).sources
        return summed_up(sources, OF, Plan(), tmp_path / "out", told.append)

    monkeypatch.setattr(cluster, "reduced", noted)
    (tmp_path / "out" / KEPT).mkdir(parents=True)
    first = start()
    assert (read, sorted(first.ranks), len(first.left_out)) == ([0, 1, 2], [0, 2], 1)
    assert told[-1].startswith("3 of 3 ranks in ")
    # What could not be read is tried again.
    again = start()
    assert (read, again.ranks, again.steps) == ([1], first.ranks, first.steps)
    assert told[0] == "2 of 3 ranks are there from an earlier start"
    for rank in (0, 1):
        text = rank_trace(250, **told_rank(rank, 3))
        (traces / f"rank{rank}.json").write_text(text + "\n")
    whole = start()
    assert (read, sorted(whole.ranks), whole.left_out) == ([0, 1], [0, 1, 2], {})
    assert whole.calls == together(reduced(each, OF) for each in find([str(traces)]).sources).calls
    start()
    assert (read, len(told)) == ([], 1)
    # What is none, or of another version, counts for nothing.
    for path in (tmp_path / "out" / KEPT).iterdir():
        path.write_bytes(path.read_bytes()[:-2])
    assert (start().ranks, read) == (whole.ranks, [0, 1, 2])
    assert not list((tmp_path / "out" / KEPT).glob("*.part"))


def test_a_summary_is_of_its_files_launch_and_machine(traces, tmp_path):
    (tmp_path / KEPT).mkdir()
    source = find([str(traces)]).sources[0]
    kept = cluster._Kept(tmp_path / KEPT, OF)
    kept.write(source, reduced(source, OF))
    assert kept.read(source).ranks.keys() == {0}
    for other, launch in ((replace(source, node=1), OF), (replace(source, key="x"), OF),
                          (source, Launch(4, 3))):  # fmt: skip
        assert cluster._Kept(tmp_path / KEPT, launch).read(other) is None
    # One of another rank is none, whatever its file is called.
    (tmp_path / KEPT / kept.name_of(source)).write_bytes(
        reduced(find([str(traces)]).sources[2], OF).encoded()
    )
    assert kept.read(source) is None


@pytest.mark.parametrize(("given", "count", "workers"), [
    (None, 15, 0), (None, 16, 4), (None, 3000, 4), (0, 3000, 0), (7, 2, 7),
])  # fmt: skip
def test_many_ranks_are_read_by_as_many_processes_as_there_are_cores(
    monkeypatch, given, count, workers
):
    monkeypatch.setattr(cluster, "usable_cores", lambda: 4)
    assert cluster._workers(Plan(workers=given), count) == workers
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    assert cluster._workers(Plan(workers=given), count) == (given or 0)


def test_a_limit_of_memory_that_is_none_is_one_line():
    assert cluster._bytes("auto") == "auto"
    assert cluster._bytes("2GB") == 2_000_000_000
    with pytest.raises(UsageError, match="no number of bytes"):
        cluster._bytes("2XB")


def test_a_scheduler_that_is_none_is_one_line(traces, tmp_path):
    sources = find([str(traces)]).sources
    for address, told in (("nonsense://here", "no scheduler answers"), ("", "no scheduler")):
        with pytest.raises(UsageError, match=told):
            summed_up(sources, OF, Plan(scheduler=address), tmp_path, lambda line: None)


def test_how_far_it_is_comes_with_an_estimate(monkeypatch):
    clock, told = [100.0], []
    monkeypatch.setattr(cluster.time, "monotonic", lambda: clock[0])
    progress = cluster._Progress(5, told.append)
    for seconds in (0.4, 0.2, 1.4, 0.1, 0.1):
        clock[0] += seconds
        progress.one()
    assert told == [
        "2 of 5 ranks in 600 ms, about 900 ms more",
        "3 of 5 ranks in 2.00 s, about 1.33 s more",
        "5 of 5 ranks in 2.20 s",
    ]
