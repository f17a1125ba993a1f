"""What a change is: what it patches, when it can apply, what it may do to results.

A change is tried in a fresh process of the script, between `import torch` and the script's next
line, and ends with that process: nothing of the user's is edited. `profstack.changes.built_in`
lists those that come with profstack; a package offers its own by an entry point of the group
`profstack.changes` that names a `Change`. `profstack.try_` makes changes in a process that goes on,
by `Change.on_call`, and undoes them.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

from profstack.code_owner import Places, script_folder

# What a change may do to results: nothing, their last digits (another order of the same sums),
# their precision (fewer digits of each number), or anything at all.
Kind = Literal["equal", "digits", "precision", "different"]
KINDS: tuple[Kind, ...] = ("equal", "digits", "precision", "different")

# What is compared: the time of a clean step; of an item, where steps have another number of them;
# or all time from step to step, where what is changed lies between steps.
Measure = Literal["step", "item", "run"]

Value = int | float | str | bool


@dataclass(frozen=True)
class Place:
    """A line of the user's: where what a change changes is made or called."""

    file: str
    line: int


@dataclass
class Seen:
    """What a run of the script has shown, for changes to say whether they can apply.

    `loaders`, `optimizers` and `wrapped` have the arguments of every object of these kinds that
    the script made, `calls` how often the script called what is counted by name. `root` is the
    model: the module with most parameters that the script called.
    """

    device: str = "cpu"
    trains: bool = False
    loaders: list[dict[str, Any]] = field(default_factory=list)
    optimizers: list[dict[str, Any]] = field(default_factory=list)
    wrapped: list[dict[str, Any]] = field(default_factory=list)
    root: dict[str, Any] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    threads: int = 1
    interop: int = 1
    cores: int = 1
    torch: str = ""


class Run:
    """One process in which a change is made: it notes where, and how often, the change took hold.

    A patch calls `took_hold` whenever it changes something. One that never does is no trial of the
    change.
    """

    def __init__(self, torch: Any, value: Value | None, seen: Mapping[str, Any]) -> None:
        self.torch, self.value, self.seen = torch, value, seen
        self.held: dict[Place | None, int] = defaultdict(int)
        self.root_hooks: list[Callable[[Any, Callable[..., Any]], Callable[..., Any]]] = []
        self.at_root: list[Callable[[Any], None]] = []
        self.awaited: dict[str, Callable[[Any], None]] = {}
        # By the model's class: what is called instead of the forward of which object.
        self.calls: dict[type, dict[int, Callable[..., Any]]] = {}
        self._places: Places | None = None

    def took_hold(self, depth: int = 2) -> None:
        """Note that the change has changed something, at the user's line that led to it."""
        self.held[self.place(depth + 1)] += 1

    def took_hold_in_call(self) -> None:
        """Note it in a call of the model, but not in compiled code, whose graph it would break."""
        if not self.torch.compiler.is_compiling():
            self.held[self.place(3)] += 1

    def is_users_call(self, *through: str, depth: int = 1) -> bool:
        """Whether the user's code made the call above `depth` frames, by way of these packages."""
        frame: FrameType | None = sys._getframe(depth + 1)
        while frame is not None:
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            if package not in through:
                return self._own().is_own(frame.f_code.co_filename)
            frame = frame.f_back
        return False

    def _own(self) -> Places:
        if self._places is None:
            self._places = Places.of(script_folder())
        return self._places

    def place(self, depth: int = 1) -> Place | None:
        """Return the user's innermost line on the stack above `depth` frames; None without one."""
        frame = self.users_frame(depth + 1)
        return Place(frame.f_code.co_filename, frame.f_lineno) if frame is not None else None

    def users_frame(self, depth: int = 1) -> FrameType | None:
        """Return the user's innermost frame above `depth` frames; None without one."""
        own = self._own()
        frame: FrameType | None = sys._getframe(depth)
        while frame is not None and not own.is_own(frame.f_code.co_filename):
            frame = frame.f_back
        return frame

    def around_root(self, wrap: Callable[[Any, Callable[..., Any]], Callable[..., Any]]) -> None:
        """Wrap the calls of the model: `wrap(model, call)` returns what is called instead."""
        self.root_hooks.append(wrap)

    def when_imported(self, module: str, change: Callable[[Any], None]) -> None:
        """Change a module when the script has imported it."""
        self.awaited[module] = change

    def once_at_root(self, change: Callable[[Any], None]) -> None:
        """Change the model just before it is called for the first time."""
        self.at_root.append(change)


@dataclass(frozen=True)
class Called:
    """How a model or a function is called with a change, in a process that goes on after it.

    `active` makes the settings that hold while it is called, and takes them back.
    """

    call: Callable[..., Any]
    active: Callable[[], AbstractContextManager[Any]] = nullcontext


def called_within(target: Any, make: Callable[[], AbstractContextManager[Any]]) -> Called:
    """Return calls of `target` inside a context that is made for each of them."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with make():
            return target(*args, **kwargs)

    return Called(call)


@dataclass(frozen=True)
class Edit:
    """How the user's file gets the change; `profstack.changes.edits` makes the diff of it.

    `argument` sets a keyword of the call of `callee` at the place, and takes the keywords `drops`
    away, which do not go with it (`drops_at_0` where the value is 0). With `unwraps` the call of
    `callee` becomes one of its first argument with the others, but for these keywords. `line` is
    put after the script's imports, `before_loop` before the loop that calls the model, with
    `{model}` for its name there; `within` is the `with` statement that the statement with the
    model's call gets.
    """

    callee: str = ""
    argument: tuple[str, str] | None = None
    drops: tuple[str, ...] = ()
    drops_at_0: tuple[str, ...] = ()
    unwraps: tuple[str, ...] = ()
    line: str = ""
    before_loop: str = ""
    within: str = ""


@dataclass(frozen=True)
class Change:
    """A change of a run that can be tried.

    `applies` returns why it cannot gain anything in a run (None where it can), `values` what to
    set, in the order to try; without any there is nothing to choose. `patch` makes the change in
    the process, `environment` by variables before it starts. `excludes` names changes that cannot
    be made together with this one.
    """

    name: str
    summary: str
    results: Kind
    applies: Callable[[Seen], str | None]
    patch: Callable[[Run], None] | None = None
    environment: Callable[[Value | None], Mapping[str, str]] | None = None
    # Whether what `environment` asks for holds in the process; None: it cannot fail to.
    holds: Callable[[Value | None], bool] | None = None
    values: Callable[[Seen], Sequence[Value]] | None = None
    edit: Edit | None = None
    excludes: tuple[str, ...] = ()
    # The findings that it is the remedy of.
    findings: tuple[str, ...] = ()
    # How a model or a function is called with it, by torch, the target, the value and the type of
    # the device; `of_model`: only a model can be. None: it needs a process of its own.
    on_call: Callable[[Any, Any, Value | None, str], Called] | None = None
    of_model: bool = False
    # Whether it is tried to know what a part costs, and no change to make.
    to_know: bool = False
    # Whether the model is given other tensors by its nature, for the same results.
    other_inputs: bool = False
    measure: Measure = "step"


def device_of(model: Any) -> str:
    """Return the type of the device that a model lies on; one without parameters is on the CPU."""
    first = next(iter(model.parameters()), None)
    return str(first.device.type) if first is not None else "cpu"


def version(text: str) -> tuple[int, int]:
    """Return the major and minor number of a version of torch."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)
