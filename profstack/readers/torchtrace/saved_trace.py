"""Read a saved trace of torch.profiler (Kineto, Chrome trace JSON) as columns of events.

`read_trace` gives events that answer to the same accessors as the profiler's own (`name()`,
`start_ns()`, ...), and that give a whole column at once, so that every table is made of both. Times
are exact: a trace has microseconds with three digits, beside `baseTimeNanoseconds`.

A trace has for every operator its times, thread, `Sequence number`, `Fwd thread id`, `Input Dims`,
`Input type`, `Concrete Inputs` and `External id` (the correlation number); for a kernel its device,
stream, `External id` and `correlation`; for a `[memory]` instant `Bytes` and the device; for a call
of a Python function its name alone.

A trace lacks: the profiler's numbers of threads (the thread of a backward function's forward
follows from the trace's arrows between the two, or from there being one thread only); inputs that
are no tensors, which are texts, with long lists cut; names that are not ASCII (torch writes
`unknown`); the kind of a device (all are called CUDA); the trees of stacks and allocations.

The file is read in pieces that are cut between two events, so that memory holds columns and one
piece. It may come from anywhere and be damaged: what cannot be read is left out and counted.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from profstack.readers.torchtrace.columns import (
    Ints,
    Numbering,
)
from profstack.readers.torchtrace.events import (
    DEVICE_KINDS,
    HOST_KINDS,
    MEMORY_KIND,
    MEMORY_NAME,
    PYTHON_KIND,
    RUNTIME_KINDS,
)
from profstack.readers.torchtrace.saved_events import KIND_NUMBERS, EventValues, SavedEvents
from profstack.readers.torchtrace.trace_file import MOST_BYTES, TraceFile

# Events as JSON has them --------------------------------------------------------------------------
#
# Only the fields that tables are made of are decoded; lists of inputs stay as they are in the file,
# since few of them are different.

_NO_VALUE = msgspec.Raw(b"")


class _Arguments(msgspec.Struct, gc=False, frozen=True):
    external: int = msgspec.field(default=0, name="External id")
    # Spelled so before torch 2.
    external_before: int = msgspec.field(default=0, name="external id")
    sequence: int = msgspec.field(default=-1, name="Sequence number")
    forward: int = msgspec.field(default=0, name="Fwd thread id")
    correlation: int = 0
    device: int | None = None
    memory_device: int = msgspec.field(default=-1, name="Device Id")
    stream: int = 0
    dims: msgspec.Raw = msgspec.field(default=_NO_VALUE, name="Input Dims")
    dims_before: msgspec.Raw = msgspec.field(default=_NO_VALUE, name="Input dims")
    types: msgspec.Raw = msgspec.field(default=_NO_VALUE, name="Input type")
    values: msgspec.Raw = msgspec.field(default=_NO_VALUE, name="Concrete Inputs")
    nbytes: int = msgspec.field(default=0, name="Bytes")


_NO_ARGUMENTS = _Arguments()


class _Event(msgspec.Struct, gc=False):
    ph: str
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = math.nan
    dur: float = 0.0
    id: int | str = 0
    args: _Arguments = _NO_ARGUMENTS


class _ExactTime(msgspec.Struct, gc=False):
    ts: Decimal = Decimal(0)


_DECODER = msgspec.json.Decoder(list[_Event])
# Takes numbers that are written as texts.
_LENIENT = msgspec.json.Decoder(list[_Event], strict=False)
_ONE = msgspec.json.Decoder(_Event, strict=False)
_TIMES = msgspec.json.Decoder(list[_ExactTime], strict=False)
# From here on a float has no three digits behind the point.
_INEXACT = 2.0**43
# A longer time is no time.
_LONGEST_NS = 2.0**60
# An event's begin where it has none, or one that is no time.
_NO_TIME = -(1 << 62)

_MEMORY, _PYTHON = KIND_NUMBERS[MEMORY_KIND], KIND_NUMBERS[PYTHON_KIND]
_OPERATOR_NUMBER, _ANNOTATION_NUMBER = KIND_NUMBERS["cpu_op"], KIND_NUMBERS["user_annotation"]
_ON_DEVICE = [KIND_NUMBERS[kind] for kind in DEVICE_KINDS]
_OF_RUNTIME = [KIND_NUMBERS[kind] for kind in RUNTIME_KINDS]
_WITH_TIME = frozenset("Xi")
_ARROWS = frozenset(("fwdbwd", "forward_backward"))
_ARROW_BEGIN, _ARROW_END = "s", "f"
_ARROW_PHASES = frozenset((_ARROW_BEGIN, _ARROW_END))
# Ranges that torch before 1.10 took for operators.
_RANGES = re.compile(r"ProfilerStep#|Optimizer\.(step|zero_grad)#|enumerate\(DataLoader\)#")

# In a damaged piece: where an object ends or an event begins.
_EDGE = re.compile(rb'\}(?=\s*,)|(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|bp)"\s*:)')
# A damaged event is tried with this many pieces of text after it, since texts may hold a cut.
_MOST_JOINED = 16
_DURATION = re.compile(rb'"dur"\s*:\s*"?(\d+(?:\.\d*)?)')
_AGAIN = "save the trace again, and wait until it is written"

# Columns ------------------------------------------------------------------------------------------


@dataclass
class LeftOut:
    """What a trace holds and could not be read: events, their time, and why, by reason."""

    events: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, why: str, events: int, seconds: float = 0.0) -> None:
        """Count events that are left out."""
        if events:
            self.events[why] += events
            self.seconds[why] = self.seconds.get(why, 0.0) + seconds


TORN = "torn: they are no JSON or no event"
NEGATIVE = "with a negative time, which counts as 0 s"
NO_END = "without an end: ranges that were begun, or that ended, outside the trace"

# Columns of whole numbers of all events, by the field of an event's arguments.
_COLUMNS = (
    *("start", "duration", "name", "kind", "thread", "sequence", "forward", "correlation"),
    *("linked", "device", "stream", "nbytes", "shape", "type", "value"),
)
_TYPES = {
    "kind": np.int8,
    **dict.fromkeys(("name", "thread", "shape", "type", "value", "device", "stream"), np.int32),
}


class Numbers:
    """Numbers of the different names, threads and inputs of a trace."""

    def __init__(self) -> None:
        self.names, self.threads, self.forwards = Numbering(), Numbering(), Numbering()
        self.shapes, self.types, self.values = Numbering(), Numbering(), Numbering()
        # Number 0 of each is that of an event without inputs.
        for inputs in (self.shapes, self.types, self.values):
            inputs[b""]


class _Reader:
    """Fills columns with the events of each piece."""

    def __init__(self) -> None:
        self.numbers = Numbers()
        self.left_out = LeftOut()
        self.count = self.base = 0
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in _COLUMNS}
        # Where arrows from a forward operator to its backward function begin and end.
        self.begins: dict[int | str, tuple[int, int]] = {}
        self.ends: dict[int | str, tuple[int, int]] = {}

    def take(self, piece: bytes) -> None:
        """Add the events of a piece: some with commas between them."""
        text = b"[%b]" % piece.strip(b" \t\r\n,")
        try:
            events = _DECODER.decode(text)
        except msgspec.MsgspecError:
            try:
                events = _LENIENT.decode(text)
            except (msgspec.MsgspecError, RecursionError):
                events = self._damaged(piece)
                text = b""
        self.count += len(events)
        if events:
            self._add(events, text)

    def _damaged(self, piece: bytes) -> list[_Event]:
        """Decode a damaged piece event by event; what is none is left out, and counted."""
        events, torn, seconds = list[_Event](), 0, 0.0
        edges = sorted({0, *(found.end() for found in _EDGE.finditer(piece)), len(piece)})
        at = 0
        while at < len(edges) - 1:
            for until in range(at + 1, min(at + 1 + _MOST_JOINED, len(edges))):
                one = piece[edges[at] : edges[until]].strip(b" \t\r\n,")
                try:
                    if one:
                        events.append(_ONE.decode(one))
                except (msgspec.MsgspecError, RecursionError):
                    continue
                at = until
                break
            else:
                torn += 1
                lost = _DURATION.search(piece, edges[at], edges[at + 1])
                seconds += float(lost[1]) * 1e-6 if lost else 0.0
                at += 1
        self.count += torn
        self.left_out.add(TORN, torn, seconds)
        return events

    def _add(self, events: Sequence[_Event], text: bytes) -> None:
        phases = list(map(_PHASE, events))
        kinds = [KIND_NUMBERS.get(kind, -1) for kind in map(_CATEGORY, events)]
        if not _USUAL_PHASES.issuperset(phases):
            self._unusual(phases)
        chosen = [
            at
            for at, (phase, kind) in enumerate(zip(phases, kinds, strict=True))
            if phase in _WITH_TIME and (kind >= 0 or events[at].name == MEMORY_NAME)
        ]
        exact = self._times(events, text)
        if (exact == _NO_TIME).any():
            known = (exact != _NO_TIME).tolist()
            self.left_out.add(TORN, sum(not known[at] for at in chosen))
            chosen = [at for at in chosen if known[at]]
        self._add_arrows(events, phases, exact)
        kept = events if len(chosen) == len(events) else [events[at] for at in chosen]
        count = len(kept)
        if not count:
            return
        kind = np.fromiter((kinds[at] for at in chosen), np.int8, count)
        kind[kind < 0] = _MEMORY
        numbers, add = self.numbers, self._append
        duration = np.rint(1000 * np.fromiter(map(_LENGTH, kept), np.float64, count))
        duration = np.where(np.abs(duration) < _LONGEST_NS, duration, 0).astype(np.int64)
        add("duration", np.maximum(duration, 0))
        self.left_out.add(NEGATIVE, int((duration < 0).sum()), -duration[duration < 0].sum() * 1e-9)
        add("start", exact[chosen])
        add("kind", kind)
        add("name", np.fromiter(map(numbers.names.__getitem__, map(_NAME, kept)), np.int32, count))
        threads = map(numbers.threads.__getitem__, map(_THREAD, kept))
        add("thread", np.fromiter(threads, np.int32, count))
        self._add_arguments(kept, kind)

    def _add_arguments(self, kept: Sequence[_Event], kind: NDArray[np.int8]) -> None:
        """Add the columns that stand in the events' arguments."""
        count, add, numbers = len(kept), self._append, self.numbers
        arguments = list(map(_ARGUMENTS, kept))
        external = _whole(_EXTERNAL, arguments)
        if not external.any():
            external = _whole(_EXTERNAL_BEFORE, arguments)
        on_device, of_runtime = np.isin(kind, _ON_DEVICE), np.isin(kind, _OF_RUNTIME)
        of_host = ~on_device & ~of_runtime
        correlation = np.where(of_host, external, 0)
        device, stream = np.full(count, -1, np.int32), np.zeros(count, np.int32)
        nbytes = np.zeros(count, np.int64)
        for at in np.flatnonzero(~of_host).tolist():
            correlation[at] = _signed(arguments[at].correlation)
        for at in np.flatnonzero(on_device).tolist():
            given, pid = arguments[at].device, kept[at].pid
            device[at] = _small(given if given is not None else pid if isinstance(pid, int) else 0)
            stream[at] = _small(arguments[at].stream)
        for at in np.flatnonzero(kind == _MEMORY).tolist():
            nbytes[at] = _signed(arguments[at].nbytes)
            device[at] = _small(arguments[at].memory_device)
        add("correlation", correlation)
        add("linked", np.where(of_host, 0, external))
        add("device", device)
        add("stream", stream)
        add("nbytes", nbytes)
        add("sequence", _whole(_SEQUENCE, arguments))
        add("forward", self._forward_threads(kept, _whole(_FORWARD, arguments)))
        # Only operators have inputs, and the ranges of collectives.
        operators = np.flatnonzero(np.isin(kind, (_OPERATOR_NUMBER, _ANNOTATION_NUMBER))).tolist()
        given = [arguments[at] for at in operators]
        for column, known, get in (
            ("shape", numbers.shapes, _DIMS),
            ("type", numbers.types, _INPUT_TYPES),
            ("value", numbers.values, _VALUES),
        ):
            ids = np.zeros(count, np.int32)
            ids[operators] = np.fromiter(
                map(known.__getitem__, map(bytes, map(get, given))), np.int32, len(given)
            )
            add(column, ids)
        if len(numbers.shapes) == 1:
            before = [bytes(each.dims_before) for each in given]
            ids = np.zeros(count, np.int32)
            ids[operators] = [numbers.shapes[dims] for dims in before]
            self._parts["shape"][-1] = ids

    def _append(self, name: str, values: NDArray[Any]) -> None:
        self._parts[name].append(values)

    def _times(self, events: Sequence[_Event], text: bytes) -> Ints:
        """Return the begins of all events in nanoseconds, exactly."""
        times = np.fromiter(map(_TIME, events), np.float64, len(events))
        if np.abs(times).max(initial=0) >= _INEXACT and (times % 1).any():
            given = [each.ts for each in _TIMES.decode(text)] if text else []
            if len(given) == len(events):
                return np.fromiter((round(each * 1000) for each in given), np.int64, len(given))
        # The fraction apart: the product of both would be rounded to less than three digits.
        whole = np.where(np.abs(times) < 2.0**51, np.floor(times), np.nan)
        found = np.where(np.isnan(whole), 0, whole).astype(np.int64) * 1000
        found += np.where(np.isnan(whole), 0, np.rint((times - whole) * 1000)).astype(np.int64)
        begins: Ints = np.where(np.isnan(whole), _NO_TIME, found)
        return begins

    def _forward_threads(self, kept: Sequence[_Event], given: Ints) -> Ints:
        """Return small numbers, from 1, of the profiler's own numbers of forward threads."""
        found = np.zeros(len(given), np.int64)
        for at in np.flatnonzero(given).tolist():
            found[at] = self.numbers.forwards[kept[at].pid, int(given[at])] + 1
        return found

    def _add_arrows(self, events: Sequence[_Event], phases: Sequence[str], start: Ints) -> None:
        threads = self.numbers.threads
        for at in [at for at, phase in enumerate(phases) if phase in _ARROW_PHASES]:
            event, phase = events[at], phases[at]
            if event.cat in _ARROWS:
                known = self.begins if phase == _ARROW_BEGIN else self.ends
                known[event.id] = threads[event.pid, event.tid], int(start[at])

    def _unusual(self, phases: Sequence[str]) -> None:
        """Count ranges that are given as a begin and an end, which torch never does."""
        self.left_out.add(NO_END, sum(phase in ("B", "E") for phase in phases))

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return all columns, in the order of the file."""
        found = {}
        for name in _COLUMNS:
            parts, self._parts[name] = self._parts[name], []
            dtype = _TYPES.get(name, np.int64)
            whole = np.concatenate(parts) if parts else np.zeros(0)
            found[name] = whole.astype(dtype, copy=False)
        return found


_PHASE, _CATEGORY, _NAME = attrgetter("ph"), attrgetter("cat"), attrgetter("name")
_TIME, _THREAD, _ARGUMENTS = attrgetter("ts"), attrgetter("pid", "tid"), attrgetter("args")
_EXTERNAL, _EXTERNAL_BEFORE = attrgetter("external"), attrgetter("external_before")
_SEQUENCE, _FORWARD, _LENGTH = attrgetter("sequence"), attrgetter("forward"), attrgetter("dur")
_DIMS, _INPUT_TYPES, _VALUES = map(attrgetter, ("dims", "types", "values"))
_USUAL_PHASES = frozenset("XiIsftMCPNOD")


def _whole(get: Callable[[_Arguments], int], given: Sequence[_Arguments]) -> Ints:
    """Read whole numbers; identifiers that only fit an unsigned number keep their bits."""
    try:
        return np.fromiter(map(get, given), np.int64, len(given))
    except OverflowError:
        return np.fromiter(map(_signed, map(get, given)), np.int64, len(given))


def _small(value: int) -> int:
    """Return a number that fits 32 bits; -1 for one that does not."""
    return value if -(1 << 31) <= value < 1 << 31 else -1


def _signed(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


# A trace -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SavedTrace:
    """A saved trace: its `events` in order of time, without calls of Python `functions`.

    `count` is the number of all events in the file, `header` are the values beside them,
    `left_out` is what could not be read.
    """

    path: Path
    events: SavedEvents
    functions: SavedEvents
    count: int
    header: Mapping[str, object]
    truncated: bool
    left_out: LeftOut

    @cached_property
    def kinds(self) -> list[str] | None:
        """Activity types of the events; None where all are the host's, as for `read_host`."""
        of_host = [KIND_NUMBERS[kind] for kind in (*HOST_KINDS, MEMORY_KIND)]
        if np.isin(self.events.columns["kind"], of_host).all():
            return None
        kinds = self.events.strings("activity_type")
        return [kinds.values[number] for number in kinds.ids.tolist()]

    @property
    def shapes(self) -> bool:
        """Whether the trace was recorded with shapes."""
        return len(self.events.values.shapes) > 1

    @property
    def memory(self) -> bool:
        """Whether the trace was recorded with memory."""
        return bool((self.events.columns["kind"] == _MEMORY).any())

    @property
    def kernels(self) -> SavedEvents:
        """The events of devices."""
        return self.events.of_kinds(DEVICE_KINDS)

    @property
    def runtime(self) -> SavedEvents:
        """The host's calls of the devices' runtime."""
        return self.events.of_kinds(RUNTIME_KINDS)


def read_trace(path: Path, most: int = MOST_BYTES) -> SavedTrace:
    """Read the events of a Chrome trace (`.json` or `.json.gz`) that torch.profiler saved.

    `most` is how many bytes the trace may have, unfolded. Raises RecordingError where the file is
    no trace, is too large, or has no event of torch's; what is damaged is left out, and counted.
    """
    file, reader = TraceFile(path, most), _Reader()
    for piece in file.pieces():
        reader.take(piece)
    columns = reader.columns()
    base = file.header.get("baseTimeNanoseconds", 0)
    if isinstance(base, int) and 0 < base < 1 << 61:
        columns["start"] = columns["start"] + base
        reader.base = base
    start = columns["start"]
    if len(start) and (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
    values = _values(reader, columns)
    every = SavedEvents(columns, values)
    is_python = columns["kind"] == _PYTHON
    events = every.at(~is_python) if len(start) else every
    if not len(events):
        what = f"the trace has no operator, range or kernel among its {reader.count:,} events"
        if file.truncated:
            raise file.error("the file ends in the middle of the trace", _AGAIN)
        raise file.error(what, "record with ProfilerActivity.CPU, around at least one step")
    functions = every.at(is_python)
    return SavedTrace(
        path, events, functions, reader.count, file.header, file.truncated, reader.left_out
    )


def _values(reader: _Reader, columns: Mapping[str, NDArray[Any]]) -> EventValues:
    """Decode the different inputs, and find the forward threads."""
    numbers = reader.numbers
    names = list(numbers.names)
    # Ranges that torch before 1.10 took for operators.
    is_range = np.array([_RANGES.match(name) is not None for name in names] or [False], np.bool_)
    if len(columns["kind"]):
        kind = columns["kind"]
        kind[is_range[columns["name"]] & (kind == _OPERATOR_NUMBER)] = _ANNOTATION_NUMBER
    return EventValues(
        names,
        [_each(_size, text) for text in numbers.shapes],
        [_each(str, text) for text in numbers.types],
        [_each(_literal, text) for text in numbers.values],
        _forward_threads(reader, columns),
    )


def _forward_threads(reader: _Reader, columns: Mapping[str, NDArray[Any]]) -> Ints:
    """Match the profiler's numbers of forward threads to the threads of the trace."""
    forwards = reader.numbers.forwards
    found = np.full(len(forwards) + 1, -1, np.int64)
    found[0] = 0
    if not forwards:
        return found
    arrows = {
        end: reader.begins[arrow] for arrow, end in reader.ends.items() if arrow in reader.begins
    }
    made = np.flatnonzero(columns["forward"])
    base = reader.base
    votes: Counter[tuple[int, int]] = Counter()
    places = (columns[name][made].tolist() for name in ("forward", "thread", "start"))
    for forward, thread, start in zip(*places, strict=True):
        if (begin := arrows.get((thread, start - base))) is not None:
            votes[forward, begin[0]] += 1
    for (forward, thread), _ in reversed(votes.most_common()):
        found[forward] = thread
    makers = np.unique(columns["thread"][(columns["forward"] == 0) & (columns["sequence"] >= 0)])
    if len(makers) == 1:
        found[1:][found[1:] < 0] = makers[0]
    return found


def _each(make: Callable[[Any], Any], text: bytes) -> list[Any]:
    """Convert every element of a list in JSON; of no list make an empty one."""
    try:
        value = msgspec.json.decode(text) if text else []
    except (msgspec.MsgspecError, RecursionError):
        return []
    return list(map(make, value)) if isinstance(value, list) else []


def _size(value: Any) -> list[int]:
    """Convert one of `Input Dims` to one of `shapes()`; empty for a list of tensors."""
    return value if isinstance(value, list) and all(type(size) is int for size in value) else []


def _literal(text: Any) -> Any:
    """Convert one of `Concrete Inputs` to a value; texts that are no literals stay texts."""
    try:
        return None if text == "" else ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
