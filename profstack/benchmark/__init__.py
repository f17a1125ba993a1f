"""Measuring steps without watching them: the clock, warm-up and the statistics of step times.

Which module holds what:

- what is called: `loading` finds it, `subject` is it, `inputs` makes what it is given;
- how a call is timed: `clock`, `conditions` (what is put aside meanwhile), `measure` (the loop);
- what times say: `warmup`, `statistics` with `resampling`, `doubts` (why not to trust them);
- one process's whole benchmark: `benchrun`, with `figures` for the report, `devicestate` and
  `processes` (what several differ by);
- `--mistakes` and `--ablation`: the modules of these names, with `pairs` (two ways in turn),
  `othercalls` (the call made another way) and `coldstart` (first calls of fresh processes);
- `--compare`: `variants` leads, `variantbuild` builds, `variantresults` compares results,
  `variantrounds` times, `variantcounts` counts operators and kernels;
- `--throughput`: `throughput` leads, `probers` try a batch size here or in a child (`probechild`,
  under `probelimit`), `probetrial` is one try, `probedtype` the conversion to another type;
- the roofline's roof: `peaks` measures it, `datasheet` knows it.

The package can be called: `profstack.benchmark(model, *inputs)` measures a model or a function and
gives a recording, see `profstack.benchsession.benchmark`. A function of the same name beside the
package would be lost as soon as any module of it is imported.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """The package as a function."""

    def __call__(self, target: Any, /, *inputs: Any, **options: Any) -> Any:
        """Measure a model or a function called with these inputs; gives a `profstack.Recording`.

        The options are those of `profstack.benchsession.benchmark`.
        """
        import profstack

        return profstack._benchmark(target, *inputs, **options)


sys.modules[__name__].__class__ = _Callable
