"""Traces that torch.profiler saved: read whole in pieces of any size, or a clear refusal."""

import gzip
import json

import pytest
import torch
from torch import nn

from profstack.errors import RecordingError
from profstack.readers.torchtrace import saved_trace, trace_file
from profstack.readers.torchtrace.attribution import attribute
from profstack.readers.torchtrace.events import EVALUATE, read_host
from profstack.readers.torchtrace.saved_trace import read_trace
from profstack.readers.torchtrace.slice_tables import ObservedSlice, slice_tables
from tests.support.events import saved_event as event
from tests.support.events import saved_file as saved
from tests.support.torch_slices import observe

ACCESSORS = "name activity_type start_ns duration_ns end_ns sequence_nr scope correlation_id "
ACCESSORS += "shapes dtypes concrete_inputs nbytes is_user_annotation"


def told(events):
    return [tuple(getattr(event, each)() for each in ACCESSORS.split()) for event in events]


def test_a_compressed_trace_and_any_size_of_what_is_read_at_once(tmp_path, monkeypatch):
    # A training step with shapes and memory, among whose inputs are lists of tensors, texts, flags
    # and shapes.
    model, images = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GELU("tanh")), torch.randn(2, 2, 4, 4)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)

    def step():
        torch.cat([model(images), model(images)], 1).sum().backward()
        with torch.profiler.record_function("tidy up"):
            optimizer.step()

    expected = told(observe(step, 1, "detail", folder=tmp_path).events.events())
    whole, path = tmp_path / "trace.json", tmp_path / "none"
    document = json.loads(whole.read_text(encoding="utf-8"))
    document["traceEvents"] = document["traceEvents"][:40]
    for indent in (None, 1, 2):
        path.write_text(json.dumps(document, ensure_ascii=False, indent=indent), encoding="utf-8")
        short = told(read_trace(path).events)
        assert len(short) > 20
        for size in (1, 2, 7, 100, 3000):
            monkeypatch.setattr(trace_file, "PIECE", size)
            assert told(read_trace(path).events) == short
    path.write_bytes(gzip.compress(whole.read_bytes()))
    for each in (whole, path):
        for size in (4099, 1 << 20):
            monkeypatch.setattr(trace_file, "PIECE", size)
            assert told(read_trace(each).events) == expected


def test_times_are_exact_and_begin_at_the_base_where_there_is_one(tmp_path):
    # A float holds neither the second time nor the one before it.
    times = {"4429693477324.943": 4429693477324943, "9007199254740.993": 9007199254740993}
    times |= {"-12.001": -12001, "-0.001": -1, "12": 12000, "0.5": 500, "1.5e3": 1500000}
    for text, expected in (times | {"3.0004": 3000}).items():
        made = json.dumps({"baseTimeNanoseconds": 10**18, "traceEvents": [event("op", "TIME")]})
        [read] = read_trace(saved(tmp_path, made.replace('"TIME"', text))).events
        assert read.start_ns() == 10**18 + expected, text
    # A base that is no time is left out.
    for base in ("5", -5, 0, 1 << 62):
        [read] = read_trace(saved(tmp_path, event("op", 3), baseTimeNanoseconds=base)).events
        assert read.start_ns() == 3000


def test_arrows_tell_which_thread_a_forward_ran_on(tmp_path):
    def arrow(number, tid, ts, to, at):
        ends = ({"ph": "s", "tid": tid, "ts": ts}, {"ph": "f", "tid": to, "ts": at})
        return [{"cat": "fwdbwd", "id": number, "pid": 5, **end} for end in ends]

    told = [("aten::one", 1, 70, 0), ("aten::two", 1, 80, 0)]
    told += [(EVALUATE + "XBackward0", ts, 90, on) for ts, on in ((10, 2), (20, 1), (30, 9))]
    made = [event(*n, tid=tid, Sequence_number=3, Fwd_thread_id=on) for *n, tid, on in told]
    arrows = [*arrow(1, 80, 1, 90, 10), *arrow(2, 70, 1, 90, 20)]
    one, two, *_ = found = read_trace(saved(tmp_path, *made, *arrows)).events
    # Nothing in the trace tells of the third: then it is not told.
    threads = [0, 0, two.start_thread_id(), one.start_thread_id(), -1]
    assert [each.fwd_thread_id() for each in found] == threads


GOOD = json.dumps({"traceEvents": [event("op", 1)]})
DEEP = "[" * 200_000


def test_what_is_no_trace_is_refused_in_one_line(tmp_path):
    for text, what in [
        *(("", "the file is empty"), (" \n ", "the file is empty"), ("no JSON", "no Chrome trace")),
        *(('{"traceEvents": 3}', "no traceEvents"), ('{"traceEvents" [1]}', "no traceEvents")),
        ('{"traceEvents": []}', "no operator, range or kernel among its 0 events"),
        *((GOOD[:cut], "ends in the middle") for cut in (-5, -20)),
        *((DEEP, "ends in the middle"), ('{"a": ' + DEEP, "no traceEvents")),
    ]:
        path = saved(tmp_path, text)
        with pytest.raises(RecordingError) as caught:
            read_trace(path)
        said = str(caught.value)
        assert (what in said, said.startswith(str(path)), "\n" in said) == (True, True, False), text
        assert caught.value.next_step


def test_files_that_cannot_be_read_or_are_beyond_the_limits(tmp_path, monkeypatch):
    def refuses(match, path, **more):
        with pytest.raises(RecordingError, match=match):
            read_trace(path, **more)

    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * (40 << 20)))
    refuses("more than 16 MiB", path, most=16 << 20)
    for path in (tmp_path / "missing.json", tmp_path):
        refuses("cannot be read", path)
    # They leave room for real traces.
    assert 40 << 20 < trace_file.LONGEST < 100 << 20
    assert 5 << 30 < trace_file.MOST_BYTES < 20 << 30
    monkeypatch.setattr(trace_file, "PIECE", 100)
    monkeypatch.setattr(trace_file, "LONGEST", 1_000)
    assert read_trace(saved(tmp_path, event("o" * 500, 1))).events
    refuses("an event is longer than", saved(tmp_path, event("o" * 5_000, 1)))


@pytest.mark.parametrize("number", [1 << 31, -(1 << 40), 1 << 63, 10**30, 1.5, -1, "7", None])
def test_no_number_in_a_trace_is_too_large_or_of_a_wrong_type(tmp_path, number):
    fields = ("ts", "dur", "pid", "tid")
    given = ("device", "stream", "Bytes", "Device_Id", "External_id", "Sequence_number")
    given += ("Fwd_thread_id", "correlation")
    kinds = ("cpu_op", "kernel", "cuda_runtime", "cpu_instant_event")
    events = [event("good", 5, External_id=3)]
    events += [event(kind, 1, cat=kind) | {field: number} for kind in kinds for field in fields]
    events += [event(kind, 1, cat=kind, **{name: number}) for kind in kinds for name in given]
    trace = read_trace(saved(tmp_path, *events))
    assert len(trace.events) + trace.left_out.events[saved_trace.TORN] == len(events)
    assert "good" in [each.name() for each in trace.events]
    begins = [each.start_ns() for each in trace.events]
    ends = [each.end_ns() for each in trace.events]
    assert begins == sorted(begins)
    assert all(begin <= end for begin, end in zip(begins, ends, strict=True))
    host = read_host(trace.events, trace.kinds, inputs=True)
    owned = attribute(host, [min(begins), max(ends)], lambda number: False)
    observed = ObservedSlice(0, trace.kernels, shapes=True, memory=True)
    frames, notes = slice_tables(owned, observed)
    assert (notes, bool(frames["launches"])) == ([], True)


def test_damage_is_left_out_and_counted_in_events_and_time(tmp_path):
    texts = [json.dumps(event(f"op{n}", 10 * n, n + 1, External_id=n)) for n in range(6)]
    whole = '{"traceEvents": [%s], "baseTimeNanoseconds": 7000}'
    for events, names, lost in [
        # One is torn, two are no events, one has no begin, one ends before it begins.
        ([*texts[:2], texts[2][:-22], texts[3]], "op0 op1 op3", {saved_trace.TORN: (1, 3)}),
        ([texts[0], "17", '{"a": [1', texts[4]], "op0 op4", {saved_trace.TORN: (1, 0)}),
        ([texts[0].replace('"ts": 0,', ""), texts[1]], "op1", {saved_trace.TORN: (1, 0)}),
        ([texts[1].replace('"dur": 2', '"dur": -40')], "op1", {saved_trace.NEGATIVE: (1, 40)}),
        ([texts[1].replace('"X"', '"B"'), texts[5]], "op5", {saved_trace.NO_END: (1, 0)}),
        # Begins in no order, and a name like an event.
        (texts[::-1], "op0 op1 op2 op3 op4 op5", {}),
        ([texts[2].replace("op2", r"},{\"ph\":"), texts[4]], '},{"ph": op4', {}),
    ]:
        trace = read_trace(saved(tmp_path, whole % ", ".join(events)))
        count, seconds = trace.left_out.events, trace.left_out.seconds
        assert {why: (count[why], round(seconds[why] * 1e6)) for why in count} == lost, events
        assert (trace.truncated, trace.header) == (False, {"baseTimeNanoseconds": 7000})
        assert " ".join(each.name() for each in trace.events) == names
        gone = sum(lost.get(why, (0,))[0] for why in (saved_trace.TORN, saved_trace.NO_END))
        assert trace.count == len(trace.events) + gone
    path = saved(tmp_path, (whole % ", ".join(texts)).partition('"op4"')[0])
    trace = read_trace(path)
    assert (trace.truncated, len(trace.events), sum(trace.left_out.events.values())) == (True, 4, 1)
    path.write_bytes(gzip.compress(path.read_bytes())[:-9])
    assert read_trace(path).truncated
