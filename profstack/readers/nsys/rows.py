"""Rows of the tables `nsys_*`: ranges, kernels, copies, calls, stacks, memory, gaps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypedDict

import numpy as np
import pandas as pd

from profstack.readers.device_gaps import (
    UNKNOWN,
    Host,
    Intervals,
    Kernels,
    S,
    at,
    by_cause,
    gaps_between,
)
from profstack.readers.nsys.capture import (
    COPY,
    GRAPH,
    SET,
    Capture,
    RangeTree,
    calls_in,
    launched,
    numbered,
    outermost,
    sums_of_calls,
)
from profstack.readers.nsys.export import Export
from profstack.readers.nvtx import BACKWARD, DOMAIN, FORWARD, MODULE
from profstack.readers.torchtrace.columns import Ints
from profstack.storage.schema.column import Record

# --- What ran in a capture: kernels, copies and calls by the range they belong to -----------------

# Rows of one table; a program that puts a number into every range's name makes any number of them.
MOST_ROWS = 20_000

# Rows, the largest first, and how many had to be left out.
Cut = tuple[list[Record], int]


def kernel_rows(capture: Capture) -> Cut:
    """Return rows of `nsys_kernels`: kernels, and graphs that were traced whole."""
    work, calls = capture.work, capture.calls
    some = np.flatnonzero(~work.moves)
    ran = capture.export.work.iloc[work.row[some]]
    call, start = work.call[some], work.start[some]
    callers = capture.export.calls["name"].to_numpy(np.object_)[calls.row]
    keys = {
        "name": ran["name"].where(ran["name"].notna(), ran["kind"]),
        "device": device_names(ran["device"]),
        "stream": ran["stream"],
        **capture.places(work.innermost[some]),
        "launched_by": at(callers, call, None),
        "in_graph": ((ran["kind"] == GRAPH) | ran["in_graph"]).astype(np.int64),
    }
    values = {
        "calls": np.ones_like(call),
        "device_s": work.length[some],
        "longest_s": np.maximum(work.length[some], 0),
        "delay_s": np.where(call >= 0, start - at(calls.start, call, 0), 0),
    }
    rows, left_out = _rows(keys, values, by="device_s")
    # Kernels without a call are rows of their own, which have no delay.
    unknown = {"delay_s": None}
    return [{**row, **unknown} if row["launched_by"] is None else row for row in rows], left_out


def copy_rows(capture: Capture) -> Cut:
    """Return rows of `nsys_copies`: copies, and memory filled."""
    work = capture.work
    some = np.flatnonzero(work.moves)
    ran = capture.export.work.iloc[work.row[some]]
    keys = {
        "direction": ran["direction"].where(ran["kind"] == COPY, "fill"),
        "from_memory": ran["from_memory"],
        "to_memory": ran["to_memory"],
        "device": device_names(ran["device"]),
        **capture.places(work.innermost[some]),
    }
    length = work.length[some]
    values = {
        "calls": ran["copies"].to_numpy(np.int64),
        "bytes": _bytes(ran),
        "device_s": length,
        "longest_s": np.maximum(length, 0),
    }
    return _rows(keys, values, by="device_s")


def api_rows(capture: Capture) -> Cut:
    """Return rows of `nsys_api`: calls of CUDA, of its libraries and of the system."""
    export, tree, steps = capture.export, capture.tree, capture.steps
    os_calls = export.os_calls.assign(library="os", failed=False)
    parts = (
        (export.calls.assign(library="cuda"), capture.calls),
        (export.libraries.assign(failed=False), calls_in(export.libraries, tree, steps)),
        (os_calls, calls_in(os_calls, tree, steps, lent=False)),
    )
    common = ["library", "name", "failed"]
    calls = pd.concat(
        frame[common].iloc[some.row].assign(length=some.length, **capture.places(some.innermost))
        for frame, some in parts
    )
    length = calls["length"].to_numpy(np.int64)
    values = {
        "calls": np.ones_like(length),
        "failed": calls["failed"].to_numpy(np.int64),
        "host_s": length,
        "longest_s": np.maximum(length, 0),
    }
    keys = calls.drop(columns=["failed", "length"])
    rows, left_out = _rows(keys, values, by="host_s")
    # Only CUDA's calls say whether they failed.
    return [row if row["library"] == "cuda" else {**row, "failed": None} for row in rows], left_out


def step_rows(capture: Capture) -> list[Record]:
    """Return rows of `nsys_steps`: per step and device, or per step where no device worked."""
    steps, work = capture.steps, capture.work
    wall = (steps.times.end - steps.times.start).tolist()
    begun = (steps.times.start - capture.export.begin_ns).tolist()
    alone: list[Record] = [
        {"step": number, "device": None, "started_s": begun_ns * S, "wall_s": wall_ns * S}
        for number, begun_ns, wall_ns in zip(steps.numbers, begun, wall, strict=True)
    ]
    if not alone:
        return []
    kernels = np.flatnonzero(~work.moves & (work.call >= 0))
    # Without a call of any kernel it is not known which step launched them.
    step = steps.at(capture.calls.start)[work.call[kernels]]
    known = bool(len(capture.export.calls))
    device = device_names(capture.export.work["device"].iloc[work.row[kernels]]).to_numpy()
    rows: list[Record] = []
    for name, _, working, _ in _devices(capture):
        own = device == name
        count = np.bincount(step[own], minlength=len(steps)).tolist()
        spent = np.bincount(step[own], work.length[kernels][own], minlength=len(steps)).tolist()
        busy = working.inside(steps.times.start, steps.times.end).tolist()
        rows += [
            {
                **row,
                "device": name,
                "kernels": count[position] if known else None,
                "device_s": spent[position] * S if known else None,
                "busy_s": busy[position] * S,
                "idle_s": wall[position] * S - busy[position] * S,
            }
            for position, row in enumerate(alone)
        ]
    return rows or alone


def device_name(number: int) -> str:
    """Return a device's name in the torch layer."""
    return f"cuda:{number}"


def device_names(column: pd.Series[int]) -> pd.Series[str]:
    """Return a column of devices by name."""
    return column.map({number: device_name(number) for number in column.unique()})


def _rows(
    keys: Mapping[str, Any], values: Mapping[str, Ints], *, by: str, most: int | None = None
) -> Cut:
    """Return a row for all things with the same keys, the largest first.

    Values are summed, but of `longest_s` the largest is kept; nanoseconds become seconds.
    """
    number, different = numbered(pd.DataFrame(keys, dtype=np.object_))
    kinds = {name: "max" if name == "longest_s" else "sum" for name in values}
    sums = pd.DataFrame(values).groupby(number).agg(kinds)
    order = np.argsort(-sums[by].to_numpy(np.int64), kind="stable")[: most or MOST_ROWS]
    for name in sums:
        if name.endswith("_s"):
            sums[name] = sums[name] * S
    different = different.iloc[order]
    cells = {**different.where(different.notna(), None), **sums.iloc[order]}
    columns = (column.tolist() for column in cells.values())
    rows: list[Record]
    rows = [dict(zip(cells, row, strict=True)) for row in zip(*columns, strict=True)]
    return rows, len(sums) - len(rows)


def _bytes(work: pd.DataFrame) -> Ints:
    size: Ints = np.nan_to_num(work["bytes"].to_numpy(np.float64)).astype(np.int64)
    return size


# --- Ranges by place, with the work that was begun in them ----------------------------------------


def range_rows(capture: Capture) -> Cut:
    """Return rows of `nsys_ranges`, each after the one around it, and how many were left out."""
    tree, steps = capture.tree, capture.steps
    count = len(tree.nodes)
    wall = np.zeros(count, np.int64)
    np.add.at(wall, tree.node, steps.counted(tree.start, tree.end))
    # The time of each node without the nodes in it.
    own = wall.copy()
    parent = np.array([node.parent for node in tree.nodes], np.int64)
    np.subtract.at(own, parent[parent >= 0], wall[parent >= 0])
    values: dict[str, Ints | None] = {
        "calls": np.bincount(tree.node, minlength=count),
        "wall_s": wall,
        "self_s": np.maximum(own, 0),
        **_begun(capture),
    }
    columns = {
        name: (column * S if name.endswith("_s") else column).tolist()
        for name, column in values.items()
        if column is not None
    }
    unknown: Record = dict.fromkeys(("on_steps_thread", *values))
    if steps.thread is not None:
        columns["on_steps_thread"] = [int(node.on_steps_thread) for node in tree.nodes]
    kept = _largest(tree, wall)
    number = {-1: None, **{node: place for place, node in enumerate(kept, start=1)}}
    rows: list[Record] = [
        {
            "node": number[node],
            "parent": number[tree.nodes[node].parent],
            **tree.nodes[node].label._asdict(),
            **unknown,
            **{name: column[node] for name, column in columns.items()},
        }
        for node in kept
    ]
    return rows, count - len(kept)


def _begun(capture: Capture) -> dict[str, Ints | None]:
    """Sum the CUDA calls of each node, and the device work by the call that began it."""
    names = ("api_calls", "api_s", "kernels", "device_s", "elsewhere_s", "copies", "copied_bytes")
    sums: dict[str, Ints | None] = dict.fromkeys((*names, "copies_s"))
    if "calls" in capture.export.missing:
        return sums
    # The time of a call contains that of the calls it makes on its thread.
    outer = outermost(capture.calls)
    values = {"api_calls": np.ones_like(outer.start), "api_s": outer.length}
    sums |= sums_of_calls(capture.tree, outer, np.arange(len(outer.start)), values)
    if "work" in capture.export.missing:
        return sums
    work, calls, frame = capture.work, capture.calls, capture.export.work
    some = np.flatnonzero(work.call >= 0)
    call, row, length = (column[some] for column in (work.call, work.row, work.length))
    moves = work.moves[some]
    is_copy = (frame["kind"] == COPY).to_numpy(np.bool_)[row]
    elsewhere = calls.elsewhere[call]
    values = {
        "kernels": (~moves).astype(np.int64),
        "device_s": np.where(moves, 0, length),
        "elsewhere_s": np.where(moves | ~elsewhere, 0, length),
        "copies": np.where(moves, frame["copies"].to_numpy(np.int64)[row], 0),
        "copied_bytes": np.where(is_copy, _bytes(frame)[row], 0),
        "copies_s": np.where(moves, length, 0),
    }
    return sums | sums_of_calls(capture.tree, calls, call, values)


def _largest(tree: RangeTree, wall: Ints) -> list[int]:
    """Return the nodes in order; of too many those with most time, with all around them."""
    if len(wall) <= MOST_ROWS:
        return list(range(len(wall)))
    kept: set[int] = set()
    for node in np.argsort(-wall, kind="stable").tolist():
        line = []
        while node >= 0 and node not in kept:
            line.append(node)
            node = tree.nodes[node].parent
        if len(kept) + len(line) > MOST_ROWS:
            break
        kept.update(line)
    return sorted(kept)


# --- Call stacks: of calls of the runtime and of the system, and of CPU samples -------------------

# Stacks of one source, and functions of CPU samples.
MOST_STACKS = 200
MOST_FUNCTIONS = 2_000
# Functions of one stack: one of a recursion without end says no more after these.
MOST_DEEP = 100
CUDA, SYSTEM, CPU = "cuda", "os", "cpu"
NO_STACK = "no stack recorded"


class _Stacks:
    """The stacks of one source, by number, and their functions."""

    def __init__(self, callchains: pd.DataFrame, source: str) -> None:
        some = callchains[callchains["source"] == source]
        some = some.sort_values(["id", "depth"], kind="stable")
        self.frame, functions = numbered(some[["symbol", "module"]])
        self.functions = list(functions.itertuples(index=False, name=None))
        self.ids, self.first = np.unique(some["id"].to_numpy(np.int64), return_index=True)
        self.end = np.append(self.first[1:], len(some))

    def positions(self, ids: Ints) -> Ints:
        """Return positions of the stacks of these numbers, -1 for those not in the file."""
        found = np.searchsorted(self.ids, ids)
        known = (found < len(self.ids)) & (at(self.ids, found) == ids)
        return np.where(known, found, -1)

    def alike(self) -> Ints:
        """Return for each stack the position of the first one with the same functions."""
        depth = np.arange(len(self.frame)) - np.repeat(self.first, self.end - self.first)
        # 64 mixed bits of function and place, added up: of a million stacks that differ, two
        # have the same sum in one capture of ten million.
        mixed = pd.util.hash_array(self.frame + (depth << 32))
        sums = np.add.reduceat(mixed, self.first)
        _, first, number = np.unique(sums, return_index=True, return_inverse=True)
        return first[number]

    def text(self, position: int) -> str:
        """Return a stack as JSON: function and library, innermost first."""
        first = int(self.first[position])
        last = min(int(self.end[position]), first + MOST_DEEP)
        return json.dumps([self.functions[frame] for frame in self.frame[first:last]])


def backtrace_rows(capture: Capture) -> list[Record]:
    """Return rows of `nsys_backtraces`: of each source the stacks with most time or samples."""
    export, steps = capture.export, capture.steps
    rows: list[Record] = []
    for source, frame in ((CUDA, export.calls), (SYSTEM, export.os_calls)):
        start = frame["start"].to_numpy(np.int64)
        counts = steps.count(start)
        some = frame[counts]
        length = steps.counted(start[counts], some["end"].to_numpy(np.int64))
        rows += _of_source(export.callchains, source, some, length)
    samples = export.samples[steps.count(export.samples["t"].to_numpy(np.int64))]
    return rows + _of_source(export.callchains, CPU, samples, None)


def sample_rows(capture: Capture) -> list[Record]:
    """Return rows of `nsys_samples`: functions by the CPU samples with them on the stack."""
    export = capture.export
    samples = export.samples[capture.steps.count(export.samples["t"].to_numpy(np.int64))]
    stacks = _Stacks(export.callchains, CPU)
    position = stacks.positions(samples["callchain"].to_numpy(np.int64))
    weight = np.bincount(position[position >= 0], minlength=len(stacks.ids))
    own = np.zeros(len(stacks.functions), np.int64)
    np.add.at(own, stacks.frame[stacks.first], weight)
    # A function that is on a stack twice counts once.
    on = np.repeat(np.arange(len(stacks.ids)), stacks.end - stacks.first)
    once = ~pd.DataFrame({"stack": on, "frame": stacks.frame}).duplicated().to_numpy(np.bool_)
    total = np.zeros(len(stacks.functions), np.int64)
    np.add.at(total, stacks.frame[once], weight[on[once]])
    order = np.lexsort((-total, -own))[:MOST_FUNCTIONS].tolist()
    without = int((position < 0).sum())
    rows = [
        *((*stacks.functions[each], int(own[each]), int(total[each])) for each in order),
        (NO_STACK, None, without, without),
    ]
    names = ("symbol", "library", "self_samples", "total_samples")
    return [dict(zip(names, row, strict=True)) for row in rows if row[-1]]


def _of_source(
    callchains: pd.DataFrame, source: str, events: pd.DataFrame, length: Ints | None
) -> list[Record]:
    """Return the stacks with most time, or most calls where `length` is None."""
    stacks = _Stacks(callchains, source)
    position = stacks.positions(events["callchain"].to_numpy(np.int64))
    some = np.flatnonzero(position >= 0)
    if not len(some):
        return []
    keys: dict[str, Any] = {"stack": stacks.alike()[position[some]]}
    values = {"calls": np.ones_like(some)}
    if length is not None:
        keys["name"], values["host_s"] = events["name"].iloc[some], length[some]
    by = "calls" if length is None else "host_s"
    rows, _ = _rows(keys, values, by=by, most=MOST_STACKS)
    common: Record = {"source": source, "name": None, "host_s": None}
    return [{**common, **row, "stack": stacks.text(int(row["stack"] or 0))} for row in rows]


# --- Memory taken in the capture, over time -------------------------------------------------------

# Memory taken before the capture is not known, and freeing it lowers nothing. So a curve begins at
# zero, and is a lower bound of the process's memory.

# Points of one curve.
MOST_POINTS = 2_000


def memory_rows(export: Export) -> list[Record]:
    """Return rows of `nsys_memory`: a curve of each device and kind, over the whole capture."""
    frame = export.memory.sort_values("t", kind="stable")
    curve, curves = numbered(frame[["device", "kind"]])
    rows: list[Record] = []
    for number, (device, kind) in enumerate(curves.itertuples(index=False, name=None)):
        some = frame[curve == number]
        # An address is freed with the size with which it was allocated. One that is allocated
        # again without having been freed was freed unseen.
        address = some["address"].to_numpy(np.int64)
        taken = (some["operation"] == "allocated").to_numpy(np.bool_)
        size = np.where(taken, some["bytes"].to_numpy(np.int64), 0)
        by_address = np.argsort(address, kind="stable")
        same = address[by_address][1:] == address[by_address][:-1]
        before = np.zeros(len(address), np.int64)
        before[by_address[1:]] = np.where(same, size[by_address[:-1]], 0)
        held = np.cumsum(size - before)
        kept = _highest(held)
        moments = some["t"].to_numpy(np.int64)[kept] - export.begin_ns
        rows += [
            {"t_s": moment * S, "device": device_name(device), "kind": kind, "bytes": nbytes}
            for moment, nbytes in zip(moments.tolist(), held[kept].tolist(), strict=True)
        ]
    return rows


def _highest(held: Ints) -> Ints:
    """Choose points of a curve: of each part of it the highest, and the last one."""
    if len(held) <= MOST_POINTS:
        return np.arange(len(held))
    edges = np.linspace(0, len(held) - 1, MOST_POINTS).astype(np.int64)
    part = np.repeat(np.arange(MOST_POINTS - 1), np.diff(edges))
    # In order of part and height, the last of each part is its highest; the earliest of these.
    order = np.lexsort((-np.arange(len(part)), held[:-1], part))
    return np.append(order[np.flatnonzero(np.append(np.diff(part), 1))], len(held) - 1)


# --- When devices were busy, and the causes of gaps ----------------------------------------------

# The rules are those of the torch layer. Only time in steps counts. Without steps a device's time
# is from its first kernel to the end of its last one: the time before is no gap of the program's.

# Calls that return when the device has done what they wait for; a copy within or to a device
# and one that says it is asynchronous do not.
_WAITS = re.compile(r"cu(da)?\w*Synchronize|cu(da)?Memcpy(?!\w*(Async|DtoD|Peer))")


def gap_rows(capture: Capture) -> list[Record]:
    """Return rows of `nsys_gaps`; none where the file has no calls: causes would be guesses."""
    if not len(capture.export.calls):
        return []
    frame, steps = capture.export.work, capture.steps
    start, end = (frame[name].to_numpy(np.int64) for name in ("start", "end"))
    begun = launched(frame, capture.export.calls, UNKNOWN)
    host = _host(capture)
    rows: list[Record] = []
    for name, some, busy, copies in _devices(capture):
        if not len(some):
            continue
        kernels = Kernels(start[some], end[some], begun[some])
        runs = steps.runs() or [(int(start[some[0]]), int(end[some].max()))]
        gaps = gaps_between(kernels, busy, copies, host, runs)
        # Time between two steps belongs to neither.
        rows += [
            {
                "device": name,
                **row,
                "after": _kernel_label(capture, some, after),
                "before": _kernel_label(capture, some, before),
            }
            for row, after, before in by_cause(gaps, steps.counted(gaps.begin, gaps.end))
        ]
    return sorted(rows, key=lambda row: float(row["total_s"] or 0), reverse=True)


def _devices(capture: Capture) -> Iterator[tuple[str, Ints, Intervals, Intervals]]:
    """Yield the name, kernels, busy times and copies of each device.

    Kernels are positions in the export's frame of work; those launched before the first step are
    among them.
    """
    frame = capture.export.work
    start, end, device = (frame[name].to_numpy(np.int64) for name in ("start", "end", "device"))
    copies, sets = ((frame["kind"] == kind).to_numpy(np.bool_) for kind in (COPY, SET))
    in_order = np.argsort(start, kind="stable")
    # Those that worked in the steps, or for them.
    worked = capture.steps.counted(start, end) > 0
    worked[capture.work.row] = True
    for number in np.unique(device[worked]).tolist():
        own = device == number
        works, copied = own & ~copies, own & copies
        kernels = in_order[(works & ~sets)[in_order]]
        busy, copying = (Intervals.united(start[some], end[some]) for some in (works, copied))
        yield device_name(number), kernels, busy, copying


def _host(capture: Capture) -> Host:
    calls, steps, tree = capture.export.calls, capture.steps, capture.tree
    names = calls["name"]
    waits = {name for name in names.unique() if _WAITS.match(str(name))}
    ended = calls["end"].to_numpy(np.int64)[names.isin(waits).to_numpy(np.bool_)]
    edges = np.array([*steps.times.start.tolist(), *(until for _, until in steps.runs())], np.int64)
    # From each step's begin to the first range in which the model works, on the steps' thread.
    labels = [node.label for node in tree.nodes]
    kinds = (MODULE, FORWARD, BACKWARD)
    works = np.array([each.domain == DOMAIN and each.kind in kinds for each in labels], np.bool_)
    works = works[tree.node] & tree.nests & (tree.thread == steps.thread)
    begins = np.sort(tree.start[works])
    start, end = steps.times.start, steps.times.end
    first = at(begins, np.searchsorted(begins, start), UNKNOWN)
    inside = first < end
    return Host(np.sort(ended), Intervals.united(start[inside], first[inside]), np.unique(edges))


def _kernel_label(capture: Capture, kernels: Ints, position: int) -> str | None:
    """Return a kernel's name and the range that it was launched in."""
    if position < 0:
        return None
    row, tree = int(kernels[position]), capture.tree
    name = str(capture.export.work["name"].iloc[row])
    innermost = capture.work.innermost[capture.work.row == row]
    inside = tree.node[innermost[innermost >= 0]].tolist()
    return f"{name} in {tree.nodes[inside[0]].label.name}" if inside else name


# --- All tables -----------------------------------------------------------------------------------


class CaptureFacts(TypedDict):
    """Totals over the steps of a capture, or over the whole of it."""

    steps: int
    first_step: int | None
    last_step: int | None
    per: Literal["step", "capture"]
    captured_s: float
    steps_wall_s: float | None
    unlaunched: int
    graphs_whole: int
    open_ranges: int
    left_out: dict[str, int]


def rows_of(export: Export) -> tuple[dict[str, list[Record]], CaptureFacts]:
    """Return rows by table, and the facts of the capture."""
    capture = Capture.of(export)
    cut = {
        "nsys_ranges": range_rows(capture),
        "nsys_kernels": kernel_rows(capture),
        "nsys_copies": copy_rows(capture),
        "nsys_api": api_rows(capture),
    }
    rows = {
        "nsys_steps": step_rows(capture),
        **{name: some for name, (some, _) in cut.items()},
        "nsys_backtraces": backtrace_rows(capture),
        "nsys_memory": memory_rows(export),
        "nsys_samples": sample_rows(capture),
        "nsys_gaps": gap_rows(capture),
    }
    steps, work = capture.steps, capture.work
    numbers = [number for number in steps.numbers if number is not None]
    wall = int((steps.times.end - steps.times.start).sum())
    graphs = export.work["kind"].iloc[work.row] == GRAPH
    return rows, {
        "steps": len(steps),
        "first_step": min(numbers, default=None),
        "last_step": max(numbers, default=None),
        "per": "step" if len(steps) else "capture",
        "captured_s": (export.end_ns - export.begin_ns) * S,
        "steps_wall_s": wall * S if len(steps) else None,
        "unlaunched": int((work.call < 0).sum()),
        "graphs_whole": int(graphs.sum()),
        "open_ranges": export.open_ranges,
        "left_out": {name: count for name, (_, count) in cut.items() if count},
    }
