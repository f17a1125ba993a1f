"""The wrappers of one run: switch them on and off, and keep what the recording holds of each.

An error of a wrapper ends its layer with a reason in the recording; the workload goes on. The
error of a signal's handler is not the wrapper's: it passes to the script, and the engine,
interrupted in the midst of a switch, takes everything off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from profstack import layer as profstack_layer
from profstack.capture import script_ranges, user_regions
from profstack.capture.slices import Observing, SlicePlan
from profstack.environment import rss_bytes
from profstack.guard import Guard, is_scripts
from profstack.layer import Artifact, Listener, SliceContext, SliceData, Wrapper
from profstack.storage.folder import Writer
from profstack.storage.schema.column import SqlValue
from profstack.storage.vocabulary import WITH_DATA

# -- the state of each layer, and its errors -----------------------------------------------------


def error_text(error: BaseException) -> str:
    """Return an error with the place it came from, in one line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace else ""
    return f"{type(error).__name__}: {error}{where}"


@dataclass
class LayerState:
    """The state of one layer; `wrapper` is None once the layer has ended."""

    name: str
    wrapper: Wrapper | None
    status: str = "empty"
    reason: str | None = None
    memory_bytes: int | None = None
    truncated: str | None = None
    artifacts: dict[Path, Artifact] = field(default_factory=dict)

    def end(self, status: str, reason: str) -> None:
        """Let the layer observe no more; what it recorded before stays."""
        if self.status not in WITH_DATA:
            self.status = status
        self.reason, self.wrapper = reason, None

    def keep(self, artifacts: list[Artifact]) -> None:
        """Keep the files that the layer has written."""
        self.artifacts.update((artifact.path, artifact) for artifact in artifacts)

    def record(self) -> dict[str, SqlValue]:
        """Return the row of table `layers`."""
        columns = ("name", "status", "reason", "memory_bytes", "truncated")
        return {**{column: getattr(self, column) for column in columns}, **self._tool}

    @cached_property
    def _tool(self) -> dict[str, SqlValue]:
        """The row's facts on the tool: the version is read from the files of its package."""
        kind = profstack_layer.load(self.name)
        said = kind.description
        return {"technique": said.technique, "tool": said.tool, "version": kind.version()}


def _guarded(name: str) -> Any:
    """Return the method `name` of `GuardedListener`, for events that are rare."""

    def call(self: GuardedListener, *arguments: Any) -> None:
        try:
            getattr(self._listener, name)(*arguments)
        except BaseException as error:
            if self._passes(error):
                raise
        if self._then is not None:
            getattr(self._then, name)(*arguments)

    return call


class GuardedListener(Listener):
    """Passes events on to a listener, and afterwards to the listener `then`, if there is one.

    `fail` gets an error of the first listener, which then gets no more events. The error passes to
    the script if a signal's handler has raised it. Errors of `then` pass as they are.
    """

    def __init__(
        self,
        listener: Listener,
        fail: Callable[[BaseException], None],
        then: Listener | None = None,
    ) -> None:
        self.takes_apart = (then or listener).takes_apart
        self._listener = listener
        self._fail = fail
        self._then = then

    def _passes(self, error: BaseException) -> bool:
        """End the listener; return whether the error passes to the script."""
        passes = is_scripts(error)
        self._listener = Listener()
        self._fail(error)
        return passes

    # No `Guard`, and written out: these run at every call of a module or in every step.

    def enter(self, kind: str, name: str, module: Any = None) -> None:
        """Pass on that something begins."""
        try:
            self._listener.enter(kind, name, module)
        except BaseException as error:
            if self._passes(error):
                raise
        if self._then is not None:
            self._then.enter(kind, name, module)

    def given(self, around: object, args: Any, kwargs: Any) -> None:
        """Pass on the inputs of a module's call."""
        try:
            self._listener.given(around, args, kwargs)
        except BaseException as error:
            if self._passes(error):
                raise
        if self._then is not None:
            self._then.given(around, args, kwargs)

    def leave(self, kind: str, name: str) -> None:
        """Pass on that it has ended."""
        try:
            self._listener.leave(kind, name)
        except BaseException as error:
            if self._passes(error):
                raise
        if self._then is not None:
            self._then.leave(kind, name)

    def step_ended(self, number: int) -> None:
        """Pass on that a step has ended."""
        try:
            self._listener.step_ended(number)
        except BaseException as error:
            if self._passes(error):
                raise
        if self._then is not None:
            self._then.step_ended(number)

    def step_begun(self, number: int) -> None:
        """Pass on that a step begins."""
        try:
            self._listener.step_begun(number)
        except BaseException as error:
            if self._passes(error):
                raise
        if self._then is not None:
            self._then.step_begun(number)

    enter_apart = _guarded("enter_apart")
    leave_apart = _guarded("leave_apart")


# -- the tables `layers`, `artifacts` and `notes` ------------------------------------------------


class LayerLog:
    """Keeps the tables `layers` and `artifacts`, and writes `notes`; `layers` are by name."""

    def __init__(self, writer: Writer) -> None:
        self.layers: dict[str, LayerState] = {}
        self._writer = writer
        # The resident set where the slice began: the tools hold what it has grown by.
        self.rss_before: int | None = None
        # Reasons for which layers gave way: each is noted once.
        self._noted: set[str] = set()

    def write(self) -> None:
        """Write the tables with their present content."""
        self._writer.replace("layers", [state.record() for state in self.layers.values()])
        artifacts = [
            {
                "layer": state.name,
                "path": path.relative_to(self._writer.folder).as_posix(),
                "opens_in": artifact.opens_in,
                "bytes": path.stat().st_size if path.exists() else None,
            }
            for state in self.layers.values()
            for path, artifact in state.artifacts.items()
        ]
        self._writer.replace("artifacts", artifacts)

    def note(self, slug: str, text: str, layer: str | None = None) -> None:
        """Record something the reader of the report should know."""
        self._writer.write({"notes": [{"slug": slug, "layer": layer, "text": text}]})

    def take_in(self, state: LayerState, taken: SliceData) -> None:
        """Take in what a layer has handed over, but for its rows."""
        if any(taken.frames.values()):
            state.status = taken.status
            state.reason = None
        for slug, text in taken.notes:
            self.note(slug, text, state.name)
            if state.status not in WITH_DATA:
                state.reason = text
        state.truncated = taken.truncated or state.truncated
        state.keep(taken.artifacts)
        grown, after = taken.memory_bytes, rss_bytes()
        if grown is None and after is not None and self.rss_before is not None:
            grown = after - self.rss_before
        if grown is not None:
            state.memory_bytes = max(state.memory_bytes or 0, grown)

    def gave_way(self, state: LayerState, reason: str) -> None:
        """Note that a layer leaves a slice to a tool of the script's own."""
        if state.status == "empty":
            state.status = "skipped"
        if state.reason != reason and reason not in self._noted:
            self._noted.add(reason)
            self.note("gave-way", f"{state.name}: {reason}", state.name)
        if state.status == "skipped":
            state.reason = reason

    def guard(self, state: LayerState) -> Guard:
        """Return a guard in which an error of the layer's wrapper ends the layer, with a note."""
        return Guard(failed=partial(self.fail, state))

    def fail(self, state: LayerState, error: BaseException) -> None:
        """Mark the layer as failed without re-raising, with a note of what and where."""
        text = error_text(error)
        state.end("failed", f"{_cause(error)}: {text}" if is_scripts(error) else text)
        self.note("layer-failed", f"the layer {state.name} failed: {state.reason}", state.name)

    def end_all(self, error: BaseException) -> None:
        """End all layers in the midst of the run, and note why."""
        reason = f"{_cause(error)}: {error_text(error)}"
        self.note("disarmed", f"stopped by {reason}")
        for state in self.layers.values():
            if state.wrapper is not None and state.status not in WITH_DATA:
                state.end("failed", f"before this layer's turn came, all ended by {reason}")
        self.write()


def _cause(error: BaseException) -> str:
    """Name what an error that ended something is, for the reader."""
    if is_scripts(error):
        return "an interruption of the script's that came in profstack's own work"
    return "a defect of profstack"


class Observers:
    """All layers of a run; `active` are those that observe the slice in progress."""

    def __init__(
        self,
        layers: list[str],
        writer: Writer,
        left_out: Mapping[str, str] | None = None,
        memory_by: str = profstack_layer.OWN_TRACER,
    ) -> None:
        self.writer = writer
        self._memory_by = memory_by
        self.log = LayerLog(writer)
        self.layers = self.log.layers
        self.active: list[LayerState] = []
        self.on_give_way: Callable[[], None] = lambda: None
        # A layer that ends early lets go of its wrapper; what that holds is undone at the end.
        self._wrappers: list[Wrapper] = []
        # The active layers whose tools have ended by themselves.
        self._over: set[str] = set()
        for name in layers:
            state = self.layers[name] = LayerState(name, None)
            with self.log.guard(state):
                kind = profstack_layer.load(name)
                if (reason := kind.unavailable_reason()) is not None:
                    state.end("unavailable", reason)
                    continue
                wrapper = state.wrapper = kind()
                wrapper.on_give_way = self._gave_way
                wrapper.on_end = partial(self._tool_ended, state)
                self.writer.declare(name, kind.tables)
                self._wrappers.append(wrapper)
        for name, why in (left_out or {}).items():
            self.layers[name] = LayerState(name, None, "skipped", why)
        self.log.write()

    def _gave_way(self) -> None:
        self.on_give_way()
        for state, wrapper in self._running(active=True):
            with self.log.guard(state):
                wrapper.give_way()

    def start(self, planned: SlicePlan, index: int, steps: int | None, first_step: int = 0) -> bool:
        """Switch the slice's observers on; return false when none of them could be."""
        self.log.rss_before = rss_bytes()
        self._over.clear()
        for position, (name, mode) in enumerate(planned.observers):
            state = self.layers[name]
            if (wrapper := state.wrapper) is None:
                continue
            with self.log.guard(state):
                try:
                    if (busy := wrapper.busy_reason(mode)) is not None:
                        self.log.gave_way(state, busy)
                        continue
                    number, place = index + position, self._folder_of(state)
                    keep, by = self.writer.keep_source, self._memory_by
                    wrapper.start(SliceContext(number, mode, steps, place, first_step, keep, by))
                    self.active.append(state)
                except BaseException:
                    # Also Ctrl-C in the midst of it: the tool would stay on in a script that goes
                    # on. The reader needs to know why the start failed, not the stop.
                    with Guard():
                        wrapper.stop()
                    raise
        return bool(self.active)

    def _folder_of(self, state: LayerState) -> Path:
        folder = self.writer.folder / state.name
        folder.mkdir(exist_ok=True)
        return folder

    def _running(self, *, active: bool = False) -> Iterator[tuple[LayerState, Wrapper]]:
        """Yield the layers that have not ended, or those of the slice, with their wrappers."""
        for state in self.active if active else self.layers.values():
            if state.wrapper is not None:
                yield state, state.wrapper

    def step_limits(self) -> list[int | None]:
        """Return the most steps that each active observer can take in."""
        return [wrapper.step_limit() for _, wrapper in self._running(active=True)]

    def all_cut(self) -> bool:
        """Return whether every active observer can leave single steps out of what it saw."""
        return all(wrapper.cuts for _, wrapper in self._running(active=True))

    def hand_over(self, tools: Mapping[str, object]) -> None:
        """Give the wrappers the tools that run since the script's first line, by layer."""
        for state, wrapper in self._running():
            if state.name in tools:
                wrapper.hand_over(tools[state.name])

    def hand_over_background(self, tools: dict[str, object]) -> None:
        """Give the layers in the background their tools, and take these out of `tools`."""
        names = [state.name for state, _ in self._background() if state.name in tools]
        self.hand_over({name: tools.pop(name) for name in names})

    def take_startup(self, tools: Mapping[str, object]) -> None:
        """End what observed the start-up alone, and write what it saw."""
        for state, wrapper in self._running():
            if state.name in tools:
                with self.log.guard(state):
                    captured = wrapper.take_startup(tools[state.name], self._folder_of(state))
                    self.writer.write(captured.frames)
                    state.keep(captured.artifacts)

    def restarts(self, name: str) -> bool:
        """Return whether a layer may begin at the very boundary at which it has ended."""
        state = self.layers.get(name)
        return state is None or state.wrapper is None or state.wrapper.restarts

    def in_discovery(self) -> Observing:
        """Return the layers that begin before the step rule is known, each with its mode."""
        return tuple(
            (state.name, mode.name)
            for state, wrapper in self._running()
            for mode in wrapper.modes
            if mode.in_discovery
        )

    def calls_wanted(self, observers: Iterable[tuple[str, str]]) -> set[str]:
        """Return what the slice's observers need of the modules' calls; none where they are busy.

        No ranges where a profiler of the script's own would record them.
        """
        wanted = set()
        for name, mode in observers:
            # Asked again at the start of the slice, where an error ends the layer with a note.
            with Guard():
                wrapper = self.layers[name].wrapper
                if wrapper is not None and wrapper.busy_reason(mode) is None:
                    wanted.add(wrapper.mode(mode).calls)
        return wanted

    def listener(self) -> Listener | None:
        """Return the listener of the slice that has begun, guarded; None where none is needed."""
        for state, wrapper in self._running(active=True):
            with self.log.guard(state):
                if (listener := wrapper.listener()) is not None:
                    return GuardedListener(listener, partial(self._listener_failed, state))
        return None

    def _listener_failed(self, state: LayerState, error: BaseException) -> None:
        if state.wrapper is not None:
            with Guard():
                state.wrapper.stop()
        self.log.fail(state, error)

    # -- layers in the background ------------------------------------------------------------

    def _background(self) -> Iterator[tuple[LayerState, Wrapper]]:
        return ((state, wrapper) for state, wrapper in self._running() if wrapper.background)

    def watch(self, *, on: bool) -> None:
        """Let the layers observe that take what no slice has, or pause them.

        What they have seen is written when they pause, for the early page and a killed run's.
        """
        for state, wrapper in self._background():
            with self.log.guard(state):
                (wrapper.resume if on else wrapper.pause)()
        if not on:
            self.flush()

    def look_out(self, began: Callable[[], float], overdue_s: float) -> None:
        """Let the layers in the background observe steps alone that take longer than that."""
        for state, wrapper in self._background():
            with self.log.guard(state):
                wrapper.look_out(began, overdue_s)

    def _tool_ended(self, state: LayerState) -> None:
        """Let the watch observe the rest of a slice whose tools have all ended by themselves."""
        self._over.add(state.name)
        if all(active.name in self._over for active in self.active):
            self.watch(on=True)

    def flush(self) -> None:
        """Write what the layers in the background have seen."""
        for state, wrapper in self._background():
            with self.log.guard(state):
                taken = wrapper.flush()
                if taken.notes or any(taken.frames.values()):
                    self.log.take_in(state, taken)
                    self.writer.write(taken.frames)

    # -- the end of a slice and of the run ---------------------------------------------------

    def abandon(self) -> None:
        """Switch the tools off in a forked child, without writing anything."""
        for _, wrapper in self._running(active=True):
            with Guard():
                wrapper.abandon()
        self.active = []
        self.close()

    def stop(self) -> None:
        """Switch all active observers off, in reverse order."""
        for state, wrapper in reversed(list(self._running(active=True))):
            with self.log.guard(state):
                wrapper.stop()

    def take(
        self,
        stamps: Sequence[float],
        modules: Mapping[int, Any],
        left_out: Collection[int] = (),
        *,
        complete: bool = True,
    ) -> dict[str, SliceData]:
        """Return what each observer of the stopped slice saw, by layer.

        Of a slice that is not `complete`, since its last step had begun, only tools that know the
        time of what they saw have data.
        """
        captured = {}
        for state, wrapper in self._running(active=True):
            taken = None
            if complete or wrapper.cuts:
                with self.log.guard(state):
                    taken = wrapper.take(stamps, modules, left_out)
            if taken is not None:
                self.log.take_in(state, taken)
                captured[state.name] = taken
        self.active = []
        # Now and not only at the end: the early page and a killed run's report have layers too.
        self.log.write()
        return captured

    def discard(self) -> None:
        """Switch off and forget the slice in progress: it was cut off in the middle of a step."""
        self.stop()
        self.active = []

    def disarm(self, error: BaseException) -> None:
        """End everything in the midst of the run, and note why."""
        self.discard()
        self.close()
        self.log.end_all(error)

    def finish(self) -> None:
        """Let every wrapper write the files that span all slices, and record the layers' rows."""
        self.watch(on=False)
        self.flush()
        if (untimed := script_ranges.missing()) is not None:
            self.log.note("ranges-untimed", untimed)
        self.close()
        for state, wrapper in self._running():
            if state.status in WITH_DATA:
                with self.log.guard(state):
                    state.keep(wrapper.finish(self.writer.folder / state.name))
        self.log.write()

    def close(self) -> None:
        """Undo whatever the wrappers hold outside slices, and let go of the script's regions."""
        user_regions.switch_off()
        script_ranges.remove()
        for wrapper in self._wrappers:
            with Guard():
                wrapper.close()
