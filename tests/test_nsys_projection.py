"""What Nsight Systems saw, by range: files whose answer is counted by hand, of every generation."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from nsys_files import AUTOGRAD, GENERATIONS, PID, NsysFile, thread_of

from profstack.readers.nsys.export import Export, read_export
from profstack.readers.nsys.rows import rows_of
from profstack.storage.schema.recorded import RECORDED_OF_NSYS

HELPER = thread_of(PID, PID + 2)
GRAPHS = [each for each in GENERATIONS if each != "2022"]
LAUNCH = "cudaLaunchKernel"
_S = 1e-9

Row = dict[str, Any]
Rows = dict[str, list[Row]]


def rows_in(
    path: Path, generation: str, write: Callable[[NsysFile], None]
) -> tuple[Rows, dict[str, Any]]:
    """Rows and facts of a file; every row has only columns that its table has."""
    with NsysFile(path / "capture.sqlite", generation) as file:
        write(file)
    rows, facts = rows_of(read_export(path / "capture.sqlite"))
    assert set(rows) == set(RECORDED_OF_NSYS)
    for name, table in RECORDED_OF_NSYS.items():
        table.rows(rows[name])
    return rows, facts


def step(file: NsysFile, number: int, start: int, end: int | None) -> None:
    file.range(start, end, f"step {number}", category="step", payload=number)


def launch(file: NsysFile, start: int, number: int, **where: Any) -> None:
    """A launch of 5 ns."""
    file.call(start, start + 5, LAUNCH, number, **where)


def two_steps(file: NsysFile) -> None:
    """Steps 7 and 8, with what was before, and step 9 that was cut off."""
    launch(file, 9000, 1)
    file.kernel(9010, 10050, "before", 1)
    file.range(9500, 13000, "epoch", domain="", category=None)
    step(file, 7, 10000, 11000)
    file.call(10030, 10035, "cudaMemcpyAsync", 2)
    file.copy(10040, 10090, 2, bytes=4096)
    file.range(10100, 10400, "forward", category="forward")
    file.range(10110, 10390, "Net")
    file.range(10120, 10200, "Net.fc")
    file.range(10130, 10150, "gemm", domain="library", category=None)
    launch(file, 10140, 3)
    # It begins when the range it was launched in has ended, and overlaps with another stream's.
    file.kernel(10300, 10350, "a", 3)
    launch(file, 10205, 4)
    file.kernel(10340, 10450, "b", 4, stream=13)
    file.range(10500, 10800, "backward", category="backward")
    launch(file, 10600, 5, thread=AUTOGRAD)
    file.kernel(10650, 10750, "c", 5)
    file.range(10850, 10950, "optimizer SGD", category="optimizer")
    file.call(10860, 10870, "cudaGraphLaunch", 6)
    file.kernel(10900, 10920, "d", 6, graph_node=1)
    file.kernel(10930, 10960, "d", 6, graph_node=2)
    file.call(10880, 10882, "cudaMemsetAsync", 7)
    file.fill(10970, 10980, 7, bytes=64)
    step(file, 8, 11000, 12000)
    file.range(11130, 11400, "Net")
    file.range(11150, 11300, "Net")
    launch(file, 11200, 8)
    file.kernel(11210, 11260, "a", 8)
    file.range(11300, 11600, "augment", category="region", thread=HELPER, style="start_end")
    launch(file, 11350, 9, thread=HELPER)
    file.kernel(11360, 11370, "e", 9)
    file.call(11310, 11500, "cudaDeviceSynchronize", 10, failed=True)
    launch(file, 11510, 11)
    file.kernel(11520, 11560, "f", 11)
    # What launched it is not in the file.
    file.kernel(11700, 11710, "g", 999)
    step(file, 9, 12000, None)
    launch(file, 12100, 12)
    file.kernel(12110, 12200, "a", 12)


@pytest.fixture(params=GENERATIONS)
def capture(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Rows, dict[str, Any]]:
    return rows_in(tmp_path, request.param, two_steps)


def ns(row: Row, *names: str) -> tuple[int | None, ...]:
    return tuple(None if row[name] is None else round(row[name] / _S) for name in names)


def place(rows: list[Row], row: Row) -> str:
    """The names from the outermost range to this one."""
    around = [each for each in rows if each["node"] == row["parent"]]
    before = f"{place(rows, around[0])} > " if around else ""
    return f"{before}{row['name']}"


def test_the_facts_say_what_counts(capture: tuple[Rows, dict[str, Any]]) -> None:
    _, facts = capture
    assert (facts["steps"], facts["first_step"], facts["last_step"]) == (2, 7, 8)
    assert (facts["per"], facts["unlaunched"], facts["open_ranges"]) == ("step", 1, 1)
    assert facts["steps_wall_s"] == pytest.approx(2000 * _S)
    assert facts["captured_s"] == pytest.approx((13000 - 9000) * _S)


def test_steps_have_what_was_launched_in_them_and_what_ran_in_them(
    capture: tuple[Rows, dict[str, Any]],
) -> None:
    rows = capture[0]["nsys_steps"]
    assert [(row["step"], row["device"]) for row in rows] == [(7, "cuda:0"), (8, "cuda:0")]
    assert [row["kernels"] for row in rows] == [5, 3]
    told = [ns(row, "started_s", "wall_s", "device_s", "busy_s", "idle_s") for row in rows]
    # The kernel from before the steps makes the device busy in the first.
    assert told == [(1000, 1000, 310, 360, 640), (2000, 1000, 100, 110, 890)]


def test_ranges_are_a_tree_and_have_what_was_begun_in_them(
    capture: tuple[Rows, dict[str, Any]],
) -> None:
    rows = capture[0]["nsys_ranges"]
    counted = {
        place(rows, row): (row["calls"], *ns(row, "wall_s", "self_s", "device_s"), row["kernels"])
        for row in rows
    }
    assert counted == {
        "epoch": (1, 2000, 2000, 400, 7),
        "step": (2, 2000, 1030, 400, 7),
        "step > forward": (1, 300, 20, 160, 2),
        "step > forward > Net": (1, 280, 200, 160, 2),
        "step > forward > Net > Net.fc": (1, 80, 80, 50, 1),
        "gemm": (1, 20, 20, 50, 1),
        "step > backward": (1, 300, 300, 100, 1),
        "step > optimizer SGD": (1, 100, 100, 50, 2),
        # A module in itself counts once in the outer one.
        "step > Net": (1, 270, 120, 50, 1),
        "step > Net > Net": (1, 150, 150, 50, 1),
        "augment": (1, 300, 300, 10, 1),
    }
    by_name = {place(rows, row): row for row in rows}
    step = by_name["step"]
    assert (step["kind"], step["domain"], step["style"]) == ("step", "profstack", "push_pop")
    assert (step["api_calls"], *ns(step, "api_s", "elsewhere_s")) == (9, 232, 100)
    assert (step["copies"], step["copied_bytes"], *ns(step, "copies_s")) == (2, 4096, 60)
    assert ns(by_name["step > backward"], "elsewhere_s") == (100,)
    assert by_name["step > backward"]["api_calls"] == 1
    assert ns(by_name["step > forward"], "elsewhere_s") == (0,)
    assert (by_name["epoch"]["kind"], by_name["epoch"]["on_steps_thread"]) == ("range", 1)
    helper = by_name["augment"]
    assert (helper["on_steps_thread"], helper["style"]) == (0, "start_end")


def test_kernels_stand_under_the_range_of_the_call_that_launched_them(
    capture: tuple[Rows, dict[str, Any]],
) -> None:
    columns = ("name", "stream", "range_kind", "range_name", "launched_by", "in_graph", "calls")
    told = {
        tuple(row[name] for name in columns): ns(row, "device_s", "longest_s", "delay_s")
        for row in capture[0]["nsys_kernels"]
    }
    assert told == {
        ("a", 7, "module", "Net.fc", LAUNCH, 0, 1): (50, 50, 160),
        ("b", 13, "module", "Net", LAUNCH, 0, 1): (110, 110, 135),
        ("c", 7, "backward", "backward", LAUNCH, 0, 1): (100, 100, 50),
        ("d", 7, "optimizer", "optimizer SGD", "cudaGraphLaunch", 1, 2): (50, 30, 110),
        ("a", 7, "module", "Net", LAUNCH, 0, 1): (50, 50, 10),
        ("e", 7, "region", "augment", LAUNCH, 0, 1): (10, 10, 10),
        ("f", 7, "step", "step", LAUNCH, 0, 1): (40, 40, 10),
        ("g", 7, None, None, None, 0, 1): (10, 10, None),
    }
    assert {row["device"] for row in capture[0]["nsys_kernels"]} == {"cuda:0"}


def test_copies_by_direction_and_memory(capture: tuple[Rows, dict[str, Any]]) -> None:
    copies, fills = sorted(capture[0]["nsys_copies"], key=lambda row: -row["bytes"])
    assert (copies["direction"], copies["from_memory"], copies["to_memory"]) == (
        *("host to device", "pageable"),
        "device",
    )
    assert (copies["range_kind"], copies["bytes"], *ns(copies, "device_s")) == ("step", 4096, 50)
    assert (fills["direction"], fills["from_memory"]) == ("fill", None)
    assert (fills["range_name"], fills["bytes"]) == ("optimizer SGD", 64)


def test_every_gap_has_its_cause(capture: tuple[Rows, dict[str, Any]]) -> None:
    rows = capture[0]["nsys_gaps"]
    told = {
        row["cause"]: (row["count"], *ns(row, "total_s", "longest_s"), row["after"], row["before"])
        for row in rows
    }
    assert told == {
        "host late": (7, 1140, 290, "g", None),
        "data wait": (1, 230, 230, "d in optimizer SGD", "a in Net"),
        "synchronisation": (1, 150, 150, "e in augment", "f in step"),
        "queued": (1, 10, 10, "d in optimizer SGD", "d in optimizer SGD"),
    }
    idle = sum(row["idle_s"] for row in capture[0]["nsys_steps"])
    assert sum(row["total_s"] for row in rows) == pytest.approx(idle)


def test_calls_stand_under_their_range_with_their_failures(
    capture: tuple[Rows, dict[str, Any]],
) -> None:
    told = {
        (row["name"], row["range_name"]): (row["calls"], row["failed"], *ns(row, "host_s"))
        for row in capture[0]["nsys_api"]
    }
    assert told[LAUNCH, "backward"] == (1, 0, 5)
    assert told["cudaDeviceSynchronize", "Net"] == (1, 1, 190)
    assert sum(calls for calls, _, _ in told.values()) == 10


@pytest.mark.parametrize("generation", GRAPHS)
def test_a_graph_that_was_traced_whole_is_one_kernel(generation: str, tmp_path: Path) -> None:
    def write(file: NsysFile) -> None:
        step(file, 0, 1000, 2000)
        file.range(1100, 1200, "Net")
        file.call(1110, 1120, "cudaGraphLaunch", 5)
        file.graph(1300, 1700, 5)

    rows, facts = rows_in(tmp_path, generation, write)
    (row,) = rows["nsys_kernels"]
    assert (row["in_graph"], row["calls"], row["range_name"]) == (1, 1, "Net")
    assert ns(row, "device_s") == (400,)
    assert "graph" in row["name"]
    assert facts["graphs_whole"] == 1
    assert ns(rows["nsys_steps"][0], "busy_s", "idle_s") == (400, 600)


def test_columns_and_tables_that_no_one_knows_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "capture.sqlite"
    with NsysFile(path, "2026") as file:
        two_steps(file)
    before = rows_of(read_export(path))
    with closing(sqlite3.connect(path)) as database, database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            database.execute(f"ALTER TABLE {name} ADD COLUMN ofLater TEXT DEFAULT 'x'")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_OF_LATER (start INT, end INT)")
    assert rows_of(read_export(path)) == before


@pytest.mark.parametrize("generation", GENERATIONS)
def test_copies_in_one_row_of_the_file_are_as_many_as_it_says(
    generation: str, tmp_path: Path
) -> None:
    def write(file: NsysFile) -> None:
        step(file, 0, 1000, 2000)
        for at, number, count in ((1100, 1, 5), (1200, 2, None), (1300, 3, 0)):
            file.call(at, at + 10, "cudaMemcpyAsync", number)
            file.copy(at + 20, at + 50, number, bytes=640, count=count)
        file.call(1400, 1410, "cudaMemsetAsync", 4)
        file.fill(1420, 1430, 4, bytes=8)

    rows, _ = rows_in(tmp_path, generation, write)
    # Older files have one row for each.
    several = 7 if generation == "2026" else 3
    told = {row["direction"]: (row["calls"], row["bytes"]) for row in rows["nsys_copies"]}
    assert told == {"host to device": (several, 3 * 640), "fill": (1, 8)}
    (around,) = rows["nsys_ranges"]
    assert (around["copies"], *ns(around, "copies_s")) == (several + 1, 100)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_without_steps_the_whole_capture_counts(generation: str, tmp_path: Path) -> None:
    def write(file: NsysFile) -> None:
        file.range(100, 300, "mine", domain="", category=None)
        launch(file, 150, 1)
        file.kernel(400, 500, "a", 1)
        launch(file, 600, 2)
        file.kernel(700, 900, "b", 2)

    rows, facts = rows_in(tmp_path, generation, write)
    assert (facts["steps"], facts["per"], facts["steps_wall_s"]) == (0, "capture", None)
    assert rows["nsys_steps"] == []
    (row,) = rows["nsys_ranges"]
    assert (row["kernels"], row["on_steps_thread"]) == (1, None)
    assert {(r["name"], r["range_name"]) for r in rows["nsys_kernels"]} == {
        *[("a", "mine"), ("b", None)]
    }
    # No gap before the first kernel: that is the capture's begin.
    (gap,) = rows["nsys_gaps"]
    assert (gap["cause"], *ns(gap, "total_s")) == ("host late", 200)


def test_ranges_alone_leave_what_a_device_did_unknown(tmp_path: Path) -> None:
    def write(file: NsysFile) -> None:
        step(file, 3, 1000, 2000)
        file.range(1100, 1200, "Net")

    rows, facts = rows_in(tmp_path, "2022", write)
    for row in rows["nsys_ranges"]:
        unknown = ("api_calls", "api_s", "kernels", "device_s", "elsewhere_s", "copies", "copies_s")
        assert {row[name] for name in unknown} == {None}
    (row,) = rows["nsys_steps"]
    assert (row["device"], row.get("kernels"), row.get("busy_s")) == (None, None, None)
    assert rows["nsys_gaps"] == []
    assert facts["unlaunched"] == 0


@pytest.mark.parametrize("generation", GENERATIONS)
def test_memory_held_is_what_the_capture_saw_taken(generation: str, tmp_path: Path) -> None:
    def write(file: NsysFile) -> None:
        file.memory(1000, bytes=100, address=1)
        # Taken before the capture: it lowers nothing.
        file.memory(1100, bytes=900, address=2, operation="freed")
        file.memory(1200, bytes=50, address=3)
        file.memory(1300, bytes=7, address=4, kind="pinned")
        file.memory(1400, bytes=100, address=1, operation="freed")
        # Given back unseen, and taken again.
        file.memory(1500, bytes=60, address=3)

    rows, _ = rows_in(tmp_path, generation, write)
    curve = [
        (*ns(row, "t_s"), row["bytes"]) for row in rows["nsys_memory"] if row["kind"] != "pinned"
    ]
    assert curve == [(0, 100), (100, 100), (200, 150), (400, 50), (500, 60)]
    (pinned,) = [row for row in rows["nsys_memory"] if row["kind"] == "pinned"]
    assert pinned["bytes"] == 7


def test_a_long_curve_keeps_its_peaks_and_its_end(tmp_path: Path) -> None:
    def write(file: NsysFile) -> None:
        for number in range(10_000):
            file.memory(1000 + 2 * number, bytes=1 + number % 97, address=number)
            size = 0 if number == 5000 else 1 + number % 97
            file.memory(1001 + 2 * number, bytes=size, address=number, operation="freed")
        file.memory(90_000, bytes=10**6, address=10**6)
        file.memory(90_001, bytes=10**6, address=10**6, operation="freed")
        file.memory(90_002, bytes=3, address=10**7)

    rows, _ = rows_in(tmp_path, "2024", write)
    curve = [row["bytes"] for row in rows["nsys_memory"]]
    assert len(curve) == 2_000
    assert max(curve) == 10**6
    assert curve[-1] == 3
    times = [row["t_s"] for row in rows["nsys_memory"]]
    assert times == sorted(times)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_stacks_and_samples(generation: str, tmp_path: Path) -> None:
    def write(file: NsysFile) -> None:
        step(file, 0, 1000, 2000)
        for number, at in ((1, 1100), (2, 1200)):
            # Two chains of the file that say the same.
            file.call(at, at + 50, "cudaMalloc", number, callchain=number)
            file.callchain("cuda", number, [("alloc", "libc10.so"), ("main", "python")])
        file.call(1300, 1310, "cudaMalloc", 3, callchain=3)
        file.callchain("cuda", 3, [("other", "libc10.so"), ("main", "python")])
        file.os_call(1400, 1700, "poll", callchain=4)
        file.callchain("os", 4, [("wait", "libc.so")])
        for at in (1500, 1600, 2500):
            number = file.sample(at)
            file.callchain("cpu", number, [("f", "a.so"), ("g", "a.so"), ("f", "a.so")])
        file.callchain("cpu", file.sample(1650), [("g", "a.so")])
        # In no step.
        file.callchain("cpu", file.sample(2600), [("h", "a.so")])
        # The same functions the other way round.
        file.call(1320, 1325, "cudaMalloc", 5, callchain=5)
        file.callchain("cuda", 5, [("main", "python"), ("other", "libc10.so")])

    rows, _ = rows_in(tmp_path, generation, write)
    told = {
        (row["source"], row["name"], tuple(name for name, _ in json.loads(row["stack"]))): (
            *(row["calls"],),
            *ns(row, "host_s"),
        )
        for row in rows["nsys_backtraces"]
    }
    assert told == {
        ("cuda", "cudaMalloc", ("alloc", "main")): (2, 100),
        ("cuda", "cudaMalloc", ("other", "main")): (1, 10),
        ("cuda", "cudaMalloc", ("main", "other")): (1, 5),
        ("os", "poll", ("wait",)): (1, 300),
        ("cpu", None, ("f", "g", "f")): (2, None),
        ("cpu", None, ("g",)): (1, None),
    }
    samples = {
        row["symbol"]: (row["self_samples"], row["total_samples"], row["library"])
        for row in rows["nsys_samples"]
    }
    assert samples == {"f": (2, 2, "a.so"), "g": (1, 3, "a.so")}
    system = [row for row in rows["nsys_api"] if row["library"] == "os"]
    assert [(row["name"], row["failed"]) for row in system] == [("poll", None)]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_call_with_a_backtrace_is_one_call_in_every_table(
    generation: str, tmp_path: Path
) -> None:
    def write(file: NsysFile) -> None:
        step(file, 0, 1000, 2000)
        file.range(1050, 1900, "Net")
        launch(file, 1100, 1)
        file.backtrace(1098, 1107, LAUNCH, 1, callchain=5)
        file.kernel(1200, 1300, "gemm", 1)
        file.call(1400, 1700, "cudaStreamSynchronize", 2)
        file.backtrace(1390, 1710, "cudaStreamSynchronize", 2, callchain=5)
        file.callchain("cuda", 5, [("launch", "libtorch.so"), ("main", "python")])

    rows, _ = rows_in(tmp_path, generation, write)
    for table in ("nsys_api", "nsys_backtraces"):
        told = {row["name"]: (row["calls"], *ns(row, "host_s")) for row in rows[table]}
        assert told == {LAUNCH: (1, 5), "cudaStreamSynchronize": (1, 300)}, table
    assert [(row["api_calls"], *ns(row, "api_s")) for row in rows["nsys_ranges"]] == [(2, 305)] * 2
    (kernel,) = rows["nsys_kernels"]
    assert (kernel["launched_by"], *ns(kernel, "delay_s")) == (LAUNCH, 100)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_backtrace_without_its_call_is_the_call(generation: str, tmp_path: Path) -> None:
    def write(file: NsysFile) -> None:
        step(file, 0, 1000, 2000)
        file.backtrace(1098, 1107, LAUNCH, 1, callchain=5)
        file.kernel(1200, 1300, "gemm", 1)
        file.callchain("cuda", 5, [("launch", "libtorch.so")])

    rows, _ = rows_in(tmp_path, generation, write)
    for table in ("nsys_api", "nsys_backtraces"):
        assert [(row["name"], row["calls"]) for row in rows[table]] == [(LAUNCH, 1)]
    assert [row["launched_by"] for row in rows["nsys_kernels"]] == [LAUNCH]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_only_the_devices_calls_of_a_thread_without_ranges_are_lent(
    generation: str, tmp_path: Path
) -> None:
    def write(file: NsysFile) -> None:
        step(file, 0, 1000, 2000)
        file.range(1100, 1500, "Net")
        file.os_call(1150, 1450, "poll", thread=HELPER)
        file.library(1200, 1220, "cublas", "cublasSgemm_v2", thread=HELPER)
        file.library(1600, 1620, "cudnn", "cudnnConvolutionForward")

    rows, _ = rows_in(tmp_path, generation, write)
    told = {(row["library"], row["name"]): row["range_name"] for row in rows["nsys_api"]}
    assert told == {
        ("os", "poll"): None,
        ("cublas", "cublasSgemm_v2"): "Net",
        ("cudnn", "cudnnConvolutionForward"): "step",
    }


def test_a_copy_that_waits_is_a_synchronisation_and_one_that_does_not_is_none(
    tmp_path: Path,
) -> None:
    causes = {}
    for name in ("cudaMemcpy", "cudaMemcpyAsync", "cuMemcpyDtoH_v2", "cuMemcpyDtoD_v2"):
        folder = tmp_path / name
        folder.mkdir()

        def write(file: NsysFile, name: str = name) -> None:
            step(file, 0, 1000, 2000)
            file.range(1000, 1900, "Net")
            launch(file, 1001, 1)
            file.kernel(1010, 1100, "a", 1)
            file.call(1050, 1200, name, 2)
            launch(file, 1300, 3)
            file.kernel(1310, 2000, "b", 3)

        rows, _ = rows_in(folder, "2022", write)
        causes[name] = max(rows["nsys_gaps"], key=lambda row: row["total_s"])["cause"]
    assert causes == {
        "cudaMemcpy": "synchronisation",
        "cudaMemcpyAsync": "host late",
        "cuMemcpyDtoH_v2": "synchronisation",
        "cuMemcpyDtoD_v2": "host late",
    }


def test_a_call_that_another_one_makes_is_not_counted_twice(tmp_path: Path) -> None:
    def write(file: NsysFile) -> None:
        step(file, 0, 1000, 2000)
        file.call(1100, 1200, "cudaMalloc", 1)
        file.call(1110, 1190, "cuMemAlloc_v2", 2)
        file.call(1120, 1130, "cuMemAlloc_v2", 3, thread=AUTOGRAD)
        file.call(1210, 1220, "cuMemAlloc_v2", 4)

    rows, _ = rows_in(tmp_path, "2022", write)
    (row,) = rows["nsys_ranges"]
    assert (row["api_calls"], *ns(row, "api_s")) == (3, 120)
    assert sum(each["calls"] for each in rows["nsys_api"]) == 4


def test_a_step_that_begins_late_and_time_between_steps(tmp_path: Path) -> None:
    def write(file: NsysFile) -> None:
        for number, at in ((4, 1000), (5, 2100), (9, 3000)):
            step(file, number, at, at + 900)
            file.range(at + 1, at + 400, "Net")
            launch(file, at + 300, number)
            file.kernel(at + 310, at + 700, "a", number)

    rows, _ = rows_in(tmp_path, "2026", write)
    told = {row["cause"]: (row["count"], *ns(row, "total_s")) for row in rows["nsys_gaps"]}
    # From 4 to 5 the host was between steps for 200 ns, which are no step's; at 9 a run of steps
    # begins anew, and its first gap does not reach back into step 5.
    assert told == {"start of step": (3, 310 + 510 + 310), "host late": (2, 400)}
    assert [row["step"] for row in rows["nsys_steps"]] == [4, 5, 9]


def test_a_device_that_did_nothing_in_the_steps_has_no_rows(tmp_path: Path) -> None:
    def write(file: NsysFile) -> None:
        launch(file, 100, 1)
        file.kernel(110, 120, "early", 1, device=1)
        step(file, 0, 1000, 2000)
        launch(file, 1100, 2)
        file.kernel(1110, 1120, "a", 2)

    rows, _ = rows_in(tmp_path, "2024", write)
    for table in ("nsys_steps", "nsys_kernels", "nsys_gaps"):
        assert {row["device"] for row in rows[table]} == {"cuda:0"}


def test_of_too_many_ranges_the_longest_are_kept_with_what_is_around_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(file: NsysFile) -> None:
        file.range(100, 9_000, "epoch", domain="", category=None)
        for number in range(50):
            at = 150 + 100 * number
            file.range(at, at + 10 + number, f"batch {number}", domain="", category=None)

    monkeypatch.setattr("profstack.readers.nsys.rows.MOST_ROWS", 5)
    rows, facts = rows_in(tmp_path, "2024", write)
    kept = [row["name"] for row in rows["nsys_ranges"]]
    assert kept == ["epoch", "batch 46", "batch 47", "batch 48", "batch 49"]
    assert {row["parent"] for row in rows["nsys_ranges"][1:]} == {1}
    assert facts["left_out"] == {"nsys_ranges": 46}


def test_of_too_many_kernels_the_longest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(file: NsysFile) -> None:
        for number in range(1, 20):
            launch(file, 100 * number, number)
            file.kernel(100 * number + 10, 100 * number + 10 + number, f"k{number}", number)
            file.os_call(100 * number, 100 * number + number, f"c{number}")

    monkeypatch.setattr("profstack.readers.nsys.rows.MOST_ROWS", 3)
    rows, facts = rows_in(tmp_path, "2024", write)
    assert [row["name"] for row in rows["nsys_kernels"]] == ["k19", "k18", "k17"]
    assert [row["name"] for row in rows["nsys_api"]] == [LAUNCH, "c19", "c18"]
    assert facts["left_out"] == {"nsys_kernels": 16, "nsys_api": 17}


def test_a_file_with_nothing_of_a_table_has_no_rows_of_it() -> None:
    rows, facts = rows_of(Export("x"))
    assert set(rows) == set(RECORDED_OF_NSYS)
    assert not any(rows.values())
    assert (facts["steps"], facts["unlaunched"]) == (0, 0)


def test_a_step_does_not_hold_its_own_end_and_copies_are_no_kernels_of_another_thread(
    tmp_path: Path,
) -> None:
    def write(file: NsysFile) -> None:
        step(file, 0, 1000, 2000)
        launch(file, 1000, 1)
        file.kernel(1010, 1020, "a", 1)
        launch(file, 2000, 2)
        file.kernel(2010, 2020, "a", 2)
        file.call(1500, 1510, "cudaMemcpyAsync", 3, thread=AUTOGRAD)
        file.copy(1520, 1530, 3, bytes=8)

    rows, _ = rows_in(tmp_path, "2024", write)
    (row,) = rows["nsys_ranges"]
    assert (row["kernels"], row["copies"], *ns(row, "device_s", "elsewhere_s")) == (1, 1, 10, 0)
    assert [each["calls"] for each in rows["nsys_kernels"]] == [1]


def test_without_calls_it_is_not_known_who_launched_what(tmp_path: Path) -> None:
    def write(file: NsysFile) -> None:
        step(file, 0, 1000, 2000)
        file.kernel(1100, 1200, "a", 1)

    rows, facts = rows_in(tmp_path, "2024", write)
    (row,) = rows["nsys_steps"]
    assert (row["kernels"], row["device_s"], *ns(row, "busy_s", "idle_s")) == (None, None, 100, 900)
    assert (rows["nsys_ranges"][0]["kernels"], rows["nsys_gaps"]) == (None, [])
    assert [each["range_name"] for each in rows["nsys_kernels"]] == [None]
    assert facts["unlaunched"] == 1


@pytest.mark.parametrize("generation", GENERATIONS)
def test_steps_that_another_domain_numbers_are_one_place(generation: str, tmp_path: Path) -> None:
    def write(file: NsysFile) -> None:
        for number in range(3):
            start = 1000 * (number + 1)
            step(file, number, start, start + 900)
            own = {"domain": "mine", "category": None}
            file.range(start + 1, start + 800, f"step {number}", payload=number, **own)
            file.range(start + 2, start + 100, f"layer {number}", **own)
            file.range(start + 200, start + 300, f"v1.{number}", payload=number, **own)

    rows, _ = rows_in(tmp_path, generation, write)
    told = [(row["domain"], row["name"], row["calls"]) for row in rows["nsys_ranges"]]
    # A number that is no payload may name a place, and so may a part of a number.
    assert told[:2] == [("profstack", "step", 3), ("mine", "step", 3)]
    assert set(told[2:]) == {
        *(("mine", f"layer {number}", 1) for number in range(3)),
        *(("mine", f"v1.{number}", 1) for number in range(3)),
    }


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_step_that_was_cut_off_counts_for_nothing(generation: str, tmp_path: Path) -> None:
    def write(file: NsysFile) -> None:
        for number in range(4):
            start = 1000 * (number + 1)
            step(file, number, start, start + 900)
            file.range(start + 1, start + 800, "Net")
        file.range(3880, 3890, "cut step 2", category="cut")

    rows, facts = rows_in(tmp_path, generation, write)
    assert [row["step"] for row in rows["nsys_steps"]] == [0, 1, 3]
    assert facts["steps"] == 3
    (net,) = (row for row in rows["nsys_ranges"] if row["name"] == "Net")
    assert net["calls"] == 3


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_librarys_own_range_on_another_thread_keeps_work_from_nobody(
    generation: str, tmp_path: Path
) -> None:
    """NCCL marks its calls on autograd's thread: they are the backward pass's all the same."""

    def write(file: NsysFile) -> None:
        step(file, 0, 1000, 9000)
        file.range(2000, 8000, "backward", category="backward")
        file.call(3000, 3010, "cudaLaunchKernel", 1, thread=AUTOGRAD)
        file.kernel(3100, 3200, "gemm", 1)
        file.range(3900, 4100, "ncclAllReduce", domain="NCCL", category=None, thread=AUTOGRAD)
        file.call(4000, 4010, "cudaLaunchKernel", 2, thread=AUTOGRAD)
        file.kernel(4100, 4600, "ncclKernel", 2)
        # A thread of the user's own, with a range of its own, works for itself.
        file.range(5000, 5500, "prefetch", domain="mine", category=None, thread=HELPER)
        file.call(5100, 5110, "cudaLaunchKernel", 3, thread=HELPER)
        file.kernel(5200, 5300, "copying", 3)

    rows, _ = rows_in(tmp_path, generation, write)
    found = {(row["domain"], row["name"]): row for row in rows["nsys_ranges"]}
    for name in ("step", "backward"):
        row = found["profstack", name]
        assert (row["kernels"], *ns(row, "device_s", "elsewhere_s")) == (2, 600, 600), name
        assert row["api_calls"] == 2
    marked = found["NCCL", "ncclAllReduce"]
    assert (marked["kernels"], *ns(marked, "device_s")) == (1, 500)
    assert found["mine", "prefetch"]["kernels"] == 1
    kernels = {row["name"]: row["range_name"] for row in rows["nsys_kernels"]}
    assert kernels == {"gemm": "backward", "ncclKernel": "backward", "copying": "prefetch"}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_who_holds_the_interpreters_lock_keeps_work_from_nobody(
    generation: str, tmp_path: Path
) -> None:
    gil = {"domain": "GIL Trace", "category": None}

    def write(file: NsysFile) -> None:
        step(file, 0, 1000, 9000)
        file.range(1500, 1700, "Holding GIL", **gil)
        launch(file, 1600, 1)
        file.kernel(1650, 1750, "loss", 1)
        file.range(2000, 8000, "backward", category="backward")
        file.range(2900, 3500, "Holding GIL", **gil, thread=AUTOGRAD)
        launch(file, 3000, 2, thread=AUTOGRAD)
        file.kernel(3100, 3200, "gemm", 2)

    rows, _ = rows_in(tmp_path, generation, write)
    kernels = {row["name"]: row["range_name"] for row in rows["nsys_kernels"]}
    assert kernels == {"loss": "step", "gemm": "backward"}
    found = {(row["name"], row["on_steps_thread"]): row for row in rows["nsys_ranges"]}
    assert ns(found["backward", 1], "device_s", "elsewhere_s") == (100, 100)
    assert ns(found["step", 1], "device_s") == (200,)
    # What the lock was held for is told all the same.
    assert ns(found["Holding GIL", 1], "wall_s") == (200,)
    assert ns(found["Holding GIL", 0], "wall_s") == (600,)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_ranges_of_operators_on_autograds_thread_keep_work_from_nobody(
    generation: str, tmp_path: Path
) -> None:
    """`emit_nvtx` and nsys with --pytorch mark operators in the default domain."""
    default = {"domain": "", "category": None}

    def write(file: NsysFile) -> None:
        file.thread_name(AUTOGRAD, "pt_autograd_0")
        file.thread_name(HELPER, "python")
        step(file, 0, 1000, 9000)
        file.range(2000, 8000, "backward", category="backward")
        file.range(2900, 3500, "MmBackward0, seq = 7", **default, thread=AUTOGRAD)
        launch(file, 3000, 1, thread=AUTOGRAD)
        file.kernel(3100, 3200, "gemm", 1)
        # Computed again there: a module's own range.
        file.range(4000, 4500, "Net.fc", thread=AUTOGRAD)
        file.range(4100, 4400, "aten::mm", **default, thread=AUTOGRAD)
        launch(file, 4200, 2, thread=AUTOGRAD)
        file.kernel(4300, 4400, "again", 2)
        file.range(5000, 5500, "prefetch", **default, thread=HELPER)
        launch(file, 5100, 3, thread=HELPER)
        file.kernel(5200, 5300, "copying", 3)

    rows, _ = rows_in(tmp_path, generation, write)
    kernels = {row["name"]: row["range_name"] for row in rows["nsys_kernels"]}
    assert kernels == {"gemm": "backward", "again": "Net.fc", "copying": "prefetch"}
    found = {row["name"]: row for row in rows["nsys_ranges"]}
    assert (found["backward"]["kernels"], *ns(found["backward"], "elsewhere_s")) == (1, 100)
    assert found["MmBackward0, seq = 7"]["kernels"] == 1


@pytest.mark.parametrize("generation", GENERATIONS)
def test_of_a_wait_that_outlives_the_steps_counts_what_lies_in_them(
    generation: str, tmp_path: Path
) -> None:
    def write(file: NsysFile) -> None:
        step(file, 0, 1000, 2000)
        file.os_call(1500, 60_000_000, "pthread_cond_wait", thread=HELPER)

    rows, _ = rows_in(tmp_path, generation, write)
    (wait,) = rows["nsys_api"]
    assert ns(wait, "host_s", "longest_s") == (500, 500)
