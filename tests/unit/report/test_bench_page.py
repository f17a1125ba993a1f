"""What the page draws of a benchmark: histograms, warm-up curves and rooflines, cut to a size."""

import random

import numpy as np
import pytest

from profstack.report.bench_page import bench_page, histogram, roofline_page

NO_TIMES = [float("nan"), float("inf"), -1.0, None]
near = pytest.approx


def test_bars_are_as_wide_as_freedman_and_diaconis_have_it():
    taken = [3.0 + 0.001 * number for number in range(1_000)]
    random.Random(4).shuffle(taken)
    bars = histogram(taken + NO_TIMES)
    # Twice the middle half over the cube root of their number: 0.1001, and so ten bars.
    assert (bars.counts, bars.width_s) == ([100] * 10, near(0.0999))
    # The middle half is from about 10.25 to 10.75, and four times its width on are 8.25 and 12.75.
    chance = random.Random(7)
    close = [8.4, *(10 + chance.random() for _ in range(800)), 12.6]
    bars = histogram([*close, 8.1, 12.9, 14.0])
    assert (bars.below, bars.beyond) == (1, 2)
    assert (bars.least_s, bars.start_s, bars.most_s) == (8.1, 8.4, 14.0)
    wanted, _ = np.histogram(close, bins=len(bars.counts), range=(8.4, 12.6))
    assert bars.counts == wanted.tolist()
    assert histogram([0.1 * number for number in range(11)] + NO_TIMES) is None
    few, chance = [0.1 * number for number in range(12)], random.Random(3)
    many = [chance.gauss(9.0, 1.0) for _ in range(12_000)]
    assert [len(histogram(taken).counts) for taken in (few, many)] == [8, 60]


def test_the_warm_up_curve_keeps_the_first_calls_and_the_extremes():
    chance = random.Random(5)
    calls = [0.01 * (1 + chance.random()) for _ in range(20_000)]
    calls[12_345] = 9.0
    page = bench_page({"warmup_s": calls + NO_TIMES, "warmup_steps": 6, "target": "a.py:make"})
    curve = page.warmup
    assert (page.measured, page.histogram) == (True, None)
    assert (curve.total, curve.steps, len(curve.points)) == (20_000, 6, 600)
    at = [call for call, _ in curve.points]
    assert (at[:40], at) == (list(range(1, 41)), sorted(set(at)))
    assert (sum(call <= 80 for call in at) < 50, [12_346, 9] in curve.points) == (True, True)


def _point(name, seconds, kind="operator", **more):
    return {"kind": kind, "name": name, "seconds": seconds, "intensity": 2.5, **more}


def test_the_roofline_has_the_step_first_and_then_the_heaviest_that_have_a_place():
    points = [_point(f"op{at}", at * 1e-6) for at in range(3, 500)]
    others = [_point("no place", 7.0, intensity=None), _point("unknown", None)]
    step = _point("step", 0.02, "step", flop=float("nan"))
    page = roofline_page({"peaks": {}, "mfu": [], "points": [*others, *points, step]})
    names = ["step", *(f"op{at}" for at in range(499, 100, -1))]
    assert [one["name"] for one in page.points] == names
    assert (page.points[0], page.total) == ({**step, "flop": None}, 500)
    assert "400 of 500" in page.left_out
