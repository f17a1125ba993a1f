"""Bytes moved by operators that work element by element: what type and shape their output has."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from profstack.torchtrace.tensorinputs import BOOL, COMPLEX, FLOATING, INTEGER, Tensor, tensor_bytes

_TRUTHS = frozenset(
    (
        *("eq", "ne", "lt", "le", "gt", "ge", "greater", "less", "isnan", "isinf", "isfinite"),
        *("isposinf", "isneginf", "signbit", "isclose"),
        *("logical_and", "logical_or", "logical_xor", "logical_not"),
    )
)
# Whole numbers stay whole in these; in others (true division, sqrt) they become the default type.
_KEEP_INTEGERS = frozenset(
    (
        *("add", "sub", "rsub", "mul", "neg", "abs", "sign", "square", "pow", "remainder", "fmod"),
        *("maximum", "minimum", "clamp", "clamp_min", "clamp_max", "relu", "where", "clone"),
        *("floor", "ceil", "round", "trunc", "floor_divide"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"),
        *("bitwise_left_shift", "bitwise_right_shift"),
    )
)
_KEEP_COMPLEX = frozenset(
    ("add", "sub", "rsub", "mul", "div", "neg", "reciprocal", "where", "clone")
)


def pointwise(name: str, arguments: Sequence[Any]) -> int:
    """All inputs, and one output of the shape that they broadcast to.

    Raises ValueError where the type of the output is not certain.
    """
    tensors = [each for each in arguments if isinstance(each, Tensor)]
    if name.endswith("_"):
        return tensor_bytes(tensors) + tensors[0].nbytes
    numel = prod(broadcast([each.shape for each in tensors]))
    return tensor_bytes(tensors) + numel * _result_itemsize(name, tensors, arguments)


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that tensors of these shapes have together."""
    longest = max(len(shape) for shape in shapes)
    padded = [(1,) * (longest - len(shape)) + shape for shape in shapes]
    return tuple(
        next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True)
    )


def _result_itemsize(name: str, tensors: Sequence[Tensor], arguments: Sequence[Any]) -> int:
    if name in _TRUTHS:
        return 1
    values = [each for each in tensors if not (name == "where" and each is tensors[0])]
    kind = max(each.dtype.kind for each in values)
    # A tensor without dimensions gives the kind of number, and its type only where no other does.
    sized = [each for each in values if each.shape and each.dtype.kind == kind]
    candidates = sized or [each for each in values if each.dtype.kind == kind]
    sizes = {each.dtype.itemsize for each in candidates}
    has_float = any(isinstance(each, float) for each in arguments)
    if kind == COMPLEX and name not in _KEEP_COMPLEX:
        raise ValueError("an output of real numbers, perhaps")
    if kind <= INTEGER and (name not in _KEEP_INTEGERS or has_float or kind == BOOL):
        raise ValueError("an output of the default type, perhaps")
    halves = {each.dtype.name for each in candidates if each.dtype.itemsize == 2}
    if kind == FLOATING and len(halves) > 1:
        # float16 with bfloat16 gives float32.
        return max(4, *sizes)
    return max(sizes)
