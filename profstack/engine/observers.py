"""The wrappers of one run: switched on and off at slice edges, their failures kept from the script.

Whatever a wrapper raises ends its layer with a reason in the recording; the workload goes on. What
a signal's handler raises meanwhile is not the wrapper's: it goes to the script, and the engine,
interrupted in the midst of a switch, takes everything off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from profstack import registry, userregions
from profstack.engine.layerstate import WITH_DATA, GuardedListener, LayerState, told
from profstack.environment import rss_bytes
from profstack.interrupts import is_scripts
from profstack.recording import Writer
from profstack.slices import Planned
from profstack.wrapper import Artifact, Captured, Listener, SliceContext, Wrapper


class Observers:
    """All layers of a run; `active` are those that observe the slice in progress."""

    def __init__(
        self,
        folder: Path,
        layers: list[str],
        writer: Writer,
        left_out: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.writer = writer
        self.layers: dict[str, LayerState] = {}
        self.active: list[LayerState] = []
        self._rss_before: int | None = None
        self.on_give_way: Callable[[], None] = lambda: None
        self._wrappers: list[Wrapper] = []
        self._told: set[str] = set()
        # Of the active layers those whose tools have ended by themselves.
        self._over: set[str] = set()
        for name in layers:
            self._load(name)
        for name, reason in (left_out or {}).items():
            self.layers[name] = LayerState(name, None, "skipped", reason)
        self.write_layers()

    def _load(self, name: str) -> None:
        state = LayerState(name, None)
        self.layers[name] = state
        try:
            kind = registry.load(name)
            reason = kind.unavailable_reason()
            if reason is not None:
                state.end("unavailable", reason)
                return
            state.wrapper = kind()
            state.wrapper.on_give_way = self._gave_way
            state.wrapper.on_end = partial(self._tool_ended, state)
            # A layer that ends early lets go of its wrapper; what it holds is undone at the end.
            self._wrappers.append(state.wrapper)
        except Exception as error:
            self.fail(state, error)

    def start(self, planned: Planned, index: int, steps: int | None, first_step: int = 0) -> bool:
        """Switch the slice's observers on; false when none of them could be."""
        self._rss_before = rss_bytes()
        self._over.clear()
        for position, (name, mode) in enumerate(planned.observers):
            state = self.layers[name]
            if state.wrapper is None:
                continue
            folder = self.folder / name
            try:
                busy = state.wrapper.busy_reason(mode)
                if busy is not None:
                    self._give_way(state, busy)
                    continue
                folder.mkdir(exist_ok=True)
                state.wrapper.start(
                    SliceContext(
                        *(index + position, mode, steps, folder, first_step),
                        keep_source=self.writer.keep_source,
                    )
                )
                self.active.append(state)
            except BaseException as error:
                # Also Ctrl-C in the midst of it: the tool would stay on in a script that goes on.
                self._undo(state.wrapper)
                self.fail(state, error)
        return bool(self.active)

    def _undo(self, wrapper: Wrapper) -> None:
        """Switch off what a failed start may have left switched on."""
        try:
            wrapper.stop()
        except Exception as error:
            # Why the start failed is what the reader needs to know.
            if is_scripts(error):
                raise

    def step_limits(self) -> list[int | None]:
        """The most steps that each active observer can take in."""
        return [state.wrapper.step_limit() for state in self.active if state.wrapper is not None]

    def all_cut(self) -> bool:
        """Whether every active observer can leave single steps out of what it saw."""
        return all(state.wrapper.cuts for state in self.active if state.wrapper is not None)

    def is_busy(self, layer: str, mode: str) -> bool:
        """Whether a slice of `mode` could not be observed right now."""
        wrapper = self.layers[layer].wrapper if layer in self.layers else None
        try:
            return wrapper is None or wrapper.busy_reason(mode) is not None
        except Exception as error:
            if is_scripts(error):
                raise
            # Asked again at the start of the slice, where it ends the layer with a note.
            return True

    def _gave_way(self) -> None:
        self.on_give_way()

    def _give_way(self, state: LayerState, reason: str) -> None:
        if state.status == "empty":
            state.status = "skipped"
        if state.reason != reason and reason not in self._told:
            self._told.add(reason)
            self.note("gave-way", f"{state.name}: {reason}", state.name)
        if state.status == "skipped":
            state.reason = reason

    def hand_over(self, tools: Mapping[str, Any]) -> None:
        """Give the wrappers what runs since the script's first line, by layer."""
        for name, tool in tools.items():
            state = self.layers.get(name)
            if state is not None and state.wrapper is not None:
                state.wrapper.hand_over(tool)

    def hand_over_background(self, tools: dict[str, Any]) -> None:
        """Give the layers in the background theirs, and take them out of `tools`."""
        names = [state.name for state, _ in self._background() if state.name in tools]
        self.hand_over({name: tools.pop(name) for name in names})

    def take_startup(self, tools: Mapping[str, Any]) -> None:
        """End what observed the start-up alone, and write it."""
        for name, tool in tools.items():
            state = self.layers.get(name)
            if state is None or state.wrapper is None:
                continue
            try:
                folder = self.folder / name
                folder.mkdir(exist_ok=True)
                captured = state.wrapper.take_startup(tool, folder)
                self.writer.write(captured.frames)
                self._keep(state, captured.artifacts)
            except Exception as error:
                self.fail(state, error)

    def restarts(self, name: str) -> bool:
        """Whether a layer may begin at the very boundary at which it has ended."""
        state = self.layers.get(name)
        return state is None or state.wrapper is None or state.wrapper.restarts

    def in_discovery(self) -> tuple[tuple[str, str], ...]:
        """The layers that begin before the step rule is known, each with its mode."""
        return tuple(
            (state.name, mode.name)
            for state in self.layers.values()
            if state.wrapper is not None
            for mode in state.wrapper.modes
            if mode.in_discovery
        )

    def calls_wanted(self, observers: Iterable[tuple[str, str]]) -> set[str]:
        """What the slice's observers need of the modules' calls; nothing where they are busy.

        No ranges where a profiler of the script's own would record them.
        """
        return {
            state.wrapper.mode(mode).calls
            for name, mode in observers
            if (state := self.layers[name]).wrapper is not None and not self.is_busy(name, mode)
        }

    def listener(self) -> Listener | None:
        """Whom to tell of calls in the slice that has begun, errors kept in."""
        for state in self.active:
            try:
                told = state.wrapper.listener() if state.wrapper is not None else None
            except Exception as error:
                self.fail(state, error)
                continue
            if told is not None:
                return GuardedListener(told, partial(self._listener_failed, state))
        return None

    def _listener_failed(self, state: LayerState, error: BaseException) -> None:
        if state.wrapper is not None:
            self._undo(state.wrapper)
        self._end(state, error)

    # -- what observes in the background ---------------------------------------------------------

    def _background(self) -> Iterator[tuple[LayerState, Wrapper]]:
        for state in self.layers.values():
            if state.wrapper is not None and state.wrapper.background:
                yield state, state.wrapper

    def watch(self, *, on: bool) -> None:
        """Let the layers observe that take whatever no slice has, or end that for now.

        What they have seen is written when they end, for the early page and a killed run's.
        """
        for state, wrapper in self._background():
            try:
                if on:
                    wrapper.resume()
                else:
                    wrapper.pause()
            except Exception as error:
                self.fail(state, error)
        if not on:
            self.flush()

    def _tool_ended(self, state: LayerState) -> None:
        """Nothing observes the rest of the slice (a first compilation, say): the watch does."""
        self._over.add(state.name)
        if all(active.name in self._over for active in self.active):
            self.watch(on=True)

    def flush(self) -> None:
        """Write what the layers in the background have seen."""
        for state, wrapper in self._background():
            try:
                taken = wrapper.flush()
                if taken.notes or any(taken.frames.values()):
                    self._count(state, taken)
                    self.writer.write(taken.frames)
            except Exception as error:
                self.fail(state, error)

    def abandon(self) -> None:
        """In a forked child: switch the tools off without writing anything."""
        for state in self.active:
            try:
                if state.wrapper is not None:
                    state.wrapper.abandon()
            except Exception as error:
                # The child is the script's, and what fails here is ours.
                if is_scripts(error):
                    raise
        self.active = []
        self.close()

    def stop(self) -> float:
        """Switch all active observers off, in reverse order; seconds it took."""
        begun = time.perf_counter()
        for state in reversed(self.active):
            try:
                if state.wrapper is not None:
                    state.wrapper.stop()
            except Exception as error:
                self.fail(state, error)
        return time.perf_counter() - begun

    def take(
        self,
        stamps: Sequence[float],
        modules: Mapping[int, Any],
        left_out: Collection[int] = (),
        *,
        complete: bool = True,
    ) -> dict[str, Captured]:
        """What each observer of the stopped slice saw, by layer.

        Of a slice that is not `complete`, since its last step had begun, only those tools can tell
        that know the time of what they saw.
        """
        captured = {}
        for state in self.active:
            if state.wrapper is None or not (complete or state.wrapper.cuts):
                continue
            try:
                taken = state.wrapper.take(stamps, modules, left_out)
            except Exception as error:
                self.fail(state, error)
                continue
            self._count(state, taken)
            captured[state.name] = taken
        self.active = []
        # Now and not only at the end: the early page and a killed run's report have layers too.
        self.write_layers()
        return captured

    def discard(self) -> None:
        """Switch off and forget the slice in progress: it was cut off in the middle of a step."""
        self.stop()
        self.active = []

    def disarm(self, error: BaseException) -> None:
        """End everything in the midst of the run, and say why."""
        self.discard()
        self.close()
        reason = f"{_cause(error)}: {told(error)}"
        self.note("disarmed", f"stopped by {reason}")
        for state in self.layers.values():
            if state.wrapper is not None and state.status not in WITH_DATA:
                state.end("failed", f"before this layer's turn came, all ended by {reason}")
        self.write_layers()

    def finish(self) -> None:
        """Let every wrapper write the files that span all slices, and record the layers' rows."""
        self.watch(on=False)
        self.flush()
        self.close()
        for state in self.layers.values():
            if state.wrapper is not None and state.status in WITH_DATA:
                try:
                    self._keep(state, state.wrapper.finish(self.folder / state.name))
                except Exception as error:
                    self.fail(state, error)
        self.write_layers()

    def close(self) -> None:
        """Undo whatever the wrappers hold outside slices; the script's regions are let go, too."""
        userregions.switch_off()
        for wrapper in self._wrappers:
            try:
                wrapper.close()
            except Exception as error:
                if is_scripts(error):
                    raise

    def write_layers(self) -> None:
        """Write the tables `layers` and `artifacts` as they stand now."""
        self.writer.replace("layers", [state.record() for state in self.layers.values()])
        artifacts = [
            {
                "layer": state.name,
                "path": path.relative_to(self.folder).as_posix(),
                "opens_in": artifact.opens_in,
                "bytes": path.stat().st_size if path.exists() else None,
            }
            for state in self.layers.values()
            for path, artifact in state.artifacts.items()
        ]
        self.writer.replace("artifacts", artifacts)

    def fail(self, state: LayerState, error: BaseException) -> None:
        """End a layer whose wrapper raised, with a note of what and where.

        What is the script's own is raised again.
        """
        if is_scripts(error):
            raise error
        self._end(state, error)

    def _end(self, state: LayerState, error: BaseException) -> None:
        is_own = is_scripts(error)
        state.end("failed", f"{_cause(error)}: {told(error)}" if is_own else told(error))
        self.note("layer-failed", f"the layer {state.name} failed: {state.reason}", state.name)

    def note(self, slug: str, text: str, layer: str | None = None) -> None:
        """Record something the reader of the report should know."""
        self.writer.write({"notes": [{"slug": slug, "layer": layer, "text": text}]})

    def _count(self, state: LayerState, taken: Captured) -> None:
        if any(taken.frames.values()):
            state.status = taken.status
            state.reason = None
        for slug, text in taken.notes:
            self.note(slug, text, state.name)
            if state.status not in WITH_DATA:
                state.reason = text
        state.truncated = taken.truncated or state.truncated
        self._keep(state, taken.artifacts)
        grown = taken.memory_bytes
        after = rss_bytes()
        if grown is None and after is not None and self._rss_before is not None:
            grown = after - self._rss_before
        if grown is not None:
            state.memory_bytes = max(state.memory_bytes or 0, grown)

    def _keep(self, state: LayerState, artifacts: list[Artifact]) -> None:
        for artifact in artifacts:
            state.artifacts[artifact.path] = artifact


def _cause(error: BaseException) -> str:
    """What an error that ended something is, for the reader."""
    if is_scripts(error):
        return "an interruption of the script's that came in profstack's own work"
    return "a defect of profstack"
