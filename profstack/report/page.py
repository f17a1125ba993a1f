"""What the page shows, taken from the report and cut to a size a browser bears.

Plain data only: `html` puts it into the page, the scripts in `templates/` draw it. Nothing is
measured or judged here; a null of the report stays a null, with its reason beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profstack.report.benchpage import (
    CUT_AWAY,
    BenchPage,
    Roofline,
    bench_page,
    roofline_page,
)
from profstack.report.calltree import CallTree, call_tree
from profstack.report.columns import Told
from profstack.report.hierarchy import ModulePicture, module_picture
from profstack.report.nsyspage import held_series, range_records, stack_records
from profstack.report.overviewpage import overview_page
from profstack.report.packages import with_package
from profstack.report.pathtree import path_records
from profstack.report.provenance import region_timed_in
from profstack.report.series import StepSeries, memory_series, step_series
from profstack.report.sourcefiles import SourceFile, source_files, with_source
from profstack.report.tables import (
    PageTable,
    forward_only,
    line_table,
    module_records,
    operator_summary,
    page_table,
    weight,
)
from profstack.schema import Column

Record = Mapping[str, Any]
_FLAGS = Column("flags", "TEXT", "why the step is kept out of medians")
_TIMED_IN = Column(
    "timed_in", "TEXT", "clean or raw slices of profstack's clock, or torch's slices"
)
_PACKAGE = Column("package", "TEXT", "the library that its file belongs to, or the user's own")


@dataclass(frozen=True)
class Page:
    """Everything the page is drawn from."""

    facts: dict[str, Any]
    steps: StepSeries
    slices: list[dict[str, Any]]
    tables: dict[str, PageTable]
    counters: list[dict[str, Any]]
    call_trees: dict[str, CallTree]
    module_picture: ModulePicture | None
    bench: BenchPage
    roofline: Roofline | None
    base: str
    overview: dict[str, Any]
    sources: list[SourceFile]

    def as_dict(self) -> dict[str, Any]:
        """The page's data as JSON-ready dictionaries and lists."""
        return dataclasses.asdict(self)


_FACTS = (
    "schema_version", "profstack_version", "script", "argv", "status", "run", "environment",
    "step", "probe_effect", "layers", "verdict", "findings", "watch", "warnings", "attribution",
    "processes", "nsys",
    "columns_reason", "columns_source",
)  # fmt: skip


def prepare(report: Mapping[str, Any], *, base: str = "") -> Page:
    """The page of a report; `base` leads from the page's folder to the recording's."""
    lines = with_source(report["tables"]["lines"], report.get("sources") or [])
    tables = {**report["tables"], "lines": lines}
    benchmark = {
        key: value for key, value in (report.get("benchmark") or {}).items() if key not in CUT_AWAY
    }
    facts = {key: report.get(key) for key in _FACTS}
    return Page(
        facts=finite({**facts, "benchmark": benchmark}),
        steps=step_series(tables["steps"], report["slices"], report.get("benchmark") or {}),
        slices=finite([dict(entry) for entry in report["slices"]]),
        tables=_tables(tables, Told.by(report)),
        counters=finite([dict(row) for row in tables.get("flops") or []]),
        call_trees=_call_trees(tables["functions"], tables["calls"]),
        module_picture=module_picture(tables["modules"], tables.get("peak_holders") or []),
        bench=bench_page(report.get("benchmark") or {}),
        roofline=roofline_page(finite(report.get("roofline"))),
        base=base,
        overview=finite(dataclasses.asdict(overview_page(report))),
        sources=source_files(tables["lines"], report.get("sources") or []),
    )


def finite(value: Any) -> Any:
    """The same data without NaN and infinities, which JSON has no word for."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def _tables(tables: Mapping[str, Any], told: Told) -> dict[str, PageTable]:
    """The page's tables, the heaviest rows first; those without a row are not there."""
    weights = {
        "operators": weight("self_s"),
        "kernels": weight("device_s"),
        "ranges": None,
        "watch": weight("total_share"),
        "outliers": weight("wall_s"),
        "memory_owners": None,
        "peak_holders": weight("bytes"),
        "threads": None,
        "launches": None,
        "gaps": weight("total_s"),
        "module_lines": weight("operator_s", "python_s"),
        "artifacts": None,
        "nsys_modules": None,
        "nsys_steps": None,
        "nsys_kernels": weight("device_s"),
        "nsys_copies": weight("device_s"),
        "nsys_api": weight("host_s"),
        "nsys_samples": weight("self_samples"),
        "nsys_gaps": weight("total_s"),
    }
    made = {
        name: page_table(name, tables.get(name) or [], told, by=by) for name, by in weights.items()
    }
    steps = tables["steps"]
    made["steps"] = page_table("steps", steps, told, by=weight("wall_s"), extra=(_FLAGS,))
    named = [{**row, "timed_in": region_timed_in(row)} for row in tables.get("regions") or []]
    made["regions"] = page_table("regions", named, told, by=weight("wall_s"), extra=(_TIMED_IN,))
    made["memory"] = page_table("memory", memory_series(tables["memory"]), told)
    stacks = stack_records(tables.get("nsys_backtraces") or [])
    made["nsys_backtraces"] = page_table("nsys_backtraces", stacks, told, by=weight("host_s"))
    held = held_series(tables.get("nsys_memory") or [])
    made["nsys_memory"] = page_table("nsys_memory", held, told)
    own = {"functions": own_first("self_s"), "lines": own_first("python_s", "operator_s")}
    for name, first in own.items():
        records = with_package(tables[name])
        made[name] = page_table(name, records, told, by=first, extra=(_PACKAGE,))
    for name in ("memory_lines", "watch_lines"):
        made[name] = line_table(name, tables["lines"], told)
    trees = {
        "modules": forward_only(module_records(tables["modules"])),
        "call_paths": path_records(tables.get("call_paths") or []),
        "nsys_ranges": range_records(tables.get("nsys_ranges") or []),
    }
    for name, kept in trees.items():
        # What leads to a kept row is kept too: these are cut already.
        whole = page_table(name, kept, told, most=len(kept))
        made[name] = dataclasses.replace(whole, total=len(tables.get(name) or []))
    if tables["operators"]:
        made["operators_by_name"] = operator_summary(tables["operators"], told)
    return {name: table for name, table in made.items() if table.rows}


def own_first(*columns: str) -> Callable[[Record], tuple[bool, float]]:
    """A sort key: the user's own code before any library's, then the sum of these columns."""
    heaviest = weight(*columns)
    return lambda record: (record.get("own") is not False, heaviest(record))


def _call_trees(functions: Sequence[Record], calls: Sequence[Record]) -> dict[str, CallTree]:
    """One call graph for the steps and one for the start-up, where there is one."""
    trees = {}
    for phase in ("step", "startup"):
        own = [record for record in functions if record.get("phase") == phase]
        if own:
            edges = [call for call in calls if call.get("phase", "step") == phase]
            trees[phase] = call_tree(own, edges)
    return trees
