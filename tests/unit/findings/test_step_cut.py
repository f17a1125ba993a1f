"""Shares of a clean step by what its own thread did: each from the layer that knows it best."""

from types import SimpleNamespace

import pytest

from profstack.findings import step_cut
from profstack.findings.reading import CallGraph
from profstack.findings.step_cut import LONGER_STEPS, MORE_STEPS, after_step, io_time
from profstack.storage import vocabulary as own
from profstack.storage.reader import FEWEST_STEPS, LARGEST_FACTOR, Selection
from tests.support import findings as made
from tests.support.findings import MS, STEP_S, TRAIN, built_in, call, function, report_of
from tests.support.tables import cases, missing, near, rows_of

NET, CRITERION = 1, 2
PARTS = ["wait", "io", "python", "forward", "loss", "backward", "optimizer", "idle", "other"]
PARTS += ["after_step"]
# Forward and backward own shares of a traced step, without the wait; they are 0.9 of it.
TIMES = {NET: (0.25, 0.2), CRITERION: (0.06, 0.03), own.LOSS: (0.04, 0.0)}
TIMES |= {own.OPTIMIZER: (0.07, 0.0), own.ZERO_GRAD: (0.02, 0.0), own.BEFORE_OPTIMIZER: (0.03, 0.0)}
TIMES |= {own.ACCUMULATION: (0.0, 0.05), own.OUTSIDE: (0.04, 0.0), own.UNATTRIBUTED: (0.11, 0.0)}
# Operators of the traced step: name, module, whether backward, share, calls in a step.
OPERATORS = [("aten::mm", NET, 0, 0.18, 3.0), ("aten::mm", NET, 1, 0.15, 3.0)]
OPERATORS += [("aten::nll_loss", CRITERION, at, share, 1.0) for at, share in ((0, 0.05), (1, 0.03))]
OPERATORS += [("aten::add_", own.OPTIMIZER, None, 0.05, 2.0), ("aten::randn", None, 0, 0.04, 1.0)]
STEPS, WALL_S = 4, 0.05


def cut_of(wait=0.1, clean_wait=None, times=TIMES, operators=OPERATORS, loader=None, **more):
    """The cut of a clean step of 10 ms, by four traced steps of 12.5 ms; its shares are a whole.

    A loader has shares of the traced step: in all, and in operators.
    """
    times = ({own.WAIT: (wait, 0.0)} if wait else {}) | times
    owned = [(number, one * WALL_S, other * WALL_S) for number, (one, other) in times.items()]
    ran = [(name, None, *of, share * WALL_S, n * STEPS) for name, *of, share, n in operators]
    tables = {"module_times": rows_of("module_id forward_self_s backward_self_s", *owned)}
    tables["operators"] = rows_of("name shapes module_id backward self_s calls", *ran)
    kinds = [(NET, "Net", 9), (CRITERION, "MyCriterion", 0), (3, "LossyNet", 0), (4, "Loss", 5)]
    tables["modules"] = rows_of("module_id type parameters", *kinds)
    timed, table = Selection([1], "timed", STEPS, WALL_S), tables.__getitem__
    asked = {"select": lambda layer, modes: timed, "rows": lambda name, selection: table(name)}
    recording = SimpleNamespace(table=table, **asked)
    halves = [(each * 12.5 * MS / 2) for each in loader or (0.0, 0.0)]
    regions = [(f"enumerate(DataLoader)#{part}", *halves) for part in "ab" if loader]
    if collective_s := more.pop("collective_s", 0.0):
        regions += [("gloo:all_reduce", collective_s * 0.7, None)]
        regions += [("NCCL:broadcast", collective_s * 0.3, None)]
    steps = [{"index": 3, "wait_s": clean_wait and clean_wait * STEP_S, "wall_s": STEP_S}] * 3
    if asked := more.pop("asked", None):
        known = zip(("before_loader_s", "loader_s"), asked, strict=True)
        steps = [steps[0] | {name: share * STEP_S for name, share in known}] * 3
    effect = [{"layer": "torch", "factor": 1.25, "note": None, "ci95_low": 1.1, "ci95_high": 1.4}]
    parts = {"probe_effect": effect, **(more.pop("parts", None) or {})}
    regions = rows_of("path wall_s operator_s", *regions)
    report = report_of(parts=parts, regions=regions, steps=steps, **more)
    cut = step_cut.host_cut(recording, report)
    if cut is not None and cut.torch:
        assert sum(shares(cut).values()) == pytest.approx(1.0 if wait else 0.9)
    return cut


def shares(cut):
    return {name: getattr(cut, name) for name in PARTS if getattr(cut, name)}


# The Python of the parts: what no operator covers, forward, in the optimizer and the loss.
PYTHON = 0.07 + 0.01 + 0.04 + (0.02 + 0.02 + 0.03) + 0.11


def test_a_step_is_cut_by_owner_and_by_what_operators_cover():
    cut = cut_of()
    assert (cut.torch, cut.median_s, cut.wait_is) == (True, STEP_S, "calibrated")
    assert (cut.has_loader, cut.scale) == (False, 1.0)
    expected = {"wait": 0.1, "python": PYTHON, "forward": 0.18, "loss": 0.05, "backward": 0.28}
    assert shares(cut) == pytest.approx(expected | {"optimizer": 0.05, "other": 0.04})
    assert (cut.io, cut.idle, cut.communication, cut.after) == (None, None, 0.0, None)
    # What the clean steps waited takes precedence and scales the rest.
    cut = cut_of(clean_wait=0.19)
    assert (cut.wait_is, cut.scale) == ("clean", pytest.approx(0.83 / 0.9))
    # 0.02 of it set gradients to zero: without it the clean wait is nearer to the traced one.
    nearer, scale = cut_of(clean_wait=0.13), 0.89 / 0.9
    found = [nearer.wait, nearer.scale, nearer.forward, nearer.python]
    assert found == near(0.11, scale, 0.18 * scale, PYTHON * scale)
    cut = cut_of(clean_wait=0.3, parts={"probe_effect": []})
    assert (cut.torch, cut.wait_is, shares(cut)) == (False, "clean", pytest.approx({"wait": 0.3}))
    assert "not known" in cut.torch_reason
    assert cut_of(parts={"benchmark": {"median_s": None}}) is None
    assert cut_of(0).wait == 0.0


@cases(
    "clean traced zeroed outside wait",
    # Functions worked there, too; the torch layer's has waits within the step.
    ".3 .25 0 0 .3; .3 .25 .08 0 .22; .3 .25 .11 0 .3; .3 .25 0 .05 .3; .3 .25 0 .051 None",
    ".126 .25 0 0 .126; .124 .25 0 0 None; 0 0 0 0 0; 1.2 .9 0 0 1; None .25 0 0 None",
)
def test_the_clean_wait_is_less_what_others_have_of_it(clean, traced, zeroed, outside, wait):
    assert step_cut.wait_alone(clean, traced, zeroed, outside) == pytest.approx(wait)


def test_the_wait_is_of_all_counted_steps_and_for_a_loader():
    rows = [(1, 2.0, 10.0), (2, 3.0, 20.0), (3, 9.0, 10.0), (4, None, 10.0), (5, 1.0, 30.0)]
    steps = rows_of("index wait_s wall_s", *rows)
    report = report_of(parts={"benchmark": {"counted_steps": [1, 2, 4, 5]}}, steps=steps)
    assert step_cut.clean_wait_share(report) == pytest.approx(6 / 60)
    report["benchmark"]["counted_steps"] = [1, 2]
    assert step_cut.clean_wait_share(report) is None
    assert step_cut.clean_wait_share(report, fewest=2) == pytest.approx(5 / 30)
    loader = (0.08, 0.01)
    cut = cut_of(loader=loader)
    found = [cut.has_loader, cut.wait, cut.python, cut.other]
    assert found == near(True, 0.08, PYTHON + 0.02, 0.04)
    # The clean steps' own figures take precedence: the torch layer slows the loader and no sleep.
    cut = cut_of(loader=loader, clean_wait=0.2, asked=(0.06, 0.11))
    scale = 0.82 / 0.9
    found = [cut.wait, cut.before_beside_loader, cut.python, cut.forward]
    assert found == near(0.11, 0.07, PYTHON * scale + 0.07, 0.18 * scale)
    assert cut_of(loader=loader, clean_wait=0.04, asked=(0.01, 0.02)).wait == pytest.approx(0.08)
    # No more than the wait. The calls of a benchmark wait for no data.
    bench = cut_of(parts={"benchmark": {"target": "f"}})
    waits = [cut_of(loader=loader, clean_wait=0.2).wait, cut_of(loader=(0.72, 0.0)).wait]
    assert [*waits, bench.wait, bench.other] == near(0.18 * 0.8, 0.1, 0.0, 0.04 + 0.1)


@cases("seconds is_small", "10.01e-6 False; 9.99e-6 True; 19e-6 False; 6e-6 True")
def test_operators_of_ten_microseconds_are_mostly_their_call(seconds, is_small):
    # A fifth of the clean step in calls of so many seconds, forward and backward.
    calls = 0.1 * STEP_S / seconds
    rows = [("aten::add", NET, back, 0.1, calls) for back in (0, 1)]
    rows += [("aten::add", None, 0, 0.04, 9000.0), ("aten::mm", NET, 0, 0.05, 2.0)]
    cut = cut_of(operators=rows)
    assert [cut.small, cut.small_calls] == near(0.2 * is_small, 2 * calls * is_small)


def writing(share, by=None):
    """Rows of cProfile in which a function writes to a file for a share of the clean step."""
    write = built_in("<method 'write' of '_io.BufferedWriter' objects>", share * STEP_S / 0.8)
    save = by or function("save", 0.0, line=9)
    return {"functions": [write, save], "calls": [call(save, write, 1.0)]}


def test_reading_and_writing_is_known_by_name_and_divided_among_callers():
    fetch = function("fetch", 0.0, file="/lib/torch/utils/data/_utils/fetch.py")
    load, main = function("load", 0.1, line=9), function("main", 0.0, line=40)
    read = built_in("<method 'read' of '_io.BufferedReader' objects>", 4.0, calibrated_s=4.0)
    write = built_in("<built-in method posix.write>", 1.0, calibrated_s=0.5)
    edges = [call(fetch, load, 3.0), call(main, load, 1.0), call(load, load, 9.0)]
    edges += [call(load, read, 4.0), call(main, write, 1.0)]
    found = io_time(CallGraph(report_of(functions=[read, write, load, main], calls=edges)))
    # Three quarters of the reading below `load` belong to a data set.
    assert found.seconds == pytest.approx(1.5)
    assert (found.function["name"], found.heaviest) == ("load", made.row("functions", **read))
    # What a data set's own reads load is no file of the script.
    assert cut_of(**writing(0.2, function("fetch", 0.0, file=made.LOADER))).io == 0.0


def idle_cut(off_ms, **more):
    processes = {"off_cpu_s": off_ms and off_ms * MS, "no_core_s": 1 * MS, "step_s": 20 * MS}
    return cut_of(parts={"processes": processes}, **more)


def test_a_thread_that_does_not_run_is_idle_where_no_operator_covers_it():
    # Of mean steps of 20 ms 6 are idle beyond the lack of a core: 0.3, less a wait of 0.1.
    cut, engine = idle_cut(7), (0.2 - 0.15) + 0.05
    left = 1 - 0.2 / (PYTHON + engine)
    assert [cut.idle, cut.python, cut.backward] == near(0.2, PYTHON * left, 0.18 + engine * left)
    # More than no operator covers is nowhere; files explain it, too.
    most = idle_cut(19)
    assert [most.idle, most.python, most.backward] == near(PYTHON + engine, 0.0, 0.18)
    assert idle_cut(7, **writing(0.2)).idle == pytest.approx(0.1)
    assert [idle_cut(off_ms).idle for off_ms in (None, 0.5, 3.0)] == [None] * 3
    # Collectives: at most Python and what no operator covers of the backward pass.
    for ms, share in ((1.25, 0.1), (12.0, PYTHON + 0.1)):
        cut = cut_of(collective_s=ms * MS)
        assert [cut.communication, cut.communication_name] == near(share, "gloo:all_reduce")


LOOP = """
import math
import torch

def measured(values):
    return sum(values)

hist = []
for x in source:
    loss = net(x).sum()
    loss.backward()
    optimizer.step()
    {after}
"""
STEP, AFTER = 12, 13


def looped(after, text=LOOP):
    """6 ms go by on the line after the optimizer's step, 2 ms on the loop's."""
    rows = [("(optimizer)", STEP, 1 * MS, 0.0), ("(optimizer)", 3, 0.5 * MS, 0.0)]
    rows += [(None, STEP - 3, 2 * MS, 0.0), ("(wait)", AFTER, 4.5 * MS, 1.5 * MS)]
    rows += [("Net", AFTER, 99.0, 99.0)]
    lines = rows_of("module line python_s operator_s", *rows, file=TRAIN)
    found = {"module_lines": lines, "lines": lines, "functions": [function("measured", 6 * MS)]}
    return found | {"parts": {"sources": [{"file": TRAIN, "text": text.format(after=after)}]}}


def test_what_no_step_reads_is_no_input_and_no_wait():
    mixed = "p = torch.sigmoid(x).numpy(); hist.append(math.log(p.mean()))"
    for after in ("hist.append(float(loss))", mixed, "total += loss.item()"):
        found, expected = after_step(report_of(**looped(after))), near(6 / 8, 4.5 / 6, AFTER)
        assert [found.share, found.outside_operators, found.line["line"]] == expected
    # What the next step works on, by its name or within what it has; what is in no loop.
    inputs = ("x = draw()", "source.append(draw())", "evaluate(source)", "source[0] = draw()")
    texts = [(after, LOOP) for after in (*inputs, "optimizer.zero_grad()")]
    texts.append(("hist.append(1)", LOOP.replace("for x in source", "if x")))
    assert [after_step(report_of(**looped(*each))) for each in texts] == [None] * 6


def test_what_follows_the_optimizers_step_is_taken_from_the_wait_and_from_python():
    rows, after = looped("hist.append(1)"), 0.075
    cut = cut_of(**rows)
    found = [cut.wait, cut.after_python, cut.python, cut.other, cut.after_step]
    assert found == near(0.1 / 4, after * 0.75, PYTHON, 0.04, after)
    # Beside a loader it is in what the loader does not explain: half of the wait.
    cut = cut_of(**rows, loader=(0.04, 0.0))
    assert [cut.before_beside_loader, cut.wait, cut.after_step] == near(0.06, 0.04, 0.06)
    # The loop asks for its batch after it: the clean steps tell how long that is.
    cut = cut_of(**rows, loader=(0.04, 0.0), clean_wait=0.1, asked=(0.02, 0.05))
    assert [cut.wait, cut.after_step, cut.after_python] == near(0.05, 0.02, 0.015)
    # Not all of that where something else comes before: it is the upper limit of the lines' share.
    for text in (LOOP.replace("for x in source", "while True"), LOOP + "    x = draw()\n"):
        rows = looped("hist.append(1)", text)
        for before, taken in ((0.02, 0.02), (0.09, 0.075)):
            asked = (before, 0.01)
            cut = cut_of(**rows, loader=(0.04, 0.0), clean_wait=0.1, asked=asked)
            assert cut.after_step == pytest.approx(taken)
    # Without the loader's ranges no more than the wait.
    cut = cut_of(**looped("hist.append(1)"), clean_wait=0.1, asked=(0.2, 0.01))
    assert [cut.wait, cut.after_step] == near(0.0, 0.1)


TIMED = Selection([1], "timed", FEWEST_STEPS, 0.03)
WATCHED, NSYS = {"slices": [{"kind": "watch"}]}, {"warnings": [{"slug": "under-nsys"}]}


def effect(factor=1.2, **more):
    known = {"layer": "torch", "factor": factor, "note": None, "ci95_low": 1.1, "ci95_high": 9.0}
    return {"probe_effect": [known | more]}


def layer(status, reason=None, name="torch"):
    return {"layers": [{"name": name, "status": status, "reason": reason}]}


@cases("timed parts words step",
       *((TIMED, effect(), None, None), (TIMED, effect(LARGEST_FACTOR), None, None)),
       (TIMED, effect(LARGEST_FACTOR * 1.04), "slowed its steps 3.1 times", MORE_STEPS),
       (TIMED, effect(4.5) | WATCHED, "slowed its steps 4.5 times", LONGER_STEPS),
       *((TIMED, {}, "not known", MORE_STEPS), (TIMED, WATCHED, "not known", None)),
       (Selection([1], "timed", FEWEST_STEPS - 1, 0.03), effect(), "2 steps and 3", MORE_STEPS),
       (None, layer("recorded", name="watch"), "not asked for", "--layers"),
       (None, layer("skipped", "x") | NSYS, "skipped (x)", "without nsys"))  # fmt: skip
def test_why_the_torch_layer_says_nothing_and_what_helps(timed, parts, words, step):
    reason, what = step_cut.unusable(timed, made.completed(parts))
    assert (reason is None, what is None) == (words is None, step is None)
    assert not missing(reason or "", words or "") + missing(what or "", step or "")
