"""The projection against the plainest way to do it, on random ranges, calls and kernels.

Ranges nest on each thread and in each domain by themselves, and lie across each other otherwise;
calls come from threads with and without ranges; kernels run late, on several streams, many of one
call, and some of none.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from profstack.readers.nsys.export import Export
from profstack.readers.nsys.export_file import FRAMES, frame_of
from profstack.readers.nsys.rows import rows_of

_S = 1e-9
LENGTH = 4000
STEPS_THREAD, THREADS = 1, (1, 2, 3)
OURS, NAMES = "profstack", ("Net", "Net.fc", "Net.conv")

Record = dict[str, Any]


def nested(
    source: random.Random, begin: int, end: int, depth: int = 0
) -> Iterator[tuple[int, int, str]]:
    """Ranges that nest, no two of them with a moment in common."""
    at = begin + 1
    while depth < 4 and end - at > 8 and source.random() < 0.85:
        start = source.randrange(at, end - 4)
        until = source.randrange(start + 2, end)
        yield start, until, source.choice(NAMES)
        yield from nested(source, start, until, depth + 1)
        at = until + 1


def a_range(start: int, end: int, text: str, thread: int, **other: Any) -> Record:
    return {
        "start": start,
        "end": end,
        "text": text,
        "thread": thread,
        "payload": None,
        "style": "push_pop",
        "domain": OURS,
        "category": "module",
        **other,
    }


def ranges_of(source: random.Random, *, stepped: bool) -> list[Record]:
    made = []
    edges = sorted(source.sample(range(200, LENGTH, 150), 4))
    for number, (begin, end) in enumerate(pairwise(edges)):
        # The last step ends a little before the next, and some time is in no step.
        until = end - source.randrange(1, 100)
        if stepped:
            given = {"category": "step", "payload": number}
            made.append(a_range(begin, until, f"step {number}", STEPS_THREAD, **given))
        for start, stop, text in nested(source, begin, until):
            made.append(a_range(start, stop, text, STEPS_THREAD))
    for thread in THREADS:
        for start, stop, text in nested(source, 0, LENGTH):
            made.append(a_range(start, stop, text, thread, domain="", category=None))
    for start, stop, text in nested(source, 0, LENGTH):
        made.append(a_range(start, stop, text, 2))
    for _ in range(source.randrange(5)):
        start = source.randrange(LENGTH - 10)
        kind = {"style": "start_end", "category": "region"}
        stop = source.randrange(start + 1, LENGTH)
        made.append(a_range(start, stop, source.choice(NAMES), source.choice(THREADS), **kind))
    return made


def frame(name: str, rows: list[Record]) -> Any:
    return frame_of(name, {column: [row[column] for row in rows] for column in FRAMES[name]})


def export_of(seed: int) -> tuple[Export, list[Record], list[Record], list[Record]]:
    source = random.Random(seed)
    ranges = sorted(ranges_of(source, stepped=seed % 4 > 0), key=lambda each: each["start"])
    calls, work = [], []
    for number in range(1, source.randrange(2, 120)):
        start = source.randrange(LENGTH)
        calls.append(
            {
                "start": start,
                "end": start + source.randrange(1, 20),
                "callchain": -1,
                "thread": source.choice(THREADS),
                "name": "launch",
                "failed": False,
                "correlation": number,
            }
        )
        for _ in range(source.choice((0, 1, 1, 1, 3))):
            begin = start + source.randrange(0, 400)
            work.append(
                {
                    "start": begin,
                    "end": begin + source.randrange(1, 300),
                    "kind": "kernel",
                    "name": source.choice("abc"),
                    "bytes": float("nan"),
                    "device": source.choice((0, 0, 1)),
                    "stream": source.randrange(3),
                    "correlation": number if source.random() < 0.9 else 10_000 + number,
                    **dict.fromkeys(("direction", "from_memory", "to_memory")),
                    "in_graph": False,
                    "copies": 1,
                }
            )
    source.shuffle(work)
    frames = {"ranges": frame("ranges", ranges), "calls": frame("calls", calls)}
    made = Export("x", begin_ns=0, end_ns=5000, **frames, work=frame("work", work))
    return made, ranges, calls, work


@dataclass
class Plain:
    """What the rows must say, by going through every range for every kernel."""

    ranges: list[Record]

    @property
    def steps(self) -> list[Record]:
        return [each for each in self.ranges if each["category"] == "step"]

    def counts(self, moment: int) -> bool:
        steps = self.steps
        return not steps or any(each["start"] <= moment < each["end"] for each in steps)

    def open(self, thread: int, moment: int) -> list[Record]:
        return [
            each
            for each in self.ranges
            if each["thread"] == thread and each["start"] <= moment < each["end"]
        ]

    def place(self, one: Record) -> tuple[Any, ...]:
        """On which thread, in which domain, of what style, and the names from the outermost."""
        nests = one["style"] == "push_pop"
        around = [
            *(
                each
                for each in self.open(one["thread"], one["start"])
                if nests and each["domain"] == one["domain"] and each["style"] == one["style"]
            ),
        ]
        names = [self.name(each) for each in sorted(around, key=lambda each: each["start"])]
        on_steps = one["thread"] == STEPS_THREAD if self.steps else None
        return on_steps, one["domain"], one["style"], tuple(names) if nests else (one["text"],)

    def name(self, one: Record) -> str:
        return "step" if one["category"] == "step" else one["text"]

    def around(self, call: Record) -> tuple[list[Record], bool]:
        """The ranges that a call is in, and whether they are another thread's."""
        own = self.open(call["thread"], call["start"])
        if own or not self.steps:
            return own, False
        return self.open(STEPS_THREAD, call["start"]), call["thread"] != STEPS_THREAD

    def innermost(self, call: Record) -> str | None:
        opened = sorted(self.around(call)[0], key=lambda each: each["start"])
        ours = [
            each
            for each in opened
            if each["domain"] == OURS and each["style"] == "push_pop" and each["category"] != "step"
        ]
        chosen = ours or opened
        return self.name(chosen[-1]) if chosen else None


def told_place(rows: list[Record], row: Record) -> tuple[Any, ...]:
    names: list[str] = []
    on_steps = None if row["on_steps_thread"] is None else bool(row["on_steps_thread"])
    style, domain, number = row["style"], row["domain"], row["node"]
    while number is not None:
        names.insert(0, rows[number - 1]["name"])
        number = rows[number - 1]["parent"]
    return on_steps, domain, style, tuple(names)


@pytest.mark.parametrize("seed", range(60))
def test_every_range_has_what_was_launched_in_it(seed: int) -> None:
    export, ranges, calls, work = export_of(seed)
    plain = Plain(ranges)
    by_number = {call["correlation"]: call for call in calls}
    kernels: dict[Any, int] = Counter()
    spent: dict[Any, int] = Counter()
    lent: dict[Any, int] = Counter()
    for each in work:
        call = by_number.get(each["correlation"])
        if call is None or not plain.counts(call["start"]):
            continue
        around, elsewhere = plain.around(call)
        for place in {plain.place(one) for one in around}:
            kernels[place] += 1
            spent[place] += each["end"] - each["start"]
            lent[place] += (each["end"] - each["start"]) * elsewhere
    rows = rows_of(export)[0]["nsys_ranges"]
    assert len({told_place(rows, row) for row in rows}) == len(rows)
    for row in rows:
        place = told_place(rows, row)
        assert row["kernels"] == kernels.pop(place, 0), place
        assert round(row["device_s"] / _S) == spent[place]
        assert round(row["elsewhere_s"] / _S) == lent[place]
    assert not kernels


@pytest.mark.parametrize("seed", range(60))
def test_every_kernel_is_in_one_innermost_range_and_the_tree_adds_up(seed: int) -> None:
    export, ranges, calls, work = export_of(seed)
    plain = Plain(ranges)
    by_number = {call["correlation"]: call for call in calls}
    expected: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    unlaunched = launched = outside = 0
    for each in work:
        call = by_number.get(each["correlation"])
        if not plain.counts(each["start"] if call is None else call["start"]):
            continue
        length = each["end"] - each["start"]
        key = each["name"], f"cuda:{each['device']}", each["stream"]
        found = expected[(*key, None if call is None else plain.innermost(call), call is None)]
        found[0] += 1
        found[1] += length
        unlaunched += call is None
        if call is not None:
            launched += length
            ours = [one for one in plain.around(call)[0] if one["domain"] == OURS]
            outside += length * (not [one for one in ours if one["style"] == "push_pop"])
    rows, facts = rows_of(export)
    told: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows["nsys_kernels"]:
        key = row["name"], row["device"], row["stream"], row["range_name"]
        found = told[(*key, row["launched_by"] is None)]
        found[0] += row["calls"]
        found[1] += round(row["device_s"] / _S)
    assert dict(told) == dict(expected)
    assert facts["unlaunched"] == unlaunched
    # Of one domain: the times of the nodes without those in them, and what is in no range.
    nodes = [r for r in rows["nsys_ranges"] if (r["domain"], r["style"]) == (OURS, "push_pop")]
    own = {row["node"]: row["device_s"] for row in nodes}
    for row in nodes:
        if row["parent"] is not None:
            own[row["parent"]] -= row["device_s"]
    assert min(own.values(), default=0) >= -_S / 2
    assert round(sum(own.values()) / _S) == launched - outside


@pytest.mark.parametrize("seed", range(60))
def test_what_is_not_busy_is_a_gap(seed: int) -> None:
    export, ranges, _, work = export_of(seed)
    steps = Plain(ranges).steps
    rows, facts = rows_of(export)
    assert facts["steps"] == len(steps)
    for device in {each["device"] for each in work}:
        ran = {
            moment
            for each in work
            if each["device"] == device
            for moment in range(each["start"], each["end"])
        }
        told = [row for row in rows["nsys_steps"] if row["device"] == f"cuda:{device}"]
        for row, step in zip(told, steps, strict=bool(told)):
            busy = len(ran & set(range(step["start"], step["end"])))
            assert round(row["busy_s"] / _S) == busy
            assert round(row["idle_s"] / _S) == step["end"] - step["start"] - busy
        gaps = [row for row in rows["nsys_gaps"] if row["device"] == f"cuda:{device}"]
        idle = sum(row["idle_s"] for row in told) / _S
        if not steps:
            idle = max(ran) + 1 - min(ran) - len(ran)
        assert round(sum(row["total_s"] for row in gaps) / _S) == round(idle)
