"""Tables that a layer declares: what is refused, and what a recording keeps of them."""

import dataclasses
import json

import pytest

from profstack.errors import UsageError
from profstack.storage.schema.layer_table import LayerTable, column, declared

HITS = column("hits", "REAL", "hits", "counted")
COLUMNS = (
    column("path", "TEXT", "module"), HITS, column("peak_bytes", "INTEGER", "most bytes", "raw")
)  # fmt: skip
MORE = {"order": "hits", "largest": ("peak_bytes",), "join": "modules"}
GOOD = LayerTable("cache_use", COLUMNS, "Caches", "text", **MORE)


def test_a_declaration_comes_back_from_the_recording():
    assert (GOOD.keys, GOOD.figures) == (("path",), ("hits", "peak_bytes"))
    assert GOOD.table.names == ("slice", "path", "hits", "peak_bytes")
    plain = LayerTable("cache", COLUMNS[:2], "T", "x")
    found = declared(json.loads(json.dumps([GOOD.declare("cache"), plain.declare("cache")])))
    layers = {name: layer for name, (layer, _) in found.items()}
    assert layers == {"cache_use": "cache", "cache": "cache"}
    back = found["cache_use"][1]
    assert [each.layer for each in back.columns] == [None, "cache", "cache"]
    bare = tuple(dataclasses.replace(each, layer=None) for each in back.columns)
    assert dataclasses.replace(back, columns=bare) == GOOD


def test_what_is_no_table_is_refused():
    cases = {
        "column 'Bad'": column("Bad", "TEXT", "x"), "type 'BLOB'": column("x", "BLOB", "x"),
        "sense 'guess'": column("x", "REAL", "x", "guess"), "'hits' twice": HITS,
        "'slice'": column("slice", "INTEGER", "x"),
    }  # fmt: skip
    cases = {words: {"columns": (*COLUMNS, added)} for words, added in cases.items()}
    cases["no column without a sense"] = {"columns": COLUMNS[1:], "join": None}
    cases |= {"order 'misses'": {"order": "misses"}, "largest 'path'": {"largest": ("path",)}}
    cases |= {f"join '{name}'": {"join": name} for name in ("lines", "steps")}
    names = [("begin with cache_", {"name": name}) for name in ("use", "cached", "cache_Use")]
    for words, changed in (*cases.items(), *names):
        with pytest.raises(UsageError, match="cannot be recorded") as refused:
            dataclasses.replace(GOOD, **changed).declare("cache")
        assert words in str(refused.value)
    assert dataclasses.replace(GOOD, order=None, join=None).declare("cache")["layer"] == "cache"
