"""Import a synthetic capture of Nsight Systems of many kernels, and account for every one of them.

    python benchmarks/nsys_import.py [--kernels 2000000] [--processes 1] [--numbered]

Writes an export with launches, kernels of two streams, copies, ranges and steps, imports it in a
process of its own, and holds the sums of the recorded tables against SQL. Prints the time and the
peak memory of the import; exits with 1 where a kernel or a nanosecond is missing.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from subprocess import run

from profstack.readers.nsys.importing import read_file

NAMES = 120
KERNELS_OF_STEP = 2_000
PROCESS = 4242


def write(path: Path, kernels: int, processes: int, *, numbered: bool) -> None:
    """Write an export of so many kernels of each process; `numbered` ranges as of emit_nvtx."""
    chance = random.Random(1)
    with closing(sqlite3.connect(path)) as database, database:
        execute, many = database.execute, database.executemany
        execute("PRAGMA synchronous = OFF")
        execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        names = [f"void kernel_{n}<float, {n}>(int)" for n in range(NAMES)]
        many("INSERT INTO StringIds VALUES (?, ?)", enumerate([*names, "cudaLaunchKernel_v7000"]))
        work = "start, end, deviceId, streamId, correlationId, globalPid"
        sizes = "gridX, gridY, gridZ, blockX, blockY, blockZ"
        prefix = "CUPTI_ACTIVITY_KIND_"
        execute(f"CREATE TABLE {prefix}KERNEL ({work}, demangledName, {sizes})")
        execute(f"CREATE TABLE {prefix}MEMCPY ({work}, bytes, copyKind)")
        columns = "start, end, eventClass, globalTid, correlationId, nameId, returnValue"
        execute(f"CREATE TABLE {prefix}RUNTIME ({columns})")
        columns = "start, end, eventType, globalTid, text, domainId"
        execute(f"CREATE TABLE NVTX_EVENTS ({columns})")
        for pid in range(PROCESS, PROCESS + processes):
            process = (1 << 48) | (pid << 24)
            thread = process | pid
            rows: list[tuple[object, ...]] = []
            launches, ranges, copies = list[tuple[object, ...]](), list[tuple[object, ...]](), []
            moment = 1_000
            for number in range(kernels):
                step, place = divmod(number, KERNELS_OF_STEP)
                if place == 0:
                    begun = moment
                launches.append((moment, moment + 4_000, 0, thread, number + 1, NAMES, 0))
                begin = moment + chance.randint(1_000, 90_000)
                key = (process, chance.randrange(NAMES), 1 + number % 9, 1, 1, 256, 1, 1)
                length = chance.randint(900, 40_000)
                rows.append((begin, begin + length, 0, 7 + number % 2, number + 1, *key))
                if numbered:
                    text = f"aten::op{number % 40}, op_id = {number}"
                    ranges.append((moment - 500, moment + 5_000, 59, thread, text, None))
                moment += 6_000
                if place == KERNELS_OF_STEP - 1 or number == kernels - 1:
                    ranges.append((begun - 900, moment, 59, thread, f"iteration {step}", None))
                    copies.append((moment - 90, moment - 10, 0, 7, -1, process, 4096, 1))
                    moment += 9_000
            many(f"INSERT INTO {prefix}KERNEL VALUES ({', '.join('?' * 13)})", rows)
            many(f"INSERT INTO {prefix}RUNTIME VALUES ({', '.join('?' * 7)})", launches)
            many(f"INSERT INTO {prefix}MEMCPY VALUES ({', '.join('?' * 8)})", copies)
            many(f"INSERT INTO NVTX_EVENTS VALUES ({', '.join('?' * 6)})", ranges)


def peak_bytes() -> int:
    """Return the largest resident set of this process so far; `getrusage` adds the parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def imported(path: Path) -> dict[str, float]:
    """Import the file in this process; return the sums of its tables, the time and the memory."""
    before, begun = peak_bytes(), time.perf_counter()
    frames, fact = read_file(path)
    took = time.perf_counter() - begun
    kernels = [row for row in frames["nsys_stats"] if row["kind"] == "kernel"]
    return {
        "seconds": took,
        "before_bytes": before,
        "peak_bytes": peak_bytes(),
        "steps": fact["steps"],
        "rows": len(frames["nsys_kernels"]),
        "ranges": len(frames["nsys_ranges"]),
        "by_place": sum(int(row["calls"] or 0) for row in frames["nsys_kernels"]),
        "by_place_s": sum(float(row["device_s"] or 0) for row in frames["nsys_kernels"]),
        "by_name": sum(int(row["calls"] or 0) for row in kernels),
        "by_name_s": sum(float(row["total_s"] or 0) for row in kernels),
    }


def main() -> int:
    """Write, import and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=2_000_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--numbered", action="store_true", help="a numbered range for each kernel")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        print(json.dumps(imported(given.read)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.sqlite"
        write(path, given.kernels, given.processes, numbered=given.numbered)
        with closing(sqlite3.connect(path)) as database:
            query = "SELECT COUNT(*), SUM(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL"
            ((count, spent),) = database.execute(query)
        done = run(
            [sys.executable, __file__, "--read", str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
        found = json.loads(done.stdout)
        size = path.stat().st_size
    print(f"{count:,} kernels in {size / 1e6:,.0f} MB, {spent / 1e9:.6f} s of device time")
    print(
        f"import: {found['seconds']:.1f} s, {count / found['seconds'] / 1e3:,.0f} thousand kernels "
        f"a second, at most {found['peak_bytes'] / 1e6:,.0f} MB "
        f"({found['before_bytes'] / 1e6:,.0f} MB before)"
    )
    print(
        f"{found['steps']:,} steps, {found['rows']:,} rows of kernels, {found['ranges']:,} ranges"
    )
    whole = True
    for name in ("by_place", "by_name"):
        seconds = found[f"{name}_s"]
        same = found[name] == count and abs(seconds - spent / 1e9) < 1e-9 * count
        whole &= same
        print(f"{name}: {found[name]:,} kernels, {seconds:.6f} s: {'all' if same else 'NOT ALL'}")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
