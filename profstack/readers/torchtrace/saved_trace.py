"""Read a saved Chrome trace as the events it was made of.

`read_trace` gives events that answer to the same accessors as the profiler's own
(`name()`, `start_ns()`, ...), so that `read_host` and every table after it take both. Times are
exact: a trace has microseconds with three digits, beside `baseTimeNanoseconds`.

A trace has for every operator its times, thread, `Sequence number`, `Fwd thread id`,
`Input Dims`, `Input type`, `Concrete Inputs` and `External id` (the correlation number); for a
kernel its device, stream, `External id` and `correlation`; for a `[memory]` instant `Bytes`, `Addr`
and the device. Modules have names where profstack or the script recorded ranges for them.

A trace lacks: the profiler's numbers of threads (the thread of a backward function's forward
follows from the trace's arrows between the two, or from there being one thread only); inputs that
are no tensors, which are texts, with long lists cut; names that are not ASCII (torch writes
`unknown`); the kind of a device (all are called CUDA); the trees of stacks and allocations.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Generic, TypeVar

from profstack.errors import RecordingError
from profstack.readers.torchtrace.columns import value_key
from profstack.readers.torchtrace.events import (
    ACCUMULATE,
    DEVICE_KINDS,
    EVALUATE,
    HOST_KINDS,
    MEMORY_KIND,
    RUNTIME_KINDS,
    of_kinds,
)

# Events with the accessors of torch.profiler's --------------------------------------------------
#
# An event is only a place in the columns: 100 bytes each, where an object of JSON has thousands.

T = TypeVar("T")

# The activity types that tables are made of, by number.
_KINDS = (*HOST_KINDS, MEMORY_KIND, *DEVICE_KINDS, *RUNTIME_KINDS)
_CUDA, _CPU = SimpleNamespace(name="CUDA"), SimpleNamespace(name="CPU")
# The values of torch's `RecordScope` that can be recognised in a trace.
_OPERATOR, _BACKWARD, _RANGE = 0, 1, 7


class SavedEvent:
    """One event of a saved trace, with the accessors of torch.profiler's raw events."""

    __slots__ = ("_at", "_of")

    def __init__(self, of: SavedColumns, at: int) -> None:
        self._of, self._at = of, at

    def name(self) -> str:
        """Name of the operator, range or kernel."""
        return self._of.names.values[self._of.name[self._at]]

    def activity_type(self) -> str:
        """Kind of activity: the trace's category."""
        return _KINDS[self._of.kind[self._at]]

    def start_ns(self) -> int:
        """Begin since the epoch, if the trace has a base."""
        return self._of.start[self._at]

    def duration_ns(self) -> int:
        """Time in nanoseconds; 0 for an instant."""
        return self._of.duration[self._at]

    def end_ns(self) -> int:
        """End since the epoch, if the trace has a base."""
        return self._of.start[self._at] + self._of.duration[self._at]

    def start_thread_id(self) -> int:
        """Number of the thread, from 1, over all processes in the trace."""
        return self._of.thread[self._at]

    def sequence_nr(self) -> int:
        """Number that an operator shares with its backward function; -1 for none."""
        return self._of.sequence[self._at]

    def fwd_thread_id(self) -> int:
        """Thread of the forward operator, as `start_thread_id`; 0 for none, -1 if not known."""
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
        """Bytes allocated; below 0 bytes freed."""
        return self._of.nbytes[self._at]

    def device_index(self) -> int:
        """Number of the device; -1 on the host."""
        return self._of.device[self._at]

    def device_resource_id(self) -> int:
        """Number of the stream."""
        return self._of.stream[self._at]

    def device_type(self) -> Any:
        """Kind of device, an object with a `name`."""
        return _CUDA if self.activity_type() in DEVICE_KINDS else _CPU

    def scope(self) -> int:
        """Scope of the record: 0 an operator, 1 a backward function, 7 a range."""
        if self.is_user_annotation():
            return _RANGE
        name = self.name()
        made = self._of.forward_thread[self._at] and not name.startswith(EVALUATE)
        return _BACKWARD if made or name == ACCUMULATE else _OPERATOR

    def is_user_annotation(self) -> bool:
        """Return whether it is a range of the script's or of torch's optimizers."""
        return self.activity_type() == "user_annotation"


class _Values(Generic[T]):
    """Values of JSON by number, each kept once; number 0 is an empty list."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._numbers: dict[Any, int] = {}
        self.values: list[T] = []
        self.number([])

    def number(self, value: Any) -> int:
        """Return the number of a value; a new value gets a new number."""
        key = value_key(value)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.values)
            self.values.append(self._make(value))
        return number


def _each(make: Callable[[Any], T]) -> Callable[[Any], list[T]]:
    """Return a function that converts every element of a list; of no list it makes an empty one."""
    return lambda value: list(map(make, value)) if isinstance(value, list) else []


def _size(value: Any) -> list[int]:
    """Convert one of `Input Dims` to one of `shapes()`; empty for a list of tensors."""
    return value if isinstance(value, list) and all(type(size) is int for size in value) else []


def _literal(text: Any) -> Any:
    """Convert one of `Concrete Inputs` to a value; texts that are no literals stay texts."""
    try:
        return None if text == "" else ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


class SavedColumns:
    """Columns of a trace: one entry per event."""

    def __init__(self) -> None:
        self.kind = array("b")
        self.name, self.thread, self.device = array("i"), array("i"), array("i")
        self.shape, self.type, self.value = array("i"), array("i"), array("i")
        self.start, self.duration, self.nbytes = array("q"), array("q"), array("q")
        self.sequence, self.forward_thread = array("q"), array("q")
        self.correlation, self.linked, self.stream = array("q"), array("q"), array("q")
        self.names = _Values(str)
        self.shapes, self.types = _Values(_each(_size)), _Values(_each(str))
        self.concrete = _Values(_each(_literal))
        self.threads_of_forward: dict[int, int] = {}


# The file, read event by event ------------------------------------------------------------------
#
# The file is never held as a whole, and may come from anywhere: it may be cut off, no JSON, no
# trace, one endless line, or a few compressed bytes that unfold into a full disk.

# Characters read at once; an event has some hundreds of them.
CHUNK = 1 << 20
# No single event or other value is longer than this: torch's longest are stacks of frames.
LONGEST = 64 << 20
# A trace that unfolds into more than this is refused.
MOST_CHARACTERS = 8 << 30

_BLANK = re.compile(r"[ \t\n\r]*")
_BETWEEN = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")
_BROKEN = "the file ends in the middle of the trace"
_AGAIN = "save the trace again, and wait until it is written"
_NO_TRACE = "this is no Chrome trace"
_EXPORT = "give a file that `export_chrome_trace` of torch.profiler wrote"


class TraceFile:
    """One trace, read once: `events` first, then the file's other values in `header`.

    The events' fractions of numbers are kept as text, since a time in microseconds with three
    digits behind the point may have more digits than a float holds.
    """

    def __init__(self, path: Path, most: int = MOST_CHARACTERS) -> None:
        self.path = path
        self.header: dict[str, object] = {}
        self._most = most
        self._read = 0
        self._file: IO[str] | None = None
        self._text, self._at = "", 0
        self._decode = json.JSONDecoder(parse_float=str).raw_decode

    def events(self) -> Iterator[Any]:
        """Read every element of `traceEvents`, in the order of the file.

        Raises RecordingError for a file that is no complete trace.
        """
        try:
            with open(self.path, "rb") as plain:
                # Compressed files begin with these two bytes.
                opened: Callable[..., Any] = gzip.open if plain.read(2) == b"\x1f\x8b" else open
            with opened(self.path, "rt", encoding="utf-8-sig", errors="replace") as file:
                self._file = file
                yield from self._top()
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise self.error(f"{_BROKEN} ({error})", _AGAIN) from error
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror or error}") from error
        except RecursionError:
            raise self.error("its values lie too deep inside one another", _EXPORT) from None
        except ValueError as error:
            # A whole number of thousands of digits, which Python refuses to read.
            raise self.error(f"{_NO_TRACE}: {error}", _EXPORT) from error
        finally:
            self._file, self._text = None, ""

    def _top(self) -> Iterator[Any]:
        opening = self._next()
        if opening == "[":
            # The other form of the format: events alone.
            yield from self._elements()
            return
        if opening != "{":
            raise self.error("the file is empty" if not opening else _NO_TRACE, _EXPORT)
        self._at += 1
        found = False
        while self._next() not in ("}", ""):
            key = self._value()
            if not isinstance(key, str) or self._next() != ":":
                raise self.error(_NO_TRACE, _EXPORT)
            self._at += 1
            opening = self._next()
            if key == "traceEvents" and opening == "[":
                found = True
                yield from self._elements()
            else:
                self.header[key] = self._value()
            if self._next() == ",":
                self._at += 1
        if not found:
            raise self.error("this JSON file has no traceEvents", _EXPORT)
        if self._next() != "}":
            raise self._unexpected()

    def _elements(self) -> Iterator[Any]:
        """Read the elements of the list that begins here."""
        self._at += 1
        while self._next() != "]":
            yield self._value()
            # The usual case first: a comma, and not yet the end of the chunk.
            between = _BETWEEN.match(self._text, self._at)
            if between is not None and between.end() < len(self._text):
                self._at = between.end()
            elif self._next() == ",":
                self._at += 1
            elif self._next() != "]":
                raise self._unexpected()
        self._at += 1

    def _next(self) -> str:
        """Return the next character after blanks, "" at the end of the file."""
        while True:
            match = _BLANK.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def _value(self) -> Any:
        """Read the value that begins here; a number must have something after it."""
        while True:
            try:
                value, end = self._decode(self._text, self._at)
                if end < len(self._text) or not self._more():
                    self._at = end
                    return value
            except json.JSONDecodeError as error:
                # Cut off by the end of the chunk, or wrong: known when more has been read.
                if len(self._text) - self._at > LONGEST:
                    raise self.error(f"{_NO_TRACE}: {error.msg}", _EXPORT) from error
                if not self._more(len(self._text) - self._at):
                    what = f"{_BROKEN}, or is no JSON ({error.msg})"
                    raise self.error(what, _AGAIN) from error

    def _more(self, least: int = 0) -> bool:
        """Read on, at least `least` characters; False at the end of the file."""
        assert self._file is not None
        # Twice the text each time: a long value is tried a few times only.
        text = self._file.read(max(CHUNK, least))
        self._read += len(text)
        if self._read > self._most:
            what = f"the trace has more than {self._most >> 20:,} MiB"
            raise self.error(what, "record fewer steps with torch.profiler's schedule")
        self._text = self._text[self._at :] + text
        self._at = 0
        return bool(text)

    def _unexpected(self) -> RecordingError:
        return self.error(*((_NO_TRACE, _EXPORT) if self._next() else (_BROKEN, _AGAIN)))

    def error(self, what: str, next_step: str = "") -> RecordingError:
        """Return an error of this file."""
        return RecordingError(what, where=str(self.path), next_step=next_step)


# A trace with more events than this is refused.
MOST_EVENTS = 50_000_000
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}
_HOST = frozenset((*HOST_KINDS, MEMORY_KIND))
_ARROW = "fwdbwd"
# Digits of a time before the point: more do not fit a column of nanoseconds.
_MOST_DIGITS = 15


@dataclass(frozen=True)
class SavedTrace:
    """A saved trace: its events and their activity types, in order of time.

    `kinds` is None where all are the host's, as for `read_host`. `shapes` and `memory` are the
    profiler's options; `header` are the values in the file beside the events.
    """

    events: list[SavedEvent]
    kinds: list[str] | None
    shapes: bool
    memory: bool
    header: Mapping[str, object]

    @property
    def kernels(self) -> list[SavedEvent]:
        """The events of devices."""
        return of_kinds(DEVICE_KINDS, self.events, self.kinds)

    @property
    def runtime(self) -> list[SavedEvent]:
        """The host's calls of the devices' runtime."""
        return of_kinds(RUNTIME_KINDS, self.events, self.kinds)


def read_trace(path: Path, most: int = MOST_CHARACTERS) -> SavedTrace:
    """Read the events of a Chrome trace (`.json` or `.json.gz`) that torch.profiler saved.

    `most` is how many characters the trace may have, unfolded. Raises RecordingError where the
    file is no trace, is damaged or too large, or has no event of torch's.
    """
    file = TraceFile(path, most)
    reader = _Reader()
    number = 0
    for number, event in enumerate(file.events(), start=1):
        if number > MOST_EVENTS:
            raise file.error(
                f"the trace has more than {MOST_EVENTS:,} events", "record fewer steps"
            )
        try:
            reader.take(event)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            what = f"event {number:,} of the trace cannot be read ({error})"
            raise file.error(what, "give a trace as torch.profiler wrote it") from error
    if not reader.columns.start:
        what = f"the trace has no operator, range or kernel among its {number:,} events"
        raise file.error(what, "record with ProfilerActivity.CPU, around at least one step")
    return reader.trace(file)


class _Reader:
    """Fills the columns from the elements of `traceEvents`."""

    def __init__(self) -> None:
        self.columns = SavedColumns()
        self._threads: dict[Any, int] = {}
        self._forwards: dict[Any, int] = {}
        # Where arrows from a forward operator to its backward function begin and end.
        self._begins: dict[Any, int] = {}
        self._ends: dict[Any, tuple[int, int]] = {}

    def take(self, event: Any) -> None:
        """Add one element to the columns, if tables are made of its kind.

        Raises LookupError, TypeError, ValueError, ArithmeticError or AttributeError for one that is
        no event.
        """
        phase, kind = event.get("ph"), event.get("cat")
        if phase in ("X", "i", "I"):
            number = _NUMBERS.get(kind)
            if number is not None:
                self._take(event, number, event.get("args") or {})
        elif phase == "s" and kind == _ARROW:
            self._begins[event["id"]] = self._thread(event)
        elif phase == "f" and kind == _ARROW:
            self._ends[event["id"]] = self._thread(event), _nanoseconds(event["ts"])

    def _take(self, event: Any, kind: int, given: Any) -> None:
        columns = self.columns
        name = event["name"]
        if not isinstance(name, str):
            raise TypeError("its name is no text")
        on_device = _KINDS[kind] in DEVICE_KINDS
        of_host = _KINDS[kind] in _HOST
        linked = given.get("External id", 0)
        columns.start.append(_nanoseconds(event["ts"]))
        columns.duration.append(max(0, _nanoseconds(event.get("dur", 0))))
        columns.name.append(columns.names.number(name))
        columns.kind.append(kind)
        columns.thread.append(self._thread(event))
        columns.sequence.append(given.get("Sequence number", -1))
        if forward := given.get("Fwd thread id", 0):
            key = event["pid"], forward
            forward = self._forwards.setdefault(key, len(self._forwards) + 1)
        columns.forward_thread.append(forward or 0)
        columns.correlation.append(linked if of_host else given.get("correlation", 0))
        columns.linked.append(0 if of_host else linked)
        columns.device.append(given.get("device" if on_device else "Device Id", -1))
        columns.stream.append(given.get("stream", 0) if on_device else 0)
        columns.shape.append(columns.shapes.number(given.get("Input Dims", [])))
        columns.type.append(columns.types.number(given.get("Input type", [])))
        columns.value.append(columns.concrete.number(given.get("Concrete Inputs", [])))
        columns.nbytes.append(given.get("Bytes", 0) if _KINDS[kind] == MEMORY_KIND else 0)

    def _thread(self, event: Any) -> int:
        return self._threads.setdefault((event["pid"], event["tid"]), len(self._threads) + 1)

    def trace(self, file: TraceFile) -> SavedTrace:
        """Return all events, in the order of time."""
        columns = self.columns
        self._match_threads()
        base = file.header.get("baseTimeNanoseconds", 0)
        if isinstance(base, int) and 0 < base < 1 << 62:
            columns.start = array("q", [start + base for start in columns.start])
        order = sorted(range(len(columns.start)), key=columns.start.__getitem__)
        present = {_KINDS[number] for number in set(columns.kind)}
        every = [_KINDS[columns.kind[at]] for at in order] if present - _HOST else None
        events = [SavedEvent(columns, at) for at in order]
        shapes = len(columns.shapes.values) > 1
        return SavedTrace(events, every, shapes, MEMORY_KIND in present, file.header)

    def _match_threads(self) -> None:
        """Match the profiler's numbers of forward threads to the threads of the trace."""
        columns = self.columns
        arrows = {
            end: self._begins[arrow] for arrow, end in self._ends.items() if arrow in self._begins
        }
        pairs = zip(columns.forward_thread, columns.sequence, columns.thread, strict=True)
        makers = {thread for forward, number, thread in pairs if not forward and number >= 0}
        places = zip(columns.forward_thread, columns.thread, columns.start, strict=True)
        votes = Counter(
            (forward, arrows[thread, start])
            for forward, thread, start in places
            if forward and (thread, start) in arrows
        )
        for (forward, thread), _ in reversed(votes.most_common()):
            columns.threads_of_forward[forward] = thread
        if len(makers) == 1:
            for forward in self._forwards.values():
                columns.threads_of_forward.setdefault(forward, *makers)


def _nanoseconds(value: Any) -> int:
    """Convert a time in microseconds, exactly: a whole number, or the text of a fraction."""
    if type(value) is int:
        return value * 1000
    if not isinstance(value, str):
        raise TypeError("its time is no number")
    whole, _, part = value.partition(".")
    if len(part) == 3 and part.isdigit() and len(whole) <= _MOST_DIGITS:
        return int(whole + part)
    number = Decimal(value)
    if not number.is_finite() or number.adjusted() > _MOST_DIGITS:
        raise ValueError("its time is no number")
    return round(number * 1000)
