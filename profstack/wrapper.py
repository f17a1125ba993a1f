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
from typing import Any, ClassVar

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


@dataclass(frozen=True)
class SliceContext:
    """What a wrapper is told of the slice it observes.

    `steps` is the planned number of steps, None for a workload measured whole; `mode` is one of
    the wrapper's `modes`; `folder` is the layer's own folder inside the recording.
    """

    index: int
    mode: str
    steps: int | None
    folder: Path


def _nothing() -> None:
    """The default of a callback."""


class Wrapper(ABC):
    """Base class of all wrappers. One object serves all slices of its layer in one run."""

    name: ClassVar[str]
    occupies: ClassVar[frozenset[str]]
    modes: ClassVar[tuple[str, ...]] = ("timed",)
    # Whether what happened after the last stamp can be told apart and is left out of the rows.
    cuts: ClassVar[bool] = False
    description: ClassVar[Description]

    def __init__(self) -> None:
        # Called when the wrapper ends its slice early, for a tool of the script's own.
        self.on_give_way: Callable[[], None] = _nothing

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

    def hand_over(self, profiler: Any) -> None:
        """Take a tool that is running already; the next `start` begins with it."""
        raise NotImplementedError(f"the layer {self.name} starts its tool itself")

    def take_startup(self, profiler: Any, folder: Path) -> Captured:
        """What a tool running since the script's first line saw before the first step."""
        raise NotImplementedError(f"the layer {self.name} does not observe the start-up")

    def close(self) -> None:  # noqa: B027  # most wrappers hold nothing outside slices
        """The run is over: undo what stands outside slices too; safe to call twice."""

    def finish(self, folder: Path) -> list[Artifact]:
        """Write files that span all slices; called once, at the end of the run."""
        return []
