"""All tables of the report, and what their columns rest on."""

from __future__ import annotations

from typing import Any

from profstack.merge.callpaths import call_paths
from profstack.merge.cleansteps import Clean
from profstack.merge.floprows import flop_rows
from profstack.merge.flops import Counted, flop_sources, of_operators, of_record
from profstack.merge.functions import calls, functions
from profstack.merge.launches import gaps, launches
from profstack.merge.lines import lines, module_lines
from profstack.merge.memory import memory_lines, memory_rows, module_memory
from profstack.merge.modules import modules
from profstack.merge.nsys import nsys_tables
from profstack.merge.operators import kernels, operators
from profstack.merge.outliers import outlier_rows
from profstack.merge.peak import memory_owners, peak_holders, peak_sources
from profstack.merge.pythoncost import add_python_cost
from profstack.merge.recorded import Recorded, Selection, records
from profstack.merge.regions import ranges, regions
from profstack.merge.threads import threads
from profstack.merge.watch import few_samples, function_shares, line_shares, watch_rows
from profstack.schema import REPORT


def report_tables(
    recorded: Recorded,
    clean: Clean,
    selections: dict[str, Selection | None],
    counters: dict[str, Counted],
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """All tables of the report, and what those columns rest on that have several sources."""
    torch, cprofile = selections["torch"], selections["cprofile"]
    record = of_record(counters)
    bytes_of, sources = module_memory(recorded, recorded.select("torch", (("detail",),)))
    traced = recorded.select("torch", (("lines",),))
    median = clean.median_s
    few = few_samples(recorded)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in REPORT}
    rows.update(
        steps=_step_rows(recorded),
        modules=modules(recorded, torch, median, bytes_of, record),
        operators=operators(recorded, torch, median, of_operators(counters)),
        kernels=kernels(recorded, torch),
        functions=functions(recorded, cprofile, median, {} if few else function_shares(recorded)),
        calls=calls(recorded, cprofile),
        call_paths=call_paths(recorded),
        lines=lines(recorded, traced, memory_lines(recorded), _watched_lines(recorded)),
        module_lines=module_lines(recorded, traced),
        memory=memory_rows(recorded),
        memory_owners=memory_owners(recorded),
        peak_holders=peak_holders(recorded),
        regions=regions(recorded, torch),
        ranges=ranges(recorded, selections.get("nvtx")),
        watch=watch_rows(recorded),
        outliers=outlier_rows(recorded, clean),
        flops=flop_rows(recorded, counters, torch),
        threads=threads(recorded, clean),
        launches=launches(recorded, torch),
        gaps=gaps(recorded, torch),
        artifacts=records(recorded.frames["artifacts"]),
    )
    rows.update(nsys_tables(recorded, rows["modules"], torch))
    add_python_cost(rows["modules"], rows["operators"])
    sources.update(flop_sources(counters))
    sources.update(peak_sources(recorded))
    tables = {}
    for name, table in rows.items():
        empty = dict.fromkeys(REPORT[name].names)
        tables[name] = [{**empty, **row} for row in table]
    return tables, sources


def _watched_lines(recorded: Recorded) -> dict[tuple[str, int], dict[str, Any]]:
    """The watch's columns of `lines`, by file and line."""
    columns: dict[tuple[str, int], dict[str, Any]] = {}
    # Of a few looks into steps no share can be told; those of the start-up are hundreds.
    shared = {"startup": "startup_share"}
    if few_samples(recorded) is None:
        shared["step"] = "watch_share"
    for phase, column in shared.items():
        for key, (share, _) in line_shares(recorded, phase).items():
            columns.setdefault(key, {})[column] = share
    for key, (_, grown) in line_shares(recorded).items():
        columns.setdefault(key, {})["watch_bytes"] = grown
    frames = recorded.frames["watch_frames"]
    texts = frames[frames["source"].notna()][["file", "line", "source"]].drop_duplicates()
    for file, line, source in texts.itertuples(index=False):
        if (file, line) in columns:
            columns[file, line]["source"] = source
    return columns


def _step_rows(recorded: Recorded) -> list[dict[str, Any]]:
    columns = {"step": "index"}
    frame = recorded.frames["steps"].sort_values("step", kind="stable").rename(columns=columns)
    kept = [*REPORT["steps"].names, "flags"]
    return records(frame[kept])
