"""A recording without the text of the script's own files, for those who send it on."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from conftest import clean_environment

from profstack.storage.folder import DATABASE, Writer

WORDS = "a_word_that_stands_nowhere_else"
SCRIPT = f"""
import torch

net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for {WORDS} in range(25):
    loss = net(torch.rand(4, 8)).pow(2).mean()  # {WORDS}
    optimizer.zero_grad(); loss.backward(); optimizer.step()  # {WORDS}
"""


def _record(folder: Path, *options: str) -> dict[str, bytes]:
    """The files of a recording, by their way inside it."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    recording = folder / ("with" if not options else "without")
    command = [sys.executable, "-m", "profstack", "run", "-q", "-o", str(recording), *options]
    subprocess.run(
        [*command, "--layers", "torch,memory", "--no-peaks", str(script)],
        check=True, capture_output=True, env=clean_environment(),
    )  # fmt: skip
    files = [path for path in recording.rglob("*") if path.is_file()]
    return {path.relative_to(recording).as_posix(): path.read_bytes() for path in files}


def test_no_source_leaves_no_line_of_the_script_in_any_file(tmp_path: Path) -> None:
    holding = [name for name, data in _record(tmp_path).items() if WORDS.encode() in data]
    assert {"recording.sqlite", "report.json", "memory/lines.txt"} <= set(holding)
    files = _record(tmp_path, "--no-source")
    assert [name for name, data in files.items() if WORDS.encode() in data] == []
    # What was measured of the lines is there.
    tables = json.loads(files["report.json"])
    lines = tables["tables"]["lines"]
    assert [line for line in lines if line["python_s"]]
    assert [line for line in lines if line["occurrences"]]
    [source] = tables["sources"]
    assert (source["text"], source["reason"]) == (None, "it was left out at the user's wish")


def test_a_writer_keeps_source_unless_told_otherwise(tmp_path: Path) -> None:
    for name, keep in (("kept", True), ("left", False)):
        folder = tmp_path / name
        folder.mkdir()
        writer = Writer(folder, keep_source=keep)
        row = {"slice": 0, "file": "a.py", "text": WORDS, "bytes": 8, "reason": None}
        writer.write({"source_files": [row]})
        writer.close()
        with closing(sqlite3.connect(folder / DATABASE)) as database:
            read = database.execute("SELECT text, bytes FROM source_files").fetchall()
        assert read == [(WORDS if keep else None, 8)]
