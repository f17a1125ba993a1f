"""Following a run: what of its log is read, and what of it is told on standard error."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from profstack.progress import RULES, Display, ProgressLog, describe
from profstack.recording import PROGRESS, create_folder, tell
from profstack.steps import RULES as STEP_RULES

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
    tell(folder, {"event": "a"})
    tell(folder, {"event": "b"})
    assert [event["event"] for event in log.events()] == ["a", "b"]
    assert log.events() == []
    tell(folder, {"event": "c"})
    assert [event["event"] for event in log.events()] == ["c"]


def test_a_line_still_being_written_waits(folder: Path) -> None:
    log = ProgressLog(folder)
    tell(folder, {"event": "a"})
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
    display.close()
    assert stream.getvalue().splitlines() == [
        "profstack: round 2, torch/timed: 3 steps, median 12.5 ms (step 17)",
        "Wrote page [bold]x[/bold]",
    ]


def test_quiet_shows_no_progress_and_keeps_what_is_said_outright() -> None:
    stream = io.StringIO()
    display = Display(quiet=True, stream=stream)
    display.show(SLICE)
    display.line("Wrote page")
    display.close()
    assert stream.getvalue() == "Wrote page\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_its_lines_and_its_cursor_back() -> None:
    stream = Terminal()
    display = Display(quiet=False, stream=stream)
    display.show(SLICE)
    display.line("Wrote [page]")
    display.close()
    display.close()
    text = stream.getvalue()
    assert "Wrote [page]" in text
    # Hidden while it is live, shown again at the end.
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")
    display.line("after")
    assert stream.getvalue().endswith("after\n")


def test_events_survive_the_way_through_the_log(folder: Path) -> None:
    tell(folder, SLICE)
    (event,) = ProgressLog(folder).events()
    assert event == json.loads(json.dumps(SLICE))
    assert describe(event) == describe(SLICE)
