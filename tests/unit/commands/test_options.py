"""Options and output that several commands share."""

import io

from profstack.commands import options


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_the_width_is_the_terminals(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "97")
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
