"""What a benchmark calls: a function, or a model with its inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

STATED, READ = "stated", "read from the inputs"


@dataclass(frozen=True)
class Subject:
    """One callable to measure; `step()` is one call of it, as it is measured.

    Of a function that is called without arguments `model` is None and `inputs` are empty: what
    needs to change inputs or the model (batch sizes, compiled variants) cannot be had of it. A
    model is called in its own mode; gradients are off unless `gradients`. `batch_size` is the
    leading dimension that the inputs' tensors share, or what the user says; `batch_size_is` says
    which. `spec` is the target on the command line, from which another process can load the same.
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
    # Makes the same subject for another batch size, where the target itself can.
    of_batch: Callable[[int], Subject] | None = None

    @property
    def step(self) -> Callable[[], Any]:
        """One call without arguments; to be called under `conditions()`."""
        if self.model is None:
            return self.function
        return functools.partial(self.function, *self.inputs, **self.named_inputs)

    def conditions(self) -> AbstractContextManager[Any]:
        """Gradients on or off as they are to be measured: entered once, round all calls.

        Entering it for each call would be timed with the call, at about a microsecond.
        """
        import torch

        if self.model is None or self.gradients:
            return torch.enable_grad()
        return torch.inference_mode()
