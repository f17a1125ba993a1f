"""Tables in a terminal that are wider than it: every figure stays, beside the name of its row."""

from __future__ import annotations

import pytest
from data_full_report import full

from profstack.report import terminal
from profstack.report.screen import blocks
from profstack.storage.schema.report import REPORT

_NAMES = ["module", "Net.encoder", "Net.decoder"]
_TIMES = ["forward", "1.00 ms", "2.00 ms"]


def test_what_fits_stands_in_one_block() -> None:
    assert blocks([_NAMES, _TIMES], [True, False], 20) == [[0, 1]]
    assert blocks([], [], 80) == [[]]


def test_every_column_stands_once_beside_the_names_of_the_rows() -> None:
    phase = ["phase", "train", "train"]
    columns = [phase, *[_TIMES] * 9, _NAMES, *[_TIMES] * 9]
    found = blocks(columns, [True, *[False] * 9, True, *[False] * 9], 50)
    assert len(found) > 3
    assert {block[0] for block in found} == {10}
    assert [place for block in found for place in block[1:]] == [*range(10), *range(11, 20)]
    for block in found:
        assert sum(max(map(len, columns[place])) + 2 for place in block) <= 50 + 2


def test_without_words_the_first_column_leads() -> None:
    found = blocks([["step", "1"], *[_TIMES] * 5], [False] * 6, 40)
    assert found == [[0, 1, 2, 3, 4], [0, 5]]


def test_one_very_long_name_takes_no_block_from_the_figures() -> None:
    found = blocks([["module", "L" * 10_000], _TIMES, _TIMES], [True, False, False], 60)
    assert found == [[0, 1, 2]]


@pytest.mark.parametrize("table", ["modules", "operators", "functions", "lines", "steps"])
def test_rows_keep_their_names_and_figures_at_80_columns(table: str) -> None:
    records = full()["tables"][table][:6]
    narrow = terminal.table_text(REPORT[table], records, width=80, colour=False)
    wide = terminal.table_text(REPORT[table], records, width=2000, colour=False)
    assert max(map(len, narrow.splitlines())) <= 80
    # A file and its line are one column there.
    told = {*narrow.split(), *narrow.replace(":", " ").split()}
    for word in wide.split():
        # A long one may be folded.
        if len(word) < 20:
            assert word in told, word


@pytest.mark.parametrize(
    ("table", "key"), [("operators", "name"), ("functions", "name"), ("lines", "file:line")]
)
def test_every_block_begins_with_what_the_row_is_called(table: str, key: str) -> None:
    records = full()["tables"][table][:6]
    told = terminal.table_text(REPORT[table], records, width=80, colour=False)
    parts = told.split("\n\n")
    assert len(parts) > 1
    assert all(part.startswith(key) for part in parts), told
    if table == "lines":
        assert f":{records[0]['line']} " in told
