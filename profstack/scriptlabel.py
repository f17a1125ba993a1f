"""What the script itself calls a module: the variable by which the calling frame knows it."""

from __future__ import annotations

import ast
import inspect
import linecache
from itertools import islice
from types import FrameType
from typing import Any


def script_label(module: Any, frame: FrameType | None) -> str | None:
    """The variable by which the calling frame, or its module, knows `module`."""
    while frame is not None and frame.f_code.co_filename.startswith("<frozen"):
        frame = frame.f_back
    if frame is None:
        return None
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        # Not `f_locals`: up to Python 3.12 that is a copy which the frame keeps, and with it
        # everything the function holds right now, whatever it lets go of later.
        called = _called_name(frame)
        if called is not None:
            return called
    names = (name for name, value in list(frame.f_globals.items()) if value is module)
    return next((name for name in names if not name.startswith("_")), None)


def _called_name(frame: FrameType) -> str | None:
    """The local variable (or what hangs on one) that the frame is calling, read in its source."""
    code = frame.f_code
    if not hasattr(code, "co_positions"):
        return None
    line, last, begin, end = next(islice(code.co_positions(), frame.f_lasti // 2, None))
    if None in (line, last, begin, end):
        return None
    lines = [text.encode() for text in linecache.getlines(code.co_filename)[line - 1 : last]]
    if not lines:
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    try:
        call = ast.parse(f"({b''.join(lines).decode()})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, SystemError):
        return None
    root = call = call.func if isinstance(call, ast.Call) else call
    while isinstance(root, ast.Attribute):
        root = root.value
    variables = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    is_local = isinstance(root, ast.Name) and root.id in variables
    return ast.unparse(call) if is_local else None
