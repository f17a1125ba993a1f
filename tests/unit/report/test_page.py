"""What the page is given of a report: its tables in order and cut, trees, sources and facts."""

import json

from profstack.report import page as module
from profstack.report.page_tables import MOST_ROWS
from profstack.storage.schema.rows import CLEAN_SLICES
from tests.support.bench_reports import bench
from tests.support.full_report import full
from tests.support.reports import build, row, rows
from tests.support.tables import cells


def test_the_pages_data_is_json_without_nan_and_keeps_null():
    report = full()
    report["tables"]["steps"][3]["cpu_s"] = float("nan")
    report["slices"][1]["cpu_s"] = float("inf")
    page = module.prepare(report, base="runs/x").as_dict()
    json.dumps(page, allow_nan=False)
    facts = page["facts"]
    assert page["slices"][1]["cpu_s"] is facts["benchmark"]["device_median_s"] is None
    assert (facts["script"], facts["nsys"], page["base"]) == ("train.py", None, "runs/x")
    assert page["counters"] == report["tables"]["flops"]
    page = module.prepare(bench())
    assert {"samples_s", "warmup_s", "counted_steps"} & {*page.facts["benchmark"]} == set()
    assert (page.bench.measured, page.roofline is not None) == (True, True)


def test_a_table_is_ordered_by_its_weight_or_as_reported():
    report, values = build(), (0.25, None, 0.75, 0.5)
    tables = {
        "steps": "wall_s", "watch": "total_share", "kernels": "device_s", "operators": "self_s",
        "regions": "wall_s", "peak_holders": "bytes", "nsys_copies": "device_s",
        "nsys_samples": "self_samples", "nsys_gaps": "total_s"}  # fmt: skip
    needed = {"operators": {"name": "mm"}, "steps": {"flags": None}, "kernels": {"name": "k"}}
    for name, column in (tables | {"ranges": "calls"}).items():
        more = needed.get(name, {})
        report["tables"][name] = [row(name, **{**more, column: value}) for value in values]
    figures = (0, 0.5, 0.1), (1, 0.3, 0.4), (2, 0.1, 0.25)
    report["tables"]["module_lines"] = rows("module_lines", "line operator_s python_s", *figures)
    page = module.prepare(report)
    for name, column in tables.items():
        assert cells(page.tables[name], column) == [0.75, 0.5, 0.25, None], name
    assert cells(page.tables["ranges"], "calls") == list(values)
    assert cells(page.tables["module_lines"], "line") == [1, 0, 2]


def test_columns_of_the_page_alone_and_the_users_own_code_is_never_cut_away():
    report = build()
    report["tables"]["regions"] = [row("regions", wall_s=0.5, measured_in=CLEAN_SLICES)]
    tables = module.prepare(report).tables
    assert cells(tables["regions"], "timed_in") == ["clean"]
    names, packages = (cells(tables["functions"], key) for key in ("name", "package"))
    packages = dict(zip(names, packages, strict=True))
    assert (packages["main"], packages["<built-in exec>"]) == ("(own files)", "(built-in)")
    report = build()
    for name, column in (("functions", "self_s"), ("lines", "operator_s")):
        files = [("mine.py", True, 0.1), ("old.py", None, 0.2)]
        files[:0] = [("lib.py", False, 9.0)] * MOST_ROWS
        made = rows(name, f"file own {column}", *files)
        report["tables"][name] = [{**one, "phase": "step"} for one in made]
    tables = module.prepare(report).tables
    for table in (tables["functions"], tables["lines"]):
        assert cells(table, "file")[:3] == ["old.py", "mine.py", "lib.py"]
        assert (len(table.rows), table.total) == (MOST_ROWS, MOST_ROWS + 2)


def _node(node, parent, total_s, **more):
    return row("call_paths", node=node, parent=parent, name=f"f{node}", total_s=total_s, **more)


def test_cut_paths_keep_all_that_leads_to_what_they_keep():
    # The way to a kernel has no time of its own, and is lighter than the branch beside it.
    records = [_node(1, None, 9.0), _node(2, 1, 0.0), _node(3, 2, None, device_s=5.0)]
    records.append(_node(4, 1, 1.0))
    for most, kept in ((0, []), (1, [1]), (2, [1, 4]), (3, [1, 2, 3]), (4, [1, 2, 3, 4])):
        assert [record["node"] for record in module.path_records(records, most=most)] == kept
    by_host = module.path_records(records, 3, ("total_s",))
    assert [record["node"] for record in by_host] == [1, 2, 4]
    lost = [_node(5, 6, 8.0), _node(6, 5, 8.0), _node(7, 99, 7.0), _node(8, 7, 6.0)]
    assert module.path_records([*lost, *records]) == records
