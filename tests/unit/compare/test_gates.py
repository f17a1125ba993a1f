"""Gates: what a rule says, both sides of its limit, and the figures that it is about."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from profstack.compare.gates import Evidence, judge, parse, step_limits
from profstack.compare.sides import Side
from profstack.errors import UsageError
from tests.support.tables import cases, rows_of

OPERATORS = {"aten::mm": (0.003, 0.001), "aten::add": (0.0004,)}
MODULES = {"Net": 0.006, "Net.encoder.0": 0.003, "Net.head": 0.0005}


def report(scale=1.0, **figures):
    """A report of a step of 10 ms, all times multiplied by `scale`; `figures` replace others."""
    modules = [(path, scale * s) for path, s in figures.get("modules", MODULES).items()]
    named = figures.get("operators", OPERATORS).items()
    operators = [(name, str(at), scale * s) for name, all_s in named for at, s in enumerate(all_s)]
    owners = [("cpu", "parameters", 600.0), ("cpu", "inputs", 424.0), ("cuda:0", "inputs", 5.0)]
    parts = {"start-up and imports": 2.0, "model and data set-up": 0.5, "steps": 3.0}
    parts["profstack"] = 8.0
    mark = {"median_s": scale * 0.01, "p99_s": scale * 0.02, "steps_per_s": 100 / scale}
    return {
        "benchmark": mark | {"items_per_s": figures.get("rate", 3200 / scale)},
        "run_bar": [{"part": name, "wall_s": scale * value} for name, value in parts.items()],
        "findings": figures.get("findings", 2),
        "tables": {
            "modules": rows_of("path calibrated_s", *modules, forward_s=9.0, backward_s=None),
            "operators": rows_of("name shapes calibrated_s", *operators, self_s=7.0, module=None),
            "memory_owners": rows_of("device kind peak_bytes", *owners),
            "flops": [{"forward_flop": figures.get("flop", 4e6), "backward_flop": 8e6}],
        },
    }


def judged(rule, after, *, reach=0.0, before=None, **more):
    """The result of a rule; `reach` is that of the ratio and of every difference, relative."""

    def reaches(before, after, whole, *, exact):
        both = [SimpleNamespace(values=rows.mean(axis=1)) for rows in (before, after)]
        scale = 0.0 if exact else float(both[0].values[0])
        return (*both, np.array([reach * scale]))

    noise = SimpleNamespace(ratio_reach=lambda of: reach, reaches=reaches)
    before = before or report()
    sides = Side("a", [before]), Side("b", [after])
    more["counts"] = before["findings"], after["findings"]
    return judge([parse(rule)], Evidence(*sides, noise, more.pop("modules", {}), **more))[0]


@cases(
    "rule kept broken",
    ("step > 5%", report(1.049), report(1.051)),
    ("step > -5%", report(0.949), report(0.951)),
    ("step > 11 ms", report(1.099), report(1.101)),
    ("step > +500us", report(1.049), report(1.051)),
    ("run > 6 s", report(1.09), report(1.1)),
    ("throughput < 5%", report(rate=3041), report(rate=3039)),
    ("Throughput < +5%", report(rate=3361), report(rate=3359)),
    ("throughput < 3 k/s", report(rate=3001), report(rate=2999)),
    ("p99 > 21 ms", report(1.04), report(1.06)),
    ("peak_memory > 1 KiB", report(), None),
    ("peak memory > 1023 B", None, report()),
    ("FLOP > +0", report(), report(flop=4e6 + 1)),
    ("flop > 12.5M", report(flop=4.4e6), report(flop=4.6e6)),
    ("start-up > 2.6 s", report(1.039), report(1.041)),
    ("findings > 2", report(findings=2), report(findings=3)),
    ("module: encoder.0 > 3.1ms", report(1.03), report(1.04)),
    ("operator:aten::mm > 4.1 ms", report(1.02), report(1.03)),
)
def test_a_rule_is_kept_on_one_side_of_its_limit_and_broken_on_the_other(rule, kept, broken):
    for after, result in ((kept, "kept"), (broken, "broken")):
        assert after is None or judged(rule, after)["result"] == result


def test_noise_breaks_no_rule_and_keeps_none():
    reach = 0.02
    limits = ((1.029, "kept"), (1.03, "unclear"), (1.071, "unclear"), (1.072, "broken"))
    for scale, result in limits:
        found = judged("step > 5%", report(scale), reach=reach)
        assert (scale, found["result"]) == (scale, result)
    change = judged("step > 5%", report(1.1), reach=reach)["change"]
    assert change["low"] == pytest.approx(0.01 * (1.1 * math.exp(-reach) - 1.0))
    assert change["high"] == pytest.approx(0.01 * (1.1 * math.exp(reach) - 1.0))
    for scale, result in ((0.92, "broken"), (0.94, "unclear"), (0.98, "kept")):
        rule = "throughput < 5%"
        assert judged(rule, report(rate=3200 * scale), reach=reach)["result"] == result
    # Counts of one recording a side are exact, however noisy the machine.
    assert judged("FLOP > +0", report(), reach=0.5)["result"] == "kept"


def test_throughput_is_of_items_where_every_recording_has_them_and_else_of_steps():
    for before, after, rates in (
        (report(rate=3200), report(rate=3100), (3200, 3100)),
        (report(rate=3200), report(1.25, rate=None), (100, 80)),
        (report(0.5, rate=None), report(rate=3200), (200, 100)),
    ):
        change = judged("throughput < 5%", after, before=before)["change"]
        assert (change["before"], change["after"]) == rates


def test_what_was_not_measured_or_was_not_there_before_is_unclear_with_a_reason():
    later = report()
    later["benchmark"]["p99_s"] = None
    found = judged("p99 > 5%", later)
    assert (found["result"], found["change"]["after"]) == ("unclear", None)
    assert "the second side" in found["text"]
    gone = judged("operator:aten::add > 5%", report(operators={"aten::mm": (1,)}))
    assert (gone["result"], gone["change"]["after"]) == ("kept", 0.0)
    fresh = judged("operator:new > 5%", report(operators={"new": (0.1,)}))
    assert (fresh["result"], fresh["change"]["before"]) == ("unclear", 0.0)
    assert judged("operator:new > 50ms", report(operators={"new": (0.1,)}))["result"] == "broken"


def test_a_module_is_found_by_its_end_and_through_a_new_name():
    moved = report(modules={"DataParallel.module.head": 0.001})
    partners = {"DataParallel.module.head": "Net.head"}
    for name in ("module.head", "Net.head"):
        found = judged(f"module:{name} > 5%", moved, modules=partners)
        assert (found["change"]["before"], found["change"]["after"]) == (0.0005, 0.001)


@cases(
    "rule said",
    ("stp > 5%", "figures are step, run, throughput, p99, peak memory, FLOP, start-up"),
    ("step >= 5%", "it is no limit"),
    ("step > 5", "needs a unit: %, ns,"),
    ("step > 5 MiB", "MiB is no unit of step; its units are %, ns"),
    ("module: > 5%", "names no module"),
    ("module:nothing > 5%", "neither side has the module nothing"),
    ("operator:aten::nm > 5%", "did you mean aten::mm"),
)
def test_a_wrong_rule_says_what_can_be_written(rule, said):
    with pytest.raises(UsageError) as refused:
        judged(rule, report())
    assert said in str(refused.value)
    assert rule in str(refused.value)


def test_a_broken_rule_points_at_the_largest_part_in_its_direction():
    parts = rows_of(
        "of name difference_s beyond_noise file line",
        ("step", "forward", 0.001, True, "/app/net.py", 8),
        ("step", "wait", 0.002, True, "/app/loader.py", 41),
        ("step", "backward", 0.009, False, "/app/x.py", 1),
        ("step", "optimizer", -0.004, True, "/app/train.py", 57),
        ("run", "start-up and imports", 5.0, True, "/app/train.py", 3),
    )
    found = judged("step > 5%", report(1.2), parts=parts)
    assert (found["file"], found["line"]) == ("/app/loader.py", 41)
    assert "loader.py:41" in found["text"]
    assert judged("throughput < 5%", report(1.2), parts=parts)["line"] == 41
    assert judged("step > -50%", report(0.9), parts=parts)["line"] == 57
    assert judged("start-up > 5%", report(1.2), parts=parts)["line"] == 3
    assert judged("step > 50%", report(1.2), parts=parts)["file"] is None
    found = judged("module:head > 5%", report(1.2), module_place={"Net.head": ("/a/n.py", 7)}.get)
    assert (found["file"], found["line"]) == ("/a/n.py", 7)
    new = {"kind": "finding", "status": "new", "file": "/app/a.py", "line": 5}
    findings = [{**new, "status": "gone", "line": 4}, {**new, "kind": "warning"}, new]
    assert judged("findings > 2", report(findings=3), findings=findings)["line"] == 5


def test_a_broken_rule_of_an_operator_points_at_the_module_in_which_it_changed_most():
    def made(**times):
        same = {"name": "aten::mm", "calibrated_s": None}
        rows = [{**same, "module": name, "self_s": seconds} for name, seconds in times.items()]
        found = report()
        return found | {"tables": {**found["tables"], "operators": rows}}

    # Net.new is Net.old of before: it took three times as long, and is the smaller of both.
    before = made(**{"Net.a": 0.004, "Net.old": 0.001})
    after = made(**{"Net.a": 0.005, "Net.new": 0.003})
    places = {"Net.a": ("/a/n.py", 1), "Net.new": ("/a/n.py", 2)}
    more = {"modules": {"Net.new": "Net.old"}, "module_place": places.get}
    assert judged("operator:aten::mm > 5%", after, before=before, **more)["line"] == 2


def test_relative_limits_of_steps_are_what_is_measured_for():
    rules = ["step > 5%", "step > 300 ms", "run > 1%", "step > 5 %", "step > -2.5%"]
    assert step_limits(map(parse, rules)) == pytest.approx([0.975, 1.05])
