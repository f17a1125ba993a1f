"""How a wrapper on a function of the script's stays unseen: by dynamo, and in tracebacks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def compiling(torch: Any) -> tuple[Callable[[], bool], Any]:
    """The two halves of `torch.compiler.is_compiling()`, without the calls it makes.

    Dynamo takes the first for true, and so never reads the second.
    """
    return torch.compiler.is_dynamo_compiling, torch.compiler


def strip_frame(error: BaseException) -> None:
    """Take the calling wrapper's own entry out of the traceback of `error`.

    To be followed by a bare `raise`, which adds no entry for the frame it stands in.
    """
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def has_compiled() -> bool:
    """Whether dynamo has compiled anything in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"]["total"])
