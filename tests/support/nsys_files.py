"""Writes SQLite exports as Nsight Systems of several years does, for tests that have no GPU.

Tables and columns are those of the published schemas that matter to a reader: 2022 as nsys 2022.4
writes it, 2024 and 2026 with what came since. A table is made when something is put into it.
Times are nanoseconds. Of another process a host event has a thread, a device event a `pid`.
"""

import re
import shlex
import sqlite3
from contextlib import closing

from tests.support.made_up import made_up

# Version of nsys, and of the schema of its exports.
VERSIONS = {"2022": ("2022.4.2.1", "3.0.0"), "2024": ("2024.3.1.75", "3.15.1")}
VERSIONS["2026"] = ("2026.1.1.204", "3.24.14")
GENERATIONS = tuple(VERSIONS)
PID = 4242


def process_of(pid):
    """The global identifier of a process: virtual machine 1, no thread."""
    return (1 << 48) | (pid << 24)


def thread_of(pid, thread):
    """The global identifier of a thread, as it stands in every frame of an `Export`."""
    return process_of(pid) | thread


MAIN, AUTOGRAD = thread_of(PID, PID), thread_of(PID, PID + 1)
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
# A column that may be null has a question mark; all but the named are integers.
_TABLES = made_up("nsys_files")["tables"]
# What came last.
_SINCE_2026 = {"CUPTI_ACTIVITY_KIND_MEMCPY": " copyCount?"}
# By table the numbers of names and labels, which are the same here.
_ENUMS = {name: dict(pairs) for name, pairs in made_up("nsys_files")["enums"].items()}
# What stands for no process in messages about the whole session.
_WHOLE_SESSION = -(1 << 57)
_OPEN = object()


class NsysFile:
    """An export in the making; the end of its `with` writes it."""

    def __init__(self, path, generation="2024"):
        self.path, self.generation = path, generation
        self._rows, self._strings = {}, {}
        # Numbers of domains and of categories, which each process gives itself.
        self._numbers = {}

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self._write()

    def play(self, text, at=0, **names):
        """Call methods, written as `method argument ... key=value`; `+5` is `at + 5`."""

        def value(word):
            if re.fullmatch(r"[+-]?\d+", word):
                return int(word) + at * (word[0] == "+")
            return names.get(word, {"None": None, "True": True}.get(word, word))

        for line in filter(str.strip, re.split("[;\n]", text)):
            method, *words = shlex.split(line)
            pairs = (word.split("=") for word in words if "=" in word)
            given = {key: value(word) for key, word in pairs}
            getattr(self, method)(*(value(word) for word in words if "=" not in word), **given)

    def range(self, start, end, text, *, domain="profstack", category="module", payload=None, **of):
        """A range; without an end it is still open when the capture ends."""
        thread, apart = of.get("thread", MAIN), of.get("style") == "start_end"
        domain_id = self._declared(75, thread, domain, domainId=None) if domain else 0
        if category is not None:
            category = self._declared(33, thread, domain, category, domainId=domain_id)
        values = {"category": category, "domainId": domain_id, "int64Value": payload}
        values |= self._text(text, registered=self.generation in ("2024", "2026"))
        values |= {"end": _OPEN if end is None else end, "eventType": 59 + apart}
        self.row("NVTX_EVENTS", start=start, globalTid=thread, **values)

    def step(self, number, start, end, **more):
        self.range(start, end, f"step {number}", **{"category": "step", "payload": number} | more)

    def call(self, start, end, name, number=None, *, failed=False, callchain=None, **of):
        """A call of the CUDA runtime (cuda...) or of the driver (cu...).

        With `is_stack` it is the second row of a call whose stack was taken, which has the chain.
        """
        runtime, is_stack = name.startswith("cuda"), of.get("is_stack", False)
        stored = f"{name}_v7000" if runtime and not is_stack else name
        more = {"correlationId": number, "callchainId": callchain, "returnValue": 2 * failed}
        self._on_host(RUNTIME, start, end, stored, 67 if is_stack else not runtime, of, **more)

    def library(self, start, end, name, **of):
        """A call of cuDNN or cuBLAS (cudnn..., cublas...)."""
        table, of_class = ("CUDNN", 28) if name.startswith("cudnn") else ("CUBLAS", 29)
        self._on_host(f"{table}_EVENTS", start, end, name, of_class, of)

    def os_call(self, start, end, name, *, callchain=0, **of):
        self._on_host("OSRT_API", start, end, name, 27, of, callchainId=callchain)

    def launched(self, at, start, end, name, number, thread=MAIN, **more):
        """A launch at that time, and its kernel."""
        self.call(at, at + 5, "cudaLaunchKernel", number, thread=thread)
        self.kernel(start, end, name, number, **more)

    def kernel(self, start, end, name, number, **more):
        more["demangledName"] = more["shortName"] = self.string(name)
        self._on_device("KERNEL", start, end, number, **more)

    def copy(self, start, end, number, *, size, source="pageable", count=None, **more):
        """A copy from the host to the device, or since 2026 `count` of them."""
        more |= {"bytes": size, "copyKind": _number("ENUM_CUDA_MEMCPY_OPER", "host to device")}
        more |= {"srcKind": _memory(source), "dstKind": _memory("device"), "copyCount": count}
        self._on_device("MEMCPY", start, end, number, **more)

    def fill(self, start, end, number, *, size, **more):
        more |= {"bytes": size, "memKind": _memory("device")}
        self._on_device("MEMSET", start, end, number, **more)

    def graph(self, start, end, number, *, graph=1):
        """A CUDA graph that was traced as a whole, which exports know since 2024."""
        self._on_device("GRAPH_TRACE", start, end, number, graphId=graph, graphExecId=graph + 1)

    def wait(self, start, end, number, kind, **more):
        more["syncType"] = _number("ENUM_CUPTI_SYNC_TYPE", f"{kind} sync")
        self._on_device("SYNCHRONIZATION", start, end, number, **more)

    def memory(self, t, size, address, *, freed=False, kind="device"):
        values = {"memKind": _memory(kind), "memoryOperationType": int(freed), "address": address}
        values |= {"globalPid": process_of(PID), "bytes": size}
        self.row("CUDA_GPU_MEMORY_USAGE_EVENTS", start=t, **values)

    def sample(self, t, callchain, *, thread=MAIN):
        self.row("COMPOSITE_EVENTS", id=callchain, start=t, globalTid=thread)

    def callchain(self, source, number, *frames):
        """A callchain of "cuda", "os" or "cpu": `function@library`, innermost first."""
        table = {"cuda": "CUDA", "os": "OSRT", "cpu": "SAMPLING"}[source] + "_CALLCHAINS"
        # Innermost last, so that only the depth tells the order.
        for depth, frame in reversed([*enumerate(frames)]):
            symbol, module = map(self.string, frame.split("@"))
            self.row(table, id=number, symbol=symbol, module=module, stackDepth=depth)

    def thread_name(self, thread, name):
        self.row("ThreadNames", nameId=self.string(name), priority=20, globalTid=thread)

    def diagnostic(self, text, *, severity=2, pid=None):
        """A message of nsys about the capture, or about a process; 2022 has no table for these."""
        of_all = _WHOLE_SESSION if self.generation == "2026" else None
        of = of_all if pid is None else process_of(pid)
        self.row("DIAGNOSTIC_EVENT", timestamp=0, severity=severity, text=text, globalPid=of)

    def row(self, table, **values):
        self._rows.setdefault(table, []).append(values)

    def string(self, text):
        """The number of a text that stands in the file once."""
        return self._strings.setdefault(text, len(self._strings) + 1)

    def _on_host(self, table, start, end, name, of_class, of, **more):
        more = {"nameId": self.string(name), "eventClass": int(of_class), "returnValue": 0} | more
        self.row(table, start=start, end=end, globalTid=of.get("thread", MAIN), **more)

    def _on_device(
        self, kind, start, end, number, *, device=0, stream=7, pid=PID, graph_node=None, **more
    ):
        more |= {"deviceId": device, "contextId": 1, "streamId": stream, "graphNodeId": graph_node}
        more |= {"correlationId": number, "globalPid": process_of(pid)}
        self.row(f"CUPTI_ACTIVITY_KIND_{kind}", start=start, end=end, **more)

    def _text(self, text, *, registered):
        return {"textId": self.string(text)} if registered else {"text": text}

    def _declared(self, kind, thread, *names, domainId):  # noqa: N803
        """The number of a domain, or of a category in one: an event names it the first time."""
        key = (kind, thread >> 24, *names)
        if key not in self._numbers:
            number = 1 + sum(each[: len(key) - 1] == key[:-1] for each in self._numbers)
            self._numbers[key] = number
            told = {"domainId": number} if kind == 75 else {"domainId": domainId}
            told |= {"category": number} if kind == 33 else {}
            told |= self._text(names[-1], registered=self.generation == "2026")
            self.row("NVTX_EVENTS", start=1, eventType=kind, globalTid=thread, **told)
        return self._numbers[key]

    def _write(self):
        rows = [row for some in self._rows.values() for row in some]
        times = [row.get(name) for row in rows for name in ("start", "end")]
        last = 1000 + max([time for time in times if isinstance(time, int)], default=0)
        self.row("ANALYSIS_DETAILS", globalVid=1, duration=last, startTime=500, stopTime=last + 500)
        for row in rows:
            if row.get("end") is _OPEN:
                row["end"] = None if self.generation == "2026" else last
        self._rows["StringIds"] = [{"id": n, "value": text} for text, n in self._strings.items()]
        newer = self.generation in ("2024", "2026")
        meta = "META_DATA_EXPORT" if newer else "EXPORT_META_DATA"
        told = zip(("PRODUCT_VERSION", "SCHEMA_VERSION"), VERSIONS[self.generation], strict=True)
        told = [*told, ("HOST", "secret-host"), ("USER", "secret-user")]
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute("PRAGMA synchronous = OFF")
            for table, some in self._rows.items():
                self._write_table(database, table, some)
            database.execute(f"CREATE TABLE {meta} (name TEXT NOT NULL, value TEXT)")
            database.executemany(f"INSERT INTO {meta} VALUES ('EXPORT_' || ?, ?)", told)
            for table, entries in _ENUMS.items():
                columns = "(id INTEGER PRIMARY KEY, name TEXT, label TEXT)"
                database.execute(f"CREATE TABLE {table} {columns}")
                named = [(number, name, name) for number, name in entries.items()]
                database.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", named)

    def _write_table(self, database, table, rows):
        declared = _TABLES[table] + _SINCE_2026.get(table, "") * (self.generation == "2026")
        columns, blanks = [], {}
        for each in declared.split():
            null = each.endswith("?")
            name, _, kind = each.rstrip("?").partition(":")
            columns.append(f"{name} {kind or 'INTEGER'}" + ("" if null else " NOT NULL"))
            blanks[name] = None if null else {"TEXT": "", "REAL": 0.0}.get(kind, 0)
        database.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
        # Since 2025 nsys says that rows come in no order that could be relied on.
        by_time = self.generation != "2026" or table == "ThreadNames"
        filled = [
            [blank if row.get(name) is None else row[name] for name, blank in blanks.items()]
            for row in (rows if by_time else reversed(rows))
        ]
        marks = ", ".join("?" * len(blanks))
        database.executemany(f"INSERT INTO {table} VALUES ({marks})", filled)


def change(path, *statements):
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def _number(enum, words):
    labels = _ENUMS[enum].items()
    return next(number for number, label in labels if label.lower().replace("-", " ") == words)


def _memory(words):
    return _number("ENUM_CUDA_MEM_KIND", words)
