"""Note modules that get in each step what they got in one before: their result could be kept.

As the text encoder of a tagger whose tags never change, inside a model whose pictures do. Where the
input of the whole step is always the same, a script only repeats it to measure, and nothing is
noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from profstack.models import operators_are_watched

# Modules are looked at down to this depth, in so many calls each: a look takes some 50 us.
_DEEPEST, _MOST_LOOKS, _MOST_MODULES = 3, 12, 300
# Input that has changed so often is no constant.
_ENOUGH_CHANGES = 2


@dataclass
class _Inputs:
    """The inputs of one module: those of earlier steps, those of this one, and how many agreed."""

    module: str
    earlier: list[list[object]] = field(default_factory=list)
    now: list[list[object]] = field(default_factory=list)
    looks: int = 0
    same: int = 0
    may_change: bool = False
    # Whether some of them cannot be told.
    untold: bool = False

    @property
    def is_constant(self) -> bool:
        """Whether no call had other inputs so far; false where nothing was compared."""
        return bool(self.same) and self.changes == 0

    @property
    def changes(self) -> int:
        """Calls on what no earlier step had; the first step has nothing to compare with."""
        return self.looks - self.same


class ConstantInputs:
    """Looks at the calls of the noted steps; no tensor is kept."""

    def __init__(self, torch: Any, told: Callable[[Any], object]) -> None:
        # What tells a value; of what cannot be told, something that nothing equals.
        self._torch, self._told = torch, told
        self._modules: dict[int, _Inputs] = {}
        # Of each call around: whether its parts need not be looked at.
        self._around: list[bool] = []
        self._outermost_changed = False

    def call_begins(self, name: str, module: Any, given: Any, *, may_change: bool | None) -> None:
        """Look at a call of a module; with weights that may change it gives another result.

        `may_change` is None for one without weights: a loss, whose targets change with the input.
        """
        deep = len(self._around)
        covered = self._around[-1] if self._around else False
        if covered or deep > _DEEPEST or given is None or operators_are_watched(self._torch):
            self._around.append(True)
            return
        inputs = self._modules.get(id(module))
        if inputs is None:
            if len(self._modules) == _MOST_MODULES:
                self._around.append(True)
                return
            inputs = self._modules[id(module)] = _Inputs(name)
        is_same = inputs.is_constant
        # Of a step's own input it matters only whether it changes.
        looked_at = may_change is not None if deep == 0 else not may_change
        if looked_at and inputs.changes < _ENOUGH_CHANGES and inputs.looks < _MOST_LOOKS:
            is_same = self._look(inputs, given)
            inputs.may_change = bool(may_change)
            is_other = bool(inputs.looks) and not is_same and not inputs.untold
            self._outermost_changed |= deep == 0 and is_other
        # What is inside of what cannot be told may be the same because all of it is.
        hides = deep == 0 and (inputs.untold or not looked_at)
        self._around.append(hides or (is_same and not may_change))

    def call_ends(self) -> None:
        """Take the end of the call of any module."""
        if self._around:
            self._around.pop()

    def step_ended(self) -> None:
        """Begin a step: what this one had is earlier now."""
        self._around.clear()
        for inputs in self._modules.values():
            inputs.earlier += inputs.now
            inputs.now = []

    def facts(self) -> list[dict[str, object]]:
        """Return the outermost modules that got the same again, in nearly all of their calls."""
        if not self._outermost_changed:
            return []
        return [
            {"module": each.module, "calls": each.looks, "same": each.same}
            for each in self._modules.values()
            if each.is_constant and not each.may_change
        ]

    def _look(self, inputs: _Inputs, given: tuple[Iterable[Any], dict[str, Any]]) -> bool:
        """Return whether a call has the inputs of an earlier step."""
        args, kwargs = given
        told = [self._told(value) for value in (*args, *kwargs.values())]
        # A copy elsewhere in memory is the same.
        told = [each[1:] if isinstance(each, tuple) else each for each in told]
        # Numbers alone, as a module without inputs or with a size has them, are no work to keep.
        if not any(isinstance(each, tuple) for each in told):
            told.append(object())
        inputs.untold = inputs.untold or any(type(each) is object for each in told)
        inputs.now.append(told)
        if not inputs.earlier:
            return False
        inputs.looks += 1
        is_same = told in inputs.earlier
        inputs.same += is_same
        return is_same
