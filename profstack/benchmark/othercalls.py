"""The subject's call made another way: on a fresh copy of its model, or with its inputs copied.

Of a function that is called without arguments neither can be had: what it holds is its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from profstack.benchmark.clock import Clock
from profstack.benchmark.subject import Subject


class NotToBeHadError(Exception):
    """The subject does not allow this call; `str(error)` says why."""


def fresh_copy(subject: Subject) -> Subject:
    """The same call on a deep copy of the model, which nothing has called yet.

    Its weights are in no cache and what torch keeps for a module is made anew; what torch keeps
    for the process (loaded libraries, thread pools, compiled code) is there already. To be called
    outside of `conditions()`, or the copy would hold inference tensors.
    """
    if subject.model is None:
        raise NotToBeHadError("a function cannot be made cold again within its process")
    try:
        copied = copy.deepcopy(subject.model)
    except Exception as error:
        raise NotToBeHadError(f"the model cannot be copied ({in_a_line(error)})") from error
    if subject.function is subject.model:
        return replace(subject, function=copied, model=copied)
    if getattr(subject.function, "__self__", None) is subject.model:
        method = getattr(copied, subject.function.__name__)
        return replace(subject, function=method, model=copied)
    raise NotToBeHadError("what is called is not the model itself: no copy can be called")


def copying_step(subject: Subject) -> Callable[[], Any]:
    """One call that copies the inputs' tensors first, each time anew.

    Tensors of an accelerator are taken to host memory (pageable, as tutorials have it) here and
    now, and each call brings them to their device; tensors of the host are copied within it.
    """
    if not subject.tensors:
        raise NotToBeHadError("it is called without tensors: what it copies, it copies itself")
    from torch.utils import _pytree

    leaves, layout = _pytree.tree_flatten((subject.inputs, dict(subject.named_inputs)))
    makers = [_maker(leaf) for leaf in leaves]
    function = subject.function

    def step() -> Any:
        inputs, named = _pytree.tree_unflatten([make() for make in makers], layout)
        return function(*inputs, **named)

    return step


def _maker(leaf: Any) -> Callable[[], Any]:
    """Gives the leaf as it is, or a tensor freshly copied."""
    import torch

    if not isinstance(leaf, torch.Tensor):
        return lambda: leaf
    if leaf.device.type == "cpu":
        return leaf.clone
    device, on_host = leaf.device, leaf.detach().cpu()
    return lambda: on_host.to(device)


def input_bytes(subject: Subject) -> int:
    """Bytes of the inputs' tensors."""
    return sum(one.numel() * one.element_size() for one in subject.tensors)


def uses_device(subject: Subject, clock: Clock) -> bool:
    """Whether the subject works on an accelerator, as far as its model and inputs tell.

    A function shows neither: it is taken to use the device that the process uses.
    """
    if not clock.has_device:
        return False
    parameters = subject.model.parameters() if hasattr(subject.model, "parameters") else ()
    kinds = {one.device.type for one in (*subject.tensors, *parameters)}
    return not kinds or kinds != {"cpu"}


def in_a_line(error: BaseException) -> str:
    """An error's type and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
