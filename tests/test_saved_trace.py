"""Traces that torch.profiler saved: the same tables as from the live events, or a clear refusal."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch_slice import Quiet

from profstack.capture.hooks import DISCOVER, RANGES, TorchHooks
from profstack.capture.module_names import ModuleNames
from profstack.errors import RecordingError
from profstack.readers.torchtrace import saved_trace
from profstack.readers.torchtrace.attribution import attribute
from profstack.readers.torchtrace.events import EVALUATE, read_host
from profstack.readers.torchtrace.saved_trace import SavedTrace, read_trace
from profstack.readers.torchtrace.slice_tables import Frames, ObservedSlice, slice_tables

# What both kinds of events must answer alike. Threads have other numbers in a trace, and the host
# has another one among devices.
ACCESSORS = (
    *("name", "activity_type", "start_ns", "duration_ns", "end_ns", "sequence_nr", "scope"),
    *("correlation_id", "shapes", "dtypes", "concrete_inputs", "nbytes", "is_user_annotation"),
)


class Net(nn.Module):
    """Holds operators with lists of tensors, texts, flags and shapes among their inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.act = nn.GELU(approximate="tanh")
        self.head = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.conv(x))
        x = torch.cat([x.mean((2, 3), keepdim=True).expand_as(x), x], 1)[:, 2:6]
        out: torch.Tensor = self.head(x.flatten(1))
        return out


class Recorded(NamedTuple):
    results: Any
    edges: list[int]
    path: Path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Three training steps with shapes and memory, live and saved."""
    model, images = Net(), torch.randn(2, 2, 4, 4)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), torch.zeros(2, dtype=torch.long)).backward()
        with torch.profiler.record_function("tidy up"):
            optimizer.step()

    hooks = TorchHooks(torch, Quiet(), ModuleNames())
    hooks.install()
    hooks.set_mode(DISCOVER)
    try:
        step()
        hooks.set_mode(RANGES)
        hooks.emit_ranges(True)
        options = {"use_kineto": True, "record_shapes": True, "profile_memory": True}
        with torch.autograd.profiler.profile(**options) as profile:
            for _ in range(3):
                step()
        hooks.emit_ranges(False)
    finally:
        hooks.remove()
    results = profile.kineto_results
    path = tmp_path_factory.mktemp("saved") / "trace.json"
    results.save(str(path))
    events = results.events()
    last = max(event.end_ns() for event in events)
    return Recorded(results, [events[0].start_ns(), last], path)


def tables(events: Any, kinds: Any, edges: list[int], kernels: Any = ()) -> Frames:
    host = read_host(events, kinds, inputs=True)
    owned = attribute(host, edges, lambda number: False)
    frames, notes = slice_tables(owned, ObservedSlice(0, kernels, shapes=True, memory=True))
    assert notes == []
    return frames


def told(trace: SavedTrace) -> list[tuple[Any, ...]]:
    return [tuple(getattr(event, each)() for each in ACCESSORS) for event in trace.events]


def test_every_event_answers_as_the_live_one(recorded):
    trace = read_trace(recorded.path)
    live = recorded.results.events()
    assert (trace.shapes, trace.memory, trace.kinds) == (True, True, None)
    assert len(trace.events) == len(live) > 300
    for accessor in ACCESSORS:
        expected = [getattr(event, accessor)() for event in live]
        assert [getattr(event, accessor)() for event in trace.events] == expected, accessor
    memory = [(e.nbytes(), e.device_index()) for e in live if e.name() == "[memory]"]
    saved = [(e.nbytes(), e.device_index()) for e in trace.events if e.name() == "[memory]"]
    assert saved == memory


def test_the_tables_are_those_of_the_live_events(recorded):
    trace = read_trace(recorded.path)
    live = tables(recorded.results.events(), None, recorded.edges)
    saved = tables(trace.events, trace.kinds, recorded.edges)
    assert saved == live
    assert any(row["backward_self_s"] > 0 and row["module_id"] > 0 for row in live["module_times"])
    assert {row["operator"] for row in live["flop_counts"]} >= {"aten::addmm", "aten::mm"}
    assert any(row["moved_bytes"] for row in live["moved_bytes"])


def test_any_size_of_what_is_read_at_once_gives_the_same(recorded, monkeypatch, tmp_path):
    whole = told(read_trace(recorded.path))
    short = tmp_path / "short.json"
    document = json.loads(recorded.path.read_text(encoding="utf-8"))
    document["traceEvents"] = document["traceEvents"][:40]
    short.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    expected = told(read_trace(short))
    for size in (1, 2, 7, 100):
        monkeypatch.setattr(saved_trace, "CHUNK", size)
        assert told(read_trace(short)) == expected
    monkeypatch.setattr(saved_trace, "CHUNK", 4099)
    assert told(read_trace(recorded.path)) == whole


def test_other_forms_of_the_same_trace(recorded, tmp_path):
    expected = told(read_trace(recorded.path))
    text = recorded.path.read_text(encoding="utf-8")
    zipped = tmp_path / "no-ending-tells"
    zipped.write_bytes(gzip.compress(text.encode()))
    assert told(read_trace(zipped)) == expected
    # As other tools write it again: in one line, the base after the events.
    document = json.loads(text, parse_float=str)
    document["baseTimeNanoseconds"] = document.pop("baseTimeNanoseconds")
    again = tmp_path / "again.json"
    again.write_text("\ufeff" + json.dumps(document, separators=(",", ":")), encoding="utf-8")
    assert told(read_trace(again)) == expected
    alone = tmp_path / "alone.json"
    alone.write_text(json.dumps(document["traceEvents"]), encoding="utf-8")
    base = document["baseTimeNanoseconds"]
    starts = [event.start_ns() + base for event in read_trace(alone).events]
    assert starts == [each[2] for each in expected]


def test_a_trace_is_never_held_as_a_whole(recorded, monkeypatch, tmp_path):
    document = json.loads(recorded.path.read_text(encoding="utf-8"), parse_float=str)
    document["traceEvents"] *= 5
    path = tmp_path / "long.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    count = len(document["traceEvents"])
    del document
    monkeypatch.setattr(saved_trace, "CHUNK", 1 << 14)
    tracemalloc.start()
    try:
        trace = read_trace(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count / 2 < len(trace.events) < count
    # The text alone would take its size, and what json.load makes of it several times that.
    assert peak < path.stat().st_size


# -- made by hand ----------------------------------------------------------------------------------


def event(
    name: str, ts: Any, dur: Any = 1, *, cat: str = "cpu_op", tid: Any = 7, **args: Any
) -> Any:
    given = {key.replace("_", " "): value for key, value in args.items()}
    made = {"ph": "X", "cat": cat, "name": name, "pid": 5, "tid": tid, "ts": ts, "dur": dur}
    return {**made, "args": given}


def saved(tmp_path: Path, *events: Any, **header: Any) -> Path:
    path = tmp_path / "made.json"
    path.write_text(json.dumps({**header, "traceEvents": [*events]}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4429693477324.943", 4429693477324943),
        # A float holds neither this time nor the one before it.
        ("9007199254740.993", 9007199254740993),
        ("-12.001", -12001),
        ("-0.001", -1),
        ("12", 12000),
        ("0.5", 500),
        ("1.5e3", 1500000),
        ("3.0004", 3000),
    ],
)
def test_times_are_exact(tmp_path, text, expected):
    path = tmp_path / "made.json"
    made = json.dumps({"baseTimeNanoseconds": 10**18, "traceEvents": [event("op", "TIME")]})
    path.write_text(made.replace('"TIME"', text), encoding="utf-8")
    [read] = read_trace(path).events
    assert read.start_ns() == 10**18 + expected


def test_arrows_tell_which_thread_a_forward_ran_on(tmp_path):
    def arrow(number: int, tid: int, ts: int, to: int, at: int) -> list[Any]:
        ends = ({"ph": "s", "tid": tid, "ts": ts}, {"ph": "f", "tid": to, "ts": at})
        return [{"cat": "fwdbwd", "id": number, "pid": 5, **end} for end in ends]

    def backward(ts: int, tid: int, made_on: int) -> Any:
        numbers = {"Sequence_number": 3, "Fwd_thread_id": made_on}
        return event(EVALUATE + "XBackward0", ts, tid=tid, **numbers)

    path = saved(
        tmp_path,
        event("aten::one", 1, tid=70, Sequence_number=3, Fwd_thread_id=0),
        event("aten::two", 1, tid=80, Sequence_number=3, Fwd_thread_id=0),
        backward(10, 90, 2),
        backward(20, 90, 1),
        backward(30, 90, 9),
        *arrow(1, 80, 1, 90, 10),
        *arrow(2, 70, 1, 90, 20),
    )
    one, two, *backwards = read_trace(path).events
    assert [each.fwd_thread_id() for each in (one, two)] == [0, 0]
    threads = [each.fwd_thread_id() for each in backwards]
    # Nothing in the trace tells of the third: then it is not told.
    assert threads == [two.start_thread_id(), one.start_thread_id(), -1]


def test_kernels_belong_to_the_operators_that_launched_them(tmp_path):
    # No GPU is needed to read a trace that was recorded on one.
    path = saved(
        tmp_path,
        event("aten::mm", 10, 5, External_id=4, Input_Dims=[[2, 3], [3, 4]]),
        event("cudaLaunchKernel", 11, 1, cat="cuda_runtime", External_id=4, correlation=99),
        event(
            *("gemm", 12, 20),
            cat="kernel",
            tid=13,
            External_id=4,
            correlation=99,
            device=1,
            stream=13,
        ),
        event("gemm", 40, 2, cat="kernel", tid=13, device=1, stream=13),
        event("a range on the device", 12, 30, cat="gpu_user_annotation"),
    )
    trace = read_trace(path)
    assert trace.kinds == ["cpu_op", "cuda_runtime", "kernel", "kernel"]
    assert [call.correlation_id() for call in trace.runtime] == [99]
    frames = tables(trace.events, trace.kinds, [0, 100_000], trace.kernels)
    rows = [
        (row["operator"], row["device"], row["stream"], row["calls"]) for row in frames["kernels"]
    ]
    assert rows == [("aten::mm", "cuda:1", 13, 1), (None, "cuda:1", 13, 1)]
    [row] = frames["operators"]
    assert (row["name"], row["shapes"]) == ("aten::mm", "[[2, 3], [3, 4]]")
    assert row["device_s"] == pytest.approx(20e-6)


GOOD = json.dumps({"traceEvents": [event("op", 1)]})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "the file is empty"),
        (" \n ", "the file is empty"),
        ("no JSON", "no Chrome trace"),
        ("\x00\x01\x02", "no Chrome trace"),
        ("{}", "no traceEvents"),
        ('{"traceEvents": 3}', "no traceEvents"),
        ('{"traceEvents": []}', "no operator, range or kernel among its 0 events"),
        ('{"traceEvents": [{"ph": "M"}]}', "no operator, range or kernel among its 1 events"),
        ("[]", "no operator, range or kernel"),
        (GOOD[:-1], "ends in the middle"),
        (GOOD[:-2], "ends in the middle"),
        (GOOD[:-20], "ends in the middle"),
        ('{"traceEvents": [{"ph": "X"} {"ph": "X"}]}', "no Chrome trace"),
        ('{"traceEvents" [1]}', "no Chrome trace"),
        ("[" * 200_000, "too deep"),
        ('{"a": ' + "[" * 200_000, "too deep"),
        ("[3]", "event 1 of the trace"),
        ('[{"ph": "X", "cat": "cpu_op"}]', "event 1 of the trace"),
        ('{"a": 1' + "0" * 5000 + "}", "no Chrome trace"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, text, what):
    path = tmp_path / "made.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecordingError) as caught:
        read_trace(path)
    said = str(caught.value)
    assert what in said
    assert said.startswith(str(path))
    assert caught.value.next_step
    assert "\n" not in said


@pytest.mark.parametrize(
    "changed",
    [
        *({"ts": None}, {"ts": True}, {"ts": "soon"}, {"ts": "nan"}, {"ts": "1e999999999"}),
        *({"ts": 10**30}, {"name": 3}, {"tid": []}, {"dur": {}}, {"args": 3}, {"cat": []}),
        *({"args": {"Sequence number": "x"}}, {"args": {"External id": 1 << 70}}),
    ],
    ids=str,
)
def test_an_event_that_is_none_is_named(tmp_path, changed):
    path = saved(tmp_path, event("op", 1), {**event("op", 2), **changed})
    with pytest.raises(RecordingError, match="event 2 of the trace cannot be read"):
        read_trace(path)


def test_strange_inputs_harm_nothing(tmp_path):
    strange = {"Input_Dims": [[1, [2]], 3, None], "Input_type": [3], "Concrete_Inputs": ["f(", 3]}
    [read] = read_trace(saved(tmp_path, event("op", 1, **strange))).events
    assert read.shapes() == [[], [], []]
    assert read.dtypes() == ["3"]
    assert read.concrete_inputs() == ["f(", 3]


def test_compressed_files_that_are_cut_or_unfold_too_far(tmp_path):
    path = tmp_path / "trace.json.gz"
    whole = gzip.compress(json.dumps([event(f"op{n}", n) for n in range(2000)]).encode())
    path.write_bytes(whole[:-30])
    with pytest.raises(RecordingError, match="ends in the middle"):
        read_trace(path)
    path.write_bytes(whole[:2] + b"\x00" + whole[3:])
    with pytest.raises(RecordingError, match="ends in the middle"):
        read_trace(path)
    path.write_bytes(gzip.compress(b"[" + b" " * (40 << 20)))
    with pytest.raises(RecordingError, match="more than 16 MiB"):
        read_trace(path, most=16 << 20)


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(RecordingError, match="cannot be read"):
            read_trace(path)
