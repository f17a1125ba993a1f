"""Whether two ways of running a model give the same: their results, tensor by tensor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What torch.testing.assert_close takes by default, by the result's type: rtol and atol.
_TOLERANCES = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex32": (1e-3, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}


@dataclass(frozen=True)
class Compared:
    """`equal` is None where results say nothing; `note` says why, or what differs.

    `max_difference` is the largest absolute one of any two numbers, None where none were compared.
    """

    equal: bool | None
    max_difference: float | None = None
    tolerance: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Held:
    """A result as it was: tensors of its own, plain values, and the types of what is neither.

    A model may give the same tensor in each call, filled anew (a buffer that it changes, for one):
    two such results would be one and the same, and equal whatever was computed.
    """

    tensors: list[Any]
    others: list[Any]
    opaque: list[str]


def held(output: Any) -> Held:
    """The result with its tensors copied."""
    tensors, others, opaque = _leaves(output)
    return Held([tensor.detach().clone() for tensor in tensors], others, opaque)


def compared(result: Any, reference: Any, *, flat: bool = False) -> Compared:
    """A variant's result beside the reference's; `flat` where the variant gives tensors alone.

    The reference is a result, or one that is `held`.

    NaN is equal to NaN, an infinity to the same one.
    """
    tensors, others, _ = _leaves(result)
    known = reference if isinstance(reference, Held) else held(reference)
    wanted, wanted_others, opaque = known.tensors, known.others, known.opaque
    if not wanted and not wanted_others:
        kind = ", ".join(sorted(set(opaque))) or "None"
        return Compared(None, note=f"the results hold nothing that could be compared ({kind})")
    tolerance = _tolerance(wanted)
    if len(tensors) != len(wanted) or (not flat and len(others) != len(wanted_others)):
        note = f"the result has {len(tensors)} tensors, eager's {len(wanted)}"
        return Compared(False, None, tolerance, note)
    notes = [f"not compared: {', '.join(sorted(set(opaque)))}"] if opaque else []
    equal, largest = flat or all(map(_same, others, wanted_others)), None
    for mine, other in zip(tensors, wanted, strict=True):
        why, difference = _beside(mine, other)
        if difference is not None and (largest is None or difference > largest):
            largest = difference
        if why is not None:
            equal = False
            notes.append(why)
    return Compared(equal, largest, tolerance, "; ".join(dict.fromkeys(notes)) or None)


def flat_tensors(output: Any) -> list[Any]:
    """The tensors of a result, in the order in which they are compared."""
    return _leaves(output)[0]


def _leaves(output: Any) -> tuple[list[Any], list[Any], list[str]]:
    """Tensors, plain values, and the types of what is neither, of a nested result."""
    import torch

    tensors: list[Any] = []
    others: list[Any] = []
    opaque: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, Mapping):
            for each in value.values():
                walk(each)
        elif isinstance(value, (tuple, list)):
            for each in value:
                walk(each)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for one in dataclasses.fields(value):
                walk(getattr(value, one.name, None))
        elif isinstance(value, (bool, int, float, complex, str, bytes)):
            others.append(value)
        elif value is not None:
            opaque.append(type(value).__name__)

    walk(output)
    return tensors, others, opaque


def _tolerance(tensors: list[Any]) -> str | None:
    """The tolerances of the types that occur, in words."""
    kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})
    said = []
    for kind in kinds:
        if kind in _TOLERANCES:
            rtol, atol = _TOLERANCES[kind]
            said.append(f"rtol {rtol:g}, atol {atol:g} ({kind})")
        else:
            said.append(f"exact ({kind})")
    return "; ".join(said) or None


def _beside(mine: Any, other: Any) -> tuple[str | None, float | None]:
    """Why two tensors are not equal, None if they are, and their largest difference."""
    import torch

    if mine.shape != other.shape:
        return f"shapes differ: {tuple(mine.shape)}, eager's {tuple(other.shape)}", None
    if mine.dtype != other.dtype or mine.device != other.device:
        kinds = f"{mine.dtype} on {mine.device}, eager's {other.dtype} on {other.device}"
        return f"types differ: {kinds}", None
    rtol, atol = _TOLERANCES.get(str(other.dtype).removeprefix("torch."), (0.0, 0.0))
    mine, other = mine.detach(), other.detach()
    try:
        torch.testing.assert_close(mine, other, rtol=rtol, atol=atol, equal_nan=True)
        why = None
    except AssertionError:
        why = "results differ by more than the tolerance"
    return why, _difference(mine, other)


def _difference(mine: Any, other: Any) -> float | None:
    """The largest absolute difference; None where there is no number to give.

    A number on one side and NaN or an infinity on the other have no difference to tell.
    """
    import torch

    if mine.layout != torch.strided or mine.is_quantized or not mine.numel():
        return None
    wide = torch.complex128 if mine.is_complex() else torch.float64
    mine, other = mine.cpu().to(wide), other.cpu().to(wide)
    differing = ~((mine == other) | (torch.isnan(mine) & torch.isnan(other)))
    if not bool(differing.any()):
        return 0.0
    largest = float((mine - other).abs()[differing].max())
    return largest if math.isfinite(largest) else None


def _same(mine: Any, other: Any) -> bool:
    """Whether two plain values are the same; NaN is NaN."""
    return bool(mine == other) or (mine != mine and other != other)
