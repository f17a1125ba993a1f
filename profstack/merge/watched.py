"""The watch's samples, put together with their stacks: what its tables are made of."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from profstack.merge.recorded import Recorded
from profstack.ownfiles import Places

# What was sampled before the first step, in a step, and between the steps of plans or after them.
STARTUP, STEP, OTHER = "startup", "step", "other"
PHASES = (STARTUP, STEP, OTHER)
_LIBRARY = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\][Ll]ib(64)?[/\\](python\d\.\d+[/\\])")


@dataclass(frozen=True)
class Frame:
    """A line being run, and the function it stands in."""

    file: str
    line: int
    name: str
    function_line: int

    @property
    def function(self) -> tuple[str, int, str]:
        """File, line of the definition and name, as cProfile calls a function."""
        return self.file, self.function_line, self.name

    @property
    def is_text(self) -> bool:
        """Whether the code came as text: from the command line, or from `exec`."""
        return self.file in ("<string>", "<stdin>")

    @property
    def is_installed(self) -> bool:
        """Whether it belongs to Python or to a package, by where its file lies."""
        return _is_installed(self.file)


@lru_cache(maxsize=100_000)
def _is_installed(file: str) -> bool:
    return file.startswith("<") or _LIBRARY.search(file) is not None


Stack = tuple[Frame, ...]


class Sample(NamedTuple):
    """One sample: when, of which stack, and the watched time it stands for in units of 10 ms.

    `stack` is the number of its innermost frame, 0 where there was none; `grown` is how much the
    resident set has grown since the reading before, None where it could not be read.
    """

    t_s: float
    stack: int
    phase: str
    region: str | None
    weight: float
    grown: int | None


class Sum(NamedTuple):
    """All samples of one stack: their weight, their number, and the growth that ended in it."""

    stack: Stack
    weight: float
    samples: int
    grown: int | None


class Watched:
    """All samples of a recording in order of time, and all readings of the resident set."""

    def __init__(self, recorded: Recorded) -> None:
        frame = recorded.frames["watch_samples"].sort_values("t_s", kind="stable")
        times = frame["t_s"].to_numpy(dtype=float)
        readings = frame["rss_bytes"].to_numpy(dtype=float)
        known = ~np.isnan(readings)
        # When the resident set was read, and what it was.
        self.read_at: list[float] = times[known].tolist()
        self.read_bytes: list[float] = readings[known].tolist()
        grown = np.full(len(times), np.nan)
        grown[known] = np.diff(readings[known], prepend=np.nan)
        phases = _phases(recorded, times)
        self._places = Places.read(recorded.facts)
        # The stack of every numbered frame, outermost first.
        self.stacks = _stacks(recorded)
        self.samples = [
            Sample(
                t_s,
                number,
                phase,
                region if isinstance(region, str) else None,
                weight,
                None if np.isnan(growth) else int(growth),
            )
            for t_s, number, phase, region, weight, growth in zip(
                times.tolist(),
                frame["frame"].fillna(0).astype(int).tolist(),
                phases,
                frame["region"].tolist(),
                frame["weight"].tolist(),
                grown.tolist(),
                strict=True,
            )
            # One without weight is a reading alone, at the edge of a pause.
            if weight > 0
        ]

    def own(self, stack: Stack) -> list[Frame]:
        """The frames of a stack that are the user's own code, outermost first."""
        places = self._places
        if places is None:
            return own_frames(stack)
        return [frame for frame in stack if places.is_own(frame.file)]

    def of(self, phase: str | None) -> list[Sample]:
        """The samples of one phase, or all."""
        return [sample for sample in self.samples if phase in (None, sample.phase)]

    def by_stack(self, samples: Iterable[Sample]) -> list[Sum]:
        """The samples added up by their stack."""
        grouped: dict[int, list[Sample]] = defaultdict(list)
        for sample in samples:
            grouped[sample.stack].append(sample)
        return [
            Sum(
                self.stacks.get(number, ()),
                sum(sample.weight for sample in group),
                len(group),
                added(sample.grown for sample in group),
            )
            for number, group in grouped.items()
        ]


@lru_cache(maxsize=1)
def watched(recorded: Recorded) -> Watched:
    """The samples of a recording, put together once."""
    return Watched(recorded)


def _phases(recorded: Recorded, times: Any) -> list[str]:
    slices = recorded.frames["slices"]
    slices = slices[slices["steps"] > 0].sort_values("started_s")
    if not len(slices):
        return [OTHER] * len(times)
    begins = slices["started_s"].to_numpy(dtype=float)
    # Two layers may have had a slice in common.
    ends = np.maximum.accumulate(begins + slices["wall_s"].fillna(0.0).to_numpy(dtype=float))
    before = np.searchsorted(begins, times, side="right")
    inside = times <= ends[np.maximum(before, 1) - 1]
    return [
        STARTUP if not count else STEP if within else OTHER
        for count, within in zip(before.tolist(), inside.tolist(), strict=True)
    ]


def _stacks(recorded: Recorded) -> dict[int, Stack]:
    stacks: dict[int, Stack] = {}
    columns = ["frame", "parent", "file", "line", "name", "function_line"]
    # A frame's number is above its parent's.
    rows = recorded.frames["watch_frames"][columns].sort_values("frame")
    numbers = ["frame", "parent", "line", "function_line"]
    rows = rows.assign(**{column: rows[column].fillna(0).astype(int) for column in numbers})
    for number, parent, file, line, name, function_line in rows.itertuples(index=False):
        frame = Frame(str(file), line, str(name), function_line)
        stacks[number] = (*stacks.get(parent, ()), frame)
    return stacks


def own_frames(stack: Sequence[Frame]) -> list[Frame]:
    """The script's own frames of a stack, where the recording does not tell whose files are its.

    That is what lies in the folder of the outermost file that no package has brought, or was
    given as text where the script itself was.
    """
    first = next((frame for frame in stack if frame.is_text or not frame.is_installed), None)
    if first is None:
        return []
    if first.is_text:
        return [frame for frame in stack if frame.is_text or not frame.is_installed]
    folder = os.path.join(os.path.dirname(first.file), "")
    return [frame for frame in stack if not frame.is_installed and frame.file.startswith(folder)]


def added(values: Iterable[int | None]) -> int | None:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
