"""Inputs of an operator as a profile recorded them: tensors with their sizes and types.

torch.profiler names types as C++ does; here they have torch's names and their sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

BOOL, INTEGER, FLOATING, COMPLEX = range(4)


@dataclass(frozen=True)
class Dtype:
    """A type of elements: torch's name, bytes of one element, and the kind of number."""

    name: str
    itemsize: int
    kind: int


_INT64 = Dtype("int64", 8, INTEGER)
_FLOATS8 = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
# Names of torch.profiler; those of 64-bit integers differ between compilers.
_DTYPES = {
    "bool": Dtype("bool", 1, BOOL),
    "unsigned char": Dtype("uint8", 1, INTEGER),
    "signed char": Dtype("int8", 1, INTEGER),
    "short int": Dtype("int16", 2, INTEGER),
    "short": Dtype("int16", 2, INTEGER),
    "int": Dtype("int32", 4, INTEGER),
    "long int": _INT64,
    "long": _INT64,
    "long long": _INT64,
    "long long int": _INT64,
    "__int64": _INT64,
    "c10::Half": Dtype("float16", 2, FLOATING),
    "c10::BFloat16": Dtype("bfloat16", 2, FLOATING),
    "float": Dtype("float32", 4, FLOATING),
    "double": Dtype("float64", 8, FLOATING),
    "c10::complex<c10::Half>": Dtype("complex32", 4, COMPLEX),
    "c10::complex<float>": Dtype("complex64", 8, COMPLEX),
    "c10::complex<double>": Dtype("complex128", 16, COMPLEX),
    **{f"c10::Float8_{name}": Dtype(f"float8_{name}", 1, FLOATING) for name in _FLOATS8},
}
# What stands where a type would, for inputs that are no tensor; "" is an input that was left out.
_NO_TENSOR = frozenset(("", "Scalar", "ScalarList", "TensorList", "OptionalTensorList"))
_SIZES = (1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 2)
# Bytes of one element by torch's number of a type (c10::ScalarType), as an argument `dtype` has it.
_ITEMSIZES = {
    **dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15), _SIZES, strict=True)),
    **dict.fromkeys((23, 24, 25, 26), 1),
}


@dataclass(frozen=True)
class Tensor:
    """An input that is a tensor."""

    shape: tuple[int, ...]
    dtype: Dtype

    @property
    def numel(self) -> int:
        """Elements; of one that was expanded all that it shows, not only those in memory."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel * self.dtype.itemsize


class TensorList:
    """An input that is a list of tensors: the profile tells neither types nor, mostly, shapes."""


class Unknown:
    """An input of a type that is not known here."""


def tensor_bytes(arguments: Iterable[Any]) -> int:
    """Bytes of all tensors among `arguments`."""
    return sum(each.nbytes for each in arguments if isinstance(each, Tensor))


def itemsize(number: object) -> int:
    """Bytes of an element by torch's number of its type.

    Raises KeyError for a number that is not known.
    """
    return _ITEMSIZES[number]  # type: ignore[index]  # what is no number is no key either


def dtype_name(text: str) -> str | None:
    """torch's name of a type that torch.profiler names `text`; None for what is no tensor's."""
    found = _DTYPES.get(text)
    return found.name if found is not None else None


def floating_name(texts: Sequence[str]) -> str | None:
    """Type of the first input that holds floating-point or complex numbers, None without one."""
    for text in texts:
        found = _DTYPES.get(text)
        if found is not None and found.kind >= FLOATING:
            return found.name
    return None


def arguments_of(
    shapes: Sequence[Sequence[int]], dtypes: Sequence[str], values: Sequence[Any]
) -> list[Any]:
    """The inputs in order: a `Tensor`, or the value of what is none, or None.

    `values` may be shorter; what was not recorded is None.
    """
    padded = [*values, *[None] * (len(dtypes) - len(values))]
    return [
        _argument(shape, text, value)
        for shape, text, value in zip(shapes, dtypes, padded, strict=False)
    ]


def _argument(shape: Sequence[int], text: str, value: Any) -> Any:
    found = _DTYPES.get(text)
    if found is not None:
        return Tensor(tuple(shape), found)
    if text.endswith("TensorList"):
        return TensorList()
    return value if text in _NO_TENSOR else Unknown()
