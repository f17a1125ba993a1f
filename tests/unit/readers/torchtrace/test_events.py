"""Kinds of events, their nesting and what follows from it, against slow references."""

import time
from types import SimpleNamespace

import numpy as np

from profstack.readers.torchtrace import events as module
from tests.support.events import Event, events

# Kind, device, whether it is an annotation, and names.
KINDS = """
kernel CUDA 0 void cutlass::Kernel2<cutlass_80_tensorop>(Params)
gpu_memcpy CUDA 0 Memcpy HtoD (Pageable -> Device)
gpu_memset CUDA 0 Memset (Device)
gpu_user_annotation CUDA 1 Optimizer.step#Adam.step
cpu_instant_event CUDA 0 [memory]
cpu_instant_event CPU 0 [memory]
cuda_sync CUDA 0 Stream Wait Event,Context Sync
cuda_runtime CPU 0 cudaLaunchKernel,cuLaunchKernelEx,hipLaunchKernel
user_annotation CPU 1 cudaLaunchKernel
overhead CPU 0 Lazy Function Loading,Activity Buffer Request
cpu_op CPU 0 aten::cumsum,cuda_kernel_wrapper,AddmmBackward0
python_function CPU 0 train.py(12): step,nn.Module: Linear_0
python_function CPU 0 <built-in method relu of type object at 0x7f>
"""


def test_a_kind_follows_from_where_it_ran_and_its_name():
    for kind, device, named, names in (line.split(" ", 3) for line in KINDS.strip().splitlines()):
        for name in names.split(","):
            facts = {"name": name, "device_type": SimpleNamespace(name=device)}
            facts["is_user_annotation"] = named == "1"
            made = {key: lambda value=value: value for key, value in facts.items()}
            assert module.kinds_of([SimpleNamespace(**made)]) == [kind], name
    some = ["op", "kernel", "copy"]
    assert module.of_kinds(("a", "c"), some, ["a", "b", "c"]) == ["op", "copy"]
    assert module.of_kinds(("a",), some, None) == module.kinds_of([]) == []
    names = ("aten::mm", "my_lib::f", "a::b::c", "mm", "a:: b")
    assert [*map(module.is_operator, names)] == [True, True, False, False, False]
    names = ("## Call CompiledFxGraph xyz ##", "triton_poi_fused", "my triton_", "aten::mm")
    assert [*map(module.is_compiled, names)] == [True, True, False, False]
    assert module.device_name(Event("gemm", 0, 3, "kernel", device=2)) == "cuda:2"


def test_nesting_and_what_is_around_marked_events_or_holds_them():
    # Events that touch, of one length, and without any; by thread and begin, the longer ones first.
    spans = [(0, 100), (10, 40), (10, 30), (30, 40), (40, 40), (50, 60), (50, 60), (60, 100)]
    spans += [(70, 70), (100, 120), (5, 50), (5, 50), (50, 90)]
    thread, marked = np.array([1] * 10 + [2] * 3), np.array([1, 5, 8, 11])
    start, end = np.array(spans, np.int64).T
    parent, depth = module.nest_threads(start, end, thread)
    assert parent.tolist() == [-1, 0, 1, 1, 0, 0, 5, 0, 7, -1, -1, 10, -1]
    assert depth.tolist() == [0, 1, 2, 2, 1, 1, 2, 1, 2, 0, 0, 1, 0]
    made = zip(spans, thread.tolist(), strict=True)
    host = module.read_host([Event("op", *span, thread=number) for span, number in made])
    assert module.around(host, marked).tolist() == [0, 0, 2, 2, 0, 0, 6, *[0] * 6]
    assert np.flatnonzero(module.holding(host, marked)).tolist() == [0, 7, 10]
    own = np.zeros(len(spans), np.int64)
    own[marked] = [4, 8, 11, 14]
    assert host.inherit(own).tolist() == [0, 4, 4, 4, 0, 8, 8, 0, 11, 0, 0, 14, 0]


def test_kernels_find_what_launched_them_and_threads_their_backward_functions():
    host = module.read_host(events("a 0-9 number=3; b 1-5 number=8; c 6-7"))
    kernels = [Event("k", 20, 30, "kernel", linked=number) for number in (8, 3, 99, 0)]
    assert module.launchers(host, kernels).tolist() == [1, 0, -1, -1]
    assert module.launchers(host, kernels, np.array([1])).tolist() == [1, -1, -1, -1]
    # The observed thread has the marked events, and its backward functions.
    made = events(f"""
        {module.SLICE_RANGE} 0-1 thread=5; a 2-3 thread=5; b 2-3 thread=6
        function:X 4-5 thread=7 forward=5; in it 4-5 thread=7; function:X 4-5 thread=8 forward=6
    """)
    assert module.of_observed_thread(made).tolist() == [True, True, False, True, True, False]


def test_events_are_cut_off_where_the_steps_that_count_end():
    for left_out, kept in [
        ((), [(10, 14), (18, 37), (22, 39), (38, 40)]),
        ((1,), [(10, 14), (18, 20), (22, 39), (38, 40)]),
        ((2,), [(10, 14), (18, 30), (22, 30), (38, 45)]),
        ((0, 2), [(10, 14), (18, 37), (22, 30), (38, 45)]),
    ]:
        spans = [(0, 5), (3, 10), (8, 14), (18, 37), (22, 39), (38, 45), (41, 44)]
        host = module.read_host([Event("op", *span, thread=at) for at, span in enumerate(spans)])
        module.clip_to_steps(host, [10, 20, 30, 40], left_out)
        found = list(zip(host.start.tolist(), host.end.tolist(), strict=True))
        assert found == [(0, 5), (3, 10), *kept, (41, 44)]


def test_the_clocks_differ_by_the_reading_that_took_least(monkeypatch):
    # Before, there, after: the third takes 10 ns, the others longer.
    readings = [(0, 900, 100), (200, 900, 240), (300, 1305, 310), (400, 2000, 450), (500, 9, 590)]
    ours = iter([at for before, _, after in readings for at in (before, after)])
    theirs = iter([there for _, there, _ in readings])
    monkeypatch.setattr(time, "perf_counter_ns", ours.__next__)
    monkeypatch.setattr(time, "time_ns", theirs.__next__)
    offset = module.clock_offset_ns()
    monkeypatch.undo()
    assert (offset, next(theirs, None)) == (1000, None)
