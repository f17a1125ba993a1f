"""A benchmark in the terminal: a table for each part, with every figure."""

import re

from profstack.report.screen import Screen
from profstack.report.terminal_bench import interval, print_headline, print_parts
from profstack.units import format_seconds
from tests.support.bench_reports import bare, bench


def part(name, rows):
    """The lines of one table without its heading, each line as its cells."""
    mark, screen = {**bare()["benchmark"], name: rows}, Screen(300, colour=False)
    print_parts(screen, {"benchmark": mark, "roofline": None})
    return [re.split("  +", line.strip()) for line in screen.text().splitlines()[1:-1]]


def test_names_of_cells_are_whole_and_long_lines_are_indented():
    first, *_ = part("ablation", bench()["benchmark"]["ablation"])
    assert first == ["compute: host, synchronised", "12.9 ms ± 180 µs", "20.0 ms ± 18.0 ms"]
    print_headline(screen := Screen(60, colour=False), bench())
    indents = {len(line) - len(line.lstrip()) for line in screen.text().splitlines()}
    assert indents == {0, 6, 8}


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
        (0.0128, 0.0133, "12.8 to 13.3 ms"), (0.9441, 1.05, "944 ms to 1.05 s"),
        (0.9461, 1.05, "0.95 to 1.05 s"),
        (0.003, 0.003, "3.00 ms to 3.00 ms"), (59.0, 60.0, "59.0 s to 1 min 0 s"),
        (None, 0.3, None), (0.3, None, None),
    ):  # fmt: skip
        assert interval(low, high) == said
