"""Columns and tables: units, headings, rows in order, and declarations as typed rows."""

from typing import Annotated, Literal, TypedDict

import pytest

from profstack.errors import RecordingError
from profstack.storage.schema import column as schema
from profstack.storage.schema.column import Column, Table, cell, columns, empty, layer, row_table


def test_rows_have_the_order_of_the_columns_and_null_for_what_is_missing():
    table = Table("steps", columns("step INTEGER its number", "wall_s REAL host time, all of it"))
    assert table.names == ("step", "wall_s")
    assert table.rows([{"wall_s": 0.5, "step": 3}, {"step": 0}]) == [(3, 0.5), (0, None)]
    with pytest.raises(RecordingError, match=r"steps.*'a', 'b'"):
        table.rows([{"step": 1, "b": 2, "a": 1}])
    found = table.column("wall_s")
    assert (found.type, found.meaning) == ("REAL", "host time, all of it")
    assert table.column("other") is None
    for name, kind, unit, label in (
        ("wait_s", "REAL", "s", "wait"), ("flop_per_s", "REAL", "rate", "flop per"),
        ("watch_share", "REAL", "share", "watch share"), ("peak_bytes", "INTEGER", "bytes", "peak"),
        ("batch_size", "INTEGER", "plain", "batch size"), ("line", "INTEGER", "plain", "line"),
        ("calls", "REAL", "count", "calls"), ("wait_s", "TEXT", "text", "wait"),
        ("shapes", "JSON", "text", "shapes"), ("own", "BOOLEAN", "flag", "own"),
    ):  # fmt: skip
        made = Column("what it says", name=name, type=kind)
        assert (made.unit, made.label) == (unit, label)
        assert Column("x", name=name, type=kind, heading="Given").label == "Given"


class _Row(TypedDict):
    name: Annotated[str, "heading | its | name"]
    kind: Annotated[Literal["a", "b"], "kind"]
    calls: Annotated[schema.Counted, "calls"]
    self_s: Annotated[schema.Raw, "own time", schema.needs("nvtx")]
    device_s: Annotated[schema.Raw, layer("step clock"), "device time", empty("no device")]
    line: Annotated[schema.OwnFact, "line"]
    watched_s: Annotated[schema.Calibrated, layer("watch"), "watched", cell("not seen")]
    size: Annotated[schema.Fact, "size"]
    own: Annotated[schema.Flag, "own"]
    parts: Annotated[list[dict[str, int]], "parts"]
    share: schema.Figure


def test_typed_rows_become_a_table():
    table = row_table("things", Annotated[list[_Row], schema.given_by("torch")])
    assert (table.name, table.given_by) == ("things", "torch")
    found = {each.name: each for each in table.columns}
    assert list(found) == list(_Row.__annotations__)
    types = "TEXT TEXT REAL REAL REAL INTEGER REAL INTEGER BOOLEAN JSON REAL"
    assert " ".join(each.type for each in found.values()) == types
    assert (found["name"].heading, found["name"].meaning) == ("heading | its", "name")
    assert (found["device_s"].empty, found["watched_s"].cell) == ("no device", "not seen")
    # Numbers are of the layer that gives the table, unless they name another one.
    layers = {name: (each.layer, each.needs, each.sense) for name, each in found.items()}
    texts = dict.fromkeys(("name", "kind", "own", "parts", "share"), (None, "torch", None))
    figures = {"calls": ("torch", "torch", "counted"), "self_s": ("torch", "nvtx", "raw")}
    figures |= {"device_s": ("step clock", "torch", "raw"), "line": ("profstack", "torch", "fact")}
    figures |= {"watched_s": ("watch", "watch", "calibrated"), "size": ("torch", "torch", "fact")}
    assert layers == {**texts, **figures}
    other = row_table("things", Annotated[list[_Row], layer("flops")])
    calls = other.column("calls")
    assert (other.given_by, calls.layer, calls.needs) == (None, "flops", "flops")
