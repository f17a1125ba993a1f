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

from profstack.models import (
    can_be_read,
    children_of,
    operators_are_watched,
    parameters_in,
    parts_of,
)

# An optimizer that has them may step more rarely than another one: seen over so many steps.
_FEWEST_STEPS = 8
# Modules that are told one by one, the largest first; how much is looked through, and how often it
# is looked whether they have changed.
_MOST_TOLD, _MOST_ROOTS, _MOST_LOOKS = 20, 20, 40
# So many looks whether they have changed are as often as asked; later ones are ever further apart.
_OFTEN_CHECKED, _FURTHER = 30, 1.2
# Inputs in lists and dictionaries are looked at so deep, and so many of them.
_DEEPEST, _MOST_INPUTS = 3, 100
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# Values of a parameter that are compared: what is written by `.data` has no other trace.
_SAMPLED = 8


@dataclass
class _Unused:
    """A module without trained parameters that has gradients; what tells whether they change."""

    module: weakref.ref[Any]
    seen: tuple[object, ...]
    parameters: int
    # Whether something trained came before it in its latest calls; None before one.
    after_trained: bool | None = None


class UnusedGradients:
    """Follows optimizers and calls over the noted steps; keeps no object of the script's alive."""

    def __init__(self, torch: Any) -> None:
        self._torch, self._base = torch, torch._C.TensorBase
        self._held: set[int] = set()
        self._roots: dict[int, weakref.ref[Any]] = {}
        # The paths of modules that were called, as the tables have them.
        self._paths: dict[int, str] = {}
        # By the modules' identity.
        self._unused: dict[int, _Unused] = {}
        self._trained: set[int] = set()
        self._after_trained = False
        self._looks = self._checks = self._next_check = 0
        # Numbers of the steps between which they did not change.
        self._first: int | None = None
        self._last = 0
        # What was told last.
        self._said: dict[str, object] | None = None

    def call_begins(self, module: Any, inputs: Iterable[Any]) -> None:
        """Take an outermost call of a module, with what it is given."""
        if id(module) not in self._roots and len(self._roots) < _MOST_ROOTS:
            self._roots[id(module)] = weakref.ref(module)
        # What has gradients passes them on to where it comes from.
        with self._torch._C.DisableTorchFunction():
            self._after_trained = any(map(self._may_have_gradients, inputs))

    def module_begins(self, name: str, module: Any) -> None:
        """Take the call of any module: what is trained before it needs the gradients it passes."""
        self._paths[id(module)] = name
        if id(module) in self._trained:
            self._after_trained = True
        elif (found := self._unused.get(id(module))) is not None:
            found.after_trained = bool(found.after_trained) or self._after_trained

    def optimizer_begins(self, groups: list[dict[str, Any]]) -> None:
        """Take a step of an optimizer, which has the parameters of these groups."""
        self._held.update(id(each) for group in groups for each in group.get("params", ()))
        # A look goes through all modules.
        if self._looks < _MOST_LOOKS:
            self._looks += 1
            with self._torch._C.DisableTorchFunction():
                self._look()

    def check(self, number: int) -> bool:
        """Drop what has changed up to this step; return whether that changes what is told."""
        if not self._unused or number < self._next_check or self._is_gone():
            return False
        self._checks += 1
        if self._checks >= _OFTEN_CHECKED:
            self._next_check = int(_FURTHER * number) + 1
        told = self._told()
        with self._torch._C.DisableTorchFunction():
            kept = {key: each for key, each in self._unused.items() if self._is_as_seen(each)}
        changed = len(kept) < len(self._unused)
        self._unused, self._last = kept, number
        if kept and self._first is None:
            self._first = number
        return self._told() != told or (changed and told)

    def facts(self) -> dict[str, object] | None:
        """Return the parts that nothing trains, largest first; None where none was seen."""
        if self._is_gone():
            return self._said
        self._said = self._facts() if self._told() else None
        return self._said

    def _facts(self) -> dict[str, object]:
        living = self._living()
        inside = {id(part) for root in living for part in parts_of(root) if part is not root}
        roots = (root for root in living if id(root) not in inside)
        parts = [part for root in roots for part in self._parts(root)]
        parts.sort(key=lambda part: -part[1])
        return {
            "parameters": sum(count for _, count, _ in parts),
            "steps": self._last - (self._first or 0),
            "modules": [
                {"module": name, "parameters": count, "after_trained": after}
                for name, count, after in parts[:_MOST_TOLD]
            ],
        }

    def _told(self) -> bool:
        """Return whether parts were seen unused for long enough, beside others that are trained.

        An optimizer may have copies of all parameters, which are written into the model.
        """
        is_long = self._first is not None and self._last - self._first >= _FEWEST_STEPS
        return bool(self._unused) and bool(self._trained) and is_long

    def _is_gone(self) -> bool:
        """Return whether the model is no longer there, as at the end of a script."""
        gone = [each.module() is None for each in self._unused.values()]
        return bool(gone) and all(gone)

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
                with_gradients = [each for each in parameters if self._has_gradient(each)]
                if with_gradients and id(module) not in self._unused:
                    count = sum(map(self._base.numel, with_gradients))
                    seen = self._state(with_gradients[0])
                    found[id(module)] = _Unused(weakref.ref(module), seen, count)
        if not self._unused:
            # None has gradients before the first backward pass. Of a model that is called from a
            # later step on too little is seen.
            self._unused, self._first = found, None
        self._unused = {key: each for key, each in self._unused.items() if key not in self._trained}

    def _parts(self, module: Any, name: str = "") -> Iterator[tuple[str, int, bool]]:
        """Yield the largest parts with nothing trained: name, parameters, behind trained ones."""
        name = self._paths.get(id(module), name)
        inside = list(parts_of(module))
        own = [self._unused[id(each)] for each in inside if id(each) in self._unused]
        if not own:
            return
        if not any(id(each) in self._trained for each in inside):
            behind = any(each.after_trained is not False for each in own)
            yield name, sum(each.parameters for each in own), behind
            return
        for child, each in children_of(module):
            yield from self._parts(each, f"{name}.{child}")

    def _may_have_gradients(self, value: Any, deep: int = 0) -> bool:
        """Return whether an input passes gradients on, or may: what holds it is not known."""
        if isinstance(value, self._base):
            return bool(self._base.requires_grad.__get__(value))
        if type(value) in _PLAIN:
            return False
        # No class of the script's own: to go through one may do anything.
        if type(value) is dict:
            value = list(value.values())
        if type(value) not in (list, tuple) or deep == _DEEPEST or len(value) > _MOST_INPUTS:
            return True
        return any(self._may_have_gradients(each, deep + 1) for each in value)

    def _has_gradient(self, parameter: Any) -> bool:
        base = self._base
        asks = bool(base.requires_grad.__get__(parameter))
        return asks and base.grad.__get__(parameter) is not None

    def _is_as_seen(self, unused: _Unused) -> bool:
        module = unused.module()
        if module is None:
            return False
        now = (self._state(each) for each in parameters_in(module))
        return any(_agree(each, unused.seen) for each in now)

    def _state(self, parameter: Any) -> tuple[object, ...]:
        """Return what a change of a parameter's values changes, as far as it can be read."""
        version, place = parameter._version, parameter.data_ptr()
        torch, values = self._torch, None
        is_plain = type(parameter) is torch.nn.Parameter and not operators_are_watched(torch)
        if is_plain and can_be_read(torch, parameter):
            with torch.no_grad():
                flat = parameter.detach().flatten()
                # From all of it: single rows of a table may have no gradient.
                apart = max(flat.numel() // _SAMPLED, 1)
                values = tuple(flat[::apart][: 2 * _SAMPLED].tolist())
        return version, place, values


def _agree(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """Return whether two states are of the same values; those that could not be read agree."""
    *first, values = one
    *second, others = other
    return first == second and (None in (values, others) or values == others)
