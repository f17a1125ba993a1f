"""Takes notes of how the script set its work up, beside the listener of a slice.

Notes are taken in the first slices whose listener is told of calls, each of a step or a few; clean
steps and slices that measure time know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from profstack import ownfiles
from profstack.engine.setupnotes import Notes
from profstack.interrupts import is_scripts
from profstack.slices import Planned
from profstack.wrapper import Listener

# The fact under which a recording holds the notes of each plan, with the plan's number.
FACT = "setup_{plan}"
# Rounds whose slices are listened in: the later ones measure time.
LAST_ROUND = 1


class Setup:
    """Takes the notes of one run; `write` gets them as facts."""

    def __init__(self, torch: Any, write: Callable[[dict[str, Any]], None]) -> None:
        self._torch = torch
        self._write = write
        self._places = ownfiles.Places.of(ownfiles.script_folder())
        self._notes: dict[int, Notes] = {}
        self._noting: tuple[int, Notes] | None = None

    def beside(self, listener: Listener | None, planned: Planned, plan: int) -> Listener | None:
        """A listener that takes notes beside the slice's own, where there are any to take."""
        if listener is None or planned.round > LAST_ROUND or planned.kind == "whole":
            return listener
        notes = self._notes.setdefault(plan, Notes(self._torch, self._places))
        if notes.failed:
            return listener
        self._noting = plan, notes
        beside: Any = _Noting(listener, notes)
        told: Listener = beside
        return told

    def end(self) -> None:
        """The slice is over: what was noted of its plan so far is written."""
        noted, self._noting = self._noting, None
        if noted is not None:
            plan, notes = noted
            self._write({FACT.format(plan=plan): notes.facts()})


class _Noting:
    """Tells the notes first, and then the slice's own listener, whose errors pass through."""

    def __init__(self, listener: Listener, notes: Notes) -> None:
        self._listener = listener
        self._notes = notes
        # Some listeners have no such methods, and those that ask look for them.
        for name in ("step_begun", "enter_apart", "leave_apart"):
            method = getattr(listener, name, None)
            if method is not None:
                setattr(self, name, method)

    def enter(self, kind: str, name: str, module: Any = None) -> None:
        """Something begins."""
        self._note(self._notes.entered, kind, name, module)
        self._listener.enter(kind, name, module)

    def leave(self, kind: str, name: str) -> None:
        """It has ended."""
        self._note(self._notes.left, kind)
        self._listener.leave(kind, name)

    def step_ended(self, number: int) -> None:
        """A step has ended."""
        self._note(self._notes.step_ended)
        self._listener.step_ended(number)

    def _note(self, note: Callable[..., None], *arguments: Any) -> None:
        # An error in the notes ends these and nothing else.
        if self._notes.failed is not None:
            return
        try:
            note(*arguments)
        except Exception as error:
            self._notes.failed = f"{type(error).__name__}: {error}"
            if is_scripts(error):
                raise
