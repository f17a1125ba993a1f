"""Tables of an import against plain loops over the export's own rows.

Captures are drawn from a seed: two processes, devices and streams, numbered ranges, copies, fills,
waits, collectives, calls that are not in the file, work of before the steps. What is expected is
worked out here from SQL alone, event by event.
"""

import random
import re
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from statistics import median, stdev

import pytest

from profstack.readers.nsys.export import processes_of, read_process
from profstack.readers.nsys.export_file import ExportFile
from profstack.readers.nsys.importing import rows_of
from tests.support.nsys_files import PID, NsysFile, thread_of

OTHER = PID + 1
SEEDS = range(6)
KERNELS = ("gemm", "relu", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclKernel_AllGather_LL")


def draw(path, seed, steps="step"):
    """A capture of two processes; `steps` are "step" (profstack's), "batch" (theirs) or None."""
    chance = random.Random(seed)
    number = 0
    with NsysFile(path, chance.choice(("2022", "2024", "2026"))) as file:
        for pid in (PID, OTHER):
            main, moment = thread_of(pid, pid), 10_000 + pid % 7
            for step in range(chance.randint(3, 6) if pid == PID else 4):
                begin = moment
                for _ in range(chance.randint(2, 6)):
                    moment += chance.randint(20, 300)
                    opened = moment
                    for _ in range(chance.randint(1, 4)):
                        number += 1
                        moment += chance.randint(5, 60)
                        event(file, chance, moment, number, main, pid)
                        moment += chance.randint(20, 60)
                    name = chance.choice((f"aten::mm, op_id = {number}", "loss", "Net"))
                    domain = "profstack" if name == "Net" else ""
                    kind = {"category": "module" if domain else None}
                    file.range(opened, moment, name, domain=domain, thread=main, **kind)
                moment += chance.randint(5, 400)
                if steps == "step":
                    file.step(step, begin, moment, thread=main)
                elif steps:
                    own = {"domain": "", "category": None, "thread": main}
                    file.range(begin, moment, f"{steps} {step}", **own)
                moment += chance.randint(0, 200)
    return path


def event(file, chance, at, number, thread, pid):
    """A call and what it does on a device; some calls are not in the file."""
    kind, length = chance.choice("kkkkcfw"), chance.randint(5, 20)
    begin, end = at + chance.randint(2, 250), 0
    end = begin + chance.randint(1, 300)
    where = {"device": chance.choice((0, 0, 1)), "stream": chance.choice((7, 13)), "pid": pid}
    name = {"k": "cudaLaunchKernel", "c": "cudaMemcpyAsync", "f": "cudaMemsetAsync"}.get(kind)
    if chance.random() < 0.9:
        name = name or "cudaStreamSynchronize"
        file.call(at, at + length, name, number, thread=thread, failed=chance.random() < 0.1)
    if kind == "k":
        grid = f"{chance.choice((1, 80))},1,1"
        file.kernel(begin, end, chance.choice(KERNELS), number, grid=grid, block="256,1,1", **where)
    elif kind == "c":
        file.copy(begin, end, number, size=chance.randint(1, 9999), **where)
    elif kind == "f":
        file.fill(begin, end, number, size=64, **where)
    else:
        file.wait(at + 1, at + length, number, "stream", **where)
    if chance.random() < 0.2:
        file.os_call(at, at + length, chance.choice(("poll", "read")), thread=thread)


def imported(path, step_range):
    with ExportFile(path) as file:
        processes, _ = processes_of(file)
        assert sorted(processes) == [PID, OTHER]
        exports = (read_process(file, process) for process in processes)
        return rows_of(exports, step_range)


class Plain:
    """The events of one process, from SQL alone; times are nanoseconds."""

    def __init__(self, path, pid, steps):
        self.pid = pid
        with closing(sqlite3.connect(path)) as database:
            names = dict(database.execute("SELECT id, value FROM StringIds"))

            def rows(table, columns, process):
                found = database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,))
                if not found.fetchone():
                    return []
                own = f"({process} >> 24) & 0xffffff = {pid}"
                return database.execute(f"SELECT {columns} FROM {table} WHERE {own}").fetchall()

            device = "correlationId, start, end, deviceId"
            work = "CUPTI_ACTIVITY_KIND_"
            self.kernels = [
                (*row[:4], names[row[4]], row[5])
                for row in rows(f"{work}KERNEL", f"{device}, demangledName, gridX", "globalPid")
            ]
            self.copies = rows(f"{work}MEMCPY", f"{device}, bytes", "globalPid")
            self.fills = rows(f"{work}MEMSET", device, "globalPid")
            self.waits = rows(f"{work}SYNCHRONIZATION", device, "globalPid")
            self.calls = [
                (number, start, end, re.sub(r"_v\d+$", "", names[name]), failed)
                for number, start, end, name, failed in rows(
                    f"{work}RUNTIME", "correlationId, start, end, nameId, returnValue", "globalTid"
                )
            ]
            self.os_calls = [
                (start, end, names[name])
                for start, end, name in rows("OSRT_API", "start, end, nameId", "globalTid")
            ]
            events = rows("NVTX_EVENTS", "start, end, text, textId, eventType", "globalTid")
            self.ranges = [(*row[:2], row[2] or names[row[3]]) for row in events if row[4] == 59]
        timed = (*self.kernels, *self.copies, *self.fills, *self.waits, *self.calls)
        starts = [row[0] for row in (*self.os_calls, *self.ranges)]
        self.begin = min([*starts, *(row[1] for row in timed)])
        self.launch = {call[0]: call for call in self.calls}
        self.steps = sorted(
            (start, end) for start, end, text in self.ranges if steps and text.startswith(steps)
        )

    def counts(self, moment):
        return not self.steps or any(start <= moment < end for start, end in self.steps)

    def within(self, start, end):
        """The nanoseconds of a time that count."""
        if not self.steps:
            return end - start
        return sum(max(min(end, until) - max(start, begin), 0) for begin, until in self.steps)

    def counted(self, work):
        """Work that a call in a step began, or that ran in a step without a call."""
        return [
            row
            for row in work
            if self.counts(self.launch[row[0]][1] if row[0] in self.launch else row[1])
        ]

    def idle(self, device, others=()):
        """The nanoseconds, one by one, in which the device ran none of these."""
        work = [row for row in (*self.kernels, *self.fills, *others) if row[3] == device]
        first, last = min(row[1] for row in work), max(row[2] for row in work)
        spans = self.steps or [(first, last)]
        busy = set().union(*(range(row[1], row[2]) for row in work))
        return [moment for span in spans for moment in range(*span) if moment not in busy]


def ns(value):
    return None if value is None else round(value * 1e9)


CASES = [(seed, steps) for seed in SEEDS for steps in ("step", "batch", None)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def case(request, tmp_path_factory):
    """Rows by table, and the plain events of each process."""
    seed, steps = request.param
    path = draw(tmp_path_factory.mktemp("brute") / "a.sqlite", seed, steps)
    # A range that repeats would be found.
    rows, facts = imported(path, None if steps else "")
    plain = {pid: Plain(path, pid, steps) for pid in (PID, OTHER)}
    assert facts["steps"] == len(plain[facts["process"]].steps)
    assert facts["step_range"] == ("batch" if steps == "batch" else None)
    assert set(facts["processes"]) == set(plain)
    return rows, plain


def own(rows, name, pid):
    return [row for row in rows[f"nsys_{name}"] if row["process"] == pid]


def test_every_kernel_copy_fill_call_and_wait_is_in_its_row(case):
    rows, plain = case
    for pid, events in plain.items():
        expected = Counter()
        for _, start, end, device, name, grid in events.counted(events.kernels):
            key = (name, f"cuda:{device}", f"{grid} 1 1")
            expected[key, "calls"] += 1
            expected[key, "device_s"] += end - start
        found = Counter()
        for row in own(rows, "kernels", pid):
            assert row["block"] == "256 1 1"
            for column in ("calls", "device_s"):
                value = row[column] if column == "calls" else ns(row[column])
                found[(row["name"], row["device"], row["grid"]), column] += value
        assert found == expected
        copies, fills = events.counted(events.copies), events.counted(events.fills)
        rows_of_copies = own(rows, "copies", pid)
        assert sum(row["calls"] for row in rows_of_copies) == len(copies) + len(fills)
        moved = [row["bytes"] for row in rows_of_copies if row["direction"] != "fill"]
        assert sum(moved) == sum(row[4] for row in copies)
        expected = Counter()
        for _, start, end, name, failed in events.calls:
            if events.counts(start):
                expected["cuda", name, "calls"] += 1
                expected["cuda", name, "host_s"] += events.within(start, end)
                expected["cuda", name, "failed"] += bool(failed)
        for start, end, name in events.os_calls:
            if events.counts(start):
                expected["os", name, "calls"] += 1
                expected["os", name, "host_s"] += events.within(start, end)
        found = Counter()
        for row in own(rows, "api", pid):
            for column in ("calls", "host_s", "failed"):
                value = ns(row[column]) if column == "host_s" else row[column]
                found[row["library"], row["name"], column] += value or 0
        assert +found == +expected
        waits = events.counted(events.waits)
        found = own(rows, "waits", pid)
        assert sum(row["calls"] for row in found) == len(waits)
        assert sum(ns(row["wait_s"]) for row in found) == sum(row[2] - row[1] for row in waits)


def test_statistics_by_name(case):
    rows, plain = case
    for pid, events in plain.items():
        times = defaultdict(list)
        for _, start, end, device, name, _ in events.counted(events.kernels):
            times["kernel", name, f"cuda:{device}"].append(end - start)
        for _, start, end, device, _ in events.counted(events.copies):
            times["copy", "copy host to device", f"cuda:{device}"].append(end - start)
        for _, start, end, device in events.counted(events.fills):
            times["fill", "fill", f"cuda:{device}"].append(end - start)
        for _, start, end, device in events.counted(events.waits):
            times["wait", "stream sync", f"cuda:{device}"].append(end - start)
        for _, start, end, name, _ in events.calls:
            if events.counts(start):
                times["cuda", name, None].append(events.within(start, end))
        for start, end, name in events.os_calls:
            if events.counts(start):
                times["os", name, None].append(events.within(start, end))
        found = {(row["kind"], row["name"], row["device"]): row for row in own(rows, "stats", pid)}
        assert set(found) == set(times)
        for key, values in times.items():
            row = found[key]
            figures = (len(values), sum(values), min(values), max(values))
            columns = ("total_s", "shortest_s", "longest_s")
            assert (row["calls"], *(ns(row[name]) for name in columns)) == figures
            assert row["median_s"] == pytest.approx(median(values) * 1e-9)
            spread = stdev(values) * 1e-9 if len(values) > 1 else None
            assert row["deviation_s"] == (spread and pytest.approx(spread, abs=1e-15))


def test_idle_time_of_each_device_nanosecond_by_nanosecond(case):
    rows, plain = case
    for pid, events in plain.items():
        devices = {row[3] for row in (*events.kernels, *events.fills)}
        for device in devices:
            mine = [row for row in own(rows, "gaps", pid) if row["device"] == f"cuda:{device}"]
            idle = events.idle(device)
            assert sum(ns(row["total_s"]) for row in mine) == len(idle)
            copying = [range(row[1], row[2]) for row in events.copies if row[3] == device]
            fully = [moment for moment in idle if not any(moment in each for each in copying)]
            assert sum(ns(row["fully_idle_s"]) for row in mine) == len(fully)
            of_steps = [row for row in own(rows, "steps", pid) if row["device"] == f"cuda:{device}"]
            assert len(of_steps) == len(events.steps)
            if of_steps:
                assert sum(ns(row["idle_s"]) for row in of_steps) == len(idle)
                assert sum(ns(row["fully_idle_s"]) for row in of_steps) == len(fully)


def test_a_gap_is_unknown_where_its_launch_is_not_in_the_file(case):
    rows, plain = case
    origin = min(events.begin for events in plain.values())
    for pid, events in plain.items():
        work = sorted((*events.kernels, *events.fills), key=lambda row: row[1])
        for row in own(rows, "longest_gaps", pid):
            end = origin + ns(row["started_s"]) + ns(row["gap_s"])
            later = [each for each in work if f"cuda:{each[3]}" == row["device"]]
            later = [each for each in later if each[1] >= end]
            ending = [each for each in later if each[1] == later[0][1]]
            unseen = {each[0] not in events.launch for each in ending}
            copied = ns(row["gap_s"]) - ns(row["fully_idle_s"])
            if len(unseen) < 2:
                is_known = 2 * copied >= ns(row["gap_s"]) or unseen != {True}
                assert (row["cause"] == "unknown") is not is_known


def test_ranges_without_numbers_and_their_work(case):
    rows, plain = case
    for pid, events in plain.items():
        expected, numbers = Counter(), defaultdict(list)
        for start, end, text in events.ranges:
            if not events.within(start, end) and not events.counts(start):
                continue
            name, _, number = text.partition(", op_id = ")
            name = re.sub(r"^(step|batch) \d+$", r"\1", name)
            expected[name, "calls"] += 1
            expected[name, "wall_s"] += events.within(start, end)
            numbers[name] += [int(number)] if number else []
            inside = [
                row
                for row in events.kernels
                if row[0] in events.launch and start <= events.launch[row[0]][1] < end
            ]
            moved = [
                row
                for row in (*events.copies, *events.fills)
                if row[0] in events.launch and start <= events.launch[row[0]][1] < end
            ]
            expected[name, "kernels"] += len(inside)
            expected[name, "device_s"] += sum(row[2] - row[1] for row in inside)
            every = inside + moved
            if every:
                first, last = min(row[1] for row in every), max(row[2] for row in every)
                expected[name, "projected_s"] += last - first
        found = Counter()
        for row in own(rows, "ranges", pid):
            for column in ("calls", "wall_s", "kernels", "device_s", "projected_s"):
                value = ns(row[column]) if column.endswith("_s") else row[column]
                found[row["name"], column] += value
            if row["name"] == "aten::mm":
                assert row["first_number"] in numbers["aten::mm"]
                assert row["last_number"] in numbers["aten::mm"]
        assert +found == +expected


def test_communication_and_what_ran_meanwhile(case):
    rows, plain = case
    for pid, events in plain.items():
        found = {(row["device"], row["collective"]): row for row in own(rows, "communication", pid)}
        expected = defaultdict(list)
        for row in events.counted(events.kernels):
            kind = re.search("AllReduce|AllGather", row[4])
            if kind:
                expected[f"cuda:{row[3]}", kind[0]].append(row)
        assert set(found) == set(expected)
        for (device, kind), kernels in expected.items():
            busy = set().union(*(range(row[1], row[2]) for row in kernels))
            computing = set().union(
                *(
                    range(row[1], row[2])
                    for row in events.kernels
                    if f"cuda:{row[3]}" == device and "nccl" not in row[4]
                )
            )
            row = found[device, kind]
            overlapped = len(busy & computing)
            figures = (len(kernels), len(busy), overlapped, len(busy) - overlapped)
            columns = ("busy_s", "overlapped_s", "exposed_s")
            assert (row["calls"], *(ns(row[name]) for name in columns)) == figures


def test_processes_and_devices_side_by_side(case):
    rows, plain = case
    for pid, events in plain.items():
        kernels, moved = (
            events.counted(work) for work in (events.kernels, (*events.copies, *events.fills))
        )
        mine = {row["device"]: row for row in own(rows, "processes", pid)}
        assert set(mine) == {f"cuda:{row[3]}" for row in (*kernels, *moved)}
        for device, row in mine.items():
            here = [each for each in kernels if f"cuda:{each[3]}" == device]
            busy = set().union(*(range(each[1], each[2]) for each in here))
            assert row["steps"] == len(events.steps)
            assert (row["kernels"], ns(row["busy_s"])) == (len(here), len(busy))
            assert ns(row["device_s"]) == sum(each[2] - each[1] for each in here)
            copies = [each for each in moved if f"cuda:{each[3]}" == device]
            assert row["copies"] == len(copies)
