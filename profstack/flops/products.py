"""Formulas that torch lacks, or has wrong for some inputs: operations from the shapes of inputs.

Each is derived from what its operator multiplies; a multiply-add is 2. Arguments are those of the
operator, with shapes for tensors; `flops.formulas` says which operator has which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

Shape = Sequence[int]
Formula = Callable[..., int]

# -- products of matrices --------------------------------------------------------------------------


def mm(a: Shape, b: Shape, *rest: Any, **named: Any) -> int:
    """(m, k) @ (k, n)."""
    return 2 * a[0] * a[1] * b[1]


def addmm(_: Shape, a: Shape, b: Shape, *rest: Any, **named: Any) -> int:
    """A matrix added to a product of two."""
    return mm(a, b)


def bmm(a: Shape, b: Shape, *rest: Any, **named: Any) -> int:
    """(b, m, k) @ (b, k, n)."""
    return a[0] * mm(a[1:], b[1:])


def baddbmm(_: Shape, a: Shape, b: Shape, *rest: Any, **named: Any) -> int:
    """Matrices added to products of others."""
    return bmm(a, b)


def mv(matrix: Shape, *rest: Any, **named: Any) -> int:
    """Also for the product of two vectors, of which the first may stand for the matrix."""
    return 2 * prod(matrix)


def addmv(_: Shape, matrix: Shape, *rest: Any, **named: Any) -> int:
    """A vector added to the product of a matrix and another."""
    return mv(matrix)


def linear(x: Shape, weight: Shape, *rest: Any, **named: Any) -> int:
    """(..., k) @ (n, k) transposed; also where the weights are of 8 bits."""
    return 2 * prod(x) * weight[0]


def int4_linear(x: Shape, packed: Shape, group: int, scales: Shape, **named: Any) -> int:
    """The packed weights tell nothing of their number: `scales` is (groups, n, 2)."""
    return 2 * prod(x) * scales[1]


def grouped_mm(a: Any, b: Any, offsets: Any = None, *rest: Any, **named: Any) -> int:
    """Products of groups of rows; `offsets` are the groups' ends in the dimension they divide."""
    used = None if offsets is None else int(offsets[-1])
    if a.dim() == 3 and b.dim() == 3:
        return int(bmm(a.shape, b.shape))
    if used is None:
        raise ValueError("groups without offsets")
    if a.dim() == 2 and b.dim() == 2:
        return 2 * int(a.shape[0]) * used * int(b.shape[1])
    if a.dim() == 2:
        return 2 * used * int(prod(b.shape[1:]))
    return 2 * used * int(prod(a.shape[1:]))


grouped_mm._get_raw = True  # type: ignore[attr-defined]  # how torch marks formulas of tensors


# -- convolution -----------------------------------------------------------------------------------


def convolution_backward(
    grad: Shape,
    x: Shape,
    weight: Shape,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
    output_mask: Sequence[bool],
    *rest: Any,
    **named: Any,
) -> int:
    """As much as the forward for each of the two gradients.

    Each of the forward's multiply-adds takes one element of the input and one of the weights, and
    gives one product to the gradient of either. torch's own formula counts the gradient of the
    weights `groups` times.
    """
    positions = x[2:] if transposed else grad[2:]
    forward = 2 * x[0] * prod(positions) * prod(weight)
    return forward * (bool(output_mask[0]) + bool(output_mask[1]))


# -- attention -------------------------------------------------------------------------------------


def attention(query: Shape, key: Shape, value: Shape, *rest: Any, **named: Any) -> int:
    """Scores (s x t from e) and their product with the values (s x f from t), every head.

    What a causal mask leaves out is counted: kernels differ in how much of it they skip.
    """
    batch, heads, s, e = query
    return 2 * batch * heads * s * key[2] * (e + value[3])


def attention_backward(
    grad: Shape, query: Shape, key: Shape, value: Shape, *rest: Any, **named: Any
) -> int:
    """The scores again, and the gradients of weights, values, queries and keys."""
    batch, heads, s, e = query
    return 2 * batch * heads * s * key[2] * (3 * e + 2 * value[3])


def multi_head_attention(
    query: Shape,
    key: Shape,
    value: Shape,
    embed_dim: Any,
    heads: Any,
    qkv_weight: Shape,
    qkv_bias: Any,
    out_weight: Shape,
    *rest: Any,
    **named: Any,
) -> int:
    """Projections of queries, keys and values, attention, and the projection out.

    `qkv_weight` is (3 d, d): a third of it for each of the three inputs.
    """
    batch, s, d = query
    t = key[1]
    projections = (s + 2 * t) * (prod(qkv_weight) // 3) + s * prod(out_weight)
    return 2 * batch * (projections + 2 * s * t * d)


def encoder_layer(
    x: Shape,
    embed_dim: Any,
    heads: Any,
    qkv_weight: Shape,
    qkv_bias: Any,
    out_weight: Shape,
    out_bias: Any,
    *rest: Any,
    **named: Any,
) -> int:
    """Attention of the layer's input to itself, and the two linear layers after it."""
    first: Shape = rest[7]
    second: Shape = rest[9]
    attention = multi_head_attention(x, x, x, None, None, qkv_weight, None, out_weight)
    return attention + 2 * x[0] * x[1] * (prod(first) + prod(second))


# -- recurrent layers ------------------------------------------------------------------------------


def rnn_layer(x: Shape, weight_ih: Shape, weight_hh: Shape, *rest: Any, **named: Any) -> int:
    """One layer in one direction: every weight is used once per element of the sequence."""
    return 2 * prod(x[:-1]) * (prod(weight_ih) + prod(weight_hh))


def rnn_layer_backward(x: Shape, *weights: Any, **named: Any) -> int:
    """The gradients of what every product was of; the kernel computes all of them."""
    return 2 * rnn_layer(x, weights[0], weights[1])


def cudnn_rnn(x: Shape, weights: Sequence[Shape], *rest: Any, **named: Any) -> int:
    """All layers and directions, packed sequences too: `weights` are matrices and biases."""
    matrices = [prod(weight) for weight in weights if len(weight) == 2]
    if not matrices:
        raise ValueError("no weights")
    return 2 * prod(x[:-1]) * sum(matrices)


def cudnn_rnn_backward(x: Shape, weights: Sequence[Shape], *rest: Any, **named: Any) -> int:
    """Gradients of the inputs always, those of the weights where they are asked for."""
    output_mask = rest[19]
    return cudnn_rnn(x, weights) * (1 + bool(output_mask[3]))


# -- others ----------------------------------------------------------------------------------------


def trilinear(
    one: Shape,
    two: Shape,
    three: Shape,
    expand_one: Sequence[int],
    expand_two: Sequence[int],
    expand_three: Sequence[int],
    summed: Sequence[int],
    unrolled: int = 1,
    **named: Any,
) -> int:
    """Sums over products of three tensors, as the kernel makes them: two products of matrices.

    The first is of `one` and `two`, the second of the outcome and `three`; both are made anew for
    every place in the dimension `unrolled`.
    """
    given = ((one, expand_one), (two, expand_two), (three, expand_three))
    first, second, third = (_expanded(shape, places) for shape, places in given)
    size = max(first[unrolled], second[unrolled], third[unrolled])
    first[unrolled] = second[unrolled] = third[unrolled] = size
    inner = [dim for dim in summed if dim != unrolled]
    early = [dim for dim in inner if dim in expand_three]
    late = [dim for dim in inner if dim not in expand_three]
    product = [
        1 if dim in early else max(sizes)
        for dim, sizes in enumerate(zip(first, second, strict=True))
    ]
    return _sum_of_products(first, second, early) + _sum_of_products(product, third, late)


def _expanded(shape: Shape, where: Sequence[int]) -> list[int]:
    """The shape with a dimension of 1 put in at each of the places."""
    sizes = list(shape)
    for place in sorted(where):
        sizes.insert(place, 1)
    return sizes


def _sum_of_products(a: Shape, b: Shape, summed: Sequence[int]) -> int:
    """What only one of both has and is summed is added up before they are multiplied.

    Without a sum the product is an element-wise one, which counts nothing.
    """
    if not summed:
        return 0
    total = 2
    for dim, (left, right) in enumerate(zip(a, b, strict=True)):
        total *= min(left, right) if dim in summed else max(left, right)
    return total


def euclidean_dist(a: Shape, b: Shape, **named: Any) -> int:
    """Distances by a product of matrices; two columns are appended for the squares."""
    batch = prod(max(left, right) for left, right in zip(a[:-2], b[:-2], strict=True))
    return 2 * batch * a[-2] * b[-2] * (a[-1] + 2)


def cdist(a: Shape, b: Shape, p: float, *rest: Any, **named: Any) -> int:
    """Distances pair by pair; a difference squared and added up is a multiply-add.

    Of other norms nothing is multiplied: differences, powers and sums count nothing by convention.
    """
    if p != 2:
        return 0
    batch = prod(max(left, right) for left, right in zip(a[:-2], b[:-2], strict=True))
    return 2 * batch * a[-2] * b[-2] * a[-1]


def cdist_backward(grad: Shape, a: Shape, b: Shape, p: float, *rest: Any, **named: Any) -> int:
    """The gradient of one of both, to which each pair adds a multiple of its difference."""
    return 2 * prod(grad) * a[-1]


def conv_tbc(x: Shape, weight: Shape, bias: Shape, pad: int = 0, **named: Any) -> int:
    """Over the first dimension: (times, batch, inputs) and (width, inputs, outputs)."""
    return 2 * (x[0] + 2 * pad - weight[0] + 1) * x[1] * prod(weight)
