"""Writing report.json: the page's facts for programs.

One row of a table per line, so that two reports can be compared with line tools and a large one
stays readable.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from profstack.report.files import replace_text
from profstack.report.page import finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


def write(report: Mapping[str, Any], path: Path) -> None:
    """Write the report to `path` in one go: a reader sees the old file or the new one."""
    replace_text(path, text(report))


def text(report: Mapping[str, Any]) -> str:
    """The report as JSON; a float that is no number becomes null."""
    entries = ",\n".join(
        f"{json.dumps(key)}: {''.join(_value(value))}" for key, value in finite(report).items()
    )
    return "{\n" + entries + "\n}\n"


def schema() -> dict[str, Any]:
    """The JSON schema that every report.json keeps to."""
    file = resources.files("profstack.report").joinpath("report.schema.json")
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def _value(value: Any, margin: str = "") -> Iterator[str]:
    """JSON with one line per row: objects of lists are opened, everything deeper is one line."""
    if isinstance(value, dict) and any(isinstance(item, list) and item for item in value.values()):
        inner = margin + " "
        entries = (
            f"{inner}{json.dumps(key)}: {''.join(_value(item, inner))}"
            for key, item in value.items()
        )
        yield "{\n" + ",\n".join(entries) + f"\n{margin}}}"
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        rows = (f"{margin} {json.dumps(row, separators=(',', ':'))}" for row in value)
        yield "[\n" + ",\n".join(rows) + f"\n{margin}]"
    else:
        yield json.dumps(value)
