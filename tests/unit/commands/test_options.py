"""Options and output that several commands share."""

import io

import pytest

from profstack.commands import options


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch):
    """A terminal of 97 columns with colours."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "97")


def test_the_width_is_the_terminals():
    given, stream = [], Terminal()

    def text_of(*report, **how):
        given.append((*report, *how.values()))
        return "  a µ\n\n"

    assert options.terminal_of(stream) == (97, True)
    assert options.terminal_of(io.StringIO()) == (80, False)
    assert options.shown(text_of, "report", stream) == "  a µ"
    stream.encoding = "ascii"
    assert options.shown(text_of, "report", stream).isascii()
    assert given == [("report", 97, True)] * 2
