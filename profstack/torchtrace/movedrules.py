"""Bytes that one call of an operator reads and writes, from the shapes and types of its inputs.

Every tensor that goes in is read once and every tensor that comes out is written once, each at
its full size. So views move nothing, an in-place operator reads and writes the same tensor, and
what a kernel keeps for itself (workspaces, a second pass over its input) is not counted. Outputs
stand in no profile: they follow from the rules below, by family of operators. What no rule covers
has no figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

from profstack.flops.missed import is_composite
from profstack.torchtrace.movedpointwise import pointwise
from profstack.torchtrace.movedsizes import WITH_SIZES, pooled_or_resized
from profstack.torchtrace.operatorschemas import inputs_among, marks_of
from profstack.torchtrace.tensorinputs import INTEGER, Tensor, arguments_of, floating_name, itemsize

Arguments = Sequence[Any]
_INT64 = 8
Rule = Callable[..., int]


def read(arguments: Arguments) -> int:
    """Bytes of all tensors among `arguments`."""
    return sum(each.nbytes for each in arguments if isinstance(each, Tensor))


def _write_self(x: Tensor, *rest: Any) -> int:
    """Filled with numbers; what it held is not read."""
    return x.nbytes


def _nothing(*arguments: Any) -> int:
    return 0


def _same(*arguments: Any) -> int:
    """All inputs, and an output like the first."""
    return read(arguments) + int(arguments[0].nbytes)


# -- copies and element-wise operators -------------------------------------------------------------


def _copy(target: Tensor, source: Tensor, *rest: Any) -> int:
    return source.nbytes + target.nbytes


def _to_copy(x: Tensor, dtype: Any = None, *rest: Any) -> int:
    each = x.dtype.itemsize if dtype is None else itemsize(dtype)
    return x.nbytes + x.numel * each


def _drawn(x: Tensor, *rest: Any) -> int:
    """The probabilities may be a tensor."""
    return x.nbytes + read(rest)


def _element(x: Tensor) -> int:
    return x.dtype.itemsize


def _like_second(grad: Tensor, x: Tensor, *rest: Any) -> int:
    return read((grad, x)) + x.nbytes


def _cumulated(x: Tensor, dim: int, dtype: Any = None, *rest: Any) -> int:
    each = x.dtype.itemsize if x.dtype.kind > INTEGER else _INT64
    return x.nbytes + x.numel * (each if dtype is None else itemsize(dtype))


def _dropout(x: Tensor, *rest: Any) -> int:
    """The output, and a mask of bytes."""
    return 2 * x.nbytes + x.numel


def _halved(x: Tensor, *rest: Any) -> int:
    return x.nbytes + x.nbytes // 2


def _softmax(x: Tensor, dim: Any, to_float: Any = None, *rest: Any) -> int:
    return x.nbytes + x.numel * (4 if to_float else x.dtype.itemsize)


def _softmax_backward(grad: Tensor, output: Tensor, dim: Any, dtype: Any) -> int:
    return grad.nbytes + output.nbytes + grad.numel * itemsize(dtype)


# -- products of matrices --------------------------------------------------------------------------


def _mm(a: Tensor, b: Tensor, *rest: Any) -> int:
    if any(not isinstance(each, Tensor) for each in rest):
        raise ValueError("the type of the output is given")
    return read((a, b)) + prod(a.shape[:-1]) * b.shape[-1] * a.dtype.itemsize


def _addmm(c: Tensor, a: Tensor, b: Tensor, *rest: Any) -> int:
    """Two factors, or whether to apply the other activation, may follow."""
    return c.nbytes + _mm(a, b, *rest[3:])


def _mv(a: Tensor, b: Tensor, *rest: Any) -> int:
    return read((a, b)) + prod(a.shape[:-1]) * a.dtype.itemsize


def _addmv(c: Tensor, a: Tensor, b: Tensor, *rest: Any) -> int:
    return c.nbytes + _mv(a, b)


def _linear(x: Tensor, weight: Tensor, bias: Any = None, *rest: Any) -> int:
    return read((x, weight, bias)) + prod(x.shape[:-1]) * weight.shape[0] * x.dtype.itemsize


# -- attention -------------------------------------------------------------------------------------


def _accumulated(x: Tensor) -> int:
    """Bytes of one element of what is added up beside `x`: at least a float32."""
    return max(4, x.dtype.itemsize)


def _attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> int:
    """The output, and for the backward pass the logarithm of each row's sum."""
    rows = prod(query.shape[:-1])
    output = rows * value.shape[-1] * query.dtype.itemsize
    return read((query, key, value, *rest)) + output + rows * _accumulated(query)


def _attention_with_mask(
    query: Tensor, key: Tensor, value: Tensor, mask: Any, keeps_sums: Any, *rest: Any
) -> int:
    moved = _attention(query, key, value, mask)
    return moved if keeps_sums else moved - prod(query.shape[:-1]) * _accumulated(query)


def _attention_backward(*arguments: Any) -> int:
    """Gradients of queries, keys and values, which follow the gradient of the output."""
    return read(arguments) + read(arguments[1:4])


# -- normalisation ---------------------------------------------------------------------------------


def _layer_norm(
    x: Tensor, sizes: Sequence[int], weight: Tensor | None, bias: Any, *rest: Any
) -> int:
    """The output, and a mean and a deviation for each of what is normalised."""
    rows = x.numel // prod(sizes)
    each = x.dtype.itemsize if weight is None else max(x.dtype.itemsize, weight.dtype.itemsize)
    return read((x, weight, bias)) + x.nbytes + 2 * rows * each


def _layer_norm_backward(
    grad: Tensor, x: Tensor, sizes: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any
) -> int:
    # The bias itself is not needed, only its gradient is made.
    return read((grad, x, mean, rstd, weight)) + _masked((x, weight, bias), mask)


def _masked(tensors: Sequence[Any], mask: Sequence[bool]) -> int:
    """Bytes of the gradients that are asked for."""
    return read([each for each, wanted in zip(tensors, mask, strict=True) if wanted])


def _batch_norm(x: Tensor, weight: Any, bias: Any, *rest: Any) -> int:
    """In training also both running figures, read and written, and what backward needs."""
    running, training = rest[:2], rest[2]
    moved: int = read((x, weight, bias, *running)) + x.nbytes
    if training:
        moved += read(running) + 2 * x.shape[1] * _accumulated(x)
    return moved


def _batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Any, mean: Any, var: Any, saved: Any, inverse: Any, *rest: Any
) -> int:
    training, mask = rest[0], rest[2]
    figures = (saved, inverse) if training else (mean, var)
    shifts = x.shape[1] * (x.dtype.itemsize if weight is None else weight.dtype.itemsize)
    gradients = _masked((x, weight), mask[:2]) + (shifts if mask[2] else 0)
    return read((grad, x, weight, *figures)) + gradients


def _group_norm(x: Tensor, weight: Any, bias: Any, n: int, c: int, hw: int, g: int, _: Any) -> int:
    return read((x, weight, bias)) + x.nbytes + 2 * n * g * x.dtype.itemsize


def _group_norm_backward(
    grad: Tensor, x: Tensor, mean: Any, rstd: Any, weight: Any, n: int, c: int, *rest: Any
) -> int:
    mask = rest[2]
    shifts = c * x.dtype.itemsize if mask[2] else 0
    return read((grad, x, mean, rstd, weight)) + _masked((x, weight), mask[:2]) + shifts


# -- look-ups and losses ---------------------------------------------------------------------------


def _embedding(weight: Tensor, indices: Tensor, *rest: Any) -> int:
    """The rows that are looked up, not the whole table."""
    rows = indices.numel * prod(weight.shape[1:]) * weight.dtype.itemsize
    return indices.nbytes + 2 * rows


def _embedding_backward(grad: Tensor, indices: Tensor, count: int, *rest: Any) -> int:
    """The gradient of the whole table is written, however few rows were used."""
    return read((grad, indices)) + count * grad.shape[-1] * grad.dtype.itemsize


def _index_select(x: Tensor, dim: int, indices: Tensor) -> int:
    chosen = x.numel // x.shape[dim] * indices.numel * x.dtype.itemsize if x.shape else x.nbytes
    return indices.nbytes + 2 * chosen


def _gather(x: Tensor, dim: int, indices: Tensor, *rest: Any) -> int:
    return indices.nbytes + 2 * indices.numel * x.dtype.itemsize


def _nll(x: Tensor, target: Tensor, weight: Any, reduction: int, *rest: Any) -> int:
    """One element of each row is read; the loss and the sum of weights are written."""
    losses = target.numel if reduction == 0 else 1
    return read((target, weight)) + (target.numel + losses + 1) * x.dtype.itemsize


def _nll_backward(grad: Tensor, x: Tensor, target: Tensor, weight: Any, *rest: Any) -> int:
    return read((grad, target, weight, *rest)) + x.nbytes


def _loss(x: Tensor, target: Tensor, *rest: Any) -> int:
    weights = [each for each in rest if isinstance(each, Tensor)]
    # The first number is the reduction: 0 for none.
    reduction = next(each for each in rest if isinstance(each, int))
    return read((x, target, *weights)) + (x.nbytes if reduction == 0 else x.dtype.itemsize)


def _loss_backward(grad: Tensor, x: Tensor, *rest: Any) -> int:
    return read((grad, x, *rest)) + x.nbytes


# -- recurrent layers ------------------------------------------------------------------------------


def _rnn_layer(x: Tensor, w_ih: Tensor, w_hh: Tensor, *rest: Any) -> int:
    """One layer in one direction; its weights are counted once, not for every element.

    Out come the hidden state of every element, and both last states.
    """
    biases, states = rest[:2], rest[2:4]
    outputs = prod(x.shape[:-1]) * w_hh.shape[1] * x.dtype.itemsize + read(states)
    return read((x, w_ih, w_hh, *biases, *states)) + outputs


def _rnn_layer_backward(*arguments: Any) -> int:
    """Gradients of the input, of both weights and biases, and of both first states."""
    # The last argument is the forward's workspace.
    return read(arguments[:-1]) + read(arguments[:7])


# By the names without `aten::`; in-place variants go by the one without `_`.
_FAMILIES: tuple[tuple[Rule, str], ...] = (
    (_nothing, "empty empty_like empty_strided empty_permuted new_empty new_empty_strided"),
    (_nothing, "resize_ resize_as_ as_strided_ squeeze_ unsqueeze_ transpose_ t_ swapaxes_"),
    (_nothing, "swapdims_ detach_ set_ is_same_size cudnn_is_acceptable _unsafe_view unsafe_split"),
    (_write_self, "fill_ zero_ normal_ uniform_ random_ exponential_ geometric_ log_normal_"),
    (_write_self, "cauchy_"),
    (_drawn, "bernoulli_"),
    (_copy, "copy_"),
    (_to_copy, "_to_copy"),
    (_same, "hardtanh leaky_relu elu hardswish hardsigmoid softplus prelu _prelu_kernel"),
    (_same, "triu tril flip roll logcumsumexp masked_fill bernoulli"),
    (_cumulated, "cumsum cumprod"),
    (_same, "hardtanh_backward leaky_relu_backward elu_backward hardswish_backward"),
    (_same, "hardsigmoid_backward softplus_backward mish_backward log_sigmoid_backward"),
    (_dropout, "native_dropout"),
    (_halved, "glu"),
    (_like_second, "glu_backward"),
    (_softmax, "_softmax _log_softmax"),
    (_softmax_backward, "_softmax_backward_data _log_softmax_backward_data"),
    (_mm, "mm bmm"),
    (_addmm, "addmm baddbmm _addmm_activation"),
    (_mv, "mv dot vdot"),
    (_addmv, "addmv"),
    (_linear, "linear mkldnn_linear"),
    (_attention, "_scaled_dot_product_flash_attention_for_cpu"),
    (_attention, "_scaled_dot_product_flash_attention"),
    (_attention_with_mask, "_scaled_dot_product_efficient_attention"),
    (_attention_with_mask, "_scaled_dot_product_cudnn_attention"),
    (_attention_backward, "_scaled_dot_product_flash_attention_for_cpu_backward"),
    (_attention_backward, "_scaled_dot_product_flash_attention_backward"),
    (_layer_norm, "native_layer_norm"),
    (_layer_norm_backward, "native_layer_norm_backward"),
    (_batch_norm, "native_batch_norm cudnn_batch_norm miopen_batch_norm"),
    (_batch_norm_backward, "native_batch_norm_backward"),
    (_group_norm, "native_group_norm"),
    (_group_norm_backward, "native_group_norm_backward"),
    (_embedding, "embedding"),
    (_embedding_backward, "embedding_dense_backward"),
    (_index_select, "index_select"),
    (_gather, "gather"),
    (_nll, "nll_loss_forward nll_loss2d_forward"),
    (_nll_backward, "nll_loss_backward nll_loss2d_backward"),
    (_loss, "mse_loss smooth_l1_loss huber_loss binary_cross_entropy"),
    (_loss_backward, "mse_loss_backward smooth_l1_loss_backward huber_loss_backward"),
    (_loss_backward, "binary_cross_entropy_backward"),
    (_rnn_layer, "mkldnn_rnn_layer"),
    (_rnn_layer_backward, "mkldnn_rnn_layer_backward"),
    (_element, "_local_scalar_dense"),
)
# These go by shapes and types alone.
_BY_SHAPE: tuple[Rule, ...] = (
    *(_nothing, _write_self, _drawn, _copy, _same, _dropout, _halved, _like_second, _element),
    *(_mm, _addmm, _mv, _addmv, _linear, _attention, _attention_backward, _embedding),
    *(_rnn_layer, _rnn_layer_backward),
)
_PLAIN = frozenset(name for rule, names in _FAMILIES if rule in _BY_SHAPE for name in names.split())
_RULES: dict[str, Rule] = {
    **WITH_SIZES,
    **{name: rule for rule, names in _FAMILIES for name in names.split()},
}


def moved_bytes(
    operator: str,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[str],
    values: Sequence[Any] = (),
) -> int | None:
    """Bytes that one call reads and writes; None where no rule tells.

    `operator` is named as torch.profiler does (`aten::mm`); `shapes`, `dtypes` and `values`
    are those of its inputs as the profiler recorded them.
    """
    name = operator.removeprefix("aten::")
    arguments = arguments_of(shapes, dtypes, values)
    rule = _rule(name)
    if rule is None:
        return None
    try:
        return int(rule(*arguments[: inputs_among(name, len(arguments))]))
    except Exception:
        # Inputs that were not recorded, or of kinds that the rule does not know.
        return None


def takes_values(operator: str, dtypes: Sequence[str]) -> bool:
    """Whether the rule needs inputs that are no tensors, which cost to read."""
    name = operator.removeprefix("aten::")
    if name in _PLAIN or name.rstrip("_") in _PLAIN:
        return False
    if name in _RULES or name.rstrip("_") in _RULES or pooled_or_resized(name):
        return True
    # An element-wise operator gives floating-point numbers for floating-point numbers; of whole
    # ones it depends on the numbers that it is given besides.
    return "pointwise" in marks_of(name) and floating_name(dtypes) is None


@cache
def _rule(name: str) -> Rule | None:
    if is_composite(f"aten::{name}"):
        # What it calls moves the bytes; a `reshape` may be a view or a copy.
        return None
    if name in _RULES:
        return _RULES[name]
    if name.endswith("_") and name[:-1] in _RULES:
        return _RULES[name[:-1]]
    marks = marks_of(name)
    if "view" in marks:
        return _nothing
    if "pointwise" in marks:
        return lambda *arguments: pointwise(name, arguments)
    return pooled_or_resized(name)
