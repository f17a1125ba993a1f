"""Tables and series of the page: headings, order, cuts, sums, and figures of layers beside them."""

import random

import pytest

from profstack.report import page_tables as module
from profstack.report.page_tables import MOST_ROWS, compact, page_table, step_series, weight
from profstack.storage.schema.column import Column
from tests.support.reports import build, row
from tests.support.tables import cells

NAN = float("nan")
NOTES = {"columns_reason": {}, "columns_source": {}}


def test_values_are_as_short_as_can_be():
    for value, told in (
            (0.0039500532345678, 0.00395005323), (64.0, 64), (38928384.0, 38928384),
            (900000000000064.0, 900000000000064), (1100000000000064.0, 1100000000000064.0),
            (123456789.25, 123456789), (NAN, None), (None, None), ("a", "a"), (["a", 3], "a, 3"),
            ([{"operator": "mul", "calls": 2.0, "share": None}, "x"], "operator mul calls 2, x"),
    ):  # fmt: skip
        assert (compact(value), type(compact(value))) == (told, type(told))
    # What was not measured sorts below 0 and weighs nothing.
    assert [module.number(value) for value in (2.5, 3, None, "4", NAN)] == [2.5, 3, -1, -1, -1]
    assert weight("a", "b", "c")({"a": 2.0, "b": None, "c": 0.25}) == 2.25
    assert (weight("a")({}), weight("a", "b")({"a": -3.0, "b": 0.5})) == (0, 0.5)


@pytest.mark.parametrize("count", [MOST_ROWS, MOST_ROWS + 5])
def test_a_cut_table_holds_the_heaviest_rows_and_says_so(count):
    records = [row("functions", name=str(at), self_s=float(at)) for at in range(count)]
    random.Random(1).shuffle(records)
    table = page_table("functions", records, build(), by=weight("self_s"))
    assert cells(table, "self_s") == list(range(count - 1, count - 2_001, -1))
    assert (table.name, table.total) == ("functions", count)
    assert "2,000 of 2,005" in table.left_out if count > MOST_ROWS else table.left_out is None
    asked = page_table("functions", records, build(), most=3)
    assert cells(asked, "name") == [record["name"] for record in records[:3]]
    assert f"3 of {count:,}" in asked.left_out


def test_headings_say_unit_layer_sense_and_why_cells_are_empty():
    notes = {
        "columns_reason": {"operators.device_s": "no accelerator", "modules.self_s": "another's"},
        "cells_reason": {"operators.flop": "no formula"},
        "columns_source": {"operators.flop": "FlopCounterMode"},
    }
    more = Column("of the page", name="timed_in", type="TEXT"), Column("", name="name", type="REAL")
    table = page_table("operators", [], notes, extra=more)
    columns = {column.key: column for column in table.columns}
    empty, known, flop = (columns[key] for key in ("device_s", "self_s", "flop"))
    assert (empty.reason, empty.cell_reason, empty.source) == ("no accelerator", None, None)
    assert (flop.reason, flop.cell_reason, flop.source) == (None, "no formula", "FlopCounterMode")
    assert (known.label, known.unit, known.layer, known.kind) == ("self", "s", "torch", "raw")
    assert (known.reason, columns["name"].unit, columns["timed_in"].unit) == (None, "text", "text")
    assert (table.columns[-1].key, len(table.columns)) == ("timed_in", len(columns))


def test_a_cut_module_tree_keeps_the_heaviest_and_those_around_them():
    records = [row("modules", path="Net", forward_s=0.001)]
    for at, column in enumerate(["forward_s", "backward_s"] * 25):
        # A parent as light as nothing, and a child that is heavy in one of two columns.
        records.append(row("modules", path=f"Net.{at}", forward_s=0.0))
        records.append(row("modules", path=f"Net.{at}.a", **{column: at + 0.5}))
    kept = [record["path"] for record in module.module_records(records, most=10)]
    assert kept == ["Net", *(f"Net.{at}{end}" for at in range(40, 50) for end in ("", ".a"))]
    assert len(module.module_records(records, most=101)) == len(records) == 101
    paths = ("Net", "(loss)", "(optimizer)", "(wait)")
    rows = [row("modules", path=path, forward_s=at + 0.5) for at, path in enumerate(paths)]
    assert [one["forward_s"] for one in module.forward_only(rows)] == [0.5, 1.5, None, None]
    assert rows[2]["forward_s"] == 2.5


def test_operators_are_summed_and_a_sum_with_an_unknown_part_is_unknown():
    times = {"total_s": 5.0, "device_s": 7.0, "flop": 11.0, "moved_bytes": 13.0}
    records = [
        row("operators", name=name, shapes=shapes, module=place, self_s=own, calls=own + 3,
            calibrated_s=known, **times)
        for name, shapes, place, own, known in (
            ("mm", "a", "Net.1", 2.0, 0.5), ("mm", "b", "Net.1", 3.0, None),
            ("add", "a", "Net.2", 4.0, 0.25), ("mm", "a", "Net.1", 0.5, 2.0),
        )
    ]  # fmt: skip
    mm, add = module.operators_by_name(records)
    tripled = {key: 3 * value for key, value in times.items()}
    own = {"name": "mm", "calls": 14.5, "self_s": 5.5, "calibrated_s": None}
    assert mm == {**own, **tripled, "shapes": 2, "modules": 1}
    own = {"name": "add", "calls": 7.0, "self_s": 4.0, "calibrated_s": 0.25}
    assert add == {**own, **times, "shapes": 1, "modules": 1}
    light = row("operators", name="neg", self_s=4.5)
    table = module.operator_summary([*records[2:3], light, *records[:2]], NOTES)
    assert (table.name, cells(table, "name")) == ("operators_by_name", ["mm", "neg", "add"])


def test_a_step_is_its_figures_and_a_long_run_is_thinned():
    same = {"slice": 3, "phase": "train", "cpu_s": 0.25, "wait_s": NAN}
    walls = [4.0, 4.5, 5.0, 9.0, 8.9, None]
    steps = [row("steps", index=at, wall_s=wall, **same) for at, wall in enumerate(walls)]
    steps[1]["flags"] = "eval"
    slices = [{"index": 3, "kind": "clean", "step_median_s": 4.5}]
    series = step_series(steps, slices, {"counted_steps": [0, 2]})
    assert series.points[1] == [1, 4.5, 3, 0.25, None, "train", "eval", 0, 0]
    assert [point[7:] for point in series.points] == [[1, 0], [0, 0], [1, 0], *[[0, 0]] * 3]
    steps[3]["wall_s"] = 9.1
    points = step_series(steps, slices, {"counted_steps": None}).points
    assert [point[8] for point in points] == [0, 0, 0, 1, 0, 0]
    report = build(watched_steps=9_000)
    steps = report["tables"]["steps"]
    steps[3_000]["wall_s"] = 9.0
    series = step_series(steps, report["slices"], report["benchmark"])
    indices = [point[0] for point in series.points]
    assert 3_900 < len(indices) <= 4_000
    assert indices == sorted(set(indices))
    flagged = {step["index"] for step in steps if step["flags"]}
    assert {*range(56), 3_000} | flagged <= {*indices}
    assert sum(point[7] for point in series.points) == report["benchmark"]["n"]
