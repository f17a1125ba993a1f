"""`profstack try`: its options, the command of a recording, and where the answer is written."""

import json

import pytest

from profstack.commands import main, try_
from profstack.launch import trial_report, trials
from profstack.report import files
from tests.support.commands import refuses
from tests.support.reports import build
from tests.support.tables import cases
from tests.support.trials import tried


@pytest.fixture
def asked(monkeypatch):
    """What was asked of the trials, which are not run: the report of made-up ones is told."""
    given = {}

    class Made:
        arms, script = (), None

        def __init__(self, arguments, folder, plan, tell):
            given.update(arguments=list(arguments), plan=plan)

        def choose(self, names):
            given["names"] = names

        def look(self): ...

        def run(self): ...

        def combine(self, gains): ...

    monkeypatch.setattr(trials, "Trials", Made)
    monkeypatch.setattr(trial_report, "report_of", lambda *_: {**tried(), "trials": []})
    return given


def with_findings(folder, monkeypatch, *slugs, argv=("train.py", "--lr", "1")):
    found = [{"slug": slug} for slug in slugs]
    monkeypatch.setattr(files, "build", lambda _: {**build(), "argv": [*argv], "findings": found})
    monkeypatch.setattr(files, "write_report", lambda folder: folder / "report.html")


def test_options_and_words_reach_the_trials(here, asked, capsys):
    (here / "train.py").write_text("")
    words = ["--budget", "3m", "--steps", "7", "--seed", "5", "--in-place", "--copy-limit", "2"]
    words += ["--change", "workers", "--change", "compile", "-o", "out", "-q"]
    assert main(["try", *words, "train.py", "--steps", "9"]) == 0
    plan = asked["plan"]
    assert asked["arguments"] == ["train.py", "--steps", "9"]
    assert (plan.budget_s, plan.steps, plan.seed, plan.in_place) == (180.0, 7, 5, True)
    assert (plan.limit_bytes, asked["names"]) == (2 << 20, ["workers", "compile"])
    assert json.loads((here / "out" / "try.json").read_text())["steps"] == tried()["steps"]
    assert capsys.readouterr().out.splitlines()[-1] == "Wrote out/try.json"


def test_a_recording_gives_command_and_remedies(recording, here, asked, capsys, monkeypatch):
    (here / "train.py").write_text("")
    with_findings(recording, monkeypatch, "unfused-optimizer", "padding")
    assert main(["try", "--json", str(recording)]) == 0
    assert asked["arguments"] == ["train.py", "--lr", "1"]
    assert asked["names"] == ["fused-optimizer", "foreach-optimizer"]
    out, err = capsys.readouterr()
    assert json.loads(out) == json.loads((recording / "try.json").read_text())
    assert err.splitlines()[-1] == f"Wrote {recording / 'report.html'}"


def test_what_cannot_be_tried_is_one_line(recording, here, asked, capsys, monkeypatch):
    refuses(capsys, """
        --change nothing train.py | there is no change 'nothing'
        missing.py | no such script
        --budget 0 train.py | no time to try for
    """, "try")  # fmt: skip
    with_findings(recording, monkeypatch, "padding")
    refuses(capsys, f"{recording} | has a change that can be tried", "try")
    with_findings(recording, monkeypatch, "unfused-optimizer", argv=("train.py", "--key=***"))
    refuses(capsys, f"{recording} | does not hold its whole command", "try")
    monkeypatch.setenv("PROFSTACK", "0")
    refuses(capsys, "train.py | PROFSTACK=0 switches profstack off", "try")
    assert "arguments" not in asked


def test_the_list_names_each_change(capsys):
    assert main(["try", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines][:2] == ["workers", "persistent-workers"]


@cases("text seconds", ("90", 90.0), ("90s", 90.0), ("1.5m", 90.0), ("2h", 7200.0))
def test_times(text, seconds):
    (budget,) = (each for each in try_.parser()._actions if each.dest == "budget")
    assert budget.type(text) == seconds
