"""Imported traces: the tables of the live layer, and steps, modules and passes found by rules."""

import contextlib
import gzip
import json
import time
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.profiler import record_function

from profstack.capture.hooks import RANGES
from profstack.readers.formats import Request
from profstack.readers.torchtrace.attribution import attribute
from profstack.readers.torchtrace.events import clip_to_steps, kinds_of, read_host
from profstack.readers.torchtrace.importing import FORMAT, take
from profstack.readers.torchtrace.slice_tables import ObservedSlice, slice_tables
from tests.support.events import saved_event as event
from tests.support.events import saved_file as saved
from tests.support.tables import of
from tests.support.wrapped import installed_hooks, training

TABLES = ["module_times", "operators", "kernels", "moved_bytes", "flop_counts", "region_work"]
TABLES += ["launches", "gaps"]


class Deep(nn.Module):
    """Modules in modules, one of them called twice, with another one's name at the same time."""

    def __init__(self):
        super().__init__()
        self.first, self.again, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(self.again(torch.tanh(self.again(self.first(x)))))


def deep_training():
    return training(nn.Sequential(nn.Linear(4, 4), Deep()))


def with_a_range():
    trained = deep_training()

    def step():
        with record_function("tidy up"):
            torch.ones(8).sum()
        trained()

    return step


def inference():
    return torch.no_grad()(partial(Deep().eval(), torch.randn(3, 4)))


RANGE = "user_annotation"
SHAPES, MEMORY, STACKS = "record_shapes", "profile_memory", "with_stack"
# The program, what the profile records, and whether its steps have marks.
PROGRAMS = {
    "training": (deep_training, (SHAPES, MEMORY), True),
    "inference": (inference, (SHAPES,), True),
    "no step marks": (with_a_range, (SHAPES,), False),
}


def profiled(step, options, path, *, marks, steps=4, ranges=True):
    """The events of a profile, which is saved too."""
    with installed_hooks() as hooks:
        for _ in range(2):
            step()
        hooks.set_mode(RANGES)
        recorded = dict.fromkeys(options, True)
        with torch.autograd.profiler.profile(use_kineto=True, **recorded) as got:
            hooks.emit_ranges(ranges)
            for number in range(steps):
                mark = record_function(f"ProfilerStep#{number}")
                with mark if marks else contextlib.nullcontext():
                    step()
            hooks.emit_ranges(False)
    got.kineto_results.save(str(path))
    return got.kineto_results.events()


def edges_of(events):
    """The edges of steps with marks, or of optimizers, and the places of what is between."""
    spans = [(e.start_ns(), e.end_ns()) for e in events if e.name().startswith("ProfilerStep#")]
    if not spans:
        ends = sorted(e.end_ns() for e in events if e.name().startswith("Optimizer.step#"))
        return [min(event.start_ns() for event in events), *ends], []
    edges = [moment for span in sorted(spans) for moment in span]
    return edges, list(range(1, len(edges) - 1, 2))


def live_tables(events, options):
    """The tables of the torch layer."""
    kinds = kinds_of(events)
    host = read_host(events, kinds, inputs=SHAPES in options)
    edges, between = edges_of([e for e, kind in zip(events, kinds, strict=True) if kind != "other"])
    clip_to_steps(host, edges, between)
    owned = attribute(host, edges, lambda number: False, between)
    observed = ObservedSlice(0, (), SHAPES in options, MEMORY in options)
    frames, notes = slice_tables(owned, observed)
    assert notes == []
    if between:
        frames["launches"] = [{**row, "step": row["step"] // 2} for row in frames["launches"]]
    return frames


def words(row):
    return [str(value) for value in row.values() if not isinstance(value, float)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_tables_are_those_of_the_live_layer(name, tmp_path):
    make, options, marks = PROGRAMS[name]
    path = tmp_path / "trace.json"
    events = profiled(make(), options, path, marks=marks)
    wanted = live_tables(events, options)
    taken = take([path], Request()).added
    for table in TABLES:
        rows = (sorted(found.get(table, []), key=words) for found in (taken, wanted))
        # Counts and words are the same, times within 1 us.
        for one, other in zip(*rows, strict=True):
            assert (one.keys(), words(one)) == (other.keys(), words(other))
            times = {name: value for name, value in other.items() if isinstance(value, float)}
            assert {name: one[name] for name in times} == pytest.approx(times, rel=0, abs=1e-6)
    assert any(row["module_id"] > 0 for row in taken["module_times"])
    [slice_] = taken["slices"]
    edges, between = edges_of(events)
    assert slice_["steps"] == len(taken["steps"]) == 4
    walls = [end - start for at, (start, end) in enumerate(pairwise(edges)) if at not in between]
    assert [row["wall_s"] for row in taken["steps"]] == pytest.approx([w / 1e9 for w in walls])
    assert slice_["phase"] == ("eval" if name == "inference" else "train")


def test_modules_are_those_of_the_frames_where_there_are_no_ranges(tmp_path):
    path, step = tmp_path / "trace.json", deep_training()
    profiled(step, (SHAPES, STACKS), path, marks=True, ranges=False)
    taken = take([path], Request(modules={"Other": 7}))
    rows = {row["module_id"]: row for row in taken.added["modules"]}
    times = taken.added["module_times"]
    calls = {rows[row["module_id"]]["path"]: row for row in times if row["module_id"] > 0}
    root = "Sequential.Deep_0"
    linears = ("Sequential.Linear_0", f"{root}.Linear_1", f"{root}.Linear_2")
    counts = {"Sequential": 4, "MSELoss": 4, root: 4, f"{root}.LayerNorm_0": 4}
    counts |= dict(zip(linears, (4, 4, 8), strict=True))
    assert {name: row["calls"] for name, row in calls.items()} == counts
    assert min(rows) == 8
    # What a module made is done again backwards, and belongs to it.
    assert all(calls[name]["backward_self_s"] > 0 for name in linears)
    own = sum(row["forward_self_s"] + row["backward_self_s"] for row in times)
    assert own == pytest.approx(taken.added["slices"][0]["wall_s"], rel=1e-6)
    assert not taken.added.get("notes")


def test_cycles_become_slices_and_of_ranks_the_first_is_taken(tmp_path):
    step, paths = deep_training(), []
    for cycle, rank in ((0, 3), (1, 3), (2, 5)):
        path = tmp_path / f"worker{rank}.{cycle}.pt.trace.json"
        profiled(step, (), path, marks=True, steps=2 + cycle)
        document = json.loads(path.read_text("utf-8"))
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 8}
        document = {key: document[key] for key in sorted(document)}
        paths.append(path.with_suffix(".json.gz"))
        paths[-1].write_bytes(gzip.compress(json.dumps(document).encode()))
        assert FORMAT.recognise(json.dumps(document).encode(), "any")
    for other in (b'{"events": []}', b'not {"traceEvents": []}'):
        assert not FORMAT.recognise(other, "trace.json")
    taken = take(paths[::-1], Request(slice=4, step=30))
    slices = [of(row, "slice first_step steps") for row in taken.added["slices"]]
    assert slices == [[4, 30, 2], [5, 32, 3]]
    assert [row["step"] for row in taken.added["steps"]] == list(range(30, 35))
    assert {row["slice"] for row in taken.added["operators"]} == {4, 5}
    starts = [row["started_s"] for row in taken.added["steps"]]
    assert (starts == sorted(starts), taken.files) == (True, paths[1::-1])
    said = [row["text"] for row in taken.added["notes"] if row["slug"] == "trace-ranks"]
    assert len(said) == 1
    assert paths[2].name in said[0]


def test_without_marks_the_function_that_repeats_is_the_step(tmp_path):
    model, given, path = Deep(), torch.randn(3, 4), tmp_path / "trace.json"

    def answer_one():
        # However busy the machine, most of the trace is in it.
        time.sleep(0.03)
        return model(given)

    profiled(answer_one, (STACKS,), path, marks=False)
    taken = take([path], Request())
    assert "answer_one" in taken.facts["plan_1"]["rule"]
    assert len(taken.added["steps"]) == 4


def test_a_range_that_repeats_is_the_step_if_it_has_half_of_the_time(tmp_path):
    torchs = ("Optimizer.zero_grad#A", "enumerate(DataLoader)#x", "nccl:all_reduce")
    for last, found in ((80, ("mine", 2)), (81, ("whole", 1))):
        spans = [(name, begin, 40) for name in torchs for begin in (0, 40)]
        spans += [("mine", 0, 18), ("once", 0, last), ("mine", 20, 22)]
        spans += [("inner", 22, 2), ("inner", 25, 15)]
        taken = take([saved(tmp_path, *(event(*span, cat=RANGE) for span in spans))], Request())
        assert (taken.facts["plan_1"]["rule"], taken.added["slices"][0]["steps"]) == found
        if found[1] == 2:
            assert [row["wall_s"] for row in taken.added["steps"]] == pytest.approx([18e-6, 22e-6])


def test_the_step_in_which_a_trace_was_cut_off_is_left_out(tmp_path):
    marks = (event(f"ProfilerStep#{number}", 100 * number, 90, cat=RANGE) for number in range(3))
    path = saved(tmp_path, *marks, *(event("aten::mm", at, 5) for at in (10, 110, 195, 210, 280)))
    text = path.read_text("utf-8")
    for cut, kept, said in ((text.index('"ts": 280'), 2, "1 step of 90.0 µs"), (-1, 2, "1 step")):
        path.write_text(text[:cut], encoding="utf-8")
        taken = take([path], Request())
        assert [row["step"] for row in taken.added["steps"]] == list(range(kept))
        assert sum(row["calls"] for row in taken.added["operators"]) == kept
        [note] = [row for row in taken.added["notes"] if row["slug"] == "trace-truncated"]
        assert said in note["text"]
    path.write_text(text, encoding="utf-8")
    assert len(take([path], Request()).added["steps"]) == 3


def test_kernels_gaps_and_launches_of_a_device(tmp_path):
    made = [event("ProfilerStep#4", 0, 100, cat=RANGE), event("aten::mm", 10, 10, External_id=1)]
    made.append(event("aten::add", 50, 10, External_id=2))
    for name, number, launched, *span in (("gemm", 1, 12, 15, 30), ("add", 2, 52, 65, 10)):
        given = {"External_id": number, "correlation": 7 + number}
        made.append(event("cudaLaunchKernel", launched, 2, cat="cuda_runtime", **given))
        made.append(event(name, *span, cat="kernel", tid=1, device=0, stream=7, **given))
    made.append(event("alone", 66, 6, cat="kernel", tid=1, device=0, stream=13))
    made.append(event("ProfilerStep#4", 15, 60, cat="gpu_user_annotation", tid=1))
    taken = take([saved(tmp_path, *made)], Request()).added
    names = ("name", "operator", "device", "stream", "device_s")
    assert sorted([row[name] for name in names] for row in taken["kernels"]) == [
        ["add", "aten::add", "cuda:0", 7, pytest.approx(1e-5)],
        ["alone", None, "cuda:0", 13, pytest.approx(6e-6)],
        ["gemm", "aten::mm", "cuda:0", 7, pytest.approx(30e-6)],
    ]
    [row] = taken["launches"]
    assert of(row, "step kernels launches") == [0, 3, 2]
    assert (row["busy_s"], row["launches_s"]) == pytest.approx((40e-6, 4e-6))
    assert sum(row["total_s"] for row in taken["gaps"]) == pytest.approx(60e-6)
