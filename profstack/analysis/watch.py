"""The tables of the watch, and outlier steps.

Shares are of the watched time: a sample weighs the time since the one before it. A count of
samples is a count of looks, whatever the weight of each.
"""

from __future__ import annotations

import math
import os
import re
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from operator import itemgetter
from statistics import correlation, median
from typing import NamedTuple

import numpy as np

from profstack.analysis.clean_steps import (
    UNOBSERVED,
    Clean,
    in_progress,
    known_times,
    times_of,
)
from profstack.analysis.functions import PROFILED, FunctionKey
from profstack.code_owner import BUILTIN_FILE, Places, place_words
from profstack.privacy import home_relative
from profstack.storage.reader import Recorded, in_order, known, known_sum
from profstack.storage.schema.report import StepPart, WatchFacts
from profstack.storage.schema.rows import FunctionRow, OutlierRow, WatchRow
from profstack.storage.vocabulary import PROGRAM, WATCH_INTERVAL_S

# --- Samples with their stacks --------------------------------------------------------------------

# Phases: before the first step, in a step, and between the steps of plans or after them. Steps that
# were sampled since they were far longer than usual say nothing of the others.
STARTUP, STEP, OTHER = "startup", "step", "other"
# Samples of the whole program, which another tool took: nothing says where its steps are in them.
PHASES = (STARTUP, STEP, OTHER, PROGRAM)
_LIBRARY = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\][Ll]ib(64)?[/\\](python\d\.\d+[/\\])")


@dataclass(frozen=True)
class Frame:
    """A line being run, and its function."""

    file: str
    line: int
    name: str
    function_line: int

    @property
    def function(self) -> FunctionKey:
        """File, line of the definition and name, as cProfile calls a function."""
        return self.file, self.function_line, self.name

    @property
    def is_text(self) -> bool:
        """Whether the code came as text: from the command line, or from `exec`."""
        return self.file in ("<string>", "<stdin>")

    @cached_property
    def is_installed(self) -> bool:
        """Whether it belongs to Python or to a package, by where its file lies."""
        if self.file.startswith("<") or _LIBRARY.search(self.file) is not None:
            return True
        # Other samplers leave out the folder that a file was imported from.
        first = re.split(r"[/\\]", self.file)[0]
        return first.removesuffix(".py") in sys.stdlib_module_names


Stack = tuple[Frame, ...]


class Sample(NamedTuple):
    """One sample: when, of which stack, and the watched time before it in units of 10 ms.

    `stack` is the number of its innermost frame, 0 where there was none; `grown` is how much the
    resident set has grown since the reading before, None where it could not be read.
    """

    t_s: float
    stack: int
    phase: str
    region: str | None
    weight: float
    grown: int | None
    evaluating: bool = False


class Sum(NamedTuple):
    """All samples of one stack: their weight, their number, and the growth that ended in it."""

    stack: Stack
    weight: float
    samples: int
    grown: int | None


class Watched:
    """All samples of a recording in order of time, and all readings of the resident set."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        names = ("t_s", "frame", "region", "rss_bytes", "weight", "evaluating", "overdue")
        rows = sorted(
            zip(*recorded.columns("watch_samples", *names), strict=True), key=itemgetter(0)
        )
        times = [row[0] for row in rows]
        # When the resident set was read, and what it was.
        self.read_at: list[float] = []
        self.read_bytes: list[int] = []
        self._places = Places.read(recorded.facts)
        # The stack of every frame number, outermost first.
        self.stacks = _stacks(recorded)
        self.samples: list[Sample] = []
        self.of_program: list[Sample] = []
        phases = _phases(recorded, times, [row[-1] is not None for row in rows])
        before: int | None = None
        for (t_s, frame, region, rss, weight, evaluating, _), phase in zip(
            rows, phases, strict=True
        ):
            grown = None
            if rss is not None:
                grown = None if before is None else rss - before
                before = rss
                self.read_at.append(t_s)
                self.read_bytes.append(rss)
            # One without weight is only a reading of memory, at the edge of a pause.
            if (weight or 0.0) > 0:
                of_phase = self.of_program if phase == PROGRAM else self.samples
                is_evaluating = evaluating is not None
                of_phase.append(
                    Sample(t_s, frame or 0, phase, region, weight, grown, is_evaluating)
                )

    def own(self, stack: Stack) -> list[Frame]:
        """Return the frames of a stack that are the user's own code, outermost first."""
        if self._places is None:
            return _own_frames(stack)
        return [frame for frame in stack if self._places.is_own(frame.file)]

    def of(self, phase: str | None) -> list[Sample]:
        """Return the samples of one phase; without one all but those of a program."""
        if phase == PROGRAM:
            return self.of_program
        return [sample for sample in self.samples if phase in (None, sample.phase)]

    @cached_property
    def in_usual_steps(self) -> list[Sample]:
        """The samples in steps, without evaluation and without those in a rare pause."""
        rows = self._recorded.steps
        unobserved = in_order(
            (row for row in rows if (row["wall_s"] or 0.0) > 0 and row["kind"] in UNOBSERVED),
            "started_s",
        )
        # Slow ones that were kept alone are not as rare as they were among all.
        usual = (row["wall_s"] for row in unobserved if "slow" not in row["flags"])
        least_s = self._recorded.rare_pause_s([*usual])
        paused = [row for row in unobserved if least_s is not None and row["wall_s"] > least_s]
        begins, walls = (
            np.array([row[name] for row in paused], dtype=float) for name in ("started_s", "wall_s")
        )
        samples = [sample for sample in self.of(STEP) if not sample.evaluating]
        times = np.array([sample.t_s for sample in samples])
        within = in_progress(times, begins, begins + walls) if paused else [-1] * len(samples)
        return [each for each, pause in zip(samples, within, strict=True) if pause < 0]

    def by_stack(self, samples: Iterable[Sample]) -> list[Sum]:
        """Add samples up by their stack."""
        grouped: dict[int, list[Sample]] = defaultdict(list)
        for sample in samples:
            grouped[sample.stack].append(sample)
        return [
            Sum(
                self.stacks.get(number, ()),
                sum(sample.weight for sample in group),
                len(group),
                known_sum(sample.grown for sample in group),
            )
            for number, group in grouped.items()
        ]


@lru_cache(maxsize=1)
def watched(recorded: Recorded) -> Watched:
    """Return the samples of a recording; the last recording's are kept."""
    return Watched(recorded)


def _phases(recorded: Recorded, times: Sequence[float], overdue: Sequence[bool]) -> list[str]:
    slices = in_order((row for row in recorded.table("slices") if row["steps"]), "started_s")
    if not slices:
        return [OTHER] * len(times)
    if recorded.steps and any(row["layer"] == "watch" and row["mode"] == PROGRAM for row in slices):
        return [PROGRAM] * len(times)
    begins = np.array([row["started_s"] for row in slices], dtype=float)
    # Two layers may have had a slice in common.
    walls = np.array([row["wall_s"] or 0.0 for row in slices])
    ends = np.maximum.accumulate(begins + walls)
    before = np.searchsorted(begins, times, side="right")
    inside = times <= ends[np.maximum(before, 1) - 1]
    return [
        STARTUP if not count else STEP if within and not late else OTHER
        for count, within, late in zip(before.tolist(), inside.tolist(), overdue, strict=True)
    ]


def _stacks(recorded: Recorded) -> dict[int, Stack]:
    stacks: dict[int, Stack] = {}
    # A frame's number is above its parent's.
    for row in in_order(recorded.table("watch_frames"), "frame"):
        place = str(row["file"]), row["line"] or 0
        frame = Frame(*place, str(row["name"]), row["function_line"] or 0)
        stacks[row["frame"]] = (*stacks.get(row["parent"] or 0, ()), frame)
    return stacks


def _own_frames(stack: Stack) -> list[Frame]:
    """Guess the script's own frames where the recording does not tell the places of its files.

    They are in the folder of the outermost file that belongs to no package, or came as text if
    the script itself did.
    """
    first = next((frame for frame in stack if frame.is_text or not frame.is_installed), None)
    if first is None:
        return []
    if first.is_text:
        return [frame for frame in stack if frame.is_text or not frame.is_installed]
    folder = os.path.join(os.path.dirname(first.file), "")
    if folder:
        own = (frame for frame in stack if frame.file.startswith(folder))
    else:
        # `torch/nn/modules/linear.py` beside `train.py`.
        own = (frame for frame in stack if not os.path.dirname(frame.file))
    return [frame for frame in own if not frame.is_installed]


# --- Outliers: steps much slower than a clean one, or taking memory as few do ---------------------
#
# Steps shorter than the sampling interval mostly hold no sample: of these only the time is known,
# and memory that was still taken when the next sample came.

# How far above the clean median a step is slow: in robust standard deviations, and in its time.
DEVIATIONS = 5.0
SLOWER = 0.5
# The least growth of a step that took memory, and its least ratio to that of nine of ten others.
GROWN_BYTES = 4 * 2**20
GROWN_MORE = 2.0
MOST_ROWS = 200
RULE = (
    "pauses among the clean steps, and steps in slices of the watch that took half as long again "
    "as the clean median and more than 5 robust standard deviations (1.4826 times the median "
    "absolute deviation) above it, or in which the resident set rose by 4 MiB and by twice what it "
    f"rose by in nine of ten others; the {MOST_ROWS} that stand out most"
)
_MOST_SHOWN = 5


def outlier_rows(recorded: Recorded, clean: Clean) -> list[OutlierRow]:
    """Rows of `outliers`, the slowest first; `samples` is None if the run has no sample."""
    steps = recorded.steps
    own = (row for row in steps if row["kind"] == "watch" and (row["wall_s"] or 0.0) > 0)
    steps = in_order([*own, *clean.paused, *recorded.paused_steps], "started_s")
    if not steps:
        return []
    begins, walls = (
        np.array([row[name] for row in steps], dtype=float) for name in ("started_s", "wall_s")
    )
    # By the clock that the median is of: the host's own steps are shorter where it runs ahead.
    took = np.array(times_of(steps, clean.clock), dtype=float)
    took = np.where(np.isnan(took), walls, took)
    ends, seen = begins + walls, watched(recorded)
    grown = _growth(seen, begins.tolist(), ends.tolist())
    median_s = clean.median_s
    slow = np.zeros(len(took), dtype=bool)
    if median_s is not None:
        clean_s = known_times(clean.steps, clean.clock)
        deviation = 1.4826 * median([abs(each - median_s) for each in clean_s] or [math.inf])
        slow = took > median_s + max(DEVIATIONS * deviation, SLOWER * median_s)
    took_memory = _memory_takers(grown)
    chosen = np.flatnonzero(slow | np.isin(np.arange(len(walls)), list(took_memory)))
    # The most unusual first: memory, since it is rarer, then the time lost.
    ranked = sorted(chosen.tolist(), key=lambda row: (row not in took_memory, -took[row], row))
    inside: dict[int, list[Sample]] = defaultdict(list)
    times = np.array([sample.t_s for sample in seen.samples])
    for sample, row in zip(seen.samples, in_progress(times, begins, ends), strict=True):
        inside[row].append(sample)
    return [
        {
            "index": steps[row]["step"],
            "wall_s": float(walls[row]),
            "factor": float(took[row] / median_s) if median_s else None,
            "rss_bytes": grown.get(row),
            # Where the watch did not run none could have fallen into a step.
            "samples": len(inside.get(row, ()))
            if seen.samples and steps[row]["kind"] == "watch"
            else None,
            "doing": _doing(seen, inside.get(row, [])),
        }
        for row in sorted(ranked[:MOST_ROWS], key=lambda row: (-walls[row], row))
    ]


def _memory_takers(grown: Mapping[int, int]) -> set[int]:
    """Return the steps that have grown by much more than most."""
    usual = float(np.quantile(list(grown.values()) or [0], 0.9, method="lower"))
    least = max(GROWN_BYTES, GROWN_MORE * usual)
    return {row for row, growth in grown.items() if growth >= least}


def _growth(seen: Watched, begins: list[float], ends: list[float]) -> dict[int, int]:
    """Return the highest growth of the resident set since the start of each step.

    A change between two readings belongs to the step that had most of the time between them.
    """
    changes: dict[int, list[float]] = defaultdict(list)
    readings = list(zip(seen.read_at, seen.read_bytes, strict=True))
    for (earlier, before), (later, after) in pairwise(readings):
        row = _most_of(earlier, later, begins, ends)
        if row is not None:
            changes[row].append(after - before)
    return {row: int(max(0.0, np.cumsum(each).max())) for row, each in changes.items()}


def _most_of(
    earlier: float, later: float, begins: Sequence[float], ends: Sequence[float]
) -> int | None:
    """Return the step that takes most of this time; None where none does.

    Nor where most of it is in steps that were not kept.
    """
    rows = range(max(bisect_right(begins, earlier) - 1, 0), bisect_right(begins, later))
    overlaps = [(min(ends[row], later) - max(begins[row], earlier), row) for row in rows]
    longest, row = max(overlaps, default=(0.0, -1))
    if longest <= 0:
        return None
    inside = later - max(earlier, begins[rows[0]])
    return row if 2 * sum(max(overlap, 0.0) for overlap, _ in overlaps) >= inside else None


def _doing(seen: Watched, samples: list[Sample]) -> str | None:
    """Say what took most of the time: the stack as far as more than half of it agrees."""
    sums = seen.by_stack(samples)
    half = sum(each.weight for each in sums) / 2
    path: Stack = ()
    while True:
        depth = len(path)
        nexts: dict[Frame, float] = defaultdict(float)
        for each in sums:
            if each.stack[:depth] == path and len(each.stack) > depth:
                nexts[each.stack[depth]] += each.weight
        best = max(nexts, key=lambda frame: nexts[frame], default=None)
        if best is None or nexts[best] <= half:
            break
        path = (*path, best)
    if not path:
        return None
    regions: dict[str | None, float] = defaultdict(float)
    for sample in samples:
        regions[sample.region] += sample.weight
    region = max(regions, key=lambda name: regions[name])
    named = f"[{region}] " if region is not None and regions[region] > half else ""
    return named + _in_one_line(path)


def _in_one_line(path: Stack) -> str:
    """Write a stack in one line, outermost first: all, or the script's own end and the very end."""
    kept = set(range(len(path)))
    if len(path) > _MOST_SHOWN:
        own = set(_own_frames(path))
        places = [place for place, frame in enumerate(path) if frame in own]
        kept = {*places[2 - _MOST_SHOWN :], len(path) - 2, len(path) - 1}
    words: list[str] = []
    for place, frame in enumerate(path):
        if place in kept:
            words.append(f"{place_words(frame.file, frame.line)} {frame.name}")
        elif not words or words[-1] != "…":
            words.append("…")
    return " > ".join(words)


# --- Shares of functions and lines ----------------------------------------------------------------

LineKey = tuple[str, int]
# Fewer samples in steps, or functions to compare, give no order.
FEWEST_SAMPLES = 50
FEWEST_FUNCTIONS = 5
# A function is compared if either layer gives it this share of the steps.
WORTH_COMPARING = 0.01


def watch_rows(recorded: Recorded) -> list[WatchRow]:
    """Rows of `watch`: by phase and function, the largest own share first."""
    return [row for phase in PHASES for row in _phase_rows(recorded, phase)]


def _phase_rows(recorded: Recorded, phase: str) -> list[WatchRow]:
    stacks, total_weight = _weighed(recorded, phase)
    own: dict[FunctionKey, list[Sum]] = defaultdict(list)
    total: dict[FunctionKey, list[Sum]] = defaultdict(list)
    for each in stacks:
        if each.stack:
            own[each.stack[-1].function].append(each)
        for function in dict.fromkeys(frame.function for frame in each.stack):
            total[function].append(each)
    rows: list[WatchRow] = [
        {
            "phase": phase,
            "file": home_relative(function[0]),
            "line": function[1] or None,
            "name": function[2],
            "samples": sum(each.samples for each in around),
            "self_share": _weight(own.get(function, ())) / total_weight,
            "total_share": _weight(around) / total_weight,
            "rss_bytes": known_sum(each.grown for each in own.get(function, ())),
        }
        for function, around in total.items()
    ]
    return sorted(rows, key=lambda row: (-(row["self_share"] or 0), -(row["total_share"] or 0)))


def _weighed(recorded: Recorded, phase: str | None) -> tuple[list[Sum], float]:
    """Return the samples of a phase by stack, and the weight of them all."""
    seen = watched(recorded)
    stacks = seen.by_stack(seen.of(phase))
    return stacks, _weight(stacks)


def _weight(sums: Iterable[Sum]) -> float:
    return sum(each.weight for each in sums)


def watched_lines(recorded: Recorded) -> dict[LineKey, dict[str, object]]:
    """Return the watch's figures by file and line, named as in the table `lines`."""
    startup = line_shares(recorded, STARTUP)
    # A few samples in steps give no shares; those of the start-up are hundreds.
    steps = line_shares(recorded, STEP) if few_samples(recorded) is None else {}
    nothing = (None, None)
    return {
        line: {
            "source": recorded.line_text(*line),
            "watch_share": steps.get(line, nothing)[0],
            "startup_share": startup.get(line, nothing)[0],
            "watch_bytes": grown,
        }
        for line, (_, grown) in line_shares(recorded).items()
    }


def line_shares(
    recorded: Recorded, phase: str | None = None
) -> dict[LineKey, tuple[float, int | None]]:
    """Return share of the samples and growth of the resident set by line of the script's own code.

    A sample belongs to the innermost line of the script's own, so that the shares of all lines
    add up to 1 at most. Files are named as recorded. Start-up and steps together, or one phase.
    """
    stacks, total_weight = _weighed(recorded, phase)
    lines: dict[LineKey, list[Sum]] = defaultdict(list)
    for each in stacks:
        own = watched(recorded).own(each.stack)
        if own:
            lines[own[-1].file, own[-1].line].append(each)
    return {
        line: (_weight(sums) / total_weight, known_sum(each.grown for each in sums))
        for line, sums in lines.items()
    }


def function_shares(recorded: Recorded, phase: str | None = STEP) -> dict[FunctionKey, float]:
    """Return the share of the samples in which each function was innermost, by default in steps.

    Keys are file, line and name as in the rows of `functions`. Built-in functions have no frame:
    their time is their caller's.
    """
    stacks, total_weight = _weighed(recorded, phase)
    shares: dict[FunctionKey, float] = defaultdict(float)
    for each in stacks:
        if each.stack:
            file, line, name = each.stack[-1].function
            shares[home_relative(file), line, name] += each.weight / total_weight
    return dict(shares)


# Parts of a step by file (in torch's folder) and function on a stack; the first that is met counts.
_STEP_PARTS: tuple[tuple[StepPart, str, str], ...] = (
    ("data wait", r"utils[/\\]data[/\\]", ""),
    ("backward", r"autograd[/\\](__init__|graph)\.py$", "^(backward|grad|_engine_run_backward)$"),
    ("optimizer", r"optim[/\\](?!lr_scheduler)", "step|zero_grad|^wrapper$"),
    ("loss", r"nn[/\\]modules[/\\]loss\.py$", ""),
    ("forward", r"nn[/\\]modules[/\\]module\.py$", "call_impl"),
)
# Functions that optimizers are given to call: Lightning's, and the usual name of the user's own.
_CLOSURE = re.compile("closure", re.IGNORECASE)
_PATTERNS = [
    (part, re.compile(rf"[/\\]torch[/\\]{file}"), re.compile(name))
    for part, file, name in _STEP_PARTS
]


def step_parts(recorded: Recorded) -> dict[StepPart, float] | None:
    """Return shares of the steps by the stacks of their samples; None where these are too few.

    "other" is what the script does outside all of them, operators that it calls there included.
    """
    seen = watched(recorded)
    samples = seen.in_usual_steps
    if len(samples) < FEWEST_SAMPLES:
        return None
    parts: dict[StepPart, float] = defaultdict(float)
    for each in seen.by_stack(samples):
        parts[step_part_at(each.stack)[0]] += each.weight
    whole = sum(parts.values())
    return {part: weight / whole for part, weight in parts.items()}


def step_part_at(stack: Stack) -> tuple[StepPart, int]:
    """Return the part of a step that a stack is in, and the outermost frame that says so.

    "other" is what no frame of torch's explains; its frame is the one behind the last. What an
    optimizer calls by a closure is as if the loop did it itself.
    """
    first = closure_at(stack)
    for part, file, name in _PATTERNS:
        for at, frame in enumerate(stack):
            of_closure = part == "optimizer" and at < first < len(stack)
            if not of_closure and file.search(frame.file) and name.search(frame.name):
                return part, at
    return "other", len(stack)


def closure_at(stack: Stack) -> int:
    """Return the place of an optimizer's closure on a stack; behind the last frame without one."""
    closures = (at for at, frame in enumerate(stack) if _CLOSURE.search(frame.name))
    return next(closures, len(stack))


def few_samples(recorded: Recorded) -> str | None:
    """Say why the samples of steps are too few for shares; None if there are many, or none."""
    count = len(watched(recorded).of(STEP))
    if not 0 < count < FEWEST_SAMPLES:
        return None
    return f"the watch has {count} samples in steps, {FEWEST_SAMPLES} are needed"


def watch_facts(recorded: Recorded, functions: Sequence[FunctionRow]) -> WatchFacts:
    """Say how much the watch has seen, and whether it orders functions as cProfile does.

    `rank_correlation` is Spearman's, None with a reason where there is too little to compare.
    """
    seen = watched(recorded)
    own = (row for row in recorded.table("layers") if row["name"] == "watch")
    every = [*seen.samples, *seen.of_program]
    correlation, compared, reason = _rank_correlation(recorded, functions)
    return {
        "samples": len(every),
        "watched_s": sum(sample.weight for sample in every) * WATCH_INTERVAL_S,
        "samples_by_phase": {
            phase: len(seen.of(phase)) for phase in PHASES if phase != PROGRAM or seen.of_program
        },
        "interval_s": WATCH_INTERVAL_S,
        "thinning": next(iter(known(own, "truncated")), None),
        "rank_correlation": correlation,
        "rank_functions": compared,
        "reason": reason,
        "outlier_rule": RULE,
        "step_parts": step_parts(recorded),
    }


def _rank_correlation(
    recorded: Recorded, functions: Sequence[FunctionRow]
) -> tuple[float | None, int, str | None]:
    """Return the rank correlation of own shares, the functions compared, and why there is none."""
    count = len(watched(recorded).of(STEP))
    if count < FEWEST_SAMPLES:
        return None, 0, f"the watch has {count} samples in steps, {FEWEST_SAMPLES} are needed"
    profiled = _profiled_shares(recorded, functions)
    if not profiled:
        return None, 0, "cProfile has no slice to compare with"
    sampled = function_shares(recorded)
    # cProfile cannot see functions that began before its slice: they are left out.
    compared = [
        (share, sampled.get(function, 0.0))
        for function, share in profiled.items()
        if max(share, sampled.get(function, 0.0)) >= WORTH_COMPARING
    ]
    if len(compared) < FEWEST_FUNCTIONS:
        few = f"only {len(compared)} functions have a hundredth of the steps"
        return None, len(compared), f"{few}, {FEWEST_FUNCTIONS} are needed"
    columns = [*zip(*compared, strict=True)]
    if any(len(set(column)) < 2 for column in columns):
        return None, len(compared), "all functions have the same share in one of the two layers"
    return correlation(*map(_ranks, columns)), len(compared), None


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the place of each value in their order; equal ones share the mean of their places."""
    ordered = sorted(values)
    return [(bisect_left(ordered, each) + bisect_right(ordered, each)) / 2 for each in values]


def _profiled_shares(
    recorded: Recorded, functions: Sequence[FunctionRow]
) -> dict[FunctionKey, float]:
    """Return cProfile's own time of Python functions, with that of built-in ones they call.

    A sampler sees no frame of a built-in function, so it has that time on the caller's.
    """
    own: dict[FunctionKey, float] = {
        (row["file"], int(row["line"] or 0), row["name"]): float(row["self_s"])
        for row in functions
        if row["phase"] == "step" and row["file"] != "~" and row["self_s"] is not None
    }
    selection = recorded.select("cprofile", PROFILED)
    if selection is None or not own:
        return {}
    for row in recorded.rows("calls", selection):
        if row["callee_file"] != BUILTIN_FILE or row["caller_file"] == BUILTIN_FILE:
            continue
        key = (home_relative(row["caller_file"]), row["caller_line"] or 0, row["caller_name"])
        if key in own:
            own[key] += selection.per_step(row["self_s"]) or 0.0
    whole = sum(own.values())
    return {key: self_s / whole for key, self_s in own.items()} if whole else {}
