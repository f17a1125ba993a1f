"""The rules as data: what their words promise are their limits, and every warning is listed."""

import re

from profstack.findings import rules
from profstack.findings.rules import OTHERS, RULES, TITLES, VERDICT_RULES, WARNINGS
from profstack.report import files
from tests.support.processes import CHECKOUT
from tests.support.tables import cases, missing

TABLE = CHECKOUT / "profstack/findings/rules.py"
SOURCES = sorted([*(CHECKOUT / "profstack").rglob("*.py"), *(CHECKOUT / "wrappers").glob("*.py")])
IN_WORDS = {0.5: "half", 0.25: "a quarter", 0.2: "a fifth", 0.1: "a tenth"}


@cases("rule", *RULES, ids=lambda rule: rule.slug)
def test_a_rules_words_have_its_limits(rule):
    words = {f"{100 * rule.threshold:g} %", IN_WORDS.get(rule.threshold, "none")}
    assert not rule.threshold or any(each in rule.rule for each in words)


def test_every_rule_and_verdict_is_there_once_and_stands_in_the_schema():
    named = [each for each in vars(rules).values() if isinstance(each, rules.FindingRule)]
    assert (list(RULES), len({rule.slug for rule in RULES})) == (named, 45)
    slugs = [rule.slug for rule in VERDICT_RULES]
    assert [rule.threshold for rule in VERDICT_RULES] == [0.3] * 3 + [0.4] * 4
    assert ({*slugs, *OTHERS}, len({*slugs})) == (set(TITLES), 7)
    schema = files.schema()["properties"]["verdict"]["properties"]
    assert set(schema["slug"]["enum"]) == set(TITLES)
    assert not missing(OTHERS["unclear"], "fewer than 5 clean steps", "idle for 30 % of")


# How the code makes a note or warning: `note("slug"`, `run(observers.note, "slug"`, a row with
# `"slug": "slug"` and a pair `("slug", text)`; each may choose between two.
_ONE = r'"([a-z0-9-]+)"'
NOTED = re.compile(rf'(?:\bnote\(|\.note,|"slug":)\s*{_ONE}(?: if [^"]+ else {_ONE})?')
PAIR = re.compile(rf'(?<!\w)\(\s*"([a-z0-9]+(?:-[a-z0-9]+)+)"(?: if [^"]+ else {_ONE})?,')


def test_every_warning_that_is_made_stands_in_the_table_and_no_other():
    # Ways of timing have slugs of their own, and what differs between two sides or ranks.
    others = ("mistakes.py", "compare/", "commands/compare.py", "measure_sides.py", "settings.py")
    others += ("ranks/", "changes/")
    paths = (path for path in SOURCES if not any(each in str(path) for each in others))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    found = [pair for text in texts for form in (NOTED, PAIR) for pair in form.findall(text)]
    slugs = {slug for pair in found for slug in pair if slug}
    # A distribution, with its module.
    assert slugs - {"flash-attn"} <= WARNINGS.keys()
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES if path != TABLE)
    assert not missing(text, *(f'"{slug}"' for slug in WARNINGS))
