"""Filling layers that stayed empty from a second run, which only `--rerun` allows.

A layer is empty when the script had too few steps for it. The second run is measured whole; the
rows of the layers in question are copied into the first recording, under the same module paths.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profstack.recording import DATABASE
from profstack.schema import RECORDED

FOLDER = "rerun"
# Tables whose rows belong to a slice, besides those that the slices themselves make.
_BY_SLICE = tuple(
    name
    for name, table in RECORDED.items()
    if "slice" in table.names and name not in ("slices", "steps")
)


def empty_layers(folder: Path) -> list[str]:
    """Names of the layers that a recording holds nothing of for want of steps."""
    path = folder / DATABASE
    if not path.is_file():
        return []
    database = sqlite3.connect(path, timeout=60)
    try:
        rows = database.execute("SELECT name FROM layers WHERE status = 'empty'").fetchall()
    finally:
        database.close()
    return [name for (name,) in rows]


def copy_layers(folder: Path, again: Path, layers: Sequence[str]) -> list[str]:
    """Copy `layers` of the recording `again` into the one in `folder`; returns those it had."""
    if not (again / DATABASE).is_file():
        return []
    database = sqlite3.connect(folder / DATABASE, timeout=60, isolation_level=None)
    database.row_factory = sqlite3.Row
    try:
        database.execute("ATTACH ? AS again", (str(again / DATABASE),))
        marks = ", ".join("?" * len(layers))
        filled = database.execute(
            "SELECT * FROM again.layers WHERE status IN ('recorded', 'emitted') "
            f"AND name IN ({marks})",
            tuple(layers),
        ).fetchall()
        database.execute("BEGIN")
        for layer in filled:
            _copy_layer(database, dict(layer))
        database.execute("COMMIT")
    finally:
        database.close()
    for layer in filled:
        source = again / layer["name"]
        if source.is_dir():
            shutil.copytree(source, folder / layer["name"], dirs_exist_ok=True)
    return [layer["name"] for layer in filled]


def _copy_layer(database: sqlite3.Connection, layer: dict[str, Any]) -> None:
    name = layer["name"]
    numbers = _module_numbers(database)
    after = database.execute("SELECT coalesce(max(slice), -1) + 1 FROM slices").fetchone()[0]
    plan = database.execute("SELECT coalesce(min(plan), 1) FROM slices").fetchone()[0]
    copied: dict[int, int] = {}
    for row in database.execute("SELECT * FROM again.slices WHERE layer = ?", (name,)).fetchall():
        copied[row["slice"]] = after + len(copied)
        _insert(database, "slices", {**dict(row), "slice": copied[row["slice"]], "plan": plan})
    for table in _BY_SLICE:
        for row in database.execute(f'SELECT * FROM again."{table}"').fetchall():
            if row["slice"] not in copied:
                continue
            values = {**dict(row), "slice": copied[row["slice"]]}
            for column, value in values.items():
                if column.endswith("module_id") and value is not None:
                    values[column] = numbers.get(value, value)
            _insert(database, table, values)
    database.execute("DELETE FROM layers WHERE name = ?", (name,))
    _insert(database, "layers", layer)
    for row in database.execute(
        "SELECT * FROM again.artifacts WHERE layer = ?", (name,)
    ).fetchall():
        _insert(database, "artifacts", dict(row))
    # Facts of a layer bear its name: they were found out where its rows come from.
    for row in database.execute("SELECT * FROM again.facts").fetchall():
        if row["key"].startswith(f"{name}_"):
            database.execute("DELETE FROM main.facts WHERE key = ?", (row["key"],))
            _insert(database, "facts", dict(row))
    text = f"the layer {name} was filled by a second run, measured as a whole (--rerun)"
    _insert(database, "notes", {"slug": "rerun", "layer": name, "text": text})


def _module_numbers(database: sqlite3.Connection) -> dict[int, int]:
    """The number here of every module there, found by path; modules only there are added."""
    here = dict(database.execute("SELECT path, module_id FROM modules").fetchall())
    rows = database.execute("SELECT * FROM again.modules ORDER BY module_id").fetchall()
    numbers: dict[int, int] = {}
    for row in rows:
        if row["path"] not in here:
            here[row["path"]] = max(here.values(), default=0) + 1
            parent = numbers.get(row["parent_id"]) if row["parent_id"] is not None else None
            values = {**dict(row), "module_id": here[row["path"]], "parent_id": parent}
            _insert(database, "modules", values)
        numbers[row["module_id"]] = here[row["path"]]
    return numbers


def _insert(database: sqlite3.Connection, table: str, values: dict[str, Any]) -> None:
    names = RECORDED[table].names
    marks = ", ".join("?" * len(names))
    database.execute(f'INSERT INTO "{table}" VALUES ({marks})', [values[name] for name in names])
