"""The tables of an import: files whose answer is counted by hand."""

import json
from itertools import pairwise

import pytest

from profstack.readers.nsys import rows as nsys_rows
from profstack.readers.nsys.export import Export, read_export
from profstack.readers.nsys.export_file import frame_of
from profstack.readers.nsys.importing import rows_of
from profstack.readers.nsys.rows import MOST_POINTS
from profstack.storage.schema.recorded import RECORDED_OF_NSYS
from tests.support.nsys_files import AUTOGRAD, PID, NsysFile, thread_of
from tests.support.tables import cases, in_ns

HELPER = thread_of(PID, PID + 2)
LAUNCH = "cudaLaunchKernel"


@pytest.fixture
def result(tmp_path):
    """Rows and facts of a file; every row has only columns that its table has."""

    def read(text, generation="2024"):
        path = tmp_path / "capture.sqlite"
        path.unlink(missing_ok=True)
        with NsysFile(path, generation) as file:
            file.play(text, helper=HELPER, autograd=AUTOGRAD)
        rows, facts = rows_of([read_export(path)])
        assert set(rows) == set(RECORDED_OF_NSYS)
        for name, table in RECORDED_OF_NSYS.items():
            table.rows(rows[name])
        return {name.removeprefix("nsys_"): some for name, some in rows.items()}, facts

    return read


# Steps 7 and 8, with what was before, and step 9 that was cut off. The kernel `a` begins when the
# range it was launched in has ended, and overlaps with another stream's; what launched `g` is not
# in the file.
TWO_STEPS = """
launched 9000 9010 10050 before 1; range 9500 13000 epoch domain= category=None; step 7 10000 11000
call 10030 10035 cudaMemcpyAsync 2; copy 10040 10090 2 size=4096
range 10100 10400 forward category=forward; range 10110 10390 Net; range 10120 10200 Net.fc
range 10130 10150 gemm domain=library category=None
launched 10140 10300 10350 a 3; launched 10205 10340 10450 b 4 stream=13
range 10500 10800 backward category=backward; launched 10600 10650 10750 c 5 thread=autograd
range 10850 10950 'optimizer SGD' category=optimizer; call 10860 10870 cudaGraphLaunch 6
kernel 10900 10920 d 6 graph_node=1; kernel 10930 10960 d 6 graph_node=2
call 10880 10882 cudaMemsetAsync 7; fill 10970 10980 7 size=64
step 8 11000 12000; range 11130 11400 Net; range 11150 11300 Net; launched 11200 11210 11260 a 8
range 11300 11600 augment category=region thread=helper style=start_end
launched 11350 11360 11370 e 9 thread=helper; call 11310 11500 cudaDeviceSynchronize 10 failed=True
launched 11510 11520 11560 f 11; kernel 11700 11710 g 999
step 9 12000 None; launched 12100 12110 12200 a 12
"""


def test_two_steps_counted_by_hand(result):
    rows, facts = result(TWO_STEPS)
    columns = "steps first_step last_step per unlaunched open_ranges graphs_whole rest"
    found = in_ns([facts], f"{columns} steps_wall_s captured_s")
    assert found == [(2, 7, 8, "step", 1, 1, 0, {}, 2000, 13000 - 9000)]
    # What was launched in them, and what ran: a kernel from before makes the device busy.
    columns = "step device kernels started_s wall_s device_s busy_s idle_s fully_idle_s"
    assert in_ns(rows["steps"], columns) == [
        (7, "cuda:0", 5, 1000, 1000, 310, 360, 640, 600),
        (8, "cuda:0", 3, 2000, 1000, 100, 110, 890, 890),
    ]
    assert [row["node"] for row in rows["ranges"]] == list(range(1, len(rows["ranges"]) + 1))
    places = {None: ""}
    for row in rows["ranges"]:
        places[row["node"]] = f"{places[row['parent']]} > {row['name']}".removeprefix(" > ")
    names = list(places.values())[1:]
    columns = "calls wall_s self_s device_s kernels"
    # A module in itself counts once in the outer one.
    assert dict(zip(names, in_ns(rows["ranges"], columns), strict=True)) == {
        "epoch": (1, 2000, 2000, 400, 7),
        "step": (2, 2000, 1030, 400, 7),
        "step > forward": (1, 300, 20, 160, 2),
        "step > forward > Net": (1, 280, 200, 160, 2),
        "step > forward > Net > Net.fc": (1, 80, 80, 50, 1),
        "gemm": (1, 20, 20, 50, 1),
        "step > backward": (1, 300, 300, 100, 1),
        "step > optimizer SGD": (1, 100, 100, 50, 2),
        "step > Net": (1, 270, 120, 50, 1),
        "step > Net > Net": (1, 150, 150, 50, 1),
        "augment": (1, 300, 300, 10, 1),
    }
    columns = "kind domain style on_steps_thread api_calls api_s elsewhere_s copies copied_bytes"
    found = dict(zip(names, in_ns(rows["ranges"], f"{columns} copies_s"), strict=True))
    assert found["step"] == ("step", "profstack", "push_pop", 1, 9, 232, 100, 2, 4096, 60)
    assert (*found["step > backward"][4:7:2], *found["step > forward"][4:7:2]) == (1, 100, 2, 0)
    assert (*found["epoch"][::3][:2], *found["augment"][2:4]) == ("range", 1, "start_end", 0)
    # From the begin of the first work to the end of the last.
    spans = dict(zip(names, in_ns(rows["ranges"], "projected_s"), strict=True))
    assert spans["step > forward"] == (10_450 - 10_300,)
    assert spans["step > optimizer SGD"] == (10_980 - 10_900,)
    columns = "name stream range_kind range_name launched_by in_graph calls"
    assert set(in_ns(rows["kernels"], f"{columns} device_s longest_s delay_s device")) == {
        ("a", 7, "module", "Net.fc", LAUNCH, 0, 1, 50, 50, 160, "cuda:0"),
        ("b", 13, "module", "Net", LAUNCH, 0, 1, 110, 110, 135, "cuda:0"),
        ("c", 7, "backward", "backward", LAUNCH, 0, 1, 100, 100, 50, "cuda:0"),
        ("d", 7, "optimizer", "optimizer SGD", "cudaGraphLaunch", 1, 2, 50, 30, 110, "cuda:0"),
        ("a", 7, "module", "Net", LAUNCH, 0, 1, 50, 50, 10, "cuda:0"),
        ("e", 7, "region", "augment", LAUNCH, 0, 1, 10, 10, 10, "cuda:0"),
        ("f", 7, "step", "step", LAUNCH, 0, 1, 40, 40, 10, "cuda:0"),
        ("g", 7, None, None, None, 0, 1, 10, 10, None, "cuda:0"),
    }
    times = [row["device_s"] for row in rows["kernels"]]
    assert (len(times), times) == (8, sorted(times, reverse=True))
    columns = "direction from_memory to_memory device range_kind range_name calls bytes"
    assert in_ns(rows["copies"], f"{columns} device_s longest_s") == [
        ("host to device", "pageable", "device", "cuda:0", "step", "step", 1, 4096, 50, 50),
        ("fill", None, "device", "cuda:0", "optimizer", "optimizer SGD", 1, 64, 10, 10),
    ]
    api = in_ns(rows["api"], "name range_name calls failed host_s")
    assert api[0] == ("cudaDeviceSynchronize", "Net", 1, 1, 190)
    assert ((LAUNCH, "backward", 1, 0, 5) in api, sum(row[2] for row in api)) == (True, 10)
    # Every gap has its cause, and the kernels around the longest. A copy runs in one of them.
    columns = "device cause started_s gap_s fully_idle_s after before"
    assert in_ns(rows["longest_gaps"][:3], columns) == [
        ("cuda:0", "host late", 2_710, 290, 290, "g", None),
        # What was launched before the steps is in no range of theirs.
        ("cuda:0", "host late", 1_050, 250, 210, "before", "a in Net.fc"),
        ("cuda:0", "data wait", 1_980, 230, 230, "fill in optimizer SGD", "a in Net"),
    ]
    assert in_ns(rows["gaps"], "cause count total_s longest_s after before") == [
        ("host late", 5, 990, 290, "g", None),
        ("data wait", 1, 230, 230, "fill in optimizer SGD", "a in Net"),
        ("synchronisation", 1, 150, 150, "e in augment", "f in step"),
        # What launched `g` is not in the file, and a fill is work like a kernel.
        ("unknown", 1, 140, 140, "f in step", "g"),
        ("queued", 2, 20, 10, "d in optimizer SGD", "d in optimizer SGD"),
    ]


def test_ranges_with_a_number_of_their_own_are_one_place(result):
    batch = "range {} {} 'batch {}' domain=torch category=None".format
    text = ";".join(batch(at, at + 50, number) for at, number in ((100, 49), (300, 57), (1100, 41)))
    rows, _ = result(f"step 1 0 1000; step 2 1000 2000; {text}")
    columns = "name calls first_number last_number"
    assert in_ns(rows["ranges"], columns) == [("step", 2, None, None), ("batch", 3, 41, 57)]


def test_a_device_without_kernels_hides_no_gap_of_another(result):
    copies = "call 10 20 cudaMemcpyAsync 1; copy 30 40 1 size=64 device=0;"
    kernels = "launched 50 60 100 a 2 device=1; launched 400 410 500 b 3 device=1"
    rows, _ = result(f"step 1 0 1000; {copies} {kernels}; step 2 1000 2000")
    gaps = in_ns(rows["longest_gaps"], "device after before gap_s")
    assert ("cuda:1", "a in step", "b in step", 310) in gaps
    assert {row[0] for row in gaps} == {"cuda:1"}


def test_sums_and_the_longest_of_rows_that_are_alike(result):
    text = "step 0 1000 9000; range 1100 1900 Net; os_call 1150 60000000 poll2 thread=helper"
    # Only the devices' calls of a thread without ranges are lent; of waits that outlive the steps
    # counts what lies in them.
    text += "; library 1200 1221 cublasDgemm thread=helper; library 1920 1940 cudnnForward"
    for at, length, count in ((2000, 30, 5), (3000, 70, None), (4000, 20, 2)):
        failed = int(length > 20)
        text += f"""
        call {at} {at + length // 10} cudaMemcpyAsync {at} failed={failed}
        copy {at + 100} {at + 100 + length} {at} size={length} count={count}
        launched {at + 200} {at + 300} {at + 300 + 2 * length} k {at + 1} device=3
        call {at + 400} {at + 410} cudaGraphLaunch {at + 2} thread=helper
        graph {at + 500} {at + 505} {at + 2}; library {at + 10} {at + 10 + length} cublasSgemm_v2
        os_call {at} {at + 3 * length} poll thread=helper"""
    rows, facts = result(text, "2026")
    copies = in_ns(rows["copies"], "calls bytes device_s longest_s")
    assert (copies, facts["graphs_whole"]) == ([(8, 120, 120, 70)], 3)
    # A graph that was traced whole is one kernel.
    assert in_ns(rows["kernels"], "name device in_graph calls device_s longest_s delay_s") == [
        ("k", "cuda:3", 0, 3, 240, 140, 300),
        ("graph 1", "cuda:0", 1, 3, 15, 5, 300),
    ]
    assert in_ns(rows["api"], "library range_name calls failed host_s longest_s") == [
        ("os", None, 1, None, 7850, 7850),
        ("os", None, 3, None, 360, 210),
        ("cublas", "step", 3, None, 120, 70),
        ("cuda", "step", 3, 0, 30, 10),
        ("cublas", "Net", 1, None, 21, 21),
        ("cudnn", "step", 1, None, 20, 20),
        ("cuda", "step", 3, 0, 15, 5),
        ("cuda", "step", 3, 2, 12, 7),
    ]
    assert in_ns(rows["ranges"], "copies copied_bytes copies_s")[0] == (8, 120, 120)
    columns = "kind name device calls total_s shortest_s longest_s median_s deviation_s"
    assert {
        ("kernel", "k", "cuda:3", 3, 240, 40, 140, 60, 53),
        ("copy", "copy host to device", "cuda:0", 3, 120, 20, 70, 30, 26),
        ("cuda", "cudaMemcpyAsync", None, 3, 12, 2, 7, 3, 3),
        ("os", "poll2", None, 1, 7850, 7850, 7850, 7850, None),
    } <= set(in_ns(rows["stats"], columns))
    # One device worked and another copied.
    assert in_ns(rows["steps"], "device") == [("cuda:0",), ("cuda:3",)]


def test_what_was_not_traced_is_unknown(result):
    columns = "api_calls api_s kernels device_s elsewhere_s copies copies_s"
    rows, facts = result("step 3 1000 2000")
    [row] = rows["steps"]
    assert (rows["gaps"], in_ns(rows["ranges"], columns)) == ([], [(None,) * 7])
    known = (row["device"], row.get("kernels"), row.get("busy_s"), facts["unlaunched"])
    assert known == (None, None, None, 0)
    # Without calls it is not known who launched what.
    rows, facts = result("step 3 1000 2000; kernel 1100 1200 a 1")
    steps = in_ns(rows["steps"], "kernels device_s busy_s idle_s")
    assert (rows["gaps"], steps) == ([], [(None, None, 100, 900)])
    places = (in_ns(rows["ranges"], "kernels"), in_ns(rows["kernels"], "range_name"))
    assert (*places, facts["unlaunched"]) == ([(None,)], [(None,)], 1)
    rows, _ = result("step 3 1000 2000; call 1100 1150 cudaMalloc 1")
    assert (rows["gaps"], in_ns(rows["ranges"], columns)[0][:3]) == ([], (1, 50, None))
    rows, facts = rows_of([Export("x")])
    [process] = rows.pop("nsys_processes")
    assert (set(rows), any(rows.values())) == (set(RECORDED_OF_NSYS) - {"nsys_processes"}, False)
    assert (process["device"], process.get("kernels"), process["api_calls"]) == (None, None, 0)
    assert (facts["steps"], facts["unlaunched"]) == (0, 0)


def test_collectives_and_what_ran_meanwhile(result):
    # Two of a kind overlap; what computes may have been launched before the step, and a copy or a
    # kernel of another device hides nothing.
    rows, _ = result("""
        launched 900 1320 1345 gemm 1; step 0 1000 3000; launched 1001 1290 1310 gemm 2
        launched 1002 1100 1300 ncclDevKernel_AllReduce_Sum_f32_RING_LL 3 stream=13
        launched 1003 1250 1400 ncclKernel_AllReduce_x 4 stream=14; launched 1004 1350 1380 gemm 5
        call 1005 1006 cudaMemcpyAsync 6; copy 1110 1150 6 size=64; launched 1007 1500 1550 gemm 7
        launched 1008 1500 1570 ncclKernel_AllGather_LL 8 device=1
    """)
    columns = "device collective calls device_s busy_s overlapped_s exposed_s"
    assert in_ns(rows["communication"], columns) == [
        ("cuda:0", "AllReduce", 2, 350, 300, 75, 225),
        ("cuda:1", "AllGather", 1, 70, 70, 0, 70),
    ]


WAIT = ["cudaMemcpy", "cuMemcpyDtoH_v2", "cudaStreamSynchronize", "cuCtxSynchronize"]
GO_ON = ["cudaMemcpyAsync", "cuMemcpyDtoD_v2", "cudaMemcpyPeer", "cuMemcpyHtoDAsync_v2"]


@pytest.mark.parametrize("name", [*WAIT, *GO_ON, "cudaMalloc"])
def test_which_calls_wait_for_the_device(name, result):
    rows, _ = result(f"""step 0 1000 2000; range 1000 1900 Net; launched 1001 1010 1100 a 1
        call 1050 1200 {name} 2; launched 1300 1310 2000 b 3""")
    cause = "synchronisation" if name in WAIT else "host late"
    gaps = in_ns(rows["gaps"], "total_s cause after before")
    assert max(gaps) == (210, cause, "a in Net", "b in Net")


@cases(
    "more cause",
    *(("", "data wait"), ("category=forward", "data wait"), ("category=backward", "data wait")),
    *(("category=region", "start of step"), ("domain=mine", "start of step")),
    ("thread=helper", "start of step"),
)
def test_until_the_models_first_range_a_step_waits_for_data(more, cause, result):
    rows, _ = result(f"step 0 1000 2000; range 1700 1900 Net {more}; launched 1740 1750 2000 a 1")
    assert in_ns(rows["gaps"], "cause total_s") == [(cause, 750)]


def test_time_between_steps(result):
    step = "step {} {} {}; range {} {} Net; launched {} {} {} a {}\n"
    offsets = (0, 900, 1, 400, 300, 310, 700)
    runs = ((4, 1000), (5, 2100), (9, 3000))
    text = "".join(step.format(n, *(at + each for each in offsets), n) for n, at in runs)
    rows, _ = result(text)
    # From 4 to 5 the host was between steps for 200 ns, which are no step's; at 9 a run of steps
    # begins anew, and its first gap does not reach back into step 5.
    gaps = {("start of step", 3, 310 + 510 + 310), ("host late", 2, 400)}
    assert set(in_ns(rows["gaps"], "cause count total_s")) == gaps
    assert in_ns(rows["steps"], "step") == [(4,), (5,), (9,)]


def test_what_is_beyond_the_limit_of_rows_is_one_row_with_all_of_it(tmp_path):
    own = "domain= category=None"
    text = f"range 100 9000 epoch {own}"
    for number in range(1, 51):
        at = 150 + 100 * number
        text += f"""
        range {at} {at + 10 + number} b{number}x {own}; os_call {at} {at + number} c{number}
        launched {at} {at + 10} {at + 10 + number} k{number} {number}
        call {at + 8} {at + 9 + number} cudaStreamSynchronize {1000 + number}
        wait {at + 8} {at + 9 + number} {1000 + number} stream stream={number}"""
    with NsysFile(tmp_path / "a.sqlite") as file:
        file.play(text)
    export = read_export(file.path)
    every, whole_facts = rows_of([export])
    cut, facts = rows_of([export], most=4)
    assert (len(every["nsys_ranges"]), whole_facts["rest"]) == (51, {})
    ranges = cut["nsys_ranges"]
    kept = [("epoch", None), *((f"b{number}x", 1) for number in (48, 49, 50)), ("(rest)", None)]
    assert in_ns(ranges, "name parent") == kept
    # Nothing is lost: all sums are those of all rows.
    added = lambda rows, of: tuple(map(sum, zip(*in_ns(rows, of), strict=True)))  # noqa: E731
    for name, columns in (
        ("nsys_kernels", "calls device_s"), ("nsys_api", "calls host_s"),
        ("nsys_stats", "calls total_s"), ("nsys_waits", "calls wait_s"),
    ):  # fmt: skip
        assert [row["name" if "name" in row else "kind"] for row in cut[name]][-1] == "(rest)"
        assert (len(cut[name]), added(cut[name], columns)) == (5, added(every[name], columns))
    columns = "calls self_s kernels device_s api_calls projected_s"
    inner, rest = every["nsys_ranges"][1:48], ranges[-1]
    assert in_ns([rest], columns) == [added(inner, columns)]
    seconds = pytest.approx(sum(range(1, 47)) / 1e9)
    assert facts["rest"]["nsys_kernels"] == {"rows": 46, "things": 46, "seconds": seconds}
    assert {name: rest["rows"] for name, rest in facts["rest"].items()} == {
        "nsys_ranges": 47, "nsys_kernels": 46, "nsys_api": 146, "nsys_stats": 99, "nsys_waits": 46
    }  # fmt: skip
    assert rest["median_s"] is None


def beside(path, theirs):
    """Rows and facts of two steps of one process, and of another with these ranges in it."""
    other = PID + 9
    there = thread_of(other, other)
    path.unlink(missing_ok=True)
    with NsysFile(path) as file:
        file.play("step 3 1000 2000; step 4 2000 3000; launched 1100 1200 1300 k 1")
        file.play(theirs, other=there)
        file.play(f"call 900 950 cudaFree 7 thread={there}; os_call 2500 3500 poll thread={there}")
        file.play(f"kernel 1500 1700 other 8 device=1 pid={other}")
    return rows_of([read_export(path, pid) for pid in (PID, other)])


def test_a_process_without_such_steps_is_seen_in_those_of_the_first(tmp_path):
    # A range of its own that repeats is no step beside profstack's steps.
    fetch = "range {} {} fetch domain= category=None thread=other"
    text = ";".join(fetch.format(at, at + 390) for at in range(600, 3800, 400))
    rows, facts = beside(tmp_path / "a.sqlite", text)
    columns = "process device steps own_steps wall_s kernels busy_s ranges"
    assert in_ns(rows["nsys_processes"], columns) == [
        (PID, "cuda:0", 2, 1, 2000, 1, 100, 2),
        (PID + 9, "cuda:1", 2, 0, 2000, 1, 200, 5),
    ]
    assert (facts["steps"], facts["processes"]) == (2, [PID, PID + 9])
    waited = [row for row in rows["nsys_api"] if row["name"] == "poll"]
    # From 2500 to the end of the last step.
    assert in_ns(waited, "calls host_s process") == [(1, 500, PID + 9)]
    steps = in_ns(rows["nsys_steps"], "process step device busy_s")
    assert steps[2:] == [(PID + 9, 3, "cuda:1", 200), (PID + 9, 4, "cuda:1", 0)]
    # One of the same kind is its own.
    rows, _ = beside(tmp_path / "a.sqlite", "step 8 1400 1790 thread=other")
    assert in_ns(rows["nsys_processes"], columns)[1] == (PID + 9, "cuda:1", 1, 1, 390, 1, 200, 1)


def test_stacks_by_their_functions_with_most_time_first(result):
    # Two chains that say the same; the same functions the other way round; one not in the file.
    # Half of the system's call, and a sample, are after the step.
    rows, _ = result("""
        step 0 1000 2000; call 1100 1150 cudaMalloc 1 callchain=1; callchain cuda 1 alloc@a main@a
        call 1200 1250 cudaMalloc 2 callchain=2; callchain cuda 2 alloc@a main@a
        call 1300 1310 cudaMalloc 3 callchain=3; callchain cuda 3 other@a main@a
        call 1320 1325 cudaMalloc 4 callchain=4; callchain cuda 4 main@a other@a
        call 1330 1380 cudaMalloc 77 callchain=77
        os_call 1900 2100 poll callchain=4; callchain os 4 wait@libc.so
        sample 1500 11; callchain cpu 11 f@a g@a f@a; sample 1600 12; callchain cpu 12 f@a g@a f@a
        sample 2500 13; callchain cpu 13 f@a g@a f@a; sample 1700 14; sample 1800 15
        sample 1850 16; callchain cpu 15 h@a g@a; callchain cpu 16 h@a
    """)
    for row in rows["backtraces"]:
        row["stack"] = " ".join(name for name, _ in json.loads(row["stack"]))
    assert in_ns(rows["backtraces"], "source name stack calls host_s") == [
        ("cuda", "cudaMalloc", "alloc main", 2, 100),
        ("cuda", "cudaMalloc", "other main", 1, 10),
        ("cuda", "cudaMalloc", "main other", 1, 5),
        ("os", "poll", "wait", 1, 100),
        *[("cpu", None, "f g f", 2, None), ("cpu", None, "h g", 1, None)],
        ("cpu", None, "h", 1, None),
    ]
    samples = [("f", 2, 2), ("h", 2, 2), ("g", 0, 3), (nsys_rows.NO_STACK, 1, 1)]
    assert in_ns(rows["samples"], "symbol self_samples total_samples") == samples


def test_memory_held_is_what_the_capture_saw_and_keeps_its_peaks(result):
    # What was taken before the capture lowers nothing; one is given back unseen, and taken again.
    rows, _ = result("""
        memory 1000 100 1; memory 1100 900 2 freed=True; memory 1200 50 3
        memory 1300 7 4 kind=pinned; memory 1400 100 1 freed=True; memory 1500 60 3
    """)
    curve = [(0, 100), (100, 100), (200, 150), (400, 50), (500, 60)]
    wanted = [*(("cuda:0", "device", *point) for point in curve), ("cuda:0", "pinned", 300, 7)]
    assert in_ns(rows["memory"], "device kind t_s bytes") == wanted


def test_a_long_curve_keeps_its_peaks():
    sizes = [1 + number % 97 for number in range(6_000)]
    sizes[2_500] = 10**6
    columns = {"t": range(6_000), "device": 0, "kind": "device", "bytes": sizes}
    frame = frame_of("memory", {**columns, "operation": "allocated", "address": 1})
    # Of equally long parts each has its highest, and of these the first; each replaces the last.
    edges = [at * 5_999 // (MOST_POINTS - 1) for at in range(MOST_POINTS)]
    parts = [(begin, sizes[begin:end]) for begin, end in pairwise(edges)]
    expected = [(at + part.index(max(part)), max(part)) for at, part in parts]
    found = in_ns(nsys_rows.memory_rows(Export("x", memory=frame), 0), "t_s bytes")
    assert found == [*expected, (5_999, sizes[-1])]
