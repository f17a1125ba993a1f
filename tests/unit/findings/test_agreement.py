"""No two figures of one quantity, and no part larger than its whole, in kept and drawn reports."""

import gzip
import json
from copy import deepcopy

import pytest

from tests.support import recordings
from tests.support.agreement import contradictions
from tests.support.processes import CHECKOUT

KEPT = sorted((CHECKOUT / "tests/support/data/recordings").glob("*/report.json.gz"))


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.parent.name)
def test_kept_reports_agree_with_themselves(file):
    report = json.loads(gzip.decompress(file.read_bytes()))
    assert contradictions(report) == []
    if report["step_bar"]["parts"]:
        false = deepcopy(report)
        false["benchmark"]["median_s"] *= 1.01
        false["step_bar"]["parts"][0]["seconds"] += 0.01
        assert len(contradictions(false)) >= 2


def test_a_drawn_report_agrees_with_itself(tmp_path):
    recordings.realistic(tmp_path)
    assert contradictions(recordings.report_of(tmp_path)) == []
