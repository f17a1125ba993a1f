"""What fresh processes differ by: the error bar of a comparison between two programs.

Inside one process the interval of a median says how well that process's time is known. Another
process has other addresses, other hash seeds and other neighbours, and its time is another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, stdev
from typing import Any

_FEW = 3


def between(medians_s: Sequence[float | None]) -> dict[str, Any]:
    """The report's `between_process` from the median of each process, in seconds.

    A process that gave none (None) stands in the list and counts nowhere.
    """
    known = [value for value in medians_s if value is not None]
    figures: dict[str, Any] = {
        "processes": len(known),
        "medians_s": list(medians_s),
        "median_s": float(median(known)) if known else None,
        "low_s": min(known, default=None),
        "high_s": max(known, default=None),
        "spread": max(known) / min(known) - 1.0 if len(known) > 1 and min(known) > 0 else None,
        "std_s": float(stdev(known)) if len(known) > 1 else None,
        "note": _note(len(medians_s), len(known)),
    }
    return figures


def _note(asked: int, known: int) -> str:
    lost = f"; {asked - known} of {asked} gave no median" if known < asked else ""
    if known < 2:
        return f"one process has no spread{lost}"
    few = "; so few show little of the spread" if known < _FEW else ""
    return f"the error bar of a comparison: what fresh processes of one work differ by{few}{lost}"


def join_compared(results: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of the variants of the first process, each with the medians of all of them.

    `results` are the rows of each process, which measured its variants in another order.
    """
    if not results:
        return []
    rows = []
    for row in results[0]:
        found = [
            next((other for other in each if other["variant"] == row["variant"]), None)
            for each in results
        ]
        medians = [other["median_s"] if other else None for other in found]
        rows.append({**row, "between_process": medians if len(results) > 1 else None})
    return rows
