"""Try changes of a script: fresh processes in turn, plain and with one change each.

Every round runs each arm that is still open once, in an order that turns round from one to the
next: a machine that becomes slower meanwhile slows all alike. One arm is the plain script once
more, and nobody tells it from a change: what it seems to gain is what nothing gains on this
machine, and no change is said to gain less. Beyond that its whole interval has to lie on one side.

Where the budget has no time for many rounds of all, the half that gains least ends after three
rounds, and again after six: processes of one arm differ by some percent, and many rounds of few
arms tell what few rounds of many do not. What ends so is told as the same, and why.

Many changes are judged, so the intervals share 5 % among all arms (Bonferroni): over a whole
invocation a change that does nothing is told as a gain or a loss once in twenty. An arm ends early
only where an interval of 99.95 % is clear, whatever the number of looks (Haybittle 1971, Peto
1976). Three processes say little of how much processes differ, but all arms together do: their
common spread counts like some further processes of each (Smyth 2004), but of one that spreads more.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median, variance
from typing import Any, Literal

import numpy as np

from profstack.analysis.clean_steps import clean_steps, known_times, timed_steps
from profstack.capture.run import RunOptions
from profstack.capture.slices import Targets
from profstack.changes.built_in import changes
from profstack.changes.contract import KINDS, Change, Kind, Measure, Seen, Value
from profstack.changes.data_loading import PREFETCH, WORKERS
from profstack.changes.process import FILE
from profstack.changes.results import (
    GIVEN,
    LIMITS,
    Found,
    difference,
    digits_limit,
    judged,
    same_given,
)
from profstack.errors import TargetError
from profstack.launch import process
from profstack.launch.child import TRIES
from profstack.launch.scratch import Scratch
from profstack.stats.processes import Prior, common, difference_reach, has_own_spread, means
from profstack.stats.summary import Ratio
from profstack.storage.folder import DATABASE, OPTIONS_FILE
from profstack.storage.reader import Recorded

Word = Literal["gains", "loses", "same", "breaks"]
# Processes of each arm at least, and at most.
LEAST, MOST = 3, 12
# Chance that an invocation tells anything of a change that does nothing; confidence of an interval
# that ends an arm early.
CHANCE, CLEAR = 0.05, 0.9995
# The spread of all arms is worth so many processes of one, where there are as many.
WORTH = 6.0
# So many arms are never narrowed further.
FEW = 2
# A change within so much of the plain run, beyond doubt, is the same, and is not run again.
SAME = 0.02
# Steps of a process: enough for so many seconds, within these numbers.
ENOUGH_S, FEWEST_STEPS, MOST_STEPS = 3.0, 20, 2_000
# What workers have prepared is used up after so many times as many steps: the steps that use it up
# are shorter, but new batches are made meanwhile.
_TO_USE_UP = 4
# Batches that each worker of a DataLoader prepares where nothing is said.
_USUAL_PREFETCH = 2
# The part of the budget for single changes, where there are several.
_OF_ARMS = 0.85
# The first run looks for how long steps take, and ends after so many seconds or steps.
PILOT_S, PILOT_STEPS = 30.0, 200
# Output of a script that failed: so many of its last lines are looked at, for one like this.
_LAST_LINES = 60
_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b(:|$)")
# What is compared of several changes: the first that one of them asks for.
MEASURES: tuple[Measure, ...] = ("item", "run", "step")
PLAIN, AGAIN = "plain", "plain again"


@dataclass
class Process:
    """What one process has found."""

    steps: int = 0
    step_s: float | None = None
    item_s: float | None = None
    # All time from step to step: what lies between them is in it.
    run_s: float | None = None
    first_s: float | None = None
    wall_s: float = 0.0
    code: int = 0
    said: str = ""
    told: dict[str, Any] = field(default_factory=dict)
    # The copy that it ran in, and the folder that this is a copy of.
    copies: list[tuple[str, str]] = field(default_factory=list)

    def time_s(self, of: Measure) -> float | None:
        """Return the time of a step, of an item, or from step to step."""
        return {"step": self.step_s, "item": self.item_s, "run": self.run_s}[of]

    def held(self, chosen: Collection[str]) -> bool:
        """Return whether each of these changes has changed something."""
        held = self.told.get("held", {})
        return all(held.get(name) for name in chosen)

    @property
    def results(self) -> dict[str, Any]:
        """Its fingerprint; empty where it failed."""
        return self.told.get("results", {}) if not self.code else {}


@dataclass
class Arm:
    """One thing that is tried: changes by name, each with its value, and its processes."""

    name: str
    chosen: dict[str, Value | None]
    processes: list[Process] = field(default_factory=list)
    broken: str | None = None
    closed: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether more processes of it are wanted."""
        return self.broken is None and self.closed is None

    def times(self, of: Measure = "step") -> list[float]:
        """Return what is measured of each process, in seconds."""
        return [value for each in self.processes if (value := each.time_s(of)) is not None]


@dataclass(frozen=True)
class Plan:
    """How long to try: `budget_s` in all; `steps` of each process, None to find out."""

    budget_s: float
    steps: int | None = None
    seed: int = 0
    in_place: bool = False
    limit_bytes: int = 1 << 30


class Trials:
    """Runs the arms of one script in turn; `tell` gets a line on each process."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        plan: Plan,
        tell: Callable[[str], None],
    ) -> None:
        self._arguments, self._folder, self._plan, self._tell = arguments, folder, plan, tell
        self._known = changes()
        self._begun = time.monotonic()
        self._scratch = Scratch(Path.cwd(), in_place=plan.in_place, limit_bytes=plan.limit_bytes)
        self.plain, self.again = Arm(PLAIN, {}), Arm(AGAIN, {})
        self.arms: list[Arm] = []
        self.together: list[Arm] = []
        self.seen = Seen()
        self.left_out: dict[str, str] = {}
        self.steps = plan.steps or 0
        # The whole run's own steps, where the first process came to the script's end.
        self.whole_steps: int | None = None
        self.ended = ""
        # So many first steps of a process may have taken batches made before: they do not count
        # beside those that do.
        self._lead, self._counted = 0, self.steps
        # By the first run: the time of a process beside its steps, and of a step.
        self._other_s, self._step_s = 0.0, 0.0
        # Part of the budget is for the gains together.
        self._until_s = plan.budget_s
        # Results of the first run, which changes the last digits of the parameters.
        self._nudged: dict[str, Any] = {}

    # --- What is tried ---

    def look(self) -> None:
        """Run the script once, plain, to see what it does; raise TargetError where it fails."""
        for path in self._scratch.linked:
            self._tell(f"{path} is a link to a large folder: what is written there is not undone")
        pilot = self._run({}, steps=PILOT_STEPS, seconds=PILOT_S, observe=True)
        if pilot.code or pilot.step_s is None:
            what = pilot.said if pilot.code else "no step that repeats was found in it"
            step = "name its steps by profstack.step()"
            if pilot.code:
                step = "see that it runs by itself; where it needs files outside its working "
                step += "folder, or git, give --in-place"
            raise TargetError(what, where=self._arguments[0], next_step=step)
        self.seen = Seen(**(pilot.told.get("seen") or {}))
        self._other_s = max(pilot.wall_s - pilot.steps * pilot.step_s, 0.0)
        self._step_s, self._nudged = pilot.step_s, pilot.results
        if not self.steps:
            wanted = math.ceil(ENOUGH_S / pilot.step_s)
            self.steps = min(max(wanted, FEWEST_STEPS), MOST_STEPS)
        if pilot.steps < PILOT_STEPS and pilot.wall_s < PILOT_S:
            self.whole_steps = pilot.steps
            self.steps = min(self.steps, pilot.steps)
        self._counted = self.steps

    def choose(self, names: Sequence[str] | None = None) -> None:
        """Make an arm for each change that can apply, and each of its values.

        With `names` these changes alone. Why another is left out is kept.
        """
        for name, change in self._known.items():
            if names is not None and name not in names:
                continue
            reason = change.applies(self.seen)
            if reason is not None:
                self.left_out[name] = reason
                continue
            values: Sequence[Value | None] = [None]
            if change.values is not None:
                values = change.values(self.seen)
                if not values:
                    self.left_out[name] = "no other value is left to try"
            for value in values:
                label = name if value is None else f"{name}={value}"
                self.arms.append(Arm(label, {name: value}))
        self._lead_in()
        self._leave_out()
        # Of the arms that are tried.
        self._lead_in()

    def _lead_in(self) -> None:
        """Leave out first steps where workers prepare batches ahead, and make more for them.

        What was made while the script started is used up by then: a longer queue has more of it.
        """
        loaders = [(each["num_workers"], each["prefetch_factor"]) for each in self.seen.loaders]
        workers = max((each for each, _ in loaders), default=0)
        ahead = max((each or 0 for _, each in loaders), default=0) or _USUAL_PREFETCH
        chosen = [(name, value) for arm in self.arms for name, value in arm.chosen.items()]
        times = {WORKERS.name: ahead, PREFETCH.name: workers}
        tried = [int(value or 0) * times[name] for name, value in chosen if name in times]
        queue = max(workers * ahead, *tried, 0)
        self._lead = min(_TO_USE_UP * queue, max(self._counted, queue))
        self.steps = self._counted + self._lead
        if self.whole_steps is not None:
            self.steps = min(self.steps, self.whole_steps)

    def _leave_out(self) -> None:
        """Leave out the last arms where the budget has no time for all: few are tried to an end."""
        process_s = self._other_s + self.steps * self._step_s
        rounds_s = LEAST * process_s
        count = max(int(_OF_ARMS * self._left_s() / rounds_s) - 2, 1)
        if len(self.arms) <= count:
            return
        enough = math.ceil((len(self.arms) + 2) * rounds_s / _OF_ARMS / 60.0)
        for arm in self.arms[count:]:
            self.left_out[arm.name] = (
                f"the budget is too short for it: --budget {enough}m is enough"
            )
        del self.arms[count:]

    @property
    def script(self) -> str | None:
        """The script's file; None for a module or code."""
        first = self._arguments[0]
        return first if Path(first).is_file() else None

    def combine(self, gains: Sequence[Arm]) -> None:
        """Run the gains together that do not exclude each other: gains do not add up.

        `gains` come with the largest first; of one change the best value counts.
        """
        chosen: dict[str, Value | None] = {}
        for arm in gains:
            (name, value), *_ = arm.chosen.items()
            excluded = any(
                name in self._known[other].excludes or other in self._known[name].excludes
                for other in chosen
            )
            if name not in chosen and not excluded:
                chosen[name] = value
        if len(chosen) < 2:
            return
        arm = Arm(" + ".join(chosen), chosen)
        self.together.append(arm)
        self._until_s = self._plan.budget_s
        for number in range(LEAST):
            order = (self.plain, arm, self.again)
            for each in order if number % 2 == 0 else reversed(order):
                if arm.is_open and self._left_s() > 0:
                    self._one(each)

    # --- The processes ---

    def run(self) -> None:
        """Run rounds until every arm is clear or the budget is used up."""
        number = 0
        if len(self.arms) > 1:
            self._until_s = _OF_ARMS * self._plan.budget_s
        while True:
            open_ = [arm for arm in self.arms if arm.is_open]
            ended = self._over(open_, number)
            if ended is not None:
                self.ended = ended
                return
            order = [self.plain, *open_, self.again]
            for arm in order if number % 2 == 0 else reversed(order):
                self._one(arm)
                if self._left_s() <= 0:
                    break
            number += 1
            for arm in open_:
                arm.closed = self._closes(arm)
            self._narrow([arm for arm in open_ if arm.is_open], number)

    def _narrow(self, open_: Sequence[Arm], rounds: int) -> None:
        """End the half of the arms that gains least, where there is no time for all rounds."""
        wanted_s = (MOST - rounds) * self._round_s(open_)
        if rounds not in (LEAST, 2 * LEAST) or self._left_s() >= wanted_s:
            return
        order = sorted(open_, key=lambda arm: self.ratio(arm).factor or math.inf)
        for arm in order[max(math.ceil(len(order) / 2), FEW) :]:
            arm.closed = f"others gained more in {rounds} rounds: a longer --budget tries all on"

    def _round_s(self, open_: Sequence[Arm]) -> float:
        """Return the time of a round of some arms."""
        usual = median(each.wall_s for each in self.plain.processes) if self.plain.processes else 0
        return usual * (len(open_) + 2)

    def _over(self, open_: Sequence[Arm], rounds: int) -> str | None:
        """Return why no further round is run; None where one is."""
        if not open_:
            return "each change is clear, or was ended"
        if rounds >= MOST:
            return f"{MOST} processes of each are the most"
        if rounds >= LEAST and self._round_s(open_) > self._left_s():
            return "the budget is used up"
        return "the budget is used up" if self._left_s() <= 0 else None

    def _left_s(self) -> float:
        return self._until_s - (time.monotonic() - self._begun)

    def _one(self, arm: Arm) -> None:
        """Run one process of an arm and keep what it found."""
        found = self._run(arm.chosen, steps=self.steps)
        arm.processes.append(found)
        if found.code:
            arm.broken = found.said
        elif failed := found.told.get("failed"):
            arm.broken = "; ".join(map(str, failed.values()))
        elif not found.told:
            arm.closed = "what it did was not written: the process ended by os._exit or a signal"
        elif not found.held(arm.chosen):
            arm.closed = "it changed nothing in this run"
        elif found.step_s is None:
            arm.broken = "no step that repeats was found with it"
        self._tell(f"{arm.name}: {arm.broken or arm.closed or f'{found.step_s:.4g} s a step'}")

    def _closes(self, arm: Arm) -> str | None:
        """Return why an arm needs no further process; None where it does."""
        if arm.closed is not None or len(arm.processes) < LEAST:
            return arm.closed
        found = self.ratio(arm, max(CLEAR, self.confidence))
        if found.low is None or found.high is None:
            return None
        floor = self.largest_floor
        if found.high < 1.0 - floor or found.low > 1.0 + floor:
            return "it is clear"
        return "it is the same" if found.low > 1.0 - SAME and found.high < 1.0 + SAME else None

    @property
    def confidence(self) -> float:
        """The confidence of each interval: 5 % shared among all arms."""
        return 1.0 - CHANCE / max(len(self.arms) + len(self.together), 1)

    def floor(self, of: Measure = "step") -> float:
        """Return what the plain script seems to differ from itself, as a part of what is timed."""
        plain, again = self.plain.times(of), self.again.times(of)
        if not plain or not again:
            return 0.0
        return abs(math.exp(fmean(map(math.log, again)) - fmean(map(math.log, plain))) - 1.0)

    @property
    def largest_floor(self) -> float:
        """The largest floor of what was timed: no change gains or loses less."""
        timed: set[Measure] = {"step", *map(self.measure, self.arms)}
        return max(map(self.floor, timed))

    def ratio(self, arm: Arm, confidence: float | None = None) -> Ratio:
        """Return an arm's time of a step over the plain one's, with its interval.

        It is what the change is measured by: see `measure`.
        """
        of = self.measure(arm)
        sides = ([*self.plain.times(of), *self.again.times(of)], arm.times(of))
        return ratio_of(*sides, confidence or self.confidence, self.spread(of))

    def spread(self, of: Measure = "step") -> Prior:
        """Return how much processes of one arm differ, by all arms: of the logarithm of a time."""
        logs = [_logs(arm.times(of)) for arm in (self.plain, self.again, *self.arms)]
        found = common([(variance(each), len(each) - 1) for each in logs if len(each) > 1])
        return Prior(found.deviation, min(float(found.freedom), WORTH))

    @property
    def plain_results(self) -> list[dict[str, Any]]:
        """The fingerprints of the plain processes."""
        every = (*self.plain.processes, *self.again.processes)
        return [each.results for each in every if each.results]

    @property
    def noise(self) -> float | None:
        """How far results of plain processes are apart; None where there is nothing to compare."""
        first, *others = self.plain_results or [{}]
        found = [difference(first, each) for each in others]
        return max((each for each in found if each is not None), default=None)

    @property
    def digits(self) -> float:
        """The largest difference of results that is one of the last digits in this script."""
        if not self.plain_results:
            return digits_limit(None)
        # The first run may have made fewer steps.
        plain = {
            name: rows[: len(self._nudged.get(name, ()))]
            for name, rows in self.plain_results[0].items()
        }
        carried = difference(self._nudged, plain)
        # Infinite where other results are there at all, which tells nothing of digits.
        return digits_limit(carried if carried is not None and math.isfinite(carried) else None)

    def measure(self, arm: Arm) -> Measure:
        """Return what of an arm is compared; of several changes what holds for the most."""
        found = {change.measure for change in self.change_of(arm)}
        return next(of for of in MEASURES if of in found)

    def change_of(self, arm: Arm) -> list[Change]:
        """Return the changes of an arm."""
        return [self._known[name] for name in arm.chosen]

    # --- One process ---

    def _run(
        self,
        chosen: Mapping[str, Value | None],
        *,
        steps: int,
        seconds: float | None = None,
        observe: bool = False,
    ) -> Process:
        """Run the script once with some changes, in a copy of the working folder."""
        recording = Path(tempfile.mkdtemp(prefix="trial-", dir=self._folder))
        (recording / "logs").mkdir()
        options: RunOptions = {
            "lockstep": False,
            "step_by": None,
            "layers": [],
            "left_out": {},
            "targets": asdict(self._targets(steps)),
            "max_steps": steps,
            "max_seconds": seconds,
            "sync": False,
            "source": False,
            "whole": False,
            "trial": {"changes": dict(chosen), "observe": observe, "seed": self._plan.seed},
        }
        (recording / OPTIONS_FILE).write_text(json.dumps(options), encoding="utf-8")
        environment = process.child_environment(recording, [TRIES])
        for name, value in chosen.items():
            make = self._known[name].environment
            environment |= make(value) if make is not None else {}
        printed = recording / "logs" / "output.txt"
        begun = time.monotonic()
        with self._scratch.copy() as (folder, arguments_in), printed.open("wb") as output:
            started = subprocess.Popen(
                process.command(arguments_in(self._arguments)),
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            code = self._wait(started)
            copied = str(folder)
        found = Process(code=code, wall_s=time.monotonic() - begun)
        found.copies = [(copied, str(Path.cwd()))]
        if code:
            found.said = _last_words(printed, code)
        elif (recording / DATABASE).is_file():
            read_process(recording, found, self._lead)
        else:
            found.code, found.said = 1, "it never imported torch"
        shutil.rmtree(recording, ignore_errors=True)
        return found

    def _targets(self, steps: int) -> Targets:
        """Return how long the slices are: few clean steps, after which short ones cost least.

        On a device one clean slice goes to the end: its steps alone have the device's time.
        """
        if self.seen.device == "cpu":
            return Targets()
        return Targets(final_steps=steps, final_s=0.0, max_final_steps=steps)

    def _wait(self, started: subprocess.Popen[bytes]) -> int:
        """Wait for a process; one that takes far longer than the plain ones is ended."""
        usual = [each.wall_s for each in self.plain.processes]
        limit = max(10.0 * median(usual), 60.0) if usual else max(self._left_s(), 60.0)
        try:
            return started.wait(limit)
        except subprocess.TimeoutExpired:
            process.end_session(started)
            return 124
        except BaseException:
            process.end_session(started)
            raise


def _last_words(printed: Path, code: int) -> str:
    """Return how a process failed: its error, else its last line; and the code or signal."""
    if code == 124:
        return "it did not end within ten times the plain run's time"
    lines = printed.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    end = f"exit code {code}" if code > 0 else f"signal {-code}"
    # An error's text may have many lines: its name stands at the begin of the first.
    lines = [line for line in lines[-_LAST_LINES:] if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    said = (errors or lines or [""])[-1].strip()
    return f"{said[:200]} ({end})" if said else end


def read_process(recording: Path, found: Process, lead: int = 0) -> None:
    """Read the times of a process from its recording, and what its trial told.

    All warm steps count but the first `lead`, or the first half where there are fewer than twice as
    many: no layer has observed any of them.
    """
    recorded = Recorded(recording)
    clean, steps = clean_steps(recorded), recorded.steps
    first = max(clean.warm_from, steps[min(lead, len(steps) // 2)]["step"]) if steps else 0
    warm = [row for row in timed_steps(steps) if row["step"] >= first]
    # The mean, since batches of several workers come in bursts, and rare work is a part of it.
    times = known_times(warm, clean.clock)
    found.steps = len(steps)
    found.step_s = fmean(times) if times else None
    # All loops together, by the steps of the first one.
    passed = [row for row in recorded.table("steps") if row["step"] >= first]
    own = sum(row["plan"] == recorded.plan for row in passed)
    found.run_s = sum(row["wall_s"] or 0.0 for row in passed) / own if own else None
    sizes = [row["batch_size"] for row in warm if row["batch_size"]]
    if found.step_s is not None and sizes:
        found.item_s = found.step_s / fmean(sizes)
    firsts = [row["wall_s"] for row in recorded.steps[:1] if row["wall_s"]]
    found.first_s = firsts[0] if firsts else None
    path = recording / FILE
    if path.is_file():
        found.told = json.loads(path.read_text(encoding="utf-8"))


def ratio_of(
    before: Sequence[float], after: Sequence[float], confidence: float, spread: Prior
) -> Ratio:
    """Return after over before of positive times, one of each process, with its interval (Welch).

    There is no interval without a spread, or with no process of a side.
    """
    if not before or not after:
        return Ratio(None, None, None)
    logs = [_logs(before), _logs(after)]
    if not spread.deviation or min(len(before), len(after)) < 2:
        return Ratio(math.exp(fmean(logs[1]) - fmean(logs[0])), None, None)
    first, second = (means(np.array([side]), _prior(side, spread)) for side in logs)
    centre = float(second.values[0] - first.values[0])
    reach = float(difference_reach(first, second, confidence)[0])
    return Ratio(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))


def _logs(times: Sequence[float]) -> list[float]:
    return [math.log(time) for time in times]


def _prior(logs: Sequence[float], spread: Prior) -> Prior:
    """Return what is known beforehand of a side's spread: nothing where it has one of its own."""
    is_own = has_own_spread(variance(logs), len(logs) - 1, spread)
    return Prior(0.0, 0.0) if is_own else spread


# --- What came of an arm ---


def results_of(trials: Trials, arm: Arm) -> tuple[Found | None, float | None, bool]:
    """Return what an arm did to results, the largest difference, and whether it may be recommended.

    It is not known (None) where nothing can be compared, or where plain processes differ by more
    than the change may.
    """
    plain = trials.plain_results
    mine = [each.results for each in arm.processes if each.results]
    kinds: list[Kind] = ["equal", *(each.results for each in trials.change_of(arm))]
    kind = max(kinds, key=KINDS.index)
    noise, digits = trials.noise or 0.0, trials.digits
    limit = digits if kind == "digits" else LIMITS[kind]
    if not plain or not mine or noise > limit > 0.0 or math.isinf(noise):
        return None, None, False
    gaps = [difference(plain[0], each) for each in mine]
    found = max((each for each in gaps if each is not None), default=None)
    if found is None:
        return None, None, False
    word, is_allowed = judged(found, kind, digits)
    shown = found if math.isfinite(found) else None
    feeds = any(change.other_inputs for change in trials.change_of(arm))
    given = [name for name in GIVEN if not (feeds and name == "inputs")]
    is_steady = kind != "different" and all(same_given(plain[0], each) for each in plain)
    if is_steady and not all(same_given(plain[0], each, given) for each in mine):
        # Other data, or other random numbers, than every plain process has.
        return "different", shown, False
    return word, shown, is_allowed or found <= noise
