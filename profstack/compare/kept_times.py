"""Times of a test that were kept: one file for each test, and what a new time is against them.

Each kept time is of one process. One process against one other cannot tell small differences: what
processes differ by is assumed first, and learned from the kept times as there are more of them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import TypedDict, cast

import numpy as np

from profstack.compare.noise import ASSUMED
from profstack.errors import RecordingError
from profstack.stats.processes import Prior, difference_reach, means, weights

VERSION = 1
# Kept of each machine.
MOST_KEPT = 20
_CONFIDENCE = 0.95
# The median absolute difference of two normal values over their standard deviation.
_MOVING = 0.954
# A median of differences has this share of the information that the differences hold.
_EFFICIENCY = 0.4


class KeptTime(TypedDict):
    """The time of a step in one process, in seconds, with the interval inside that process.

    `commit` ends in a plus where files differed from it.
    """

    machine: str
    saved_at: str
    commit: str | None
    median_s: float
    ci95_low_s: float | None
    ci95_high_s: float | None


@dataclass(frozen=True)
class KeptChange:
    """A new time over the last kept state: the ratio with its 95 % interval.

    `processes` is the number of times in that state, `deviation` the relative standard deviation
    between processes that the interval rests on.
    """

    before_s: float
    ratio: float
    low: float
    high: float
    processes: int
    deviation: float


def file_name(test: str, ending: str) -> str:
    """Return the name of a test's file; tests whose names differ have different files."""
    digest = hashlib.sha256(test.encode("utf-8", "replace")).hexdigest()[:8]
    words = re.sub(r"[^\w.-]+", "_", test, flags=re.ASCII).strip("_.")
    return f"{words[-80:]}-{digest}{ending}"


def read(path: Path) -> list[KeptTime]:
    """Return the kept times in a file, the oldest first; none where there is no file.

    Raise RecordingError for a file that cannot be read.
    """
    step = "remove it, and keep times anew with --profstack-save"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise RecordingError(f"cannot be read ({error})", where=str(path), next_step=step) from None
    rows = found.get("times") if isinstance(found, dict) else None
    if (
        not isinstance(rows, list)
        or found.get("version") != VERSION
        or not all(map(_is_time, rows))
    ):
        raise RecordingError("holds no kept times", where=str(path), next_step=step)
    return cast("list[KeptTime]", rows)


def _is_time(row: object) -> bool:
    if not isinstance(row, dict) or row.keys() != KeptTime.__annotations__.keys():
        return False
    numbers = [row["median_s"], row["ci95_low_s"], row["ci95_high_s"]]
    known = [each for each in numbers if each is not None]
    return row["median_s"] is not None and all(
        isinstance(each, (int, float)) and math.isfinite(each) and each > 0 for each in known
    )


def text(test: str, times: Sequence[KeptTime]) -> str:
    """Return the content of a test's file: the newest times of each machine, one a line."""
    kept = []
    for row in reversed(times):
        if sum(each["machine"] == row["machine"] for each in kept) < MOST_KEPT:
            kept.append(row)
    lines = ",\n".join(f"  {json.dumps(row)}" for row in reversed(kept))
    head = f'"version": {VERSION},\n "test": {json.dumps(test)}'
    return f'{{{head},\n "times": [\n{lines}\n ]}}\n'


def change_of(kept: Sequence[KeptTime], now: KeptTime, *, waited: float = 0.0) -> KeptChange | None:
    """Return the change from the last kept state; None where this machine has none.

    That state are the newest times of one commit, however many there are. `waited` is the share of
    the new time in which a thread waited for a core: without it the step would have been faster.
    """
    here = [row for row in kept if row["machine"] == now["machine"]]
    if not here:
        return None
    states = [list(rows) for _, rows in groupby(here, key=lambda row: row["commit"])]
    last = states[-1]
    prior = _prior(here[: len(here) - len(last) + 1])
    before = _logs(last)
    inside = 0.0
    if now["ci95_low_s"] is not None and now["ci95_high_s"] is not None:
        inside = (now["ci95_high_s"] - now["ci95_low_s"]) / 4.0 / now["median_s"]
    was = means(before, weights(before[0].tolist()), prior)
    one = math.sqrt(float(was.variances[0]) * before.shape[1])
    is_now = Prior(math.hypot(one, inside), was.freedom)
    after = means(_logs([now]), weights([1.0]), is_now)
    reach = float(difference_reach(was, after, _CONFIDENCE)[0])
    middle = float(after.values[0] - was.values[0])
    return KeptChange(
        before_s=math.exp(float(was.values[0])),
        ratio=math.exp(middle),
        low=math.exp(middle - reach) * (1.0 - waited),
        high=math.exp(middle + reach),
        processes=len(last),
        deviation=one,
    )


def _logs(rows: Sequence[KeptTime]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.log(np.array([[row["median_s"] for row in rows]], dtype=np.float64))


def _prior(rows: Sequence[KeptTime]) -> Prior:
    """Return what earlier times say of the spread: by the median of the steps from one to the next.

    Most of them are noise, since few commits change the time of a test.
    """
    steps = [abs(math.log(b["median_s"] / a["median_s"])) for a, b in pairwise(rows)]
    freedom = _EFFICIENCY * len(steps)
    seen = median(steps) / _MOVING if steps else 0.0
    assumed = float(ASSUMED.deviation)
    total = ASSUMED.freedom + freedom
    pooled = (ASSUMED.freedom * assumed**2 + freedom * seen**2) / total
    return Prior(math.sqrt(pooled), total)
