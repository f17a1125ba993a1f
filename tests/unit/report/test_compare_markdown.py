"""A comparison for a pull request: Markdown, and the annotations of GitHub Actions."""

import re

from profstack.report.annotations import command, github
from profstack.report.compare_markdown import code, markdown, words
from tests.support.comparisons import change, comparison, hostile


def gate(rule, result, file="/app/loader.py", line=41):
    text = f"{rule}: 100%, a\nsecond line"
    made = {"rule": rule, "result": result, "change": change(0.1, 0.2, True), "text": text}
    return {**made, "file": file, "line": line}


def test_a_command_is_escaped_by_the_rules_of_the_runner():
    made = command("error", "5%\r\nof a:b,c", "t: 1%, 2", "a,b/c:d.py", 7)
    expected = "::error file=a%2Cb/c%3Ad.py,line=7,title=t%3A 1%25%2C 2::5%25%0D%0Aof a:b,c"
    assert made == expected
    assert command("warning", "x", "t", None, 7) == "::warning title=t::x"


def test_broken_rules_are_errors_in_the_repository_and_kept_ones_nothing():
    gates = [gate("step > 5%", "broken"), gate("p99 > 1 s", "unclear", "/usr/lib/x.py")]
    gates.append(gate("FLOP > +0", "kept"))
    lines = github({**comparison(), "gates": gates}, "/app")
    told = ["error file=loader.py,line=41", "warning title=profstack%3A p99 > 1 s is unclear"]
    assert [line.split("::")[1].split(",title")[0] for line in lines] == told
    assert not any("\n" in line for line in lines)
    assert len(github({**comparison(), "gates": gates * 20}, "/app")) == 10


def test_names_of_a_program_are_no_markup():
    assert words("a|b <i> `c`\n# d @me *e*").count("|") == 0
    assert words("<i>\n# x") == "&lt;i&gt; &#35; x"
    assert "@me" not in words("by @me")
    assert code("`<x>|_y_`") == "<code>&#96;&lt;x&gt;&#124;&#95;y&#95;&#96;</code>"
    text = markdown(hostile())
    assert set(re.findall(r"</?(\w+)", text)) <= {"details", "summary", "code"}
    assert "\n- in turn\n" in markdown({**comparison(), "measured": "in turn"})
