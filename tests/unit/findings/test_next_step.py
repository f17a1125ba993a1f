"""What to do first, in whole sentences, and in one order with the findings and the verdict."""

from itertools import permutations

from profstack.findings import next_step as module
from profstack.findings import rules
from tests.support.findings import STEP_S, TRAIN, report_of
from tests.support.tables import cases, of, rows_of

KNOWN = {"evidence": [], "advice": "Mend it.", "file": None, "run_gain_s": None, "title": "T"}


def test_advice_is_cut_between_sentences_alone():
    for words, kept in (
        ("Ab cd. Efgh. Ij.", "Ab cd."), ("A. Bc. De. F.", "A. Bc. De."), ("A. Bbbbbbbbb. C.", "A."),
        ("At a.py:3 (f). Use g(x). B.", "At a.py:3 (f). Use g(x)."),
        ("A 4.1 ms. Use x=1. B.", 18), ("Use f(x). No. Longer than that.", "Use f(x)."),
        ("Or e.g. Adam. Bc.", 13), ("It's ('a(1)  # B. C'). D.", 22),
        ("A b. ''x # B. C' takes 9 %' is about some of the same time: gains do not add up.", 4),
    ):  # fmt: skip
        expected = words[:kept] if isinstance(kept, int) else kept
        assert module.first_sentences(words, 9) == expected


def test_findings_stand_in_the_order_in_which_to_mend_them():
    # In shares of a step, of a run of as many seconds: what is known to gain most is first.
    order = [["medium", 0.4, None], ["high", 0.3, None], ["high", None, 0.5], ["high", None, 0.2]]
    order += [["medium", 0.1, None], ["low", 0.35, None], ["low", None, None]]
    report = report_of(parts={"run_bar": [{"part": "steps", "wall_s": 1.0}]})
    for given in [*permutations(order)][::97]:
        rows = rows_of("severity share run_s", *given, slug="x", gain_reason=None, **KNOWN)
        gains = [row["share"] and row["share"] * STEP_S for row in rows]
        report["findings"] = [row | {"gain_s": gain} for row, gain in zip(rows, gains, strict=True)]
        found = module.in_order(report)
        assert [of(each, "severity share run_s") for each in found] == order
    # Without a gain it is a simple one, before a severe one.
    kinds = ("x", "high"), (rules.PADDING.slug, "medium")
    report["findings"] = rows_of("slug severity", *kinds, **KNOWN, run_s=None, gain_s=None)
    assert module.in_order(report)[0]["slug"] == rules.PADDING.slug


@cases("words slug share gain run_s",
    ("", rules.INPUT, 0.6, 0.3, None), ("not most of these 61 %", rules.INPUT, 0.61, 0.3, None),
    ("", rules.BALANCED, None, 0.3, None), ("", rules.INPUT, 0.6, None, 1),
    ("Beside that: T.", rules.INPUT, 0.6, None, None), ("", rules.BALANCED, None, None, None),
)  # fmt: skip
def test_one_sentence_says_why_another_thing_is_first(words, slug, share, gain, run_s):
    known = KNOWN | {"slug": "x", "severity": "high", "run_s": run_s, "gain_reason": None}
    report = report_of(parts={"run_bar": []})
    report["findings"] = [known | {"gain_s": gain and gain * STEP_S, "file": TRAIN, "line": 1}]
    said = module.beside(report, slug, module.lever_of(report), share)
    assert (words in said, bool(said)) == (True, bool(words))


@cases("share gain simple of_simple is_first", "0.19 None 1 None False; 0.2 None 1 None True",
       "0.19 None 0 None True; 0.05 0.05 1 None True; 0.19 None 1 0.01 True")  # fmt: skip
def test_a_simple_remedy_is_before_a_little_code_of_which_nobody_knows_what_can_go(
    share, gain, simple, of_simple, is_first
):
    rows = rows_of("slug severity", ("own", "medium"), **KNOWN, run_s=None, gain_reason=None)
    rows[0] |= {"gain_s": gain and gain * STEP_S, "evidence": [{"step_share": share}]}
    other = rows_of("slug severity", (rules.PADDING.slug, "medium"), **KNOWN, run_s=None)
    report = report_of(parts={"run_bar": [{"part": "steps", "wall_s": 1.0}]})
    of_simple = of_simple and of_simple * STEP_S
    more = {"gain_s": of_simple, "gain_reason": None}
    report["findings"] = rows + [each | more for each in other * simple]
    assert (module.lever_of(report) is not None) is is_first
    assert (module.in_order(report)[0]["slug"] == "own") is is_first
