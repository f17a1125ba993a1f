"""A program that reads a profile of cProfile from its standard input and writes it as JSON.

Marshal data from others can exhaust memory, loop for ever or end the interpreter. So it is read in
this process, which may take little of each; it imports nothing of profstack's. `prof_file` starts
it, and checks again what it writes.
"""

from __future__ import annotations

import json
import marshal
import sys
from types import CodeType

# Functions and calls between them, so that calls which many functions share end.
MOST_ROWS = 5_000_000


def main(most_bytes: int, most_cpu_s: int) -> None:
    """Write `{"functions", "rows", "calls"}` or `{"error"}`, within so much memory and CPU time.

    `functions` are file, line and name; `rows` the number of a function in that list and its
    figures; `calls` the numbers of caller and callee and the call's figures. Figures are primitive
    calls, calls, own and total seconds; null where the profile has calls alone.
    """
    try:
        import resource
    except ImportError:
        # A system without limits.
        pass
    else:
        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
        resource.setrlimit(resource.RLIMIT_CPU, (most_cpu_s, most_cpu_s))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        found = table(marshal.loads(sys.stdin.buffer.read()))
    except MemoryError:
        found = {"error": "would take too much memory"}
    except (ValueError, EOFError, TypeError) as error:
        found = {"error": f"is damaged ({error})"}
    json.dump(found, sys.stdout)


def table(profile: object) -> dict[str, object]:
    """Return the lists of `main`; raises ValueError for what is no profile."""
    if not isinstance(profile, dict):
        raise ValueError("no dictionary of functions")
    numbers: dict[tuple[str, int, str], int] = {}
    rows: list[list[object]] = []
    calls: list[list[object]] = []
    for function, entry in profile.items():
        callee = _number(numbers, function)
        if not isinstance(entry, tuple) or len(entry) != 5 or not isinstance(entry[4], dict):
            raise ValueError("a function without its five figures")
        primitive, every, own_s, total_s = _figures(entry[:4])
        rows.append([callee, primitive, every, own_s, total_s])
        if len(rows) + len(calls) + len(entry[4]) > MOST_ROWS:
            raise ValueError(f"more than {MOST_ROWS:,} functions and calls")
        for caller, figures in entry[4].items():
            if isinstance(figures, int):
                # The module `profile` knows how often, and nothing else.
                ours: list[object] = [None, _figures((figures,))[0], None, None]
            elif isinstance(figures, tuple) and len(figures) == 4:
                # A caller has all calls before the primitive ones.
                counts = _figures(figures)
                ours = [counts[1], counts[0], *counts[2:]]
            else:
                raise ValueError("a caller without its four figures")
            calls.append([_number(numbers, caller), callee, *ours])
    return {"functions": list(numbers), "rows": rows, "calls": calls}


def _number(numbers: dict[tuple[str, int, str], int], function: object) -> int:
    if isinstance(function, tuple) and len(function) == 3 and isinstance(function[2], CodeType):
        # The module `profile` names the code that it was given by the code itself.
        function = (*function[:2], function[2].co_name)
    if not isinstance(function, tuple) or [type(part) for part in function] != [str, int, str]:
        raise ValueError("a function without file, line and name")
    return numbers.setdefault(function, len(numbers))


def _figures(figures: tuple[object, ...]) -> list[object]:
    if not all(type(each) in (int, float) for each in figures):
        raise ValueError("a figure that is no number")
    return list(figures)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
