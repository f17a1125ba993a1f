"""Options and output that several commands share."""

import io
import os
import shutil
import webbrowser
from pathlib import Path

import pytest

from profstack.commands import options


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    """A terminal of 97 columns with colours."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "97")
    return monkeypatch


def test_options_of_a_recording_and_a_page_is_opened_by_its_address(surroundings, tmp_path):
    parser = options.CommandParser("show", "Show it.")
    options.add_recording_options(parser)
    given = parser.parse_args(["-q", "-o", "there", "--force"])
    assert vars(given) == {"output": "there", "force": True, "open": False, "quiet": True}
    opened = []
    surroundings.setattr(webbrowser, "open", opened.append)
    surroundings.chdir(tmp_path)
    options.open_page(Path("a b.html"))
    assert opened == [f"file://{tmp_path}/a%20b.html"]


def test_the_width_is_the_terminals(surroundings):
    given, stream = [], Terminal()

    def text_of(*report, **how):
        given.append((*report, *how.values()))
        return "  a µ\n\n"

    assert options.terminal_of(stream) == (97, True)
    assert options.terminal_of(io.StringIO()) == (80, False)
    assert options.shown(text_of, "report", stream) == "  a µ"
    surroundings.delenv("COLUMNS")
    surroundings.setattr(shutil, "get_terminal_size", os.terminal_size)
    stream.encoding = "ascii"
    assert options.shown(text_of, "report", stream).isascii()
    assert given == [("report", 97, True), ("report", 80, True)]
