"""Measure two programs in fresh processes that take turns, until the answer is clear.

The order is before, after, after, before: a machine that becomes slower meanwhile slows both sides
alike. Each process is `profstack run` of its side; the first one of a side has every layer, and the
others leave out memory by line and the ranges for nsys, which no table of a comparison needs.

Looking at the interval after each pair, and stopping once it pleases, would find differences that
are none. So an early end needs an interval of 99.9 % (Haybittle 1971, Peto 1976), and every
interval that is shown is one of 98 %. In simulations of the whole rule, 600 comparisons for each of
twelve kinds of spread (normal, heavy-tailed, with bursts; 0.5 to 4 %), a program was told from
itself in 0.5 to 4.5 %; with intervals of 95 % it was 2 to 9 %.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from statistics import mean

import numpy as np

from profstack.errors import ProfstackError, RecordingError, TargetError, UsageError
from profstack.launch.process import (
    interpreter_flags,
    interrupted_by_signals,
    wait_for_session,
)
from profstack.launch.target import Target
from profstack.launch.target import parse as parse_target
from profstack.launch.target import split as split_target
from profstack.privacy import presentable_argv
from profstack.report.files import load
from profstack.stats.processes import Prior, difference_reach, means
from profstack.stats.summary import WIDEST, Ratio
from profstack.storage.folder import RUNS, create_folder
from profstack.units import format_seconds

SIDES = ("before", "after")
# Of the intervals that are shown, and of those that end the measuring early.
CONFIDENCE, CLEAR = 0.98, 0.999
LEAST = 3
# Beyond so many the precision comes too slowly: the next 10 narrow the interval by a fifth.
MOST = 20

_LIGHT = ("--skip", "memory,nvtx")
_CHOOSE_LAYERS = ("--layers", "--skip", "--light")
# Options of `profstack run` that concern its page, or start the script more than once.
_NOT_HERE = ("output", "force", "open", "rerun", "nsys", "nsys_path", "ranks")
# This very profstack, whatever the working folder holds; another interpreter has its own.
_OURS = "import sys; sys.path[0] = {root!r}; from profstack.commands import main; sys.exit(main())"
_THEIRS = "import sys; del sys.path[0]; from profstack.commands import main; sys.exit(main())"
_ROOT = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True)
class Program:
    """One side: the words after `profstack run`, and what its processes are started with.

    `prepare` is called before each of them.
    """

    label: str
    own: tuple[str, ...]
    target: Target
    environment: Mapping[str, str]
    folder: Path = field(default_factory=Path.cwd)
    interpreter: str = sys.executable
    prepare: Callable[[], None] = lambda: None

    def command(self, recording: Path, *, first: bool) -> list[str]:
        """Return the command that records one process into the folder `recording`.

        The `first` one of a side has every layer. Layers that a person chose are those of all.
        """
        options = () if first or self.chooses_layers else _LIGHT
        ours = self.interpreter == sys.executable
        start = _OURS.format(root=_ROOT) if ours else _THEIRS
        flags = interpreter_flags() if ours else []
        words = ("run", "--quiet", "--no-peaks", "--output", str(recording), *options, *self.own)
        return [self.interpreter, *flags, "-c", start, *words, "--", *self.target.arguments]

    @property
    def chooses_layers(self) -> bool:
        """Return whether the words name layers."""
        return any(option.partition("=")[0] in _CHOOSE_LAYERS for option in self.own)


@dataclass(frozen=True)
class Plan:
    """How long to measure.

    `precision` is the half-width to reach, as a part of the first side's time; `limits` are the
    ratios on whose one side or the other the answer must be: 1, and the limits of gates.
    """

    precision: float = 0.02
    budget_s: float = 600.0
    limits: Sequence[float] = (1.0,)
    least: int = LEAST
    most: int = MOST


def process_ratio(before: Sequence[float], after: Sequence[float], confidence: float) -> Ratio:
    """Return after over before from one time of each process; no interval of fewer than 2 a side.

    There is none either where its ends differ by more than `WIDEST`, which says nothing.
    """
    if not before or not after:
        return Ratio(None, None, None)
    logs = [np.log(np.asarray([side], dtype=np.float64)) for side in (before, after)]
    if min(len(before), len(after)) < 2:
        return Ratio(float(np.exp(logs[1].mean() - logs[0].mean())), None, None)
    nothing = Prior(0.0, 0.0)
    first, second = (means(side, nothing) for side in logs)
    centre = float((second.values - first.values)[0])
    reach = float(difference_reach(first, second, confidence)[0])
    if reach > math.log(WIDEST) / 2.0:
        return Ratio(math.exp(centre), None, None)
    return Ratio(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))


def order() -> Iterator[int]:
    """Return the sides in turn: 0, 1, 1, 0, 0, 1, 1, 0, ..."""
    for pair in count():
        yield from (0, 1) if pair % 2 == 0 else (1, 0)


def reason_to_end(before: Sequence[float], after: Sequence[float], plan: Plan) -> str | None:
    """Return why no further pair is needed; None where one is. Sides have equally many times."""
    if len(before) < plan.least:
        return None
    far = process_ratio(before, after, CLEAR)
    low, high = far.low, far.high
    if low is not None and high is not None:
        if not any(low <= limit <= high for limit in plan.limits):
            return "the answer is clear"
        near = process_ratio(before, after, CONFIDENCE)
        if (near.high or 0.0) - (near.low or 0.0) <= 2.0 * plan.precision:
            return f"the ratio is known to {_percent(plan.precision)} to either side"
    if len(before) >= plan.most:
        return f"{plan.most} processes a side are the most"
    return None


@dataclass
class Outcome:
    """The recordings of both sides, and why there are no more of them."""

    folder: Path
    recordings: tuple[list[Path], list[Path]]
    ended: str = ""
    seconds: float = 0.0
    # Whether processes after the first of a side had fewer layers.
    light: bool = True

    @property
    def sentence(self) -> str:
        """Return how the recordings were made, in words."""
        pairs = len(self.recordings[0])
        layers = "After the first of each side the layers memory and nvtx were left out. "
        return (
            f"{pairs} fresh processes of each side took turns ({format_seconds(self.seconds)} in "
            f"all). {layers if self.light else ''}Measuring ended because {self.ended}. "
            f"Intervals hold with {_percent(CONFIDENCE)} confidence, which repeated looks lower to "
            "95 % at most."
        )


class Alternation:
    """Runs the processes of both sides in turn and keeps their recordings in one folder."""

    def __init__(
        self, programs: Sequence[Program], folder: Path, plan: Plan, tell: Callable[[str], None]
    ) -> None:
        self._programs, self._plan, self._tell = programs, plan, tell
        light = not any(program.chooses_layers for program in programs)
        self.outcome = Outcome(folder, ([], []), light=light)
        # Clean median of the steps, None without steps; and duration of the whole run.
        self._steps: tuple[list[float | None], list[float | None]] = ([], [])
        self._runs: tuple[list[float], list[float]] = ([], [])
        self._begun = 0.0

    def run(self) -> Outcome:
        """Measure until the plan is fulfilled.

        Raises TargetError where a process fails, and KeyboardInterrupt once it has ended.
        """
        self._begun, outcome = time.monotonic(), self.outcome
        pairs: list[float] = []
        with interrupted_by_signals():
            for number, side in enumerate(order()):
                if number % 2 == 0:
                    ended = self._over(pairs)
                    if ended is not None:
                        outcome.ended = ended
                        break
                    pair_begun = time.monotonic()
                self._one(side)
                if number % 2 == 1:
                    pairs.append(time.monotonic() - pair_begun)
        outcome.seconds = time.monotonic() - self._begun
        return outcome

    def _over(self, pairs: Sequence[float]) -> str | None:
        """Return why measuring is over; the first pair, which has every layer, takes longer."""
        ended = reason_to_end(*self._figures()[1], self._plan)
        if ended is None and len(pairs) >= self._plan.least:
            left = self._plan.budget_s - (time.monotonic() - self._begun)
            if mean(pairs[1:]) > left:
                return f"the budget of {_whole(self._plan.budget_s)} is used up"
        return ended

    def _figures(self) -> tuple[str, tuple[list[float], list[float]]]:
        """Return what is compared, a step or the run, and its times on both sides."""
        steps = tuple([one for one in side if one is not None] for side in self._steps)
        if all(None not in side for side in self._steps):
            return "a step", (steps[0], steps[1])
        return "the run", self._runs

    def _one(self, side: int) -> None:
        """Run one process of a side, and keep its figures."""
        program, done = self._programs[side], self.outcome.recordings[side]
        name = f"{SIDES[side]}-{len(done) + 1:04d}"
        recording = self.outcome.folder / name
        log = (self.outcome.folder / "logs" / f"{name}.log").resolve()
        program.prepare()
        begun = time.monotonic()
        code = _execute(program, program.command(recording.resolve(), first=not done), log)
        if code:
            raise _failure(SIDES[side], program, code, log)
        report = load(recording)
        median_s, run_s = report["benchmark"]["median_s"], report["run"]["duration_s"]
        done.append(recording)
        self._steps[side].append(median_s)
        self._runs[side].append(run_s or time.monotonic() - begun)
        self._tell(self._progress(side))

    def _progress(self, side: int) -> str:
        """Return the line on the last process: its time, and the interval so far."""
        what, sides = self._figures()
        last = format_seconds(sides[side][-1])
        text = f"{SIDES[side]} {len(self.outcome.recordings[side])}: {last} for {what}"
        ratio = process_ratio(*sides, CONFIDENCE)
        if ratio.low is not None and ratio.high is not None:
            text += f"; after / before {ratio.factor:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
        passed = format_seconds(time.monotonic() - self._begun)
        return f"{text}; {passed} of {_whole(self._plan.budget_s)}"


def _whole(seconds: float) -> str:
    """Return a round time without its zeros: `10 min`, `30 s`."""
    return re.sub(r"\.0+(?= )| 0 s$", "", format_seconds(seconds))


def _percent(part: float) -> str:
    return f"{100 * part:g} %"


def _execute(program: Program, command: Sequence[str], log: Path) -> int:
    """Run one process to its end; its output is written to `log`. Return the exit code.

    It has a session of its own, so that everything in it ends when this process is interrupted.
    """
    try:
        with open(log, "wb") as file:
            process = subprocess.Popen(
                command,
                cwd=program.folder,
                env=dict(program.environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        step = "name another interpreter in --run"
        where = str(error.filename or program.interpreter)
        raise TargetError(
            f"cannot be started ({error.strerror})", where=where, next_step=step
        ) from None
    return wait_for_session(process)


def _failure(side: str, program: Program, code: int, log: Path) -> ProfstackError:
    """Return the error of a process that ended with another exit code than 0."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    # profstack's own lines follow the script's.
    own = ("Wrote ", "profstack: nothing was recorded")
    said = [line for line in lines if line.strip() and not line.startswith(own)]
    last = said[-1].strip()[:200] if said else ""
    end = f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
    what = f"a process of {program.label!r} {end}{f' ({last})' if last else ''}"
    return TargetError(what, where=side, next_step=f"its output is in {_shown(log)}")


def _shown(path: Path) -> str:
    shown = os.path.relpath(path)
    return str(path) if shown.startswith(os.pardir) else shown


def output_folder(given: str | None) -> Path:
    """Make the folder for the recordings of both sides; raise RecordingError if it has some."""
    if given is None:
        return create_folder("compare", None, force=False)
    folder = Path(given)
    found = sorted(entry.name for side in SIDES for entry in folder.glob(f"{side}-*"))
    if found:
        step = "choose another folder with --output"
        raise RecordingError(f"it holds {found[0]} already", where=given, next_step=step)
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        step = f"choose a folder such as {RUNS}/compare"
        what = f"cannot be made ({error.strerror})"
        raise RecordingError(what, where=given, next_step=step) from None
    return folder


# -----------------------------------------------------------------------------
# The command line of one side, as a person writes it.
# -----------------------------------------------------------------------------

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OF_A_SHELL = re.compile(r"&&?|\|\|?|;|[0-9]?(>|>>|<)(&[0-9])?")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")


def parse_command(text: str, parser: argparse.ArgumentParser) -> Program:
    """Return the program of a command line: `[NAME=VALUE ...] [python | profstack run] words`.

    `parser` is that of `profstack run`. No shell reads the line. Raises UsageError where it cannot
    be run.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        what = f"{text!r} cannot be read ({error})"
        raise UsageError(what, where="--run", next_step="check its quotes") from None
    for word in words:
        if _OF_A_SHELL.fullmatch(word):
            what = f"no shell reads the command, so {word!r} has no meaning"
            step = "put it into the script, or leave it out"
            raise UsageError(what, where="--run", next_step=step)
    environment = dict(os.environ)
    while words and (found := _ASSIGNMENT.fullmatch(words[0])):
        environment[found[1]] = found[2]
        del words[0]
    interpreter = sys.executable
    if words[:2] == ["profstack", "run"]:
        del words[:2]
    elif words and _PYTHON.fullmatch(os.path.basename(words[0])):
        interpreter = _interpreter(words.pop(0))
    valued = (each.option_strings for each in parser._actions if each.nargs is None)
    own, target = split_target(words, frozenset(chain.from_iterable(valued)))
    _refuse_options(own, parser)
    program = parse_target(target)
    program.check()
    label = shlex.join(presentable_argv(shlex.split(text)))
    return Program(label, tuple(own), program, environment, interpreter=interpreter)


def _refuse_options(own: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Raise UsageError for options that are wrong, or not for a side.

    The parser tells which are given: `-oX`, `-o X` and `--output=X` are one.
    """
    # Without their defaults, even one that is given as its default is seen.
    given = parser.parse_args(list(own), argparse.Namespace(**dict.fromkeys(_NOT_HERE)))
    for action in parser._actions:
        if action.dest in _NOT_HERE and getattr(given, action.dest) is not None:
            what = f"{action.option_strings[-1]} is not for a side"
            step = "leave it out of the command"
            raise UsageError(what, where="--run", next_step=step)


def _interpreter(word: str) -> str:
    """Return the interpreter for a word: this one for a bare `python`, else the file named."""
    if os.path.basename(word) == word:
        return sys.executable
    path = os.path.abspath(os.path.expanduser(word))
    if not os.access(path, os.X_OK):
        step = "check the path, or write 'python'"
        raise UsageError(f"there is no interpreter {word}", where="--run", next_step=step)
    return path
