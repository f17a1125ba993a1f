"""Nesting and self times of events: against a slow reference, and against torch's own tables."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from profstack.readers.torchtrace import columns
from profstack.readers.torchtrace.columns import StringColumn, group, sums
from profstack.readers.torchtrace.events import (
    EVALUATE,
    HIDDEN_NAMES,
    HostEvents,
    clip_to_steps,
    forward_of,
    nest_threads,
    read_host,
)

NS = 1e-9


class Event:
    """A made-up profiler event; only what is asked of it."""

    def __init__(
        self, name: str, start: int, end: int, thread: int = 1, sequence: int = -1, forward: int = 0
    ) -> None:
        self._values = (name, start, end, thread, sequence, forward)

    def name(self) -> str:
        return self._values[0]

    def start_ns(self) -> int:
        return self._values[1]

    def duration_ns(self) -> int:
        return self._values[2] - self._values[1]

    def start_thread_id(self) -> int:
        return self._values[3]

    def sequence_nr(self) -> int:
        return self._values[4]

    def fwd_thread_id(self) -> int:
        return self._values[5]

    def correlation_id(self) -> int:
        return 0


def told(events: HostEvents) -> dict[str, tuple[str | None, int]]:
    """Name -> name of the parent, and own time."""
    names = [events.names.values[number] for number in events.names.ids]
    own = events.self_time()
    return {
        name: (names[parent] if parent >= 0 else None, int(time))
        for name, parent, time in zip(names, events.parent.tolist(), own.tolist(), strict=True)
    }


def test_nesting_and_self_time() -> None:
    events = read_host(
        [
            Event("outer", 0, 100),
            Event("first", 10, 40),
            Event("inner", 15, 25),
            Event("second", 40, 60),
            Event("apart", 100, 130),
        ]
    )
    assert told(events) == {
        "outer": (None, 50),
        "first": ("outer", 20),
        "inner": ("first", 10),
        "second": ("outer", 20),
        "apart": (None, 30),
    }
    assert events.depth.tolist() == [0, 1, 2, 1, 0]


def test_siblings_that_touch_are_not_nested() -> None:
    events = read_host([Event("a", 0, 10), Event("b", 10, 20), Event("c", 20, 20)])
    assert told(events) == {"a": (None, 10), "b": (None, 10), "c": (None, 0)}


def test_events_without_length() -> None:
    events = read_host(
        [
            Event("outer", 0, 10),
            Event("at its start", 0, 0),
            Event("inside", 5, 5),
            Event("at its end", 10, 10),
            Event("child", 6, 9),
        ]
    )
    parents = {name: parent for name, (parent, _) in told(events).items()}
    assert parents["at its start"] == "outer"
    assert parents["inside"] == "outer"
    assert parents["child"] == "outer"
    assert parents["at its end"] is None
    assert told(events)["outer"] == (None, 7)


def test_threads_do_not_nest_into_each_other() -> None:
    events = read_host(
        [
            Event("a", 0, 100, thread=1),
            Event("b", 10, 90, thread=2),
            Event("a inside", 20, 30, thread=1),
            Event("b inside", 20, 30, thread=2),
        ]
    )
    assert told(events) == {
        "a": (None, 90),
        "b": (None, 70),
        "a inside": ("a", 10),
        "b inside": ("b", 10),
    }


def test_events_come_in_any_order() -> None:
    made = [Event("outer", 0, 100), Event("first", 10, 40), Event("inner", 15, 25)]
    assert told(read_host(made)) == told(read_host(made[::-1]))


def test_no_events() -> None:
    events = read_host([])
    assert len(events) == 0
    assert events.self_time().tolist() == []
    assert events.inherit(np.zeros(0, np.int64)).tolist() == []
    assert events.names.where(lambda name: True).tolist() == []


def test_bookkeeping_of_the_profilers_own_is_left_out() -> None:
    events = read_host([Event("op", 0, 10), *(Event(name, 1, 2) for name in sorted(HIDDEN_NAMES))])
    assert told(events) == {"op": (None, 10)}
    assert [event.name() for event in events.raw(np.array([0]))] == ["op"]


def test_device_events_are_left_out_where_kinds_are_told() -> None:
    made = [Event("op", 0, 10), Event("gemm", 2, 8), Event("cudaLaunchKernel", 1, 2)]
    assert told(read_host(made, ["cpu_op", "kernel", "cuda_runtime"])) == {"op": (None, 10)}


def forest(random_: random.Random, low: int, high: int, depth: int) -> list[tuple[int, int]]:
    """Events of one thread, which nest or lie apart, instants and touching ones among them."""
    made: list[tuple[int, int]] = []
    at = low
    while at < high and random_.random() < 0.85:
        begin = at + random_.choice((0, 0, 1, 3))
        end = min(high, begin + random_.choice((1, 2, 5, 20)))
        if begin >= end:
            break
        made.append((begin, end))
        if depth:
            made += forest(random_, begin, end, depth - 1)
        at = end
    return made


def slow_parents(made: list[tuple[int, int]]) -> list[int]:
    """For every event the last one before it, in order, that has not ended by its start."""
    parents = []
    for position, (start, end) in enumerate(made):
        around = [
            other
            for other in range(position)
            if made[other][0] <= start and made[other][1] > start and made[other][1] >= end
        ]
        parents.append(around[-1] if around else -1)
    return parents


@pytest.mark.parametrize("seed", range(60))
def test_nesting_like_a_slow_reference(seed: int) -> None:
    random_ = random.Random(seed)
    start: list[int] = []
    end: list[int] = []
    thread: list[int] = []
    wanted: list[int] = []
    for number in range(random_.randint(1, 4)):
        made = sorted(
            forest(random_, 0, random_.choice((5, 40, 200)), 6), key=lambda e: (e[0], -e[1])
        )
        wanted += [parent + len(start) if parent >= 0 else -1 for parent in slow_parents(made)]
        start += [begin for begin, _ in made]
        end += [finish for _, finish in made]
        thread += [number] * len(made)
    columns = (np.array(values, np.int64) for values in (start, end, thread))
    parent, depth = nest_threads(*columns)
    assert parent.tolist() == wanted
    deep = [0 if above < 0 else depth[above] + 1 for above in parent.tolist()]
    assert depth.tolist() == deep


def test_inherit_takes_the_nearest() -> None:
    events = read_host(
        [Event("a", 0, 100), Event("b", 10, 90), Event("c", 20, 80), Event("d", 30, 40)]
    )
    assert events.inherit(np.array([7, 0, 0, 0])).tolist() == [7, 7, 7, 7]
    assert events.inherit(np.array([7, 0, 9, 0])).tolist() == [7, 7, 9, 9]


def test_backward_finds_the_last_forward_with_its_number_and_thread() -> None:
    events = read_host(
        [
            Event("makes no node", 0, 5, sequence=4),
            Event("outer", 10, 30, sequence=4),
            Event("maker", 12, 20, sequence=4),
            Event("on another thread", 13, 20, thread=2, sequence=4),
            Event(EVALUATE + "Backward0", 50, 60, sequence=4, forward=1),
            Event(EVALUATE + "other Backward0", 60, 70, sequence=4, forward=2),
            Event(EVALUATE + "unknown", 70, 80, sequence=99, forward=1),
            Event(EVALUATE + "without a number", 80, 90, sequence=-1, forward=1),
        ]
    )
    evaluates = events.names.where(lambda name: name.startswith(EVALUATE))
    found = forward_of(events, np.flatnonzero(evaluates), ~evaluates)
    names = [events.names.values[events.names.ids[at]] if at >= 0 else None for at in found]
    assert names == ["maker", "on another thread", None, None]


def test_numbers_that_need_all_bits() -> None:
    events = read_host([Event("a", 0, 10, thread=2**64 - 5), Event("b", 2, 5, thread=2**64 - 5)])
    assert told(events)["b"] == ("a", 3)


def test_clipping_to_the_steps_that_count() -> None:
    def clipped(left_out: tuple[int, ...]) -> list[tuple[int, int]]:
        events = read_host(
            [
                Event("before all", 0, 5),
                Event("into the first", 8, 14),
                Event("over an edge", 18, 24),
                Event("over the last", 38, 45),
                Event("after all", 41, 44),
            ]
        )
        clip_to_steps(events, [10, 20, 30, 40], left_out)
        return list(zip(events.start.tolist(), events.end.tolist(), strict=True))

    assert clipped(()) == [(0, 5), (10, 14), (18, 24), (38, 40), (41, 44)]
    # What begins in a step that counts ends where one begins that does not.
    assert clipped((1,)) == [(0, 5), (10, 14), (18, 20), (38, 40), (41, 44)]
    assert clipped((0,))[2] == (18, 24)


def test_groups_and_sums() -> None:
    columns = [np.array([3, 1, 3, 1]), np.array([-2, 0, -2, 5])]
    first, inverse = group(columns)
    assert len(first) == 3
    assert inverse[0] == inverse[2]
    assert len({inverse[0], inverse[1], inverse[3]}) == 3
    total = sums(inverse, np.array([1, 10, 2, 100]), 3)
    assert sorted(total.tolist()) == [3, 10, 100]


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_those_of_a_slow_reference(seed: int) -> None:
    random_ = np.random.default_rng(seed)
    count = int(random_.integers(0, 300))
    # Few and many different values, below 0 and far above the number of events.
    ranges = [(-9, 3), (0, 2), (-(10**6), 10**12), (5, 400)][: int(random_.integers(1, 5))]
    columns = [random_.integers(low, high, count) for low, high in ranges]
    first, inverse = group(columns)
    keys = list(zip(*(column.tolist() for column in columns), strict=True))
    assert [keys[position] for position in first.tolist()] == sorted(set(keys))
    assert first.tolist() == [keys.index(key) for key in sorted(set(keys))]
    assert [keys[first[number]] for number in inverse.tolist()] == keys


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_what_was_given_is_the_same_by_any_way_of_reading(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = _training(nn.Linear(4, 3), torch.randn(2, 4), 3)
    options = {"use_kineto": True, "record_shapes": True, "profile_memory": True}
    with torch.autograd.profiler.profile(**options) as profile:
        step()
        torch.cat([torch.ones(2), torch.ones(3)])
    monkeypatch.setattr(columns, "BLOCK", size)
    # Backwards: what is read in one pass has to follow the events into their order.
    raw = profile.kineto_results.events()[::-1]
    at_once, later = read_host(raw, inputs=True), read_host(raw)
    events = at_once.raw(np.arange(len(at_once)))
    assert [event.start_ns() for event in events] == at_once.start.tolist()
    for given in (at_once.inputs, later.inputs):
        assert [given.shapes[n] for n in given.shape_ids] == [e.shapes() for e in events]
        assert [given.types[n] for n in given.type_ids] == [e.dtypes() for e in events]
    memory = np.flatnonzero(at_once.memory)
    asked = [events[position] for position in memory.tolist()]
    assert at_once.integers("nbytes", memory).tolist() == [e.nbytes() for e in asked]
    assert len(asked) > 3
    # Of others it is not what was read for the memory instants alone.
    every = at_once.integers("device_index", np.arange(len(events)))
    assert every.tolist() == [event.device_index() for event in events]
    values, numbers = at_once.values(np.arange(len(events)), ~at_once.memory)
    expected = [() if e.name() == "[memory]" else e.concrete_inputs() for e in events]
    assert [values[number] for number in numbers.tolist()] == expected


def test_strings_by_number() -> None:
    names = StringColumn.of(iter(["a", "b", "a"]), 3)
    assert names.values == ["a", "b"]
    assert names.ids.tolist() == [0, 1, 0]
    assert names.where("a".__eq__).tolist() == [True, False, True]
    assert names.map(ord).tolist() == [97, 98, 97]


# -- against torch ---------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.head = nn.Linear(16, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        out: torch.Tensor = self.head(self.attention(x, x, x, need_weights=False)[0])
        return out


def _training(model: nn.Module, inputs: torch.Tensor, classes: int) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        out = model(inputs)
        out = out[0] if isinstance(out, tuple) else out
        out = out.flatten(0, -2)
        labels = torch.zeros(len(out), dtype=torch.long)
        functional.cross_entropy(out[:, :classes], labels).backward()
        optimizer.step()

    return step


def _mean_squares() -> Callable[[], None]:
    """Holds operators that call themselves once, like `aten::mean`."""
    model = nn.Linear(8, 8)
    x = torch.randn(4, 8)

    def step() -> None:
        (model(x).pow(2).mean() + model(x).sum()).backward()
        model.zero_grad()

    return step


MODELS: dict[str, Callable[[], Callable[[], None]]] = {
    "mlp": lambda: _training(
        nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)), torch.randn(4, 16), 8
    ),
    "conv": lambda: _training(
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8)
        ),
        torch.randn(4, 1, 8, 8),
        8,
    ),
    "lstm": lambda: _training(nn.LSTM(8, 8), torch.randn(5, 4, 8), 8),
    "attention": lambda: _training(Attention(), torch.randint(0, 50, (2, 6)), 50),
    "mean squares": _mean_squares,
}

Table = dict[str, tuple[int, float, float]]


def _profiled(step: Callable[[], None]) -> Any:
    torch.manual_seed(0)
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(3):
            step()
    return profile


def _torchs(profile: Any) -> Table:
    return {
        row.key: (row.count, row.self_cpu_time_total * 1e-6, row.cpu_time_total * 1e-6)
        for row in profile.key_averages()
    }


def _ours(events: HostEvents, merged: Any) -> Table:
    """Calls, own time and total time by name, without the `merged` events."""
    table: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    own = events.self_time()
    names = events.names.values
    for position, name in enumerate(events.names.ids.tolist()):
        row = table[names[name]]
        row[1] += own[position] * NS
        if not merged[position]:
            row[0] += 1
            row[2] += events.duration[position] * NS
    return {name: (int(row[0]), row[1], row[2]) for name, row in table.items()}


def _merged_by_torch(events: HostEvents) -> Any:
    """Events that torch drops: an only child with its parent's name. The parent keeps the rest."""
    children: dict[int, list[int]] = defaultdict(list)
    parent = events.parent.tolist()
    for position, above in enumerate(parent):
        if above >= 0:
            children[above].append(position)
    dropped = np.zeros(len(events), np.bool_)
    for position, above in enumerate(parent):
        same = above >= 0 and events.names.ids[position] == events.names.ids[above]
        dropped[position] = same and len(children[above]) == 1
    return dropped


@pytest.mark.parametrize("name", MODELS)
def test_same_table_as_torch(name: str) -> None:
    profile = _profiled(MODELS[name]())
    events = read_host(profile.profiler.kineto_results.events())
    merged = _merged_by_torch(events)
    ours, torchs = _ours(events, merged), _torchs(profile)
    assert ours.keys() == torchs.keys()
    for operator, row in torchs.items():
        assert ours[operator] == pytest.approx(row, abs=1e-9), operator
    # Without torch's rule the own times are the same all the same; only these names differ.
    plain = _ours(events, np.zeros(len(events), np.bool_))
    differing = {operator for operator in plain if plain[operator] != ours[operator]}
    assert differing == {
        events.names.values[number] for number in events.names.ids[merged].tolist()
    }
    for operator, row in torchs.items():
        assert plain[operator][1] == pytest.approx(row[1], abs=1e-9)
    if name == "mean squares":
        wanted = {"aten::mean", "aten::div_", "aten::sum", "aten::mul", "aten::div"}
        assert differing == wanted
