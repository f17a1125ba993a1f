"""Which pairs of Nsight Systems and the package nvtx do not work together, and what to install.

Known in one place for the layer, for `profstack doctor` and for `profstack run --nsys`.
"""

from __future__ import annotations

import re

# An nsys of this year or older takes no range of a newer nvtx than this.
OLD_NSYS_YEAR = 2022
NEWEST_FOR_OLD_NSYS = "0.2.11"
# What to do about it.
REMEDY = f"pip install nvtx=={NEWEST_FOR_OLD_NSYS}"


def takes_ranges(nsys: str | None, nvtx: str | None) -> bool | None:
    """Whether that nsys takes the ranges of that nvtx, by their versions.

    None where one of the two is not there or its version says nothing.
    """
    year, release = re.match(r"(\d{4})\.", nsys or ""), re.match(r"\d[\d.]*", nvtx or "")
    if year is None or release is None:
        return None
    return int(year[1]) > OLD_NSYS_YEAR or _numbers(release[0]) <= _numbers(NEWEST_FOR_OLD_NSYS)


def limit_of_old_nsys() -> str:
    """The rule in words, for a message."""
    return f"an nsys of {OLD_NSYS_YEAR} takes the ranges of nvtx up to {NEWEST_FOR_OLD_NSYS} alone"


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in release.split(".") if number)
