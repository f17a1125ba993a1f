"""What cProfile itself adds to a call, measured in the process and at the time that it profiles.

Of each call cProfile reads the clock twice. What it does between them counts as the callee's own
time (`inner`), what it does before and after as the caller's (`outer`). Both are measured on
functions that do nothing, so that an empty function comes out at about 0 and what a call costs
without a profiler stays with the caller. Python functions and built-in ones differ.

The loops here are short and everything they touch is in the caches: in a program each call costs
this much or more. What is taken off is too little rather than too much.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from itertools import repeat
from statistics import median, quantiles
from time import perf_counter
from typing import Any

PYTHON, BUILTIN = "python", "builtin"

_CALLS = 500
_ROUNDS, _FEWEST = 15, 5
_LONGEST_S = 0.02


def measure() -> dict[str, Any] | None:
    """Seconds that cProfile adds to a call, by kind of function; None where it cannot be told.

    `{"python": {"inner_s", "outer_s", "inner_spread_s", "outer_spread_s"}, "builtin": the same,
    "bytecode_factor", "calls", "rounds"}`: medians of `rounds` rounds of `calls` calls, spreads
    their interquartile ranges. `bytecode_factor` is what Python code without a single call takes
    under a profile function, over what it takes without: nothing that is counted by call covers
    that. Takes about 10 ms. Where this thread has a trace or profile function, nothing is done:
    they would be told of calls that are not the program's.
    """
    if sys.getprofile() is not None or sys.gettrace() is not None:
        return None
    rounds: list[dict[str, float]] = []
    began = perf_counter()
    try:
        # The first round is slower: the interpreter adapts to code that it runs often.
        _round()
        while len(rounds) < _ROUNDS:
            rounds.append(_round())
            if len(rounds) >= _FEWEST and perf_counter() - began > _LONGEST_S:
                break
    except (ValueError, KeyError):
        # Another tool has the profiler's place, or takes it meanwhile.
        return None
    columns = {name: [each[name] for each in rounds] for name in rounds[0]}
    cost: dict[str, Any] = {
        kind: {
            name: value
            for part in ("inner", "outer")
            for name, value in (
                (f"{part}_s", max(0.0, median(columns[f"{kind}_{part}"]))),
                (f"{part}_spread_s", _spread(columns[f"{kind}_{part}"])),
            )
        }
        for kind in (PYTHON, BUILTIN)
    }
    factor = median(columns["bytecode_factor"])
    return {**cost, "bytecode_factor": factor, "calls": _CALLS, "rounds": len(rounds)}


def _round() -> dict[str, float]:
    """All of it once: clean and profiled next to each other."""
    clean = {loop: _timed(loop, call) for loop, call in _LOOPS.items()}
    profiled, callees = _profiled()
    base, clean_base = profiled[_idle], clean[_idle]
    found = {"bytecode_factor": profiled[_compute] / clean[_compute]}
    for kind, loop in ((PYTHON, _call_python), (BUILTIN, _call_builtin)):
        # Without the loop's own code, which a profile function may slow down by itself.
        outer = (profiled[loop] - base) - (clean[loop] - clean_base)
        found |= {f"{kind}_inner": callees[kind] / _CALLS, f"{kind}_outer": outer / _CALLS}
    return found


def _timed(loop: Callable[[Any], None], call: Any) -> float:
    start = perf_counter()
    loop(call)
    return perf_counter() - start


def _profiled() -> tuple[dict[Any, float], dict[str, float]]:
    """Own time of each loop under cProfile, and of what two of them call."""
    from _lsprof import Profiler

    profiler = Profiler()
    profiler.enable()
    try:
        for loop, call in _LOOPS.items():
            loop(call)
    finally:
        profiler.disable()
    own = {entry.code: entry.inlinetime for entry in profiler.getstats()}
    builtin = next(code for code in own if isinstance(code, str) and "gc.isenabled" in code)
    callees = {PYTHON: own[_empty.__code__], BUILTIN: own[builtin]}
    return {loop: own[loop.__code__] for loop in _LOOPS}, callees


def _spread(values: list[float]) -> float:
    first, _, third = quantiles(values, n=4)
    return third - first


def _empty() -> None:
    """The least that a Python function can do."""


def _idle(call: Any) -> None:
    for _ in repeat(None, _CALLS):
        pass


def _compute(call: Any) -> None:
    value, other = 1, 3
    for _ in repeat(None, _CALLS):
        value = value ^ other
        value = value + other if value < 100 else 1


# Two functions that do the same: a profile has one entry per code object.
def _call_python(call: Any) -> None:
    for _ in repeat(None, _CALLS):
        call()


def _call_builtin(call: Any) -> None:
    for _ in repeat(None, _CALLS):
        call()


_LOOPS: dict[Any, Any] = {
    _idle: None,
    _compute: None,
    _call_python: _empty,
    # It reads one flag: of the built-in functions without arguments among the shortest.
    _call_builtin: gc.isenabled,
}
