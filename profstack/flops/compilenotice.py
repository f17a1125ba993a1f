"""To be told when dynamo begins to compile: a counter that it could see must be gone by then."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class CompileNotice:
    """Calls `told` before dynamo compiles anything, from the first `look` that finds dynamo on.

    A script may import dynamo at any time, so a counter looks again whenever it is entered.
    """

    def __init__(self, told: Callable[..., None]) -> None:
        self._told = told
        self._handler: Any = None

    def look(self) -> None:
        """Ask to be told, if dynamo is there by now."""
        callback = sys.modules.get("torch._dynamo.callback")
        if self._handler is None and callback is not None:
            self._handler = callback.callback_handler
            self._handler.register_start_callback(self._told)

    def end(self) -> None:
        """Ask no more; safe to call twice."""
        handler, self._handler = self._handler, None
        if handler is not None and self._told in handler.start_callbacks:
            handler.start_callbacks.remove(self._told)
