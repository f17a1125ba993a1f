"""compare.js: throughput by batch size, variants, timing mistakes, and the ablation."""

import pytest

from tests.support.lab import bench_page, changed

BENCH = bench_page()
MARK = BENCH["facts"]["benchmark"]
HOW = ("T.compare.drawThroughput", "#throughput")
ROW, REFUSED, LIMIT = MARK["throughput"][0], MARK["throughput"][-1], MARK["throughput_limits"][0]


def batch(size, rate, latency=0.01, **more):
    own = {"dtype": "a", "batch_size": size, "items_per_s": rate, "latency_s": latency}
    return ROW | own | more


ROWS = [
    *(batch(8, 300.0, 0.03), batch(2, 100.0, 0.02), batch(4, 350.0), batch(3, 0)),
    batch(16, None, status="failed", reason=None),
    *(batch(size, None, status="refused", reason="r") for size in (64, 32)),
    batch(5, 40.0, dtype="b"),
    REFUSED | {"dtype": "c", "batch_size": None},
]
LIMITS = [
    LIMIT | {"dtype": "a", "knee_batch": 4, "max_batch": 8, "max_items_per_s": None},
    LIMIT | {"dtype": "b", "knee_batch": None, "limited_by": None},
]


def test_curves_go_through_what_was_measured(lab):
    made_up = {"throughput": ROWS, "throughput_limits": LIMITS}
    lab.draw(changed(BENCH, facts__benchmark=MARK | made_up), *HOW)
    for box, values in (("#rate-chart", [100, 350, 300]), ("#latency-chart", [0.02, 0.01, 0.03])):
        curves, drawn = lab.chart(box)
        assert [curves["a"]["x"], curves["a"]["y"]] == [[2, 4, 8], values]
        assert [curves["knee"]["x"], curves["knee"]["y"]] == [[4], [values[1]]]
        # The smallest refusal of each data type; one without a batch size has no place.
        assert curves["refused"]["x"] == [16]
    said = lab.all("#rate-chart .chart-says")[0]
    assert "at most 350 items/s, at a batch of 4; the knee is at 4" in said
    ticks = drawn["xaxis"]
    assert [10**end for end in ticks["range"]] == pytest.approx([2 / 1.15, 16 * 1.15])
    assert ticks["tickvals"] == [2, 4, 5, 8, 16]


def test_each_variant_has_its_own_interval(lab):
    lab.draw(BENCH, "T.compare.drawCompare", "#compare")
    cells = lab.all("#compare-table td")
    for one in MARK["compare"][:3]:
        figures = [one["median_s"], one["ci95_low_s"], one["ci95_high_s"]]
        assert "{} {} – {}".format(*lab.values("T.dom.formatSeconds", figures)) in cells
        if one["speedup_low"] is not None:
            figures = [one["speedup"], one["speedup_low"], one["speedup_high"]]
            assert "{} × {} – {}".format(*lab.values("T.dom.formatFactor", figures)) in cells


VERDICTS = {
    (1.5, 1.4, 1.6): "50 % too long", (0.8, 0.7, 0.9): "20 % too short",
    (1.01, 1.0, 1.19): "no difference seen", (1.05, 0.99, 1.2): "from 0.99 to 1.20 ×",
    (0.9, 0.8, 1.0): "from 0.80 to 1.00 ×", (0.9, 0.84, 1.0): "no difference seen",
    (1.2, 1.001, 1.3): "20 % too long", (0.95, 0.9, 0.999): "5.0 % too short",
    (1.2, None, 2): "no interval", (1.2, 1, None): "no interval", (None, 1, 2): "–",
}  # fmt: skip


def test_verdicts_of_mistakes_follow_their_interval(lab):
    chip = "(factor, ci95_low, ci95_high) => T.compare.verdictChip({factor, ci95_low, ci95_high})"
    lab.check(f"(...given) => ({chip})(...given).textContent", VERDICTS)
    lab.check("T.compare.smallNumber", {0: "0", 0.00099: "9.9e−4", 0.001: "0.0010"})
    count = "(value) => T.compare.countCell('n', {n: 60})(value, {variant: 'x'}).textContent"
    lab.check(count, {70: "70 (+10)", 50: "50 (−10)", 60: "60", None: "–"})
