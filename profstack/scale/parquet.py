"""The tables of all ranks as Parquet, for other programs: a file for each table that has rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from profstack.storage.schema.report import Tables

FOLDER = "tables"


def write(tables: Tables, folder: Path) -> list[Path]:
    """Write the tables into a folder and return the files; of an earlier start none is left."""
    import pyarrow as arrow
    from pyarrow import parquet

    folder.mkdir(exist_ok=True)
    written = []
    joined: dict[str, Sequence[Mapping[str, object]]] = {
        "ranks": tables["ranks"],
        "rank_parts": tables["rank_parts"],
        "rank_steps": tables["rank_steps"],
        "rank_work": tables["rank_work"],
        "collectives": tables["collectives"],
    }
    for name, rows in joined.items():
        path = folder / f"{name}.parquet"
        path.unlink(missing_ok=True)
        if rows:
            parquet.write_table(arrow.Table.from_pylist([*rows]), path)
            written.append(path)
    return written
