"""Columns of events: strings by number, groups and sums; and how raw events are read into them.

A call of an accessor costs about a tenth of a microsecond where the event lies in the processor's
cache, and several times that where it does not. So events are read in blocks: every accessor is
asked of one block before the next block is touched.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
# For numbers of few different things, where a column is kept for long.
SmallInts = NDArray[np.int32]

# Events of one block: with all that belongs to them they fit the second-level cache.
BLOCK = 1024
# A table of this many entries per event is cheaper than sorting the events.
SPARSE = 4
_BETWEEN = "\t"
# Without references, so that equal lists give equal bytes.
_MARSHAL_VERSION = 2


class _Numbers(dict[Any, int]):
    """Numbers keys in the order in which they are first asked for."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class Interned:
    """Strings by number: `ids` of the events, `values` of the numbers."""

    def __init__(self, strings: Iterable[str], count: int) -> None:
        numbers = _Numbers()
        # The strings pass by one at a time: hundreds of thousands of them are never held.
        self.ids: Ints | SmallInts = np.fromiter(map(numbers.__getitem__, strings), np.int64, count)
        self.values: list[str] = list(numbers)

    @classmethod
    def numbered(cls, ids: Ints | SmallInts, values: Sequence[str]) -> Interned:
        """Strings that have numbers already, numbered anew in the order of the events."""
        made, known = cls((), 0), _Numbers()
        anew = np.zeros(len(values), np.int64)
        for number in _in_order(ids).tolist():
            anew[number] = known[values[number]]
        made.ids, made.values = anew[ids], list(known)
        return made

    def where(self, test: Callable[[str], bool]) -> Bools:
        """Which events have a string that passes `test`, asked once per string."""
        passed = np.fromiter((test(text) for text in self.values), np.bool_, len(self.values))
        return passed[self.ids] if len(self.values) else np.zeros(0, np.bool_)

    def map(self, value: Callable[[str], int]) -> Ints:
        """A number for every event by its string, worked out once per string."""
        numbers = np.fromiter((value(text) for text in self.values), np.int64, len(self.values))
        return numbers[self.ids] if len(self.values) else np.zeros(0, np.int64)


def _in_order(ids: Ints | SmallInts) -> Ints:
    """The numbers among `ids`, in the order in which they first stand there."""
    first = _first_of(ids, int(ids.max(initial=-1)) + 1)
    present = np.flatnonzero(first < len(ids))
    return present[np.argsort(first[present])]


def _first_of(ids: Ints | SmallInts, count: int) -> Ints:
    """Where each number from 0 first stands; the length of `ids` where it does not."""
    first = np.full(count, len(ids), np.int64)
    # Of several values for one place numpy keeps the last: backwards, that is the first.
    first[ids[::-1]] = np.arange(len(ids) - 1, -1, -1)
    return first


@dataclass(frozen=True)
class Given:
    """What events were given: numbers of shapes and of types, one of each per event.

    The values are what `shapes()` and `dtypes()` say; number 0 is an event without inputs.
    """

    shape_ids: SmallInts
    shapes: list[list[list[int]]]
    type_ids: SmallInts
    types: list[list[str]]

    def at(self, positions: Ints | Bools) -> Given:
        """The same of the events at `positions`."""
        ids = self.shape_ids[positions], self.type_ids[positions]
        return Given(ids[0], self.shapes, ids[1], self.types)


class GivenReader:
    """Reads what events were given, block by block."""

    def __init__(self, count: int) -> None:
        self._shapes, self._types = _Numbers(), _Numbers()
        self._shapes[marshal.dumps([], _MARSHAL_VERSION)] = self._types[None] = 0
        self._shape_ids = np.zeros(count, np.int32)
        self._type_ids = np.zeros(count, np.int32)

    def read(self, events: Sequence[Any], positions: Ints) -> None:
        """Ask `events`, which stand at `positions`."""
        shapes = map(marshal.dumps, column(events, "shapes"), repeat(_MARSHAL_VERSION))
        ids = np.fromiter(map(self._shapes.__getitem__, shapes), np.int64, len(events))
        self._shape_ids[positions] = ids
        # Whoever has no shapes has no types either: each input has one of both.
        has = ids > 0
        events = list(compress(events, has.tolist()))
        types = map(_BETWEEN.join, column(events, "dtypes"))
        numbers = map(self._types.__getitem__, types)
        self._type_ids[positions[has]] = np.fromiter(numbers, np.int64, len(events))

    def given(self) -> Given:
        """What was read; events that were not asked have no inputs."""
        types = [[] if text is None else text.split(_BETWEEN) for text in self._types]
        shapes = [marshal.loads(key) for key in self._shapes]
        return Given(self._shape_ids, shapes, self._type_ids, types)


def value_key(values: Any) -> object:
    """Something that is equal and hashes equal for equal inputs, made as cheaply as can be."""
    try:
        return marshal.dumps(values, _MARSHAL_VERSION)
    except ValueError:
        return repr(values)


def distinct(keys: Iterable[Any], count: int) -> tuple[Ints, Ints]:
    """Where each different one of `count` keys first stands, and every one's number among them."""
    numbers = _Numbers()
    ids = np.fromiter(map(numbers.__getitem__, keys), np.int64, count)
    return _first_of(ids, len(numbers)), ids


def blocks(count: int) -> Iterator[slice]:
    """Parts of a sequence of `count` events."""
    return (slice(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK))


def column(events: Sequence[Any], accessor: str) -> Iterable[Any]:
    """What one accessor says of every event, one after the other."""
    # Through the class, so that no bound method is made for each event.
    return map(getattr(type(events[0]), accessor), events) if len(events) else ()


def integers(events: Sequence[Any], accessor: str) -> Ints:
    """A column of integers; identifiers that only fit an unsigned number keep their bits."""
    try:
        return np.fromiter(column(events, accessor), np.int64, len(events))
    except OverflowError:
        unsigned = np.fromiter(column(events, accessor), np.uint64, len(events))
        return unsigned.astype(np.int64)


class Columns:
    """Columns of raw events: the names, some integers, and on request what they were given.

    `of_name` are the name of a few events and accessors that are asked of these alone; all others
    have 0 there.
    """

    def __init__(
        self,
        events: Sequence[Any],
        accessors: Sequence[str],
        of_name: tuple[str, Sequence[str]] = ("", ()),
    ) -> None:
        count = len(events)
        self.names = Interned((), 0)
        # Kept as long as the events are: of different names there are few.
        self.names.ids = np.empty(count, np.int32)
        self.integers = {accessor: np.empty(count, np.int64) for accessor in accessors}
        self.of_name = {accessor: np.zeros(count, np.int64) for accessor in of_name[1]}
        self._name = of_name[0]
        self._events = events

    def read(self, asks: Callable[[str], bool] | None = None) -> Given | None:
        """Read all events once; what those were given whose name `asks` for it."""
        events, names = self._events, _Numbers()
        reader = GivenReader(len(events)) if asks else None
        asked = np.zeros(0, np.bool_)
        for part in blocks(len(events)):
            block = events[part]
            called = map(names.__getitem__, column(block, "name"))
            ids = self.names.ids[part] = np.fromiter(called, np.int64, len(block))
            for accessor, values in self.integers.items():
                values[part] = integers(block, accessor)
            self._read_few(block, ids == names.get(self._name, -1), part.start)
            if asks is None or reader is None:
                continue
            if len(names) > len(asked):
                asked = np.fromiter(map(asks, names), np.bool_, len(names))
            chosen = asked[ids]
            reader.read(list(compress(block, chosen.tolist())), np.flatnonzero(chosen) + part.start)
        self.names.values = list(names)
        return reader.given() if reader else None

    def _read_few(self, block: Sequence[Any], chosen: Bools, start: int) -> None:
        positions = np.flatnonzero(chosen)
        if len(positions):
            few = [block[position] for position in positions.tolist()]
            for accessor, values in self.of_name.items():
                values[positions + start] = integers(few, accessor)


def group(keys: Sequence[Ints | SmallInts]) -> tuple[Ints, Ints]:
    """Group events by several columns: first position of each group, and every event's group.

    The columns are whole numbers (positions in a list, module numbers); groups stand in the order
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


def sums(groups: Ints, values: NDArray[Any], count: int) -> NDArray[np.float64]:
    """Sum of `values` per group."""
    added: NDArray[np.float64] = np.bincount(groups, weights=values, minlength=count).astype(
        np.float64
    )
    return added
