"""Times of a test that were kept: one file for each test, and what a new time is against them.

Each kept time is of one process. One process against one other cannot tell small differences: what
processes differ by is assumed first, and learned from the kept times as there are more of them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import TypedDict

import numpy as np

from profstack.compare.noise import ASSUMED
from profstack.errors import RecordingError
from profstack.stats.processes import Prior, difference_reach, means
from profstack.stats.summary import FloatArray
from profstack.storage.untrusted import read_json

VERSION = 1
# Kept of each machine.
MOST_KEPT = 20
_CONFIDENCE = 0.95
# The median absolute difference of two normal values over their standard deviation.
_MOVING = 0.954
# A median of differences has this share of the information that the differences hold.
_EFFICIENCY = 0.4
# Of fewer steps the median may be that of a change.
_FEWEST_STEPS = 5


class KeptTime(TypedDict):
    """The time of a step in one process, in seconds, with the interval inside that process.

    `commit` ends in a plus where files differed from it, or may have. `waited_share` is the share
    of the time in which a thread had no core: without that the step would have been faster.
    """

    machine: str
    saved_at: str
    commit: str | None
    median_s: float
    ci95_low_s: float | None
    ci95_high_s: float | None
    waited_share: float


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
    try:
        found = read_json(path, _KeptFile)
        rows: list[KeptTime] = found["times"]
        if found["version"] == VERSION and all(map(_is_time, rows)):
            return rows
        what = "holds no kept times"
    except FileNotFoundError:
        return []
    except RecordingError as error:
        what = error.what
    step = "remove it, and keep times anew with --profstack-save"
    raise RecordingError(what, where=str(path), next_step=step)


class _KeptFile(TypedDict):
    version: int
    times: list[KeptTime]


def _is_time(row: KeptTime) -> bool:
    ends = [each for each in (row["ci95_low_s"], row["ci95_high_s"]) if each is not None]
    return min([row["median_s"], *ends]) > 0 and 0 <= row["waited_share"] <= 1


def text(test: str, times: Sequence[KeptTime]) -> str:
    """Return the content of a test's file: the newest times of each machine, one a line."""
    kept: list[KeptTime] = []
    for row in reversed(times):
        if sum(each["machine"] == row["machine"] for each in kept) < MOST_KEPT:
            kept.append(row)
    lines = ",\n".join(f"  {json.dumps(row)}" for row in reversed(kept))
    head = f'"version": {VERSION},\n "test": {json.dumps(test)}'
    return f'{{{head},\n "times": [\n{lines}\n ]}}\n'


def change_of(kept: Sequence[KeptTime], now: KeptTime) -> KeptChange | None:
    """Return the change from the last kept state; None where this machine has none.

    That state are the newest times of one commit, however many there are. Where the commit is
    unknown, or files differed from it, the code may have changed from time to time: there it is the
    newest time alone. Waiting for a core makes the interval longer, on the side of the time that
    waited.
    """
    here = [row for row in kept if row["machine"] == now["machine"]]
    if not here:
        return None
    states = [_logs(row for _, row in rows) for _, rows in groupby(enumerate(here), key=_state)]
    before, prior = states[-1], _prior(states)
    last = here[len(here) - before.shape[1] :]
    inside = 0.0
    if now["ci95_low_s"] is not None and now["ci95_high_s"] is not None:
        inside = (now["ci95_high_s"] - now["ci95_low_s"]) / 4.0 / now["median_s"]
    was = means(before, prior)
    one = math.sqrt(float(was.variances[0]) * before.shape[1])
    is_now = Prior(math.hypot(one, inside), was.freedom)
    after = means(_logs([now]), is_now)
    reach = float(difference_reach(was, after, _CONFIDENCE)[0])
    waited = median(row["waited_share"] for row in last)
    middle = float(after.values[0] - was.values[0])
    return KeptChange(
        before_s=math.exp(float(was.values[0])),
        ratio=math.exp(middle),
        low=math.exp(middle - reach) * (1.0 - now["waited_share"]),
        high=math.exp(middle + reach) / max(1.0 - waited, 0.01),
        processes=len(last),
        deviation=one,
    )


def _state(numbered: tuple[int, KeptTime]) -> int | str:
    """Return the name of the code that a time is of, the time's own number if nobody knows it."""
    number, row = numbered
    commit = row["commit"]
    return number if commit is None or commit.endswith("+") else commit


def _logs(rows: Iterable[KeptTime]) -> FloatArray:
    return np.log(np.array([[row["median_s"] for row in rows]], dtype=np.float64))


def _prior(states: Sequence[FloatArray]) -> Prior:
    """Return what is known of the spread between processes beside the last state itself.

    What is assumed, what earlier states show, and the steps from state to state: by their median,
    since few commits change the time of a test.
    """
    freedom = ASSUMED.freedom
    squares = freedom * float(ASSUMED.deviation) ** 2
    for state in states[:-1]:
        freedom += state.size - 1
        squares += state.size * float(state.var())
    steps = [abs(float(b[0, 0] - a[0, -1])) for a, b in pairwise(states)]
    if len(steps) >= _FEWEST_STEPS:
        worth = _EFFICIENCY * len(steps)
        freedom += worth
        squares += worth * (median(steps) / _MOVING) ** 2
    return Prior(math.sqrt(squares / freedom), freedom)
