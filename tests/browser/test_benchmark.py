"""benchmark.js: statistics of the clean steps, samples, warm-up, processes, device and steps."""

import pytest

from tests.support.lab import bench_page, changed, run_page

RUN = run_page()
BENCH = bench_page()
MARK = BENCH["facts"]["benchmark"]
DRAWS = ("Benchmark", "Measured", "Steps", "StepTable")
HOW = (", ".join(f"T.benchmark.draw{one}" for one in DRAWS), "#benchmark", "#steps")
BARS = {
    "start_s": 0.01, "width_s": 0.001, "counts": [2, 3, 90, 3, 1, 2, 80, 4], "beyond": 1,
    "most_s": 0.5, "below": 3, "least_s": 0.002,
}  # fmt: skip


def point(index, wall, **more):
    values = {
        "index": index, "wall": wall, "slice": 2, "cpu": None, "wait": None, "phase": "train",
        "flags": None, "counted": False, "outlier": False,
    }  # fmt: skip
    return list((values | more).values())


def test_modes_are_peaks_above_the_valleys_and_intervals_on_one_scale(lab):
    cases = {
        (2, 3, 90, 3, 1, 2, 80, 4): [2, 6], (90, 3, 1, 2, 5): [0], (1, 1, 1): [],
        (40, 40, 40, 10, 40, 40, 40): [1, 5], (99, 99, 99, 90, 90, 90, 95, 95, 95, 0): [1],
    }  # fmt: skip
    tell = "(...counts) => T.benchmark.modesOf({counts, start_s: 0, width_s: 1}).map(Math.floor)"
    found = lab.values(tell, cases)
    for (counts, modes), one in zip(cases.items(), found, strict=True):
        assert len(one) == len(modes), (counts, one)
        assert all(abs(a - b) <= 1 for a, b in zip(one, modes, strict=True)), (counts, one)
    rows = [
        {"name": "a", "value": 0.012, "low": 0.011, "high": 0.014, "points": [0.010, 0.013, None],
            "colour": "red"},
        {"name": "b", "value": 0.015, "low": None, "high": 0.02, "colour": "blue"},
    ]  # fmt: skip
    tell = """
        (rows) => [...T.charts.spanRows(rows).querySelectorAll(
          '.interval[aria-hidden=true] > *')].map((one) =>
            [one.className, parseFloat(one.style.left)])
    """
    found = lab.values(tell, [(rows,)])[0]
    room = 0.010 * 0.08

    def at(value):
        return pytest.approx(100 * (value - 0.010 + room) / (0.010 + 2 * room), rel=1e-4)

    first = [["range", at(0.011)], ["dot", at(0.010)], ["dot", at(0.013)], ["point", at(0.012)]]
    assert found == [*first, ["point", at(0.015)]]


def test_charts_have_the_samples_where_they_are(lab):
    lab.draw(changed(BENCH, bench__histogram=BARS), *HOW)
    traces, drawn = lab.chart("#samples-chart")
    bars, beyond, modes = traces.values()
    assert drawn["yaxis"]["range"] == [0, pytest.approx(90 * 1.06)]
    assert bars["x"] == pytest.approx([0.0105 + 0.001 * at for at in range(8)])
    assert [bars["y"], beyond["y"]] == [BARS["counts"], [1]]
    assert beyond["x"][0] > 0.018
    assert modes["x"] == pytest.approx([0.0125, 0.0165], abs=0.0011)
    points = [point(5, 0.004), point(6, 0.005, outlier=True), point(7, 0.041, flags="eval")]
    points.append(point(9, None))
    lab.draw(changed(RUN, steps={"total": 4, "left_out": None, "points": points}), *HOW)
    traces, drawn = lab.chart("#steps-chart")
    clean = traces["clean"]
    assert drawn["xaxis"]["range"] == [4.5, 9.5], "half a step at each end"
    assert [clean["x"], clean["y"]] == [[5, 6, 7], [0.004, 0.005, 0.041]]
    assert clean["marker"]["symbol"] == ["circle", "circle-open", "diamond"]
    median = RUN["facts"]["benchmark"]["median_s"]
    for factor, log in ((7.99, "false"), (8.01, "true")):
        lab.draw(changed(RUN, steps__points=[point(1, factor * median)]), *HOW)
        assert lab.all("#steps-tools button", "one.getAttribute('aria-pressed')")[1] == log
