"""Plan slices: which layer observes the next steps, and for how many.

The total number of steps is unknown, so slices come in rounds. Round 1 gives every layer a
single step between clean ones; later rounds repeat the timed layers with slices long enough to
measure, always between clean slices, until the targets are met; then one long clean slice, and
after it the open-ended watch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypedDict

from profstack.layer import Mode


@dataclass(frozen=True)
class Targets:
    """How much is measured. Times in seconds."""

    slice_steps: int = 3
    slice_s: float = 0.05
    clean_steps: int = 5
    rounds: int = 3
    final_steps: int = 20
    final_s: float = 1.0
    max_final_steps: int = 2000
    settle_s: float = 0.003
    max_settle_steps: int = 10
    # Of each clean slice after the final one, where no layer has any.
    alone_s: float = 0.4

    def in_lockstep(self) -> Targets:
        """Return targets with every length in steps, so that all ranks switch at the same ones."""
        return replace(
            self,
            slice_steps=max(self.slice_steps, 5),
            slice_s=0.0,
            final_s=0.0,
            settle_s=0.0,
            alone_s=0.0,
        )


class Event(TypedDict, total=False):
    """A line of the log of a run's progress: a step rule, a slice, the page, or the run's end."""

    event: str
    phase: str
    rule: str
    kind: str
    layers: list[str] | None
    steps: int
    round: int
    median_s: float | None
    mean_s: float | None
    total: int
    stopped_by: str | None


# Layers with the mode in which each observes.
Observing = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SlicePlan:
    """The plan of one slice: it ends after `steps` steps and `min_s` seconds, or `max_steps`.

    `observers` are the layers that watch it; two of them only where neither blinds the other.
    """

    kind: str
    observers: Observing
    round: int
    steps: int
    min_s: float = 0.0
    max_steps: int | None = None
    # The observers of the next slice, for a settle slice: their hooks are put on already.
    prepares: Observing = ()

    def longest(self, limits: Iterable[int | None], so_far: int) -> int | None:
        """Return the most steps it may have, None for any; `so_far` are the steps of the run."""
        bounds = [limit for limit in (self.max_steps, *limits) if limit]
        if self.round and self.steps > 1 and self.kind != "watch":
            # A short script of very short steps must not end within its first long slice.
            bounds.append(max(20, self.steps, so_far))
        return min(bounds, default=None)


# A layer with one of its modes.
LayerMode = tuple[str, Mode]


def plan(layers: list[LayerMode], targets: Targets, shared: Observing = ()) -> Iterator[SlicePlan]:
    """Yield all slices of one plan, in order; the last one, `watch`, never ends by itself.

    Layers take their turns in the order given, and from round 2 on in that of their later turns.
    Those that only count come first, since they need no warmth. `shared` are the layers that can
    observe together: they have one step together, so that a script of few steps leaves none of
    them empty.
    """
    yield from _first_round(layers, shared)
    later = sorted(layers, key=lambda each: each[1].turn_in_later_rounds)
    for number in range(2, targets.rounds + 1):
        for layer, mode in later:
            if mode.first_round <= number <= mode.last_round:
                observers = ((layer, mode.name),)
                yield settle(targets, number, observers)
                steps = max(targets.slice_steps, mode.steps)
                min_s = 0.0 if mode.counts else targets.slice_s
                yield SlicePlan(layer, observers, number, steps, min_s)
                yield settle(targets, number)
                yield SlicePlan("clean", (), number, targets.clean_steps, targets.slice_s)
    last = targets.rounds + 1
    yield settle(targets, last)
    yield SlicePlan(
        "clean", (), last, targets.final_steps, targets.final_s, targets.max_final_steps
    )
    # Where no layer has slices, that one is at the start of a cold process, and short: none has
    # more steps than came before it.
    for _ in range(0 if layers else _CLEAN_ALONE):
        yield settle(targets, last)
        yield SlicePlan(
            "clean", (), last, targets.clean_steps, targets.alone_s, targets.max_final_steps
        )
    yield watch(last)


# Further clean slices of a run without layers.
_CLEAN_ALONE = 3

# Layers and modes of a run that counts: those that see a step one by one, and those of all steps.
_ONE_BY_ONE = ("torch", "detail")
_TOGETHER = (("cprofile", "timed"), ("torch", "lines"))


def counting_plan(targets: Targets, *, warmup: int, steps: int) -> Iterator[SlicePlan]:
    """Yield the slices of a run that counts what steps do: every layer sees `steps` steps.

    The numbers of the observed steps depend on nothing but the arguments. `warmup` steps go by
    before them, in which memory is taken and code compiled.
    """
    yield SlicePlan("settle", (), 1, warmup)
    for _ in range(steps):
        yield SlicePlan(_ONE_BY_ONE[0], (_ONE_BY_ONE,), 2, 1)
        yield settle(targets, 2)
    for observer in _TOGETHER:
        yield SlicePlan(observer[0], (observer,), 2, steps)
        yield settle(targets, 2)
    yield watch(2)


def watch(number: int) -> SlicePlan:
    """Return the open-ended slice that nothing observes: its steps are only counted."""
    return SlicePlan("watch", (), number, 1, float("inf"))


def settle(targets: Targets, number: int, prepares: Observing = ()) -> SlicePlan:
    """Return the steps let go by after a switch: at least one and 3 ms, at most ten, by default.

    The hooks of the next slice are on already: after a class was changed the interpreter needs
    some calls to become as fast as before.
    """
    return SlicePlan("settle", (), number, 1, targets.settle_s, targets.max_settle_steps, prepares)


def _first_round(layers: list[LayerMode], shared: Observing) -> Iterator[SlicePlan]:
    """Yield one step each and no settling: eight steps must be enough for every layer."""
    clean = SlicePlan("clean", (), 1, 1)
    first = [(layer, mode) for layer, mode in layers if mode.first_round == 1]
    for layer, mode in first:
        if mode.counts:
            yield SlicePlan(layer, ((layer, mode.name),), 1, 1)
    if len(shared) > 1:
        yield SlicePlan("shared", shared, 1, 1)
        yield clean
    for layer, mode in first:
        if not mode.counts:
            yield SlicePlan(layer, ((layer, mode.name),), 1, 1)
            yield clean


# Slices of one run that are repeated because evaluation fell into them.
MOST_REPEATED = 4
# The same for those that another loop has ended.
MOST_INTERRUPTED = 20


class SliceQueue:
    """Gives out the slices of a plan one by one; each new plan begins with its first one."""

    def __init__(self, make_plan: Callable[[], Iterator[SlicePlan]], targets: Targets) -> None:
        self.targets = targets
        # The layers that may not begin again at the step number at which they ended.
        self.ended: tuple[frozenset[str], int | None] = (frozenset(), None)
        # The round of the slice that ended last.
        self.finished_round = 0
        self._make_plan = make_plan
        self._plans: dict[int, Iterator[SlicePlan]] = {}
        self._number = 0
        self._repeated = self._interrupted = 0

    def begin(self, number: int) -> None:
        """Begin the plan of this number, or go on with it."""
        self._number = number
        if number not in self._plans:
            self._plans[number] = self._make_plan()

    def put_first(self, *planned: SlicePlan) -> None:
        """Put slices before all others of the plan."""
        self._plans[self._number] = chain(planned, self._plans.get(self._number, ()))

    def interrupted(self, planned: SlicePlan) -> None:
        """Put a slice first once more into which another loop fell, if not for too many times."""
        if planned.kind == "watch" and planned.round:
            self.put_first(planned)
        elif self._interrupted < MOST_INTERRUPTED and (
            planned.observers or planned.kind == "clean"
        ):
            self._interrupted += 1
            self.put_first(planned)

    def repeat(self, planned: SlicePlan) -> None:
        """Put a spoilt slice first once more, where it is worth another one."""
        if planned.round >= 2 and self._repeated < MOST_REPEATED:
            self._repeated += 1
            self.put_first(settle(self.targets, planned.round, planned.observers), planned)

    def next(self, total: int) -> SlicePlan:
        """Return the slice that begins after `total` steps.

        A step to settle comes first where a tool would start at the very boundary at which it has
        ended and must not.
        """
        # A plan never ends: its last slice is the watch.
        planned = next(self._plans[self._number])
        layers, ended_at = self.ended
        if ended_at == total and any(name in layers for name, _ in planned.observers):
            self.put_first(planned)
            return settle(self.targets, planned.round)
        return planned
