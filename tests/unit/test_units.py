"""Quantities as people read them."""

import math

from profstack.units import format_bytes, format_count, format_seconds, format_share

SECONDS = """
0 0 s; 3e-9 3.00 ns; 4.56e-6 4.56 µs; 45.6e-6 45.6 µs; 999.4e-6 999 µs; 999.6e-6 1.00 ms
1.23e-3 1.23 ms; 9.994e-3 9.99 ms; 9.996e-3 10.0 ms; 99.96e-3 100 ms; 0.9996 1.00 s; 1 1.00 s
59.94 59.9 s; 59.96 1 min 0 s; 123.4 2 min 3 s; 3599.4 59 min 59 s; 3599.6 1 h 0 min
4320 1 h 12 min; -0.01 -10.0 ms
"""
BYTES = """
0 0 B; 512 512 B; 0.5 0.50 B; 1023 1023 B; 1024 1.00 KiB; 1536 1.50 KiB; 1048268.8 1.00 MiB
5368709120 5.00 GiB; 149250113536 139 GiB; 1152921504606846976 1024 PiB; -2048 -2.00 KiB
"""
COUNTS = """
0 0; 7 7; 10 10; 100 100; 2.5 2.50; 0.25 0.25; 0.0123 0.0123; 999.4 999; 999.5 1.00 k
1200 1.20 k; 1234 1.23 k; 3456789 3.46 M; 125e9 125 G; 17.96e9 18.0 G; 25e3 25.0 k; 2e21 2000 E
-1200 -1.20 k
"""
SHARES = "0 0 %; 0.004 less than 1 %; 0.005 less than 1 %; 0.0051 1 %; 0.256 26 %; 1.5 150 %"


def test_a_quantity_has_three_digits_and_its_unit_and_an_unknown_one_is_a_dash():
    formats = (format_seconds, format_bytes, format_count, format_share)
    for write, table in zip(formats, (SECONDS, BYTES, COUNTS, SHARES), strict=True):
        cases = [case.split(" ", 1) for case in table.strip().replace("\n", "; ").split("; ")]
        assert [write(float(value)) for value, _ in cases] == [text for _, text in cases]
        unknown = (None, math.nan, math.inf, -math.inf)
        assert [write(value) for value in unknown] == ["–"] * 4
