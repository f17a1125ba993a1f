"""Rules for bytes moved by the operators of layers: attention, norms, look-ups, losses, recurrence.

What they make besides their output (masks, means, sums for the backward pass) is written too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from profstack.torchtrace.tensorinputs import Tensor, tensor_bytes

# -- attention -------------------------------------------------------------------------------------


def _accumulated(x: Tensor) -> int:
    """Bytes of one element of what is added up beside `x`: at least a float32."""
    return max(4, x.dtype.itemsize)


def _attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> int:
    """The output, and for the backward pass the logarithm of each row's sum."""
    rows = prod(query.shape[:-1])
    output = rows * value.shape[-1] * query.dtype.itemsize
    return tensor_bytes((query, key, value, *rest)) + output + rows * _accumulated(query)


def _attention_with_mask(
    query: Tensor, key: Tensor, value: Tensor, mask: Any, keeps_sums: Any, *rest: Any
) -> int:
    moved = _attention(query, key, value, mask)
    return moved if keeps_sums else moved - prod(query.shape[:-1]) * _accumulated(query)


def _attention_backward(*arguments: Any) -> int:
    """Gradients of queries, keys and values, which follow the gradient of the output."""
    return tensor_bytes(arguments) + tensor_bytes(arguments[1:4])


# -- normalisation ---------------------------------------------------------------------------------


def _layer_norm(
    x: Tensor, sizes: Sequence[int], weight: Tensor | None, bias: Any, *rest: Any
) -> int:
    """The output, and a mean and a deviation for each of what is normalised."""
    rows = x.numel // prod(sizes)
    each = x.dtype.itemsize if weight is None else max(x.dtype.itemsize, weight.dtype.itemsize)
    return tensor_bytes((x, weight, bias)) + x.nbytes + 2 * rows * each


def _layer_norm_backward(
    grad: Tensor, x: Tensor, sizes: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any
) -> int:
    # The bias itself is not needed, only its gradient is made.
    return tensor_bytes((grad, x, mean, rstd, weight)) + _masked((x, weight, bias), mask)


def _masked(tensors: Sequence[Any], mask: Sequence[bool]) -> int:
    """Bytes of the gradients that are asked for."""
    return tensor_bytes([each for each, wanted in zip(tensors, mask, strict=True) if wanted])


def _batch_norm(x: Tensor, weight: Any, bias: Any, *rest: Any) -> int:
    """In training also both running figures, read and written, and what backward needs."""
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


# -- look-ups and losses ---------------------------------------------------------------------------


def _embedding(weight: Tensor, indices: Tensor, *rest: Any) -> int:
    """The rows that are looked up, not the whole table."""
    rows = indices.numel * prod(weight.shape[1:]) * weight.dtype.itemsize
    return indices.nbytes + 2 * rows


def _embedding_backward(grad: Tensor, indices: Tensor, count: int, *rest: Any) -> int:
    """The gradient of the whole table is written, however few rows were used."""
    return tensor_bytes((grad, indices)) + count * grad.shape[-1] * grad.dtype.itemsize


def _index_select(x: Tensor, dim: int, indices: Tensor) -> int:
    chosen = x.numel // x.shape[dim] * indices.numel * x.dtype.itemsize if x.shape else x.nbytes
    return indices.nbytes + 2 * chosen


def _gather(x: Tensor, dim: int, indices: Tensor, *rest: Any) -> int:
    return indices.nbytes + 2 * indices.numel * x.dtype.itemsize


def _nll(x: Tensor, target: Tensor, weight: Any, reduction: int, *rest: Any) -> int:
    """One element of each row is read; the loss and the sum of weights are written."""
    losses = target.numel if reduction == 0 else 1
    return tensor_bytes((target, weight)) + (target.numel + losses + 1) * x.dtype.itemsize


def _nll_backward(grad: Tensor, x: Tensor, target: Tensor, weight: Any, *rest: Any) -> int:
    return tensor_bytes((grad, target, weight, *rest)) + x.nbytes


def _loss(x: Tensor, target: Tensor, *rest: Any) -> int:
    weights = [each for each in rest if isinstance(each, Tensor)]
    # The first number is the reduction: 0 for none.
    reduction = next(each for each in rest if isinstance(each, int))
    return tensor_bytes((x, target, *weights)) + (x.nbytes if reduction == 0 else x.dtype.itemsize)


def _loss_backward(grad: Tensor, x: Tensor, *rest: Any) -> int:
    return tensor_bytes((grad, x, *rest)) + x.nbytes


# -- recurrent layers ------------------------------------------------------------------------------


def _rnn_layer(x: Tensor, w_ih: Tensor, w_hh: Tensor, *rest: Any) -> int:
    """One layer in one direction; its weights are counted once, not for every element.

    Out come the hidden state of every element, and both last states.
    """
    biases, states = rest[:2], rest[2:4]
    outputs = prod(x.shape[:-1]) * w_hh.shape[1] * x.dtype.itemsize + tensor_bytes(states)
    return tensor_bytes((x, w_ih, w_hh, *biases, *states)) + outputs


def _rnn_layer_backward(*arguments: Any) -> int:
    """Gradients of the input, of both weights and biases, and of both first states."""
    # The last argument is the forward's workspace.
    return tensor_bytes(arguments[:-1]) + tensor_bytes(arguments[:7])


# Each rule with the names that go by it, without `aten::`.
LAYERS: tuple[tuple[Callable[..., int], str], ...] = (
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
)
# These go by shapes and types alone.
LAYERS_BY_SHAPE = (_attention, _attention_backward, _embedding, _rnn_layer, _rnn_layer_backward)
