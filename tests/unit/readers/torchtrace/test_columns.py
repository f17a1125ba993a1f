"""Columns of events: strings by number, groups and sums, against plain Python."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profstack.readers.torchtrace import columns
from tests.support.events import Event, instant

# Few and many different numbers, some below 0 and far above the number of rows.
NUMBERS = st.one_of(st.integers(-3, 3), st.integers(5, 40), st.integers(-(10**6), 10**6))


def array(values):
    return np.array(values, np.int64)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(-2, 2)), max_size=40), st.integers(1, 3))
def test_groups_are_the_different_rows_in_order_and_sums_are_by_them(rows, width):
    keys = [row[:width] for row in rows]
    first, of_row = columns.group([array([key[at] for key in keys]) for at in range(width)])
    assert first.tolist() == [keys.index(key) for key in sorted(set(keys))]
    assert [keys[first[number]] for number in of_row.tolist()] == keys
    assert first.dtype == of_row.dtype == np.int64
    keys, values, wanted = [row[0] for row in rows], array([row[1] for row in rows]), Counter()
    for key, value, _ in rows:
        wanted[key] += value
    assert columns.sums_by(array(keys), values) == dict(wanted)
    places = array([sorted(wanted).index(key) for key in keys])
    added = columns.sums(places, values, len(wanted) + 2)
    assert added.tolist() == [*(float(wanted[key]) for key in sorted(wanted)), 0.0, 0.0]
    assert added.dtype == np.float64


@given(st.lists(st.sampled_from("abcde"), max_size=30), st.randoms(use_true_random=False))
def test_strings_are_numbered_in_the_order_of_the_events(texts, chance):
    column = columns.StringColumn.of(iter(texts), len(texts))
    assert column.values == list(dict.fromkeys(texts))
    assert [column.values[number] for number in column.ids.tolist()] == texts
    assert column.where("b".__lt__).tolist() == [text > "b" for text in texts]
    assert column.map(ord).tolist() == [ord(text) for text in texts]
    # Numbers given before, in another order, with some that are not used and a text twice.
    values = [*chance.sample("abcdexyz", 8), "a"]
    ids = [chance.choice([at for at, value in enumerate(values) if value == t]) for t in texts]
    again = columns.StringColumn.renumbered(array(ids), values)
    assert (again.values, again.ids.tolist()) == (column.values, column.ids.tolist())


@pytest.mark.parametrize("block", [1, 3, 4, 7, 1000])
def test_columns_are_read_in_one_pass(block, monkeypatch):
    monkeypatch.setattr(columns, "BLOCK", block)
    pieces = [list(range(7))[part] for part in columns.blocks(7)]
    assert [each for piece in pieces for each in piece] == list(range(7))
    sizes = [block] * (7 // block) + [7 % block] * (7 % block > 0)
    assert ([*map(len, pieces)], [*columns.blocks(0)]) == (sizes, [])
    assert [*columns.blocks(7)][-1].stop == 7
    shapes, types = [[2, 3], []], ["float", ""]
    inputs = {"shapes": shapes, "dtypes": types}
    made = [Event("mm", 5, 9, **inputs), instant(7, 640, device=2), Event("plain", 8, 9, **inputs)]
    made += [Event("mm", 11, 40, shapes=[[4]], dtypes=["double"]), instant(12, -30)]
    made += [Event("mm", 15, 16), Event("mm", 17, 19, **inputs)]
    given = (made, ["start_ns", "duration_ns"], ("[memory]", ("nbytes",)), "mm".__eq__)
    names, read, of_memory, inputs = columns.read_columns(*given)
    assert [names.values[number] for number in names.ids] == [e.answers["name"] for e in made]
    assert read["start_ns"].tolist() == [5, 7, 8, 11, 12, 15, 17]
    assert read["duration_ns"].tolist() == [4, 0, 1, 29, 0, 1, 2]
    assert of_memory["nbytes"].tolist() == [0, 640, 0, 0, -30, 0, 0]
    # Number 0 is no inputs, and each different value is kept once.
    assert (inputs.shapes, inputs.types) == ([[], shapes, [[4]]], [[], types, ["double"]])
    assert inputs.shape_ids.tolist() == inputs.type_ids.tolist() == [1, 0, 0, 2, 0, 0, 1]
    some = inputs.at(np.array([3, 0]))
    assert [some.shapes[number] for number in some.shape_ids] == [[[4]], shapes]
    assert [some.types[number] for number in some.type_ids] == [["double"], types]
    without = columns.read_columns(made, [], ("none", ("nbytes",)), None)
    assert (without[2]["nbytes"].tolist(), without[3]) == ([0] * 7, None)
