"""One process of an export: every generation of files, and which process is read."""

import sqlite3
from contextlib import closing

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from profstack.readers.nsys.export import MOST_PROCESSES, Export, processes_of, read_export
from profstack.readers.nsys.export_file import FRAMES, ExportError, ExportFile
from tests.support import nsys_files as files
from tests.support.nsys_files import GENERATIONS, RUNTIME, NsysFile, change, thread_of

MAIN, AUTOGRAD, PID, process_of = files.MAIN, files.AUTOGRAD, files.PID, files.process_of
OTHER = 777
SECRET = "s3cr3t-of-the-machine"
THREADS = {"main": MAIN, "autograd": AUTOGRAD, "theirs": thread_of(OTHER, OTHER)}
THREADS["secret"] = SECRET


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.sqlite"


def write(path, generation, *texts):
    path.unlink(missing_ok=True)
    with NsysFile(path, generation) as file:
        for step, text in enumerate(texts):
            file.play(text, 10_000 * step, last=step == 2, **THREADS)
    return path


def read(path, generation, *texts):
    return read_export(write(path, generation, *texts))


def rows(frame, columns):
    some = frame[columns.split()].astype(object)
    return list(some.where(some.notna(), None).itertuples(index=False, name=None))


def step(number):
    """A step of one process with something of everything, and another process beside it."""
    return f"""
    step {number} +0 +9000; range +100 +3000 Net.linear; sample +77 {number}
    range +4000 +6000 backward category=backward; memory +50 2048 {64 * number}
    range +200 +400 mine domain= category=None style=start_end; wait +8010 +8890 {number}4 stream
    range +210 +220 augment domain=script category=data
    call +300 +350 cudaLaunchKernel {number}0 callchain=3; call +500 +560 cudaMemcpyAsync {number}1
    kernel +900 +1900 "void gemm<float, 4>(float*)" {number}0
    copy +2000 +2500 {number}1 size=4096 source=pinned; call +600 +640 cudaMemsetAsync {number}2
    fill +2600 +2700 {number}2 size=512 device={number}
    call +4100 +4200 cuLaunchKernelEx {number}3 thread=autograd
    kernel +4500 +5500 vectorized {number}3 stream=13 graph_node=8
    call +8000 +8900 cudaStreamSynchronize {number}4 failed=last
    library +290 +360 cublasSgemm_v2; library +280 +361 cudnnConvolutionForward
    os_call +700 +800 pthread_cond_wait callchain={number}
    range +0 +100 child thread=theirs category=other
    kernel +20 +30 {SECRET}_kernel {number}0 pid=777
    call +0 +10 cudaLaunchKernel {number}0 thread=theirs callchain=9
    """


BESIDE = f"""
memory 29000 2048 64 freed=True; callchain cuda 3 launch@/opt/lib/libtorch.so 'main@C:\\bin\\python'
callchain cuda 9 {SECRET}@/home/{SECRET}/lib.so; callchain os 1 wait@libc.so.6
callchain cpu 2 loop@python 0x7f00@[vdso]; thread_name main sh; thread_name main python
thread_name autograd pt_autograd_0; thread_name {thread_of(OTHER, 1)} {SECRET}
row PROCESSES globalPid={process_of(OTHER)} pid={OTHER} name=secret
row TARGET_INFO_SYSTEM_ENV globalVid={1 << 48} name=TOKEN value=secret
"""
TRAINING = (BESIDE, step(1), step(2))


def test_every_generation_is_read_to_the_same_export_without_anything_of_others(path):
    exports = {each: read(path, each, *TRAINING) for each in GENERATIONS}
    for generation, found in exports.items():
        seen = (found.process, found.begin_ns, found.end_ns)
        assert seen == (PID, 10_000, 29_000)
        assert (found.version, found.schema) == files.VERSIONS[generation]
        assert (found.notes, found.open_ranges, found.missing) == ([], 0, {})
        texts = [repr(found)]
        for name, types in FRAMES.items():
            frame = getattr(found, name)
            assert_frame_equal(frame, getattr(exports["2022"], name), obj=f"{name}, {generation}")
            assert {column: str(kind) for column, kind in frame.dtypes.items()} == types
            texts.append(frame.to_csv())
        for secret in (SECRET, "secret-host", "secret-user", str(path.parent)):
            assert not any(secret in text for text in texts)
        threads = pd.concat([found.ranges, found.calls, found.os_calls, found.samples])["thread"]
        assert set((threads.to_numpy() >> 24) & 0xFFFFFF) == {PID}
    with closing(sqlite3.connect(path)) as database:
        held = "\n".join(database.iterdump())
    assert (SECRET in held, "secret-host" in held) == (True, True)


def test_frames_that_are_not_told_by_rows(path):
    found, ours = read(path, "2024", *TRAINING), (MAIN, "push_pop", "profstack")
    assert rows(found.ranges, " ".join(FRAMES["ranges"]))[:5] == [
        (10_000, 19_000, *ours, "step", "step 1", 1),
        (10_100, 13_000, *ours, "module", "Net.linear", None),
        (10_200, 10_400, MAIN, "start_end", "", None, "mine", None),
        (10_210, 10_220, MAIN, "push_pop", "script", "data", "augment", None),
        (14_000, 16_000, *ours, "backward", "backward", None),
    ]
    waits = [(at + 10, at + 890, 7, "stream sync", n) for at, n in ((18_000, 14), (28_000, 24))]
    assert rows(found.synchronisations, "start end stream kind correlation") == waits
    # By begin, whatever table they stand in.
    assert rows(found.libraries, "start end library name")[:2] == [
        (10_280, 10_361, "cudnn", "cudnnConvolutionForward"),
        (10_290, 10_360, "cublas", "cublasSgemm_v2"),
    ]
    assert rows(found.callchains, "source id depth symbol module") == [
        *[("cpu", 2, 0, "loop", "python"), ("cpu", 2, 1, "0x7f00", "[vdso]")],
        *[("cuda", 3, 0, "launch", "libtorch.so"), ("cuda", 3, 1, "main", "python")],
        ("os", 1, 0, "wait", "libc.so.6"),
    ]
    assert rows(found.threads, "thread name") == [(MAIN, "python"), (AUTOGRAD, "pt_autograd_0")]


def test_what_is_missing_is_said_with_the_option_it_takes(path):
    found = read(path, "2022", "step 1 5 9")
    assert set(found.missing) == set(FRAMES) - {"ranges", "threads"}
    assert "cuda in --trace" in found.missing["work"]
    assert "--cuda-memory-usage=true" in found.missing["memory"]
    for name, types in FRAMES.items():
        assert list(getattr(Export("x"), name).columns) == list(types)
    # Events without an end bound the capture as well.
    both = read(path, "2022", "memory 3 8 1; memory 30 8 2")
    assert [(each.begin_ns, each.end_ns) for each in (found, both)] == [(5, 9), (3, 30)]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_open_ranges_are_left_out_and_told(path, generation):
    still_open = "; ".join(f"range 120 None {name} style=start_end" for name in "dcbb")
    found = read(path, generation, f"step 1 10 90; step 2 100 None; {still_open}")
    [(slug, text)] = found.notes
    seen = (found.ranges["text"].tolist(), found.open_ranges, slug, "5 ranges" in text)
    assert seen == (["step 1"], 5, "nsys-open-ranges", True)
    # As many names as are shown, each once.
    assert text.endswith(": b, c, d, ...")


@pytest.mark.parametrize("generation", ["2024", "2026"])
def test_graphs_traced_whole_and_lost_events(path, generation):
    told = f"""
    call 10 20 cudaGraphLaunch 5; graph 30 90 5 graph=3; graph 0 0 6 graph=4
    kernel 50 40 "ends before it begins" 7; diagnostic "CPU frequency is low"
    diagnostic "Not all CUDA events might have been collected."; diagnostic "{SECRET}: 12 dropped"
    diagnostic "12 events were dropped, it is said" severity=1
    diagnostic "7 events of it were dropped" pid={OTHER}
    diagnostic "3 events of it were lost" pid={PID} severity=3
    """
    found = read(path, generation, told)
    notes, graph = dict(found.notes), (30, "graph", "graph 3", 5, True, 1)
    assert rows(found.work, "start kind name correlation in_graph copies") == [graph]
    assert set(notes) == {"nsys-untimed-work", "nsys-lost-events"}
    assert ("2 kernels" in notes["nsys-untimed-work"], SECRET in str(notes)) == (True, False)


EVENTS = {"kernel": "kernel 1 2 k 1 pid={0};", "os": "os_call 1 2 read thread={1};"}
EVENTS["sample"] = "sample 1 5 thread={1};"


def target(path, told, wanted=None):
    """The processes that are read of a file with so many events of some kinds of some processes."""
    text = ""
    for kind, pid, count in (each.split() for each in told.split(", ")):
        event = EVENTS.get(kind, "range 1 2 x domain={2} thread={1};")
        text += event.format(pid, thread_of(int(pid), int(pid)), kind) * int(count)
    with ExportFile(write(path, "2026", text)) as file:
        found, left_out = processes_of(file, wanted)
    return f"{' '.join(map(str, found))}, {left_out} others"


# Our ranges, then work of devices, then ranges, then any events, then the lower number. What has
# CPU samples alone may be any program of the machine.
WHICH = """profstack 11 1, theirs 12 9, kernel 12 9 = 11 12, 0 others
profstack 11 2, profstack 12 3 = 12 11, 0 others
theirs 11 9, kernel 12 1 = 12 11, 0 others
kernel 11 3, kernel 12 2, os 12 9, os 13 1, sample 9 4 = 11 12 13, 1 others
theirs 12 1, os 11 9 = 12 11, 0 others
os 12 3, os 11 3, os 13 4 = 13 11 12, 0 others
sample 11 3, sample 12 9 = 12, 1 others"""


@pytest.mark.parametrize("case", WHICH.splitlines())
def test_which_processes_are_read(path, case):
    told, expected = case.split(" = ")
    assert target(path, told) == expected


def test_so_many_processes_are_read_those_with_most_first(path):
    told = ", ".join(f"os {number} {number}" for number in range(1, MOST_PROCESSES + 3))
    first = range(MOST_PROCESSES + 2, 2, -1)
    assert target(path, told) == f"{' '.join(map(str, first))}, 2 others"


def test_a_process_that_is_asked_for(path):
    assert target(path, "profstack 11 5, os 12 2, kernel 12 1", wanted=12) == "12, 1 others"
    with pytest.raises(ExportError, match=r"no event of process 7; .*: 11 \(5\), 12 \(3\)"):
        read_export(path, 7)


def test_domain_and_category_numbers_are_those_of_the_process(path):
    # Every process numbers its own; the other one's names are the first in the file.
    made = """range 1 2 a domain=theirs category='their own' thread=theirs; step 3 3 4
    range 5 6 c domain=script category=load; range 7 8 d domain=script category=save
    range 9 10 e category=load"""
    wanted = "profstack step, script load, script save, profstack load"
    expected = [tuple(each.split()) for each in wanted.split(", ")]
    assert rows(read(path, "2022", made).ranges, "domain category") == expected


# Calls whose stacks were taken, which stand in second rows around them. Of the last two the first
# row is not in the file, or on another thread.
BACKTRACES = """
step 1 90 900; call 95 155 cudaLaunchKernel 5 callchain=3 is_stack=True
call 100 150 cudaLaunchKernel 5; call 108 142 cuLaunchKernel 5 callchain=4 is_stack=True
call 110 140 cuLaunchKernel 5
call 500 510 cudaGetDevice 7 callchain=8; call 499 511 cudaGetDevice 7 callchain=9 is_stack=True
call 600 610 cudaMemcpy 8 callchain=4 is_stack=True
call 700 710 cudaGetDevice 7 callchain=4 thread=autograd is_stack=True
"""
WITH_STACKS = [
    (100, "cudaLaunchKernel", 5, 3),
    (110, "cuLaunchKernel", -1, 4),
    # It has a chain of its own.
    (500, "cudaGetDevice", 7, 8),
    (600, "cudaMemcpy", 8, 4),
    (700, "cudaGetDevice", -1, 4),
]


def test_a_call_whose_stack_was_taken_counts_once_and_has_the_stack(path):
    for generation in GENERATIONS:
        calls = read(path, generation, BACKTRACES).calls
        assert rows(calls, "start name correlation callchain") == WITH_STACKS


def test_values_of_rows_that_need_to_be_understood(path):
    with NsysFile(path, "2026") as file:
        for at, (name, payload) in enumerate((("int32Value", 6), ("uint64Value", 8))):
            common = {"eventType": 59, "globalTid": MAIN, "text": "r"}
            file.row("NVTX_EVENTS", start=at, end=at + 1, **common, **{name: payload})
        for at in range(1, 5):
            file.call(at, at + 1, "cudaEventQuery", at)
        for at, count in ((1, 5), (2, None), (3, 0)):
            file.copy(at, at + 1, at, size=640, count=count)
        # Some versions have negative sizes of what is freed.
        file.memory(3, -640, 9, freed=True)
    for start, returned in ((1, 600), (2, 1), (3, 0)):
        change(path, f"UPDATE {RUNTIME} SET returnValue = {returned} WHERE start = {start}")
    found = read_export(path)
    assert found.ranges["payload"].tolist() == [6, 8]
    assert found.calls["failed"].tolist() == [False, True, False, False]
    assert rows(found.work, "copies bytes") == [(5, 640), (1, 640), (1, 640)]
    assert found.memory["bytes"].tolist() == [640]
