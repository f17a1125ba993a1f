"""`profstack doctor`: which layers and tools work here, in which version, and what to install."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from profstack import __version__
from profstack.commands._checks import Check, gather
from profstack.environment import environment_facts
from profstack.privacy import home_relative

HELP = """Say which layers and tools work here, in which version, and what to install.

The exit code is 1 if something that profstack cannot do without does not work."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--format", choices=("text", "json"), default="text")


def execute(arguments: argparse.Namespace) -> int:
    """Print what works; 1 if a required thing does not."""
    checks = gather()
    failed = any(check.required and not check.works for check in checks)
    if arguments.format == "json":
        answer = {
            "profstack_version": __version__,
            "executable": home_relative(sys.executable),
            "ok": not failed,
            "environment": environment_facts(),
            "checks": [asdict(check) for check in checks],
        }
        print(json.dumps(answer, indent=2, ensure_ascii=False))
    else:
        _print_text(checks, failed)
    return int(failed)


def _print_text(checks: list[Check], failed: bool) -> None:
    """The answer for people."""
    facts = environment_facts()
    print(
        f"profstack {__version__}, {facts['implementation']} {facts['python']}, {facts['platform']}"
    )
    print(f"{facts['cpu']}, {facts['usable_cores']} cores usable\n")
    _print_table(checks)
    missing = [check for check in checks if check.install and not check.works]
    if missing:
        print("\nTo install what is missing:")
    for check in missing:
        print(f"  {check.name}: {check.install}")
    if failed:
        broken = [check.name for check in checks if check.required and not check.works]
        print(f"\nprofstack does not work here: {', '.join(broken)}")


def _print_table(checks: list[Check]) -> None:
    """By rich on a terminal, as aligned columns elsewhere."""
    header = ("", "name", "state", "version", "")
    rows = [
        (check.group, check.name, check.state, check.version or "–", check.detail)
        for check in checks
    ]
    if sys.stdout.isatty() and _print_rich(header, rows):
        return
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(4)]
    for row in (header, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[4]]).rstrip())


def _print_rich(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> bool:
    """Print by rich; False where it is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    styles = {"works": "green", "fails": "red", "absent": "dim"}
    table = Table(box=None, pad_edge=False)
    for title in header:
        table.add_column(title)
    for row in rows:
        cells = [Text(cell) for cell in row]
        cells[2].stylize(styles[row[2]])
        table.add_row(*cells)
    Console().print(table)
    return True
