"""The areas of the module hierarchy: exact sums, nothing below 0, and never too many."""

from __future__ import annotations

import random
from typing import Any

import pytest
from data_full_report import full
from data_report import build, row

from profstack.report.page import prepare
from profstack.report.trees import Metric, ModulePicture, call_tree, module_picture


def _picture(report: dict[str, Any], most: int = 2_000) -> ModulePicture:
    tables = report["tables"]
    picture = module_picture(tables["modules"], tables.get("peak_holders") or [], most)
    assert picture is not None
    return picture


def _metric(picture: ModulePicture, key: str) -> Metric:
    return next(metric for metric in picture.metrics if metric.key == key)


def _areas(picture: ModulePicture, key: str) -> dict[str, float]:
    """What a browser draws: each node's own and those inside it, by path."""
    own = _metric(picture, key).own
    sums = [value or 0.0 for value in own]
    paths: list[str] = []
    for name, parent in zip(picture.names, picture.parents, strict=True):
        paths.append(f"{paths[parent]}.{name}" if parent >= 0 else name)
    depth = [0] * len(sums)
    for at, parent in enumerate(picture.parents):
        depth[at] = depth[parent] + 1 if parent >= 0 else 0
    for at in sorted(range(len(sums)), key=lambda at: -depth[at]):
        if picture.parents[at] >= 0:
            sums[picture.parents[at]] += sums[at]
    return dict(zip(paths, sums, strict=True))


@pytest.mark.parametrize(
    ("key", "columns"),
    [
        ("calibrated_s", ["calibrated_s"]),
        ("forward_s", ["forward_s"]),
        ("backward_s", ["backward_s"]),
        ("flop", ["forward_flop", "backward_flop"]),
        ("parameters", ["parameters"]),
    ],
)
def test_a_modules_area_is_the_figure_of_its_row(key: str, columns: list[str]) -> None:
    report = full()
    areas = _areas(_picture(report), key)
    for record in report["tables"]["modules"]:
        if record["path"].startswith("(") and key == "forward_s":
            continue
        known = [record[column] for column in columns if record[column] is not None]
        if known:
            assert areas[record["path"]] == pytest.approx(sum(known), rel=1e-8), record["path"]


def test_self_times_add_up_to_forward_and_backward() -> None:
    report = build()
    areas = _areas(_picture(report), "self_s")
    for record in report["tables"]["modules"]:
        both = (record["forward_s"] or 0) + (record["backward_s"] or 0)
        assert areas[record["path"]] == pytest.approx(both, rel=1e-6)


def test_parts_outside_modules_have_no_forward_but_the_loss_has() -> None:
    report = build()
    rows = {record["path"]: record for record in report["tables"]["modules"]}
    areas = _areas(_picture(report), "forward_s")
    assert areas["(optimizer)"] == 0 < rows["(optimizer)"]["forward_s"]
    assert areas["(wait)"] == 0
    assert areas["(loss)"] == pytest.approx(rows["(loss)"]["forward_s"])
    assert _areas(_picture(report), "calibrated_s")["(optimizer)"] > 0


def test_memory_given_back_is_told_and_no_area_is_below_0() -> None:
    modules = [
        row("modules", path="Net", depth=0, host_net_bytes=100, self_s=1.0),
        row("modules", path="Net.a", depth=1, host_net_bytes=400, self_s=1.0),
        row("modules", path="Net.b", depth=1, host_net_bytes=-50, self_s=1.0),
        row("modules", path="Net.c", depth=1, host_net_bytes=30, self_s=1.0),
    ]
    picture = module_picture(modules, [])
    assert picture is not None
    memory = _metric(picture, "host_net_bytes")
    assert memory.own == [0, 400, 0, 30]
    # What is drawn less what lies below 0 is the root's own row.
    assert sum(value or 0 for value in memory.own) - memory.below == 100
    assert memory.below_count == 2


def test_shared_parameters_are_drawn_at_each_and_said() -> None:
    modules = [
        row("modules", path="Net", depth=0, parameters=1_000),
        row("modules", path="Net.embedding", depth=1, parameters=700),
        row("modules", path="Net.head", depth=1, parameters=700),
    ]
    picture = module_picture(modules, [])
    assert picture is not None
    parameters = _metric(picture, "parameters")
    assert _areas(picture, "parameters")["Net"] == 1_400
    assert (parameters.below, parameters.below_count) == (400, 1)


def test_a_container_that_never_ran_is_what_is_inside_it() -> None:
    modules = [
        row("modules", path="Net", depth=0, calibrated_s=1.0),
        row("modules", path="Net.h", depth=1),
        row("modules", path="Net.h.0", depth=2, calibrated_s=0.3),
        row("modules", path="Net.h.1", depth=2, calibrated_s=0.5),
    ]
    picture = module_picture(modules, [])
    assert picture is not None
    areas = _areas(picture, "calibrated_s")
    assert areas["Net.h"] == pytest.approx(0.8)
    assert areas["Net"] == pytest.approx(1.0)
    assert [metric.key for metric in picture.metrics] == ["calibrated_s"], "nothing else is known"


def test_the_peak_is_divided_among_those_who_made_its_bytes() -> None:
    report = full()
    holders = report["tables"]["peak_holders"]
    picture = _picture(report)
    metric = _metric(picture, "peak_bytes cpu")
    assert sum(value or 0 for value in metric.own) == sum(one["bytes"] for one in holders)
    areas = _areas(picture, "peak_bytes cpu")
    own = sum(one["bytes"] for one in holders if one["module"] == "Digits.features.2")
    assert areas["Digits.features.2"] == own
    nobodys = sum(one["bytes"] for one in holders if one["module"] is None)
    assert areas.get("(held by the script)", 0) == nobodys


def test_what_is_left_out_is_one_area_with_the_sum() -> None:
    modules = [row("modules", path="Net", depth=0, calibrated_s=55.0)]
    modules += [
        row("modules", path=f"Net.{number}", depth=1, calibrated_s=float(number))
        for number in range(1, 11)
    ]
    random.Random(3).shuffle(modules)
    picture = module_picture(modules, [], most=4)
    assert picture is not None
    assert picture.kinds == ["module"] * 4 + ["rest"]
    assert picture.counts[-1] == 7
    assert set(picture.names[1:4]) == {"8", "9", "10"}
    assert _metric(picture, "calibrated_s").own[-1] == 28
    assert _areas(picture, "calibrated_s")["Net"] == 55
    assert picture.total == 11


def test_ten_thousand_modules_are_bounded_and_still_add_up() -> None:
    modules = [row("modules", path="Big", depth=0, self_s=0.0, calibrated_s=0.0)]
    for number in range(10_000):
        path = f"Big.{number // 50}" + (f".{number % 50}" if number % 50 else "")
        modules.append(row("modules", path=path, depth=1, self_s=1e-4 * (1 + number % 97)))
    picture = module_picture(modules, [])
    assert picture is not None
    assert len(picture.names) <= 2_201, "2,000, and a rest for each of 200 parents at most"
    assert sum(picture.counts) == len(modules)
    whole = sum(record["self_s"] for record in modules)
    assert _areas(picture, "self_s")["Big"] == pytest.approx(whole, rel=1e-6)


def test_without_modules_there_is_no_picture() -> None:
    assert module_picture([], []) is None
    assert prepare(build()).module_picture is not None


def test_calls_that_the_graph_leaves_out_are_summed_at_both_ends() -> None:
    functions = [
        row("functions", file="f.py", line=number, name=f"f{number}", calls=1.0,
            self_s=0.0, total_s=3_000.0 - number)
        for number in range(2_500)
    ]  # fmt: skip
    calls = [
        row("calls", caller="f.py:0(f0)", callee=f"f.py:{number}(f{number})", calls=2.0,
            total_s=float(number))
        for number in range(1_990, 2_100)
    ] + [
        row("calls", caller=f"f.py:{number}(f{number})", callee="f.py:1(f1)", calls=1.0,
            total_s=0.5)
        for number in (5, 2_200, 2_300)
    ]  # fmt: skip
    tree = call_tree(functions, calls)
    assert len(tree.functions) == 2_000
    left = [number for number in range(1_990, 2_100) if number >= 2_000]
    assert tree.callees_left == [[0, len(left), 2 * len(left), sum(left)]]
    assert tree.callers_left == [[1, 2, 2, 1]]
