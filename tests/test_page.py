"""What the page is given: cut tables, series, the call graph, and the parts of a clean step."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import random
import re
from typing import Any

import pytest
from data_full_report import full, full_of_hostile_names, on_a_device
from data_large_report import large
from data_report import build, label, row

from profstack.report import html
from profstack.report.html import divide, packed
from profstack.report.page import finite, prepare
from profstack.report.page_tables import (
    MOST_POINTS,
    MOST_ROWS,
    PageTable,
    compact,
    extremes,
    forward_only,
    module_records,
    operators_by_name,
    page_table,
    step_series,
    weight,
)
from profstack.report.screen import Screen
from profstack.report.terminal_tables import print_modules
from profstack.report.trees import CallTree, call_tree
from profstack.storage.schema.column import SENSES, Column
from profstack.storage.schema.report import REPORT


def test_every_column_of_the_schema_has_a_heading_without_its_unit() -> None:
    for table in REPORT.values():
        for column in table.columns:
            heading = column.label
            assert heading
            assert not heading.endswith(("_s", "_bytes", " bytes")), heading
            assert column.unit in {
                "s", "bytes", "flop", "mac", "rate", "share", "count", "plain", "flag", "text"
            }  # fmt: skip


@pytest.mark.parametrize(
    ("column", "unit"),
    [
        ("self_s", "s"), ("flop_per_s", "rate"), ("rss_bytes", "bytes"), ("bytes", "bytes"),
        ("forward_mac", "mac"), ("flop", "flop"), ("calls", "count"), ("line", "plain"),
        ("watch_share", "share"),
    ],
)  # fmt: skip
def test_the_unit_is_the_end_of_the_name(column: str, unit: str) -> None:
    kind = "REAL"
    assert Column("", name=column, type=kind).unit == unit


def test_the_page_data_is_json_without_nan_and_keeps_null() -> None:
    report = build()
    report["tables"]["steps"][3]["cpu_s"] = float("nan")
    report["slices"][1]["cpu_s"] = float("inf")
    page = prepare(report).as_dict()
    json.dumps(page, allow_nan=False)
    assert page["slices"][1]["cpu_s"] is None
    assert page["facts"]["benchmark"]["device_median_s"] is None


def test_numbers_keep_nine_digits_and_whole_ones_all_but_their_fraction() -> None:
    assert compact(0.0039500532345678) == 0.00395005323
    assert compact(64.0) == 64
    assert compact(3892838400000064.0) == 3892838400000064
    assert compact(38928384.0) == 38928384
    assert isinstance(compact(64.0), int)
    assert compact(float("nan")) is None
    assert compact(None) is None
    assert compact([{"operator": "mul", "calls": 2.0, "time_share": None}, "x"]) == (
        "operator mul calls 2, x"
    )


def test_a_cut_table_holds_the_heaviest_rows_and_says_so() -> None:
    records = [row("functions", name=str(n), self_s=float(n)) for n in range(MOST_ROWS + 5)]
    random.Random(1).shuffle(records)
    table = page_table("functions", records, build(), by=weight("self_s"))
    self_s = [column.key for column in table.columns].index("self_s")
    assert len(table.rows) == MOST_ROWS
    assert min(cells[self_s] for cells in table.rows) == 5
    assert table.total == MOST_ROWS + 5
    assert table.left_out is not None
    assert "2,000 of 2,005" in table.left_out
    assert "report.json" in table.left_out


def test_a_whole_table_says_nothing_about_a_cut() -> None:
    assert page_table("functions", [row("functions", name="f")], build()).left_out is None


def test_empty_columns_carry_their_reason() -> None:
    columns = prepare(build()).tables["operators"].columns
    reasons = {column.key: column.reason for column in columns}
    assert reasons["device_s"] == "this machine has no accelerator"
    assert reasons["self_s"] is None


def test_columns_say_why_single_cells_are_empty_and_what_they_rest_on() -> None:
    columns = {column.key: column for column in prepare(full()).tables["modules"].columns}
    assert columns["flop_per_s"].reason is None
    assert columns["flop_per_s"].cell_reason == "nothing in it has a formula"
    assert columns["flop_per_s"].source == "FlopCounterMode, 1 step"
    assert columns["self_s"].cell_reason is None


def test_every_numeric_column_of_every_table_says_its_layer_and_its_sense() -> None:
    tables = [prepare(on_a_device()).tables, prepare(full_of_hostile_names()).tables]
    seen = 0
    for table in (table for page in tables for table in page.values()):
        for column in table.columns:
            words = column.unit in ("text", "flag")
            assert (column.kind in SENSES) != words, f"{table.name}.{column.key}"
            assert bool(column.layer) != words, f"{table.name}.{column.key}"
            seen += not words
    assert seen > 100


def test_no_column_of_the_report_is_without_its_sense() -> None:
    for table in REPORT.values():
        for column in table.columns:
            if column.unit not in ("text", "flag"):
                assert column.sense in SENSES, f"{table.name}.{column.name}"


def test_the_page_carries_its_tables_compressed_and_the_overview_plain() -> None:
    report = full()
    report["script"] = "caf\udce9.py"
    plain, parts = divide(prepare(report).as_dict())
    assert plain["facts"]["benchmark"]["median_s"] == report["benchmark"]["median_s"]
    assert "tables" not in plain
    assert plain["parts"]["modules"] == len(report["tables"]["modules"])
    assert plain["parts"].keys() == parts.keys()
    for name, part in parts.items():
        text = gzip.decompress(base64.b64decode(packed(part))).decode()
        assert json.loads(text) == json.loads(json.dumps(part)), name
        assert packed(part) == packed(part)


def test_an_ordinary_page_and_a_very_large_one_keep_their_bounds() -> None:
    ordinary = len(html.render(full()).encode())
    assert ordinary < 3_000_000
    # The charts' library is most of it; a run six times a page's bounds adds little.
    assert len(html.render(large(3_000, 8_000, 3_000)).encode()) < ordinary + 2_000_000


def _column(table: PageTable, key: str) -> list[Any]:
    at = [column.key for column in table.columns].index(key)
    return [cells[at] for cells in table.rows]


def test_the_lines_that_took_memory_stand_in_a_table_of_their_own() -> None:
    table = prepare(full()).tables["memory_lines"]
    assert _column(table, "line")[:3] == [68, 45, 69]
    # The start-up's lines were seen by the watch alone: they stand last, as nothing is known
    # of single runs.
    assert _column(table, "line")[-1] == 1
    assert "python_s" not in {column.key for column in table.columns}


def test_lines_of_which_the_watch_saw_no_growth_took_no_memory() -> None:
    report = build()
    report["tables"]["lines"][0]["watch_bytes"] = 0
    assert "memory_lines" not in prepare(report).tables


def test_lines_over_which_nothing_changed_are_left_out_of_those_that_took_memory() -> None:
    report = full()
    for record in report["tables"]["lines"]:
        if record["line"] == 68:
            record |= dict.fromkeys(("increment_bytes", "largest_bytes", "allocated_bytes"), 0)
    assert 68 not in _column(prepare(report).tables["memory_lines"], "line")


def test_the_watchs_lines_stand_in_a_table_of_their_own() -> None:
    tables = prepare(full()).tables
    assert _column(tables["watch_lines"], "source") == ["import torch"]
    assert "watch_lines" not in prepare(build()).tables


def test_the_counters_keep_their_lists() -> None:
    record = prepare(full()).counters[0]
    assert record["uncounted"][0]["time_share"] == 0.031
    assert prepare(build()).counters == []


def test_a_cut_module_tree_keeps_the_parents_of_what_it_keeps() -> None:
    records = [row("modules", path="Net", depth=0, forward_s=0.001)]
    for number in range(50):
        # A parent as light as nothing, and a child heavier than all.
        records.append(row("modules", path=f"Net.{number}", depth=1, forward_s=0.0))
        records.append(row("modules", path=f"Net.{number}.a", depth=2, forward_s=float(number)))
    kept = [record["path"] for record in module_records(records, most=10)]
    assert "Net.49.a" in kept
    for path in kept:
        assert path == "Net" or path.rsplit(".", 1)[0] in kept
    assert kept == [record["path"] for record in records if record["path"] in kept]


def test_operators_are_summed_and_a_sum_with_an_unknown_part_is_unknown() -> None:
    records = [
        row("operators", name="mm", shapes="a", self_s=1.0, calls=2.0, calibrated_s=0.5),
        row("operators", name="mm", shapes="b", self_s=2.0, calls=1.0),
        row("operators", name="add", shapes="a", self_s=4.0, calls=1.0, calibrated_s=1.0),
    ]
    mm, add = operators_by_name(records)
    assert (mm["self_s"], mm["calls"], mm["shapes"], mm["calibrated_s"]) == (3.0, 3.0, 2, None)
    assert (add["self_s"], add["calibrated_s"]) == (4.0, 1.0)


def test_all_steps_of_a_short_run_are_drawn() -> None:
    report = build()
    series = step_series(report["tables"]["steps"], report["slices"], report["benchmark"])
    assert len(series.points) == series.total == len(report["tables"]["steps"])
    assert series.left_out is None
    assert sum(point[7] for point in series.points) == report["benchmark"]["n"]


def test_a_long_run_is_thinned_but_keeps_its_slices_flags_and_extremes() -> None:
    report = build(watched_steps=50_000)
    steps = report["tables"]["steps"]
    steps[30_000]["wall_s"] = 9.0
    series = step_series(steps, report["slices"], report["benchmark"])
    indices = [point[0] for point in series.points]
    assert len(indices) <= MOST_POINTS
    assert indices == sorted(set(indices))
    assert set(range(56)) <= set(indices), "every step of the planned slices"
    assert {step["index"] for step in steps if step["flags"]} <= set(indices)
    assert 30_000 in indices
    assert next(point for point in series.points if point[0] == 30_000)[8] == 1
    assert series.left_out is not None


def test_extremes_keep_the_least_and_the_largest() -> None:
    records = [{"v": value} for value in random.Random(2).sample(range(10_000), 10_000)]
    kept = [record["v"] for record in extremes(records, 100, "v")]
    assert len(kept) <= 100
    assert {0, 9_999} <= set(kept)


def _function(name: str, self_s: float, total_s: float, calls: float = 1.0) -> dict[str, Any]:
    return row(
        "functions", phase="step", file="f.py", line=1, name=name, calls=calls, self_s=self_s,
        total_s=total_s,
    )  # fmt: skip


def _call(caller: str, callee: str, total_s: float, calls: float = 1.0) -> dict[str, Any]:
    return row(
        "calls", caller=f"f.py:1({caller})", callee=f"f.py:1({callee})", calls=calls,
        total_s=total_s,
    )  # fmt: skip


def _roots(tree: CallTree) -> dict[str, float]:
    return {tree.functions[number][2]: seconds for number, seconds in tree.roots}


def test_the_graph_starts_at_what_nobody_called() -> None:
    tree = call_tree(
        [_function("main", 1.0, 3.0), _function("work", 2.0, 2.0)], [_call("main", "work", 2.0)]
    )
    assert _roots(tree) == {"main": 3.0}


def test_time_that_no_caller_accounts_for_enters_from_outside() -> None:
    # Frames that were on the stack when the profile began are in no row and call without a name.
    tree = call_tree(
        [_function("main", 1.0, 3.0), _function("work", 5.0, 5.0)], [_call("main", "work", 2.0)]
    )
    assert _roots(tree) == {"main": 3.0, "work": 3.0}


def test_direct_recursion_is_no_cycle_and_counts_once() -> None:
    tree = call_tree([_function("walk", 2.0, 2.0, 9.0)], [_call("walk", "walk", 1.5, 8.0)])
    assert tree.cycles == []
    assert _roots(tree) == {"walk": 2.0}


def test_functions_that_call_each_other_are_one_cycle_with_their_own_time() -> None:
    tree = call_tree(
        [
            _function("main", 0.5, 6.5),
            _function("call", 1.0, 6.0, 3.0),
            _function("forward", 2.0, 5.5, 2.0),
            _function("linear", 3.0, 3.0),
        ],
        [
            _call("main", "call", 6.0),
            _call("call", "forward", 5.5),
            _call("forward", "call", 5.0),
            _call("call", "linear", 3.0),
        ],
    )
    names = [{tree.functions[number][2] for number in cycle} for cycle in tree.cycles]
    assert names == [{"call", "forward"}]
    assert _roots(tree) == {"main": 6.5}, "the cycle's 6 s are what main called"


def test_a_cycle_that_nobody_calls_into_is_an_entry_of_its_own() -> None:
    tree = call_tree(
        [_function("even", 1.0, 3.0, 5.0), _function("odd", 2.0, 2.5, 5.0)],
        [_call("even", "odd", 2.5), _call("odd", "even", 2.0)],
    )
    assert _roots(tree) == {"even": 3.0}, "the sum of their own times"


def test_a_chain_deeper_than_pythons_stack_is_no_trouble() -> None:
    names = [f"f{number}" for number in range(1900)]
    functions = [_function(name, 1.0, float(1900 - at)) for at, name in enumerate(names)]
    pairs = enumerate(itertools.pairwise(names))
    calls = [_call(caller, callee, float(1899 - at)) for at, (caller, callee) in pairs]
    calls.append(_call(names[-1], names[0], 0.5))
    tree = call_tree(functions, calls)
    assert [len(cycle) for cycle in tree.cycles] == [1900]


def test_the_phases_have_graphs_of_their_own() -> None:
    report = build()
    report["tables"]["calls"].append(
        row("calls", caller=label("main"), callee=label("adam"), total_s=9.0) | {"phase": "startup"}
    )
    trees = prepare(report).call_trees
    assert set(trees) == {"step", "startup"}
    assert len(trees["startup"].functions) == 1
    assert trees["startup"].edges == []
    assert max(edge[3] for edge in trees["step"].edges) < 1.0


def test_finite_turns_what_is_no_number_into_null() -> None:
    assert finite({"a": [1.0, float("nan")], 2: (float("-inf"),)}) == {
        "a": [1.0, None],
        "2": [None],
    }


def test_parts_of_the_step_have_no_forward_pass() -> None:
    rows = build()["tables"]["modules"]
    shown = {one["path"]: one["forward_s"] for one in forward_only(rows)}
    for one in rows:
        is_forward = not one["path"].startswith("(") or one["path"] == "(loss)"
        assert shown[one["path"]] == (one["forward_s"] if is_forward else None)
    assert any(one["forward_s"] and shown[one["path"]] is None for one in rows)


def test_the_terminal_has_none_either() -> None:
    screen = Screen(120, colour=False)
    print_modules(screen, build(), 3)
    told = dict(re.findall(r"^(\S+|\(.+\))  +(\S+)", screen.text(), re.MULTILINE))
    assert told["(optimizer)"] == "–"
    assert told["Digits"] != "–"
