"""The recorded inputs of operators, and the operators' schemas.

torch.profiler names types as C++ does; here they have torch's names and their sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from math import prod
from typing import Any

from profstack.readers.flops.formulas import overloads_of

BOOL, INTEGER, FLOATING, COMPLEX = range(4)


@dataclass(frozen=True)
class Dtype:
    """A type of elements: torch's name, bytes of one element, and the kind of number."""

    name: str
    itemsize: int
    kind: int


_FLOATS8 = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
# Names of torch.profiler; those of 64-bit integers differ between compilers.
_DTYPES = {
    "bool": Dtype("bool", 1, BOOL),
    "unsigned char": Dtype("uint8", 1, INTEGER),
    "signed char": Dtype("int8", 1, INTEGER),
    "short int": Dtype("int16", 2, INTEGER),
    "short": Dtype("int16", 2, INTEGER),
    "int": Dtype("int32", 4, INTEGER),
    **dict.fromkeys(
        ("long int", "long", "long long", "long long int", "__int64"), Dtype("int64", 8, INTEGER)
    ),
    "c10::Half": Dtype("float16", 2, FLOATING),
    "c10::BFloat16": Dtype("bfloat16", 2, FLOATING),
    "float": Dtype("float32", 4, FLOATING),
    "double": Dtype("float64", 8, FLOATING),
    "c10::complex<c10::Half>": Dtype("complex32", 4, COMPLEX),
    "c10::complex<float>": Dtype("complex64", 8, COMPLEX),
    "c10::complex<double>": Dtype("complex128", 16, COMPLEX),
    **{f"c10::Float8_{name}": Dtype(f"float8_{name}", 1, FLOATING) for name in _FLOATS8},
}
# Type texts of inputs that are no tensors; "" is an input that was left out.
_NO_TENSOR = frozenset(("", "Scalar", "ScalarList"))
# Bytes of one element by torch's number of a type (c10::ScalarType), as an argument `dtype` has it.
_SIZES = {1: (0, 1, 11, 23, 24, 25, 26), 2: (2, 5, 15), 4: (3, 6, 8), 8: (4, 7, 9), 16: (10,)}
_ITEMSIZES = {number: size for size, numbers in _SIZES.items() for number in numbers}


@dataclass(frozen=True)
class Tensor:
    """An input that is a tensor."""

    shape: tuple[int, ...]
    dtype: Dtype

    @property
    def numel(self) -> int:
        """Number of elements; of an expanded tensor all of them, not only those in memory."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel * self.dtype.itemsize


class Unknown:
    """An input of an unknown type, or a list of tensors: the profile has no types of these."""


def tensor_bytes(arguments: Iterable[Any]) -> int:
    """Return the bytes of all tensors among `arguments`."""
    return sum(each.nbytes for each in arguments if isinstance(each, Tensor))


def itemsize(number: object) -> int:
    """Return the bytes of an element by torch's number of its type.

    Raises KeyError for an unknown number.
    """
    return _ITEMSIZES[number]  # type: ignore[index]  # another type is no key either


def floating_name(texts: Sequence[str]) -> str | None:
    """Return the type of the first input of floating-point or complex numbers, None without one."""
    found = (_DTYPES.get(text) for text in texts)
    return next((each.name for each in found if each and each.kind >= FLOATING), None)


def arguments_of(
    shapes: Sequence[Sequence[int]], dtypes: Sequence[str], values: Sequence[Any]
) -> list[Any]:
    """Return the inputs in order: a `Tensor`, another value, or None if it was not recorded.

    `values` may be shorter.
    """
    padded = chain(values, repeat(None))
    return [_argument(*given) for given in zip(shapes, dtypes, padded, strict=False)]


def _argument(shape: Sequence[int], text: str, value: Any) -> Any:
    found = _DTYPES.get(text)
    if found is not None:
        return Tensor(tuple(shape), found)
    return value if text in _NO_TENSOR else Unknown()


# Schemas of torch's operators, each read once, by the profiler's name -----------------------------


@cache
def has_own_kernel(operator: str) -> bool:
    """Return whether an operator has a kernel, and so does work besides its calls.

    Those on lists of tensors have one for some lists, and call single operators for the others.
    """
    import torch

    if operator.startswith("aten::_foreach_"):
        return False
    names = [each.name() for each in overloads_of(operator).values()]
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    known: list[str] = [each for each in names if torch._C._dispatch_has_kernel(each)]
    return not names or any(has(each, key) for each in known for key in ("CPU", "CUDA"))


@cache
def tags_of(name: str) -> frozenset[str]:
    """Return `view` if an operator gives views, `pointwise` if it works element by element."""
    import torch

    overloads = list(overloads_of(f"aten::{name}").values())
    views = bool(overloads) and overloads[0].is_view
    pointwise = any(torch.Tag.pointwise in one.tags for one in overloads)
    return frozenset(["view"] * views + ["pointwise"] * pointwise)


@cache
def inputs_among(name: str, count: int) -> int:
    """Return how many of `count` arguments are inputs: those of a variant `out=` end in outputs."""
    schemas = {name: each._schema.arguments for name, each in overloads_of(f"aten::{name}").items()}
    fitting = {name: given for name, given in schemas.items() if len(given) == count}
    if not fitting or not all(overload.endswith("out") for overload in fitting):
        return count
    return count - sum(bool(each.is_out) for each in next(iter(fitting.values())))
