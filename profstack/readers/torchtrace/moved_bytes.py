"""Bytes that one call of an operator reads and writes, by rules for each kind of operator.

Every input tensor is read once and every output tensor is written once, each at its full size. So
views move nothing, an in-place operator reads and writes the same tensor, and a kernel's own data
(workspaces, a second pass over its input) are not counted. No profile has outputs: they follow
from the rules below, by family of operators. Operators without a rule have no figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from profstack.guard import Guard
from profstack.readers.flops.formulas import convolved, is_composite
from profstack.readers.torchtrace.operator_inputs import (
    BOOL,
    COMPLEX,
    FLOATING,
    INTEGER,
    Tensor,
    arguments_of,
    floating_name,
    inputs_among,
    itemsize,
    tags_of,
    tensor_bytes,
)

Arguments = Sequence[Any]
Rule = Callable[..., int]
_INT64 = 8


def _each(numbers: Sequence[int], count: int) -> list[int]:
    """Return one number per dimension: a single one is repeated."""
    values = [int(number) for number in numbers]
    return values * count if len(values) == 1 else values


def _output(x: Tensor, numel: int) -> int:
    """Return the bytes of the input `x`, and of an output of its type with `numel` elements."""
    return x.nbytes + numel * x.dtype.itemsize


# Convolution ------------------------------------------------------------------------------------


def _convolution(x: Tensor, weight: Tensor, bias: Any, *rest: Any) -> int:
    stride, padding, dilation, transposed, output_padding, groups = rest[:6]
    dims = len(x.shape) - 2
    placed = [_each(numbers, dims) for numbers in (stride, padding, dilation)]
    sizes, channels = convolved(x.shape[2:], weight.shape[2:], *placed), weight.shape[0]
    if transposed:
        more = _each(output_padding, dims)
        sides = zip(x.shape[2:], weight.shape[2:], *placed, more, strict=True)
        sizes = [
            (size - 1) * step - 2 * pad + gap * (width - 1) + added + 1
            for size, width, step, pad, gap, added in sides
        ]
        channels = weight.shape[1] * groups
    output = x.shape[0] * channels * prod(sizes) * x.dtype.itemsize
    return tensor_bytes((x, weight, bias)) + int(output)


def _mkldnn_convolution(
    x: Tensor, weight: Tensor, bias: Any, padding: Any, stride: Any, dilation: Any, groups: int
) -> int:
    return _convolution(x, weight, bias, stride, padding, dilation, False, (0,), groups)


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> int:
    """The input is read for the gradient of the weights, and the other way round."""
    bias_sizes, mask = rest[0], rest[7]
    moved = grad.nbytes + (x.nbytes + weight.nbytes) * (bool(mask[0]) + bool(mask[1]))
    return moved + (prod(bias_sizes) * grad.dtype.itemsize if mask[2] else 0)


# Pooling and resizing ---------------------------------------------------------------------------


def _pooled(x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, *, ceil: bool) -> int:
    """Return the number of elements of the output."""
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
    """Each maximum, and its place."""
    numel = _pooled(x, kernel, stride, padding, dilation, ceil=bool(ceil))
    return x.nbytes + numel * (x.dtype.itemsize + _INT64)


def _upsample(x: Tensor, sizes: Sequence[int] | None, *rest: Any) -> int:
    """To sizes, or by factors, which then come last."""
    if sizes is None:
        sizes = [int(size * factor) for size, factor in zip(x.shape[2:], rest[-1], strict=True)]
    return _output(x, prod(x.shape[:2]) * prod(sizes))


def _pad(x: Tensor, pads: Sequence[int], *rest: Any) -> int:
    """`pads` are two numbers for each dimension, the last one first."""
    added = [pads[place] + pads[place + 1] for place in range(0, len(pads), 2)]
    added += [0] * (len(x.shape) - len(added))
    sizes = [size + more for size, more in zip(reversed(x.shape), added, strict=True)]
    return _output(x, prod(sizes))


# Reductions -------------------------------------------------------------------------------------


def _left(x: Tensor, dims: Any) -> int:
    """Return the elements that remain when `dims` are reduced; without any, all are."""
    if dims in (None, [], ()):
        return 1
    places = (dims,) if isinstance(dims, int) else dims
    chosen = {int(place) % max(1, len(x.shape)) for place in places}
    return prod(size for place, size in enumerate(x.shape) if place not in chosen)


def _sum(x: Tensor, dims: Any = None, keep: Any = None, dtype: Any = None, *rest: Any) -> int:
    """`sum(x, dtype)` is another variant, whose second input is a type."""
    if keep is None and isinstance(dims, int):
        dims, dtype = None, dims
    return x.nbytes + _left(x, dims) * _sum_itemsize(x, dtype)


def _sum_itemsize(x: Tensor, dtype: Any) -> int:
    """Return the bytes of one sum; sums of whole numbers are int64 where no type is given."""
    if dtype is not None:
        return itemsize(dtype)
    return x.dtype.itemsize if x.dtype.kind > INTEGER else _INT64


def _extreme(x: Tensor, dims: Any = None, *rest: Any) -> int:
    return _output(x, _left(x, dims))


def _deviation(x: Tensor, dims: Any = None, *rest: Any) -> int:
    # `var(x, unbiased)` is over all of it.
    return _extreme(x, None if isinstance(dims, bool) else dims)


def _max(x: Tensor, *rest: Any) -> int:
    """Of all of it, along a dimension with the places, or of two tensors element by element."""
    if not rest:
        return x.nbytes + x.dtype.itemsize
    if isinstance(rest[0], Tensor):
        raise ValueError("the element-wise variant calls maximum")
    return x.nbytes + _left(x, rest[0]) * (x.dtype.itemsize + _INT64)


# Attention --------------------------------------------------------------------------------------
#
# Other results of layers beside their output (masks, means, sums for the backward pass) are written
# too.


def _accumulated(x: Tensor) -> int:
    """Return the bytes of one element of sums kept beside `x`: at least a float32."""
    return max(4, x.dtype.itemsize)


def _attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> int:
    """Count the output, and for the backward pass the logarithm of each row's sum."""
    rows = prod(query.shape[:-1])
    output = rows * value.shape[-1] * query.dtype.itemsize
    return tensor_bytes((query, key, value, *rest)) + output + rows * _accumulated(query)


def _attention_with_mask(
    query: Tensor, key: Tensor, value: Tensor, mask: Any, keeps_sums: Any, *rest: Any
) -> int:
    moved = _attention(query, key, value, mask)
    return moved if keeps_sums else moved - prod(query.shape[:-1]) * _accumulated(query)


def _attention_backward(*arguments: Any) -> int:
    """Count gradients of queries, keys and values, which follow the gradient of the output."""
    return tensor_bytes(arguments) + tensor_bytes(arguments[1:4])


# Normalisation ----------------------------------------------------------------------------------


def _layer_norm(x: Tensor, sizes: Sequence[int], weight: Any, bias: Any, *rest: Any) -> int:
    """Count the output, and a mean and a deviation for each normalised row."""
    rows = x.numel // prod(sizes)
    each = x.dtype.itemsize if weight is None else max(x.dtype.itemsize, weight.dtype.itemsize)
    return tensor_bytes((x, weight, bias)) + x.nbytes + 2 * rows * each


def _layer_norm_backward(
    grad: Tensor, x: Tensor, sizes: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any
) -> int:
    # The bias itself is not read, only its gradient is written.
    return tensor_bytes((grad, x, mean, rstd, weight)) + _masked((x, weight, bias), mask)


def _masked(tensors: Sequence[Any], mask: Sequence[bool]) -> int:
    """Return the bytes of the gradients that the mask selects."""
    return tensor_bytes([each for each, wanted in zip(tensors, mask, strict=True) if wanted])


def _batch_norm(x: Tensor, weight: Any, bias: Any, *rest: Any) -> int:
    """Count in training also both running figures, read and written, and those for backward."""
    running, training = rest[:2], rest[2]
    moved: int = tensor_bytes((x, weight, bias, *running)) + x.nbytes
    if training:
        moved += tensor_bytes(running) + 2 * x.shape[1] * _accumulated(x)
    return moved


def _batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Any, mean: Any, var: Any, saved: Any, inverse: Any, *rest: Any
) -> int:
    training, mask = rest[0], rest[2]
    figures = (saved, inverse) if training else (mean, var)
    shifts = x.shape[1] * (x.dtype.itemsize if weight is None else weight.dtype.itemsize)
    gradients = _masked((x, weight), mask[:2]) + (shifts if mask[2] else 0)
    return tensor_bytes((grad, x, weight, *figures)) + gradients


def _group_norm(x: Tensor, weight: Any, bias: Any, n: int, c: int, hw: int, g: int, _: Any) -> int:
    return tensor_bytes((x, weight, bias)) + x.nbytes + 2 * n * g * x.dtype.itemsize


def _group_norm_backward(
    grad: Tensor, x: Tensor, mean: Any, rstd: Any, weight: Any, n: int, c: int, *rest: Any
) -> int:
    mask = rest[2]
    shifts = c * x.dtype.itemsize if mask[2] else 0
    return tensor_bytes((grad, x, mean, rstd, weight)) + _masked((x, weight), mask[:2]) + shifts


# Look-ups and losses ----------------------------------------------------------------------------


def _embedding(weight: Tensor, indices: Tensor, *rest: Any) -> int:
    """Count the rows that are looked up, not the whole table."""
    rows = indices.numel * prod(weight.shape[1:]) * weight.dtype.itemsize
    return indices.nbytes + 2 * rows


def _index_select(x: Tensor, dim: int, indices: Tensor) -> int:
    chosen = x.numel // x.shape[dim] * indices.numel * x.dtype.itemsize if x.shape else x.nbytes
    return indices.nbytes + 2 * chosen


def _nll(x: Tensor, target: Tensor, weight: Any, reduction: int, *rest: Any) -> int:
    """Count one element of each row read; the loss and the sum of weights written."""
    losses = target.numel if reduction == 0 else 1
    return tensor_bytes((target, weight)) + (target.numel + losses + 1) * x.dtype.itemsize


def _loss(x: Tensor, target: Tensor, *rest: Any) -> int:
    weights = [each for each in rest if isinstance(each, Tensor)]
    # The first number is the reduction: 0 for none.
    reduction = next(each for each in rest if isinstance(each, int))
    return tensor_bytes((x, target, *weights)) + (x.nbytes if reduction == 0 else x.dtype.itemsize)


# Recurrent layers -------------------------------------------------------------------------------


def _rnn_layer(x: Tensor, w_ih: Tensor, w_hh: Tensor, *rest: Any) -> int:
    """Count one layer in one direction; its weights once, not for every element.

    The outputs are the hidden state of every element, and both last states.
    """
    biases, states = rest[:2], rest[2:4]
    outputs = prod(x.shape[:-1]) * w_hh.shape[1] * x.dtype.itemsize + tensor_bytes(states)
    return tensor_bytes((x, w_ih, w_hh, *biases, *states)) + outputs


# Element-wise operators: type and shape of the output --------------------------------------------

_TRUTHS = {
    *("eq", "ne", "lt", "le", "gt", "ge", "greater", "less", "isnan", "isinf", "isfinite"),
    *("isposinf", "isneginf", "signbit", "isclose"),
    *("logical_and", "logical_or", "logical_xor", "logical_not"),
}
# Whole numbers stay whole in these; in others (true division, sqrt) they become the default type.
_KEEP_INTEGERS = {
    *("add", "sub", "rsub", "mul", "neg", "abs", "sign", "square", "pow", "remainder", "fmod"),
    *("maximum", "minimum", "clamp", "clamp_min", "clamp_max", "relu", "where", "clone"),
    *("floor", "ceil", "round", "trunc", "floor_divide"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"),
    *("bitwise_left_shift", "bitwise_right_shift"),
}
_KEEP_COMPLEX = {"add", "sub", "rsub", "mul", "div", "neg", "reciprocal", "where", "clone"}


def _pointwise(name: str, arguments: Sequence[Any]) -> int:
    """Count all inputs, and one output of the shape that they broadcast to.

    Raises ValueError where the type of the output is not certain.
    """
    tensors = [each for each in arguments if isinstance(each, Tensor)]
    if name.endswith("_"):
        return tensor_bytes(tensors) + tensors[0].nbytes
    numel = prod(np.broadcast_shapes(tensors[0].shape, *(each.shape for each in tensors[1:])))
    return tensor_bytes(tensors) + numel * _result_itemsize(name, tensors, arguments)


def _result_itemsize(name: str, tensors: Sequence[Tensor], arguments: Sequence[Any]) -> int:
    if name in _TRUTHS:
        return 1
    values = [each for each in tensors if not (name == "where" and each is tensors[0])]
    kind = max(each.dtype.kind for each in values)
    # A tensor without dimensions gives the kind of number; its type only if there is no other.
    sized = [each for each in values if each.shape and each.dtype.kind == kind]
    candidates = sized or [each for each in values if each.dtype.kind == kind]
    sizes = {each.dtype.itemsize for each in candidates}
    has_float = any(isinstance(each, float) for each in arguments)
    if kind == COMPLEX and name not in _KEEP_COMPLEX:
        raise ValueError("an output of real numbers, perhaps")
    if kind <= INTEGER and (name not in _KEEP_INTEGERS or has_float or kind == BOOL):
        raise ValueError("an output of the default type, perhaps")
    halves = {each.dtype.name for each in candidates if each.dtype.itemsize == 2}
    if kind == FLOATING and len(halves) > 1:
        # float16 with bfloat16 gives float32.
        return max(4, *sizes)
    return max(sizes)


# Copies and other element-wise rules ------------------------------------------------------------


def _write_self(x: Tensor, *rest: Any) -> int:
    """Count the tensor that is filled with numbers; its old values are not read."""
    return x.nbytes


def _nothing(*arguments: Any) -> int:
    return 0


def _same(*arguments: Any) -> int:
    """Count all inputs, and an output like the first."""
    return tensor_bytes(arguments) + int(arguments[0].nbytes)


def _like_second(*arguments: Any) -> int:
    """Count all inputs, and an output like the second: a gradient like the input."""
    return tensor_bytes(arguments) + int(arguments[1].nbytes)


def _two(one: Tensor, other: Tensor, *rest: Any) -> int:
    """Count a copy; or a gradient like the input, of which only the shape is needed."""
    return one.nbytes + other.nbytes


# Products of matrices ---------------------------------------------------------------------------


def _mm(a: Tensor, b: Tensor, *rest: Any) -> int:
    if any(not isinstance(each, Tensor) for each in rest):
        raise ValueError("the type of the output is given")
    return tensor_bytes((a, b)) + prod(a.shape[:-1]) * b.shape[-1] * a.dtype.itemsize


def _mv(a: Tensor, b: Tensor, *rest: Any) -> int:
    return tensor_bytes((a, b)) + prod(a.shape[:-1]) * a.dtype.itemsize


def _linear(x: Tensor, weight: Tensor, bias: Any = None, *rest: Any) -> int:
    return tensor_bytes((x, weight, bias)) + prod(x.shape[:-1]) * weight.shape[0] * x.dtype.itemsize


# Rules by name ----------------------------------------------------------------------------------

# Without `aten::`; in-place variants go by the name without `_`. First rules that need shapes and
# types alone.
_BY_SHAPE: tuple[tuple[Rule, str], ...] = (
    (_nothing, "empty empty_like empty_strided empty_permuted new_empty new_empty_strided"),
    (_nothing, "resize_ resize_as_ as_strided_ squeeze_ unsqueeze_ transpose_ t_ swapaxes_"),
    (_nothing, "swapdims_ detach_ set_ is_same_size cudnn_is_acceptable _unsafe_view unsafe_split"),
    (_write_self, "fill_ zero_ normal_ uniform_ random_ exponential_ geometric_ log_normal_"),
    (_write_self, "cauchy_"),
    # The probabilities count too; they may be a tensor.
    (lambda x, *rest: x.nbytes + tensor_bytes(rest), "bernoulli_"),
    (_same, "hardtanh leaky_relu elu hardswish hardsigmoid softplus prelu _prelu_kernel"),
    (_same, "triu tril flip roll logcumsumexp masked_fill bernoulli"),
    (_same, "hardtanh_backward leaky_relu_backward elu_backward hardswish_backward"),
    (_same, "hardsigmoid_backward softplus_backward mish_backward log_sigmoid_backward"),
    # The output, and a mask of bytes.
    (lambda x, *_: 2 * x.nbytes + x.numel, "native_dropout"),
    (lambda x, *_: x.nbytes + x.nbytes // 2, "glu"),
    (_two, "copy_ avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward"),
    (_two, "_adaptive_avg_pool3d_backward"),
    (_mm, "mm bmm"),
    # Two factors, or a flag for the other activation, come after the matrices.
    (lambda c, a, b, *rest: c.nbytes + _mm(a, b, *rest[3:]), "addmm baddbmm _addmm_activation"),
    (_mv, "mv dot vdot"),
    (lambda c, a, b, *_: c.nbytes + _mv(a, b), "addmv"),
    (_linear, "linear mkldnn_linear"),
    (lambda x: x.dtype.itemsize, "_local_scalar_dense"),
    (_attention, "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu"),
    (_attention_backward, "_scaled_dot_product_flash_attention_for_cpu_backward"),
    (_attention_backward, "_scaled_dot_product_flash_attention_backward"),
    (_embedding, "embedding"),
    (_like_second, "mse_loss_backward smooth_l1_loss_backward huber_loss_backward"),
    (_like_second, "binary_cross_entropy_backward glu_backward"),
    (_rnn_layer, "mkldnn_rnn_layer"),
    # Gradients of the input, of both weights and biases, and of both first states. The last
    # argument is the forward's workspace.
    (lambda *given: tensor_bytes((*given[:-1], *given[:7])), "mkldnn_rnn_layer_backward"),
)
_BY_VALUES: tuple[tuple[Rule, str], ...] = (
    (
        lambda x, to=None, *_: x.nbytes + (x.nbytes if to is None else x.numel * itemsize(to)),
        "_to_copy",
    ),
    (lambda x, _, to=None, *__: x.nbytes + x.numel * _sum_itemsize(x, to), "cumsum cumprod"),
    # The last argument is whether half precision becomes float32.
    (
        lambda x, _, to_float=None, *__: x.nbytes + x.numel * (4 if to_float else x.dtype.itemsize),
        "_softmax _log_softmax",
    ),
    (
        lambda grad, output, _, to: grad.nbytes + output.nbytes + grad.numel * itemsize(to),
        "_softmax_backward_data _log_softmax_backward_data",
    ),
    (_convolution, "convolution _convolution convolution_overrideable"),
    (_mkldnn_convolution, "mkldnn_convolution"),
    (lambda x, weight, *rest: _mkldnn_convolution(x, weight, None, *rest[:4]), "cudnn_convolution"),
    (_convolution_backward, "convolution_backward"),
    (_max_pool, "max_pool2d_with_indices max_pool3d_with_indices"),
    # Of the input only the shape is needed; the last argument are the places.
    (
        lambda grad, x, *rest: tensor_bytes((grad, rest[-1])) + x.nbytes,
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward",
    ),
    (
        lambda x, kernel, stride, padding, ceil, *_: _output(
            x, _pooled(x, kernel, stride, padding, (1,), ceil=bool(ceil))
        ),
        "avg_pool2d avg_pool3d",
    ),
    (
        lambda x, sizes: _output(x, prod(x.shape[: -len(sizes)]) * prod(sizes)),
        "_adaptive_avg_pool2d _adaptive_avg_pool3d",
    ),
    (_pad, "constant_pad_nd"),
    (lambda x, times: x.nbytes * (1 + prod(times)), "repeat"),
    (_sum, "sum mean prod"),
    (_extreme, "amax amin logsumexp"),
    (_deviation, "var std"),
    (lambda x, dims=None, *_: 2 * _deviation(x, dims) - x.nbytes, "var_mean std_mean"),
    (lambda x, _=None, dims=None, *__: _extreme(x, dims), "norm linalg_vector_norm"),
    # Places of the extremes, and truth values.
    (lambda x, dims=None, *_: x.nbytes + _left(x, dims) * _INT64, "argmax argmin"),
    (lambda x, dims=None, *_: x.nbytes + _left(x, dims), "any all"),
    (_max, "max min"),
    (lambda x, *_: 2 * x.nbytes + x.numel * _INT64, "sort"),
    (lambda x, k, dim=-1, *_: x.nbytes + _left(x, dim) * k * (x.dtype.itemsize + _INT64), "topk"),
    (_attention_with_mask, "_scaled_dot_product_efficient_attention"),
    (_attention_with_mask, "_scaled_dot_product_cudnn_attention"),
    (_layer_norm, "native_layer_norm"),
    (_layer_norm_backward, "native_layer_norm_backward"),
    (_batch_norm, "native_batch_norm cudnn_batch_norm miopen_batch_norm"),
    (_batch_norm_backward, "native_batch_norm_backward"),
    (_group_norm, "native_group_norm"),
    (_group_norm_backward, "native_group_norm_backward"),
    # The gradient of the whole table, however few rows were used.
    (
        lambda grad, indices, count, *_: (
            tensor_bytes((grad, indices)) + count * grad.shape[-1] * grad.dtype.itemsize
        ),
        "embedding_dense_backward",
    ),
    (_index_select, "index_select"),
    (lambda x, _, places, *__: places.nbytes + 2 * places.numel * x.dtype.itemsize, "gather"),
    (_nll, "nll_loss_forward nll_loss2d_forward"),
    # Of the input only the shape is needed, for the gradient.
    (
        lambda grad, x, *rest: tensor_bytes((grad, *rest)) + x.nbytes,
        "nll_loss_backward nll_loss2d_backward",
    ),
    (_loss, "mse_loss smooth_l1_loss huber_loss binary_cross_entropy"),
)
_RULES = {name: rule for rule, names in (*_BY_SHAPE, *_BY_VALUES) for name in names.split()}
_PLAIN = frozenset(name for _, names in _BY_SHAPE for name in names.split())
# Operators with many variants, for each number of dimensions and each way to interpolate.
_UPSAMPLES = ("upsample_", "_upsample_")


def moved_bytes(
    operator: str,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[str],
    values: Sequence[Any] = (),
) -> int | None:
    """Return the bytes that one call reads and writes; None without a rule.

    `operator` is the name of torch.profiler (`aten::mm`); `shapes`, `dtypes` and `values`
    are those of its inputs as the profiler recorded them.
    """
    name = operator.removeprefix("aten::")
    arguments = arguments_of(shapes, dtypes, values)
    rule = _rule(name)
    if rule is None:
        return None
    # Inputs that were not recorded, or of types that the rule does not accept, have no figure.
    with Guard():
        return int(rule(*arguments[: inputs_among(name, len(arguments))]))
    return None


def takes_values(operator: str, dtypes: Sequence[str]) -> bool:
    """Return whether the rule needs inputs that are no tensors, which cost time to read."""
    name = operator.removeprefix("aten::")
    if name in _PLAIN or name.rstrip("_") in _PLAIN:
        return False
    if name in _RULES or name.rstrip("_") in _RULES or name.startswith(_UPSAMPLES):
        return True
    # An element-wise operator gives floating-point numbers for floating-point numbers; for whole
    # ones it depends on its other inputs.
    return "pointwise" in tags_of(name) and floating_name(dtypes) is None


@cache
def _rule(name: str) -> Rule | None:
    if is_composite(f"aten::{name}"):
        # The operators that it calls move the bytes; a `reshape` may be a view or a copy.
        return None
    rule = _RULES.get(name) or _RULES.get(name.removesuffix("_"))
    if rule is not None:
        return rule
    tags = tags_of(name)
    if "view" in tags:
        return _nothing
    if "pointwise" in tags:
        return lambda *arguments: _pointwise(name, arguments)
    if not name.startswith(_UPSAMPLES):
        return None
    if name.endswith("_backward"):
        return lambda grad, sizes, input_sizes, *_: _output(grad, prod(input_sizes))
    return _upsample
