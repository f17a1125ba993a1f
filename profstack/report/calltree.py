"""The call graph as the page draws it: functions by number, edges, cycles, and where it starts.

A profile knows who called whom, not through which path. Two things can still be drawn without a
guess. A function's time is divided among its callers as its edges say. And functions that call
each other in a circle, as every nested `torch.nn.Module` does through `_call_impl`, are taken
together as one frame: inside it, each function's own time and its calls out of the circle are
exact, while "who inside whom" is not known and therefore not drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profstack.report.packages import with_package
from profstack.report.tables import MOST_ROWS, compact, left_out_text, weight

Record = Mapping[str, Any]
MOST_EDGES = 8_000
# Below this share of a function's time, a difference between sums is rounding and no entry.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class CallTree:
    """Functions `[file, line, name, calls, self_s, total_s, package]`, edges `[caller, callee,
    calls, total_s]` between their numbers, cycles as lists of numbers, and roots `[function,
    seconds]`: the time that was entered from no function of the profile.

    `callers_left` and `callees_left` tell of edges that are not here: `[function, how many,
    calls, total_s]`, so that the sums of a function's callers and callees stay exact.
    """

    functions: list[list[Any]]
    edges: list[list[Any]]
    cycles: list[list[int]]
    roots: list[list[Any]]
    callers_left: list[list[Any]]
    callees_left: list[list[Any]]
    left_out: str | None


def call_label(record: Record) -> str:
    """How `tables.calls` names a function of `tables.functions`."""
    return f"{record['file']}:{record['line']}({record['name']})"


def call_tree(functions: Sequence[Record], calls: Sequence[Record]) -> CallTree:
    """The call graph of one phase, at most as large as a page bears."""
    kept = sorted(functions, key=weight("total_s"), reverse=True)[:MOST_ROWS]
    numbers = {call_label(record): index for index, record in enumerate(kept)}
    edges: list[list[Any]] = []
    callers_left: dict[int, list[Any]] = {}
    callees_left: dict[int, list[Any]] = {}
    for call in sorted(calls, key=weight("total_s"), reverse=True):
        caller = numbers.get(str(call["caller"]))
        callee = numbers.get(str(call["callee"]))
        if caller is not None and callee is not None and len(edges) < MOST_EDGES:
            edges.append([caller, callee, compact(call["calls"]), compact(call["total_s"]) or 0])
            continue
        _add_left(callers_left, callee, call)
        _add_left(callees_left, caller, call)
    fields = ("file", "line", "name", "calls", "self_s", "total_s", "package")
    functions_kept = [
        [compact(record.get(field)) for field in fields] for record in with_package(kept)
    ]
    groups = _groups(len(kept), edges)
    return CallTree(
        functions=functions_kept,
        edges=edges,
        cycles=[members for members in groups if len(members) > 1],
        roots=[
            [function, compact(seconds)]
            for function, seconds in entries(functions_kept, edges, groups)
        ],
        callers_left=_as_lists(callers_left),
        callees_left=_as_lists(callees_left),
        left_out=left_out_text(len(kept), len(functions), "those with the most time"),
    )


def _add_left(left: dict[int, list[Any]], function: int | None, call: Record) -> None:
    """Add a call that is not among the edges to what a function has left out."""
    if function is None:
        return
    known = left.setdefault(function, [0, 0.0, 0.0])
    known[0] += 1
    known[1] += call["calls"] or 0.0
    known[2] += call["total_s"] or 0.0


def _as_lists(left: Mapping[int, Sequence[Any]]) -> list[list[Any]]:
    return [[function, *map(compact, sums)] for function, sums in left.items()]


def entries(
    functions: Sequence[Sequence[Any]],
    edges: Sequence[Sequence[Any]],
    groups: Sequence[Sequence[int]],
) -> list[tuple[int, float]]:
    """How much of each group's time no caller outside it accounts for, the largest first.

    The time of a cycle is what its functions took themselves and what they called outside it:
    their total times hold one another and cannot be added.
    """
    group_of = {function: at for at, members in enumerate(groups) for function in members}
    totals = [
        sum(functions[function][4] or 0.0 for function in members)
        if len(members) > 1
        else functions[members[0]][5] or 0.0
        for members in groups
    ]
    accounted = [0.0] * len(groups)
    for caller, callee, _, seconds in edges:
        if group_of[caller] != group_of[callee]:
            accounted[group_of[callee]] += seconds
            if len(groups[group_of[caller]]) > 1:
                totals[group_of[caller]] += seconds
    found = []
    for members, total, known in zip(groups, totals, accounted, strict=True):
        if total - known > _ROUNDING * total:
            first = max(members, key=lambda function: functions[function][5] or 0.0)
            found.append((first, total - known))
    return sorted(found, key=lambda entry: -entry[1])


def _groups(count: int, edges: Sequence[Sequence[Any]]) -> list[list[int]]:
    """The functions in groups: each cycle together, every other function alone.

    Two functions are in one cycle if each can be reached from the other; going back along the
    edges, in the reverse of the order in which the ways forth end, finds them (Kosaraju).
    """
    forth: list[list[int]] = [[] for _ in range(count)]
    back: list[list[int]] = [[] for _ in range(count)]
    for caller, callee, *_ in edges:
        forth[caller].append(callee)
        back[callee].append(caller)
    ended: list[int] = []
    seen = [False] * count
    for start in range(count):
        ended += _ended(start, forth, seen)
    seen = [False] * count
    found = (_ended(start, back, seen) for start in reversed(ended))
    return [sorted(members) for members in found if members]


def _ended(start: int, neighbours: Sequence[Sequence[int]], seen: list[bool]) -> list[int]:
    """What is reached from `start` and not yet seen, in the order in which its ways end.

    Without recursion: call graphs are deeper than Python's own stack.
    """
    if seen[start]:
        return []
    seen[start] = True
    ended = []
    work = [(start, iter(neighbours[start]))]
    while work:
        here, onward = work[-1]
        following = next((other for other in onward if not seen[other]), None)
        if following is None:
            ended.append(here)
            work.pop()
        else:
            seen[following] = True
            work.append((following, iter(neighbours[following])))
    return ended
