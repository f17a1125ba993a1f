"""A model made to run another way: compiled, traced or scripted, on the same parameters.

Nothing is copied: what a variant changes of the model (the statistics of a normalisation layer in
training mode, the mode itself) is put back by `kept`, and so are the random streams.
"""

from __future__ import annotations

import functools
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from profstack.benchmark.subject import Subject
from profstack.benchmark.variantresults import flat_tensors
from profstack.evaluation import in_training
from profstack.privacy import home_relative

EAGER, COMPILE, TRACE, SCRIPT = "eager", "compile", "trace", "script"
NAMES = (EAGER, COMPILE, TRACE, SCRIPT)

_LONGEST_REASON = 240
# Torch 2.13 says so of both at every use; they still work, and the user asked for them by name.
_DEPRECATED = r".*torch\.jit\.(trace|script).*deprecated"
_NO_MODEL = "needs a model and its inputs, and the target is a function"
_NOT_THE_MODEL = "needs the model itself, and what is called is one of its methods"
_TRACED = "recorded with these inputs: a branch that depends on data stays as it was recorded"
_OPTIMISES = "TorchScript optimises during its first calls: what that takes is part of the warm-up"


class UnavailableError(Exception):
    """A variant cannot be had here; `str(error)` says why and what to do."""


@dataclass(frozen=True)
class Built:
    """A callable with the inputs that it takes.

    `flat` says that it returns the result's tensors as one tuple instead of the model's structure.
    """

    function: Callable[..., Any]
    inputs: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    flat: bool = False
    notes: tuple[str, ...] = ()

    @property
    def step(self) -> Callable[[], Any]:
        """One call without arguments."""
        if not (self.inputs or self.named):
            return self.function
        return functools.partial(self.function, *self.inputs, **self.named)

    def once(self) -> Any:
        """The result of one call with copies of the inputs, which it may change."""
        inputs, named = _copied((self.inputs, dict(self.named)))
        return self.function(*inputs, **named)


def uncompiled(subject: Subject) -> tuple[Subject, str | None]:
    """The subject with the model that an `OptimizedModule` compiles, and what was done."""
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
) -> Built:
    """The variant `name`; `options` are the compiler's.

    `gives_tensors` says that the model's result is a tensor or a sequence of tensors. What is lazy
    (the compiler) does its work in the first call. Raises UnavailableError where there can be no
    such variant, and whatever torch raises where it fails.
    """
    if name == EAGER:
        return Built(subject.function, subject.inputs, subject.named_inputs)
    if name == COMPILE:
        import torch

        compiled = torch.compile(subject.function, options=dict(options) if options else None)
        return Built(compiled, subject.inputs, subject.named_inputs)
    if subject.model is None:
        raise UnavailableError(f"torch.jit.{name} {_NO_MODEL}")
    if subject.function is not subject.model:
        raise UnavailableError(f"torch.jit.{name} {_NOT_THE_MODEL}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _DEPRECATED, DeprecationWarning)
        return _scripted(subject) if name == SCRIPT else _traced(subject, gives_tensors)


def _scripted(subject: Subject) -> Built:
    import torch

    function = torch.jit.script(subject.model)
    return Built(function, subject.inputs, subject.named_inputs, notes=(_OPTIMISES,))


def _traced(subject: Subject, gives_tensors: bool) -> Built:
    """The model's trace; where it takes or gives more than tensors, that of a flat form of it.

    A trace takes and returns tensors, and of other structures only some.
    """
    import torch
    from torch.utils import _pytree

    notes = (_TRACED, _OPTIMISES)
    # Results are compared here, with the same tolerance for all variants.
    trace = functools.partial(torch.jit.trace, check_trace=False, strict=False)
    plain = not subject.named_inputs and all(isinstance(x, torch.Tensor) for x in subject.inputs)
    if plain and gives_tensors:
        return Built(trace(subject.model, subject.inputs), subject.inputs, notes=notes)
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
            return tuple(flat_tensors(self.model(*inputs, **named)))

    return Built(trace(Flat(), tensors), tensors, flat=True, notes=notes)


def gives_tensors(output: Any) -> bool:
    """Whether a result is a tensor or a sequence of them, which a trace can return as it is."""
    import torch

    whole = output if type(output) in (tuple, list) else (output,)
    return bool(whole) and all(isinstance(one, torch.Tensor) for one in whole)


def _copied(values: Any) -> Any:
    """The same structure with every tensor copied, one that occurs twice once.

    The copies are normal tensors also in inference mode, as the inputs are: a compiled model would
    be compiled anew for the other kind.
    """
    import torch
    from torch.utils import _pytree

    known: dict[int, Any] = {}

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in known:
            with torch.inference_mode(leaf.is_inference()), torch.no_grad():
                known[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
        return known[id(leaf)]

    return _pytree.tree_map(copied, values)


@contextmanager
def kept(subject: Subject) -> Iterator[Callable[[], None]]:
    """The model's buffers and modes, its inputs and the random streams, put back at the end.

    Gives a function that puts all but the streams back in between, so that every variant starts
    from the same state. Of a function without a model only the streams are known.
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

    streams = _random_streams()
    try:
        yield put_back
    finally:
        put_back()
        for put in streams:
            put()


def _random_streams() -> list[Callable[[], None]]:
    """What puts each random stream back where it is now: Python's, numpy's, torch's, a device's."""
    import torch

    streams: list[Callable[[], None]] = [
        functools.partial(random.setstate, random.getstate()),
        functools.partial(torch.set_rng_state, torch.get_rng_state()),
    ]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        streams.append(functools.partial(numpy.set_state, numpy.get_state()))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch says nothing of it
        states = torch.cuda.get_rng_state_all()
        streams.append(functools.partial(torch.cuda.set_rng_state_all, states))
    return streams


def why_failed(error: Exception) -> tuple[str, str]:
    """The status of a variant that raised, and one line of reason."""
    if isinstance(error, UnavailableError):
        return "unavailable", str(error)
    missing = _missing_compiler(error)
    if missing is not None:
        return "unavailable", missing
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # What stands in a tensor is the user's, and no reason.
    said = re.split(r"tensor\(|\[\[", lines[0])[0].rstrip(" ({[:,'") if lines else ""
    if lines and said != lines[0] and not re.match(r"[\[\]\d.\s,()+-]*$", lines[-1]):
        said = f"{said} ...: {lines[-1].split(':', 1)[-1]}"
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    text = re.sub(r" at 0x[0-9a-f]+", "", home_relative(text.rstrip(":")))
    return "failed", text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 3] + "..."


def _missing_compiler(error: BaseException) -> str | None:
    """What to install, where the error or its cause is that there is no compiler."""
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None:
            return None
        kind = type(seen).__name__
        if kind == "InvalidCxxCompiler":
            return (
                "torch.compile needs a C++ compiler and found none: install g++ "
                "(Debian: apt install g++; conda: conda install gxx), or name one in CXX"
            )
        if kind == "TritonMissing":
            return "torch.compile needs triton on this device: pip install triton"
        seen = seen.__cause__ or seen.__context__
    return None
