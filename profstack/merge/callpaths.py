"""The tree of a step from Python functions to operators to kernels, cut down to what matters.

What takes less than a thousandth of the step stands together under its caller, as "(other)": own
time and callees add up to a node's total all the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from profstack.merge.recorded import Recorded, Selection, records
from profstack.ownfiles import Places
from profstack.privacy import home_relative

STACKS = (("stacks",),)
OTHER = "(other)"
SMALL_SHARE = 1e-3
MOST_NODES = 3_000
_KINDS = ("function", "operator", "kernel")
_SUMS = ("calls", "total_s", "self_s", "device_s")

Rows = list[dict[str, Any]]


def call_paths(recorded: Recorded) -> Rows:
    """Rows of `call_paths`, callers before what they call and the longest first."""
    selection = recorded.select("torch", STACKS)
    if selection is None:
        return []
    # Trees of several slices have nodes of their own: the latest is the warmest.
    frame = recorded.frames["call_paths"]
    rows = records(frame[frame["slice"] == selection.slices[-1]])
    places = Places.read(recorded.facts)
    return [_shown(row, _steps(recorded, selection), places) for row in folded(rows)]


def _steps(recorded: Recorded, selection: Selection) -> int:
    slices = recorded.slices
    own = slices.loc[slices["slice"] == selection.slices[-1], "counted_steps"]
    return max(1, int(own.sum()))


def _shown(row: dict[str, Any], steps: int, places: Places | None) -> dict[str, Any]:
    file = row["file"]
    return {
        **{name: row[name] for name in ("node", "parent", "kind", "name")},
        **{name: None if row[name] is None else row[name] / steps for name in _SUMS},
        "file": home_relative(file) if file is not None else None,
        "line": None if row["line"] is None else int(row["line"]),
        "own": places.is_own(file) if places is not None and file is not None else None,
    }


def folded(rows: Sequence[Mapping[str, Any]], most: int = MOST_NODES) -> Rows:
    """The tree without its small branches: at most about `most` nodes, numbered anew.

    A branch is small where it takes less than a thousandth both of the host's time and of the
    device's, or more where too many are left; those under one node become one.
    """
    children: dict[Any, Rows] = defaultdict(list)
    for row in rows:
        children[row["parent"]].append(dict(row))
    whole = [sum(_of(row, column) for row in children[None]) for column in ("total_s", "device_s")]
    share = SMALL_SHARE
    while True:
        kept = _kept(children, [share * each for each in whole])
        if len(kept) <= most or share >= 1:
            return kept
        share *= 2


def _of(row: Mapping[str, Any], column: str) -> float:
    value = row[column]
    return 0.0 if value is None else float(value)


def _time(row: Mapping[str, Any]) -> tuple[float, float]:
    return _of(row, "total_s"), _of(row, "device_s")


def _kept(children: Mapping[Any, Rows], small: Sequence[float]) -> Rows:
    made: Rows = []
    # What is to be gone through: the number it had, and the one it has now.
    waiting: list[tuple[Any, Any, dict[str, Any] | None]] = [(None, None, None)]
    while waiting:
        before, parent, row = waiting.pop()
        if row is not None:
            made.append({**row, "node": len(made) + 1, "parent": parent})
            parent = len(made)
        if before is None and row is not None:
            continue
        below = sorted(children.get(before, ()), key=_time, reverse=True)
        large = [each for each in below if not _is_small(each, small)]
        rest = [each for each in below if _is_small(each, small)]
        if len(rest) > 1 or (rest and rest[0]["node"] in children):
            rest = [_together(rest)]
        # The last one is gone through first.
        for each in reversed([*large, *rest]):
            waiting.append((each["node"], parent, each))
    return made


def _is_small(row: Mapping[str, Any], small: Sequence[float]) -> bool:
    host, device = small
    # Without a device its limit is 0, as is the time of every node.
    return _of(row, "total_s") < host and not (device and _of(row, "device_s") >= device)


def _together(rows: Rows) -> dict[str, Any]:
    """One row for several branches, whose time with all they call is its own."""
    sums = {name: _sum(row[name] for row in rows) for name in ("calls", "total_s", "device_s")}
    kinds = {row["kind"] for row in rows}
    return {
        "node": None,
        "kind": next(kind for kind in _KINDS if kind in kinds),
        "name": OTHER,
        "file": None,
        "line": None,
        **sums,
        "self_s": sums["total_s"],
    }


def _sum(values: Any) -> float | int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
