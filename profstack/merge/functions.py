"""The tables that come from cProfile: functions and calls, of the steps and of the start-up.

Every function says whose it is: the user's own, a library's by its package, or built in.

cProfile's own cost stands in its times: a part of each call in the callee's own time, the rest in
the caller's. What it is on this machine was measured in the process that was profiled, and is
taken off in `corrected_self_s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from profstack.merge.recorded import Recorded, Selection, nullable
from profstack.ownfiles import BUILTIN_FILE, Places
from profstack.privacy import home_relative

PROFILED = (("timed",), ("shared",), ("whole",))
COST = "cprofile_cost"
_KEYS = ["file", "line", "name"]
_CALLER = [f"caller_{key}" for key in _KEYS]
_KINDS = ("python", "builtin")
# A factor that is told: less is within what the measurement of it scatters by.
_SLOWER = 1.1


def functions(
    recorded: Recorded,
    selection: Selection | None,
    clean_s: float | None,
    watched: Mapping[tuple[str, int, str], float],
) -> list[dict[str, Any]]:
    """Rows of `functions`, the longest own time first; the start-up's stand after the steps'.

    `watched` are the shares that the watch gives functions in steps, by file, line and name.
    """
    rows = []
    places = Places.read(recorded.facts)
    if selection is not None:
        overhead = _overhead(recorded, recorded.rows("calls", selection))
        frame = recorded.rows("functions", selection)
        rows += _function_rows(frame, selection, clean_s, "step", overhead, places)
        for row in rows:
            row["watch_share"] = watched.get((row["file"], row["line"], row["name"]))
    startup, made = recorded.frames["functions"], recorded.frames["calls"]
    startup, made = startup[startup["slice"].isna()], made[made["slice"].isna()]
    once = Selection([], None, 1, 0.0)
    overhead = _overhead(recorded, made)
    return rows + _function_rows(startup, once, None, "startup", overhead, places)


def _function_rows(
    frame: pd.DataFrame,
    selection: Selection,
    clean_s: float | None,
    phase: str,
    overhead: _Overhead | None,
    places: Places | None,
) -> list[dict[str, Any]]:
    columns = ["calls", "primitive_calls", "self_s", "total_s"]
    summed = frame.groupby(_KEYS)[columns].sum().sort_values("self_s", ascending=False)
    return [
        {
            "phase": phase,
            "file": home_relative(str(file)),
            "line": int(line),
            "name": name,
            "calls": selection.per_step(totals["calls"]),
            "primitive_calls": selection.per_step(totals["primitive_calls"]),
            "self_s": selection.per_step(totals["self_s"]),
            "total_s": selection.per_step(totals["total_s"]),
            "calibrated_s": selection.calibrated(totals["self_s"], clean_s),
            "corrected_self_s": selection.per_step(
                overhead.corrected((file, line, name), totals) if overhead is not None else None
            ),
            "own": places.is_own(str(file)) if places is not None else None,
            "package": places.package(str(file)) if places is not None else None,
        }
        for (file, line, name), totals in summed.iterrows()
    ]


@dataclass(frozen=True)
class _Overhead:
    """What cProfile adds to the own times of functions.

    `made` is what the calls that a function makes add to its own time, with the error of that, in
    seconds over all its calls, by file, line and name.
    """

    cost: Mapping[str, Any]
    made: Mapping[Any, tuple[float, float]]

    def corrected(self, function: tuple[Any, Any, Any], totals: Any) -> float | None:
        """Own time without it; None where what is left lies within the error of what it adds.

        The error is the scatter of the cost per call, for every call.
        """
        cost = self.cost[_kind(function[0])]
        added, error = self.made.get(function, (0.0, 0.0))
        added += totals["calls"] * cost["inner_s"]
        error += totals["calls"] * cost["inner_spread_s"]
        left = float(totals["self_s"] - added)
        return left if left > error else None


def _overhead(recorded: Recorded, calls: pd.DataFrame) -> _Overhead | None:
    """cProfile's cost in the functions that make these calls; None where it was not measured."""
    cost = recorded.facts.get(COST)
    if cost is None:
        return None
    kinds = calls["callee_file"].map(_kind)
    frame = calls[_CALLER].assign(
        **{
            name: calls["calls"] * kinds.map({kind: cost[kind][name] for kind in _KINDS})
            for name in ("outer_s", "outer_spread_s")
        }
    )
    summed = frame.groupby(_CALLER)[["outer_s", "outer_spread_s"]].sum()
    made = zip(summed["outer_s"].tolist(), summed["outer_spread_s"].tolist(), strict=True)
    return _Overhead(cost, dict(zip(summed.index.tolist(), made, strict=True)))


def _kind(file: Any) -> str:
    return "builtin" if file == BUILTIN_FILE else "python"


def cost_in_words(recorded: Recorded) -> str | None:
    """What cProfile adds to a call on this machine; None where it was not measured."""
    cost = recorded.facts.get(COST)
    if cost is None:
        return None
    parts = [
        f"{1e6 * cost[kind]['inner_s']:.3f} us to the own time of {words} and "
        f"{1e6 * cost[kind]['outer_s']:.3f} us to that of its caller"
        for kind, words in (("python", "a Python function"), ("builtin", "a built-in one"))
    ]
    rests = f"medians of {cost['rounds']} times {cost['calls']} calls in this process"
    text = f"cProfile adds to each call {', '.join(parts)} ({rests}); corrected self is without it"
    if cost["bytecode_factor"] < _SLOWER:
        return text
    return (
        f"{text}; Python code between calls runs {cost['bytecode_factor']:.1f} times as long "
        "under a profile function of this Python, which is still in it"
    )


def calls(recorded: Recorded, selection: Selection | None) -> list[dict[str, Any]]:
    """Rows of `calls`, the longest total time first."""
    frame = recorded.frames["calls"]
    rows = []
    if selection is not None:
        rows += _call_rows(recorded.rows("calls", selection), selection, "step")
    once = Selection([], None, 1, 0.0)
    return rows + _call_rows(frame[frame["slice"].isna()], once, "startup")


def _call_rows(frame: pd.DataFrame, selection: Selection, phase: str) -> list[dict[str, Any]]:
    if not len(frame):
        return []
    keys = [f"{side}_{key}" for side in ("caller", "callee") for key in _KEYS]
    summed = frame.groupby(keys)[["calls", "self_s", "total_s"]].sum()
    rows = []
    for key, totals in summed.sort_values("total_s", ascending=False).iterrows():
        rows.append(
            {
                "phase": phase,
                "caller": place(*key[:3]),
                "callee": place(*key[3:]),
                "calls": selection.per_step(totals["calls"]),
                "self_s": selection.per_step(totals["self_s"]),
                "total_s": selection.per_step(totals["total_s"]),
            }
        )
    return rows


def place(file: Any, line: Any, name: Any) -> str:
    """A function as one string: file:line(name)."""
    return f"{home_relative(str(file))}:{int(nullable(line) or 0)}({name})"
