"""Planning slices: which layer observes the next steps, and for how many.

The total number of steps is unknown, so slices come in rounds. Round 1 gives every layer a
single step between clean ones; later rounds repeat the timed layers with slices long enough to
measure, always between clean slices, until the targets are met; then one long clean slice, and
after it the open-ended watch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


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

    def in_lockstep(self) -> Targets:
        """The same with every length in steps, so that all ranks switch at the same ones."""
        return replace(
            self, slice_steps=max(self.slice_steps, 5), slice_s=0.0, final_s=0.0, settle_s=0.0
        )


@dataclass(frozen=True)
class Planned:
    """The next slice: it ends after `steps` steps and `min_s` seconds, or after `max_steps`.

    `observers` are the layers that watch it, each with its mode; two of them only where neither
    blinds the other.
    """

    kind: str
    observers: tuple[tuple[str, str], ...]
    round: int
    steps: int
    min_s: float = 0.0
    max_steps: int | None = None
    # Who observes the slice after this one, for a settle slice: its hooks are put on already.
    prepares: tuple[tuple[str, str], ...] = ()

    def longest(self, limits: Iterable[int | None], so_far: int) -> int | None:
        """The most steps it may have, None for any number; `so_far` are the steps of the run."""
        bounds = [limit for limit in (self.max_steps, *limits) if limit]
        if self.round and self.steps > 1 and self.kind != "watch":
            # A short script of very short steps shall not end within its first long slice.
            bounds.append(max(20, self.steps, so_far))
        return min(bounds, default=None)


@dataclass(frozen=True)
class LayerPlan:
    """One way in which a layer wants to observe: its mode, and the rounds it takes part in.

    Slices from round 2 on have at least `steps` steps, and come in the order of `later_turn`;
    `counts` says that it measures no time, so that it needs no more steps than these, and in round
    1 neither warmth nor clean steps beside it.
    """

    layer: str
    mode: str
    first_round: int = 1
    last_round: int = 1_000_000
    steps: int = 0
    counts: bool = False
    later_turn: int = 0


def plan(
    layers: list[LayerPlan], targets: Targets, shared: tuple[tuple[str, str], ...] = ()
) -> Iterator[Planned]:
    """All slices of one plan, in order; the last one, `watch`, never ends by itself.

    Layers that only count come first, since they need no warmth. `shared` are the layers that can
    stand each other: they have one step together, so that a script of few steps leaves none of
    them empty.
    """
    yield from _first_round(layers, shared)
    later = sorted(layers, key=lambda layer: layer.later_turn)
    for number in range(2, targets.rounds + 1):
        for layer in later:
            if layer.first_round <= number <= layer.last_round:
                observers = ((layer.layer, layer.mode),)
                yield settle(targets, number, observers)
                yield Planned(
                    layer.layer,
                    observers,
                    number,
                    max(targets.slice_steps, layer.steps),
                    0.0 if layer.counts else targets.slice_s,
                )
                yield settle(targets, number)
                yield _clean(number, targets.clean_steps, targets.slice_s)
    last = targets.rounds + 1
    yield settle(targets, last)
    yield _clean(last, targets.final_steps, targets.final_s, targets.max_final_steps)
    yield watch(last)


def watch(number: int) -> Planned:
    """The open-ended slice in which nothing observes and steps are only counted."""
    return Planned("watch", (), number, 1, float("inf"))


def again(planned: Planned, targets: Targets) -> tuple[Planned, Planned]:
    """The same slice once more, settled."""
    return settle(targets, planned.round, planned.observers), planned


def settle(targets: Targets, number: int, prepares: tuple[tuple[str, str], ...] = ()) -> Planned:
    """Steps let go by after a switch: at least one and 3 ms, at most ten, by default.

    The hooks of the slice to come stand already: the interpreter takes some calls to be as fast
    as before after a class was changed.
    """
    return Planned("settle", (), number, 1, targets.settle_s, targets.max_settle_steps, prepares)


def _first_round(layers: list[LayerPlan], shared: tuple[tuple[str, str], ...]) -> Iterator[Planned]:
    """One step each and no settling: eight steps must be enough for every layer."""
    first = [layer for layer in layers if layer.first_round == 1]
    for layer in first:
        if layer.counts:
            yield Planned(layer.layer, ((layer.layer, layer.mode),), 1, 1)
    if len(shared) > 1:
        yield Planned("shared", shared, 1, 1)
        yield _clean(1, 1)
    for layer in first:
        if not layer.counts:
            yield Planned(layer.layer, ((layer.layer, layer.mode),), 1, 1)
            yield _clean(1, 1)


def _clean(number: int, steps: int, min_s: float = 0.0, max_steps: int | None = None) -> Planned:
    return Planned("clean", (), number, steps, min_s, max_steps)
