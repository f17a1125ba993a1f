"""The page of a history: its sentence, its chart, a line for each run, and names that are text."""

import pytest

from profstack.compare.history import history
from tests.support.browser import texts
from tests.support.reports import HOSTILE, build


@pytest.fixture
def made():
    """Twelve runs, the last six twice as slow."""
    runs = []
    for at in range(12):
        step_s = (0.001 + 0.00001 * (at % 3)) * (2 if at >= 6 else 1)
        run = {**build()["run"], "started_at": f"2026-03-{at + 1:02d}T10:00:00+00:00"}
        mark = {"median_s": step_s, "ci95_low_s": step_s * 0.99, "ci95_high_s": step_s * 1.01}
        benchmark = {**build()["benchmark"], **mark}
        facts = {**build()["environment"], "commit": f"{at:08x}cafe", "changed": at == 3}
        report = {**build(), "script": HOSTILE, "run": run, "benchmark": benchmark}
        runs.append((f"runs/{at}", report | {"environment": facts}))
    return history(runs, [{"path": HOSTILE, "reason": "no report"}])


def test_the_page_has_the_change_a_chart_and_a_line_for_each_run(made, opened):
    [program] = made["programs"]
    page = opened(made, at="")
    [sentence] = texts(page, ".changes li")
    assert sentence == program["changes"][0]["sentence"]
    assert "100.0 % slower from commit 00000006 on" in sentence
    assert texts(page, "tbody tr td:nth-child(2)")[3:5] == ["00000003+", "00000004"]
    assert texts(page, "tr.first-after td:last-child") == ["step +100.0 %"]
    # A level on each side of the change, and its edge between the two runs.
    page.look_at(".plot")
    page.wait_for("document.querySelector('.plot[data-drawn]')")
    shapes = "document.querySelector('.plot').layout.shapes.map((one) => [one.x0, one.x1])"
    assert sorted(page.evaluate(shapes)) == [[-0.5, 5.5], [5.5, 5.5], [5.5, 11.5]]
    # Names of programs and files are text.
    assert texts(page, "h3.part") == [f"{HOSTILE}, 12 runs"]
    assert texts(page, "#left-out li") == [f"left out: {HOSTILE}: no report"]
