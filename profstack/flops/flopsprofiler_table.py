"""Which functions of torch flops-profiler counts, and by which formulas: read from the tool.

Nothing is patched to find out.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

# Takes the arguments of the function, and gives operations and multiply-adds.
Formula = Callable[..., tuple[Any, Any]]


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
