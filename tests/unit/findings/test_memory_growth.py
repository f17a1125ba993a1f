"""Memory that grows is found with the lines that hold it, and what only looks like it is not."""

import math
from itertools import combinations
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profstack.code_owner import FACT
from profstack.findings.memory_growth import memory_growth, resident, trend
from profstack.storage.reader import Recorded
from tests.support.findings import PLACES, TRAIN, completed, line
from tests.support.recordings import CLEAN_S, Run
from tests.support.tables import cases, missing, near, of, rows_of

MIB = 2**20


def group(values, first=0.0):
    """Readings with every step."""
    column = np.asarray(values, float)
    return first + np.arange(len(column)), column


_series = st.lists(st.floats(-100, 100), min_size=4, max_size=9)


@given(st.lists(_series, min_size=2, max_size=3), st.floats(-1e3, 1e3))
def test_the_slope_is_the_median_of_pairs_and_its_interval_kendalls(series, level):
    groups = [group(values, 30.0 * at) for at, values in enumerate(series)]
    found = trend(groups)
    pairs = [pair for values in series for pair in combinations([*enumerate(values)], 2)]
    pairs = sorted((high - low) / (b - a) for (a, low), (b, high) in pairs)
    sizes, number = [len(values) for values in series], len(pairs)
    spread = 1.96 * math.sqrt(sum(n * (n - 1) * (2 * n + 5) / 18 for n in sizes))
    first, last = math.floor((number - spread) / 2), math.ceil((number + spread) / 2)
    low = pairs[first] if first >= 0 else -math.inf
    high = pairs[last] if last < number else math.inf
    assert found[:3] == pytest.approx((median(pairs), low, high), abs=1e-9)
    moved = trend([(steps, values + level) for steps, values in reversed(groups)])
    assert moved[:5] == pytest.approx(found[:5], abs=1e-6)


_AT = np.arange(60)


def test_what_goes_on_growing_is_persistent_whatever_moves_the_level_between_groups():
    levels = (0.0, 500.0, -3000.0, 80.0)
    found = trend([group(level + 7.0 * _AT[:9], 20.0 * at) for at, level in enumerate(levels)])
    # From the middle of each group's first fifth to that of its last.
    assert found == (7.0, 7.0, 7.0, 4 * 7.5, 4 * 7.5 * 7.0, True)
    series = [_AT, _AT + np.where(_AT < 25, 0, 20), np.zeros(60), -3.0 * _AT, np.log1p(_AT)]
    series += [np.where(_AT % 2 == 0, 0, 1e6), np.minimum(_AT, 45), np.where(_AT < 30, 0, 1e6)]
    series += [_AT + np.where(_AT < 56, 0, 1e6), _AT + np.where(_AT < 25, 0, 100)]
    found = [trend([group(values)]) for values in series]
    assert [each.persistent and each.low > 0 for each in found] == [True] * 2 + [False] * 8


@cases(
    "persistent rates",
    # A part grows at a quarter of the slope; four fifths of them do.
    *((True, (4, 1, 4, 4)), (False, (4, 0.9, 4, 4)), (True, (4, 0, 4, 4, 4))),
    # The later half goes on at half of the former rate, and so does the last part.
    *((True, (4, 4, 2, 2)), (False, (4, 4, 1.9, 2)), (True, (4, 4, 4, 4, 4, 2.1))),
    # No part has half of all growth.
    *((False, (4, 4, 4, 4, 4, 1.9)), (True, (4, 11.9, 4, 4)), (False, (4, 12.1, 4, 4))),
)
def test_parts_grow_on_and_on_without_a_jump(rates, persistent):
    found = trend([group([0.0, rate], 10.0 * at) for at, rate in enumerate(rates)])
    assert found.persistent is persistent


class Growing:
    """A recording whose memory is known: `script` and `leaves` give bytes for steps and slices."""

    def __init__(self, folder, script=lambda step: 0.5 * MIB * step, leaves=0, column="rss_bytes"):
        self.run = Run(folder / "rec")
        self.run.writer.facts({FACT: PLACES})
        self.script, self.leaves, self.column, self.left = script, leaves, column, 900 * MIB

    def edge(self):
        """What is read when a slice has ended."""
        now = {"t_s": self.run.now, "step": self.run.steps, "rss_bytes": 900 * MIB}
        now[self.column] = round(self.left + self.script(self.run.steps))
        self.run.writer.write({"memory": [now]})

    def slices(self, rounds=2, layers=4, steps=12):
        """Slices of the torch layer with clean ones between them, as a run has them."""
        # What the first steps take is no growth.
        self.run.clean(3, number=1)
        self.left += 300 * MIB
        self.edge()
        for number in range(2, 2 + rounds):
            for _ in range(layers):
                self.run.torch([CLEAN_S] * 3, number=number)
                self.left += self.leaves
                self.edge()
                self.run.slice("settle", [CLEAN_S], number=number)
                self.edge()
                self.run.clean(steps, number=number)
                self.edge()

    def watch(self, steps=2000, swing=0):
        """The open end of a run: a sample of the watch every other step."""
        begun, first = self.run.now, self.run.steps
        levels = [(at, self.script(first + at) + swing * (at % 3)) for at in range(0, steps, 2)]
        rows = [(begun + at * CLEAN_S + 0.001, round(self.left + each)) for at, each in levels]
        samples = rows_of("t_s rss_bytes", *rows, frame=1, weight=1.0)
        frame = {"frame": 1, "file": TRAIN, "line": 9, "name": "f", "function_line": 3}
        text = {"file": TRAIN, "text": "\n" * 8 + "  kept.append(x)\n"}
        tables = {"watch_samples": samples, "watch_frames": [frame], "source_files": [text]}
        self.run.writer.write(tables)
        self.run.slice("watch", [CLEAN_S] * steps, number=4)
        self.edge()

    def lines(self, *rows, source="malloc"):
        """A slice of the memory layer, of ten steps: line, text, and net MiB per step."""
        column = "increment_bytes" if source == "rss" else "allocated_bytes"
        rows = [(number, text, round(10 * MIB * net)) for number, text, net in rows]
        same = {"file": TRAIN, "second_source": source, "occurrences": 10}
        frames = {"memory_lines": rows_of(f"line source {column}", *rows, **same)}
        self.run.slice("memory", [0.05] * 10, layer="memory", mode="lines", frames=frames)

    def findings(self, lines=(), **parts):
        """What is found beside a report of nothing but what is given."""
        self.run.layers(torch="recorded", memory="recorded", watch="recorded")
        self.run.writer.close()
        report = completed({"tables": {"lines": lines}, **parts})
        return memory_growth(Recorded(self.run.folder), report)


TAKEN = "taken_less_given_back_per_step_bytes"


def test_a_leak_is_found_with_its_line_and_what_keeps_it(tmp_path):
    made = Growing(tmp_path, leaves=9 * MIB)
    # The model takes more, and has it given back elsewhere.
    made.lines((5, "y = model(x)", 3), (6, "z = y + 1", 0.5), (7, "loss.backward()", -3))
    made.slices()
    rows = [line(8, "  kept.append(z)"), line(9, "count += 1"), line(10, "total += loss.item()")]
    rows += [line(11, "other.append(z)", own=False), line(12, "rare.append(z)", calls=0.4)]
    (told,) = made.findings(tuple(rows), benchmark={"median_s": 0.01})
    assert of(told, "file line layers gain_s") == [TRAIN, 6, ["memory"], None]
    growth, taken, kept = told["evidence"]
    names = "growth_per_step_bytes ci95_low_bytes steps"
    assert of(growth, names) == near(MIB / 2, MIB / 2, 8 * 12)
    assert of(taken, f"{TAKEN} steps") == [MIB / 2, 10.0]
    assert of(kept, "line keeps_what_it_is_given") == [8, True]
    words = ("train.py:6 (z = y + 1)", "train.py:8 (kept.append(z))")
    assert not missing(told["advice"], *words, "1 GiB more after 2.05 k steps (20.5 s)")


def test_a_leak_under_the_watch_is_found_in_the_swing_of_its_steps(tmp_path):
    made = Growing(tmp_path, lambda step: 20_000.0 * step)
    # All lines together give back what they take: none of them keeps it.
    made.lines((5, "y = model(x)", 22_000 / MIB), (6, "loss.backward()", -21_900 / MIB))
    made.watch(swing=200 * MIB)
    (told,) = made.findings()
    assert told["evidence"][0]["growth_per_step_bytes"] == pytest.approx(20_000, rel=0.05)
    assert of(told, "layers line") == [["watch"], 9]
    assert missing(told["advice"], "train.py:9 (kept.append(x))", "train.py:5") == ["train.py:5"]
    # The watch's readings count where there are enough for four stretches, else the two edges.
    for number, (steps, readings) in enumerate(((64, 4), (62, 2))):
        few = Growing(tmp_path / f"few{number}")
        few.run.clean(3, number=1)
        few.edge()
        few.watch(steps)
        few.run.writer.close()
        assert [len(each) for each, _ in resident(Recorded(few.run.folder))] == [readings]
    # A short run says nothing.
    short = Growing(tmp_path / "short", lambda step: 5.0 * MIB * step)
    short.slices(rounds=1, layers=1)
    assert short.findings() == []


@cases("rows lines",
       # Of lines that took about as much the one that keeps it comes first, then the nearest.
       ([(5, "z = make()", 0.5), (8, "losses.append(loss)", 0.3)], [8, 5]),
       ([(5, "z = make()", 0.5), (8, "y = make()", 0.3), (9, "x = make()", 0.9)], [5, 8, 9]),
       # From a quarter to four times the growth.
       ([(5, "a = f()", 0.126), (6, "b = f()", 0.124), (7, "c = f()", 1.99)], [5, 7]),
       ([(5, "a = f()", 2.01), (6, "b = f()", 0.4)], [6]),
       # What another line gives back, give or take a tenth, is not kept.
       ([(5, "y = f()", 0.5), (6, "back()", -0.55), (7, "z = f()", 0.3)], [7]),
       # All lines together took less than a quarter of the growth.
       ([(5, "y = f()", 0.5), (6, "back()", -0.38)], []),
       ([(5, "a()", 0.5), (6, "b()", 0.51), (7, "c()", 0.52), (8, "d()", 0.53)], [5, 6, 7]),
       ("rss", [5]))  # fmt: skip
def test_the_line_is_the_likeliest_of_those_that_took_about_as_much(tmp_path, rows, lines):
    made, is_rss = Growing(tmp_path), rows == "rss"
    rows = [(5, "y = model(x)", 0.5)] if is_rss else rows
    made.lines(*rows, source="rss" if is_rss else "malloc")
    made.slices()
    (told,) = made.findings()
    assert [row["line"] for row in told["evidence"] if TAKEN in row] == lines


@cases("column", "rss_bytes; device_allocated_bytes")
@cases("factor is_found", "1.03 True; 0.97 False")
def test_growth_in_all_is_more_than_a_limit(tmp_path, column, factor, is_found):
    # The host's clean slices have 96 steps, for each of which profstack's log may have 400 bytes;
    # a device has all slices, 112.5 steps from the middle of the first ones to that of the last.
    least = (2 * MIB + 96 * 400) / 96 if column == "rss_bytes" else MIB / 4 / 112.5
    made = Growing(tmp_path, lambda step: factor * least * step, column=column)
    made.slices()
    assert len(made.findings()) == is_found
