"""Readings as figures of lines, against a naive count; and memory_profiler's own files."""

import sys
from array import array
from pathlib import Path
from types import SimpleNamespace

import pytest

from profstack.readers.memory import lines as memory_lines
from profstack.readers.memory.lines import LineFigures, line_figures, listing, timeline
from profstack.readers.memory.readings import CUDA, MALLOC, NO_LINE, UNKNOWN

MIB = 1 << 20
FILE = "/script/train.py"
CODES = [compile("pass", FILE, "exec") for _ in range(2)]
# The first two are one line, of two code objects.
LINES = [(CODES[0], 5), (CODES[1], 5), (CODES[0], 9)]


def columns(rows, *names):
    # Longer than their count, as the real ones.
    values = zip(*rows, strict=True)
    made = {name: array("q", [*each, 1, 2]) for name, each in zip(names, values, strict=True)}
    return SimpleNamespace(count=len(rows), **made)


# Time, place, run, and bytes by the resident set, malloc and the device; and of samples. Line 9 has
# a run that goes on, and one that begins unseen.
READINGS = (
    (10, 0, 0, 100, 50, 5), (30, 2, 1, 130, 90, 9), (40, NO_LINE, NO_LINE, 125, 95, 9),
    (45, 1, 3, 140, 60, 9), (55, 2, 1, 150, 100, UNKNOWN), (60, 2, ~5, 149, 70, 9),
    (85, 0, 6, 160, 80, 9), (90, NO_LINE, NO_LINE, 170, 81, 9),
)  # fmt: skip
SAMPLES = ((15, 120, 40), (35, 131, 200), (42, 999, 999), (57, 190, UNKNOWN))
NONE = (None, None)
# Without the resident set, and without malloc's bytes and samples.
NOT_RESIDENT = [(*row[:3], UNKNOWN, *row[4:]) for row in READINGS]
NO_MALLOC = [(*row[:4], UNKNOWN, row[5]) for row in READINGS]


@pytest.mark.parametrize(("readings", "samples", "left_out", "expected"), [
    (READINGS, SAMPLES, (), {5: (150, 40, 40, 80, None, 2), 9: (160, 5, 110, -15, None, 1)}),
    (READINGS, SAMPLES, (0,), {9: (160, 10, 40, -20, None, 0)}),
    (READINGS, SAMPLES, (1,), {5: (150, 40, 40, 80, None, 2), 9: (125, -5, 110, 5, 0, 1)}),
    (NOT_RESIDENT, SAMPLES, (1,), {5: (*NONE, 40, 80, None, 2), 9: (*NONE, 110, 5, 0, 1)}),
    (NO_MALLOC, (), (1,), {5: (150, 40, 30, None, None, 2), 9: (125, -5, 0, None, 0, 1)}),
])  # fmt: skip
def test_growth_belongs_to_the_line_that_ran(readings, samples, left_out, expected):
    read = columns(readings, "times", "places", "runs", "resident", "heap", "device")
    read.sampler = columns(samples or [(0, 0, UNKNOWN)], "times", "resident", "heap")
    tracer = SimpleNamespace(readings=read, lines=LINES)
    found = line_figures(tracer, [20e-9, 50e-9, 80e-9], left_out)
    assert found == {(FILE, line): LineFigures(*each) for line, each in expected.items()}
    # The timeline has all readings in order of time.
    every = [*((row[0], row[3]) for row in readings), *(row[:2] for row in samples or [(0, 0)])]
    times, values = (column.tolist() for column in timeline(read))
    known = sorted(pair for pair in every if pair[1] != UNKNOWN)
    assert list(zip(times, values, strict=True)) == known


@pytest.mark.parametrize(("malloc", "cuda", "unread", "expected"), [
    (30, None, None, (30, MALLOC)), (30, 0, None, (30, MALLOC)), (30, 70, None, (70, CUDA)),
    (None, -70, "too slow", (-70, CUDA)), (None, 0, "too slow", (None, "too slow")),
])  # fmt: skip
def test_the_second_source_is_the_device_where_it_has_a_part(malloc, cuda, unread, expected):
    figures = {(__file__, 1): LineFigures(50, 20, 40, malloc, cuda, 3)}
    (row,) = memory_lines.line_records(figures, 7, unread)
    first = Path(__file__).read_text(encoding="utf-8").splitlines()[0]
    assert tuple(row.values()) == (7, __file__, 1, first, 50, 20, 40, *expected, 3)


def test_the_title_of_a_plot_is_one_line_without_secrets(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--api-key", "abc123", "--lr", "1\n2"])
    assert memory_lines.command_line() == "CMDLINE python train.py --api-key *** --lr 1 2\n"


def test_the_listing_has_the_figures(tmp_path):
    script, figures = tmp_path / "train.py", {}
    script.write_text("import torch\n\nx = torch.ones(8)\ny = x\nz = y\n")
    for line, usage, grown, runs in ((3, 300, 40, 7), (4, 301, None, 2), (5, 302, -3, 5)):
        sizes = (usage * MIB, grown and grown * MIB, None, None, None)
        figures[str(script), line] = LineFigures(*sizes, runs)
    # The file has no such line: it was changed meanwhile.
    figures[__file__, 10**6] = LineFigures(1, 1, 1, 1, 1, 1)
    text = listing(figures)
    shown = [" ".join(line.split()) for line in text.splitlines() if " = " in line]
    # Without a figure only the line itself.
    first, last = "3 300.0 MiB 40.0 MiB 7 x = torch.ones(8)", "5 302.0 MiB -3.0 MiB 5 z = y"
    assert (shown, __file__ in text) == ([first, "4 y = x", last], False)
