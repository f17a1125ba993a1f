"""Commands that read: recordings made of a made-up report, and how they refuse."""

import os
import tempfile
import time
from functools import cache
from pathlib import Path

from profstack.commands import main
from profstack.report import files, html
from tests.support.reports import build, completed

RECORDING = Path("profstack-runs/train-0001")


def fails(error):
    """A function that raises an error, whatever it is given."""

    def fail(*_, **__):
        raise error

    return fail


@cache
def _files():
    """The made-up report and its page, made once."""
    with tempfile.TemporaryDirectory() as name:
        html.write(build(), Path(name, "report.html"))
        whole = completed(build(), files.schema())
        return files.text(whole), Path(name, "report.html").read_text(encoding="utf-8")


def make_recording(folder, *, age_s=0.0):
    """A folder as a run leaves it; its tables are never read."""
    folder.mkdir(parents=True)
    database = folder / "recording.sqlite"
    database.touch()
    os.utime(database, (time.time() - age_s,) * 2)
    for name, text in zip(("report.json", "report.html"), _files(), strict=True):
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def refused(capsys, *argv):
    """The one line with which a command refuses."""
    capsys.readouterr()
    assert main(list(argv)) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("profstack: ")
    return captured.err


def refuses(capsys, table, *command):
    """Hold each row `words | what is said` of a table against what a command says to the words."""
    for row in table.strip().replace("\n", " // ").split(" // "):
        words, said = row.split("|")
        assert said.strip() in refused(capsys, *command, *words.split())
