"""The callable under measurement: a function or a model with inputs."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from profstack.errors import UsageError
from profstack.models import in_training
from profstack.stats.clock import Clock
from profstack.storage.vocabulary import READ, STATED

_SHAPE = re.compile(r"(?P<sizes>[0-9]+(x[0-9]+)*)(:(?P<dtype>\w+))?")
# As measured numbers must be repeatable, so must the inputs be.
_SEED = 0


def check_shape(text: str) -> None:
    """Raise UsageError where `text` is no shape, without importing torch."""
    if not _SHAPE.fullmatch(text):
        raise UsageError(
            f"--input {text} is no shape",
            next_step="write sizes and, if it is not float32, the type: 1x3x224x224:float16",
        )


def make_input(text: str) -> Any:
    """Return a tensor of the shape and type in `text`, as in `8x128:int64`.

    Floating-point values are normally distributed, the same ones each time; integers are 0 or 1,
    which are valid in every vocabulary and as every index. Raises UsageError for a shape or type
    that does not exist.
    """
    import torch

    check_shape(text)
    found = _SHAPE.fullmatch(text)
    assert found is not None
    sizes = [int(size) for size in found["sizes"].split("x")]
    dtype = getattr(torch, found["dtype"] or "float32", None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(
            f"--input {text}: torch has no type {found['dtype']}",
            next_step="types are float32, float16, bfloat16, int64, uint8, bool and the like",
        )
    generator = torch.Generator().manual_seed(_SEED)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        # Not every type can be drawn directly.
        return torch.randn(sizes, generator=generator, dtype=wide).to(dtype)
    return torch.randint(0, 2, sizes, generator=generator).to(dtype)


def split_inputs(given: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the values after a factory's model as positional and named inputs.

    A tensor is one input, a tuple or a list holds several, a dictionary with names for keys holds
    named ones.
    """
    if len(given) != 1:
        return tuple(given), {}
    only = given[0]
    if isinstance(only, dict) and all(isinstance(key, str) for key in only):
        return (), dict(only)
    # Hugging Face's tokenizers return a dictionary of their own kind.
    if hasattr(only, "keys") and hasattr(only, "items") and not hasattr(only, "shape"):
        return (), dict(only.items())
    if isinstance(only, (tuple, list)):
        return tuple(only), {}
    return (only,), {}


def leading_dimension(inputs: Any) -> int | None:
    """Return the leading dimension that all tensors of (nested) inputs share, else None.

    Scalars do not count.
    """
    sizes = {int(leaf.shape[0]) for leaf in tensors_in(inputs) if leaf.dim()}
    return sizes.pop() if len(sizes) == 1 else None


def shapes_in_words(inputs: Any) -> str | None:
    """Return the shapes of all tensors in order, as in `8x128, 8`; None without tensors."""
    shapes = ["x".join(map(str, leaf.shape)) or "scalar" for leaf in tensors_in(inputs)]
    return ", ".join(shapes) or None


def resized(inputs: Any, batch_size: int) -> Any:
    """Return (nested) inputs with another leading dimension, repeated from the start or cut."""
    import torch

    def resize(tensor: Any) -> Any:
        if not tensor.dim():
            return tensor
        rows = torch.arange(batch_size, device=tensor.device) % tensor.shape[0]
        return tensor.detach()[rows].requires_grad_(tensor.requires_grad)

    return map_inputs(resize, inputs)


def map_inputs(change: Callable[[Any], Any], inputs: Any) -> Any:
    """Return (nested) inputs with `change` applied to every tensor."""
    import torch
    from torch.utils import _pytree

    return _pytree.tree_map_only(torch.Tensor, change, inputs)


def tensors_in(inputs: Any) -> list[Any]:
    """Return the tensors of (nested) inputs, in order."""
    import torch
    from torch.utils import _pytree

    return [leaf for leaf in _pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]


class CallUnavailableError(Exception):
    """A way to call that the subject does not allow; `str(error)` says why."""


@dataclass(frozen=True)
class Request:
    """The command line's description of a target, from which a process loads the subject.

    `spec` is `file.py:function` or `module:function`; `kind` is `factory` or `step` where the user
    says so; `inputs` are shapes as in `1x3x224x224:float32`. `Request(**data)` reads what `asdict`
    has made of it.
    """

    spec: str
    kind: str | None = None
    inputs: tuple[str, ...] = ()
    device: str | None = None
    batch_size: int | None = None
    gradients: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))


@dataclass(frozen=True)
class Subject:
    """One callable to measure; `step()` is one call of it, as it is measured.

    A function that is called without arguments has no `model` and no `inputs`: parts that change
    either (batch sizes, compiled variants) are not available for it. A model is called in its own
    mode; gradients are off unless `gradients`. `batch_size` is the leading dimension of the inputs'
    tensors, or the user's number; `batch_size_is` says which. `request` is the description of the
    target on the command line, from which another process loads the same; it is None for an object
    of a program. `of_batch(n)` returns the subject for another batch size; where it is None,
    `why_no_batches` says why.
    """

    name: str
    function: Callable[..., Any]
    model: Any = None
    inputs: tuple[Any, ...] = ()
    named_inputs: Mapping[str, Any] = field(default_factory=dict)
    gradients: bool = False
    batch_size: int | None = None
    batch_size_is: str | None = None
    of_batch: Callable[[int], Subject] | None = None
    why_no_batches: str | None = None
    request: Request | None = None

    @property
    def step(self) -> Callable[[], Any]:
        """One call without arguments, to be made inside `conditions()`."""
        if self.model is None or not (self.inputs or self.named_inputs):
            return self.function
        return functools.partial(self.function, *self.inputs, **self.named_inputs)

    @property
    def tensors(self) -> list[Any]:
        """The tensors of its inputs."""
        return tensors_in((self.inputs, dict(self.named_inputs)))

    @property
    def training(self) -> bool | None:
        """The model's mode, which is never changed; None of a function."""
        return None if self.model is None else in_training(self.model)

    @property
    def training_layers(self) -> list[str]:
        """Types of the model's modules that act differently in training mode.

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
        """Switch gradients on or off for the measurement; entered once, round all calls.

        A function is called with the program's own setting. Entering this for each call would add
        about a microsecond to its time.
        """
        import torch

        if self.gradients:
            return torch.enable_grad()
        if self.model is None:
            return nullcontext()
        return torch.inference_mode()

    def fresh_copy(self) -> Subject:
        """Return the subject with a deep copy of its model that was never called.

        The copy's weights are in no cache, and state that torch keeps for a module is made anew;
        state of the process (loaded libraries, thread pools, compiled code) is not. Outside of
        `conditions()` only: else the copy would hold inference tensors.
        """
        if self.model is None:
            raise CallUnavailableError("a function cannot be made cold again within its process")
        try:
            copied = copy.deepcopy(self.model)
        except Exception as error:
            why = f"the model cannot be copied ({in_a_line(error)})"
            raise CallUnavailableError(why) from error
        if self.function is self.model:
            return replace(self, function=copied, model=copied)
        if getattr(self.function, "__self__", None) is self.model:
            return replace(self, function=getattr(copied, self.function.__name__), model=copied)
        raise CallUnavailableError("what is called is not the model itself: no copy can be called")

    def copying_step(self) -> Callable[[], Any]:
        """Return a call that copies the inputs' tensors first.

        Tensors of an accelerator are moved to pageable host memory, as in tutorials, and each call
        copies them to their device; tensors of the host are copied within it.
        """
        if not self.tensors:
            why = "it is called without tensors: what it copies, it copies itself"
            raise CallUnavailableError(why)
        from torch.utils import _pytree

        leaves, layout = _pytree.tree_flatten((self.inputs, dict(self.named_inputs)))
        makers, function = [_maker(leaf) for leaf in leaves], self.function

        def step() -> Any:
            inputs, named = _pytree.tree_unflatten([make() for make in makers], layout)
            return function(*inputs, **named)

        return step

    def input_bytes(self) -> int:
        """Return the bytes of the inputs' tensors."""
        return sum(one.numel() * one.element_size() for one in self.tensors)

    def uses_device(self, clock: Clock) -> bool:
        """Return whether the subject works on an accelerator, by its model and inputs.

        A function shows neither: it is assumed to use the process's device.
        """
        if not clock.has_device:
            return False
        parameters = self.model.parameters() if hasattr(self.model, "parameters") else ()
        return {one.device.type for one in (*self.tensors, *parameters)} != {"cpu"}


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
    """Return the subject of a model and its inputs; `batch_size` is the user's number."""
    named = dict(named_inputs or {})
    read = leading_dimension((inputs, named))
    subject = Subject(
        name or type(model).__name__, model, model, inputs, named, gradients, request=request
    )
    if batch_size is not None:
        subject = replace(subject, batch_size=batch_size, batch_size_is=STATED)
    elif read is not None:
        subject = replace(subject, batch_size=read, batch_size_is=READ)
    if read is None:
        return replace(subject, why_no_batches="the inputs' tensors share no leading dimension")
    if batch_size is not None and batch_size != read:
        why = f"the inputs' leading dimension is {read}, and the stated batch size {batch_size}"
        why = f"{why}: it is not known which dimension is the batch"
        return replace(subject, why_no_batches=why)
    return replace(subject, of_batch=functools.partial(_of_batch, subject))


def _of_batch(subject: Subject, batch_size: int) -> Subject:
    """Return the subject with its inputs repeated or cut."""
    inputs, named = resized((subject.inputs, dict(subject.named_inputs)), batch_size)
    again = replace(subject, inputs=inputs, named_inputs=named, batch_size=batch_size)
    return replace(again, of_batch=functools.partial(_of_batch, again))


def _maker(leaf: Any) -> Callable[[], Any]:
    """Return a callable that returns the leaf itself, or a fresh copy of a tensor."""
    import torch

    if not isinstance(leaf, torch.Tensor):
        return lambda: leaf
    if leaf.device.type == "cpu":
        return leaf.clone
    return functools.partial(leaf.detach().cpu().to, leaf.device)


def causes(error: BaseException) -> list[BaseException]:
    """Return an error, its cause, the cause's cause and so on."""
    found: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in found:
        found.append(one)
        one = one.__cause__ or one.__context__
    return found


def in_a_line(error: BaseException) -> str:
    """Return an error's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
