"""Note the modules whose gradients no optimizer uses: a part that was to be frozen, and was not.

Their parameters require gradients and have them when an optimizer steps, no optimizer has them, and
nobody changes them from step to step. Where nothing before them is trained either, the whole of
their backward pass is for nothing; else only the gradients of their weights are.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from profstack.models import children_of, parameters_in, parts_of

# An optimizer that has them may step more rarely than another one: seen over so many steps.
_FEWEST_STEPS = 8
# Modules that are told one by one, the largest first; and how much is looked through.
_MOST_TOLD, _MOST_ROOTS, _MOST_LOOKS = 20, 20, 40


@dataclass
class _Unused:
    """A module without trained parameters that has gradients; what tells whether they change."""

    module: weakref.ref[Any]
    seen: tuple[int, int]
    parameters: int
    after_trained: bool = False

    def is_as_seen(self) -> bool:
        module = self.module()
        return module is not None and self.seen in map(_state, parameters_in(module))


def _state(parameter: Any) -> tuple[int, int]:
    """Return what every change of a parameter's values changes."""
    return parameter._version, parameter.data_ptr()


class UnusedGradients:
    """Follows optimizers and calls over the noted steps; keeps no object of the script's alive."""

    def __init__(self, torch: Any) -> None:
        self._base = torch._C.TensorBase
        self._held: set[int] = set()
        self._roots: dict[int, weakref.ref[Any]] = {}
        # The paths of modules that were called, as the tables have them.
        self._paths: dict[int, str] = {}
        # By the modules' identity.
        self._unused: dict[int, _Unused] = {}
        self._trained: set[int] = set()
        self._after_trained = False
        self._looks = 0
        # Numbers of the steps between which they did not change.
        self._first: int | None = None
        self._last = 0

    def call_begins(self, module: Any, inputs: Iterable[Any]) -> None:
        """Take an outermost call of a module, with what it is given."""
        if id(module) not in self._roots and len(self._roots) < _MOST_ROOTS:
            self._roots[id(module)] = weakref.ref(module)
        # What is asked for gradients of its own passes them on.
        tensors = (each for each in inputs if isinstance(each, self._base))
        self._after_trained = self._after_trained or any(
            self._base.requires_grad.__get__(each) and self._base.is_leaf.__get__(each)
            for each in tensors
        )

    def module_begins(self, name: str, module: Any) -> None:
        """Take the call of any module: what is trained before it needs the gradients it passes."""
        self._paths[id(module)] = name
        if id(module) in self._trained:
            self._after_trained = True
        elif (found := self._unused.get(id(module))) is not None:
            found.after_trained = found.after_trained or self._after_trained

    def optimizer_begins(self, groups: list[dict[str, Any]]) -> None:
        """Take a step of an optimizer, which has the parameters of these groups."""
        self._held.update(id(each) for group in groups for each in group.get("params", ()))
        self._after_trained = False
        # A look goes through all modules.
        if self._looks < _MOST_LOOKS:
            self._looks += 1
            self._look()

    def check(self, number: int) -> bool:
        """Drop what has changed up to this step; return whether that changes what is told."""
        told = self._told()
        kept = {key: each for key, each in self._unused.items() if each.is_as_seen()}
        changed = len(kept) < len(self._unused)
        self._unused, self._last = kept, number
        if kept and self._first is None:
            self._first = number
        return self._told() != told or (changed and told)

    def facts(self) -> dict[str, object] | None:
        """Return the parts that nothing trains, largest first; None where none was seen."""
        if not self._told() or self._first is None:
            return None
        parts = [part for root in self._living() for part in self._parts(root)]
        parts.sort(key=lambda part: -part[1])
        return {
            "parameters": sum(count for _, count, _ in parts),
            "steps": self._last - self._first,
            "modules": [
                {"module": name, "parameters": count, "after_trained": after}
                for name, count, after in parts[:_MOST_TOLD]
            ],
        }

    def _told(self) -> bool:
        """Return whether parts were seen unused for long enough."""
        is_long = self._first is not None and self._last - self._first >= _FEWEST_STEPS
        return bool(self._unused) and is_long

    def _living(self) -> list[Any]:
        roots = (root() for root in self._roots.values())
        return [root for root in roots if root is not None]

    def _look(self) -> None:
        """Find the modules that have gradients nobody uses; drop those that have got an owner."""
        found = {}
        for root in self._living():
            for module in parts_of(root):
                parameters = parameters_in(module)
                if any(id(each) in self._held for each in parameters):
                    self._trained.add(id(module))
                    continue
                with_gradients = [
                    each
                    for each in parameters
                    if self._base.requires_grad.__get__(each)
                    and self._base.grad.__get__(each) is not None
                ]
                if with_gradients:
                    count = sum(map(self._base.numel, with_gradients))
                    seen = _state(with_gradients[0])
                    found[id(module)] = _Unused(weakref.ref(module), seen, count)
        if not self._unused:
            # None has gradients before the first backward pass.
            self._unused, self._first = found, None
            return
        # Of a model that is called from a later step on too little is seen.
        self._unused = {
            key: each
            for key, each in self._unused.items()
            if key not in self._trained and (key not in found or found[key].seen == each.seen)
        }

    def _parts(self, module: Any, name: str = "") -> Iterator[tuple[str, int, bool]]:
        """Yield the largest parts with nothing trained: name, parameters, behind trained ones."""
        name = self._paths.get(id(module), name)
        inside = list(parts_of(module))
        own = [self._unused[id(each)] for each in inside if id(each) in self._unused]
        if not own:
            return
        if not any(id(each) in self._trained for each in inside):
            behind = any(each.after_trained for each in own)
            yield name, sum(each.parameters for each in own), behind
            return
        for child, each in children_of(module):
            yield from self._parts(each, f"{name}.{child}")
