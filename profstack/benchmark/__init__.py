"""Measuring steps without watching them: the clock, warm-up and the statistics of step times.

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
