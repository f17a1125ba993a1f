"""Import snapshots of a CUDA allocator (`torch.cuda.memory._dump_snapshot`): blocks, owners, peak.

A snapshot has the allocator's segments with their blocks as they were when it was written, and,
where `_record_memory_history` was on, every allocation and release before that. From both follow
the bytes alive at every moment of the history. The pickle is not loaded: `plain_pickle` reads it.

A block is alive until its release is asked for, as in torch's own count. Its size is that which was
asked for: the history knows no other, and what rounding adds is in the segments.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from profstack.code_owner import OWN, package_of, place_words
from profstack.readers.formats import (
    Format,
    Request,
    Taken,
    content,
    extremes,
    imported_layer,
    origin_of,
    single,
    unreadable,
)
from profstack.readers.plain_pickle import PickleError, read_plain
from profstack.storage.schema.column import Record, SqlValue
from profstack.storage.schema.layer_table import LayerTable, column
from profstack.units import format_bytes, format_count

LAYER: Final = "snapshot"
MOST_BYTES: Final = 2 << 30
# What its values may take in memory.
MOST_MEMORY: Final = 6 << 30
# Values that are visited: entries, blocks and frames, however often the pickle shares them.
MOST_VALUES: Final = 50_000_000
_MOST_SIZE = 1 << 50
# Where the first names are. Before torch 2.0 it was the list of segments alone.
_BEGIN = 4096
Moments = npt.NDArray[np.int64]

# --- Parts of a snapshot, checked -----------------------------------------------------------------


class Frame(NamedTuple):
    """A line of a stack and its function."""

    file: str
    line: int
    name: str


Stack = tuple[Frame, ...]


class Block(NamedTuple):
    """A block of a segment; `stack` is a place in the snapshot's stacks."""

    address: int
    size: int
    requested: int
    state: str
    stack: int


class Segment(NamedTuple):
    """Memory that the allocator took from the device."""

    device: int
    stream: int
    kind: str
    pool: str
    size: int
    blocks: list[Block]


class Entry(NamedTuple):
    """An action in the history of a device; `free` is what an `oom` had left."""

    action: str
    address: int
    size: int
    time_us: int | None
    stack: int
    free: int | None


@dataclass
class Snapshot:
    """The segments, the history of each device in order, and all stacks; the first is empty."""

    segments: list[Segment]
    history: dict[int, list[Entry]]
    stacks: list[Stack]


class _DamagedError(ValueError):
    """A value of the snapshot is of another type or size than torch writes."""


class _Parser:
    """Takes a snapshot out of plain values; raises `_DamagedError`."""

    def __init__(self) -> None:
        self._left = MOST_VALUES
        # Their places, also by the identity of their list, which the pickle holds meanwhile.
        self._stacks: dict[Stack, int] = {(): 0}
        self._known: dict[int, int] = {}
        self._frames: dict[Frame, Frame] = {}

    def snapshot(self, value: object) -> Snapshot:
        # Before torch 2.0 it was the list of segments alone.
        parts = value if isinstance(value, dict) else {"segments": value}
        segments = parts.get("segments")
        if not isinstance(segments, list):
            raise _DamagedError("no list of segments")
        found = [self._segment(each) for each in segments]
        history: dict[int, list[Entry]] = {}
        traces = parts.get("device_traces", [])
        for device, trace in enumerate(self._list(traces, "device_traces")):
            entries = [self._entry(each) for each in self._list(trace, "a device's trace")]
            if entries:
                history[device] = entries
        return Snapshot(found, history, list(self._stacks))

    def _segment(self, value: object) -> Segment:
        parts = self._dict(value, "a segment")
        blocks, address = [], _whole(parts, "address", 0)
        for each in self._list(parts.get("blocks"), "blocks"):
            blocks.append(self._block(each, address))
            address = blocks[-1].address + blocks[-1].size
        pool = parts.get("segment_pool_id", (0, 0))
        is_pool = isinstance(pool, tuple) and len(pool) == 2 and all(map(_is_size, pool))
        return Segment(
            _whole(parts, "device", 0),
            _whole(parts, "stream", 0),
            _text(parts, "segment_type", "unknown"),
            f"{pool[0]}, {pool[1]}" if is_pool and isinstance(pool, tuple) else "unknown",
            _whole(parts, "total_size"),
            blocks,
        )

    def _block(self, value: object, address: int) -> Block:
        parts = self._dict(value, "a block")
        frames, size = parts.get("frames"), _whole(parts, "size")
        requested = _whole(parts, "requested_size", size)
        history = parts.get("history")
        if frames is None and isinstance(history, list) and history:
            # Before torch 2.1.
            latest = self._dict(history[0], "a block's history")
            frames, requested = latest.get("frames"), _whole(latest, "real_size", size)
        state = _text(parts, "state", "unknown")
        stack = self._stack(frames) if frames else 0
        return Block(_whole(parts, "address", address), size, requested, state, stack)

    def _entry(self, value: object) -> Entry:
        parts = self._dict(value, "an entry of the history")
        time_us = parts.get("time_us")
        if time_us is not None and not _is_size(time_us):
            raise _DamagedError("a time_us that is none")
        frames = parts.get("frames")
        return Entry(
            _text(parts, "action", ""),
            _whole(parts, "addr", 0),
            _whole(parts, "size", 0),
            time_us if isinstance(time_us, int) else None,
            self._stack(frames) if frames else 0,
            _whole(parts, "device_free", 0) if "device_free" in parts else None,
        )

    def _stack(self, frames: object) -> int:
        place = self._known.get(id(frames))
        if place is None:
            stack = tuple(self._frame(each) for each in self._list(frames, "frames"))
            place = self._stacks.setdefault(stack, len(self._stacks))
            self._known[id(frames)] = place
        return place

    def _frame(self, value: object) -> Frame:
        parts = self._dict(value, "a frame")
        frame = Frame(_text(parts, "filename"), _whole(parts, "line"), _text(parts, "name"))
        return self._frames.setdefault(frame, frame)

    def _dict(self, value: object, what: str) -> Mapping[object, object]:
        self._count(1)
        if not isinstance(value, dict):
            raise _DamagedError(f"{what} that is no dictionary")
        return value

    def _list(self, value: object, what: str) -> list[object]:
        if not isinstance(value, list):
            raise _DamagedError(f"{what} that is no list")
        self._count(len(value))
        return value

    def _count(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise _DamagedError(f"more than {MOST_VALUES:,} values")


def _is_size(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 64


def _whole(parts: Mapping[object, object], name: str, default: int | None = None) -> int:
    value = parts.get(name, default)
    # Addresses use all bits; -1 is a device or a line that is not known.
    if not isinstance(value, int) or not -1 <= value < 1 << 64:
        raise _DamagedError(f"{name!r} that is no number")
    if name.endswith("size") and not 0 <= value < _MOST_SIZE:
        raise _DamagedError(f"a {name!r} of {value}")
    return value


def _text(parts: Mapping[object, object], name: str, default: str | None = None) -> str:
    value = parts.get(name, default)
    if not isinstance(value, str):
        raise _DamagedError(f"{name!r} that is no text")
    return value


def recognise(start: bytes, name: str) -> bool:
    """Recognise a pickle of protocol 2 or later whose first names are a snapshot's."""
    is_pickle = start[:1] == b"\x80" and start[1:2] in (b"\2", b"\3", b"\4", b"\5")
    return is_pickle and (b"segments" in start[:_BEGIN] or b"total_size" in start[:_BEGIN])


def read(path: Path) -> Snapshot:
    """Return the snapshot in a file; raises UsageError for any other pickle."""
    try:
        return _Parser().snapshot(read_plain(content(path, MOST_BYTES), most_bytes=MOST_MEMORY))
    except PickleError as error:
        raise unreadable(path, f"{error}", "give a snapshot of _dump_snapshot()") from None
    except _DamagedError as error:
        what = f"is no snapshot of a CUDA allocator ({error})"
        raise unreadable(path, what, "give one of torch.cuda.memory._dump_snapshot()") from None


# --- Blocks over the history ----------------------------------------------------------------------

_ALIVE = "active_allocated"
_TAKES = frozenset(("segment_alloc", "segment_map"))
_RETURNS = frozenset(("segment_free", "segment_unmap"))


@dataclass
class DeviceMemory:
    """Blocks that were alive at any moment of a device's history.

    A moment is a number of entries: 0 before the first one. Blocks live from moment `begin` until
    before moment `end`; `stack` is 0 where none was recorded. `allocated` and
    `reserved` are bytes by moment, `reserved` None where history and segments do not agree.
    """

    begin: Moments
    end: Moments
    size: Moments
    stack: Moments
    allocated: Moments
    reserved: Moments | None
    # Blocks that nothing in the history has freed, and that the segments do not have.
    lost: int

    @property
    def peak(self) -> int:
        """The first moment at which most was allocated."""
        return int(self.allocated.argmax())

    @property
    def last(self) -> int:
        """The moment at which the snapshot was written."""
        return len(self.allocated) - 1

    def alive_at(self, moment: int) -> npt.NDArray[np.bool_]:
        """Select the blocks alive at a moment."""
        chosen: npt.NDArray[np.bool_] = (self.begin <= moment) & (moment < self.end)
        return chosen

    def levels(self, chosen: npt.NDArray[np.bool_]) -> Moments:
        """Return the bytes of the chosen blocks by moment."""
        return _levels(self.begin[chosen], self.end[chosen], self.size[chosen], self.last)


def _levels(begin: Moments, end: Moments, size: Moments, last: int) -> Moments:
    changes = np.zeros(last + 2, np.int64)
    np.add.at(changes, begin, size)
    np.subtract.at(changes, end, size)
    return np.cumsum(changes[:-1])


def device_memory(snapshot: Snapshot, device: int) -> DeviceMemory:
    """Return the blocks of a device over its history, and what it held."""
    history, last = snapshot.history.get(device, []), len(snapshot.history.get(device, []))
    own = [each for each in snapshot.segments if each.device == device]
    at_end = {
        block.address: block for each in own for block in each.blocks if block.state == _ALIVE
    }
    rows: list[tuple[int, int, int, int]] = []
    alive: dict[int, tuple[int, int, int]] = {}

    def ended(address: int, end: int) -> None:
        begin, size, stack = alive.pop(address)
        rows.append((begin, end, size, stack))

    for moment, entry in enumerate(history, 1):
        if entry.action == "alloc":
            if entry.address in alive:
                # Its release is not in the history.
                ended(entry.address, moment)
            alive[entry.address] = moment, entry.size, entry.stack
        elif entry.action == "free_requested":
            # One taken before the history began has no stack.
            alive.setdefault(entry.address, (0, entry.size, 0))
            ended(entry.address, moment)
    lost = sum(address not in at_end for address in alive)
    for address, block in at_end.items():
        alive.setdefault(address, (0, block.requested, block.stack))
    for address in list(alive):
        ended(address, last + 1)
    begin, end, size, stack = np.array(rows, np.int64).reshape(-1, 4).T
    allocated = _levels(begin, end, size, last)
    return DeviceMemory(begin, end, size, stack, allocated, _reserved(own, history), lost)


def _reserved(segments: Sequence[Segment], history: Sequence[Entry]) -> Moments | None:
    """Return the bytes of all segments by moment, back from those of the snapshot."""
    changes = [
        entry.size if entry.action in _TAKES else -entry.size if entry.action in _RETURNS else 0
        for entry in history
    ]
    levels = sum(each.size for each in segments) - np.cumsum([0, *reversed(changes)])[::-1]
    return levels if levels.min() >= 0 else None


# --- Where a block was taken ----------------------------------------------------------------------

FORWARD, BACKWARD, OPTIMIZER = "taken in forward", "taken in backward", "taken by the optimizer"
ELSEWHERE, NO_STACK = "taken elsewhere", "not attributed"
KINDS = (FORWARD, BACKWARD, OPTIMIZER, ELSEWHERE, NO_STACK)
# The part of a step by a frame's file and name; the first that any frame of the stack is in.
_PARTS = tuple(
    (kind, re.compile(rf"[/\\]torch[/\\]{file}"), re.compile(name))
    for kind, file, name in (
        (OPTIMIZER, r"optim[/\\](?!lr_scheduler)", ""),
        (BACKWARD, r"autograd[/\\](__init__|graph)\.py$", "^(backward|grad|_engine_run_backward)$"),
        (FORWARD, r"nn[/\\]modules[/\\]module\.py$", "_call_impl"),
    )
)
# In stacks with C++ frames; a thread of autograd's has no Python frame.
_ENGINE = "torch::autograd::Engine::"
_DEEPEST = 24


def kind_of(stack: Stack) -> str:
    """Return the part of a step in which a block was taken, by its stack."""
    if not stack:
        return NO_STACK
    for kind, file, name in _PARTS:
        if any(file.search(each.file) and name.search(each.name) for each in stack):
            return kind
    return BACKWARD if any(_ENGINE in each.name for each in stack) else ELSEWHERE


def place_of(stack: Stack) -> Frame | None:
    """Return the innermost frame of the user's own code, else of any Python code."""
    python = [each for each in stack if each.file.endswith(".py") or each.file.startswith("<")]
    own = (each for each in python if package_of(each.file) == OWN)
    return next(own, python[0] if python else None)


def _stack_words(stack: Stack) -> str:
    """Return a stack in one line, innermost first."""
    shown = [f"{place_words(each.file, each.line)} {each.name}" for each in stack[:_DEEPEST]]
    return " < ".join([*shown, "..."] if len(stack) > _DEEPEST else shown)


# --- Rows -----------------------------------------------------------------------------------------

_OF_BLOCKS = (
    column("blocks", "REAL", "blocks that were alive at any moment of the history", "counted"),
    column("allocated_bytes", "REAL", "their bytes, as they were asked for", "counted"),
    column("peak_bytes", "INTEGER", "those alive when the device held most", "counted"),
    column("end_bytes", "INTEGER", "those alive when the snapshot was written", "counted"),
)
_DEVICE = column("device", "TEXT", "device")
LINES = LayerTable(
    "snapshot_lines",
    (
        _DEVICE,
        column("file", "TEXT", "source file, null where no Python code was on the stack"),
        column("line", "INTEGER", "innermost line of the user's own, else of any Python code"),
        column("function", "TEXT", "function of that line"),
        column("part", "TEXT", "part of a step in which it was taken, by the stack"),
        *_OF_BLOCKS,
    ),
    "device memory by line",
    "The line of the script at which the blocks of device memory were taken.",
    order="peak_bytes",
    largest=("peak_bytes", "end_bytes"),
)
STACKS = LayerTable(
    "snapshot_stacks",
    (_DEVICE, column("stack", "TEXT", "stack, innermost first"), *_OF_BLOCKS),
    "device memory by stack",
    "The stacks that took most of the device memory, those with most at the peak first.",
    order="peak_bytes",
    largest=("peak_bytes", "end_bytes"),
)
MOST_STACKS: Final = 500
SEGMENTS = LayerTable(
    "snapshot_segments",
    (
        _DEVICE,
        column("stream", "INTEGER", "stream"),
        column("pool", "TEXT", "pool of the allocator, as two numbers; 0, 0 is the common one"),
        column("segment_type", "TEXT", "small or large"),
        column("segments", "REAL", "segments", "counted"),
        column("reserved_bytes", "REAL", "their bytes, which the device has given", "counted"),
        column("allocated_bytes", "REAL", "bytes of blocks in use", "counted"),
        column("rounding_bytes", "REAL", "the part of these that rounding added", "counted"),
        column("pending_bytes", "REAL", "bytes of blocks that a stream still uses", "counted"),
        column("gap_bytes", "REAL", "free bytes beside blocks in use: fragmentation", "counted"),
        column("unused_bytes", "REAL", "bytes of segments without a block in use", "counted"),
        column("largest_gap_bytes", "INTEGER", "largest free block", "counted"),
    ),
    "segments of the allocator",
    "Device memory that the allocator held when the snapshot was written, and what was in it.",
    order="reserved_bytes",
    largest=("largest_gap_bytes",),
)


def block_rows(
    memory: DeviceMemory, stacks: Sequence[Stack], device: str, index: int
) -> dict[str, list[Record]]:
    """Return rows of `snapshot_lines`, `snapshot_stacks` and `memory_owners` of one device."""
    common: dict[str, SqlValue] = {"slice": index, "device": device}
    names = [each.name for each in _OF_BLOCKS]
    keys = ("file", "line", "function", "part")
    now = (memory.alive_at(moment) for moment in (memory.peak, memory.last))
    weights = (None, memory.size, *(memory.size * alive for alive in now))
    # Whole numbers: sums of floats would lose bytes.
    figures = np.zeros((len(stacks), 4), np.int64)
    for at, weight in enumerate(weights):
        np.add.at(figures[:, at], memory.stack, 1 if weight is None else weight)
    seen = np.flatnonzero(figures[:, 0]).tolist()
    lines: dict[tuple[SqlValue, ...], Moments] = {}
    for number in seen:
        place = place_of(stacks[number])
        key = (*(place or (None,) * 3), kind_of(stacks[number]))
        lines[key] = lines.get(key, 0) + figures[number]
    largest = sorted(seen, key=lambda number: figures[number, 2:].tolist(), reverse=True)
    return {
        LINES.name: [
            {**common, **dict(zip((*keys, *names), (*key, *sums.tolist()), strict=True))}
            for key, sums in lines.items()
        ],
        STACKS.name: [
            {**common, "stack": _stack_words(stacks[number]) or NO_STACK}
            | dict(zip(names, figures[number].tolist(), strict=True))
            for number in largest[:MOST_STACKS]
        ],
        "memory_owners": list(_owner_rows(memory, stacks, common)),
    }


def _owner_rows(memory: DeviceMemory, stacks: Sequence[Stack], common: Record) -> Iterator[Record]:
    kinds = np.array([KINDS.index(kind_of(stack)) for stack in stacks])[memory.stack]
    for number, kind in enumerate(KINDS):
        levels = memory.levels(kinds == number)
        if largest := int(levels.max()):
            yield {
                **common,
                "kind": kind,
                "start_bytes": int(levels[0]),
                "peak_bytes": int(levels[memory.peak]),
                "largest_bytes": largest,
                "end_bytes": int(levels[-1]),
            }


def segment_rows(segments: Sequence[Segment], index: int) -> Iterator[Record]:
    """Yield rows of `snapshot_segments`."""
    groups: dict[tuple[int, int, str, str], list[Segment]] = defaultdict(list)
    for each in segments:
        groups[each.device, each.stream, each.pool, each.kind].append(each)
    for (device, stream, pool, kind), group in groups.items():
        sizes: Counter[str] = Counter()
        gaps = [0]
        for segment in group:
            used = any(block.state != _INACTIVE for block in segment.blocks)
            free = "gap_bytes" if used else "unused_bytes"
            for block in segment.blocks:
                sizes[_COLUMNS.get(block.state, free)] += block.size
                if block.state == _ALIVE:
                    sizes["rounding_bytes"] += max(block.size - block.requested, 0)
                elif block.state == _INACTIVE:
                    gaps.append(block.size)
        yield {
            "slice": index,
            "device": f"cuda:{device}",
            "stream": stream,
            "pool": pool,
            "segment_type": kind,
            "segments": len(group),
            "reserved_bytes": sum(each.size for each in group),
            **{name: sizes[name] for name in _OF_SEGMENTS},
            "largest_gap_bytes": max(gaps),
        }


_INACTIVE = "inactive"
# The columns of blocks in use; torch has had two names for one that a stream still uses.
_COLUMNS = {
    _ALIVE: "allocated_bytes",
    "active_pending_free": "pending_bytes",
    "active_awaiting_free": "pending_bytes",
}
_OF_SEGMENTS = (
    "allocated_bytes", "rounding_bytes", "pending_bytes", "gap_bytes", "unused_bytes",
)  # fmt: skip


def take(files: Sequence[Path], request: Request) -> Taken:
    """Read one snapshot; see `Format`."""
    snapshot = read(single(files, "snapshot"))
    numbers = sorted({each.device for each in snapshot.segments} | set(snapshot.history))
    if not numbers:
        raise unreadable(files[0], "has no segment and no history", "dump it while CUDA is in use")
    memories = {number: device_memory(snapshot, number) for number in numbers}
    fullest = max(numbers, key=lambda number: int(memories[number].allocated.max()))
    added: dict[str, list[Record]] = defaultdict(list)
    for number, memory in memories.items():
        for name, rows in block_rows(
            memory, snapshot.stacks, f"cuda:{number}", request.slice
        ).items():
            added[name] += rows
    added[SEGMENTS.name] = list(segment_rows(snapshot.segments, request.slice))
    history = snapshot.history.get(fullest, [])
    times = [each.time_us for each in history if each.time_us is not None]
    first_us, last_us = (times[0], times[-1]) if times else (0, 0)
    taken = Taken(files, [])
    origin_s = origin_of(request, first_us / 1e6, taken, LAYER) if times else 0.0
    added["memory"] = moments(memories[fullest], history, round(1e6 * origin_s))
    added["notes"] = [
        {"slug": slug, "layer": LAYER, "text": text}
        for slug, text in _notes(snapshot, memories, fullest)
    ]
    seconds = max(last_us - first_us, 0) / 1e6
    layer = imported_layer(
        request, LAYER, "tracing", "torch's history of a CUDA allocator", files, seconds,
        started_s=first_us / 1e6 - origin_s,
    )  # fmt: skip
    tables = {LAYER: (LINES, STACKS, SEGMENTS)}
    events, segments = (
        format_count(count)
        for count in (sum(map(len, snapshot.history.values())), len(snapshot.segments))
    )
    held = f"cuda:{fullest} at most {format_bytes(int(memories[fullest].allocated.max()))}"
    summary = f"{files[0].name}: {events} events, {segments} segments; {held}"
    added["notes"] += taken.added.get("notes", ())
    taken.summary, taken.tables = [summary], tables
    taken.added |= {**layer, **added}
    return taken


def moments(memory: DeviceMemory, history: Sequence[Entry], origin_us: int) -> list[Record]:
    """Return rows of `memory` over the history; without one, a row for the snapshot itself."""
    times = [entry.time_us for entry in history]
    first = next((time for time in times if time is not None), origin_us)
    rows: list[Record] = []
    # The levels behind each entry; without entries the only one there is.
    for moment in extremes(memory.allocated.tolist()):
        time = times[moment - 1] if moment else first
        if time is not None:
            rows.append(
                {
                    "t_s": (time - origin_us) / 1e6,
                    "device_allocated_bytes": int(memory.allocated[moment]),
                    "device_reserved_bytes": None
                    if memory.reserved is None
                    else int(memory.reserved[moment]),
                }
            )
    return rows


def _notes(
    snapshot: Snapshot, memories: Mapping[int, DeviceMemory], fullest: int
) -> Iterator[tuple[str, str]]:
    if not snapshot.history:
        text = (
            "the snapshot has no history: the peak is not known, and figures are of the moment at "
            "which it was written; call torch.cuda.memory._record_memory_history() before"
        )
        yield "snapshot-history", text
    if len(memories) > 1:
        text = f"memory over time is that of cuda:{fullest}, the device that held most"
        yield "snapshot-devices", text
    for device, memory in memories.items():
        if memory.lost:
            text = (
                f"{memory.lost:,} blocks of the history of cuda:{device} are in none of its "
                "segments: the history ended before the snapshot was written"
            )
            yield "snapshot-history", text
        failed = [each for each in snapshot.history.get(device, []) if each.action == "oom"]
        if failed:
            yield "out-of-memory", _failure(device, len(failed), failed[-1], snapshot.stacks)


def _failure(device: int, count: int, last: Entry, stacks: Sequence[Stack]) -> str:
    """Return a sentence on the allocations that failed for want of memory."""
    place = place_of(stacks[last.stack])
    where = f" at {place_words(place.file, place.line)}" if place else ""
    left = "" if last.free is None else f" while the device had {format_bytes(last.free)} free"
    times = "" if count == 1 else f" {format_count(count)} times, the last time"
    return (
        f"cuda:{device} ran out of memory{times} when {format_bytes(last.size)} were asked "
        f"for{where}{left}"
    )


FORMAT = Format("snapshot of CUDA memory", ".pickle", recognise, take)
