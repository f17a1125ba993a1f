"""The command line: help, version, errors in one line, and the exit codes of profstack's own."""

import os
import sys
from types import SimpleNamespace

import pytest

import profstack
from profstack import commands
from profstack.errors import RecordingError
from tests.support.commands import fails, refused, refuses


@pytest.fixture
def command(monkeypatch):
    """Stand a command module of the test's making behind the name `show`."""

    def install(execute=None, **attributes):
        configure = lambda parser: parser.add_argument("--bigger")  # noqa: E731
        given = {"HELP": "Show.", "configure": configure, "execute": execute, **attributes}
        monkeypatch.setitem(sys.modules, "profstack.commands.show", SimpleNamespace(**given))
        monkeypatch.setattr(commands, "command_names", lambda: ["run", "show", "doctor"])

    return install


def test_help_and_version_of_all_commands(capsys):
    assert commands.main(["--help"]) == 0
    assert capsys.readouterr() == (commands.help_text(), "")
    assert commands.main(["--version"]) == 0
    assert capsys.readouterr().out == f"profstack {profstack.__version__}\n"
    assert commands.main([]) == 2
    assert capsys.readouterr() == ("", commands.help_text())
    for name in commands.command_names():
        assert f"  {name:<9}{commands.SUMMARIES[name]}\n" in commands.help_text()


# No option may be abbreviated.
MISTAKES = """
shwo | k: no command 'shwo'; did you mean 'show'? // --layers | k: no option --layers; see 'profst
xyzzy | k: no command 'xyzzy'; the commands are run, show, doctor
train.py | k: no command 'train.py'; to run a script write 'profstack run train.py'
show --no-such | k: show: unrecognized arguments: --no-such; see 'profstack show
show --bigger | show: argument --bigger: expected one
show --big 3 | k: show: unrecognized arguments: --big 3
"""


def test_a_mistake_is_one_line_and_code_2(command, capsys):
    command()
    refuses(capsys, MISTAKES)


def test_how_a_command_ends_is_its_exit_code(command, capsys):
    ends = {KeyboardInterrupt(): 130, SystemExit(7): 7, SystemExit(None): 0}
    for error, code in ends.items():
        command(fails(error))
        assert commands.main(["show"]) == code
    command(lambda arguments: 40 + int(arguments.bigger))
    assert commands.main(["show", "--bigger", "3"]) == 43
    seen, argv = [], ["-q", "train.py", "--", "--help", "-h", "--lr=1"]
    command(RAW=True, main=lambda argv: seen.append(argv) or 7)
    assert (commands.main(["show", *argv]), seen) == (7, [argv])
    error = RecordingError("is not\na \x1b[1mrecording", where="there", next_step="look on")
    command(fails(error))
    assert refused(capsys, "show") == "profstack: there: is not a ?[1mrecording; look on\n"


def test_a_reader_that_leaves_early_is_no_error(command, monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        command(lambda _: print("much") or 0)
        assert commands.main(["show"]) == 141
        # What is left unwritten goes nowhere.
        output.flush()
    monkeypatch.undo()
