"""The reader of exports of Nsight Systems: every generation, every way in which a file is wrong."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from conftest import clean_environment
from nsys_files import AUTOGRAD, GENERATIONS, MAIN, OLDEST, PID, NsysFile, process_of, thread_of
from nsys_runs import absent, alone
from pandas.testing import assert_frame_equal

from profstack.errors import ProfstackError
from profstack.readers.nsys.export import Export, read_export
from profstack.readers.nsys.export_file import FRAMES, ExportError

OTHER = 777
SECRET = "s3cr3t-of-the-machine"
OLD_NVTX = "0.2.11"


def write(path: Path, generation: str, fill: Callable[[NsysFile], None]) -> Path:
    with NsysFile(path, generation) as file:
        fill(file)
    return path


def read(path: Path, generation: str, fill: Callable[[NsysFile], None]) -> Export:
    return read_export(write(path, generation, fill))


def frames_of(export: Export) -> dict[str, pd.DataFrame]:
    return {name: getattr(export, name) for name in FRAMES}


def training(file: NsysFile) -> None:
    """Two steps of one process with something of everything, and another process beside it."""
    for step in (1, 2):
        at = step * 10_000
        file.range(at, at + 9_000, f"step {step}", category="step", payload=step)
        file.range(at + 100, at + 3_000, "Net.linear")
        file.range(at + 200, at + 400, "mine", domain="", category=None, style="start_end")
        file.range(at + 210, at + 220, "augment", domain="script", category="data")
        file.range(at + 4_000, at + 6_000, "backward", category="backward")
        first = step * 10
        file.call(at + 300, at + 350, "cudaLaunchKernel", first, callchain=3)
        file.kernel(at + 900, at + 1_900, "void gemm<float, 4>(float*)", first)
        file.call(at + 500, at + 560, "cudaMemcpyAsync", first + 1)
        file.copy(at + 2_000, at + 2_500, first + 1, bytes=4_096, source="pinned")
        file.call(at + 600, at + 640, "cudaMemsetAsync", first + 2)
        file.fill(at + 2_600, at + 2_700, first + 2, bytes=512)
        file.call(at + 4_100, at + 4_200, "cuLaunchKernelEx", first + 3, thread=AUTOGRAD)
        file.kernel(at + 4_500, at + 5_500, "vectorized", first + 3, stream=13, graph_node=8)
        file.call(at + 8_000, at + 8_900, "cudaStreamSynchronize", first + 4, failed=step == 2)
        file.synchronise(at + 8_010, at + 8_890, first + 4)
        file.library(at + 290, at + 360, "cublas", "cublasSgemm_v2")
        file.library(at + 280, at + 361, "cudnn", "cudnnConvolutionForward")
        file.os_call(at + 700, at + 800, "pthread_cond_wait", callchain=step)
        file.memory(at + 50, bytes=2_048, address=64 * step)
        file.sample(at + 77)
        file.range(at, at + 100, "child", pid=OTHER, category="other")
        file.call(at, at + 10, "cudaLaunchKernel", first, pid=OTHER, callchain=9)
        file.kernel(at + 20, at + 30, f"{SECRET}_kernel", first, pid=OTHER)
    file.memory(29_000, bytes=2_048, operation="freed", address=64)
    file.callchain("cuda", 3, [("launch", "/opt/lib/libtorch.so"), ("main", "/usr/bin/python")])
    file.callchain("cuda", 9, [(SECRET, f"/home/{SECRET}/lib.so")])
    file.callchain("os", 1, [("wait", "libc.so.6")])
    file.callchain("cpu", 2, [("loop", "python"), ("0x7f00", "[vdso]")])
    file.thread_name(MAIN, "python")
    file.thread_name(AUTOGRAD, "pt_autograd_0")
    file.thread_name(thread_of(OTHER, 1), SECRET)
    file.process(PID, f"/home/{SECRET}/python")
    file.process(OTHER, SECRET)
    file.environment("TOKEN", SECRET)
    file.environment("Hostname", SECRET)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.sqlite"


def test_every_generation_is_read_to_the_same_export(tmp_path: Path) -> None:
    exports = {
        each: read(tmp_path / f"{each}.sqlite", each, training) for each in (OLDEST, *GENERATIONS)
    }
    expected = exports["2022"]
    for generation, export in exports.items():
        told = (export.process, export.others, export.begin_ns, export.end_ns)
        assert told == (PID, 1, 10_000, 29_000), generation
        assert (export.notes, export.open_ranges) == ([], 0)
        assert export.missing == {}
        for name, frame in frames_of(export).items():
            assert_frame_equal(frame, frames_of(expected)[name], obj=f"{name} of {generation}")
    versions = [(export.version, export.schema) for export in exports.values()]
    assert versions == [
        ("2021.5.1.118", "2.9.3"),
        ("2022.4.2.1", "3.0.0"),
        ("2024.3.1.75", "3.15.1"),
        ("2026.1.1.204", "3.24.14"),
    ]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_ranges_have_their_domain_category_and_payload(path: Path, generation: str) -> None:
    ranges = read(path, generation, training).ranges
    told = list(ranges.itertuples(index=False, name=None))
    assert told[:5] == [
        (10_000, 19_000, MAIN, "push_pop", "profstack", "step", "step 1", 1),
        (10_100, 13_000, MAIN, "push_pop", "profstack", "module", "Net.linear", None),
        (10_200, 10_400, MAIN, "start_end", "", None, "mine", None),
        (10_210, 10_220, MAIN, "push_pop", "script", "data", "augment", None),
        (14_000, 16_000, MAIN, "push_pop", "profstack", "backward", "backward", None),
    ]
    assert len(told) == 10
    assert all(type(payload) is int for payload in ranges["payload"].dropna())


@pytest.mark.parametrize("generation", GENERATIONS)
def test_calls_work_and_memory_are_told_in_words(path: Path, generation: str) -> None:
    export = read(path, generation, training)
    calls = export.calls
    assert calls["name"].tolist()[:5] == [
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
        "cudaMemsetAsync",
        "cuLaunchKernelEx",
        "cudaStreamSynchronize",
    ]
    assert calls["correlation"].tolist() == [10, 11, 12, 13, 14, 20, 21, 22, 23, 24]
    assert calls["failed"].tolist() == [False] * 9 + [True]
    assert calls["callchain"].tolist() == [3, -1, -1, -1, -1] * 2
    assert calls["thread"].tolist() == [MAIN, MAIN, MAIN, AUTOGRAD, MAIN] * 2
    work = export.work.head(4).astype(object).where(export.work.head(4).notna(), None)
    columns = ["kind", "name", "stream", "correlation", "bytes", "direction"]
    columns += ["from_memory", "to_memory", "in_graph"]
    rows = list(work[columns].itertuples(index=False, name=None))
    gemm = "void gemm<float, 4>(float*)"
    direction = "host to device"
    assert rows == [
        ("kernel", gemm, 7, 10, None, None, None, None, False),
        ("copy", f"copy {direction}", 7, 11, 4096.0, direction, "pinned", "device", False),
        ("set", "fill", 7, 12, 512.0, None, None, "device", False),
        ("kernel", "vectorized", 13, 13, None, None, None, None, True),
    ]
    assert export.synchronisations["kind"].tolist() == ["stream sync"] * 2
    assert export.libraries["library"].tolist() == ["cudnn", "cublas"] * 2
    assert export.memory["operation"].tolist() == ["allocated", "allocated", "freed"]
    assert export.memory["kind"].tolist() == ["device"] * 3
    chains = export.callchains.groupby(["source", "id"])[["symbol", "module"]].agg(list)
    assert chains.to_dict("index") == {
        ("cpu", 2): {"symbol": ["loop", "0x7f00"], "module": ["python", "[vdso]"]},
        ("cuda", 3): {"symbol": ["launch", "main"], "module": ["libtorch.so", "python"]},
        ("os", 1): {"symbol": ["wait"], "module": ["libc.so.6"]},
    }
    assert export.threads["name"].tolist() == ["python", "pt_autograd_0"]


@pytest.mark.parametrize("generation", [OLDEST, *GENERATIONS])
def test_nothing_of_the_machine_or_of_other_processes_is_read(path: Path, generation: str) -> None:
    export = read(path, generation, training)
    with closing(sqlite3.connect(path)) as database:
        held = "\n".join(database.iterdump())
    assert SECRET in held
    assert "secret-host" in held
    told = [repr(export), *(frame.to_csv() for frame in frames_of(export).values())]
    for text in told:
        for secret in (SECRET, "secret-host", "secret-user", str(path.parent)):
            assert secret not in text
    threads = pd.concat([export.ranges, export.calls, export.os_calls, export.samples])["thread"]
    assert set((threads.to_numpy() >> 24) & 0xFFFFFF) == {PID}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_an_empty_frame_has_its_columns_and_a_reason(path: Path, generation: str) -> None:
    export = read(path, generation, lambda file: file.range(5, 9, "step 1", category="step"))
    for name, frame in frames_of(export).items():
        assert {column: str(frame[column].dtype) for column in frame} == FRAMES[name], name
        assert list(frame.columns) == list(FRAMES[name])
    assert set(export.missing) == set(FRAMES) - {"ranges", "threads"}
    assert "cuda in --trace" in export.missing["work"]
    assert "--cuda-memory-usage=true" in export.missing["memory"]
    assert (export.begin_ns, export.end_ns) == (5, 9)
    assert frames_of(Export("x"))["work"].dtypes.equals(export.work.dtypes)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_open_ranges_are_left_out_and_told(path: Path, generation: str) -> None:
    def fill(file: NsysFile) -> None:
        file.range(10, 90, "step 1", category="step")
        file.range(100, None, "step 2", category="step")
        for name in ("d", "c", "b", "b"):
            file.range(120, None, name, style="start_end")

    export = read(path, generation, fill)
    assert export.ranges["text"].tolist() == ["step 1"]
    assert export.open_ranges == 5
    ((slug, text),) = export.notes
    assert slug == "nsys-open-ranges"
    assert text == "5 ranges were still open when the capture ended, and left out: b, c, d, ..."


@pytest.mark.parametrize("generation", ["2024", "2026"])
def test_graphs_traced_whole_and_lost_events(path: Path, generation: str) -> None:
    def fill(file: NsysFile) -> None:
        file.call(10, 20, "cudaGraphLaunch", 5)
        file.graph(30, 90, 5, graph=3)
        file.graph(0, 0, 6, graph=4)
        file.diagnostic("Not all CUDA events might have been collected.")
        file.diagnostic(f"{SECRET}: 12 events dropped", severity=3)
        file.diagnostic("12 events were dropped, it is said", severity=1)
        file.diagnostic("7 events of it were dropped", pid=OTHER)
        file.diagnostic("3 events of it were dropped", pid=PID)
        file.diagnostic("CPU frequency is low")

    export = read(path, generation, fill)
    row = export.work.iloc[0]
    assert (len(export.work), row["kind"], row["name"], row["in_graph"]) == (
        1,
        "graph",
        "graph 3",
        True,
    )
    assert row["correlation"] == 5
    notes = dict(export.notes)
    assert set(notes) == {"nsys-untimed-work", "nsys-lost-events"}
    assert "1 kernels" in notes["nsys-untimed-work"]
    assert "3 times" in notes["nsys-lost-events"]
    assert SECRET not in str(notes)


def test_the_target_is_the_process_of_our_ranges_then_the_one_with_device_work(
    tmp_path: Path,
) -> None:
    def ours(file: NsysFile) -> None:
        file.range(1, 2, "step 1", category="step", pid=11)
        for at in range(9):
            file.range(at, at + 1, "x", domain="theirs", pid=12)
            file.kernel(at, at + 1, "k", at + 1, pid=12)

    def devices(file: NsysFile) -> None:
        for at in range(9):
            file.range(at, at + 1, "x", domain="theirs", pid=11)
        file.kernel(1, 2, "k", 1, pid=12)

    def ranges(file: NsysFile) -> None:
        file.range(1, 2, "x", domain="theirs", pid=12)
        for at in range(9):
            file.os_call(at, at + 1, "read", pid=11)

    def events(file: NsysFile) -> None:
        file.os_call(1, 2, "read", pid=11)
        file.sample(3, pid=12)
        file.sample(4, pid=12)
        file.sample(4, pid=13)

    expected = {ours: (11, 1), devices: (12, 1), ranges: (12, 1), events: (12, 2)}
    for number, (fill, told) in enumerate(expected.items()):
        export = read(tmp_path / f"{number}.sqlite", "2026", fill)
        assert (export.process, export.others) == told, fill.__name__


def test_domain_and_category_numbers_are_those_of_the_process(path: Path) -> None:
    """Every process numbers its own; the other one's names are the first in the file."""

    def fill(file: NsysFile) -> None:
        file.range(1, 2, "a", domain="theirs", category="their own", pid=OTHER)
        file.range(3, 4, "b", domain="profstack", category="step")
        file.range(5, 6, "c", domain="script", category="load")

    ranges = read(path, "2022", fill).ranges
    assert ranges[["domain", "category"]].to_numpy().tolist() == [
        ["profstack", "step"],
        ["script", "load"],
    ]


def test_a_correlation_stands_in_the_outer_call_alone(path: Path) -> None:
    def fill(file: NsysFile) -> None:
        file.call(110, 140, "cuLaunchKernel", 5)
        file.call(100, 150, "cudaLaunchKernel", 5)
        file.call(100, 150, "cudaLaunchKernel", 5, pid=OTHER)
        file.call(200, 210, "cudaGetDevice", None)
        file.call(220, 230, "cudaGetDevice", None)
        file.range(90, 160, "step 1", category="step")

    calls = read(path, "2024", fill).calls
    told = list(calls[["name", "correlation"]].itertuples(index=False, name=None))
    assert told == [
        ("cudaLaunchKernel", 5),
        ("cuLaunchKernel", -1),
        ("cudaGetDevice", -1),
        ("cudaGetDevice", -1),
    ]


def with_backtraces(file: NsysFile) -> None:
    """Calls whose stacks were taken, which stand in second rows around them."""
    file.range(90, 900, "step 1", category="step", payload=1)
    file.backtrace(95, 155, "cudaLaunchKernel", 5, callchain=3)
    file.call(100, 150, "cudaLaunchKernel", 5)
    file.backtrace(108, 142, "cuLaunchKernel", 5, callchain=4)
    file.call(110, 140, "cuLaunchKernel", 5)
    file.kernel(200, 300, "gemm", 5)
    file.call(400, 450, "cudaStreamSynchronize_ptsz", 6, failed=True)
    file.backtrace(399, 451, "cudaStreamSynchronize", 6, callchain=3)
    file.call(500, 510, "cudaGetDevice", 7)
    # Of these the first row is not in the file, or on another thread.
    file.backtrace(600, 610, "cudaMemcpy", 8, callchain=4)
    file.backtrace(700, 710, "cudaGetDevice", 7, callchain=4, thread=AUTOGRAD)
    for number, text in ((10, "CUDA"), (68, "CUDA backtrace"), (69, "CUDA backtrace")):
        file.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=91,
            end=92,
            eventClass=number,
            globalTid=MAIN,
            nameId=file.string(f"{text} profiling"),
            returnValue=0,
        )
    file.callchain("cuda", 3, [("launch", "libtorch.so"), ("main", "python")])
    file.callchain("cuda", 4, [("copy", "libtorch.so")])


WITH_STACKS = [
    (100, "cudaLaunchKernel", 5, 3, False),
    (110, "cuLaunchKernel", -1, 4, False),
    (400, "cudaStreamSynchronize_ptsz", 6, 3, True),
    (500, "cudaGetDevice", 7, -1, False),
    (600, "cudaMemcpy", 8, 4, False),
    (700, "cudaGetDevice", -1, 4, False),
]


def calls_told(path: Path) -> list[tuple[object, ...]]:
    columns = ["start", "name", "correlation", "callchain", "failed"]
    return list(read_export(path).calls[columns].itertuples(index=False, name=None))


@pytest.mark.parametrize("generation", [OLDEST, *GENERATIONS])
def test_a_call_whose_stack_was_taken_counts_once_and_has_the_stack(
    path: Path, generation: str
) -> None:
    assert calls_told(write(path, generation, with_backtraces)) == WITH_STACKS


def test_classes_are_those_that_the_file_names_and_without_any_all_are_calls(path: Path) -> None:
    write(path, "2026", with_backtraces)
    table = "CUPTI_ACTIVITY_KIND_RUNTIME"
    change(
        path,
        *(f"UPDATE {table} SET eventClass = {n + 100} WHERE eventClass = {n}" for n in (1, 67)),
        "UPDATE ENUM_NSYS_EVENT_CLASS SET id = id + 100 WHERE id IN (1, 67)",
    )
    assert calls_told(path) == WITH_STACKS
    change(path, "DROP TABLE ENUM_NSYS_EVENT_CLASS", f"DELETE FROM {table} WHERE eventClass > 2")
    assert [row[1] for row in calls_told(path)] == [
        "cudaLaunchKernel",
        "cudaStreamSynchronize_ptsz",
        "cudaGetDevice",
    ]
    change(path, f"ALTER TABLE {table} RENAME COLUMN eventClass TO other")
    assert len(calls_told(path)) == 3


def test_marks_of_nsys_and_its_own_threads_do_not_count(path: Path) -> None:
    observer = thread_of(PID, PID + 9)

    def fill(file: NsysFile) -> None:
        file.os_call(50, 60, "read")
        file.sample(70)
        file.os_call(5, 6, "poll", thread=observer)
        file.sample(7, thread=observer)
        file.thread_name(observer, "[NSys Comms]")
        started = file.string("OS runtime libraries profiling started")
        file.row(
            "OSRT_API", start=1, end=1, eventClass=31, globalTid=process_of(PID), nameId=started
        )
        file.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=1,
            end=1,
            eventClass=10,
            globalTid=process_of(PID),
            nameId=started,
            returnValue=0,
        )

    with NsysFile(path, OLDEST) as file:
        fill(file)
    export = read_export(path)
    assert export.os_calls["name"].tolist() == ["read"]
    assert export.samples["t"].tolist() == [70]
    assert len(export.calls) == 0
    assert (export.begin_ns, export.end_ns) == (50, 70)


def test_not_ready_is_no_failure(path: Path) -> None:
    def fill(file: NsysFile) -> None:
        file.call(1, 2, "cudaEventQuery", 1)
        file.call(3, 4, "cudaMalloc", 2, failed=True)

    write(path, "2022", fill)
    change(path, "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 600 WHERE start = 1")
    assert read_export(path).calls["failed"].tolist() == [False, True]


def test_what_a_file_calls_its_numbers_is_taken_where_we_do_not_know_better(path: Path) -> None:
    def fill(file: NsysFile) -> None:
        file.copy(1, 2, 1, bytes=1, kind="device to host")
        file.copy(3, 4, 2, bytes=1)
        file.copy(5, 6, 3, bytes=1)

    write(path, "2026", fill)
    change(
        path,
        "UPDATE ENUM_CUDA_MEMCPY_OPER SET label = 'DtoH' WHERE id = 2",
        "INSERT INTO ENUM_CUDA_MEMCPY_OPER VALUES (77, 'NEW', 'Host-to-Moon')",
        "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET copyKind = 77 WHERE start = 3",
        "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET copyKind = 78 WHERE start = 5",
    )
    work = read_export(path).work
    told = work["direction"].astype(object).where(work["direction"].notna(), None)
    assert told.tolist() == ["device to host", "host to moon", None]
    assert work["name"].tolist() == ["copy device to host", "copy host to moon", "copy"]


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def test_tables_and_columns_that_nobody_knows_are_harmless(path: Path) -> None:
    expected = read(path, "2026", training)
    with closing(sqlite3.connect(path)) as database:
        tables = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
    change(
        path,
        *(f'ALTER TABLE "{table}" ADD COLUMN "of a later day" TEXT' for table in tables),
        "CREATE TABLE OF_A_LATER_DAY (start TEXT, end BLOB)",
        "INSERT INTO OF_A_LATER_DAY VALUES ('x', x'00')",
        "CREATE VIEW LATER AS SELECT * FROM StringIds",
    )
    for name, frame in frames_of(read_export(path)).items():
        assert_frame_equal(frame, frames_of(expected)[name])


def test_a_name_in_no_encoding_and_a_name_that_is_nowhere_still_count(path: Path) -> None:
    def fill(file: NsysFile) -> None:
        file.kernel(1, 2, "first", 1)
        file.kernel(3, 4, "second", 2)

    write(path, "2022", fill)
    change(
        path,
        "UPDATE StringIds SET value = CAST(x'6bff6b' AS TEXT) WHERE value = 'first'",
        "DELETE FROM StringIds WHERE value = 'second'",
    )
    assert read_export(path).work["name"].tolist() == ["k\ufffdk", "unnamed"]


# --- files that cannot be read ---


def told(path: Path) -> str:
    """The one line that a user gets."""
    with pytest.raises(ExportError) as caught:
        read_export(path)
    assert isinstance(caught.value, ProfstackError)
    assert caught.value.next_step
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "No such file" in told(tmp_path / "none.sqlite")
    assert "directory" in told(tmp_path)
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    assert "is empty; export it again: nsys export --type sqlite" in told(empty)
    text = tmp_path / "text.sqlite"
    text.write_text("step,seconds\n" * 50)
    assert "is not a SQLite file" in told(text)
    report = tmp_path / "out.nsys-rep"
    report.write_bytes(b"\0" * 500)
    assert "is a report of nsys" in told(report)
    assert "nsys export --type sqlite out.nsys-rep" in told(report)


def test_databases_of_other_tools(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.sqlite"
    change(nothing, "PRAGMA user_version = 1")
    other = tmp_path / "other.sqlite"
    change(other, "CREATE TABLE StringTable (id INTEGER, value TEXT)")
    for each in (nothing, other):
        assert "not an export of Nsight Systems" in told(each)
    blank = tmp_path / "blank.sqlite"
    change(blank, "CREATE TABLE StringIds (id INTEGER, value TEXT)")
    assert "holds no event of any process; profile again" in told(blank)


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("NVTX_EVENTS", "globalTid"),
        ("NVTX_EVENTS", "eventType"),
        ("NVTX_EVENTS", "end"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"),
        ("SAMPLING_CALLCHAINS", "stackDepth"),
        ("StringIds", "value"),
    ],
)
def test_a_column_that_is_needed_and_not_there(path: Path, table: str, column: str) -> None:
    write(path, "2024", training)
    change(path, f'ALTER TABLE {table} RENAME COLUMN "{column}" TO other')
    line = told(path)
    assert f"{column}" in line
    assert path.name in line


def test_a_damaged_file(path: Path) -> None:
    """Pages in the middle are overwritten: the header and the schema are still good."""
    write(path, "2024", training)
    raw = bytearray(path.read_bytes())
    size = int.from_bytes(raw[16:18], "big")
    for page in range(2, len(raw) // size):
        raw[page * size : page * size + 200] = b"\xaa" * 200
    path.write_bytes(raw)
    line = told(path)
    assert "damaged" in line
    assert "export it again: nsys export --type sqlite --force-overwrite true" in line


def test_a_number_that_is_a_text(path: Path) -> None:
    write(path, "2024", training)
    change(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon' WHERE streamId = 13")
    assert "damaged" in told(path)


def test_a_file_cut_anywhere_is_told_as_cut(path: Path, tmp_path: Path) -> None:
    write(path, "2022", training)
    whole = path.read_bytes()
    chosen = random.Random(7).sample(range(1, len(whole)), 40)
    for at in chosen:
        cut = tmp_path / "cut.sqlite"
        cut.write_bytes(whole[:at])
        line = told(cut)
        assert "is cut short" in line or at < 16, (at, line)
        assert "\n" not in line


def test_a_file_with_bytes_turned_is_read_or_told(path: Path, tmp_path: Path) -> None:
    """Whatever stands in it, there is an export or one line, never another exception."""
    write(path, "2026", training)
    whole = path.read_bytes()
    chance = random.Random(11)
    outcomes = set()
    for _ in range(60):
        raw = bytearray(whole)
        for _ in range(chance.choice((1, 20, 400))):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        turned = tmp_path / "turned.sqlite"
        turned.write_bytes(raw)
        try:
            export = read_export(turned)
        except ExportError as error:
            outcomes.add("told" if "\n" not in str(error) else str(error))
        else:
            for name, frame in frames_of(export).items():
                assert {column: str(frame[column].dtype) for column in frame} == FRAMES[name]
            outcomes.add("read")
    assert outcomes == {"told", "read"}


def test_a_locked_file_says_to_wait(path: Path) -> None:
    write(path, "2022", training)
    with closing(sqlite3.connect(path, isolation_level=None)) as writing:
        writing.execute("BEGIN EXCLUSIVE")
        assert "wait until nsys has written it" in told(path)


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_nothing_is_written_beside_or_into_the_file(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "a folder, 100% #1?"
    folder.mkdir()
    path = write(folder / "out.sqlite", "2022", training)
    change(path, f"PRAGMA journal_mode = {mode}")
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    path.chmod(stat.S_IRUSR)
    try:
        for writable in (False, True):
            if writable:
                folder.chmod(stat.S_IRWXU)
                path.chmod(stat.S_IRUSR | stat.S_IWUSR)
            assert len(read_export(path).work) == 8
            assert [each.name for each in folder.iterdir()] == ["out.sqlite"]
            assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    finally:
        folder.chmod(stat.S_IRWXU)


# --- a file of the real nsys ---

PROGRAM = """
import threading
import nvtx

def helper():
    with nvtx.annotate("helper", domain="script"):
        sum(range(200_000))

for number in range(3):
    with nvtx.annotate(f"step {number}", domain="profstack", category="step", payload=number):
        with nvtx.annotate("Net.linear", domain="profstack", category="module"):
            sum(range(100_000))
        with nvtx.annotate("plain"):
            pass
        thread = threading.Thread(target=helper)
        thread.start()
        thread.join()
both = nvtx.start_range("both", domain="script", category="load")
nvtx.end_range(both)
nvtx.push_range("never closed", domain="profstack", category="module")
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a small program, by the nsys of this machine."""
    nsys = shutil.which("nsys")
    if nsys is None:
        absent("Nsight Systems (nsys) is not installed")
    folder = tmp_path_factory.mktemp("nsys")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder / "nvtx"]
    wheel = ["--only-binary", ":all:", f"nvtx=={OLD_NVTX}"]
    if subprocess.run([*pip, *wheel], capture_output=True, check=False).returncode:
        absent(f"nvtx {OLD_NVTX}, which every nsys takes, cannot be installed here")
    # An nsys of 2022 that samples may never come to an end on a newer kernel.
    options = ["-t", "nvtx,osrt", "-s", "none", "--cpuctxsw", "none"]
    environment = clean_environment(TMPDIR=str(folder), PYTHONPATH=str(folder / "nvtx"))
    environment["PROFSTACK_TEST_TOKEN"] = SECRET
    with alone():
        subprocess.run(
            [nsys, "profile", *options, "-o", folder / "out", sys.executable, program],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=200,
            check=True,
        )
    return exported_by(nsys, folder)


def exported_by(nsys: str, folder: Path) -> Path:
    report, database = folder / "out.nsys-rep", folder / "out.sqlite"
    if not report.exists():
        above = Path(os.path.realpath(nsys)).parents
        importers = [
            found
            for each in above
            for pattern in ("host-linux-*", "lib/nsight-systems/host-linux-*")
            for found in each.glob(f"{pattern}/QdstrmImporter")
        ]
        if not importers:
            absent("nsys has made no report, and its importer is not installed")
        importing = [importers[0], "-i", folder / "out.qdstrm", "-o", report]
        subprocess.run(importing, capture_output=True, check=True)
    export = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "-o", database]
    subprocess.run([*export, report], capture_output=True, check=True)
    return database


@pytest.mark.slow
def test_a_file_of_the_real_nsys(real: Path) -> None:
    export = read_export(real)
    assert export.version
    assert export.schema
    ranges = export.ranges
    steps = ranges[ranges["category"] == "step"]
    assert steps["text"].tolist() == ["step 0", "step 1", "step 2"]
    assert steps["payload"].tolist() == [0, 1, 2]
    assert set(steps["domain"]) == {"profstack"}
    assert steps["thread"].nunique() == 1
    for text, domain, category, style, count in (
        ("Net.linear", "profstack", "module", "push_pop", 3),
        ("plain", "", None, "push_pop", 3),
        ("helper", "script", None, "push_pop", 3),
        ("both", "script", "load", "start_end", 1),
    ):
        found = ranges[ranges["text"] == text]
        assert len(found) == count, text
        assert set(found["domain"]) == {domain}
        assert found["category"].dropna().unique().tolist() == ([category] if category else [])
        assert set(found["style"]) == {style}
    assert set(ranges["thread"][ranges["text"] == "helper"]).isdisjoint(steps["thread"])
    assert (ranges["end"] >= ranges["start"]).all()
    assert export.open_ranges == 1
    assert "never closed" in dict(export.notes)["nsys-open-ranges"]
    assert {"calls", "work", "memory"} <= set(export.missing)
    assert SECRET in real.read_bytes().decode("latin-1")
    for text in (repr(export), *(frame.to_csv() for frame in frames_of(export).values())):
        assert SECRET not in text
