"""Snapshots of a CUDA allocator against one that was played and counted, and damaged ones."""

import gzip
import pickle
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given

from profstack.errors import UsageError
from profstack.readers.formats import Request
from profstack.readers.memory import snapshot
from tests.support import snapshots
from tests.support.damage import ANY_VALUE, CHANCE, put_anywhere
from tests.support.snapshots import frames
from tests.support.tables import cases, of


def written(folder, value):
    (folder / "s.pickle").write_bytes(pickle.dumps(value))
    return folder / "s.pickle"


def taken(path, **request):
    return snapshot.take([path], Request(**request))


def test_memory_over_time_is_that_of_the_history(tmp_path):
    found = taken(written(tmp_path, snapshots.snapshot()))
    rows = found.added["memory"]
    assert [row["device_allocated_bytes"] for row in rows] == snapshots.ALLOCATED
    assert [row["device_reserved_bytes"] for row in rows] == snapshots.RESERVED
    times = [0.0, *(0.0015 * number for number in range(13))]
    assert [row["t_s"] for row in rows] == pytest.approx(times)
    assert found.added["slices"][0]["wall_s"] == pytest.approx(times[-1])


def test_owners_places_and_stacks_at_the_peak(tmp_path):
    added = taken(written(tmp_path, snapshots.snapshot()), slice=2).added
    names = "start_bytes peak_bytes largest_bytes end_bytes"
    assert {row["kind"]: of(row, names) for row in added["memory_owners"]} == {
        snapshot.NO_STACK: [4000, 0, 4000, 0],
        snapshot.OPTIMIZER: [0, 9000, 9000, 9000],
        snapshot.ELSEWHERE: [2000, 2000, 2700, 2700],
        snapshot.BACKWARD: [0, 50_000, 50_000, 0],
        snapshot.FORWARD: [0, 30_000, 30_000, 1500],
    }
    names = "slice file line blocks allocated_bytes peak_bytes end_bytes"
    lines = {row["part"]: of(row, names) for row in added["snapshot_lines"]}
    assert lines == {
        snapshot.BACKWARD: [2, "/home/u/train.py", 86, 1, 50_000, 50_000, 0],
        snapshot.FORWARD: [2, "/home/u/model.py", 41, 2, 31_500, 30_000, 1500],
        snapshot.OPTIMIZER: [2, "/home/u/train.py", 88, 1, 9000, 9000, 9000],
        snapshot.ELSEWHERE: [2, "/home/u/data.py", 12, 2, 2700, 2000, 2700],
        snapshot.NO_STACK: [2, None, None, 1, 4000, 0, 0],
    }
    peaks = [row["peak_bytes"] for row in added["snapshot_stacks"]]
    assert peaks == sorted(peaks, reverse=True)
    stacks = [row["stack"] for row in added["snapshot_stacks"]]
    inner = "functional.py:550 linear < model.py:41 attend"
    assert [each for each in stacks if each.startswith(inner)]


def test_segments_are_divided_into_what_is_in_them(tmp_path):
    value = snapshots.snapshot()
    # One more segment that nothing is in.
    value["segments"].append(snapshots.segment(snapshots.C, [(snapshots.SEGMENT, 0, None)]))
    (row,) = taken(written(tmp_path, value)).added["snapshot_segments"]
    names = "segments allocated_bytes pending_bytes rounding_bytes unused_bytes gap_bytes"
    assert of(row, f"{names} reserved_bytes largest_gap_bytes") == [
        *(3, 2048 + 1536 + 9216 + 1024, 30_208, 48 + 36 + 216 + 324, snapshots.SEGMENT),
        *(2 * snapshots.SEGMENT - 13_824 - 30_208, 3 * snapshots.SEGMENT, snapshots.SEGMENT),
    ]


def test_devices_have_rows_of_their_own_and_the_fullest_one_the_memory_over_time(tmp_path):
    value, block = snapshots.snapshot(), (102_400, 99_000, "forward")
    value["segments"].append(snapshots.segment(snapshots.C, [block], device=1))
    history = [snapshots.entry(0, "alloc", snapshots.C, 99_000, "forward")]
    value["device_traces"].append(history)
    added = taken(written(tmp_path, value)).added
    peaks = Counter()
    for row in added["snapshot_lines"]:
        peaks[row["device"]] += row["peak_bytes"]
    assert peaks == {"cuda:0": 91_000, "cuda:1": 99_000}
    assert [row["device_allocated_bytes"] for row in added["memory"]] == [0, 99_000]
    (note,) = added["notes"]
    assert (note["slug"], "cuda:1" in note["text"]) == ("snapshot-devices", True)


def test_without_a_history_what_is_alive_is_told_and_the_peak_is_not(tmp_path):
    added = taken(written(tmp_path, {**snapshots.snapshot(), "device_traces": [[]]})).added
    assert [row["device_allocated_bytes"] for row in added["memory"]] == [13_200]
    assert added["notes"][0]["slug"] == "snapshot-history"
    assert "the peak is not known" in added["notes"][0]["text"]


def test_a_failed_allocation_is_told_with_its_place(tmp_path):
    value = snapshots.snapshot()
    failed = {"action": "oom", "device_free": 7 << 20, "size": 6 << 30, "time_us": 10**15 + 10**6}
    failed["frames"] = snapshots.STACKS["forward"]
    value["device_traces"][0] += [{**failed, "size": 5 << 30}, failed]
    (note,) = taken(written(tmp_path, value)).added["notes"]
    assert note["slug"] == "out-of-memory"
    expected = "2 times, the last time when 6.00 GiB were asked for at model.py:41 while the device"
    assert expected in note["text"]
    assert note["text"].endswith("had 7.00 MiB free")


@cases(
    "stack kind place",
    (frames(("??", 0, "torch::autograd::Engine::thread_main()")), snapshot.BACKWARD, None),
    (frames(("/p/c10/alloc.cpp", 3, "malloc"), ("/home/u/a.py", 4, "f")),
     snapshot.ELSEWHERE, ("/home/u/a.py", 4, "f")),
    (frames(("/x/site-packages/torch/optim/lr_scheduler.py", 9, "step")),
     snapshot.ELSEWHERE, ("/x/site-packages/torch/optim/lr_scheduler.py", 9, "step")),
    (frames(("<string>", 2, "f")), snapshot.ELSEWHERE, ("<string>", 2, "f")),
)  # fmt: skip
def test_parts_and_places_by_other_stacks(stack, kind, place):
    found = tuple(snapshot.Frame(*each.values()) for each in stack)
    assert (snapshot.kind_of(found), snapshot.place_of(found)) == (kind, place)


def test_a_snapshot_is_recognised_and_any_other_pickle_is_not():
    value = snapshots.snapshot()
    for protocol in (2, 3, 4, 5):
        assert snapshot.recognise(pickle.dumps(value, protocol)[:300], "x")
        assert snapshot.recognise(pickle.dumps({"segments": []}, protocol), "x")
    for other in (pickle.dumps([1, 2]), pickle.dumps(value, 0), b"segments", b""):
        assert not snapshot.recognise(other, "a.pickle")


SEGMENT, BLOCK = ("segments", 0), ("segments", 0, "blocks", 0)
ENTRY = ("device_traces", 0, 0)


@cases(
    "path value words",
    (("segments",), 1, "no list of segments"),
    ((*SEGMENT, "total_size"), -1, "a 'total_size' of -1"),
    ((*SEGMENT, "total_size"), 1 << 5000, "'total_size' that is no number"),
    ((*BLOCK, "frames"), [{"filename": "a", "line": 1}], "'name' that is no text"),
    ((*ENTRY, "time_us"), -5, "a time_us that is none"),
    ((*ENTRY, "size"), 1 << 60, "a 'size' of"),
)
def test_what_is_damaged_says_what(tmp_path, path, value, words):
    part = whole = snapshots.snapshot()
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(UsageError, match=words) as error:
        taken(written(tmp_path, whole))
    assert str(error.value).count("\n") == 0


@given(ANY_VALUE, CHANCE)
def test_a_snapshot_is_read_or_ends_in_one_line(tmp_path_factory, value, chance):
    whole = snapshots.snapshot()
    put_anywhere(value, whole, chance)
    path = tmp_path_factory.mktemp("any") / "s.pickle"
    path.write_bytes(pickle.dumps(whole))
    with suppress(UsageError):
        assert taken(path).added["snapshot_lines"] is not None


def test_values_that_a_pickle_shares_are_visited_only_so_often(tmp_path, monkeypatch):
    value = {"segments": snapshots.snapshot()["segments"][:1] * 1000}
    path = written(tmp_path, value)
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(snapshot, "MOST_VALUES", 5_000)
    with pytest.raises(UsageError, match="more than 5,000 values"):
        taken(path)


def test_bombs_end_in_one_line(tmp_path, monkeypatch):
    path = tmp_path / "s.pickle"
    head = b"\x80\x04}(\x8c\x08segments"
    for data, words in (
        (head + b"]" * 2_000_000, "too much memory"),
        (gzip.compress(bytes(5 << 20)), "has more than 4.00 MiB"),
        (b"\x1f\x8b\x08" + bytes(20), "is damaged"),
        (pickle.dumps({"segments": print}), "more than plain values: opcode STACK_GLOBAL"),
    ):
        monkeypatch.setattr(snapshot, "MOST_BYTES", 4 << 20)
        monkeypatch.setattr(snapshot, "MOST_MEMORY", 1 << 26)
        path.write_bytes(data)
        with pytest.raises(UsageError, match=words) as error:
            taken(path)
        assert str(error.value).count("\n") == 0
