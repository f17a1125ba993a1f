"""Which functions of torch flops-profiler counts, by which formulas, and what it gets wrong.

Functions and formulas are read from the tool; nothing is patched to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

# Takes the arguments of the function, and gives operations and multiply-adds.
Formula = Callable[..., tuple[Any, Any]]

# What version 0.1.2 drops or miscounts in the forward and gives no error for; operators by the
# name that torch.profiler has for them. What it fails on is told by `FencedFlopsProfiler.notes`.
KNOWN_MISSES: Mapping[str, str] = MappingProxyType(
    {
        "aten::scaled_dot_product_attention": "counted as 0",
        "aten::_native_multi_head_attention": "fused attention of nn.MultiheadAttention: 0",
        "aten::_transformer_encoder_layer_fwd": "fused nn.TransformerEncoderLayer: counted as 0",
        "aten::matmul": "as the operator @ counted as 0; matrix times vector is counted as often "
        "as the vector is long, and of broadcast batches only those of the first operand count",
        "aten::mv": "counted as 0",
        "aten::dot": "counted as 0",
        "aten::addmm_": "in place: counted as 0",
        "aten::add": "as the operator + counted as 0",
        "aten::mul": "as the operator * counted as 0",
        "aten::einsum": "rounded to four digits",
        "aten::bilinear": "counted as 0",
        "aten::cdist": "counted as 0",
        "aten::upsample_nearest2d": "batch and channels are left out when a size is given",
        "aten::upsample_bilinear2d": "batch and channels are left out when a size is given",
    }
)


def recurrent_function(module: Any) -> str:
    """The function of torch that a recurrent layer or cell calls."""
    if hasattr(module, "mode"):
        return str(module.mode).lower()
    cell = type(module).__name__.removesuffix("Cell").lower()
    return f"rnn_{module.nonlinearity}_cell" if cell == "rnn" else f"{cell}_cell"


class _Assignments:
    """Stands for a module or a class, and notes what is assigned to it instead of doing so."""

    def __init__(self, real: Any, found: list[tuple[Any, str, Any]]) -> None:
        vars(self).update(_real=real, _found=found)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        return _Assignments(value, self._found) if isinstance(value, (type, ModuleType)) else value

    def __setattr__(self, name: str, value: Any) -> None:
        self._found.append((self._real, name, value))


def counted_functions(tool: Any, torch: Any) -> list[tuple[Any, str, Formula]]:
    """The functions flops-profiler counts (owner, name), each with its formula.

    Read from the tool's own functions that patch torch, run over stand-ins, so that nothing is
    patched. Raises AttributeError where the tool does not fit this torch.
    """
    found: list[tuple[Any, str, Any]] = []
    stand_ins = {
        "F": _Assignments(torch.nn.functional, found),
        "torch": _Assignments(torch, found),
        "_wrapFunc": lambda function, formula: formula,
    }
    for patches in (tool._patch_functionals, tool._patch_tensor_methods):
        FunctionType(patches.__code__, {**vars(tool), **stand_ins})()
    return found
