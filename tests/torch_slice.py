"""For tests of the torch layer: observes steps of a workload the way the engine does, in-process.

`observe` puts the real hooks and the real wrapper on, runs the steps, takes everything off and
gives what was captured, with the raw events beside it.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from profstack.capture.hooks import DISCOVER, RANGES, TorchHooks
from profstack.capture.module_names import ModuleInfo, ModuleNames
from profstack.layer import SliceContext, SliceData
from profstack.readers.torchtrace.events import HostEvents, read_host
from profstack.storage.vocabulary import STEP_PARTS
from profstack.wrappers.torch_profiler import TorchProfilerWrapper


class Quiet:
    """A sink that counts what the hooks tell it."""

    def __init__(self) -> None:
        self.waiting = False
        self.follows_calls = True
        self.follows_backward = True
        self.told: dict[str, int] = defaultdict(int)

    def __getattr__(self, name: str) -> Callable[..., None]:
        def tell(*arguments: Any) -> None:
            self.told[name] += 1

        return tell


@dataclass
class Slice:
    """One observed slice: what was captured, the steps' stamps, and the names of the modules."""

    captured: SliceData
    stamps: list[float]
    modules: dict[int, ModuleInfo]
    events: Any
    sink: Quiet

    @property
    def wall_s(self) -> float:
        return self.stamps[-1] - self.stamps[0]

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Rows of `module_times` by path."""
        paths = {number: named.path for number, named in self.modules.items()} | STEP_PARTS
        return {paths[row["module_id"]]: row for row in self.captured.frames["module_times"]}

    @property
    def operators(self) -> list[dict[str, Any]]:
        return [*self.captured.frames["operators"]]

    def path(self, number: int | None) -> str | None:
        if number is None:
            return None
        return STEP_PARTS[number] if number < 0 else self.modules[number].path

    def host(self) -> HostEvents:
        return read_host(self.events.events())


def self_s(row: dict[str, Any]) -> float:
    """Own time of a row, forward and backward together."""
    return float(row["forward_self_s"] + row["backward_self_s"])


def observe(
    step: Callable[[], object],
    steps: int = 3,
    mode: str = "timed",
    warm: int = 2,
    left_out: tuple[int, ...] = (),
    wrapper: TorchProfilerWrapper | None = None,
) -> Slice:
    """Run `step` `warm` times with the names being found, then `steps` times observed."""
    sink = Quiet()
    hooks = TorchHooks(torch, sink, ModuleNames())
    wrapper = wrapper or TorchProfilerWrapper()
    held: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        hooks.install()
        hooks.set_mode(DISCOVER)
        try:
            for _ in range(warm):
                step()
            gc.collect()
            gc.disable()
            hooks.set_mode(RANGES)
            wrapper.start(SliceContext(0, mode, steps, Path(folder)))
            hooks.emit_ranges(True)
            stamps = [time.perf_counter()]
            for _ in range(steps):
                step()
                stamps.append(time.perf_counter())
            hooks.emit_ranges(False)
            wrapper.stop()
            held.append(wrapper._results)
            modules = hooks.names.by_number()
            captured = wrapper.take(stamps, modules, left_out)
        finally:
            gc.enable()
            wrapper.stop()
            wrapper.close()
            hooks.remove()
    return Slice(captured, stamps, modules, held[0], sink)


class observe_inline:  # noqa: N801
    """The same for code that is no function: `begin`, `step` after every step, `end`."""

    def __init__(self, mode: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._mode = mode
        self._wrapper = TorchProfilerWrapper()
        self._stamps: list[float] = []

    def begin(self) -> None:
        self._wrapper.start(SliceContext(0, self._mode, None, Path(self._folder.name)))
        self._stamps.append(time.perf_counter())

    def step(self) -> None:
        self._stamps.append(time.perf_counter())

    def end(self) -> Any:
        self._wrapper.stop()
        self._wrapper.close()
        frames = self._wrapper.take(self._stamps, {}).frames
        self._folder.cleanup()
        return frames
