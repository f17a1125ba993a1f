"""What is put aside while a benchmark's own loop is timed, and put back afterwards.

A trace or profile function (a debugger's, coverage's) would be timed with every call, and a
garbage collection falls on whichever call happens to be running. Both are the loop's business
only: the calls of `profstack run` are timed as the script has them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

GC_OFF = "off while timing, collected between blocks of samples"
GC_ON = "as the program has it"


@contextmanager
def undisturbed(*, collect: bool = False) -> Iterator[None]:
    """This thread without trace and profile functions, and, unless `collect`, without collections.

    Garbage of before is collected first, so that it is nobody's cost later.
    """
    trace, profile = sys.gettrace(), sys.getprofile()
    was_enabled = gc.isenabled()
    if not collect:
        gc.collect()
        gc.disable()
    if trace is not None:
        sys.settrace(None)
    if profile is not None:
        sys.setprofile(None)
    try:
        yield
    finally:
        if profile is not None:
            sys.setprofile(profile)
        if trace is not None:
            sys.settrace(trace)
        if not collect and was_enabled:
            gc.enable()
