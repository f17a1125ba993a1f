"""Peaks measured after a run: by whom, of which recording, and never of another one."""

import shutil
import subprocess
import sys

import pytest

from profstack.commands import main
from profstack.launch import background_peaks, peaks
from profstack.launch.other_runs import run_giving_way
from profstack.report import files
from profstack.storage.folder import write_run
from tests.support.commands import fails

HERE = {"cpu": "A CPU"}


@pytest.fixture
def done(tmp_path, monkeypatch):
    """What was done to which recordings, `run` of run 1 and others."""
    done = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    keep = lambda *_, **how: done.append(("peaks", how))  # noqa: E731
    monkeypatch.setattr(background_peaks, "keep_peaks", keep)
    monkeypatch.setattr(files, "write_report", lambda folder: done.append(("page", folder.name)))
    monkeypatch.setattr(background_peaks, "processor_name", lambda: "A CPU")
    (tmp_path / "run" / "logs").mkdir(parents=True)
    write_run(tmp_path / "run", {"run": {"id": "1"}, "environment": HERE})
    return done


def test_the_process_is_apart_from_the_run(tmp_path, done, monkeypatch):
    started = []
    popen = lambda *given, **how: started.append((*given, how))  # noqa: E731
    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.chdir(tmp_path)
    assert background_peaks.begin(tmp_path.joinpath("run").relative_to(tmp_path))
    ((command, how),) = started
    assert (command[0], command[3:]) == (sys.executable, [str(tmp_path / "run"), "1"])
    assert (how["start_new_session"], how["cwd"]) == (True, "/")
    assert {how[name] for name in ("stdin", "stdout", "stderr")} == {subprocess.DEVNULL}
    # Nsight Systems would wait for it.
    with monkeypatch.context() as patched:
        patched.setenv("NSYS_PROFILING_SESSION_ID", "7")
        assert not background_peaks.begin(tmp_path / "run")
    assert not background_peaks.begin(tmp_path / "nowhere")
    monkeypatch.setattr(subprocess, "Popen", fails(OSError("no more processes")))
    assert (background_peaks.begin(tmp_path / "run"), len(started)) == (False, 1)


def test_only_the_recording_of_that_run_is_written_again(tmp_path, done, monkeypatch):
    folder = tmp_path / "run"
    for kept in (True, False):
        # Also where the cache cannot be written.
        if not kept:
            monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "logs" / "run.json"))
        background_peaks.complete(folder, "1")
        assert done == [("peaks", {"run": run_giving_way}), ("page", "run")]
        done.clear()
    background_peaks.complete(folder, "2")
    assert done == []
    # Deleted while the peaks were measured.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(background_peaks, "keep_peaks", lambda folder, **_: shutil.rmtree(folder))
    background_peaks.complete(folder, "1")
    assert (done, folder.exists()) == ([], False)
    background_peaks.complete(folder, "1")


def test_a_page_that_is_written_again_takes_them_in_on_the_same_machine(tmp_path, done):
    folder = tmp_path / "run"
    for pending, cpu, taken in ((True, "A CPU", True), (True, "B", False), (False, "A CPU", False)):
        (folder / "logs" / "peaks.json").write_text('{"pending": true}' if pending else "{}")
        write_run(folder, {"run": {"id": "1"}, "environment": {"cpu": cpu}})
        assert peaks.are_pending(folder) is pending
        # There are no tables to make a page of.
        assert main(["report", str(folder)]) == 2
        background_peaks.take_in(folder)
        assert done == ([("peaks", {"later": True})] if taken else [])
        done.clear()
