"""What a benchmark calls: a function, or a model with its inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from profstack.benchmark.inputs import leading_dimension, resized, tensors_in
from profstack.evaluation import in_training

STATED, READ = "stated", "read from the inputs"


@dataclass(frozen=True)
class Request:
    """What the command line says of a target: another process loads the same subject from it.

    `spec` is `file.py:function` or `module:function`; `kind` is `factory` or `step` where the user
    settles it; `inputs` are shapes as in `1x3x224x224:float32`. `as_json()` gives plain data, and
    `Request(**data)` takes it again.
    """

    spec: str
    kind: str | None = None
    inputs: tuple[str, ...] = ()
    device: str | None = None
    batch_size: int | None = None
    gradients: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Subject:
    """One callable to measure; `step()` is one call of it, as it is measured.

    Of a function that is called without arguments `model` is None and `inputs` are empty: what
    needs to change inputs or the model (batch sizes, compiled variants) cannot be had of it. A
    model is called in its own mode; gradients are off unless `gradients`. `batch_size` is the
    leading dimension that the inputs' tensors share, or what the user says; `batch_size_is` says
    which. `spec` is the target on the command line and `request` all that was said of it there,
    from which another process loads the same; both are None for what a program holds.
    `of_batch(n)` makes the same subject for another batch size; None where that cannot be had, and
    `why_no_batches` then says why.
    """

    name: str
    function: Callable[..., Any]
    model: Any = None
    inputs: tuple[Any, ...] = ()
    named_inputs: Mapping[str, Any] = field(default_factory=dict)
    gradients: bool = False
    batch_size: int | None = None
    batch_size_is: str | None = None
    spec: str | None = None
    of_batch: Callable[[int], Subject] | None = None
    why_no_batches: str | None = None
    request: Request | None = None

    @property
    def step(self) -> Callable[[], Any]:
        """One call without arguments; to be called under `conditions()`."""
        if self.model is None or not (self.inputs or self.named_inputs):
            return self.function
        return functools.partial(self.function, *self.inputs, **self.named_inputs)

    @property
    def tensors(self) -> list[Any]:
        """The tensors of its inputs."""
        return tensors_in((self.inputs, dict(self.named_inputs)))

    @property
    def training(self) -> bool | None:
        """The model's mode, which is left as it is; None of a function."""
        return None if self.model is None else in_training(self.model)

    @property
    def training_layers(self) -> list[str]:
        """Types of the model's modules that in its training mode do what inference does not.

        They drop values at random, or normalise by the batch and change their own statistics.
        """
        from torch import nn

        normalising = nn.modules.batchnorm._BatchNorm
        dropping = nn.modules.dropout._DropoutNd
        found = {
            type(module).__name__
            for module in (self.model.modules() if self.model is not None else ())
            if in_training(module)
            and (
                isinstance(module, normalising)
                or (isinstance(module, dropping) and module.p > 0)
                # Recurrent layers and attention have theirs as a number.
                or (isinstance(getattr(module, "dropout", None), float) and module.dropout > 0)
            )
        }
        return sorted(found)

    def conditions(self) -> AbstractContextManager[Any]:
        """Gradients on or off as they are to be measured: entered once, round all calls.

        A function is called with what the program has them set to. Entering it for each call would
        be timed with the call, at about a microsecond.
        """
        import torch

        if self.gradients:
            return torch.enable_grad()
        if self.model is None:
            return nullcontext()
        return torch.inference_mode()


def of_model(
    model: Any,
    inputs: tuple[Any, ...],
    named_inputs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    gradients: bool = False,
    batch_size: int | None = None,
    request: Request | None = None,
) -> Subject:
    """The subject of a model called with these inputs; `batch_size` is the one that is stated."""
    named = dict(named_inputs or {})
    read = leading_dimension((inputs, named))
    subject = Subject(
        name or type(model).__name__,
        model,
        model,
        inputs,
        named,
        gradients,
        read if batch_size is None else batch_size,
        STATED if batch_size is not None else READ if read is not None else None,
        request.spec if request is not None else None,
        request=request,
    )
    if read is None:
        return replace(subject, why_no_batches="the inputs' tensors share no leading dimension")
    if batch_size is not None and batch_size != read:
        why = f"the inputs' leading dimension is {read}, and the stated batch size {batch_size}"
        return replace(subject, why_no_batches=f"{why}: it is not known where the batch stands")
    return replace(subject, of_batch=functools.partial(_of_batch, subject))


def _of_batch(subject: Subject, batch_size: int) -> Subject:
    """The subject with its inputs repeated or cut."""
    inputs, named = resized((subject.inputs, dict(subject.named_inputs)), batch_size)
    again = replace(subject, inputs=inputs, named_inputs=named, batch_size=batch_size)
    return replace(again, of_batch=functools.partial(_of_batch, again))
