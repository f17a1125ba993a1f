"""The answer of `profstack try` in a terminal."""

from profstack.report import terminal_try
from tests.support.trials import DIFF, trial, tried


def test_the_answer_stands_first_and_the_edit_last():
    lines = terminal_try.text(tried()).splitlines()
    # A combination that is not recommended does not come first, nor one that gains less.
    for more in ({"recommended": False}, {"ratio": 0.7}):
        report = tried()
        report["best"][0] |= more
        assert terminal_try.answer(report).startswith("workers=2: a step takes 12.0 ms")
    said = "workers and fused: a step takes 12.0 ms instead of 20.0 ms (-50.0 %, -45.0 to -34.0)."
    assert lines[0] == said
    rows = {line[:25].strip(): line for line in lines}
    assert "-40.0 %, -45.0 to -34.0" in rows["workers=2"]
    assert rows["set-to-none"].split()[1] == "same"
    assert "    no compiler (exit code 1)" in lines
    assert "+100 MiB" in rows["workers=2"]
    assert lines[-len(DIFF.splitlines()) - 1] == "To keep workers=2:"
    assert lines[-len(DIFF.splitlines()) :] == DIFF.splitlines()
    assert any("by 25 %" in line for line in lines)


def test_where_nothing_gains_it_says_so():
    rows = [trial("set-to-none", "same"), trial("eval-mode", "gains", results="different")]
    report = {**tried(), "trials": rows, "best": []}
    answer = terminal_try.answer(report)
    assert answer == "None of 2 changes was shown to make a step faster beyond noise."
    rows[1]["recommended"] = True
    assert terminal_try.answer(report).startswith("eval-mode: a step")
    rows[1] |= {"times_of": "item", "largest_difference": 0.0123}
    text = terminal_try.text({**report, "plain_results": None})
    assert text.startswith("eval-mode: an item takes ")
    assert "different (0.01)" in text
    assert "there were no losses or outputs" in text
    assert "Left out (try.json says why): pin-memory." in text
    text = terminal_try.text({**tried(), "plain_results": None, "plain_processes": 1})
    assert "the plain script ran once" in text
    assert "In turn, in blocks of 60 calls" in terminal_try.text({**tried(), "plain_processes": 0})


def test_what_a_program_printed_cannot_reach_the_terminal():
    broken = trial("compile", "breaks", reason="\x1b[2Jgone")
    text = terminal_try.text({**tried(), "trials": [broken], "plain_results": "different"})
    assert "\x1b" not in text
    assert "Two plain runs with the same seed differ already" in text
