"""Errors that are the script's own although they came up in profstack's code.

The interpreter runs the handler of a signal between any two instructions, also between two of
profstack's. What it raises (a time limit's error, say) is meant for the script, which gets it.

Used from the script's first line on: nothing may be imported here that a bare interpreter has not
loaded.
"""

import os
import sys

# As typing's own, which is not to be imported here; type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

_VARARGS = 0x04
_HERE = os.path.join(os.path.dirname(__file__), "")


def is_scripts(error: "BaseException") -> bool:
    """Whether the script is to get an error that was caught in profstack's code.

    That is what ends programs (Ctrl-C, `sys.exit`), and what the handler of a signal has raised:
    its traceback begins with the handler from here on, as if nothing of profstack's had been
    around it. To be followed by a bare `raise`.
    """
    trace = error.__traceback__
    while trace is not None:
        if _handles_signal(trace.tb_frame):
            error.__traceback__ = trace
            return True
        trace = trace.tb_next
    return not isinstance(error, Exception)


def _handles_signal(frame: "FrameType") -> bool:
    """Whether the interpreter called it for a signal.

    It is given a number and the very frame that it was called from. A handler that has thrown these
    away is known as long as it is installed.
    """
    interrupted, code = frame.f_back, frame.f_code
    if interrupted is None or code.co_filename.startswith(_HERE):
        # To ask a frame of ours for its locals would have it hold the very error that holds it.
        return False
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    held = [frame.f_locals.get(name) for name in names]
    if code.co_flags & _VARARGS:
        rest = frame.f_locals.get(code.co_varnames[len(names)])
        held.extend(rest if isinstance(rest, tuple) else ())
    given = any(
        held[at] is interrupted and isinstance(held[at - 1], int) for at in range(1, len(held))
    )
    return given or code in _installed()


def _installed() -> "list[CodeType]":
    """The code of all handlers that are functions, methods, or objects that can be called."""
    # The script has loaded it if it has handlers.
    signals: Any = sys.modules.get("_signal")
    if signals is None:
        return []
    handlers = [signals.getsignal(number) for number in signals.valid_signals()]
    called = [each if hasattr(each, "__code__") else _called(each) for each in handlers]
    return [each.__code__ for each in called if hasattr(each, "__code__")]


def _called(handler: "Any") -> "Any":
    """The function that a call of anything else runs."""
    return getattr(handler, "func", None) or type(handler).__call__


def held_back(work: "Callable[[], None]") -> None:
    """Do work that no signal may tear apart: SIGINT and SIGTERM have their effect after it.

    Their handlers are exchanged meanwhile, since a blocked signal goes to another thread. For the
    end of the script's process, when nothing of the script's runs.
    """
    import signal

    arrived: list[int] = []
    handlers: dict[int, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        # None is a handler that Python cannot put back.
        if handler not in (None, signal.SIG_IGN):
            handlers[number] = handler
            signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        work()
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    is_interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
    for each in dict.fromkeys(arrived):
        # A script that ends by Ctrl-C already is not told of a second one.
        if not is_interrupted or handlers[each] is not signal.default_int_handler:
            signal.raise_signal(each)
