"""`profstack compare`: exit codes of gates, where rules come from, and what a workflow prints."""

import pytest

import profstack.compare.comparison
from profstack.commands import compare, main
from tests.support.commands import refused
from tests.support.comparisons import comparison


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


@pytest.mark.parametrize(
    ("results", "plain", "strict"),
    [
        ((), 0, 0),
        (("kept", "kept"), 0, 0),
        (("kept", "unclear"), 0, 3),
        (("unclear", "broken"), 1, 1),
    ],
)
def test_exit_codes(compared, results, plain, strict):
    code, _, _, errors = compared(results=results)
    assert code == plain
    assert [line.split()[1] for line in errors.splitlines()[: len(results)]] == [
        f"{each}:" for each in results
    ]
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


def test_annotations_are_printed_beside_markdown_where_a_workflow_runs(compared, monkeypatch):
    expected = "::error file=net.py,line=12,title="
    assert expected not in compared(results=["broken"])[3]
    monkeypatch.setenv("GITHUB_WORKSPACE", "/app")
    assert expected in compared("--annotations", "github", results=["broken"])[3]
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    _, _, printed, errors = compared("--format", "markdown", results=["broken"])
    assert (printed[:4], "::error" in printed, expected in errors) == ("### ", False, True)
    assert expected not in compared("--annotations", "none", results=["broken"])[3]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--rev main x.py", "two sides are needed, 1 given; give --rev twice"),
        ("--rev a --rev b", "no script to run"),
        ("--run a.py --rev b c.py", "two ways to name the sides"),
        ("--run a.py --run b.py c.py", "'c.py' is in neither command"),
        ("--run a.py --run b.py --share x", "--share is for --rev"),
        ("--run a.py --run b.py --budget soon", "soon is no time; write 90s, 10m or 1h"),
        ("--run a.py --run b.py --precision 200%", "200% is no part of the time"),
        ("--run a.py --run b.py", "a.py: no such script"),
    ],
)
def test_sides_that_cannot_be_measured_are_refused_in_one_line(
    capsys, tmp_path, monkeypatch, words, said
):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, "compare", *words.split())


def test_profstack_switched_off_measures_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROFSTACK", "0")
    assert "PROFSTACK=0" in refused(capsys, "compare", "--run", "a.py", "--run", "b.py")
