"""What torch says of its operators: views, element-wise ones, outputs that are given, kernels.

torch is asked about each operator once, and only by its name as the profiler writes it.
"""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def has_own_kernel(operator: str) -> bool:
    """Whether a kernel stands behind an operator, which then does work besides its calls.

    Those on lists of tensors have one for some lists, and call single operators for the others.
    """
    import torch

    if operator.startswith("aten::_foreach_"):
        return False

    namespace, _, name = operator.partition("::")
    try:
        packet = getattr(getattr(torch.ops, namespace), name)
        names = [getattr(packet, one).name() for one in packet.overloads()]
    except AttributeError:
        return True
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    known: list[str] = [each for each in names if torch._C._dispatch_has_kernel(each)]
    return any(has(each, key) for each in known for key in ("CPU", "CUDA"))


@cache
def marks_of(name: str) -> frozenset[str]:
    """What torch says of an operator: whether it gives views, or works element by element."""
    import torch

    try:
        packet = getattr(torch.ops.aten, name)
        overloads = [getattr(packet, one) for one in packet.overloads()]
    except AttributeError:
        return frozenset()
    found = set()
    if overloads and overloads[0].is_view:
        found.add("view")
    if any(torch.Tag.pointwise in one.tags for one in overloads):
        found.add("pointwise")
    return frozenset(found)


@cache
def inputs_among(name: str, count: int) -> int:
    """How many of `count` arguments go in: of a variant `out=` the last ones are its outputs."""
    import torch

    try:
        packet = getattr(torch.ops.aten, name)
        schemas = [(one, getattr(packet, one)._schema.arguments) for one in packet.overloads()]
    except AttributeError:
        return count
    fitting = [(one, given) for one, given in schemas if len(given) == count]
    if not fitting or not all(one.endswith("out") for one, _ in fitting):
        return count
    given = fitting[0][1]
    return count - sum(bool(each.is_out) for each in given)
