"""Keeps a line of torch's from the script's standard error while its memory is profiled.

The CPU's allocator warns there of the first block that is given back in a profile without having
been given out in one, and of every thousandth after it. No call of torch's switches that off alone.
So the first one is a block of ours, given back while torch writes no warnings: for microseconds,
lest one of the script's be lost.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from profstack.interrupts import is_scripts

# The level of torch's own log from which on it is written: errors, no warnings.
_ERRORS = 2
_FLAG = "FLAGS_caffe2_log_level"


class FirstGivenBack:
    """A block of the CPU's that is taken before a profile and given back right after its start."""

    def __init__(self) -> None:
        # A storage: no mode of the script's hears of it, as of a tensor.
        self._block: Any = sys.modules["torch"].UntypedStorage(8)

    def give_back(self) -> None:
        """Give it back unseen; where torch's level cannot be reached it is written as ever."""
        try:
            level = _level()
            before = level.value if level is not None else _ERRORS
            if level is None or not 0 <= before < _ERRORS:
                self._block = None
                return
            try:
                level.value = _ERRORS
                self._block = None
            finally:
                level.value = before
        except Exception as error:
            if is_scripts(error):
                raise
            # It is but a line.


def _level() -> Any:
    """The number that torch's log reads, in its library that is loaded; None where it has none."""
    path = Path(sys.modules["torch"].__file__ or "").parent / "lib" / "libc10.so"
    if not hasattr(os, "RTLD_NOLOAD"):
        return None
    try:
        ctypes: Any = importlib.import_module("ctypes")
        return ctypes.c_int.in_dll(ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD), _FLAG)
    except (ImportError, OSError, ValueError):
        return None
