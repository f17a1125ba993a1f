"""No two figures of one quantity, and no part larger than its whole, in real and drawn reports."""

import gzip
import json

from profstack.report import files
from tests.support import recordings
from tests.support.agreement import contradictions
from tests.support.processes import CHECKOUT
from tests.support.tables import cases

KEPT = CHECKOUT / "tests" / "support" / "data" / "recordings"
HOT, LOADING = {"slug": "python-hot-spot"}, {"slug": "data-starved"}


def kept(name):
    return json.loads(gzip.decompress((KEPT / name / "report.json.gz").read_bytes()))


def test_reports_agree_with_themselves(tmp_path):
    recordings.realistic(tmp_path / "rec").close()
    report = files.complete_report(tmp_path / "rec")
    assert [contradictions(kept(each.name)) for each in KEPT.iterdir()] == [[], [], []]
    assert contradictions(report) == []
    report["benchmark"]["median_s"] *= 1.01
    report["step_bar"]["parts"][0]["seconds"] += 0.01
    assert len(contradictions(report)) >= 2


@cases("words changes",
    ("nothing says why", {"gain_reason": None}),
    ("the optimizer takes", {"evidence": [{"optimizer_s": 3e-3}]}),
    ("the optimizer takes", {"evidence": [{"optimizer_s": 4, "operator_s": 3, "python_s": 1}]}),
    ("beside Python", HOT | {"gain_s": 2e-3, "evidence": [{"function": "f", "own_high_s": 1}]}),
    ("beside data wait", HOT | {"evidence": [
        {"function": "f", "own_high_s": 1, "inside": "data wait"}]}),
    ("in a wait of", LOADING | {"evidence": [{"calibrated_s": 3e-3}]}),
)  # fmt: skip
def test_a_finding_that_contradicts_the_bar_is_seen(words, changes):
    report = kept("digits")
    report["findings"][0] |= changes
    assert [words in each for each in contradictions(report)] == [True]
