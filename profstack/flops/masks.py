"""What a causal mask leaves out of attention, by the shapes of queries and keys.

Counts by formula are dense: of s queries and t keys every pair counts. Where a call says that it
is causal, query i sees the keys up to its own place alone, and a kernel that skips the others does
that much less. Kernels differ in how much they skip, so that neither figure is what was done: the
dense one is the work of the formula, the other what had to be done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

# Their queries and keys are (batch, heads, places, size), and the mask begins at the first key.
_HEADS_FIRST = "aten::_scaled_dot_product_"
# Their queries and keys are (batch, places, heads, size).
_PLACES_FIRST = ("aten::_flash_attention_", "aten::_efficient_attention_")
# What says that a call is causal, by the names that operators have for it.
_SAYING = ("is_causal", "causal", "custom_mask_type")
# Sequences of several lengths, one after the other in one dimension.
_PACKED = ("cum_seq_q", "cu_seqlens_q")


def kept_pairs(queries: int, keys: int) -> int:
    """Pairs of a query and a key that a causal mask leaves, from the first of both on."""
    square = min(queries, keys)
    return square * (square + 1) // 2 + (queries - square) * keys


def left_out(
    operator_name: str, arguments: Sequence[Any], named: Mapping[str, Any], flop: int
) -> int | None:
    """How many of a call's operations are of pairs that its causal mask leaves out.

    0 for what is not called as causal; None where the shapes do not tell. `arguments` are tensors
    or shapes.
    """
    places = _places(operator_name)
    if places is None:
        return 0
    given = {name: arguments[at] for name, at in places.items() if at < len(arguments)}
    given.update(named)
    says = [given[name] for name in _SAYING if name in given]
    if not any(says):
        return None if None in says else 0
    try:
        query, key = _shape(given["query"]), _shape(given["key"])
        at = 2 if operator_name.startswith(_HEADS_FIRST) else 1
        queries, keys = query[at], key[at]
        packed = at == 1 and any(given.get(name) is not None for name in _PACKED)
    except (KeyError, IndexError, TypeError):
        return None
    # Where both differ in length, kernels of the second kind lay the mask along the last places.
    if len(query) != 4 or packed or (at == 1 and queries != keys) or not queries * keys:
        return None
    return flop - flop * kept_pairs(queries, keys) // (queries * keys)


def _shape(value: Any) -> Sequence[int]:
    shape: Sequence[int] = getattr(value, "shape", value)
    return shape


@cache
def _places(operator_name: str) -> dict[str, int] | None:
    """Where an operator has its arguments, by name; None for one that cannot be causal."""
    if not operator_name.startswith((_HEADS_FIRST, *_PLACES_FIRST)):
        return None
    import torch

    namespace, _, name = operator_name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        return None
    places = {argument.name: at for at, argument in enumerate(packet.default._schema.arguments)}
    return places if places.keys() & set(_SAYING) else None
