"""How many calls of functions a step makes: one layer counts them, another has to know.

The stack of a step can be traced only where its calls fit into memory, which their number tells;
cProfile counts them exactly, in memory that does not grow with them.
"""

from __future__ import annotations

from pathlib import Path

# By the folder of the recording: one process may record several, one after the other.
_counted: dict[Path, float] = {}


def count_calls(recording: Path, calls: int, steps: int) -> None:
    """A slice of `steps` steps made `calls` calls, those of built-in functions included."""
    if steps > 0:
        _counted[recording] = max(_counted.get(recording, 0.0), calls / steps)


def calls_per_step(recording: Path) -> float | None:
    """The most calls a step of any slice made on average; None where nobody has counted."""
    return _counted.get(recording)
