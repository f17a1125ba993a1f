"""`Session`: every layer over a part of a program, in scripts and notebooks.

It is the engine of `profstack run` without a child: it watches the process it is in, and only
while it is open. Its recording lies in a temporary folder unless another one is given.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from profstack import child, registry
from profstack.errors import ProfstackError, RecordingError, UsageError
from profstack.evaluation import in_training
from profstack.flops import copies as flopcopies
from profstack.frozen import Recording
from profstack.inprocess import InProcess
from profstack.interrupts import is_scripts
from profstack.loopsteps import Item, LoopSteps
from profstack.passthrough import strip_frame
from profstack.slices import Targets

if TYPE_CHECKING:
    from profstack.engine.core import Engine
    from profstack.engine.marks import Marks

Function = TypeVar("Function", bound=Callable[..., Any])

# Calls of `run` go on for so long at most, once every layer has had its first slice.
MAX_SECONDS = 60.0


class Session:
    """Measures what its steps do, with every layer, and gives a `Recording`.

        with Session("train") as session:
            for batch in session.steps(loader):
                train(batch)
        session.recording.frames["modules"]

    `layers` are the layers to observe with (default: all); `output` is the folder of the recording
    (default: a temporary one, which goes when the recording does; `recording.save()` copies it),
    and is only replaced with `force`. `targets` say how much is measured; `max_seconds` is the
    time in seconds after which `run` stops repeating a call. Without `keep_source` the recording
    holds no text of the program's own files, so that it and its page can be given to others.

    Without `steps` and `run` the session finds steps by itself, as `profstack run` does. Inside
    `profstack run` or another session it records nothing of its own: it marks steps there, and its
    `recording` is that one's as it stands. With PROFSTACK=0 in the environment it does nothing.

    Raises UsageError for unknown layers, and RecordingError for a folder in use.
    """

    def __init__(
        self,
        name: str = "session",
        *,
        layers: Sequence[str] | None = None,
        output: str | os.PathLike[str] | None = None,
        force: bool = False,
        targets: Targets | None = None,
        max_seconds: float = MAX_SECONDS,
        keep_source: bool = True,
    ) -> None:
        self.name = name
        self._layers = _checked_layers(layers)
        self._output = None if output is None else os.fspath(output)
        self._force = force
        self._targets = targets if targets is not None else Targets()
        self._max_seconds = max_seconds
        self._keep_source = keep_source
        self._state = "new"
        self._process = os.getpid()
        self._marks: Marks | None = None
        self._own: InProcess | None = None
        self._recording: Recording | None = None
        self._problem: str | None = None

    # -- a part of a program ---------------------------------------------------------------------

    def __enter__(self) -> Session:
        if self._state != "new":
            raise UsageError(
                f"the session {self.name!r} has been used", next_step="make another Session"
            )
        self._process = os.getpid()
        if os.environ.get("PROFSTACK") == "0":
            self._state, self._problem = "open", "PROFSTACK=0 switched profstack off"
            return self
        import torch

        from profstack.engine.marks import marks_of

        around = child.engine()
        if around is None and child.is_armed():
            self._problem = "profstack run could not measure this process"
        elif around is None:
            around = self._begin_own(torch)
        else:
            child.complain(f"session {self.name!r} marks the steps of the run it is in")
            self._recording = Recording(around.folder, still_written=True)
        if around is not None:
            self._marks = marks_of(around)
            self._marks.entered()
        self._state = "open"
        return self

    def _begin_own(self, torch: Any) -> Engine | None:
        own = InProcess(self.name, self._layers, self._targets, keep_source=self._keep_source)
        try:
            engine = own.begin(torch, self._output, force=self._force)
        except ProfstackError:
            raise
        except Exception as problem:
            if is_scripts(problem):
                raise
            # A defect of ours: the program goes on unmeasured.
            self._fail(problem)
            return None
        self._own = own
        return engine

    def _fail(self, problem: Exception) -> None:
        self._problem = f"{type(problem).__name__}: {problem}"
        child.complain(f"the session {self.name!r} has no recording, {self._problem}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._state = "over"
        if self._process != os.getpid():
            # A child process forked inside: the recording is its parent's.
            return
        try:
            if self._own is None and self._marks is not None:
                self._marks.left()
            elif self._own is not None and self._marks is not None:
                self._marks.close(failed=kind is not None)
                self._recording = self._own.finish(kind, self._output is not None)
        except Exception as problem:
            if is_scripts(problem):
                raise
            # The program has done its work: that its figures are lost must not end it.
            self._fail(problem)
        finally:
            self._own = self._marks = None

    @property
    def recording(self) -> Recording:
        """What was measured. Raises RecordingError while the session is open, or if it failed."""
        if self._recording is not None:
            return self._recording
        where = f"session {self.name!r}"
        if self._problem is not None:
            raise RecordingError(f"no recording: {self._problem}", where=where)
        raise RecordingError(
            "no recording yet",
            where=where,
            next_step="it is there after the end of 'with Session(...) as session:'",
        )

    def steps(self, iterable: Iterable[Item]) -> LoopSteps[Item]:
        """The items of `iterable`, each with what the loop does with it as one step.

        A step begins where its item is asked for, so that waiting for a loader belongs to it. A
        loop entered again, as in the next epoch, goes on with the same measurement. The iteration
        that leaves the loop by `break` counts, but has no time: nothing tells its end. While the
        session marks steps `profstack.step()` ends none, neither inside such a loop nor between
        two.
        """
        self._check_open("steps")
        frame = sys._getframe(1)
        return LoopSteps(self._marks, iterable, (frame.f_code, frame.f_lineno))

    def run(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function or a model as often as the layers need; each call is a step.

        Returns the last call's result. A model is called as it is: in its own mode, with gradients
        on or off as they are here; the recording's warnings say which. An error in it ends this
        and is raised again. A session can `run` several things: its report is of the one with most
        steps. Inside a step it is one call.
        """
        self._check_open("run")
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise UsageError(
                f"run calls functions and models, not {function!r}",
                next_step="for a coroutine: mark steps with steps() or profstack.step()",
            )
        marks = self._marks
        try:
            if marks is None or not marks.begin(object()):
                return function(*args, **kwargs)
            call = functools.partial(function, *args, **kwargs)
            with flopcopies.given(call):
                return self._repeat(marks, call)
        except BaseException as error:
            strip_frame(error)
            raise

    def _repeat(self, marks: Marks, call: functools.partial[Any]) -> Any:
        what, how = _how_called(call.func)
        try:
            result, calls, in_time = marks.repeat(call, self._max_seconds)
        except BaseException as error:
            strip_frame(error)
            raise
        if self._own is not None:
            text = f"run called {what} {calls} times{how}"
            if not in_time:
                text += f", and ended after {self._max_seconds:g} s, before all rounds were over"
                self._own.stopped_by = "max_seconds"
            self._own.note("session-run", text)
        return result

    def __call__(self, function: Function) -> Function:
        """As a decorator: the function runs in this session.

        While the session is open each call of the function is a step. Else the first call opens
        the session and closes it at its end, and finds steps by itself; further calls run as they
        are.
        """
        if inspect.iscoroutinefunction(function):
            raise UsageError(
                f"a session decorates functions, not {function!r}",
                next_step="for a coroutine: with Session(...) inside it",
            )

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._state == "new":
                with self:
                    return function(*args, **kwargs)
            if self._state == "open" and self._marks is not None:
                return self._marks.call(function, functools.partial(function, *args, **kwargs))
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]  # it takes and gives what the function does

    def _check_open(self, method: str) -> None:
        if self._state != "open":
            raise UsageError(
                f"the session {self.name!r} is not open",
                next_step=f"with Session(...) as session: session.{method}(...)",
            )

    def _repr_html_(self) -> str | None:
        """The page, in a notebook; nothing but the text form while there is none."""
        return self._recording._repr_html_() if self._recording is not None else None

    def __repr__(self) -> str:
        return f"<Session {self.name!r}, {self._state}>"


def _checked_layers(layers: Sequence[str] | None) -> list[str]:
    """The layers asked for, in the order of the page."""
    if layers is None:
        return registry.layer_names()
    chosen = [layers] if isinstance(layers, str) else list(layers)
    known = registry.all_layer_names()
    for name in chosen:
        if name not in known:
            raise UsageError(f"no layer {name!r}", next_step=f"the layers are {', '.join(known)}")
    if not chosen:
        raise UsageError("no layer is left", next_step=f"the layers are {', '.join(known)}")
    return [name for name in known if name in chosen]


def _how_called(function: Any) -> tuple[str, str]:
    """What `run` calls, and in which state, for the reader."""
    import torch

    if not isinstance(function, torch.nn.Module):
        return getattr(function, "__qualname__", type(function).__name__), ""
    if in_training(function):
        mode = ", in train mode, in which calls may change its buffers"
    else:
        mode = ", in eval mode"
    if torch.is_grad_enabled():
        gradients = " and with gradients on: each call keeps what a backward pass would need"
    else:
        gradients = " and with gradients off"
    return type(function).__name__, mode + gradients
