"""Rows of the tables `nsys_*`: ranges, kernels, copies, calls, waits, stacks, memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import pandas as pd

from profstack.readers.device_gaps import S, at
from profstack.readers.nsys.capture import (
    COPY,
    GRAPH,
    KERNEL,
    SET,
    Capture,
    RangeTree,
    calls_in,
    device_name,
    outermost,
    projected,
    sums_of_calls,
    work_in,
)
from profstack.readers.nsys.export import PUSH_POP, Export
from profstack.readers.nsys.export_file import numbered
from profstack.readers.nsys.steps import NO_NUMBER
from profstack.readers.torchtrace.columns import Ints
from profstack.storage.schema.column import Record

# --- Rows of many things with the same keys -------------------------------------------------------

# Rows of one table. What has the least time beyond that is added up in one row.
MOST_ROWS = 20_000
REST = "(rest)"


class Rest(TypedDict):
    """What one row named `(rest)` adds up: rows that were too many, their things and seconds."""

    rows: int
    things: int
    seconds: float


# Rows, the largest first and the rest last, and what the rest is of.
Cut = tuple[list[Record], Rest | None]


def _rows(
    keys: Mapping[str, Any],
    values: Mapping[str, Ints],
    *,
    by: str,
    most: int | None = None,
    rest: str | None = None,
    spread_of: str | None = None,
) -> Cut:
    """Return a row for all things with the same keys, the largest first.

    Values are summed, but of `longest_s` the largest is kept; nanoseconds become seconds.
    `spread_of` names the values whose median, extremes and deviation are wanted. With `rest`, the
    key that names a row, rows beyond `most` are added up in one; without it they are left out.
    """
    number, different = numbered(pd.DataFrame(keys, dtype=np.object_))
    frame = pd.DataFrame(values)
    totals = frame[by].groupby(number).sum()
    limit = most or MOST_ROWS
    order = np.argsort(-totals.to_numpy(np.int64), kind="stable")
    beyond = order[limit:]
    if len(beyond):
        place = np.arange(len(order))
        place[beyond] = len(order)
        number = place[number]
        order = np.append(order[:limit], len(order)) if rest is not None else order[:limit]
    kinds = {name: "max" if name == "longest_s" else "sum" for name in values}
    sums = frame.groupby(number).agg(kinds)
    if spread_of is not None:
        sums = sums.join(_spread(frame[spread_of].groupby(number)))
    sums = sums.loc[order]
    left = None
    if len(beyond) and rest is not None:
        last = sums.iloc[-1]
        left = Rest(rows=len(beyond), things=int(last["calls"]), seconds=float(last[by]) * S)
        names = {name: [REST if name == rest else None] for name in different}
        different = pd.concat([different, pd.DataFrame(names, dtype=np.object_)])
        order = np.append(order[:-1], len(different) - 1)
    for name in sums:
        if str(name).endswith("_s"):
            sums[name] = sums[name] * S
    different = different.iloc[order]
    cells = {**different.where(different.notna(), None), **sums.astype(object)}
    cells = {name: column.where(column.notna(), None) for name, column in cells.items()}
    columns = (column.tolist() for column in cells.values())
    rows: list[Record]
    rows = [dict(zip(cells, row, strict=True)) for row in zip(*columns, strict=True)]
    return rows, left


def _spread(times: Any) -> pd.DataFrame:
    """Return median, extremes and standard deviation of grouped times."""
    names = ["median_s", "shortest_s", "longest_s", "deviation_s"]
    found: pd.DataFrame = times.agg(["median", "min", "max", "std"]).set_axis(names, axis=1)
    return found


# --- What ran in a capture: kernels, copies and calls by the range they belong to -----------------


def device_names(column: pd.Series[int]) -> pd.Series[str]:
    """Return a column of devices by name."""
    return column.map({number: device_name(number) for number in column.unique()})


def kernel_rows(capture: Capture, most: int = MOST_ROWS) -> Cut:
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
        "grid": ran["grid"],
        "block": ran["block"],
    }
    values = {
        "calls": np.ones_like(call),
        "device_s": work.length[some],
        "longest_s": np.maximum(work.length[some], 0),
        "delay_s": np.where(call >= 0, start - at(calls.start, call, 0), 0),
    }
    rows, left = _rows(keys, values, by="device_s", most=most, rest="name")
    # Kernels without a call are rows of their own, which have no delay; nor has the rest.
    unknown = {"delay_s": None}
    return [{**row, **unknown} if row["launched_by"] is None else row for row in rows], left


def copy_rows(capture: Capture, most: int = MOST_ROWS) -> Cut:
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
    return _rows(keys, values, by="device_s", most=most, rest="direction")


def calls_of(capture: Capture) -> pd.DataFrame:
    """Return the calls of CUDA, of its libraries and of the system, with their ranges."""
    export, tree, steps = capture.export, capture.tree, capture.steps
    os_calls = export.os_calls.assign(library="os", failed=False)
    parts = (
        (export.calls.assign(library="cuda"), capture.calls),
        (export.libraries.assign(failed=False), calls_in(export.libraries, tree, steps)),
        (os_calls, calls_in(os_calls, tree, steps, lent=False)),
    )
    common = ["library", "name", "failed"]
    calls: pd.DataFrame = pd.concat(
        frame[common].iloc[some.row].assign(length=some.length, **capture.places(some.innermost))
        for frame, some in parts
    )
    return calls


def api_rows(calls: pd.DataFrame, most: int = MOST_ROWS) -> Cut:
    """Return rows of `nsys_api`; `calls` are those of `calls_of`."""
    length = calls["length"].to_numpy(np.int64)
    values = {
        "calls": np.ones_like(length),
        "failed": calls["failed"].to_numpy(np.int64),
        "host_s": length,
        "longest_s": np.maximum(length, 0),
    }
    keys = calls.drop(columns=["failed", "length"])
    rows, left = _rows(keys, values, by="host_s", most=most, rest="name")
    # Only CUDA's calls say whether they failed.
    return [row if row["library"] == "cuda" else {**row, "failed": None} for row in rows], left


def wait_rows(capture: Capture, most: int = MOST_ROWS) -> Cut:
    """Return rows of `nsys_waits`: waits of the host for a device, and of streams for events."""
    frame = capture.export.synchronisations
    work = work_in(frame, capture.export.calls, capture.calls, capture.steps)
    some = frame.iloc[work.row]
    callers = capture.export.calls["name"].to_numpy(np.object_)[capture.calls.row]
    keys = {
        "kind": some["kind"].where(some["kind"].notna(), "wait"),
        "device": device_names(some["device"]),
        "stream": some["stream"].where(some["stream"] >= 0, None),
        "called": at(callers, work.call, None),
        **capture.places(work.innermost),
    }
    values = {
        "calls": np.ones_like(work.row),
        "wait_s": work.length,
        "longest_s": np.maximum(work.length, 0),
    }
    return _rows(keys, values, by="wait_s", most=most, rest="kind")


def stat_rows(capture: Capture, calls: pd.DataFrame, most: int = MOST_ROWS) -> Cut:
    """Return rows of `nsys_stats`: all that takes time, by kind and name; calls of `calls_of`."""
    work = capture.work
    ran = capture.export.work.iloc[work.row]
    waits = capture.export.synchronisations
    waited = work_in(waits, capture.export.calls, capture.calls, capture.steps)
    kinds = {KERNEL: "kernel", COPY: "copy", SET: "fill", GRAPH: "graph"}
    parts = [
        pd.DataFrame(
            {
                "kind": ran["kind"].map(kinds),
                "name": ran["name"],
                "device": device_names(ran["device"]),
                "length": work.length,
            }
        ),
        pd.DataFrame(
            {
                "kind": "wait",
                "name": waits["kind"].iloc[waited.row],
                "device": device_names(waits["device"].iloc[waited.row]),
                "length": waited.length,
            }
        ),
        calls[["library", "name", "length"]].rename(columns={"library": "kind"}),
    ]
    every = pd.concat(parts)
    length = every["length"].to_numpy(np.int64)
    values = {"calls": np.ones_like(length), "total_s": length}
    keys = every[["kind", "name", "device"]]
    return _rows(keys, values, by="total_s", most=most, rest="name", spread_of="total_s")


def _bytes(work: pd.DataFrame) -> Ints:
    size: Ints = np.nan_to_num(work["bytes"].to_numpy(np.float64)).astype(np.int64)
    return size


# --- Ranges by place, with the work that was begun in them ----------------------------------------


def range_rows(capture: Capture, most: int = MOST_ROWS, before: int = 0) -> Cut:
    """Return rows of `nsys_ranges`, each after the one around it, and what the rest is of.

    They are numbered behind those that are there `before`.
    """
    tree, steps = capture.tree, capture.steps
    count = len(tree.nodes)
    length = steps.counted(tree.start, tree.end)
    wall = np.zeros(count, np.int64)
    np.add.at(wall, tree.node, length)
    # The time of each node without the nodes in it.
    own = wall.copy()
    parent = np.array([node.parent for node in tree.nodes], np.int64)
    np.subtract.at(own, parent[parent >= 0], wall[parent >= 0])
    values: dict[str, Any] = {
        "calls": np.bincount(tree.node, minlength=count),
        "wall_s": wall,
        "self_s": np.maximum(own, 0),
        **_range_spread(capture, length),
        **_begun(capture),
    }
    columns = {
        name: [None if cell != cell else cell for cell in _seconds(name, column).tolist()]
        for name, column in values.items()
        if column is not None
    }
    unknown: Record = dict.fromkeys(("on_steps_thread", *values))
    if steps.thread is not None:
        columns["on_steps_thread"] = [int(node.on_steps_thread) for node in tree.nodes]
    kept = _largest(tree, wall, most)
    number = {-1: None, **{node: place for place, node in enumerate(kept, start=before + 1)}}
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
    if len(kept) == count:
        return rows, None
    other = {**unknown, **dict.fromkeys(columns), "node": before + len(kept) + 1}
    return _with_rest(rows, tree, columns, kept, other)


def _seconds(name: str, column: Any) -> Any:
    return column * S if name.endswith("_s") else column


def _range_spread(capture: Capture, length: Ints) -> dict[str, Any]:
    """Return columns of `nsys_ranges` on single ranges and steps, NaN where they are unknown."""
    tree, steps = capture.tree, capture.steps
    every = pd.RangeIndex(len(tree.nodes))
    spread = _spread(pd.Series(length, dtype=np.int64).groupby(tree.node)).reindex(every)
    numbered_ones = np.flatnonzero(tree.number != NO_NUMBER)
    numbers = pd.Series(tree.number[numbered_ones]).groupby(tree.node[numbered_ones])
    found: dict[str, Any] = {name: spread[name].to_numpy(np.float64) for name in spread}
    for name, column in (("first_number", numbers.min()), ("last_number", numbers.max())):
        found[name] = column.astype(object).reindex(every).to_numpy(np.object_)
    count = len(steps)
    if count < 2:
        return {**found, "step_deviation_s": None}
    # Steps without any of its ranges count as no time.
    step = steps.at(tree.start)
    inside = step >= 0
    pairs = tree.node[inside] * count + step[inside]
    different, number = np.unique(pairs, return_inverse=True)
    sums = np.bincount(number, length[inside], minlength=len(different))
    total, squares = (
        np.bincount(different // count, values, minlength=len(every)) for values in (sums, sums**2)
    )
    variance = (squares - total**2 / count) / (count - 1)
    return {**found, "step_deviation_s": np.sqrt(np.maximum(variance, 0.0))}


def _with_rest(
    rows: list[Record],
    tree: RangeTree,
    columns: Mapping[str, list[Any]],
    kept: Sequence[int],
    unknown: Record,
) -> Cut:
    """Add a row for all nodes that are not `kept` as rows; `unknown` are its other columns.

    A range in another one that is cut too is in the outer one's figures already.
    """
    known = {-1, *kept}
    cut = [node for node in range(len(tree.nodes)) if node not in known]
    outer = [node for node in cut if tree.nodes[node].parent in known]
    sums = {
        name: sum(columns[name][node] for node in outer)
        for name in columns
        if name in _ADDED_UP and None not in (columns[name][node] for node in outer)
    }
    calls = sum(columns["calls"][node] for node in cut)
    own = sum(columns["self_s"][node] for node in cut)
    label = {"domain": "", "kind": "rest", "name": REST, "style": PUSH_POP}
    row: Record = {**unknown, "parent": None, **label, **sums, "calls": calls, "self_s": own}
    rest = Rest(rows=len(cut), things=calls, seconds=float(sums["wall_s"]))
    return [*rows, row], rest


# Columns that add up over ranges that do not lie in one another.
_ADDED_UP = (
    *("wall_s", "api_calls", "api_s", "kernels", "device_s", "projected_s", "elsewhere_s"),
    *("copies", "copied_bytes", "copies_s"),
)


def _begun(capture: Capture) -> dict[str, Ints | None]:
    """Sum the CUDA calls of each node, and the device work by the call that began it."""
    sums: dict[str, Ints | None] = dict.fromkeys(_ADDED_UP[1:])
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
    sums |= sums_of_calls(capture.tree, calls, call, values)
    return {**sums, "projected_s": projected(capture.tree, calls, work)}


def _largest(tree: RangeTree, wall: Ints, most: int) -> list[int]:
    """Return the nodes in order; of too many those with most time, with all around them."""
    if len(wall) <= most:
        return list(range(len(wall)))
    kept: set[int] = set()
    for node in np.argsort(-wall, kind="stable").tolist():
        line = []
        while node >= 0 and node not in kept:
            line.append(node)
            node = tree.nodes[node].parent
        if len(kept) + len(line) > most:
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


def memory_rows(export: Export, begin_ns: int) -> list[Record]:
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
        moments = some["t"].to_numpy(np.int64)[kept] - begin_ns
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
