"""Where a step's time goes in the user's own code, by the watch's samples.

The watch changes nothing of what it sees, follows every line of every function, and goes on for as
long as the run does. Here each of its samples in a step belongs to one site: the user's outermost
function that is called beside the model's work (a metric, a logger, a data set's item), the line of
the loop itself, or, inside the model, the innermost of the user's own lines.

A function that holds most of that work is no site: it is the loop round it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from profstack.analysis.watch import (
    FEWEST_SAMPLES,
    Frame,
    Sample,
    Stack,
    Sum,
    Watched,
    closure_at,
    step_part_at,
    watched,
)
from profstack.privacy import home_relative
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import StepPart

# Parts whose frames are the work of a step; the rest of a stack's parts are beside it.
_WORK: tuple[StepPart, ...] = ("forward", "backward", "optimizer", "loss")
# A training's own work, where it has any: an evaluation inside a step has a forward pass alone.
_TRAINING: tuple[StepPart, ...] = ("backward", "optimizer")
_LEAST_TRAINING = 0.02
# A function around as much of the work is the loop.
_MOST = 0.5


@dataclass
class CallSite:
    """A place in the user's code and its share of the steps.

    `name` is None for a line of the loop itself. `part` is the part of a step that it is in:
    "data wait" in a DataLoader, "forward" in the model, "other" beside both.
    """

    file: str
    line: int
    name: str | None
    part: StepPart
    share: float = 0.0
    lines: dict[tuple[str, int, str], float] = field(default_factory=lambda: defaultdict(float))

    @property
    def hottest(self) -> tuple[str, int, str]:
        """File, line and function of the innermost line of the user's with most of it."""
        return max(self.lines, key=lambda line: self.lines[line])

    @property
    def in_hottest(self) -> float:
        """The share of the steps on that line."""
        return self.lines[self.hottest]


def call_sites(recorded: Recorded, samples: Sequence[Sample] | None = None) -> list[CallSite]:
    """Return the sites of the steps, the largest share first; empty with too few samples.

    With `samples` they are of these.
    """
    seen = watched(recorded)
    samples = seen.in_usual_steps if samples is None else samples
    if len(samples) < FEWEST_SAMPLES:
        return []
    sums = seen.by_stack(samples)
    around = _around(seen, sums)
    whole = sum(each.weight for each in sums)
    sites: dict[tuple[object, ...], CallSite] = {}
    for each in sums:
        found = _site(seen, each.stack, around)
        if found is None:
            continue
        site, frame = found
        site = sites.setdefault((site.file, site.line, site.name, site.part), site)
        site.share += each.weight / whole
        site.lines[home_relative(frame.file), frame.line, frame.name] += each.weight / whole
    return sorted(sites.values(), key=lambda each: -each.share)


def _around(seen: Watched, sums: Sequence[Sum]) -> frozenset[Hashable]:
    """Return the user's functions, and their lines, that hold most of the steps' work.

    So does what an optimizer's closure calls first, as Lightning does `training_step`.
    """
    bodies: set[Hashable] = set()
    held: dict[StepPart, dict[Hashable, float]] = defaultdict(lambda: defaultdict(float))
    weights: dict[StepPart, float] = defaultdict(float)
    for each in sums:
        part, at = step_part_at(each.stack)
        weights[part] += each.weight
        if body := seen.own(each.stack[closure_at(each.stack) :]):
            bodies.add(body[0].function)
        own = seen.own(each.stack[:at])
        lines = {(frame.file, frame.line) for frame in own}
        for place in {frame.function for frame in own} | lines:
            held[part][place] += each.weight
    whole = sum(weights.values())
    work = _TRAINING
    if sum(weights[part] for part in work) < _LEAST_TRAINING * whole:
        work = _WORK
    least = _MOST * sum(weights[part] for part in work)
    places = {place for part in work for place in held[part]}
    most = {place for place in places if sum(held[part][place] for part in work) > least}
    return frozenset(most | bodies)


def _site(
    seen: Watched, stack: Stack, around: frozenset[Hashable]
) -> tuple[CallSite, Frame] | None:
    """Return the site of a stack, and the innermost line of the user's in it."""
    part, at = step_part_at(stack)
    own = seen.own(stack)
    if not own:
        return None
    inner = own[-1]
    if part in _WORK:
        inside = seen.own(stack[at:])
        if part != "forward" or not inside:
            return None
        # Inside the model every line is a place of its own.
        return CallSite(home_relative(inner.file), inner.line, inner.name, part), inner
    for frame in own:
        # A lambda is a line of the loop, and so is a comprehension on Python 3.10 and 3.11.
        if frame.function not in around and not frame.name.startswith("<"):
            file, line, name = frame.function
            return CallSite(home_relative(file), line, name, part), inner
    # A line with most of the work asks a library for the loop.
    if part == "data wait" or (inner.file, inner.line) in around:
        return None
    return CallSite(home_relative(inner.file), inner.line, None, part), inner
