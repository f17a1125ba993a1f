"""The front door: help, version, errors in one line, and what a command costs before it starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from importlib import import_module

import pytest
from conftest import CHECKOUT, clean_environment

import profstack
from profstack import commands
from profstack.errors import RecordingError


@pytest.fixture
def command(monkeypatch):
    """Stand a command module of the test's making behind the name `show`."""

    def install(**attributes):
        module = types.ModuleType("profstack.commands.show")
        for name, value in attributes.items():
            setattr(module, name, value)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(commands, "command_names", lambda: ["run", "show", "doctor"])

    return install


def test_help_and_version_and_the_module_form_agree(run_profstack, capsys):
    answer = run_profstack(["--help"])
    assert answer.returncode == 0
    assert answer.stderr == ""
    assert answer.stdout == commands.help_text()
    assert run_profstack(["--version"]).stdout == f"profstack {profstack.__version__}\n"
    assert commands.main(["-h"]) == 0
    assert capsys.readouterr().out == answer.stdout


def test_no_command_prints_the_help_as_an_error(capsys):
    assert commands.main([]) == 2
    assert capsys.readouterr().err == commands.help_text()


@pytest.mark.parametrize("name", commands.command_names())
def test_every_command_offered_answers_its_help(name, capsys):
    assert name in commands.help_text()
    assert commands.main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"usage: profstack {name}" in printed


def test_every_command_module_is_offered():
    folder = CHECKOUT / "profstack" / "commands"
    says_help = re.compile(r"^HELP\b", flags=re.MULTILINE)
    found = {path.stem for path in folder.glob("*.py") if says_help.search(path.read_text("utf-8"))}
    assert found == {commands._MODULES.get(name, name) for name in commands.command_names()}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["shwo"], "no command 'shwo'; did you mean 'show'?"),
        (["xyzzy"], "no command 'xyzzy'; the commands are run, show, doctor"),
        (["train.py"], "no command 'train.py'; to run a script write 'profstack run train.py'"),
        (["--layers"], "no option --layers; see 'profstack --help'"),
        (["show", "--no-such"], "show: unrecognized arguments: --no-such; see 'profstack show"),
        (["show", "--big"], "show: argument --bigger: expected one"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(argv, said, command, capsys):
    if argv == ["show", "--big"]:
        argv = ["show", "--bigger"]
    command(
        HELP="Show.",
        configure=lambda parser: parser.add_argument("--bigger"),
        execute=lambda _: 0,
    )
    assert commands.main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"profstack: {said}")
    assert printed.err.count("\n") == 1


def test_options_cannot_be_abbreviated(command, capsys):
    command(
        HELP="Show.",
        configure=lambda parser: parser.add_argument("--max-steps"),
        execute=lambda _: 0,
    )
    assert commands.main(["show", "--max", "3"]) == 2
    assert "unrecognized arguments: --max" in capsys.readouterr().err


def test_a_raw_command_gets_its_arguments_untouched(command):
    seen = []
    command(RAW=True, main=lambda argv: seen.append(argv) or 7)
    argv = ["-q", "train.py", "--", "--help", "-h", "--lr=1"]
    assert commands.main(["show", *argv]) == 7
    assert seen == [argv]


def test_an_error_that_a_user_can_mend_is_one_line(command, capsys):
    def fail(_):
        raise RecordingError("is not\na recording", where="there", next_step="look elsewhere")

    command(HELP="Show.", configure=lambda _: None, execute=fail)
    assert commands.main(["show"]) == 2
    assert capsys.readouterr().err == "profstack: there: is not a recording; look elsewhere\n"


def test_a_defect_keeps_its_traceback(command):
    command(HELP="Show.", configure=lambda _: None, execute=lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        commands.main(["show"])


def test_an_interrupt_gives_130(command):
    def interrupt(_):
        raise KeyboardInterrupt

    command(HELP="Show.", configure=lambda _: None, execute=interrupt)
    assert commands.main(["show"]) == 130


def test_a_reader_that_leaves_early_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    started = subprocess.Popen(
        [sys.executable, "-m", "profstack", "--help"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    os.close(writing)
    _, said = started.communicate(timeout=60)
    assert said == b""
    assert started.returncode == 141


def _cpu_s(arguments: list[str], times: int) -> list[float]:
    """CPU time of each of several starts."""
    spent = []
    for _ in range(times):
        before = os.times()
        subprocess.run(arguments, check=True, capture_output=True, env=clean_environment())
        after = os.times()
        spent.append(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
    return spent


def test_help_costs_at_most_three_bare_starts():
    # The clock ticks at 10 ms, about one start: sums over many starts, taken in turns.
    bare = helped = 0.0
    for _ in range(5):
        bare += sum(_cpu_s([sys.executable, "-c", "pass"], 8))
        helped += sum(_cpu_s([sys.executable, "-m", "profstack", "--help"], 8))
    assert helped <= 3 * bare


def test_help_imports_nothing_heavy():
    code = (
        "import sys; before = set(sys.modules); from profstack.commands import main;"
        "main(['--help']); print(*(set(sys.modules) - before), file=sys.stderr)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(),
    )
    added = set(answer.stderr.split())
    assert added <= {"__future__", "profstack", "profstack.commands"}


def _options_in(text: str) -> list[str]:
    return re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text)


def _documented_commands() -> set[tuple[str, str]]:
    """Every (command, option) that a page shows in code; "" stands for the command alone."""
    found = set()
    for page in (CHECKOUT / "README.md", *(CHECKOUT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"```.*?```", text, flags=re.DOTALL)
        spans = re.findall(r"`[^`\n]+`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        lines = [line.partition("#")[0] for block in blocks for line in block.splitlines()]
        for line in [*lines, *(span.strip("`") for span in spans)]:
            shown = re.match(r"(?:python -m )?profstack ([a-z]+)(.*)", line)
            if shown is None:
                continue
            # What stands behind the target belongs to the script.
            own = re.split(r"\s(?:-m\s|-c\s|-\s|\S+\.py\b)", shown[2])[0]
            found.update((shown[1], option) for option in _options_in(own))
            found.add((shown[1], ""))
        # Tables of options are those of `profstack run`, but on the page of the benchmark.
        command = "bench" if page.name == "benchmark.md" else "run"
        for cell in re.findall(r"^\| (`-.*?) \|", text, flags=re.MULTILINE):
            found.update((command, option) for option in _options_in(cell))
    return found


def test_the_pages_are_read_as_people_read_them():
    said = _documented_commands()
    assert ("run", "") in said
    assert ("run", "-o") in said
    assert ("run", "--max-seconds") in said
    assert ("run", "--epochs") not in said
    assert ("bench", "--throughput") in said
    assert ("run", "--throughput") not in said


def test_commands_and_options_in_the_documentation_exist(capsys):
    said = _documented_commands()
    for name in sorted({name for name, _ in said}):
        assert name in commands.command_names()
        assert commands.main([name, "--help"]) == 0
        printed = capsys.readouterr().out
        for option in sorted(option for command, option in said if command == name and option):
            pattern = rf"(?<![\w-]){re.escape(option)}(?![\w-])"
            assert re.search(pattern, printed), f"profstack {name} knows no {option}"


def test_every_command_says_what_it_is_for():
    for name in commands.command_names():
        module = import_module(f"profstack.commands.{commands._MODULES.get(name, name)}")
        assert module.HELP.strip()
        assert commands.SUMMARIES[name]
