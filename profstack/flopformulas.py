"""Formulas for floating-point operations: torch's own, and those that torch lacks.

A multiply-add is 2. What torch has (`torch.utils.flop_counter.flop_registry`) stays as it is, but
for two formulas that are wrong for some inputs; the rest is added here, each derived from what
the operator multiplies. The same formulas count an operator as it is called (`registry`) and from
the shapes in a profile (`flop_of`). By convention element-wise operators, reductions,
normalisations, losses and whatever only moves data have no formula and are not missed
(`flopmissed`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

Shape = Sequence[int]
Formula = Callable[..., int]

# -- products of matrices --------------------------------------------------------------------------


def _mm(a: Shape, b: Shape, *rest: Any, **named: Any) -> int:
    """(m, k) @ (k, n)."""
    return 2 * a[0] * a[1] * b[1]


def _addmm(_: Shape, a: Shape, b: Shape, *rest: Any, **named: Any) -> int:
    return _mm(a, b)


def _bmm(a: Shape, b: Shape, *rest: Any, **named: Any) -> int:
    """(b, m, k) @ (b, k, n)."""
    return a[0] * _mm(a[1:], b[1:])


def _baddbmm(_: Shape, a: Shape, b: Shape, *rest: Any, **named: Any) -> int:
    return _bmm(a, b)


def _mv(matrix: Shape, *rest: Any, **named: Any) -> int:
    """Also for the product of two vectors, of which the first may stand for the matrix."""
    return 2 * prod(matrix)


def _addmv(_: Shape, matrix: Shape, *rest: Any, **named: Any) -> int:
    return _mv(matrix)


def _linear(x: Shape, weight: Shape, *rest: Any, **named: Any) -> int:
    """(..., k) @ (n, k) transposed; also where the weights are of 8 bits."""
    return 2 * prod(x) * weight[0]


def _int4_linear(x: Shape, packed: Shape, group: int, scales: Shape, **named: Any) -> int:
    """The packed weights tell nothing of their number: `scales` is (groups, n, 2)."""
    return 2 * prod(x) * scales[1]


def _grouped_mm(a: Any, b: Any, offsets: Any = None, *rest: Any, **named: Any) -> int:
    """Products of groups of rows; `offsets` are the groups' ends in the dimension they divide."""
    used = None if offsets is None else int(offsets[-1])
    if a.dim() == 3 and b.dim() == 3:
        return int(_bmm(a.shape, b.shape))
    if used is None:
        raise ValueError("groups without offsets")
    if a.dim() == 2 and b.dim() == 2:
        return 2 * int(a.shape[0]) * used * int(b.shape[1])
    if a.dim() == 2:
        return 2 * used * int(prod(b.shape[1:]))
    return 2 * used * int(prod(a.shape[1:]))


_grouped_mm._get_raw = True  # type: ignore[attr-defined]  # how torch marks formulas of tensors


# -- convolution -----------------------------------------------------------------------------------


def _convolution_backward(
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


def _attention(query: Shape, key: Shape, value: Shape, *rest: Any, **named: Any) -> int:
    """Scores (s x t from e) and their product with the values (s x f from t), every head.

    What a causal mask leaves out is counted: kernels differ in how much of it they skip.
    """
    batch, heads, s, e = query
    return 2 * batch * heads * s * key[2] * (e + value[3])


def _attention_backward(
    grad: Shape, query: Shape, key: Shape, value: Shape, *rest: Any, **named: Any
) -> int:
    """The scores again, and the gradients of weights, values, queries and keys."""
    batch, heads, s, e = query
    return 2 * batch * heads * s * key[2] * (3 * e + 2 * value[3])


def _multi_head_attention(
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


def _encoder_layer(
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
    attention = _multi_head_attention(x, x, x, None, None, qkv_weight, None, out_weight)
    return attention + 2 * x[0] * x[1] * (prod(first) + prod(second))


# -- recurrent layers ------------------------------------------------------------------------------


def _rnn_layer(x: Shape, weight_ih: Shape, weight_hh: Shape, *rest: Any, **named: Any) -> int:
    """One layer in one direction: every weight is used once per element of the sequence."""
    return 2 * prod(x[:-1]) * (prod(weight_ih) + prod(weight_hh))


def _rnn_layer_backward(x: Shape, *weights: Any, **named: Any) -> int:
    """The gradients of what every product was of; the kernel computes all of them."""
    return 2 * _rnn_layer(x, weights[0], weights[1])


def _cudnn_rnn(x: Shape, weights: Sequence[Shape], *rest: Any, **named: Any) -> int:
    """All layers and directions, packed sequences too: `weights` are matrices and biases."""
    matrices = [prod(weight) for weight in weights if len(weight) == 2]
    if not matrices:
        raise ValueError("no weights")
    return 2 * prod(x[:-1]) * sum(matrices)


def _cudnn_rnn_backward(x: Shape, weights: Sequence[Shape], *rest: Any, **named: Any) -> int:
    """Gradients of the inputs always, those of the weights where they are asked for."""
    output_mask = rest[19]
    return _cudnn_rnn(x, weights) * (1 + bool(output_mask[3]))


# -- others ----------------------------------------------------------------------------------------


def _trilinear(
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


def _euclidean_dist(a: Shape, b: Shape, **named: Any) -> int:
    """Distances by a product of matrices; two columns are appended for the squares."""
    batch = prod(max(left, right) for left, right in zip(a[:-2], b[:-2], strict=True))
    return 2 * batch * a[-2] * b[-2] * (a[-1] + 2)


# -- who has which formula -------------------------------------------------------------------------

_ADDED: Mapping[str, Formula] = {
    # These three are torch's own, which fail where a type of the output is given.
    "addmm": _addmm,
    "bmm": _bmm,
    "baddbmm": _baddbmm,
    "_scaled_mm_v2": _mm,
    "addmm_": _addmm,
    "_addmm_activation": _addmm,
    "baddbmm_": _baddbmm,
    "mv": _mv,
    "dot": _mv,
    "vdot": _mv,
    "addmv": _addmv,
    "addmv_": _addmv,
    "addbmm": _baddbmm,
    "addbmm_": _baddbmm,
    "linear": _linear,
    "mkldnn_linear": _linear,
    "_weight_int8pack_mm": _linear,
    "_weight_int4pack_mm": _int4_linear,
    "_weight_int4pack_mm_for_cpu": _int4_linear,
    "_grouped_mm": _grouped_mm,
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "_scaled_dot_product_attention_math_for_mps": _attention,
    "_native_multi_head_attention": _multi_head_attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    "mkldnn_rnn_layer": _rnn_layer,
    "mkldnn_rnn_layer_backward": _rnn_layer_backward,
    "_cudnn_rnn": _cudnn_rnn,
    "_cudnn_rnn_backward": _cudnn_rnn_backward,
    "_trilinear": _trilinear,
    "_euclidean_dist": _euclidean_dist,
}


def custom_mapping(torch: Any) -> dict[Any, Formula]:
    """Formulas to add to `FlopCounterMode`, by operator; of the operators that this torch has."""
    aten = torch.ops.aten
    return {getattr(aten, name): formula for name, formula in _ADDED.items() if hasattr(aten, name)}


def flop_counter(torch: Any) -> Any:
    """A `FlopCounterMode` with all formulas, which has not been entered."""
    from torch.utils.flop_counter import FlopCounterMode

    return FlopCounterMode(display=False, custom_mapping=custom_mapping(torch))


def registry(torch: Any) -> Mapping[Any, Formula]:
    """All formulas by operator: what `flop_counter` goes by."""
    formulas: Mapping[Any, Formula] = flop_counter(torch).flop_registry
    return formulas


def operator_name(operator: Any) -> str:
    """An operator (all its overloads) as torch.profiler names it: `aten::mm`."""
    name = getattr(operator, "_qualified_op_name", None)
    if name is None:
        # Operators of higher order.
        name = operator.name() if callable(getattr(operator, "name", None)) else str(operator)
    return str(name)


# -- from the shapes in a profile ------------------------------------------------------------------


@cache
def _by_name() -> dict[str, Formula]:
    import torch

    return {operator_name(operator): formula for operator, formula in registry(torch).items()}


class _Shaped:
    """What stands for a tensor in formulas that ask for tensors."""

    def __init__(self, shape: Shape) -> None:
        self.shape = tuple(shape)

    def dim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


def has_formula(operator_name: str) -> bool:
    """Whether an operator of that name (`aten::mm`) can be counted.

    What it calls is a part of it: of events inside one another only the outermost counts.
    """
    return operator_name in _by_name()


def flop_of(
    operator_name: str, shapes: Sequence[Any], concrete_inputs: Sequence[Any] = ()
) -> int | None:
    """Operations of one event of a profile; None without a formula, or where it lacks an input.

    `shapes` and `concrete_inputs` are what torch.profiler recorded of the event's inputs: an
    input that is no tensor has no shape and, where it was kept, a value.
    """
    formula = _by_name().get(operator_name)
    if formula is None:
        return None
    # torch wraps all formulas of shapes, and leaves those alone that ask for tensors.
    of_tensors = not hasattr(formula, "__wrapped__")
    values = [*concrete_inputs, *[None] * (len(shapes) - len(concrete_inputs))]
    arguments = [
        (_Shaped(shape) if of_tensors else list(shape)) if shape else value
        for shape, value in zip(shapes, values, strict=False)
    ]
    try:
        output = _output_shape(operator_name, arguments)
        flop = formula(*arguments, out_val=output)
        return int(flop)
    except Exception:
        # Inputs that were not recorded, or of kinds that have no shape: there is no figure.
        return None


def _output_shape(name: str, arguments: Sequence[Any]) -> list[int] | None:
    """The shape of the output, for the one formula that needs it."""
    if name not in ("aten::convolution", "aten::_convolution"):
        return None
    x, weight, _, stride, padding, dilation, transposed = arguments[:7]
    if transposed:
        # The formula goes by the input then.
        return list(x)
    lengths = zip(x[2:], weight[2:], stride, padding, dilation, strict=True)
    positions = [
        (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
        for size, kernel, step, pad, gap in lengths
    ]
    return [x[0], weight[0], *positions]
