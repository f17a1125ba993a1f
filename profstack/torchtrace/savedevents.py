"""Events of a saved trace, held as columns, that answer as torch.profiler's raw events do.

An event is only a place in the columns: 100 bytes each, where an object of JSON has thousands.
"""

from __future__ import annotations

import ast
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from profstack.torchtrace.columns import value_key
from profstack.torchtrace.eventkinds import (
    DEVICE_KINDS,
    HOST_KINDS,
    MEMORY_KIND,
    RUNTIME_KINDS,
)
from profstack.torchtrace.events import ACCUMULATE, EVALUATE

T = TypeVar("T")

# The activity types that tables are made of, by number.
KINDS = (*HOST_KINDS, MEMORY_KIND, *DEVICE_KINDS, *RUNTIME_KINDS)
_CUDA, _CPU = SimpleNamespace(name="CUDA"), SimpleNamespace(name="CPU")
# Of torch's `RecordScope`, what a trace tells apart.
_OPERATOR, _BACKWARD, _RANGE = 0, 1, 7


class SavedEvent:
    """One event of a saved trace; its accessors are those of torch.profiler's raw events."""

    __slots__ = ("_at", "_of")

    def __init__(self, of: SavedColumns, at: int) -> None:
        self._of, self._at = of, at

    def name(self) -> str:
        """Of the operator, range or kernel."""
        return self._of.names.values[self._of.name[self._at]]

    def activity_type(self) -> str:
        """The trace's category."""
        return KINDS[self._of.kind[self._at]]

    def start_ns(self) -> int:
        """Since the epoch, if the trace has a base."""
        return self._of.start[self._at]

    def duration_ns(self) -> int:
        """Time in nanoseconds; 0 of an instant."""
        return self._of.duration[self._at]

    def end_ns(self) -> int:
        """Since the epoch, if the trace has a base."""
        return self._of.start[self._at] + self._of.duration[self._at]

    def start_thread_id(self) -> int:
        """A number from 1 for each thread of each process in the trace."""
        return self._of.thread[self._at]

    def sequence_nr(self) -> int:
        """Number that an operator shares with its backward function; -1 for none."""
        return self._of.sequence[self._at]

    def fwd_thread_id(self) -> int:
        """Thread of the forward operator, as `start_thread_id`; 0 for none, -1 if it is lost."""
        number = self._of.forward_thread[self._at]
        return self._of.threads_of_forward.get(number, -1) if number else 0

    def correlation_id(self) -> int:
        """Number that a launch shares with its kernel, or an operator with its launches."""
        return self._of.correlation[self._at]

    def linked_correlation_id(self) -> int:
        """Number of the operator that launched a kernel; 0 for none."""
        return self._of.linked[self._at]

    def shapes(self) -> list[list[int]]:
        """Sizes of every input; empty for what is no tensor."""
        return self._of.shapes.values[self._of.shape[self._at]]

    def dtypes(self) -> list[str]:
        """Types of every input, as C++ names them."""
        return self._of.types.values[self._of.type[self._at]]

    def concrete_inputs(self) -> list[Any]:
        """Values of the inputs that are no tensors, None for those that are."""
        return self._of.concrete.values[self._of.value[self._at]]

    def nbytes(self) -> int:
        """Bytes that were allocated, or below 0 freed."""
        return self._of.nbytes[self._at]

    def device_index(self) -> int:
        """Number of the device; -1 on the host."""
        return self._of.device[self._at]

    def device_resource_id(self) -> int:
        """Number of the stream."""
        return self._of.stream[self._at]

    def device_type(self) -> Any:
        """Has a `name`."""
        return _CUDA if self.activity_type() in DEVICE_KINDS else _CPU

    def scope(self) -> int:
        """What it was recorded as: 0 an operator, 1 a backward function, 7 a range."""
        if self.is_user_annotation():
            return _RANGE
        name = self.name()
        made = self._of.forward_thread[self._at] and not name.startswith(EVALUATE)
        return _BACKWARD if made or name == ACCUMULATE else _OPERATOR

    def is_user_annotation(self) -> bool:
        """Whether it is a range of the script's or of torch's optimizers."""
        return self.activity_type() == "user_annotation"


class _Values(Generic[T]):
    """Values of JSON by number, each kept once; number 0 is an empty list."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._numbers: dict[Any, int] = {}
        self.values: list[T] = []
        self.number([])

    def number(self, value: Any) -> int:
        """The number of a value, a new one for one that is new."""
        key = value_key(value)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.values)
            self.values.append(self._make(value))
        return number


def _sizes(value: Any) -> list[list[int]]:
    """`Input Dims` as `shapes()` has them: of a list of tensors they tell nothing."""
    if not isinstance(value, list):
        return []
    return [
        each if isinstance(each, list) and all(type(size) is int for size in each) else []
        for each in value
    ]


def _texts(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def _literals(value: Any) -> list[Any]:
    return [_literal(each) for each in value] if isinstance(value, list) else []


def _literal(text: Any) -> Any:
    """The value of an input; what cannot be told stays a text."""
    if text == "":
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


@dataclass
class SavedColumns:
    """All events of a trace, one entry of every column each."""

    name: array[int] = field(default_factory=lambda: array("i"))
    kind: array[int] = field(default_factory=lambda: array("b"))
    start: array[int] = field(default_factory=lambda: array("q"))
    duration: array[int] = field(default_factory=lambda: array("q"))
    thread: array[int] = field(default_factory=lambda: array("i"))
    sequence: array[int] = field(default_factory=lambda: array("q"))
    forward_thread: array[int] = field(default_factory=lambda: array("q"))
    correlation: array[int] = field(default_factory=lambda: array("q"))
    linked: array[int] = field(default_factory=lambda: array("q"))
    device: array[int] = field(default_factory=lambda: array("i"))
    stream: array[int] = field(default_factory=lambda: array("q"))
    shape: array[int] = field(default_factory=lambda: array("i"))
    type: array[int] = field(default_factory=lambda: array("i"))
    value: array[int] = field(default_factory=lambda: array("i"))
    nbytes: array[int] = field(default_factory=lambda: array("q"))
    names: _Values[str] = field(default_factory=lambda: _Values(_string))
    shapes: _Values[list[list[int]]] = field(default_factory=lambda: _Values(_sizes))
    types: _Values[list[str]] = field(default_factory=lambda: _Values(_texts))
    concrete: _Values[list[Any]] = field(default_factory=lambda: _Values(_literals))
    threads_of_forward: dict[int, int] = field(default_factory=dict)
