"""The tables of Python functions, their calls, and call paths.

Every function has an owner: the user's own files, a library by its package, or Python itself.

cProfile's own cost is in its times: a part of each call in the callee's own time, the rest in the
caller's. It was measured in the process that was profiled, and `corrected_self_s` is without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, cast

from profstack.code_owner import BUILTIN_FILE, Places
from profstack.privacy import home_relative
from profstack.storage.reader import (
    NO_SLICES,
    ONCE,
    Recorded,
    Row,
    Selection,
    grouped,
    known_sum,
    ratio,
    sums,
)
from profstack.storage.schema.facts import CallCost, ProfilerCost
from profstack.storage.schema.report import table_rows
from profstack.storage.schema.rows import CallPathRow, CallRow, FunctionRow, Profiled
from profstack.storage.vocabulary import PROGRAM

PROFILED = (("timed",), ("shared",), ("whole",))
COST = "cprofile_cost"
# File, line of the definition and name.
FunctionKey = tuple[str, int, str]
_KEYS = ["file", "line", "name"]
_CALLER = [f"caller_{key}" for key in _KEYS]
_CALLEE = [f"callee_{key}" for key in _KEYS]
# A smaller factor of slowing is within the scatter of its measurement.
_SLOWER = 1.1
# A function with so few calls in a slice has no average: in one slice a call may have been
# preempted. It has if a call took so many times as long as in another slice, and so much longer.
FEW_CALLS = 20
PREEMPTED = 5.0
PREEMPTED_S = 20e-6
# Caches are filled anew after a wait for a core, which takes less than this beside the wait.
WITH_WAIT = 1.2


def functions(
    recorded: Recorded,
    selection: Selection | None,
    clean_s: float | None,
    watched: Mapping[FunctionKey, float],
) -> list[FunctionRow]:
    """Rows of `functions`: those of the steps, then those of the start-up, longest own time first.

    `watched` are the shares that the watch gives functions in steps.
    """
    places = Places.read(recorded.facts)
    cost: ProfilerCost | None = recorded.facts.get(COST)
    columns = ("calls", "primitive_calls", "self_s", "total_s")
    rows = []
    for phase, chosen in _phases(recorded, selection):
        by_calls = _added_by_calls(_of_phase(recorded, "calls", chosen), cost)
        kept, taken_off = without_preempted(
            _of_phase(recorded, "functions", chosen), recorded.table("slices")
        )
        for key, totals in sums(kept, _KEYS, columns, largest="self_s"):
            function = home_relative(str(key[0])), int(key[1] or 0), str(key[2])
            self_s, count, corrected = totals["self_s"], totals["calls"], None
            if cost is not None and self_s is not None and count is not None:
                each = _call_cost(key[0], cost)
                added_s, error_s = by_calls.get(key, (0.0, 0.0))
                left_s = self_s - (added_s + count * each["inner_s"])
                # The error is the scatter of every call.
                is_known = left_s > error_s + count * each["inner_spread_s"]
                corrected = left_s if is_known else None
            rows.append(
                {
                    "phase": phase,
                    **dict(zip(_KEYS, function, strict=True)),
                    "own": places.is_own(str(key[0])) if places is not None else None,
                    **chosen.figures(totals, clean_s),
                    "corrected_self_s": chosen.per_step(corrected),
                    "watch_share": watched.get(function) if phase == "step" else None,
                    "package": places.package(str(key[0])) if places is not None else None,
                    "preempted_s": chosen.per_step(taken_off.get(key)),
                }
            )
    return table_rows("functions", rows)


def without_preempted(
    rows: Sequence[Row], slices: Sequence[Row]
) -> tuple[list[Row], Mapping[tuple[Any, ...], float]]:
    """Return the rows with calls that were preempted in one slice as in the fastest other one.

    And the seconds that this takes off, by file, line and name: of a slice no more than its thread
    was measured to wait for a core. A longer call had other work.
    """
    timed = [
        (number, row["self_s"] / row["calls"])
        for number, row in enumerate(rows)
        if row["slice"] is not None and row["calls"] and row["self_s"] is not None
    ]
    by_function: dict[tuple[Any, ...], list[tuple[int, float]]] = defaultdict(list)
    for number, each_s in timed:
        by_function[tuple([rows[number][key] for key in _KEYS])].append((number, each_s))
    lost: list[tuple[float, int]] = []
    for several in by_function.values():
        if len(several) < 2 or max(rows[number]["calls"] for number, _ in several) > FEW_CALLS:
            continue
        least_s = min(each_s for _, each_s in several)
        for number, each_s in several:
            lost_s = rows[number]["self_s"] - rows[number]["calls"] * least_s
            if each_s > PREEMPTED * least_s and lost_s > PREEMPTED_S:
                lost.append((lost_s, number))
    left_s = {row["slice"]: row["delay_s"] or 0.0 for row in slices}
    kept, taken = [*rows], defaultdict[tuple[Any, ...], float](float)
    for lost_s, number in sorted(lost, reverse=True):
        row = rows[number]
        if lost_s <= WITH_WAIT * left_s.get(row["slice"], 0.0):
            taken_s = min(lost_s, left_s[row["slice"]])
            left_s[row["slice"]] -= taken_s
            kept[number] = {**row, **{name: row[name] - taken_s for name in ("self_s", "total_s")}}
            taken[tuple([row[key] for key in _KEYS])] += taken_s
    return kept, taken


def _phases(
    recorded: Recorded, selection: Selection | None
) -> tuple[tuple[Profiled, Selection], ...]:
    program = recorded.select("cprofile", ((PROGRAM,),)) or NO_SLICES
    if not recorded.steps:
        # There is nothing else that the profile could be of.
        return ("step", selection or program), ("startup", ONCE)
    return ("step", selection or NO_SLICES), ("startup", ONCE), ("program", program)


def _of_phase(recorded: Recorded, table: str, selection: Selection) -> list[Row]:
    """Return the rows of the selected slices, or those of the start-up, which have no slice."""
    if selection is not ONCE:
        return recorded.rows(table, selection)
    return [row for row in recorded.table(table) if row["slice"] is None]


def _call_cost(file: str, cost: ProfilerCost) -> CallCost:
    return cost["builtin"] if file == BUILTIN_FILE else cost["python"]


def _added_by_calls(
    calls: Sequence[Row], cost: ProfilerCost | None
) -> dict[tuple[Any, ...], tuple[float, float]]:
    """Return what the calls that a function makes add to its own time, with the error of that."""
    if cost is None:
        return {}
    found: dict[tuple[Any, ...], tuple[float, float]] = {}
    for key, rows in grouped(calls, *_CALLER).items():
        each = [(row["calls"] or 0, _call_cost(row["callee_file"], cost)) for row in rows]
        added_s, error_s = (
            sum(count * of_call[name] for count, of_call in each)
            for name in ("outer_s", "outer_spread_s")
        )
        found[key] = added_s, error_s
    return found


def cost_in_words(recorded: Recorded) -> str | None:
    """Say what cProfile adds to a call on this machine; None where it was not measured."""
    cost: ProfilerCost | None = recorded.facts.get(COST)
    if cost is None:
        return None
    kinds = ((cost["python"], "a Python function"), (cost["builtin"], "a built-in one"))
    parts = [
        f"{1e6 * each['inner_s']:.3f} us to the own time of {words} and "
        f"{1e6 * each['outer_s']:.3f} us to that of its caller"
        for each, words in kinds
    ]
    rests = f"medians of {cost['rounds']} times {cost['calls']} calls in this process"
    text = f"cProfile adds to each call {', '.join(parts)} ({rests}); corrected self is without it"
    if cost["bytecode_factor"] < _SLOWER:
        return text
    return (
        f"{text}; Python code between calls runs {cost['bytecode_factor']:.1f} times as long "
        "under a profile function of this Python, which is still in it"
    )


def calls(recorded: Recorded, selection: Selection | None) -> list[CallRow]:
    """Rows of `calls`, the longest total time first."""
    keys, columns = (*_CALLER, *_CALLEE), ("calls", "self_s", "total_s")
    rows = []
    for phase, chosen in _phases(recorded, selection):
        found = _of_phase(recorded, "calls", chosen)
        for row in recorded.step_rows(found, chosen, keys, columns, largest="total_s"):
            caller, callee = (place(*(row[key] for key in side)) for side in (_CALLER, _CALLEE))
            rows.append({**row, "phase": phase, "caller": caller, "callee": callee})
    return table_rows("calls", rows)


def place(file: Any, line: Any, name: Any) -> str:
    """Return a function as one string: file:line(name)."""
    return f"{home_relative(str(file))}:{line or 0}({name})"


# --- Call paths: the tree of a step from Python functions to operators to kernels -----------------
#
# Branches of less than a thousandth of the step become one node under their caller, "(other)": own
# time and callees still add up to a node's total.

STACKS = (("stacks",),)
OTHER = "(other)"
SMALL_SHARE = 1e-3
MOST_NODES = 3_000
_PATH_KINDS = ("function", "operator", "kernel")
_PATH_FIGURES = ("calls", "total_s", "self_s", "device_s")


def call_paths(recorded: Recorded) -> list[CallPathRow]:
    """Rows of `call_paths`, callers before what they call and the longest first."""
    selection = recorded.select("torch", STACKS)
    if selection is None:
        return []
    # Each slice has a tree of its own: the latest is the warmest.
    latest = selection.slices[-1]
    own = (row for row in recorded.slices if row["slice"] == latest)
    steps = max(1, sum(row["counted_steps"] or 0 for row in own))
    nodes = [row for row in recorded.table("call_paths") if row["slice"] == latest]
    places = Places.read(recorded.facts)
    rows = []
    for node in cast("list[Row]", folded(cast("list[CallPathRow]", nodes))):
        row = {**node, **{name: ratio(node[name], steps) for name in _PATH_FIGURES}}
        if node["file"] is not None:
            row["file"] = home_relative(node["file"])
            row["own"] = places.is_own(node["file"]) if places else None
        rows.append(row)
    return table_rows("call_paths", rows)


def folded(nodes: Sequence[CallPathRow], most: int = MOST_NODES) -> list[CallPathRow]:
    """Fold the small branches of the tree: at most about `most` nodes are left, numbered anew.

    A branch is small if it takes less than a thousandth both of the host's time and of the
    device's, or more if too many are left; those under one node become one.
    """
    children: dict[int | None, list[CallPathRow]] = defaultdict(list)
    for node in nodes:
        children[node["parent"]].append(node)
    host = sum(node["total_s"] or 0.0 for node in children[None])
    device = sum(node["device_s"] or 0.0 for node in children[None])
    share = SMALL_SHARE
    while True:
        kept = _kept(children, share * host, share * device)
        if len(kept) <= most or share >= 1:
            return kept
        share *= 2


def _weight(node: CallPathRow) -> tuple[float, float]:
    return node["total_s"] or 0.0, node["device_s"] or 0.0


def _kept(
    children: Mapping[int | None, list[CallPathRow]], host: float, device: float
) -> list[CallPathRow]:
    """Return the tree with the branches below both limits folded; 0 for `device` is no limit."""
    made: list[CallPathRow] = []
    # Nodes to visit, the next one last, each with its parent's new number.
    waiting: list[tuple[CallPathRow | None, int | None]] = [(None, None)]
    while waiting:
        node, parent = waiting.pop()
        if node is not None:
            made.append({**node, "node": len(made) + 1, "parent": parent})
            parent = len(made)
            if node["node"] is None:
                continue
        large: list[CallPathRow] = []
        small: list[CallPathRow] = []
        found = children.get(node["node"] if node is not None else None, ())
        for child in sorted(found, key=_weight, reverse=True):
            total_s, device_s = _weight(child)
            is_small = total_s < host and not (device and device_s >= device)
            (small if is_small else large).append(child)
        if len(small) > 1 or (small and small[0]["node"] in children):
            small = [_together(small)]
        waiting += [(child, parent) for child in reversed([*large, *small])]
    return made


def _together(nodes: Sequence[CallPathRow]) -> CallPathRow:
    """Return one node, without a number, for several branches; all their time is its own."""
    kinds = {node["kind"] for node in nodes}
    row = {
        **dict.fromkeys(CallPathRow.__annotations__),
        **{name: known_sum(node[name] for node in nodes) for name in ("calls", "device_s")},
        **dict.fromkeys(("total_s", "self_s"), known_sum(node["total_s"] for node in nodes)),
        "kind": next(kind for kind in _PATH_KINDS if kind in kinds),
        "name": OTHER,
    }
    return cast("CallPathRow", row)
