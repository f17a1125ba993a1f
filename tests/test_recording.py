"""The recording on disk: never overwritten, never half written, and never misread."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import clean_environment

from profstack.errors import RecordingError
from profstack.storage.folder import (
    DATABASE,
    PROGRESS,
    Writer,
    append_event,
    create_folder,
    facts_of,
    is_recording,
    read_tables,
)
from profstack.storage.schema.recorded import RECORDED, SCHEMA_VERSION


def step(number: int) -> dict[str, Any]:
    """A row of `steps` that is told from others by its number."""
    return {"step": number, "plan": 1, "slice": number // 10, "wall_s": 0.5, "flags": ""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an empty recording."""
    return create_folder("train", str(tmp_path / "rec"), force=False)


def numbers(folder: Path) -> list[int]:
    """The steps of a recording."""
    columns, rows = read_tables(folder)["steps"]
    return [row[columns.index("step")] for row in rows]


# -- tables ------------------------------------------------------------------------------------


def test_what_is_written_is_read_again(folder: Path) -> None:
    writer = Writer(folder)
    writer.facts({"environment": {"torch": "2"}})
    writer.write({"steps": [step(0), step(1)], "notes": [{"slug": "a", "text": "ü, 'quoted'"}]})
    writer.close()
    tables = read_tables(folder)
    assert set(tables) == set(RECORDED)
    for name, (columns, _) in tables.items():
        assert tuple(columns) == RECORDED[name].names
    assert numbers(folder) == [0, 1]
    assert tables["notes"][1] == [("a", None, "ü, 'quoted'")]
    assert facts_of(tables) == {"schema_version": SCHEMA_VERSION, "environment": {"torch": "2"}}


def test_what_was_not_measured_is_null_and_not_zero(folder: Path) -> None:
    writer = Writer(folder)
    writer.write({"steps": [{"step": 0, "cpu_s": 0.0}]})
    columns, rows = read_tables(folder)["steps"]
    row = dict(zip(columns, rows[0], strict=True))
    assert row["cpu_s"] == 0.0
    assert row["device_s"] is None


def test_a_later_fact_takes_the_place_of_the_earlier(folder: Path) -> None:
    writer = Writer(folder)
    writer.facts({"device": "cpu"})
    writer.facts({"device": "cuda"})
    assert facts_of(read_tables(folder))["device"] == "cuda"


def test_a_table_can_be_replaced_whole(folder: Path) -> None:
    writer = Writer(folder)
    writer.write({"notes": [{"slug": "old"}, {"slug": "older"}]})
    writer.replace("notes", [{"slug": "new"}])
    assert [row[0] for row in read_tables(folder)["notes"][1]] == ["new"]


@pytest.mark.parametrize("method", ["write", "replace", "facts"])
def test_a_failed_transaction_leaves_nothing_and_blocks_nothing(folder: Path, method: str) -> None:
    writer = Writer(folder)
    writer.write({"steps": [step(0)]})
    before = read_tables(folder)
    unknown = [step(1), {"no_such_column": 1}]
    attempts: dict[str, Any] = {
        "write": lambda: writer.write({"notes": [{"slug": "x"}], "steps": unknown}),
        "replace": lambda: writer.replace("steps", unknown),
        "facts": lambda: writer.facts({"fine": 1, "schema_version": 7, "bad": object()}),
    }
    with pytest.raises((RecordingError, TypeError)):
        attempts[method]()
    assert read_tables(folder) == before
    writer.write({"steps": [step(2)]})
    assert numbers(folder) == [0, 2]


def test_an_unknown_table_is_a_defect_that_writes_nothing(folder: Path) -> None:
    writer = Writer(folder)
    with pytest.raises(KeyError):
        writer.write({"steps": [step(0)], "no_such_table": []})
    assert numbers(folder) == []


WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from profstack.storage.folder import Writer

writer = Writer(Path(sys.argv[1]))
for index in range(5):
    writer.write({"steps": [{"step": 10 * index + n, "flags": ""} for n in range(10)]})
writer._database.execute("BEGIN IMMEDIATE")
writer._insert({"steps": [{"step": 999, "flags": ""}]})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_all_slices_but_the_one_it_was_writing(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITE_AND_DIE, str(folder)], env=clean_environment(), check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert numbers(folder) == list(range(50))


def test_a_reader_sees_one_moment_while_slices_are_written(folder: Path) -> None:
    writer = Writer(folder)
    stop = threading.Event()

    def write() -> None:
        index = 0
        while not stop.is_set() and index < 2000:
            steps = [step(10 * index + number) for number in range(10)]
            writer.write({"slices": [{"slice": index, "steps": 10}], "steps": steps})
            index += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen = []
        for _ in range(30):
            tables = read_tables(folder)
            seen.append(len(tables["slices"][1]))
            # Every slice with all of its steps, and no step without its slice.
            assert len(tables["steps"][1]) == 10 * seen[-1]
    finally:
        stop.set()
        thread.join()
    assert seen == sorted(seen)
    writer.close()
    assert len(numbers(folder)) % 10 == 0


def test_a_closed_recording_is_one_plain_file(folder: Path) -> None:
    writer = Writer(folder)
    writer.write({"steps": [step(0)]})
    writer.close()
    assert [path.name for path in folder.glob(DATABASE + "*")] == [DATABASE]
    # Byte 18 of the header is the journal: 1 can be read where no file can be made beside it.
    assert (folder / DATABASE).read_bytes()[18] == 1
    assert numbers(folder) == [0]
    assert [path.name for path in folder.glob(DATABASE + "*")] == [DATABASE]


def test_closing_waits_for_no_reader(folder: Path) -> None:
    writer = Writer(folder)
    writer.write({"steps": [step(0)]})
    reader = sqlite3.connect(folder / DATABASE)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM steps").fetchone()
    writer._database.execute("PRAGMA busy_timeout=10")
    writer.close()
    reader.close()
    assert numbers(folder) == [0]


# -- what cannot be read -----------------------------------------------------------------------


def refused(folder: Path) -> str:
    """The one line with which reading is refused."""
    with pytest.raises(RecordingError) as caught:
        read_tables(folder)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert str(folder) in message
    assert caught.value.next_step
    return message


def test_an_empty_folder_holds_no_recording(tmp_path: Path) -> None:
    assert "no recording here" in refused(tmp_path)


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, None])
def test_another_schema_is_refused_by_its_number(folder: Path, version: int | None) -> None:
    writer = Writer(folder)
    writer.facts({"schema_version": version})
    writer._database.execute("DROP TABLE kernels")
    writer.close()
    assert f"schema {version}" in refused(folder)


def test_a_newer_recording_of_other_tables_is_refused_too(folder: Path) -> None:
    database = sqlite3.connect(folder / DATABASE)
    database.execute("CREATE TABLE facts (key TEXT, value TEXT)")
    database.execute("INSERT INTO facts VALUES ('schema_version', '9')")
    database.commit()
    database.close()
    assert "recorded with schema 9" in refused(folder)


def test_a_damaged_file_is_told_in_one_line(folder: Path) -> None:
    writer = Writer(folder)
    writer.write({"steps": [step(number) for number in range(5000)]})
    writer.close()
    path = folder / DATABASE
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    assert "cannot be read" in refused(folder)
    path.write_bytes(b"not a database at all, but long enough to look at " * 100)
    assert "cannot be read" in refused(folder)
    path.write_bytes(content[: len(content) // 2])
    assert "cannot be read" in refused(folder)


def test_a_damaged_fact_is_told_in_one_line(folder: Path) -> None:
    writer = Writer(folder)
    writer._database.execute("INSERT INTO facts VALUES ('bad', '{not json')")
    writer.close()
    assert "cannot be read" in refused(folder)


def test_a_file_without_tables_is_told_in_one_line(folder: Path) -> None:
    # Killed between making the file and its first table.
    (folder / DATABASE).touch()
    assert "cannot be read" in refused(folder)


# -- folders -----------------------------------------------------------------------------------


def test_folders_are_numbered_and_never_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = [create_folder("train", None, force=False) for _ in range(3)]
    assert [path.name for path in made] == ["train-0001", "train-0002", "train-0003"]
    assert all((path / "logs").is_dir() for path in made)
    made[1].joinpath("logs").rmdir()
    made[1].rmdir()
    assert create_folder("train", None, force=False).name == "train-0004"
    assert create_folder("train-2", None, force=False).name == "train-2-0001"
    Path("profstack-runs/train-9999").mkdir()
    Path("profstack-runs/train-mine").mkdir()
    assert create_folder("train", None, force=False).name == "train-10000"


def test_force_does_not_change_the_numbering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert create_folder("train", None, force=True).name == "train-0001"
    assert create_folder("train", None, force=True).name == "train-0002"


def test_two_runs_at_once_get_a_folder_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made: list[Path] = []
    threads = [
        threading.Thread(target=lambda: made.append(create_folder("train", None, force=False)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8


def test_an_empty_folder_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert create_folder("train", str(tmp_path / "mine"), force=False).is_dir()


def filled(folder: Path) -> Path:
    """A recording with a file of every kind."""
    writer = Writer(folder)
    writer.write({"layers": [{"name": "cprofile", "status": "recorded"}]})
    writer.close()
    for name in ("report.html", "report.json", ".report.html.partial", "cprofile/profile.prof"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("old")
    return folder


def test_a_recording_is_replaced_by_force_alone(folder: Path) -> None:
    filled(folder)
    with pytest.raises(RecordingError, match=r"in use.*--force"):
        create_folder("train", str(folder), force=False)
    assert (folder / "report.html").read_text() == "old"
    create_folder("train", str(folder), force=True)
    assert [path.name for path in folder.iterdir()] == ["logs"]
    assert not list((folder / "logs").iterdir())


@pytest.mark.parametrize("name", ["mine.txt", "data/mine.txt", "cprofile.txt"])
def test_force_leaves_alone_what_no_run_has_made(folder: Path, name: str) -> None:
    filled(folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    with pytest.raises(RecordingError, match="--force does not replace it"):
        create_folder("train", str(folder), force=True)
    assert (folder / name).read_text() == "mine"
    assert (folder / "report.html").read_text() == "old"


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_force_does_not_touch_what_is_no_recording(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "mine"
    kept = path / "mine.txt" if kind == "folder" else path
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("mine")
    said = "no recording" if kind == "folder" else "it is a file, and a recording is a folder"
    with pytest.raises(RecordingError, match=said):
        create_folder("train", str(path), force=True)
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("force", [False, True])
def test_a_file_in_the_folders_place_is_called_one(tmp_path: Path, force: bool) -> None:
    (tmp_path / "train.py").write_text("mine")
    with pytest.raises(RecordingError, match="it is a file") as refused:
        create_folder("train", str(tmp_path / "train.py"), force=force)
    # It would not help.
    assert "--force" not in str(refused.value)


def test_a_run_that_recorded_nothing_can_be_replaced_too(folder: Path) -> None:
    assert not is_recording(folder)
    (folder / "logs" / "run.json").write_text("{}")
    assert is_recording(folder)
    create_folder("train", str(folder), force=True)


def test_the_folder_of_a_layer_is_known_from_the_options_of_a_run_that_was_killed(
    folder: Path,
) -> None:
    (folder / "logs" / "options.json").write_text('{"layers": ["torch"]}')
    (folder / PROGRESS).touch()
    (folder / "torch").mkdir()
    create_folder("train", str(folder), force=True)
    assert [path.name for path in folder.iterdir()] == ["logs"]


def test_a_link_to_a_recording_stays_a_link(folder: Path, tmp_path: Path) -> None:
    filled(folder)
    link = tmp_path / "latest"
    link.symlink_to(folder, target_is_directory=True)
    create_folder("train", str(link), force=True)
    assert link.is_symlink()
    assert [path.name for path in folder.iterdir()] == ["logs"]


@pytest.mark.parametrize("inside", ["file/rec", "file/deep/rec"])
def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordingError, match="cannot write the recording") as caught:
        create_folder("train", str(tmp_path / inside), force=False)
    assert len(str(caught.value).splitlines()) == 1
    assert "--output" in caught.value.next_step


def test_a_numbered_folder_that_cannot_be_made_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profstack-runs").touch()
    with pytest.raises(RecordingError, match="cannot write the recording"):
        create_folder("train", None, force=False)


def test_progress_is_told_line_by_line(folder: Path) -> None:
    append_event(folder, {"event": "one"})
    append_event(folder, {"event": "two", "text": "a\nb"})
    lines = (folder / PROGRESS).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"event": "one"},
        {"event": "two", "text": "a\nb"},
    ]
