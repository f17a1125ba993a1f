"""Two programs in turn: the order, when measuring ends, and the command lines of sides."""

import itertools
import math
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from profstack.commands import run
from profstack.errors import TargetError, UsageError
from profstack.launch import alternate
from profstack.launch.alternate import LEAST, Plan, parse_command, process_ratio, reason_to_end
from profstack.units import format_seconds
from tests.support.tables import entries


def times(deviation, count, shift=1.0):
    """Times around `shift` whose logarithms have this standard deviation, evenly spread."""
    places = np.linspace(-1.0, 1.0, count)
    places *= deviation / places.std(ddof=1)
    return (shift * np.exp(places)).tolist()


def test_an_early_end_needs_a_wider_interval_than_the_one_that_is_shown():
    plan = Plan(precision=1e-6)
    before = times(0.02, 5)
    reach = math.log(process_ratio(before, before, alternate.CLEAR).high)
    assert reach > 1.5 * math.log(process_ratio(before, before, alternate.CONFIDENCE).high)
    for part, ended in ((0.95, None), (1.05, "the answer is clear")):
        assert reason_to_end(before, times(0.02, 5, math.exp(part * reach)), plan) == ended
        assert reason_to_end(before, times(0.02, 5, math.exp(-part * reach)), plan) == ended
    # A limit of a gate takes the place of 1.
    gated = Plan(precision=1e-6, limits=(1.5,))
    assert reason_to_end(before, times(0.02, 5, 1.5), gated) is None
    assert reason_to_end(before, before, gated) == "the answer is clear"


def test_measuring_ends_at_the_precision_and_at_the_most_processes_but_not_before_the_least():
    before = times(0.02, 6)
    found = process_ratio(before, before, alternate.CONFIDENCE)
    half = (found.high - found.low) / 2.0
    assert reason_to_end(before, before, Plan(precision=0.99 * half)) is None
    assert "to either side" in reason_to_end(before, before, Plan(precision=1.01 * half))
    few = times(1e-5, LEAST - 1)
    assert reason_to_end(few, times(1e-5, LEAST - 1, 3.0), Plan()) is None
    assert reason_to_end(times(1e-5, LEAST), times(1e-5, LEAST, 3.0), Plan()) is not None
    wide = times(0.5, alternate.MOST)
    assert reason_to_end(wide[1:], wide[1:], Plan()) is None
    assert str(alternate.MOST) in reason_to_end(wide, wide, Plan())


def test_no_interval_of_one_process_or_of_one_too_wide():
    assert process_ratio([], [1.0], 0.95).factor is None
    one = process_ratio([2.0], [3.0, 3.0], 0.95)
    assert (one.factor, one.low) == (pytest.approx(1.5), None)
    assert process_ratio([1.0, 3.0], [1.0, 30.0], 0.95).high is None


PARSER = run.parser()


def test_a_command_line_becomes_words_variables_and_an_interpreter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    text = "A=1 B_2='x y' python train.py --lr '1 2' API_TOKEN=abcdef"
    program = parse_command(text, PARSER)
    assert program.target.arguments == ("train.py", "--lr", "1 2", "API_TOKEN=abcdef")
    assert (program.environment["A"], program.environment["B_2"]) == ("1", "x y")
    assert program.interpreter == sys.executable
    assert "abcdef" not in program.label
    program = parse_command("profstack run --max-steps 5 -m json.tool x", PARSER)
    assert (program.own, program.target.arguments[1]) == (("--max-steps", "5"), "json.tool")
    assert "--skip" not in program.command(tmp_path / "r", first=True)
    command = program.command(tmp_path / "r", first=False)
    assert command[-4:] == ["--", "-m", "json.tool", "x"]
    assert command.index("--max-steps") > command.index("--skip")
    program = parse_command("--light train.py", PARSER)
    assert "--skip" not in program.command(tmp_path / "r", first=False)
    assert parse_command(f"{sys.executable} train.py", PARSER).interpreter == sys.executable
    assert parse_command("/bin/sh train.py", PARSER).target.program == "/bin/sh"


def test_sides_are_measured_in_turn_until_the_budget_is_used_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("logs/x", "train.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    now, told, codes = [100.0], [], []

    def execute(program, command, log):
        now[0] += 7.0
        log.write_text("a word\nno word\nlast word\nWrote page\n")
        return codes.pop() if codes else 0

    def report(folder):
        return {"benchmark": {"median_s": None}, "run": {"duration_s": next(lasted)}}

    lasted = itertools.cycle((6.5, 9.0, 4.0))
    monkeypatch.setattr(alternate, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(alternate, "_execute", execute)
    monkeypatch.setattr(alternate, "load", report)
    sides = [parse_command("train.py", PARSER)] * 2
    # A pair takes 14 s: after five there are 13 s left for the sixth.
    found = alternate.Alternation(sides, tmp_path, Plan(1e-6, 83.0, least=2), told.append).run()
    assert ([len(side) for side in found.recordings], found.seconds) == ([5, 5], 70.0)
    # Each side comes first as often.
    begins = [line.partition(":")[0] for line in told[:8]]
    turns = "before 1, after 1, after 2, before 2, before 3, after 3, after 4, before 4"
    assert begins == turns.split(", ")
    passed = f"; {format_seconds(70.0)} of {format_seconds(83.0)}"
    assert (": 6.50 s for the run" in told[9], told[9].endswith(passed)) == (True, True)
    for code, said in ((3, r"exit code 3 \(last word\)"), (-9, r"signal 9 \(last word\)")):
        codes.append(code)
        with pytest.raises(TargetError, match=said):
            alternate.Alternation(sides, tmp_path, Plan(), told.append).run()


REFUSED = """
train.py > log | '>' has no meaning // cd x && python train.py | '&&' has no meaning
train.py 'unclosed | cannot be read // -o here train.py | --output is not for a side
-ohere train.py | --output is not for a side // -qohere train.py | --output is not for a side
--ranks=0 train.py | --ranks is not for a side // --max-steps 0 train.py | 0 is not above 0
--nsys train.py | --nsys is not for a side // A=1 | no script to run
/nowhere/python3.11 train.py | no interpreter /nowhere/python3.11
"""


def test_a_command_line_that_cannot_be_run_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    for text, said in entries(REFUSED):
        with pytest.raises(UsageError, match=re.escape(said)):
            parse_command(text, PARSER)
