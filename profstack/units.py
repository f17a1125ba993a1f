"""Quantities as people read them: times, sizes and counts with three significant digits.

A quantity that was not measured becomes a dash, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

NOT_MEASURED = "–"

_SUBSECOND = ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("k", "M", "G", "T", "P", "E")


def _three_digits(value: float) -> str:
    """Return a number from 0 to 1023 with three significant digits (four above 999)."""
    decimals = 2
    # The test is on the rounded number, so that 9.996 becomes 10.0 and not 10.00.
    while decimals and round(value, decimals) >= 10 ** (3 - decimals):
        decimals -= 1
    return f"{value:.{decimals}f}"


def format_seconds(value: float | None) -> str:
    """Return a duration: `4.56 µs`, `1.23 ms`, `59.9 s`, `2 min 3 s`, `1 h 12 min`."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    if value < 0:
        return "-" + format_seconds(-value)
    if value == 0:
        return "0 s"
    if value >= 59.95:
        # The two largest units.
        minutes, seconds = divmod(round(value), 60)
        if minutes < 60:
            return f"{minutes} min {seconds} s"
        hours, minutes = divmod(round(value / 60), 60)
        return f"{hours} h {minutes} min"
    for scale, unit in _SUBSECOND:
        # From 999.5 on, three digits round up to the next unit's 1.00.
        if value / scale < 999.5:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{_three_digits(value)} s"


def _with_unit(value: float, units: Sequence[str], step: int, limit: float) -> str:
    """Return the value in the first unit in which it is below the limit, or in the last."""
    for unit in units[:-1]:
        if value < limit:
            return f"{_three_digits(value)} {unit}"
        value /= step
    return f"{_three_digits(value)} {units[-1]}"


def format_bytes(value: float | None) -> str:
    """Return a size in binary units: `512 B`, `1.50 KiB`, `2.00 GiB`."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    if value < 0:
        return "-" + format_bytes(-value)
    # A whole number of bytes is exact; a fraction (a mean per step) is not hidden.
    if value < 1023.5 and value == int(value):
        return f"{value:.0f} B"
    return _with_unit(value, _BINARY, 1024, 1023.5)


def format_count(value: float | None) -> str:
    """Return a count: `7`, `0.25`, `2.50`, `1.20 k`, `3.46 M`; whole below a thousand."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    if value < 0:
        return "-" + format_count(-value)
    if value < 1:
        return f"{value:.3g}"
    if value < 999.5:
        digits = _three_digits(value)
        whole, _, after = digits.partition(".")
        return digits if after.strip("0") else whole
    return _with_unit(value / 1000, _DECIMAL, 1000, 999.5)


def format_share(value: float | None) -> str:
    """Return a share in whole hundredths, `25 %`; a small one is not shown as none."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    points = f"{100 * value:.0f}"
    return "less than 1 %" if points == "0" and value > 0 else f"{points} %"


def add_up(values: Sequence[float], whole: float, *, rest: int) -> list[float]:
    """Return values that add up to `whole` to the last digit, in whatever order.

    They are rounded to the whole's own last digit, on which grid no addition rounds; what is
    missing then is added to the value at the place `rest`.
    """
    digit = math.ulp(whole)
    exact = [round(value / digit) * digit for value in values]
    exact[rest] += whole - sum(exact)
    return exact
