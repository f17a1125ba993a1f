"""A subject in another floating-point type: its model and its floating-point inputs converted.

Integer inputs (token numbers, masks) stay as they are. Conversion is in place, as `Module.to` is;
where the model is needed afterwards its values are kept in main memory meanwhile and put back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from profstack.benchmark.subject import Subject, of_model
from profstack.errors import UsageError

Maker = Callable[[int], Subject]


def check_dtype(name: str) -> None:
    """Raise UsageError for what is no floating-point type of torch."""
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(
            f"--dtype {name}: torch has no such floating-point type",
            next_step="types are float32, bfloat16, float16 and float64",
        )


def own_dtype(subject: Subject) -> str | None:
    """The floating-point type that the subject is in, None where it has several or none."""
    names = {str(one.dtype).removeprefix("torch.") for one in _floating(subject)}
    return names.pop() if len(names) == 1 else None


def device_kind(subject: Subject) -> str:
    """Kind of the device that a subject's model or inputs are on: `cpu`, `cuda`, ..."""
    kinds = {str(one.device.type) for one in (*_states(subject.model), *subject.tensors)}
    return next(iter(sorted(kinds - {"cpu"})), "cpu")


def maker(subject: Subject, dtype: str | None) -> Maker:
    """What makes the subject of a batch size in a type; the model is converted for good.

    `of_batch` must be there. The subject itself is not kept where its `of_batch` does without it.
    """
    of_batch, model = subject.of_batch, subject.model
    assert of_batch is not None
    if dtype is None:
        return of_batch
    import torch

    wanted = getattr(torch, dtype)
    if model is not None:
        model.to(wanted)
        # `of_model` enlarges inputs by a partial, a factory makes new ones by a function. Inputs
        # are converted before they are enlarged, so that the largest never exist in both types.
        if isinstance(of_batch, functools.partial):
            inputs, named = _cast((subject.inputs, dict(subject.named_inputs)), wanted)
            again = of_model(model, inputs, named, gradients=subject.gradients)
            assert again.of_batch is not None
            return again.of_batch

    def make(batch_size: int) -> Subject:
        made = of_batch(batch_size)
        # A factory's model of this size is a new one; for one that is converted it is a look.
        if made.model is not None:
            made.model.to(wanted)
        inputs, named = _cast((made.inputs, dict(made.named_inputs)), wanted)
        return replace(made, inputs=inputs, named_inputs=named)

    return make


@contextmanager
def borrowed(subject: Subject, dtype: str | None) -> Iterator[Maker]:
    """`maker`, with the model's own values and type put back in the end."""
    kept: dict[str, Any] = {}
    if dtype is not None and subject.model is not None:
        import torch

        wanted = getattr(torch, dtype)
        kept = {
            name: (state.dtype, state.device, state.detach().to("cpu", copy=True))
            for name, state in _named_states(subject.model)
            if state.is_floating_point() and state.dtype != wanted
        }
    try:
        yield maker(subject, dtype)
    finally:
        for name, state in _named_states(subject.model) if kept else ():
            if name in kept:
                own, device, values = kept[name]
                # Room for the values first: those of the other type are given back by then.
                state.data = state.data.new_empty(0)
                state.data = values.to(device=device, dtype=own)
                if state.grad is not None:
                    state.grad.data = state.grad.data.to(own)


def _cast(inputs: Any, wanted: Any) -> Any:
    import torch
    from torch.utils import _pytree

    def of_leaf(leaf: Any) -> Any:
        is_floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(wanted) if is_floating else leaf

    return _pytree.tree_map(of_leaf, inputs)


def _named_states(model: Any) -> list[tuple[str, Any]]:
    """Parameters and buffers of a model, each tensor once."""
    return [*model.named_parameters(), *model.named_buffers()]


def _states(model: Any) -> list[Any]:
    return [] if model is None else [state for _, state in _named_states(model)]


def _floating(subject: Subject) -> list[Any]:
    states = [one for one in _states(subject.model) if one.is_floating_point()]
    # Inputs decide only where there is no parameter: a type is a model's first of all.
    return states or [one for one in subject.tensors if one.is_floating_point()]
