"""The page's data: the report, cut to a size that a browser draws quickly.

`html` puts it into the page, the scripts in `templates/` draw it. Nothing is measured or judged
here; a null of the report stays a null, with its reason beside it.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, cast, get_args

from profstack.code_owner import with_package
from profstack.report.bench_page import CUT_AWAY, BenchPage, Roofline, bench_page, roofline_page
from profstack.report.overview import Overview, overview_page
from profstack.report.page_tables import (
    HEAVIEST,
    MOST_ROWS,
    AnyRow,
    LayerPageTable,
    PageTable,
    SortKey,
    StepSeries,
    extremes,
    forward_only,
    join_layers,
    layer_page_tables,
    line_table,
    memory_series,
    module_records,
    number,
    operator_summary,
    page_table,
    region_timed_in,
    step_series,
    weight,
)
from profstack.report.trees import CallTree, ModulePicture, call_tree, module_picture
from profstack.storage.schema.column import Column
from profstack.storage.schema.nsys_rows import NsysMemoryRow
from profstack.storage.schema.rank_rows import RankRow
from profstack.storage.schema.report import Report, SliceFacts, SourceText, Tables
from profstack.storage.schema.rows import CounterRow, LineRow, Profiled

# The files of the source view -----------------------------------------------------------------


@dataclass(frozen=True)
class SourceFile:
    """A file of the user's own; `text` is None where it was not recorded, for `reason`."""

    file: str
    seconds: float
    text: str | None
    reason: str | None


def with_source(lines: Sequence[LineRow], texts: Sequence[SourceText]) -> list[LineRow]:
    """Return the lines, each with its text where the text of its file is known."""
    known = {row["file"]: row["text"].split("\n") for row in texts if row["text"]}

    def source(line: LineRow) -> str | None:
        text, place = known.get(line["file"], []), line["line"] or 0
        is_known = line["source"] is None and 0 < place <= len(text)
        return text[place - 1] if is_known else line["source"]

    return [{**line, "source": source(line)} for line in lines]


def source_files(lines: Sequence[LineRow], texts: Sequence[SourceText]) -> list[SourceFile]:
    """Return the user's own files that have lines, the one with the most time first."""
    seconds_of = weight("python_s", "operator_s")
    times: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        if line.get("own") is not False:
            times[line["file"]] += seconds_of(line)
    known = {row["file"]: (row["text"], row["reason"]) for row in texts}
    return [
        SourceFile(file, times[file], *known.get(file, (None, "no slice traced its lines")))
        for file in sorted(times, key=lambda file: (-times[file], file))
    ]


# Trees and series that are cut ------------------------------------------------------------------

MOST_NODES = 4_000


class _Node(TypedDict):
    """A row of a tree."""

    node: int | None
    parent: int | None


Node = TypeVar("Node", bound=_Node)


def path_records(
    records: Sequence[Node], most: int = MOST_NODES, times: Sequence[str] = ("total_s", "device_s")
) -> list[Node]:
    """Return at most `most` nodes in order: those with the most time, with all nodes above them.

    The time of a node is the sum of the columns `times`. A node whose parent is not in `records`
    is left out.
    """
    known = {record["node"]: record for record in records}
    kept: set[int | None] = set()
    for record in sorted(records, key=weight(*times), reverse=True):
        way: list[int | None] = []
        node = record["node"]
        while node is not None and node in known and node not in kept and node not in way:
            way.append(node)
            node = known[node]["parent"]
        # Another end is a parent that is not among the records, or a circle.
        if (node is None or node in kept) and len(kept) + len(way) <= most:
            kept.update(way)
    return [record for record in records if record["node"] in kept]


def held_series(records: Sequence[NsysMemoryRow], most: int = MOST_ROWS) -> list[NsysMemoryRow]:
    """Return memory events to draw, in order of time: the extremes of each device and kind."""
    if len(records) <= most:
        return list(records)
    series: defaultdict[tuple[str | None, str | None], list[NsysMemoryRow]] = defaultdict(list)
    for record in records:
        series[record["device"], record["kind"]].append(record)
    share = max(most // len(series), 2)
    kept = [record for own in series.values() for record in extremes(own, share, "bytes")]
    return sorted(kept[:most], key=lambda record: number(record["t_s"]))


# Ranks that are drawn, each with its bar and its row of steps.
MOST_RANKS = 128


def drawn_ranks(rows: Sequence[RankRow], notes: Report, most: int = MOST_RANKS) -> set[int | None]:
    """Return the ranks to draw: all of them, or of each group of neighbours the latest.

    The straggler, of the facts in `notes`, is always among them.
    """
    facts = notes.get("ranks")
    found = facts["straggler"] if facts else None
    there = [row for row in rows if row["status"] != "missing"]
    size = max(math.ceil(len(there) / most), 1)

    def lateness(row: RankRow) -> tuple[bool, float]:
        is_straggler = found is not None and row["rank"] == found["rank"]
        return is_straggler, -math.inf if row["late_s"] is None else row["late_s"]

    groups = (there[at : at + size] for at in range(0, len(there), size))
    return {max(group, key=lateness)["rank"] for group in groups}


# The page ---------------------------------------------------------------------------------------

_WHERE = "clean or raw slices of profstack's clock, or torch's slices"
_OWNER = "the library that its file belongs to, or the user's own"
_PACKAGE = Column(_OWNER, name="package", type="TEXT")
# Columns of the page alone, by table.
_EXTRA = {
    "regions": (Column(_WHERE, name="timed_in", type="TEXT"),),
    "functions": (_PACKAGE,),
    "lines": (_PACKAGE,),
}


@dataclass(frozen=True)
class Page:
    """Everything the page is drawn from."""

    facts: dict[str, object]
    steps: StepSeries
    slices: list[SliceFacts]
    tables: dict[str, PageTable]
    counters: list[CounterRow]
    call_trees: dict[str, CallTree]
    module_picture: ModulePicture | None
    bench: BenchPage
    roofline: Roofline | None
    base: str
    overview: Overview
    sources: list[SourceFile]
    layer_tables: list[LayerPageTable]

    def as_dict(self) -> dict[str, object]:
        """Return the page's data as dictionaries and lists, ready for JSON."""
        parts = {
            field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)
        }
        # The other parts are made of `compact` values.
        for name in ("facts", "slices", "counters", "roofline", "overview"):
            parts[name] = finite(parts[name])
        return parts


def _plain(value: Any) -> Any:
    """Return dataclasses as dictionaries, wherever they are; all other values as they are.

    Rows of tables hold none, and are most of the page: unlike `dataclasses.asdict` it copies no
    list whose first entry is neither a dataclass nor holds any.
    """
    if dataclasses.is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)) and value and dataclasses.is_dataclass(value[0]):
        return [_plain(each) for each in value]
    return value


_FACTS = (
    "schema_version", "profstack_version", "script", "argv", "status", "run", "environment",
    "step", "probe_effect", "layers", "verdict", "findings", "watch", "warnings", "attribution",
    "processes", "nsys", "imports", "columns_reason", "columns_source", "requests", "tokens",
    "ranks", "tried",
)  # fmt: skip


def prepare(report: Report, *, base: str = "") -> Page:
    """Return the page of a report; `base` leads from the page's folder to the recording's."""
    sources = report.get("sources") or []
    lines = with_source(report["tables"]["lines"], sources)
    tables: Tables = {**report["tables"], "lines": lines}
    benchmark = {key: value for key, value in report["benchmark"].items() if key not in CUT_AWAY}
    own = report.get("layer_tables") or []
    trees = {}
    for phase in get_args(Profiled):
        if functions := [row for row in tables["functions"] if row["phase"] == phase]:
            calls = [call for call in tables["calls"] if call["phase"] == phase]
            trees[phase] = call_tree(functions, calls)
    return Page(
        facts={**{key: report.get(key) for key in _FACTS}, "benchmark": benchmark},
        steps=step_series(tables["steps"], report["slices"], report["benchmark"]),
        slices=report["slices"],
        tables={name: join_layers(table, own) for name, table in _tables(tables, report).items()},
        counters=tables.get("flops") or [],
        call_trees=trees,
        module_picture=module_picture(tables["modules"], tables.get("peak_holders") or []),
        bench=bench_page(report["benchmark"]),
        roofline=roofline_page(report.get("roofline")),
        base=base,
        overview=overview_page(report),
        sources=source_files(lines, sources),
        layer_tables=layer_page_tables(own),
    )


def finite(value: object) -> Any:
    """Return the same data with null for NaN and infinities, which JSON cannot write."""
    # Most values first: a report has tens of thousands of them.
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (dict, Mapping)):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


# Columns that order the rows of tables on the page alone; tables shown in the report's own order.
_WEIGHTS = {
    "steps": ("wall_s",),
    "watch": ("total_share",),
    "outliers": ("wall_s",),
    "module_lines": ("operator_s", "python_s"),
    "nsys_backtraces": ("host_s",),
}
_AS_REPORTED = (
    *("ranges", "memory_owners", "threads", "launches", "artifacts", "nsys_modules", "nsys_steps"),
    *("memory", "nsys_memory", "nsys_processes"),
)


def _tables(tables: Tables, notes: Report) -> dict[str, PageTable]:
    """Return the page's tables, the heaviest rows first; those without a row are left out.

    `notes` is the report that holds reasons and sources of the columns.
    """
    rows = dict(cast(Mapping[str, Sequence[AnyRow]], tables))
    regions = tables.get("regions") or []
    rows["regions"] = [{**row, "timed_in": region_timed_in(row)} for row in regions]
    # A frame on each line: names of C++ functions hold commas.
    stacks = tables.get("nsys_backtraces") or []
    rows["nsys_backtraces"] = [{**row, "stack": "\n".join(row["stack"] or [])} for row in stacks]
    rows["memory"] = memory_series(tables["memory"])
    rows["nsys_memory"] = held_series(tables.get("nsys_memory") or [])
    rows |= {name: with_package(rows[name]) for name in ("functions", "lines")}
    by: dict[str, Callable[[AnyRow], SortKey] | None] = {
        **dict.fromkeys(_AS_REPORTED),
        **{name: weight(*columns) for name, columns in _WEIGHTS.items()},
        **{name: weight(column) for name, column in HEAVIEST.items()},
        "functions": own_first("self_s"),
        "lines": own_first("python_s", "operator_s"),
    }
    made = {
        name: page_table(name, rows.get(name) or [], notes, by=key, extra=_EXTRA.get(name, ()))
        for name, key in by.items()
    }
    for name in ("memory_lines", "watch_lines"):
        made[name] = line_table(name, tables["lines"], notes)
    ranges = tables.get("nsys_ranges") or []
    drawn = drawn_ranks(tables.get("ranks") or [], notes)
    of_ranks = {
        name: [row for row in rows.get(name) or [] if row["rank"] in drawn]
        for name in ("rank_parts", "rank_steps")
    }
    trees: dict[str, Sequence[AnyRow]] = {
        "modules": forward_only(module_records(tables["modules"])),
        "call_paths": path_records(tables.get("call_paths") or []),
        "nsys_ranges": path_records(ranges, MOST_ROWS, ("wall_s", "device_s")),
        **of_ranks,
    }
    for name, kept in trees.items():
        # The rows around a kept row are kept too: these tables are cut already.
        whole = page_table(name, kept, notes, most=len(kept))
        made[name] = dataclasses.replace(whole, total=len(rows.get(name) or []))
    if tables["operators"]:
        made["operators_by_name"] = operator_summary(tables["operators"], notes)
    return {name: table for name, table in made.items() if table.rows}


def own_first(*columns: str) -> Callable[[AnyRow], tuple[bool, float]]:
    """Return a sort key: the user's own code before any library's, then the sum of columns."""
    heaviest = weight(*columns)
    return lambda row: (row.get("own") is not False, heaviest(row))
