"""The parts of a benchmark as a browser draws them: bars, curves and points can be counted."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from data_bench_report import BATCHES, bare, bench, bench_of_hostile_names
from data_report import HOSTILE, build
from page_browser import EXECUTABLE, Browser, choose, column, count, pages, texts
from page_charts import (
    charted,
    click_at,
    drawings,
    layout,
    point_at,
    redrawn,
    trace,
    traces,
    words,
)

from profstack.report.bench_page import histogram

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


def test_samples_and_warm_up_are_drawn_as_they_are(opened: Opened) -> None:
    report = bench()
    page = opened(report, "benchmark")
    bars = histogram(report["benchmark"]["samples_s"])
    assert bars is not None
    charted(page, "#samples-chart")
    samples = trace(page, "#samples-chart", "samples")
    assert samples["y"] == bars.counts
    assert samples["x"][0] == pytest.approx(bars.start_s + bars.width_s / 2)
    assert trace(page, "#samples-chart", "beyond")["y"] == [3]
    assert {"beyond", "median 12.9 ms"} <= set(words(page, "#samples-chart"))
    band = [one for one in layout(page, "#samples-chart")["shapes"] if one["type"] == "rect"]
    ends = [report["benchmark"]["ci95_low_s"], report["benchmark"]["ci95_high_s"]]
    assert [[one["x0"], one["x1"]] for one in band] == [ends]
    assert "3 samples lie beyond the right edge, up to 34.4 ms" in texts(page, "#samples-note")[0]
    assert "modes" not in texts(page, "#samples-chart")[0]
    charted(page, "#warmup-chart")
    calls = trace(page, "#warmup-chart", "calls")
    assert calls["y"] == pytest.approx(report["benchmark"]["warmup_s"], rel=1e-3)
    assert [one for one in calls["marker"]["symbol"] if one != "circle"] == ["diamond"]
    assert "warm-up ends after call 6" in words(page, "#warmup-chart")
    assert "24.2 × the median" in texts(page, "#warmup-note")[0]
    said = point_at(page, "#warmup-chart", "calls", 0)
    for told in ("first call", "312 ms", "raw host time"):
        assert told in said


def test_samples_of_two_kinds_of_steps_are_called_so(opened: Opened) -> None:
    report = bench()
    taken = report["benchmark"]["samples_s"]
    slower = [one + 0.004 for one in taken]
    report["benchmark"] |= {"samples_s": taken + slower}
    page = opened(report, "benchmark")
    charted(page, "#samples-chart")
    modes = trace(page, "#samples-chart", "modes")["x"]
    assert len(modes) == 2
    assert modes[1] - modes[0] == pytest.approx(0.004, abs=0.0006)
    assert "The samples have 2 modes, near" in texts(page, "#samples-chart .chart-says")[0]


def modes_of(page: Browser, taken: list[list[float]]) -> list[int]:
    """How many modes the page finds in each of several sets of samples."""
    script = (resources.files("profstack.report") / "templates" / "benchmark.js").read_text()
    functions = script[script.index("function modesOf") : script.index("const manyModes")]
    bars = [dataclasses.asdict(bars) for one in taken if (bars := histogram(one)) is not None]
    found = page.evaluate(
        f"(() => {{ {functions} return {json.dumps(bars)}.map(one => modesOf(one).length); }})()"
    )
    assert isinstance(found, list)
    return found


def test_chance_alone_makes_no_mode(opened: Opened) -> None:
    page = opened(bench(), "benchmark")
    chance = random.Random(7)
    for size in (15, 60, 400, 5_000):
        one = [[chance.lognormvariate(-4, 0.1) for _ in range(size)] for _ in range(30)]
        assert sum(count > 1 for count in modes_of(page, one)) <= 1, size
    two = [[chance.gauss(0.01 if at % 2 else 0.013, 4e-4) for at in range(400)] for _ in range(20)]
    assert modes_of(page, two) == [2] * 20


def test_modes_processes_shapes_and_the_device_stand_side_by_side(opened: Opened) -> None:
    page = opened(bench(), "benchmark")
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
    page = opened(report, "benchmark")
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
    page = opened(report, "benchmark")
    for chart, key in (("#rate-chart", "items_per_s"), ("#latency-chart", "latency_s")):
        charted(page, chart)
        curves = [one for one in traces(page, chart) if one["mode"] == "lines+markers"]
        assert [len(one["x"]) for one in curves] == [len(BATCHES), len(BATCHES) - 1]
        measured = [row[key] for row in rows if row["dtype"] == "float32" and row[key]]
        assert curves[0]["y"] == measured
        assert len(trace(page, chart, "knee")["x"]) == 2
        assert sorted(trace(page, chart, "refused")["x"]) == [192, 256]
        assert {layout(page, chart)[axis]["type"] for axis in ("xaxis", "yaxis")} == {"log"}
    labels = {"knee 16", "max 4.35 k", "knee 32", "max 2.71 k"}
    assert labels <= set(words(page, "#rate-chart"))
    boxes = page.evaluate(
        "[...document.querySelectorAll('#rate-chart .annotation-text')]"
        ".map(one => one.getBoundingClientRect())"
        ".map(box => [box.left, box.top, box.right, box.bottom])"
    )
    assert len(boxes) == 4
    for one, other in itertools.combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, "labels do not overlap"
    why = [told for _, told in trace(page, "#rate-chart", "refused")["customdata"]]
    assert any("the limit is 2.00 GiB" in text for ((_, text),) in why)
    said = point_at(page, "#rate-chart", "float32", 0)
    assert "batch of 1" in said
    assert "clean" in said
    assert "the knee is at 16" in texts(page, "#rate-chart .chart-says")[0]
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
    page = opened(bench(), "benchmark")
    charted(page, "#compare-bars")
    bars = trace(page, "#compare-bars", "times")
    assert bars["x"][1] / bars["x"][0] == pytest.approx(0.71, abs=0.01)
    assert len(bars["x"]) == 3
    assert all(one > 0 for one in bars["error_x"]["array"] + bars["error_x"]["arrayminus"])
    assert len(trace(page, "#compare-bars", "fresh processes")["x"]) == 3
    assert {"eager", "compile", "9.15 ms, 1.41 × as fast"} <= set(words(page, "#compare-bars"))
    assert "failed: NotSupportedError" in texts(page, "#compare-bars")[0]
    rows = texts(page, "#compare-table tbody tr")
    for said in ("1.41 × 1.39 – 1.43", "18.4 s", "equal", "23 (−41)", "1, 0 breaks", "2.1e−6"):
        assert said in rows[1], said
    assert "differ" in rows[2]
    assert count(page, "#compare-fused li") == 3
    assert "18.4 s" in point_at(page, "#compare-bars", "times", 1)


def test_wrong_stands_beside_right_and_the_rest_says_why_not(opened: Opened) -> None:
    page = opened(bench(), "benchmark")
    charted(page, "#mistakes-bars")
    bars = trace(page, "#mistakes-bars", "times")
    assert len(bars["x"]) == 8
    # One sample has no deviation; one whisker reaches beyond the scale.
    assert bars["error_x"]["array"].count(None) == 1
    end = layout(page, "#mistakes-bars")["xaxis"]["range"][1]
    whiskers = zip(bars["x"], bars["error_x"]["array"], strict=True)
    assert [value + (reach or 0) > end for value, reach in whiskers].count(True) == 1
    assert words(page, "#mistakes-bars").count("›") == 1
    silent = texts(page, "#mistakes-bars li.quiet:not(.legend li)")
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
    charted(page, "#ablation-grids > div:nth-child(2)")
    bars = trace(page, "#ablation-grids > div:nth-child(2)", "times")
    assert len(bars["x"]) == 6, "the invalid ones have no bar"
    assert count(page, "#ablation-grids td") == 16
    assert count(page, "#ablation-grids td.reference") == 2
    invalid = texts(page, "#ablation-grids td.invalid")
    assert len(invalid) == 4
    assert all("Both events must be completed" in one for one in invalid)
    assert "1.55 ×" in texts(page, "#ablation-grids td")[1]
    assert "a CPU has nothing to wait for" in texts(page, "#ablation-grids ol")[0]


def test_points_lie_under_the_roof_and_are_told_apart_by_shape(opened: Opened) -> None:
    page = opened(bench(), "flops")
    charted(page, "#roofline-chart")
    points = trace(page, "#roofline-chart", "points")
    # The step, and the operators that have a place; relu and fft have none.
    assert len(points["x"]) == 6
    marker = points["marker"]
    assert len(set(zip(marker["symbol"], marker["color"], strict=True))) == 3
    # Two measured ceilings, one of the datasheet, the memory's slope.
    roofs = [one for one in traces(page, "#roofline-chart") if one["mode"] == "lines"]
    names = [one["name"] for one in roofs if not one["name"].startswith("beyond")]
    assert sorted(names) == ["memory", "roof bfloat16", "roof float32", "roof float32"]
    assert [one["line"].get("dash") for one in roofs].count("dash") == 1
    (slope,) = (one for one in roofs if one["name"] == "memory")
    assert slope["y"][0] / slope["x"][0] == pytest.approx(slope["y"][1] / slope["x"][1])
    assert "aten::addmm" in words(page, "#roofline-chart"), "where it ran stands in the details"
    step = [one["name"] for one in points["customdata"]].index("step")
    said = point_at(page, "#roofline-chart", "points", step)
    for told in ("compute-bound", "94.5 GFLOP/s", "12.6 FLOP/byte", "clean"):
        assert told in said, told
    drawn = drawings(page, "#roofline-chart")
    choose(page, "#roofline-tools", "modules")
    redrawn(page, "#roofline-chart", drawn)
    assert len(trace(page, "#roofline-chart", "points")["x"]) == 5
    assert "Digits.features.2" in words(page, "#roofline-chart")
    placeless = texts(page, "#roofline-placeless")[0]
    assert "3 of 13 have no point" in placeless
    assert "there is no formula for its operations: Digits.features.1, aten::relu" in placeless
    assert "45 %" in texts(page, "#roofline-cards .card.main")[0]
    assert count(page, "#roofline-cards .card.wrong") == 0
    modules = trace(page, "#roofline-chart", "points")["customdata"]
    at = [one["name"] for one in modules].index("Digits.classifier.0")
    click_at(page, "#roofline-chart", "points", at)
    assert page.evaluate("location.hash") == "#modules/Digits.classifier.0"
    assert "Linear" in texts(page, "#module-tree .marked")[0]


def test_utilisation_above_the_peak_is_none_and_raises_a_flag(opened: Opened) -> None:
    report = bench()
    report["roofline"]["mfu"][0].update(value=None, warning="no share: one of the two is wrong")
    page = opened(report, "flops")
    (flag,) = texts(page, "#roofline-cards .card.wrong")
    assert "no share: one of the two is wrong" in flag
    assert "%" not in flag


def test_parts_that_were_not_asked_for_are_not_there(opened: Opened) -> None:
    page = opened(bare(), "benchmark")
    for part in (*_PARTS, "steps", "layers"):
        assert count(page, f"#{part}") == 0, part
        assert count(page, f"nav a[href='#{part}']") == 0, part
    assert "--processes 5" in texts(page, "#between")[0]
    page = opened(build(), "benchmark")
    for part in (*_PARTS, "between", "warmup", "bench-modes", "by-shape", "device-state"):
        assert count(page, f"#{part}") == 0, part
    charted(page, "#samples-chart")
    assert len(trace(page, "#samples-chart", "samples")["y"]) >= 8


def test_terms_of_a_benchmark_lead_to_the_glossary(opened: Opened) -> None:
    page = opened(bench())
    ways = page.evaluate(
        "[...document.querySelectorAll('a.term')].map(one => one.getAttribute('href'))"
    )
    assert {"#term-knee", "#term-mfu", "#term-between-process", "#term-compute-bound"} <= set(ways)
    known = page.evaluate("[...document.querySelectorAll('.glossary > div')].map(one => one.id)")
    assert {way[1:] for way in ways} <= set(known)


def test_hostile_names_of_a_benchmark_are_text(opened: Opened) -> None:
    page = opened(bench_of_hostile_names())
    assert page.evaluate("window.broken") is None
    assert count(page, "main img") == 0
    for box in _NAMES:
        assert HOSTILE in texts(page, box)[0], box
    for box in ("#compare-bars", "#mistakes-bars", "#rate-chart", "#roofline-chart"):
        charted(page, box)
        assert count(page, f"{box} svg a") == 0
        assert count(page, f"{box} svg image") == 0
    assert any("onerror=" in one for one in words(page, "#compare-bars"))
    assert HOSTILE in point_at(page, "#roofline-chart", "points", 1)
    charted(page, "#rate-chart")
    assert HOSTILE in point_at(page, "#rate-chart", traces(page, "#rate-chart")[0]["name"], 0)
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
