"""What has become of each layer in the course of a run, and what is told of its errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profstack import registry
from profstack.interrupts import is_scripts
from profstack.wrapper import Artifact, Listener, Wrapper

# What a layer with data is called.
WITH_DATA = ("recorded", "emitted")


def told(error: BaseException) -> str:
    """An error with the place it came from, in one line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace else ""
    return f"{type(error).__name__}: {error}{where}"


@dataclass
class LayerState:
    """What has become of one layer so far."""

    name: str
    wrapper: Wrapper | None
    status: str = "empty"
    reason: str | None = None
    memory_bytes: int | None = None
    truncated: str | None = None
    artifacts: dict[Path, Artifact] = field(default_factory=dict)

    def end(self, status: str, reason: str) -> None:
        """The layer observes no more; what it recorded before stays."""
        if self.status not in WITH_DATA:
            self.status = status
        self.reason = reason
        self.wrapper = None

    def record(self) -> dict[str, Any]:
        """The row of table `layers`."""
        kind = registry.load(self.name)
        return {
            "name": self.name,
            "technique": kind.description.technique,
            "tool": kind.description.tool,
            "version": kind.version(),
            "status": self.status,
            "reason": self.reason,
            "memory_bytes": self.memory_bytes,
            "truncated": self.truncated,
        }


class GuardedListener:
    """A wrapper's listener whose errors end its layer and go no further.

    What a signal's handler raises in it ends the layer too, since what it had begun to note is
    incomplete, and goes on to the script.
    """

    def __init__(self, listener: Listener, fail: Callable[[BaseException], None]) -> None:
        self._listener: Listener | None = listener
        self._begun: Callable[[int], None] | None = getattr(listener, "step_begun", None)
        apart: Any = listener
        if hasattr(apart, "enter_apart"):
            self.enter_apart = self._guarded(apart.enter_apart)
            self.leave_apart = self._guarded(apart.leave_apart)
        self._fail = fail

    def enter(self, kind: str, name: str, module: Any = None) -> None:
        """Pass on that something begins."""
        if self._listener is not None:
            try:
                self._listener.enter(kind, name, module)
            except BaseException as error:
                if self._ended(error):
                    raise

    def leave(self, kind: str, name: str) -> None:
        """Pass on that it has ended."""
        if self._listener is not None:
            try:
                self._listener.leave(kind, name)
            except BaseException as error:
                if self._ended(error):
                    raise

    def step_ended(self, number: int) -> None:
        """Pass on that a step has ended."""
        if self._listener is not None:
            try:
                self._listener.step_ended(number)
            except BaseException as error:
                if self._ended(error):
                    raise

    def step_begun(self, number: int) -> None:
        """Pass on that a step begins, to a listener that has that method."""
        if self._begun is not None and self._listener is not None:
            try:
                self._begun(number)
            except BaseException as error:
                if self._ended(error):
                    raise

    def _guarded(self, tell: Callable[..., None]) -> Callable[..., None]:
        """The same for what only some listeners have: telling them of ranges that do not nest."""

        def told(*arguments: Any) -> None:
            if self._listener is not None:
                try:
                    tell(*arguments)
                except BaseException as error:
                    if self._ended(error):
                        raise

        return told

    def _ended(self, error: BaseException) -> bool:
        """End the layer; whether the error is the script's."""
        self._listener = None
        scripts = is_scripts(error)
        self._fail(error)
        return scripts
