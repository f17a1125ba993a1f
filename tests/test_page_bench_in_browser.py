"""The parts of a benchmark as a browser draws them: bars, curves and points can be counted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from data_bench_report import BATCHES, bare, bench, bench_of_hostile_names
from data_report import HOSTILE, build
from page_browser import EXECUTABLE, Browser, choose, column, count, pages, texts

from profstack.report import html
from profstack.report.benchpage import histogram

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="there is no Chromium on this machine"),
]

Opened = Callable[..., Browser]
_PARTS = ("throughput", "compare", "mistakes", "ablation", "roofline")

_NAMES = (
    "#benchmark-warnings",
    "#by-shape",
    "#device-state",
    "#throughput-table",
    "#throughput-limits",
    "#compare-table",
    "#compare-fused",
    "#mistakes-bars",
    "#ablation-grids",
    "#roofline-cards",
    "#roofline-table",
    "#roofline-placeless",
)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens the page of a report; at the end nothing may be broken."""
    with pages(tmp_path) as open_page:
        yield open_page


def numbers(page: Browser, selector: str, attribute: str) -> list[float]:
    """An attribute of every element that a selector finds."""
    found = page.evaluate(
        f"[...document.querySelectorAll({selector!r})].map(one => +one.getAttribute({attribute!r}))"
    )
    assert isinstance(found, list)
    return found


def hover(page: Browser, selector: str, number: int = 0) -> str:
    """What the tip says while the pointer is on an element."""
    page.evaluate(
        f"(() => {{ const one = document.querySelectorAll({selector!r})[{number}];"
        " const box = one.getBoundingClientRect();"
        " one.dispatchEvent(new MouseEvent('mousemove', {bubbles: true,"
        " clientX: box.left + 1, clientY: box.top + 1})); })()"
    )
    return texts(page, ".tip:not([hidden])")[0]


def test_samples_and_warm_up_are_drawn_as_they_are(opened: Opened) -> None:
    report = bench()
    page = opened(report)
    bars = histogram(report["benchmark"]["samples_s"])
    assert bars is not None
    assert count(page, "#samples-chart .sample-bar:not(.beyond)") == len(bars.counts)
    assert "3" in texts(page, "#samples-chart .sample-bar.beyond + text")
    heights = numbers(page, "#samples-chart .sample-bar:not(.beyond)", "height")
    assert heights.index(max(heights)) == bars.counts.index(max(bars.counts))
    assert count(page, "#samples-chart .interval-band") == 1
    assert "3 samples lie beyond the right edge, up to 34.4 ms" in texts(page, "#samples-note")[0]
    assert count(page, "#warmup-chart .mark.call") == len(report["benchmark"]["warmup_s"])
    assert count(page, "#warmup-chart .mark.first") == 1
    assert "warm-up ends after call 6" in texts(page, "#warmup-chart")[0]
    assert "24.2 × the median" in texts(page, "#warmup-note")[0]
    assert "312 ms" in hover(page, "#warmup-chart .hit")


def test_modes_processes_shapes_and_the_device_stand_side_by_side(opened: Opened) -> None:
    page = opened(bench())
    modes = texts(page, "#bench-modes")[0]
    assert "12.89 ms 12.85 ms – 12.94 ms" in modes
    assert "The same on a CPU" in modes
    between = texts(page, "#between")[0]
    assert "8.0 % lowest to highest" in between
    assert "The error bar of a comparison is the upper one, 11.8 times the lower" in between
    assert count(page, "#between .dot") == 5
    ranges = page.evaluate(
        "[...document.querySelectorAll('#between .range')].map(one => one.offsetWidth)"
    )
    assert 8 < ranges[0] / ranges[1] < 16, "both on one scale"
    assert column(page, "#by-shape", 1)[0] == "[32, 1, 16, 16]"
    assert column(page, "#device-state", 1)[-1] == "throttle reasons"
    assert texts(page, "#device-state .changed td:last-child")[-1] == "software power cap changed"
    statistics = texts(page, "#benchmark-more")[0]
    for said in ("the interval, narrow enough", "3 of 420", "collected between blocks", "32, read"):
        assert said in statistics


def test_several_devices_and_their_clocks_are_told_apart(opened: Opened) -> None:
    report = bench()
    one = {"index": 0, "sm_hz": 1.41e9, "power_state": "P0", "power_w": 61.0}
    other = one | {"index": 1, "sm_hz": 1.2e9}
    report["benchmark"]["device_state"] = {
        "before": {"devices": [one, other]},
        "after": {"devices": [one, other | {"power_w": 250.0}]},
        "reason": None,
    }
    page = opened(report)
    names = column(page, "#device-state", 1)
    assert names[:2] == ["GPU 0: sm clock", "GPU 0: power state"]
    assert column(page, "#device-state", 2)[3] == "1.20 GHz"
    assert texts(page, "#device-state .changed td:first-child") == ["GPU 1: power, W"]


def test_commands_in_warnings_are_set_as_code(opened: Opened) -> None:
    report = bare()
    report["benchmark"]["warnings"] = [
        "5 differ: compare with --processes 10, on an idle machine",
        "it waits; see where with --layers watch",
        "clocks fell; try 'sudo cpupower frequency-set -g performance' and repeat",
        "don't take `profstack bench x.py:f --grad` for the model's",
    ]
    page = opened(report)
    assert texts(page, "#benchmark-warnings code") == [
        "--processes 10",
        "--layers watch",
        "sudo cpupower frequency-set -g performance",
        "profstack bench x.py:f --grad",
    ]


def test_a_curve_per_data_type_with_its_knee_and_its_refusal(opened: Opened) -> None:
    report = bench()
    rows = report["benchmark"]["throughput"]
    # The search tried a larger batch before: the smallest refused one stands for both.
    rows.append(rows[-2] | {"batch_size": 512})
    page = opened(report)
    for chart in ("#rate-chart", "#latency-chart"):
        assert count(page, f"{chart} .curve") == 2
        assert count(page, f"{chart} .curve-point") == 2 * len(BATCHES) - 1
        assert count(page, f"{chart} .knee") == 2
        assert count(page, f"{chart} .refused") == 2
    labels = texts(page, "#rate-chart .over-chart")
    assert labels == ["knee 16", "▲ 4.35 k", "knee 32", "▲ 2.71 k"]
    boxes = page.evaluate(
        "[...document.querySelectorAll('#rate-chart .over-chart')].map(one => one.getBBox())"
        ".map(box => [box.x, box.y, box.x + box.width, box.y + box.height])"
    )
    for one, other in itertools.combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, "labels do not overlap"
    # Doubling the batch is one step on the logarithmic axis.
    centres = numbers(page, "#rate-chart .hit", "cx")[: len(BATCHES)]
    steps = [right - left for left, right in itertools.pairwise(centres[:8])]
    assert max(steps) - min(steps) < 0.5
    refused = page.evaluate(
        "[...document.querySelectorAll('#rate-chart .hit')].map(one => one.ariaLabel)"
        ".filter(one => one.includes('refused') || one.includes('failed'))"
    )
    assert any("the limit is 2.00 GiB" in one for one in refused)
    assert "batch of 1" in hover(page, "#rate-chart .hit")
    limits = texts(page, "#throughput-limits tbody tr")
    assert "refuses a batch of 256" in limits[0]
    assert count(page, "#throughput-table tbody tr") == 20
    reasons = page.evaluate(
        "[...document.querySelectorAll('#throughput-table .number .none')].map(one => one.title)"
    )
    assert any("the limit is 2.00 GiB" in one for one in reasons)
    assert "not measured" not in reasons


def test_nothing_measured_in_a_search_says_why(opened: Opened) -> None:
    report = bench()
    rows = report["benchmark"]["throughput"]
    report["benchmark"] |= {"throughput": rows[-2:], "throughput_limits": []}
    page = opened(report)
    assert "No batch was measured" in texts(page, "#throughput-charts")[0]
    assert "mixed dtype" in texts(page, "#throughput-table")[0]


def test_variants_stand_beside_eager(opened: Opened) -> None:
    page = opened(bench())
    assert count(page, "#compare-bars .bar-fill") == 3
    assert count(page, "#compare-bars .bar-point") == 3
    widths = page.evaluate(
        "[...document.querySelectorAll('#compare-bars .bar-fill')].map(one => one.offsetWidth)"
    )
    assert widths[1] / widths[0] == pytest.approx(0.71, abs=0.01)
    assert "failed: NotSupportedError" in texts(page, "#compare-bars")[0]
    rows = texts(page, "#compare-table tbody tr")
    for said in ("1.41 × 1.39 – 1.43", "18.4 s", "equal", "23 (−41)", "1, 0 breaks", "2.1e−6"):
        assert said in rows[1], said
    assert "differ" in rows[2]
    assert count(page, "#compare-fused li") == 3
    assert "18.4 s" in hover(page, "#compare-bars .bar-line", 1)


def test_wrong_stands_beside_right_and_the_rest_says_why_not(opened: Opened) -> None:
    page = opened(bench())
    assert count(page, "#mistakes-bars .bar-fill") == 8
    # One sample has no deviation; one whisker reaches beyond the scale.
    assert count(page, "#mistakes-bars .bar-whisker") == 7
    assert count(page, "#mistakes-bars .bar-whisker.cut") == 1
    silent = texts(page, "#mistakes-bars .bar-row.quiet")
    assert len(silent) == 2
    assert "nothing to wait for" in silent[0]
    states = column(page, "#mistakes-table", 2)
    assert states == [
        *("59 % too long", "no interval", "cannot differ", "cannot differ"),
        *("13 % too long", "33 % too long"),
    ]
    titles = page.evaluate(
        "[...document.querySelectorAll('#mistakes-table .none')].map(one => one.title)"
    )
    assert titles
    assert all("cannot differ here: " in title for title in titles)


def test_eight_cells_per_variant_and_the_invalid_ones_show_their_error(opened: Opened) -> None:
    page = opened(bench())
    assert texts(page, "#ablation-grids h3") == ["compute", "copy-heavy"]
    assert count(page, "#ablation-grids td") == 16
    assert count(page, "#ablation-grids td.reference") == 2
    invalid = texts(page, "#ablation-grids td.invalid")
    assert len(invalid) == 4
    assert all("Both events must be completed" in one for one in invalid)
    assert "1.55 ×" in texts(page, "#ablation-grids td")[1]
    assert "a CPU has nothing to wait for" in texts(page, "#ablation-grids ol")[0]


def test_points_lie_under_the_roof_and_are_told_apart_by_shape(opened: Opened) -> None:
    page = opened(bench())
    # The step, and the operators that have a place; relu and fft have none.
    assert count(page, "#roofline-chart .roof-point") == 6
    shapes = page.evaluate(
        "[...document.querySelectorAll('#roofline-chart .roof-point')]"
        ".map(one => one.getAttribute('d') + one.style.fill)"
    )
    assert len(set(shapes)) == 3
    # Two measured ceilings, one of the datasheet, the memory's slope.
    assert count(page, "#roofline-chart .roof:not(.beyond)") == 4
    assert count(page, "#roofline-chart .roof.datasheet") == 1
    names = texts(page, "#roofline-chart .over-chart")
    assert "aten::addmm" in names, "where it ran stands in the details"
    said = hover(page, "#roofline-chart .hit")
    for words in ("step", "compute-bound", "94.5 GFLOP/s", "12.6 FLOP/byte"):
        assert words in said, words
    choose(page, "#roofline-tools", "modules")
    assert count(page, "#roofline-chart .roof-point") == 5
    assert "Digits.features.2" in texts(page, "#roofline-chart")[0]
    placeless = texts(page, "#roofline-placeless")[0]
    assert "3 of 13 have no point" in placeless
    assert "there is no formula for its operations: Digits.features.1, aten::relu" in placeless
    assert "45 %" in texts(page, "#roofline-cards .card.main")[0]
    assert count(page, "#roofline-cards .card.wrong") == 0


def test_utilisation_above_the_peak_raises_a_flag(opened: Opened) -> None:
    report = bench()
    report["roofline"]["mfu"][0]["value"] = 1.31
    page = opened(report)
    (flag,) = texts(page, "#roofline-cards .card.wrong")
    assert "131 %" in flag
    assert "above 100 %" in flag


def test_parts_that_were_not_asked_for_are_not_there(opened: Opened) -> None:
    page = opened(bare())
    for part in (*_PARTS, "steps", "layers"):
        assert count(page, f"#{part}") == 0, part
        assert count(page, f"nav a[href='#{part}']") == 0, part
    assert "--processes 5" in texts(page, "#between")[0]
    page = opened(build())
    for part in (*_PARTS, "between", "warmup", "bench-modes", "by-shape", "device-state"):
        assert count(page, f"#{part}") == 0, part
    assert count(page, "#samples-chart .sample-bar") >= 8


def test_terms_of_a_benchmark_lead_to_the_glossary(opened: Opened) -> None:
    page = opened(bench())
    ways = page.evaluate(
        "[...document.querySelectorAll('a.term')].map(one => one.getAttribute('href'))"
    )
    assert {"#term-knee", "#term-mfu", "#term-between-process", "#term-compute-bound"} <= set(ways)
    known = page.evaluate("[...document.querySelectorAll('.glossary > div')].map(one => one.id)")
    assert {way[1:] for way in ways} <= set(known)


@pytest.mark.parametrize("d3", [True, False])
def test_the_page_fits_a_narrow_window_in_the_dark(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, d3: bool
) -> None:
    if not d3:
        monkeypatch.setattr(html, "_d3", lambda: None)
    page = opened(bench(), width=480, height=900, dark=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 480
    assert count(page, "#mistakes-bars .bar-fill") == 8, "bars need no d3"
    if not d3:
        assert "install snakeviz" in texts(page, "#rate-chart")[0]


def test_hostile_names_of_a_benchmark_are_text(opened: Opened) -> None:
    page = opened(bench_of_hostile_names())
    assert page.evaluate("window.broken") is None
    assert count(page, "main img") == 0
    for box in _NAMES:
        assert HOSTILE in texts(page, box)[0], box
    assert HOSTILE in hover(page, "#roofline-chart .hit", 1)
    assert HOSTILE in hover(page, "#rate-chart .hit")
    assert page.evaluate("window.broken") is None


def every_empty_cell_reason(page: Browser) -> Any:
    return page.evaluate(
        "[...document.querySelectorAll('main .none')].filter(one => !one.title || "
        "one.title === 'not measured').map(one => one.closest('section').id + ' ' + "
        "(one.closest('td, dd, .card') || one).textContent)"
    )


def test_every_empty_cell_of_a_benchmark_has_a_reason(opened: Opened) -> None:
    page = opened(bench())
    silent = every_empty_cell_reason(page)
    assert [one for one in silent if one.split(" ")[0] in ("benchmark", *_PARTS)] == []
