"""Find steps: the rules that tell which event ends an iteration, and evaluation between steps.

Per plan one rule, the first that fires in this order: `profstack.step()`, `Optimizer.step`, the
outermost `generate` of a language model, the outermost call of the module with most parameters,
`Tensor.backward`. The finder gets events with their times and answers whether one of them ended a
step; it knows nothing of torch and is tested with made-up events.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from profstack.guard import compiling, replace, strip_frame

RULES = ("step", "optimizer", "generate", "module", "backward")

# An optimizer that steps more rarely than once in this many steps of the others ends no cycle.
RARE = 16
# Steps of one optimizer for which others that live are waited for: a critic is trained 5 times.
WAITED_FOR = 6
# Calls (or backward passes) after which a script is taken to have no optimizer.
PATIENCE = 3
# The same where an optimizer lives that never stepped: no script accumulates over so many calls.
LONG_PATIENCE = 256


@dataclass
class Candidate:
    """Calls of one module, or backward passes, kept until a rule is found."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    backward: bool = False
    parameters: int = 0


@dataclass(frozen=True)
class StepRule:
    """A rule that was found, the object it follows, and the steps that are already over.

    The last of `past_ends` is the time of the event that found the rule, if that ended a step.
    """

    name: str
    source: int | None
    first_start: float
    past_ends: tuple[float, ...]


class OptimizerCycle:
    """Finds the optimizer whose step ends the repeating cycle of all optimizers of a script.

    `last` is that optimizer, None until the first decision. The decision is made early, so that
    measuring can begin; what is seen later corrects it.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        # Steps of each optimizer in the present cycle's history, and of `last` among them.
        self._counts: dict[int, int] = {}
        self._ends = 0
        # Steps of each since the latest end; for those outside the cycle, the ends at their latest.
        self._since: dict[int, int] = {}
        self._seen_at: dict[int, int] = {}
        self._members: set[int] = set()

    def saw(self, key: int, live: Callable[[], frozenset[int]]) -> bool:
        """Note a step of optimizer `key`; return true when the cycle's end is known anew."""
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if self.last is None:
            # Once every living optimizer has stepped, this one is the last of them.
            decided = live() <= self._counts.keys() if count == 1 else count >= WAITED_FOR
            if decided:
                self._members = set(self._counts)
                self.last = key if count == 1 else list(self._counts)[-1]
                self._ends = self._counts[self.last]
            return decided
        if key == self.last:
            self._ends += 1
            self._since.clear()
            return False
        self._since[key] = self._since.get(key, 0) + 1
        return self._later_decision(key)

    def forget(self, key: int) -> None:
        """Forget an optimizer that ends no cycle."""
        for known in (self._counts, self._since, self._seen_at):
            known.pop(key, None)
        self._members.discard(key)

    def replaced(self, old: int, new: int) -> None:
        """Let an optimizer take the place of one that is gone."""
        for known in (self._counts, self._since, self._seen_at):
            if old in known:
                known[new] = known.pop(old)
        if old in self._members:
            self._members.remove(old)
            self._members.add(new)
        if self.last == old:
            self.last = new

    def ended(self, times: int) -> None:
        """Note several steps of the optimizer that ends the cycle."""
        if self.last is not None and times:
            self._counts[self.last] = self._counts.get(self.last, 0) + times
            self._ends += times
            self._since.clear()

    def _later_decision(self, key: int) -> bool:
        gap = self._ends - self._seen_at.get(key, 0)
        self._seen_at[key] = self._ends
        since = self._since[key]
        if key in self._members:
            usual = (self._counts[key] - since) / max(1, self._ends)
            silent = since > max(RARE, 2 * usual)
        elif gap <= RARE and since == 1:
            # Seldom enough to be overlooked, often enough to belong to the cycle: it ends it.
            self._members.add(key)
            self._begin(key, 1, dict.fromkeys(self._members, max(1, gap)))
            return True
        else:
            silent = since > 1
        # The one that ended the cycle no longer steps: others have taken over, in their order.
        took_over = {other: count for other, count in self._since.items() if count >= since - 1}
        if not silent or key != list(took_over)[-1]:
            return False
        self._members = set(took_over)
        self._begin(key, since, took_over)
        return True

    def _begin(self, last: int, ends: int, counts: dict[int, int]) -> None:
        self.last = last
        self._ends = ends
        self._counts = {**counts, last: ends}
        self._since.clear()
        self._seen_at.clear()


class StepFinder:
    """Decides which event ends a step. A method that finds a rule returns a StepRule.

    Once a rule is found, `rule` and `source` name it and the caller watches that source alone.
    Report optimizer steps all the same: another may take over.
    """

    def __init__(
        self, live_optimizers: Callable[[], frozenset[int]], forced: str | None = None
    ) -> None:
        self.rule: str | None = None
        self.source: int | None = None
        self.inference = False
        self._live = live_optimizers
        self._forced = forced
        self._cycle = OptimizerCycle()
        self._modules: dict[int, Candidate] = {}
        self._backward = Candidate()
        # Optimizer steps since the latest end of a step.
        self._optimizers: list[tuple[int, float]] = []
        self._next_look = PATIENCE

    def allowed(self, rule: str) -> bool:
        """Return whether `rule` may fire now: it is forced, or not below the one in use."""
        if self._forced is not None:
            return rule == self._forced
        return self.rule is None or RULES.index(rule) <= RULES.index(self.rule)

    def ended(self, rule: str, now: float, first: float) -> StepRule | None:
        """Take a call of `profstack.step()`, or the return of an outermost `generate`."""
        if self.rule == rule or not self.allowed(rule):
            return None
        return self._found(rule, None, first, (now,))

    def optimizer_step(self, key: int, now: float, first: float) -> StepRule | None:
        """Take the return of an outermost `Optimizer.step`."""
        if not self.allowed("optimizer"):
            return None
        self._optimizers.append((key, now))
        decided = self._cycle.saw(key, self._live)
        last = self._cycle.last
        if not decided:
            if key == last:
                self._optimizers.clear()
            return None
        past = [end for stepped, end in self._optimizers if stepped == last]
        self._optimizers.clear()
        return self._found("optimizer", last, first, past)

    def forget(self, key: int) -> None:
        """Forget an optimizer: they are known by address, and one address is used again."""
        if key == self._cycle.last:
            self._cycle = OptimizerCycle()
        self._cycle.forget(key)
        self._optimizers = [each for each in self._optimizers if each[0] != key]

    def replaced(self, old: int, new: int) -> None:
        """Let an optimizer that ends steps take the place of one that is gone."""
        self._cycle.replaced(old, new)
        self.source = new

    def conclude(self, first: float) -> StepRule | None:
        """Return the most likely rule of a script that has ended before one was found."""
        if self.rule is not None:
            return None
        steps = [key for key, _ in self._optimizers]
        if steps and self.allowed("optimizer"):
            last = list(dict.fromkeys(steps))[-1]
            past = [end for key, end in self._optimizers if key == last]
            return self._found("optimizer", last, first, past)
        if self._modules and self.allowed("module"):
            key, main = max(self._modules.items(), key=lambda item: item[1].parameters)
            self.inference = not main.backward
            past = main.ends if self.inference else main.starts[1:]
            return self._found("module", key, main.starts[0], past)
        if self._backward.ends and self.allowed("backward"):
            return self._found("backward", None, self._backward.starts[0], self._backward.ends)
        return None

    def cycles_ended(self, times: int) -> None:
        """Note `times` further steps of the optimizer that ends the cycle."""
        if times:
            self._cycle.ended(times)
            self._optimizers.clear()

    def call_started(self, key: int, parameters: int, now: float) -> StepRule | None:
        """Take the start of an outermost call of a module that is no loss."""
        if self.rule is not None or not self.allowed("module"):
            return None
        candidate = self._modules.setdefault(key, Candidate(parameters=parameters))
        candidate.starts.append(now)
        if not (candidate.backward and self._is_decided(len(candidate.starts), candidate)):
            return None
        # A hand-written update: the steps begin where the forward calls do.
        self.inference = False
        return self._found("module", key, candidate.starts[0], candidate.starts[1:])

    def call_ended(self, key: int, now: float) -> StepRule | None:
        """Take the return of an outermost call of a module that is no loss."""
        candidate = self._modules.get(key)
        if self.rule is not None or candidate is None or not self.allowed("module"):
            return None
        candidate.ends.append(now)
        if candidate.backward or not self._is_decided(len(candidate.ends), candidate):
            return None
        self.inference = True
        return self._found("module", key, candidate.starts[0], candidate.ends)

    def backward_ended(self, started: float, now: float) -> StepRule | None:
        """Take the return of a backward pass."""
        for candidate in self._modules.values():
            candidate.backward = True
        if self.rule is not None or not self.allowed("backward"):
            return None
        if self._modules and self._forced is None:
            return None
        passes = self._backward
        passes.starts.append(started)
        passes.ends.append(now)
        if not self._is_decided(len(passes.ends)):
            return None
        return self._found("backward", None, passes.starts[0], passes.ends)

    def _is_decided(self, calls: int, module: Candidate | None = None) -> bool:
        """Return whether, after so many calls, no optimizer is waited for any longer.

        Calls of a `module` decide only where no other module has more parameters.
        """
        if calls < PATIENCE:
            return False
        if module is not None and any(
            other.parameters > module.parameters for other in self._modules.values()
        ):
            return False
        if self._forced is not None or calls >= LONG_PATIENCE:
            return True
        if calls < self._next_look:
            return False
        # A look at all living objects takes tens of milliseconds: each wait is twice the last.
        self._next_look = 2 * calls
        return not self._live()

    def _found(
        self, rule: str, source: int | None, first: float, past: Iterable[float]
    ) -> StepRule:
        self.rule = rule
        self.source = source
        self._modules.clear()
        self._backward = Candidate()
        return StepRule(rule, source, first, tuple(past))


# -- evaluation between training steps, seen where the script switches to it -------------------
#
# A wrapper on the calls themselves would cost every step a Python frame; `eval()` and
# `train(False)` come once for many calls.


class EvaluationWatch:
    """Wraps `train` of the class of one root module, which `eval` calls too.

    `report` is called with a module of that class that has been switched to one of both modes.
    """

    def __init__(self, torch: Any, report: Callable[[Any], None]) -> None:
        self._torch = torch
        self._report = report
        self.watched: type | None = None
        self._wrapper: Any = None
        self._restore: Callable[[], None] = lambda: None

    def is_on(self, root: Any) -> bool:
        """Return whether the wrapper is on the root's class, with no other one on top of it."""
        kind = type(root)
        return self.watched is kind and kind.__dict__.get("train") is self._wrapper

    def put(self, root: Any) -> None:
        """Watch the class of `root`; do nothing where it has no `train` to wrap."""
        kind = type(root)
        original = getattr(kind, "train", None)
        if original is None or kind is self._torch.nn.Module:
            return
        under_dynamo, compiler = compiling(self._torch)
        report = self._report

        @functools.wraps(original)
        def train(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(self, *args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise
            if not (under_dynamo() or compiler._is_compiling_flag):
                report(self)
            return result

        self._wrapper = train
        self._restore = replace(kind, "train", train)
        self.watched = kind

    def take_off(self) -> None:
        """Leave the class as it was found; a wrapper that the script put on top stays."""
        if self.watched is not None:
            self._restore()
            self.watched = None
