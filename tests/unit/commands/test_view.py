"""`profstack view`: the page is opened, or served with its files or with snakeviz."""

import importlib.util
import signal
import sys
import webbrowser
from unittest.mock import MagicMock, Mock

import pytest

from profstack.commands import main, view
from profstack.report import serving
from tests.support.commands import refuses


@pytest.fixture(autouse=True)
def opened(recording, monkeypatch):
    """Pages that were opened; the handler of SIGTERM, which a server exchanges, is put back."""
    opened, before = [], signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(webbrowser, "open", opened.append)
    yield opened
    signal.signal(signal.SIGTERM, before)


def test_the_page_is_opened_and_its_address_printed(recording, capsys, opened):
    page = recording / "report.html"
    address = page.resolve().as_uri()
    assert main(["view", "--no-browser", str(recording)]) == 0
    assert (capsys.readouterr().out, opened) == (f"{address}\n", [])
    page.unlink()
    opened.clear()
    assert main(["view"]) == 0
    assert (capsys.readouterr().out, opened) == (f"Wrote {page}\n{address}\n", [address])
    assert "<!doctype html>" in page.read_text()


BAD_INPUT = """
--port 5 | --port needs --serve // --serve --port 80 | port 80 is not free (Permission denied)
--serve --port 0 | no port // --serve --port 65536 | no port // --serve --port ² | no port
--serve --snakeviz | not allowed with // --snakeviz | --layers cprofile
"""


def test_the_recording_is_served_until_ctrl_c(recording, capsys, opened, monkeypatch):
    made, page, handover = [], "http://h:7/page", "http://h:7/trace"
    running = MagicMock(page_address=page, handover_address=handover)
    running.serve_forever.side_effect = KeyboardInterrupt

    def server(folder, *, port):
        if port == 80:
            raise PermissionError(13, "Permission denied")
        made.append((folder, port))
        return running

    monkeypatch.setattr(serving, "RecordingServer", server)
    refuses(capsys, BAD_INPUT, "view")
    assert made == []
    assert main(["view", "--serve", "--no-browser", "--port", "65535"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ([line.split()[-1] for line in lines[:2]], opened) == ([page, handover], [])
    assert main(["view", "--serve"]) == 0
    assert (opened, made) == ([page], [(recording, 65535), (recording, 0)])
    assert running.__exit__.call_count == 2


def test_snakeviz_ends_with_us(recording, monkeypatch, capsys):
    made, folder = Mock(**{"poll.return_value": None}), recording / "cprofile"
    made.wait.side_effect = lambda timeout=None: made.terminate.called or sys.exit(143)
    monkeypatch.setattr(view.subprocess, "Popen", popen := Mock(return_value=made))
    folder.mkdir()
    (folder / "profile.prof").touch()
    assert (main(["view", "--snakeviz", "--no-browser"]), made.terminate.called) == (143, True)
    words = [sys.executable, "-u", "-m", "snakeviz", "-H", "127.0.0.1"]
    words += ["-s", "--", str((folder / "profile.prof").resolve())]
    popen.assert_called_once_with(words)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refuses(capsys, "--snakeviz | pip install snakeviz", "view")
