"""Following a run: what of its log is read, and what of it is told on standard error."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import CHECKOUT, clean_environment

from profstack.capture.step_rules import RULES as STEP_RULES
from profstack.launch.progress import RULES, Display, ProgressLog, describe
from profstack.storage.folder import PROGRESS, append_event, create_folder

SLICE = {
    "event": "slice",
    "kind": "torch",
    "round": 2,
    "layers": ["torch/timed"],
    "steps": 3,
    "total": 17,
    "median_s": 0.0125,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run."""
    return create_folder("train", str(tmp_path / "rec"), force=False)


def append(folder: Path, text: str) -> None:
    """Write to the log without ending the line."""
    with open(folder / PROGRESS, "a", encoding="utf-8") as file:
        file.write(text)


def test_every_event_is_told_once_and_in_order(folder: Path) -> None:
    log = ProgressLog(folder)
    assert log.events() == []
    append_event(folder, {"event": "a"})
    append_event(folder, {"event": "b"})
    assert [event["event"] for event in log.events()] == ["a", "b"]
    assert log.events() == []
    append_event(folder, {"event": "c"})
    assert [event["event"] for event in log.events()] == ["c"]


def test_a_line_still_being_written_waits(folder: Path) -> None:
    log = ProgressLog(folder)
    append_event(folder, {"event": "a"})
    append(folder, '{"event": ')
    assert [event["event"] for event in log.events()] == ["a"]
    assert log.events() == []
    append(folder, '"b"}\n{"ev')
    assert [event["event"] for event in log.events()] == ["b"]
    append(folder, 'ent": "c"}\n')
    assert [event["event"] for event in log.events()] == ["c"]


def test_a_torn_line_is_left_out(folder: Path) -> None:
    append(folder, '{"event": "torn{"event": "b"}\n\n{"event": "c"}\n')
    assert [event["event"] for event in ProgressLog(folder).events()] == ["c"]


def test_a_folder_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    assert ProgressLog(tmp_path / "gone").events() == []


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            {"event": "rule", "rule": "optimizer", "phase": "train"},
            "profstack: steps by Optimizer.step (train)",
        ),
        (SLICE, "profstack: round 2, torch/timed: 3 steps, median 12.5 ms (step 17)"),
        (
            SLICE | {"kind": "clean", "layers": []},
            "profstack: round 2, clean: 3 steps, median 12.5 ms (step 17)",
        ),
        (
            SLICE | {"layers": ["torch/shared", "cprofile/shared"], "steps": 1},
            "torch/shared, cprofile/shared: 1 step, median",
        ),
        (SLICE | {"kind": "settle", "layers": []}, None),
        (SLICE | {"steps": 0}, None),
        ({"event": "finished", "stopped_by": None}, None),
        ({"event": "page"}, None),
    ],
)
def test_what_is_told_of_an_event(event: dict[str, Any], text: str | None) -> None:
    told = describe(event)
    assert (told is None) if text is None else text in (told or "")


def test_every_rule_has_words() -> None:
    assert set(STEP_RULES) <= set(RULES)


def test_elsewhere_than_on_a_terminal_a_slice_is_one_plain_line() -> None:
    stream = io.StringIO()
    display = Display(quiet=False, stream=stream)
    display.show(SLICE)
    display.show(SLICE | {"kind": "settle"})
    display.line("Wrote page [bold]x[/bold]")
    assert stream.getvalue().splitlines() == [
        "profstack: round 2, torch/timed: 3 steps, median 12.5 ms (step 17)",
        "Wrote page [bold]x[/bold]",
    ]


def test_quiet_shows_no_progress_and_keeps_what_is_said_outright() -> None:
    stream = io.StringIO()
    display = Display(quiet=True, stream=stream)
    display.show(SLICE)
    display.line("Wrote page")
    assert stream.getvalue() == "Wrote page\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


RULE = {"event": "rule", "rule": "optimizer", "phase": "train"}


def test_beside_a_script_a_terminal_gets_few_lines_that_write_nothing_over() -> None:
    stream = Terminal()
    display = Display(quiet=False, stream=stream)
    display.line("before")
    with display.beside_script():
        stream.write("Overwrite? ")
        display.show(RULE)
        for number in range(100):
            display.show(SLICE | {"round": number})
            display.show(RULE)
        stream.write("  5%|#")
        display.line("early page")
        stream.write("loss 0.1")
    display.line("Wrote [page]")
    display.line("after")
    assert stream.getvalue().splitlines() == [
        "before",
        "Overwrite? ",
        "profstack: steps by Optimizer.step (train)",
        "  5%|#",
        "early page",
        "loss 0.1",
        "Wrote [page]",
        "after",
    ]


def test_a_spinner_leaves_what_the_script_wrote_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    display = Display(quiet=False, stream=stream)
    with display.beside_script():
        stream.write("loss 0.1")
    with display.working("writing"):
        display.line("told meanwhile [x]")
    text = stream.getvalue()
    assert text.startswith("loss 0.1\n\x1b")
    assert "told meanwhile [x]" in text
    # Hidden while it is live, shown again at the end.
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")
    display.line("after")
    assert stream.getvalue().endswith("after\n")


@pytest.mark.parametrize(("stream", "quiet"), [(io.StringIO(), False), (Terminal(), True)])
def test_a_spinner_is_for_terminals_that_want_it(stream: io.StringIO, quiet: bool) -> None:
    with Display(quiet=quiet, stream=stream).working("writing"):
        pass
    assert stream.getvalue() == ""


ASKING = """
import time
print("Overwrite? ", end="", flush=True)
time.sleep(0.6)
print("yes", flush=True)
for _ in range(5):
    print(".", end="", flush=True)
    time.sleep(0.1)
print(" done")
print("no end", end="")
"""


def test_what_the_script_writes_to_the_terminal_stays(tmp_path: Path) -> None:
    (tmp_path / "ask.py").write_text(ASKING)
    master, slave = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-m", "profstack", "run", "ask.py"],
        env=clean_environment(PYTHONPATH=str(CHECKOUT), TERM="xterm"),
        cwd=tmp_path,
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    seen = b""
    # A terminal that nobody writes to any more is at its end, with an error.
    with contextlib.suppress(OSError):
        while read := os.read(master, 4096):
            seen += read
    os.close(master)
    assert run.wait(30) == 0
    script, ours = seen.decode().split("no end")
    assert script == "Overwrite? yes\r\n..... done\r\n"
    assert ours.startswith("\r\n")
    assert "Wrote " in ours


def test_events_survive_the_way_through_the_log(folder: Path) -> None:
    append_event(folder, SLICE)
    (event,) = ProgressLog(folder).events()
    assert event == json.loads(json.dumps(SLICE))
    assert describe(event) == describe(SLICE)
