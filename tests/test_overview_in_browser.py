"""The overview in a browser: verdict, figures, the bar, findings; and how it was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from data_full_report import full
from data_overview import add_sources, add_verdict, finding, make_hostile
from data_report import HOSTILE, build
from page_browser import EXECUTABLE, Browser, count, pages, texts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="there is no Chromium on this machine"),
]
Opened = Callable[..., Browser]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens the page of a report; at the end nothing may be broken."""
    with pages(tmp_path) as open_page:
        yield open_page


def _hrefs(page: Browser, selector: str) -> list[str]:
    found = page.evaluate(
        f"[...document.querySelectorAll({selector!r})].map(one => one.getAttribute('href'))"
    )
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("dark", [False, True])
def test_the_answer_stands_in_the_first_window(opened: Opened, dark: bool) -> None:
    page = opened(add_verdict(full()), at="overview", width=1400, height=900, dark=dark)
    bottom = "document.querySelector({!r}).getBoundingClientRect().bottom"
    for box in ("#verdict", "#benchmark-cards", "#step-bar", ".finding"):
        assert page.evaluate(bottom.format(box)) <= 900, box
    assert page.evaluate("document.documentElement.scrollWidth") == 1400
    assert page.evaluate("window.scrollY") == 0


def test_it_fits_a_narrow_window(opened: Opened) -> None:
    report = make_hostile(add_sources(add_verdict(full())))
    page = opened(report, at="overview", width=400, height=900)
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_the_verdict_stands_with_every_test_and_its_threshold(opened: Opened) -> None:
    page = opened(add_verdict(full()), at="overview")
    assert texts(page, ".verdict") == [
        "Input-bound: 45 % of a clean step waits for the next batch."
    ]
    assert [text.split("-")[0] for text in texts(page, ".test-name")] == [
        "input", "python", "compute"
    ]  # fmt: skip
    assert texts(page, ".tests li > b") == ["45 %", "20 %", "–"]
    marks = page.evaluate(
        "[...document.querySelectorAll('.tests li')].map(one => ["
        "one.querySelector('.test-fill').style.width, one.querySelector('.test-mark').style.left])"
    )
    assert marks == [["45%", "30%"], ["20%", "40%"], ["0%", "40%"]]
    assert _hrefs(page, ".tests .test-words a") == ["#modules/(wait)"]


def test_a_report_without_a_verdict_says_so(opened: Opened) -> None:
    report = full() | {"verdict": None, "step_bar": {"median_s": None, "parts": [], "reason": "x"}}
    page = opened(report, at="overview")
    assert texts(page, "#verdict") == ["No verdict: this report has none."]
    assert texts(page, "#step-bar") == ["No division of the step: x."]


def test_what_the_bar_does_not_say_stands_below_it(opened: Opened) -> None:
    report = add_verdict(full())
    report["step_bar"].update(reason="a part is not known", note="'data wait' is another")
    page = opened(report, at="overview")
    assert texts(page, "#step-bar p") == ["A part is not known.", "'data wait' is another."]


def test_the_bar_adds_up_and_each_part_leads_to_its_rows(opened: Opened) -> None:
    report = add_verdict(full())
    page = opened(report, at="overview")
    grown = page.evaluate(
        "[...document.querySelectorAll('#step-bar .piece')].map(one => Number(one.style.flexGrow))"
    )
    assert sum(grown) == pytest.approx(1)
    assert grown[0] == pytest.approx(0.45)
    assert texts(page, "#step-bar .piece")[:2] == ["data wait 45 %", "Python 20 %"]
    assert _hrefs(page, "#step-bar a.piece")[0] == "#modules/(wait)"
    assert texts(page, "#step-bar .legend li")[4] == "other40.1 µs1.0 %"
    page.click("#step-bar a.piece", 2)
    assert page.evaluate("window.location.hash") == "#modules/Digits"
    assert "Digits" in texts(page, ".marked")[0]


def test_findings_say_gain_place_evidence_and_what_to_do(opened: Opened) -> None:
    page = opened(add_verdict(full()), at="overview")
    first, second, third = texts(page, ".finding")
    gains = texts(page, ".finding .gain")
    assert gains[0] == "−1.60 ms40 % of a clean stepestimated"
    # Of two limits that do not agree it is the lower one.
    assert gains[1].endswith("of a clean stepat least, measured")
    for said in ("The step waits for its data", "high", "train.py:22", "Load in 2 workers."):
        assert said in first
    assert "measured" in second
    assert "2 more" in second
    assert "it costs memory, not time" in third
    assert "growth 3.00 MiB" in third
    assert _hrefs(page, ".finding .place a")[0] == "#source/train.py%3A22"
    assert "#modules/Digits.classifier.0" in _hrefs(page, ".finding .place a")
    page.click(".finding .evidence a", 0)
    assert page.evaluate("window.location.hash") == "#modules/(wait)"


def test_a_finding_has_an_address(opened: Opened) -> None:
    page = opened(add_verdict(full()), at="overview/sync")
    assert page.evaluate("document.querySelector('.marked').id") == "finding-sync"


def test_rules_that_found_nothing_are_listed(opened: Opened) -> None:
    report = full() | {"findings": []}
    page = opened(report, at="overview")
    [said] = texts(page, ".rules summary")
    assert "none found anything to mend" in said
    number = int(said.split(" ")[0])
    assert count(page, ".rules dt") == number > 1
    report["findings"] = [finding("memory-growth", "Memory grows")]
    page = opened(report, at="overview")
    assert count(page, ".rules dt") == number - 1
    page.click(".finding .place a", -1 + count(page, ".finding .place a"))
    assert page.evaluate("document.querySelector('.marked').id") == "term-memory-growth"


def test_figures_that_are_not_known_say_why(opened: Opened) -> None:
    report = build()
    report["benchmark"] |= {"median_s": None, "items_per_s": None, "steps_per_s": None}
    page = opened(report, at="overview")
    untold = page.evaluate(
        "[...document.querySelectorAll('#benchmark-cards .none, #tops .none, .tests .none')]"
        ".filter(one => !one.title || one.title === 'not measured').length"
    )
    assert untold == 0
    assert "no layer counted operations" in texts(page, "#benchmark-cards")[0]


def test_a_mean_far_from_the_median_stands_with_the_rate_that_is_by_it(opened: Opened) -> None:
    report = build()
    mark = report["benchmark"]
    mark["mean_s"] = 1.04 * mark["median_s"]
    page = opened(report, at="overview")
    assert "on average" not in texts(page, "#benchmark-cards")[0]
    assert "#term-rate" in _hrefs(page, "#benchmark-cards a")
    mark["mean_s"] = 1.3 * mark["median_s"]
    page = opened(report, at="overview")
    assert "; a step takes 5.21 ms on average" in texts(page, "#benchmark-cards")[0]


def test_what_speaks_against_the_figures_stands_together(opened: Opened) -> None:
    report = full()
    report["layers"][3] |= {"status": "empty", "reason": "too few steps", "command": "profstack x"}
    page = opened(report, at="overview")
    [missing] = texts(page, "#missing-layers li")
    assert missing.startswith("memory empty too few steps. To fill it: profstack x")
    assert count(page, "#warning-list li") == len(report["warnings"]) + len(
        report["benchmark"]["warnings"]
    )


def test_the_most_expensive_rows_lead_to_their_views(opened: Opened) -> None:
    page = opened(add_sources(add_verdict(full())), at="overview")
    assert texts(page, ".top h4 a") == [
        "Modules", "Operators", "Python functions", "Lines of your own"
    ]  # fmt: skip
    way = "#source/train.py%3A68"
    assert way in _hrefs(page, ".top li a")
    page.click(f".top li a[href='{way}']")
    assert page.evaluate("document.querySelector('.marked').dataset.line") == "68"


def test_hostile_names_are_text(opened: Opened) -> None:
    page = opened(make_hostile(add_sources(add_verdict(full()))))
    assert page.evaluate("window.broken") is None
    assert count(page, "main img") == 0
    for box in ("#verdict", "#finding-list", "#tops", "#missing-layers", "#run-facts",
                "#source-files", "#module-line-table"):  # fmt: skip
        assert HOSTILE in texts(page, box)[0], box
    assert count(page, ".finding a[href^='http'], .finding a[href^='javascript']") == 0


def test_how_the_clean_steps_were_found_is_told(opened: Opened) -> None:
    page = opened(full(), at="method")
    said = texts(page, "#clean-words")[0]
    for words in ("Optimizer.step", "32 steps that no layer watched", "Calibrated times"):
        assert words in said
    steps = [int(text.split(" ")[0]) for text in texts(page, "#clean-steps .legend li")]
    assert sum(steps) == len(full()["tables"]["steps"])
    assert steps[0] == 32


def test_layers_say_what_they_measure_and_what_not(opened: Opened) -> None:
    page = opened(full(), at="method/memory")
    assert page.evaluate("document.querySelector('.marked').dataset.key") == "method/memory"
    first = texts(page, ".layer .layer-words")[0]
    for words in ("measures", "not measured", "usual slowdown", "conflicts with"):
        assert words in first
    assert count(page, ".layer .interval .one") > 0


def test_verdicts_have_their_thresholds_in_the_glossary(opened: Opened) -> None:
    page = opened(full(), at="glossary/launch-bound")
    assert "40 % of the step" in texts(page, ".marked")[0]
    ids = page.evaluate("[...document.querySelectorAll('.glossary > div')].map(one => one.id)")
    assert len(ids) == len(set(ids))
