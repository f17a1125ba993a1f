"""`profstack report`: the page and the report of a recording, written again."""

import json
import webbrowser

import pytest

from profstack.commands import main
from profstack.errors import RecordingError
from profstack.report import files
from tests.support.commands import refused
from tests.support.reports import build


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """Folders of which a report was made, without reading their tables."""
    folders = []

    def complete_report(folder):
        folders.append(folder)
        if not (folder / "recording.sqlite").stat().st_size:
            return build()
        raise RecordingError("of version 9", where=str(folder))

    monkeypatch.setattr(files, "complete_report", complete_report)
    return folders


def test_both_files_are_written_again_and_the_page_is_opened(recording, capsys, asked, monkeypatch):
    opened, page = [], recording / "report.html"
    monkeypatch.setattr(webbrowser, "open", opened.append)
    page.unlink()
    (recording / "report.json").write_text("{")
    assert (main(["report"]), asked, opened) == (0, [recording], [])
    assert json.loads((recording / "report.json").read_text()) == build()
    assert "<!doctype html>" in page.read_text()
    assert capsys.readouterr() == (f"Wrote {page}\n", "")
    assert main(["report", "--open"]) == 0
    assert opened == [page.resolve().as_uri()]


def test_elsewhere_it_leaves_the_recording_and_what_cannot_be_is_refused(recording, here, capsys):
    before = {path: path.read_bytes() for path in recording.iterdir()}
    assert main(["report", str(recording), "-o", "page.html"]) == 0
    assert f'"base":"{recording}"' in (here / "page.html").read_text()
    (here / "pages").mkdir()
    assert main(["report", "--output", "pages"]) == 0
    assert (here / "pages" / "report.html").is_file()
    assert {path: path.read_bytes() for path in recording.iterdir()} == before
    assert "cannot be written" in refused(capsys, "report", "-o", "no/such/place.html")
    before = (recording / "report.json").read_bytes()
    (recording / "recording.sqlite").write_text("x")
    assert "of version 9" in refused(capsys, "report")
    assert (recording / "report.json").read_bytes() == before
