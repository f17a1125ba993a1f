"""A trace that torch.profiler saved, as the events that it was made of.

`read_trace` gives events that answer to the same accessors as the profiler's own
(`name()`, `start_ns()`, ...), so that `read_host` and every table after it take both. Times are
exact: a trace has microseconds with three digits, beside `baseTimeNanoseconds`.

A trace holds of every operator its times, thread, `Sequence number`, `Fwd thread id`,
`Input Dims`, `Input type`, `Concrete Inputs` and `External id` (the correlation number); of a
kernel its device, stream, `External id` and `correlation`; of a `[memory]` instant `Bytes`, `Addr`
and the device. Modules have names where profstack or the script recorded ranges for them.

What is lost: threads bear the system's numbers and not the profiler's (which thread a backward
function's forward ran on is told by the trace's arrows between the two, or by there being one
thread only); inputs that are no tensors are texts, and long lists among them are cut; names that
are not ASCII (torch writes `unknown`); the kind of a device (all are called CUDA); the trees of
stacks and allocations.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from profstack.errors import RecordingError
from profstack.torchtrace.eventkinds import DEVICE_KINDS, HOST_KINDS, MEMORY_KIND, RUNTIME_KINDS
from profstack.torchtrace.savedevents import KINDS, SavedColumns, SavedEvent
from profstack.torchtrace.tracefile import MOST_CHARACTERS, TraceFile

# More events than this are not a trace that a person recorded to look at.
MOST_EVENTS = 50_000_000
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
_HOST = frozenset((*HOST_KINDS, MEMORY_KIND))
_ARROW = "fwdbwd"
# Digits of a time before the point: more do not fit a column of nanoseconds.
_MOST_DIGITS = 15


@dataclass(frozen=True)
class SavedTrace:
    """What a saved trace holds for the tables: its events and their activity types, in order.

    `kinds` is None where all are the host's, as `read_host` takes it. `shapes` and `memory` say
    what the trace was recorded with; `header` is what stands in the file beside the events.
    """

    events: list[SavedEvent]
    kinds: list[str] | None
    shapes: bool
    memory: bool
    header: dict[str, Any]

    @property
    def kernels(self) -> list[SavedEvent]:
        """The events of devices."""
        return self._of(DEVICE_KINDS)

    @property
    def runtime(self) -> list[SavedEvent]:
        """The host's calls of the devices' runtime."""
        return self._of(RUNTIME_KINDS)

    def _of(self, kinds: tuple[str, ...]) -> list[SavedEvent]:
        pairs = zip(self.events, self.kinds or (), strict=False)
        return [event for event, kind in pairs if kind in kinds]


def read_trace(path: Path, most: int = MOST_CHARACTERS) -> SavedTrace:
    """The events of a Chrome trace (`.json` or `.json.gz`) that torch.profiler saved.

    `most` is how many characters the trace may have, unfolded. Raises RecordingError where the
    file is no trace, is damaged or too large, or holds no event of torch's.
    """
    file = TraceFile(path, most)
    reader = _Reader()
    number = 0
    for number, event in enumerate(file.events(), start=1):
        if number > MOST_EVENTS:
            what = f"the trace has more than {MOST_EVENTS:,} events"
            raise RecordingError(what, where=str(path), next_step="record fewer steps")
        try:
            reader.take(event)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            what = f"event {number:,} of the trace cannot be read ({error})"
            next_step = "give a trace as torch.profiler wrote it"
            raise RecordingError(what, where=str(path), next_step=next_step) from error
    if not reader.columns.start:
        what = f"the trace has no operator, range or kernel among its {number:,} events"
        next_step = "record with ProfilerActivity.CPU, around at least one step"
        raise RecordingError(what, where=str(path), next_step=next_step)
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
        """Take one element; those that no table is made of are left.

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
        on_device = KINDS[kind] in DEVICE_KINDS
        of_host = KINDS[kind] in _HOST
        linked = given.get("External id", 0)
        columns.start.append(_nanoseconds(event["ts"]))
        columns.duration.append(max(0, _nanoseconds(event.get("dur", 0))))
        columns.name.append(columns.names.number(name))
        columns.kind.append(kind)
        columns.thread.append(self._thread(event))
        columns.sequence.append(given.get("Sequence number", -1))
        columns.forward_thread.append(self._forward(event, given.get("Fwd thread id", 0)))
        columns.correlation.append(linked if of_host else given.get("correlation", 0))
        columns.linked.append(0 if of_host else linked)
        columns.device.append(given.get("device" if on_device else "Device Id", -1))
        columns.stream.append(given.get("stream", 0) if on_device else 0)
        columns.shape.append(columns.shapes.number(given.get("Input Dims", [])))
        columns.type.append(columns.types.number(given.get("Input type", [])))
        columns.value.append(columns.concrete.number(given.get("Concrete Inputs", [])))
        columns.nbytes.append(given.get("Bytes", 0) if KINDS[kind] == MEMORY_KIND else 0)

    def _thread(self, event: Any) -> int:
        return self._threads.setdefault((event["pid"], event["tid"]), len(self._threads) + 1)

    def _forward(self, event: Any, number: int) -> int:
        if not number:
            return 0
        return self._forwards.setdefault((event["pid"], number), len(self._forwards) + 1)

    def trace(self, file: TraceFile) -> SavedTrace:
        """All that was taken, in the order of time."""
        columns = self.columns
        self._match_threads()
        base = file.header.get("baseTimeNanoseconds", 0)
        if isinstance(base, int) and 0 < base < 1 << 62:
            columns.start = array("q", [start + base for start in columns.start])
        order = sorted(range(len(columns.start)), key=columns.start.__getitem__)
        present = {KINDS[number] for number in set(columns.kind)}
        every = [KINDS[columns.kind[at]] for at in order] if present - _HOST else None
        events = [SavedEvent(columns, at) for at in order]
        shapes = len(columns.shapes.values) > 1
        return SavedTrace(events, every, shapes, MEMORY_KIND in present, file.header)

    def _match_threads(self) -> None:
        """Find which thread the profiler's number of a forward thread stands for."""
        columns = self.columns
        arrows = {
            end: self._begins[arrow] for arrow, end in self._ends.items() if arrow in self._begins
        }
        votes: Counter[tuple[int, int]] = Counter()
        makers = set()
        for at, forward in enumerate(columns.forward_thread):
            if not forward:
                if columns.sequence[at] >= 0:
                    makers.add(columns.thread[at])
                continue
            begin = arrows.get((columns.thread[at], columns.start[at]))
            if begin is not None:
                votes[forward, begin] += 1
        for (forward, thread), _ in reversed(votes.most_common()):
            columns.threads_of_forward[forward] = thread
        if len(makers) == 1:
            for forward in self._forwards.values():
                columns.threads_of_forward.setdefault(forward, *makers)


def _nanoseconds(value: Any) -> int:
    """A time in microseconds, exactly: a whole number, or the text of one with a fraction."""
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
