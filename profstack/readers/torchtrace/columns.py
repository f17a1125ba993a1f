"""Columns of events: strings by number, groups and sums; and how raw events are read into them.

A call of an accessor costs about a tenth of a microsecond where the event lies in the processor's
cache, and several times that where it does not. So events are read in blocks: every accessor is
called on one block before the next block is touched.
"""

from __future__ import annotations

import marshal
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
# Numbers of few different things, in columns that are kept for long.
SmallInts = NDArray[np.int32]

# Events of one block: with all that belongs to them they fit the second-level cache.
BLOCK = 1024
# A table of this many entries per event is cheaper than sorting the events.
SPARSE = 4
_SEPARATOR = "\t"
# Without references, so that equal lists give equal bytes.
_MARSHAL_VERSION = 2


class Numbering(dict[Any, int]):
    """Numbers of keys, in the order in which they are first looked up."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class ColumnarEvents(Sequence[Any]):
    """Events that are kept as columns, and give a whole column at once."""

    def integers(self, accessor: str) -> Ints:
        """Return what an accessor that gives whole numbers returns for every event."""
        raise NotImplementedError

    def strings(self, accessor: str) -> StringColumn:
        """Return what an accessor that gives a text returns for every event."""
        raise NotImplementedError

    def inputs(self) -> RecordedInputs:
        """Return the recorded inputs of every event."""
        raise NotImplementedError

    def at(self, positions: Ints | Bools) -> ColumnarEvents:
        """Return the events at these positions."""
        raise NotImplementedError


@dataclass
class StringColumn:
    """Strings by number: `ids` of the events, `values` of the numbers."""

    ids: Ints | SmallInts
    values: list[str]

    @classmethod
    def of(cls, strings: Iterable[str], count: int) -> StringColumn:
        """Number `count` strings, which pass one at a time and are never all held."""
        numbers = Numbering()
        return cls(np.fromiter(map(numbers.__getitem__, strings), np.int64, count), list(numbers))

    @classmethod
    def renumbered(cls, ids: Ints | SmallInts, values: Sequence[str]) -> StringColumn:
        """Number anew, in the order of the events, strings that have numbers already."""
        first = _first_of(ids, int(ids.max(initial=-1)) + 1)
        present = np.flatnonzero(first < len(ids))
        numbers = Numbering()
        anew = np.zeros(len(values), np.int64)
        for number in present[np.argsort(first[present])].tolist():
            anew[number] = numbers[values[number]]
        return cls(anew[ids], list(numbers))

    def where(self, test: Callable[[str], bool]) -> Bools:
        """Return which events have a string that passes `test`, called once per string."""
        passed = np.fromiter((test(text) for text in self.values), np.bool_, len(self.values))
        return passed[self.ids] if len(self.values) else np.zeros(0, np.bool_)

    def map(self, value: Callable[[str], int]) -> Ints:
        """Return a number for every event by its string, computed once per string."""
        numbers = np.fromiter((value(text) for text in self.values), np.int64, len(self.values))
        return numbers[self.ids] if len(self.values) else np.zeros(0, np.int64)


def _first_of(ids: Ints | SmallInts, count: int) -> Ints:
    """Return the first position of each number from 0; the length of `ids` where there is none."""
    first = np.full(count, len(ids), np.int64)
    # Of several values for one place numpy keeps the last: backwards, that is the first.
    first[ids[::-1]] = np.arange(len(ids) - 1, -1, -1)
    return first


@dataclass(frozen=True)
class RecordedInputs:
    """Recorded inputs of events: numbers of shapes and of types, one of each per event.

    The values are those of `shapes()` and `dtypes()`; number 0 is an event without inputs.
    """

    shape_ids: SmallInts
    shapes: list[list[list[int]]]
    type_ids: SmallInts
    types: list[list[str]]

    def at(self, positions: Ints | Bools) -> RecordedInputs:
        """Return the inputs of the events at `positions`."""
        ids = self.shape_ids[positions], self.type_ids[positions]
        return RecordedInputs(ids[0], self.shapes, ids[1], self.types)


class InputReader:
    """Reads the recorded inputs of events, block by block."""

    def __init__(self, count: int) -> None:
        self._shapes, self._types = Numbering(), Numbering()
        self._shapes[marshal.dumps([], _MARSHAL_VERSION)] = self._types[None] = 0
        self._shape_ids = np.zeros(count, np.int32)
        self._type_ids = np.zeros(count, np.int32)

    def read(self, events: Sequence[Any], positions: Ints) -> None:
        """Read the inputs of `events`, whose positions are given."""
        shapes = map(marshal.dumps, column(events, "shapes"), repeat(_MARSHAL_VERSION))
        ids = np.fromiter(map(self._shapes.__getitem__, shapes), np.int64, len(events))
        self._shape_ids[positions] = ids
        # An event without shapes has no types either: each input has one of both.
        has = ids > 0
        events = list(compress(events, has.tolist()))
        types = map(_SEPARATOR.join, column(events, "dtypes"))
        numbers = map(self._types.__getitem__, types)
        self._type_ids[positions[has]] = np.fromiter(numbers, np.int64, len(events))

    def inputs(self) -> RecordedInputs:
        """Return all that was read; events that were not read have no inputs."""
        types = [[] if text is None else text.split(_SEPARATOR) for text in self._types]
        shapes = [marshal.loads(key) for key in self._shapes]
        return RecordedInputs(self._shape_ids, shapes, self._type_ids, types)


def value_key(values: Any) -> object:
    """Return a cheap key that is equal and hashes equal for equal inputs."""
    try:
        return marshal.dumps(values, _MARSHAL_VERSION)
    except ValueError:
        return repr(values)


def distinct(keys: Iterable[Any], count: int) -> tuple[Ints, Ints]:
    """Return the first position of each different one of `count` keys, and each key's number."""
    numbers = Numbering()
    ids = np.fromiter(map(numbers.__getitem__, keys), np.int64, count)
    return _first_of(ids, len(numbers)), ids


def blocks(count: int) -> Iterator[slice]:
    """Cut a sequence of `count` events into blocks."""
    return (slice(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK))


def column(events: Sequence[Any], accessor: str) -> Iterable[Any]:
    """Call one accessor on every event, one after the other."""
    if isinstance(events, ColumnarEvents):
        return map(operator.methodcaller(accessor), events)
    # Through the class, so that no bound method is made for each event.
    return map(getattr(type(events[0]), accessor), events) if len(events) else ()


def integers(events: Sequence[Any], accessor: str) -> Ints:
    """Read a column of integers; identifiers that only fit an unsigned number keep their bits."""
    if isinstance(events, ColumnarEvents):
        return events.integers(accessor)
    try:
        return np.fromiter(column(events, accessor), np.int64, len(events))
    except OverflowError:
        return np.fromiter(column(events, accessor), np.uint64, len(events)).astype(np.int64)


def read_columns(
    events: Sequence[Any],
    accessors: Sequence[str],
    named: tuple[str, Sequence[str]],
    has_inputs: Callable[[str], bool] | None,
) -> tuple[StringColumn, dict[str, Ints], dict[str, Ints], RecordedInputs | None]:
    """Read all events once: names, integers by accessor, those of one name, and inputs.

    `named` are a name and the accessors that are called on events of that name alone; all others
    have 0 there. Inputs are read of the events whose name `has_inputs`; of none without it.
    """
    count = len(events)
    if isinstance(events, ColumnarEvents):
        names = events.strings("name")
        is_named = names.where(lambda name: name == named[0])
        return (
            names,
            {accessor: events.integers(accessor) for accessor in accessors},
            {each: np.where(is_named, events.integers(each), 0) for each in named[1]},
            events.inputs() if has_inputs else None,
        )
    numbers = Numbering()
    # Kept as long as the events are: of different names there are few.
    all_ids = np.empty(count, np.int32)
    columns = {accessor: np.empty(count, np.int64) for accessor in accessors}
    of_name = {accessor: np.zeros(count, np.int64) for accessor in named[1]}
    reader = InputReader(count) if has_inputs else None
    wanted = np.zeros(0, np.bool_)
    for part in blocks(count):
        block = events[part]
        called = map(numbers.__getitem__, column(block, "name"))
        ids = all_ids[part] = np.fromiter(called, np.int64, len(block))
        for accessor, values in columns.items():
            values[part] = integers(block, accessor)
        few = np.flatnonzero(ids == numbers.get(named[0], -1))
        if len(few):
            events_of_name = [block[position] for position in few.tolist()]
            for accessor, values in of_name.items():
                values[few + part.start] = integers(events_of_name, accessor)
        if has_inputs is None or reader is None:
            continue
        if len(numbers) > len(wanted):
            wanted = np.fromiter(map(has_inputs, numbers), np.bool_, len(numbers))
        chosen = wanted[ids]
        reader.read(list(compress(block, chosen.tolist())), np.flatnonzero(chosen) + part.start)
    names = StringColumn(all_ids, list(numbers))
    return names, columns, of_name, reader.inputs() if reader else None


def group(keys: Sequence[Ints | SmallInts]) -> tuple[Ints, Ints]:
    """Group events by several columns: first position of each group, and every event's group.

    The columns are whole numbers (positions in a list, module numbers); groups are in the order
    of the first column, then of the second, and so on.
    """
    first, inverse = _distinct(keys[0])
    for column_ in keys[1:]:
        low = int(column_.min(initial=0))
        width = int(column_.max(initial=0)) - low + 1
        if len(first) * width > SPARSE * len(column_):
            (_, column_), low = _distinct(column_), 0
            width = int(column_.max(initial=0)) + 1
        first, inverse = _distinct(inverse * width + (column_ - low))
    return first, inverse


def _distinct(values: Ints | SmallInts) -> tuple[Ints, Ints]:
    """First position of each distinct number, in their order, and every entry's place in it."""
    low = int(values.min(initial=0))
    width = int(values.max(initial=0)) - low + 1
    if width > SPARSE * len(values):
        _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        return first.astype(np.int64), inverse.astype(np.int64)
    shifted = values - low
    places = _first_of(shifted, width)
    present = np.flatnonzero(places < len(values))
    number = np.zeros(width, np.int64)
    number[present] = np.arange(len(present))
    return places[present], number[shifted]


def sums(groups: Ints, values: NDArray[Any], count: int) -> Floats:
    """Return the sum of `values` per group."""
    # Of nothing numpy makes whole numbers, whatever the weights are.
    return np.bincount(groups, weights=values, minlength=count).astype(np.float64)


def sums_by(keys: Ints, values: NDArray[Any]) -> dict[int, float]:
    """Return the sum of `values` by the number that each has in `keys`."""
    numbers, groups = np.unique(keys, return_inverse=True)
    return dict(zip(numbers.tolist(), sums(groups, values, len(numbers)).tolist(), strict=True))
