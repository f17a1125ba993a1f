"""The history that torch keeps of what is allocated on a CUDA device, over one slice.

A process has one such history. What the script does to it while the slice lasts makes it the
script's own: from then on it is neither read nor ended here.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from profstack.interrupts import is_scripts

# Allocations that the history holds.
_MOST_ALLOCATIONS = 100_000
# All ways to begin and end a history come by these, under whatever name the script knows them.
_SWITCHES = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")


class DeviceHistory:
    """Begins and ends a history; `problems` are notes, as slug and text."""

    def __init__(self) -> None:
        self.problems: list[tuple[str, str]] = []
        self._recording = False
        self._is_scripts = False
        # The wrappers that stand on torch's switches, each with what it stands on.
        self._standing: dict[str, tuple[Any, Any]] = {}

    def begin(self) -> None:
        """Let torch record, where the script uses a CUDA device and has no history itself."""
        torch = sys.modules["torch"]
        is_recording = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        if not torch.cuda.is_initialized() or is_recording is None or is_recording():
            return
        with self._noting_problems():
            torch.cuda.memory._record_memory_history(stacks="python", max_entries=_MOST_ALLOCATIONS)
            self._recording = True
            self._stand_on(torch._C)

    def end(self, path: Path) -> bool:
        """Write the history to `path` and let torch record no more; whether there is a file."""
        self._step_off()
        if not self._recording:
            return False
        self._recording = False
        if self._is_scripts:
            text = "the script called torch.cuda.memory._record_memory_history meanwhile"
            self.problems.append(("no-snapshot", f"no history of the device's memory: {text}"))
            return False
        memory = sys.modules["torch"].cuda.memory
        written = False
        with self._noting_problems():
            try:
                memory._dump_snapshot(str(path))
                written = True
            finally:
                memory._record_memory_history(enabled=None)
        return written

    def abandon(self) -> None:
        """In a forked child there is no device."""
        self._step_off()
        self._recording = False

    def _stand_on(self, torch_c: Any) -> None:
        for name in _SWITCHES:
            original = getattr(torch_c, name, None)
            if original is not None:
                wrapper = self._told(original)
                self._standing[name] = (wrapper, original)
                setattr(torch_c, name, wrapper)

    def _told(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def switch(*arguments: Any, **keywords: Any) -> Any:
            self._is_scripts = True
            return original(*arguments, **keywords)

        return switch

    def _step_off(self) -> None:
        torch_c = sys.modules["torch"]._C
        for name, (wrapper, original) in self._standing.items():
            # Somebody else's wrapper on top of ours stays, and ours passes through.
            if getattr(torch_c, name, None) is wrapper:
                setattr(torch_c, name, original)
        self._standing.clear()

    @contextlib.contextmanager
    def _noting_problems(self) -> Iterator[None]:
        """These functions are torch's own: without them the lines still have their figures."""
        try:
            yield
        except Exception as error:
            if is_scripts(error):
                raise
            text = f"no history of the device's memory: {type(error).__name__}: {error}"
            self.problems.append(("no-snapshot", text))
