"""No two figures of one quantity, and no part larger than its whole, in real and drawn reports."""

import gzip
import json

from profstack.report import files
from tests.support import recordings
from tests.support.agreement import contradictions
from tests.support.hostile_recordings import KEPT
from tests.support.tables import cases

HOT, LOADING = {"slug": "python-hot-spot"}, {"slug": "data-starved"}


def test_reports_agree_with_themselves(tmp_path):
    recordings.realistic(tmp_path / "rec").close()
    report = files.complete_report(tmp_path / "rec")
    packed = [path.read_bytes() for path in KEPT.glob("*/report.json.gz")]
    kept = [json.loads(gzip.decompress(each)) for each in packed]
    assert [contradictions(each) for each in (*kept, report)] == [[], [], [], []]
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
    report = json.loads(gzip.decompress((KEPT / "digits" / "report.json.gz").read_bytes()))
    report["findings"][0] |= changes
    assert [words in each for each in contradictions(report)] == [True]
