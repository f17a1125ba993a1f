"""Events of a saved trace as columns, with the accessors of torch.profiler's own events.

Every table of the torch layer is made of either; `saved_trace` fills the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from profstack.readers.torchtrace.columns import (
    Bools,
    ColumnarEvents,
    Ints,
    Numbering,
    RecordedInputs,
    StringColumn,
)
from profstack.readers.torchtrace.events import (
    ACCUMULATE,
    DEVICE_KINDS,
    EVALUATE,
    HOST_KINDS,
    MEMORY_KIND,
    PYTHON_KIND,
    RUNTIME_KINDS,
)

# The activity types that tables are made of, by number.
KINDS = (*HOST_KINDS, MEMORY_KIND, *DEVICE_KINDS, *RUNTIME_KINDS, PYTHON_KIND)
# Spelled so before torch 2.
_KINDS_BEFORE = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
    "Python": PYTHON_KIND,
}
KIND_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
KIND_NUMBERS |= {old: KIND_NUMBERS[kind] for old, kind in _KINDS_BEFORE.items()}
_ANNOTATION = KIND_NUMBERS["user_annotation"]
_CUDA, _CPU = SimpleNamespace(name="CUDA"), SimpleNamespace(name="CPU")
# The values of torch's `RecordScope` that can be recognised in a trace.
_OPERATOR, _BACKWARD, _RANGE = 0, 1, 7
# Accessors that give a column as it is.
_PLAIN = {
    "start_ns": "start",
    "duration_ns": "duration",
    "start_thread_id": "thread",
    "sequence_nr": "sequence",
    "correlation_id": "correlation",
    "linked_correlation_id": "linked",
    "device_index": "device",
    "device_resource_id": "stream",
    "nbytes": "nbytes",
}


@dataclass(frozen=True)
class EventValues:
    """What the numbers in the columns mean, for all events of a trace."""

    names: list[str]
    shapes: list[list[list[int]]]
    types: list[list[str]]
    values: list[list[Any]]
    # By the number of a forward thread, from 1; -1 where it is not known which one that is.
    forward_threads: Ints


class SavedEvents(ColumnarEvents):
    """Events of a saved trace, as columns."""

    def __init__(self, columns: Mapping[str, NDArray[Any]], values: EventValues) -> None:
        self.columns = columns
        self.values = values

    def __len__(self) -> int:
        return len(self.columns["start"])

    @overload
    def __getitem__(self, place: int) -> SavedEvent: ...
    @overload
    def __getitem__(self, place: slice) -> SavedEvents: ...
    def __getitem__(self, place: int | slice) -> SavedEvent | SavedEvents:
        if isinstance(place, slice):
            return self.at(np.arange(len(self))[place])
        if not 0 <= place < len(self):
            raise IndexError(place)
        return SavedEvent(self, place)

    def at(self, positions: Ints | Bools) -> SavedEvents:
        """Return the events at these positions."""
        columns = {name: values[positions] for name, values in self.columns.items()}
        return SavedEvents(columns, self.values)

    def with_ranges(
        self, start: Ints, end: Ints, thread: Ints, names: Sequence[str]
    ) -> SavedEvents:
        """Return these events and further ranges, one for each name, at the end."""
        known = Numbering()
        ids = np.array([known[name] for name in names], np.int64) + len(self.values.names)
        added: dict[str, Any] = dict.fromkeys(self.columns, 0)
        added |= {"start": start, "duration": end - start, "thread": thread, "name": ids}
        added |= {"kind": _ANNOTATION, "sequence": -1, "device": -1}
        columns = {}
        for name, values in self.columns.items():
            more = np.broadcast_to(np.asarray(added[name], values.dtype), len(names))
            columns[name] = np.concatenate((values, more))
        return SavedEvents(columns, replace(self.values, names=[*self.values.names, *known]))

    def integers(self, accessor: str) -> Ints:
        """Return what an accessor that gives whole numbers returns for every event."""
        columns = self.columns
        if accessor == "fwd_thread_id":
            threads: Ints = self.values.forward_threads[columns["forward"]]
            return threads
        if accessor == "is_user_annotation":
            return np.asarray(columns["kind"] == _ANNOTATION, np.int64)
        numbers: Ints = columns[_PLAIN[accessor]].astype(np.int64)
        return numbers

    def strings(self, accessor: str) -> StringColumn:
        """Return the events' names, or their kinds (`activity_type`)."""
        if accessor == "name":
            return StringColumn.renumbered(self.columns["name"], self.values.names)
        return StringColumn(self.columns["kind"].astype(np.int32), list(KINDS))

    def inputs(self) -> RecordedInputs:
        """Return the recorded inputs of every event."""
        values = self.values
        columns = self.columns["shape"], self.columns["type"]
        return RecordedInputs(columns[0], values.shapes, columns[1], values.types)

    def of_kinds(self, kinds: Sequence[str]) -> SavedEvents:
        """Return the events of these activity types."""
        return self.at(np.isin(self.columns["kind"], [KIND_NUMBERS[kind] for kind in kinds]))


class SavedEvent:
    """One event of a saved trace, with the accessors of torch.profiler's raw events."""

    __slots__ = ("_at", "_columns", "_values")

    def __init__(self, events: SavedEvents, at: int) -> None:
        self._columns, self._values, self._at = events.columns, events.values, at

    def _number(self, column: str) -> int:
        return int(self._columns[column][self._at])

    def name(self) -> str:
        """Name of the operator, range or kernel."""
        return self._values.names[self._number("name")]

    def activity_type(self) -> str:
        """Kind of activity: the trace's category."""
        return KINDS[self._number("kind")]

    def start_ns(self) -> int:
        """Begin since the epoch, if the trace has a base."""
        return self._number("start")

    def duration_ns(self) -> int:
        """Time in nanoseconds; 0 for an instant."""
        return self._number("duration")

    def end_ns(self) -> int:
        """End since the epoch, if the trace has a base."""
        return self._number("start") + self._number("duration")

    def start_thread_id(self) -> int:
        """Number of the thread over all processes in the trace."""
        return self._number("thread")

    def sequence_nr(self) -> int:
        """Number that an operator shares with its backward function; -1 for none."""
        return self._number("sequence")

    def fwd_thread_id(self) -> int:
        """Thread of the forward operator, as `start_thread_id`; 0 for none, -1 if not known."""
        return int(self._values.forward_threads[self._number("forward")])

    def correlation_id(self) -> int:
        """Number that a launch shares with its kernel, or an operator with its launches."""
        return self._number("correlation")

    def linked_correlation_id(self) -> int:
        """Number of the operator that launched a kernel; 0 for none."""
        return self._number("linked")

    def shapes(self) -> list[list[int]]:
        """Sizes of every input; empty for what is no tensor."""
        return self._values.shapes[self._number("shape")]

    def dtypes(self) -> list[str]:
        """Types of every input, as C++ names them."""
        return self._values.types[self._number("type")]

    def concrete_inputs(self) -> list[Any]:
        """Values of the inputs that are no tensors, None for those that are."""
        return self._values.values[self._number("value")]

    def nbytes(self) -> int:
        """Bytes allocated; below 0 bytes freed."""
        return self._number("nbytes")

    def device_index(self) -> int:
        """Number of the device; -1 on the host."""
        return self._number("device")

    def device_resource_id(self) -> int:
        """Number of the stream."""
        return self._number("stream")

    def device_type(self) -> Any:
        """Kind of device, an object with a `name`."""
        return _CUDA if self.activity_type() in DEVICE_KINDS else _CPU

    def scope(self) -> int:
        """Scope of the record: 0 an operator, 1 a backward function, 7 a range."""
        if self.is_user_annotation():
            return _RANGE
        name = self.name()
        made = self._number("forward") and not name.startswith(EVALUATE)
        return _BACKWARD if made or name == ACCUMULATE else _OPERATOR

    def is_user_annotation(self) -> bool:
        """Return whether it is a range of the script's or of torch's optimizers."""
        return self._number("kind") == _ANNOTATION
