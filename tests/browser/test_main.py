"""main.js: the page as a whole: light and dark, print, reasons and origins, names as text."""

import json

import pytest

from profstack.report import html
from tests.support.bench_reports import bench
from tests.support.browser import snippet, texts
from tests.support.full_report import whole
from tests.support.nsys_recordings import with_torch
from tests.support.reports import HOSTILE, build, hostile


def test_the_button_turns_light_to_dark_and_back_and_it_is_kept(opened):
    # What another page of this browser chose is the choice of all pages from files.
    forget = "localStorage.removeItem('profstack-theme')"
    opened(build(), at="", fresh=True).evaluate(forget)
    page = opened(build(), at="", fresh=True, dark=True)
    told = []
    kept = "[document.documentElement.dataset.theme, localStorage.getItem('profstack-theme')]"
    for _ in range(3):
        told.append(page.evaluate(kept))
        page.click("#theme")
    assert told == [["dark", None], ["light", "light"], ["dark", "dark"]]
    page.evaluate(forget)


def test_what_is_folded_is_open_on_paper_alone(opened):
    page = opened(whole(), at="benchmark", fresh=True)
    before, printed, outer, inner, after = page.evaluate(snippet("printed"))
    assert (True in before, printed, inner, after) == (False, outer, False, before)


@pytest.mark.parametrize("make", [whole, bench])
def test_all_figures_have_a_reason_or_an_origin(opened, make):
    report = make()
    for name, table in report["tables"].items():
        for key in table[0] if table else ():
            if f"{name}.{key}" not in report["columns_reason"]:
                report["cells_reason"].setdefault(f"{name}.{key}", "told")
    page = opened(report, at="all")
    page.evaluate("document.querySelectorAll('.empty-note input').forEach((one) => one.click())")
    page.settle()
    assert page.evaluate(snippet("silent")) + page.evaluate(snippet("untold")) == []


# Where names stand on the page of each report.
NAMED = {
    whole: "#module-tree, #operator-table, #function-table, #lines, #kernels, #gap-table, #verdict",
    with_torch: "#nsys-kernel-table, #nsys-range-tree",
}


@pytest.mark.parametrize("make", NAMED)
def test_names_of_the_program_are_text(opened, tmp_path, make):
    report = hostile(make(tmp_path / "r") if make is with_torch else make())
    page = opened(report, at="all", fresh=True)
    page.evaluate(snippet("scroll_through"))
    page.settle()
    assert page.evaluate(snippet("named_markup")) == [None, 0, 0]
    shown = texts(page, NAMED[make])
    assert [HOSTILE in one for one in shown] == [True] * (NAMED[make].count(",") + 1)


def test_long_names_of_the_program_fit_a_narrow_window(opened):
    text = json.dumps(whole()).replace("Digits", "L" * 3_000).replace("conv2d", "f" * 3_000)
    page = opened(json.loads(text), at="all", fresh=True, width=400)
    page.evaluate(snippet("scroll_through"))
    page.settle()
    assert page.evaluate(snippet("beyond")) == [True, []]


def test_without_the_library_of_charts_the_page_says_so(opened, monkeypatch):
    monkeypatch.setattr(html, "library", lambda: None)
    page = opened(build(), "benchmark", fresh=True)
    assert "install plotly" in texts(page, "#steps-chart")[0]
