"""Quantities as people read them."""

from __future__ import annotations

import math

import pytest

from profstack.units import format_bytes, format_count, format_seconds, format_share


@pytest.mark.parametrize("write", [format_seconds, format_bytes, format_count, format_share])
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_was_not_measured_is_a_dash_and_never_zero(write, value):
    assert write(value) == "–"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (3e-9, "3.00 ns"),
        (4.56e-6, "4.56 µs"),
        (45.6e-6, "45.6 µs"),
        (999.4e-6, "999 µs"),
        (999.6e-6, "1.00 ms"),
        (1.23e-3, "1.23 ms"),
        (9.994e-3, "9.99 ms"),
        (9.996e-3, "10.0 ms"),
        (99.96e-3, "100 ms"),
        (0.9996, "1.00 s"),
        (1, "1.00 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (123.4, "2 min 3 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 0 min"),
        (4320, "1 h 12 min"),
        (-0.01, "-10.0 ms"),
    ],
)
def test_seconds(value, text):
    assert format_seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (0.5, "0.50 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (1023.7 * 1024, "1.00 MiB"),
        (5 * 2**30, "5.00 GiB"),
        (139 * 2**30, "139 GiB"),
        (2**60, "1024 PiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_bytes(value, text):
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (10.0, "10"),
        (100, "100"),
        (2.5, "2.50"),
        (0.25, "0.25"),
        (0.0123, "0.0123"),
        (999.4, "999"),
        (999.5, "1.00 k"),
        (1200, "1.20 k"),
        (1234, "1.23 k"),
        (3_456_789, "3.46 M"),
        (125_000_000_000, "125 G"),
        (17_960_000_000, "18.0 G"),
        (25_000, "25.0 k"),
        (2e21, "2000 E"),
        (-1200, "-1.20 k"),
    ],
)
def test_counts(value, text):
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 %"),
        (0.004, "less than 1 %"),
        (0.005, "less than 1 %"),
        (0.0051, "1 %"),
        (0.256, "26 %"),
        (1.5, "150 %"),
    ],
)
def test_shares(value, text):
    assert format_share(value) == text
