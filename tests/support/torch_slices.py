"""For tests of the torch layer: observes steps of a workload as the engine does, in-process."""

import gc
import tempfile
from dataclasses import dataclass
from pathlib import Path

from profstack.capture.hooks import RANGES
from profstack.layer import SliceContext
from profstack.storage.vocabulary import STEP_PARTS
from profstack.wrappers.torch_profiler import TorchProfilerWrapper
from tests.support.wrapped import installed_hooks, slice_of


@dataclass
class Slice:
    """One observed slice: what was captured, the steps' stamps, and the names of the modules."""

    captured: object
    stamps: list
    modules: dict
    events: object

    @property
    def wall_s(self):
        return self.stamps[-1] - self.stamps[0]

    @property
    def rows(self):
        """Rows of `module_times` by path."""
        return {self.path(row["module_id"]): row for row in self.captured.frames["module_times"]}

    @property
    def operators(self):
        return [*self.captured.frames["operators"]]

    def path(self, number):
        if number is None:
            return None
        return STEP_PARTS[number] if number < 0 else self.modules[number].path


def self_s(row):
    """Own time of a row, forward and backward together."""
    return float(row["forward_self_s"] + row["backward_self_s"])


def observe(step, steps=3, mode="timed", warm=2, left_out=(), folder=None):
    """Run `step` `warm` times with the names being found, then `steps` times observed.

    With the real hooks and the real wrapper.
    """
    wrapper = TorchProfilerWrapper()
    with tempfile.TemporaryDirectory() as other, installed_hooks() as hooks:
        try:
            for _ in range(warm):
                step()
            gc.collect()
            gc.disable()
            hooks.set_mode(RANGES)
            context = SliceContext(0, mode, steps, folder or Path(other))
            stamps = slice_of(hooks, wrapper, context, *[step] * steps)
            results, modules = wrapper._results, hooks.names.by_number()
            return Slice(wrapper.take(stamps, modules, left_out), stamps, modules, results)
        finally:
            gc.enable()
            wrapper.stop()
            wrapper.close()
