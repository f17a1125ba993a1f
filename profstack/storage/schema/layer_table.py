"""Tables that a layer declares in its own file: how they are recorded, reported and shown.

A layer from any package names its tables in `Wrapper.tables`. The declaration is written into the
recording, so that its report can be made where the layer is not installed. Rows are totals over a
slice; the report gives figures per step.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from profstack.errors import UsageError
from profstack.storage.schema.column import SENSES, SLICE, Column, Table

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_SQL_TYPES = ("TEXT", "INTEGER", "REAL", "BOOLEAN")
# The tables of the report that a layer's table can be joined to, with the columns to join by.
Join = Literal["lines", "modules"]
JOINS: dict[str, tuple[str, ...]] = {"lines": ("file", "line"), "modules": ("path",)}


# What the recording keeps of a column.
_KEPT = ("name", "type", "meaning", "sense", "heading")


@dataclass(frozen=True)
class LayerTable:
    """A table of one layer: `name` begins with the layer's name.

    Columns without a sense are the key of a row. Numbers are added up over the slices and divided
    by their steps, but for those in `largest`: of these the largest is taken. Rows are shown in the
    order of the column `order`, the largest first. With `join` (a key of `JOINS`) the numbers are
    beside the rows of that table, too. `title` and `text` head the table on the page.
    """

    name: str
    columns: tuple[Column, ...]
    title: str
    text: str
    order: str | None = None
    largest: tuple[str, ...] = ()
    join: Join | None = None

    @property
    def table(self) -> Table:
        """The table as it is recorded: the number of the slice before the columns."""
        return Table(self.name, (SLICE, *self.columns))

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the columns that tell rows apart."""
        return tuple(column.name for column in self.columns if column.sense is None)

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the columns with numbers."""
        return tuple(column.name for column in self.columns if column.sense is not None)

    def declare(self, layer: str) -> dict[str, object]:
        """Return the declaration for the recording; raises UsageError for one that is no table."""
        self.check(layer)
        columns = [{key: getattr(each, key) for key in _KEPT} for each in self.columns]
        return {"layer": layer, **vars(self), "columns": columns}

    def check(self, layer: str) -> None:
        """Raise UsageError unless it can be recorded, read and joined as a table of `layer`."""
        names = [column.name for column in self.columns]
        faults = [f"column {name!r}" for name in names if not _NAME.fullmatch(name)]
        faults += [f"type {each.type!r}" for each in self.columns if each.type not in _SQL_TYPES]
        senses = [each.sense for each in self.columns]
        faults += [f"sense {sense!r}" for sense in senses if sense not in (None, *SENSES)]
        faults += [f"column {name!r} twice" for name in set(names) if names.count(name) > 1]
        faults += ["column 'slice', which is added"] if "slice" in names else []
        faults += [] if self.keys else ["no column without a sense, which would tell rows apart"]
        faults += [f"order {self.order!r}"] if self.order not in (None, *names) else []
        faults += [f"largest {name!r}" for name in self.largest if name not in self.figures]
        if not _NAME.fullmatch(self.name) or not f"{self.name}_".startswith(f"{layer}_"):
            faults.append(f"its name must begin with {layer}_")
        if self.join is not None and not set(JOINS.get(self.join, ("?",))) <= set(self.keys):
            faults.append(f"join {self.join!r} without its columns")
        if faults:
            raise UsageError(
                f"the table {self.name!r} cannot be recorded: {', '.join(faults)}",
                where=f"layer {layer}",
                next_step="see the page on layers in the documentation",
            )


def column(name: str, kind: str, meaning: str, sense: str | None = None) -> Column:
    """Return a column of a layer's table: its SQL type, what it says, and for numbers the sense."""
    return Column(meaning, sense=sense, name=name, type=kind)


def declared(facts: Iterable[Mapping[str, Any]]) -> Mapping[str, tuple[str, LayerTable]]:
    """Return the declared tables of a recording by name, each with its layer.

    Raises UsageError for one that no layer could declare.
    """
    tables = {}
    for fact in facts:
        columns = [Column(**{key: each[key] for key in _KEPT}) for each in fact["columns"]]
        given = {field.name: fact[field.name] for field in dataclasses.fields(LayerTable)}
        given["columns"] = tuple(
            dataclasses.replace(each, layer=None if each.sense is None else fact["layer"])
            for each in columns
        )
        given["largest"] = tuple(fact["largest"])
        table = LayerTable(**given)
        table.check(fact["layer"])
        tables[fact["name"]] = (fact["layer"], table)
    return tables
