"""Rules for bytes moved by operators whose output's size follows from more than its inputs' shapes.

Convolutions, pooling, resizing, padding and reductions: what they make depends on strides, sizes
and dimensions that are given as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from profstack.torchtrace.tensorinputs import INTEGER, Tensor, itemsize, tensor_bytes

_INT64 = 8


def _each(numbers: Sequence[int], count: int) -> list[int]:
    """One number per dimension: a single one stands for all."""
    values = [int(number) for number in numbers]
    return values * count if len(values) == 1 else values


# -- convolution -----------------------------------------------------------------------------------


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *rest: Any,
) -> int:
    dims = len(x.shape) - 2
    steps, pads, gaps = (_each(numbers, dims) for numbers in (stride, padding, dilation))
    kernel = weight.shape[2:]
    if transposed:
        further = _each(output_padding, dims)
        sizes = [
            (size - 1) * step - 2 * pad + gap * (width - 1) + more + 1
            for size, step, pad, gap, width, more in zip(
                x.shape[2:], steps, pads, gaps, kernel, further, strict=True
            )
        ]
        channels = weight.shape[1] * groups
    else:
        sizes = [
            (size + 2 * pad - gap * (width - 1) - 1) // step + 1
            for size, step, pad, gap, width in zip(
                x.shape[2:], steps, pads, gaps, kernel, strict=True
            )
        ]
        channels = weight.shape[0]
    output = x.shape[0] * channels * prod(sizes) * x.dtype.itemsize
    return tensor_bytes((x, weight, bias)) + int(output)


def _mkldnn_convolution(
    x: Tensor, weight: Tensor, bias: Any, padding: Any, stride: Any, dilation: Any, groups: int
) -> int:
    return _convolution(x, weight, bias, stride, padding, dilation, False, (0,), groups)


def _cudnn_convolution(
    x: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any, groups: int, *rest: Any
) -> int:
    return _convolution(x, weight, None, stride, padding, dilation, False, (0,), groups)


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> int:
    """The input is read for the gradient of the weights, and the other way round."""
    bias_sizes, mask = rest[0], rest[7]
    moved = grad.nbytes
    moved += weight.nbytes + x.nbytes if mask[0] else 0
    moved += x.nbytes + weight.nbytes if mask[1] else 0
    return moved + (prod(bias_sizes) * grad.dtype.itemsize if mask[2] else 0)


# -- pooling and resizing --------------------------------------------------------------------------


def _pooled(x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, *, ceil: bool) -> int:
    """Elements of the output."""
    dims = len(x.shape) - 2 if len(kernel) == 1 else len(kernel)
    widths = _each(kernel, dims)
    steps = _each(stride, dims) if stride else widths
    pads, gaps = _each(padding, dims), _each(dilation, dims)
    sizes = []
    for size, width, step, pad, gap in zip(x.shape[-dims:], widths, steps, pads, gaps, strict=True):
        room = size + 2 * pad - gap * (width - 1) - 1
        count = (-(-room // step) if ceil else room // step) + 1
        # The last window must begin inside the input or its left padding.
        sizes.append(count - 1 if ceil and (count - 1) * step >= size + pad else count)
    return prod(x.shape[:-dims]) * prod(sizes)


def _max_pool(x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: Any) -> int:
    """Each maximum, and where it stood."""
    numel = _pooled(x, kernel, stride, padding, dilation, ceil=bool(ceil))
    return x.nbytes + numel * (x.dtype.itemsize + _INT64)


def _max_pool_backward(grad: Tensor, x: Tensor, *rest: Any) -> int:
    """Of the input only the shape is needed; the last argument are the places."""
    return tensor_bytes((grad, rest[-1])) + x.nbytes


def _avg_pool(x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: Any, *rest: Any) -> int:
    numel = _pooled(x, kernel, stride, padding, (1,), ceil=bool(ceil))
    return x.nbytes + numel * x.dtype.itemsize


def _like_input(grad: Tensor, x: Tensor, *rest: Any) -> int:
    """A gradient like the input, of which only the shape is needed."""
    return grad.nbytes + x.nbytes


def _adaptive_pool(x: Tensor, sizes: Sequence[int]) -> int:
    dims = len(sizes)
    return x.nbytes + prod(x.shape[:-dims]) * prod(sizes) * x.dtype.itemsize


def _upsample(x: Tensor, sizes: Sequence[int] | None, *rest: Any) -> int:
    """To sizes, or by factors, which then come last."""
    if sizes is None:
        factors = zip(x.shape[2:], rest[-1], strict=True)
        sizes = [int(size * factor) for size, factor in factors]
    return x.nbytes + prod(x.shape[:2]) * prod(sizes) * x.dtype.itemsize


def _upsample_backward(grad: Tensor, sizes: Any, input_sizes: Sequence[int], *rest: Any) -> int:
    return grad.nbytes + prod(input_sizes) * grad.dtype.itemsize


def _pad(x: Tensor, pads: Sequence[int], *rest: Any) -> int:
    """`pads` are two numbers for each dimension, the last one first."""
    added = [pads[place] + pads[place + 1] for place in range(0, len(pads), 2)]
    added += [0] * (len(x.shape) - len(added))
    sizes = [size + more for size, more in zip(reversed(x.shape), added, strict=True)]
    return x.nbytes + prod(sizes) * x.dtype.itemsize


def _repeat(x: Tensor, times: Sequence[int]) -> int:
    return x.nbytes * (1 + prod(times))


# -- reductions ------------------------------------------------------------------------------------


def _left(x: Tensor, dims: Any) -> int:
    """Elements that remain when `dims` are reduced; all of them where none are given."""
    places = range(len(x.shape)) if dims in (None, [], ()) else dims
    chosen = {int(place) % max(1, len(x.shape)) for place in _listed(places)}
    return prod(size for place, size in enumerate(x.shape) if place not in chosen)


def _listed(dims: Any) -> Sequence[int]:
    return (dims,) if isinstance(dims, int) else tuple(dims)


def _sum(x: Tensor, dims: Any = None, keep: Any = None, dtype: Any = None, *rest: Any) -> int:
    """`sum(x, dtype)` is another variant, whose second input is a type."""
    if keep is None and isinstance(dims, int):
        dims, dtype = None, dims
    each = x.dtype.itemsize if x.dtype.kind > INTEGER else _INT64
    return x.nbytes + _left(x, dims) * (each if dtype is None else itemsize(dtype))


def _extreme(x: Tensor, dims: Any = None, *rest: Any) -> int:
    return x.nbytes + _left(x, dims) * x.dtype.itemsize


def _deviation(x: Tensor, dims: Any = None, *rest: Any) -> int:
    if isinstance(dims, bool):
        # `var(x, unbiased)` is over all of it.
        dims = None
    return x.nbytes + _left(x, dims) * x.dtype.itemsize


def _two_deviations(x: Tensor, dims: Any = None, *rest: Any) -> int:
    return 2 * _deviation(x, dims) - x.nbytes


def _norm(x: Tensor, order: Any = None, dims: Any = None, *rest: Any) -> int:
    return x.nbytes + _left(x, dims) * x.dtype.itemsize


def _place(x: Tensor, dims: Any = None, *rest: Any) -> int:
    return x.nbytes + _left(x, dims) * _INT64


def _truth(x: Tensor, dims: Any = None, *rest: Any) -> int:
    return x.nbytes + _left(x, dims)


def _max(x: Tensor, *rest: Any) -> int:
    """Of all of it, along a dimension with the places, or of two tensors element by element."""
    if not rest:
        return x.nbytes + x.dtype.itemsize
    if isinstance(rest[0], Tensor):
        raise ValueError("the element-wise variant calls maximum")
    return x.nbytes + _left(x, rest[0]) * (x.dtype.itemsize + _INT64)


def _sort(x: Tensor, *rest: Any) -> int:
    return 2 * x.nbytes + x.numel * _INT64


def _topk(x: Tensor, count: int, dim: int = -1, *rest: Any) -> int:
    return x.nbytes + _left(x, dim) * count * (x.dtype.itemsize + _INT64)


WITH_SIZES: dict[str, Callable[..., int]] = {
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_overrideable": _convolution,
    "mkldnn_convolution": _mkldnn_convolution,
    "cudnn_convolution": _cudnn_convolution,
    "convolution_backward": _convolution_backward,
    "max_pool2d_with_indices": _max_pool,
    "max_pool3d_with_indices": _max_pool,
    "max_pool2d_with_indices_backward": _max_pool_backward,
    "max_pool3d_with_indices_backward": _max_pool_backward,
    "avg_pool2d": _avg_pool,
    "avg_pool3d": _avg_pool,
    "avg_pool2d_backward": _like_input,
    "avg_pool3d_backward": _like_input,
    "_adaptive_avg_pool2d": _adaptive_pool,
    "_adaptive_avg_pool3d": _adaptive_pool,
    "_adaptive_avg_pool2d_backward": _like_input,
    "_adaptive_avg_pool3d_backward": _like_input,
    "constant_pad_nd": _pad,
    "repeat": _repeat,
    "sum": _sum,
    "mean": _sum,
    "prod": _sum,
    "amax": _extreme,
    "amin": _extreme,
    "logsumexp": _extreme,
    "var": _deviation,
    "std": _deviation,
    "var_mean": _two_deviations,
    "std_mean": _two_deviations,
    "norm": _norm,
    "linalg_vector_norm": _norm,
    "argmax": _place,
    "argmin": _place,
    "any": _truth,
    "all": _truth,
    "max": _max,
    "min": _max,
    "sort": _sort,
    "topk": _topk,
}


def pooled_or_resized(name: str) -> Callable[..., int] | None:
    """The rule of one of the many variants of `upsample_`, None for all else."""
    if not name.startswith(("upsample_", "_upsample_")):
        return None
    return _upsample_backward if name.endswith("_backward") else _upsample
