"""`report`, `show` and `view`: which recording they take, what they print, and how they refuse."""

from __future__ import annotations

import cProfile
import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import webbrowser
from pathlib import Path
from typing import Any

import pytest
from data_report import build

from profstack.analysis.build import table_reason
from profstack.commands import main
from profstack.errors import RecordingError
from profstack.report import files, html
from profstack.report.files import newest_recording, recording_folder


def make_recording(folder: Path, *, age_s: float = 0.0) -> Path:
    """A folder as a run leaves it; its tables are never read here."""
    folder.mkdir(parents=True)
    database = folder / "recording.sqlite"
    database.touch()
    then = time.time() - age_s
    os.utime(database, (then, then))
    files.write(build(), folder / "report.json")
    html.write(build(), folder / "report.html")
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder in which no browser is ever opened."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(webbrowser, "open", lambda url: pytest.fail(f"opened {url}"))
    return tmp_path


@pytest.fixture
def recording(here: Path) -> Path:
    """One recording in the usual place."""
    make_recording(here / "profstack-runs" / "train-0001")
    return Path("profstack-runs/train-0001")


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line with which a command refuses."""
    assert main(list(argv)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("profstack: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_the_newest_recording_is_the_one_last_written(here: Path) -> None:
    runs = here / "profstack-runs"
    make_recording(runs / "train-0002", age_s=900)
    newest = make_recording(runs / "train-0001")
    make_recording(runs / "other-0009", age_s=5000)
    (runs / "notes").mkdir()
    assert newest_recording(runs) == newest


def test_a_recording_is_named_by_its_folder_or_a_file_in_it(recording: Path) -> None:
    for given in (recording, recording / "report.html", recording / "report.json"):
        assert recording_folder(str(given)) == recording
    assert recording_folder("profstack-runs") == recording
    assert recording_folder(None) == recording


def test_a_report_that_was_sent_alone_is_a_recording_to_read(here: Path) -> None:
    files.write(build(), here / "report.json")
    assert recording_folder(str(here)) == here


def test_under_ranks_the_lowest_is_taken(here: Path) -> None:
    run = here / "profstack-runs" / "train-0001"
    make_recording(run / "rank-00003")
    lowest = make_recording(run / "rank-00001")
    assert recording_folder(str(run)) == lowest
    assert newest_recording(here / "profstack-runs") == lowest


@pytest.mark.parametrize("command", ["report", "show", "view"])
def test_without_a_run_the_next_step_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert "profstack run script.py" in refused(capsys, command)


@pytest.mark.parametrize("command", ["report", "show", "view"])
def test_what_is_no_recording_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (here / "empty").mkdir()
    (here / "train.py").touch()
    assert "no such folder" in refused(capsys, command, "nowhere")
    assert "not a recording" in refused(capsys, command, "empty")
    assert "profstack: train.py: not a recording" in refused(capsys, command, "train.py")


@pytest.mark.parametrize("command", ["report", "show", "view"])
@pytest.mark.parametrize("given", [(), ("profstack-runs",)])
def test_a_folder_of_recordings_stands_for_its_newest_which_is_named(
    recording: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    given: tuple[str, ...],
) -> None:
    make_recording(recording.with_name("train-0002"), age_s=60)
    monkeypatch.setattr(webbrowser, "open", lambda url: None)
    monkeypatch.setattr(files, "build", files.load)
    assert main([command, *given]) == 0
    captured = capsys.readouterr()
    assert "profstack-runs/train-0001" in captured.out + captured.err
    assert captured.err == ("" if command != "show" else f"profstack: reading {recording}\n")


@pytest.mark.parametrize("file", ["", "report.json"])
def test_a_recording_that_was_named_is_not_named_again(
    recording: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    assert main(["show", str(recording / file)]) == 0
    assert capsys.readouterr().err == ""


def test_show_prints_the_summary(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show"]) == 0
    printed = capsys.readouterr().out
    assert "clean step: 4.01 ms" in printed
    assert "\x1b" not in printed


def test_show_prints_the_whole_report_as_json(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == build()


def test_show_prints_a_table_by_weight(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--table", "functions", "--limit", "17"]) == 0
    heading, *lines, last = capsys.readouterr().out.splitlines()
    assert heading.split()[:4] == ["phase", "file", "line", "name"]
    assert "run_backward" in lines[0]
    assert "1.92 ms" in lines[0]
    assert "torch.conv2d" in lines[1]
    assert not any("startup" in line for line in lines), "a start-up is no step"
    assert last == "1 more of 18 rows: --limit 18"


def test_show_gives_rows_in_every_format(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["show", "--table", "operators", "--sort", "calibrated_s", "--limit", "3"]
    assert main([*command, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert main([*command, "--format", "json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert main([*command, "--format", "md"]) == 0
    markdown = capsys.readouterr().out.splitlines()
    assert len(rows) == len(records) == len(markdown) - 2 == 3
    calibrated = [record["calibrated_s"] for record in records]
    assert calibrated == sorted(calibrated, reverse=True)
    assert [float(row["calibrated_s"]) for row in rows] == calibrated
    assert rows[0]["device_s"] == "", "null is empty in CSV"
    assert records[0]["device_s"] is None


def test_show_says_how_many_rows_are_left(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "--table", "steps"]) == 0
    assert capsys.readouterr().out.endswith("81 more of 101 rows: --limit 101\n")
    assert main(["show", "--table", "kernels"]) == 0
    said = "kernels: no rows in this recording: no accelerator was in use\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("name", "layer", "said"),
    [
        ("nsys_kernels", {}, "profstack run --nsys"),
        ("functions", {"status": "empty", "reason": "too short", "command": "do x"}, "next: do x"),
        ("functions", {"status": "failed", "reason": "broken"}, "cprofile is failed: broken"),
        ("steps", {}, "nothing was seen of it"),
    ],
)
def test_an_empty_table_says_why(name: str, layer: dict[str, str], said: str) -> None:
    row = {"name": "cprofile", "status": "recorded", "reason": None, **layer}
    assert said in table_reason(name, [row], has_device=False)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--table", "module"], "the tables are steps, modules"),
        (["--table", "steps", "--sort", "self_s"], "its columns are index, phase"),
        (["--sort", "self_s"], "--sort needs a table"),
        (["--limit", "3"], "--limit needs a table"),
        (["--table", "steps", "--limit", "0"], "at least 1"),
        (["--format", "csv"], "--format csv needs a table"),
        (["--format", "xml"], "show --help"),
    ],
)
def test_show_refuses_what_it_cannot_print(
    recording: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    assert said in refused(capsys, "show", *argv)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "damaged JSON"),
        ("[1]", "not a profstack report"),
        ('{"tables": {}, "schema_version": 99}', "of version 99"),
        ('{"tables": {}, "schema_version": 1}', "its tables are not whole"),
        ('{"tables": {"modules": 1}, "schema_version": 1}', "its tables are not whole"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_damaged_report_is_one_line_with_the_remedy(
    recording: Path, capsys: pytest.CaptureFixture[str], content: str | bytes, said: str
) -> None:
    raw = content if isinstance(content, bytes) else content.encode()
    (recording / "report.json").write_bytes(raw)
    assert said in refused(capsys, "show")


def test_show_ends_quietly_when_its_reader_goes(recording: Path) -> None:
    show = f"{sys.executable} -m profstack show {recording} --table steps --limit 101"
    command = f"{show} | head -1"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_view_opens_the_page_and_prints_its_address(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert main(["view"]) == 0
    address = (recording / "report.html").resolve().as_uri()
    assert opened == [address]
    assert capsys.readouterr().out == f"{address}\n"


def test_view_without_a_browser_only_prints(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", "--no-browser", str(recording)]) == 0
    assert capsys.readouterr().out.startswith("file:///")


def test_view_writes_a_missing_page(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (recording / "report.html").unlink()
    assert main(["view", "--no-browser"]) == 0
    assert (recording / "report.html").is_file()
    assert capsys.readouterr().out.startswith(f"Wrote {recording / 'report.html'}\n")


def use_built_report(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Have reports made without reading tables; gives the folders that were asked for."""
    asked: list[Path] = []

    def complete_report(folder: Path) -> dict[str, Any]:
        asked.append(folder)
        return build()

    for module in (files, files):
        monkeypatch.setattr(module, "complete_report", complete_report)
    return asked


def test_report_writes_both_files_again(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = use_built_report(monkeypatch)
    (recording / "report.html").unlink()
    (recording / "report.json").write_text("{")
    assert main(["report"]) == 0
    assert asked == [recording]
    assert json.loads((recording / "report.json").read_text()) == build()
    assert "<!doctype html>" in (recording / "report.html").read_text()
    assert capsys.readouterr().out == f"Wrote {recording / 'report.html'}\n"


def test_report_elsewhere_leaves_the_recording_and_links_to_it(
    recording: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_built_report(monkeypatch)
    before = {path.name: path.read_bytes() for path in recording.iterdir()}
    assert main(["report", str(recording), "-o", "page.html"]) == 0
    assert '"base":"profstack-runs/train-0001"' in (here / "page.html").read_text()
    assert {path.name: path.read_bytes() for path in recording.iterdir()} == before
    (here / "pages").mkdir()
    assert main(["report", "--output", "pages"]) == 0
    assert (here / "pages" / "report.html").is_file()


def test_report_opens_the_page_when_asked(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    use_built_report(monkeypatch)
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert main(["report", "--open"]) == 0
    assert opened == [(recording / "report.html").resolve().as_uri()]


def test_report_refuses_a_place_it_cannot_write(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_built_report(monkeypatch)
    assert "cannot be written" in refused(capsys, "report", "-o", "no/such/place.html")


def test_report_needs_the_tables(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (recording / "recording.sqlite").unlink()
    assert "recording.sqlite" in refused(capsys, "report", str(recording))
    assert main(["show", str(recording)]) == 0, "reading needs report.json only"


def test_snakeviz_needs_a_profile(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--layers cprofile" in refused(capsys, "view", "--snakeviz")


def start_snakeviz(recording: Path) -> tuple[subprocess.Popen[str], str]:
    """`view --snakeviz` on a real profile, and the address it serves."""
    profile = cProfile.Profile()
    profile.runcall(sorted, range(1000))
    (recording / "cprofile").mkdir()
    profile.dump_stats(recording / "cprofile" / "profile.prof")
    server = subprocess.Popen(
        [sys.executable, "-m", "profstack", "view", "--snakeviz", "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert server.stdout is not None
    for line in server.stdout:
        if line.startswith("http"):
            return server, line.strip()
    raise AssertionError(server.communicate())


@pytest.mark.parametrize("ending", ["Ctrl-C", "SIGTERM"])
def test_snakeviz_serves_this_machine_only_and_ends_cleanly(recording: Path, ending: str) -> None:
    server, address = start_snakeviz(recording)
    try:
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=20) as answer:
            assert b"sorted" in answer.read()
        if ending == "Ctrl-C":
            os.killpg(server.pid, signal.SIGINT)
        else:
            server.terminate()
        _, complaint = server.communicate(timeout=20)
        assert complaint == ""
        assert server.returncode == (0 if ending == "Ctrl-C" else 143)
        with pytest.raises(OSError, match=r"refused|Cannot assign"):
            urllib.request.urlopen(address, timeout=5)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


@pytest.mark.parametrize("command", [["show"], ["view", "--no-browser"], ["report", "--help"]])
def test_no_command_that_reads_imports_torch(recording: Path, command: list[str]) -> None:
    program = (
        "import sys; from profstack.commands import main\n"
        "try: code = main(sys.argv[1:])\n"
        "except SystemExit as ended: code = ended.code\n"
        "print('\\nheavy', *{'torch', 'profstack.wrappers'} & set(sys.modules))\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy"


def test_a_recording_whose_build_fails_is_not_half_written(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> dict[str, Any]:
        raise RecordingError("of version 9", where=str(folder))

    for module in (files, files):
        monkeypatch.setattr(module, "complete_report", fail)
    before = (recording / "report.json").read_bytes()
    assert "of version 9" in refused(capsys, "report")
    assert (recording / "report.json").read_bytes() == before
