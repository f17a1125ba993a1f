"""Lines, tables and words of the terminal: what fits, what is cut, and figures with their units."""

import pytest

from profstack.report import screen as module
from profstack.report.screen import Screen, blocks, fitting, printable
from tests.support.overview import finding


def test_lines_and_tables_stand_apart_by_one_empty_line():
    screen = Screen(60, colour=False)
    screen.gap()
    screen.line("one ", ("two", "bold"), "   ")
    screen.gap()
    screen.gap()
    screen.table([("name", "l"), ("time", "r")], [["a", "1.5 ms"], [("bcdef", "red"), "2 s"]])
    screen.rows([3, 20], ("at", "l", lambda at: f"n{at}"), ("twice", "r", lambda at: str(2 * at)))
    assert screen.text().splitlines() == [
        *("", "one two", "", "name     time", "a      1.5 ms", "bcdef     2 s"),
        *("at   twice", "n3       6", "n20     40"),
    ]
    screen = Screen(40, colour=False)
    words = "aaaa bbbb cccc dddd eeee ffff gggg hhhh iiii"
    screen.paragraph(words, "- ", "    ")
    assert screen.text() == "- aaaa bbbb cccc dddd eeee ffff gggg\n    hhhh iiii\n"
    assert [Screen(width, colour=False).width for width in (3, 41)] == [40, 41]


def test_text_is_what_fits_and_what_a_terminal_can_show():
    assert printable("a\x1b[2J\tb\x07\u202e[bold]") == "a?[2J b??[bold]"
    assert printable("caf\udce9µ") == "caf?µ"
    assert fitting("µ – … ≤ × ± é", "ascii") == "u - ~ <= x +- ?"
    assert (fitting("µ", "latin-1"), fitting("µ…", "latin-1")) == ("µ", "u~")
    assert (fitting("µ", "utf-8"), fitting("é", None), fitting("µ", "no such")) == ("µ", "?", "u")


NAMES = ["module", "Net.encoder", "Net.decoder"]
TIMES = ["forward", "1.00 ms", "2.00 ms"]


@pytest.mark.parametrize(("columns", "texts", "width", "found"), [
    ([NAMES, *[TIMES] * 4], {0}, 46, [[0, 1, 2, 3], [0, 4]]),
    ([NAMES, *[TIMES] * 4], {0}, 47, [[0, 1, 2, 3, 4]]), ([], set(), 80, [[]]),
    ([["step", "1"], *[TIMES] * 5], set(), 40, [[0, 1, 2, 3, 4], [0, 5]]),
    # A very long name takes no room from the figures: at most 45 of 100 columns.
    ([["module", "L" * 10_000], *[TIMES] * 7], {0}, 100, [[0, 1, 2, 3, 4, 5, 6], [0, 7]]),
])  # fmt: skip
def test_every_column_stands_once_beside_the_names_of_the_rows(columns, texts, width, found):
    assert blocks(columns, [at in texts for at in range(len(columns))], width) == found


def test_figures_have_the_units_of_their_names():
    for key, value, said in (
        ("wait_s", 0.0042, "wait 4.20 ms"), ("held_bytes", 2**20, "held 1.00 MiB"),
        ("wait_share", 0.421, "wait 42.1 %"), ("share", 0.421, "share 42.1 %"),
        ("flop_per_s", 2.5e9, "flop/s 2.50 G"), ("calls", 81_200.0, "calls 81.2 k"),
        ("line", 12_345, "line 12345"), ("own", True, "own yes"), ("own", False, "own no"),
        ("operator", "aten::mm", "operator aten::mm"), ("limits_agree", None, "limits agree –"),
    ):  # fmt: skip
        assert f"{module.label(key)} {module.figure(key, value)}" == said
    assert module.evidence_words("aten::mm") == "aten::mm"
    named = {"own_low_s": 0.004, "limits_agree": False, "step_share": 0.4}
    assert module.evidence_words(named) == "share of the step 40.0 %"
    known = {"operator": "mm", "calls": 3.0, "gain_s": None, "total_s": 0.0004, "link": "python/x"}
    assert module.evidence_words(known) == "operator mm, calls 3, total 400 µs"


@pytest.mark.parametrize(("values", "cost", "line"), [
    ({}, "", "T. Mend it."),
    ({"module": "Net.a", "file": "x/a.py", "line": 3}, "a.py:3", "T (a.py:3). Mend it."),
    ({"gain_s": 0.004, "file": "a.py", "evidence": [{"limits_agree": False}, {}]},
     "a.py, at least 4.00 ms a step, estimated",
     "T (a.py; at least 4.00 ms a step, estimated). Mend it."),
    ({"run_s": 9.0, "run_gain_s": 9.0, "run_gain_is": "at most"}, "at most 9.00 s of the run",
     "T (at most 9.00 s of the run). Mend it."),
    ({"run_s": 9.0, "run_gain_s": 2.0, "run_gain_is": "at most"},
     "at most 2.00 s of 9.00 s of the run", "T (at most 2.00 s of 9.00 s of the run). Mend it."),
])  # fmt: skip
def test_a_finding_says_where_it_is_and_what_a_remedy_gains(values, cost, line):
    found = finding("slug", "T", **values)
    assert (module.finding_cost(found), module.finding_line(found)) == (cost, line)
