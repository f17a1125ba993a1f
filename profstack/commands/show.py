"""`profstack show`: a recording's figures in the terminal, as text, JSON, CSV or Markdown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profstack import schema
from profstack.errors import UsageError
from profstack.report import stored
from profstack.report.newest import recording_folder

if TYPE_CHECKING:
    import argparse

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
  nsys_ranges    its ranges with their device time; nsys_kernels, nsys_copies,
                 nsys_api, nsys_gaps, nsys_backtraces, nsys_memory and
                 nsys_samples hold the rest of what was imported
"""

# By what a table is ordered unless asked otherwise: its heaviest rows are what is looked for.
_HEAVIEST = {
    "operators": "self_s",
    "kernels": "device_s",
    "functions": "self_s",
    "calls": "total_s",
    "lines": "operator_s",
    "regions": "wall_s",
    "memory_owners": "peak_bytes",
    "peak_holders": "bytes",
    "call_paths": "total_s",
    "threads": "share",
    "gaps": "total_s",
    "nsys_modules": "host_s",
    "nsys_kernels": "device_s",
    "nsys_copies": "device_s",
    "nsys_api": "host_s",
    "nsys_backtraces": "calls",
    "nsys_samples": "self_samples",
    "nsys_gaps": "total_s",
}
# Columns that hold text are sorted upwards, all others with the largest first.
_TEXT_TYPES = frozenset({"TEXT", "JSON"})
# A pipe has no edge: rows stay whole for grep and less.
_UNFOLDED = 2_000
_INDEXES = frozenset({"index", "step", "t_s", "line", "node", "parent"})


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = _TABLES_HELP
    names = ", ".join(schema.REPORT)
    parser.add_argument("folder", nargs="?", metavar="DIR", help=stored.FOLDER_HELP)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--table", metavar="NAME", help=f"one of {names}")
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
    folder = recording_folder(arguments.folder)
    report = stored.load(folder)
    if arguments.folder is None or folder not in (given := Path(arguments.folder), given.parent):
        print(f"profstack: reading {folder}", file=sys.stderr, flush=True)
    if arguments.table is not None:
        printed = _table(report, arguments)
    elif arguments.findings:
        printed = _findings(report, arguments)
    elif arguments.verdict:
        printed = _verdict(report, arguments)
    elif arguments.format == "json":
        from profstack.report import jsonfile

        printed = jsonfile.text(report)
    else:
        from profstack.report import text

        width, colour = _terminal()
        printed = text.summary(report, width=width, colour=colour)
    from profstack.report.textparts import fitting, printable

    # Programs read exact names from CSV; people read Markdown, and whatever a terminal shows.
    if arguments.format == "md" or (arguments.format == "csv" and sys.stdout.isatty()):
        printed = "\n".join(printable(line) for line in printed.split("\n"))
    sys.stdout.write(fitting(printed, sys.stdout.encoding))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be printed, before anything is read."""
    tables = ", ".join(schema.REPORT)
    if arguments.limit is not None and arguments.limit < 1:
        raise UsageError("--limit must be at least 1", where="show")
    if arguments.findings or arguments.verdict:
        refused = ["sort"] if arguments.findings else ["sort", "limit"]
        for option in refused:
            if getattr(arguments, option) is not None:
                raise UsageError(
                    f"--{option} needs a table", where="show", next_step=f"--table is {tables}"
                )
        return
    if arguments.table is None:
        for option in ("sort", "limit"):
            if getattr(arguments, option) is not None:
                raise UsageError(
                    f"--{option} needs a table", where="show", next_step=f"--table is {tables}"
                )
        if arguments.format in ("md", "csv"):
            raise UsageError(
                f"--format {arguments.format} needs a table",
                where="show",
                next_step=f"--table is {tables}",
            )
        return
    if arguments.table not in schema.REPORT:
        raise UsageError(
            f"no table '{arguments.table}'", where="show", next_step=f"the tables are {tables}"
        )
    columns = schema.REPORT[arguments.table].names
    if arguments.sort is not None and arguments.sort not in columns:
        raise UsageError(
            f"table {arguments.table} has no column '{arguments.sort}'",
            where="show",
            next_step=f"its columns are {', '.join(columns)}",
        )


def _table(report: dict[str, Any], arguments: argparse.Namespace) -> str:
    """The chosen rows of the chosen table in the chosen format."""
    from profstack.report import rows, text
    from profstack.report.tables import forward_only

    table = schema.REPORT[arguments.table]
    records = list(report["tables"].get(table.name) or [])
    column = arguments.sort or _HEAVIEST.get(table.name)
    if column is not None:
        records = rows.in_order(records, column, falling=_falls(table, column))
    if arguments.sort is None:
        # A start-up happens once, a step every time: their times do not compare.
        records.sort(key=lambda record: record.get("phase") == "startup")
    limit = arguments.limit or (20 if arguments.format == "text" else len(records))
    chosen = records[:limit]
    if arguments.format != "text":
        return rows.WRITERS[arguments.format](table, chosen)
    width, colour = _terminal(_UNFOLDED)
    if not records:
        return f"{table.name}: no rows in this recording: {_why_empty(report, table.name)}\n"
    if table.name == "modules":
        chosen = forward_only(chosen)
    printed = text.table_text(table, chosen, width=width, colour=colour)
    left = len(records) - len(chosen)
    return printed + (
        f"{left:,} more of {len(records):,} rows: --limit {len(records)}\n" if left else ""
    )


def _why_empty(report: dict[str, Any], name: str) -> str:
    from profstack.merge.reasons import table_reason
    from profstack.report.textparts import printable

    has_device = (report.get("environment") or {}).get("device") not in (None, "cpu")
    return printable(table_reason(name, report.get("layers") or [], has_device=has_device))


def _findings(report: dict[str, Any], arguments: argparse.Namespace) -> str:
    """The findings in the chosen format, the gravest first."""
    from profstack.report import findingtext, text

    found = list(report.get("findings") or [])
    chosen = found[: arguments.limit or len(found)]
    if arguments.format != "text":
        return findingtext.WRITERS[arguments.format](chosen)
    width, colour = _terminal()
    printed = text.found(chosen, width=width, colour=colour)
    left = len(found) - len(chosen)
    return printed + (f"\n{left:,} more of {len(found):,} findings\n" if left else "")


def _verdict(report: dict[str, Any], arguments: argparse.Namespace) -> str:
    """The verdict with the step bar in the chosen format."""
    from profstack.report import text, verdictrows

    if arguments.format != "text":
        return verdictrows.WRITERS[arguments.format](report)
    width, colour = _terminal()
    return text.verdict(report, width=width, colour=colour)


def _falls(table: schema.Table, name: str) -> bool:
    """Whether a column is read from its largest value down."""
    kind = next(column.type for column in table.columns if column.name == name)
    return kind not in _TEXT_TYPES and name not in _INDEXES


def _terminal(elsewhere: int = 80) -> tuple[int, bool]:
    """Width and colour of standard output; no colour and this width where it is no terminal."""
    import shutil

    from profstack.report.textparts import colourful

    if not sys.stdout.isatty():
        return elsewhere, False
    return shutil.get_terminal_size().columns, colourful(sys.stdout)
