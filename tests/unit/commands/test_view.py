"""`profstack view`: the page is opened, or served with its files or with snakeviz."""

import importlib.util
import signal
import sys
import webbrowser
from types import SimpleNamespace

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
    told, page, handover = SimpleNamespace(made=[], left=0), "http://h:7/page", "http://h:7/trace"

    class Server:
        page_address, handover_address = page, handover

        def __init__(self, folder, *, port):
            if port == 80:
                raise PermissionError(13, "Permission denied")
            told.made.append((folder, port))

        def __enter__(self):
            pass

        def __exit__(self, *_):
            told.left += 1

        def serve_forever(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(serving, "RecordingServer", Server)
    refuses(capsys, BAD_INPUT, "view")
    assert told.made == []
    assert main(["view", "--serve", "--no-browser", "--port", "65535"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ([line.split()[-1] for line in lines[:2]], opened) == ([page, handover], [])
    assert main(["view", "--serve"]) == 0
    assert (opened, told.made, told.left) == ([page], [(recording, 65535), (recording, 0)], 2)


def test_snakeviz_ends_with_us(recording, monkeypatch, capsys):
    made, folder = SimpleNamespace(terminated=False), recording / "cprofile"

    def wait(timeout=None):
        if not made.terminated:
            raise SystemExit(143)

    made.wait, made.poll = wait, lambda: None
    made.terminate = lambda: vars(made).update(terminated=True)
    popen = lambda command: vars(made).update(command=command) or made  # noqa: E731
    monkeypatch.setattr(view.subprocess, "Popen", popen)
    folder.mkdir()
    (folder / "profile.prof").touch()
    assert (main(["view", "--snakeviz", "--no-browser"]), made.terminated) == (143, True)
    words = [sys.executable, "-u", "-m", "snakeviz", "-H", "127.0.0.1"]
    assert made.command == [*words, "-s", "--", str((folder / "profile.prof").resolve())]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refuses(capsys, "--snakeviz | pip install snakeviz", "view")
