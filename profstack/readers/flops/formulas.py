"""Formulas for floating-point operations: torch's own, those torch lacks, and causal masks.

A multiply-add is 2. What torch has (`torch.utils.flop_counter.flop_registry`) stays as it is, but
for two formulas that are wrong for some inputs; the rest is added here, each derived from what
the operator multiplies. The same formulas count an operator as it is called (`registry`) and from
the shapes in a profile (`flop_of`). By convention element-wise operators, reductions,
normalisations, losses and operators that only move data have no formula and are not missed
(`flops.missed`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain, repeat
from math import prod
from typing import Any

from profstack.guard import Guard

# --- Formulas that torch lacks, or has wrong for some inputs --------------------------------------

# Arguments are those of the operator, with shapes for tensors.

Shape = Sequence[int]
Formula = Callable[..., int]

# --- Products of matrices -------------------------------------------------------------------------


def mm(a: Shape, b: Shape, *rest: Any, **named: Any) -> int:
    """Count (m, k) @ (k, n)."""
    return 2 * a[0] * a[1] * b[1]


def bmm(a: Shape, b: Shape, *rest: Any, **named: Any) -> int:
    """Count (b, m, k) @ (b, k, n)."""
    return a[0] * mm(a[1:], b[1:])


def linear(x: Shape, weight: Shape, *rest: Any, **named: Any) -> int:
    """Count (..., k) @ (n, k) transposed; also for weights of 8 bits."""
    return 2 * prod(x) * weight[0]


def int4_linear(x: Shape, packed: Shape, group: int, scales: Shape, **named: Any) -> int:
    """Count a product with packed weights, whose number is in `scales` (groups, n, 2)."""
    return 2 * prod(x) * scales[1]


def grouped_mm(a: Any, b: Any, offsets: Any = None, *rest: Any, **named: Any) -> int:
    """Count products of groups of rows; `offsets` are the groups' ends in their dimension."""
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


# --- Convolution ----------------------------------------------------------------------------------


def convolution_backward(grad: Shape, x: Shape, weight: Shape, *rest: Any, **named: Any) -> int:
    """Count as much as the forward for each of the two gradients.

    Each of the forward's multiply-adds takes one element of the input and one of the weights, and
    gives one product to the gradient of either. torch's own formula counts the gradient of the
    weights `groups` times.
    """
    transposed, output_mask = rest[4], rest[7]
    forward = 2 * x[0] * prod(x[2:] if transposed else grad[2:]) * prod(weight)
    return forward * (bool(output_mask[0]) + bool(output_mask[1]))


# --- Attention ------------------------------------------------------------------------------------


def attention(query: Shape, key: Shape, value: Shape, *rest: Any, **named: Any) -> int:
    """Count scores (s x t from e) and their product with the values (s x f from t), every head.

    The part that a causal mask leaves out counts: kernels differ in how much of it they skip.
    """
    batch, heads, s, e = query
    return 2 * batch * heads * s * key[2] * (e + value[3])


def attention_backward(
    grad: Shape, query: Shape, key: Shape, value: Shape, *rest: Any, **named: Any
) -> int:
    """Count the scores again, and the gradients of weights, values, queries and keys."""
    batch, heads, s, e = query
    return 2 * batch * heads * s * key[2] * (3 * e + 2 * value[3])


def multi_head_attention(query: Shape, key: Shape, value: Shape, *rest: Any, **named: Any) -> int:
    """Count projections of queries, keys and values, attention, and the output projection.

    `qkv_weight` is (3 d, d): a third of it for each of the three inputs.
    """
    qkv_weight, out_weight = rest[2], rest[4]
    batch, s, d = query
    t = key[1]
    projections: int = (s + 2 * t) * (prod(qkv_weight) // 3) + s * prod(out_weight)
    return 2 * batch * (projections + 2 * s * t * d)


def encoder_layer(x: Shape, *rest: Any, **named: Any) -> int:
    """Count self-attention, and the two linear layers after it."""
    linear_layers: int = prod(rest[13]) + prod(rest[15])
    return multi_head_attention(x, x, x, *rest) + 2 * x[0] * x[1] * linear_layers


# --- Recurrent layers -----------------------------------------------------------------------------


def rnn_layer(x: Shape, weight_ih: Shape, weight_hh: Shape, *rest: Any, **named: Any) -> int:
    """Count one layer in one direction: each weight is used once per element."""
    return 2 * prod(x[:-1]) * (prod(weight_ih) + prod(weight_hh))


def cudnn_rnn(x: Shape, weights: Sequence[Shape], *rest: Any, **named: Any) -> int:
    """Count all layers and directions, packed sequences too; `weights` include biases."""
    matrices = [prod(weight) for weight in weights if len(weight) == 2]
    if not matrices:
        raise ValueError("no weights")
    return 2 * prod(x[:-1]) * sum(matrices)


def cudnn_rnn_backward(x: Shape, weights: Sequence[Shape], *rest: Any, **named: Any) -> int:
    """Count gradients of the inputs always, those of the weights where requested."""
    # The last of the arguments is which gradients are wanted.
    return cudnn_rnn(x, weights) * (1 + bool(rest[19][3]))


# --- Others ---------------------------------------------------------------------------------------


def trilinear(one: Shape, two: Shape, three: Shape, *rest: Any, **named: Any) -> int:
    """Count sums over products of three tensors as the kernel does: two products of matrices.

    The first is of `one` and `two`, the second of the result and `three`; both are repeated for
    every place in the dimension `unrolled`.
    """
    expand_three, summed = rest[2], rest[3]
    # The last argument is left out where it is 1.
    unrolled: int = rest[4] if len(rest) > 4 else 1
    first, second, third = map(_expanded, (one, two, three), rest)
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
    """Return the shape with a dimension of 1 inserted at each of the places."""
    sizes = list(shape)
    for place in sorted(where):
        sizes.insert(place, 1)
    return sizes


def _sum_of_products(a: Shape, b: Shape, summed: Sequence[int]) -> int:
    """Count one product; a summed dimension of only one factor is added up before.

    Without a sum the product is element-wise, which counts nothing.
    """
    if not summed:
        return 0
    total = 2
    for dim, (left, right) in enumerate(zip(a, b, strict=True)):
        total *= min(left, right) if dim in summed else max(left, right)
    return total


def _pairs(a: Shape, b: Shape) -> int:
    """Count two operations for every pair of rows."""
    batch = prod(max(left, right) for left, right in zip(a[:-2], b[:-2], strict=True))
    return 2 * batch * a[-2] * b[-2]


def conv_tbc(x: Shape, weight: Shape, bias: Shape, pad: int = 0, **named: Any) -> int:
    """Count over the first dimension: (times, batch, inputs) and (width, inputs, outputs)."""
    return 2 * (x[0] + 2 * pad - weight[0] + 1) * x[1] * prod(weight)


# --- Formulas by operator  ------------------------------------------------------------------------

# addmm, bmm and baddbmm are torch's own, which fail where a type of the output is given.
_FAMILIES: tuple[tuple[Formula, str], ...] = (
    (mm, "_scaled_mm_v2"),
    (lambda _, a, b, *rest, **named: mm(a, b), "addmm addmm_ _addmm_activation"),
    (bmm, "bmm"),
    (lambda _, a, b, *rest, **named: bmm(a, b), "baddbmm baddbmm_ addbmm addbmm_"),
    # A matrix times a vector, or a product of two vectors.
    (lambda matrix, *rest, **named: 2 * prod(matrix), "mv dot vdot"),
    (lambda _, matrix, *rest, **named: 2 * prod(matrix), "addmv addmv_"),
    (linear, "linear mkldnn_linear _weight_int8pack_mm"),
    (int4_linear, "_weight_int4pack_mm _weight_int4pack_mm_for_cpu"),
    (grouped_mm, "_grouped_mm"),
    (convolution_backward, "convolution_backward"),
    (attention, "_scaled_dot_product_flash_attention_for_cpu"),
    (attention, "_scaled_dot_product_fused_attention_overrideable"),
    (attention, "_scaled_dot_product_attention_math_for_mps"),
    (attention_backward, "_scaled_dot_product_flash_attention_for_cpu_backward"),
    (attention_backward, "_scaled_dot_product_fused_attention_overrideable_backward"),
    (multi_head_attention, "_native_multi_head_attention"),
    (encoder_layer, "_transformer_encoder_layer_fwd"),
    (rnn_layer, "mkldnn_rnn_layer"),
    # Gradients of both factors of each product; the kernel computes all of them.
    (lambda x, ih, hh, *rest, **named: 2 * rnn_layer(x, ih, hh), "mkldnn_rnn_layer_backward"),
    (cudnn_rnn, "_cudnn_rnn"),
    (cudnn_rnn_backward, "_cudnn_rnn_backward"),
    (trilinear, "_trilinear"),
    # Distances by a product of matrices; two columns are appended for the squares.
    (lambda a, b, **named: _pairs(a, b) * (a[-1] + 2), "_euclidean_dist"),
    # Distances pair by pair; a difference squared and added up is a multiply-add. Other norms have
    # no products: differences, powers and sums count nothing by convention.
    (lambda a, b, p, *rest, **named: _pairs(a, b) * a[-1] if p == 2 else 0, "_cdist_forward"),
    # The gradient of one side, to which each pair adds a multiple of its difference.
    (lambda grad, a, b, p, *rest, **named: 2 * prod(grad) * a[-1], "_cdist_backward"),
    (conv_tbc, "conv_tbc"),
)
_ADDED = {name: formula for formula, names in _FAMILIES for name in names.split()}


def custom_mapping(torch: Any) -> dict[Any, Formula]:
    """Return formulas to add to `FlopCounterMode`, by operator; of those that this torch has."""
    aten = torch.ops.aten
    return {getattr(aten, name): formula for name, formula in _ADDED.items() if hasattr(aten, name)}


def flop_counter(torch: Any) -> Any:
    """Return a `FlopCounterMode` with all formulas, which has not been entered."""
    from torch.utils.flop_counter import FlopCounterMode

    return FlopCounterMode(display=False, custom_mapping=custom_mapping(torch))


def registry(torch: Any) -> Mapping[Any, Formula]:
    """Return all formulas of `flop_counter` by operator."""
    formulas: Mapping[Any, Formula] = flop_counter(torch).flop_registry
    return formulas


def operator_name(operator: Any) -> str:
    """Return torch.profiler's name of an operator (all its overloads): `aten::mm`."""
    name = getattr(operator, "_qualified_op_name", None)
    if name is None:
        # Operators of higher order.
        name = operator.name() if callable(getattr(operator, "name", None)) else str(operator)
    return str(name)


# --- From the shapes in a profile -----------------------------------------------------------------


@cache
def _by_name() -> dict[str, Formula]:
    import torch

    return {operator_name(operator): formula for operator, formula in registry(torch).items()}


class _ShapeOnly:
    """Replaces a tensor in formulas that take tensors."""

    def __init__(self, shape: Shape) -> None:
        self.shape = tuple(shape)

    def dim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


def has_formula(operator_name: str) -> bool:
    """Return whether an operator of that name (`aten::mm`) can be counted.

    Its callees are a part of it: of events inside one another only the outermost counts.
    """
    return operator_name in _by_name()


def flop_of(
    operator_name: str, shapes: Sequence[Any], concrete_inputs: Sequence[Any] = ()
) -> int | None:
    """Count the operations of one event; None without a formula, or where it lacks an input.

    `shapes` and `concrete_inputs` are torch.profiler's records of the event's inputs: an input
    that is no tensor has no shape and, where it was kept, a value.
    """
    formula = _by_name().get(operator_name)
    if formula is None:
        return None
    # torch wraps formulas of shapes, and leaves those that take tensors as they are.
    tensor: Callable[[Shape], Any] = list if hasattr(formula, "__wrapped__") else _ShapeOnly
    arguments = [
        tensor(shape) if shape else value
        for shape, value in zip(shapes, chain(concrete_inputs, repeat(None)), strict=False)
    ]
    with Guard():
        output = None
        if operator_name in ("aten::convolution", "aten::_convolution"):
            # The one formula that needs the shape of the output; of a transposed one, the input's.
            x, weight, _, stride, padding, dilation, transposed = arguments[:7]
            output = list(x)
            if not transposed:
                sizes = convolved(x[2:], weight[2:], stride, padding, dilation)
                output = [x[0], weight[0], *sizes]
        return int(formula(*arguments, out_val=output))
    # Inputs that were not recorded, or of kinds that have no shape: there is no figure.
    return None


def convolved(
    sizes: Shape, kernel: Shape, stride: Sequence[int], padding: Sequence[int], gaps: Sequence[int]
) -> list[int]:
    """Return the sizes of a convolution's output; `gaps` is its dilation."""
    return [
        (size + 2 * pad - gap * (width - 1) - 1) // step + 1
        for size, width, step, pad, gap in zip(sizes, kernel, stride, padding, gaps, strict=True)
    ]


# --- Operations that a causal mask leaves out -----------------------------------------------------

# Counts by formula are dense: of s queries and t keys every pair counts. In a causal call query i
# sees only the keys up to its own place, and a kernel that skips the others does that much less.
# Kernels differ in how much they skip, so that neither figure is the work done: the dense one is
# the work of the formula, the other the work required.

# Their queries and keys are (batch, heads, places, size), and the mask begins at the first key.
_HEADS_FIRST = "aten::_scaled_dot_product_"
# Their queries and keys are (batch, places, heads, size).
_PLACES_FIRST = ("aten::_flash_attention_", "aten::_efficient_attention_")
# Names of operators' arguments that make a call causal.
_CAUSAL = ("is_causal", "causal", "custom_mask_type")
# Sequences of several lengths, one after the other in one dimension.
_PACKED = ("cum_seq_q", "cu_seqlens_q")


def kept_pairs(queries: int, keys: int) -> int:
    """Count the pairs of a query and a key that a causal mask keeps, from the first of both."""
    square = min(queries, keys)
    return square * (square + 1) // 2 + (queries - square) * keys


def left_out(
    operator_name: str, arguments: Sequence[Any], named: Mapping[str, object], flop: int
) -> int | None:
    """Count those of a call's operations that its causal mask leaves out.

    0 for calls that are not causal; None where the shapes do not show it. `arguments` are tensors
    or shapes.
    """
    places = _places(operator_name)
    if places is None:
        return 0
    given = {name: arguments[at] for name, at in places.items() if at < len(arguments)}
    given.update(named)
    causal = [given[name] for name in _CAUSAL if name in given]
    if not any(causal):
        return None if None in causal else 0
    try:
        query, key = (getattr(given[name], "shape", given[name]) for name in ("query", "key"))
        at = 2 if operator_name.startswith(_HEADS_FIRST) else 1
        queries, keys = int(query[at]), int(key[at])
        packed = at == 1 and any(given.get(name) is not None for name in _PACKED)
    except (KeyError, IndexError, TypeError):
        return None
    # Where both differ in length, kernels of the second kind align the mask with the last places.
    if len(query) != 4 or packed or (at == 1 and queries != keys) or not queries * keys:
        return None
    return flop - flop * kept_pairs(queries, keys) // (queries * keys)


@cache
def _places(operator_name: str) -> dict[str, int] | None:
    """Return positions of an operator's arguments by name; None where it cannot be causal."""
    if not operator_name.startswith((_HEADS_FIRST, *_PLACES_FIRST)):
        return None
    default = overloads_of(operator_name).get("default")
    if default is None:
        return None
    places = {argument.name: at for at, argument in enumerate(default._schema.arguments)}
    return places if places.keys() & set(_CAUSAL) else None


# -----------------------------------------------------------------------------
# Operators without a formula that do arithmetic which a count of operations misses.
#
# By convention element-wise operators, reductions, normalisations, losses, interpolation and
# whatever only moves data count nothing: listing them would hide what a count does miss.
# -----------------------------------------------------------------------------

# Parts of the names of torch's operators that multiply, solve or transform.
_ARITHMETIC = re.compile(
    r"(?:^|_)(?:mm|bmm|addmm|addbmm|baddbmm|hspmm|sspaddmm|mv|addmv|dot|vdot|matmul|linear|einsum"
    r"|conv\w*|deform\w*|attention\w*|transformer\w*|rnn|lstm|gru|fft|linalg|cholesky|svd|eig\w*"
    r"|qr|geqrf|ormqr|lu|solve\w*|spsolve|lstsq|inverse|matrix|triangular|cdist|pdist|euclidean"
    r"|trilinear|bilinear)(?:_|$)"
)
# Exceptions with such a part in their names: interpolation, the element-wise part of a cell,
# packing and preparing of weights.
_NO_PRODUCT = re.compile(
    r"upsample|interp|thnn_fused|convert|reorder|flatten|check_errors|lu_unpack|dropout_state|mask"
    r"|vector_norm|powsum|fftfreq|fftshift|linalg_(?:diagonal|cross)|slice_inverse"
)
# Of torchvision's own operators, those that interpolate, pool or choose.
_VISION = re.compile(r"torchvision::_?(?:ps_)?q?(?:nms|roi_align|roi_pool)(?:_backward)?$")
# Markers, communication, and queries.
_NO_WORK = frozenset(("prim", "prims", "profiler", "c10d", "_c10d_functional", "symm_mem"))


def overloads_of(operator_name: str) -> dict[str, Any]:
    """Return the overloads of one of torch's operators by their names; {} for an unknown one."""
    import torch

    namespace, _, name = operator_name.partition("::")
    try:
        packet = getattr(getattr(torch.ops, namespace), name)
        return {overload: getattr(packet, overload) for overload in packet.overloads()}
    except AttributeError:
        return {}


@cache
def is_composite(operator_name: str) -> bool:
    """Return whether an operator only calls others: in a profile, only those are counted."""
    import torch

    overloads = overloads_of(operator_name)
    names = [one.name() for overload, one in overloads.items() if overload != "out"]
    # Some overloads are TorchScript's alone.
    known: list[Any] = [name for name in names if torch._C._dispatch_has_kernel(name)]
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(overloads) and all(
        has(name, "CompositeImplicitAutograd") and not has(name, "CPU") for name in known
    )


@cache
def is_missed(operator_name: str) -> bool:
    """Return whether an operator without a formula does arithmetic that a count misses.

    torch's own operators are known by name. Others count as missed unless they are tagged as
    element-wise. In a profile, ask `is_composite` too.
    """
    namespace, _, name = operator_name.partition("::")
    if namespace in _NO_WORK or not name:
        return bool(not name)
    if _VISION.match(operator_name):
        return False
    if namespace != "aten":
        import torch

        overloads = overloads_of(operator_name).values()
        elementwise = (torch.Tag.pointwise in one.tags or one.is_view for one in overloads)
        return not overloads or not all(elementwise)
    name = name.strip("_")
    return bool(_ARITHMETIC.search(name)) and not _NO_PRODUCT.search(name)
