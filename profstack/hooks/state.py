"""What the wrappers on torch's functions share: the mode they are in, and whom they tell."""

from __future__ import annotations

import _thread
import threading
from _thread import get_ident
from dataclasses import dataclass, field
from typing import Any

from profstack.engine.sink import Sink
from profstack.regions import ModuleNames, Named
from profstack.wrapper import Listener

# Which wrapper stands on the modules' calls: none, one on the root's class (LIGHT for evaluation
# alone, ROOT for waiting times too), one on all calls (to find roots), or one that emits ranges.
# QUIET tells of evaluation too, but only where the root is switched to it, not at each call.
OFF, QUIET, LIGHT, ROOT, DISCOVER, RANGES = "off", "quiet", "light", "root", "discover", "ranges"

# What a thread is inside of during a backward pass. Modules called there (checkpointing does
# forward work again) are inner calls, and passes inside it (re-entrant ones) are parts of it.
IN_BACKWARD = Named(0, "(backward)", None, "", 1, None, None)
# Stands for a module that could not be named.
NAMELESS = Named(0, "(module without a name)", None, "", 1, None, None)


class ThreadState(_thread._local):
    """What one thread is inside of: the module being called, and a `generate`."""

    current: Named | None = None
    generating: bool = False


@dataclass
class HookState:
    """One per set of hooks; `live` is the wrapper of calls that does the work.

    Any other, left under somebody else's, passes through. `listener` is told of calls and passes
    on the thread `listening`, in mode DISCOVER.
    """

    torch: Any
    sink: Sink
    names: ModuleNames
    mode: str = OFF
    live: Any = None
    # The thread whose calls get ranges, while a profiler is on. torch raises where a range is left
    # under a profiler that was not there yet when it was entered.
    ranging: int | None = None
    listener: Listener | None = None
    listening: int | None = None
    local: ThreadState = field(default_factory=ThreadState)

    def ranges_here(self) -> bool:
        """Whether calls on this thread get ranges: the steps' own, and autograd's for a device.

        Autograd runs what a device's backward functions call (forward work done again) on a thread
        that Python has not made, and profiles it with the thread that asked for the pass.
        """
        if self.ranging is None:
            return False
        here = get_ident()
        if self.ranging == here:
            return True
        thread = threading._active.get(here)  # type: ignore[attr-defined]  # no other way
        if thread is not None and not isinstance(thread, threading._DummyThread):
            return False
        return bool(self.torch._C._current_graph_task_id() >= 0)

    def told(self) -> Listener | None:
        """The listener, on the thread that it listens to."""
        listener = self.listener
        return listener if listener is not None and self.listening == get_ident() else None
