"""The wrappers of one run: switched on and off at slice edges, their failures kept from the script.

Whatever a wrapper raises ends its layer with a reason in the recording; the workload goes on. What
a signal's handler raises meanwhile is not the wrapper's: it goes to the script, and the engine,
interrupted in the midst of a switch, takes everything off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from profstack import registry, userregions
from profstack.engine.layerbook import LayerBook
from profstack.engine.layerstate import WITH_DATA, GuardedListener, LayerState
from profstack.interrupts import is_scripts
from profstack.recording import Writer
from profstack.slices import Planned
from profstack.wrapper import Captured, Listener, SliceContext, Wrapper


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
        self.book = LayerBook(folder, writer)
        self.layers = self.book.layers
        self.active: list[LayerState] = []
        self.on_give_way: Callable[[], None] = lambda: None
        self._wrappers: list[Wrapper] = []
        # Of the active layers those whose tools have ended by themselves.
        self._over: set[str] = set()
        for name in layers:
            self._load(name)
        for name, reason in (left_out or {}).items():
            self.layers[name] = LayerState(name, None, "skipped", reason)
        self.book.write()

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
            self.book.fail(state, error)

    def start(self, planned: Planned, index: int, steps: int | None, first_step: int = 0) -> bool:
        """Switch the slice's observers on; false when none of them could be."""
        self.book.slice_begins()
        self._over.clear()
        for position, (name, mode) in enumerate(planned.observers):
            state = self.layers[name]
            if state.wrapper is None:
                continue
            folder = self.folder / name
            try:
                busy = state.wrapper.busy_reason(mode)
                if busy is not None:
                    self.book.gave_way(state, busy)
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
                self.book.fail(state, error)
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
                self.book.keep(state, captured.artifacts)
            except Exception as error:
                self.book.fail(state, error)

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
                self.book.fail(state, error)
                continue
            if told is not None:
                return GuardedListener(told, partial(self._listener_failed, state))
        return None

    def _listener_failed(self, state: LayerState, error: BaseException) -> None:
        if state.wrapper is not None:
            self._undo(state.wrapper)
        self.book.end(state, error)

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
                self.book.fail(state, error)
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
                    self.book.take_in(state, taken)
                    self.writer.write(taken.frames)
            except Exception as error:
                self.book.fail(state, error)

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

    def stop(self) -> None:
        """Switch all active observers off, in reverse order."""
        for state in reversed(self.active):
            try:
                if state.wrapper is not None:
                    state.wrapper.stop()
            except Exception as error:
                self.book.fail(state, error)

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
                self.book.fail(state, error)
                continue
            self.book.take_in(state, taken)
            captured[state.name] = taken
        self.active = []
        # Now and not only at the end: the early page and a killed run's report have layers too.
        self.book.write()
        return captured

    def discard(self) -> None:
        """Switch off and forget the slice in progress: it was cut off in the middle of a step."""
        self.stop()
        self.active = []

    def disarm(self, error: BaseException) -> None:
        """End everything in the midst of the run, and say why."""
        self.discard()
        self.close()
        self.book.end_all(error)

    def finish(self) -> None:
        """Let every wrapper write the files that span all slices, and record the layers' rows."""
        self.watch(on=False)
        self.flush()
        self.close()
        for state in self.layers.values():
            if state.wrapper is not None and state.status in WITH_DATA:
                try:
                    self.book.keep(state, state.wrapper.finish(self.folder / state.name))
                except Exception as error:
                    self.book.fail(state, error)
        self.book.write()

    def close(self) -> None:
        """Undo whatever the wrappers hold outside slices; the script's regions are let go, too."""
        userregions.switch_off()
        for wrapper in self._wrappers:
            try:
                wrapper.close()
            except Exception as error:
                if is_scripts(error):
                    raise

    def note(self, slug: str, text: str, layer: str | None = None) -> None:
        """Record something the reader of the report should know."""
        self.book.note(slug, text, layer)
