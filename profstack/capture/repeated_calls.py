"""Note outermost calls of a model on the input that it was given the time before.

A sampler calls its model once with its condition and once without, a loop calls it again for its
metrics. After a backward pass or an optimizer's step nothing is the same: weights may have changed,
as those do that are moved to where the loss is larger, on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from profstack.guard import is_scripts
from profstack.models import can_be_read, operators_are_watched

# A smaller input is a flag or a number; what is read of a larger one would take too long.
_FEWEST, _MOST = 64, 1 << 22
# Calls of a module that are looked at: a step may make very many.
_MOST_NOTED = 1000
# More calls on one input are a loop over something else, as tokens that are decoded.
_MOST_CALLS = 3

Place = dict[str, str | int]
# What tells a tensor: where it lies, its shape, and what its values add up to, also by place.
_Tensor = tuple[int, tuple[int, ...], float, float]
# All inputs of a call, and where it is.
_Call = tuple[list[object], Place | None]


@dataclass
class _Repeated:
    """Calls of one module; those on the first input of one before, and those on the same of all."""

    module: str
    calls: int = 0
    on_same_input: int = 0
    on_all_the_same: int = 0
    first: Place | None = None
    again: Place | None = None

    def add(self, calls: list[_Call]) -> None:
        """Add the calls on one first input."""
        if 1 < len(calls) <= _MOST_CALLS:
            inputs = [given for given, _ in calls]
            self.on_same_input += len(calls) - 1
            self.on_all_the_same += sum(each in inputs[:at] for at, each in enumerate(inputs))
            self.first, self.again = calls[0][1], calls[1][1]


class RepeatedCalls:
    """Counts over the steps; no tensor is kept."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._modules: dict[int, _Repeated] = {}
        # The inputs of each module's latest call up to its first large one, and the calls in a row
        # on the same.
        self._rows: dict[int, tuple[list[object], list[_Call]]] = {}

    def call_begins(
        self,
        name: str,
        module: Any,
        given: tuple[tuple[Any, ...], dict[str, Any]],
        place: Callable[[], Place | None],
        circumstances: object = None,
    ) -> None:
        """Look at the inputs of an outermost call; `place` tells where it is.

        In other circumstances (gradients, training mode) a call gives another result.
        """
        counts = self._modules.setdefault(id(module), _Repeated(name))
        if counts.calls == _MOST_NOTED:
            return
        counts.calls += 1
        args, kwargs = given
        inputs = [self.told(value) for value in (*args, *kwargs.values())]
        large = (
            at
            for at, each in enumerate(inputs)
            if isinstance(each, tuple) and prod(each[1]) >= _FEWEST
        )
        # Without a large one nothing equals this call.
        first = [circumstances, *(inputs[: next(large, -1) + 1] or [object()])]
        latest, calls = self._rows.get(id(module), ([], []))
        if first != latest:
            counts.add(calls)
            calls = []
        self._rows[id(module)] = first, [*calls, (inputs, place())]

    def weights_may_change(self) -> None:
        """End with the calls so far: the same input may give another result from here on."""
        for module, (_, calls) in self._rows.items():
            self._modules[module].add(calls)
        self._rows.clear()

    def facts(self) -> dict[str, object] | None:
        """Return the counts of the module with most repeated calls; None where there is none.

        Calls in a row that has not ended may be a loop on one input.
        """
        most = max(self._modules.values(), key=lambda each: each.on_same_input, default=None)
        return asdict(most) if most is not None and most.on_same_input > 0 else None

    def told(self, value: Any) -> object:
        """Return what tells a tensor, a plain value itself, and of all else what nothing equals."""
        try:
            return self._sums(value)
        except Exception as error:
            # Tensors of vmap, quantized ones and others have no sums.
            if is_scripts(error):
                raise
            return object()

    def _sums(self, value: Any) -> object:
        torch = self._torch
        if isinstance(value, (bool, int, float, str, type(None))):
            return value
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            return object()
        if value.numel() > _MOST or value.is_complex() or not can_be_read(torch, value):
            return object()
        # No tensor can be told then.
        if operators_are_watched(torch):
            return object()
        with torch._C.DisableTorchFunction(), torch.no_grad():
            values = value.detach().flatten().double()
            places = torch.arange(1, len(values) + 1, dtype=torch.float64, device=values.device)
            sums = float(values.sum()), float(values @ places)
        return value.data_ptr(), tuple(value.shape), *sums
