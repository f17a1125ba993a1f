"""What the page draws of a benchmark: histograms, warm-up curves and rooflines, cut to a size."""

from __future__ import annotations

import time

import pytest
from data_bench_report import bare, bench, samples
from data_report import build

from profstack.report import html
from profstack.report.bench_page import (
    MOST_BARS,
    MOST_CALLS,
    MOST_POINTS,
    bench_page,
    histogram,
    roofline_page,
)
from profstack.report.page import prepare


def test_every_sample_is_in_a_bar_or_beyond_an_edge() -> None:
    taken = samples(5_000)
    bars = histogram(taken)
    assert bars is not None
    assert sum(bars.counts) + bars.below + bars.beyond == 5_000
    assert 8 <= len(bars.counts) <= MOST_BARS
    assert bars.beyond >= 3, "the three samples that took 2.6 times as long"
    assert (bars.least_s, bars.most_s) == (min(taken), max(taken))
    counted = [0] * len(bars.counts)
    for one in taken:
        at = int((one - bars.start_s) / bars.width_s)
        if 0 <= at < len(counted):
            counted[at] += 1
    # The last edge belongs to the last bar.
    assert abs(counted[-1] - bars.counts[-1]) <= 1
    assert counted[:-1] == bars.counts[:-1]


def test_an_edge_without_samples_beyond_it_is_the_outermost_sample() -> None:
    bars = histogram([1.0 + 0.01 * number for number in range(100)])
    assert bars is not None
    assert (bars.below, bars.beyond) == (0, 0)
    assert bars.start_s == 1.0
    assert bars.start_s + bars.width_s * len(bars.counts) == pytest.approx(1.99)


@pytest.mark.parametrize("value", [0.25, 0.0])
def test_samples_that_are_all_the_same_make_a_bar(value: float) -> None:
    bars = histogram([value] * 50)
    assert bars is not None
    assert sum(bars.counts) == 50
    assert max(bars.counts) == 50


def test_more_than_half_the_same_is_drawn_with_what_differs() -> None:
    bars = histogram([0.25] * 50 + [0.26, 0.5])
    assert bars is not None
    assert sum(bars.counts) + bars.beyond == 52


def test_a_few_samples_and_what_is_no_number_make_no_histogram() -> None:
    assert histogram([0.1] * 11) is None
    assert histogram([float("nan")] * 50 + [float("inf")] * 50) is None


def test_a_hundred_thousand_samples_leave_the_page_small_and_quick() -> None:
    report = bare()
    small = len(html.render(report))
    report["benchmark"] |= {"samples_s": samples(100_000), "warmup_s": samples(50_000)}
    began = time.process_time()
    page = html.render(report)
    assert len(page) < small + 30_000
    # Not a time to defend, a bound against work that grows with the square of the samples.
    assert time.process_time() - began < 5.0


def test_the_warm_up_curve_keeps_the_first_calls_and_the_extremes() -> None:
    calls = samples(20_000)
    calls[12_345] = 9.0
    curve = bench_page({"warmup_s": calls, "warmup_steps": 6}).warmup
    assert curve is not None
    assert len(curve.points) <= MOST_CALLS
    assert [call for call, _ in curve.points[:40]] == list(range(1, 41))
    assert [12_346, 9] in curve.points
    assert (curve.total, curve.steps) == (20_000, 6)
    assert curve.left_out is not None
    assert "20,000 calls" in curve.left_out


def test_a_run_has_a_histogram_and_no_warm_up_curve() -> None:
    page = bench_page(build()["benchmark"])
    assert not page.measured
    assert page.histogram is not None
    assert page.warmup is None


def test_samples_are_not_on_the_page_themselves() -> None:
    mark = prepare(bench()).facts["benchmark"]
    assert {"samples_s", "warmup_s", "counted_steps"} & set(mark) == set()
    assert mark["throughput"]


def test_the_roofline_keeps_the_step_and_the_heaviest_points() -> None:
    roofline = bench()["roofline"]
    point = next(one for one in roofline["points"] if one["kind"] == "operator")
    many = [{**point, "name": f"op{number}", "seconds": number * 1e-6} for number in range(2_000)]
    roofline["points"] = [*many, *roofline["points"]]
    page = roofline_page(roofline)
    assert page is not None
    assert (len(page.points), page.total) == (MOST_POINTS, 2_013)
    assert page.points[0]["name"] == "step"
    names = {one["name"] for one in page.points}
    assert {"op1999", "aten::addmm in Digits.features"} <= names
    assert "op3" not in names
    assert page.left_out is not None


@pytest.mark.parametrize("empty", [None, {}, {"peaks": {}, "points": []}])
def test_no_roofline_is_no_section(empty: dict[str, object] | None) -> None:
    assert roofline_page(empty) is None


def test_a_roofline_without_points_keeps_its_reason() -> None:
    reason = "no matmul could be timed"
    page = roofline_page({"peaks": {"reason": reason}, "points": [], "reason": reason})
    assert page is not None
    assert page.reason == reason
