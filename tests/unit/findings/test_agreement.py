"""No two figures of one quantity, and no part larger than its whole, in a drawn report."""

from profstack.report import files
from tests.support import recordings
from tests.support.agreement import contradictions


def test_a_drawn_report_agrees_with_itself(tmp_path):
    recordings.realistic(tmp_path / "rec").close()
    report = files.complete_report(tmp_path / "rec")
    assert contradictions(report) == []
    report["benchmark"]["median_s"] *= 1.01
    report["step_bar"]["parts"][0]["seconds"] += 0.01
    assert len(contradictions(report)) >= 2
