"""The recorded tables: which are of slices, and columns that programs and reports rest on."""

from profstack.storage.schema.recorded import RECORDED, RECORDED_OF_NSYS, SCHEMA_VERSION

OF_RUN = {"facts", "slices", "steps", "modules", "functions", "calls", "memory", "layers", "notes"}
OF_RUN |= {"watch_frames", "watch_samples", "compilations", "graph_breaks", "artifacts"}
OF_RUN.add("generations")


def test_rows_of_a_slice_begin_with_its_number():
    for name, table in RECORDED.items():
        assert table.names[0] == "slice" or name in {*OF_RUN, *RECORDED_OF_NSYS}, name
        assert (table.name, len(set(table.names))) == (name, len(table.names))
        for column in table.columns:
            assert column.type in ("TEXT", "INTEGER", "REAL", "JSON"), column
            assert column.type == "REAL" or not column.name.endswith("_s"), column
            assert column.meaning, column
    assert set(RECORDED) > OF_RUN
    assert all(name.startswith("nsys_") for name in RECORDED_OF_NSYS)
    assert SCHEMA_VERSION == 1
