"""Build variants of a model and compare their results.

The model is not copied: `kept` restores what a variant changes (the statistics of a normalisation
layer in training mode, the mode itself), and the random streams.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from profstack.bench.subject import Subject, causes, map_inputs
from profstack.models import in_training
from profstack.privacy import home_relative

# Defaults of torch.testing.assert_close by the result's type: rtol and atol.
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
class Comparison:
    """The comparison of two results; `equal` is None where there is nothing to compare.

    `note` gives the reason or the difference; `max_difference` is the largest absolute difference
    of two numbers.
    """

    equal: bool | None
    max_difference: float | None = None
    tolerance: str | None = None
    note: str | None = None


class Leaves(NamedTuple):
    """A nested result's tensors, its plain values, and the types of all else."""

    tensors: list[Any]
    others: list[Any]
    opaque: list[str]


def copy_result(output: Any) -> Leaves:
    """Return a result's leaves with copies of its tensors.

    A model may return the same tensor in each call, filled anew (a buffer that it changes, for
    example): without a copy two such results would always be equal.
    """
    leaves = _leaves(output)
    return leaves._replace(tensors=[tensor.detach().clone() for tensor in leaves.tensors])


def compare_results(result: Any, reference: Leaves, *, flat: bool = False) -> Comparison:
    """Compare a variant's result with the reference; a `flat` result holds tensors alone.

    NaN is equal to NaN, an infinity to the same one.
    """
    tensors, others, _ = _leaves(result)
    wanted, wanted_others, opaque = reference
    if not wanted and not wanted_others:
        kind = ", ".join(sorted(set(opaque))) or "None"
        return Comparison(None, note=f"the results hold nothing that could be compared ({kind})")
    # The tolerances of the types that occur.
    said = []
    for kind in sorted({str(tensor.dtype).removeprefix("torch.") for tensor in wanted}):
        rtol, atol = _TOLERANCES.get(kind, (0.0, 0.0))
        said.append(f"rtol {rtol:g}, atol {atol:g} ({kind})" if rtol else f"exact ({kind})")
    tolerance = "; ".join(said) or None
    if len(tensors) != len(wanted) or (not flat and len(others) != len(wanted_others)):
        note = f"the result has {len(tensors)} tensors, eager's {len(wanted)}"
        return Comparison(False, None, tolerance, note)
    compared = [_beside(mine, other) for mine, other in zip(tensors, wanted, strict=True)]
    reasons = [why for why, _ in compared if why is not None]
    equal = not reasons and (flat or all(map(_is_same, others, wanted_others)))
    largest = max((each for _, each in compared if each is not None), default=None)
    notes = [f"not compared: {', '.join(sorted(set(opaque)))}"] if opaque else []
    notes = list(dict.fromkeys([*notes, *reasons]))
    return Comparison(equal, largest, tolerance, "; ".join(notes) or None)


def _leaves(output: Any) -> Leaves:
    """Return a result's leaves, in the order in which they are compared."""
    import torch

    found = Leaves([], [], [])

    def walk(value: Any) -> None:
        parts: Iterable[Any] = ()
        if isinstance(value, torch.Tensor):
            found.tensors.append(value)
        elif isinstance(value, Mapping):
            parts = value.values()
        elif isinstance(value, (tuple, list)):
            parts = value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = [getattr(value, one.name, None) for one in dataclasses.fields(value)]
        elif isinstance(value, (bool, int, float, complex, str, bytes)):
            found.others.append(value)
        elif value is not None:
            found.opaque.append(type(value).__name__)
        for part in parts:
            walk(part)

    walk(output)
    return found


def _beside(mine: Any, other: Any) -> tuple[str | None, float | None]:
    """Return why two tensors are not equal, None if they are, and their largest difference."""
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
    """Return the largest absolute difference; None where it is no number.

    A number and NaN or an infinity have no difference.
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


def _is_same(mine: Any, other: Any) -> bool:
    """Return whether two plain values are the same; NaN is NaN."""
    return bool(mine == other) or (mine != mine and other != other)


EAGER, COMPILE, TRACE, SCRIPT = "eager", "compile", "trace", "script"
NAMES = (EAGER, COMPILE, TRACE, SCRIPT)

_LONGEST_REASON = 240
# Torch 2.13 says so of both at every use; they still work, and the user asked for them by name.
_DEPRECATED = r".*torch\.jit\.(trace|script).*deprecated"
_NO_MODEL = "needs a model and its inputs, and the target is a function"
_NOT_THE_MODEL = "needs the model itself, and what is called is one of its methods"
_TRACED = "recorded with these inputs: a branch that depends on data stays as it was recorded"
_OPTIMISES = "TorchScript optimises during its first calls: what that takes is part of the warm-up"


# What to install, by the name of torch's error.
_MISSING = {
    "InvalidCxxCompiler": "torch.compile needs a C++ compiler and found none: install g++ "
    "(Debian: apt install g++; conda: conda install gxx), or name one in CXX",
    "TritonMissing": "torch.compile needs triton on this device: pip install triton",
}


class UnavailableError(Exception):
    """A variant that is not available here; `str(error)` says why and what to do."""


@dataclass(frozen=True)
class VariantCall:
    """The subject with a variant of its model.

    A `flat` one returns the result's tensors as one tuple instead of the model's structure.
    """

    subject: Subject
    flat: bool = False
    notes: tuple[str, ...] = ()

    @property
    def step(self) -> Callable[[], Any]:
        """One call without arguments."""
        return self.subject.step

    def once(self) -> Any:
        """Return the result of one call with copies of the inputs, which it may change."""
        inputs, named = _copied((self.subject.inputs, dict(self.subject.named_inputs)))
        return self.subject.function(*inputs, **named)


def uncompiled(subject: Subject) -> tuple[Subject, str | None]:
    """Return the subject with the model inside an `OptimizedModule`, and a note on it."""
    original = getattr(subject.model, "_orig_mod", None)
    if original is None or subject.function is not subject.model:
        return subject, None
    return replace(subject, function=original, model=original), "of the model before torch.compile"


def build(
    name: str,
    subject: Subject,
    *,
    options: Mapping[str, Any] | None = None,
    gives_tensors: bool = True,
) -> VariantCall:
    """Return the variant `name`; `options` are the compiler's.

    `gives_tensors` says that the model's result is a tensor or a sequence of tensors. The compiler
    does its work in the first call. Raises UnavailableError where there is no such variant, and
    torch's own errors.
    """
    if name == EAGER:
        return VariantCall(subject)
    if name == COMPILE:
        import torch

        compiled = torch.compile(subject.function, options=dict(options) if options else None)
        return VariantCall(replace(subject, function=compiled))
    if subject.model is None:
        raise UnavailableError(f"torch.jit.{name} {_NO_MODEL}")
    if subject.function is not subject.model:
        raise UnavailableError(f"torch.jit.{name} {_NOT_THE_MODEL}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _DEPRECATED, DeprecationWarning)
        if name == TRACE:
            return _trace(subject, gives_tensors)
        import torch

        scripted = replace(subject, function=torch.jit.script(subject.model))
        return VariantCall(scripted, notes=(_OPTIMISES,))


def _trace(subject: Subject, gives_tensors: bool) -> VariantCall:
    """Trace the model; where it takes or returns more than tensors, a flat form of it.

    A trace takes and returns tensors, and few other structures.
    """
    import torch
    from torch.utils import _pytree

    notes = (_TRACED, _OPTIMISES)
    # Results are compared later, with the same tolerance for all variants.
    trace = functools.partial(torch.jit.trace, check_trace=False, strict=False)
    plain = not subject.named_inputs and all(isinstance(x, torch.Tensor) for x in subject.inputs)
    if plain and gives_tensors:
        traced = replace(subject, function=trace(subject.model, subject.inputs))
        return VariantCall(traced, notes=notes)
    leaves, layout = _pytree.tree_flatten((subject.inputs, dict(subject.named_inputs)))
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    class Flat(torch.nn.Module):
        """The model from tensors to tensors; everything else of its inputs is a constant."""

        def __init__(self) -> None:
            super().__init__()
            self.model = subject.model
            self.training = in_training(subject.model)

        def forward(self, *given: Any) -> Any:
            left = iter(given)
            filled = [next(left) if isinstance(x, torch.Tensor) else x for x in leaves]
            inputs, named = _pytree.tree_unflatten(filled, layout)
            return tuple(_leaves(self.model(*inputs, **named)).tensors)

    traced = replace(subject, function=trace(Flat(), tensors), inputs=tensors, named_inputs={})
    return VariantCall(traced, flat=True, notes=notes)


def gives_tensors(output: Any) -> bool:
    """Return whether a result is a tensor or a sequence of them, which a trace can return."""
    import torch

    whole = output if type(output) in (tuple, list) else (output,)
    return bool(whole) and all(isinstance(one, torch.Tensor) for one in whole)


def _copied(values: Any) -> Any:
    """Return the structure with every tensor copied, one that occurs twice once.

    Copies of normal tensors are normal ones in inference mode, too: a model would be compiled anew
    for the other kind.
    """
    import torch

    known: dict[int, Any] = {}

    def copied(tensor: Any) -> Any:
        if id(tensor) not in known:
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                known[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return known[id(tensor)]

    return map_inputs(copied, values)


@contextmanager
def kept(subject: Subject) -> Iterator[Callable[[], None]]:
    """Restore the model's buffers and modes, its inputs and the random streams at the end.

    Yields a function that restores all but the streams in between, so that every variant starts
    from the same state. Without a model only the streams are known.
    """
    import torch

    model = subject.model
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    modes = [(each, each.training) for each in modules if hasattr(each, "training")]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]

    tensors = [(each, each.detach().clone()) for each in subject.tensors]
    tensors += [(buffer, value) for _, _, buffer, value in buffers]

    def put_back() -> None:
        for module, mode in modes:
            module.training = mode
        for module, name, buffer, _ in buffers:
            module._buffers[name] = buffer
        with torch.inference_mode():
            for tensor, value in tensors:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)

    numpy = sys.modules.get("numpy.random")
    of_python, of_torch = random.getstate(), torch.get_rng_state()
    of_numpy = numpy.get_state() if numpy is not None else None
    on_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch has none there
    of_cuda = torch.cuda.get_rng_state_all() if on_cuda else None
    try:
        yield put_back
    finally:
        put_back()
        random.setstate(of_python)
        torch.set_rng_state(of_torch)
        if numpy is not None:
            numpy.set_state(of_numpy)
        if of_cuda is not None:
            torch.cuda.set_rng_state_all(of_cuda)


def why_failed(error: Exception) -> tuple[Literal["failed", "unavailable"], str]:
    """Return the status of a variant that raised, and one line of reason."""
    if isinstance(error, UnavailableError):
        return "unavailable", str(error)
    for one in causes(error):
        if type(one).__name__ in _MISSING:
            return "unavailable", _MISSING[type(one).__name__]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Values of a tensor are the user's, and no reason.
    said = re.split(r"tensor\(|\[\[", lines[0])[0].rstrip(" ({[:,'") if lines else ""
    if lines and said != lines[0] and not re.match(r"[\[\]\d.\s,()+-]*$", lines[-1]):
        said = f"{said} ...: {lines[-1].split(':', 1)[-1]}"
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    text = re.sub(r" at 0x[0-9a-f]+", "", home_relative(text.rstrip(":")))
    return "failed", text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 3] + "..."
