"""Which files are of which rank, in folders and behind URLs."""

import gzip
import os

import fsspec
import pytest

from profstack.errors import UsageError
from profstack.scale.sources import find
from tests.support.rank_traces import rank_trace, told_rank


def files_of(found):
    return {each.rank: [url.rsplit("/", 1)[1] for url in each.files] for each in found.sources}


def test_a_trace_says_its_rank_else_its_name_or_folder_does(tmp_path):
    (tmp_path / "rank_4").mkdir()
    (tmp_path / "rank9.json").write_text(rank_trace(0, **told_rank(1, 6, host_name="b")))
    packed = gzip.compress(rank_trace(0, host_name="a").encode())
    (tmp_path / "worker.rank3.1.json.gz").write_bytes(packed)
    (tmp_path / "worker.rank3.0.json").write_text(rank_trace(0, host_name="a"))
    (tmp_path / "rank_4" / "trace.json").write_text(rank_trace(0, host_name="b"))
    for name in ("settings.json", "report.json", "rank5.txt"):
        (tmp_path / name).write_text("{}")
    found = find([str(tmp_path)])
    assert files_of(found) == {
        1: ["rank9.json"],
        3: ["worker.rank3.0.json", "worker.rank3.1.json.gz"],
        4: ["trace.json"],
    }
    assert found.world_size == 6
    # Machines are numbered in the order of their ranks.
    assert [each.node for each in found.sources] == [0, 1, 0]
    assert list(found.left_out) == [str(tmp_path / "settings.json")]
    assert found.sources[2].name == "rank_4/trace.json"
    # Where one trace does not name its machine none is known to be another's.
    (tmp_path / "rank_4" / "trace.json").write_text(rank_trace(0))
    assert [each.node for each in find([str(tmp_path)]).sources] == [None] * 3


def test_a_recording_is_one_source_whatever_is_in_it(tmp_path):
    home = tmp_path / "rank-00002"
    (home / "torch").mkdir(parents=True)
    (home / "report.json").write_text("{}")
    (home / "torch" / "trace.rank7.json").write_text(rank_trace(0))
    (tmp_path / "report.json").write_text("{}")
    (tmp_path / "rank2.json").write_text(rank_trace(0))
    [source] = find([str(tmp_path)]).sources
    assert (source.rank, source.is_recording, source.name) == (
        2,
        True,
        f"{tmp_path.name}/rank-00002",
    )
    # Any of its files makes it another version, and so does a trace.
    (home / "torch" / "trace.rank7.json").write_text("")
    [again] = find([str(tmp_path)]).sources
    assert again.key != source.key
    path = tmp_path / "rank2.json"
    keys = []
    for size, time in ((1, 5), (2, 5), (2, 6), (2, 6)):
        path.write_text("x" * size)
        os.utime(path, (time, time))
        keys.append(find([str(path)]).sources[0].key)
    assert len({*keys}) == 3
    assert keys[2] == keys[3]


def test_files_behind_a_url_and_in_several_places_are_found(tmp_path):
    system = fsspec.filesystem("memory")
    system.pipe_file("/launch/rank0.json", rank_trace(0).encode())
    (tmp_path / "rank1.json").write_text(rank_trace(0))
    try:
        found = find(["memory://launch", str(tmp_path)])
        assert files_of(found) == {0: ["rank0.json"], 1: ["rank1.json"]}
        assert found.sources[0].files == ("memory:///launch/rank0.json",)
    finally:
        system.rm("/launch", recursive=True)


def test_what_is_told_twice_counts_once_and_two_launches_are_no_launch(tmp_path):
    for run in ("one", "two"):
        home = tmp_path / run / "rank-00000"
        home.mkdir(parents=True)
        (home / "report.json").write_text("{}")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "rank4.json").write_text(rank_trace(0))
    path = str(tmp_path / "traces")
    assert find([path, f"{path}/rank4.json", path]).sources == find([path]).sources
    with pytest.raises(UsageError, match="rank 0 is there twice"):
        find([str(tmp_path)])
    with pytest.raises(UsageError, match="it is not there"):
        find([path, str(tmp_path / "trces")])
    # The page's own folder is none of the launch's, though it lies there.
    assert find([str(tmp_path)], tmp_path / "two").sources[0].rank == 0


def test_links_to_folders_are_followed_in_no_circle(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "rank2.json").write_text(rank_trace(0))
    launch = tmp_path / "launch"
    launch.mkdir()
    (launch / "linked").symlink_to(tmp_path / "elsewhere")
    (launch / "around").symlink_to(launch)
    os.mkfifo(launch / "rank3.json")
    assert files_of(find([str(launch)])) == {2: ["rank2.json"]}


def test_without_a_rank_or_a_place_that_is_one_line(tmp_path):
    (tmp_path / "settings.json").write_text("{}")
    told = {str(tmp_path): "no rank left a file", "nowhere://x/y": "cannot be opened"}
    for path, words in told.items():
        with pytest.raises(UsageError, match=words):
            find([path])
    with pytest.raises(UsageError):
        find([str(tmp_path / "none")])
