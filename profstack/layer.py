"""The contract of a layer, the table of built-in layers, and the one place that picks them.

A wrapper describes its layer (`describe`), says whether it can work here
(`unavailable_reason`), what it occupies, and observes one slice at a time: `start()` at the
slice's first boundary, `stop()` at its last, `take()` afterwards for what was seen. The engine
catches an error inside any of the three: it ends the layer and becomes a note.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from profstack.environment import under_nsys
from profstack.errors import UsageError
from profstack.guard import Guard
from profstack.privacy import package_version
from profstack.storage.schema.column import Records
from profstack.storage.schema.layer_table import LayerTable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True)
class Description:
    """A layer's abilities and limits, in the words that the page shows."""

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
class SliceData:
    """The data of one slice: frames by recorded table (`storage.schema.recorded`), files, notes."""

    frames: dict[str, Records] = field(default_factory=dict)
    artifacts: list[Artifact] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    truncated: str | None = None
    # The rows hold every step of the slice, also those that were to be left out.
    holds_all: bool = False
    # "emitted" where the tool gave its data to another that may or may not have been there.
    status: str = "recorded"
    # Memory that the tool holds, where it knows; else the growth of the resident set counts.
    memory_bytes: int | None = None


# What measures memory by line: profstack's tracer, or memory_profiler beside it.
OWN_TRACER, MEMORY_PROFILER = MEMORY_BY = ("profstack", "memory_profiler")


@dataclass(frozen=True)
class SliceContext:
    """The slice that a wrapper is to observe.

    `steps` is the planned number of steps, None for a workload measured whole; `mode` is the name
    of one of the wrapper's `modes`; `folder` is the layer's own folder inside the recording;
    `first_step` is the number of the slice's first step; without `keep_source` no artifact may hold
    text of the script's own files; `memory_by` is one of `MEMORY_BY`.
    """

    index: int
    mode: str
    steps: int | None
    folder: Path
    first_step: int = 0
    keep_source: bool = True
    memory_by: str = OWN_TRACER


# What a mode needs of the calls of modules: only to see evaluation, ranges that torch.profiler
# records, or a listener of the wrapper's own.
UNSEEN, RANGED, LISTENED = "unseen", "ranged", "listened"
FOR_EVER = 1_000_000
# Turns up to here are of modes that count: they measure no time and need no warmth.
COUNTING = 19


@dataclass(frozen=True)
class Mode:
    """One way in which a layer observes steps, and when it does so.

    A run measures in rounds. In each round the modes of the layers take turns.

    - `first_round`, `last_round`: it takes part in these rounds and those between them. With both 0
      it takes part in no round.
    - `turn`: its place in the order of a round. A mode that measures no time has one up to
      `COUNTING`.
    - `later_turn`: its place from round 2 on, if that is another one.
    - `steps`: from round 2 on its slices have at least so many steps.
    - `calls`: what it needs of the calls of modules (`UNSEEN`, `RANGED` or `LISTENED`).
    - `in_discovery`: whether it begins at the first activity of the script, before the rule that
      ends steps is known.
    - `occupies`: what it occupies, if that is less than its layer's `occupies`. Layers that occupy
      the same thing cannot observe one slice together.
    """

    name: str
    first_round: int = 1
    last_round: int = FOR_EVER
    turn: int = 50
    later_turn: int | None = None
    steps: int = 0
    calls: str = UNSEEN
    in_discovery: bool = False
    occupies: frozenset[str] | None = None

    @property
    def counts(self) -> bool:
        """Whether it measures no time: it needs no more than its steps, and no warmth."""
        return self.turn <= COUNTING

    @property
    def turn_in_later_rounds(self) -> int:
        """Its place in the order of every round from the second on."""
        return self.turn if self.later_turn is None else self.later_turn


class Listener:
    """Gets the events of the thread that makes the steps, in slices of a mode `LISTENED`.

    This base class does nothing at an event. The `kind` of what is entered and left is `module`,
    `backward`, `optimizer`, `closure` (which an optimizer's step calls) or `region`. What was
    entered last is left first. What ends by an error in the script is never left.
    """

    # Whether regions that need not nest go to `enter_apart` and `leave_apart`, each with a key of
    # its own. These are regions in generators and coroutines, and those on other threads.
    takes_apart: bool = False

    def enter(self, kind: str, name: str, module: Any = None) -> None:
        """Begin a module's call, a backward pass, an optimizer's step or a region.

        `module` is the module that is called; for an optimizer's step it is the optimizer. For a
        backward pass it says whether `backward` keeps its graph for another one: True or False.
        """

    def given(self, around: object, args: Any, kwargs: Any) -> None:
        """Take the inputs of a module's call before it is entered; `around` is None outermost."""

    def leave(self, kind: str, name: str) -> None:
        """End what was entered last."""

    def step_ended(self, number: int) -> None:
        """End a step; `number` is the next one's."""

    def step_begun(self, number: int) -> None:
        """Begin step `number`, in a slice that goes on or has begun."""

    def enter_apart(self, key: int, name: str) -> None:
        """Begin a region that need not nest, on any thread."""

    def leave_apart(self, key: int) -> None:
        """End the region of that key, on any thread."""


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
    # The distribution that the tool comes with, where it is one of its own.
    package: ClassVar[str | None] = None
    # Tables of the layer's own, beside those of `storage.schema.recorded` that it fills.
    tables: ClassVar[tuple[LayerTable, ...]] = ()

    def __init__(self) -> None:
        # The slice that the wrapper observes or has observed last, where it notes this in `start`.
        self._context: SliceContext | None = None
        # Called when the wrapper ends its slice early, for a tool of the script's own.
        self.on_give_way: Callable[[], None] = lambda: None
        # Called when the tool ends in the midst of its slice: others may observe the rest.
        self.on_end: Callable[[], None] = lambda: None

    @classmethod
    def mode(cls, name: str) -> Mode:
        """Return the mode of that name."""
        return next(mode for mode in cls.modes if mode.name == name)

    @staticmethod
    def unavailable_reason() -> str | None:
        """Return why the layer cannot work here, with what to install; None if it can."""
        return None

    @classmethod
    def version(cls) -> str | None:
        """Return the version of the tool, None when it is not installed."""
        return package_version(cls.package) if cls.package is not None else None

    def busy_reason(self, mode: str) -> str | None:
        """Return why a slice of `mode` cannot be observed now: what is in the way; else None."""
        return None

    def listener(self) -> Listener | None:
        """Return the listener of a mode `LISTENED`. Called after `start`; errors end the layer."""
        return None

    def step_limit(self) -> int | None:
        """Return the most steps one slice may have, None for any number. Called after `start`."""
        return None

    @abstractmethod
    def start(self, context: SliceContext) -> None:
        """Switch the tool on. Called on the workload's thread, at a step boundary."""

    @abstractmethod
    def stop(self) -> None:
        """Switch the tool off and undo whatever `start` changed; safe to call twice."""

    @abstractmethod
    def take(
        self, stamps: Sequence[float], modules: Mapping[int, Any], left_out: Collection[int] = ()
    ) -> SliceData:
        """Return what the stopped slice saw; empty frames with a note when it saw nothing.

        `stamps` are the slice's start and the end of each of its steps, as `time.perf_counter`
        gives them; `modules` are the names (`ModuleInfo`) of all modules by number; `left_out` are
        the steps (from 0 in the slice) that hold evaluation, to be left out where possible.
        """

    def abandon(self) -> None:
        """Stop observing in a child process forked during the slice; write nothing."""
        self.stop()

    def hand_over(self, tool: Any) -> None:
        """Take a tool that runs since the script's first line (`from_start`)."""
        raise NotImplementedError(f"the layer {self.name} starts its tool itself")

    def take_startup(self, tool: Any, folder: Path) -> SliceData:
        """Return what a tool running since the script's first line saw before the first step."""
        raise NotImplementedError(f"the layer {self.name} does not observe the start-up")

    def resume(self) -> None:  # noqa: B027  # most wrappers observe slices
        """Observe from here on, as a `background` layer."""

    def pause(self) -> None:  # noqa: B027  # most wrappers observe slices
        """Observe no more until resumed, at no cost meanwhile, as a `background` layer."""

    def look_out(  # noqa: B027  # as above
        self, began: Callable[[], float], overdue_s: float
    ) -> None:
        """Observe steps alone that take longer than `overdue_s`, as a `background` layer.

        `began` returns when the step in progress began, by `perf_counter`, on any thread.
        """

    def give_way(self) -> None:  # noqa: B027  # most wrappers are unseen by profilers
        """Leave the slice in progress: the script's own torch.profiler is about to begin."""

    def flush(self) -> SliceData:
        """Return what a `background` layer has seen since the last call."""
        return SliceData()

    def close(self) -> None:  # noqa: B027  # most wrappers hold nothing outside slices
        """Undo what is left outside slices too, at the end of the run; safe to call twice."""

    def finish(self, folder: Path) -> list[Artifact]:
        """Write files that span all slices; called once, at the end of the run."""
        return []


# -- the table of built-in wrappers, and those that other packages add ---------------------------
#
# Nothing here imports a wrapper, and with it the tool it wraps, before that very layer is asked
# for. Other packages name their wrappers as entry points of the group `profstack.wrappers`.

# Layer -> "module:class", in the order of the page.
BUILT_IN = {
    "cprofile": "profstack.wrappers.cprofile:CProfileWrapper",
    "torch": "profstack.wrappers.torch_profiler:TorchProfilerWrapper",
    "nvtx": "profstack.wrappers.nvtx:NvtxWrapper",
    "memory": "profstack.wrappers.memory:MemoryWrapper",
    "flops": "profstack.wrappers.flops:FlopsWrapper",
    "watch": "profstack.wrappers.watch:WatchWrapper",
}

# Built in as well, and used where they are asked for by name alone.
ON_REQUEST = {"memray": "profstack.wrappers.memray:MemrayWrapper"}

ENTRY_POINTS = "profstack.wrappers"

# Under Nsight Systems only these: there is one client of CUPTI at a time, and its timeline must
# show steps that nothing else slows.
BESIDE_NSYS = ("nvtx", "watch")


# What is left to do after a run under Nsight Systems.
IMPORT_IT = "; profstack import FILE.nsys-rep --into this folder adds what it saw"


def layer_names() -> list[str]:
    """Return the layers that are used by default, in the order of the page."""
    return list(BUILT_IN)


# What asks for no layer: clean steps alone.
NO_LAYER = "none"


def pick(layers: str | Iterable[str] | None = None, skip: Iterable[str] = ()) -> list[str]:
    """Return the layers asked for, but for those to skip, in the order of the page.

    None asks for the layers used by default, "none" for no layer. Raises `UsageError` for an
    unknown name, and where `skip` leaves no layer.
    """
    if isinstance(layers, str):
        layers = [word.strip() for word in layers.split(",") if word.strip()]
    chosen, skipped = layer_names() if layers is None else [*layers], [*skip]
    if chosen == [NO_LAYER] and not skipped:
        return []
    known = all_layer_names()
    next_step = f"the layers are {', '.join(known)}"
    for name in (*chosen, *skipped):
        if name not in known:
            raise UsageError(f"no layer {name!r}", next_step=next_step)
    kept = [name for name in known if name in chosen and name not in skipped]
    if not kept:
        raise UsageError("no layer is left", next_step=next_step)
    return kept


def check_memory_by(memory_by: str, layers: Collection[str]) -> None:
    """Raise UsageError where memory cannot be measured by `memory_by` with these layers."""
    if memory_by not in MEMORY_BY:
        step = f"memory is measured by {' or by '.join(MEMORY_BY)}"
        raise UsageError(f"no tool {memory_by!r} for memory", next_step=step)
    if memory_by == MEMORY_PROFILER and "memory" not in layers:
        what = "memory_profiler measures in the layer memory, which is left out"
        raise UsageError(what, next_step="leave it in --layers, and out of --skip")


def beside_nsys(layers: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the layers that can be armed beside Nsight Systems, and why the others cannot."""
    if not under_nsys():
        return layers, {}
    reason = "Nsight Systems observes this run: beside it only nvtx and watch are armed"
    kept = [name for name in layers if name in BESIDE_NSYS]
    return kept, {name: reason for name in layers if name not in kept}


def nsys_notes() -> list[tuple[str, str]]:
    """Return slug and text of the notes on a run that Nsight Systems observes; else none."""
    text = (
        "Nsight Systems observes this run: the layer nvtx makes ranges for it, and nothing but the "
        f"watch is armed beside that{IMPORT_IT}"
    )
    return [("under-nsys", text)] if under_nsys() else []


def load(name: str) -> type[Wrapper]:
    """Return the wrapper class of a layer, built in or from another package.

    Raises `UsageError` where the layer is not known, or is another package's and broken.
    """
    if (location := {**BUILT_IN, **ON_REQUEST}.get(name)) is not None:
        return _imported(location)
    for entry in _entry_points():
        if entry.name == name:
            wrapper, problem = _third_party(entry)
            if wrapper is None:
                raise UsageError(problem, next_step=f"mend or uninstall {_origin(entry)}")
            return wrapper
    known = ", ".join(all_layer_names())
    raise UsageError(f"no layer '{name}'", next_step=f"the layers are {known}")


def all_layer_names() -> list[str]:
    """Return the built-in layers, then those that other packages name (not checked)."""
    own = [*BUILT_IN, *ON_REQUEST]
    return [*own, *sorted({entry.name for entry in _entry_points()}.difference(own))]


def third_party() -> tuple[dict[str, type[Wrapper]], list[str]]:
    """Return wrappers of other packages by layer, and a line for each that cannot be used."""
    wrappers: dict[str, type[Wrapper]] = {}
    problems = []
    for entry in _entry_points():
        if entry.name in (*BUILT_IN, *ON_REQUEST) or entry.name in wrappers:
            problems.append(f"layer '{entry.name}' of {_origin(entry)}: the name is taken")
            continue
        wrapper, problem = _third_party(entry)
        if wrapper is None:
            problems.append(problem)
        else:
            wrappers[entry.name] = wrapper
    return wrappers, problems


def _entry_points() -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: (entry.name, entry.value))


def _third_party(entry: EntryPoint) -> tuple[type[Wrapper] | None, str]:
    """Return the class an entry point names, or None and why not."""
    problems: list[BaseException] = []
    # An import of another package may fail in any way; the run goes on without that layer.
    with Guard(failed=problems.append):
        return _imported(entry.value, entry.name), ""
    error = problems[0]
    return None, f"layer '{entry.name}' of {_origin(entry)}: {type(error).__name__}: {error}"


def _imported(location: str, name: str | None = None) -> type[Wrapper]:
    """Return the class at "module:class", checked to be a wrapper (of `name`, if given)."""
    from importlib import import_module

    module, _, attribute = location.partition(":")
    found = getattr(import_module(module), attribute)
    if not (isinstance(found, type) and issubclass(found, Wrapper)):
        raise TypeError(f"{location} is not a profstack.layer.Wrapper")
    if name is not None and found.name != name:
        raise TypeError(f"{location} calls its layer '{found.name}', not '{name}'")
    return found


def _origin(entry: EntryPoint) -> str:
    """Return the package that an entry point came with."""
    return entry.dist.name if entry.dist is not None else entry.value


# -- how many calls of functions a step makes ----------------------------------------------------
#
# cProfile counts them exactly, in memory that does not grow with them. The torch layer needs the
# number: the stack of a step can be traced only where its calls fit into memory.

# By the folder of the recording: one process may record several, one after the other.
_counted: dict[Path, float] = {}


def count_calls(recording: Path, calls: int, steps: int) -> None:
    """Note that `steps` steps made `calls` calls, those of built-in functions included."""
    if steps > 0:
        _counted[recording] = max(_counted.get(recording, 0.0), calls / steps)


def calls_per_step(recording: Path) -> float | None:
    """Return the most calls a step of any slice made on average; None where not counted."""
    return _counted.get(recording)
