"""Tell the loops of a script apart: a warm-up loop is not the loop that is measured.

A step belongs to the loop whose call site made it: the user's own lines on the stack when it ended,
and, where calls of a model are steps, the state of gradients and of training. Per step the stack is
only compared with that of the step before. A line that a loop alternates with is a part of it; one
that makes several steps in a row is another loop, which has a plan of its own.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from profstack import code_owner
from profstack.capture import user_regions

# So many steps in a row from one new place are another loop; from several, so many.
NEW_LOOP, NEW_PLACES = 3, 8
# Later loops are watched together.
MOST_LOOPS = 16
# Slices begin in a further loop once it has lasted for this share of the longest other one.
LONG_ENOUGH = 0.25

# One frame of a stack: its code, and how far it is in it.
Place = tuple[CodeType, int]
# What is the same for all steps of one place: the own lines, outermost first, and the state.
Site = tuple[tuple[str, int, str], ...]
Key = tuple[Site, int]
# Bits of the state.
_GRADIENTS, _TRAINING, _CALLS, _OUTSIDE = 1, 2, 4, 8


# -- where slices begin, as the user says ---------------------------------------------------------


@dataclass(frozen=True)
class BeginAt:
    """The place at which slices begin: a step's number, a region, or lines of a file."""

    text: str = ""
    step: int | None = None
    region: str | None = None
    file: str | None = None
    lines: tuple[int, int] = (0, 0)

    @property
    def chooses_place(self) -> bool:
        """Whether only steps made at one place count."""
        return self.region is not None or self.file is not None

    def holds(self, file: str, line: int) -> bool:
        """Return whether a line of a stack is inside the place."""
        first, last = self.lines
        return first <= line <= last and os.path.realpath(file) == self.file

    @classmethod
    def parse(cls, value: str | int, *folders: str) -> BeginAt:
        """Read a step's number, `file.py:LINE`, or else the name of a region.

        The file is looked for in the folders; of a loop, a function or any other statement all
        lines count. Raise ValueError with what is wrong.
        """
        text = str(value).strip()
        if text.lstrip("-").isdigit():
            if int(text) < 0:
                raise ValueError(f"{text} is not a step's number, from 0")
            return cls(text, step=int(text))
        if not text:
            raise ValueError("it needs a step's number, file.py:LINE or a region's name")
        name, _, line = text.rpartition(":")
        if not (name.endswith(".py") and line.isdigit()):
            return cls(text, region=text)
        paths = (os.path.join(folder, name) for folder in folders)
        path = next((each for each in paths if os.path.isfile(each)), None)
        if path is None:
            raise ValueError(f"there is no file {name}")
        try:
            with open(path, "rb") as opened:
                lines = _statement(ast.parse(opened.read()), int(line))
        except (OSError, SyntaxError, ValueError) as error:
            raise ValueError(f"{name} cannot be read: {error}") from None
        if lines is None:
            raise ValueError(f"there is no statement at line {line} of {name}")
        return cls(text, file=os.path.realpath(path), lines=lines)


def _statement(tree: ast.AST, line: int) -> tuple[int, int] | None:
    """Return the lines of the statement that begins at a line, else of the innermost around it."""
    held: list[tuple[int, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.ExceptHandler)):
            decorators = getattr(node, "decorator_list", [])
            first = min(node.lineno, *(each.lineno for each in decorators), node.lineno)
            last = node.end_lineno or first
            if first <= line <= last:
                held.append((first, last))
    beginning = [lines for lines in held if lines[0] == line]
    if beginning:
        return max(beginning)
    return min(held, key=lambda each: each[1] - each[0], default=None)


# -- loops ----------------------------------------------------------------------------------------


@dataclass
class Loop:
    """One loop of the script: the keys of its steps, and how long they take."""

    site: Site = ()
    state: int = 0
    keys: set[Key] = field(default_factory=set)
    # Number of its plan, 0 before it has one.
    plan: int = 0
    # Whether its plan has begun, and whether it may: not before `--begin-at`.
    planned: bool = False
    waits: bool = False
    steps: int = 0
    step_s: float = float("inf")

    def learn(self, steps: int, step_s: float | None) -> None:
        """Note the steps of a slice; the quickest slice says how long one takes."""
        self.steps += steps
        if step_s:
            self.step_s = min(self.step_s, step_s)

    def length(self, *, by_time: bool) -> float:
        """Return how long its steps have lasted, or how many there were."""
        if not by_time:
            return float(self.steps)
        return self.steps * self.step_s if self.step_s < float("inf") else 0.0

    def facts(self) -> dict[str, object]:
        """Return what the recording says of it."""
        calls = bool(self.state & _CALLS)
        return {
            "site": [list(line) for line in self.site],
            "gradients": bool(self.state & _GRADIENTS) if calls else None,
            "training": bool(self.state & _TRAINING) if calls else None,
            "waits": self.waits,
        }


class Loops:
    """Tells which loop made the step that ends; `same` is asked at every step.

    `current` is the loop in progress. `stack` is that of the latest step, the innermost frame
    first, and `state` its state.
    """

    def __init__(self, torch: Any, begin_at: BeginAt | None = None) -> None:
        self.begin_at = begin_at or BeginAt()
        self.current = Loop()
        self.stack: list[Place] = []
        self.state = 0
        # Whether more than the call site tells loops apart.
        self.has_states = True
        self._gradients: Callable[[], bool] = torch.is_grad_enabled
        self._own = code_owner.Places.of(code_owner.script_folder()).is_own
        self._loops: list[Loop] = []
        self._pending: list[Key] = []
        # The key of the latest step.
        self._latest: Key | None = None
        # Steps that begin at calls end where the next one begins: the key of the step in progress.
        self._begun: Key | None = None
        # The step at which the latest rule began a loop.
        self._begun_at = 0
        if self.begin_at.region is not None:
            user_regions.remember(self.begin_at.region)

    @property
    def pending(self) -> bool:
        """Whether the latest step may be the first of another loop."""
        return bool(self._pending)

    def others(self) -> list[Loop]:
        """Return all loops but the one in progress."""
        return [loop for loop in self._loops if loop is not self.current]

    def state_now(self, *, calls: bool, training: bool, since: float) -> int:
        """Return the state of the step that ends; its calls' where they are what is timed."""
        state = 0
        if calls:
            state = _CALLS | (_GRADIENTS if self._gradients() else 0) | (_TRAINING * training)
        if self.begin_at.region is not None and not user_regions.was_inside(since):
            state |= _OUTSIDE
        return state

    def same(self, frame: FrameType | None, state: int) -> bool:
        """Return whether the step was made where the one before was."""
        for code, place in self.stack:
            if frame is None or frame.f_lasti != place or frame.f_code is not code:
                return False
            frame = frame.f_back
        return frame is None and state == self.state and bool(self.stack)

    def is_there_again(self, frame: FrameType | None, state: int) -> bool:
        """Return whether a step is made where the one before was, by the user's own lines."""
        return self._key(frame, state, []) == self._latest

    def begin(
        self, frame: FrameType | None, state: int, total: int, *, goes_on: bool = False
    ) -> Loop:
        """Begin with the loop of a rule that was found; all others are forgotten.

        `goes_on` says that the rule is the one before, which follows another object: they stay, and
        it may be one of them.
        """
        if not goes_on:
            self._loops.clear()
        self._pending.clear()
        key = self._begun = self._remember(frame, state)
        if (known := self._back_to(key, total)) is not None:
            return known
        self._begun_at = total
        return self._enter(key, total)

    def take(
        self, frame: FrameType | None, state: int, total: int, *, delayed: bool
    ) -> Loop | None:
        """Take a step made elsewhere than the last one; return the loop that has begun with it.

        `delayed` says that the stack is that of the step that begins.
        """
        key = self._remember(frame, state)
        if delayed:
            begun, self._begun = self._begun, key
            key = key if begun is None else begun
            # Compared with the next stack only where this one is of the loop in progress.
            if key != self._begun:
                self.stack.clear()
        if key in self.current.keys:
            # A place that the loop comes back from is a part of it.
            self.current.keys.update(self._pending)
            self._pending.clear()
            return None
        # It is asked again at the next step.
        self.stack.clear()
        if (known := self._back_to(key, total)) is not None:
            return known
        self._pending.append(key)
        latest = self._pending[-NEW_LOOP:]
        if self._pending.count(key) >= NEW_LOOP and len(set(latest)) == 1:
            return self._enter(key, total)
        return self._enter(key, total) if len(self._pending) >= NEW_PLACES else None

    def released(self, total: int) -> Loop | None:
        """Return the loop in progress anew where it has waited for a step that has come."""
        first, waiting = self.begin_at.step, self.current
        if first is None or not waiting.waits or total < first:
            return None
        self.current = Loop(waiting.site, waiting.state, waiting.keys)
        self._loops[:] = [self.current]
        return self.current

    def _back_to(self, key: Key, total: int) -> Loop | None:
        """Go on with the loop that a step belongs to, if it is known."""
        found = next((loop for loop in self._loops if key in loop.keys), None)
        if found is not None:
            self._pending.clear()
            if found is not self.current and total - self._begun_at < NEW_LOOP:
                # Another object made so few steps in between: its place is a part of the loop.
                found.keys.update(self.current.keys)
                self._loops = [loop for loop in self._loops if loop is not self.current]
            self.current = found
        return found

    def _enter(self, key: Key, total: int) -> Loop:
        first = self.begin_at.step
        waits = bool(key[1] & _OUTSIDE) or (first is not None and total < first)
        if len(self._loops) > MOST_LOOPS:
            # The last one takes all others.
            self.current = self._loops[-1]
            self.current.keys.update((*self._pending, key))
        else:
            waits = waits or len(self._loops) == MOST_LOOPS
            keys = {*self._pending, key}
            self.current = Loop(key[0], key[1], keys, waits=waits)
            self._loops.append(self.current)
        self._pending.clear()
        return self.current

    def _remember(self, frame: FrameType | None, state: int) -> Key:
        """Remember the stack of a step, and return its key."""
        self.stack.clear()
        self.state = state
        self._latest = self._key(frame, state, self.stack)
        return self._latest

    def _key(self, frame: FrameType | None, state: int, stack: list[Place]) -> Key:
        """Add a frame and those around it to `stack`; return what all steps made there share."""
        site: list[tuple[str, int, str]] = []
        while frame is not None:
            code = frame.f_code
            stack.append((code, frame.f_lasti))
            if self._own(code.co_filename):
                line = (code.co_filename, frame.f_lineno, code.co_name)
                # Recursion makes no other loop.
                if line not in site:
                    site.append(line)
            frame = frame.f_back
        site.reverse()
        if self.begin_at.file is not None:
            inside = any(self.begin_at.holds(file, line) for file, line, _ in site)
            state |= 0 if inside else _OUTSIDE
        if self.begin_at.chooses_place:
            # One loop is inside the place and one is outside.
            return ((), state & _OUTSIDE)
        return tuple(site), state
