"""report.json: its text, its schema, how it is written and read, and finding a recording."""

import gzip
import json
import os
import sys
from pathlib import Path

import jsonschema
import pytest

from profstack.errors import RecordingError
from profstack.report import files
from profstack.storage.schema.recorded import SCHEMA_VERSION
from tests.support.bench_reports import bare, bench
from tests.support.full_report import full, on_a_device
from tests.support.processes import CHECKOUT
from tests.support.recordings import TORCH_S, Run, module, module_times
from tests.support.reports import build, completed, hostile

sys.path.insert(0, str(CHECKOUT / "scripts"))
import make_schema

SCHEMA = files.schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_json_schema_is_made_from_the_schema_of_the_report():
    file = Path(files.__file__).with_name("report.schema.json")
    assert file.read_text(encoding="utf-8") == make_schema.schema_text()
    VALIDATOR.check_schema(SCHEMA)
    assert SCHEMA["properties"]["schema_version"]["const"] == SCHEMA_VERSION
    for made in (full(), bare(), hostile(on_a_device()), hostile(bench())):
        report = completed(json.loads(files.text(made)), SCHEMA)
        assert [error.message for error in VALIDATOR.iter_errors(report)] == []


def test_json_holds_everything_with_one_row_per_line(tmp_path):
    report = build()
    report["benchmark"]["drift"] = float("nan")
    path = tmp_path / "report.json"
    files.write(report, path)
    text = path.read_text(encoding="utf-8")
    report["benchmark"]["drift"] = None
    assert json.loads(text, parse_constant=pytest.fail) == report
    lines = [line.strip().rstrip(",") for line in text.splitlines()]
    for row in report["tables"]["steps"]:
        assert json.dumps(row, separators=(",", ":")) in lines


def test_a_report_is_read_from_its_file_or_built_anew(tmp_path):
    run = Run(tmp_path / "rec")
    run.clean()
    run.torch([TORCH_S] * 3, frames={"module_times": [module_times(1, 3, 0.03)]})
    run.writer.replace("modules", [module(1, "Net")])
    trace = {"layer": "torch", "path": "torch/trace.json", "opens_in": "Perfetto", "bytes": 19}
    run.writer.write({"artifacts": [trace]})
    run.layers(torch="recorded")
    run.close()
    (run.folder / "torch").mkdir(exist_ok=True)
    for name in ("torch/trace.json", "logs/kept.json"):
        (run.folder / name).write_text("[1]" * 999)
    built = files.load(run.folder)
    packed = run.folder / "torch/trace.json.gz"
    for _ in range(2):
        assert files.write_report(run.folder) == run.folder / "report.html"
        # The tools' plain files are compressed, our own are not.
        (row,) = json.loads((run.folder / "report.json").read_text())["tables"]["artifacts"]
        assert (row["path"], row["bytes"]) == ("torch/trace.json.gz", packed.stat().st_size)
    assert gzip.decompress(packed.read_bytes()) == b"[1]" * 999
    names = [(run.folder / name).exists() for name in ("torch/trace.json", "logs/kept.json")]
    assert names == [False, True]
    report = files.load(run.folder)
    assert report["tables"]["modules"] == built["tables"]["modules"]
    (run.folder / "recording.sqlite").unlink()
    assert files.load(run.folder) == report
    with pytest.raises(RecordingError, match="tables are missing"):
        files.build(run.folder)


def test_a_file_that_is_no_report_is_refused(tmp_path):
    whole = completed(build(), files.schema())
    files.write(whole, tmp_path / "report.json")
    assert files.load(tmp_path) == whole
    outside = {**whole["tables"]["artifacts"][0], "path": "../x"}
    for changes, said in (
        ({"schema_version": SCHEMA_VERSION + 1}, f"version {SCHEMA_VERSION + 1}"),
        ({"tables": []}, "not a profstack report"),
        ({"tables": {**build()["tables"], "modules": {}}}, "not whole"),
        ({"tables": {**whole["tables"], "artifacts": [outside]}}, "leads out of the recording"),
    ):
        files.write({**whole, **changes}, tmp_path / "report.json")
        with pytest.raises(RecordingError, match=said) as caught:
            files.load(tmp_path)
        assert f"profstack report {tmp_path}" in str(caught.value)


def test_a_recording_is_found_by_its_folder_a_file_in_it_or_as_the_newest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "profstack-runs"
    written = {"old": 100, "new": 900, "sent": 500, "ranks/rank-00003": 990}
    for name, at in (written | {"ranks/rank-00001": 300}).items():
        (runs / name).mkdir(parents=True)
        file = runs / name / ("report.json" if name == "sent" else files.DATABASE)
        file.touch()
        os.utime(file, (at, at))
    (runs / "notes").mkdir()
    found = files.recording_folder
    assert files.newest_recording(runs) == found(str(runs)) == runs / "new"
    assert found(None) == Path("profstack-runs/new")
    assert found(str(runs / "sent" / "report.json")) == runs / "sent"
    # Of several ranks the lowest.
    assert found(str(runs / "ranks")) == runs / "ranks/rank-00001"
    (tmp_path / "train.py").touch()
    for given, exactly, said in (
        (runs, True, "is not in it"), (runs / "notes", False, "is not in it"),
        (runs / "notes" / "gone", False, "no such folder"), ("train.py", False, "not beside it"),
    ):  # fmt: skip
        with pytest.raises(RecordingError, match=said):
            found(str(given), exactly=exactly)
