"""The whole run as one bar: every second of the process has one owner.

The time is cut at what the recording knows exactly: when the interpreter began, when torch came,
every slice, the end of the script. Slices that the watch has seen, and what comes before, between
and after the steps, are divided by its samples: each second is of what its stack says. In slices
that it did not see the steps' own times divide them. Whatever is left in a segment is its usual
owner's, so that the parts always add up to the run.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from statistics import fmean, median
from typing import Literal, TypedDict, get_args

from profstack.analysis.clean_steps import Clean
from profstack.analysis.functions import FunctionKey
from profstack.analysis.watch import FEWEST_SAMPLES, STEP, Frame, Sample, Stack, Watched, watched
from profstack.privacy import home_relative
from profstack.storage.reader import PAUSE, Recorded, Row, flags_of, in_order, known
from profstack.storage.schema.report import Place, RunFunction, RunPart, RunPartName
from profstack.storage.vocabulary import BENCH_FACT, WATCH_INTERVAL_S
from profstack.units import add_up

Span = tuple[float, float]
# How seconds that are divided by samples follow each other.
Spells = Literal["samples", "one", "unknown"]


class _Place(TypedDict):
    file: str | None
    line: int | None
    name: str | None


IMPORTS: RunPartName = "start-up and imports"
SETUP: RunPartName = "model and data set-up"
FIRST: RunPartName = "first step and compilation"
STEPS: RunPartName = "steps"
WAITING: RunPartName = "waiting for data"
EVALUATION: RunPartName = "evaluation"
SAVING: RunPartName = "checkpoints and saving"
LOGGING: RunPartName = "logging and callbacks"
OTHER: RunPartName = "other"
SHUTDOWN: RunPartName = "shutdown"
PROFSTACK: RunPartName = "profstack"
_ORDER: tuple[RunPartName, ...] = get_args(RunPartName)

# --- What a stack is doing, by the functions on it ------------------------------------------------

_COMPILER = re.compile(r"[/\\]torch[/\\](_dynamo[/\\]convert_frame|_inductor[/\\]compile_fx)\.py$")
# What runs compiled code lies in the same files, and they are imported by every optimizer.
_COMPILED = frozenset({"run", "align_inputs_from_check_idxs", "<module>"})
_SAVES = re.compile(r"(?:^|_)save(?:_|$)")
# What keeps tensors for a backward pass saves nothing; what has several names does each of them.
_KEEPS = re.compile("^save_for_backward$|hook|eval|log")
_LOGGER = re.compile(
    r"[/\\](logging|tqdm|tensorboard|tensorboardX|wandb|mlflow|matplotlib|rich|loguru|comet_ml"
    r"|neptune|csv)([/\\]|\.py$)"
)
_LOGS = re.compile(r"^_?(?:write_|call_)?(?:logs?|logging|callbacks?)(?:_[a-z]+s?)?$|^on_[a-z_]+$")
# Functions of mathematics that begin in the same way.
_NO_LOG = re.compile(r"^log_?(softmax|sigmoid|prob|probs|likelihood|sum_exp|sumexp|det|abs_det)")
_PRINTS = re.compile(r"\bprint\(")
_EVALUATES = re.compile(
    r"(?:^|_)(?:eval|evaluate|evaluation|validate|validation|valid|test)(?:_|$)"
)
# The same by libraries that train.
_EVALUATORS = re.compile(
    r"[/\\]transformers[/\\]trainer(?:_\w+)?\.py:(?:evaluate|evaluation_loop|predict)$"
    r"|[/\\]loops[/\\]evaluation_loop\.py:run$"
)
_TORCH = re.compile(r"[/\\]torch[/\\]")
_LOADER = re.compile(r"[/\\]torch[/\\]utils[/\\]data[/\\]")


class _Stacks:
    """Says what each stack is of, once; `around` are functions that most of the steps are in."""

    def __init__(self, seen: Watched, text_of: Callable[[str, int], str | None]) -> None:
        self._seen = seen
        self._text_of = text_of
        self._known: dict[int, RunPartName | None] = {}
        self.around: frozenset[object] = frozenset()

    def owner(self, sample: Sample, usual: RunPartName) -> RunPartName:
        """Return the owner of a sample; `usual` is that of its segment."""
        if sample.stack not in self._known:
            self._known[sample.stack] = self._of(self._seen.stacks.get(sample.stack, ()))
        found = self._known[sample.stack]
        in_steps = usual == STEPS
        if found == IMPORTS:
            # In a step it is what is imported at its first use.
            return FIRST if in_steps else IMPORTS
        if found in (None, WAITING) and sample.evaluating and (in_steps or self._in_torch(sample)):
            # After the steps the mode of the model says nothing of what else is done.
            found = EVALUATION
        if (found or usual) == EVALUATION and self._constructs(sample):
            # The last model is in evaluation until the next one trains, which is made meanwhile.
            return SETUP
        if found == WAITING:
            return WAITING if in_steps else usual
        if found == EVALUATION and usual == SETUP:
            # A function that reads its data, by a name like `test_set`.
            return usual
        return found or usual

    def _constructs(self, sample: Sample) -> bool:
        """Whether the loop makes an object of a class of the user's, which is no evaluation."""
        own = self._seen.own(self._seen.stacks.get(sample.stack, ()))
        called = (frame for frame in own if frame.function not in self.around)
        first = next((frame for frame in called if frame.name != "<module>"), None)
        return first is not None and first.name == "__init__"

    def _in_torch(self, sample: Sample) -> bool:
        stack = self._seen.stacks.get(sample.stack, ())
        return any(_TORCH.search(frame.file) for frame in stack)

    def _of(self, stack: Stack) -> RunPartName | None:
        if any(_COMPILER.search(frame.file) and frame.name not in _COMPILED for frame in stack):
            return FIRST
        if any(frame.name == "<module>" for frame in stack[1:]):
            return IMPORTS
        if any(_SAVES.search(frame.name) and not _KEEPS.search(frame.name) for frame in stack):
            return SAVING
        own = self._seen.own(stack)
        if any(self._logs(frame, stack[at + 1 :], own) for at, frame in enumerate(stack)):
            return LOGGING
        if any(_EVALUATES.search(each.name) and each.function not in self.around for each in own):
            return EVALUATION
        if any(_EVALUATORS.search(f"{frame.file}:{frame.name}") for frame in stack):
            return EVALUATION
        return WAITING if any(_LOADER.search(frame.file) for frame in stack) else None

    def _logs(self, frame: Frame, inside: Stack, own: Sequence[Frame]) -> bool:
        if _LOGGER.search(frame.file):
            # A progress bar round a loader, or a generator, waits for what that gives.
            return not any(each in own or _LOADER.search(each.file) for each in inside)
        if _PRINTS.search(self._text_of(frame.file, frame.line) or ""):
            # What is printed may be computed on the same line.
            return not any(each in own or _TORCH.search(each.file) for each in inside)
        return bool(_LOGS.match(frame.name)) and not _NO_LOG.match(frame.name)


# --- Segments of the run --------------------------------------------------------------------------


@dataclass
class _Division:
    """Seconds by owner, with the stacks that the watch saw of each."""

    seconds: dict[RunPartName, float] = field(default_factory=lambda: defaultdict(float))
    stacks: dict[RunPartName, dict[int, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    sampled: dict[RunPartName, float] = field(default_factory=lambda: defaultdict(float))
    # Seconds of each owner that follow each other without another's between, as far as noted.
    spells: dict[RunPartName, list[float]] = field(default_factory=lambda: defaultdict(list))
    # Who had the last of them; None begins a new one.
    last: RunPartName | None = None

    def add(self, owner: RunPartName, seconds: float) -> None:
        self.seconds[owner] += seconds

    def note(self, owner: RunPartName, seconds: float) -> None:
        """Note seconds that follow those noted before."""
        if owner != self.last:
            self.spells[owner].append(0.0)
        self.last = owner
        self.spells[owner][-1] += seconds

    def add_sampled(
        self,
        stacks: _Stacks,
        samples: Sequence[Sample],
        seconds: float,
        usual: RunPartName,
        spells: Spells = "samples",
    ) -> None:
        """Divide `seconds` by the weights of samples; without any they are the usual owner's.

        Where they are one spell, whoever has most of it has it noted. That of samples elsewhere
        tells nothing of spells.
        """
        weight = sum(sample.weight for sample in samples)
        if not weight:
            self.add(usual, seconds)
            return
        parts: dict[RunPartName, float] = defaultdict(float)
        for sample in samples:
            owner, part = stacks.owner(sample, usual), seconds * sample.weight / weight
            parts[owner] += part
            if spells == "samples":
                self.note(owner, part)
            self.seconds[owner] += part
            self.sampled[owner] += part
            self.stacks[owner][sample.stack] += part
        if spells == "one":
            self.note(max(parts, key=lambda each: parts[each]), seconds)


def run_bar(recorded: Recorded, clean: Clean) -> tuple[list[RunPart], str | None]:
    """Return the rows of `run_bar`, and why there are none."""
    duration_s = recorded.run.get("run", {}).get("duration_s")
    if recorded.facts.get(BENCH_FACT) is not None:
        return [], "a benchmark calls its target again and again: there is no run to divide"
    if not isinstance(duration_s, float) or duration_s <= 0:
        return [], "the end of the run is not known"
    if "finishing" not in recorded.facts:
        return [], "the run ended at once, before the end of its recording was written"
    if "origin_clock_s" not in recorded.facts or "begun_clock_s" not in recorded.run:
        return [], "the recording does not say when the measured process began"
    seen = watched(recorded)
    made = _Run(recorded, clean, duration_s, _Stacks(seen, recorded.line_text))
    made.divide()
    parts = made.division
    names = [name for name in _ORDER if parts.seconds.get(name, 0.0) > 0]
    if not names:
        return [], "the clocks of both processes do not agree"
    times = [parts.seconds[name] for name in names]
    exact = add_up(times, duration_s, rest=times.index(max(times)))
    own_s = sum(time for name, time in zip(names, exact, strict=True) if name != PROFSTACK)
    return [
        {
            "part": name,
            "wall_s": wall_s,
            "share": None if name == PROFSTACK else wall_s / own_s,
            "by": "samples" if parts.sampled[name] > 0.5 * wall_s else "clock",
            "times": len(parts.spells[name]) or None,
            "longest_s": _longest_tenth_s(parts.spells[name]),
            **_place(seen, parts.stacks[name]),
            "functions": _functions(seen, parts.stacks[name], made.around, _LEAST * own_s),
        }
        for name, wall_s in zip(names, exact, strict=True)
    ], None


# The watch of a script that profstack starts begins as early.
_AT_ONCE_S = 0.1


# Samples of usual steps that tell what holds them.
_FEWEST_USUAL = 10


class _Run:
    """Divides one run; times are since the recording's begin."""

    def __init__(
        self, recorded: Recorded, clean: Clean, duration_s: float, stacks: _Stacks
    ) -> None:
        facts = recorded.facts
        self._recorded, self._clean, self._stacks = recorded, clean, stacks
        self.division = _Division()
        self._samples = watched(recorded).samples
        self._times = [sample.t_s for sample in self._samples]
        self._begin = recorded.run["begun_clock_s"] - float(facts["origin_clock_s"])
        self._end = self._begin + duration_s
        self._arming: Span = facts.get("arming") or (0.0, 0.0)
        self._finishing: Span = facts["finishing"]
        self._in_process = bool(recorded.run.get("in_process"))
        # A second run, which filled layers, has times of its own.
        own: dict[float, Row] = {}
        for row in recorded.table("slices"):
            if row["mode"] != "whole" and row["steps"] and row["started_s"] is not None:
                own.setdefault(row["started_s"], row)
        timed = (row for row in own.values() if row["wall_s"] is not None)
        self._slices = in_order(timed, "started_s")
        self._steps = recorded.table("steps")
        self._timed: dict[int, list[Row]] = defaultdict(list)
        for step in self._steps:
            if (step["wall_s"] or 0.0) > 0:
                self._timed[step["slice"]].append(step)
        self._compiled = _union(
            (row["t_s"], row["t_s"] + row["wall_s"])
            for row in recorded.table("compilations")
            if row["t_s"] is not None and row["wall_s"] is not None
        )

    def divide(self) -> None:
        """Give every second its owner."""
        # Before the script's first line there is Python's own start, or the session's.
        self.division.add(PROFSTACK if self._in_process else IMPORTS, -self._begin)
        last, watched_s = 0.0, 0.0
        watch_samples: list[Sample] = []
        self._find_around()
        recorded = self._recorded
        self._other_loops = {
            plan: seconds / recorded.plan_steps[plan]
            for plan, seconds in recorded.plan_times.items()
            if plan != recorded.plan and "site" in recorded.loop_facts(plan)
        }
        for row in self._slices:
            # What comes in two slices is two spells of it.
            self.division.last = None
            begin = max(row["started_s"], last)
            end = max(row["started_s"] + row["wall_s"], begin)
            # While observers are switched the script stands still. Between loops it does not.
            switch_s = min(row["switch_s"] or 0.0, begin - last)
            self.division.add(PROFSTACK, switch_s)
            self._between(last, begin - switch_s, OTHER if last else SETUP)
            last = end
            samples = self._within(begin, end)
            other = self._other_phase(row["phase"])
            is_sampled = row["kind"] == "watch" and len(samples) >= FEWEST_SAMPLES
            if other is not None:
                # Elsewhere only long steps have samples.
                samples = samples if is_sampled else []
                self.division.add_sampled(self._stacks, samples, end - begin, other)
                if not samples:
                    self.division.note(other, end - begin)
            elif row["plan"] in self._other_loops and is_sampled:
                self.division.add_sampled(self._stacks, samples, end - begin, STEPS)
            elif row["plan"] in self._other_loops:
                # Its steps have another time than the clean ones.
                is_observed = row["layer"] is not None
                own_s = row["steps"] * self._other_loops[row["plan"]]
                own_s = min(own_s, end - begin) if is_observed else end - begin
                self.division.add(STEPS, own_s)
                self.division.add(PROFSTACK, end - begin - own_s)
            elif is_sampled:
                watch_samples += samples
                watched_s += end - begin
            else:
                self._divide_slice(row, begin, end)
        self.division.add_sampled(self._stacks, watch_samples, watched_s, STEPS)
        ending, ended = self._finishing
        self._between(last, max(ending, last), OTHER)
        self.division.add(PROFSTACK, max(ended - max(ending, last), 0.0))
        rest = self._end - max(ended, last)
        self.division.add(PROFSTACK if self._in_process else SHUTDOWN, max(rest, 0.0))

    @property
    def around(self) -> frozenset[object]:
        """Functions that hold most of the steps."""
        return self._stacks.around

    def _find_around(self) -> None:
        """Note the functions that hold most of the steps: their names say nothing of a part."""
        seen = watched(self._recorded)
        samples = seen.of(STEP) or seen.samples
        if len(seen.in_usual_steps) >= _FEWEST_USUAL:
            # What is done between two trials lies in one long step, and may take longer than all.
            samples = seen.in_usual_steps
        weights: dict[object, float] = defaultdict(float)
        for each in seen.by_stack(samples):
            # What a loader calls is called by the loop, and not around it.
            loaded = (at for at, frame in enumerate(each.stack) if _LOADER.search(frame.file))
            outside = each.stack[: next(loaded, None)]
            for function in {frame.function for frame in seen.own(outside)}:
                weights[function] += each.weight
        most = sum(sample.weight for sample in samples) / 2
        self._stacks.around = frozenset(name for name in weights if weights[name] > most)

    def _within(self, begin: float, end: float) -> list[Sample]:
        first, after = (bisect_right(self._times, moment) for moment in (begin, end))
        return self._samples[first:after]

    def _between(self, begin: float, end: float, usual: RunPartName) -> None:
        """Divide what is no slice by the watch's samples."""
        own = _overlap([self._arming], begin, end)
        self.division.add(PROFSTACK, own)
        seconds, samples = max(end - begin - own, 0.0), self._within(begin, end)
        if usual == SETUP:
            # Before the watch, as in a process that another one starts, it is only known when
            # torch had been imported.
            unseen = self._unseen(begin, end, samples)
            imports_s = min(max(min(self._arming[0], unseen) - begin, 0.0), seconds)
            self.division.add(IMPORTS, imports_s)
            rest_s = unseen - begin - imports_s - _overlap([self._arming], begin, unseen)
            rest_s = min(max(rest_s, 0.0), seconds - imports_s) if samples else 0.0
            self.division.add(SETUP, rest_s)
            seconds -= imports_s + rest_s
        self.division.add_sampled(self._stacks, samples, seconds, usual)

    def _unseen(self, begin: float, end: float, samples: Sequence[Sample]) -> float:
        """Return until when the watch had not begun."""
        if not samples:
            return end
        seen = samples[0].t_s - samples[0].weight * WATCH_INTERVAL_S
        return seen if seen - begin >= _AT_ONCE_S else begin

    def _other_phase(self, phase: str | None) -> RunPartName | None:
        """Return the owner of all steps of a phase beside training; None of the steps' own."""
        if self._recorded.phase != "train" or phase == "train":
            return None
        return EVALUATION if phase == "eval" else OTHER

    def _divide_slice(self, row: Row, begin: float, end: float) -> None:
        """Divide a slice by the times of its steps, against the mean of the clean ones."""
        division, clean = self.division, self._clean.steps
        is_observed = row["layer"] is not None
        paused = {step["step"] for step in self._recorded.paused_steps if step["wait_s"]}
        compiling_s = _overlap(self._compiled, begin, end)
        division.add(FIRST, compiling_s)
        left_s = end - begin - compiling_s
        steps = self._timed.get(row["slice"], [])
        if clean and steps:
            # A layer may slow all of its steps by as much as a pause takes.
            usual_s = median(known(steps, "wall_s"))
            mean_s = fmean(known(clean, "wall_s"))
            ordinary_s, count = 0.0, 0
            for step in steps:
                began, took_s = step["started_s"], step["wall_s"]
                took_s -= _overlap(self._compiled, began, began + took_s)
                beyond_s = took_s - mean_s
                if step["step"] in self._firsts:
                    owner = FIRST
                elif "eval" in step["flags"].split():
                    owner = EVALUATION
                elif step["step"] in paused or (
                    not is_observed and beyond_s > (PAUSE - 1) * mean_s
                ):
                    owner = OTHER
                elif is_observed and beyond_s > self._pause_s and took_s > usual_s + self._pause_s:
                    # As long as others are that nothing slows; the rest is the layer's.
                    owner, beyond_s = OTHER, self._pause_s
                    ordinary_s, count = ordinary_s + took_s - beyond_s, count + 1
                else:
                    ordinary_s, count = ordinary_s + took_s, count + 1
                    continue
                if beyond_s > 0:
                    left_s -= beyond_s
                    samples = self._within(began, began + step["wall_s"])
                    division.last = None
                    if owner == OTHER and _seen_s(samples) < _MOSTLY * step["wall_s"]:
                        samples = self._long or samples
                    spells: Spells = "one" if samples is self._long else "samples"
                    division.add_sampled(self._stacks, samples, beyond_s, owner, spells)
                    if not samples:
                        division.note(owner, beyond_s)
            if is_observed and ordinary_s > count * mean_s:
                division.add(PROFSTACK, ordinary_s - count * mean_s)
                left_s -= ordinary_s - count * mean_s
        waiting_s = self._wait_share * left_s
        division.add(WAITING, waiting_s)
        rest_s = left_s - waiting_s
        for owner, share, samples in self._beside:
            beside_s = max(min(share * left_s, rest_s), 0.0)
            division.add_sampled(self._stacks, samples, beside_s, owner, "unknown")
            rest_s -= beside_s
        division.add(STEPS, rest_s)
        division.last = None

    @cached_property
    def _pause_s(self) -> float:
        """Time beyond a clean step of those that hold a rare pause; endless without any."""
        times = known(self._clean.paused, "wall_s")
        if not times:
            return inf
        return float(median(times)) - fmean(known(self._clean.steps, "wall_s"))

    @cached_property
    def _long(self) -> list[Sample]:
        """Samples of all long steps: one that was not sampled does what the others do."""
        found: list[Sample] = []
        clean = known(self._clean.steps, "wall_s")
        least_s = PAUSE * fmean(clean) if clean else inf
        for step in self._recorded.steps:
            is_own = {"eval", "loop"}.isdisjoint(flags_of(step))
            is_own = is_own and step["step"] not in self._firsts
            if is_own and (step["wall_s"] or 0.0) > least_s:
                samples = self._within(step["started_s"], step["started_s"] + step["wall_s"])
                if _seen_s(samples) >= _MOSTLY * step["wall_s"]:
                    found += samples
        return found

    @cached_property
    def _beside(self) -> list[tuple[RunPartName, float, list[Sample]]]:
        """Shares of usual steps that log and save, by the watch, and their samples.

        No slice tells them apart.
        """
        steps = watched(self._recorded).in_usual_steps
        if len(steps) < FEWEST_SAMPLES:
            return []
        whole = sum(each.weight for each in steps)
        owners = [self._stacks.owner(each, STEPS) for each in steps]
        found: list[tuple[RunPartName, float, list[Sample]]] = []
        for name in (LOGGING, SAVING):
            own = [each for each, owner in zip(steps, owners, strict=True) if owner == name]
            if own:
                found.append((name, sum(each.weight for each in own) / whole, own))
        return found

    @cached_property
    def _firsts(self) -> frozenset[int]:
        """The first step of each plan."""
        firsts: dict[int, int] = {}
        for row in self._steps:
            firsts[row["plan"]] = min(row["step"], firsts.get(row["plan"], row["step"]))
        return frozenset(firsts.values())

    @cached_property
    def _wait_share(self) -> float:
        """Share of the clean steps that waits for torch's DataLoader; 0 without one.

        Not all that a step waits before its first work is for the loader. Where the clean steps do
        not tell it is known by torch's own ranges in its slices, where the steps are slower, if at
        all, and the loader's time is not.
        """
        work = self._recorded.table("region_work")
        loading = [row for row in work if str(row["path"]).startswith("enumerate(DataLoader)")]
        waiting = [row for row in self._clean.steps if row["wait_s"] is not None]
        if asked := known(waiting, "loader_s"):
            whole_s = sum(known(waiting, "wall_s"))
            return float(min(sum(asked), sum(known(waiting, "wait_s"))) / whole_s)
        if not loading or not waiting:
            return 0.0
        numbers = {row["slice"] for row in loading}
        slices = (row for row in self._recorded.table("slices") if row["slice"] in numbers)
        in_loader_s: float = sum(known(loading, "wall_s")) / sum(known(slices, "steps"))
        wait_s, step_s = (fmean(known(waiting, name)) for name in ("wait_s", "wall_s"))
        return min(in_loader_s, wait_s) / step_s


def _seen_s(samples: Sequence[Sample]) -> float:
    """Return how much time samples stand for."""
    return sum(sample.weight for sample in samples) * WATCH_INTERVAL_S


def _longest_tenth_s(spells: Sequence[float]) -> float | None:
    """Return the sum of the longest tenth, one at least; None without any."""
    longest = sorted(spells, reverse=True)[: max(len(spells) // 10, 1)]
    return sum(longest) if longest else None


def _union(spans: Iterable[Span]) -> list[Span]:
    """Return the spans without overlaps: a compilation may hold others."""
    whole: list[Span] = []
    for begin, end in sorted(spans):
        if whole and begin <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(end, whole[-1][1]))
        else:
            whole.append((begin, end))
    return whole


def _overlap(spans: Iterable[Span], begin: float, end: float) -> float:
    return sum(max(min(end, last) - max(begin, first), 0.0) for first, last in spans)


# Places with less of the run are not listed.
_LEAST = 0.03


def _functions(
    seen: Watched, stacks: Mapping[int, float], around: frozenset[object], least_s: float
) -> list[RunFunction]:
    """Return the user's outermost functions of a part that do not hold the steps too."""
    seconds: dict[FunctionKey, float] = defaultdict(float)
    lines: dict[FunctionKey, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    inner: dict[FunctionKey, dict[tuple[str, int], float]] = defaultdict(lambda: defaultdict(float))
    for number, part_s in stacks.items():
        own = seen.own(seen.stacks.get(number, ()))
        if not own:
            continue
        beside = (each for each in own if each.function not in around and each.name[0] != "<")
        frame = next(beside, own[-1])
        is_line = frame.function in around or frame.name[0] == "<"
        key = (frame.file, frame.line, "") if is_line else frame.function
        seconds[key] += part_s
        lines[key][frame.line] += part_s
        inner[key][own[-1].file, own[-1].line] += part_s
    return [
        {
            "file": home_relative(key[0]),
            "line": max(lines[key], key=lambda line: lines[key][line]),
            "name": key[2] or None,
            "inner": _most_in(inner[key]),
            "wall_s": wall_s,
        }
        for key, wall_s in sorted(seconds.items(), key=lambda each: -each[1])
        if wall_s >= least_s
    ]


def _most_in(lines: Mapping[tuple[str, int], float]) -> Place:
    file, line = max(lines, key=lambda place: lines[place])
    return {"file": home_relative(file), "line": line}


# As much of a part must be in one function to name it.
_MOSTLY = 0.6


def _place(seen: Watched, stacks: Mapping[int, float]) -> _Place:
    """Return the innermost of the user's own functions that holds most of a part."""
    seconds: dict[FunctionKey, float] = defaultdict(float)
    depths: dict[FunctionKey, int] = {}
    lines: dict[FunctionKey, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for number, part in stacks.items():
        own = seen.own(seen.stacks.get(number, ()))
        for function, (depth, frame) in {
            each.function: (at, each) for at, each in enumerate(own)
        }.items():
            seconds[function] += part
            depths[function] = max(depth, depths.get(function, 0))
            lines[function][frame.line] += part
    least = _MOSTLY * sum(stacks.values())
    most = [function for function in seconds if seconds[function] >= least]
    if not most:
        return {"file": None, "line": None, "name": None}
    function = max(most, key=lambda each: depths[each])
    line = max(lines[function], key=lambda number: lines[function][number])
    return {"file": home_relative(function[0]), "line": line, "name": function[2]}
