"""The tables of all ranks as Parquet, for other programs: a file for each table that has rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER = "tables"
# The tables that join ranks.
TABLES = ("ranks", "rank_parts", "rank_steps", "rank_work", "collectives")


def write(tables: Mapping[str, Sequence[Mapping[str, object]]], folder: Path) -> list[Path]:
    """Write the tables into a folder and return the files; of an earlier start none is left."""
    import pyarrow as arrow
    from pyarrow import parquet

    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.parquet"):
        old.unlink()
    written = []
    for name in TABLES:
        if rows := tables.get(name):
            path = folder / f"{name}.parquet"
            parquet.write_table(arrow.Table.from_pylist([dict(row) for row in rows]), path)
            written.append(path)
    return written
