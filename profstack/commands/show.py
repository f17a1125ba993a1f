"""`profstack show`: a recording's figures in the terminal, as text, JSON, CSV or Markdown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from profstack.commands.options import tell, terminal_of
from profstack.errors import UsageError
from profstack.report import files
from profstack.storage.schema.column import Column, Table
from profstack.storage.schema.report import REPORT

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from profstack.report.export import Rows
    from profstack.storage.schema.report import Report
    from profstack.storage.schema.rows import ModuleRow

HELP = "Print the summary of a recording, its findings, its verdict, or one of its tables."

_TABLES_HELP = """\
Without an option it prints the summary: the verdict, where a clean step goes, every
layer, the heaviest rows, what was found, and all warnings.

The tables asked for most; every time and count in them is per step:
  modules        time, operations, memory and Python cost of each module and
                 part of the step; self times add up to the step
  memory_owners  bytes by kind at the start, the peak and the end of a step
  peak_holders   what is alive at the peak, the largest first
  lines          source lines: Python, operators, device, memory
  functions      Python functions, by their own time
  call_paths     from Python function to operator to kernel (slowed by the
                 tracer of the stack)
  regions        named ranges of the script's own
  threads        CPU time by thread and process, and which layers see it
  gaps           why the device had nothing to do
  nsys_modules   modules as Nsight Systems saw them, beside the torch layer
  nsys_ranges    its ranges with their device time
  nsys_stats     its kernels, copies and calls by name, as nsys stats has them
                 (nsys_processes, nsys_kernels, nsys_copies, nsys_api,
                 nsys_waits, nsys_communication, nsys_gaps, nsys_longest_gaps,
                 nsys_backtraces, nsys_memory and nsys_samples hold the rest)
"""

# Tables ordered otherwise than on the page, or on the page alone by the order of their rows.
_HEAVIEST = {
    "calls": "total_s",
    "lines": "operator_s",
    "memory_owners": "peak_bytes",
    "call_paths": "total_s",
    "threads": "share",
    "nsys_modules": "host_s",
    "nsys_backtraces": "calls",
    "nsys_processes": "process",
}
# Columns of text and these are sorted upwards, all others with the largest first.
_TEXT_TYPES = frozenset({"TEXT", "JSON"})
_INDEXES = frozenset({"index", "step", "t_s", "line", "node", "parent"})
# Columns in a pipe, so that rows stay whole for grep and less.
_UNFOLDED = 2_000


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = _TABLES_HELP
    parser.add_argument("folder", nargs="?", metavar="DIR", help=files.FOLDER_HELP)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--table", metavar="NAME", help=f"one of {', '.join(REPORT)}")
    what.add_argument(
        "--findings",
        action="store_true",
        help="what was found wrong: evidence, gain in clean time, and what to do",
    )
    what.add_argument(
        "--verdict",
        action="store_true",
        help="what holds a step back, with the share and threshold of every test",
    )
    parser.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="print N rows or findings (default: 20 rows as text, else all)",
    )
    parser.add_argument("--sort", metavar="COLUMN", help="order by this column")
    parser.add_argument(
        "--format", choices=("text", "json", "md", "csv"), default="text", help="default: text"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Print the summary or a table."""
    _check(arguments)
    folder = files.recording_folder(arguments.folder)
    report = files.load(folder)
    # An unknown table is one line on standard error, and this would be another.
    chosen = None if arguments.table is None else _table_and_rows(report, arguments)
    if arguments.folder is None or folder not in (given := Path(arguments.folder), given.parent):
        tell(f"profstack: reading {folder}")
    from profstack.report import export, terminal
    from profstack.report.screen import fitting, printable

    form, (width, colour) = arguments.format, terminal_of(sys.stdout)
    if chosen is not None:
        printed = _table(report, *chosen, arguments)
    elif arguments.findings:
        printed = _findings(report, arguments)
    elif arguments.verdict and form == "text":
        printed = terminal.verdict(report, width=width, colour=colour)
    elif arguments.verdict:
        printed = export.verdict_as(form, report)
    elif form == "json":
        printed = files.text(report)
    else:
        printed = terminal.summary(report, width=width, colour=colour)
    # Programs read exact names from CSV; people read Markdown, and whatever a terminal shows.
    if form == "md" or (form == "csv" and sys.stdout.isatty()):
        printed = "\n".join(printable(line) for line in printed.split("\n"))
    sys.stdout.write(fitting(printed, sys.stdout.encoding))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise UsageError for options that do not go together, before anything is read."""
    if arguments.limit is not None and arguments.limit < 1:
        raise UsageError("--limit must be at least 1", where="show")
    if arguments.table is None:
        chosen = arguments.findings or arguments.verdict
        needs_table = {
            "--sort": arguments.sort is not None,
            "--limit": arguments.limit is not None and not arguments.findings,
            f"--format {arguments.format}": arguments.format in ("md", "csv") and not chosen,
        }
        for option in (option for option, given in needs_table.items() if given):
            what, next_step = f"{option} needs a table", f"--table is {', '.join(REPORT)}"
            raise UsageError(what, where="show", next_step=next_step)
    elif arguments.table in REPORT:
        _sorted_by(REPORT[arguments.table], arguments.sort)


def _sorted_by(table: Table, asked: str | None) -> str | None:
    """Return the name of the column that was asked for by its name or its heading."""
    for column in table.columns:
        if asked in (column.name, column.label):
            return column.name
    if asked is not None:
        what = f"table {table.name} has no column '{asked}'"
        next_step = f"its columns are {', '.join(table.names)}"
        raise UsageError(what, where="show", next_step=next_step)
    return None


def _table_and_rows(
    report: Report, arguments: argparse.Namespace
) -> tuple[Table, list[Mapping[str, object]]]:
    """Return the chosen table with its rows; the tables of other layers are known by the report."""
    if arguments.table in REPORT:
        rows = cast("dict[str, Rows]", report["tables"]).get(arguments.table) or []
        return REPORT[arguments.table], list(rows)
    declared = {each["name"]: each for each in report.get("layer_tables") or []}
    facts = declared.get(arguments.table)
    if facts is None:
        what, tables = f"no table '{arguments.table}'", ", ".join((*REPORT, *declared))
        raise UsageError(what, where="show", next_step=f"the tables are {tables}")
    columns = [
        Column(each["meaning"], each["sense"], name=each["name"], type=each["type"])
        for each in facts["columns"]
    ]
    table = Table(facts["name"], tuple(columns))
    _sorted_by(table, arguments.sort)
    return table, list(facts["rows"])


def _table(
    report: Report, table: Table, rows: list[Mapping[str, object]], arguments: argparse.Namespace
) -> str:
    """Return the chosen rows of the chosen table in the chosen format."""
    from profstack.report import export, terminal
    from profstack.report.page_tables import HEAVIEST, forward_only

    column = _sorted_by(table, arguments.sort) or (HEAVIEST | _HEAVIEST).get(table.name)
    if column is not None:
        known = table.column(column)
        rises = known is None or known.type in _TEXT_TYPES or column in _INDEXES
        rows = export.in_order(rows, column, falling=not rises)
    if arguments.sort is None:
        # A start-up happens once, a step many times: their times do not compare.
        rows.sort(key=lambda row: row.get("phase") in ("startup", "program"))
    limit = arguments.limit or (20 if arguments.format == "text" else len(rows))
    chosen: Rows = rows[:limit]
    if arguments.format != "text":
        return export.table_as(arguments.format, table, chosen)
    if not rows:
        why = "its layer saw nothing"
        if table.name in REPORT:
            from profstack.analysis.build import table_reason
            from profstack.report.screen import printable

            has_device = report["environment"].get("device") not in (None, "cpu")
            why = printable(table_reason(table.name, report["layers"], has_device=has_device))
        return f"{table.name}: no rows in this recording: {why}\n"
    if table.name == "modules":
        chosen = forward_only(cast("list[ModuleRow]", chosen))
    width, colour = terminal_of(sys.stdout, _UNFOLDED)
    printed = terminal.table_text(table, chosen, width=width, colour=colour)
    left = len(rows) - len(chosen)
    return printed + (f"{left:,} more of {len(rows):,} rows: --limit {len(rows)}\n" if left else "")


def _findings(report: Report, arguments: argparse.Namespace) -> str:
    """Return the findings in the chosen format, the most severe first."""
    from profstack.report import export, terminal

    findings = report.get("findings") or []
    chosen = findings[: arguments.limit or len(findings)]
    if arguments.format != "text":
        return export.findings_as(arguments.format, chosen)
    width, colour = terminal_of(sys.stdout)
    printed = terminal.findings(chosen, width=width, colour=colour)
    left = len(findings) - len(chosen)
    return printed + (f"\n{left:,} more of {len(findings):,} findings\n" if left else "")
