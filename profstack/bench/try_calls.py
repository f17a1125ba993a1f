"""Try changes of a model or a function in this process: called in turn, plain and with each change.

`profstack try` gives each change fresh processes. Here the same objects are called again and again
and each change is undone, so that only those are tried that can be (`Change.on_call`). What the
target does by itself stays done: a function that trains a model has trained it. Every round
calls each arm for a block of time, in an order that turns round from one to the next, and times are
compared within a round: what slows the machine meanwhile slows all alike. One arm is the plain
calls once more, and what it seems to gain is the floor, as in `profstack try`.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import Any

from profstack.changes.built_in import changes
from profstack.changes.contract import KINDS, Called, Change, Seen, Value, device_of
from profstack.changes.process import model_facts
from profstack.changes.results import LIMITS, difference, judged, sums
from profstack.environment import usable_cores
from profstack.errors import UsageError
from profstack.stats.blocks import undisturbed
from profstack.stats.clock import Clock
from profstack.stats.processes import student_quantile
from profstack.stats.summary import Ratio
from profstack.storage.schema.trials import TrialReport, TrialRow, TrialVerdict

# A block takes so long, and has at least one call.
BLOCK_S = 0.05
# Rounds at least, and at most; from how many on there is an interval.
LEAST, MOST, FEWEST = 10, 100, 6
# Chance that an invocation tells anything of changes that do nothing; confidence of an interval
# that ends an arm early; a difference from the plain calls that needs no further round.
CHANCE, CLEAR, SAME = 0.05, 0.9995, 0.01
_PLAIN, _AGAIN = "plain", "plain again"
_PROCESSES = "it needs processes of its own: 'profstack try SCRIPT' tries it"
_MODEL = "it changes a model, and a function was given"


@dataclass
class _Arm:
    """One thing that is tried, and the times of its calls by round."""

    name: str
    chosen: dict[str, Value | None]
    called: Called
    blocks: dict[int, float] = field(default_factory=dict)
    first_s: float | None = None
    result: list[Any] = field(default_factory=list)
    broken: str | None = None
    is_clear: bool = False


class CallTrials:
    """Tries changes of one target called with the same arguments."""

    def __init__(
        self, target: Any, inputs: Sequence[Any], named: Mapping[str, Any], *, seed: int
    ) -> None:
        import torch

        self._torch, self._target, self._seed = torch, target, seed
        self._inputs, self._named = tuple(inputs), dict(named)
        self._clock = Clock(torch)
        self._known = changes()
        self._plain = _Arm(_PLAIN, {}, Called(target))
        self._again = _Arm(_AGAIN, {}, Called(target))
        self._noise: float | None = 0.0
        self._calls = 1
        self.arms: list[_Arm] = []
        self.together: list[_Arm] = []
        self.left_out: dict[str, str] = {}
        self.ended = ""

    # --- What is tried ---

    def look(self) -> None:
        """Call the target plain, twice, to see what it does; its errors are raised."""
        with self._watched() as seen:
            self._first(self._plain)
        self.seen = seen
        self._first(self._again)
        self._noise = self._apart(self._again)
        with self._plain.called.active():
            self._calls = max(math.ceil(BLOCK_S / max(self._time(self._plain, 1), 1e-7)), 1)

    @contextmanager
    def _watched(self) -> Iterator[Seen]:
        """Note in a call of the target which model it calls and whether it goes backward."""
        torch, target = self._torch, self._target
        seen = Seen(cores=usable_cores() or 1, threads=torch.get_num_threads())
        seen.torch = str(torch.__version__)
        if isinstance(target, torch.nn.Module):
            seen.root, seen.device = model_facts(torch, target), device_of(target)
        if torch.is_grad_enabled():
            seen.calls["calls with gradients"] = 1

        def called(module: Any, _: Any) -> None:
            facts = {} if seen.root else model_facts(torch, module)
            if facts.get("parameters"):
                seen.root, seen.device = facts, device_of(module)

        original = torch.Tensor.backward

        def backward(tensor: Any, *args: Any, **kwargs: Any) -> None:
            seen.trains = True
            original(tensor, *args, **kwargs)

        handle = torch.nn.modules.module.register_module_forward_pre_hook(called)
        torch.Tensor.backward = backward
        try:
            yield seen
        finally:
            torch.Tensor.backward = original
            handle.remove()

    def choose(self, names: Sequence[str] | None) -> None:
        """Make an arm for each change that can apply, and each of its values.

        Raise UsageError for a name that no change has.
        """
        for name in names or ():
            if name not in self._known:
                step = "'profstack try --list' names all"
                raise UsageError(f"there is no change {name!r}", next_step=step)
        is_model = isinstance(self._target, self._torch.nn.Module)
        for name, change in self._known.items():
            if names is not None and name not in names:
                continue
            reason = change.applies(self.seen)
            if change.on_call is None:
                reason = reason or _PROCESSES
            elif change.of_model and not is_model:
                reason = _MODEL
            values = change.values(self.seen) if change.values is not None else [None]
            if reason is None and not values:
                reason = "no other value is left to try"
            if reason is not None:
                self.left_out[name] = reason
                continue
            for value in values:
                label = name if value is None else f"{name}={value}"
                self.arms.append(self._arm(label, {name: value}))

    def _arm(self, label: str, chosen: dict[str, Value | None]) -> _Arm:
        """Make the calls with some changes, those of the model first, and call them once."""
        arm = _Arm(label, chosen, self._plain.called)
        # A change of the model copies it; what is called around it comes after.
        order = sorted(chosen, key=lambda name: not self._known[name].of_model)
        parts: list[Callable[[], Any]] = []
        try:
            target = self._target
            for name in order:
                make = self._known[name].on_call
                assert make is not None  # those without are left out
                called = make(self._torch, target, chosen[name], self.seen.device)
                target = called.call
                parts.append(called.active)
            arm.called = Called(target, lambda: _entered(parts))
            with arm.called.active():
                self._first(arm)
        except Exception as error:
            text = str(error).strip().splitlines()
            arm.broken = f"{type(error).__name__}: {text[0][:200] if text else ''}".rstrip(": ")
        return arm

    # --- Calls ---

    def _first(self, arm: _Arm) -> None:
        """Call an arm once from the same random streams; keep its result and the time it took."""
        self._torch.manual_seed(self._seed)
        random.seed(self._seed)
        begun = self._clock.now()
        result = arm.called.call(*self._inputs, **self._named)
        self._clock.synchronize()
        arm.first_s = self._clock.now() - begun
        arm.result = sums(self._torch, result)

    def _time(self, arm: _Arm, calls: int) -> float:
        """Return the time of a call, the mean of some after one that is not timed."""
        call, inputs, named, clock = arm.called.call, self._inputs, self._named, self._clock
        call(*inputs, **named)
        clock.synchronize()
        begun = clock.now()
        for _ in range(calls):
            call(*inputs, **named)
        clock.synchronize()
        return (clock.now() - begun) / calls

    def run(self, budget_s: float) -> None:
        """Run rounds until each arm is clear or `budget_s` seconds are over."""
        self._rounds(self.arms, budget_s)

    def _rounds(self, arms: Sequence[_Arm], budget_s: float) -> None:
        until = time.monotonic() + budget_s
        first = len(self._plain.blocks)
        for number in range(first, first + MOST):
            alive = [arm for arm in arms if arm.broken is None and not arm.is_clear]
            if not alive:
                self.ended = "each change is clear" if arms else "there is no change to try"
                return
            if number > first and time.monotonic() > until:
                self.ended = "the budget is used up"
                return
            order = [self._plain, *alive, self._again]
            for arm in order if number % 2 == 0 else reversed(order):
                self._block(arm, number)
            for arm in alive:
                arm.is_clear = self._clear(arm)
        self.ended = f"{MOST} rounds are the most"

    def _block(self, arm: _Arm, number: int) -> None:
        try:
            # Garbage is collected before the block, and not in it.
            with undisturbed(), arm.called.active():
                arm.blocks[number] = self._time(arm, self._calls)
        except Exception as error:
            if arm in (self._plain, self._again):
                raise
            arm.broken = f"{type(error).__name__}: {str(error).strip()[:200]}"

    # --- What came of it ---

    def _clear(self, arm: _Arm) -> bool:
        if len(arm.blocks) < LEAST:
            return False
        found = self.ratio(arm, max(CLEAR, self.confidence))
        if found.low is None or found.high is None:
            return False
        is_beyond = found.high < 1.0 - self.floor or found.low > 1.0 + self.floor
        return is_beyond or (found.low > 1.0 - SAME and found.high < 1.0 + SAME)

    @property
    def confidence(self) -> float:
        """The confidence of each interval: 5 % shared among all arms."""
        return 1.0 - CHANCE / max(len(self.arms) + len(self.together), 1)

    @property
    def floor(self) -> float:
        """What the plain calls seem to differ from themselves, as a part of a call."""
        factor = self.ratio(self._again, self.confidence).factor
        return abs(factor - 1.0) if factor is not None else 0.0

    def ratio(self, arm: _Arm, confidence: float) -> Ratio:
        """Return an arm's time of a call over the plain one's, by the rounds that have both."""
        plain = self._plain.blocks
        logs = [math.log(own / plain[at]) for at, own in arm.blocks.items() if at in plain]
        if not logs:
            return Ratio(None, None, None)
        centre = fmean(logs)
        if len(logs) < FEWEST:
            return Ratio(math.exp(centre), None, None)
        reach = student_quantile(confidence, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
        return Ratio(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))

    def _apart(self, arm: _Arm) -> float | None:
        return difference({"outputs": [self._plain.result]}, {"outputs": [arm.result]})

    def combine(self, budget_s: float) -> None:
        """Call the gains together that do not exclude each other."""
        chosen: dict[str, Value | None] = {}
        rows = sorted(map(self._row, self.arms), key=lambda row: row["ratio"] or math.inf)
        for row in (row for row in rows if row["recommended"]):
            (name,) = row["changes"]
            (arm,) = (each for each in self.arms if each.name == row["change"])
            others = [self._known[other].excludes for other in chosen]
            is_excluded = any(name in names for names in others)
            is_excluded |= any(other in self._known[name].excludes for other in chosen)
            if name not in chosen and not is_excluded:
                chosen |= arm.chosen
        if len(chosen) > 1:
            self.together.append(self._arm(" + ".join(chosen), chosen))
            ended = self.ended
            self._rounds(self.together, budget_s)
            self.ended = ended

    def report(self, name: str, seconds: float) -> TrialReport:
        """Return the report of what was tried."""
        rows = [self._row(arm) for arm in self.arms]
        order = ("gains", "same", "loses", "breaks")
        rows.sort(key=lambda row: (order.index(row["verdict"]), row["ratio"] or math.inf))
        return {
            "schema_version": 1,
            "command": [name],
            "steps": self._calls,
            "floor": self.floor if self._again.blocks else None,
            "confidence": self.confidence,
            "plain_processes": 0,
            "plain_results": None if self._noise is None else judged(self._noise, "equal")[0],
            "digits_limit": LIMITS["digits"],
            "seconds": seconds,
            "ended": self.ended,
            "trials": rows,
            "best": [self._row(arm) for arm in self.together],
            "left_out": self.left_out,
        }

    def _row(self, arm: _Arm) -> TrialRow:
        kinds: list[Change] = [self._known[name] for name in arm.chosen]
        found = self.ratio(arm, self.confidence)
        # Where plain calls differ, or give nothing to compare, nothing is known of a change's.
        apart = self._apart(arm) if arm.broken is None and self._noise == 0.0 else None
        kind = max((change.results for change in kinds), key=KINDS.index)
        word, is_allowed = judged(apart, kind) if apart is not None else (None, False)
        verdict, reason = self._verdict(arm, found)
        if verdict == "gains" and not is_allowed:
            reason = "it changes results beyond its kind, and is not recommended"
            if self._noise is None:
                reason = "it returns no tensors or numbers to compare, so it is not recommended"
            elif self._noise:
                reason = "two plain calls give different results, so it is not recommended"
        (change, *more), (value, *_) = kinds, arm.chosen.values()
        plain_s, own_s = _median(self._plain), _median(arm)
        longer = (arm.first_s or 0.0) - (self._again.first_s or 0.0)
        gained = plain_s - own_s if plain_s is not None and own_s is not None else 0.0
        words = change.edit.line if change.edit is not None and not more else ""
        return {
            "change": arm.name,
            "changes": list(arm.chosen),
            "findings": sorted({slug for each in kinds for slug in each.findings}),
            "summary": "; ".join(each.summary for each in kinds),
            "verdict": verdict,
            "reason": reason,
            "recommended": verdict == "gains" and is_allowed,
            "times_of": "step",
            "before_s": plain_s,
            "after_s": own_s,
            "ratio": found.factor,
            "ci95_low": found.low,
            "ci95_high": found.high,
            "processes": 1,
            "run_gain_s": None,
            "first_step_s": arm.first_s,
            "break_even_steps": math.ceil(longer / gained) if longer > gained > 0 else None,
            "peak_rss_bytes": None,
            "plain_peak_rss_bytes": None,
            "peak_device_bytes": None,
            "plain_peak_device_bytes": None,
            "results": word,
            "largest_difference": apart if apart is not None and math.isfinite(apart) else None,
            "file": None,
            "line": None,
            "diff": None,
            "edit": words.format(value=value) or change.summary,
        }

    def _verdict(self, arm: _Arm, found: Ratio) -> tuple[TrialVerdict, str | None]:
        if arm.broken is not None:
            return "breaks", arm.broken
        if found.low is None or found.high is None:
            return "same", "it was called too few times: the budget was used up"
        side = found.beyond(self.floor)
        return "gains" if side < 0 else "loses" if side else "same", None


def _median(arm: _Arm) -> float | None:
    return median(arm.blocks.values()) if arm.blocks else None


@contextmanager
def _entered(parts: Sequence[Callable[[], Any]]) -> Iterator[None]:
    """Enter contexts one after the other."""
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(part())
        yield


@contextmanager
def _restored(target: Any) -> Iterator[None]:
    """Put random streams and a model's buffers (running means) back at the end."""
    import torch

    state = random.getstate()
    cuda: Any = torch.cuda
    devices = list(range(cuda.device_count())) if cuda.is_initialized() else []
    buffers = list(target.buffers()) if isinstance(target, torch.nn.Module) else []
    before = [buffer.detach().clone() for buffer in buffers]
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(state)
        with torch.no_grad():
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)


def try_calls(
    target: Any,
    inputs: Sequence[Any],
    named: Mapping[str, Any],
    *,
    names: Sequence[str] | None,
    budget_s: float,
    seed: int,
) -> TrialReport:
    """Try changes of a model or a function, called with these arguments, and return the report.

    `budget_s` bounds the rounds, a tenth of it those of the gains together. Raise UsageError for a
    name that no change has, and what the target raises as it is.
    """
    if not callable(target):
        raise UsageError(f"{target!r} cannot be called", next_step="give a model or a function")
    begun = time.monotonic()
    trials = CallTrials(target, inputs, named, seed=seed)
    with _restored(target):
        trials.look()
        trials.choose(names)
        left_s = budget_s - (time.monotonic() - begun)
        trials.run(0.9 * left_s)
        trials.combine(0.1 * left_s)
    name = getattr(target, "__qualname__", type(target).__qualname__)
    return trials.report(str(name), time.monotonic() - begun)
