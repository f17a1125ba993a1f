"""`profstack compare`: exit codes of gates, where rules come from, and what a workflow prints."""

import json

import pytest

import profstack.compare.comparison
from profstack.commands import compare, main
from profstack.report import files
from tests.support.commands import refused, refuses
from tests.support.comparisons import comparison
from tests.support.reports import build, completed
from tests.support.tables import cases


@pytest.fixture
def compared(tmp_path, monkeypatch, capsys):
    """Compare two made-up sides, with these results of gates; return code, rules and texts."""
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(compare, "read_side", lambda paths, label=None: paths)
    monkeypatch.setattr("profstack.compare.noise.remember_spread", lambda sides: None)
    made = comparison()

    def run(*words, results=("kept",)):
        rules = []

        def answer(before, after, **options):
            rules.extend(rule.text for rule in options["rules"])
            gates = [{**made["gates"][1], "result": each} for each in results]
            return {**made, "gates": gates}

        monkeypatch.setattr(profstack.compare.comparison, "compare", answer)
        code = main(["compare", "a", "b", *words])
        return code, rules, *capsys.readouterr()

    return run


@cases(
    "results plain strict",
    *(((), 0, 0), (("kept", "kept"), 0, 0), (("kept", "unclear"), 0, 3)),
    (("unclear", "broken"), 1, 1),
)
def test_exit_codes(compared, results, plain, strict):
    code, _, _, errors = compared(results=results)
    assert (code, all(f" {each}:" in errors for each in results)) == (plain, True)
    assert compared("--strict", results=results)[0] == strict


def test_rules_of_the_command_line_replace_the_projects(compared, tmp_path, capsys):
    assert compared()[1] == []
    cfg = "[profstack]\nfail-if = run > 1%\nstrict = true\n"
    (tmp_path / "setup.cfg").write_text(cfg)
    assert compared(results=["unclear"])[:2] == (3, ["run > 1%"])
    words = ("--fail-if", "step > 5%", "--fail-if", "FLOP > +0")
    assert compared(*words)[1] == ["step > 5%", "FLOP > +0"]
    (tmp_path / "setup.cfg").write_text("[profstack]\nfail-if = rn > 1%\n")
    said = refused(capsys, "compare", "a", "b")
    assert f"{tmp_path}/setup.cfg, 'rn > 1%': there is no figure 'rn'" in said


def test_what_names_hold_is_printed_on_a_line_without_control_signs(compared, monkeypatch, capsys):
    made = comparison()
    made["tables"][0]["rows"][0]["key"] = "k\n\x1b[1m"
    made["gates"][0]["text"] = "a\n::stop-commands::x\x1b[2J"
    monkeypatch.setattr(profstack.compare.comparison, "compare", lambda *_, **__: made)
    main(["compare", "a", "b", "--format", "csv"])
    out, errors = capsys.readouterr()
    assert ("a ::stop-commands::x?[2J" in errors, "k ?[1m" in out) == (True, True)


@pytest.mark.parametrize("part", ["step_bar", "processes", "benchmark.p99_s", "tables.kernels"])
def test_a_report_that_lacks_what_is_compared_is_refused(capsys, tmp_path, part):
    report = json.loads(files.text(completed(build(), files.schema())))
    (tmp_path / "report.json").write_text(json.dumps(report))
    compare.read_side([str(tmp_path)])
    *above, name = part.split(".")
    del (report[above[0]] if above else report)[name]
    (tmp_path / "report.json").write_text(json.dumps(report))
    said = refused(capsys, "compare", str(tmp_path), str(tmp_path))
    assert f"made by an older profstack, it lacks {part}; write it again with" in said


BAD_SIDES = """
--rev main x.py | two sides are needed, 1 given; give --rev twice
--rev a --rev b | no script to run // --run a.py --rev b c.py | two ways to name the sides
--run a.py --run b.py c.py | 'c.py' is in neither command
--run a.py --run b.py --share x | --share is for --rev
--run a.py --run b.py --budget soon | soon is no time; write 90s, 10m or 1h
--run a.py --run b.py --precision 200% | 200% is no part of the time
--run a.py --run b.py | a.py: no such script
"""


def test_sides_that_cannot_be_measured_are_refused_in_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuses(capsys, BAD_SIDES, "compare")
    monkeypatch.setenv("PROFSTACK", "0")
    refuses(capsys, "--run a.py --run b.py | PROFSTACK=0", "compare")
