"""A file of nsys in a recording: its rows, its fact, and a recording that is left as it was."""

import sqlite3
from unittest.mock import MagicMock

import pytest

from profstack.errors import RecordingError
from profstack.readers.nsys import importing
from profstack.storage.folder import Writer
from profstack.storage.reader import Recorded
from tests.support.nsys_files import PID, NsysFile, thread_of


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "recording" / "logs").mkdir(parents=True)
    Writer(tmp_path / "recording").close()
    return tmp_path / "recording"


@pytest.fixture
def export(tmp_path):
    """Two steps of one process, with a range that is left open, and a range of another."""
    with NsysFile(tmp_path / "a.sqlite") as file:
        for number in (3, 4):
            step = f"step {number} +0 +900; launched +100 +200 +250 k{number} {number}"
            file.play(step, 1000 * number)
        file.range(9000, None, "open")
        file.range(1, 2, "x", domain="mine", thread=thread_of(PID + 1, PID + 1))
    return file.path


def test_an_import_takes_the_place_of_an_earlier_one(export, folder, monkeypatch):
    importing.import_file(export, folder)
    monkeypatch.setattr(importing, "MOST_ROWS", 1)
    monkeypatch.setattr(importing, "FEWEST_ROWS", 1)
    fact, found = importing.import_file(export, folder), Recorded(folder)
    counts = [found.count(f"nsys_{name}") for name in ("steps", "kernels")]
    # One row, and the rest in another.
    assert (found.facts["nsys"], counts) == (fact, [2, 2])
    expected = {"file": "a.sqlite", "version": "2024.3.1.75", "schema": "3.15.1", "process": PID}
    assert fact.items() >= {**expected, "other_processes": 0, "steps": 2, "last_step": 4}.items()
    assert fact["processes"] == [PID, PID + 1]
    notes = dict(map(tuple, fact["notes"]))
    assert ("nsys-open-ranges" in notes, "memory" in fact["missing"]) == (True, True)
    left_out = [text for slug, text in fact["notes"] if slug == "nsys-rows-left-out"]
    said = "nsys_kernels has too many rows: 1 kernels with 50.0 ns of device time"
    assert any(text.startswith(said) for text in left_out)


def test_a_recording_that_cannot_be_written_stays_as_it_is(export, folder, monkeypatch):
    with monkeypatch.context() as patch:
        full = MagicMock(side_effect=sqlite3.OperationalError("database or disk is full"))
        patch.setattr(Writer, "replace_all", full)
        with pytest.raises(RecordingError, match=f"{folder}.*disk is full"):
            importing.import_file(export, folder)
    assert "nsys" not in Recorded(folder).facts
