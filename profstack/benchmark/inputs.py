"""The inputs of a model: made from shapes on the command line, and made larger or smaller."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from profstack.errors import UsageError

_SHAPE = re.compile(r"(?P<sizes>[0-9]+(x[0-9]+)*)(:(?P<dtype>\w+))?")
# As measured numbers must be repeatable, so must the inputs be.
_SEED = 0


def check_shape(text: str) -> None:
    """Raise UsageError where `text` is no shape; needs no torch."""
    if not _SHAPE.fullmatch(text):
        raise UsageError(
            f"--input {text} is no shape",
            next_step="write sizes and, if it is not float32, the type: 1x3x224x224:float16",
        )


def make_input(text: str, device: str | None = None) -> Any:
    """A tensor of the shape and type in `text`, as in `8x128:int64`.

    Floating-point values are drawn from a normal distribution, the same ones each time; integers
    are 0 or 1, which every vocabulary and every index has. Raises UsageError for what is no shape
    or no type.
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
        made = torch.randn(sizes, generator=generator, dtype=wide).to(dtype)
    else:
        made = torch.randint(0, 2, sizes, generator=generator).to(dtype)
    return made if device is None else made.to(device)


def split_inputs(given: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a factory gives after its model, as positional and as named inputs.

    A tensor is one input, a tuple or a list are several, a dictionary with names for keys holds
    named ones; a model without inputs gives none.
    """
    if len(given) != 1:
        return tuple(given), {}
    only = given[0]
    if isinstance(only, dict) and all(isinstance(key, str) for key in only):
        return (), dict(only)
    # Hugging Face's tokenizers give a dictionary of their own kind.
    if hasattr(only, "keys") and hasattr(only, "items") and not hasattr(only, "shape"):
        return (), dict(only.items())
    if isinstance(only, (tuple, list)):
        return tuple(only), {}
    return (only,), {}


def leading_dimension(inputs: Any) -> int | None:
    """The leading dimension that all tensors of these (nested) inputs share, None if they do not.

    Scalars have none and do not count.
    """
    sizes = {int(leaf.shape[0]) for leaf in tensors_in(inputs) if leaf.dim()}
    return sizes.pop() if len(sizes) == 1 else None


def shapes_in_words(inputs: Any) -> str | None:
    """The shapes of all tensors in order, as in `8x128, 8`; None without tensors."""
    shapes = ["x".join(map(str, leaf.shape)) or "scalar" for leaf in tensors_in(inputs)]
    return ", ".join(shapes) or None


def resized(inputs: Any, batch_size: int) -> Any:
    """The same (nested) inputs with another leading dimension: repeated from the start, or cut."""
    import torch
    from torch.utils import _pytree

    def of_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.dim():
            return leaf
        with torch.no_grad():
            rows = torch.arange(batch_size, device=leaf.device) % leaf.shape[0]
            made = leaf.detach()[rows]
        return made.requires_grad_(leaf.requires_grad)

    return _pytree.tree_map(of_leaf, inputs)


def moved(inputs: Any, device: str) -> Any:
    """The same (nested) inputs on another device."""
    import torch
    from torch.utils import _pytree

    def of_leaf(leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf

    return _pytree.tree_map(of_leaf, inputs)


def tensors_in(inputs: Any) -> list[Any]:
    """The tensors of (nested) inputs, in order."""
    import torch
    from torch.utils import _pytree

    return [leaf for leaf in _pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
