"""The recording that a program makes of itself: its folder, its engine and its end."""

import gc
import os
import sys

import pytest
import torch

from profstack.errors import RecordingError
from profstack.launch import child, in_process
from profstack.launch.in_process import InProcess, ProgramFolder
from profstack.storage.folder import read_run
from tests.support.commands import fails
from tests.support.engine import TARGETS, patched


def test_a_temporary_folder_goes_with_its_holder_and_another_stays(tmp_path):
    folder = ProgramFolder("to <read> & 'save'", None, force=False)
    path = folder.path
    assert (folder.is_temporary, path.name) == (True, "to-read-save")
    assert path.parent.name.startswith("profstack-")
    recording = folder.recording()
    del folder
    gc.collect()
    assert (recording.folder, path.is_dir()) == (path, True)
    del recording
    gc.collect()
    assert not path.parent.exists()
    folder = ProgramFolder("x", str(tmp_path / "rec"), force=False)
    assert (folder.is_temporary, folder.path) == (False, tmp_path / "rec")
    folder.remove()
    folder.recording()
    gc.collect()
    assert folder.path.is_dir()
    with pytest.raises(RecordingError, match=r"in use; .* output=, .* force=True$"):
        ProgramFolder("x", str(tmp_path / "rec"), force=False)
    folder.write_run("x", {})
    ProgramFolder("x", str(tmp_path / "rec"), force=True)


def test_the_facts_of_the_run_are_written(tmp_path, monkeypatch):
    # In a notebook's process the words are the kernel's.
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    for argv, shown in (
        ("train.py --token hunter2", ["train.py", "--token", "***"]), ("", []),
    ):  # fmt: skip
        monkeypatch.setattr(sys, "argv", argv.split(" "))
        folder = ProgramFolder("x", str(tmp_path / "rec"), force=True)
        folder.write_run("train", {"stopped_by": "me"}, {"torch": "2.5", "python": "own"})
        facts, run = read_run(folder.path), {"stopped_by": "me"}
        environment, _ = facts.pop("environment"), facts.pop("begun_clock_s")
        assert facts == {"script": "train", "argv": shown, "in_process": True, "run": run}
        assert (environment["torch"], environment["python"]) == ("2.5", "own")
        assert environment["logical_cores"] == os.cpu_count()
        assert folder.times()["duration_s"] > 0


def test_an_engine_that_cannot_begin_leaves_the_process_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(in_process, "Sampler", fails(OSError("no thread")))
    before = patched()
    with pytest.raises(OSError, match="no thread"):
        InProcess("own", ["watch"], TARGETS).begin(torch, str(tmp_path / "rec"), force=False)
    assert (child.engine(), patched()) == (None, before)
