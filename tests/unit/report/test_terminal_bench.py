"""A benchmark in the terminal: its headline and a table for each part, with every figure."""

import re

from profstack.report.screen import Screen
from profstack.report.terminal_bench import interval, mean_words, print_headline, print_parts
from profstack.units import format_seconds
from tests.support.bench_reports import bare, bench


def headline(report):
    screen = Screen(300, colour=False)
    print_headline(screen, report)
    return [line.strip() for line in screen.text().splitlines()]


def part(name, rows):
    """The lines of one table without its heading, each line as its cells."""
    mark, screen = {**bare()["benchmark"], name: rows}, Screen(300, colour=False)
    print_parts(screen, {"benchmark": mark, "roofline": None})
    return [re.split("  +", line.strip()) for line in screen.text().splitlines()[1:-1]]


def test_the_headline_has_every_figure_of_the_benchmark():
    report = bench()
    mark = report["benchmark"]
    median, steps, items = mark["median_s"], mark["steps_per_s"], mark["items_per_s"]
    first, step, rates, spread, other, between, end = headline(report)
    assert (first, end) == ("models/digits.py:make: complete", "")
    span = "{:.2f} to {:.2f} ms".format(*(1e3 * median * x for x in (0.9968, 1.0035)))
    assert step == f"step: {1e3 * median:.1f} ms  (95 % interval {span}, synchronised, n = 420)"
    cpu = f"mean CPU time {1e3 * median * 1.96:.1f} ms (1.96 cores busy)"
    batch = f"{items / 1e3:.2f} k items/s (batch of 32, read from the inputs)"
    assert rates == f"{steps:.1f} steps/s, {batch}, {cpu}"
    words = "standard deviation {:.2f} ms, least {:.1f} ms, first call 312 ms, 6 warm-up calls, "
    words = words.format(1e3 * mark["std_s"], 1e3 * mark["min_s"])
    words += "3 outliers, ended by the interval"
    assert spread == f"IQR {1e6 * mark['iqr_s']:.0f} µs, {words}"
    ends = [1e3 * median * 0.9991 * factor for factor in (1, 0.9968, 1.0035)]
    assert other == "pipelined {:.1f} ms (95 % interval {:.2f} to {:.2f} ms)".format(*ends)
    # The fastest of five processes is 0.987, the slowest 1.066 of the median.
    slow, fast = (f"{1e3 * median * factor:.1f} ms" for factor in (1.066, 0.987))
    said = f"{100 * (1.066 / 0.987 - 1):.1f} % apart"
    assert between.startswith(f"5 fresh processes: {fast} to {slow}, {said}")
    for mean, said in ((1.04, ""), (1.06, ", mean 4.24 ms"), (0.94, ", mean 3.76 ms")):
        assert mean_words({"median_s": 0.004, "mean_s": 0.004 * mean}) == said


def test_input_shapes_stand_with_their_intervals():
    rows = bench()["benchmark"]["by_shape"]
    m = rows[0]["median_s"]
    assert part("by_shape", rows) == [
        ["[32, 1, 8, 8]", "310", format_seconds(m), f"{996 * m:.2f} to {1004 * m:.2f} ms"],
        ["[32, 1, 16, 16]", "110", "37.4 ms", f"{2870 * m:.1f} to {2960 * m:.1f} ms"],
        ["[7, 1, 8, 8]", "2", "5.16 ms", "–"],
    ]
    for low, high, said in (
        (0.0128, 0.01295, "12.80 to 12.95 ms"), (0.012811, 0.012829, "12.811 to 12.829 ms"),
        (0.9441, 1.05, "944 ms to 1.05 s"), (0.9461, 1.05, "0.95 to 1.05 s"),
        (0.003, 0.003, "3.00 ms to 3.00 ms"), (59.0, 60.0, "59.0 s to 1 min 0 s"),
        (None, 0.3, None), (0.3, None, None),
    ):  # fmt: skip
        assert interval(low, high) == said
