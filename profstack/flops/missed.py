"""Operators without a formula: which of them do arithmetic that a count of operations misses.

By convention element-wise operators, reductions, normalisations, losses, interpolation and
whatever only moves data count nothing: listing them would hide what a count does miss.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

# What operators of torch do that multiply, solve or transform, by a part of their names.
_ARITHMETIC = re.compile(
    r"(?:^|_)(?:mm|bmm|addmm|addbmm|baddbmm|hspmm|sspaddmm|mv|addmv|dot|vdot|matmul|linear|einsum"
    r"|conv\w*|deform\w*|attention\w*|transformer\w*|rnn|lstm|gru|fft|linalg|cholesky|svd|eig\w*"
    r"|qr|geqrf|ormqr|lu|solve\w*|spsolve|lstsq|inverse|matrix|triangular|cdist|pdist|euclidean"
    r"|trilinear|bilinear)(?:_|$)"
)
# Their names have such a part too: interpolation, the element-wise part of a cell, packing and
# preparing of weights.
_NO_PRODUCT = re.compile(
    r"upsample|interp|thnn_fused|convert|reorder|flatten|check_errors|lu_unpack|dropout_state|mask"
    r"|vector_norm|powsum|fftfreq|fftshift|linalg_(?:diagonal|cross)|slice_inverse"
)
# Of torchvision's own operators, those that interpolate, pool or choose.
_VISION = re.compile(r"torchvision::_?(?:ps_)?q?(?:nms|roi_align|roi_pool)(?:_backward)?$")
# Markers, communication, and what only asks.
_NO_WORK = frozenset(("prim", "prims", "profiler", "c10d", "_c10d_functional", "symm_mem"))


@cache
def is_composite(operator_name: str) -> bool:
    """Whether an operator only calls others: in a profile, those are counted and not it."""
    import torch

    namespace, _, name = operator_name.partition("::")
    try:
        packet = getattr(getattr(torch.ops, namespace), name)
        names = [getattr(packet, one).name() for one in packet.overloads() if one != "out"]
    except AttributeError:
        return False
    # Some overloads are TorchScript's alone.
    known: list[Any] = [name for name in names if torch._C._dispatch_has_kernel(name)]
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    return all(has(name, "CompositeImplicitAutograd") and not has(name, "CPU") for name in known)


@cache
def is_missed(operator_name: str) -> bool:
    """Whether an operator without a formula does arithmetic that a count of operations misses.

    torch's own operators are known by name. Of others only those tell that say that they are
    element-wise; all else is missed, since nobody knows. In a profile, ask `is_composite` too.
    """
    namespace, _, name = operator_name.partition("::")
    if namespace in _NO_WORK or not name:
        return bool(not name)
    if _VISION.match(operator_name):
        return False
    if namespace != "aten":
        return not _is_elementwise(namespace, name)
    name = name.strip("_")
    return bool(_ARITHMETIC.search(name)) and not _NO_PRODUCT.search(name)


def _is_elementwise(namespace: str, name: str) -> bool:
    import torch

    try:
        packet = getattr(getattr(torch.ops, namespace), name)
        overloads = [getattr(packet, overload) for overload in packet.overloads()]
    except AttributeError:
        return False
    return all(torch.Tag.pointwise in one.tags or one.is_view for one in overloads)
