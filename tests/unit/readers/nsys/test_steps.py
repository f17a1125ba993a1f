"""Names of ranges without running numbers, and the ranges that are a capture's steps."""

import numpy as np
import pytest

from profstack.errors import UsageError
from profstack.readers.nsys import steps
from profstack.readers.nsys.export import Export
from profstack.readers.nsys.export_file import frame_of
from profstack.readers.nsys.steps import NO_NUMBER, bare_name, names_of, steps_of
from tests.support.nsys_files import AUTOGRAD, MAIN
from tests.support.tables import cases


def export_of(*ranges):
    """An export of ranges: text, start, end and what else they are."""
    given = {"thread": MAIN, "style": "push_pop", "domain": "", "category": None, "payload": None}
    made = [
        given | {"text": text, "start": at, "end": end} | dict(*more)
        for text, at, end, *more in ranges
    ]
    columns = {name: [row[name] for row in made] for name in (*given, "text", "start", "end")}
    return Export("x", ranges=frame_of("ranges", columns))


def names(*texts, **more):
    found = names_of(export_of(*((text, n, n + 1, more) for n, text in enumerate(texts))).ranges)
    numbers = [None if number == NO_NUMBER else number for number in found.number.tolist()]
    return list(zip(found.name, numbers, strict=True))


def test_the_number_of_an_operator_is_none_of_its_name():
    # As torch's emit_nvtx writes them, with and without shapes.
    for text, expected in (
        ("aten::mm, op_id = 318321", ("aten::mm", 318321)),
        ("aten::add, seq = 12, op_id = 7, sizes = [[8, 3], []]",
         ("aten::add, sizes = [[8, 3], []]", 7)),
        ("AddmmBackward0, seq = 5", ("AddmmBackward0", 5)),
        ("aten::mul, op_id = 9, input_op_ids = [(318321,0),(7,0)]", ("aten::mul", 9)),
        ("aten::mm, op_id = " + "9" * 30, ("aten::mm", None)),
    ):  # fmt: skip
        assert names(text) == [expected]


@cases(
    "texts expected",
    # Once each, from three on.
    (["part 0", "part 1", "part 2"], [("part", 0), ("part", 1), ("part", 2)]),
    (["part 0", "part 1"], [("part 0", None), ("part 1", None)]),
    # Steps and epochs are numbered, however often a number comes again.
    (["batch 0", "batch 1"] * 2, [("batch", 0), ("batch", 1)] * 2),
    (["train_step 7", "epoch 1/9", "BATCH 5"], [("train_step", 7), ("epoch", 1), ("BATCH", 5)]),
    # What comes again and again is a name, up to a half more than once.
    (["layer 0", "layer 1", "layer 2"] * 2, [(f"layer {n}", None) for n in (0, 1, 2)] * 2),
    (["a 1", "a 2", "a 3", "a 3"], [("a", 1), ("a", 2), ("a", 3), ("a", 3)]),
    (["a 1", "a 2", "a 2", "a 3", "a 3"], None),
    # Only numbers that differ go; the last of them is kept.
    (["1 a=7 b", "1 a=8 b", "1 a=9 b"], [("1 a b", n) for n in (7, 8, 9)]),
    # A part of a word, a fraction or a version is none; nor is all of a text.
    (["conv1d", "conv2d", "conv3d"], [(f"conv{n}d", None) for n in (1, 2, 3)]),
)
def test_numbers_that_tell_things_apart_leave_names(texts, expected):
    assert names(*texts) == (expected or [(text, None) for text in texts])


def test_of_many_names_that_differ_in_numbers_none_is_a_name():
    for count, grouped in ((steps.MOST_ALIKE, False), (steps.MOST_ALIKE + 1, True)):
        found = names(*[f"item {n}" for n in range(count)] * 3)
        assert ({name for name, _ in found} == {"item"}) is grouped
    # Names are counted in their own domain, and profstack's stay as they are.
    assert names("Net.0", "step 1", "step 2", "step 3", domain="profstack")[1] == ("step 1", None)
    both = export_of(("a 1", 1, 2), ("a 2", 3, 4), ("a 3", 5, 6, {"domain": "other"}))
    assert names_of(both.ranges).name == ["a 1", "a 2", "a 3"]


def test_a_payload_at_the_end_of_a_text_is_its_number():
    assert names("item: #12", payload=12) == [("item", 12)]
    assert names("item 112", payload=12) == [("item 112", None)]
    assert names("v1.12", payload=12) == [("v1.12", None)]
    for text, expected in (("step 1 of 9", "step of"), ("loss", "loss"), ("7", "7")):
        assert bare_name(text) == expected


# An epoch of ten batches each, with a model in them, and another thread's ranges.
def training(batches=10, epochs=3, busy=95):
    found = []
    for epoch in range(epochs):
        begin = 10 + epoch * 100 * batches
        found.append((f"epoch {epoch}", begin - 1, begin + 100 * batches - 3))
        for n in range(batches):
            at = begin + 100 * n
            found.append((f"batch {epoch * batches + n}", at, at + busy))
            found.append(("model", at + 10, at + 60))
            found += [(f"aten::mm, op_id = {at}{k}", at + 10 + k, at + 11 + k) for k in range(40)]
    return found


def found_steps(ranges, wanted=None):
    export = export_of(*ranges)
    return steps_of(export, names_of(export.ranges), wanted)


def test_a_range_that_repeats_is_the_step():
    found = found_steps(training())
    assert (found.range_name, found.is_asked, found.thread) == ("batch", False, MAIN)
    assert found.numbers == list(range(30))
    # Batches must fill their epochs, and be called so.
    assert found_steps(training(busy=70)).range_name == "epoch"
    other = [(text.replace("batch", "inner"), *times) for text, *times in training()]
    assert found_steps(other).range_name == "epoch"
    # All of them must lie in epochs, not most.
    stray = [*training(), ("batch 99", 3008, 3100)]
    assert found_steps(stray).range_name == "epoch"
    # One that repeats too rarely, that leaves much of the time out, or an operator is none.
    assert found_steps([("a", 0, 9), ("a", 10, 19)]).range_name is None
    assert found_steps([("a", 0, 9), ("a", 10, 19), ("a", 20, 29)]).range_name == "a"
    # 80 of 98 ns, 70 of 97, and the limit itself: 4 of 5.
    tens = [[(10 * n, 10 * n + length) for n in range(10)] for length in (8, 7)]
    for spans, name in ((tens[0], "a"), (tens[1], None), ([(0, 1), (1, 3), (4, 5)], "a")):
        assert found_steps([("a", *span) for span in spans]).range_name == name
    for text in ("aten::mm", "MmBackward0"):
        assert found_steps([(text, 10 * n, 10 * n + 9) for n in range(9)]).range_name is None
    for domain in ("NCCL", "GIL Trace"):
        spans = [("a", 10 * n, 10 * n + 9, {"domain": domain}) for n in range(9)]
        assert found_steps(spans).range_name is None
    assert found_steps([("a", 10 * n, 10 * n + 15) for n in range(9)]).range_name is None
    own = ("step 5", 0, 900, {"domain": "profstack", "category": "step", "payload": 5})
    found = found_steps([*training(), own])
    assert (found.range_name, found.numbers) == (None, [5])


def test_steps_of_a_range_that_is_named():
    ranges = training()
    found = found_steps(ranges, "model")
    assert (len(found), found.range_name, found.is_asked) == (30, "model", True)
    # Without numbers they are counted from 0.
    assert found.numbers == list(range(30))
    assert found_steps(ranges, "batch").numbers == list(range(30))
    assert len(found_steps(ranges, "batch 7")) == 1
    # Two are not enough to tell that a number is no part of the name, unless it is asked for.
    two = [("run 5", 0, 9), ("run 6", 10, 19), ("x", 0, 1, {"thread": AUTOGRAD})]
    found = found_steps(two, "run")
    assert (found.numbers, found.times.start.tolist()) == ([0, 1], [0, 10])
    # An inner one of the same name is a part of the outer.
    nested = [("s", 0, 9), ("s", 2, 5), ("s", 10, 19), ("s", 3, 4, {"thread": AUTOGRAD})]
    assert found_steps(nested, "s").times.start.tolist() == [0, 10]
    none = found_steps(ranges, "")
    assert (len(none), none.count(np.array([1, 2])).all()) == (0, True)
    with pytest.raises(UsageError, match=r"no range named bach.*aten::mm \(1,200\), batch \(30\)"):
        found_steps(ranges, "bach")
    with pytest.raises(UsageError, match="no ranges: leave it out"):
        found_steps([], "batch")
