"""Formulas for floating-point operations: torch's own, and those that torch lacks.

A multiply-add is 2. What torch has (`torch.utils.flop_counter.flop_registry`) stays as it is, but
for two formulas that are wrong for some inputs; the rest is added here, each derived from what
the operator multiplies. The same formulas count an operator as it is called (`registry`) and from
the shapes in a profile (`flop_of`). By convention element-wise operators, reductions,
normalisations, losses and whatever only moves data have no formula and are not missed
(`flops.missed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from profstack.flops import products as of
from profstack.flops.products import Formula, Shape
from profstack.interrupts import is_scripts

# -- who has which formula -------------------------------------------------------------------------

_ADDED: Mapping[str, Formula] = {
    # These three are torch's own, which fail where a type of the output is given.
    "addmm": of.addmm,
    "bmm": of.bmm,
    "baddbmm": of.baddbmm,
    "_scaled_mm_v2": of.mm,
    "addmm_": of.addmm,
    "_addmm_activation": of.addmm,
    "baddbmm_": of.baddbmm,
    "mv": of.mv,
    "dot": of.mv,
    "vdot": of.mv,
    "addmv": of.addmv,
    "addmv_": of.addmv,
    "addbmm": of.baddbmm,
    "addbmm_": of.baddbmm,
    "linear": of.linear,
    "mkldnn_linear": of.linear,
    "_weight_int8pack_mm": of.linear,
    "_weight_int4pack_mm": of.int4_linear,
    "_weight_int4pack_mm_for_cpu": of.int4_linear,
    "_grouped_mm": of.grouped_mm,
    "convolution_backward": of.convolution_backward,
    "_scaled_dot_product_flash_attention_for_cpu": of.attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": of.attention_backward,
    "_scaled_dot_product_fused_attention_overrideable": of.attention,
    "_scaled_dot_product_fused_attention_overrideable_backward": of.attention_backward,
    "_scaled_dot_product_attention_math_for_mps": of.attention,
    "_native_multi_head_attention": of.multi_head_attention,
    "_transformer_encoder_layer_fwd": of.encoder_layer,
    "mkldnn_rnn_layer": of.rnn_layer,
    "mkldnn_rnn_layer_backward": of.rnn_layer_backward,
    "_cudnn_rnn": of.cudnn_rnn,
    "_cudnn_rnn_backward": of.cudnn_rnn_backward,
    "_trilinear": of.trilinear,
    "_euclidean_dist": of.euclidean_dist,
    "_cdist_forward": of.cdist,
    "_cdist_backward": of.cdist_backward,
    "conv_tbc": of.conv_tbc,
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
    except Exception as error:
        if is_scripts(error):
            raise
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
