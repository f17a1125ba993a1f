"""Snapshots of a CUDA allocator against one that was played and counted, and damaged ones."""

import copy
import gzip
import pickle
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given

from profstack.errors import UsageError
from profstack.readers.formats import Request
from profstack.readers.memory import snapshot
from tests.support.damage import ANY_VALUE, CHANCE, put_anywhere
from tests.support.snapshots import STACKS, frames, play
from tests.support.tables import cases, of

KINDS = {
    "forward": snapshot.FORWARD,
    "backward": snapshot.BACKWARD,
    "optimizer": snapshot.OPTIMIZER,
    "elsewhere": snapshot.ELSEWHERE,
    "unknown": snapshot.NO_STACK,
}


@pytest.fixture
def written(tmp_path):
    def write(value, protocol=4):
        path = tmp_path / "s.pickle"
        path.write_bytes(pickle.dumps(value, protocol))
        return path

    return write


def taken(path, **request):
    return snapshot.take([path], Request(**request))


def named(held):
    """Bytes by the name of the part; what is held from before the history has no stack."""
    found = Counter()
    for stack, size in held.items():
        found[KINDS[stack]] += size
    return +found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("release", [0.45, 0.55])
def test_memory_over_time_is_what_was_played(written, seed, release):
    # Segments are only given back where little is alive.
    (played,) = play(seed, release=release)
    found = taken(written(played.snapshot))
    rows = found.added["memory"]
    assert [row["device_allocated_bytes"] for row in rows] == [
        sum(held.values()) for held in played.held
    ]
    assert [row["device_reserved_bytes"] for row in rows] == played.reserved
    trace = played.snapshot["device_traces"][0]
    times = [(entry["time_us"] - trace[0]["time_us"]) / 1e6 for entry in trace]
    assert [row["t_s"] for row in rows] == [0.0, *times]
    assert found.added["slices"][0]["wall_s"] == times[-1]


@pytest.mark.parametrize("seed", range(6))
def test_owners_and_places_at_the_peak_are_those_that_were_played(written, seed):
    # All that is alive was taken within the history: its stacks are known.
    (played,) = play(seed, before=0)
    added = taken(written(played.snapshot), slice=2).added
    sums = [sum(held.values()) for held in played.held]
    peak = sums.index(max(sums))
    owners = {row["kind"]: row for row in added["memory_owners"]}
    for column, moment in (("start_bytes", 0), ("peak_bytes", peak), ("end_bytes", -1)):
        found = +Counter({kind: row[column] for kind, row in owners.items()})
        assert found == named(played.held[moment])
    for stack, kind in KINDS.items():
        largest = max(held.get(stack, 0) for held in played.held)
        assert owners[kind]["largest_bytes"] == largest
    lines = {row["part"]: row for row in added["snapshot_lines"]}
    allocated = Counter()
    for entry in played.snapshot["device_traces"][0]:
        if entry["action"] == "alloc":
            stack = next(name for name in STACKS if STACKS[name][2] == entry["frames"])
            allocated[stack] += entry["size"]
    for stack, (file, line, _) in STACKS.items():
        row = lines[KINDS[stack]]
        assert (str(row["file"]).split("/")[-1], row["line"]) == (str(file), line)
        sizes = [allocated[stack], *(played.held[at].get(stack, 0) for at in (peak, -1))]
        assert of(row, "allocated_bytes peak_bytes end_bytes") == sizes
    assert {row["slice"] for row in added["snapshot_lines"]} == {2}
    peaks = [row["peak_bytes"] for row in added["snapshot_stacks"]]
    assert peaks == sorted(peaks, reverse=True)
    stacks = [row["stack"] for row in added["snapshot_stacks"]]
    inner = "functional.py:550 linear < model.py:41 attend"
    assert [each for each in stacks if each.startswith(inner)]


def test_segments_are_divided_into_what_is_in_them(written):
    (played,) = play(25, actions=70)
    # One more segment that nothing is in.
    spare = {**copy.deepcopy(played.snapshot["segments"][0]), "active_size": 0}
    free = {"size": spare["total_size"], "state": "inactive", "frames": []}
    spare["blocks"] = [spare["blocks"][0] | free]
    played.snapshot["segments"].append(spare)
    (row,) = taken(written(played.snapshot)).added["snapshot_segments"]
    segments = played.snapshot["segments"]
    blocks = [block for segment in segments for block in segment["blocks"]]
    sizes = Counter()
    for block in blocks:
        sizes[block["state"]] += block["size"]
        if block["state"] == "active_allocated":
            sizes["rounding"] += block["size"] - block["requested_size"]
    unused = sum(each["total_size"] for each in segments if not each["active_size"])
    assert min(sizes.values()) > 0 < unused < sizes["inactive"]
    names = "segments allocated_bytes pending_bytes rounding_bytes unused_bytes gap_bytes"
    assert of(row, f"{names} reserved_bytes largest_gap_bytes") == [
        *(len(segments), sizes["active_allocated"], sizes["active_pending_free"]),
        *(sizes["rounding"], unused, sizes["inactive"] - unused),
        sum(each["total_size"] for each in segments),
        max(block["size"] for block in blocks if block["state"] == "inactive"),
    ]


def test_devices_have_rows_of_their_own_and_the_fullest_one_the_memory_over_time(written):
    one, two = play(7, devices=2, before=0)
    added = taken(written(one.snapshot)).added
    peaks = [max(sum(held.values()) for held in each.held) for each in (one, two)]
    assert peaks[0] != peaks[1]
    for device, peak in enumerate(peaks):
        own = [row for row in added["snapshot_lines"] if row["device"] == f"cuda:{device}"]
        assert sum(row["peak_bytes"] for row in own) == peak
    assert max(row["device_allocated_bytes"] for row in added["memory"]) == max(peaks)
    fullest = peaks.index(max(peaks))
    (note,) = added["notes"]
    assert (note["slug"], f"cuda:{fullest}" in note["text"]) == ("snapshot-devices", True)


def test_without_a_history_what_is_alive_is_told_and_the_peak_is_not(written):
    (played,) = play(8)
    value = {"segments": played.snapshot["segments"], "device_traces": [[]]}
    added = taken(written(value)).added
    alive = sum(played.held[-1].values())
    assert [row["device_allocated_bytes"] for row in added["memory"]] == [alive]
    assert added["notes"][0]["slug"] == "snapshot-history"
    assert "the peak is not known" in added["notes"][0]["text"]


def test_a_failed_allocation_is_told_with_its_place(written):
    (played,) = play(9)
    failed = {
        "action": "oom", "device_free": 3 << 20, "size": 5 << 30, "stream": 0,
        "time_us": 10**15, "frames": STACKS["forward"][2],
    }  # fmt: skip
    trace = played.snapshot["device_traces"][0]
    trace += [failed, {**failed, "size": 6 << 30, "device_free": 7 << 20}]
    (note,) = taken(written(played.snapshot)).added["notes"]
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


def test_a_snapshot_is_recognised_and_any_other_pickle_is_not(written):
    (played,) = play(1)
    for protocol in (2, 3, 4, 5):
        assert snapshot.recognise(pickle.dumps(played.snapshot, protocol)[:300], "x")
    for other in (pickle.dumps([1, 2]), pickle.dumps(played.snapshot, 0), b"segments", b""):
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
def test_what_is_damaged_says_what(written, path, value, words):
    part = whole = copy.deepcopy(play(2)[0].snapshot)
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(UsageError, match=words) as error:
        taken(written(whole))
    assert str(error.value).count("\n") == 0


@given(ANY_VALUE, CHANCE)
def test_a_snapshot_with_any_value_anywhere_is_read_or_ends_in_one_line(
    tmp_path_factory, value, chance
):
    whole = copy.deepcopy(play(4, actions=12)[0].snapshot)
    put_anywhere(value, whole, chance)
    path = tmp_path_factory.mktemp("any") / "s.pickle"
    path.write_bytes(pickle.dumps(whole))
    with suppress(UsageError):
        assert taken(path).added["snapshot_lines"] is not None


def test_values_that_a_pickle_shares_are_visited_only_so_often(written, monkeypatch):
    (played,) = play(2)
    value = {"segments": [played.snapshot["segments"][0]] * 1000}
    path = written(value)
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
