"""Note modules that work row by row on rows that were gathered from fewer ones.

As the message network of a graph network, called on the states of each link's source: it computes
the same for all links from one node. Told by what autograd keeps of the input: only where gradients
are recorded, and where nothing lies between the gathering and the module.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from profstack.models import children_of

# From so many rows for one that they were gathered from.
_TIMES = 2.0
_MOST_MODULES = 300
# Where a backward function keeps the sizes of what was gathered from.
_SIZES = {
    "IndexSelectBackward0": "_saved_self_sym_sizes",
    "IndexBackward0": "_saved_self_sym_sizes",
}
_ROW_BY_ROW = (
    *("Linear", "ReLU", "GELU", "SiLU", "Tanh", "Sigmoid", "ELU", "LeakyReLU", "Identity"),
    *("LayerNorm", "RMSNorm"),
)


@dataclass
class _Gathered:
    """The calls of one module: how many, those on gathered rows, and these rows."""

    calls: int = 0
    gathered: int = 0
    rows: int = 0
    sources: int = 0
    # The script's own line that makes the first of them.
    place: dict[str, str | int] | None = None


class GatheredRows:
    """Looks at the inputs of the noted calls; no tensor is kept."""

    def __init__(
        self, torch: Any, place: Callable[[], dict[str, str | int] | None] = lambda: None
    ) -> None:
        self._place = place
        self._torch, self._base = torch, torch._C.TensorBase
        self._kinds = {getattr(torch.nn, name, None) for name in _ROW_BY_ROW}
        self._by_rows: dict[int, bool] = {}
        self._modules: dict[str, _Gathered] = {}

    def call_begins(self, name: str, module: Any, given: Any) -> None:
        """Look at a call of a module with these arguments."""
        if id(module) not in self._by_rows:
            self._by_rows[id(module)] = self._works_by_rows(module)
        if not self._by_rows[id(module)]:
            return
        if name not in self._modules and len(self._modules) >= _MOST_MODULES:
            return
        noted = self._modules.setdefault(name, _Gathered())
        noted.calls += 1
        if given is None or len(given[0]) != 1 or given[1]:
            return
        (value,) = given[0]
        if not isinstance(value, self._base):
            return
        with self._torch._C.DisableTorchFunction():
            counted = self._counted(value)
        if counted is not None and counted[0] >= _TIMES * counted[1] > 0:
            noted.place = noted.place or self._place()
            noted.gathered += 1
            noted.rows += counted[0]
            noted.sources += counted[1]

    def facts(self) -> list[dict[str, object]]:
        """Return the modules whose calls all were on gathered rows, most rows first."""
        found = {name: each for name, each in self._modules.items() if each.gathered == each.calls}
        inner = {name for name in found if any(name.startswith(f"{other}.") for other in found)}
        told = sorted(found.items(), key=lambda each: -each[1].rows)
        return [
            {
                "module": name,
                "calls": each.calls,
                "rows": each.rows,
                "sources": each.sources,
                "place": each.place,
            }
            for name, each in told
            if each.calls and name not in inner
        ]

    def _works_by_rows(self, module: Any) -> bool:
        """Return whether it is a linear layer, or a sequence with one that works row by row."""
        if type(module) is not self._torch.nn.Sequential:
            return type(module) is self._torch.nn.Linear
        inside = [child for _, child in children_of(module)]
        products = [self._works_by_rows(child) for child in inside]
        plain = [self._is_plain(child) for child in inside]
        return any(products) and all(map(operator.or_, products, plain))

    def _is_plain(self, module: Any) -> bool:
        own = object.__getattribute__(module, "__dict__")
        return type(module) in self._kinds and len(own.get("normalized_shape", (1,))) == 1

    def _counted(self, value: Any) -> tuple[int, int] | None:
        """Return the rows of an input, and of what they were gathered from; None of others."""
        try:
            made_by = self._base.grad_fn.__get__(value)
        except RuntimeError:
            # A view that was changed in a way that autograd cannot follow.
            return None
        sizes = getattr(made_by, _SIZES.get(type(made_by).__name__, ""), None)
        shape = tuple(value.shape)
        if not sizes or len(shape) < 2 or len(sizes) < 2 or int(sizes[-1]) != shape[-1]:
            return None
        return math.prod(shape[:-1]), math.prod(int(size) for size in sizes[:-1])
