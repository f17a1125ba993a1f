"""The contract between the engine and one profiling tool.

A wrapper describes its layer (`describe`), says whether it can work here
(`unavailable_reason`), what it occupies, and observes one slice at a time: `start()` at the
slice's first boundary, `stop()` at its last, `take()` afterwards for what was seen. A failure
inside any of the three is the engine's to catch: it disarms the layer and becomes a note.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Description:
    """What a layer does and does not, in the words the page shows."""

    technique: str
    tool: str
    measures: str
    does_not_measure: str
    usual_slowdown: str
    conflicts: str


@dataclass(frozen=True)
class Artifact:
    """A file the tool left in the recording, with the tools that open it."""

    path: Path
    opens_in: str


@dataclass
class Captured:
    """What one slice gave: frames by table of `schema.RECORDED`, files, and notes."""

    frames: dict[str, Records] = field(default_factory=dict)
    artifacts: list[Artifact] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    truncated: str | None = None
    # The rows hold every step of the slice, also those that were to be left out.
    holds_all: bool = False
    # "emitted" where the tool gave its data to another that may or may not have been there.
    status: str = "recorded"
    # Memory that the tool holds, where it knows; else the growth of the resident set stands.
    memory_bytes: int | None = None


@dataclass(frozen=True)
class SliceContext:
    """What a wrapper is told of the slice it observes.

    `steps` is the planned number of steps, None for a workload measured whole; `mode` is the name
    of one of the wrapper's `modes`; `folder` is the layer's own folder inside the recording;
    `first_step` is the number of the slice's first step; without `keep_source` no artifact may hold
    text of the script's own files.
    """

    index: int
    mode: str
    steps: int | None
    folder: Path
    first_step: int = 0
    keep_source: bool = True


# What a mode needs of the calls of modules: to see evaluation, ranges that torch.profiler records,
# or a listener of the wrapper's own.
UNSEEN, RANGED, TOLD = "unseen", "ranged", "told"
FOR_EVER = 1_000_000
# Turns up to here are of modes that count: they measure no time and need no warmth.
COUNTING = 19


@dataclass(frozen=True)
class Mode:
    """One way in which a layer observes, and when its turn comes.

    It takes part in the rounds from `first_round` to `last_round` (both 0: in none), in the order
    of `turn` (up to `COUNTING` for one that measures no time), or of `later_turn` from round 2 on
    where that is given; its slices have at least `steps` steps from round 2 on. `in_discovery`
    begins it at the first activity of the script, before the step rule is known.
    """

    name: str
    first_round: int = 1
    last_round: int = FOR_EVER
    turn: int = 50
    later_turn: int | None = None
    steps: int = 0
    calls: str = UNSEEN
    in_discovery: bool = False
    # What it occupies, where that is less than what its layer does in one mode or another.
    occupies: frozenset[str] | None = None


class Listener(Protocol):
    """Told of what the workload's thread does while a slice of a mode `TOLD` lasts.

    `kind` is module, backward, optimizer or region; what was entered last is left first, but for
    what an error in the script ended without a word.
    """

    def enter(self, kind: str, name: str, module: Any = None) -> None:
        """A module's call, a backward pass, an optimizer's step or a region begins.

        `module` is the module that is called; of an optimizer's step it is the optimizer.
        """

    def leave(self, kind: str, name: str) -> None:
        """It has ended."""

    def step_ended(self, number: int) -> None:
        """A step has ended; `number` is the next one's."""

    def step_begun(self, number: int) -> None:
        """Step `number` begins, in a slice that goes on or has begun; it may be left out."""


def _nothing() -> None:
    """The default of a callback."""


class Wrapper(ABC):
    """Base class of all wrappers. One object serves all slices of its layer in one run."""

    name: ClassVar[str]
    occupies: ClassVar[frozenset[str]]
    modes: ClassVar[tuple[Mode, ...]] = (Mode("timed"),)
    # False where the tool must not begin at the very boundary at which it has ended.
    restarts: ClassVar[bool] = True
    # Whether the layer observes whatever neither a clean slice nor another layer has.
    background: ClassVar[bool] = False
    # Whether the tool can run from the script's first line, and be handed over later.
    from_start: ClassVar[bool] = False
    # Whether what happened after the last stamp can be told apart and is left out of the rows.
    cuts: ClassVar[bool] = False
    description: ClassVar[Description]

    def __init__(self) -> None:
        # Called when the wrapper ends its slice early, for a tool of the script's own.
        self.on_give_way: Callable[[], None] = _nothing
        # Called when the tool is off in the midst of its slice: others may observe the rest.
        self.on_end: Callable[[], None] = _nothing

    @classmethod
    def mode(cls, name: str) -> Mode:
        """The mode of that name."""
        return next(mode for mode in cls.modes if mode.name == name)

    @staticmethod
    def unavailable_reason() -> str | None:
        """Why the layer cannot work on this machine, with what to install; None if it can."""
        return None

    @staticmethod
    def version() -> str | None:
        """Version of the tool, None when it is not installed."""
        return None

    def busy_reason(self, mode: str) -> str | None:
        """Why a slice of `mode` cannot be observed right now, who holds the place; else None."""
        return None

    def listener(self) -> Listener | None:
        """Whom to tell of calls in a mode `TOLD`. Asked after `start`; errors end the layer."""
        return None

    def step_limit(self) -> int | None:
        """The most steps one slice may have; None for no limit. Asked after `start`."""
        return None

    @abstractmethod
    def start(self, context: SliceContext) -> None:
        """Switch the tool on. Called on the workload's thread, at a step boundary."""

    @abstractmethod
    def stop(self) -> None:
        """Switch the tool off and undo whatever `start` changed; safe to call twice."""

    @abstractmethod
    def take(
        self,
        stamps: Sequence[float],
        modules: Mapping[int, Any],
        left_out: Collection[int] = (),
    ) -> Captured:
        """What the stopped slice saw; empty frames with a note when it saw nothing.

        `stamps` are the slice's start and the end of each of its steps, as `time.perf_counter`
        gives them; `modules` are the names (`regions.Named`) of all modules by number; `left_out`
        are the steps (from 0 in the slice) that hold evaluation, to be left out where possible.
        """

    def abandon(self) -> None:
        """In a child process forked during the slice: stop observing it, write nothing."""
        self.stop()

    def hand_over(self, tool: Any) -> None:
        """Take a tool that runs since the script's first line (`from_start`)."""
        raise NotImplementedError(f"the layer {self.name} starts its tool itself")

    def take_startup(self, tool: Any, folder: Path) -> Captured:
        """What a tool running since the script's first line saw before the first step."""
        raise NotImplementedError(f"the layer {self.name} does not observe the start-up")

    def resume(self) -> None:  # noqa: B027  # most wrappers observe slices
        """A `background` layer observes from here on."""

    def pause(self) -> None:  # noqa: B027  # most wrappers observe slices
        """A `background` layer observes no more until it is resumed; it costs nothing meanwhile."""

    def flush(self) -> Captured:
        """What a `background` layer has seen since it was last asked."""
        return Captured()

    def close(self) -> None:  # noqa: B027  # most wrappers hold nothing outside slices
        """The run is over: undo what stands outside slices too; safe to call twice."""

    def finish(self, folder: Path) -> list[Artifact]:
        """Write files that span all slices; called once, at the end of the run."""
        return []
