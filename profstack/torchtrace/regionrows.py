"""What happened inside named ranges: operators, kernels, operations and memory, by range.

Three sources name ranges that a profile sees: `profstack.region`, the script's `record_function`,
and torch itself (a DataLoader's `__next__`). Which of them are open at a moment follows from their
begins and ends alone, not from how events nest: tasks that take turns leave ranges in another order
than they entered them. Optimizers are left to the module tree, which has rows for them.

A region of profstack's has the work that runs while it is the innermost one, or one within it by
its path, is: another task's region in between has its own. A range of another source has all that
runs while it is open, and its name alone, as in torch's own tables.

Not told is what lies in a `record_function` that was entered before the slice began, which leaves
no event; and a task that goes on after an `await` and enters no region works for the one that was
entered last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from profstack.flops.recordedshapes import CountedEvents
from profstack.regionoutlet import AGAIN, REGION_PREFIX
from profstack.regionstay import OWN
from profstack.regionsums import MOST_PATHS, OTHERS
from profstack.torchtrace.attribution import Attribution, in_steps, main_thread
from profstack.torchtrace.events import Bools, HostEvents, Ints
from profstack.torchtrace.namedranges import OPTIMIZER, NamedRanges

_S = 1e-9

Key = tuple[str, str]


def region_records(
    owned: Attribution,
    index: int,
    boundaries_ns: Sequence[int],
    device_ns: Ints,
    left_out: Collection[int] = (),
    counted: CountedEvents | None = None,
    *,
    named: NamedRanges,
    memory: bool = False,
) -> list[dict[str, Any]]:
    """Rows of `region_work`, one per source and name of the ranges in the steps that count.

    `device_ns` is the device time that each event launched; without `counted` no operations are
    told, and bytes only where the profile saw `memory`. Ranges of optimizers are left out: the
    module tree has rows for them.
    """
    events = owned.events
    inside = in_steps(events, boundaries_ns, left_out)
    keys = _keys(owned.events, inside, named)
    if not keys:
        return []
    rows: dict[Key, dict[str, Any]] = {}
    open_ = _Open(events, keys, main_thread(owned.scopes))
    for source, path in dict.fromkeys(open_.names):
        rows[source, path] = {
            "slice": index,
            "source": source,
            "path": path,
            "calls": 0,
            "wall_s": 0.0,
            "operator_s": 0.0,
            "device_s": 0.0 if device_ns.any() else None,
            "flop": None,
            "host_net_bytes": 0 if memory else None,
            "threads": 0,
        }
    open_.add_calls(rows)
    operators = np.flatnonzero(inside & ~owned.is_range & ~named.is_range & ~events.memory)
    sets = open_.sets_of(operators)
    open_.add(rows, "operator_s", sets, events.self_time()[operators] * _S)
    if device_ns.any():
        open_.add(rows, "device_s", sets, device_ns[operators] * _S)
    if counted is not None:
        flop = counted.figures[:, 0]
        open_.add(rows, "flop", open_.sets_of(counted.positions), flop)
    if memory:
        taken = np.flatnonzero(inside & events.memory)
        on_host = events.integers("device_index", taken) < 0
        nbytes = np.where(on_host, events.integers("nbytes", taken), 0)
        open_.add(rows, "host_net_bytes", open_.sets_of(taken), nbytes)
    return list(rows.values())


def _keys(events: HostEvents, inside: Bools, named: NamedRanges) -> dict[int, Key]:
    """Source and name of every range, by its position, in order of thread and time."""
    names, sources = events.names, named.sources
    shown = np.array([source not in (None, OPTIMIZER) for source in sources], np.bool_)
    if not shown.any():
        return {}
    chosen = np.flatnonzero(shown[names.ids] & inside)
    keys = {}
    seen: set[Key] = set()
    for position in chosen.tolist():
        number = int(names.ids[position])
        source, name = sources[number], names.values[number]
        assert source is not None
        key = (source, name[len(REGION_PREFIX) :] if source == OWN else name)
        if key not in seen and len(seen) >= MOST_PATHS:
            key = (source, OTHERS)
        seen.add(key)
        keys[position] = key
    return keys


class _Open:
    """Which ranges are open at every moment, thread by thread.

    `names` are the sources and names of all ranges that were ever open. What a thread without
    ranges does belongs to those open on the `main` one: it waits for its backward threads.
    """

    def __init__(self, events: HostEvents, keys: dict[int, Key], main: int) -> None:
        self._events = events
        self._keys = keys
        self._main = main
        self._numbers: dict[frozenset[Key], int] = {frozenset(): 0}
        # By thread: the moments at which something changes, and the set that is open from then on.
        self._times: dict[int, Ints] = {}
        self._states: dict[int, Ints] = {}
        marks: dict[int, list[int]] = defaultdict(list)
        for position in keys:
            marks[int(events.thread[position])].append(position)
        for thread in sorted(marks, key=lambda number: number != main):
            self._sweep(thread, marks[thread])
        self._sets = list(self._numbers)
        self.names = [_plain(key) for key in keys.values()]

    def _sweep(self, thread: int, marks: list[int]) -> None:
        start, end = self._events.start, self._events.end
        # An end comes before a begin at the same moment; what takes no time at all is never open.
        edges = [(int(end[mark]), 0, mark) for mark in marks if end[mark] > start[mark]]
        edges += [(int(start[mark]), 1, mark) for mark in marks if end[mark] > start[mark]]
        times, states, stack = [], [], dict[int, Key]()
        for at, begins, mark in sorted(edges):
            if begins:
                stack[mark] = self._keys[mark]
            else:
                del stack[mark]
            opened = _inside_of(list(stack.values()))
            if thread != self._main and stack:
                opened |= self._at(self._main, at)
            times.append(at)
            states.append(self._numbers.setdefault(opened, len(self._numbers)))
        self._times[thread] = np.array(times, np.int64)
        self._states[thread] = np.array(states, np.int64)

    def _at(self, thread: int, moment: int) -> frozenset[Key]:
        times = self._times.get(thread)
        if times is None:
            return frozenset()
        place = int(np.searchsorted(times, moment, side="right")) - 1
        if place < 0:
            return frozenset()
        number = int(self._states[thread][place])
        return next(opened for opened, own in self._numbers.items() if own == number)

    def sets_of(self, positions: Ints) -> Ints:
        """The number of the set of ranges that was open where each of these events began."""
        start, threads = self._events.start[positions], self._events.thread[positions]
        found = self._look_up(self._main, start)
        for thread in self._times:
            if thread != self._main:
                own = np.where(threads == thread, self._look_up(thread, start), 0)
                found = np.where(own > 0, own, found)
        return found

    def _look_up(self, thread: int, moments: Ints) -> Ints:
        times = self._times.get(thread)
        if times is None or not len(times):
            return np.zeros(len(moments), np.int64)
        place = np.searchsorted(times, moments, side="right") - 1
        result: Ints = np.where(place >= 0, self._states[thread][np.maximum(place, 0)], 0)
        return result

    def add(self, rows: dict[Key, dict[str, Any]], column: str, sets: Ints, values: Any) -> None:
        """Add the values of events, each with its set, to all ranges of that set."""
        # Sums of whole numbers stay exact.
        added = np.zeros(len(self._sets), np.asarray(values).dtype)
        np.add.at(added, sets, values)
        seen = np.flatnonzero(np.bincount(sets, minlength=len(added)))
        for number, value in zip(seen.tolist(), added[seen].tolist(), strict=True):
            for key in self._sets[number]:
                rows[key][column] = (rows[key][column] or 0) + value

    def add_calls(self, rows: dict[Key, dict[str, Any]]) -> None:
        """Times that each range was entered, for how long it was open, and on how many threads."""
        threads: dict[Key, set[int]] = defaultdict(set)
        for (position, _), key in zip(self._keys.items(), self.names, strict=True):
            rows[key]["calls"] += 1
            threads[key].add(int(self._events.thread[position]))
        for key, seen in threads.items():
            rows[key]["threads"] = len(seen)
        for thread, times in self._times.items():
            spans = np.diff(times, append=times[-1:]) * _S
            states = self._states[thread].tolist()
            for number, span in zip(states, spans.tolist(), strict=True):
                for key in self._sets[number]:
                    if thread in threads[key]:
                        rows[key]["wall_s"] += span


def _plain(key: Key) -> Key:
    source, path = key
    return (source, path.removesuffix(AGAIN)) if source == OWN else key


def _inside_of(stack: list[Key]) -> frozenset[Key]:
    """The ranges that what runs now is in; of profstack's, those on the innermost one's path."""
    return frozenset((*_of_others(stack), *_on_path(stack)))


def _of_others(stack: list[Key]) -> Iterator[Key]:
    return (key for key in stack if key[0] != OWN)


def _on_path(stack: list[Key]) -> Iterator[Key]:
    own = [path for source, path in stack if source == OWN and not path.endswith(AGAIN)]
    if not own:
        return iter(())
    innermost = own[-1]
    around = {path for path in own if path == innermost or innermost.startswith(path + "/")}
    return ((OWN, path) for path in around)
