"""A function or a module that takes most of the step: its limits, its gain, and what is none."""

import math

from profstack.analysis.functions import COST
from profstack.findings.hot_spots import dominating, hot_spots
from tests.support import findings as made
from tests.support.findings import MS, TRACED_S, TRAIN, asked, call, function, report_of
from tests.support.tables import cases, near, of, rows_of

ASKED = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
INNER_S, PYTHON_S = 1e-7, 2.5e-7


def told_of(corrected_ms, *, factor=1.0, outside_ms=10, builtins=(), own=True, cost=True, **more):
    """What is told of one function: its own time, what it calls, and what stands on its line.

    The torch layer saw no operator for `outside_ms` of its step of 12.5 ms; `builtins` are calls
    and own time of built-in functions that it calls. With `batches` a DataLoader calls it, in which
    a clean step is for 1.5 ms before its first work and as many times in all.
    """
    file, batches, lines_run = TRAIN if own else "/lib/x.py", more.pop("batches", 0), None
    corrected_s, lines_run = corrected_ms and corrected_ms * MS, more.pop("lines_run", lines_run)
    on_lines_s = more.pop("on_lines_ms", 0.0) * MS
    row = function("shuffle", corrected_s or 9 * MS, corrected_self_s=corrected_s, file=file)
    row["calls"] = more.pop("calls", 2.0)
    functions, edges = [row], []
    for at, (count, self_s) in enumerate(builtins):
        edges.append(call(row, made.built_in(f"b{at}", 1.0), calls=count, self_s=self_s))
    for file, count, library_ms, inner_us in more.pop("libraries", ()):
        called = function("randrange", 0.1 * MS, library_ms * MS, file=file, line=70)
        functions.append(called | {"own": file == TRAIN})
        edges.append(call(row, called, library_ms * MS, calls=count))
        inner = made.built_in("getrandbits", 1.0)
        edges.append(call(called, inner, calls=count, self_s=count * (inner_us * 1e-6 + INNER_S)))
    if batches:
        whole_s = 1.5 * MS * batches / 0.8
        functions.append(function("__next__", 1e-5, whole_s, file=made.LOADER))
        edges.append(call(functions[1], row, whole_s))
    others = enumerate(more.pop("others_ms", ()), 90)
    functions += [function("other", each * MS, line=at) for at, each in others]
    wait_s = 1.5 * MS if batches else more.pop("wait_ms", 0.0) * MS
    loop_ms = more.pop("loop_ms", 0.0)
    loop = {"module": None, "file": TRAIN, "line": 99, "python_s": loop_ms and loop_ms * MS}
    more["module_lines"] = [loop] if loop_ms is not None else []
    loader = {"source": "torch", "path": ASKED, "calls": batches, "wall_s": 1.875 * MS * batches}
    known = {"calls": lines_run, "operator_s": on_lines_s, "python_s": 0.1 * MS, "file": file}
    report = report_of(
        **more, functions=functions, calls=edges,
        steps=[{"index": 3, "wait_s": wait_s, "wall_s": made.STEP_S}],
        modules=[{"path": "(wait)", "self_s": 1.5 * MS * batches, "calibrated_s": wait_s}],
        regions=[loader] if batches else [], lines=[made.line(6, "a @ b", **known)],
        operators=[{"name": "x", "self_s": TRACED_S - outside_ms * MS}])  # fmt: skip
    costs = {"python": {"inner_s": PYTHON_S, "outer_s": 7.0}, "bytecode_factor": factor}
    costs = {COST: costs | {"builtin": {"inner_s": INNER_S, "outer_s": 1.0}}}
    recording = made.recorded(costs if cost else {})
    return asked(hot_spots, recording, report, "functions", "operators")


def gains_of(*arguments, **known):
    return [each["gain_s"] for each in told_of(*arguments, **known)]


def ms(*values):
    return near(*(each * MS for each in values))


def test_limits_that_agree_give_their_mean():
    # A tenth of the step; what is not known or not the user's is none.
    for own_ms, is_found in ((1.001, 1), (0.999, 0), (None, 0)):
        assert len(told_of(own_ms)) == is_found
    assert told_of(5, own=False) == told_of(5, cost=False) == []
    (told,) = told_of(3, factor=1.5)
    # The calibrated time of its row is between them: 3 ms of slices that took 1.25 times as long.
    assert of(told, "gain_s file line severity") == near(2.4 * MS, TRAIN, 5, "high")
    names = "own_low_s own_high_s corrected_self_s step_share limits_agree"
    expected = near(2 * MS, 3 * MS, 3 * MS, 0.24, True)
    assert of(told["evidence"][0], names) == expected
    assert made.links(told) == [f"python/{TRAIN}:5:shuffle", f"source/{TRAIN}:6"]
    # Of a row below both limits it is their mean: built-in calls of 0.6 ms are no part of it.
    built_in = ((1000.0, 1000 * (0.9e-6 + INNER_S)),)
    expected = ms(math.sqrt((3 / 1.2 + 0.9) * 3.9))
    assert gains_of(3, factor=1.2, builtins=built_in) == expected
    (other,) = told_of(6, factor=3.0)
    assert (other["gain_s"], other["evidence"][0]["limits_agree"]) == (*ms(2), False)


def test_no_function_takes_more_than_its_step_or_its_lines_have():
    # 2 ms of the traced step are 1.6 ms of the clean one.
    assert gains_of(6, factor=3.0, outside_ms=2) == ms(1.6)
    bar = {"time_line": "host", "parts": [{"name": "Python", "seconds": 1.1 * MS, "is": "clean"}]}
    assert gains_of(6, factor=3.0, parts={"step_bar": bar}) == ms(1.1)
    # What a loader calls takes no longer than steps wait for batches.
    # It has 7 of 7.5 ms in which four batches are made, and they take 6 ms of a clean step.
    for batches, most_ms in ((1, 1.5), (4, 6.0 * 7 / 7.5)):
        (told,) = told_of(7, batches=batches)
        assert [told["evidence"][0]["own_high_s"], told["gain_s"]] == ms(most_ms, most_ms)
        assert "called_by" in told["evidence"][-1]
    # It is called twice a step: of 1.9 lines not all its calls were followed.
    table = {4.0: [], 2.0: [], 1500.0: [1.5], 3000.0: [3.0], 9000.0: [4.0], None: [4.0], 1.9: [4.0]}
    for lines_run, gain_ms in table.items():
        assert gains_of(4, lines_run=lines_run) == ms(*gain_ms)


def test_a_function_takes_what_others_leave_of_the_wait():
    # Of 7.5 ms that cProfile saw in the loader others have 3.5; steps wait for 6 ms.
    (told,) = told_of(4, factor=3.0, batches=4)
    names = "own_low_s own_high_s limits_agree"
    assert of(told["evidence"][0], names) == near(2.5 * MS, 3.2 * MS, True)
    # Without a loader it is all that is done beside the model's work, by functions and by built-in
    # ones that the loop calls.
    for others_ms, wait_ms, low_ms in (
        ((), 4, 4),
        ((2,), 4, 2),
        ((1, 1.5), 4, 5 / 3),
        ((), 0, 5 / 3),
    ):
        (told,) = told_of(5, factor=3.0, others_ms=others_ms, wait_ms=wait_ms)
        assert of(told["evidence"][0], "own_low_s own_high_s") == ms(low_ms, 5)
    # A millisecond in a built-in function, on the loop's own lines, and lines that nobody followed.
    for known, low_ms in (
        ({"builtins": ((1.0, 1 * MS),)}, 4), ({"loop_ms": 1}, 3), ({"loop_ms": None}, 5 / 3),
    ):  # fmt: skip
        (told,) = told_of(5, factor=3.0, wait_ms=4, **known)
        assert [told["evidence"][0]["own_low_s"]] == ms(low_ms), known


def test_a_librarys_python_that_is_called_for_each_item_is_a_part_of_the_loop():
    for file, count, inner_us, is_in in (
        ("/lib/random.py", 8, 0.9, True), ("/lib/random.py", 7.9, 0.9, False),
        (TRAIN, 8, 0.9, False), ("/lib/torch/nn/x.py", 8, 0.9, False),
        ("/lib/numpy/x.py", 800, 0.9, False),
        # It decodes, say, and in less than 3 us an item it does not.
        ("/lib/PIL/x.py", 8, 1.1, False), ("/lib/pandas/x.py", 620, 1.1, True),
        ("/lib/pandas/x.py", 610, 1.1, False),
    ):  # fmt: skip
        (told,) = told_of(5, factor=3.0, libraries=[(file, count, 2, inner_us)])
        more_ms = (2 - 1e3 * count * PYTHON_S) * is_in
        low_high = of(told["evidence"][0], "own_low_s own_high_s")
        assert low_high == ms((5 + more_ms) / 3, 5 + more_ms), (file, count)
        # It is more than a tenth, and named.
        assert ("what libraries do for each" in told["title"]) is is_in
    for time_ms, is_named in ((0.56, True), (0.54, False)):
        libraries = [("/lib/random.py", 8, time_ms + 8e3 * PYTHON_S, 0.5)]
        (told,) = told_of(5, factor=1.5, libraries=libraries)
        assert ("what libraries do for each" in told["title"]) is is_named
        # The calibrated time of the function's row is of its own alone.
        assert [told["gain_s"]] == ms((5 + time_ms) / 1.5**0.5 if is_named else 4.0)
    # All of it is in the function's own part of a wait.
    known = {"libraries": [("/lib/random.py", 8, 2, 0.5)], "wait_ms": 6}
    (told,) = told_of(5, factor=3.0, **known)
    assert of(told["evidence"][0], "own_low_s own_high_s") == ms(6, 7 - 8e3 * PYTHON_S)


def test_short_built_in_calls_are_python():
    # A microsecond beyond cProfile's own cost of a call.
    short, long = ((1000.0, 1000 * (each + INNER_S)) for each in (0.99e-6, 1.01e-6))
    (told,) = told_of(2, factor=2.0, builtins=(short, long, (1000.0, 1000 * 0.5e-7)))
    assert of(told["evidence"][0], "own_low_s own_high_s") == ms(1 + 0.99, 2 + 0.99)
    assert gains_of(0.5, builtins=((2000.0, 2000 * 0.6e-6),)) == ms(1.5)
    assert gains_of(4, on_lines_ms=2.5) == ms(1.5)
    assert gains_of(4, on_lines_ms=3.8) == gains_of(4, on_lines_ms=4.8) == []


def module(path, kind, self_ms, flop=None, **more):
    """A row of modules, three tenths of its operations forward."""
    work = {} if flop is None else {"forward_flop": 0.3 * flop, "backward_flop": 0.7 * flop}
    return {"path": path, "type": kind, "self_s": self_ms * MS, **work, **more}


def judged(modules, points=(), *, uncounted=0.0, **more):
    """What is told of a traced step of 12.5 ms; points are kind, name, flop and bytes."""
    roofline = {"points": rows_of("kind name flop moved_bytes", *points)}
    flops = [{"uncounted": [{"operator": "x", "time_share": uncounted}]}]
    report = report_of(parts={"roofline": roofline}, modules=modules, flops=flops, **more)
    return asked(dominating, None, report, "modules")


def equals(*own_ms, slow=7.5, flop=1000, work=1000):
    """Modules with so much time of their own, and one that is slow."""
    rows = [module(f"Net.{at}", "Linear", each, flop) for at, each in enumerate(own_ms)]
    return [*rows, module("Net.slow", "Linear", slow, work)]


@cases(
    "severity modules",
    # Half of the step, and three times what equals take.
    *(("high", equals(0.5, 0.5, slow=6.251)), (None, equals(0.5, 0.5, slow=6.249))),
    *((None, equals(2.9, 2.9, slow=8)), ("high", equals(2.666, 2.666, slow=8))),
    # As big as its time; one equal alone; work that is not known; none of its kind.
    *((None, equals(0.5, 0.5, work=12_000)), (None, equals(0.5)), (None, [])),
    *((None, equals(0.5, 0.5, flop=None, work=None)), (None, equals(0.5, 0.5, work=None))),
    (None, [*equals(), module("(loss)", "Linear", 1.0, 1000)]),
)
def test_a_module_dominates_only_out_of_proportion(severity, modules):
    assert [each["severity"] for each in judged(modules)] == [severity] * (severity is not None)


# Its work may be what is not counted: an LSTM's, say.
@cases("bytes_share flop uncounted is_found",
       ".119 None 0. 1; .121 None 0. 0; .05 119. 0. 1; .05 121. 0. 0; .05 None .1 0",
       ".05 50. .1 1; 0. None 0. 0")  # fmt: skip
def test_a_module_without_equals_has_less_work(bytes_share, flop, uncounted, is_found):
    points = [("step", "step", 1000.0, 2000.0), ("module", "Net.norm", 0.0, 2000 * bytes_share)]
    modules = [module("Net.norm", "Norm", 7.5, flop), module("Net.fc", "Linear", 2.0, 1000)]
    found = judged(modules, points, uncounted=uncounted)
    assert len(found) == is_found
    for told in found:
        assert of(told, "module gain_s severity") == ["Net.norm", None, "medium"]
        shares = near((flop or 0.0) / 1000, bytes_share)
        assert of(told["evidence"][0], "flop_share bytes_share") == shares


def test_a_module_is_held_against_its_equals_by_host_or_device_time():
    (told,) = judged(equals(0.5, 0.6, 0.9, work=2000))
    # Twice the work of its equals is due 1.2 ms.
    assert of(told, "module gain_s") == near("Net.slow", (7.5 - 1.2) * 0.8 * MS)
    first, *others = told["evidence"]
    assert of(first, "fair_s step_share equals") == near(1.2 * MS, 0.6, 3)
    assert [each["module"] for each in others] == ["Net.2", "Net.1", "Net.0"]
    assert made.links(told)[0] == "modules/Net.slow"
    times = [("Net", "Net", 4.0, 7.0), *((f"Net.{at}", "Linear", 0.2, 0.3) for at in range(3))]
    rows = [
        module(path, kind, 0.1, 1000, forward_device_s=one * MS, backward_device_s=other * MS)
        for path, kind, one, other in [*times, ("Net.3", "Linear", 2.5, 5.0)]
    ]
    (told,) = judged(rows, device="cuda")
    assert of(told, "module gain_s") == near("Net.3", 7.0 * 0.8 * MS)
    assert judged(rows) == [], "on the host none has most of the step"
