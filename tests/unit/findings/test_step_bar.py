"""The clean step as one bar whose parts add up to its median."""

import pytest

from profstack.findings import step_bar
from profstack.findings.reading import key_of, to_function
from profstack.findings.step_bar import AFTER, BEFORE, MAKING, NAMES, NO_CLEAN, REST, device_cut
from profstack.findings.step_cut import Cut, IoTime
from tests.support.findings import MS, STEP_S, built_in, call, function, row
from tests.support.findings import report_of as made_report
from tests.support.tables import near, of, rows_of

HOST = {"forward": 0.21, "loss": 0.03, "backward": 0.24, "optimizer": 0.06, "python": 0.17}
HOST |= {"io": 0.04, "idle": 0.02, "other": 0.11}


def cut_of(**changes):
    """A cut that knows all of a step of 10 ms but a part that the changes leave."""
    return Cut(**{"median_s": STEP_S, "torch": True, "wait": 0.12, **HOST, **changes})


def bar_of(cut, device=None, report=None):
    return step_bar.step_bar(report or made_report(), cut, device)


def by_name(bar, column="share"):
    return {part["name"]: part[column] for part in bar["parts"]}


def test_the_bar_has_every_part_in_the_order_of_a_step():
    bar, names = bar_of(cut_of()), {"python": "Python", "io": "I/O"}
    expected = {BEFORE: 0.12} | {names.get(name, name): HOST[name] for name in HOST}
    assert by_name(bar) == pytest.approx(expected)
    assert list(by_name(bar)) == [name for name in NAMES if name in expected]
    assert of(bar, "median_s time_line reason note") == [STEP_S, "host", None, None]
    assert {part["is"] for part in bar["parts"]} == {"calibrated"}
    clean = by_name(bar_of(cut_of(wait_is="clean", has_loader=True)), "is")
    assert [*clean.items()][:2] == [("data wait", "clean"), ("forward", "calibrated")]
    # What is known to make the batch, and what follows the optimizer's step, have names of theirs.
    own = bar_of(cut_of(wait_is="clean", makes_batch=True, python=0.07, after_step=0.1))
    assert [by_name(own)[AFTER], by_name(own)[MAKING]] == pytest.approx([0.1, 0.12])
    # A rest of a hundredth is explained.
    for rest, is_told in ((0.0102, True), (0.0098, False), (0.019, True), (0.006, False)):
        bar = bar_of(cut_of(other=0.11 - rest))
        assert by_name(bar)[REST] == pytest.approx(rest)
        assert bool(bar["reason"]) is (f"{100 * rest:.0f} %" in (bar["reason"] or "")) is is_told
    # Without the torch layer the wait is all that is known.
    bar = bar_of(cut_of(torch=False, torch_reason="it was late"))
    assert by_name(bar) == pytest.approx({BEFORE: 0.12, REST: 0.88})
    assert "it was late" in bar["reason"]
    assert of(bar_of(None), "parts reason median_s") == [[], NO_CLEAN, None]


def test_without_the_torch_layer_the_watchs_samples_divide_the_step():
    known = {"torch": False, "torch_reason": "it was late", "wait_is": "clean"}
    half = {"forward": 0.5, "other": 0.5}
    for wait, sampled, expected in (
        (0.12, half, {BEFORE: 0.12, "forward": 0.5, "other": 0.38}),
        (0.6, half, {BEFORE: 0.5, "forward": 0.5}),
        (0.2, {"data wait": 0.5, "loss": 0.1, "backward": 0.4},
         {"data wait": 0.2, "loss": 0.16, "backward": 0.64}),
    ):  # fmt: skip
        report = made_report() | {"watch": {"step_parts": sampled}}
        bar = bar_of(cut_of(**known, wait=wait), report=report)
        assert by_name(bar) == pytest.approx(expected)
        wait_is = {"data wait": "clean", BEFORE: "clean"}
        assert by_name(bar, "is") == {name: wait_is.get(name, "sampled") for name in expected}


def test_the_wait_has_one_time_and_parts_have_links():
    report = made_report(modules=[{"path": "(wait)", "calibrated_s": 1.3 * MS}])
    report["step_bar"] = bar_of(cut_of(), report=report)
    step_bar.align_wait(report)
    waits = [part["seconds"] for part in report["step_bar"]["parts"] if part["name"] == BEFORE]
    assert [report["tables"]["modules"][0]["calibrated_s"]] == waits != [1.3 * MS]
    # Much that is other is named by its lines, where two of them have half of it.
    lines = [("Net", 4, 9.0), (None, 7, 1.0), (None, 9, 2.0), ("(outside modules)", 9, 1.4)]
    lines = rows_of("module line operator_s", *lines, (None, 8, 2.2), file="/app/train.py")
    report = made_report(module_lines=lines)
    notes = [bar_of(cut_of(other=other), report=report)["note"] for other in (0.05, 0.049)]
    assert (notes[0][-25:], notes[1]) == ("train.py:9 and train.py:8", None)
    paths = [("Small", 0, 9, 1.0), ("Net", 0, 9, 2.0), ("Free", 0, 0, 5.0), ("Net.fc", 1, 9, 9.0)]
    paths += [(path, 0, None, 9000.0) for path in ("(wait)", "(optimizer)", "(loss)")]
    modules = rows_of("path depth parameters forward_s", *paths)
    modules = [each | {"type": each["path"]} for each in modules]
    walk, save = function("walk", 2 * MS), row("functions", **function("save", 1 * MS, line=9))
    report = made_report(modules=modules, functions=[walk])
    links = by_name(bar_of(cut_of(io_time=IoTime(1.0, None, save)), report=report), "link")
    expected = {"forward": "Net", "backward": "Net", "loss": "(loss)", "optimizer": "(optimizer)"}
    expected = {name: f"modules/{path}" for name, path in (expected | {BEFORE: "(wait)"}).items()}
    functions = {"Python": to_function(key_of(walk)), "I/O": to_function(key_of(save))}
    functions["idle"] = "method/threads"
    assert links.items() >= (expected | functions).items()


def device_report(gaps=(), kernels=(), modules=()):
    """Two traced steps of 4 ms on a device, beside one that is less busy; figures in ms."""
    steps = [("cuda:0", ms, 4 - ms) for ms in (3.0, 3.4)]
    steps += [("cuda:1", 1, 9), (None, 9000, 0.0), ("cuda:0", None, 0.0)]
    gaps = [("cuda:1", "host late", 9.0), *(("cuda:0", cause, ms) for cause, ms in gaps)]
    columns = "path type parameters forward_device_s backward_device_s"
    tables = {"launches": rows_of("device device_busy_s device_idle_s", *steps)}
    tables |= {"gaps": rows_of("device cause total_s", *gaps)}
    tables |= {"kernels": rows_of("name device_s", *kernels)}
    return made_report(**tables, modules=rows_of(columns, *modules, depth=0))


GAPS = (("data wait", 0.3), ("host late", 0.2), ("start of step", 0.1), ("copy", 0.2))
MODULES = [("Net", "Net", 9, 0.8, 1.1), ("CE", "CELoss", 0, 0.1, 0.0)]
MODULES += [("Head", "LossNet", 7, 0.05, 0.0)]
ROWS = {"(loss)": 0.04, "(optimizer)": 0.3, "(zero_grad)": 0.05, "(gradient accumulation)": 0.06}
MODULES += [(path, "", None, ms, 0.0) for path, ms in (ROWS | {"(outside modules)": 0.1}).items()]


def test_on_a_device_the_bar_is_the_busiest_devices_time():
    report = device_report(gaps=GAPS, modules=MODULES)
    device = device_cut(report)
    # Busy for 3.2 of 4 ms in the mean.
    assert (device.data_wait, device.host_late) == pytest.approx((0.075, 0.075))
    bar = bar_of(cut_of(wait_is="clean"), device, report)
    expected = {"forward": 0.85, "loss": 0.14, "optimizer": 0.35, "backward": 1.16, "idle": 0.5}
    expected |= {"data wait": 0.3, "other": 0.1 + 3.2 - 2.6}
    assert by_name(bar) == pytest.approx({name: ms / 4 for name, ms in expected.items()})
    assert of(bar, "time_line note reason") == ["device", None, None]
    assert bar_of(cut_of(torch=False), device, report)["time_line"] == "host"
    # Collectives count as far as nothing else runs: products explain the first figure of 3.2 ms.
    for gemm, name, ms, share in (
        *((1.0, "ncclAllReduce", 2.9, 2.2 / 4), (2.0, "ncclAllReduce", 0.5, 0.5 / 4)),
        *((3.6, "NCCLAllReduce", 2.9, 0.0), (1.0, "ncclAllReduce", None, 0.0)),
    ):
        kernels = [("gemm", gemm), (name, ms), *([("rcclX", 0.1)] if share > 0.5 else [])]
        cut = device_cut(device_report(kernels=kernels))
        assert of(vars(cut), "communication communication_name") == near(share, ms and name)


SLEEP = "<built-in method time.sleep>"


def idle_words(idle, shares, self_ms=3.0):
    hold, held = function("hold", 0.0, line=9), built_in(SLEEP, self_ms * MS)
    functions = [hold, held, function("f", 9 * MS)]
    report = made_report(functions=functions, calls=[call(hold, held, 1.0)])
    return step_bar.idle_sentence(report, cut_of(), "a step", idle, shares)


def test_a_thread_that_is_idle_for_longer_than_any_cause_is_unclear():
    for idle, shares, is_told in (
        *((0.3, [0.2, 0.1], True), (0.299, [0.2, 0.1], False), (0.5, [0.5, 0.1], False)),
        # What is not known could be a tenth, or longer than the thread is idle.
        *((0.5, [0.499, 0.0], True), (0.4, [0.3, 0.2, None], True), (0.4, [0.15, 0.0], True)),
        *((0.4, [0.15, 0.0, None], False), (0.6, [None], True)),
    ):
        words = idle_words(idle, shares)
        assert (words is not None) is is_told
        assert words is None or f"{100 * idle:.0f} % of a step" in words
    # The idle time has a place where one function has half of it.
    assert " in time.sleep (hold, train.py:9)" in idle_words(0.5, [0.0], self_ms=2.5)
    assert "its thread is idle, which" in idle_words(0.5, [0.0], self_ms=2.4)
