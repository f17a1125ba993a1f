"""The SQLite file that nsys exports: columns as arrays, words for numbers, files that are none."""

import os
import random
import sqlite3
import stat
from contextlib import closing

import numpy as np
import pytest

from profstack.errors import ProfstackError
from profstack.readers.nsys import export_file
from profstack.readers.nsys.export import read_export
from profstack.readers.nsys.export_file import Column, ExportError, ExportFile, needed
from tests.support.nsys_files import NsysFile, change
from tests.support.tables import cases

SCHEMA = """CREATE TABLE StringIds (id INTEGER, value TEXT);
CREATE TABLE events (start INTEGER, end INTEGER, number INTEGER, text TEXT, load INTEGER,
    never INTEGER NOT NULL, globalTid INTEGER, globalPid INTEGER);
CREATE TABLE words (id INTEGER, name TEXT, label TEXT)"""


@pytest.fixture
def path(tmp_path):
    """A file with a few tables, which tests fill."""
    change(tmp_path / "out.sqlite", *SCHEMA.split(";"))
    return tmp_path / "out.sqlite"


def put(path, table, columns, *rows):
    marks = ", ".join("?" * len(columns.split(",")))
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)


def read(path, wanted):
    with ExportFile(path) as file:
        found = file.columns("events", wanted)
    return {key: values.tolist() for key, values in found.items()}


@cases(
    "column name stored expected",
    (Column("number"), "number", [None, 0, 5], [-1, 0, 5]),
    (Column("number", from_one=True), "number", [None, 0, 5], [-1, -1, 5]),
    (Column("lacking"), "number", [7, 8], [-1, -1]),
    (Column("text", kind="text"), "text", [None, "", "a", 12], [None, None, "a", "12"]),
    (Column("load", kind="payload"), "load", [None, 0, 5, "x", 2.5], [None, 0, 5, None, None]),
    # Where no column may be null, 0 means none.
    (Column("never", kind="payload"), "never", [0, 5], [None, 5]),
)
def test_a_value_that_is_none_in_each_kind_of_column(path, column, name, stored, expected):
    names = "never, start" if name == "never" else f"{name}, never"
    put(path, "events", names, *((value, 0) for value in stored))
    assert read(path, {"key": column}) == {"key": expected}


def test_a_column_that_is_needed_and_not_there(path):
    with ExportFile(path) as file:
        with pytest.raises(ExportError, match="words has no column globalTid or globalPid"):
            file.process_of("words")
        with pytest.raises(ExportError, match=r"out\.sqlite: .*events has no column gone"):
            file.columns("events", needed(a="gone"))


def test_texts_and_words_of_numbers(path, monkeypatch):
    monkeypatch.setattr(export_file, "_IDS_AT_ONCE", 2)
    put(path, "StringIds", "id, value", *((number, f"text {number}") for number in range(1, 6)))
    change(path, "UPDATE StringIds SET value = CAST(x'6bff6b' AS TEXT) WHERE id = 4")
    # The file knows its numbers, unless its words for ours are new.
    known = {2: "device to host", 3: "host to host", 4: "peer to peer"}
    words = [(2, "A", "DtoH"), (7, "B", "Host-to-Moon"), (3, "C", "Peer-to-Peer"), (4, "D", None)]
    put(path, "words", "id, name, label", *words)
    with ExportFile(path) as file:
        ids = np.array([5, -1, 1, 4, 99, 5, 3])
        expected = ["text 5", "none", "text 1", "k\ufffdk", "none", "text 5", "text 3"]
        assert file.strings(ids, otherwise="none").tolist() == expected
        assert file.strings(ids[:2]).tolist() == ["text 5", None]
        numbers, peer = np.array([7, 2, 8, 3, 4, -1]), "peer to peer"
        expected = ["host to moon", "device to host", None, peer, peer, None]
        assert file.words("words", numbers, known).tolist() == expected
        assert file.words("nowhere", numbers, known).tolist()[:2] == [None, "device to host"]
        assert file.numbers("words", {"B": 1, "E": 6}) == [7, 6]


def told(path):
    with pytest.raises(ExportError) as caught:
        read_export(path)
    assert (isinstance(caught.value, ProfstackError), "\n" in str(caught.value)) == (True, False)
    assert caught.value.next_step
    return str(caught.value)


def test_files_that_are_none(tmp_path):
    given, other = tmp_path / "text.sqlite", tmp_path / "other.sqlite"
    assert "No such file" in told(tmp_path / "none.sqlite")
    assert "directory" in told(tmp_path)
    given.touch()
    assert "is empty; export it again: nsys export --type sqlite --force-overwrite" in told(given)
    given.write_text("step,seconds\n" * 50)
    assert "is not a SQLite file" in told(given)
    for ending in (".nsys-rep", ".qdrep", ".qdstrm"):
        assert f"nsys export --type sqlite out{ending}" in told(tmp_path / f"out{ending}")
    change(other, "CREATE TABLE StringTable (id INTEGER, value TEXT)")
    assert "not an export of Nsight Systems" in told(other)
    change(other, "CREATE TABLE StringIds (id INTEGER, value TEXT)")
    assert "holds no event of any process" in told(other)


def test_a_damaged_file_is_told_as_cut_or_damaged_or_is_read(tmp_path):
    with NsysFile(tmp_path / "capture.sqlite", "2022") as file:
        for number in range(60):
            file.range(1000 * number, 1000 * number + 500, f"a range with its own name {number}")
            file.play(f"launched +10 +20 +30 'kernel {number}' {number + 1}", 1000 * number)
    whole, chance, outcomes = file.path.read_bytes(), random.Random(11), []
    for at in chance.sample(range(16, len(whole)), 25):
        (tmp_path / "cut.sqlite").write_bytes(whole[:at])
        assert "is cut short" in told(tmp_path / "cut.sqlite")
    # Whatever stands in it, there is an export or one line, never another exception.
    for turns in (1, 20, 400) * 12:
        raw = bytearray(whole)
        for _ in range(turns):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        (tmp_path / "turned.sqlite").write_bytes(raw)
        try:
            outcomes.append("read" if read_export(tmp_path / "turned.sqlite") else "")
        except ExportError as error:
            outcomes.append("told" if "\n" not in str(error) else str(error))
    assert set(outcomes) == {"told", "read"}


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_nothing_is_written_beside_or_into_the_file(tmp_path, mode):
    folder = tmp_path / "a folder, 100% #1?"
    folder.mkdir()
    with NsysFile(folder / "out.sqlite") as file:
        file.kernel(20, 30, "k", 1)
    change(file.path, f"PRAGMA journal_mode = {mode}")
    before = (file.path.read_bytes(), file.path.stat().st_mtime_ns)
    try:
        for rights in (stat.S_IRUSR | stat.S_IXUSR, stat.S_IRWXU):
            os.chmod(folder, rights)
            assert len(read_export(file.path).work) == 1
            assert [each.name for each in folder.iterdir()] == ["out.sqlite"]
            assert (file.path.read_bytes(), file.path.stat().st_mtime_ns) == before
    finally:
        folder.chmod(stat.S_IRWXU)
