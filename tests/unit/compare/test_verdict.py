"""The answer of a comparison: one unit, figures that add up, and as many digits as they need."""

from profstack.compare import verdict
from profstack.compare.places import Found
from profstack.compare.verdict import answer, chosen, rounded
from tests.support.tables import cases


def bar(before_s, after_s):
    """Two parts of a bar, of a third and the rest."""
    return [
        {"name": name, "before_s": share * before_s, "after_s": share * after_s,
         "difference_s": share * (after_s - before_s), "beyond_noise": False, "places": []}
        for name, share in (("forward", 1 / 3), ("backward", 2 / 3))
    ]  # fmt: skip


@cases(
    "before_s after_s unit before after",
    # A unit is left from 999.5 on; seconds are the largest.
    "9.994e-4 9e-4 µs '999' '900'; 9.996e-4 9e-4 ms '1.000' '0.900'; 0.9996 0.9 s '1.000' '0.900'",
    "4000.0 3000.0 s '4000' '3000'",
    # One decimal more where it leaves two digits of the difference, two more of a smaller one.
    "0.0123 0.0134 ms '12.3' '13.4'; 0.0123 0.0130 ms '12.30' '13.00'",
    "0.0123 0.01235 ms '12.300' '12.350'; 0.0123 0.0123 ms '12.3' '12.3'",
)
def test_the_whole_has_one_unit(before_s, after_s, unit, before, after):
    found = rounded(bar(before_s, after_s))
    shown = (found.unit, found.words(found.before), found.words(found.after))
    assert shown == (unit, before, after)
    for side, whole in ((1, found.before), (2, found.after)):
        assert sum(row[side] for row in found.rows) == whole


class Noise:
    """Noise of which every ratio is known to a share of `reach`."""

    def __init__(self, reach):
        self.ratio_reach, self.source = (lambda _: reach), (lambda _: "between processes")
        self.before = self.after = self
        self.totals_s = lambda _: [1.0, 1.0]


class Totals:
    def __init__(self, before_s, after_s):
        self.before_s, self.after_s, self.parts = before_s, after_s, bar(before_s, after_s)


@cases("ratio words", (1.04, "(+4.0 %, +3.0 to +5.0)"), (0.80, "(-20 %, -21 to -19)"))
def test_shares_have_a_decimal_below_ten_percent(ratio, words):
    assert words in answer("step", Totals(0.01, 0.01 * ratio), Noise(0.01), [])["sentence"]


def test_a_difference_that_nobody_would_notice_is_none_however_surely_it_is_known():
    slugs = [
        answer("step", Totals(0.01, 0.01 + 0.01 * share * verdict._LEAST), Noise(1e-6), [])["slug"]
        for share in (0.9, -0.9, 1.1, -1.1)
    ]
    assert slugs == ["same", "same", "slower", "faster"]


@cases("ratio reach", "1.04 0.5; 1.0 0.01; 1.2 0.01")
def test_what_counts_say_is_added_where_times_say_nothing(ratio, reach):
    counted = [Found("/a/train.py", 7, "no longer fused"), Found(None, None, "aten::to 1 -> 3")]
    found = answer("step", Totals(0.01, 0.01 * ratio), Noise(reach), [], counted)
    told = found["slug"] == "slower"
    words = "; certain, since counted: train.py:7 no longer fused, aten::to 1 -> 3"
    assert found["sentence"].endswith(words) is not told, found["sentence"]


def answered(slug, sentence):
    return {"slug": slug, "sentence": sentence, "before_s": 0.002, "after_s": 0.003}


@cases(
    "step run share name sentence",
    # A part of the run is told from 5 % of its 40 s on, be the run itself told or not.
    ("slower", "unclear", 0.05, "saving", "of the step; and in the run saving +2 s (e.py:3)"),
    ("unclear", "same", -0.06, "saving", "of the step; and in the run saving -2.4 s (e.py:3)"),
    ("same", "slower", 0.05, "saving", "of the run; the step is the same (2 -> 3 ms)"),
    ("unclear", "faster", 0.05, "saving", "of the run; the step is not told apart (2 -> 3 ms)"),
    ("slower", "slower", 0.049, "saving", "of the step"),
    ("slower", "slower", 0.05, "saving", "of the step; and in the run saving +2 s (e.py:3)"),
    ("faster", "slower", 0.05, "saving", "of the run; the step by itself is faster (2 -> 3 ms)"),
    # Most of the run's 3.6 s is something else, as fewer epochs.
    ("slower", "faster", 0.05, "saving", "of the step; and in the run saving +2 s (e.py:3)"),
    ("faster", "slower", 0.044, "saving", "of the step"),
    ("unclear", "slower", 0.05, "steps", "of the step"),
)
def test_the_run_is_the_answer_where_it_alone_changed(step, run, share, name, sentence):
    part = {"name": name, "difference_s": share * 40.0, "beyond_noise": True,
            "places": [{"file": "/a/e.py", "line": 3, "cause": None}]}  # fmt: skip
    within_noise = part | {"name": "logging", "beyond_noise": False}
    after_s = {"slower": 43.9, "faster": 36.4}.get(run, 40.0)
    of_run = answered(run, "of the run") | {"before_s": 40.0, "after_s": after_s}
    found = chosen(answered(step, "of the step"), of_run, [part, within_noise])
    assert found["sentence"] == sentence
    assert chosen(None, of_run, [part]) is of_run
    assert chosen(answered(step, "of the step"), None, [part])["sentence"] == "of the step"
