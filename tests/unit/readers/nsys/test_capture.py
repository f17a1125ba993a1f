"""Steps, ranges as a tree, and the calls and the work that belong to them."""

import re

import numpy as np
import pytest

from profstack.readers.nsys import capture, steps
from profstack.readers.nsys.export import read_export
from tests.support.nsys_files import AUTOGRAD, MAIN, PID, NsysFile, thread_of

OTHER, THIRD = AUTOGRAD, thread_of(PID, PID + 2)


@pytest.fixture
def made(tmp_path):
    """The capture of a file; `lib` stands for another domain without a category."""

    def read(text):
        path = tmp_path / "a.sqlite"
        path.unlink(missing_ok=True)
        with NsysFile(path) as file:
            text = re.sub(r" lib\b", " domain=lib category=None", text)
            file.play(text + "; memory 1 1 1", other=OTHER, third=THIRD)
        export = read_export(path)
        names = steps.names_of(export.ranges)
        return capture.Capture.of(export, steps.steps_of(export, names), names, 0)

    return read


def names_of(all_, innermost):
    return [*all_.places(np.array(innermost, np.int64))["range_name"]]


def rows(*columns):
    return [*zip(*(column.tolist() for column in columns), strict=True)]


def test_steps_are_those_that_were_captured_whole_on_the_thread_with_most(made):
    # Inside or across the one before; cut off, at its begin and right before its end; of another
    # domain, style, kind and thread.
    found = made("""
        step 3 10 50; step 4 20 30; step 5 35 45; step 6 50 70; step 7 80 90; step 8 90 99
        step 0 100 120 payload=None; range 80 81 cut category=cut; range 98 98 cut category=cut
        range 99 99 cut category=cut; range 5 6 cut category=cut
        range 60 61 cut category=cut thread=other; range 130 140 step category=step
        step 31 150 160 domain=lib; step 32 150 160 style=start_end; step 34 150 160 thread=other
        range 150 160 'step 33'
    """).steps
    assert (found.thread, len(found), found.numbers) == (MAIN, 4, [3, 6, 0, None])
    times = [(10, 50), (50, 70), (100, 120), (130, 140)]
    assert rows(found.times.start, found.times.end) == times
    moments = np.array([9, 10, 49, 50, 69, 70, 99, 100, 120, 139, 140])
    assert found.at(moments).tolist() == [-1, 0, 0, 1, 1, -1, -1, 2, -1, 3, -1]
    assert found.count(moments).tolist() == [each >= 0 for each in found.at(moments).tolist()]
    begin, end = np.array([0, 30, 60, 71, 105]), np.array([150, 55, 110, 90, 108])
    assert found.counted(begin, end).tolist() == [90, 25, 20, 0, 3]
    none = made("range 1 2 Net").steps
    assert (none.thread, none.count(moments).all(), none.runs()) == (None, True, [])
    assert none.counted(begin, end).tolist() == [150, 25, 50, 19, 3]
    numbers = enumerate((4, 5, 9, None, 2, 3, 4))
    texts = (f"step {number} {10 * at} {10 * at + 7} payload={number}" for at, number in numbers)
    assert made(";".join(texts)).steps.runs() == [(0, 17), (20, 27), (30, 37), (40, 67)]


APART = ";".join(
    f"range {span} {name} style=start_end category=region"
    for name, span in {"a": "10 40", "b": "20 30", "c": "25 60", "d": "60 70", "x": "65 65"}.items()
)
NESTED = "step 1 0 100; range 10 50 Net; range 20 30 Net.fc; range 15 70 theirs lib ;"
NESTED += "range 22 28 inner lib ; range 5 8 first lib ; range 40 90 there thread=other"


def test_the_innermost_range_at_a_moment(made):
    for text, expected in [
        # Of our own ranges and others ours win, but for the step.
        (NESTED, "0 step 5 first 8 step 12 Net 15 Net 20 Net.fc 25 Net.fc 30 Net 49 Net 50 theirs"),
        (NESTED, "69 theirs 70 step 99 step 100 None"),
        *((NESTED, "OTHER 39 None 40 there 89 there 90 None"),),
        # The first range of the file is one like all others.
        ("range 1 9 Net; range 3 7 theirs lib ", "0 None 4 Net 8 Net 9 None"),
        # Of ranges that do not nest the one that began last and is open; with pushed ones, too.
        (APART, "9 None 10 a 20 b 25 c 35 c 45 c 59 c 60 d 65 d 66 d 70 None"),
        (f"{APART};range 22 28 p domain=x;range 23 24 q domain=y", "22 p 23 q 24 p 26 c 29 c"),
        # A pushed range that outlives the one around it is left with it.
        ("range 10 30 a; range 20 50 b; range 25 28 c", "10 a 20 b 27 c 29 b 40 b 50 None"),
        # A range is known without its number.
        ("range 1 9 'step 12' lib payload=12", "5 step"),
    ]:
        all_, words = made(text), expected.removeprefix("OTHER ").split()
        moments = np.array([int(each) for each in words[::2]])
        thread = np.full(len(moments), OTHER if expected.startswith("OTHER") else MAIN)
        found = names_of(all_, all_.tree.innermost(thread, moments))
        assert [*map(str, found)] == words[1::2]


def test_a_call_of_a_thread_without_a_range_belongs_to_the_steps_thread(made):
    # Libraries' marks, and any range on autograd's thread that is not ours, own nothing.
    all_ = made("""
        step 1 0 1000; range 100 500 Net; range 200 300 own thread=third
        range 410 420 again thread=other; range 110 400 MmBackward0 lib thread=other
        range 310 400 ncclAllReduce thread=third category=None domain=NCCL
        range 430 440 'Holding GIL' thread=other domain='GIL Trace' category=None
        thread_name other pt_autograd_0; thread_name third python
        call 250 255 x 1 thread=third; call 150 155 x 2 thread=third; call 350 355 x 3 thread=third
        call 251 255 x 4 thread=other; call 415 419 x 5 thread=other; call 435 439 x 6 thread=other
        call 600 601 x 7 thread=other; call 1000 1001 x 8
    """)
    calls, tree = all_.calls, all_.tree
    names = ["Net", "own", "Net", "Net", "again", "Net", "step"]
    start = [150, 250, 251, 350, 415, 435, 600]
    assert (calls.start.tolist(), names_of(all_, calls.innermost)) == (start, names)
    assert calls.start[calls.elsewhere].tolist() == [150, 251, 350, 435, 600]
    assert calls.start[calls.marked].tolist() == [251, 350]
    # The system's calls are not lent: a worker does not sleep for a module.
    alone = capture.calls_in(all_.export.calls, tree, all_.steps, lent=False)
    names = [None, "own", "MmBackward0", "ncclAllReduce", "again", None, None]
    assert (names_of(all_, alone.innermost), alone.elsewhere.any()) == (names, False)


def test_calls_inside_another_call_of_the_thread_are_left_out(made):
    spans = "100 200, 110 190, 190 210, 195 209, 195 210, 300 310, 300 310, 300 311, 200 210"
    text = ";".join(f"call {span} x {n}" for n, span in enumerate(spans.split(", "), 1))
    all_ = made(f"{text}; call 120 130 x 20 thread=other")
    kept = capture.outermost(all_.calls)
    assert rows(kept.start, kept.length) == [(100, 100), (120, 10), (190, 20), (300, 11)]
    # Of calls in steps counts the time in steps.
    calls = made("step 1 10 20; step 2 45 60; call 50 140 x 4; call 9 14 x 1; call 10 40 x 2").calls
    assert rows(calls.start, calls.length) == [(10, 10), (50, 10)]
