"""The recording on disk: never overwritten, never half written, and never misread."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from profstack.errors import RecordingError, UsageError
from profstack.storage import folder as storage
from profstack.storage.schema.layer_table import LayerTable, column
from profstack.storage.schema.recorded import RECORDED, SCHEMA_VERSION
from tests.support.tables import cases


def step(number):
    return {"step": number, "plan": 1, "slice": number // 10, "wall_s": 0.5, "flags": ""}


def create(output=None, force=False, name="train"):
    return storage.create_folder(name, None if output is None else str(output), force=force)


@pytest.fixture
def folder(tmp_path):
    return create(tmp_path / "rec")


@pytest.fixture
def writer(folder):
    return storage.Writer(folder)


def column_of(folder, table, name):
    columns, rows = storage.read_tables(folder)[table]
    return [row[columns.index(name)] for row in rows]


def test_what_is_written_is_read_again(folder, writer):
    for device in ("cpu", "cuda"):
        writer.facts({"device": device})
    notes = [{"slug": "a", "text": "ü, 'quoted'"}, {"slug": "b", "text": "no text \udcff"}]
    writer.write({"steps": [step(0), {**step(1), "cpu_s": 0.0}], "notes": notes})
    writer.close()
    tables = storage.read_tables(folder)
    names = {name: tuple(columns) for name, (columns, _) in tables.items()}
    assert names == {name: table.names for name, table in RECORDED.items()}
    assert tables["notes"][1] == [("a", None, "ü, 'quoted'"), ("b", None, "no text \\udcff")]
    assert storage.facts_of(tables) == {"schema_version": SCHEMA_VERSION, "device": "cuda"}
    # What was not measured is null, and not zero.
    found = [column_of(folder, "steps", name) for name in ("step", "cpu_s")]
    assert found == [[0, 1], [None, 0.0]]
    # Byte 18 of the header is the journal: 1 can be read where no file can be made beside it.
    assert (folder / storage.DATABASE).read_bytes()[18] == 1
    assert [path.name for path in folder.glob(storage.DATABASE + "*")] == [storage.DATABASE]


def test_a_failed_transaction_leaves_nothing_and_blocks_nothing(folder, writer):
    writer.write({"steps": [step(0)]})
    before, unknown = storage.read_tables(folder), [step(1), {"no_such_column": 1}]
    for attempt, error in (
        (lambda: writer.write({"notes": [{"slug": "x"}], "steps": unknown}), RecordingError),
        (lambda: writer.write({"steps": [step(1)], "no_such_table": []}), KeyError),
        (lambda: writer.replace("steps", unknown), RecordingError),
        (lambda: writer.replace_all({"steps": [], "layers": [{"x": 1}]}), RecordingError),
        (lambda: writer.facts({"fine": 1, "schema_version": 7, "bad": object()}), TypeError),
    ):
        with pytest.raises(error):
            attempt()
        assert storage.read_tables(folder) == before
    writer.write({"steps": [step(2)]})
    assert column_of(folder, "steps", "step") == [0, 2]
    writer.replace("steps", [step(3)])
    assert column_of(folder, "steps", "step") == [3]
    writer.write({"layers": [{"name": "torch"}]})
    writer.replace_all({"notes": [{"slug": "new"}], "layers": []})
    found = column_of(folder, "notes", "slug"), column_of(folder, "layers", "name")
    assert found == (["new"], [])


def test_without_the_source_no_text_of_the_script_is_written(folder):
    line = {"file": "a.py", "line": 3, "source": "secret()"}
    for kept in (True, False):
        text = {"source_files": [{"file": "a.py", "text": "secret()"}]}
        writer = storage.Writer(folder, keep_source=kept)
        writer.write({"lines": [line], "memory_lines": [line], **text})
    for place in (("lines", "source"), ("memory_lines", "source"), ("source_files", "text")):
        assert column_of(folder, *place) == ["secret()", None]
    reasons = column_of(folder, "source_files", "reason")
    assert [reason is None for reason in reasons] == [True, False]


def test_tables_of_a_layer_have_their_own_place(folder, writer):
    columns = (column("name", "TEXT", "name"), column("hits", "REAL", "hits", "counted"))
    table = LayerTable("cache_use", columns, "Caches", "text")
    writer.declare("other", [])
    writer.declare("cache", [table])
    writer.write({"cache_use": [{"slice": 3, "name": "x", "hits": 2.5}]})
    with pytest.raises(UsageError, match="taken"):
        writer.declare("cache", [table])
    tables = storage.read_tables(folder)
    facts = storage.facts_of(tables)
    assert tables["cache_use"] == (["slice", "name", "hits"], [(3, "x", 2.5)])
    [(name, (layer, found))] = storage.declared_tables(facts).items()
    assert (name, layer, found.title) == ("cache_use", "cache", "Caches")
    assert "other_layer_tables" not in facts


def refused(folder):
    with pytest.raises(RecordingError) as caught:
        storage.read_tables(folder)
    message = str(caught.value)
    assert (len(message.splitlines()), bool(caught.value.next_step)) == (1, True)
    assert str(folder) in message
    return message


def test_what_holds_no_tables_is_told_in_one_line(folder, tmp_path):
    assert "no recording here" in refused(tmp_path)
    # Killed between making the file and its first table.
    (folder / storage.DATABASE).touch()
    assert "cannot be read" in refused(folder)
    (folder / storage.DATABASE).unlink()
    for version in (SCHEMA_VERSION + 1, None):
        writer = storage.Writer(folder)
        writer.facts({"schema_version": version})
        writer._database.execute("DROP TABLE IF EXISTS kernels")
        writer.close()
        assert f"schema {version}" in refused(folder)


def test_a_recording_of_an_older_version_lacks_later_tables_and_columns(folder, writer):
    writer.write({"notes": [{"slug": "a", "text": "b"}], "kernels": [{"name": "k"}]})
    writer._database.execute("DROP TABLE kernels")
    writer._database.execute("ALTER TABLE notes DROP COLUMN layer")
    writer.close()
    tables = storage.read_tables(folder)
    assert tables["kernels"] == (list(RECORDED["kernels"].names), [])
    assert tables["notes"] == (["slug", "layer", "text"], [("a", None, "b")])


def test_folders_are_numbered_and_never_reused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [create(force=force) for force in (False, True, False)]
    assert [path.name for path in made] == ["train-0001", "train-0002", "train-0003"]
    assert all((path / "logs").is_dir() for path in made)
    shutil.rmtree(made[1])
    assert create().name == "train-0004"
    assert create(name="train-2").name == "train-2-0001"
    for name in ("9999", "mine"):
        Path(f"profstack-runs/train-{name}").mkdir()
    assert create().name == "train-10000"
    (tmp_path / "mine").mkdir()
    assert create(tmp_path / "mine").is_dir()
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: create(), range(8)))) == 8


def filled(folder):
    writer = storage.Writer(folder)
    writer.write({"layers": [{"name": "cprofile", "status": "recorded"}]})
    writer.close()
    for name in ("report.html", "report.json", ".report.html.partial", "cprofile/profile.prof"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("old")


def test_a_recording_is_replaced_by_force_alone(folder, tmp_path):
    filled(folder)
    # A process that was killed before its first file left its folder.
    (folder / "process-9").mkdir()
    # What `profstack try` has left there is profstack's own.
    (folder / "try.json").write_text("{}")
    with pytest.raises(RecordingError, match=r"in use.*--force"):
        create(folder)
    assert (folder / "report.html").read_text() == "old"
    link = tmp_path / "latest"
    link.symlink_to(folder, target_is_directory=True)
    for path in (folder, link):
        create(path, force=True)
        assert [path.name for path in folder.iterdir()] == ["logs"]
        assert not list((folder / "logs").iterdir())
        filled(folder)
    assert link.is_symlink()


@cases("name", "mine.txt; data/mine.txt; cprofile.txt")
def test_force_leaves_alone_what_no_run_has_made(folder, tmp_path, name):
    filled(folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    with pytest.raises(RecordingError, match="--force does not replace it"):
        create(folder, force=True)
    assert [(folder / x).read_text() for x in (name, "report.html")] == ["mine", "old"]
    # Of what is no recording neither a file nor a folder; with a file --force would not help.
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / name.replace("/", "-")).touch()
    with pytest.raises(RecordingError, match="no recording"):
        create(tmp_path / "folder", force=True)
    for force in (True, False):
        with pytest.raises(RecordingError, match="it is a file, and a recording is a folder"):
            create(folder / name, force=force)
    assert (folder / name).read_text() == "mine"


def test_the_ranks_of_a_launch_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def made(output, job, *ranks):
        return [str(storage.create_rank_folder("t", output, n, job, force=False)) for n in ranks]

    runs = "profstack-runs/t-"
    assert made(None, "job 1", 0, 12) == [f"{runs}0001/rank-{n}" for n in ("00000", "00012")]
    assert made(None, "job 2", 0) == [f"{runs}0002/rank-00000"]
    # A launch of the same name whose folder is gone begins a new one.
    shutil.rmtree(f"{runs}0001")
    assert made(None, "job 1", 0, 1) == [f"{runs}0003/rank-{n}" for n in ("00000", "00001")]
    assert made("out", "job 1", 3) == ["out/rank-00003"]
    assert Path("out/rank-00003/logs").is_dir()
    assert list(Path("profstack-runs").glob(".launch-*-*")) == []


def test_the_file_of_the_run(folder, monkeypatch):
    assert storage.read_run(folder) == {}
    storage.write_run(folder, {"script": "ü.py"})
    # It is written whole: whoever is killed leaves the one before.
    monkeypatch.setattr(Path, "replace", None)
    with pytest.raises(TypeError):
        storage.write_run(folder, {"script": "b.py"})
    monkeypatch.undo()
    assert storage.read_run(folder) == {"script": "ü.py"}
    (folder / storage.RUN_FILE).write_text("{cut")
    with pytest.raises(RecordingError, match="damaged JSON"):
        storage.read_run(folder)
    assert storage.iso(1_700_000_000.25) == "2023-11-14T22:13:20.250+00:00"
    before = time.time()
    facts = storage.run_times(before - 5, 4.5)
    assert (facts["started_at"], facts["duration_s"]) == (storage.iso(before - 5), 4.5)
    assert facts["finished_at"] >= storage.iso(before)
    assert storage.exit_facts(-9) == {"exit_code": None, "signal": 9}
    assert storage.exit_facts(0) == {"exit_code": 0, "signal": None}
