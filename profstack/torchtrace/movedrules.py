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
from profstack.torchtrace.movedlayers import LAYERS, LAYERS_BY_SHAPE
from profstack.torchtrace.movedpointwise import pointwise
from profstack.torchtrace.movedsizes import WITH_SIZES, pooled_or_resized
from profstack.torchtrace.operatorschemas import inputs_among, marks_of
from profstack.torchtrace.tensorinputs import (
    INTEGER,
    Tensor,
    arguments_of,
    floating_name,
    itemsize,
    tensor_bytes,
)

Arguments = Sequence[Any]
_INT64 = 8
Rule = Callable[..., int]


def _write_self(x: Tensor, *rest: Any) -> int:
    """Filled with numbers; what it held is not read."""
    return x.nbytes


def _nothing(*arguments: Any) -> int:
    return 0


def _same(*arguments: Any) -> int:
    """All inputs, and an output like the first."""
    return tensor_bytes(arguments) + int(arguments[0].nbytes)


# -- copies and element-wise operators -------------------------------------------------------------


def _copy(target: Tensor, source: Tensor, *rest: Any) -> int:
    return source.nbytes + target.nbytes


def _to_copy(x: Tensor, dtype: Any = None, *rest: Any) -> int:
    each = x.dtype.itemsize if dtype is None else itemsize(dtype)
    return x.nbytes + x.numel * each


def _drawn(x: Tensor, *rest: Any) -> int:
    """The probabilities may be a tensor."""
    return x.nbytes + tensor_bytes(rest)


def _element(x: Tensor) -> int:
    return x.dtype.itemsize


def _like_second(grad: Tensor, x: Tensor, *rest: Any) -> int:
    return tensor_bytes((grad, x)) + x.nbytes


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
    return tensor_bytes((a, b)) + prod(a.shape[:-1]) * b.shape[-1] * a.dtype.itemsize


def _addmm(c: Tensor, a: Tensor, b: Tensor, *rest: Any) -> int:
    """Two factors, or whether to apply the other activation, may follow."""
    return c.nbytes + _mm(a, b, *rest[3:])


def _mv(a: Tensor, b: Tensor, *rest: Any) -> int:
    return tensor_bytes((a, b)) + prod(a.shape[:-1]) * a.dtype.itemsize


def _addmv(c: Tensor, a: Tensor, b: Tensor, *rest: Any) -> int:
    return c.nbytes + _mv(a, b)


def _linear(x: Tensor, weight: Tensor, bias: Any = None, *rest: Any) -> int:
    return tensor_bytes((x, weight, bias)) + prod(x.shape[:-1]) * weight.shape[0] * x.dtype.itemsize


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
    (_element, "_local_scalar_dense"),
    *LAYERS,
)
# These go by shapes and types alone.
_BY_SHAPE: tuple[Rule, ...] = (
    *(_nothing, _write_self, _drawn, _copy, _same, _dropout, _halved, _like_second, _element),
    *(_mm, _addmm, _mv, _addmv, _linear),
    *LAYERS_BY_SHAPE,
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
