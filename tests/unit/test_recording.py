"""`Recording`: the tables of a recording as data frames, its copies, and its page."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from profstack.errors import RecordingError
from profstack.recording import Recording
from profstack.report import html
from profstack.report.files import write_report
from profstack.storage.folder import DATABASE, read_tables
from profstack.storage.schema.report import REPORT
from tests.support.recordings import Run, module, module_times


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("recorded") / "rec")
    run.clean(5)
    rows = [module_times(1, 3, 0.006), module_times(2, 6, 0.003)]
    tree = [module(1, "Net"), module(2, "Net.a", 1)]
    run.torch([0.012] * 3, frames={"module_times": rows})
    run.clean(5)
    run.writer.write({"modules": tree})
    run.layers(torch="recorded", cprofile="empty")
    script = "to <read> & 'save'"
    run.close(run={"script": script, "argv": [], "run": {"id": "x"}, "environment": {}})
    (run.folder / "cprofile").mkdir()
    (run.folder / "cprofile" / "profile.prof").touch()
    write_report(run.folder)
    return Recording(run.folder)


def test_every_table_is_a_data_frame(recorded):
    assert list(recorded.frames) == list(REPORT)
    for name, frame in recorded.frames.items():
        assert set(REPORT[name].names) <= set(frame.columns)
        assert len(frame) == len(recorded.to_dict()["tables"][name])
    assert len(recorded.to_pandas("slices")) == len(recorded.to_dict()["slices"]) > 0
    modules = recorded.frames["modules"].set_index("path")
    assert (modules.loc["Net", "calls"], modules.loc["Net.a", "calls"]) == (1.0, 2.0)
    # Not measured is missing, never 0.
    assert modules["forward_device_s"].isna().all()
    with pytest.raises(KeyError, match="the tables are steps, modules"):
        _ = recorded.frames["nothing"]


def test_it_is_saved_loaded_and_never_overwritten(recorded, tmp_path, monkeypatch):
    saved = recorded.save(tmp_path / "kept")
    assert (saved, (saved / "cprofile" / "profile.prof").is_file()) == (tmp_path / "kept", True)
    for path in (saved, saved / "report.html", str(saved / "report.json")):
        assert Recording.load(path).to_dict() == recorded.to_dict()
    (saved / "report.json").unlink()
    rebuilt = Recording.load(saved).to_dict()
    assert rebuilt["tables"]["modules"] == recorded.to_dict()["tables"]["modules"]
    with pytest.raises(RecordingError, match=r"in use; .* path=, .* force=True$") as refused:
        recorded.save(saved)
    assert "--" not in str(refused.value)
    assert recorded.save(saved, force=True) == saved
    assert (saved / "report.json").is_file()
    assert Recording.load(saved).save(saved) == saved
    monkeypatch.chdir(tmp_path)
    assert recorded.save() == Path("profstack-runs/to-read-save-0001")
    with pytest.raises(RecordingError, match="not a recording"):
        Recording.load(tmp_path)


def test_a_notebook_shows_the_page_in_a_frame(recorded):
    found, parser = [], HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.append((tag, dict(attributes)))
    parser.feed(recorded.page()._repr_html_())
    [(tag, attributes)] = found
    assert (tag, attributes["sandbox"]) == ("iframe", "allow-scripts")
    assert attributes["srcdoc"] == html.render(recorded.to_dict())


def test_the_answer_is_the_verdict_and_the_first_findings(recorded, monkeypatch):
    _, *others = repr(recorded).splitlines()
    said = [recorded.verdict["sentence"], *(row["title"] for row in recorded.findings[:3])]
    assert [line.partition(words)[1] for line, words in zip(others, said, strict=True)] == said
    shown = recorded._repr_html_()
    assert (said[0] in shown, "<iframe" in shown, "<a " in shown) == (True, False, False)
    assert "to &lt;read&gt;" in shown
    # A notebook serves the files below its folder.
    page = recorded.report(recorded.folder)
    monkeypatch.chdir(recorded.folder.parent)
    assert f'href="{page.parent.name}/report.html"' in recorded._repr_html_()


def test_a_copy_holds_what_the_run_has_just_written(tmp_path):
    run = Run(tmp_path / "rec")
    run.torch([0.5])
    run.layers(torch="empty")
    # It is in the write-ahead log: the run goes on.
    target = Recording(run.folder, still_written=True).save(tmp_path / "copy")
    assert read_tables(target) == read_tables(run.folder)
    assert [path.name for path in target.glob(f"{DATABASE}*")] == [DATABASE]
    # Byte 18 of the header is the journal: 1 can be read where no file can be made beside it.
    assert (target / DATABASE).read_bytes()[18] == 1
