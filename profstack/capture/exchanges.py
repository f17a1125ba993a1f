"""Count how often ranks exchange their gradients (DistributedDataParallel), and use them.

A model exchanges them in the backward pass after a call of it, unless that was under `no_sync`. Of
several models each is counted alone: two losses that are two models' need an exchange each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from profstack.models import parameters_in, parts_of, wrapped_module


@dataclass
class _Model:
    """One model: its parameters by identity, and what was counted of it."""

    parameters: frozenset[int]
    # Whether its latest call asks for an exchange; None where no backward pass may follow.
    asked: bool | None = None
    since_update: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("passes", "exchanged", "updates"), 0)
    )


class Exchanges:
    """Counts over the noted steps; keeps no object of the script's."""

    def __init__(self) -> None:
        self._models: dict[int, _Model] = {}

    def call_begins(self, module: Any, *, with_grad: bool = True) -> None:
        """Take an outermost call of a module; without gradients no backward pass follows it."""
        wrapped = wrapped_module(module)
        if wrapped is None or wrapped[0] != "DistributedDataParallel":
            return
        model = self._models.get(id(module))
        if model is None:
            ids = frozenset(id(each) for part in parts_of(module) for each in parameters_in(part))
            model = self._models[id(module)] = _Model(ids)
        own = object.__getattribute__(module, "__dict__")
        if with_grad:
            model.asked = bool(own.get("require_backward_grad_sync"))

    def backward_begins(self) -> None:
        """Take a backward pass that adds gradients up: one asked for single ones exchanges none."""
        for model in self._models.values():
            if model.asked is not None:
                model.counts["passes"] += 1
                model.counts["exchanged"] += model.asked
                model.since_update += 1
                model.asked = None

    def optimizer_begins(self, groups: list[dict[str, Any]]) -> None:
        """Take a step of an optimizer, which has the parameters of these groups."""
        held = {id(each) for group in groups for each in group.get("params", ())}
        for model in self._models.values():
            # Two optimizers may share a pass.
            if model.since_update and not held.isdisjoint(model.parameters):
                model.counts["updates"] += 1
                model.since_update = 0

    def facts(self) -> dict[str, int] | None:
        """Return the counts of the model that exchanges most; None where none is known."""
        known = [each.counts for each in self._models.values() if each.counts["updates"]]
        return max(known, key=lambda counts: counts["exchanged"], default=None)
