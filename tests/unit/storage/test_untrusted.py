"""What others send: read within limits, of the declared types, or refused in one line."""

import json
import os
import random
import sqlite3
from contextlib import closing
from typing import Annotated, Literal, TypedDict

import pytest

from benchmarks.hostile_recordings import random_damage
from profstack.errors import ProfstackError, RecordingError
from profstack.report import files
from profstack.storage import untrusted
from profstack.storage.folder import DATABASE, check_files, facts_of, read_run, read_tables
from profstack.storage.schema.facts import EnvironmentFacts
from profstack.storage.untrusted import MismatchError, check_file, parsed, read_text, typed
from tests.support import hostile_recordings as hostile
from tests.support.tables import cases, entries


@pytest.fixture
def folder(tmp_path):
    return hostile.kept(tmp_path / "rec")


def refused(call, *given):
    """The line of the RecordingError that a call raises."""
    with pytest.raises(RecordingError) as caught:
        call(*given)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# --- Files ----------------------------------------------------------------------------------------

IN_PLACE = dict.fromkeys(("a pipe", "a folder"), "no regular file")
IN_PLACE |= dict.fromkeys(("a device", "a link outside"), "out of its folder")
IN_PLACE |= {"a link to nothing": "link to nothing", "a link to itself": "cannot be read"}
IN_PLACE["a sparse gigabyte"] = "too large"


@pytest.mark.parametrize("place", [DATABASE, "report.json", "logs/run.json", f"{DATABASE}-wal"])
@pytest.mark.parametrize("words", IN_PLACE)
def test_only_files_of_the_folder_are_read_and_written(folder, place, words):
    check_files(folder)
    hostile.IN_PLACE[words](folder / place)
    said = refused(check_files, folder)
    assert f"{folder / place}: " in said
    assert IN_PLACE[words] in said
    reader = {"report.json": files.load, "logs/run.json": read_run}.get(place, read_tables)
    assert refused(reader, folder) == said or place == DATABASE


def test_limits_of_a_file_and_links_within_the_folder(tmp_path, monkeypatch):
    path, link = tmp_path / "a.json", tmp_path / "b.json"
    path.write_text('"ü"')
    link.symlink_to("a.json")
    assert untrusted.read_json(link, str, inside=tmp_path) == "ü"
    assert check_file(link, inside=tmp_path, most=4) == path.resolve()
    assert "4 bytes, at most 3" in refused(lambda: check_file(link, inside=tmp_path, most=3))
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    assert "out of its folder" in refused(lambda: read_text(path, inside=elsewhere))
    # A link that the user names is the user's own choice.
    assert read_text(link) == '"ü"'
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "none")
    path.write_bytes(b"\xff")
    assert "cannot be read" in refused(read_text, path)
    # It became a pipe between the look at it and its opening: that does not wait.
    monkeypatch.setattr(untrusted, "check_file", lambda path, **_: path)
    os.mkfifo(tmp_path / "pipe")
    assert read_text(tmp_path / "pipe") == ""


# --- JSON and its types ---------------------------------------------------------------------------


class Inner(TypedDict):
    line: int
    source: str | None


class Sample(TypedDict):
    name: Annotated[str, "a text"]
    share: Annotated[float | None, "a number"]
    kind: Literal["a", "b"] | None
    lines: list[Inner]
    counts: dict[str, int]
    is_on: bool
    pair: tuple[float, int]


WHOLE = {
    "name": "n", "share": 0.5, "kind": "b", "lines": [{"line": 3, "source": None}],
    "counts": {"x": 1}, "is_on": True, "pair": [0.5, 2],
}  # fmt: skip


@cases(
    "changes said",
    ({"name": None}, "name is null, not text"),
    ({"share": True}, "share is true or false, not a number"),
    ({"share": 2e30}, "share is no finite number"),
    ({"kind": "c"}, "kind is 'c', which this profstack does not know"),
    ({"lines": {}}, "lines is an object, not a list"),
    ({"lines": [{"line": 1}, {"source": "s"}]}, "lines[1] lacks 'line'"),
    ({"lines": [{"line": 1.5}]}, "lines[0].line is no whole number"),
    ({"lines": [{"line": 2**63}]}, "lines[0].line is no whole number of 64 bits"),
    ({"counts": {"x": "1"}}, "counts.x is text"),
    ({"is_on": 1}, "is_on is a whole number"),
    ({"pair": [1.0]}, "pair has 1 values, not 2"),
)
def test_a_value_of_another_type_is_named_by_its_place(changes, said):
    typed(json.loads(json.dumps(WHOLE)), Sample)
    with pytest.raises(MismatchError) as caught:
        typed(json.loads(json.dumps({**WHOLE, **changes})), Sample)
    assert said in str(caught.value)


def test_what_is_later_than_the_file_is_null_or_empty():
    value = typed({"name": "n", "is_on": False, "pair": [1, 2], "more": 1}, Sample)
    later = {"share": None, "kind": None, "lines": [], "counts": {}}
    assert value == {"name": "n", "is_on": False, "pair": [1, 2], "more": 1, **later}
    with pytest.raises(MismatchError, match="lacks 'is_on'"):
        typed({"name": "n", "pair": [1, 2]}, Sample)
    largest = {"line": 2**63 - 1, "source": None}
    assert typed([largest, {"line": 3.0}], list[Inner])[1] == {"line": 3.0, "source": None}
    # Text that only declared keys are of.
    assert typed({"gpu": None, "own": [1, {"a": "b"}]}, EnvironmentFacts)


def nested(depth):
    return "[" * depth + "]" * depth


def test_what_is_no_json_or_nested_too_deep_is_one_line():
    for text, said in (
        ("{", "damaged JSON"), ("", "damaged JSON"), ("9" * 5000, "damaged JSON"),
        (nested(100_000), "too deep"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said) as caught:
            parsed(text)
        assert len(str(caught.value).splitlines()) == 1
    most = untrusted.MOST_DEEP
    typed(parsed(nested(most + 1)), object)
    for text, said in ((nested(most + 3), "too deep"), ("[1e999]", "finite")):
        with pytest.raises(MismatchError, match=said):
            typed(parsed(text), object)
    assert parsed("[NaN, Infinity, 1.5]") == [None, None, 1.5]


def test_lone_surrogates_become_texts_that_can_be_written():
    text = r'{"a\udcff": ["\ud800x", "\ud83d\ude00", "\\ud800"]}'
    assert parsed(text) == {"a\\udcff": ["\\ud800x", "😀", "\\ud800"]}
    with pytest.raises(ValueError, match="too deep"):
        parsed(f'[{nested(900)}, "\\ud800"]')


# --- Tables ---------------------------------------------------------------------------------------

# What is said of damages, and their names in `hostile.TABLES`.
REFUSALS = """
is no table as a run makes | a view that never ends; a generated column in place of one; a trigger
is no table as a run makes | a table in capitals; a virtual table; a check that makes blobs
is no table as a run makes | a table that is a call // too many columns | 2,000 columns
no table of facts | no table of facts // malformed | cut in the middle
not a database | text in place of it // Could not decode to UTF-8 | text that is no UTF-8
a fact without a name or a value | a fact without a value
a row without one | null in columns INTEGER // has values that are no TEXT | blobs in columns TEXT
has values that are no INTEGER | text in columns INTEGER
numbers out of all proportion | infinity in columns REAL; the most in columns INTEGER
fact plan_1: damaged JSON (nested too deep) | the fact plan_1 as deep
fact nsys: is a list, not an object or null | the fact nsys as a list
cannot be recorded | a layer's table that is steps; a layer's table with SQL
"""
REFUSED = {name: said for said, names in entries(REFUSALS) for name in names.split("; ")}


@pytest.mark.parametrize("words", REFUSED)
def test_what_no_run_writes_is_refused(folder, words):
    hostile.TABLES[words](folder)
    with pytest.raises(ProfstackError) as caught:
        read_tables(folder)
    assert REFUSED[words] in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_has_some_bytes_for_each_row(folder, monkeypatch):
    rows = sum(len(rows) for _, rows in read_tables(folder).values())
    most = (folder / DATABASE).stat().st_size // rows
    monkeypatch.setattr(untrusted, "_LEAST_ROW", most)
    read_tables(folder)
    # As where several pages lead to one, and the same rows come again and again.
    monkeypatch.setattr(untrusted, "_LEAST_ROW", most + 1)
    assert "its pages are damaged" in refused(read_tables, folder)


def test_a_recording_of_a_later_profstack_is_read(folder):
    before = read_tables(folder)
    later = 'CREATE TABLE "later" ("a" TEXT)', 'ALTER TABLE steps ADD COLUMN "later" INTEGER'
    hostile.sql(*later)(folder)
    assert read_tables(folder) == before


def test_rows_that_form_no_tree_or_lead_out_of_the_folder_are_refused(folder):
    for number, statement in enumerate((
        "UPDATE modules SET parent_id = module_id WHERE module_id = 3",
        "UPDATE modules SET parent_id = CASE module_id WHEN 3 THEN 4 WHEN 4 THEN 3 END",
        "UPDATE watch_frames SET frame = 1", "UPDATE artifacts SET path = 'torch/../../x'",
        "UPDATE artifacts SET path = '/x'", "UPDATE artifacts SET path = 'C:x'",
    )):  # fmt: skip
        copy = hostile.kept(folder.parent / str(number))
        hostile.sql(statement)(copy)
        said = refused(read_tables, copy)
        assert any(words in said for words in ("below itself", "a number twice", "leads out"))


def test_reading_leaves_nothing_beside_and_changes_nothing(folder):
    content = (folder / DATABASE).read_bytes()
    read_tables(folder)
    assert (folder / DATABASE).read_bytes() == content
    # A run that was killed left its log: it is folded in.
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        hostile.sql("INSERT INTO notes VALUES ('late', NULL, 'x')")(folder)
        assert read_tables(folder)["notes"][1][-1][0] == "late"


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_recording_is_read_or_refused_in_one_line(folder, seed):
    random_damage(folder, random.Random(seed))
    readers = (lambda: facts_of(read_tables(folder)), lambda: read_run(folder))
    for read in (*readers, lambda: files.load(folder)):
        try:
            read()
        except ProfstackError as error:
            said = str(error)
        else:
            said = ""
        assert len(said.splitlines()) <= 1
